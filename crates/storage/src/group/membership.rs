//! Decisions about the members of a group: the primary asks management to eject members that have
//! missed something, and steps down where another member has more.

use super::version_fence::version_mismatch;
use super::{GroupService, GroupView, MAP_TIMEOUT, MemberChange, Replica};
use chunkstore::StoreError;
use std::time::Duration;
use types::{Epoch, Errno, Error, Group, MemberState, Result, TargetId};
use wire::GroupContext;

/// How long a client's request waits for management: less than the client's usual time-out, so that
/// it learns the reason.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(45);

impl GroupService {
    /// Returns the group in the current map, if this replica is its primary.
    pub(crate) fn primary_view(&self, replica: &Replica) -> Result<GroupView> {
        let view = self.view(replica.group);
        let group = view.group()?;
        replica.update_group(group);
        match group.primary() == Some(replica.target) {
            true => Ok(view),
            false => Err(version_mismatch(replica.group)),
        }
    }

    /// Reports a member's state to management, unless the group has another version by now. Returns
    /// when the version has changed, or after a short pause when management couldn't be reached.
    pub(crate) async fn report_member(
        &self,
        replica: &Replica,
        since: Epoch,
        target: TargetId,
        state: MemberState,
        reason: &str,
    ) {
        /// Pause before the next request to management.
        const RETRY_PAUSE: Duration = Duration::from_millis(500);
        let _exclusive = replica.report_lock.write().await;
        if self.since(replica.group) != since {
            return;
        }
        let (group, reason_given) = (replica.group, reason.to_string());
        let change =
            MemberChange { group, version: since, target, state, reason: reason_given, is_orderly: false };
        tracing::warn!(group = %replica.group, target_id = %target, ?state, "a member of a group changes: {reason}");
        loop {
            match self.peers.management.set_member(change.clone()).await {
                Ok(map) => {
                    replica.confirm_ejections(map.group(replica.group).map_or(since, |group| group.since));
                    if self.since(replica.group) != since {
                        return;
                    }
                    break;
                }
                Err(error) => {
                    tracing::warn!(group = %replica.group, %error, "management hasn't confirmed the state of a member");
                    // The map may have come without the answer: then not all processes know it yet.
                    // The repeated request makes management wait for that.
                    if self.since(replica.group) == since || self.primary_view(replica).is_err() {
                        break;
                    }
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
        }
        rt::sleep(RETRY_PAUSE).await;
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

    /// Ejects a member whose replica differs, and retries until management is reached. Ends, too,
    /// when another member is the primary. If this member is to go and no other is in sync, it
    /// stays and refuses what it can't do. Unreachable members can't replace it: they are ejected
    /// instead, as soon as management knows that they don't serve.
    pub(crate) async fn eject(&self, replica: &Replica, target: TargetId, state: MemberState, reason: &str) {
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

    /// Turns an error of this disk into `GroupVersionMismatch` when there is, or will be, another
    /// primary that may execute the request.
    pub(crate) fn redirect_if_replaced(&self, replica: &Replica, since: Epoch, error: Error) -> Error {
        let is_over = replica.is_stepping_down(since) || self.since(replica.group) > since;
        if error.errno == Errno::EIO && is_over { version_mismatch(replica.group) } else { error }
    }

    /// Handles a failure of this disk before any part of a change has begun: this member steps down
    /// if another one has everything.
    pub(crate) async fn handle_row_failure(&self, replica: &Replica, error: &StoreError) -> Error {
        let refusal = replica.failed(error);
        let since = self.since(replica.group);
        let Ok(view) = self.primary_view(replica) else {
            return version_mismatch(replica.group);
        };
        let Ok(group) = view.group() else { return refusal };
        let mut others = group.members_with_states().filter(|(target, _)| *target != replica.target);
        if others.any(|(target, state)| state == MemberState::InSync && self.is_reachable(target)) {
            self.step_down(replica, group, error).await;
        }
        // The last in-sync member stays, and returns the reason.
        match self.since(replica.group) > since {
            true => version_mismatch(replica.group),
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
            true => version_mismatch(group.id),
            false => error,
        }
    }

    /// Steps down, so that another in-sync member becomes the primary.
    pub(crate) async fn step_down(&self, replica: &Replica, group: &Group, error: &StoreError) {
        // The new primary may begin before this process knows it: no reads here any more.
        replica.announce_step_down(group.since);
        self.eject(replica, replica.target, MemberState::NeedsResync, error.message()).await;
    }

    /// Waits for a newer version of a group; false when none arrives for a while.
    pub(crate) async fn wait_for_newer(&self, replica: &Replica, since: Epoch) -> bool {
        let end_ns = rt::monotonic_ns().saturating_add(MAP_TIMEOUT.as_nanos() as u64);
        loop {
            let view = self.view(replica.group);
            if view.map.group(replica.group).map_or(Epoch(0), |group| group.since) > since {
                return true;
            }
            let left_ns = end_ns.saturating_sub(rt::monotonic_ns());
            if left_ns == 0 {
                return false;
            }
            self.wait_for_map_after(view.map.epoch, left_ns).await;
        }
    }
}

impl GroupService {
    /// Waits until no process counts an ejected member as in sync any more. The map that ejects a
    /// member may arrive here before it arrives there, and clients may still read from that member.
    /// A change that it has missed must not be acknowledged or shown to any reader until management
    /// confirms that the member doesn't serve.
    ///
    /// # Errors
    /// `GroupVersionMismatch` when this isn't the primary any more. `ETIMEDOUT` when management
    /// can't be reached.
    pub(crate) async fn wait_for_confirmation(&self, replica: &Replica) -> Result<()> {
        match replica.has_unconfirmed_ejection() {
            // Rare, and large: kept out of the future of every request.
            true => Box::pin(self.ask_for_confirmation(replica)).await,
            false => Ok(()),
        }
    }

    async fn ask_for_confirmation(&self, replica: &Replica) -> Result<()> {
        /// Pause before the next request to management.
        const RETRY_PAUSE: Duration = Duration::from_millis(200);
        let began_ns = rt::monotonic_ns();
        while replica.has_unconfirmed_ejection() {
            // Every other request to management gets the same confirmation.
            let _exclusive = replica.report_lock.write().await;
            let view = self.primary_view(replica)?;
            if !replica.has_unconfirmed_ejection() {
                break;
            }
            let change = MemberChange {
                group: replica.group,
                version: view.group()?.since,
                target: replica.target,
                state: MemberState::InSync,
                reason: "it continues as the primary".to_string(),
                is_orderly: false,
            };
            match self.peers.management.set_member(change).await {
                Ok(map) => {
                    let version = map.group(replica.group).map_or(Epoch(0), |group| group.since);
                    replica.confirm_ejections(version);
                }
                Err(error) if rt::monotonic_ns() - began_ns > MANAGEMENT_TIMEOUT.as_nanos() as u64 => {
                    let message = format!(
                        "group {} waits for management to confirm its members: {}",
                        replica.group, error.message
                    );
                    return Err(Error::new(Errno::ETIMEDOUT, message)
                        .hint("weft health shows the state of management"));
                }
                Err(error) => {
                    tracing::debug!(group = %replica.group, %error, "management hasn't confirmed the members of a group");
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
        }
        Ok(())
    }
}

/// Returns the state of a member after it has missed something.
pub(crate) fn state_after_miss(state: MemberState) -> MemberState {
    match state {
        MemberState::InSync | MemberState::NeedsResync | MemberState::Resyncing => MemberState::NeedsResync,
        MemberState::NeedsRebuild | MemberState::Rebuilding => MemberState::NeedsRebuild,
    }
}
