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
pub struct Reachable {
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
    asker: Option<NodeId>,
    word: &MemberReport,
    presence: &Reachable,
) -> Result<()> {
    let group = map.group(word.group).ok_or_else(|| refusal::no_group(word.group))?;
    if !group.scheme.spans_targets() {
        return Err(refusal::not_mirrored(word.group));
    }
    if group.since != word.since {
        return Ok(());
    }
    let primary = group.primary();
    let serves = primary.and_then(|target| map.target(target)).map(|target| target.node);
    if asker.is_some_and(|asker| serves != Some(asker)) {
        return Err(refusal::not_primary(word.group, primary));
    }
    let before = group.state_of(word.target).ok_or_else(|| refusal::no_member(word.group, word.target))?;
    if before == word.state {
        // The content of a revived member matches the metadata.
        if word.orderly && before == MemberState::Good && group.revived == Some(word.target) {
            group_mut(map, word.group)?.revived = None;
        }
        return Ok(());
    }
    if !may_become(before, word.state) {
        return Err(refusal::member_state(word.group, word.target, before, word.state));
    }
    let others = reachable_others(map, group, &[word.target], presence);
    let is_leaving = group.leaving == Some(word.target);
    let is_dismissed = word.orderly || (before, word.state) == (MemberState::Good, MemberState::Bad);
    // No member leaves before the group has its full number of replicas; unreachable ones don't
    // count.
    let is_needed = is_leaving && is_dismissed && others.len() < group.scheme.members();
    if is_needed || (word.orderly && !is_leaving) {
        // This is an answer, too: the member stays.
        return Ok(());
    }
    if before == MemberState::Good && others.is_empty() {
        return Err(refusal::last_in_sync_member(word.group, word.target));
    }
    let group = group_mut(map, word.group)?;
    match before {
        MemberState::Good if word.orderly && primary == Some(word.target) => {
            step_down(group, word.target, word.state, &others);
        }
        MemberState::Good => eject(group, &[word.target], word.state, &others),
        _ => set(group, word.target, word.state),
    }
    Ok(())
}

/// Whether a primary may report this transition. A member gets back in sync only by a resync.
fn may_become(before: MemberState, after: MemberState) -> bool {
    use MemberState::{Bad, Good, NeedsResync, Rebuilding, Resyncing};
    matches!(
        (before, after),
        (Good, NeedsResync | Bad)
            | (NeedsResync, Resyncing | Bad)
            | (Resyncing, Good | NeedsResync | Bad)
            | (Bad, Rebuilding)
            | (Rebuilding, Good | Bad)
    )
}

/// Handles the start of a new process of a node: content that the previous process had acknowledged
/// may be lost, and changes that it had begun may be on some members only.
pub fn handle_restart(map: &mut ClusterMap, node: NodeId, presence: &Reachable) {
    for group in mirrored(map) {
        handle_restart_in(map, group, node, presence);
    }
}

/// The same for one group.
pub fn handle_restart_in(map: &mut ClusterMap, group: GroupId, node: NodeId, presence: &Reachable) {
    let Some(before) = map.group(group) else { return };
    let own = members_on(map, before, node);
    if own.is_empty() {
        return;
    }
    let good: Vec<TargetId> =
        own.iter().copied().filter(|id| before.state_of(*id) == Some(MemberState::Good)).collect();
    let others = reachable_others(map, before, &own, presence);
    let is_primary = before.primary().is_some_and(|primary| own.contains(&primary));
    let Ok(group) = group_mut(map, group) else { return };
    own.iter().for_each(|id| abort_resync(group, *id));
    match good.split_first() {
        None => {}
        Some(_) if !others.is_empty() => eject(group, &good, MemberState::NeedsResync, &others),
        Some((first, rest)) => {
            // All members of the same process may differ from it.
            rest.iter().for_each(|id| set(group, *id, MemberState::NeedsResync));
            if is_primary {
                let followers = group.members.clone();
                followers.iter().filter(|id| *id != first).for_each(|id| abort_resync(group, *id));
            }
        }
    }
}

/// Handles the orderly shutdown of a node: other members take over where possible.
pub fn handle_shutdown(map: &mut ClusterMap, node: NodeId, presence: &Reachable) {
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let own = members_on(map, group, node);
        let others = reachable_others(map, group, &own, presence);
        let good: Vec<TargetId> =
            own.into_iter().filter(|id| group.state_of(*id) == Some(MemberState::Good)).collect();
        if let (false, false, Ok(group)) = (good.is_empty(), others.is_empty(), group_mut(map, id)) {
            eject(group, &good, MemberState::NeedsResync, &others);
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
            if group.state_of(member) == Some(MemberState::Good) {
                set(group, member, MemberState::NeedsResync);
            }
        }
    }
}

/// Replaces primaries that can't serve any more. Other unreachable members stay in sync: they miss
/// nothing before the next write.
pub fn replace_unreachable_primaries(map: &mut ClusterMap, presence: &Reachable) {
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let Some(primary) = group.primary() else { continue };
        let is_silent = map.target(primary).is_none_or(|target| presence.expired.contains(&target.node));
        let others = reachable_others(map, group, &[primary], presence);
        if let (true, false, Ok(group)) = (is_silent, others.is_empty(), group_mut(map, id)) {
            eject(group, &[primary], MemberState::NeedsResync, &others);
        }
    }
}

/// Ejects members in sync whose targets are missing: their nodes report that the disk is gone, so
/// their content doesn't count. If all of a group are missing they stay: it isn't known which one
/// has less.
pub fn eject_missing(map: &mut ClusterMap, presence: &Reachable) {
    if presence.missing.is_empty() {
        return;
    }
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let is_missing = |id: &TargetId| presence.missing.contains(id);
        let good =
            group.members_with_states().filter(|(_, state)| *state == MemberState::Good).map(|(id, _)| id);
        let missing: Vec<TargetId> = good.filter(is_missing).collect();
        let others = reachable_others(map, group, &missing, presence);
        if let (false, false, Ok(group)) = (missing.is_empty(), others.is_empty(), group_mut(map, id)) {
            eject(group, &missing, MemberState::NeedsResync, &others);
        }
    }
}

/// Ejects a lost member that is in sync, if another one in sync is reachable.
pub fn eject_lost(map: &mut ClusterMap, group: GroupId, member: TargetId, presence: &Reachable) {
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
    let place = |(member, state): &(TargetId, MemberState)| match state {
        _ if *member == from => 0,
        MemberState::Good => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
    ordered.sort_by_key(place);
    let new_state = |(member, _)| (member, if member == from { MemberState::Good } else { MemberState::Bad });
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
        let was_good = |target: TargetId| {
            before.group(group.id).and_then(|known| known.state_of(target)) == Some(MemberState::Good)
        };
        let is_out =
            |(target, state): &(TargetId, MemberState)| *state != MemberState::Good && was_good(*target);
        group.members_with_states().filter(is_out).map(|(target, _)| (group.id, target)).collect::<Vec<_>>()
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
                MemberState::Good => {
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
    but: &[TargetId],
    presence: &Reachable,
) -> Vec<TargetId> {
    let good = group.members_with_states().filter(|(_, state)| *state == MemberState::Good).map(|(id, _)| id);
    good.filter(|id| !but.contains(id) && is_available(map, *id, presence)).collect()
}

/// Whether a target's node is reachable and has the target: a node continues to serve without a
/// disk that is gone.
pub fn is_available(map: &ClusterMap, id: TargetId, presence: &Reachable) -> bool {
    let is_heard = map.target(id).is_some_and(|target| presence.reachable.contains(&target.node));
    is_heard && !presence.missing.contains(&id)
}

/// Ejects members in sync. If the primary is among them, the first of `others` replaces it.
fn eject(group: &mut Group, out: &[TargetId], state: MemberState, others: &[TargetId]) {
    let replaced = group.primary().filter(|primary| out.contains(primary));
    out.iter().for_each(|id| set(group, *id, state));
    let (Some(replaced), Some(primary)) = (replaced, others.first()) else { return };
    for member in group.members.clone().into_iter().filter(|id| id != primary && !out.contains(id)) {
        abort_resync(group, member);
        if group.state_of(member) == Some(MemberState::Good) {
            set(group, member, MemberState::NeedsResync);
        }
    }
    let place = |id: TargetId| match id {
        id if id == *primary => 0,
        id if id == replaced => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
    ordered.sort_by_key(|(id, _)| place(*id));
    (group.members, group.states) = ordered.into_iter().unzip();
}

/// The primary steps down without unfinished changes: the others keep their states, and the first
/// of `others` becomes primary.
fn step_down(group: &mut Group, primary: TargetId, state: MemberState, others: &[TargetId]) {
    set(group, primary, state);
    let place = |id: TargetId| match id {
        id if others.first() == Some(&id) => 0,
        id if id == primary => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
    ordered.sort_by_key(|(id, _)| place(*id));
    (group.members, group.states) = ordered.into_iter().unzip();
}

/// The process that resynced the member, or the member's own, has been replaced: the resync must
/// start again.
fn abort_resync(group: &mut Group, target: TargetId) {
    match group.state_of(target) {
        Some(MemberState::Resyncing) => set(group, target, MemberState::NeedsResync),
        Some(MemberState::Rebuilding) => set(group, target, MemberState::Bad),
        _ => {}
    }
}

fn set(group: &mut Group, target: TargetId, state: MemberState) {
    group.states =
        group.members_with_states().map(|(id, now)| if id == target { state } else { now }).collect();
    if group.states.iter().all(|state| *state == MemberState::Good) {
        group.states.clear();
    }
}

#[cfg(test)]
mod tests;
