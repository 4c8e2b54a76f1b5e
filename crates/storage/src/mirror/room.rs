//! What a reservation of space needs on the members of a mirrored group beside its primary.

use super::Mirrors;
use std::sync::Arc;
use types::{Group, MemberState, TargetId};
use wire::{InGroup, MemberRoom, Part, Room, StorageReply, StorageRequest};

impl Mirrors {
    /// What the other members need for a range that is about to be reserved. They get the
    /// reservation, too, and one whose disk has no room for it would be taken out of the group. A
    /// member that doesn't answer is left out: a change decides about it.
    pub(super) async fn room_of_others(
        self: &Arc<Self>,
        group: &Group,
        own: TargetId,
        request: &StorageRequest,
    ) -> Vec<MemberRoom> {
        let part = Part::Member { sequence: 0, settled: 0 };
        let in_group = InGroup { group: group.id, since: group.since, part };
        let ask = |(target, _): (TargetId, MemberState)| async move {
            let asked = (request.ino, request.op.clone());
            match self.ask_member(target, asked, in_group, None).await {
                Ok(StorageReply::Room(Room { disk, free, wanted, .. })) => {
                    Some(MemberRoom { target, disk, free, wanted })
                }
                _ => None,
            }
        };
        let others = group.with_states().filter(|(target, state)| *target != own && state.gets_writes());
        rt::join_all(others.map(ask).collect()).await.into_iter().flatten().collect()
    }
}
