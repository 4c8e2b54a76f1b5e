//! Requests of the primary to other members.

use super::{GroupService, detached};
use rt::IoBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use types::{ChunkFileId, Errno, Error, Group, MemberState, Result, TargetId, TargetState};
use wire::{GroupContext, GroupRole, StorageOp, StorageReply, StorageRequest};

/// How long the primary waits for a member before it asks management to eject it: a client waits as
/// long. Longer than the stalls of a healthy disk.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);

/// The same where the member has to sync data to disk, which takes longer the more there is.
const SYNC_TIMEOUT: Duration = Duration::from_secs(25);

/// How often the primary checks meanwhile whether the member's node is reachable.
pub(crate) const REACHABILITY_INTERVAL: Duration = Duration::from_secs(1);

impl GroupService {
    /// Sends a request to a member as the primary. It is sent whether or not the caller continues
    /// to wait, and a member whose group has another version refuses it.
    pub(crate) async fn call_member(
        self: &Arc<Self>,
        member: TargetId,
        operation: (ChunkFileId, StorageOp),
        in_group: GroupContext,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let request = StorageRequest {
            group: Some(in_group),
            ..StorageRequest::new(types::SessionId(0), member, operation.0, operation.1)
        };
        self.send(request, payload).await
    }

    /// Sends a request to a member, and waits for the answer while the member may still give it.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let time_limit = match request.op.spec().waits_for_disk {
            true => SYNC_TIMEOUT,
            false => MEMBER_TIMEOUT,
        };
        let (member, members) = (request.target, self.peers.members.clone());
        // In a task of its own, which keeps the payload's memory until the transport releases it.
        let mut answer = pin!(detached::run(async move { members.call(request, payload).await }));
        let began_ns = rt::monotonic_ns();
        let mut wait = MEMBER_TIMEOUT;
        loop {
            if let Some(answer) = rt::timeout(wait, answer.as_mut()).await {
                return answer;
            }
            let waited = Duration::from_nanos(rt::monotonic_ns() - began_ns);
            // A slow disk gets its time; an unreachable node doesn't.
            if waited >= time_limit || !self.is_reachable(member) {
                let message = format!("target {member} hasn't answered within {} s", waited.as_secs());
                return Err(
                    Error::new(Errno::ETIMEDOUT, message).hint("check its node: weft node list, and its log")
                );
            }
            wait = REACHABILITY_INTERVAL;
        }
    }

    /// Whether management reaches a target's node.
    pub(crate) fn is_reachable(&self, target: TargetId) -> bool {
        self.map().target(target).is_some_and(|target| target.state == TargetState::Online)
    }
}

/// Returns the in-sync members besides `own`.
pub(crate) fn others_in_sync(group: &Group, own: TargetId) -> impl Iterator<Item = TargetId> {
    let good = group
        .members_with_states()
        .filter(move |(target, state)| *target != own && *state == MemberState::InSync);
    good.map(|(target, _)| target)
}

/// The context of a request that only reads from a member.
pub(crate) fn read_context(group: &Group) -> GroupContext {
    let part = GroupRole::Member { sequence: 0, committed: 0 };
    GroupContext { group: group.id, version: group.since, role: part }
}

/// The error for a reply of the wrong type.
pub(crate) fn unexpected_reply(reply: &StorageReply) -> Error {
    Error::new(Errno::EPROTO, format!("unexpected reply type from a member: {reply:?}"))
        .hint("install the same version of weft on all machines")
}
