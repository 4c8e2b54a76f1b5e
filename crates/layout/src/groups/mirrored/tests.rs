pub(crate) mod racks;

use super::*;
use crate::can_use_distinct_nodes;
use crate::choose::tests::target;
use proptest::prelude::*;
use std::collections::BTreeSet;

const TWO: Scheme = Scheme::Mirror(2);
const THREE: Scheme = Scheme::Mirror(3);

/// Targets on some nodes, with consecutive numbers; `nodes`: their number on each.
fn map(nodes: &[usize]) -> ClusterMap {
    let on_nodes =
        nodes.iter().enumerate().flat_map(|(node, count)| std::iter::repeat_n(node as u32 + 1, *count));
    let target = |(at, node): (usize, u32)| Target { node: NodeId(node), ..target(at as u32 + 1) };
    ClusterMap { targets: on_nodes.enumerate().map(target).collect(), ..Default::default() }
}

fn made(map: &ClusterMap, scheme: Scheme) -> Vec<Group> {
    mirrored_groups(map, PoolId(1), scheme, GroupId(FIRST_MIRRORED)).unwrap()
}

/// Adds missing groups, with numbers above the existing ones.
fn top_up(map: &mut ClusterMap, scheme: Scheme) -> usize {
    let next = map.groups.last().map_or(FIRST_MIRRORED, |group| group.id.0 + 1);
    let new = mirrored_groups(map, PoolId(1), scheme, GroupId(next)).unwrap();
    let count = new.len();
    map.groups.extend(new);
    count
}

fn members(groups: &[Group]) -> Vec<Vec<u32>> {
    groups.iter().map(|group| group.members.iter().map(|id| id.0).collect()).collect()
}

/// Minimum and maximum of the counts.
fn extremes(counts: impl Iterator<Item = usize> + Clone) -> (usize, usize) {
    (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0))
}

fn memberships(map: &ClusterMap) -> Vec<usize> {
    map.targets.iter().map(|t| map.groups.iter().filter(|g| g.members.contains(&t.id)).count()).collect()
}

fn primaries(map: &ClusterMap) -> Vec<usize> {
    map.targets.iter().map(|t| map.groups.iter().filter(|g| g.members[0] == t.id).count()).collect()
}

/// Shared groups of each pair of targets on different nodes.
fn shares(map: &ClusterMap) -> Vec<usize> {
    let pairs = map.targets.iter().flat_map(|a| {
        map.targets.iter().filter(|b| a.id < b.id && a.node != b.node).map(move |b| (a.id, b.id))
    });
    let both =
        |(a, b)| map.groups.iter().filter(|g| g.members.contains(&a) && g.members.contains(&b)).count();
    pairs.map(both).collect()
}

#[test]
fn golden() {
    assert_eq!(members(&made(&map(&[1, 1]), TWO)), [[1, 2], [2, 1]]);
    assert_eq!(members(&made(&map(&[1, 1, 1]), TWO)), [[1, 2], [3, 1], [2, 3], [1, 2], [3, 1], [2, 3]]);
    assert_eq!(members(&made(&map(&[1, 1, 1]), THREE)), [[1, 2, 3], [2, 1, 3], [3, 1, 2]]);
}

#[test]
fn targets_of_a_node_share_a_group_only_with_too_few_nodes() {
    let one_node = map(&[4]);
    assert!(!can_use_distinct_nodes(&one_node, PoolId(1), TWO));
    let groups = made(&one_node, TWO);
    assert!(!groups.is_empty() && !has_distinct_nodes(&one_node, &groups[0]));
    // At least one from each of the two nodes.
    let two_nodes = map(&[2, 2]);
    for group in made(&two_nodes, THREE) {
        let nodes: BTreeSet<NodeId> =
            group.members.iter().map(|id| two_nodes.target(*id).unwrap().node).collect();
        assert_eq!(nodes.len(), 2, "{group:?}");
    }
    // After nodes were added there are groups over them, regardless of earlier ones.
    let mut grown = one_node;
    grown.groups = groups;
    let before = grown.groups.len();
    grown.targets.extend((5..=8).map(|id| Target { node: NodeId(2), ..target(id) }));
    top_up(&mut grown, TWO);
    assert!(grown.groups[before..].iter().all(|group| has_distinct_nodes(&grown, group)));
    let spread: Vec<usize> = {
        let map = ClusterMap { groups: grown.groups.split_off(before), ..grown };
        memberships(&map)
    };
    assert_eq!(extremes(spread.into_iter()), (8, 8));
}

#[test]
fn too_few_targets_and_too_many_groups_are_reported() {
    let make = |map: &ClusterMap, scheme| mirrored_groups(map, PoolId(1), scheme, GroupId(FIRST_MIRRORED));
    assert_eq!(make(&map(&[1, 1]), THREE), Err(Shortage::Targets(2)));
    let mut drained = map(&[1, 1]);
    drained.targets[0].drain = true;
    assert_eq!(make(&drained, TWO), Err(Shortage::Targets(1)));
    let mut elsewhere = map(&[1, 1]);
    elsewhere.targets[0].pool = PoolId(2);
    assert_eq!(make(&elsewhere, TWO), Err(Shortage::Targets(1)));

    let mut full = map(&[1, 1, 1]);
    let of_other_pool = |id| Group { pool: PoolId(2), ..made(&map(&[1, 1]), TWO)[0].clone().with_id(id) };
    full.groups = (0..MAX_MIRRORED as u32 - 1).map(|n| of_other_pool(FIRST_MIRRORED + n)).collect();
    assert_eq!(make(&full, TWO).map(|groups| groups.len()), Err(Shortage::Groups));
    full.groups.pop();
    assert_eq!(make(&full, TWO).map(|groups| groups.len()), Ok(2), "fewer than there would be");
}

#[test]
fn no_group_is_made_on_a_target_that_is_offline() {
    let make = |map: &ClusterMap| mirrored_groups(map, PoolId(1), TWO, GroupId(FIRST_MIRRORED));
    let mut three = map(&[1, 1, 1]);
    three.targets[0].state = TargetState::Offline;
    let groups = make(&three).unwrap();
    assert!(!groups.is_empty());
    assert!(groups.iter().all(|group| !group.members.contains(&TargetId(1))), "{groups:?}");
    // Groups with two members on one node would outlast the short outage of the other node.
    let mut two = map(&[2, 2]);
    two.targets[..2].iter_mut().for_each(|target| target.state = TargetState::Offline);
    assert_eq!(make(&two), Err(Shortage::Targets(2)));
    // Missing groups are created when it is back.
    three.groups = groups;
    three.targets[0].state = TargetState::Online;
    assert!(top_up(&mut three, TWO) > 0);
    assert!(memberships(&three).into_iter().all(|count| count > 0));
}

trait WithId {
    fn with_id(self, id: u32) -> Group;
}

impl WithId for Group {
    fn with_id(self, id: u32) -> Group {
        Group { id: GroupId(id), ..self }
    }
}

#[test]
fn equal_nodes_share_evenly() {
    for count in 2..=40 {
        for scheme in [TWO, THREE] {
            if count < scheme.members() {
                continue;
            }
            let mut map = map(&vec![1; count]);
            top_up(&mut map, scheme);
            let (least, most) = extremes(memberships(&map).into_iter());
            assert!(most - least <= 2, "{count} {scheme}: memberships {least}..{most}");
            let (least, most) = extremes(primaries(&map).into_iter());
            assert!(least > 0 && most - least <= 2, "{count} {scheme}: primaries {least}..{most}");
            let (least, most) = extremes(shares(&map).into_iter());
            assert!(most - least <= 2, "{count} {scheme}: shares {least}..{most}");
        }
    }
}

#[test]
fn the_largest_cluster_fits() {
    let mut map = map(&vec![2; 1024]);
    top_up(&mut map, TWO);
    assert!(map.groups.len() <= MAX_MIRRORED && memberships(&map).iter().all(|count| *count > 0));
}

fn any_nodes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..5, 2..10)
}

proptest! {
    #[test]
    fn groups_are_spread_and_stable_with_new_numbers(
        nodes in any_nodes(),
        more in prop::collection::vec(0usize..12, 0..6),
        mirror_three: bool,
    ) {
        let scheme = if mirror_three && nodes.len() > 2 { THREE } else { TWO };
        let mut map = map(&nodes);
        top_up(&mut map, scheme);
        prop_assert_eq!(top_up(&mut map, scheme), 0, "there is nothing more to do");
        for at in more {
            let before = map.groups.clone();
            let id = map.targets.len() as u32 + 1;
            map.targets.push(Target { node: NodeId(at as u32 + 1), ..target(id) });
            top_up(&mut map, scheme);
            prop_assert_eq!(&map.groups[..before.len()], &before[..], "what is there never changes");
            prop_assert!(map.groups.iter().any(|g| g.members.contains(&TargetId(id))));
        }
        let ids: BTreeSet<GroupId> = map.groups.iter().map(|g| g.id).collect();
        prop_assert_eq!(ids.len(), map.groups.len());
        for group in &map.groups {
            prop_assert!(group.members.len() == scheme.members() && has_distinct_nodes(&map, group), "{:?}", group);
        }
        // Every target gets its share, and none much more.
        let goal = MembershipTable::new(&map, &map.targets.iter().collect::<Vec<_>>(), scheme, Separation::Nodes);
        let goals = goal.goals(PRIMARIES_PER_TARGET * scheme.members());
        for ((target, has), wants) in map.targets.iter().zip(memberships(&map)).zip(goals) {
            let most = 3 * wants.max(PRIMARIES_PER_TARGET * scheme.members());
            prop_assert!(has >= wants && has <= most, "{target:?}: {has} of {wants}");
        }
    }
}
