//! Reads at the primary: it executes them while no change that isn't on all members is visible.

use super::range_locks::{LockMode, WHOLE_FILE};
use super::version_fence::version_mismatch;
use super::{GroupService, Replica};
use rt::IoBuf;
use std::sync::Arc;
use types::{ByteRange, Errno, Error, Group, Result};
use wire::{StorageOp, StorageReply, StorageRequest};

/// A read-only request and its group.
pub(crate) struct ReadRequest<'a> {
    pub(crate) group: &'a Group,
    pub(crate) request: &'a StorageRequest,
    pub(crate) payload: &'a Option<IoBuf>,
}

impl GroupService {
    /// Executes a read-only request while no change that isn't on all members is visible.
    pub(crate) async fn execute_read(
        self: &Arc<Self>,
        replica: &Replica,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let _running = self.fences.enter(request.session)?;
        let epoch_guard = replica.epochs.enter(request.ino, request.epoch, false).await?;
        let range = read_range(&request.op, payload.as_ref())?;
        let _held = replica.ranges.acquire(request.ino, range, LockMode::Shared).await;
        // After the wait, another member may be the primary.
        self.wait_for_lease(replica.target).await?;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        let needs_recovery = replica.forced_recovery.is_required(group, replica.target);
        if replica.is_stepping_down(group.since) || replica.has_unconfirmed_ejection() || needs_recovery {
            return Err(version_mismatch(replica.group));
        }
        replica.version_fence.enter(replica.group, group.since, false).await?;
        let read = ReadRequest { group, request: &request, payload: &payload };
        let mut reply = match view.scheme()?.read(self, replica, read).await {
            Ok(reply) => reply,
            // What is missing may have been truncated under a later lease.
            Err(error) => return epoch_guard.check().and(Err(error)),
        };
        if let StorageReply::SpaceNeeded(room) = &mut reply {
            room.others = Box::pin(self.space_of_others(group, replica.target, &request)).await;
        }
        // The disk may have taken longer than this member was the primary.
        self.primary_view(replica)?;
        if !self.lease.is_valid(rt::monotonic_ns()) {
            return Err(version_mismatch(replica.group));
        }
        epoch_guard.check().map(|()| reply)
    }
}

/// The range of the file that a request reads.
pub(crate) fn read_range(op: &StorageOp, payload: Option<&IoBuf>) -> Result<ByteRange> {
    match (op, payload) {
        (StorageOp::Read { offset, .. }, Some(payload)) => Ok(ByteRange::at(*offset, payload.len() as u64)),
        (StorageOp::Read { .. }, None) => Err(Error::new(Errno::EINVAL, "a read came without a buffer")),
        _ => Ok(WHOLE_FILE),
    }
}
