//! State machine of the members of mirrored groups: which ones are in sync. Pure.
//!
//! Invariants, whatever happens:
//! - A mirrored group has a member in sync, or no members at all: then its content is lost.
//! - A member in sync is ejected only while another one in sync is reachable: if all are
//!   unreachable, it isn't known which one has less. The exception: all members in sync are lost
//!   for good, and an administrator accepts the loss ([`recover`]).
//! - A new primary is reachable. It resyncs the other members: a write that the previous primary
//!   had begun may be on some of them only.
//! - The primary is the first of all members, and a demoted one moves to the end: it doesn't become
//!   primary again by returning.

use crate::refusal;
use std::collections::BTreeSet;
use types::{ClusterMap, Epoch, Group, GroupId, MemberState, NodeId, Result, TargetId};

/// Reachability of nodes and targets at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ReachabilitySnapshot {
    /// Nodes with a recent heartbeat.
    pub reachable: BTreeSet<NodeId>,
    /// Nodes that can't serve any more, even if they are running: their lease has expired.
    pub expired: BTreeSet<NodeId>,
    /// Targets whose node doesn't have them: the disk is gone, or another one is in its place.
    pub missing: BTreeSet<TargetId>,
}

/// A primary's report on a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberReport {
    pub group: GroupId,
    /// The primary's version of the group.
    pub since: Epoch,
    pub target: TargetId,
    pub state: MemberState,
    /// The primary reports on itself, has no change in progress and starts none.
    pub orderly: bool,
}

/// Applies the report of a group's primary; `reporter`: the reporting node, if known. Does nothing
/// if the group has another version: the primary must take the new version into account first.
pub fn apply_member_report(
    map: &mut ClusterMap,
    reporter: Option<NodeId>,
    report: &MemberReport,
    presence: &ReachabilitySnapshot,
) -> Result<()> {
    let group = map.group(report.group).ok_or_else(|| refusal::no_group(report.group))?;
    if !group.scheme.spans_targets() {
        return Err(refusal::not_mirrored(report.group));
    }
    if group.since != report.since {
        return Ok(());
    }
    let primary = group.primary();
    let primary_node = primary.and_then(|target| map.target(target)).map(|target| target.node);
    if reporter.is_some_and(|node| primary_node != Some(node)) {
        return Err(refusal::not_primary(report.group, primary));
    }
    let before =
        group.state_of(report.target).ok_or_else(|| refusal::no_member(report.group, report.target))?;
    if before == report.state {
        // The content of a revived member matches the metadata.
        if report.orderly && before == MemberState::InSync && group.revived == Some(report.target) {
            group_mut(map, report.group)?.revived = None;
        }
        return Ok(());
    }
    if !may_become(before, report.state) {
        return Err(refusal::member_state(report.group, report.target, before, report.state));
    }
    let others = reachable_others(map, group, &[report.target], presence);
    let is_leaving = group.leaving == Some(report.target);
    let is_dismissed =
        report.orderly || (before, report.state) == (MemberState::InSync, MemberState::NeedsRebuild);
    // No member leaves before the group has its full number of replicas; unreachable ones don't
    // count.
    let is_needed = is_leaving && is_dismissed && others.len() < group.scheme.members();
    if is_needed || (report.orderly && !is_leaving) {
        // This is an answer, too: the member stays.
        return Ok(());
    }
    if before == MemberState::InSync && others.is_empty() {
        return Err(refusal::last_in_sync_member(report.group, report.target));
    }
    let group = group_mut(map, report.group)?;
    match before {
        MemberState::InSync if report.orderly && primary == Some(report.target) => {
            step_down(group, report.target, report.state, &others);
        }
        MemberState::InSync => eject(group, &[report.target], report.state, &others),
        _ => set_state(group, report.target, report.state),
    }
    Ok(())
}

/// Whether a primary may report this transition. A member gets back in sync only by a resync.
fn may_become(before: MemberState, after: MemberState) -> bool {
    use MemberState::{InSync, NeedsRebuild, NeedsResync, Rebuilding, Resyncing};
    matches!(
        (before, after),
        (InSync, NeedsResync | NeedsRebuild)
            | (NeedsResync, Resyncing | NeedsRebuild)
            | (Resyncing, InSync | NeedsResync | NeedsRebuild)
            | (NeedsRebuild, Rebuilding)
            | (Rebuilding, InSync | NeedsRebuild)
    )
}

/// Handles the start of a new process of a node: content that the previous process had acknowledged
/// may be lost, and changes that it had begun may be on some members only.
pub fn handle_restart(map: &mut ClusterMap, node: NodeId, presence: &ReachabilitySnapshot) {
    for group in mirrored(map) {
        handle_restart_in(map, group, node, presence);
    }
}

/// The same for one group.
pub fn handle_restart_in(
    map: &mut ClusterMap,
    group: GroupId,
    node: NodeId,
    presence: &ReachabilitySnapshot,
) {
    let Some(before) = map.group(group) else { return };
    let on_node = members_on(map, before, node);
    if on_node.is_empty() {
        return;
    }
    let in_sync: Vec<TargetId> =
        on_node.iter().copied().filter(|id| before.state_of(*id) == Some(MemberState::InSync)).collect();
    let others = reachable_others(map, before, &on_node, presence);
    let is_primary = before.primary().is_some_and(|primary| on_node.contains(&primary));
    let Ok(group) = group_mut(map, group) else { return };
    on_node.iter().for_each(|id| abort_resync(group, *id));
    match in_sync.split_first() {
        None => {}
        Some(_) if !others.is_empty() => eject(group, &in_sync, MemberState::NeedsResync, &others),
        Some((first, rest)) => {
            // All members of the same process may differ from it.
            rest.iter().for_each(|id| set_state(group, *id, MemberState::NeedsResync));
            if is_primary {
                let followers = group.members.clone();
                followers.iter().filter(|id| *id != first).for_each(|id| abort_resync(group, *id));
            }
        }
    }
}

/// Handles the orderly shutdown of a node: other members take over where possible.
pub fn handle_shutdown(map: &mut ClusterMap, node: NodeId, presence: &ReachabilitySnapshot) {
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let on_node = members_on(map, group, node);
        let others = reachable_others(map, group, &on_node, presence);
        let in_sync: Vec<TargetId> =
            on_node.into_iter().filter(|id| group.state_of(*id) == Some(MemberState::InSync)).collect();
        if let (false, false, Ok(group)) = (in_sync.is_empty(), others.is_empty(), group_mut(map, id)) {
            eject(group, &in_sync, MemberState::NeedsResync, &others);
        }
    }
}

/// Handles the restart of the process that serves everything: of each group the primary has all
/// content that any member has.
pub fn handle_full_restart(map: &mut ClusterMap) {
    for group in map.groups.iter_mut().filter(|group| group.scheme.spans_targets()) {
        let Some(primary) = group.primary() else { continue };
        for member in group.members.clone().into_iter().filter(|member| *member != primary) {
            abort_resync(group, member);
            if group.state_of(member) == Some(MemberState::InSync) {
                set_state(group, member, MemberState::NeedsResync);
            }
        }
    }
}

/// Replaces primaries that can't serve any more. Other unreachable members stay in sync: they miss
/// nothing before the next write.
pub fn replace_unreachable_primaries(map: &mut ClusterMap, presence: &ReachabilitySnapshot) {
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let Some(primary) = group.primary() else { continue };
        let lease_has_expired =
            map.target(primary).is_none_or(|target| presence.expired.contains(&target.node));
        let others = reachable_others(map, group, &[primary], presence);
        if let (true, false, Ok(group)) = (lease_has_expired, others.is_empty(), group_mut(map, id)) {
            eject(group, &[primary], MemberState::NeedsResync, &others);
        }
    }
}

/// Ejects members in sync whose targets are missing: their nodes report that the disk is gone, so
/// their content doesn't count. If all of a group are missing they stay: it isn't known which one
/// has less.
pub fn eject_missing(map: &mut ClusterMap, presence: &ReachabilitySnapshot) {
    if presence.missing.is_empty() {
        return;
    }
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let is_missing = |id: &TargetId| presence.missing.contains(id);
        let in_sync =
            group.members_with_states().filter(|(_, state)| *state == MemberState::InSync).map(|(id, _)| id);
        let missing: Vec<TargetId> = in_sync.filter(is_missing).collect();
        let others = reachable_others(map, group, &missing, presence);
        if let (false, false, Ok(group)) = (missing.is_empty(), others.is_empty(), group_mut(map, id)) {
            eject(group, &missing, MemberState::NeedsResync, &others);
        }
    }
}

/// Ejects a lost member that is in sync, if another one in sync is reachable.
pub fn eject_lost(map: &mut ClusterMap, group: GroupId, member: TargetId, presence: &ReachabilitySnapshot) {
    let Some(known) = map.group(group) else { return };
    let others = reachable_others(map, known, &[member], presence);
    if let (false, Ok(group)) = (others.is_empty(), group_mut(map, group)) {
        eject(group, &[member], MemberState::NeedsResync, &others);
    }
}

/// Recovers a group from a member that missed writes. The caller has checked that the members in
/// sync are lost for good, with any content that only they had. What the others share with `from`
/// is unknown, so they need a full copy.
///
/// # Errors
/// `ENOENT` for an unknown group.
pub fn recover(map: &mut ClusterMap, group: GroupId, from: TargetId) -> Result<()> {
    let group = group_mut(map, group)?;
    let rank = |(member, state): &(TargetId, MemberState)| match state {
        _ if *member == from => 0,
        MemberState::InSync => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
    ordered.sort_by_key(rank);
    let new_state =
        |(member, _)| (member, if member == from { MemberState::InSync } else { MemberState::NeedsRebuild });
    (group.members, group.states) = ordered.into_iter().map(new_state).unzip();
    // It is needed now, even if it was being replaced.
    group.leaving = group.leaving.filter(|leaving| *leaving != from);
    group.revived = Some(from);
    Ok(())
}

/// Sets the version of changed and new groups to the epoch of the map that changes them.
pub fn assign_group_versions(before: &ClusterMap, after: &mut ClusterMap) {
    let next = Epoch(before.epoch.0 + 1);
    for group in after.groups.iter_mut().filter(|group| group.scheme.spans_targets()) {
        // Another primary is in sync.
        group.revived = group.revived.filter(|revived| group.primary() == Some(*revived));
        let is_same = |known: &Group| {
            (&known.members, &known.states, known.pool, known.revived)
                == (&group.members, &group.states, group.pool, group.revived)
        };
        if !before.group(group.id).is_some_and(is_same) {
            group.since = next;
        }
    }
}

/// Members that were in sync and aren't any more, with their groups.
pub fn ejected(before: &ClusterMap, after: &ClusterMap) -> Vec<(GroupId, TargetId)> {
    let of_group = |group: &Group| {
        let was_in_sync = |target: TargetId| {
            before.group(group.id).and_then(|known| known.state_of(target)) == Some(MemberState::InSync)
        };
        let was_ejected =
            |(target, state): &(TargetId, MemberState)| *state != MemberState::InSync && was_in_sync(*target);
        group
            .members_with_states()
            .filter(was_ejected)
            .map(|(target, _)| (group.id, target))
            .collect::<Vec<_>>()
    };
    after.groups.iter().filter(|group| group.scheme.spans_targets()).flat_map(of_group).collect()
}

/// Logs changes of members.
pub fn log_members(before: &ClusterMap, after: &ClusterMap) {
    for group in after.groups.iter().filter(|group| group.scheme.spans_targets()) {
        let Some(old) = before.group(group.id) else { continue };
        let (id, since) = (group.id.0, group.since.0);
        for gone in old.members.iter().filter(|member| !group.members.contains(member)) {
            tracing::warn!(
                group = id,
                target_id = gone.0,
                since,
                "target {gone} was removed from group {id}"
            );
        }
        for (member, state) in group.members_with_states() {
            let Some(was) = old.state_of(member) else {
                tracing::warn!(group = id, target_id = member.0, since, "target {member} joins group {id}");
                continue;
            };
            match state {
                _ if was == state => {}
                MemberState::InSync => {
                    tracing::info!(
                        group = id,
                        target_id = member.0,
                        since,
                        "target {member} is in sync with group {id} again"
                    );
                }
                _ => tracing::warn!(
                    group = id,
                    target_id = member.0,
                    since,
                    "target {member} of group {id} is now {}, it was {}",
                    refusal::state_name(state),
                    refusal::state_name(was)
                ),
            }
        }
        if let (Some(was), Some(is)) = (old.primary(), group.primary())
            && was != is
        {
            tracing::warn!(
                group = group.id.0,
                "target {is} is now the primary of group {}, it was target {was}",
                group.id
            );
        }
    }
}

fn mirrored(map: &ClusterMap) -> Vec<GroupId> {
    map.groups.iter().filter(|group| group.scheme.spans_targets()).map(|group| group.id).collect()
}

fn group_mut(map: &mut ClusterMap, id: GroupId) -> Result<&mut Group> {
    map.groups.iter_mut().find(|group| group.id == id).ok_or_else(|| refusal::no_group(id))
}

fn members_on(map: &ClusterMap, group: &Group, node: NodeId) -> Vec<TargetId> {
    let is_on = |id: &TargetId| map.target(*id).is_some_and(|target| target.node == node);
    group.members.iter().copied().filter(is_on).collect()
}

/// Reachable members in sync, without those in `but`.
fn reachable_others(
    map: &ClusterMap,
    group: &Group,
    excluded: &[TargetId],
    presence: &ReachabilitySnapshot,
) -> Vec<TargetId> {
    let in_sync =
        group.members_with_states().filter(|(_, state)| *state == MemberState::InSync).map(|(id, _)| id);
    in_sync.filter(|id| !excluded.contains(id) && is_available(map, *id, presence)).collect()
}

/// Whether a target's node is reachable and has the target: a node continues to serve without a
/// disk that is gone.
pub fn is_available(map: &ClusterMap, id: TargetId, presence: &ReachabilitySnapshot) -> bool {
    let is_node_reachable = map.target(id).is_some_and(|target| presence.reachable.contains(&target.node));
    is_node_reachable && !presence.missing.contains(&id)
}

/// Ejects members in sync. If the primary is among them, the first of `others` replaces it.
fn eject(group: &mut Group, ejected: &[TargetId], state: MemberState, others: &[TargetId]) {
    let replaced = group.primary().filter(|primary| ejected.contains(primary));
    ejected.iter().for_each(|id| set_state(group, *id, state));
    let (Some(replaced), Some(primary)) = (replaced, others.first()) else { return };
    for member in group.members.clone().into_iter().filter(|id| id != primary && !ejected.contains(id)) {
        abort_resync(group, member);
        if group.state_of(member) == Some(MemberState::InSync) {
            set_state(group, member, MemberState::NeedsResync);
        }
    }
    let rank = |id: TargetId| match id {
        id if id == *primary => 0,
        id if id == replaced => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
    ordered.sort_by_key(|(id, _)| rank(*id));
    (group.members, group.states) = ordered.into_iter().unzip();
}

/// The primary steps down without unfinished changes: the others keep their states, and the first
/// of `others` becomes primary.
fn step_down(group: &mut Group, primary: TargetId, state: MemberState, others: &[TargetId]) {
    set_state(group, primary, state);
    let rank = |id: TargetId| match id {
        id if others.first() == Some(&id) => 0,
        id if id == primary => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
    ordered.sort_by_key(|(id, _)| rank(*id));
    (group.members, group.states) = ordered.into_iter().unzip();
}

/// The process that resynced the member, or the member's own, has been replaced: the resync must
/// start again.
fn abort_resync(group: &mut Group, target: TargetId) {
    match group.state_of(target) {
        Some(MemberState::Resyncing) => set_state(group, target, MemberState::NeedsResync),
        Some(MemberState::Rebuilding) => set_state(group, target, MemberState::NeedsRebuild),
        _ => {}
    }
}

fn set_state(group: &mut Group, target: TargetId, state: MemberState) {
    group.states =
        group.members_with_states().map(|(id, now)| if id == target { state } else { now }).collect();
    if group.states.iter().all(|state| *state == MemberState::InSync) {
        group.states.clear();
    }
}

#[cfg(test)]
mod tests;
