//! A member: executes what the primary sends.

use super::change::{exclusive_range, execute_on};
use super::range_locks::LockMode;
use super::replica::Replica;
use super::{GroupService, GroupView, detached, version_fence};
use crate::drc::DrcLookup as Once;
use crate::service::{change_reply, execute, execute_request};
use rt::IoBuf;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, Errno, Error, MemberState, Result, TargetId};
use wire::spec::{Effect, ReadSource, StorageSpec};
use wire::{GroupContext, MAX_REGIONS, RegionSelection, StorageOp, StorageReply, StorageRequest};

impl GroupService {
    /// Answers a request of the primary to a member.
    pub(crate) async fn handle_as_member(
        self: &Arc<Self>,
        replica: Arc<Replica>,
        context: GroupContext,
        (sequence, settled): (u64, u64),
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let view = self.view_at_version(&context).await?;
        let state = state_here(&replica, &view)?;
        self.dirty_trackers.end_for_replica(replica.target, replica.group);
        replica.unsettled.settle(context.version, settled);
        if replica.is_unclean() {
            let message = format!(
                "target {}: the replica of group {} must be resynced after a crash",
                replica.target, replica.group
            );
            return Err(Error::new(Errno::EIO, message).hint("its primary resyncs it automatically"));
        }
        let spec = request.op.spec();
        match request.op {
            StorageOp::Committed => Ok(StorageReply::Unit),
            StorageOp::Regions { from, which: RegionSelection::All } if state == MemberState::InSync => {
                Box::pin(regions(&replica, from, RegionSelection::All)).await
            }
            _ if may_read(&spec, state) => {
                replica.version_fence.enter(replica.group, context.version, false).await?;
                let outcome = execute_request(&replica.store, &request, payload).await;
                outcome.map_err(|error| replica.failed(&error))
            }
            _ if state.receives_writes() && (spec.is_change() || spec.is_sync()) => {
                // To its end, as the primary's: a change that was begun leaves nothing half done.
                let groups = self.clone();
                detached::run(async move {
                    groups.change_as_member(&replica, context, sequence, request, payload).await
                })
                .await
            }
            _ => Err(version_fence::version_mismatch(replica.group)),
        }
    }

    async fn change_as_member(
        &self,
        replica: &Replica,
        context: GroupContext,
        sequence: u64,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        // The primary has admitted the request; here it is only counted, so that a fence waits for
        // it.
        let _running = self.fences.enter_admitted(request.session);
        let _version_guard = replica.version_fence.enter(replica.group, context.version, true).await?;
        // The primary orders changes; here the lock only separates them from reads.
        let mut _held = None;
        if let Some(range) = exclusive_range(&request.op, payload.as_ref()) {
            let change = (context.version, sequence);
            replica.unsettled.begin(change, (request.ino, range), replica.store.hold_entries());
            replica.epochs.observe(request.ino, request.epoch);
            _held = Some(replica.ranges.acquire(request.ino, range, LockMode::Exclusive).await);
        }
        let failed = |error| replica.failed(&error);
        let (Some(number), StorageOp::Write { .. }) = (request.slot_sequence, &request.op) else {
            return execute_on(replica, &request, &payload, None)
                .await
                .map(|()| StorageReply::Unit)
                .map_err(failed);
        };
        let rows = replica.store.drc_rows();
        let execution = match replica.drc.begin(rows, request.session, number, request.ino).await? {
            Once::Execute(execution) => execution,
            Once::Cached(answer) => return answer.map(|()| StorageReply::Unit),
            Once::RowFailed(error) => return Err(failed(error)),
        };
        let outcome = execute_on(replica, &request, &payload, Some(&execution)).await.map_err(failed);
        execution.end(outcome).await.map(|()| StorageReply::Unit)
    }

    /// Answers the primary that resyncs this replica.
    pub(crate) async fn handle_as_resynced(
        self: &Arc<Self>,
        replica: Arc<Replica>,
        context: GroupContext,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let view = self.view_at_version(&context).await?;
        if !matches!(state_here(&replica, &view)?, MemberState::Resyncing | MemberState::Rebuilding) {
            return Err(version_fence::version_mismatch(replica.group));
        }
        self.dirty_trackers.end_for_replica(replica.target, replica.group);
        match request.op {
            StorageOp::Regions { from, which } => regions(&replica, from, which).await,
            StorageOp::Digests { range } => {
                let _version_guard =
                    replica.version_fence.enter(replica.group, context.version, false).await?;
                Ok(view.scheme()?.digests(&replica, request.ino, range).await)
            }
            _ => {
                detached::run(
                    async move { execute_resync_request(&replica, context, request, payload).await },
                )
                .await
            }
        }
    }
}

/// Whether a member in this state can answer a read.
fn may_read(spec: &StorageSpec, state: MemberState) -> bool {
    match spec.effect {
        Effect::Read(ReadSource::AnyReplica | ReadSource::OneReplica) => state == MemberState::InSync,
        Effect::Read(ReadSource::AllReplicas) => state.receives_writes(),
        Effect::Change | Effect::Sync | Effect::Control => false,
    }
}

fn state_here(replica: &Replica, view: &GroupView) -> Result<MemberState> {
    let group = view.group()?;
    replica.update_group(group);
    group.state_of(replica.target).ok_or_else(|| {
        let message = format!("target {} is no member of group {}", replica.target, group.id);
        Error::new(Errno::ENODEV, message).hint("install the same version of weft on all machines")
    })
}

async fn execute_resync_request(
    replica: &Replica,
    context: GroupContext,
    request: StorageRequest,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    let _version_guard = replica.version_fence.enter(replica.group, context.version, true).await?;
    let store = &replica.store;
    if let (Some(number), StorageOp::Write { .. }) = (request.slot_sequence, &request.op) {
        // It carries no data: it only reports that the primary has executed the change.
        replica.drc.adopt_completed(store.drc_rows(), request.session, number, request.ino).await?;
        return Ok(StorageReply::Unit);
    }
    let spec = request.op.spec();
    let is_verified = spec.is_change() || spec.is_sync();
    let outcome = match request.op {
        StorageOp::Truncate { len } => store.set_len(request.ino, len).await.map(|()| StorageReply::Unit),
        StorageOp::AdoptVerifier { instead_of, .. } if instead_of != store.verifier() => {
            return Err(member_restarted(replica.target));
        }
        StorageOp::AdoptVerifier { verifier, .. } => {
            store.adopt_verifier(verifier).await.map(|()| StorageReply::Unit)
        }
        op => execute(store, request.ino, op, payload).await,
    };
    match outcome {
        Ok(StorageReply::Unit) if is_verified => Ok(change_reply(store)),
        outcome => outcome.map_err(|error| replica.failed(&error)),
    }
}

/// The error when a member restarted: it may have lost what was sent to it before.
pub(crate) fn member_restarted(target: TargetId) -> Error {
    Error::new(Errno::EAGAIN, format!("target {target} restarted during its resync"))
        .hint("it is resynced again automatically")
}

/// Lists the chunk files here, or the dirty regions.
async fn regions(replica: &Replica, from: ChunkFileId, which: RegionSelection) -> Result<StorageReply> {
    let failed = |error| replica.failed(&error);
    let store = &replica.store;
    let (regions, next) = match which {
        RegionSelection::All => {
            let (files, next) = store.files(from, MAX_REGIONS).await.map_err(failed)?;
            (files.into_iter().map(|ino| (ino, ByteRange::new(0, u64::MAX))).collect(), next)
        }
        RegionSelection::Dirty => store.dirty_ranges(from, MAX_REGIONS).await.map_err(failed)?,
    };
    // Checked last, so that an overflow during the listing counts, too.
    if which == RegionSelection::Dirty && store.has_overflowed() {
        let message = format!("target {}: the intent log doesn't list all changed regions", replica.target);
        return Err(
            Error::new(Errno::EOVERFLOW, message).hint("its primary compares everything automatically")
        );
    }
    Ok(StorageReply::Regions { regions, next })
}
