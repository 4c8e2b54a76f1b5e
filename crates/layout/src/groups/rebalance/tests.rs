use super::*;
use crate::groups::mirrored::tests::racks::{any_racks, borrowed, most_places, places, racked};
use crate::{FIRST_MIRRORED, has_distinct_nodes, improvable_groups, mirrored_groups};
use proptest::prelude::*;
use std::collections::BTreeSet;
use types::Scheme;

const GIB: u64 = 1 << 30;

/// Targets on some nodes, with consecutive numbers, and the groups of a scheme; `nodes`: their
/// number on each.
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

/// Replaces a target in all its groups, one after the other.
fn replace_all(map: &mut ClusterMap, lost: TargetId) -> usize {
    let ids: Vec<usize> =
        (0..map.groups.len()).filter(|at| map.groups[*at].members.contains(&lost)).collect();
    let mut done = 0;
    for at in ids {
        let Some(to) = replacement_target(map, &map.groups[at], lost) else { continue };
        let group = &mut map.groups[at];
        let place = group.members.iter().position(|id| *id == lost).unwrap();
        group.states = vec![MemberState::InSync; group.members.len()];
        (group.members[place], group.states[place]) = (to, MemberState::NeedsRebuild);
        done += 1;
    }
    done
}

fn count(map: &ClusterMap, target: TargetId) -> usize {
    map.groups.iter().filter(|group| group.members.contains(&target)).count()
}

#[test]
fn a_lost_targets_memberships_go_to_all_others() {
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
fn full_draining_and_offline_targets_are_no_replacements() {
    let base = map(&[1, 1, 1], Scheme::Mirror(2));
    let group = base.groups.iter().find(|g| !g.members.contains(&TargetId(3))).unwrap().clone();
    let chosen = |change: &dyn Fn(&mut ClusterMap)| {
        let mut map = base.clone();
        change(&mut map);
        replacement_target(&map, &group, group.members[1])
    };
    assert_eq!(chosen(&|_| ()), Some(TargetId(3)));
    assert_eq!(chosen(&|map| map.targets[2].drain = true), None);
    assert_eq!(chosen(&|map| map.targets[2].state = TargetState::ProbablyOffline), None);
    assert_eq!(chosen(&|map| map.targets[2].pool = PoolId(2)), None);
    assert_eq!(chosen(&|map| map.targets[2].class = CapacityClass::Emergency), None);
    assert_eq!(chosen(&|map| map.targets[2].free = 50 * GIB), None, "the others have more than that");
    // Pending copies count.
    assert_eq!(
        chosen(&|map| {
            map.targets[2].free = 300 * GIB;
            map.groups.iter_mut().filter(|g| g.id != group.id).for_each(|g| {
                let state = |id: &TargetId| match id.0 {
                    3 => MemberState::NeedsRebuild,
                    _ => MemberState::InSync,
                };
                g.states = g.members.iter().map(state).collect();
            });
        }),
        None
    );
}

#[test]
fn two_replicas_share_a_node_only_with_too_few_nodes() {
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
    let moves = rebalance(&all, PoolId(1));
    let came = moves.iter().filter(|next| next.to == TargetId(5)).count();
    let average = all.groups.len() * 2 / 5;
    assert!((average..=average + 1).contains(&came), "{came} of {average}: {moves:?}");
    assert_eq!(rebalance(&map(&[1, 1, 1, 1], Scheme::Mirror(2)), PoolId(1)), [], "they are even");
}

fn pools() -> impl Strategy<Value = (Vec<usize>, Scheme, u64)> {
    let scheme = prop_oneof![Just(Scheme::Mirror(2)), Just(Scheme::Mirror(3))];
    (proptest::collection::vec(1..4usize, 3..6), scheme, any::<u64>())
}

proptest! {
    #[test]
    fn no_two_members_share_a_node((nodes, scheme, seed) in pools()) {
        let mut map = map(&nodes, scheme);
        let lost = TargetId((seed % map.targets.len() as u64) as u32 + 1);
        map.targets[lost.0 as usize - 1].state = TargetState::Offline;
        let good: Vec<BTreeSet<TargetId>> = map.groups.iter().map(|g| g.in_sync_members().collect()).collect();
        replace_all(&mut map, lost);
        for (group, before) in map.groups.iter().zip(good) {
            prop_assert!(has_distinct_nodes(&map, group));
            prop_assert_eq!(group.members.len(), scheme.members());
            prop_assert_eq!(group.members.iter().collect::<BTreeSet<_>>().len(), group.members.len());
            let stay: BTreeSet<TargetId> = before.into_iter().filter(|id| *id != lost).collect();
            prop_assert!(stay.is_subset(&group.in_sync_members().collect()), "a member in sync was replaced");
        }
    }

    #[test]
    fn every_move_improves_balance_and_keeps_the_spread((nodes, scheme, seed) in pools()) {
        let mut all = map(&nodes, scheme);
        // A target without earlier content.
        let new = TargetId(all.targets.len() as u32 + 1);
        let node = all.targets[(seed % all.targets.len() as u64) as usize].node;
        all.targets.push(Target { id: new, node, ..all.targets[0].clone() });
        let unevenness =
            |map: &ClusterMap| map.targets.iter().map(|t| count(map, t.id).pow(2)).sum::<usize>();
        for next in rebalance(&all, PoolId(1)) {
            let before = unevenness(&all);
            for group in all.groups.iter_mut().filter(|g| g.id == next.group) {
                let place = group.members.iter().position(|id| *id == next.from).unwrap();
                group.members[place] = next.to;
            }
            prop_assert!(unevenness(&all) < before, "{:?}", next);
        }
        prop_assert!(all.groups.iter().all(|group| has_distinct_nodes(&all, group)));
    }
}

/// Groups from a time without known racks.
fn set_later(racks: &[(&str, &[usize])], scheme: Scheme) -> ClusterMap {
    let mut map = racked(racks);
    map.targets.iter_mut().for_each(|t| (t.capacity, t.free) = (1000 * GIB, 900 * GIB));
    let known = std::mem::take(&mut map.nodes);
    map.groups = mirrored_groups(&map, PoolId(1), scheme, GroupId(FIRST_MIRRORED)).unwrap();
    map.nodes = known;
    map
}

/// Balances and completes all copies, until no moves are left; returns the number of rounds.
fn settle(map: &mut ClusterMap) -> usize {
    for round in 0.. {
        assert!(round < 10, "it doesn't come to rest");
        let moves = rebalance(map, PoolId(1));
        if moves.is_empty() {
            return round;
        }
        for next in moves {
            let group = map.groups.iter_mut().find(|g| g.id == next.group).unwrap();
            let place = group.members.iter().position(|id| *id == next.from).unwrap();
            assert!(!group.members.contains(&next.to));
            group.members[place] = next.to;
        }
    }
    0
}

#[test]
fn members_in_one_rack_are_moved_apart() {
    let mut map = set_later(&[("a", &[1, 1]), ("b", &[1, 1])], Scheme::Mirror(2));
    let near = map.groups.iter().filter(|g| places(&map, &g.members).1 == 1).count();
    assert_eq!(near, 4, "of twelve");
    let planned = rebalance(&map, PoolId(1));
    assert_eq!(planned.len(), near, "the others stay: {planned:?}");
    assert_eq!(improvable_groups(&map, PoolId(1)).len(), near);
    settle(&mut map);
    assert_eq!(improvable_groups(&map, PoolId(1)), []);
    assert!(map.groups.iter().all(|group| places(&map, &group.members) == (2, 2)));
    let counts: Vec<usize> = map.targets.iter().map(|t| count(&map, t.id)).collect();
    assert_eq!(counts, [6, 6, 6, 6]);
}

#[test]
fn the_only_node_of_a_rack_is_in_all_groups() {
    let mut map = set_later(&[("a", &[1, 1, 1]), ("b", &[1])], Scheme::Mirror(2));
    settle(&mut map);
    assert!(map.groups.iter().all(|group| group.members.contains(&TargetId(4))));
    let others: Vec<usize> = (1..=3).map(|id| count(&map, TargetId(id))).collect();
    assert!(others.iter().all(|count| *count == map.groups.len() / 3), "{others:?}");
}

#[test]
fn no_move_reduces_the_spread() {
    // The second node is in all groups, and so in the most.
    let map = map(&[3, 1], Scheme::Mirror(3));
    assert_eq!(rebalance(&map, PoolId(1)), []);
}

#[test]
fn pending_copies_take_space() {
    let mut map = set_later(&[("a", &[1, 1, 1, 1]), ("b", &[1])], Scheme::Mirror(2));
    let all = rebalance(&map, PoolId(1)).len();
    // It has space for some of them only: each is about an eighth of 100 GiB.
    map.targets[4].free = 60 * GIB;
    let planned = rebalance(&map, PoolId(1));
    let comes: u64 = planned
        .iter()
        .filter(|next| next.to == TargetId(5))
        .map(|next| member_bytes(&map, map.group(next.group).unwrap()))
        .sum();
    assert!(!planned.is_empty() && planned.len() < all, "{} of {all}", planned.len());
    assert!(comes < 60 * GIB, "{comes}");
}

#[test]
fn data_of_other_programs_is_not_counted() {
    let mut map = map(&[1, 1, 1], Scheme::Mirror(2));
    // Almost full of other programs' data: each of four groups takes 1 GiB.
    for target in &mut map.targets {
        (target.free, target.class) = (50 * GIB, CapacityClass::Normal);
        target.used = Some(4 * GIB);
    }
    for target in 1..=3 {
        assert_eq!(count(&map, TargetId(target)), 4);
    }
    let group = map.groups[0].clone();
    assert_eq!(member_bytes(&map, &group), GIB);
    let gone = group.members[0];
    assert!(replacement_target(&map, &group, gone).is_some());
    // If the owner of the data is unknown, all of it counts.
    map.targets.iter_mut().for_each(|target| target.used = None);
    assert_eq!(member_bytes(&map, &group), 950 * GIB / 4);
    assert_eq!(replacement_target(&map, &group, gone), None);
}

#[test]
fn the_replacement_is_in_the_same_rack() {
    let mut map = racked(&[("a", &[1, 1]), ("b", &[1, 1])]);
    map.groups = mirrored_groups(&map, PoolId(1), Scheme::Mirror(2), GroupId(FIRST_MIRRORED)).unwrap();
    let all_apart = |map: &ClusterMap| map.groups.iter().all(|g| places(map, &g.members) == (2, 2));
    assert!(all_apart(&map));
    map.targets[3].state = TargetState::Offline;
    let had = count(&map, TargetId(4));
    assert_eq!(replace_all(&mut map, TargetId(4)), had);
    assert!(all_apart(&map), "{:?}", map.groups);
    // A whole rack may return; content of a draining target moves to where there is space.
    map.targets[2].state = TargetState::Offline;
    assert_eq!(replace_all(&mut map, TargetId(3)), 0);
    (map.targets[2].drain, map.targets[3].drain) = (true, true);
    assert!(replace_all(&mut map, TargetId(3)) > 0);
}

proptest! {
    // Each case plans moves of all groups of a pool several times.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn racks_that_are_set_later_are_respected_in_the_end(racks in any_racks(), mirror_three: bool) {
        let scheme = if mirror_three { Scheme::Mirror(3) } else { Scheme::Mirror(2) };
        if racks.iter().flat_map(|(_, nodes)| nodes).sum::<usize>() < scheme.members() {
            return Ok(());
        }
        let mut map = set_later(&borrowed(&racks), scheme);
        // No move makes its group's spread worse.
        let before = map.clone();
        for next in rebalance(&map, PoolId(1)) {
            let group = before.group(next.group).unwrap();
            let after: Vec<TargetId> = replaced(group, next.from, next.to).collect();
            prop_assert!(places(&map, &after) >= places(&map, &group.members), "{:?}", next);
        }
        settle(&mut map);
        let best = most_places(&map, scheme);
        for group in &map.groups {
            prop_assert_eq!(places(&map, &group.members), best, "{:?}", group);
            prop_assert_eq!(group.members.iter().collect::<BTreeSet<_>>().len(), scheme.members());
        }
        for target in &map.targets {
            prop_assert!(count(&map, target.id) > 0, "{:?} has nothing to do", target);
        }
    }

    #[test]
    fn the_replacement_is_in_another_rack_if_possible(racks in any_racks(), mirror_three: bool, seed: u64) {
        let scheme = if mirror_three { Scheme::Mirror(3) } else { Scheme::Mirror(2) };
        let mut map = racked(&borrowed(&racks));
        if map.targets.len() < scheme.members() {
            return Ok(());
        }
        map.groups = mirrored_groups(&map, PoolId(1), scheme, GroupId(FIRST_MIRRORED)).unwrap();
        let lost = TargetId((seed % map.targets.len() as u64) as u32 + 1);
        map.targets[lost.0 as usize - 1].state = TargetState::Offline;
        for group in map.groups.iter().filter(|group| group.members.contains(&lost)) {
            let stay: Vec<TargetId> = group.members.iter().copied().filter(|id| *id != lost).collect();
            let with = |id: TargetId| places(&map, &[&stay[..], &[id]].concat());
            let others = map.targets.iter().filter(|t| t.id != lost && !stay.contains(&t.id));
            let best = others.map(|t| with(t.id)).max();
            match replacement_target(&map, group, lost) {
                Some(to) => prop_assert_eq!(Some(with(to)), best),
                // There is no target, or only targets that would make the spread worse than it was
                // and than it could be.
                None => {
                    let was = places(&map, &group.members);
                    prop_assert!(best.is_none_or(|best| best < was && was == (scheme.members(), scheme.members())
                        || best.0 < was.0 && was.0 == scheme.members()), "{:?} {:?}", best, was);
                }
            }
        }
    }
}
