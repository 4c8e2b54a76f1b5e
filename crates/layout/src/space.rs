//! Space check for data that is to be moved.

use crate::capacity::{space_for_new_files, usable_bytes};
use crate::choose::Candidates;
use std::collections::BTreeMap;
use types::{ClusterMap, Errno, Error, GroupId, PoolId, Result, Scheme, StripePattern, TargetId};

/// Bytes that targets are going to receive, beside their present content.
pub type ReservedBytes = BTreeMap<TargetId, u64>;

/// Bytes that a group can take before one of its members is in class `Emergency`; 0 for an unknown
/// group.
pub fn available_space(map: &ClusterMap, group: GroupId, reserved: &ReservedBytes) -> u64 {
    let of = |target: &TargetId| {
        let target = map.target(*target)?;
        // Spare capacity for lost members isn't available here.
        let spare = map.pool(target.pool).map_or(0, |pool| pool.spare);
        let (free, _) = space_for_new_files(target, spare);
        let reserved = reserved.get(&target.id).copied().unwrap_or(0);
        Some(usable_bytes(target.capacity, free.saturating_sub(reserved)))
    };
    let members = map.group(group).map_or(&[][..], |group| &group.members);
    members.iter().map(|target| of(target).unwrap_or(0)).min().unwrap_or(0)
}

/// Computes what each target would get if parts of these sizes went to groups of a pool and scheme,
/// the largest first, each to the group with the most space.
///
/// # Errors
/// As [`crate::choose`] if no group can take anything; `ENOSPC`, with the number of missing bytes,
/// if a part doesn't fit.
pub fn plan_placement(
    map: &ClusterMap,
    (pool, scheme): (PoolId, Scheme),
    sizes: &[u64],
    reserved: &ReservedBytes,
) -> Result<ReservedBytes> {
    let pattern = StripePattern { pool, scheme, ..StripePattern::default() };
    let candidates = Candidates::find(map, &pattern);
    let groups: Vec<GroupId> =
        candidates.normal.iter().chain(&candidates.low).map(|candidate| candidate.id).collect();
    if groups.is_empty() {
        return Err(candidates.refusal(map, &pattern));
    }
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let (mut all, mut missing) = (reserved.clone(), 0);
    for size in &sizes {
        let emptiest = groups.iter().map(|&group| (available_space(map, group, &all), group)).max();
        let (most, group) = emptiest.unwrap_or((0, GroupId(0)));
        missing += size.saturating_sub(most);
        for target in map.group(group).map_or(&[][..], |group| &group.members) {
            *all.entry(*target).or_insert(0) += size;
        }
    }
    if missing > 0 {
        let name = map.pool(pool).map_or_else(|| pool.to_string(), |pool| pool.name.clone());
        let needed: u64 = sizes.iter().sum();
        let message = format!(
            "pool {name} has no space for {needed} more bytes as {scheme}: {missing} bytes are missing on its targets"
        );
        return Err(Error::new(Errno::ENOSPC, message).hint(format!(
            "remove files, or add a target to pool {name}; weft target list shows free space"
        )));
    }
    let more = |(target, bytes): (TargetId, u64)| {
        let before = reserved.get(&target).copied().unwrap_or(0);
        (bytes > before).then_some((target, bytes - before))
    };
    Ok(all.into_iter().filter_map(more).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::tests::map;
    use types::{Epoch, Group};

    const GIB: u64 = 1 << 30;
    const SINGLE: (PoolId, Scheme) = (PoolId(1), Scheme::Single);

    /// Targets of 100 GiB, of which one percent stays free.
    fn with_free(free_gib: &[u64]) -> ClusterMap {
        let mut map = map(free_gib.len() as u32);
        for (target, free) in map.targets.iter_mut().zip(free_gib) {
            target.free = free * GIB;
        }
        map
    }

    #[test]
    fn parts_go_to_the_most_free_space_and_shortage_is_reported() {
        let map = with_free(&[11, 6, 3]);
        assert_eq!(available_space(&map, map.groups[0].id, &ReservedBytes::new()), 10 * GIB);
        let fits = plan_placement(&map, SINGLE, &[5 * GIB, 5 * GIB], &ReservedBytes::new()).unwrap();
        assert_eq!(fits.values().sum::<u64>(), 10 * GIB);
        let refused = plan_placement(&map, SINGLE, &[8 * GIB, 6 * GIB], &ReservedBytes::new()).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOSPC);
        assert!(refused.message.contains(&format!("{} bytes are missing", GIB)), "{refused}");
        // Space that was promised to others isn't available.
        let reserved = ReservedBytes::from([(TargetId(1), 8 * GIB)]);
        assert!(plan_placement(&map, SINGLE, &[6 * GIB], &reserved).is_err());
        assert_eq!(
            plan_placement(&map, SINGLE, &[5 * GIB], &reserved).unwrap(),
            [(TargetId(2), 5 * GIB)].into()
        );
    }

    #[test]
    fn a_mirrored_group_has_the_space_of_its_fullest_member() {
        let mut map = with_free(&[11, 6, 3]);
        map.groups.push(Group {
            id: GroupId(90),
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(1), TargetId(3)],
            since: Epoch(1),
            ..Group::single(GroupId(90), PoolId(1), TargetId(1))
        });
        let mirrored = (PoolId(1), Scheme::Mirror(2));
        let both = [(TargetId(1), 2 * GIB), (TargetId(3), 2 * GIB)];
        assert_eq!(plan_placement(&map, mirrored, &[2 * GIB], &ReservedBytes::new()).unwrap(), both.into());
        assert_eq!(
            plan_placement(&map, mirrored, &[3 * GIB], &ReservedBytes::new()).unwrap_err().errno,
            Errno::ENOSPC
        );
        assert_eq!(
            plan_placement(&map, (PoolId(1), Scheme::Mirror(3)), &[1], &ReservedBytes::new())
                .unwrap_err()
                .errno,
            Errno::ENODEV
        );
    }
}
