//! The primary: admits requests, and replicates changes to all members.

use super::directed_repair::DirectedRepair;
use super::repair::ReadRequest;
use crate::convert;
use crate::drc::{DrcLookup as Once, Execution};
use crate::group::replica::Replica;
use crate::group::sequences::Ticket;
use crate::group::{GroupService, GroupView, MAP_POLL, MAP_TIMEOUT, MemberChange, detached, version_fence};
use crate::service::{change_reply, execute_request};
use chunkstore::{At, Kind, StoreError};
use net::Deadline;
use rt::IoBuf;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use types::{ByteRange, Epoch, Errno, Error, Group, MemberState, Result, SessionId, TargetId};
use wire::{GroupContext, GroupRole, StorageOp, StorageReply, StorageRequest};

/// The whole range of a file.
pub(super) const WHOLE_FILE: ByteRange = ByteRange { start: 0, end: u64::MAX };

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
            return self.handle_as_reader(&replica, context, request, payload).await;
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
                Box::pin(self.repair(replica, request.ino, range)).await.map(StorageReply::Repaired)
            }
            StorageOp::CopyReplica { from, to, range } if request.session == SessionId(0) => {
                detached::run(
                    DirectedRepair::new(self.clone(), replica, request.ino).repair_from(from, to, range),
                )
                .await
            }
            StorageOp::DiscardLost { range } if request.session == SessionId(0) => {
                detached::run(DirectedRepair::new(self.clone(), replica, request.ino).give_up(range)).await
            }
            _ if spec.is_change() || spec.is_sync() => {
                detached::run(change(self.clone(), replica, request, payload)).await
            }
            _ => Err(Error::new(Errno::EOPNOTSUPP, "mirrored groups don't support this request")
                .hint("install the same version of weft on all machines")),
        }
    }

    /// Returns the group in the current map, if this replica is its primary.
    pub(crate) fn primary_view(&self, replica: &Replica) -> Result<GroupView> {
        let view = self.view(replica.group);
        let group = view.group()?;
        replica.update_group(group);
        match group.primary() == Some(replica.target) {
            true => Ok(view),
            false => Err(version_fence::version_mismatch(replica.group)),
        }
    }

    /// Ejects the other in-sync members from the group, so that they are resynced: after a crash of
    /// the primary, each side may have changes that the other lacks.
    pub(crate) async fn eject_others(&self, replica: &Replica) -> Result<()> {
        loop {
            let view = self.primary_view(replica)?;
            let group = view.group()?;
            let other = group
                .members_with_states()
                .find(|(target, state)| *target != replica.target && *state == MemberState::InSync);
            let Some((other, _)) = other else {
                replica.mark_clean();
                return Ok(());
            };
            let reason = format!("target {} continues as the primary after a crash", replica.target);
            self.report_member(replica, group.since, other, MemberState::NeedsResync, &reason).await;
        }
    }

    /// Executes a read-only request while no change that isn't on all members is visible.
    async fn execute_read(
        self: &Arc<Self>,
        replica: &Replica,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let _running = self.fences.enter(request.session)?;
        let epoch_guard = replica.epochs.enter(request.ino, request.epoch, false).await?;
        let range = read_range(&request.op, payload.as_ref())?;
        let _held =
            replica.ranges.acquire(request.ino, range, crate::group::range_locks::LockMode::Shared).await;
        // After the wait, another member may be the primary.
        self.wait_for_lease(replica.target).await?;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        let needs_recovery = replica.forced_recovery.is_required(group, replica.target);
        if replica.is_stepping_down(group.since) || replica.has_unconfirmed_ejection() || needs_recovery {
            return Err(version_fence::version_mismatch(replica.group));
        }
        replica.version_fence.enter(replica.group, group.since, false).await?;
        let read = ReadRequest { group, request: &request, payload: &payload };
        let mut reply = match self.read_or_repair(replica, read).await {
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
            return Err(version_fence::version_mismatch(replica.group));
        }
        epoch_guard.check().map(|()| reply)
    }

    /// Asks other in-sync members for what this replica can't read. The caller holds the range
    /// here, so nothing changes there either.
    pub(super) async fn read_from_others(
        self: &Arc<Self>,
        group: &Group,
        own: TargetId,
        request: &StorageRequest,
        payload: Option<IoBuf>,
    ) -> Option<StorageReply> {
        let others = group
            .members_with_states()
            .filter(|(target, state)| *target != own && *state == MemberState::InSync);
        for (target, _) in others {
            // A separate buffer: the answer may arrive when the caller no longer waits for it.
            let buf = payload.as_ref().map(|payload| IoBuf::alloc(payload.len()));
            let part = GroupRole::Member { sequence: 0, committed: 0 };
            let in_group = GroupContext { group: group.id, version: group.since, role: part };
            let member_request = StorageRequest {
                length_bound: request.length_bound,
                group: Some(in_group),
                ..StorageRequest::new(SessionId(0), target, request.ino, request.op.clone())
            };
            if let Ok(reply) = self.send(member_request, buf.clone()).await {
                if let (Some(payload), Some(buf)) = (&payload, &buf) {
                    payload.copy_from(0, buf.as_slice());
                }
                return Some(reply);
            }
        }
        None
    }

    /// Ejects a member whose replica differs, and retries until management is reached. Ends, too,
    /// when another member is the primary. If this member is to go and no other is in sync, it
    /// stays and refuses what it can't do. Unreachable members can't replace it: they are ejected
    /// instead, as soon as management knows that they don't serve.
    pub(super) async fn eject(&self, replica: &Replica, target: TargetId, state: MemberState, reason: &str) {
        while let Ok(view) = self.primary_view(replica)
            && let Ok(group) = view.group()
            && group.state_of(target).is_some_and(MemberState::receives_writes)
        {
            let good = group.members_with_states().filter(|(_, state)| *state == MemberState::InSync);
            let others: Vec<TargetId> = good.map(|(id, _)| id).filter(|id| *id != target).collect();
            let is_own = target == replica.target;
            match others.first() {
                None if is_own => return replica.cancel_step_down(group.since),
                Some(other) if is_own && !others.iter().any(|id| self.is_reachable(*id)) => {
                    let reason = format!("target {other} is unreachable, and can't replace the primary");
                    self.report_member(replica, group.since, *other, MemberState::NeedsResync, &reason).await;
                }
                _ => self.report_member(replica, group.since, target, state, reason).await,
            }
        }
    }

    /// Turns an error of this disk into `EREMCHG` when there is, or will be, another primary that
    /// may execute the request.
    fn redirect_if_replaced(&self, replica: &Replica, since: Epoch, error: Error) -> Error {
        let is_over = replica.is_stepping_down(since) || self.since(replica.group) > since;
        if error.errno == Errno::EIO && is_over {
            version_fence::version_mismatch(replica.group)
        } else {
            error
        }
    }

    /// Handles a failure of this disk before any part of a change has begun: this member steps down
    /// if another one has everything.
    async fn handle_row_failure(&self, replica: &Replica, error: &StoreError) -> Error {
        let refusal = replica.failed(error);
        let since = self.since(replica.group);
        let Ok(view) = self.primary_view(replica) else {
            return version_fence::version_mismatch(replica.group);
        };
        let Ok(group) = view.group() else { return refusal };
        let mut others = group.members_with_states().filter(|(target, _)| *target != replica.target);
        if others.any(|(target, state)| state == MemberState::InSync && self.is_reachable(target)) {
            self.step_down(replica, group, error).await;
        }
        // The last in-sync member stays, and returns the reason.
        match self.since(replica.group) > since {
            true => version_fence::version_mismatch(replica.group),
            false => refusal,
        }
    }

    /// Handles a replica that a target should have but can't open or create, so that it can't
    /// serve. If the target is the primary, it steps down in favour of a member that has
    /// everything. Returns the answer for the requester.
    pub(crate) async fn step_down_without_replica(
        &self,
        target: TargetId,
        context: &GroupContext,
        error: Error,
    ) -> Error {
        let view = match self.view_at_version(context).await {
            Ok(view) => view,
            Err(outdated) => return outdated,
        };
        let Ok(group) = view.group() else { return error };
        let mut others = group.members_with_states().filter(|(other, _)| *other != target);
        let is_replaced =
            others.any(|(other, state)| state == MemberState::InSync && self.is_reachable(other));
        if group.primary() != Some(target) || !is_replaced {
            return error;
        }
        let change = MemberChange {
            group: group.id,
            version: group.since,
            target,
            state: MemberState::NeedsResync,
            reason: error.message.to_string(),
            is_orderly: false,
        };
        tracing::warn!(group = %group.id, target_id = %target, "a primary steps down: {}", error.message);
        if let Err(undecided) = self.peers.management.set_member(change).await {
            tracing::warn!(group = %group.id, error = %undecided, "management hasn't confirmed the state of a member");
        }
        match self.since(group.id) > group.since {
            true => version_fence::version_mismatch(group.id),
            false => error,
        }
    }

    /// Steps down, so that another in-sync member becomes the primary.
    async fn step_down(&self, replica: &Replica, group: &Group, error: &StoreError) {
        // The new primary may begin before this process knows it: no reads here any more.
        replica.announce_step_down(group.since);
        self.eject(replica, replica.target, MemberState::NeedsResync, error.message()).await;
    }

    /// Waits for a newer version of a group; false when none arrives for a while.
    async fn wait_for_newer(&self, replica: &Replica, since: Epoch) -> bool {
        let began_ns = rt::monotonic_ns();
        while self.since(replica.group) <= since {
            if rt::monotonic_ns() - began_ns > MAP_TIMEOUT.as_nanos() as u64 {
                return false;
            }
            rt::sleep(MAP_POLL).await;
        }
        true
    }
}

/// Executes a change or a sync. It runs to its end, whether or not the requester waits for it.
async fn change(
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
    let one = |execution| ReplicatedChange {
        groups: &groups,
        replica: &replica,
        request: &request,
        payload: &payload,
        execution,
    };
    let (Some(number), StorageOp::Write { .. }) = (request.slot_sequence, &request.op) else {
        let epoch_guard =
            replica.epochs.enter(request.ino, request.epoch, request.op.spec().is_change()).await?;
        one(None).replicate().await?;
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
    match one(Some(&execution)).replicate().await {
        // The current primary decides whether it takes effect.
        Err(error) if error.errno == Errno::EREMCHG => {
            if groups.primary_view(&replica).is_err() {
                execution.discard();
            }
            Err(error)
        }
        outcome => execution.end(outcome).await.map(|()| change_reply(&replica.store)),
    }
}

/// One change that is being replicated to all members.
struct ReplicatedChange<'a> {
    groups: &'a Arc<GroupService>,
    replica: &'a Replica,
    request: &'a StorageRequest,
    payload: &'a Option<IoBuf>,
    /// For a numbered write.
    execution: Option<&'a Execution<'a>>,
}

/// Outcome of a change on the primary's own disk.
enum LocalOutcome {
    Done,
    /// A newer version of the group has begun first: the change is executed under that, if at all.
    Outdated,
    Failed(StoreError),
}

/// Members that failed or didn't answer.
type Failures = Vec<(TargetId, MemberState, Error)>;

impl ReplicatedChange<'_> {
    /// Executes the change on all replicas that count. Under each version of the group it is sent
    /// to those that don't have it yet.
    async fn replicate(&self) -> Result<()> {
        let (groups, replica) = (self.groups, self.replica);
        let _entered = replica.role_lock.read().await;
        let _held = match exclusive_range(&self.request.op, self.payload.as_ref()) {
            Some(range) => Some(
                replica
                    .ranges
                    .acquire(self.request.ino, range, crate::group::range_locks::LockMode::Exclusive)
                    .await,
            ),
            None => None,
        };
        let _entry_hold = replica.store.hold_entries();
        let mut ticket: Option<Ticket<'_>> = None;
        let (mut done_on, mut is_done_here) = (Vec::new(), false);
        loop {
            if !is_done_here && let Err(error) = groups.wait_for_lease(replica.target).await {
                // Where others have the change, this replica gets it, too, or isn't the primary any
                // more.
                if done_on.is_empty() {
                    return Err(error);
                }
                continue;
            }
            let view = groups.primary_view(replica)?;
            let group = view.group()?;
            if replica.forced_recovery.is_required(group, replica.target) {
                // The request is older than the moment when this replica missed something.
                return Err(version_fence::version_mismatch(replica.group));
            }
            if self.request.op.spec().is_change() {
                let next = replica.sequences.begin(group.since);
                // The older ticket ends after the newer one has begun, so that one of them always
                // covers the change.
                drop(ticket.replace(next));
                if groups.since(replica.group) != group.since {
                    continue;
                }
            }
            let to: Vec<(TargetId, MemberState)> = group
                .members_with_states()
                .filter(|(target, state)| {
                    *target != replica.target && state.receives_writes() && !done_on.contains(target)
                })
                .collect();
            if is_done_here && to.is_empty() {
                return groups.wait_for_confirmation(replica).await;
            }
            let mut sends =
                pin!(self.send_all(group, &to, ticket.as_ref().map_or(0, |ticket| ticket.sequence)));
            let (local, failures) = match is_done_here {
                true => (LocalOutcome::Done, sends.as_mut().await),
                false => join_both(pin!(self.execute_here(group.since)), sends.as_mut()).await,
            };
            let failed = |target: &TargetId| failures.iter().any(|(failed, ..)| failed == target);
            done_on.extend(to.iter().map(|(target, _)| *target).filter(|target| !failed(target)));
            match local {
                LocalOutcome::Done => is_done_here = true,
                LocalOutcome::Outdated => {
                    Box::pin(groups.wait_for_newer(replica, group.since)).await;
                    continue;
                }
                LocalOutcome::Failed(error) => {
                    return Box::pin(self.handle_local_failure(group, error, &done_on, failures)).await;
                }
            }
            if failures.is_empty() {
                return groups.wait_for_confirmation(replica).await;
            }
            for (target, state, error) in failures {
                Box::pin(self.eject_failed(group, target, state, &error)).await;
            }
        }
    }

    /// Sends the change to members concurrently; returns those that failed.
    async fn send_all(&self, group: &Group, to: &[(TargetId, MemberState)], sequence: u64) -> Failures {
        let settled = self.replica.sequences.settled(group.since);
        let in_group = GroupContext {
            group: group.id,
            version: group.since,
            role: GroupRole::Member { sequence, committed: settled },
        };
        let send = |(target, _): &(TargetId, MemberState)| {
            let request = StorageRequest {
                target: *target,
                // The primary has verified it.
                capability: None,
                group: Some(in_group),
                ..self.request.clone()
            };
            self.groups.send(request, self.payload.clone())
        };
        let answers = rt::join_all(to.iter().map(send).collect()).await;
        let outcome = to.iter().zip(answers);
        outcome.filter_map(|((target, state), answer)| Some((*target, *state, answer.err()?))).collect()
    }

    async fn execute_here(&self, since: Epoch) -> LocalOutcome {
        let replica = self.replica;
        let Ok(_version_guard) = replica.version_fence.enter(replica.group, since, true).await else {
            return LocalOutcome::Outdated;
        };
        match execute_on(replica, self.request, self.payload, self.execution).await {
            Ok(()) => LocalOutcome::Done,
            Err(error) => LocalOutcome::Failed(error),
        }
    }

    /// Ejects a member that failed the change, unless it only has another version of the group. A
    /// change is sent once under each version: a late, unanswered copy could overwrite a newer
    /// write, and is refused under the next version.
    async fn eject_failed(&self, group: &Group, target: TargetId, state: MemberState, error: &Error) {
        if error.errno == Errno::EREMCHG && self.groups.wait_for_newer(self.replica, group.since).await {
            return;
        }
        let state = state_after_miss(state);
        while self.groups.since(group.id) == group.since {
            self.groups.report_member(self.replica, group.since, target, state, &error.message).await;
        }
    }

    /// Handles a failure on the primary's own disk. No difference between replicas may stay
    /// unrecorded: if another in-sync member has the change, this one is ejected; if none has it,
    /// those that may have a part of it are.
    async fn handle_local_failure(
        &self,
        group: &Group,
        error: StoreError,
        done_on: &[TargetId],
        failures: Failures,
    ) -> Result<()> {
        let (groups, replica) = (self.groups, self.replica);
        let refusal = replica.failed(&error);
        if done_on.iter().any(|target| group.state_of(*target) == Some(MemberState::InSync)) {
            groups.step_down(replica, group, &error).await;
            return Err(version_fence::version_mismatch(replica.group));
        }
        // An earlier change has failed here, and the others act on that already.
        if replica.is_stepping_down(group.since) {
            groups.step_down(replica, group, &error).await;
            return Err(version_fence::version_mismatch(replica.group));
        }
        let is_newer = |(.., error): &(TargetId, MemberState, Error)| error.errno == Errno::EREMCHG;
        if failures.iter().any(is_newer) && groups.wait_for_newer(replica, group.since).await {
            return Err(version_fence::version_mismatch(replica.group));
        }
        let nothing_was_done =
            matches!(error.kind(), Kind::NoSpace | Kind::TooLarge | Kind::Corrupt { .. } | Kind::Closed);
        for (target, state, error) in failures {
            let is_same = nothing_was_done && matches!(error.errno, Errno::ENOSPC | Errno::EFBIG);
            if !is_same {
                groups.eject(replica, target, state_after_miss(state), &error.message).await;
            }
        }
        for target in done_on {
            let state = state_after_miss(group.state_of(*target).unwrap_or(MemberState::NeedsRebuild));
            groups.eject(replica, *target, state, error.message()).await;
        }
        Err(refusal)
    }
}

/// What of the file is looked at.
pub(super) fn read_range(op: &StorageOp, payload: Option<&IoBuf>) -> Result<ByteRange> {
    match (op, payload) {
        (StorageOp::Read { offset, .. }, Some(payload)) => Ok(ByteRange::at(*offset, payload.len() as u64)),
        (StorageOp::Read { .. }, None) => Err(Error::new(Errno::EINVAL, "a read came without a buffer")),
        _ => Ok(WHOLE_FILE),
    }
}

/// The bytes of the chunk file that a change locks on each replica.
pub(super) fn exclusive_range(op: &StorageOp, payload: Option<&IoBuf>) -> Option<ByteRange> {
    op.exclusive_range(payload.map_or(0, IoBuf::len) as u64)
}

/// Returns the state of a member after it has missed something.
pub(super) fn state_after_miss(state: MemberState) -> MemberState {
    match state {
        MemberState::InSync | MemberState::NeedsResync | MemberState::Resyncing => MemberState::NeedsResync,
        MemberState::NeedsRebuild | MemberState::Rebuilding => MemberState::NeedsRebuild,
    }
}

/// Executes a change on this replica.
pub(super) async fn execute_on(
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

/// Runs two futures concurrently. They are pinned by the caller: passed by value they would need
/// their space here a second time.
async fn join_both<A, B>(
    mut first: Pin<&mut impl Future<Output = A>>,
    mut second: Pin<&mut impl Future<Output = B>>,
) -> (A, B) {
    let (mut a, mut b) = (None, None);
    poll_fn(|cx| {
        if a.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(cx)
        {
            a = Some(output);
        }
        if b.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(cx)
        {
            b = Some(output);
        }
        match (a.take(), b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (first, second) => {
                (a, b) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}
