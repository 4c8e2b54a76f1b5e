//! Members of mirrored groups that other targets take the place of: which one, so that what one target had comes to many, no node has two copies, and
//! there is room.

use super::mirrored::{is_spread, spreads};
use crate::capacity::classify;
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

/// The target that takes the place of a member: one that takes new files, is there, has room for what the others have, and isn't on the node of
/// another member; of those the one that is in the fewest groups, then the one that shares the fewest with the others.
///
/// `None` when there is none. Two members on one node are put up with only where the group has such already, or where the pool has targets on too few nodes.
pub fn successor(map: &ClusterMap, group: &Group, gone: TargetId) -> Option<TargetId> {
    Loads::of(map, group.pool).successor(map, group, gone)
}

/// What a member of a group takes on its target, bytes, about: the target's share of each group that it is in.
pub fn member_bytes(map: &ClusterMap, group: &Group) -> u64 {
    let share = |id: TargetId| {
        let target = map.target(id)?;
        let groups = map.groups.iter().filter(|group| group.members.contains(&id)).count() as u64;
        Some(target.capacity.saturating_sub(target.free) / groups.max(1))
    };
    group.good().filter_map(share).min().unwrap_or(0)
}

/// Moves after which the targets of a pool that take new files are in about equally many groups, as far as nodes and room allow. Groups in which something
/// is amiss, or is being moved already, stay as they are.
pub fn balance(map: &ClusterMap, pool: PoolId) -> Vec<Move> {
    let mut after = map.clone();
    let mut moves: Vec<Move> = Vec::new();
    while let Some(next) = next_move(&after, pool, &moves) {
        for group in after.groups.iter_mut().filter(|group| group.id == next.group) {
            let members = group.members.iter().map(|id| if *id == next.from { next.to } else { *id });
            group.members = members.collect();
        }
        moves.push(next);
    }
    moves
}

/// The move that does the most: from the target in the most groups to one that is in at least two less.
fn next_move(map: &ClusterMap, pool: PoolId, made: &[Move]) -> Option<Move> {
    let loads = Loads::of(map, pool);
    let serves = |id: &TargetId| map.target(*id).is_some_and(|t| t.state == TargetState::Online && !t.drain);
    let mut fullest: Vec<(usize, TargetId)> =
        loads.memberships.iter().filter(|(id, _)| serves(id)).map(|(id, count)| (*count, *id)).collect();
    fullest.sort_by_key(|(count, id)| (std::cmp::Reverse(*count), *id));
    let may_move = |group: &&Group| {
        group.pool == pool
            && group.scheme.is_mirrored()
            && !group.is_degraded()
            && group.leaving.is_none()
            && !made.iter().any(|made| made.group == group.id)
    };
    fullest.into_iter().find_map(|(count, from)| {
        let has_it = |group: &&Group| group.members.contains(&from) && may_move(group);
        let moves = map.groups.iter().filter(has_it).filter_map(|group| {
            let to = loads.successor(map, group, from)?;
            Some((loads.count(to), Move { group: group.id, from, to }))
        });
        let best = moves.min_by_key(|(load, next)| (*load, next.group))?;
        (best.0 + 2 <= count).then_some(best.1)
    })
}

/// What the targets of a pool have to do.
struct Loads {
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
        let need = member_bytes(map, group);
        let may_crowd = !is_spread(map, group) || !spreads(map, group.pool, group.scheme);
        let rank = |target: &Target| {
            let takes_part = target.pool == group.pool
                && target.state == TargetState::Online
                && !target.drain
                && !group.members.contains(&target.id);
            let neighbours = nodes.iter().filter(|node| **node == target.node).count();
            if !takes_part || (neighbours > 0 && !may_crowd) {
                return None;
            }
            let is_low = match self.class_after(target, need) {
                CapacityClass::Emergency => return None,
                class => class == CapacityClass::Low,
            };
            let shares = |other: &TargetId| self.shared.get(&(target.id, *other)).copied().unwrap_or(0);
            let shared: usize = others.iter().map(shares).sum();
            Some((neighbours, is_low, self.count(target.id), shared, target.id))
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
