//! Choice of the target that replaces a member of a mirrored group: the content of one target is
//! distributed to many, no node and no rack gets two replicas, and there is enough space.

use super::domains::{Rack, Spread, rack};
use crate::capacity::classify;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use types::{
    CapacityClass, ClusterMap, Group, GroupId, MemberState, NodeId, PoolId, Target, TargetId, TargetState,
};

/// Replacement of a member by another target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct MemberMove {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

/// Chooses the target that replaces a member. It takes new files, is online, has space for the
/// group's content, and isn't on the node or in the rack of another member. Among those it is the
/// one in the fewest groups, then the one that shares the fewest groups with the other members.
///
/// `None` if there is none. Two members on one node, or in one rack, are accepted only if the group
/// has such members already, or if the pool has too few nodes or racks.
pub fn replacement_target(map: &ClusterMap, group: &Group, leaving: TargetId) -> Option<TargetId> {
    TargetLoads::of(map, group.pool).replacement(map, group, leaving)
}

/// Estimated bytes of a group's replica on a target: the target's used space, divided by its number
/// of groups.
pub fn member_bytes(map: &ClusterMap, group: &Group) -> u64 {
    let share = |id: TargetId| {
        let target = map.target(id)?;
        let groups = map.groups.iter().filter(|group| group.members.contains(&id)).count() as u64;
        // Data of other programs on its disk doesn't count, if its amount is known.
        let used = target.used.unwrap_or(target.capacity.saturating_sub(target.free));
        Some(used / groups.max(1))
    };
    group.in_sync_members().filter_map(share).min().unwrap_or(0)
}

/// Moves that put members of groups as far apart as the pool's nodes and racks allow, and then give
/// its targets that take new files about equally many groups, as far as that and their space allow.
/// Groups with a problem or a move in progress stay as they are; each other group gets one move at
/// most.
pub fn rebalance(map: &ClusterMap, pool: PoolId) -> Vec<MemberMove> {
    let mut plan = MovePlan { after: map.clone(), pool, moves: Vec::new() };
    let all = Spread::of_pool(map, pool);
    for group in &map.groups {
        if let Some(next) = plan.move_apart(group, all) {
            plan.apply(next);
        }
    }
    while let Some(next) = plan.best_balancing_move() {
        plan.apply(next);
    }
    plan.moves
}

/// Moves, and the map after their start.
struct MovePlan {
    after: ClusterMap,
    pool: PoolId,
    moves: Vec<MemberMove>,
}

impl MovePlan {
    fn apply(&mut self, next: MemberMove) {
        for group in self.after.groups.iter_mut().filter(|group| group.id == next.group) {
            // The incoming member takes space that no other group can use any more.
            let state = |id: &TargetId| {
                if *id == next.from { MemberState::NeedsRebuild } else { MemberState::InSync }
            };
            group.states = group.members.iter().map(state).collect();
            group.members = replaced(group, next.from, next.to).collect();
        }
        self.moves.push(next);
    }

    fn may_move(&self, group: &Group) -> bool {
        group.pool == self.pool
            && group.scheme.spans_targets()
            && !group.is_degraded()
            && !group.is_lost()
            && group.leaving.is_none()
            && !self.moves.iter().any(|made| made.group == group.id)
    }

    fn serves(&self, id: TargetId) -> bool {
        self.after.target(id).is_some_and(|t| t.state == TargetState::Online && !t.drain)
    }

    /// The move after which the members of a group are furthest apart, if they are closer than
    /// their pool requires.
    fn move_apart(&self, group: &Group, all: Spread) -> Option<MemberMove> {
        let map = &self.after;
        let has = Spread::of_group(map, group);
        if !self.may_move(group) || has >= all.best(group.scheme) {
            return None;
        }
        let loads = TargetLoads::of(map, self.pool);
        let serving = group.members.iter().copied().filter(|id| self.serves(*id));
        let moves = serving.filter_map(|from| {
            let to = loads.replacement(map, group, from)?;
            let gets = Spread::of_ids(map, replaced(group, from, to));
            let order = (Reverse(gets), loads.count(to), Reverse(loads.count(from)));
            (gets > has).then_some((order, MemberMove { group: group.id, from, to }))
        });
        moves.min_by_key(|(order, next)| (*order, next.from)).map(|(_, next)| next)
    }

    /// The move with the largest effect: from the target in the most groups to one that is in at
    /// least two fewer.
    fn best_balancing_move(&self) -> Option<MemberMove> {
        let map = &self.after;
        let loads = TargetLoads::of(map, self.pool);
        let mut fullest: Vec<(usize, TargetId)> = loads
            .memberships
            .iter()
            .filter(|(id, _)| self.serves(**id))
            .map(|(id, count)| (*count, *id))
            .collect();
        fullest.sort_by_key(|(count, id)| (Reverse(*count), *id));
        fullest.into_iter().find_map(|(count, from)| {
            let has_it = |group: &&Group| group.members.contains(&from) && self.may_move(group);
            let moves = map.groups.iter().filter(has_it).filter_map(|group| {
                let to = loads.replacement(map, group, from)?;
                let gets = Spread::of_ids(map, replaced(group, from, to));
                (gets >= Spread::of_group(map, group))
                    .then(|| (loads.count(to), MemberMove { group: group.id, from, to }))
            });
            let best = moves.min_by_key(|(load, next)| (*load, next.group))?;
            (best.0 + 2 <= count).then_some(best.1)
        })
    }
}

/// The members of a group after a replacement.
fn replaced(group: &Group, from: TargetId, to: TargetId) -> impl Iterator<Item = TargetId> {
    let members: Vec<TargetId> = group.members.iter().map(|id| if *id == from { to } else { *id }).collect();
    members.into_iter()
}

/// Load of the targets of a pool.
struct TargetLoads {
    /// Spread of the targets that take new files.
    all: Spread,
    /// Number of mirrored groups of each target, without those that it leaves.
    memberships: BTreeMap<TargetId, usize>,
    /// Bytes that each target has still to receive.
    incoming_bytes: BTreeMap<TargetId, u64>,
    /// Number of groups that two targets share, each pair both ways.
    shared: BTreeMap<(TargetId, TargetId), usize>,
}

impl TargetLoads {
    fn of(map: &ClusterMap, pool: PoolId) -> TargetLoads {
        let none = || map.targets.iter().filter(|t| t.pool == pool).map(|t| t.id);
        let mut loads = TargetLoads {
            all: Spread::of_pool(map, pool),
            memberships: none().map(|id| (id, 0)).collect(),
            incoming_bytes: none().map(|id| (id, 0)).collect(),
            shared: BTreeMap::new(),
        };
        for group in map.groups.iter().filter(|group| group.scheme.spans_targets()) {
            for (id, state) in group.members_with_states().filter(|(id, _)| group.leaving != Some(*id)) {
                loads.memberships.entry(id).and_modify(|count| *count += 1);
                for other in group.members.iter().filter(|other| **other != id) {
                    *loads.shared.entry((id, *other)).or_default() += 1;
                }
                if matches!(state, MemberState::NeedsRebuild | MemberState::Rebuilding) {
                    loads.incoming_bytes.entry(id).and_modify(|bytes| *bytes += member_bytes(map, group));
                }
            }
        }
        loads
    }

    fn count(&self, target: TargetId) -> usize {
        self.memberships.get(&target).copied().unwrap_or(0)
    }

    fn replacement(&self, map: &ClusterMap, group: &Group, leaving: TargetId) -> Option<TargetId> {
        let others: Vec<TargetId> = group.members.iter().copied().filter(|id| *id != leaving).collect();
        let nodes: Vec<NodeId> = others.iter().filter_map(|id| map.target(*id)).map(|t| t.node).collect();
        let racks: Vec<Rack<'_>> = nodes.iter().map(|node| rack(map, *node)).collect();
        let need = member_bytes(map, group);
        let has = Spread::of_ids(map, group.members.iter().copied());
        let best = self.all.best(group.scheme);
        let (all, wanted) = (group.members.len(), group.scheme.members());
        let may_share_node = has.nodes < all || best.nodes < wanted;
        let may_share_rack = has.racks < all || best.racks < wanted;
        let rank = |target: &Target| {
            let is_eligible = target.pool == group.pool
                && target.state == TargetState::Online
                && !target.drain
                && !group.members.contains(&target.id);
            let on_node = nodes.iter().filter(|node| **node == target.node).count();
            let own_rack = rack(map, target.node);
            let in_rack = racks.iter().filter(|rack| **rack == own_rack).count();
            if !is_eligible || (on_node > 0 && !may_share_node) || (in_rack > 0 && !may_share_rack) {
                return None;
            }
            let is_low = match self.class_after(target, need) {
                CapacityClass::Emergency => return None,
                class => class == CapacityClass::Low,
            };
            let shares = |other: &TargetId| self.shared.get(&(target.id, *other)).copied().unwrap_or(0);
            let shared: usize = others.iter().map(shares).sum();
            Some((on_node, in_rack, is_low, self.count(target.id), shared, target.id))
        };
        map.targets.iter().filter_map(rank).min().map(|(.., id)| id)
    }

    /// The capacity class of a target after everything has arrived.
    fn class_after(&self, target: &Target, bytes: u64) -> CapacityClass {
        let incoming = self.incoming_bytes.get(&target.id).copied().unwrap_or(0).saturating_add(bytes);
        match (target.class, classify(target.capacity, target.free.saturating_sub(incoming))) {
            (CapacityClass::Emergency, _) | (_, CapacityClass::Emergency) => CapacityClass::Emergency,
            (CapacityClass::Normal, CapacityClass::Normal) => CapacityClass::Normal,
            _ => CapacityClass::Low,
        }
    }
}

#[cfg(test)]
mod tests;
