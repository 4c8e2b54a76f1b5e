//! Groups of several targets.
//!
//! They are *declustered*: a target shares groups with all others as evenly as possible, so that
//! what one target had is copied by many at once when it is lost, and what it did is then done by
//! many. No two members have a failure domain in common: a rack where a pool has targets in as many
//! racks as a group has members, else a node, and only where there are too few of those, too, is
//! every target a domain of its own. Where racks are too few, they are all made use of.
//!
//! Existing groups never change. Where a target has come, groups are added until it has as many as
//! the others.

use super::domains::{Rack, Spread, is_spread, rack};
use std::collections::{BTreeMap, BTreeSet};
use types::{ClusterMap, Group, GroupId, NodeId, PoolId, Scheme, Target, TargetId, TargetState};

/// The lowest number of a mirrored group: above those of `single` groups, which have the numbers of
/// their targets.
pub const FIRST_MIRRORED: u32 = 100_001;

/// Mirrored groups of a cluster. Every node and client gets the whole map with each change, so it
/// stays below a MiB; a degraded group takes some 150 bytes of it, beside the targets.
pub const MAX_MIRRORED: usize = 1536;

/// How many groups have a target first, on the average, in a pool of many: enough that the loss of
/// one is shared by many others, few enough that the store that each member keeps of each group
/// costs little.
const MAX_PRIMARIES: usize = 8;

/// Why there are no groups to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// The pool has so many targets for new files that are reachable, on too few nodes for a group.
    Targets(usize),
    /// The cluster would have more than [`MAX_MIRRORED`].
    Groups,
}

/// The groups of a mirrored scheme that a pool lacks, with numbers from `next` on. None where there
/// are enough.
///
/// Targets that are drained or offline get no part in new groups. Members are as far apart as all
/// targets of the pool allow, offline ones included: a node that is down doesn't lead to groups
/// with two members on one node.
pub fn mirrored_groups(
    map: &ClusterMap,
    pool: PoolId,
    scheme: Scheme,
    next: GroupId,
) -> Result<Vec<Group>, Shortage> {
    mirrored_groups_within(MAX_MIRRORED, map, pool, scheme, next)
}

/// The same with another limit in place of [`MAX_MIRRORED`], for what is only thought of.
///
/// Errors: as of [`mirrored_groups`].
pub fn mirrored_groups_within(
    most_groups: usize,
    map: &ClusterMap,
    pool: PoolId,
    scheme: Scheme,
    next: GroupId,
) -> Result<Vec<Group>, Shortage> {
    let takes_members = |t: &&Target| t.pool == pool && !t.drain && t.state != TargetState::Offline;
    let targets: Vec<&Target> = map.targets.iter().filter(takes_members).collect();
    let apart = Apart::of(map, pool, scheme);
    if apart.places(Spread::of(map, targets.iter().copied()), targets.len()) < scheme.members() {
        return Err(Shortage::Targets(targets.len()));
    }
    let room = most_groups.saturating_sub(map.groups.iter().filter(|g| g.scheme.is_mirrored()).count());
    let has_group: BTreeSet<TargetId> = map
        .groups
        .iter()
        .filter(|g| g.pool == pool && g.scheme == scheme)
        .flat_map(|g| g.members.iter().copied())
        .collect();
    let lack = targets.iter().filter(|target| !has_group.contains(&target.id)).count();
    if lack.div_ceil(scheme.members()) > room {
        return Err(Shortage::Groups);
    }
    let mut table = Table::new(map, &targets, scheme, apart);
    for group in map.groups.iter().filter(|g| g.pool == pool && g.scheme == scheme) {
        // One that was made when there were too few nodes counts for nothing any more. One that was
        // made when racks were too few does: its members are moved apart (`balance`).
        if apart == Apart::Targets || is_spread(map, group) {
            table.count_group(group);
        }
    }
    for most in (1..=MAX_PRIMARIES * scheme.members()).rev() {
        if let Some(new) = table.clone().fill(most, room) {
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

/// What two members of a group must not have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Apart {
    /// A rack, and so a node.
    Racks,
    /// A node.
    Nodes,
    /// Nothing: there is no other way.
    Targets,
}

impl Apart {
    /// As far apart as the pool allows.
    fn of(map: &ClusterMap, pool: PoolId, scheme: Scheme) -> Apart {
        let best = Spread::of_pool(map, pool).best(scheme);
        match scheme.members() {
            members if best.racks == members => Apart::Racks,
            members if best.nodes == members => Apart::Nodes,
            _ => Apart::Targets,
        }
    }

    /// How many members targets with this spread have room for.
    fn places(self, spread: Spread, targets: usize) -> usize {
        match self {
            Apart::Racks => spread.racks,
            Apart::Nodes => spread.nodes,
            Apart::Targets => targets,
        }
    }
}

/// Where a target is.
#[derive(Clone, Copy)]
struct Place<'a> {
    id: TargetId,
    node: NodeId,
    rack: Rack<'a>,
}

/// What the targets of a pool share so far. A target is meant by its place in the list.
#[derive(Clone)]
struct Table<'a> {
    /// By id.
    targets: Vec<Place<'a>>,
    members: usize,
    /// What two that meet must not have in common.
    apart: Apart,
    /// Groups that each target is in.
    memberships: Vec<usize>,
    /// Groups that have a target at a place of their order: all targets of the first place, then
    /// those of the next.
    places: Vec<usize>,
    /// Groups that two targets are in, each pair both ways, row by row.
    shared: Vec<u16>,
}

impl<'a> Table<'a> {
    fn new(map: &'a ClusterMap, targets: &[&Target], scheme: Scheme, apart: Apart) -> Table<'a> {
        let (count, members) = (targets.len(), scheme.members());
        let place = |t: &&Target| Place { id: t.id, node: t.node, rack: rack(map, t.node) };
        Table {
            targets: targets.iter().map(place).collect(),
            members,
            apart,
            memberships: vec![0; count],
            places: vec![0; count * members],
            shared: vec![0; count * count],
        }
    }

    /// Takes a group that is there into account; members that get no part in new groups don't
    /// count.
    fn count_group(&mut self, group: &Group) {
        let at = |id: &TargetId| self.targets.binary_search_by_key(id, |known| known.id).ok();
        let places: Vec<Option<usize>> = group.members.iter().map(at).collect();
        self.count(&places);
    }

    fn count(&mut self, members: &[Option<usize>]) {
        let known = || members.iter().enumerate().filter_map(|(place, at)| Some((place, (*at)?)));
        for (place, one) in known().filter(|(place, _)| *place < self.members) {
            self.memberships[one] += 1;
            self.places[place * self.targets.len() + one] += 1;
            for (_, other) in known().filter(|(_, other)| *other != one) {
                let shared = &mut self.shared[one * self.targets.len() + other];
                *shared = shared.saturating_add(1);
            }
        }
    }

    /// Whether two targets must not be in one group.
    fn must_not_meet(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.targets[one], &self.targets[other]);
        match self.apart {
            Apart::Racks => one.rack == other.rack,
            Apart::Nodes => one.node == other.node,
            Apart::Targets => one.id == other.id,
        }
    }

    /// Groups that each target should be in, at most so many: with all those that it may meet it is
    /// to share as many as a group has members.
    fn goals(&self, most: usize) -> Vec<usize> {
        let (mut in_rack, mut on_node) = (BTreeMap::new(), BTreeMap::new());
        for place in &self.targets {
            *in_rack.entry(place.rack).or_insert(0) += 1;
            *on_node.entry(place.node).or_insert(0) += 1;
        }
        let goal = |place: &Place<'_>| {
            let near = match self.apart {
                Apart::Racks => in_rack[&place.rack],
                Apart::Nodes => on_node[&place.node],
                Apart::Targets => 1,
            };
            ((self.targets.len() - near).div_ceil(self.members - 1) * self.members).min(most)
        };
        self.targets.iter().map(goal).collect()
    }

    /// Makes groups until every target is in as many as it should be; `None` when that takes more
    /// than there is room for.
    fn fill(&mut self, most: usize, room: usize) -> Option<Vec<Vec<TargetId>>> {
        let goals = self.goals(most);
        let missing = |table: &Table<'_>, at: usize| goals[at].saturating_sub(table.memberships[at]);
        let all_missing: usize = (0..goals.len()).map(|at| missing(self, at)).sum();
        if all_missing / self.members > room {
            return None;
        }
        let mut made = Vec::new();
        loop {
            let neediest = (0..goals.len()).max_by_key(|at| (missing(self, *at), std::cmp::Reverse(*at)))?;
            if missing(self, neediest) == 0 {
                return Some(made);
            }
            if made.len() == room {
                return None;
            }
            let ordered = self.ordered(self.around(neediest, &goals)?);
            let members: Vec<Option<usize>> = ordered.iter().map(|at| Some(*at)).collect();
            self.count(&members);
            made.push(ordered.into_iter().map(|at| self.targets[at].id).collect());
        }
    }

    /// A group with this target: each other member is the one that has the least in common with
    /// those chosen so far.
    fn around(&self, first: usize, goals: &[usize]) -> Option<Vec<usize>> {
        let mut chosen = vec![first];
        while chosen.len() < self.members {
            let weight = |at: &usize| {
                let place = &self.targets[*at];
                let near = |has: fn(&Place<'_>, &Place<'_>) -> bool| {
                    chosen.iter().filter(|other| has(&self.targets[**other], place)).count()
                };
                let (on_node, in_rack) = (near(|a, b| a.node == b.node), near(|a, b| a.rack == b.rack));
                let shares = chosen.iter().map(|other| self.shared[other * self.targets.len() + at] as usize);
                let has = self.memberships[*at];
                // What it would have beyond its goal weighs like what it would share: one that has
                // enough isn't taken for evenness alone.
                let beyond = (has + 1).saturating_sub(goals[*at]);
                let lacks = goals[*at].saturating_sub(has);
                (on_node, in_rack, shares.sum::<usize>() + beyond, std::cmp::Reverse(lacks), *at)
            };
            let may_meet = |at: &usize| !chosen.iter().any(|other| self.must_not_meet(*other, *at));
            let best = (0..self.targets.len()).filter(may_meet).min_by_key(weight)?;
            chosen.push(best);
        }
        Some(chosen)
    }

    /// Members in the order that gives every target each place about as often.
    fn ordered(&self, mut members: Vec<usize>) -> Vec<usize> {
        let mut ordered = Vec::with_capacity(members.len());
        while !members.is_empty() {
            let place = ordered.len();
            let had = |at: usize| self.places[place * self.targets.len() + at];
            members.sort_by_key(|at| std::cmp::Reverse((had(*at), *at)));
            ordered.extend(members.pop());
        }
        ordered
    }
}

#[cfg(test)]
pub(crate) mod tests;
