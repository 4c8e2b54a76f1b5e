use super::*;
use crate::{FIRST_MIRRORED, mirrored_groups};
use proptest::prelude::*;
use std::collections::BTreeSet;
use types::Scheme;

const GIB: u64 = 1 << 30;

/// So many targets on each of some nodes, numbered through, with the groups of a scheme.
fn map(nodes: &[usize], scheme: Scheme) -> ClusterMap {
    let on_nodes =
        nodes.iter().enumerate().flat_map(|(node, count)| std::iter::repeat_n(node as u32 + 1, *count));
    let target = |(at, node): (usize, u32)| Target {
        node: NodeId(node),
        capacity: 1000 * GIB,
        free: 600 * GIB,
        ..crate::choose::tests::target(at as u32 + 1)
    };
    let mut map = ClusterMap { targets: on_nodes.enumerate().map(target).collect(), ..Default::default() };
    map.groups = mirrored_groups(&map, PoolId(1), scheme, GroupId(FIRST_MIRRORED)).unwrap();
    map
}

/// All groups of a target get another member, one after the other.
fn replace_all(map: &mut ClusterMap, lost: TargetId) -> usize {
    let ids: Vec<usize> =
        (0..map.groups.len()).filter(|at| map.groups[*at].members.contains(&lost)).collect();
    let mut done = 0;
    for at in ids {
        let Some(to) = successor(map, &map.groups[at], lost) else { continue };
        let group = &mut map.groups[at];
        let place = group.members.iter().position(|id| *id == lost).unwrap();
        group.states = vec![MemberState::Good; group.members.len()];
        (group.members[place], group.states[place]) = (to, MemberState::Bad);
        done += 1;
    }
    done
}

fn count(map: &ClusterMap, target: TargetId) -> usize {
    map.groups.iter().filter(|group| group.members.contains(&target)).count()
}

#[test]
fn what_one_target_had_comes_to_all_others() {
    let mut map = map(&[1, 1, 1, 1, 1, 1], Scheme::Mirror(2));
    map.targets[0].state = TargetState::Offline;
    let had = count(&map, TargetId(1));
    let before: Vec<usize> = (2..=6).map(|id| count(&map, TargetId(id))).collect();
    assert_eq!(replace_all(&mut map, TargetId(1)), had);
    for (at, id) in (2..=6).enumerate() {
        let more = count(&map, TargetId(id)) - before[at];
        assert!((had / 5..=had.div_ceil(5)).contains(&more), "target {id} got {more} of {had} groups");
    }
}

#[test]
fn a_full_drained_or_absent_target_takes_no_place() {
    let base = map(&[1, 1, 1], Scheme::Mirror(2));
    let group = base.groups.iter().find(|g| !g.members.contains(&TargetId(3))).unwrap().clone();
    let chosen = |change: &dyn Fn(&mut ClusterMap)| {
        let mut map = base.clone();
        change(&mut map);
        successor(&map, &group, group.members[1])
    };
    assert_eq!(chosen(&|_| ()), Some(TargetId(3)));
    assert_eq!(chosen(&|map| map.targets[2].drain = true), None);
    assert_eq!(chosen(&|map| map.targets[2].state = TargetState::ProbablyOffline), None);
    assert_eq!(chosen(&|map| map.targets[2].pool = PoolId(2)), None);
    assert_eq!(chosen(&|map| map.targets[2].class = CapacityClass::Emergency), None);
    assert_eq!(chosen(&|map| map.targets[2].free = 50 * GIB), None, "the others have more than that");
    // What is promised already counts.
    assert_eq!(
        chosen(&|map| {
            map.targets[2].free = 300 * GIB;
            map.groups.iter_mut().filter(|g| g.id != group.id).for_each(|g| {
                let state = |id: &TargetId| match id.0 {
                    3 => MemberState::Bad,
                    _ => MemberState::Good,
                };
                g.states = g.members.iter().map(state).collect();
            });
        }),
        None
    );
}

#[test]
fn two_copies_come_to_one_node_only_where_there_are_too_few() {
    let mut map = map(&[2, 2], Scheme::Mirror(2));
    (map.targets[2].state, map.targets[3].state) = (TargetState::Offline, TargetState::Offline);
    assert_eq!(replace_all(&mut map, TargetId(3)), 0, "the node may come back");
    (map.targets[2].drain, map.targets[3].drain) = (true, true);
    assert!(replace_all(&mut map, TargetId(3)) > 0, "it won't");
}

#[test]
fn a_new_target_gets_its_part() {
    let mut all = map(&[1, 1, 1, 1], Scheme::Mirror(2));
    let five = map(&[1, 1, 1, 1, 1], Scheme::Mirror(2));
    all.targets = five.targets;
    let moves = balance(&all, PoolId(1));
    let came = moves.iter().filter(|next| next.to == TargetId(5)).count();
    let average = all.groups.len() * 2 / 5;
    assert!((average..=average + 1).contains(&came), "{came} of {average}: {moves:?}");
    assert_eq!(balance(&map(&[1, 1, 1, 1], Scheme::Mirror(2)), PoolId(1)), [], "they are even");
}

fn pools() -> impl Strategy<Value = (Vec<usize>, Scheme, u64)> {
    let scheme = prop_oneof![Just(Scheme::Mirror(2)), Just(Scheme::Mirror(3))];
    (proptest::collection::vec(1..4usize, 3..6), scheme, any::<u64>())
}

proptest! {
    #[test]
    fn no_two_members_meet_on_a_node((nodes, scheme, seed) in pools()) {
        let mut map = map(&nodes, scheme);
        let lost = TargetId((seed % map.targets.len() as u64) as u32 + 1);
        map.targets[lost.0 as usize - 1].state = TargetState::Offline;
        let good: Vec<BTreeSet<TargetId>> = map.groups.iter().map(|g| g.good().collect()).collect();
        replace_all(&mut map, lost);
        for (group, before) in map.groups.iter().zip(good) {
            prop_assert!(is_spread(&map, group));
            prop_assert_eq!(group.members.len(), scheme.members());
            prop_assert_eq!(group.members.iter().collect::<BTreeSet<_>>().len(), group.members.len());
            let stay: BTreeSet<TargetId> = before.into_iter().filter(|id| *id != lost).collect();
            prop_assert!(stay.is_subset(&group.good().collect()), "a good member was replaced");
        }
    }

    #[test]
    fn every_move_makes_it_more_even_and_keeps_copies_apart((nodes, scheme, seed) in pools()) {
        let mut all = map(&nodes, scheme);
        // A target that had nothing before.
        let new = TargetId(all.targets.len() as u32 + 1);
        let node = all.targets[(seed % all.targets.len() as u64) as usize].node;
        all.targets.push(Target { id: new, node, ..all.targets[0].clone() });
        let unevenness =
            |map: &ClusterMap| map.targets.iter().map(|t| count(map, t.id).pow(2)).sum::<usize>();
        for next in balance(&all, PoolId(1)) {
            let before = unevenness(&all);
            for group in all.groups.iter_mut().filter(|g| g.id == next.group) {
                let place = group.members.iter().position(|id| *id == next.from).unwrap();
                group.members[place] = next.to;
            }
            prop_assert!(unevenness(&all) < before, "{:?}", next);
        }
        prop_assert!(all.groups.iter().all(|group| is_spread(&all, group)));
    }
}
