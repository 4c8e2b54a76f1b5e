use super::*;

const S: u64 = 1_000_000_000;
const FIRST: &str = "10.0.0.2:7500";
const SECOND: &str = "10.1.0.2:7500";

/// Management, and node 2 with two addresses, which has registered as process 5.
fn world() -> (ClusterMap, Liveness, Reachability) {
    let node = |id: u32, roles: Vec<Role>, addresses: &[&str]| Node {
        id: NodeId(id),
        name: format!("n{id}"),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        roles,
        state: NodeState::Online,
        version: String::new(),
        rack: None,
    };
    let map = ClusterMap {
        nodes: vec![
            node(1, vec![Role::Mgmt], &["10.0.0.1:7500"]),
            node(2, vec![Role::Storage], &[FIRST, SECOND]),
        ],
        ..ClusterMap::default()
    };
    let mut liveness = Liveness::new(0);
    liveness.note_registration(NodeId(1), 4, 0);
    liveness.note_registration(NodeId(2), 5, 0);
    (map, liveness, Reachability::default())
}

fn fail(cause: ProbeFailure) -> ProbeOutcome {
    ProbeOutcome::Failed(cause)
}

/// Probes both addresses every second until then, with these outcomes, while the node sends
/// heartbeats.
fn try_until(
    (map, liveness, reachability): &mut (ClusterMap, Liveness, Reachability),
    until_s: u64,
    outcome: impl Fn(&str) -> ProbeOutcome,
) -> Vec<HealthFinding> {
    for second in 0..=until_s {
        let now_ns = second * S;
        liveness.note_heartbeat(NodeId(2), 5, 0, &[], now_ns);
        for probe in reachability.due(map, liveness, now_ns) {
            let outcome = outcome(&probe.address);
            reachability.note(&probe, outcome, now_ns);
        }
    }
    reachability.findings(map, liveness, until_s * S)
}

#[test]
fn a_node_that_sends_heartbeats_and_cant_be_reached_is_critical() {
    let refused = |_: &str| fail(ProbeFailure::Refused);
    assert_eq!(try_until(&mut world(), 4, refused), [], "it may just be starting");
    let found = try_until(&mut world(), 7, refused);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].verdict, Verdict::Critical);
    for part in ["node 2 (n2)", FIRST, SECOND, "connection refused"] {
        assert!(found[0].what.contains(part), "{part}: {}", found[0].what);
    }
    assert!(found[0].hint.contains("firewall"), "{}", found[0].hint);
    let strange = |_: &str| fail(ProbeFailure::WrongPeer("it is node 7".into()));
    let found = try_until(&mut world(), 7, strange);
    assert!(found[0].what.contains("it is node 7") && found[0].hint.contains("another machine"), "{found:?}");
    assert_eq!(try_until(&mut world(), 60, |_| ProbeOutcome::Reached), []);
}

#[test]
fn one_address_of_two_is_a_warning_unless_the_other_is_not_used() {
    let first = |other: ProbeOutcome| {
        move |address: &str| match address {
            FIRST => fail(ProbeFailure::TimedOut),
            _ => other.clone(),
        }
    };
    let found = try_until(&mut world(), 7, first(ProbeOutcome::Reached));
    assert_eq!((found.len(), found[0].verdict), (1, Verdict::Warning));
    assert!(found[0].what.contains(FIRST) && !found[0].what.contains(SECOND), "{}", found[0].what);
    let found = try_until(&mut world(), 7, first(ProbeOutcome::NotUsed));
    assert_eq!((found.len(), found[0].verdict), (1, Verdict::Critical));
}

#[test]
fn an_address_that_is_not_of_the_machine_is_the_remedy() {
    let mut world = world();
    world.1.set_has_foreign_addresses(NodeId(2), true);
    let found = try_until(&mut world, 7, |_| fail(ProbeFailure::TimedOut));
    assert!(found[0].hint.contains("has none of its addresses"), "{}", found[0].hint);
}

#[test]
fn a_node_without_heartbeats_is_not_reported_unreachable() {
    let mut world = world();
    assert_eq!(try_until(&mut world, 4, |_| fail(ProbeFailure::TimedOut)), []);
    let (map, liveness, reachability) = &mut world;
    for probe in reachability.due(map, liveness, 12 * S) {
        reachability.note(&probe, fail(ProbeFailure::TimedOut), 12 * S);
    }
    assert_eq!(reachability.findings(map, liveness, 12 * S), [], "its last heartbeat was at 4 s");
    map.nodes[1].state = NodeState::Offline;
    assert_eq!(reachability.due(map, liveness, 20 * S), []);
    assert!(reachability.nodes.is_empty());
}

#[test]
fn each_address_is_tried_once_at_a_time_and_again_later() {
    let (mut map, mut liveness, mut reachability) = world();
    let due = reachability.due(&map, &liveness, 0);
    assert_eq!(due.iter().map(|probe| &*probe.address).collect::<Vec<_>>(), [FIRST, SECOND]);
    assert_ne!(due[0].index, due[1].index);
    assert_eq!(reachability.due(&map, &liveness, 60 * S), [], "both are under way");
    assert!(reachability.note(&due[0], fail(ProbeFailure::Refused), S), "it has just failed");
    assert!(!reachability.note(&due[1], ProbeOutcome::Reached, S));
    assert_eq!(reachability.due(&map, &liveness, 3 * S), due[..1], "one that fails is tried sooner");
    assert!(reachability.note(&due[0], ProbeOutcome::Reached, 4 * S), "it answers again");
    assert_eq!(reachability.due(&map, &liveness, 11 * S), due[1..]);
    // Another process, or other addresses: earlier outcomes don't apply.
    liveness.note_registration(NodeId(2), 6, 12 * S);
    assert!(reachability.due(&map, &liveness, 12 * S).iter().all(|probe| probe.instance == 6));
    assert!(!reachability.note(&due[1], fail(ProbeFailure::Refused), 12 * S), "that was the old process");
    map.nodes[1].addresses = vec!["10.9.0.2:7500".into()];
    let due = reachability.due(&map, &liveness, 13 * S);
    assert_eq!(due.iter().map(|probe| &*probe.address).collect::<Vec<_>>(), ["10.9.0.2:7500"]);
}

#[test]
fn an_address_that_is_announced_twice_is_two() {
    let mut world = world();
    world.0.nodes[1].addresses = vec![FIRST.into(), FIRST.into()];
    let (map, liveness, reachability) = &mut world;
    assert_eq!(reachability.due(map, liveness, 0).len(), 2);
    assert_eq!(reachability.due(map, liveness, S), [], "both are under way");
    world.2 = Reachability::default();
    let found = try_until(&mut world, 7, |_| fail(ProbeFailure::Refused));
    assert_eq!((found.len(), found[0].verdict), (1, Verdict::Critical), "no other one answers");
}

#[test]
fn no_more_are_tried_at_a_time_than_the_limit() {
    let (mut map, mut liveness, mut reachability) = world();
    for id in 3..100 {
        map.nodes.push(Node { id: NodeId(id), ..map.nodes[1].clone() });
        liveness.note_registration(NodeId(id), 1, 0);
    }
    let first = reachability.due(&map, &liveness, 0);
    assert_eq!((first.len(), reachability.due(&map, &liveness, S).len()), (MAX_PROBES, 0));
    first.iter().for_each(|probe| _ = reachability.note(probe, fail(ProbeFailure::TimedOut), 3 * S));
    let second = reachability.due(&map, &liveness, 10 * S);
    assert_eq!(second.len(), MAX_PROBES);
    assert!(second.iter().all(|probe| !first.contains(probe)), "those that were not tried yet come first");
}

fn unreachable(cause: &str) -> Vec<UnreachableNode> {
    vec![UnreachableNode { node: NodeId(2), cause: cause.into() }]
}

#[test]
fn reports_count_until_expired_or_withdrawn() {
    let (map, liveness, mut reachability) = world();
    reachability.report(77, ("web1:4711", "10.0.4.1:40000"), unreachable("10.0.0.2:7500: timed out"), S);
    let found = reachability.findings(&map, &liveness, 2 * S);
    assert_eq!((found.len(), found[0].verdict), (1, Verdict::Warning));
    for part in ["1 client or node can't reach node 2 (n2)", "web1:4711 at 10.0.4.1:40000", "timed out"] {
        assert!(found[0].what.contains(part), "{part}: {}", found[0].what);
    }
    reachability.report(78, ("web2:1", ""), unreachable("x"), 2 * S);
    let found = reachability.findings(&map, &liveness, 2 * S);
    assert_eq!(found[0].verdict, Verdict::Critical);
    assert!(found[0].what.starts_with("2 clients or nodes can't reach node 2"), "{}", found[0].what);
    reachability.report(77, ("web1:4711", ""), vec![], 3 * S);
    reachability.report(78, ("web2:1", ""), vec![], 3 * S);
    assert_eq!(reachability.findings(&map, &liveness, 3 * S), []);
    reachability.report(77, ("web1:4711", ""), unreachable("x"), 4 * S);
    let later_ns = 4 * S + REPORT_VALIDITY.as_nanos() as u64 + 1;
    assert_eq!(reachability.findings(&map, &liveness, later_ns), []);
}

#[test]
fn reports_are_bounded_in_number_and_length() {
    let (_, _, mut reachability) = world();
    let long = "x".repeat(100_000);
    let many = |_| UnreachableNode { node: NodeId(2), cause: long.clone() };
    let many: Vec<UnreachableNode> = (0..50).map(many).collect();
    reachability.report(0, (&long, &long), many, S);
    assert_eq!(reachability.reports[&0].nodes.len(), MAX_UNREACHABLE);
    assert!(reachability.reports[&0].nodes.iter().all(|node| node.cause.len() <= MAX_REPORT_TEXT));
    assert!(reachability.reports[&0].member.len() <= 2 * MAX_REPORT_TEXT + 4);
    for process in 1..=MAX_REPORTS as u64 {
        reachability.report(process, ("m\n", ""), unreachable("x"), S + process);
    }
    assert_eq!(reachability.reports.len(), MAX_REPORTS);
    assert!(!reachability.reports.contains_key(&0), "the oldest one goes");
    assert_eq!(reachability.reports[&1].member, "m", "no line of a log is anybody's to make");
}
