//! Groups over racks, against a simple reference count.

use super::super::*;
use crate::choose::tests::target;
use proptest::prelude::*;
use std::collections::BTreeSet;
use types::{Node, NodeState};

const TWO: Scheme = Scheme::Mirror(2);
const THREE: Scheme = Scheme::Mirror(3);

/// Nodes with their numbers of targets, by racks; nodes in a rack without a name have no known
/// rack. Nodes and targets have consecutive numbers.
pub(crate) fn racked(racks: &[(&str, &[usize])]) -> ClusterMap {
    let mut map = ClusterMap::default();
    for (rack, nodes) in racks {
        for count in nodes.iter() {
            let node = NodeId(map.nodes.len() as u32 + 1);
            map.nodes.push(Node {
                id: node,
                name: format!("n{node}"),
                addresses: vec![],
                roles: vec![],
                state: NodeState::Online,
                version: String::new(),
                rack: Some(rack.to_string()).filter(|rack| !rack.is_empty()),
            });
            for _ in 0..*count {
                map.targets.push(Target { node, ..target(map.targets.len() as u32 + 1) });
            }
        }
    }
    map
}

fn with_groups(racks: &[(&str, &[usize])], scheme: Scheme) -> ClusterMap {
    let mut map = racked(racks);
    map.groups = mirrored_groups(&map, PoolId(1), scheme, GroupId(FIRST_MIRRORED)).unwrap();
    map
}

/// The rack of a target, or a name that no rack has.
fn rack_of(map: &ClusterMap, id: TargetId) -> String {
    let node = map.targets.iter().find(|t| t.id == id).unwrap().node;
    let rack = map.nodes.iter().find(|n| n.id == node).and_then(|n| n.rack.clone());
    rack.unwrap_or_else(|| format!("only node {node}"))
}

/// Number of nodes and racks of some targets.
pub(crate) fn places(map: &ClusterMap, ids: &[TargetId]) -> (usize, usize) {
    let nodes: BTreeSet<NodeId> =
        ids.iter().map(|id| map.targets.iter().find(|t| t.id == *id).unwrap().node).collect();
    let racks: BTreeSet<String> = ids.iter().map(|id| rack_of(map, *id)).collect();
    (nodes.len(), racks.len())
}

/// The maximum for a group.
pub(crate) fn most_places(map: &ClusterMap, scheme: Scheme) -> (usize, usize) {
    let all: Vec<TargetId> = map.targets.iter().filter(|t| !t.drain).map(|t| t.id).collect();
    let (nodes, racks) = places(map, &all);
    (nodes.min(scheme.members()), racks.min(scheme.members()))
}

fn count(map: &ClusterMap, holds: impl Fn(&Group) -> bool) -> usize {
    map.groups.iter().filter(|group| holds(group)).count()
}

#[test]
fn golden() {
    let members = |map: &ClusterMap| -> Vec<Vec<u32>> {
        map.groups.iter().map(|group| group.members.iter().map(|id| id.0).collect()).collect()
    };
    let two_racks = with_groups(&[("a", &[1, 1]), ("b", &[1, 1])], TWO);
    assert_eq!(members(&two_racks), [[1, 3], [2, 4], [4, 1], [3, 2], [1, 3], [2, 4], [4, 1], [3, 2]]);
    let uneven = with_groups(&[("a", &[1, 1, 1]), ("b", &[1])], TWO);
    assert_eq!(members(&uneven), [[1, 4], [2, 4], [3, 4], [4, 1], [2, 4], [3, 4]]);
    let three_of_two = with_groups(&[("a", &[1, 1]), ("b", &[1])], THREE);
    assert_eq!(members(&three_of_two), [[1, 2, 3], [2, 1, 3], [3, 1, 2]]);
}

#[test]
fn equal_racks_share_evenly() {
    for (racks, nodes) in [(2, 2), (2, 3), (2, 5), (3, 2), (3, 4), (4, 3), (6, 2)] {
        for scheme in [TWO, THREE] {
            if racks < scheme.members() {
                continue;
            }
            let names: Vec<String> = (0..racks).map(|n| format!("r{n}")).collect();
            let one_each = vec![1; nodes];
            let all: Vec<(&str, &[usize])> = names.iter().map(|name| (&**name, &*one_each)).collect();
            let map = with_groups(&all, scheme);
            let ids: Vec<TargetId> = map.targets.iter().map(|t| t.id).collect();
            let memberships: Vec<usize> =
                ids.iter().map(|id| count(&map, |g| g.members.contains(id))).collect();
            let firsts: Vec<usize> = ids.iter().map(|id| count(&map, |g| g.members[0] == *id)).collect();
            let pairs = ids.iter().flat_map(|a| ids.iter().map(move |b| (*a, *b)));
            let apart = pairs.filter(|(a, b)| a < b && rack_of(&map, *a) != rack_of(&map, *b));
            let shared: Vec<usize> = apart
                .map(|(a, b)| count(&map, |g| g.members.contains(&a) && g.members.contains(&b)))
                .collect();
            for (what, counts) in [("groups", memberships), ("primaries", firsts), ("shared", shared)] {
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(
                    *least > 0 && most - least <= 2,
                    "{racks} racks of {nodes}, {scheme}, {what}: {least}..{most}"
                );
            }
        }
    }
}

#[test]
fn all_targets_of_uneven_racks_get_memberships() {
    let map = with_groups(&[("a", &[1, 1, 1]), ("b", &[1])], TWO);
    let parts: Vec<usize> = map.targets.iter().map(|t| count(&map, |g| g.members.contains(&t.id))).collect();
    assert_eq!(parts, [2, 2, 2, 6], "{:?}", map.groups);
}

#[test]
fn a_node_without_a_rack_is_one_of_its_own() {
    let map = with_groups(&[("a", &[1, 1]), ("", &[1, 1])], THREE);
    assert!(map.groups.iter().all(|group| places(&map, &group.members) == (3, 3)));
    let unknown = with_groups(&[("", &[1, 1, 1])], TWO);
    let bare = ClusterMap { nodes: vec![], groups: vec![], ..unknown.clone() };
    assert_eq!(
        mirrored_groups(&bare, PoolId(1), TWO, GroupId(FIRST_MIRRORED)).unwrap(),
        unknown.groups,
        "without racks nothing is different"
    );
}

pub(crate) fn any_racks() -> impl Strategy<Value = Vec<(&'static str, Vec<usize>)>> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", ""]);
    prop::collection::vec((name, prop::collection::vec(1usize..4, 1..4)), 1..6)
}

pub(crate) fn borrowed<'a>(racks: &'a [(&'static str, Vec<usize>)]) -> Vec<(&'a str, &'a [usize])> {
    racks.iter().map(|(name, nodes)| (*name, &**nodes)).collect()
}

proptest! {
    #[test]
    fn members_are_as_far_apart_as_they_can_be(racks in any_racks(), mirror_three: bool, more in 0usize..4) {
        let scheme = if mirror_three { THREE } else { TWO };
        let mut map = racked(&borrowed(&racks));
        if map.targets.len() < scheme.members() {
            return Ok(());
        }
        for _ in 0..=more {
            let best = most_places(&map, scheme);
            let next = GroupId(map.groups.last().map_or(FIRST_MIRRORED, |group| group.id.0 + 1));
            let made = mirrored_groups(&map, PoolId(1), scheme, next).unwrap();
            for group in &made {
                let different: BTreeSet<&TargetId> = group.members.iter().collect();
                prop_assert_eq!(different.len(), scheme.members());
                prop_assert_eq!(places(&map, &group.members), best, "{:?}", group);
            }
            map.groups.extend(made);
            for target in &map.targets {
                prop_assert!(map.groups.iter().any(|g| g.members.contains(&target.id)), "{:?}", target);
            }
            let again = mirrored_groups(&map, PoolId(1), scheme, GroupId(900_000)).unwrap();
            prop_assert_eq!(again, vec![], "there is nothing more to do");
            // One more target, on some node.
            let node = NodeId((map.targets.len() * 7 % map.nodes.len()) as u32 + 1);
            map.targets.push(Target { node, ..target(map.targets.len() as u32 + 1) });
        }
    }
}
