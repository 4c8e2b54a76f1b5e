//! Replacement of members of mirrored groups by other targets: members that are lost for good, and
//! members on draining targets. Pure.
//!
//! Invariants, whatever happens:
//! - No member is replaced while it is in sync: a lost member is ejected first, and a leaving one
//!   stays until enough others are in sync.
//! - A former member knew before that it was ejected, or doesn't serve.
//! - A new member is `bad`: it gets a full copy before it counts.

use crate::member_states::{self, ReachabilitySnapshot};
use crate::refusal;
use std::collections::BTreeSet;
use types::{CapacityClass, ClusterMap, Group, GroupId, MemberState, Result, TargetId, TargetState};

/// Memberships that one draining target gives up at a time: more would only wait for each other.
const MAX_LEAVING_AT_ONCE: usize = 4;

/// Lost members that are handled at a time: the rest follows when the map is evaluated again.
const MAX_REPLACED_AT_ONCE: usize = 64;

/// State outside of the map.
pub struct ReplacementContext<'a> {
    pub presence: &'a ReachabilitySnapshot,
    /// Targets that have been unreachable long enough to be replaced.
    pub lost: &'a BTreeSet<TargetId>,
    /// Whether no process serves as this member of the group any more, after its ejection.
    pub is_ejection_confirmed: &'a dyn Fn(GroupId, TargetId) -> bool,
}

/// Makes the replacements that are possible now; their successors follow when the map is evaluated
/// again.
pub fn advance(map: &mut ClusterMap, context: &ReplacementContext<'_>) {
    remove_leaving(map, context);
    replace_lost(map, context);
    replace_unsuitable(map, context);
    replace_drained(map, context);
}

/// Starts the replacement of a member by another target.
pub fn start_replacement(map: &mut ClusterMap, group: GroupId, from: TargetId, to: TargetId) {
    if let Some(group) = group_mut(map, group) {
        let mut members: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
        members.push((to, MemberState::NeedsRebuild));
        set_members(group, members);
        group.leaving = Some(from);
    }
}

/// Replaces an offline target that is about to be removed from the cluster, except in the groups
/// that are lost with it. Unlike a member that may return, it may be in sync: it serves no client
/// any more, and another member in sync has everything, too.
///
/// # Errors
/// `EBUSY` if there is no other target.
pub fn replace_offline(map: &mut ClusterMap, target: TargetId, excluded: &BTreeSet<GroupId>) -> Result<()> {
    let has_it = |group: &&Group| group.members.contains(&target) && !excluded.contains(&group.id);
    let groups: Vec<GroupId> = map.groups.iter().filter(has_it).map(|group| group.id).collect();
    for id in groups {
        let Some(group) = map.group(id) else { continue };
        // Its replacement may be a member already.
        let has_more = group.members.len() > group.scheme.members();
        let to = if has_more { None } else { layout::replacement_target(map, group, target) };
        let Some(group) = group_mut(map, id) else { continue };
        match to {
            Some(to) => substitute(group, target, to),
            None if has_more => remove(group, target),
            None => return Err(refusal::no_replacement(target, id)),
        }
        group.leaving = group.leaving.filter(|leaving| *leaving != target);
    }
    Ok(())
}

/// Removes replaced members that their groups don't need any more.
fn remove_leaving(map: &mut ClusterMap, context: &ReplacementContext<'_>) {
    for group in map.groups.iter_mut().filter(|group| group.leaving.is_some()) {
        let Some(leaving) = group.leaving else { continue };
        let is_removable = match group.state_of(leaving) {
            None => true,
            Some(MemberState::InSync) => false,
            Some(_) => {
                group.in_sync_members().count() >= group.scheme.members()
                    && (context.is_ejection_confirmed)(group.id, leaving)
            }
        };
        if is_removable {
            remove(group, leaving);
        }
    }
}

/// Replaces lost members of groups.
fn replace_lost(map: &mut ClusterMap, context: &ReplacementContext<'_>) {
    let is_lost = |(id, _): &(TargetId, MemberState)| context.lost.contains(id);
    let lost_members: Vec<(GroupId, TargetId)> = map
        .groups
        .iter()
        .filter(|group| group.scheme.spans_targets())
        .flat_map(|group| group.members_with_states().filter(is_lost).map(|(member, _)| (group.id, member)))
        .collect();
    let mut replaced = 0;
    for (id, member) in lost_members {
        let Some(group) = map.group(id) else { continue };
        // A change for another member of the group may have changed it.
        let Some(state) = group.state_of(member) else { continue };
        if !has_other_in_sync(map, group, member, context.presence) {
            continue;
        }
        if state == MemberState::InSync {
            member_states::eject_lost(map, id, member, context.presence);
            continue;
        }
        if !(context.is_ejection_confirmed)(id, member) || replaced == MAX_REPLACED_AT_ONCE {
            continue;
        }
        replaced += 1;
        let has_more = group.members.len() > group.scheme.members();
        let successor = if has_more { None } else { layout::replacement_target(map, group, member) };
        let Some(group) = group_mut(map, id) else { continue };
        match successor {
            _ if has_more => remove(group, member),
            Some(to) => substitute(group, member, to),
            None => {}
        }
    }
}

/// Replaces incoming members that can't take a leaving member's place any more: targets without
/// space, and draining ones.
fn replace_unsuitable(map: &mut ClusterMap, context: &ReplacementContext<'_>) {
    let is_unsuitable = |id: TargetId| {
        map.target(id).is_some_and(|target| target.drain || target.class == CapacityClass::Emergency)
    };
    let unsuitable_member = |group: &Group| {
        let mut members = group.members_with_states();
        let found = members.find(|(id, state)| {
            *state == MemberState::NeedsRebuild && group.leaving != Some(*id) && is_unsuitable(*id)
        });
        found.map(|(id, _)| (group.id, id))
    };
    let leaving = map.groups.iter().filter(|group| group.leaving.is_some());
    let unsuitable: Vec<(GroupId, TargetId)> = leaving.filter_map(unsuitable_member).collect();
    for (id, member) in
        unsuitable.into_iter().filter(|(id, member)| (context.is_ejection_confirmed)(*id, *member))
    {
        let to = map.group(id).and_then(|group| layout::replacement_target(map, group, member));
        if let (Some(to), Some(group)) = (to, group_mut(map, id)) {
            substitute(group, member, to);
        }
    }
}

/// Replaces members on draining targets, some at a time. Groups with a problem are resynced first.
fn replace_drained(map: &mut ClusterMap, context: &ReplacementContext<'_>) {
    let drained: Vec<TargetId> = map.targets.iter().filter(|t| t.drain).map(|t| t.id).collect();
    for from in drained {
        let under_way = map.groups.iter().filter(|group| group.leaving == Some(from)).count();
        let may_begin = |group: &&Group| {
            let others_are_good =
                group.members_with_states().all(|(id, state)| id == from || state == MemberState::InSync);
            group.scheme.spans_targets()
                && group.leaving.is_none()
                && group.members.contains(&from)
                && others_are_good
                && group.in_sync_members().any(|id| is_reachable(map, id, context.presence))
        };
        let groups: Vec<GroupId> = map.groups.iter().filter(may_begin).map(|group| group.id).collect();
        let mut budget = MAX_LEAVING_AT_ONCE.saturating_sub(under_way);
        for id in groups {
            let to = map.group(id).and_then(|group| layout::replacement_target(map, group, from));
            let (Some(to), true) = (to, budget > 0) else { continue };
            start_replacement(map, id, from, to);
            budget -= 1;
        }
    }
}

/// Whether another member in sync than this one is reachable.
fn has_other_in_sync(
    map: &ClusterMap,
    group: &Group,
    excluded: TargetId,
    presence: &ReachabilitySnapshot,
) -> bool {
    group.in_sync_members().any(|id| id != excluded && is_reachable(map, id, presence))
}

fn is_reachable(map: &ClusterMap, id: TargetId, presence: &ReachabilitySnapshot) -> bool {
    map.target(id).is_some_and(|t| t.state == TargetState::Online && presence.reachable.contains(&t.node))
}

/// Puts another target, without content, in the place of a member.
fn substitute(group: &mut Group, member: TargetId, to: TargetId) {
    let put = |(id, state)| if id == member { (to, MemberState::NeedsRebuild) } else { (id, state) };
    let members = group.members_with_states().map(put).collect();
    set_members(group, members);
}

fn remove(group: &mut Group, member: TargetId) {
    let members: Vec<_> = group.members_with_states().filter(|(id, _)| *id != member).collect();
    set_members(group, members);
    if group.members.len() <= group.scheme.members() || group.leaving == Some(member) {
        group.leaving = None;
    }
}

fn set_members(group: &mut Group, members: Vec<(TargetId, MemberState)>) {
    (group.members, group.states) = members.into_iter().unzip();
    if group.states.iter().all(|state| *state == MemberState::InSync) {
        group.states.clear();
    }
}

fn group_mut(map: &mut ClusterMap, id: GroupId) -> Option<&mut Group> {
    map.groups.iter_mut().find(|group| group.id == id)
}

#[cfg(test)]
mod tests;
