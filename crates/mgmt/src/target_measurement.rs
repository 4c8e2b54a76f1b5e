//! Space and reachability of targets in the map.

use crate::space::Space;
use std::collections::BTreeMap;
use types::{CapacityClass, ClusterMap, Epoch, NodeState, Target, TargetState};

/// State of a target, as its server sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetMeasurement {
    /// No report.
    Unknown,
    /// It can't be measured.
    Unmeasurable,
    /// Space of its local file system.
    Space(Space),
}

/// Returns the map with the seen state of every target, and the resulting state.
///
/// Directories on one local file system share its space, also those of different nodes: each gets
/// an equal part, so that sums over targets are correct. The capacity class depends on the file
/// system as a whole. A directory that can't be measured is offline.
pub fn measured(map: &ClusterMap, measure: impl Fn(&Target) -> TargetMeasurement) -> ClusterMap {
    let measurements: Vec<TargetMeasurement> = map.targets.iter().map(measure).collect();
    let mut targets_per_device: BTreeMap<u64, u64> = BTreeMap::new();
    for measurement in &measurements {
        if let TargetMeasurement::Space(space) = measurement {
            *targets_per_device.entry(space.device).or_default() += 1;
        }
    }
    let mut after = map.clone();
    for (target, measurement) in after.targets.iter_mut().zip(measurements) {
        if let TargetMeasurement::Space(space) = measurement {
            let share = targets_per_device[&space.device];
            target.capacity = space.capacity / share;
            target.free = space.free / share;
            target.class = layout::classify(space.capacity, space.free);
            target.used = space.own;
        }
        // A cluster of one process has no nodes: this process is the server.
        let node = map.node(target.node).map_or(NodeState::Online, |node| node.state);
        target.state = match (measurement, node) {
            (TargetMeasurement::Unmeasurable, _) | (_, NodeState::Offline) => TargetState::Offline,
            (_, NodeState::ProbablyOffline) => TargetState::ProbablyOffline,
            (_, NodeState::Online) => TargetState::Online,
        };
    }
    after
}

/// Gives the map the next epoch if anything but byte counts differs from the previous one.
pub fn next_epoch(before: &ClusterMap, after: &mut ClusterMap) {
    after.epoch = before.epoch;
    if without_bytes(before) != without_bytes(after) {
        after.epoch = Epoch(before.epoch.0 + 1);
    }
}

fn without_bytes(map: &ClusterMap) -> ClusterMap {
    let mut map = map.clone();
    for target in &mut map.targets {
        (target.capacity, target.free, target.used) = (0, 0, None);
    }
    map
}

/// Logs changes of nodes and targets.
pub fn log_changes(before: &ClusterMap, after: &ClusterMap) {
    for new in &after.nodes {
        let (id, name) = (new.id.0, &new.name);
        match (before.node(new.id).map(|old| old.state), new.state) {
            (None, _) => tracing::info!(node = id, "node {id} ({name}) has joined"),
            (Some(old), state) if old == state => {}
            (_, NodeState::Online) => tracing::info!(node = id, "node {id} ({name}) is online"),
            (_, NodeState::ProbablyOffline) => tracing::warn!(
                node = id,
                "node {id} ({name}) is probably offline: it has missed heartbeats; its targets get no new files"
            ),
            (_, NodeState::Offline) => tracing::error!(
                node = id,
                "node {id} ({name}) is offline: start weft serve there, or check its network"
            ),
        }
    }
    for new in &after.targets {
        if let Some(old) = before.target(new.id) {
            log_target(old, new);
        }
    }
}

fn log_target(old: &Target, new: &Target) {
    let (id, path, node) = (new.id.0, &new.path, new.node.0);
    match (old.state, new.state) {
        (a, b) if a == b => {}
        (_, TargetState::Offline) => tracing::error!(
            target_id = id,
            "target {id} ({path} on node {node}) is offline: its node is down, or its directory can't be read or \
             isn't the one that was opened; check that its own disk is there and mounted"
        ),
        (_, TargetState::ProbablyOffline) => {
            tracing::warn!(target_id = id, "target {id} ({path} on node {node}) is probably offline");
        }
        (_, TargetState::Online) => tracing::info!(target_id = id, "target {id} ({path}) is online"),
    }
    let free = new.free >> 20;
    match (old.class, new.class) {
        (a, b) if a == b => {}
        (_, CapacityClass::Normal) => {
            tracing::info!(target_id = id, "target {id} ({path}) has enough free space again");
        }
        (_, CapacityClass::Low) => tracing::warn!(
            target_id = id,
            "target {id} ({path}) is nearly full: {free} MiB free; new files prefer other targets"
        ),
        (_, CapacityClass::Emergency) => tracing::error!(
            target_id = id,
            "target {id} ({path}) is full: {free} MiB free; it takes no new files; delete files, or give its \
             disk more room"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Node, NodeId, PoolId, TargetId};

    const GIB: u64 = 1 << 30;

    fn map() -> ClusterMap {
        let target = |id: u32, node: u32| Target {
            id: TargetId(id),
            node: NodeId(node),
            pool: PoolId(1),
            path: format!("/t{id}"),
            state: TargetState::Offline,
            capacity: 0,
            free: 0,
            class: CapacityClass::Normal,
            drain: false,
            used: None,
        };
        let node = |id: u32| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![],
            roles: vec![],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        ClusterMap {
            epoch: Epoch(7),
            nodes: vec![node(1), node(2)],
            targets: vec![target(1, 1), target(2, 1), target(3, 2)],
            ..Default::default()
        }
    }

    fn room(capacity: u64, free: u64) -> TargetMeasurement {
        TargetMeasurement::Space(Space { capacity, free, device: 5, own: Some((capacity - free) / 2) })
    }

    fn epoch_after(before: &ClusterMap, after: &ClusterMap) -> u64 {
        let mut after = after.clone();
        next_epoch(before, &mut after);
        after.epoch.0
    }

    #[test]
    fn targets_share_a_file_system() {
        let two = |target: &Target| match (target.id.0, room(100 * GIB, 60 * GIB)) {
            (3, TargetMeasurement::Space(space)) => TargetMeasurement::Space(Space { device: 6, ..space }),
            (_, room) => room,
        };
        let map = measured(&map(), two);
        assert_eq!(map.targets.iter().map(|t| t.capacity / GIB).collect::<Vec<_>>(), [50, 50, 100]);
        assert_eq!(map.targets.iter().map(|t| t.free / GIB).collect::<Vec<_>>(), [30, 30, 60]);
        // A target's own files are not shared.
        assert!(map.targets.iter().all(|t| t.used == Some(20 * GIB)));
        // Nodes of one machine share its space.
        let map = measured(&map, |_| room(90 * GIB, 60 * GIB));
        assert_eq!(map.targets.iter().map(|t| t.capacity / GIB).collect::<Vec<_>>(), [30, 30, 30]);
    }

    #[test]
    fn a_target_is_as_reachable_as_its_node() {
        let mut map = map();
        map.nodes[1].state = NodeState::ProbablyOffline;
        let seen = measured(&map, |t| {
            if t.id.0 == 2 { TargetMeasurement::Unmeasurable } else { TargetMeasurement::Unknown }
        });
        let states: Vec<TargetState> = seen.targets.iter().map(|t| t.state).collect();
        assert_eq!(states, [TargetState::Online, TargetState::Offline, TargetState::ProbablyOffline]);
        map.nodes[1].state = NodeState::Offline;
        assert_eq!(measured(&map, |_| room(GIB, GIB)).targets[2].state, TargetState::Offline);
    }

    #[test]
    fn the_epoch_moves_with_everything_but_bytes() {
        let before = measured(&map(), |_| room(100 * GIB, 60 * GIB));
        let smaller = measured(&before, |_| room(100 * GIB, 59 * GIB));
        assert_ne!(before, smaller);
        assert_eq!(epoch_after(&before, &smaller), 7);
        assert_eq!(epoch_after(&before, &measured(&before, |_| room(100 * GIB, 0))), 8);
        let mut renamed = before.clone();
        renamed.nodes[0].name = "other".into();
        assert_eq!(epoch_after(&before, &renamed), 8);
        assert_eq!(epoch_after(&before, &before), 7);
    }
}
