use super::*;
use crate::member_states::{MemberReport, apply_member_report};
use MemberState::{InSync, NeedsRebuild, NeedsResync, Rebuilding, Resyncing};
use proptest::prelude::*;
use types::{CapacityClass, Epoch, NodeId, PoolId, Scheme, Target};

const GIB: u64 = 1 << 30;

/// A target on each of `nodes` nodes, with the same numbers, and the groups of a scheme.
fn map(nodes: u32, scheme: Scheme) -> ClusterMap {
    let target = |id: u32| Target {
        id: TargetId(id),
        node: NodeId(id),
        pool: PoolId(1),
        path: format!("/t{id}"),
        state: TargetState::Online,
        capacity: 1000 * GIB,
        free: 600 * GIB,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let mut map =
        ClusterMap { epoch: Epoch(7), targets: (1..=nodes).map(target).collect(), ..ClusterMap::default() };
    map.groups = layout::mirrored_groups(&map, PoolId(1), scheme, GroupId(layout::FIRST_MIRRORED)).unwrap();
    map
}

fn presence(map: &ClusterMap) -> ReachabilitySnapshot {
    let nodes = |is_online: bool| {
        let has_state = move |t: &&Target| (t.state == TargetState::Online) == is_online;
        map.targets.iter().filter(has_state).map(|t| t.node).collect()
    };
    ReachabilitySnapshot { reachable: nodes(true), expired: nodes(false), ..ReachabilitySnapshot::default() }
}

/// One evaluation of the map; all nodes know the previously published one.
fn evaluate(map: &mut ClusterMap, lost: &[u32]) {
    let (before, presence) = (map.clone(), presence(map));
    member_states::replace_unreachable_primaries(map, &presence);
    let is_not_in_sync = |group: GroupId, id: TargetId| {
        before.group(group).and_then(|group| group.state_of(id)).is_some_and(|state| state != InSync)
    };
    let lost = lost.iter().map(|id| TargetId(*id)).collect();
    advance(
        map,
        &ReplacementContext { presence: &presence, lost: &lost, is_ejection_confirmed: &is_not_in_sync },
    );
}

fn report(map: &mut ClusterMap, group: GroupId, target: TargetId, state: MemberState, orderly: bool) {
    let presence = presence(map);
    let since = map.group(group).unwrap().since;
    // A forbidden transition is refused, and changes nothing.
    let _ = apply_member_report(map, None, &MemberReport { group, since, target, state, orderly }, &presence);
}

fn groups_of(map: &ClusterMap, target: u32) -> Vec<GroupId> {
    map.groups.iter().filter(|g| g.members.contains(&TargetId(target))).map(|g| g.id).collect()
}

/// Acts for the primaries: resyncs members, and releases leaving ones.
fn serve(map: &mut ClusterMap) {
    for group in map.groups.clone() {
        let Some(primary) = group.primary() else { continue };
        if let Some(leaving) = group.removable_member().filter(|id| group.state_of(*id) == Some(InSync)) {
            report(map, group.id, leaving, NeedsRebuild, leaving == primary);
            continue;
        }
        for (id, state) in group.members_with_states() {
            let is_there = map.target(id).unwrap().state == TargetState::Online;
            match state {
                NeedsResync if is_there => report(map, group.id, id, Resyncing, false),
                NeedsRebuild if is_there && group.leaving != Some(id) => {
                    report(map, group.id, id, Rebuilding, false)
                }
                Resyncing | Rebuilding if is_there => report(map, group.id, id, InSync, false),
                _ => {}
            }
        }
    }
}

#[test]
fn a_lost_target_is_ejected_then_replaced_by_several() {
    let mut map = map(4, Scheme::Mirror(2));
    let had = groups_of(&map, 1);
    map.targets[0].state = TargetState::Offline;
    evaluate(&mut map, &[]);
    assert_eq!(groups_of(&map, 1), had, "it may come back");
    evaluate(&mut map, &[1]);
    for id in &had {
        assert_ne!(map.group(*id).unwrap().state_of(TargetId(1)), Some(InSync));
    }
    evaluate(&mut map, &[1]);
    assert_eq!(groups_of(&map, 1), []);
    let new: BTreeSet<TargetId> = had
        .iter()
        .flat_map(|id| {
            map.group(*id).unwrap().members_with_states().filter(|(_, state)| *state == NeedsRebuild)
        })
        .map(|(id, _)| id)
        .collect();
    assert_eq!(new.len(), 3, "all others have a part in it: {new:?}");
    serve(&mut map);
    serve(&mut map);
    assert!(map.groups.iter().all(|group| !group.is_degraded() && group.members.len() == 2));
}

#[test]
fn an_unconfirmed_ejection_delays_replacement() {
    let mut map = map(3, Scheme::Mirror(2));
    map.targets[0].state = TargetState::Offline;
    let presence = presence(&map);
    for _ in 0..3 {
        let facts = ReplacementContext {
            presence: &presence,
            lost: &BTreeSet::from([TargetId(1)]),
            is_ejection_confirmed: &|_, _| false,
        };
        advance(&mut map, &facts);
    }
    assert!(!groups_of(&map, 1).is_empty());
    assert!(map.groups.iter().all(|group| group.state_of(TargetId(1)) != Some(InSync)));
}

#[test]
fn the_last_member_in_sync_is_never_replaced() {
    let mut map = map(3, Scheme::Mirror(2));
    let group = groups_of(&map, 1)[0];
    let other = *map.group(group).unwrap().members.iter().find(|id| id.0 != 1).unwrap();
    report(&mut map, group, other, NeedsResync, false);
    map.targets[0].state = TargetState::Offline;
    evaluate(&mut map, &[1]);
    evaluate(&mut map, &[1]);
    assert_eq!(map.group(group).unwrap().state_of(TargetId(1)), Some(InSync));
}

#[test]
fn draining_keeps_the_number_of_replicas() {
    for scheme in [Scheme::Mirror(2), Scheme::Mirror(3)] {
        let mut map = map(5, scheme);
        map.targets[0].drain = true;
        let had = groups_of(&map, 1).len();
        let mut looks = 0;
        while !groups_of(&map, 1).is_empty() {
            evaluate(&mut map, &[]);
            let leaves = map.groups.iter().filter(|group| group.leaving.is_some()).count();
            assert!(leaves <= MAX_LEAVING_AT_ONCE);
            serve(&mut map);
            for group in &map.groups {
                assert!(group.in_sync_members().count() >= scheme.members(), "{group:?}");
            }
            looks += 1;
            assert!(looks < 20 * had, "it doesn't come to an end: {:?}", groups_of(&map, 1));
        }
        assert!(map.groups.iter().all(|g| g.members.len() == scheme.members() && g.leaving.is_none()));
    }
}

#[test]
fn a_lost_incoming_member_is_removed() {
    let mut map = map(4, Scheme::Mirror(2));
    map.targets[0].drain = true;
    evaluate(&mut map, &[]);
    let group = map.groups.iter().find(|group| group.leaving.is_some()).unwrap().clone();
    let coming = *group.members.last().unwrap();
    map.targets[coming.0 as usize - 1].state = TargetState::Offline;
    evaluate(&mut map, &[coming.0]);
    let after = map.group(group.id).unwrap();
    assert!(!after.members.contains(&coming), "{after:?}");
    assert!(after.members.contains(&TargetId(1)) && after.in_sync_members().count() == 2, "{after:?}");
}

#[test]
fn lost_members_of_a_group_are_replaced_independently() {
    let mut map = map(6, Scheme::Mirror(3));
    let group = map.group(groups_of(&map, 1)[0]).unwrap().clone();
    let [unaware, replaceable] = [group.members[1], group.members[2]];
    for target in [unaware, replaceable] {
        report(&mut map, group.id, target, NeedsResync, false);
        map.targets[target.0 as usize - 1].state = TargetState::Offline;
    }
    let presence = presence(&map);
    let facts = ReplacementContext {
        presence: &presence,
        lost: &BTreeSet::from([unaware, replaceable]),
        is_ejection_confirmed: &|_, id| id != unaware,
    };
    advance(&mut map, &facts);
    let members = &map.group(group.id).unwrap().members;
    assert!(members.contains(&unaware) && !members.contains(&replaceable), "{members:?}");
}

#[test]
fn an_incoming_member_without_space_is_replaced() {
    for is_drained in [false, true] {
        let mut map = map(5, Scheme::Mirror(2));
        map.targets[0].drain = true;
        evaluate(&mut map, &[]);
        let group = map.groups.iter().find(|group| group.leaving.is_some()).unwrap().clone();
        let coming = *group.members.last().unwrap();
        let target = &mut map.targets[coming.0 as usize - 1];
        match is_drained {
            true => target.drain = true,
            false => (target.class, target.free) = (CapacityClass::Emergency, 0),
        }
        report(&mut map, group.id, coming, Rebuilding, false);
        evaluate(&mut map, &[]);
        assert!(map.group(group.id).unwrap().members.contains(&coming), "it is being tried");
        report(&mut map, group.id, coming, NeedsRebuild, false);
        evaluate(&mut map, &[]);
        let after = map.group(group.id).unwrap();
        assert!(!after.members.contains(&coming), "{after:?}");
        assert_eq!(
            (after.members.len(), after.in_sync_members().count(), after.leaving),
            (3, 2, Some(TargetId(1)))
        );
    }
}

#[derive(Clone, Debug)]
enum Event {
    Die(u32),
    Return(u32),
    Lose(u32),
    Drain(u32, bool),
    Serve,
    Evaluate,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let id = || 1..=6u32;
    let event = prop_oneof![
        1 => id().prop_map(Event::Die),
        2 => id().prop_map(Event::Return),
        1 => id().prop_map(Event::Lose),
        1 => (id(), any::<bool>()).prop_map(|(id, drain)| Event::Drain(id, drain)),
        3 => Just(Event::Serve),
        3 => Just(Event::Evaluate),
    ];
    proptest::collection::vec(event, 1..60)
}

fn apply(map: &mut ClusterMap, lost: &mut BTreeSet<u32>, event: &Event) {
    match *event {
        Event::Die(id) => map.targets[id as usize - 1].state = TargetState::Offline,
        Event::Return(id) => {
            map.targets[id as usize - 1].state = TargetState::Online;
            lost.remove(&id);
        }
        Event::Lose(id) => {
            map.targets[id as usize - 1].state = TargetState::Offline;
            lost.insert(id);
        }
        Event::Drain(id, drain) => map.targets[id as usize - 1].drain = drain,
        Event::Serve => serve(map),
        Event::Evaluate => {
            let lost: Vec<u32> = lost.iter().copied().collect();
            evaluate(map, &lost);
        }
    }
}

proptest! {
    #[test]
    fn groups_keep_their_invariants_under_random_events(three in any::<bool>(), events in events()) {
        let scheme = Scheme::Mirror(if three { 3 } else { 2 });
        let (mut map, mut lost) = (map(6, scheme), BTreeSet::new());
        for event in &events {
            let before = map.clone();
            apply(&mut map, &mut lost, event);
            for group in &map.groups {
                let old = before.group(group.id).unwrap();
                prop_assert!(group.in_sync_members().next().is_some(), "{:?}: nobody is good: {:?}", event, group);
                prop_assert!(layout::has_distinct_nodes(&map, group), "{:?}: {:?}", event, group);
                let most = scheme.members() + usize::from(group.leaving.is_some());
                prop_assert!((scheme.members()..=most).contains(&group.members.len()), "{:?}", group);
                let gone = old.members_with_states().filter(|(id, _)| !group.members.contains(id));
                for (id, state) in gone {
                    prop_assert!(state != InSync, "{:?}: {} went while it was good: {:?}", event, id, old);
                }
                let came = group.members_with_states().filter(|(id, _)| !old.members.contains(id));
                for (id, state) in came {
                    prop_assert!(state == NeedsRebuild, "{:?}: {} came as {:?}", event, id, state);
                }
            }
        }
        // When all targets are reachable again, no changes remain.
        (1..=6).for_each(|id| apply(&mut map, &mut lost, &Event::Return(id)));
        (1..=6).for_each(|id| apply(&mut map, &mut lost, &Event::Drain(id, false)));
        for _ in 0..400 {
            apply(&mut map, &mut lost, &Event::Serve);
            apply(&mut map, &mut lost, &Event::Evaluate);
        }
        for group in &map.groups {
            prop_assert!(!group.is_degraded() && group.leaving.is_none(), "{:?}", group);
            prop_assert_eq!(group.members.len(), scheme.members());
        }
    }
}
