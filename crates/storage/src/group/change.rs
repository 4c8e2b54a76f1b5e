//! Changes at the primary: each is executed once, and brought to all members.

use super::{GroupService, Replica};
use crate::convert;
use crate::drc::{DrcLookup as Once, Execution};
use crate::service::{change_reply, execute_request};
use chunkstore::At;
use rt::IoBuf;
use std::sync::Arc;
use types::{ByteRange, Errno, Error, Refusal, Result};
use wire::{StorageOp, StorageReply, StorageRequest};

/// A change that the primary brings to all members.
pub(crate) struct Change<'a> {
    pub(crate) groups: &'a Arc<GroupService>,
    pub(crate) replica: &'a Replica,
    pub(crate) request: &'a StorageRequest,
    pub(crate) payload: &'a Option<IoBuf>,
    /// For a numbered write.
    pub(crate) execution: Option<&'a Execution<'a>>,
}

impl Change<'_> {
    /// Executes the change on all members that receive writes, as the group's scheme does.
    async fn execute(self) -> Result<()> {
        let scheme = self.groups.view(self.replica.group).scheme()?;
        scheme.change(self).await
    }
}

/// Executes a change or a sync. It runs to its end, whether or not the requester waits for it.
pub(super) async fn change(
    groups: Arc<GroupService>,
    replica: Arc<Replica>,
    request: StorageRequest,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    let _running = groups.fences.enter(request.session)?;
    if matches!(request.op, StorageOp::Write { .. }) && payload.is_none() {
        return Err(Error::new(Errno::EINVAL, "a write came without its payload"));
    }
    let _dirty_guard = groups.dirty_trackers.track(&request, payload.as_ref().map_or(0, IoBuf::len));
    let one = |execution| Change {
        groups: &groups,
        replica: &replica,
        request: &request,
        payload: &payload,
        execution,
    };
    let (Some(number), StorageOp::Write { .. }) = (request.slot_sequence, &request.op) else {
        let epoch_guard =
            replica.epochs.enter(request.ino, request.epoch, request.op.spec().is_change()).await?;
        one(None).execute().await?;
        return epoch_guard.check().map(|()| change_reply(&replica.store));
    };
    // A change that was executed before gets its old answer, whatever the epoch of the repetition.
    if let Some(answer) = replica.drc.cached_answer(request.session, number) {
        return answer.map(|()| replica.drc.cached_reply(&replica.store, request.session, number));
    }
    let _entered = replica.epochs.enter(request.ino, request.epoch, true).await?;
    let begun = replica.drc.begin(replica.store.drc_rows(), request.session, number, request.ino).await?;
    let execution = match begun {
        Once::Execute(execution) => execution,
        Once::Cached(answer) => {
            return answer.map(|()| replica.drc.cached_reply(&replica.store, request.session, number));
        }
        Once::RowFailed(error) => return Err(Box::pin(groups.handle_row_failure(&replica, &error)).await),
    };
    match one(Some(&execution)).execute().await {
        // The current primary decides whether it takes effect.
        Err(error) if error.errno == Refusal::GroupVersionMismatch => {
            if groups.primary_view(&replica).is_err() {
                execution.discard();
            }
            Err(error)
        }
        outcome => execution.end(outcome).await.map(|()| change_reply(&replica.store)),
    }
}

/// The bytes of the chunk file that a change locks on each replica.
pub(crate) fn exclusive_range(op: &StorageOp, payload: Option<&IoBuf>) -> Option<ByteRange> {
    op.exclusive_range(payload.map_or(0, IoBuf::len) as u64)
}

/// Executes a change on this replica.
pub(crate) async fn execute_on(
    replica: &Replica,
    request: &StorageRequest,
    payload: &Option<IoBuf>,
    execution: Option<&Execution<'_>>,
) -> chunkstore::Result<()> {
    let store = &replica.store;
    let (Some(execution), StorageOp::Write { offset, path, durable }) = (execution, &request.op) else {
        return execute_request(store, request, payload.clone()).await.map(drop);
    };
    let data = payload.clone().unwrap_or_else(|| IoBuf::alloc(0));
    let (path, durability) = (convert::path(*path), convert::durability(*durable));
    // Large, and only for files that several clients write: kept out of the future of every change.
    let at = At { ino: request.ino, offset: *offset, min_len: request.length_bound };
    Box::pin(store.write_at(at, &data, path, durability, execution.write_done_row())).await?;
    // The row must be on disk, too: without it the change would be executed again after a power
    // failure.
    if *durable { store.drc_rows().sync().await } else { Ok(()) }
}
