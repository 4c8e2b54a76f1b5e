//! The space that a reservation needs on the other members of a mirrored group.

use super::Mirrors;
use std::sync::Arc;
use types::{Group, MemberState, TargetId};
use wire::{InGroup, MemberRoom, Part, Room, StorageReply, StorageRequest};

impl Mirrors {
    /// Returns the space that the other members need for a range that is about to be reserved. They
    /// execute the reservation, too, and a member with a full disk would be ejected from the group.
    /// A member that doesn't answer is left out: the change itself decides about it.
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
