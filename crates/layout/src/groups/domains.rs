//! Failure domains: what fails together, and how far apart the members of a group are.
//!
//! A node is a failure domain, since its targets fail with it. A rack is one, since its nodes share
//! power and a switch. A node with an unknown rack shares it with no other node, so that without
//! racks only nodes count.

use std::collections::BTreeSet;
use types::{ClusterMap, Group, GroupId, NodeId, PoolId, Scheme, Target, TargetId};

/// The rack of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rack<'a> {
    /// A named rack.
    Named(&'a str),
    /// The node's own rack, if none is known.
    OwnOf(NodeId),
}

/// The rack of a node.
pub(crate) fn rack(map: &ClusterMap, node: NodeId) -> Rack<'_> {
    map.node(node).and_then(|node| node.rack.as_deref()).map_or(Rack::OwnOf(node), Rack::Named)
}

/// Number of nodes and racks over which members are spread: more nodes are better, and with equally
/// many nodes more racks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Spread {
    /// Number of different nodes.
    pub nodes: usize,
    /// Number of different racks; never more than nodes.
    pub racks: usize,
}

impl Spread {
    /// The spread of some targets.
    pub(crate) fn of<'a>(map: &ClusterMap, targets: impl Iterator<Item = &'a Target>) -> Spread {
        let nodes: BTreeSet<NodeId> = targets.map(|target| target.node).collect();
        let racks: BTreeSet<Rack<'_>> = nodes.iter().map(|node| rack(map, *node)).collect();
        Spread { nodes: nodes.len(), racks: racks.len() }
    }

    /// The spread of targets by their ids; ids that aren't in the map are ignored.
    pub(crate) fn of_ids(map: &ClusterMap, ids: impl Iterator<Item = TargetId>) -> Spread {
        Spread::of(map, ids.filter_map(|id| map.target(id)))
    }

    /// The spread of the remaining members of a group, without the leaving one.
    pub fn of_group(map: &ClusterMap, group: &Group) -> Spread {
        Spread::of_ids(map, group.members.iter().copied().filter(|id| group.leaving != Some(*id)))
    }

    /// The spread of all targets of a pool that take new files.
    pub fn of_pool(map: &ClusterMap, pool: PoolId) -> Spread {
        Spread::of(map, map.targets.iter().filter(|t| t.pool == pool && !t.drain))
    }

    /// The best spread of a group in a pool with this spread.
    pub fn best(self, scheme: Scheme) -> Spread {
        Spread { nodes: self.nodes.min(scheme.members()), racks: self.racks.min(scheme.members()) }
    }
}

/// Whether a pool has targets for new files on enough nodes to put each member of a group on
/// another node.
pub fn can_use_distinct_nodes(map: &ClusterMap, pool: PoolId, scheme: Scheme) -> bool {
    Spread::of_pool(map, pool).nodes >= scheme.members()
}

/// Whether all members of a group are on different nodes.
pub fn has_distinct_nodes(map: &ClusterMap, group: &Group) -> bool {
    Spread::of_ids(map, group.members.iter().copied()).nodes == group.members.len()
}

/// Mirrored groups of a pool whose members could be further apart, while all are in sync and none
/// is being replaced.
pub fn improvable_groups(map: &ClusterMap, pool: PoolId) -> Vec<GroupId> {
    let all = Spread::of_pool(map, pool);
    let is_at_rest = |group: &&Group| {
        let is_whole = !group.is_degraded() && group.leaving.is_none() && !group.is_lost();
        group.pool == pool && group.scheme.is_redundant() && is_whole
    };
    let at_rest = map.groups.iter().filter(is_at_rest);
    at_rest.filter(|group| Spread::of_group(map, group) < all.best(group.scheme)).map(|g| g.id).collect()
}

/// Whether the remaining members of a group are on different nodes, but in fewer racks than their
/// pool permits.
pub fn shares_rack(map: &ClusterMap, group: &Group, pool: Spread) -> bool {
    let (has, best) = (Spread::of_group(map, group), pool.best(group.scheme));
    group.scheme.is_redundant() && has.nodes >= best.nodes && has.racks < best.racks
}
