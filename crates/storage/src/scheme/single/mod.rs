//! A single target: requests go to it directly, and a change is done when its own store has it.

use crate::convert;
use crate::drc::DrcLookup;
use crate::service::{Served, change_reply, execute_request};
use chunkstore::At;
use rt::IoBuf;
use types::{Errno, Result};
use wire::{StorageOp, StorageReply, StorageRequest};

/// Executes a request that the service has admitted.
///
/// # Errors
/// `RevokedLeaseEpoch` if a later lease has begun; otherwise the failure of the store.
pub(crate) async fn execute(
    served: &Served,
    request: &StorageRequest,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    if let (Some(_), StorageOp::Write { .. }) = (request.slot_sequence, &request.op) {
        return Box::pin(write_numbered(served, request, payload)).await;
    }
    let spec = request.op.spec();
    let is_verified = spec.is_change() || spec.is_sync();
    let epoch_guard = served.lease_epochs.enter(request.ino, request.epoch, spec.is_change()).await?;
    match execute_request(&served.store, request, payload).await {
        Ok(StorageReply::Unit) if is_verified => epoch_guard.check().map(|()| change_reply(&served.store)),
        Ok(reply) => epoch_guard.check().map(|()| reply),
        // What is missing may have been truncated under a later lease.
        Err(e) => epoch_guard.check().and_then(|()| Err(served.failed(&e))),
    }
}

/// Executes a numbered write: when it is repeated, other clients may already have seen its effect
/// and overwritten it.
async fn write_numbered(
    served: &Served,
    request: &StorageRequest,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    let (Some(number), &StorageOp::Write { offset, path, durable }) = (request.slot_sequence, &request.op)
    else {
        return Err(Errno::EINVAL.into());
    };
    let (ino, min_len, rows) = (request.ino, request.length_bound, served.store.drc_rows());
    // A change that was executed before gets its old answer, whatever the epoch of the repetition.
    if let Some(answer) = served.drc.cached_answer(request.session, number) {
        return answer.map(|()| served.drc.cached_reply(&served.store, request.session, number));
    }
    let _entered = served.lease_epochs.enter(ino, request.epoch, true).await?;
    let execution = match served.drc.begin(rows, request.session, number, ino).await? {
        DrcLookup::Execute(execution) => execution,
        DrcLookup::Cached(answer) => {
            return answer.map(|()| served.drc.cached_reply(&served.store, request.session, number));
        }
        DrcLookup::RowFailed(error) => return Err(served.failed(&error)),
    };
    let (data, path) = (payload.unwrap_or_else(|| IoBuf::alloc(0)), convert::path(path));
    let durability = convert::durability(durable);
    let at = At { ino, offset, min_len };
    let written = served.store.write_at(at, &data, path, durability, execution.write_done_row()).await;
    let written = match written {
        // The row must be on disk, too: without it the change would be executed again after a power
        // failure.
        Ok(()) if durable => rows.sync().await,
        written => written,
    };
    execution.end(written.map_err(|e| served.failed(&e))).await.map(|()| change_reply(&served.store))
}
