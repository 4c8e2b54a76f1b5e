use super::*;
use MemberState::{InSync, NeedsRebuild, NeedsResync, Rebuilding, Resyncing};
use proptest::prelude::*;
use types::{CapacityClass, Errno, PoolId, Scheme, Target, TargetState};

const GROUP: GroupId = GroupId(9);

/// A group of one target on each of `members` nodes, with the same numbers.
fn map(members: u32) -> ClusterMap {
    let target = |id: u32| Target {
        id: TargetId(id),
        node: NodeId(id),
        pool: PoolId(1),
        path: format!("/t{id}"),
        state: TargetState::Online,
        capacity: 0,
        free: 0,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let group = Group {
        id: GROUP,
        pool: PoolId(1),
        scheme: Scheme::Mirror(members as u8),
        members: (1..=members).map(TargetId).collect(),
        states: vec![],
        since: Epoch(5),
        leaving: None,
        revived: None,
    };
    ClusterMap {
        epoch: Epoch(7),
        targets: (1..=members).map(target).collect(),
        groups: vec![Group::single(GroupId(1), PoolId(1), TargetId(1)), group],
        ..Default::default()
    }
}

fn reachability(reachable: &[u32], expired: &[u32]) -> ReachabilitySnapshot {
    let nodes = |ids: &[u32]| ids.iter().map(|id| NodeId(*id)).collect();
    ReachabilitySnapshot {
        reachable: nodes(reachable),
        expired: nodes(expired),
        ..ReachabilitySnapshot::default()
    }
}

fn members(map: &ClusterMap) -> Vec<(u32, MemberState)> {
    map.group(GROUP).unwrap().members_with_states().map(|(id, state)| (id.0, state)).collect()
}

fn report(
    map: &mut ClusterMap,
    target: u32,
    state: MemberState,
    presence: &ReachabilitySnapshot,
) -> Result<()> {
    let group = map.group(GROUP).unwrap();
    let requester = group.primary().and_then(|id| map.target(id)).map(|t| t.node);
    let word =
        MemberReport { group: GROUP, since: group.since, target: TargetId(target), state, orderly: false };
    apply_member_report(map, requester, &word, presence)
}

#[test]
fn an_ejected_member_returns_by_a_resync() {
    let (mut map, all) = (map(2), reachability(&[1, 2], &[]));
    report(&mut map, 2, NeedsResync, &reachability(&[1], &[2])).unwrap();
    assert_eq!(members(&map), [(1, InSync), (2, NeedsResync)]);
    report(&mut map, 2, Resyncing, &all).unwrap();
    report(&mut map, 2, NeedsResync, &all).unwrap();
    report(&mut map, 2, NeedsRebuild, &all).unwrap();
    assert_eq!(report(&mut map, 2, Resyncing, &all).unwrap_err().errno, Errno::EINVAL, "it needs everything");
    report(&mut map, 2, Rebuilding, &all).unwrap();
    report(&mut map, 2, InSync, &all).unwrap();
    assert!(map.group(GROUP).unwrap().states.is_empty());
    for state in [Resyncing, Rebuilding] {
        assert_eq!(report(&mut map, 2, state, &all).unwrap_err().errno, Errno::EINVAL);
    }
    report(&mut map, 2, NeedsResync, &all).unwrap();
    assert_eq!(
        report(&mut map, 2, InSync, &all).unwrap_err().errno,
        Errno::EINVAL,
        "it has not been resynced"
    );
}

#[test]
fn the_last_reachable_member_in_sync_is_not_ejected() {
    for presence in [reachability(&[2], &[1]), reachability(&[], &[]), reachability(&[], &[1, 2])] {
        let mut map = map(2);
        let before = map.clone();
        assert_eq!(report(&mut map, 2, NeedsResync, &presence).unwrap_err().errno, Errno::EAGAIN);
        assert_eq!(map, before);
    }
    let mut map = map(2);
    report(&mut map, 2, NeedsResync, &reachability(&[1, 2], &[])).unwrap();
    assert_eq!(
        report(&mut map, 1, NeedsRebuild, &reachability(&[1, 2], &[])).unwrap_err().errno,
        Errno::EAGAIN
    );
}

#[test]
fn only_reports_of_the_current_primary_are_applied() {
    let (mut map, all) = (map(2), reachability(&[1, 2], &[]));
    let before = map.clone();
    let word = MemberReport {
        group: GROUP,
        since: Epoch(5),
        target: TargetId(1),
        state: NeedsResync,
        orderly: false,
    };
    for requester in [2, 3] {
        let error = apply_member_report(&mut map, Some(NodeId(requester)), &word, &all).unwrap_err();
        assert!(error.errno == Errno::EACCES && error.message.contains("target 1 is the primary"), "{error}");
    }
    for since in [4, 6] {
        apply_member_report(&mut map, Some(NodeId(2)), &MemberReport { since: Epoch(since), ..word }, &all)
            .unwrap();
    }
    for (wrong, errno) in [
        (MemberReport { group: GroupId(8), ..word }, Errno::ENOENT),
        (MemberReport { group: GroupId(1), ..word }, Errno::EINVAL),
        (MemberReport { target: TargetId(7), ..word }, Errno::ENOENT),
    ] {
        assert_eq!(apply_member_report(&mut map, Some(NodeId(1)), &wrong, &all).unwrap_err().errno, errno);
    }
    assert_eq!(map, before);
}

#[test]
fn a_departing_primary_is_replaced_by_a_reachable_member() {
    let mut two = map(2);
    report(&mut two, 1, NeedsRebuild, &reachability(&[1, 2], &[])).unwrap();
    assert_eq!(members(&two), [(2, InSync), (1, NeedsRebuild)]);

    let mut three = map(3);
    replace_unreachable_primaries(&mut three, &reachability(&[3], &[1, 2]));
    assert_eq!(members(&three), [(3, InSync), (2, NeedsResync), (1, NeedsResync)]);
    // A write that the first one had begun may be on only one of the others.
    let mut three = map(3);
    replace_unreachable_primaries(&mut three, &reachability(&[2, 3], &[1]));
    assert_eq!(members(&three), [(2, InSync), (3, NeedsResync), (1, NeedsResync)]);
    let mut three = map(3);
    report(&mut three, 3, NeedsRebuild, &reachability(&[1, 2], &[3])).unwrap();
    report(&mut three, 3, Rebuilding, &reachability(&[1, 2, 3], &[])).unwrap();
    replace_unreachable_primaries(&mut three, &reachability(&[2, 3], &[1]));
    assert_eq!(members(&three), [(2, InSync), (3, NeedsRebuild), (1, NeedsResync)]);
}

#[test]
fn an_unreachable_secondary_is_not_ejected() {
    for presence in [
        reachability(&[1], &[2]),
        reachability(&[], &[1, 2]),
        reachability(&[2], &[]),
        reachability(&[1, 2], &[]),
    ] {
        let mut map = map(2);
        let before = map.clone();
        replace_unreachable_primaries(&mut map, &presence);
        assert_eq!(map, before, "{presence:?}");
    }
}

#[test]
fn a_restarted_member_is_ejected_unless_it_is_the_only_one() {
    let mut now = map(2);
    handle_restart(&mut now, NodeId(1), &reachability(&[1, 2], &[]));
    assert_eq!(members(&now), [(2, InSync), (1, NeedsResync)]);
    handle_restart(&mut now, NodeId(2), &reachability(&[1, 2], &[]));
    assert_eq!(members(&now), [(2, InSync), (1, NeedsResync)], "the last good one");
    report(&mut now, 1, Resyncing, &reachability(&[1, 2], &[])).unwrap();
    handle_restart(&mut now, NodeId(2), &reachability(&[1, 2], &[]));
    assert_eq!(members(&now), [(2, InSync), (1, NeedsResync)], "nobody goes on where the other process was");
    report(&mut now, 1, Resyncing, &reachability(&[1, 2], &[])).unwrap();
    handle_restart(&mut now, NodeId(1), &reachability(&[1, 2], &[]));
    assert_eq!(members(&now), [(2, InSync), (1, NeedsResync)]);

    let mut alone = map(2);
    handle_restart(&mut alone, NodeId(1), &reachability(&[1], &[2]));
    assert_eq!(members(&alone), [(1, InSync), (2, InSync)]);
}

#[test]
fn members_on_one_node_restart_together() {
    let mut now = map(2);
    now.targets[1].node = NodeId(1);
    handle_restart(&mut now, NodeId(1), &reachability(&[1], &[]));
    assert_eq!(members(&now), [(1, InSync), (2, NeedsResync)]);
    let mut now = map(3);
    now.targets[1].node = NodeId(1);
    handle_restart(&mut now, NodeId(1), &reachability(&[1, 3], &[]));
    assert_eq!(members(&now), [(3, InSync), (2, NeedsResync), (1, NeedsResync)]);
    let mut now = map(3);
    handle_full_restart(&mut now);
    assert_eq!(members(&now), [(1, InSync), (2, NeedsResync), (3, NeedsResync)]);
    let again = now.clone();
    handle_full_restart(&mut now);
    assert_eq!(now, again);
}

#[test]
fn an_orderly_shutdown_hands_over() {
    let mut now = map(2);
    handle_shutdown(&mut now, NodeId(1), &reachability(&[2], &[1]));
    assert_eq!(members(&now), [(2, InSync), (1, NeedsResync)]);
    handle_shutdown(&mut now, NodeId(2), &reachability(&[], &[1, 2]));
    assert_eq!(members(&now), [(2, InSync), (1, NeedsResync)]);
}

#[test]
fn a_change_is_a_version() {
    let before = map(2);
    let mut after = before.clone();
    assign_group_versions(&before, &mut after);
    assert_eq!(after, before);
    report(&mut after, 2, NeedsResync, &reachability(&[1], &[])).unwrap();
    assign_group_versions(&before, &mut after);
    assert_eq!((after.groups[0].since, after.groups[1].since), (Epoch(0), Epoch(8)));
    assert_eq!(ejected(&before, &after), [(GROUP, TargetId(2))]);
    let mut new = before.clone();
    new.groups.push(Group { id: GroupId(10), ..before.groups[1].clone() });
    assign_group_versions(&before, &mut new);
    assert_eq!((new.groups[1].since, new.groups[2].since), (Epoch(5), Epoch(8)));
}

#[derive(Clone, Debug)]
enum Event {
    Report(u32, MemberState),
    Restarted(u32),
    Stopped(u32),
    AllRestarted,
    Evaluate,
}

fn any_state() -> impl Strategy<Value = MemberState> {
    prop_oneof![Just(InSync), Just(NeedsResync), Just(Resyncing), Just(NeedsRebuild), Just(Rebuilding)]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1u32..4, any_state()).prop_map(|(target, state)| Event::Report(target, state)),
        2 => (1u32..4).prop_map(Event::Restarted),
        1 => (1u32..4).prop_map(Event::Stopped),
        1 => Just(Event::AllRestarted),
        3 => Just(Event::Evaluate),
    ]
}

proptest! {
    #[test]
    fn a_group_always_retains_a_reachable_member_in_sync(
        count in 2u32..4,
        together: bool,
        events in prop::collection::vec((any_event(), 0u8..8), 1..40),
    ) {
        let mut now = map(count);
        if together {
            now.targets[1].node = NodeId(1);
        }
        for (event, reachable) in events {
            let reachable: Vec<u32> = (1..4).filter(|node| reachable & (1 << (node - 1)) > 0).collect();
            let expired: Vec<u32> = (1..4).filter(|node| !reachable.contains(node)).collect();
            let presence = reachability(&reachable, &expired);
            let before = now.clone();
            match &event {
                Event::Report(target, state) => {
                    if report(&mut now, *target, *state, &presence).is_err() {
                        prop_assert_eq!(&now, &before);
                    }
                }
                Event::Restarted(node) => handle_restart(&mut now, NodeId(*node), &presence),
                Event::Stopped(node) => handle_shutdown(&mut now, NodeId(*node), &presence),
                Event::AllRestarted => handle_full_restart(&mut now),
                Event::Evaluate => replace_unreachable_primaries(&mut now, &presence),
            }
            let (old, new) = (before.group(GROUP).unwrap(), now.group(GROUP).unwrap());
            let sorted = |group: &Group| group.members.iter().copied().collect::<BTreeSet<_>>();
            prop_assert_eq!(sorted(old), sorted(new));
            prop_assert!(new.states.is_empty() || new.states.len() == new.members.len());
            let primary = new.primary();
            prop_assert_eq!(primary, new.members.first().copied());
            prop_assert!(primary.is_some(), "{event:?}: {new:?}");
            let at = primary.and_then(|id| now.target(id)).unwrap().node;
            let is_new = primary != old.primary();
            prop_assert!(!is_new || presence.reachable.contains(&at), "{event:?} of {old:?}: {new:?}");
            // A member that got in sync was resynced by a primary that is still the same.
            for (id, state) in new.members_with_states().filter(|(_, state)| *state == InSync) {
                let was = old.state_of(id).unwrap();
                prop_assert!(was == InSync || (!is_new && matches!(was, Resyncing | Rebuilding)), "{event:?}: {state:?}");
            }
            if is_new {
                let good = new.members_with_states().filter(|(_, state)| *state == InSync).count();
                prop_assert_eq!(good, 1, "a new primary resyncs all other members");
                let moving = new.members_with_states().any(|(_, state)| matches!(state, Resyncing | Rebuilding));
                prop_assert!(!moving);
            }
        }
    }
}

#[test]
fn a_group_recovers_from_a_member_that_missed_writes() {
    let mut now = map(3);
    report(&mut now, 3, NeedsRebuild, &reachability(&[1, 2, 3], &[])).unwrap();
    report(&mut now, 2, NeedsResync, &reachability(&[1, 2, 3], &[])).unwrap();
    let before = now.clone();
    recover(&mut now, GROUP, TargetId(2)).unwrap();
    assert_eq!(members(&now), [(2, InSync), (3, NeedsRebuild), (1, NeedsRebuild)]);
    assign_group_versions(&before, &mut now);
    let group = now.group(GROUP).unwrap();
    assert_eq!((group.since, group.revived), (Epoch(8), Some(TargetId(2))));
    assert_eq!(ejected(&before, &now), [(GROUP, TargetId(1))]);
    // A report of the primary doesn't clear it unless it is orderly.
    let word =
        MemberReport { group: GROUP, since: Epoch(8), target: TargetId(2), state: InSync, orderly: false };
    let all = reachability(&[2, 3], &[1]);
    apply_member_report(&mut now, Some(NodeId(2)), &word, &all).unwrap();
    assert_eq!(now.group(GROUP).unwrap().revived, Some(TargetId(2)));
    // Nor does a report on the previous version.
    let done = MemberReport { orderly: true, ..word };
    apply_member_report(&mut now, Some(NodeId(2)), &MemberReport { since: Epoch(5), ..done }, &all).unwrap();
    assert_eq!(now.group(GROUP).unwrap().revived, Some(TargetId(2)));
    now.epoch = Epoch(8);
    let before = now.clone();
    apply_member_report(&mut now, Some(NodeId(2)), &done, &all).unwrap();
    assign_group_versions(&before, &mut now);
    let group = now.group(GROUP).unwrap();
    assert_eq!((group.since, group.revived), (Epoch(9), None));
    // A member that returns doesn't become primary by that.
    handle_restart(&mut now, NodeId(1), &reachability(&[1, 2, 3], &[]));
    assert_eq!(members(&now), [(2, InSync), (3, NeedsRebuild), (1, NeedsRebuild)]);
}

#[test]
fn recovering_from_a_leaving_member_cancels_its_replacement() {
    let mut now = map(2);
    report(&mut now, 2, NeedsResync, &reachability(&[1, 2], &[])).unwrap();
    group_mut(&mut now, GROUP).unwrap().leaving = Some(TargetId(2));
    recover(&mut now, GROUP, TargetId(2)).unwrap();
    let group = group_mut(&mut now, GROUP).unwrap();
    assert_eq!((group.leaving, group.revived), (None, Some(TargetId(2))));
    let before = now.clone();
    let group = group_mut(&mut now, GROUP).unwrap();
    group.states.clear();
    group.members.reverse();
    assign_group_versions(&before, &mut now);
    assert_eq!(now.group(GROUP).unwrap().revived, None);
}

#[test]
fn members_without_disk_are_ejected_if_another_is_available() {
    let gone = |reachable: &[u32], missing: &[u32]| ReachabilitySnapshot {
        missing: missing.iter().map(|id| TargetId(*id)).collect(),
        ..reachability(reachable, &[])
    };
    let mut two = map(2);
    eject_missing(&mut two, &gone(&[1, 2], &[1]));
    assert_eq!(members(&two), [(2, InSync), (1, NeedsResync)]);
    let before = two.clone();
    eject_missing(&mut two, &reachability(&[1, 2], &[]));
    eject_missing(&mut two, &gone(&[1, 2], &[2]));
    assert_eq!(two, before, "it has missed something, and the last good one stays");
    let mut three = map(3);
    eject_missing(&mut three, &gone(&[1, 2, 3], &[2]));
    assert_eq!(members(&three), [(1, InSync), (2, NeedsResync), (3, InSync)]);
    for presence in [gone(&[1, 2], &[1, 2]), gone(&[1], &[1]), gone(&[], &[1])] {
        let mut two = map(2);
        let before = two.clone();
        eject_missing(&mut two, &presence);
        assert_eq!(two, before, "nobody can tell which one has less");
    }
}

#[test]
fn a_leaving_member_stays_while_a_replica_is_unreachable() {
    for (leaving, absent, orderly) in [(1, 3, true), (3, 2, false)] {
        let mut map = map(3);
        let group = map.groups.iter_mut().find(|group| group.id == GROUP).unwrap();
        (group.scheme, group.leaving) = (Scheme::Mirror(2), Some(TargetId(leaving)));
        let word = MemberReport {
            group: GROUP,
            since: Epoch(5),
            target: TargetId(leaving),
            state: NeedsRebuild,
            orderly,
        };
        let before = map.clone();
        let reachable: Vec<u32> = (1..=3).filter(|id| *id != absent).collect();
        apply_member_report(&mut map, None, &word, &reachability(&reachable, &[])).unwrap();
        let diskless =
            ReachabilitySnapshot { missing: [TargetId(absent)].into(), ..reachability(&[1, 2, 3], &[]) };
        apply_member_report(&mut map, None, &word, &diskless).unwrap();
        assert_eq!(map, before);
        apply_member_report(&mut map, None, &word, &reachability(&[1, 2, 3], &[])).unwrap();
        assert_eq!(map.group(GROUP).unwrap().state_of(TargetId(leaving)), Some(NeedsRebuild));
    }
}
