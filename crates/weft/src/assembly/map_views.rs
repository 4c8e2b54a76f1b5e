//! Answers that the cluster map alone gives.

use crate::control::{DiskFree, PoolStatus, TargetStatus};
use types::{ClusterMap, Target};

/// What a process knows of a target beside the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TargetDetails {
    /// NUMA zone of its disk.
    pub numa: Option<u32>,
    /// Requests to it since the process started, if the process serves it.
    pub operations: Option<u64>,
}

/// Returns all targets. `details`: what this process knows of each.
pub fn targets(map: &ClusterMap, details: impl Fn(&Target) -> TargetDetails) -> Vec<TargetStatus> {
    let status = |t: &Target| {
        let TargetDetails { numa, operations } = details(t);
        let (used, other) = usage(t);
        TargetStatus {
            id: t.id,
            pool: map.pool(t.pool).map(|p| p.name.clone()).unwrap_or_default(),
            path: match map.node(t.node) {
                Some(node) => format!("{}:{}", node.name, t.path),
                None => t.path.clone(),
            },
            numa,
            state: t.state,
            class: t.class,
            capacity: t.capacity,
            used,
            other,
            free: t.free,
            operations,
        }
    };
    map.targets.iter().map(status).collect()
}

/// Returns the bytes in weft's own files on a target, and those in other files on its disk. Until
/// the own files have been added up, all used space counts as theirs.
pub fn usage(target: &Target) -> (u64, u64) {
    let all = target.capacity.saturating_sub(target.free);
    // The bound includes files that other programs wrote since it was measured, on the whole disk.
    let own = target.used.map_or(all, |own| own.min(all));
    (own, all - own)
}

/// Returns all pools.
pub fn pools(map: &ClusterMap) -> Vec<PoolStatus> {
    let status = |pool: &types::Pool| {
        let members = || map.targets.iter().filter(|t| t.pool == pool.id);
        let (capacity, free) = (members().map(|t| t.capacity).sum(), members().map(|t| t.free).sum());
        PoolStatus {
            id: pool.id,
            name: pool.name.clone(),
            targets: members().count(),
            groups: map.groups.iter().filter(|g| g.pool == pool.id).count(),
            capacity,
            used: u64::saturating_sub(capacity, free),
            free,
            spare: pool.spare,
        }
    };
    map.pools.iter().map(status).collect()
}

/// Adds up the space of targets.
pub fn disk_free(mount: String, targets: Vec<TargetStatus>) -> DiskFree {
    DiskFree {
        mount,
        capacity: targets.iter().map(|t| t.capacity).sum(),
        used: targets.iter().map(|t| t.used).sum(),
        other: targets.iter().map(|t| t.other).sum(),
        free: targets.iter().map(|t| t.free).sum(),
        targets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{CapacityClass, NodeId, PoolId, TargetId, TargetState};

    fn target(free: u64, used: Option<u64>) -> Target {
        Target {
            id: TargetId(1),
            node: NodeId(1),
            pool: PoolId(1),
            path: "/t".into(),
            state: TargetState::Online,
            capacity: 100,
            free,
            class: CapacityClass::Normal,
            drain: false,
            used,
        }
    }

    #[test]
    fn files_of_other_programs_are_not_weft_s() {
        assert_eq!(usage(&target(40, Some(1))), (1, 59));
        assert_eq!(usage(&target(40, None)), (60, 0));
        assert_eq!(usage(&target(40, Some(70))), (60, 0), "a bound, not more than is used");
        let map =
            ClusterMap { targets: vec![target(40, Some(1)), target(90, Some(2))], ..Default::default() };
        let df = disk_free("/m".into(), targets(&map, |_| TargetDetails::default()));
        assert_eq!((df.capacity, df.used, df.other, df.free), (200, 3, 67, 130));
        assert_eq!(df.targets[0].operations, None);
    }
}
