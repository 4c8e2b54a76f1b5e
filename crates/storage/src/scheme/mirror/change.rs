//! Changes of the primary, which it replicates to all members.

use crate::group::change::{Change, exclusive_range, execute_on};
use crate::group::membership::state_after_miss;
use crate::group::range_locks::LockMode;
use crate::group::sequences::Ticket;
use crate::group::version_fence;
use chunkstore::{Kind, StoreError};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use types::{Epoch, Errno, Error, Group, MemberState, Refusal, Result, TargetId};
use wire::{GroupContext, GroupRole, StorageRequest};

/// A change that is being replicated to all members.
pub(super) struct ReplicatedChange<'a> {
    pub(super) change: Change<'a>,
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
    pub(super) async fn replicate(&self) -> Result<()> {
        let (groups, replica) = (self.change.groups, self.change.replica);
        let _entered = replica.role_lock.read().await;
        let _held = match exclusive_range(&self.change.request.op, self.change.payload.as_ref()) {
            Some(range) => {
                Some(replica.ranges.acquire(self.change.request.ino, range, LockMode::Exclusive).await)
            }
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
            if self.change.request.op.spec().is_change() {
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
        let settled = self.change.replica.sequences.settled(group.since);
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
                ..self.change.request.clone()
            };
            self.change.groups.send(request, self.change.payload.clone())
        };
        let answers = rt::join_all(to.iter().map(send).collect()).await;
        let outcome = to.iter().zip(answers);
        outcome.filter_map(|((target, state), answer)| Some((*target, *state, answer.err()?))).collect()
    }

    async fn execute_here(&self, since: Epoch) -> LocalOutcome {
        let replica = self.change.replica;
        let Ok(_version_guard) = replica.version_fence.enter(replica.group, since, true).await else {
            return LocalOutcome::Outdated;
        };
        match execute_on(replica, self.change.request, self.change.payload, self.change.execution).await {
            Ok(()) => LocalOutcome::Done,
            Err(error) => LocalOutcome::Failed(error),
        }
    }

    /// Ejects a member that failed the change, unless it only has another version of the group. A
    /// change is sent once under each version: a late, unanswered copy could overwrite a newer
    /// write, and is refused under the next version.
    async fn eject_failed(&self, group: &Group, target: TargetId, state: MemberState, error: &Error) {
        if error.errno == Refusal::GroupVersionMismatch
            && self.change.groups.wait_for_newer(self.change.replica, group.since).await
        {
            return;
        }
        let state = state_after_miss(state);
        while self.change.groups.since(group.id) == group.since {
            self.change
                .groups
                .report_member(self.change.replica, group.since, target, state, &error.message)
                .await;
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
        let (groups, replica) = (self.change.groups, self.change.replica);
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
        let is_newer =
            |(.., error): &(TargetId, MemberState, Error)| error.errno == Refusal::GroupVersionMismatch;
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
