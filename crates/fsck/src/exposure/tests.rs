//! Compares the exposure map with a brute-force one: all targets of a domain are removed, and the
//! replicas left of each stripe are counted.

use super::*;
use proptest::prelude::*;
use types::{CapacityClass, Epoch, Group, GroupId, Node, NodeState, PoolId, Scheme, Target, TargetState};

const STATES: [MemberState; 4] =
    [MemberState::InSync, MemberState::InSync, MemberState::NeedsResync, MemberState::NeedsRebuild];

/// Six targets on three nodes, with the given groups. The first node stores the metadata, and the
/// first two are in a rack.
fn map(groups: &[Vec<(u32, usize)>]) -> ClusterMap {
    let target = |id: u32| Target {
        id: TargetId(id),
        node: NodeId(id.div_ceil(2)),
        pool: PoolId(1),
        path: String::new(),
        state: TargetState::Online,
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
        roles: if id == 1 { vec![Role::Mgmt, Role::Storage] } else { vec![Role::Storage] },
        state: NodeState::Online,
        version: String::new(),
        rack: [Some("a"), Some("a"), None][id as usize - 1].map(String::from),
    };
    let group = |(at, members): (usize, &Vec<(u32, usize)>)| Group {
        scheme: if members.len() > 1 { Scheme::Mirror(members.len() as u8) } else { Scheme::Single },
        members: members.iter().map(|(target, _)| TargetId(*target)).collect(),
        states: members.iter().map(|(_, state)| STATES[*state]).collect(),
        since: Epoch(1),
        ..Group::single(GroupId(at as u32), PoolId(1), TargetId(1))
    };
    ClusterMap {
        nodes: (1..=3).map(node).collect(),
        targets: (1..=6).map(target).collect(),
        groups: groups.iter().enumerate().map(group).collect(),
        ..ClusterMap::default()
    }
}

fn layout(groups: &[u32]) -> Layout {
    Layout {
        chunk_size: 4096,
        pool: PoolId(1),
        scheme: Scheme::Single,
        groups: groups.iter().map(|id| GroupId(*id)).collect(),
        slots: vec![],
    }
}

/// Returns the in-sync replicas of each stripe when some targets are gone, with the stripe's bytes.
fn left(
    map: &ClusterMap,
    (groups, size): &(Vec<u32>, u64),
    is_gone: impl Fn(u32) -> bool,
) -> Vec<(usize, usize, u64)> {
    let mut bytes = vec![0; groups.len()];
    (0..*size).step_by(512).for_each(|at| {
        bytes[(at / 4096) as usize % groups.len()] += 512.min(size - at);
    });
    let copies = |id: &u32| {
        let group = &map.groups[*id as usize];
        let good = group.members_with_states().filter(|(_, state)| *state == MemberState::InSync);
        (good.filter(|(target, _)| !is_gone(target.0)).count(), group.members.len())
    };
    groups.iter().zip(bytes).map(|(id, bytes)| (copies(id).0, copies(id).1, bytes)).collect()
}

proptest! {
    #[test]
    fn the_map_matches_brute_force(
        groups in prop::collection::vec(
            prop::sample::subsequence((1..=6u32).collect::<Vec<_>>(), 1..=3)
                .prop_flat_map(|members| {
                    let len = members.len();
                    (Just(members), prop::collection::vec(0..STATES.len(), len))
                })
                .prop_map(|(members, states)| members.into_iter().zip(states).collect::<Vec<_>>()),
            1..6,
        ),
        files in prop::collection::vec((prop::collection::vec(0..100u32, 1..4), 0..40_000u64), 0..8),
    ) {
        let map = map(&groups);
        let files: Vec<(Vec<u32>, u64)> = files
            .into_iter()
            .map(|(ids, size)| (ids.iter().map(|id| id % groups.len() as u32).collect(), size))
            .collect();
        let mut scale = ExposureBuilder::new(&map);
        for (at, (ids, size)) in files.iter().enumerate() {
            let directory = format!("/d{}", at % 2);
            let layout = layout(ids);
            scale.add_file(&ExposureFile { directory: &directory, layout: &layout, size: *size, is_estimate: false });
        }
        let exposure = scale.finish();
        prop_assert_eq!(exposure.exposed.len(), 10);
        for exposed in &exposure.exposed {
            let is_gone = |target: u32| match &exposed.domain {
                Domain::Target(dead) => target == dead.0,
                Domain::Node(dead) => target.div_ceil(2) == dead.0,
                Domain::Rack(dead) => dead == "a" && target <= 4,
            };
            let (mut lost, mut at_risk) = (Amount::default(), Amount::default());
            for file in &files {
                let (before, after) = (left(&map, file, |_| false), left(&map, file, is_gone));
                let changed = before.iter().zip(&after).filter(|(before, after)| before.0 != after.0);
                let (mut gone, mut single) = (0, 0);
                for (_, (copies, of, bytes)) in changed {
                    gone += if *copies == 0 { *bytes } else { 0 };
                    single += if *copies == 1 && *of > 1 { *bytes } else { 0 };
                }
                lost.add(gone);
                at_risk.add(single);
            }
            prop_assert_eq!((exposed.lost, exposed.at_risk), (lost, at_risk), "{:?}", exposed.domain);
            let sum = |part: fn(&HeavyDirectory) -> u64| exposed.top.iter().map(part).sum::<u64>();
            prop_assert_eq!(sum(|heavy| heavy.lost.bytes), lost.bytes);
            prop_assert_eq!(sum(|heavy| heavy.at_risk.bytes), at_risk.bytes);
            let keeps = [Domain::Node(NodeId(1)), Domain::Rack("a".into())];
            prop_assert_eq!(exposed.keeps_metadata, keeps.contains(&exposed.domain));
        }
    }
}

#[test]
fn domains_are_sorted_by_loss() {
    let map = map(&[vec![(1, 0)], vec![(3, 0), (5, 0)]]);
    let mut scale = ExposureBuilder::new(&map);
    let (single, mirrored) = (layout(&[0]), layout(&[1]));
    scale.add_file(&ExposureFile { directory: "/scratch", layout: &single, size: 1000, is_estimate: true });
    scale.add_file(&ExposureFile { directory: "/home", layout: &mirrored, size: 5000, is_estimate: false });
    let exposure = scale.finish();
    assert_eq!((exposure.all, exposure.estimated_files), (Amount { files: 2, bytes: 6000 }, 1));
    assert_eq!((exposure.at_risk_now, exposure.lost_now), (Amount::default(), Amount::default()));
    assert_eq!(exposure.exposed[0].domain, Domain::Rack("a".into()), "the largest comes first");
    let first = &exposure.exposed[1];
    assert_eq!((&first.domain, first.lost), (&Domain::Node(NodeId(1)), Amount { files: 1, bytes: 1000 }));
    assert_eq!(first.top[0].path, "/scratch");
    let targets: Vec<Domain> = exposure.exposed[4..6].iter().map(|exposed| exposed.domain.clone()).collect();
    assert_eq!(targets, [Domain::Target(TargetId(1)), Domain::Target(TargetId(3))]);
    assert_eq!(exposure.exposed[5].at_risk, Amount { files: 1, bytes: 5000 });
}

/// Replicas on two nodes of one rack are lost with it.
#[test]
fn a_rack_takes_all_copies_in_it() {
    let mut map = map(&[vec![(1, 0), (3, 0)], vec![(1, 0), (5, 0)]]);
    let weigh = |map: &ClusterMap| {
        let mut scale = ExposureBuilder::new(map);
        for (at, size) in [(0, 700), (1, 5000)] {
            let layout = layout(&[at]);
            scale.add_file(&ExposureFile { directory: "/home", layout: &layout, size, is_estimate: false });
        }
        scale.finish().exposed
    };
    let exposure = weigh(&map);
    let rack = &exposure[0];
    assert_eq!((&rack.domain, &*rack.node), (&Domain::Rack("a".into()), ""));
    assert_eq!(
        (rack.lost, rack.at_risk),
        (Amount { files: 1, bytes: 700 }, Amount { files: 1, bytes: 5000 })
    );
    assert_eq!(
        exposure.iter().filter(|exposed| exposed.lost.bytes > 0).count(),
        1,
        "no node alone takes any"
    );
    map.nodes.iter_mut().for_each(|node| node.rack = None);
    assert!(weigh(&map).iter().all(|exposed| exposed.lost.bytes == 0));
}
