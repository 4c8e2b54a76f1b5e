//! Groups of one target.

use std::collections::BTreeSet;
use types::{ClusterMap, Group, GroupId, Scheme, TargetId};

/// The missing `single` groups of the map: one for each target without one, sorted by id.
///
/// A group has the number of its target, which is never reused either, so that the numbers don't
/// depend on the order in which targets are added and removed. If that number is taken, the group
/// gets one above all targets and groups.
pub fn single_groups(map: &ClusterMap) -> Vec<Group> {
    let grouped: BTreeSet<TargetId> = map
        .groups
        .iter()
        .filter(|g| g.scheme == Scheme::Single && g.members.len() == 1)
        .flat_map(|g| g.members.iter().copied())
        .collect();
    let taken: BTreeSet<GroupId> = map.groups.iter().map(|g| g.id).collect();
    let highest_target = map.targets.iter().map(|t| t.id.0).max().unwrap_or(0);
    let highest_group = taken.last().map_or(0, |g| g.0);
    let mut spare = highest_target.max(highest_group);

    let mut groups = Vec::new();
    for target in map.targets.iter().filter(|t| !grouped.contains(&t.id)) {
        let own = GroupId(target.id.0);
        let id = if taken.contains(&own) {
            spare += 1;
            GroupId(spare)
        } else {
            own
        };
        groups.push(Group::single(id, target.pool, target.id));
    }
    groups.sort_by_key(|g| g.id);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::tests::target;

    fn single(id: u32, target: u32) -> Group {
        Group::single(GroupId(id), types::PoolId(1), TargetId(target))
    }

    fn map(targets: &[u32], groups: Vec<Group>) -> ClusterMap {
        ClusterMap { targets: targets.iter().map(|&id| target(id)).collect(), groups, ..Default::default() }
    }

    #[test]
    fn a_group_has_the_number_of_its_target() {
        assert_eq!(single_groups(&map(&[1, 2, 9], vec![])), [single(1, 1), single(2, 2), single(9, 9)]);
    }

    #[test]
    fn only_what_is_missing_is_made() {
        assert_eq!(single_groups(&map(&[1, 2, 3], vec![single(1, 1), single(3, 3)])), [single(2, 2)]);
        assert_eq!(single_groups(&map(&[1], vec![single(40, 1)])), []);
        assert_eq!(single_groups(&map(&[], vec![])), []);
    }

    #[test]
    fn a_taken_number_is_not_given_twice() {
        let groups = vec![single(2, 3), single(4, 1)];
        assert_eq!(single_groups(&map(&[1, 2, 3, 4, 7], groups)), [single(7, 7), single(8, 2), single(9, 4)]);
    }

    #[test]
    fn a_group_takes_the_pool_of_its_target() {
        let mut map = map(&[5], vec![]);
        map.targets[0].pool = types::PoolId(3);
        assert_eq!(single_groups(&map)[0].pool, types::PoolId(3));
    }
}
