//! Groups of several targets.
//!
//! They are *declustered*: a target shares groups with all others as evenly as possible. So when a
//! target is lost, many targets copy its content at once, and many take over its load. No two
//! members share a failure domain: a rack, if the pool has targets in as many racks as a group has
//! members; else a node; and if there are too few nodes, each target is a domain of its own. If
//! there are too few racks, all of them are used.
//!
//! Existing groups never change. For a new target, groups are added until it has as many as the
//! others.

use super::domains::{Rack, Spread, has_distinct_nodes, rack};
use std::collections::{BTreeMap, BTreeSet};
use types::{ClusterMap, Group, GroupId, NodeId, PoolId, Scheme, Target, TargetId, TargetState};

/// Lowest number of a mirrored group: above those of `single` groups, which have the numbers of
/// their targets.
pub const FIRST_MIRRORED: u32 = 100_001;

/// Largest number of mirrored groups in a cluster. Every node and client gets the whole map with
/// each change, so it must stay below a MiB; a degraded group takes some 150 bytes, beside the
/// targets.
pub const MAX_MIRRORED: usize = 1536;

/// Average number of groups with the same first target, in a pool of many targets: enough that many
/// others share the load of a lost target, few enough that the store that each member has for each
/// group costs little.
const PRIMARIES_PER_TARGET: usize = 8;

/// Why no groups can be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// The pool has this many reachable targets for new files, on too few nodes for a group.
    Targets(usize),
    /// The cluster would have more than [`MAX_MIRRORED`].
    Groups,
}

/// The missing groups of a mirrored scheme in a pool, with numbers from `next` on. None if there
/// are enough.
///
/// Draining and offline targets get no membership in new groups. Members are as far apart as all
/// targets of the pool allow, offline ones included: an offline node doesn't lead to groups with
/// two members on one node.
pub fn mirrored_groups(
    map: &ClusterMap,
    pool: PoolId,
    scheme: Scheme,
    next: GroupId,
) -> Result<Vec<Group>, Shortage> {
    mirrored_groups_within(MAX_MIRRORED, map, pool, scheme, next)
}

/// The same with another limit in place of [`MAX_MIRRORED`], for hypothetical clusters.
///
/// Errors: as [`mirrored_groups`].
pub fn mirrored_groups_within(
    most_groups: usize,
    map: &ClusterMap,
    pool: PoolId,
    scheme: Scheme,
    next: GroupId,
) -> Result<Vec<Group>, Shortage> {
    let takes_members = |t: &&Target| t.pool == pool && !t.drain && t.state != TargetState::Offline;
    let targets: Vec<&Target> = map.targets.iter().filter(takes_members).collect();
    let separation = Separation::of(map, pool, scheme);
    if separation.places(Spread::of(map, targets.iter().copied()), targets.len()) < scheme.members() {
        return Err(Shortage::Targets(targets.len()));
    }
    let remaining_groups =
        most_groups.saturating_sub(map.groups.iter().filter(|g| g.scheme.spans_targets()).count());
    let has_group: BTreeSet<TargetId> = map
        .groups
        .iter()
        .filter(|g| g.pool == pool && g.scheme == scheme)
        .flat_map(|g| g.members.iter().copied())
        .collect();
    let ungrouped = targets.iter().filter(|target| !has_group.contains(&target.id)).count();
    if ungrouped.div_ceil(scheme.members()) > remaining_groups {
        return Err(Shortage::Groups);
    }
    let mut table = MembershipTable::new(map, &targets, scheme, separation);
    for group in map.groups.iter().filter(|g| g.pool == pool && g.scheme == scheme) {
        // A group from a time with too few nodes no longer counts. One from a time with too few
        // racks does: `rebalance` moves its members apart.
        if separation == Separation::Targets || has_distinct_nodes(map, group) {
            table.count_group(group);
        }
    }
    for most in (1..=PRIMARIES_PER_TARGET * scheme.members()).rev() {
        if let Some(new) = table.clone().fill(most, remaining_groups) {
            let numbered = new.into_iter().zip(next.0..).map(|(members, id)| Group {
                id: GroupId(id),
                pool,
                scheme,
                members,
                states: Vec::new(),
                since: types::Epoch(0),
                leaving: None,
                revived: None,
            });
            return Ok(numbered.collect());
        }
    }
    Err(Shortage::Groups)
}

/// Failure domain that two members of a group must not share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Separation {
    /// A rack, and therefore a node.
    Racks,
    /// A node.
    Nodes,
    /// None: the pool allows no better.
    Targets,
}

impl Separation {
    /// The largest domain that the pool allows.
    fn of(map: &ClusterMap, pool: PoolId, scheme: Scheme) -> Separation {
        let best = Spread::of_pool(map, pool).best(scheme);
        match scheme.members() {
            members if best.racks == members => Separation::Racks,
            members if best.nodes == members => Separation::Nodes,
            _ => Separation::Targets,
        }
    }

    /// Number of members that targets with this spread allow.
    fn places(self, spread: Spread, targets: usize) -> usize {
        match self {
            Separation::Racks => spread.racks,
            Separation::Nodes => spread.nodes,
            Separation::Targets => targets,
        }
    }
}

/// Location of a target.
#[derive(Clone, Copy)]
struct TargetLocation<'a> {
    id: TargetId,
    node: NodeId,
    rack: Rack<'a>,
}

/// Shared groups of the targets of a pool. Targets are identified by their index in the list.
#[derive(Clone)]
struct MembershipTable<'a> {
    /// Sorted by id.
    targets: Vec<TargetLocation<'a>>,
    members: usize,
    /// Domain that members of a group must not share.
    separation: Separation,
    /// Number of groups of each target.
    memberships: Vec<usize>,
    /// Number of groups with a target at each position: all targets for the first position, then
    /// for the next.
    position_counts: Vec<usize>,
    /// Number of groups that two targets share, each pair both ways, row by row.
    shared: Vec<u16>,
}

impl<'a> MembershipTable<'a> {
    fn new(
        map: &'a ClusterMap,
        targets: &[&Target],
        scheme: Scheme,
        separation: Separation,
    ) -> MembershipTable<'a> {
        let (count, members) = (targets.len(), scheme.members());
        let place = |t: &&Target| TargetLocation { id: t.id, node: t.node, rack: rack(map, t.node) };
        MembershipTable {
            targets: targets.iter().map(place).collect(),
            members,
            separation,
            memberships: vec![0; count],
            position_counts: vec![0; count * members],
            shared: vec![0; count * count],
        }
    }

    /// Counts an existing group; members that get no new memberships are ignored.
    fn count_group(&mut self, group: &Group) {
        let at = |id: &TargetId| self.targets.binary_search_by_key(id, |known| known.id).ok();
        let places: Vec<Option<usize>> = group.members.iter().map(at).collect();
        self.count(&places);
    }

    fn count(&mut self, members: &[Option<usize>]) {
        let known = || members.iter().enumerate().filter_map(|(place, at)| Some((place, (*at)?)));
        for (place, one) in known().filter(|(place, _)| *place < self.members) {
            self.memberships[one] += 1;
            self.position_counts[place * self.targets.len() + one] += 1;
            for (_, other) in known().filter(|(_, other)| *other != one) {
                let shared = &mut self.shared[one * self.targets.len() + other];
                *shared = shared.saturating_add(1);
            }
        }
    }

    /// Whether two targets must not be in one group.
    fn share_domain(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.targets[one], &self.targets[other]);
        match self.separation {
            Separation::Racks => one.rack == other.rack,
            Separation::Nodes => one.node == other.node,
            Separation::Targets => one.id == other.id,
        }
    }

    /// Wanted number of groups of each target, at most `most`: with all targets that it may share a
    /// group with, it should share as many groups as a group has members.
    fn goals(&self, most: usize) -> Vec<usize> {
        let (mut in_rack, mut on_node) = (BTreeMap::new(), BTreeMap::new());
        for place in &self.targets {
            *in_rack.entry(place.rack).or_insert(0) += 1;
            *on_node.entry(place.node).or_insert(0) += 1;
        }
        let goal = |place: &TargetLocation<'_>| {
            let near = match self.separation {
                Separation::Racks => in_rack[&place.rack],
                Separation::Nodes => on_node[&place.node],
                Separation::Targets => 1,
            };
            ((self.targets.len() - near).div_ceil(self.members - 1) * self.members).min(most)
        };
        self.targets.iter().map(goal).collect()
    }

    /// Creates groups until every target has its wanted number; `None` if that takes more than
    /// `room`.
    fn fill(&mut self, most: usize, remaining_groups: usize) -> Option<Vec<Vec<TargetId>>> {
        let goals = self.goals(most);
        let missing =
            |table: &MembershipTable<'_>, at: usize| goals[at].saturating_sub(table.memberships[at]);
        let all_missing: usize = (0..goals.len()).map(|at| missing(self, at)).sum();
        if all_missing / self.members > remaining_groups {
            return None;
        }
        let mut groups = Vec::new();
        loop {
            let neediest = (0..goals.len()).max_by_key(|at| (missing(self, *at), std::cmp::Reverse(*at)))?;
            if missing(self, neediest) == 0 {
                return Some(groups);
            }
            if groups.len() == remaining_groups {
                return None;
            }
            let ordered = self.ordered(self.group_around(neediest, &goals)?);
            let members: Vec<Option<usize>> = ordered.iter().map(|at| Some(*at)).collect();
            self.count(&members);
            groups.push(ordered.into_iter().map(|at| self.targets[at].id).collect());
        }
    }

    /// A group with this target: each further member is the target that shares the least with those
    /// chosen so far.
    fn group_around(&self, first: usize, goals: &[usize]) -> Option<Vec<usize>> {
        let mut chosen = vec![first];
        while chosen.len() < self.members {
            let weight = |at: &usize| {
                let place = &self.targets[*at];
                let near = |has: fn(&TargetLocation<'_>, &TargetLocation<'_>) -> bool| {
                    chosen.iter().filter(|other| has(&self.targets[**other], place)).count()
                };
                let (on_node, in_rack) = (near(|a, b| a.node == b.node), near(|a, b| a.rack == b.rack));
                let shares = chosen.iter().map(|other| self.shared[other * self.targets.len() + at] as usize);
                let has = self.memberships[*at];
                // Memberships beyond its goal weigh as much as shared groups: a target with enough
                // groups isn't chosen for evenness alone.
                let beyond = (has + 1).saturating_sub(goals[*at]);
                let lacks = goals[*at].saturating_sub(has);
                (on_node, in_rack, shares.sum::<usize>() + beyond, std::cmp::Reverse(lacks), *at)
            };
            let can_join = |at: &usize| !chosen.iter().any(|other| self.share_domain(*other, *at));
            let best = (0..self.targets.len()).filter(can_join).min_by_key(weight)?;
            chosen.push(best);
        }
        Some(chosen)
    }

    /// Orders members so that every target has each position about equally often.
    fn ordered(&self, mut members: Vec<usize>) -> Vec<usize> {
        let mut ordered = Vec::with_capacity(members.len());
        while !members.is_empty() {
            let place = ordered.len();
            let had = |at: usize| self.position_counts[place * self.targets.len() + at];
            members.sort_by_key(|at| std::cmp::Reverse((had(*at), *at)));
            ordered.extend(members.pop());
        }
        ordered
    }
}

#[cfg(test)]
pub(crate) mod tests;
