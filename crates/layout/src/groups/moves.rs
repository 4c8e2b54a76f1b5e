//! Members of mirrored groups that other targets take the place of: which one, so that what one
//! target had comes to many, no node and no rack has two copies, and there is room.

use super::domains::{Rack, Spread, rack};
use crate::capacity::classify;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use types::{
    CapacityClass, ClusterMap, Group, GroupId, MemberState, NodeId, PoolId, Target, TargetId, TargetState,
};

/// A member whose place another target takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Move {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

/// The target that takes the place of a member: one that takes new files, is there, has room for
/// what the others have, and isn't on the node or in the rack of another member; of those the one
/// that is in the fewest groups, then the one that shares the fewest with the others.
///
/// `None` when there is none. Two members on one node, or in one rack, are put up with only where
/// the group has such already, or where the pool has targets on too few nodes, or in too few racks.
pub fn successor(map: &ClusterMap, group: &Group, gone: TargetId) -> Option<TargetId> {
    Loads::of(map, group.pool).successor(map, group, gone)
}

/// What a member of a group takes on its target, bytes, about: the share of each group that the
/// target is in, of what it has.
pub fn member_bytes(map: &ClusterMap, group: &Group) -> u64 {
    let share = |id: TargetId| {
        let target = map.target(id)?;
        let groups = map.groups.iter().filter(|group| group.members.contains(&id)).count() as u64;
        // What others have on its disk is nobody's share, where it is known how much that is.
        let used = target.used.unwrap_or(target.capacity.saturating_sub(target.free));
        Some(used / groups.max(1))
    };
    group.good().filter_map(share).min().unwrap_or(0)
}

/// Moves after which members of groups are as far apart as nodes and racks of the pool allow, and
/// then its targets that take new files in about equally many groups, as far as that and their room
/// allow. Groups in which something is amiss, or is being moved already, stay as they are; one move
/// is made in each of the others at most.
pub fn balance(map: &ClusterMap, pool: PoolId) -> Vec<Move> {
    let mut plan = Plan { after: map.clone(), pool, moves: Vec::new() };
    let all = Spread::of_pool(map, pool);
    for group in &map.groups {
        if let Some(next) = plan.move_apart(group, all) {
            plan.make(next);
        }
    }
    while let Some(next) = plan.next_move() {
        plan.make(next);
    }
    plan.moves
}

/// Moves, and the map as it is when they have begun.
struct Plan {
    after: ClusterMap,
    pool: PoolId,
    moves: Vec<Move>,
}

impl Plan {
    fn make(&mut self, next: Move) {
        for group in self.after.groups.iter_mut().filter(|group| group.id == next.group) {
            // What comes to the target takes room that no other group has any more.
            let state = |id: &TargetId| {
                if *id == next.from { MemberState::Bad } else { MemberState::Good }
            };
            group.states = group.members.iter().map(state).collect();
            group.members = replaced(group, next.from, next.to).collect();
        }
        self.moves.push(next);
    }

    fn may_move(&self, group: &Group) -> bool {
        group.pool == self.pool
            && group.scheme.is_mirrored()
            && !group.is_degraded()
            && !group.is_lost()
            && group.leaving.is_none()
            && !self.moves.iter().any(|made| made.group == group.id)
    }

    fn serves(&self, id: TargetId) -> bool {
        self.after.target(id).is_some_and(|t| t.state == TargetState::Online && !t.drain)
    }

    /// The move after which the members of a group are furthest apart, if they are nearer to one
    /// another than in this pool they have to be.
    fn move_apart(&self, group: &Group, all: Spread) -> Option<Move> {
        let map = &self.after;
        let has = Spread::of_group(map, group);
        if !self.may_move(group) || has >= all.best(group.scheme) {
            return None;
        }
        let loads = Loads::of(map, self.pool);
        let serving = group.members.iter().copied().filter(|id| self.serves(*id));
        let moves = serving.filter_map(|from| {
            let to = loads.successor(map, group, from)?;
            let gets = Spread::of_ids(map, replaced(group, from, to));
            let order = (Reverse(gets), loads.count(to), Reverse(loads.count(from)));
            (gets > has).then_some((order, Move { group: group.id, from, to }))
        });
        moves.min_by_key(|(order, next)| (*order, next.from)).map(|(_, next)| next)
    }

    /// The move that does the most: from the target in the most groups to one that is in at least
    /// two less.
    fn next_move(&self) -> Option<Move> {
        let map = &self.after;
        let loads = Loads::of(map, self.pool);
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
                let to = loads.successor(map, group, from)?;
                let gets = Spread::of_ids(map, replaced(group, from, to));
                (gets >= Spread::of_group(map, group))
                    .then(|| (loads.count(to), Move { group: group.id, from, to }))
            });
            let best = moves.min_by_key(|(load, next)| (*load, next.group))?;
            (best.0 + 2 <= count).then_some(best.1)
        })
    }
}

/// The members of a group when one has taken the place of another.
fn replaced(group: &Group, from: TargetId, to: TargetId) -> impl Iterator<Item = TargetId> {
    let members: Vec<TargetId> = group.members.iter().map(|id| if *id == from { to } else { *id }).collect();
    members.into_iter()
}

/// What the targets of a pool have to do.
struct Loads {
    /// Nodes and racks that those are in that take new files.
    all: Spread,
    /// Mirrored groups that each is in, but for those that it leaves.
    memberships: BTreeMap<TargetId, usize>,
    /// What will come to each yet, bytes.
    coming: BTreeMap<TargetId, u64>,
    /// Groups that two of them are in, each pair both ways.
    shared: BTreeMap<(TargetId, TargetId), usize>,
}

impl Loads {
    fn of(map: &ClusterMap, pool: PoolId) -> Loads {
        let none = || map.targets.iter().filter(|t| t.pool == pool).map(|t| t.id);
        let mut loads = Loads {
            all: Spread::of_pool(map, pool),
            memberships: none().map(|id| (id, 0)).collect(),
            coming: none().map(|id| (id, 0)).collect(),
            shared: BTreeMap::new(),
        };
        for group in map.groups.iter().filter(|group| group.scheme.is_mirrored()) {
            for (id, state) in group.with_states().filter(|(id, _)| group.leaving != Some(*id)) {
                loads.memberships.entry(id).and_modify(|count| *count += 1);
                for other in group.members.iter().filter(|other| **other != id) {
                    *loads.shared.entry((id, *other)).or_default() += 1;
                }
                if matches!(state, MemberState::Bad | MemberState::Rebuilding) {
                    loads.coming.entry(id).and_modify(|bytes| *bytes += member_bytes(map, group));
                }
            }
        }
        loads
    }

    fn count(&self, target: TargetId) -> usize {
        self.memberships.get(&target).copied().unwrap_or(0)
    }

    fn successor(&self, map: &ClusterMap, group: &Group, gone: TargetId) -> Option<TargetId> {
        let others: Vec<TargetId> = group.members.iter().copied().filter(|id| *id != gone).collect();
        let nodes: Vec<NodeId> = others.iter().filter_map(|id| map.target(*id)).map(|t| t.node).collect();
        let racks: Vec<Rack<'_>> = nodes.iter().map(|node| rack(map, *node)).collect();
        let need = member_bytes(map, group);
        let has = Spread::of_ids(map, group.members.iter().copied());
        let best = self.all.best(group.scheme);
        let (all, wanted) = (group.members.len(), group.scheme.members());
        let may_share_node = has.nodes < all || best.nodes < wanted;
        let may_share_rack = has.racks < all || best.racks < wanted;
        let rank = |target: &Target| {
            let takes_part = target.pool == group.pool
                && target.state == TargetState::Online
                && !target.drain
                && !group.members.contains(&target.id);
            let on_node = nodes.iter().filter(|node| **node == target.node).count();
            let own_rack = rack(map, target.node);
            let in_rack = racks.iter().filter(|rack| **rack == own_rack).count();
            if !takes_part || (on_node > 0 && !may_share_node) || (in_rack > 0 && !may_share_rack) {
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

    /// How full a target is when all has come.
    fn class_after(&self, target: &Target, bytes: u64) -> CapacityClass {
        let coming = self.coming.get(&target.id).copied().unwrap_or(0).saturating_add(bytes);
        match (target.class, classify(target.capacity, target.free.saturating_sub(coming))) {
            (CapacityClass::Emergency, _) | (_, CapacityClass::Emergency) => CapacityClass::Emergency,
            (CapacityClass::Normal, CapacityClass::Normal) => CapacityClass::Normal,
            _ => CapacityClass::Low,
        }
    }
}

#[cfg(test)]
mod tests;
