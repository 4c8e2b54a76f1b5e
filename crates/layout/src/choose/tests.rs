use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, PartitionId, Pool, PoolId, Target, TargetId};

const GIB: u64 = 1 << 30;

/// An empty online target in pool 1.
pub(crate) fn target(id: u32) -> Target {
    Target {
        id: TargetId(id),
        node: NodeId(1),
        pool: PoolId(1),
        path: format!("/t{id}"),
        state: TargetState::Online,
        capacity: 100 * GIB,
        free: 100 * GIB,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    }
}

/// Targets 1 to `count`, target `i` in single group `10 + i`.
pub(crate) fn map(count: u32) -> ClusterMap {
    let group = |i: u32| Group::single(GroupId(10 + i), PoolId(1), TargetId(i));
    ClusterMap {
        targets: (1..=count).map(target).collect(),
        pools: vec![Pool { id: PoolId(1), name: "nvme".into(), spare: 0 }],
        groups: (1..=count).map(group).collect(),
        ..Default::default()
    }
}

fn pattern(chooser: Chooser, stripe_count: u16) -> StripePattern {
    StripePattern { chooser, stripe_count, ..Default::default() }
}

fn chosen(map: &ClusterMap, pattern: &StripePattern, sequence: u64, seed: u64) -> Vec<u32> {
    let ino = InodeId::new(PartitionId(0), sequence);
    choose(map, pattern, ino, seed).unwrap().into_iter().map(|g| g.0).collect()
}

fn refusal(map: &ClusterMap) -> Error {
    choose(map, &pattern(Chooser::RoundRobin, 4), InodeId::ROOT, 0).unwrap_err()
}

#[test]
fn golden_round_robin() {
    let map = map(5);
    let pattern = pattern(Chooser::RoundRobin, 3);
    assert_eq!(chosen(&map, &pattern, 5, 0), [11, 12, 13]);
    assert_eq!(chosen(&map, &pattern, 6, 1), [12, 13, 14]);
    assert_eq!(chosen(&map, &pattern, 9, 2), [15, 11, 12]);
    let elsewhere = InodeId::new(PartitionId(2), 5);
    assert_eq!(choose(&map, &pattern, elsewhere, 0).unwrap(), [GroupId(13), GroupId(14), GroupId(15)]);
}

#[test]
fn golden_random() {
    let pattern = pattern(Chooser::Random, 3);
    let found: Vec<_> = (1..=4).map(|sequence| chosen(&map(8), &pattern, sequence, 42)).collect();
    assert_eq!(found, [[18, 14, 11], [14, 15, 16], [13, 12, 16], [11, 13, 14]]);
}

#[test]
fn golden_capacity_weighted() {
    let mut map = map(8);
    for target in &mut map.targets {
        target.free = target.id.0 as u64 * GIB;
    }
    let pattern = pattern(Chooser::CapacityWeighted, 3);
    let found: Vec<_> = (1..=4).map(|sequence| chosen(&map, &pattern, sequence, 42)).collect();
    assert_eq!(found, [[18, 15, 17], [16, 17, 15], [15, 13, 17], [11, 14, 15]]);
}

#[test]
fn round_robin_spreads_first_chunks_and_all_chunks_evenly() {
    let map = map(6);
    for stripe_count in 1..=6 {
        let pattern = pattern(Chooser::RoundRobin, stripe_count);
        let mut firsts = BTreeMap::new();
        let mut uses = BTreeMap::new();
        for sequence in 1..=60 {
            let groups = chosen(&map, &pattern, sequence, 0);
            *firsts.entry(groups[0]).or_insert(0) += 1;
            for group in groups {
                *uses.entry(group).or_insert(0) += 1;
            }
        }
        assert_eq!(firsts.into_values().collect::<Vec<_>>(), [10; 6]);
        assert_eq!(uses.into_values().collect::<Vec<_>>(), [10 * stripe_count; 6]);
    }
}

/// Pearson's chi-square statistic of the groups of 10,000 files with one stripe, against `shares`.
fn chi_square(map: &ClusterMap, chooser: Chooser, shares: &[f64]) -> f64 {
    const FILES: u64 = 10_000;
    let mut counts = vec![0f64; shares.len()];
    for seed in 0..FILES {
        counts[chosen(map, &pattern(chooser, 1), 1, mix(seed))[0] as usize - 11] += 1.0;
    }
    let total: f64 = shares.iter().sum();
    let expected = shares.iter().map(|share| share / total * FILES as f64);
    counts.iter().zip(expected).map(|(count, expected)| (count - expected).powi(2) / expected).sum()
}

/// The 99.9th percentile of chi-square with 7 degrees of freedom; the seeds are fixed, so the tests
/// are deterministic.
const CHI_SQUARE_7: f64 = 24.32;

#[test]
fn random_is_uniform() {
    assert!(chi_square(&map(8), Chooser::Random, &[1.0; 8]) < CHI_SQUARE_7);
}

#[test]
fn capacity_weighted_follows_free_space() {
    let mut map = map(8);
    let shares = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 50.0];
    for (target, share) in map.targets.iter_mut().zip(shares) {
        target.free = share as u64 * GIB;
    }
    assert!(chi_square(&map, Chooser::CapacityWeighted, &shares) < CHI_SQUARE_7);
    assert!(chi_square(&map, Chooser::Random, &shares) > 10.0 * CHI_SQUARE_7);
}

#[test]
fn files_made_with_one_seed_differ() {
    let pattern = pattern(Chooser::Random, 1);
    let distinct: BTreeSet<_> = (1..=50).map(|sequence| chosen(&map(8), &pattern, sequence, 7)).collect();
    assert_eq!(distinct.len(), 8);
}

#[test]
fn low_targets_only_fill_the_stripe_and_come_last() {
    let mut map = map(5);
    map.targets[0].class = CapacityClass::Low;
    map.targets[3].class = CapacityClass::Low;
    for chooser in [Chooser::RoundRobin, Chooser::Random, Chooser::CapacityWeighted] {
        for sequence in 1..40 {
            let three: BTreeSet<_> =
                chosen(&map, &pattern(chooser, 3), sequence, sequence).into_iter().collect();
            assert_eq!(three, BTreeSet::from([12, 13, 15]));
            let four = chosen(&map, &pattern(chooser, 4), sequence, sequence);
            assert_eq!(four[..3].iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from([12, 13, 15]));
            assert!([11, 14].contains(&four[3]));
        }
    }
}

#[test]
fn a_group_is_as_good_as_its_worst_member() {
    let mut map = map(3);
    map.groups.truncate(2);
    map.groups[0].members.push(TargetId(3));
    map.targets[2].class = CapacityClass::Low;
    assert_eq!(chosen(&map, &pattern(Chooser::RoundRobin, 1), 1, 0), [12]);
    map.targets[2].state = TargetState::Offline;
    assert_eq!(chosen(&map, &pattern(Chooser::RoundRobin, 2), 1, 0), [12]);
    map.groups[1].members.clear();
    assert_eq!(refusal(&map).errno, Errno::ENODEV);
}

#[test]
fn groups_of_other_pools_are_left_alone() {
    let mut map = map(4);
    map.pools.push(Pool { id: PoolId(2), name: "capacity".into(), spare: 0 });
    map.groups[1].pool = PoolId(2);
    let found: BTreeSet<_> = chosen(&map, &pattern(Chooser::Random, 9), 1, 0).into_iter().collect();
    assert_eq!(found, BTreeSet::from([11, 13, 14]));
}

#[test]
fn refusals_name_pool_cause_and_remedy() {
    let mut map = map(3);
    for target in &mut map.targets {
        target.class = CapacityClass::Emergency;
    }
    let error = refusal(&map);
    assert_eq!(error.errno, Errno::ENOSPC);
    assert_eq!(error.message, "pool nvme can't take new files: its 3 groups are full");
    assert_eq!(error.hint, "remove files, or add a target to pool nvme");

    map.targets[1].state = TargetState::Offline;
    let error = refusal(&map);
    assert_eq!(error.errno, Errno::ENOSPC);
    assert_eq!(error.message, "pool nvme can't take new files: 2 groups are full and 1 group is offline");

    map.targets.iter_mut().for_each(|t| t.state = TargetState::Offline);
    let error = refusal(&map);
    assert_eq!(error.errno, Errno::ENODEV);
    assert_eq!(error.message, "pool nvme can't take new files: its 3 groups are offline");

    assert_eq!(error.hint, "start the nodes that serve the targets of pool nvme");

    map.targets.iter_mut().for_each(|t| t.drain = true);
    let error = refusal(&map);
    assert_eq!(error.errno, Errno::ENODEV);
    assert_eq!(error.message, "pool nvme can't take new files: its 3 groups are draining");
    assert_eq!(error.hint, "cancel a drain (weft target set ID --drain off), or add a target to pool nvme");

    map.targets[0].drain = false;
    map.targets[1].drain = false;
    map.targets[1].state = TargetState::Online;
    let error = refusal(&map);
    assert_eq!(error.errno, Errno::ENOSPC);
    let groups = "1 group is full, 1 group is offline and 1 group is draining";
    assert_eq!(error.message, format!("pool nvme can't take new files: {groups}"));
    assert_eq!(
        error.hint,
        "start the nodes that are down, remove files, cancel a drain (weft target set ID --drain off), or add a target to pool nvme"
    );

    map.groups.clear();
    let error = refusal(&map);
    assert_eq!((error.errno, &*error.message), (Errno::ENODEV, "pool nvme has no targets for new files"));

    map.pools.clear();
    let error = refusal(&map);
    assert_eq!((error.errno, &*error.message), (Errno::ENODEV, "pool 1 does not exist"));
    assert!(!error.hint.is_empty());
}

/// Groups 1 to 3 of two targets each, on two nodes.
fn mirrored() -> (ClusterMap, StripePattern) {
    let scheme = types::Scheme::Mirror(2);
    let mut map = map(6);
    map.targets.iter_mut().for_each(|t| t.node = NodeId(t.id.0 % 2));
    let group = |i: u32| Group {
        scheme,
        members: vec![TargetId(2 * i - 1), TargetId(2 * i)],
        ..Group::single(GroupId(i), PoolId(1), TargetId(0))
    };
    map.groups.extend((1..=3).map(group));
    map.groups.sort_by_key(|g| g.id);
    (map, StripePattern { scheme, ..pattern(Chooser::RoundRobin, 9) })
}

#[test]
fn degraded_groups_are_a_last_resort() {
    use MemberState::{InSync, NeedsRebuild, NeedsResync, Resyncing};
    let (mut map, pattern) = mirrored();
    let chosen = |map: &ClusterMap| {
        choose(map, &pattern, InodeId::new(PartitionId(0), 1), 0)
            .map(|groups| groups.into_iter().map(|g| g.0).collect::<BTreeSet<u32>>())
    };
    assert_eq!(chosen(&map), Ok(BTreeSet::from([1, 2, 3])));
    map.groups[0].states = vec![InSync, NeedsResync];
    map.targets[3].state = TargetState::ProbablyOffline;
    assert_eq!(chosen(&map), Ok(BTreeSet::from([3])));
    map.targets[4].drain = true;
    assert_eq!(
        chosen(&map),
        Ok(BTreeSet::from([3])),
        "it has all copies until another target takes its place"
    );
    map.targets[4].state = TargetState::Offline;
    map.targets[5].state = TargetState::Offline;
    assert_eq!(chosen(&map), Ok(BTreeSet::from([1, 2])), "one member in sync is reachable");
    map.targets[2].state = TargetState::Offline;
    assert_eq!(chosen(&map), Ok(BTreeSet::from([1])), "no member of 2 can be");
    for states in [vec![Resyncing, InSync], vec![NeedsRebuild, InSync]] {
        map.groups[0].states = states;
        assert_eq!(chosen(&map), Ok(BTreeSet::from([1])));
        map.targets[1].state = TargetState::Offline;
        assert_eq!(chosen(&map).unwrap_err().errno, Errno::ENODEV, "the one that can be reached isn't good");
        map.targets[1].state = TargetState::Online;
    }
    map.targets[0].class = CapacityClass::Emergency;
    assert_eq!(chosen(&map).unwrap_err().errno, Errno::ENOSPC);
}

#[test]
fn groups_with_a_draining_member_rank_lower() {
    let (mut map, pattern) = mirrored();
    let chosen = |map: &ClusterMap| choose(map, &pattern, InodeId::new(PartitionId(0), 1), 0).unwrap();
    for (drained, left) in [(0, 2), (2, 1), (4, 3)] {
        map.targets[drained].drain = true;
        assert_eq!(chosen(&map).len(), left);
    }
    assert_eq!(chosen(&map).len(), 3, "files can be made while a whole node is emptied");
}

#[test]
fn a_lost_group_gets_no_files_and_is_not_said_to_be_offline() {
    let (mut map, pattern) = mirrored();
    let ino = InodeId::new(PartitionId(0), 1);
    let all: Vec<GroupId> = map.groups.iter().filter(|g| g.scheme == pattern.scheme).map(|g| g.id).collect();
    map.groups.iter_mut().filter(|group| group.id == all[0]).for_each(types::Group::mark_lost);
    assert!(!choose(&map, &pattern, ino, 0).unwrap().contains(&all[0]));
    map.groups.iter_mut().for_each(types::Group::mark_lost);
    let refused = choose(&map, &pattern, ino, 0).unwrap_err();
    assert!(refused.message.contains("has no groups of scheme"), "{refused}");
}

#[test]
fn groups_within_one_node_rank_lower() {
    let (mut map, pattern) = mirrored();
    let chosen = |map: &ClusterMap| choose(map, &pattern, InodeId::new(PartitionId(0), 1), 0).unwrap().len();
    map.targets[0].node = NodeId(0);
    assert_eq!(chosen(&map), 2);
    map.targets.iter_mut().for_each(|t| t.node = NodeId(0));
    assert_eq!(chosen(&map), 3);
}

#[test]
fn a_pool_without_mirrored_groups_says_how_to_make_them() {
    let pattern = StripePattern { scheme: types::Scheme::Mirror(3), ..pattern(Chooser::Random, 1) };
    let refused = choose(&map(3), &pattern, InodeId::ROOT, 0).unwrap_err();
    assert_eq!(
        (refused.errno, &*refused.message),
        (Errno::ENODEV, "pool nvme has no groups of scheme mirror:3")
    );
    assert_eq!(refused.hint, "weft group create --pool nvme --scheme mirror:3 creates them");
}

fn any_chooser() -> impl Strategy<Value = Chooser> {
    prop_oneof![Just(Chooser::RoundRobin), Just(Chooser::Random), Just(Chooser::CapacityWeighted)]
}

fn any_map() -> impl Strategy<Value = ClusterMap> {
    prop::collection::vec((0u8..4, 0u64..1 << 40), 1..12).prop_map(|targets| {
        let mut map = map(targets.len() as u32);
        for (target, (kind, free)) in map.targets.iter_mut().zip(targets) {
            target.free = free;
            match kind {
                0 => target.state = TargetState::Offline,
                1 => target.class = CapacityClass::Emergency,
                2 => target.class = CapacityClass::Low,
                _ => {}
            }
        }
        map
    })
}

proptest! {
    #[test]
    fn choices_are_distinct_usable_and_as_many_as_there_can_be(
        map in any_map(),
        chooser in any_chooser(),
        stripe_count in 1u16..16,
        sequence in 1u64..1 << 40,
        seed: u64,
    ) {
        let usable: BTreeSet<u32> = map
            .targets
            .iter()
            .filter(|t| t.state == TargetState::Online && t.class != CapacityClass::Emergency)
            .map(|t| t.id.0 + 10)
            .collect();
        let ino = InodeId::new(PartitionId(3), sequence);
        match choose(&map, &pattern(chooser, stripe_count), ino, seed) {
            Err(_) => prop_assert!(usable.is_empty()),
            Ok(groups) => {
                let distinct: BTreeSet<u32> = groups.iter().map(|g| g.0).collect();
                prop_assert_eq!(distinct.len(), groups.len());
                prop_assert!(distinct.is_subset(&usable));
                prop_assert_eq!(groups.len(), usable.len().min(stripe_count as usize));
                let again = choose(&map, &pattern(chooser, stripe_count), ino, seed);
                prop_assert_eq!(again, Ok(groups));
            }
        }
    }
}

/// Reference implementation of the draws: a list that gets shorter.
fn reference_draws(all: &[u64], chooser: Chooser, count: usize, random: &mut SplitMix64) -> Vec<GroupId> {
    let mut left: Vec<(usize, u64)> = all.iter().map(|free| free / WEIGHT_UNIT + 1).enumerate().collect();
    let mut chosen = Vec::new();
    for _ in 0..count {
        let at = match chooser {
            Chooser::Random => {
                let at = random.below(left.len() as u64) as usize;
                // The first remaining one takes the place of the drawn one.
                left.swap(0, at);
                0
            }
            _ => {
                let mut ticket = random.below(left.iter().map(|(_, weight)| weight).sum());
                let hit = |(_, weight): &(usize, u64)| match ticket.checked_sub(*weight) {
                    None => true,
                    Some(rest) => {
                        ticket = rest;
                        false
                    }
                };
                left.iter().position(hit).unwrap()
            }
        };
        chosen.push(GroupId(left.remove(at).0 as u32));
    }
    chosen
}

proptest! {
    #[test]
    fn draws_match_the_reference_implementation(
        free in prop::collection::vec(prop_oneof![Just(0), 0..10 * WEIGHT_UNIT, 0..1u64 << 50], 1..40),
        count in 1usize..40,
        seed: u64,
        chooser in prop_oneof![Just(Chooser::Random), Just(Chooser::CapacityWeighted)],
    ) {
        let count = count.min(free.len());
        let candidate = |(at, free): (usize, &u64)| Candidate { id: GroupId(at as u32), free: *free };
        let ranked = WeightedCandidates::new(free.iter().enumerate().map(candidate).collect());
        let found = ranked.pick(count, chooser, InodeId::ROOT, &mut SplitMix64::new(seed));
        prop_assert_eq!(found, reference_draws(&free, chooser, count, &mut SplitMix64::new(seed)));
    }
}
