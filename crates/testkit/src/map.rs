//! Cluster maps.

use crate::targets;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{
    CapacityClass, ClusterMap, Epoch, Group, GroupId, MapHandle, Node, NodeId, NodeState, Pool, PoolId, Role,
    Scheme, Target, TargetId, TargetState,
};

/// Capacity of each target in bytes; all of it is free.
const CAPACITY: u64 = 1 << 40;
/// The pool of all targets.
pub const POOL: PoolId = PoolId(1);

/// Builds a map of online targets in one pool.
#[derive(Debug)]
pub struct MapBuilder {
    map: ClusterMap,
}

impl MapBuilder {
    /// Creates a builder of a map with targets 1 to `targets`, all on node 1, in the directories
    /// used on simulated machines.
    pub fn new(targets: u32) -> MapBuilder {
        let map = ClusterMap {
            epoch: Epoch(1),
            targets: (1..=targets).map(|id| target(TargetId(id))).collect(),
            pools: vec![Pool { id: POOL, name: "default".into(), spare: 0 }],
            ..ClusterMap::default()
        };
        MapBuilder { map }
    }

    /// Sets the targets' directories to those below `base`.
    pub fn below(mut self, base: &Path) -> MapBuilder {
        for target in &mut self.map.targets {
            target.path = targets::directory(base, target.id).display().to_string();
        }
        self
    }

    /// Assigns each target to its own node, with the same number.
    pub fn node_per_target(mut self) -> MapBuilder {
        self.map.targets.iter_mut().for_each(|target| target.node = NodeId(target.id.0));
        self
    }

    /// Adds a single group for each target.
    pub fn single_groups(mut self) -> MapBuilder {
        let groups = layout::single_groups(&self.map);
        self.map.groups.extend(groups);
        self
    }

    /// Adds a mirrored group with all members in sync. Add groups in ascending order of their ids.
    pub fn mirror(mut self, id: GroupId, members: &[TargetId]) -> MapBuilder {
        self.map.groups.push(Group {
            scheme: Scheme::Mirror(members.len() as u8),
            members: members.to_vec(),
            since: Epoch(1),
            ..Group::single(id, POOL, members[0])
        });
        self
    }

    /// Adds metadata nodes; the first one owns all partitions.
    pub fn metadata_nodes(mut self, nodes: &[NodeId], partitions: u16) -> MapBuilder {
        self.map.nodes.extend(nodes.iter().map(|id| metadata_node(*id)));
        self.map.partitions = vec![nodes[0]; partitions as usize];
        self
    }

    /// Returns the map.
    pub fn build(self) -> ClusterMap {
        self.map
    }

    /// Returns the map as a handle that services and clients share.
    pub fn share(self) -> MapHandle {
        share(self.map)
    }
}

fn target(id: TargetId) -> Target {
    Target {
        id,
        node: NodeId(1),
        pool: POOL,
        path: targets::directory(&PathBuf::from(targets::SIMULATED_DIR), id).display().to_string(),
        state: TargetState::Online,
        capacity: CAPACITY,
        free: CAPACITY,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    }
}

fn metadata_node(id: NodeId) -> Node {
    Node {
        id,
        name: format!("n{id}"),
        addresses: vec![format!("n{id}:1")],
        roles: vec![Role::Meta],
        state: NodeState::Online,
        version: String::new(),
        rack: None,
    }
}

/// Returns a handle to a map.
pub fn share(map: ClusterMap) -> MapHandle {
    MapHandle::new(map)
}

/// Returns an independent handle to the current map of another handle.
pub fn fork(map: &MapHandle) -> MapHandle {
    MapHandle::new(map.load())
}

/// Replaces a handle's map with its next version, changed by `edit`, and returns it.
pub fn update(map: &MapHandle, edit: impl FnOnce(&mut ClusterMap)) -> Arc<ClusterMap> {
    let mut next = ClusterMap::clone(&map.load());
    next.epoch.0 += 1;
    edit(&mut next);
    let next = Arc::new(next);
    map.store(next.clone());
    next
}

/// Starts or cancels the drain of a target.
pub fn drain(map: &MapHandle, target: TargetId, drain: bool) {
    update(map, |map| map.targets.iter_mut().filter(|t| t.id == target).for_each(|t| t.drain = drain));
}
