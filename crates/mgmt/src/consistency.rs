//! Who of a mirrored group has everything: how the states of members change. Pure.
//!
//! Invariants, whatever happens:
//! - A mirrored group has a good member, or no members at all: then its content is lost.
//! - A good member is taken out only while another good one is heard of: of members that are all
//!   silent nobody can tell which one has less. Or when all good ones are lost for good, and an
//!   administrator accepts what goes with them ([`revive`]).
//! - Who becomes primary is heard of. The other members are brought in step by it then: what the
//!   one before had begun may be on some of them only.
//! - The primary is the first of all members, and one that is replaced goes to the end: who comes
//!   back isn't primary by that.

use crate::refusal;
use std::collections::BTreeSet;
use types::{ClusterMap, Epoch, Group, GroupId, MemberState, NodeId, Result, TargetId};

/// Who is there at a moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Nodes that have been heard of lately.
    pub heard: BTreeSet<NodeId>,
    /// Nodes that don't serve any more, whatever they believe: their lease has run out.
    pub silent: BTreeSet<NodeId>,
    /// Targets that their nodes haven't got: the disk is gone, or another one is in its place.
    pub missing: BTreeSet<TargetId>,
}

/// What a primary says of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    pub group: GroupId,
    /// The version of the group that the primary goes by.
    pub since: Epoch,
    pub target: TargetId,
    pub state: MemberState,
    /// It speaks of itself, has nothing under way and begins nothing more.
    pub orderly: bool,
}

/// Does what the primary of a group asks for; `asker`: the node that asks, where that is known.
/// Nothing where the group is of another version already: who asked has to look at that first.
pub fn set_member(
    map: &mut ClusterMap,
    asker: Option<NodeId>,
    word: &Word,
    presence: &Presence,
) -> Result<()> {
    let group = map.group(word.group).ok_or_else(|| refusal::no_group(word.group))?;
    if !group.scheme.is_mirrored() {
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
        // What a revived member has agrees with the metadata.
        if word.orderly && before == MemberState::Good && group.revived == Some(word.target) {
            group_mut(map, word.group)?.revived = None;
        }
        return Ok(());
    }
    if !may_become(before, word.state) {
        return Err(refusal::member_state(word.group, word.target, before, word.state));
    }
    let others = heard_others(map, group, &[word.target], presence);
    let is_leaving = group.leaving == Some(word.target);
    let is_dismissed = word.orderly || (before, word.state) == (MemberState::Good, MemberState::Bad);
    // Nobody leaves before there are as many copies as there should be, and those that can't be
    // reached aren't there.
    let is_needed = is_leaving && is_dismissed && others.len() < group.scheme.members();
    if is_needed || (word.orderly && !is_leaving) {
        // That is an answer, too: it stays.
        return Ok(());
    }
    if before == MemberState::Good && others.is_empty() {
        return Err(refusal::last_good_member(word.group, word.target));
    }
    let group = group_mut(map, word.group)?;
    match before {
        MemberState::Good if word.orderly && primary == Some(word.target) => {
            resign(group, word.target, word.state, &others);
        }
        MemberState::Good => take_out(group, &[word.target], word.state, &others),
        _ => set(group, word.target, word.state),
    }
    Ok(())
}

/// The steps that a primary may ask for. A member comes back only by way of being brought in step.
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

/// Another process serves as the node: what the one before had acknowledged may be gone, and what
/// it had begun may be on some members only.
pub fn restarted(map: &mut ClusterMap, node: NodeId, presence: &Presence) {
    for group in mirrored(map) {
        restarted_in(map, group, node, presence);
    }
}

/// The same for one group.
pub fn restarted_in(map: &mut ClusterMap, group: GroupId, node: NodeId, presence: &Presence) {
    let Some(before) = map.group(group) else { return };
    let own = members_on(map, before, node);
    if own.is_empty() {
        return;
    }
    let good: Vec<TargetId> =
        own.iter().copied().filter(|id| before.state_of(*id) == Some(MemberState::Good)).collect();
    let others = heard_others(map, before, &own, presence);
    let is_primary = before.primary().is_some_and(|primary| own.contains(&primary));
    let Ok(group) = group_mut(map, group) else { return };
    own.iter().for_each(|id| interrupt(group, *id));
    match good.split_first() {
        None => {}
        Some(_) if !others.is_empty() => take_out(group, &good, MemberState::NeedsResync, &others),
        Some((first, rest)) => {
            // All that were together with it may differ from it.
            rest.iter().for_each(|id| set(group, *id, MemberState::NeedsResync));
            if is_primary {
                let followers = group.members.clone();
                followers.iter().filter(|id| *id != first).for_each(|id| interrupt(group, *id));
            }
        }
    }
}

/// The node has stopped in good order: others serve instead, where there are others.
pub fn stopped(map: &mut ClusterMap, node: NodeId, presence: &Presence) {
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let own = members_on(map, group, node);
        let others = heard_others(map, group, &own, presence);
        let good: Vec<TargetId> =
            own.into_iter().filter(|id| group.state_of(*id) == Some(MemberState::Good)).collect();
        if let (false, false, Ok(group)) = (good.is_empty(), others.is_empty(), group_mut(map, id)) {
            take_out(group, &good, MemberState::NeedsResync, &others);
        }
    }
}

/// The process that served everything has been started anew: of each group the primary has
/// everything that anybody has.
pub fn all_restarted(map: &mut ClusterMap) {
    for group in map.groups.iter_mut().filter(|group| group.scheme.is_mirrored()) {
        let Some(primary) = group.primary() else { continue };
        for member in group.members.clone().into_iter().filter(|member| *member != primary) {
            interrupt(group, member);
            if group.state_of(member) == Some(MemberState::Good) {
                set(group, member, MemberState::NeedsResync);
            }
        }
    }
}

/// Replaces primaries that don't serve any more. Others that are silent stay as they are: they have
/// missed nothing before somebody writes.
pub fn replace_silent(map: &mut ClusterMap, presence: &Presence) {
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let Some(primary) = group.primary() else { continue };
        let is_silent = map.target(primary).is_none_or(|target| presence.silent.contains(&target.node));
        let others = heard_others(map, group, &[primary], presence);
        if let (true, false, Ok(group)) = (is_silent, others.is_empty(), group_mut(map, id)) {
            take_out(group, &[primary], MemberState::NeedsResync, &others);
        }
    }
}

/// Takes out good members whose targets are missing: their nodes say that the disk isn't there, so
/// nothing that they say of its content counts. Those of a group that are all missing stay as they
/// are: nobody can tell which one has less.
pub fn replace_missing(map: &mut ClusterMap, presence: &Presence) {
    if presence.missing.is_empty() {
        return;
    }
    for id in mirrored(map) {
        let Some(group) = map.group(id) else { continue };
        let is_missing = |id: &TargetId| presence.missing.contains(id);
        let good = group.with_states().filter(|(_, state)| *state == MemberState::Good).map(|(id, _)| id);
        let missing: Vec<TargetId> = good.filter(is_missing).collect();
        let others = heard_others(map, group, &missing, presence);
        if let (false, false, Ok(group)) = (missing.is_empty(), others.is_empty(), group_mut(map, id)) {
            take_out(group, &missing, MemberState::NeedsResync, &others);
        }
    }
}

/// A good member is lost: it is out while another good one is heard of.
pub fn lose(map: &mut ClusterMap, group: GroupId, member: TargetId, presence: &Presence) {
    let Some(known) = map.group(group) else { return };
    let others = heard_others(map, known, &[member], presence);
    if let (false, Ok(group)) = (others.is_empty(), group_mut(map, group)) {
        take_out(group, &[member], MemberState::NeedsResync, &others);
    }
}

/// Lets a group go on from a member that has missed something. The good ones are lost for good, and
/// what they alone had with them: the caller has seen to that. Nobody knows what the others have in
/// common with it, so they are copied anew.
///
/// # Errors
/// `ENOENT` for a group that isn't there.
pub fn revive(map: &mut ClusterMap, group: GroupId, from: TargetId) -> Result<()> {
    let group = group_mut(map, group)?;
    let place = |(member, state): &(TargetId, MemberState)| match state {
        _ if *member == from => 0,
        MemberState::Good => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.with_states().collect();
    ordered.sort_by_key(place);
    let anew = |(member, _)| (member, if member == from { MemberState::Good } else { MemberState::Bad });
    (group.members, group.states) = ordered.into_iter().map(anew).unzip();
    // It is needed now, even if it was to go.
    group.leaving = group.leaving.filter(|leaving| *leaving != from);
    group.revived = Some(from);
    Ok(())
}

/// Gives groups that have changed, or are new, the version of the map that changes them.
pub fn stamp(before: &ClusterMap, after: &mut ClusterMap) {
    let next = Epoch(before.epoch.0 + 1);
    for group in after.groups.iter_mut().filter(|group| group.scheme.is_mirrored()) {
        // Who is the primary instead has everything.
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

/// Members that were good and aren't any more, with their groups.
pub fn taken_out(before: &ClusterMap, after: &ClusterMap) -> Vec<(GroupId, TargetId)> {
    let of_group = |group: &Group| {
        let was_good = |target: TargetId| {
            before.group(group.id).and_then(|known| known.state_of(target)) == Some(MemberState::Good)
        };
        let is_out =
            |(target, state): &(TargetId, MemberState)| *state != MemberState::Good && was_good(*target);
        group.with_states().filter(is_out).map(|(target, _)| (group.id, target)).collect::<Vec<_>>()
    };
    after.groups.iter().filter(|group| group.scheme.is_mirrored()).flat_map(of_group).collect()
}

/// Tells the log what became of members.
pub fn log_members(before: &ClusterMap, after: &ClusterMap) {
    for group in after.groups.iter().filter(|group| group.scheme.is_mirrored()) {
        let Some(old) = before.group(group.id) else { continue };
        let (id, since) = (group.id.0, group.since.0);
        for gone in old.members.iter().filter(|member| !group.members.contains(member)) {
            tracing::warn!(group = id, target_id = gone.0, since, "target {gone} is in group {id} no more");
        }
        for (member, state) in group.with_states() {
            let Some(was) = old.state_of(member) else {
                tracing::warn!(
                    group = id,
                    target_id = member.0,
                    since,
                    "target {member} comes to group {id}"
                );
                continue;
            };
            match state {
                _ if was == state => {}
                MemberState::Good => {
                    tracing::info!(
                        group = id,
                        target_id = member.0,
                        since,
                        "target {member} is in step with group {id} again"
                    );
                }
                _ => tracing::warn!(
                    group = id,
                    target_id = member.0,
                    since,
                    "target {member} of group {id} is {} now, it was {}",
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
                "target {is} is the primary of group {} now, it was target {was}",
                group.id
            );
        }
    }
}

fn mirrored(map: &ClusterMap) -> Vec<GroupId> {
    map.groups.iter().filter(|group| group.scheme.is_mirrored()).map(|group| group.id).collect()
}

fn group_mut(map: &mut ClusterMap, id: GroupId) -> Result<&mut Group> {
    map.groups.iter_mut().find(|group| group.id == id).ok_or_else(|| refusal::no_group(id))
}

fn members_on(map: &ClusterMap, group: &Group, node: NodeId) -> Vec<TargetId> {
    let is_on = |id: &TargetId| map.target(*id).is_some_and(|target| target.node == node);
    group.members.iter().copied().filter(is_on).collect()
}

/// Good members but for these, whose nodes are heard of.
fn heard_others(map: &ClusterMap, group: &Group, but: &[TargetId], presence: &Presence) -> Vec<TargetId> {
    let good = group.with_states().filter(|(_, state)| *state == MemberState::Good).map(|(id, _)| id);
    good.filter(|id| !but.contains(id) && is_there(map, *id, presence)).collect()
}

/// Whether a target's node is heard of, and has it: a node serves on without a disk that is gone.
pub fn is_there(map: &ClusterMap, id: TargetId, presence: &Presence) -> bool {
    let is_heard = map.target(id).is_some_and(|target| presence.heard.contains(&target.node));
    is_heard && !presence.missing.contains(&id)
}

/// Takes good members out. Where the primary is among them, the first of `others` replaces it.
fn take_out(group: &mut Group, out: &[TargetId], state: MemberState, others: &[TargetId]) {
    let replaced = group.primary().filter(|primary| out.contains(primary));
    out.iter().for_each(|id| set(group, *id, state));
    let (Some(replaced), Some(primary)) = (replaced, others.first()) else { return };
    for member in group.members.clone().into_iter().filter(|id| id != primary && !out.contains(id)) {
        interrupt(group, member);
        if group.state_of(member) == Some(MemberState::Good) {
            set(group, member, MemberState::NeedsResync);
        }
    }
    let place = |id: TargetId| match id {
        id if id == *primary => 0,
        id if id == replaced => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.with_states().collect();
    ordered.sort_by_key(|(id, _)| place(*id));
    (group.members, group.states) = ordered.into_iter().unzip();
}

/// The primary goes and has left nothing half done: the others stay as they are, and the first of
/// `others` is the next one.
fn resign(group: &mut Group, primary: TargetId, state: MemberState, others: &[TargetId]) {
    set(group, primary, state);
    let place = |id: TargetId| match id {
        id if others.first() == Some(&id) => 0,
        id if id == primary => 2,
        _ => 1,
    };
    let mut ordered: Vec<(TargetId, MemberState)> = group.with_states().collect();
    ordered.sort_by_key(|(id, _)| place(*id));
    (group.members, group.states) = ordered.into_iter().unzip();
}

/// Who brought the member in step, or the member itself, isn't the same process any more: it begins
/// anew.
fn interrupt(group: &mut Group, target: TargetId) {
    match group.state_of(target) {
        Some(MemberState::Resyncing) => set(group, target, MemberState::NeedsResync),
        Some(MemberState::Rebuilding) => set(group, target, MemberState::Bad),
        _ => {}
    }
}

fn set(group: &mut Group, target: TargetId, state: MemberState) {
    group.states = group.with_states().map(|(id, now)| if id == target { state } else { now }).collect();
    if group.states.iter().all(|state| *state == MemberState::Good) {
        group.states.clear();
    }
}

#[cfg(test)]
mod tests;
