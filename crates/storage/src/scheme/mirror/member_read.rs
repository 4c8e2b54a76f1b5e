//! Reads from an in-sync member that isn't the primary.
//!
//! Such a member has at least every acknowledged change: a change is acknowledged when all in-sync
//! members have it, and no member is ejected before it knows or its lease has expired. It may have
//! more: a change that not all members have. If a client read that here and then missed it at
//! another member, content would go back in time. So where a change isn't known to be settled, the
//! member sends the client to the primary, where the read waits.

use super::read::has_file;
use crate::group::range_locks::LockMode;
use crate::group::read::read_range;
use crate::group::replica::Replica;
use crate::group::{GroupService, version_fence};
use crate::service::execute_request;
use chunkstore::Kind;
use rt::IoBuf;
use std::sync::Arc;
use types::{Epoch, Error, MemberState, Refusal, Result};
use wire::{GroupContext, StorageReply, StorageRequest};

/// Answers a client that reads from a member of its choice.
///
/// # Errors
/// `RedirectToPrimary` where only the primary knows. `GroupVersionMismatch` when the group has
/// another version.
pub(super) async fn read_at_member(
    groups: &Arc<GroupService>,
    replica: &Replica,
    context: GroupContext,
    request: StorageRequest,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    let range = read_range(&request.op, payload.as_ref())?;
    require_readable(groups, replica, context.version)?;
    let _running = groups.fences.enter(request.session)?;
    let epoch_guard = replica.epochs.enter(request.ino, request.epoch, false).await?;
    // Before the wait, too: a change in progress stays unsettled for some time.
    let is_unsettled =
        || replica.unsettled.is_unsettled(request.ino, range) || replica.drc.has_closed_files();
    if is_unsettled() {
        return Err(redirect_to_primary(replica));
    }
    let _held = replica.ranges.acquire(request.ino, range, LockMode::Shared).await;
    if is_unsettled() {
        return Err(redirect_to_primary(replica));
    }
    replica.version_fence.enter(replica.group, context.version, false).await?;
    let ino = request.ino;
    let reply = match execute_request(&replica.store, &request, payload).await {
        // The primary knows whether other members have the file.
        Ok(_) if !has_file(replica, ino).await => return Err(redirect_to_primary(replica)),
        Ok(reply) => reply,
        Err(error) => {
            replica.failed(&error);
            if matches!(error.kind(), Kind::Io | Kind::Corrupt { .. }) {
                groups.repair_later(replica, ino, range);
            }
            return Err(redirect_to_primary(replica));
        }
    };
    // The member was in sync until now, so its content is what every client may rely on.
    require_readable(groups, replica, context.version)?;
    epoch_guard.check().map(|()| reply)
}

fn require_readable(groups: &GroupService, replica: &Replica, since: Epoch) -> Result<()> {
    let view = groups.view(replica.group);
    let group = view.group()?;
    replica.update_group(group);
    if group.since != since {
        return Err(version_fence::version_mismatch(replica.group));
    }
    let is_good = group.state_of(replica.target) == Some(MemberState::InSync);
    match is_good && !replica.is_unclean() && groups.lease.is_valid(rt::monotonic_ns()) {
        true => Ok(()),
        false => Err(redirect_to_primary(replica)),
    }
}

fn redirect_to_primary(replica: &Replica) -> Error {
    let message =
        format!("target {} of group {} doesn't know the current content", replica.target, replica.group);
    Error::new(Refusal::RedirectToPrimary, message).hint("the client asks the group's primary automatically")
}
