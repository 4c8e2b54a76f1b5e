//! Tests of every refusal, and of permitted changes.

use super::*;
use types::{Epoch, Errno, Scheme};
use wire::mgmt::TargetSpace;

const S: u64 = 1_000_000_000;
const NOW_S: i64 = 1_800_000_000;

fn host() -> ManagementIdentity {
    ManagementIdentity { uuid: "ours".into(), version: "0.4.2".into() }
}

/// A cluster with management on node 1.
fn fresh() -> Roster {
    let node = Node {
        id: NodeId(1),
        name: "m".into(),
        addresses: vec!["10.0.0.1:7500".into()],
        roles: vec![Role::Mgmt, Role::Meta],
        state: NodeState::Online,
        version: "0.4.2".into(),
        rack: None,
    };
    let map = ClusterMap {
        epoch: Epoch(1),
        nodes: vec![node],
        pools: vec![Pool { id: PoolId(1), name: "default".into(), spare: 0 }],
        ..Default::default()
    };
    Roster { numbers: NextNumbers::above(&map), map }
}

fn join(name: &str, address: &str) -> Join {
    Join {
        secret: String::new(),
        name: name.into(),
        roles: vec![Role::Storage],
        addresses: vec![address.into()],
        csr: String::new(),
        version: "0.4.0".into(),
        rack: None,
        clock_s: NOW_S,
    }
}

fn register(node: u32, instance: u64, address: &str, targets: &[u32]) -> Register {
    let report = |id: &u32| TargetReport {
        target: TargetId(*id),
        cluster: "ours".into(),
        path: format!("/t{id}"),
        space: Some(TargetSpace { capacity: 100, free: 50, device: 1, own: None }),
        work: None,
    };
    Register {
        cluster: "ours".into(),
        node: NodeId(node),
        instance,
        addresses: vec![address.into()],
        roles: vec![Role::Storage],
        version: "0.4.0".into(),
        clock_s: NOW_S,
        targets: targets.iter().map(report).collect(),
        again: false,
        is_elsewhere: false,
    }
}

/// Nodes 2 and 3 with the targets 1 and 2, and 3; both online.
fn with_two_nodes() -> (Roster, Liveness) {
    let mut roster = fresh();
    let mut liveness = Liveness::new(0);
    for (name, address) in [("a", "10.0.0.2:7500"), ("b", "10.0.0.3:7500")] {
        roster.join(&join(name, address), &host(), NOW_S).unwrap();
    }
    for (node, path) in [(2, "/t1"), (2, "/t2"), (3, "/t3")] {
        roster.add_target(NodeId(node), path, "default").unwrap();
    }
    for (node, address, targets) in [(2, "10.0.0.2:7500", &[1, 2][..]), (3, "10.0.0.3:7500", &[3])] {
        roster.register(&register(node, 10, address, targets), &liveness, &host(), NOW_S).unwrap();
        liveness.note_registration(NodeId(node), 10, S);
        for id in targets {
            roster.target_mut(TargetId(*id)).unwrap().state = TargetState::Online;
        }
    }
    (roster, liveness)
}

/// Checks that the refusal names an object and a remedy, and changes nothing.
fn refused<T: std::fmt::Debug>(roster: &mut Roster, change: impl FnOnce(&mut Roster) -> Result<T>) -> Error {
    let mut after = roster.clone();
    let error = change(&mut after).unwrap_err();
    assert_eq!(&after, roster, "refused, and yet changed: {error}");
    assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error}");
    error
}

#[test]
fn nodes_and_targets_get_numbers_that_are_never_given_again() {
    let (mut roster, _) = with_two_nodes();
    assert_eq!(roster.map.groups.iter().map(|g| g.id.0).collect::<Vec<_>>(), [1, 2, 3]);
    roster.set_drain(TargetId(3), true).unwrap();
    roster.remove_target(TargetId(3)).unwrap();
    roster.set_node_state(NodeId(3), NodeState::Offline);
    roster.remove_node(NodeId(3)).unwrap();
    assert_eq!(roster.join(&join("c", "10.0.0.4:7500"), &host(), NOW_S).unwrap().id, NodeId(4));
    assert_eq!(roster.add_target(NodeId(4), "/t", "default"), Ok(TargetId(4)));
    assert_eq!(roster.map.groups.iter().map(|g| g.id.0).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn a_target_that_is_added_twice_is_one() {
    let (mut roster, _) = with_two_nodes();
    assert_eq!(roster.add_target(NodeId(2), "/new", "fast"), Ok(TargetId(4)));
    assert_eq!(roster.add_target(NodeId(2), "/new", "fast"), Ok(TargetId(4)));
    assert_eq!(roster.map.pool_named("fast").map(|p| p.id), Some(PoolId(2)));
    assert_eq!(roster.map.group(types::GroupId(4)).map(|g| g.pool), Some(PoolId(2)));
}

#[test]
fn joins_that_are_refused() {
    let (mut roster, _) = with_two_nodes();
    let mut joins = |change: &dyn Fn(&mut Join)| {
        let mut ask = join("c", "10.0.0.4:7500");
        change(&mut ask);
        refused(&mut roster, |roster| roster.join(&ask, &host(), NOW_S))
    };
    assert_eq!(joins(&|j| j.name = "a".into()).errno, Errno::EEXIST);
    assert_eq!(joins(&|j| j.name = "a b".into()).errno, Errno::EINVAL);
    assert_eq!(joins(&|j| j.addresses = vec!["10.0.0.2:7500".into()]).errno, Errno::EADDRINUSE);
    assert_eq!(joins(&|j| j.addresses = vec!["0.0.0.0:7500".into()]).errno, Errno::EINVAL);
    assert_eq!(joins(&|j| j.addresses = vec!["host:7500".into()]).errno, Errno::EINVAL);
    assert_eq!(joins(&|j| j.addresses.clear()).errno, Errno::EINVAL);
    for refused in [vec![Role::Mgmt, Role::Storage], vec![Role::Mgmt], vec![]] {
        let roles = joins(&|j| j.roles = refused.clone());
        assert!(roles.errno == Errno::EOPNOTSUPP && roles.hint.contains("--roles meta,storage"), "{roles}");
    }
    assert!(joins(&|j| j.clock_s = NOW_S + 31).message.contains("31 s ahead"));
    assert!(joins(&|j| j.clock_s = NOW_S - 40).message.contains("40 s behind"));
    assert_eq!(joins(&|j| j.version = "0.6.0".into()).errno, Errno::EPROTO);
}

#[test]
fn versions_next_to_each_other_work_together() {
    for version in ["0.3.0", "0.4.9", "0.5.0-rc1", "0.4"] {
        assert_eq!(check_version("node", version, "0.4.2"), Ok(()), "{version}");
    }
    for version in ["0.2.0", "0.6.0", "1.4.2", "", "x", "0"] {
        let error = check_version("node", version, "0.4.2").unwrap_err();
        assert!(error.message.contains(version) && error.hint.contains("install weft 0.4.2"), "{error}");
    }
}

#[test]
fn a_process_that_died_is_followed_by_another_at_the_same_address() {
    let (mut roster, liveness) = with_two_nodes();
    let again = register(2, 11, "10.0.0.2:7500", &[1, 2]);
    roster.register(&again, &liveness, &host(), NOW_S).unwrap();
    let moved = register(2, 12, "10.0.0.9:7500", &[1, 2]);
    let error = refused(&mut roster, |r| r.register(&moved, &liveness, &host(), NOW_S));
    assert!(
        error.errno == Errno::EEXIST && error.message.contains("node 2 (a) is already running"),
        "{error}"
    );
    // The old process is gone: the node may have moved.
    roster.set_node_state(NodeId(2), NodeState::Offline);
    roster.register(&moved, &liveness, &host(), NOW_S).unwrap();
    assert_eq!(roster.map.node(NodeId(2)).unwrap().addresses, ["10.0.0.9:7500"]);
}

#[test]
fn a_disk_moves_when_its_node_is_down() {
    let (mut roster, liveness) = with_two_nodes();
    let claim = register(3, 10, "10.0.0.3:7500", &[1, 3]);
    let error = refused(&mut roster, |r| r.register(&claim, &liveness, &host(), NOW_S));
    assert!(
        error.errno == Errno::EBUSY && error.message.contains("target 1 (/t1) is served by node 2"),
        "{error}"
    );
    roster.set_node_state(NodeId(2), NodeState::ProbablyOffline);
    refused(&mut roster, |r| r.register(&claim, &liveness, &host(), NOW_S));
    roster.set_node_state(NodeId(2), NodeState::Offline);
    roster.register(&claim, &liveness, &host(), NOW_S).unwrap();
    assert_eq!(roster.map.target(TargetId(1)).unwrap().node, NodeId(3));
}

#[test]
fn a_removed_target_does_not_block_registration() {
    let (mut roster, liveness) = with_two_nodes();
    let before = roster.map.targets.clone();
    let ask = register(2, 10, "10.0.0.2:7500", &[1, 77, 2]);
    roster.register(&ask, &liveness, &host(), NOW_S).unwrap();
    assert_eq!(roster.map.targets, before);
    let refused = require_known(&roster.map, TargetId(77), "/t77").unwrap_err();
    assert!(
        refused.errno == Errno::ENODEV && refused.hint.contains("remove /t77 from node.toml"),
        "{refused}"
    );
}

#[test]
fn registrations_that_are_refused() {
    let (mut roster, liveness) = with_two_nodes();
    let mut registers = |change: &dyn Fn(&mut Register)| {
        let mut ask = register(2, 10, "10.0.0.2:7500", &[1, 2]);
        change(&mut ask);
        refused(&mut roster, |r| r.register(&ask, &liveness, &host(), NOW_S))
    };
    assert!(registers(&|r| r.cluster = "theirs".into()).message.contains("ours, not theirs"));
    assert!(
        registers(&|r| r.targets[0].cluster = "theirs".into()).message.contains("target 1 (/t1) belongs")
    );
    assert_eq!(registers(&|r| r.node = NodeId(9)).errno, Errno::ENOENT);
    assert_eq!(registers(&|r| r.clock_s += 31).errno, Errno::EINVAL);
    assert_eq!(registers(&|r| r.version = "0.9.0".into()).errno, Errno::EPROTO);
    assert_eq!(registers(&|r| r.addresses = vec!["10.0.0.3:7500".into()]).errno, Errno::EADDRINUSE);
}

#[test]
fn a_removed_node_does_not_come_back() {
    let (mut roster, liveness) = with_two_nodes();
    assert_eq!(refused(&mut roster, |r| r.remove_node(NodeId(3))).errno, Errno::EBUSY);
    roster.set_drain(TargetId(3), true).unwrap();
    roster.remove_target(TargetId(3)).unwrap();
    let error = refused(&mut roster, |r| r.remove_node(NodeId(3)));
    assert!(error.message.contains("is alive"), "{error}");
    roster.set_node_state(NodeId(3), NodeState::Offline);
    roster.remove_node(NodeId(3)).unwrap();
    let back = register(3, 10, "10.0.0.3:7500", &[]);
    let error = refused(&mut roster, |r| r.register(&back, &liveness, &host(), NOW_S));
    assert!(
        error.message.contains("node 3 has been removed") && error.hint.contains("join again"),
        "{error}"
    );
    assert_eq!(refused(&mut roster, |r| r.remove_node(NodeId(1))).errno, Errno::EINVAL);
    assert_eq!(refused(&mut roster, |r| r.remove_node(NodeId(8))).errno, Errno::ENOENT);
}

#[test]
fn a_pool_keeps_a_target_for_new_files() {
    let (mut roster, _) = with_two_nodes();
    assert_eq!(refused(&mut roster, |r| r.remove_target(TargetId(1))).errno, Errno::EBUSY);
    roster.set_drain(TargetId(1), true).unwrap();
    roster.set_drain(TargetId(2), true).unwrap();
    let error = refused(&mut roster, |r| r.set_drain(TargetId(3), true));
    assert!(error.message.contains("target 3 is the last of pool default"), "{error}");
    refused(&mut roster, |r| r.set_pool(TargetId(3), "other"));
    roster.set_drain(TargetId(2), false).unwrap();
    roster.set_drain(TargetId(3), true).unwrap();
    assert_eq!(refused(&mut roster, |r| r.set_drain(TargetId(9), true)).errno, Errno::ENOENT);
}

#[test]
fn rules_for_networks_are_kept_once_each() {
    let (mut roster, _) = with_two_nodes();
    let rule = |clients: &str, squash, anon_uid| types::ExportRule {
        clients: clients.parse().unwrap(),
        export: types::Export { squash, anon_uid, ..types::Export::default() },
    };
    roster.set_export(&rule("10.0.0.0/8", types::Squash::None, 0)).unwrap();
    roster.set_export(&rule("local", types::Squash::None, 1)).unwrap();
    roster.set_export(&rule("10.0.0.0/8", types::Squash::Root, 7)).unwrap();
    let error = refused(&mut roster, |r| r.set_export(&rule("10.0.0.0/8", types::Squash::All, 0)));
    assert_eq!(error.errno, Errno::EINVAL);
    let known = |roster: &Roster| -> Vec<(String, u32)> {
        roster.map.exports.iter().map(|r| (r.clients.to_string(), r.export.anon_uid)).collect()
    };
    assert_eq!(known(&roster), [("local".into(), 1), ("10.0.0.0/8".into(), 7)]);
    let clients = "10.0.0.0/8".parse().unwrap();
    roster.remove_export(&clients).unwrap();
    assert_eq!(refused(&mut roster, |r| r.remove_export(&clients)).errno, Errno::ENOENT);
    for third in 0..crate::limits::MAX_EXPORTS - 1 {
        let network = format!("10.{}.{}.0/24", third / 256, third % 256);
        roster.set_export(&rule(&network, types::Squash::None, 1)).unwrap();
    }
    let error = refused(&mut roster, |r| r.set_export(&rule("::/0", types::Squash::None, 1)));
    assert_eq!(error.errno, Errno::ENOSPC);
}

#[test]
fn pools_are_made_renamed_and_removed() {
    let (mut roster, _) = with_two_nodes();
    roster.set_pool(TargetId(1), "fast").unwrap();
    assert_eq!(roster.map.group(types::GroupId(1)).unwrap().pool, PoolId(2));
    assert_eq!(refused(&mut roster, |r| r.remove_pool("fast")).errno, Errno::EBUSY);
    assert_eq!(refused(&mut roster, |r| r.rename_pool("fast", "default")).errno, Errno::EEXIST);
    assert_eq!(refused(&mut roster, |r| r.rename_pool("slow", "x")).errno, Errno::ENOENT);
    roster.rename_pool("fast", "nvme").unwrap();
    roster.add_target(NodeId(3), "/t4", "nvme").unwrap();
    roster.set_pool(TargetId(1), "default").unwrap();
    roster.set_drain(TargetId(1), true).unwrap();
    roster.set_pool(TargetId(1), "nvme").unwrap();
    assert_eq!(refused(&mut roster, |r| r.set_pool(TargetId(1), "a/b")).errno, Errno::EINVAL);
    assert_eq!(refused(&mut roster, |r| r.remove_pool("default")).errno, Errno::EBUSY);
}

#[test]
fn racks_are_set_and_taken_away() {
    let mut roster = fresh();
    let asked = Join { rack: Some("r1".into()), ..join("a", "10.0.0.2:7500") };
    let node = roster.join(&asked, &host(), NOW_S).unwrap();
    assert_eq!(node.rack.as_deref(), Some("r1"));
    roster.set_rack(node.id, Some("hall-2.rack_7")).unwrap();
    assert_eq!(roster.map.node(node.id).unwrap().rack.as_deref(), Some("hall-2.rack_7"));
    roster.set_rack(node.id, None).unwrap();
    assert_eq!(roster.map.node(node.id).unwrap().rack, None);
    assert_eq!(roster.set_rack(NodeId(9), Some("r1")).unwrap_err().errno, Errno::ENOENT);
}

#[test]
fn invalid_rack_names_are_refused() {
    let long = "r".repeat(MAX_NAME + 1);
    for wrong in ["", "a b", "r/1", "-r", "\u{e4}", "none", "None", &long] {
        let mut roster = fresh();
        let before = roster.clone();
        let refused = roster.set_rack(NodeId(1), Some(wrong)).unwrap_err();
        assert_eq!(refused.errno, Errno::EINVAL, "{wrong}");
        assert!(refused.message.contains(&format!("{wrong:?}")) && !refused.hint.is_empty(), "{refused:?}");
        let asked = Join { rack: Some(wrong.into()), ..join("a", "10.0.0.2:7500") };
        assert_eq!(roster.join(&asked, &host(), NOW_S).unwrap_err().errno, Errno::EINVAL);
        assert_eq!(roster.map, before.map);
    }
}

#[test]
fn a_target_gets_its_part_in_groups_when_it_is_served_for_the_first_time() {
    let (mut roster, _) = with_two_nodes();
    roster.make_groups("default", Scheme::Mirror(2)).unwrap();
    let has_part = |roster: &Roster, target: TargetId| {
        roster.map.groups.iter().any(|g| g.scheme.spans_targets() && g.members.contains(&target))
    };
    assert!(has_part(&roster, TargetId(1)));
    let added = roster.add_target(NodeId(3), "/t4", "default").unwrap();
    let before = roster.map.clone();
    roster.add_first_served_targets(&before);
    assert!(!has_part(&roster, added), "nothing serves it");
    let target = roster.target_mut(added).unwrap();
    (target.state, target.capacity, target.free) = (TargetState::Online, 100, 50);
    roster.add_first_served_targets(&before);
    assert!(has_part(&roster, added));
    // It is briefly offline.
    let served = roster.map.clone();
    roster.add_first_served_targets(&served);
    assert_eq!(roster.map, served);
}

#[test]
fn roles_are_set_where_nothing_relies_on_them() {
    let (mut roster, _) = with_two_nodes();
    let refused = |roster: &mut Roster, node: u32, roles: &[Role]| {
        let error = roster.set_roles(NodeId(node), roles).unwrap_err();
        assert!(!error.hint.is_empty(), "{error}");
        error.errno
    };
    use Role::{Meta, Mgmt, Storage};
    for roles in [&[][..], &[Mgmt, Meta, Storage]] {
        assert_eq!(refused(&mut roster, 2, roles), Errno::EOPNOTSUPP, "{roles:?}");
    }
    for roles in [&[Meta, Storage][..], &[Mgmt], &[Mgmt, Storage]] {
        assert_eq!(refused(&mut roster, 1, roles), Errno::EOPNOTSUPP, "{roles:?}");
    }
    roster.set_roles(NodeId(1), &[Storage, Meta, Mgmt, Meta]).unwrap();
    assert_eq!(roster.map.nodes[0].roles, [Mgmt, Meta, Storage], "sorted, each once");

    // Node 2 has targets and is running.
    assert_eq!(refused(&mut roster, 2, &[Meta]), Errno::EBUSY);
    assert_eq!(refused(&mut roster, 2, &[Meta, Storage]), Errno::EBUSY);
    roster.set_node_state(NodeId(2), NodeState::Offline);
    assert_eq!(refused(&mut roster, 2, &[Meta]), Errno::EBUSY, "it has targets");
    roster.set_roles(NodeId(2), &[Meta, Storage]).unwrap();
    roster.map.partitions = vec![NodeId(2)];
    assert_eq!(refused(&mut roster, 2, &[Storage]), Errno::EBUSY, "it has partitions");
    roster.map.partitions = vec![NodeId(1)];
    roster.set_roles(NodeId(2), &[Storage]).unwrap();
    assert_eq!(refused(&mut roster, 9, &[Storage]), Errno::ENOENT);
}

#[test]
fn a_returned_or_uncounted_target_is_not_removed() {
    let (mut roster, _) = with_two_nodes();
    let (target, group) = (TargetId(3), GroupId(3));
    let (alone, nothing) = (sole_in_sync_groups(&roster.map, target), BTreeSet::new());
    assert_eq!(alone, [group].into());
    let remove = |roster: &mut Roster| roster.remove_offline_target(target, &alone, &alone);
    assert_eq!(refused(&mut roster, remove).errno, Errno::EBUSY);
    roster.target_mut(target).unwrap().state = TargetState::Offline;
    let uncounted = |roster: &mut Roster| roster.remove_offline_target(target, &nothing, &nothing);
    assert_eq!(refused(&mut roster, uncounted).errno, Errno::EBUSY);
    remove(&mut roster).unwrap();
    assert!(roster.map.target(target).is_none() && roster.map.group(group).unwrap().is_lost());
}
