//! Failure domains: what fails as one, and how far the members of a group are apart.
//!
//! A node is one, since its targets fail with it; a rack is one, since its nodes have power and a
//! switch in common. A node of which no rack is known is in none with others, so that without racks
//! everything is as if there were only nodes.

use std::collections::BTreeSet;
use types::{ClusterMap, Group, GroupId, NodeId, PoolId, Scheme, Target, TargetId};

/// The rack of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rack<'a> {
    /// It has a name.
    Named(&'a str),
    /// The node has it to itself, as far as is known.
    Of(NodeId),
}

/// The rack that a node is in.
pub(crate) fn rack(map: &ClusterMap, node: NodeId) -> Rack<'_> {
    map.node(node).and_then(|node| node.rack.as_deref()).map_or(Rack::Of(node), Rack::Named)
}

/// Over how many nodes and racks members are spread: more nodes are better, and of equally many
/// nodes those in more racks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Spread {
    /// Different nodes.
    pub nodes: usize,
    /// Different racks; never more than nodes.
    pub racks: usize,
}

impl Spread {
    /// That of some targets.
    pub(crate) fn of<'a>(map: &ClusterMap, targets: impl Iterator<Item = &'a Target>) -> Spread {
        let nodes: BTreeSet<NodeId> = targets.map(|target| target.node).collect();
        let racks: BTreeSet<Rack<'_>> = nodes.iter().map(|node| rack(map, *node)).collect();
        Spread { nodes: nodes.len(), racks: racks.len() }
    }

    /// That of some targets by their ids; one that isn't in the map is nowhere.
    pub(crate) fn of_ids(map: &ClusterMap, ids: impl Iterator<Item = TargetId>) -> Spread {
        Spread::of(map, ids.filter_map(|id| map.target(id)))
    }

    /// That of the members that a group keeps.
    pub fn of_group(map: &ClusterMap, group: &Group) -> Spread {
        Spread::of_ids(map, group.members.iter().copied().filter(|id| group.leaving != Some(*id)))
    }

    /// That of all targets of a pool that take new files.
    pub fn of_pool(map: &ClusterMap, pool: PoolId) -> Spread {
        Spread::of(map, map.targets.iter().filter(|t| t.pool == pool && !t.drain))
    }

    /// The best that a group can have where its pool has this one.
    pub fn best(self, scheme: Scheme) -> Spread {
        Spread { nodes: self.nodes.min(scheme.members()), racks: self.racks.min(scheme.members()) }
    }
}

/// Whether a pool has targets for new files on so many nodes that the members of a group can all be
/// on different ones.
pub fn spreads(map: &ClusterMap, pool: PoolId, scheme: Scheme) -> bool {
    Spread::of_pool(map, pool).nodes >= scheme.members()
}

/// Whether all members of a group are on different nodes.
pub fn is_spread(map: &ClusterMap, group: &Group) -> bool {
    Spread::of_ids(map, group.members.iter().copied()).nodes == group.members.len()
}

/// Mirrored groups of a pool whose members could be further apart, all of which are good and none
/// of which is moving.
pub fn crowded(map: &ClusterMap, pool: PoolId) -> Vec<GroupId> {
    let all = Spread::of_pool(map, pool);
    let is_at_rest = |group: &&Group| {
        let is_whole = !group.is_degraded() && group.leaving.is_none() && !group.is_lost();
        group.pool == pool && group.scheme.is_mirrored() && is_whole
    };
    let at_rest = map.groups.iter().filter(is_at_rest);
    at_rest.filter(|group| Spread::of_group(map, group) < all.best(group.scheme)).map(|g| g.id).collect()
}

/// Whether the members that a group keeps are on different nodes, but in fewer racks than they
/// could be in their pool.
pub fn shares_rack(map: &ClusterMap, group: &Group, pool: Spread) -> bool {
    let (has, best) = (Spread::of_group(map, group), pool.best(group.scheme));
    group.scheme.is_mirrored() && has.nodes >= best.nodes && has.racks < best.racks
}
