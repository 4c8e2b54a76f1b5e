//! The space that a reservation needs on the other members of a mirrored group.

use super::GroupService;
use std::sync::Arc;
use types::{Group, MemberState, TargetId};
use wire::{GroupContext, GroupRole, MemberSpace, ReservationSpace, StorageReply, StorageRequest};

impl GroupService {
    /// Returns the space that the other members need for a range that is about to be reserved. They
    /// execute the reservation, too, and a member with a full disk would be ejected from the group.
    /// A member that doesn't answer is left out: the change itself decides about it.
    pub(crate) async fn space_of_others(
        self: &Arc<Self>,
        group: &Group,
        own: TargetId,
        request: &StorageRequest,
    ) -> Vec<MemberSpace> {
        let part = GroupRole::Member { sequence: 0, committed: 0 };
        let in_group = GroupContext { group: group.id, version: group.since, role: part };
        let ask = |(target, _): (TargetId, MemberState)| async move {
            let asked = (request.ino, request.op.clone());
            match self.call_member(target, asked, in_group, None).await {
                Ok(StorageReply::SpaceNeeded(ReservationSpace {
                    disk, free, unallocated: wanted, ..
                })) => Some(MemberSpace { target, disk, free, wanted }),
                _ => None,
            }
        };
        let others =
            group.members_with_states().filter(|(target, state)| *target != own && state.receives_writes());
        rt::join_all(others.map(ask).collect()).await.into_iter().flatten().collect()
    }
}
