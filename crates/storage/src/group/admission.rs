//! Admission of requests to the primary of a group.

use super::change::change;
use super::{GroupService, Replica, detached};
use net::Deadline;
use rt::IoBuf;
use std::sync::Arc;
use types::{Errno, Error, Result, SessionId};
use wire::{GroupContext, StorageOp, StorageReply, StorageRequest};

impl GroupService {
    /// Answers a request to the primary.
    pub(crate) async fn handle_as_primary(
        self: &Arc<Self>,
        replica: Arc<Replica>,
        context: GroupContext,
        request: StorageRequest,
        deadline: Deadline,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let view = self.view_at_version(&context).await?;
        // What a reservation needs on all members only the primary tells.
        let spec = request.op.spec();
        if request.session != SessionId(0) && spec.is_for_any_replica() && view.has_other_primary(&replica)? {
            return view.scheme()?.read_at_member(self, &replica, context, request, payload).await;
        }
        self.wait_for_lease(replica.target).await?;
        self.primary_view(&replica)?;
        if replica.is_unclean() {
            Box::pin(self.eject_others(&replica)).await?;
        }
        self.wait_for_confirmation(&replica).await?;
        if replica.forced_recovery.is_required(self.primary_view(&replica)?.group()?, replica.target) {
            Box::pin(self.prepare_forced_recovery(&replica)).await?;
        }
        // The metadata service is admitted earlier, because it runs the crash reconciliation; but a
        // migration must copy the final content.
        let is_migrator = matches!(request.op, StorageOp::TrackDirty { .. });
        if replica.unreconciled.is_pending() && (request.session != SessionId(0) || is_migrator) {
            Box::pin(self.wait_until_reconciled(&replica)).await?;
        }
        if !replica.unreconciled.is_pending() {
            replica.open_to_clients();
        }
        if request.session != SessionId(0) && replica.drc.has_closed_files() {
            let rows = replica.store.drc_rows();
            Box::pin(replica.drc.wait_until_open(rows, request.session, request.ino, request.slot_sequence))
                .await?;
        }
        // A write that executes after its application got an error could overwrite what the
        // application wrote then.
        if deadline.has_passed() {
            return Err(deadline.error());
        }
        if let Some(answer) = self.dirty_trackers.answer(&request) {
            return answer;
        }
        match request.op {
            _ if spec.is_read_only() => {
                let outcome = self.execute_read(&replica, request, payload).await;
                outcome.map_err(|error| self.redirect_if_replaced(&replica, context.version, error))
            }
            StorageOp::Repair { range } if request.session == SessionId(0) => {
                let repaired = view.scheme()?.repair(self, replica, request.ino, range).await;
                repaired.map(StorageReply::Repaired)
            }
            StorageOp::CopyReplica { from, to, range } if request.session == SessionId(0) => {
                view.scheme()?.copy_replica(self, replica, (request.ino, range), (from, to)).await
            }
            StorageOp::DiscardLost { range } if request.session == SessionId(0) => {
                view.scheme()?.discard_lost(self, replica, (request.ino, range)).await
            }
            _ if spec.is_change() || spec.is_sync() => {
                detached::run(change(self.clone(), replica, request, payload)).await
            }
            _ => Err(Error::new(Errno::EOPNOTSUPP, "mirrored groups don't support this request")
                .hint("install the same version of weft on all machines")),
        }
    }
}
