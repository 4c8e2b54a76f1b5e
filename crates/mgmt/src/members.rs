//! Volatile state of members of mirrored groups, and the answer to a primary's report.

use crate::limits::{EJECTION_POLL, MAX_EJECTION_WAIT, REPLACE_MEMBER_AFTER, REPLACE_PRIMARY_AFTER};
use crate::management::Management;
use crate::member_states::{self, MemberReport, ReachabilitySnapshot};
use crate::refusal;
use crate::replacement::{self, ReplacementContext};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use types::{
    ClusterMap, Epoch, Errno, Error, Group, GroupId, MemberState, NodeId, Result, Scheme, TargetId,
    TargetState,
};
use wire::MgmtReply;
use wire::mgmt::{GroupInfo, ResyncProgress};

/// State outside of the map: after a start of management less is known, and more has to be waited
/// for.
#[derive(Default, Debug)]
pub(crate) struct MemberTracker {
    /// Map versions that ejected the members that are out.
    ejected_in_epoch: BTreeMap<(GroupId, TargetId), Epoch>,
    /// Restarted nodes that are still in sync, since no other member in sync was reachable, with
    /// the version of the group. A member that becomes reachable later has more.
    restarted_in_sync: BTreeSet<(GroupId, NodeId, Epoch)>,
    /// Unreachable targets and the time since when, in nanoseconds: a start of management resets
    /// it.
    unreachable_since: BTreeMap<TargetId, u64>,
    /// Why the last resync of members failed.
    failed: BTreeMap<(GroupId, TargetId), String>,
}

impl MemberTracker {
    /// Ejects restarted nodes from groups of which another member in sync has become reachable.
    pub fn eject_restarted(&mut self, map: &mut ClusterMap, presence: &ReachabilitySnapshot) {
        self.restarted_in_sync
            .retain(|(group, _, since)| map.group(*group).is_some_and(|g| g.since == *since));
        for (group, node, _) in &self.restarted_in_sync {
            let is_alone = |g: &Group| {
                !g.members_with_states().any(|(id, state)| {
                    state == MemberState::InSync
                        && map.target(id).is_some_and(|target| target.node != *node)
                        && member_states::is_available(map, id, presence)
                })
            };
            if map.group(*group).is_some_and(|g| !is_alone(g)) {
                member_states::handle_restart_in(map, *group, *node, presence);
            }
        }
    }

    /// Records the changes of a map.
    pub fn follow(&mut self, before: &ClusterMap, after: &ClusterMap) {
        for member in member_states::ejected(before, after) {
            self.ejected_in_epoch.insert(member, after.epoch);
        }
        // A new member has no content yet that it could serve.
        for group in after.groups.iter().filter(|group| group.scheme.spans_targets()) {
            let known = before.group(group.id);
            for (target, _) in group.members_with_states().filter(|(_, state)| *state != MemberState::InSync)
            {
                if known.is_some_and(|known| !known.members.contains(&target)) {
                    self.ejected_in_epoch.insert((group.id, target), Epoch(0));
                }
            }
        }
        let is_not_in_sync = |(group, target): &(GroupId, TargetId)| {
            let state = after.group(*group).and_then(|g| g.state_of(*target));
            state.is_some_and(|state| state != MemberState::InSync)
        };
        self.ejected_in_epoch.retain(|member, _| is_not_in_sync(member));
        self.failed.retain(|member, _| is_not_in_sync(member));
    }

    /// Records the reason if a primary's report ends an attempt to resync a member, which was in
    /// state `was`.
    fn note_failure(&mut self, was: Option<MemberState>, report: &MemberReport, reason: &str) {
        use MemberState::{NeedsRebuild, NeedsResync, Rebuilding, Resyncing};
        if let (Some(Rebuilding), NeedsRebuild) | (Some(Resyncing), NeedsResync) = (was, report.state) {
            self.failed.insert((report.group, report.target), reason.to_string());
        }
    }

    /// Why the last resync of a member failed.
    pub fn failure(&self, group: GroupId, target: TargetId) -> Option<&str> {
        self.failed.get(&(group, target)).map(String::as_str)
    }

    /// Targets that have been unreachable for at least `after`, according to the map; each call
    /// starts the time of newly unreachable ones.
    pub fn lost(&mut self, map: &ClusterMap, after: Duration, now_ns: u64) -> BTreeSet<TargetId> {
        let is_gone = |id: &TargetId| map.target(*id).is_some_and(|t| t.state == TargetState::Offline);
        self.unreachable_since.retain(|id, _| is_gone(id));
        for target in map.targets.iter().filter(|t| t.state == TargetState::Offline) {
            self.unreachable_since.entry(target.id).or_insert(now_ns);
        }
        let is_lost = |since_ns: u64| u128::from(now_ns.saturating_sub(since_ns)) >= after.as_nanos();
        self.unreachable_since.iter().filter(|(_, since)| is_lost(**since)).map(|(id, _)| *id).collect()
    }

    /// Whether a target has been unreachable for `time`, as far as this process knows.
    pub fn is_unreachable_for(&self, target: TargetId, time: Duration, now_ns: u64) -> bool {
        let since = self.unreachable_since.get(&target);
        since.is_some_and(|since_ns| u128::from(now_ns.saturating_sub(*since_ns)) >= time.as_nanos())
    }

    /// A node has restarted: records the groups in which it is still in sync.
    pub fn note_restarted(&mut self, map: &ClusterMap, node: NodeId) {
        for group in map.groups.iter().filter(|group| group.scheme.spans_targets()) {
            let is_good = |(id, state): (TargetId, MemberState)| {
                state == MemberState::InSync && map.target(id).is_some_and(|t| t.node == node)
            };
            if group.members_with_states().any(is_good) {
                self.restarted_in_sync.insert((group.id, node, group.since));
            }
        }
    }

    /// Checks whether a primary may eject a member in sync before more is known.
    ///
    /// A restarted node that found no other member is the primary until another member in sync
    /// becomes reachable, which has what the restart may have lost (see
    /// [`MemberTracker::eject_restarted`]). Its report must not take effect before that. Management
    /// may have restarted at the same moment, on the same machine, without any heartbeats yet.
    /// Waiting loses nothing: the report takes effect only when the member's node knows it or has
    /// been unreachable for long.
    ///
    /// # Errors
    /// `EAGAIN` while neither the node of the member nor its disk is known to be gone.
    fn ensure_report_allowed(
        &self,
        map: &ClusterMap,
        report: &MemberReport,
        presence: &ReachabilitySnapshot,
    ) -> Result<()> {
        let Some(group) = map.group(report.group) else { return Ok(()) };
        let node_of = |id: TargetId| map.target(id).map(|target| target.node);
        let (Some(primary), Some(other)) = (group.primary().and_then(node_of), node_of(report.target)) else {
            return Ok(());
        };
        let is_ejection =
            group.state_of(report.target) == Some(MemberState::InSync) && report.state != MemberState::InSync;
        let must_wait_for_others = self.restarted_in_sync.contains(&(report.group, primary, group.since));
        let is_reachability_known = match presence.reachable.contains(&other) {
            true => !must_wait_for_others || presence.missing.contains(&report.target),
            false => presence.expired.contains(&other),
        };
        match is_ejection && other != primary && !is_reachability_known {
            true => Err(refusal::reachability_unknown(report.group, report.target)),
            false => Ok(()),
        }
    }

    /// The version that ejected a member.
    fn ejected_in(&self, group: &Group, target: TargetId) -> Epoch {
        self.ejected_in_epoch.get(&(group.id, target)).copied().unwrap_or(group.since)
    }
}

/// The rack of each member; empty if none is known.
fn racks(map: &ClusterMap, group: &Group) -> Vec<Option<String>> {
    let racks: Vec<_> = group.members.iter().map(|id| map.rack_of(*id).map(String::from)).collect();
    if racks.iter().any(Option::is_some) { racks } else { Vec::new() }
}

impl Management {
    pub(crate) fn members(&self) -> MutexGuard<'_, MemberTracker> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Current reachability. In a cluster of one process every node is reachable, but not every
    /// disk.
    pub(crate) fn reachability_snapshot(&self, map: &ClusterMap) -> ReachabilitySnapshot {
        match self.cluster() {
            Some(_) => self.liveness().reachability_snapshot(map, rt::monotonic_ns()),
            None => {
                let missing = map.targets.iter().filter(|t| t.state == TargetState::Offline).map(|t| t.id);
                let reachable = map.targets.iter().map(|t| t.node).collect();
                ReachabilitySnapshot {
                    reachable,
                    missing: missing.collect(),
                    ..ReachabilitySnapshot::default()
                }
            }
        }
    }

    /// Applies a primary's report, and answers when it is in force at all nodes concerned.
    pub(crate) async fn set_member(
        &self,
        reporter: Option<NodeId>,
        report: MemberReport,
        reason: &str,
    ) -> Result<MgmtReply> {
        tracing::info!(
            group_id = report.group.0,
            target_id = report.target.0,
            state = report.state.name(),
            reason,
            "the primary of group {} reports on member {}",
            report.group,
            report.target
        );
        tracing::debug!(?report, "the report");
        let began_ns = rt::monotonic_ns();
        let is_late = || rt::monotonic_ns() - began_ns > MAX_EJECTION_WAIT.as_nanos() as u64;
        while let Err(error) = self.apply_report(reporter, &report, reason).await {
            if error.errno != Errno::EAGAIN || is_late() {
                return Err(error);
            }
            rt::select(self.heartbeat_received.wait(), rt::sleep(EJECTION_POLL)).await;
        }
        // Also without a change: the request may be a retransmission whose first answer was lost.
        while let Some(target) = self.unconfirmed_member(report.group) {
            if is_late() {
                return Err(refusal::ejection_unconfirmed(report.group, target));
            }
            rt::select(self.heartbeat_received.wait(), rt::sleep(EJECTION_POLL)).await;
        }
        Ok(MgmtReply::Map { map: self.current() })
    }

    async fn apply_report(
        &self,
        reporter: Option<NodeId>,
        report: &MemberReport,
        reason: &str,
    ) -> Result<()> {
        self.change(|roster| {
            let presence = self.reachability_snapshot(&roster.map);
            let group = roster.map.group(report.group).filter(|group| group.since == report.since);
            let was = group.and_then(|group| group.state_of(report.target));
            if group.is_some() {
                self.members().ensure_report_allowed(&roster.map, report, &presence)?;
            }
            member_states::apply_member_report(&mut roster.map, reporter, report, &presence)?;
            self.members().note_failure(was, report, reason);
            Ok(())
        })
        .await
    }

    /// A member that isn't in sync, but whose node may not know that: it has neither confirmed it,
    /// nor been unreachable for longer than its lease, nor restarted.
    fn unconfirmed_member(&self, group: GroupId) -> Option<TargetId> {
        self.cluster()?;
        let map = self.current();
        let group = map.group(group)?;
        let is_unaware = |(id, _): &(TargetId, MemberState)| !self.has_confirmed(&map, group, *id);
        group
            .members_with_states()
            .filter(|(_, state)| *state != MemberState::InSync)
            .find(is_unaware)
            .map(|(id, _)| id)
    }

    /// Whether the node of a member that isn't in sync by the published map knows that, or can't
    /// serve any more.
    fn has_confirmed(&self, map: &ClusterMap, group: &Group, id: TargetId) -> bool {
        let Some(node) = map.target(id).and_then(|target| map.node(target.node)) else { return true };
        let ejected_in = self.members().ejected_in(group, id);
        let liveness = self.liveness();
        liveness.process(node.id).is_some_and(|seen| seen.epoch >= ejected_in)
            || liveness.has_no_heartbeat_for(node.id, node.state, REPLACE_PRIMARY_AFTER, rt::monotonic_ns())
    }

    /// Replaces lost and drained members by other targets; `before`: the published map.
    pub(crate) fn replace_members(&self, before: &ClusterMap, map: &mut ClusterMap) {
        let after = match map.settings.resync.replace_after_s {
            // The time since they are unreachable must be recorded nevertheless.
            Some(0) => Duration::MAX,
            set => set.map_or(REPLACE_MEMBER_AFTER, Duration::from_secs),
        };
        let lost = self.members().lost(map, after, rt::monotonic_ns());
        if !map.groups.iter().any(|group| group.scheme.spans_targets()) {
            return;
        }
        let is_ejection_confirmed = |group: GroupId, id: TargetId| {
            let known = before.group(group);
            // No node can know this change yet.
            known.is_some_and(|known| {
                known.state_of(id).is_some_and(|state| state != MemberState::InSync)
                    && (self.cluster().is_none() || self.has_confirmed(before, known, id))
            })
        };
        let presence = self.reachability_snapshot(map);
        let context = ReplacementContext {
            presence: &presence,
            lost: &lost,
            is_ejection_confirmed: &is_ejection_confirmed,
        };
        replacement::advance(map, &context);
    }

    /// Creates the missing groups of a scheme in a pool.
    pub(crate) async fn make_groups(&self, pool: &str, scheme: Scheme) -> Result<MgmtReply> {
        tracing::info!(pool, %scheme, "creation of groups requested");
        let id = self
            .change(|roster| {
                roster.make_groups(pool, scheme)?;
                Ok::<_, Error>(roster.map.pool_named(pool).map(|pool| pool.id))
            })
            .await?;
        self.sync().await?;
        let is_asked = |info: &GroupInfo| Some(info.group.pool) == id && info.group.scheme == scheme;
        Ok(MgmtReply::Groups { groups: self.groups().into_iter().filter(is_asked).collect() })
    }

    /// Groups, for display.
    pub(crate) fn groups(&self) -> Vec<GroupInfo> {
        let (map, liveness) = (self.current(), self.liveness());
        let info = |group: &Group| {
            let primary_node = group.primary().and_then(|id| map.target(id)).map(|target| target.node);
            let resyncs = primary_node
                .and_then(|node| liveness.process(node))
                .map(|seen| &*seen.resyncs)
                .unwrap_or_default();
            let is_here = |progress: &&ResyncProgress| progress.group == group.id;
            GroupInfo {
                pool_name: map.pool(group.pool).map(|pool| pool.name.clone()).unwrap_or_default(),
                primary: group.primary(),
                resyncs: resyncs.iter().filter(is_here).cloned().collect(),
                racks: racks(&map, group),
                group: group.clone(),
            }
        };
        map.groups.iter().map(info).collect()
    }
}
