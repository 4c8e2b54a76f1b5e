//! Management from the view of a cluster's members.

use crate::support::{Cluster, VERSION, join, open};
use mgmt::DEFAULT_POOL;
use net::Channel;
use std::sync::{Arc, Mutex};
use types::{Epoch, Errno, Error, NodeId, NodeState, SessionId, TargetId, TargetState};
use wire::mgmt::*;
use wire::{MgmtReply, MgmtRequest};

fn in_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Cluster) -> F + 'static) {
    rt::block_on(async move { test(Cluster::new().await).await }).unwrap();
}

#[test]
fn a_machine_joins_serves_and_says_goodbye() {
    in_cluster(async |cluster| {
        let node = cluster.join("a", 7501).await;
        assert_eq!(node, NodeId(2));
        assert_eq!(cluster.map().node(node).unwrap().state, NodeState::Offline);
        let register = cluster.registration(node, 1, 7501, &[]);
        let Ok(MgmtReply::Registered(registered)) = cluster.ask(MgmtRequest::Register(register)).await else {
            panic!("a node that has joined may register")
        };
        assert_eq!((registered.lease_ms, registered.map), (10_000, cluster.map()));
        assert_eq!(cluster.map().node(node).unwrap().state, NodeState::Online);

        let target = cluster.add(node, "/t1").await;
        assert_eq!(cluster.map().target(target).unwrap().state, TargetState::Offline);
        let beat = cluster.heartbeat(node, 1, &[target]);
        let Ok(MgmtReply::Alive(Alive { map: Some(map), .. })) = cluster.ask(beat).await else {
            panic!("the target that comes online is news")
        };
        let known = map.target(target).unwrap();
        assert_eq!((known.state, known.capacity, known.free), (TargetState::Online, 100 << 30, 50 << 30));
        let beat = cluster.heartbeat(node, 1, &[target]);
        assert!(matches!(cluster.ask(beat).await, Ok(MgmtReply::Alive(Alive { map: None, .. }))));

        cluster.ask(MgmtRequest::Goodbye { node, instance: 99 }).await.unwrap();
        assert_eq!(cluster.map().node(node).unwrap().state, NodeState::Online, "another process's goodbye");
        cluster.ask(MgmtRequest::Goodbye { node, instance: 1 }).await.unwrap();
        assert_eq!(cluster.map().node(node).unwrap().state, NodeState::Offline);
        assert_eq!(cluster.map().target(target).unwrap().state, TargetState::Offline);
    });
}

#[test]
fn a_wrong_token_is_refused_and_none_is_used_up_by_a_refusal() {
    in_cluster(async |cluster| {
        let error = cluster.refused(MgmtRequest::Join(join("a", 7501, "open"))).await;
        assert_eq!(error.errno, Errno::EACCES);
        cluster.refused(MgmtRequest::Join(join("first", 7501, "sesame"))).await;
        assert!(cluster.authority.admitted.lock().unwrap().is_empty());
        assert_eq!(cluster.join("a", 7501).await, NodeId(2));
    });
}

#[test]
fn only_heartbeats_of_the_registered_process_count() {
    in_cluster(async |cluster| {
        let node = cluster.join("a", 7501).await;
        assert_eq!(cluster.refused(cluster.heartbeat(node, 1, &[])).await.errno, Errno::ENOTCONN);
        for instance in [1, 2] {
            let register = MgmtRequest::Register(cluster.registration(node, instance, 7501, &[]));
            cluster.ask(register).await.unwrap();
        }
        assert_eq!(cluster.refused(cluster.heartbeat(node, 1, &[])).await.errno, Errno::ESTALE);
        cluster.ask(cluster.heartbeat(node, 2, &[])).await.unwrap();
        assert_eq!(cluster.refused(cluster.heartbeat(NodeId(9), 2, &[])).await.errno, Errno::ENODEV);
        let copy = MgmtRequest::Register(cluster.registration(node, 3, 7509, &[]));
        assert_eq!(cluster.refused(copy).await.errno, Errno::EEXIST);
    });
}

#[test]
fn only_an_empty_target_can_be_removed() {
    in_cluster(async |cluster| {
        let node = cluster.join("a", 7501).await;
        cluster.ask(MgmtRequest::Register(cluster.registration(node, 1, 7501, &[]))).await.unwrap();
        let targets =
            [cluster.add(node, "/t1").await, cluster.add(node, "/t2").await, cluster.add(node, "/t3").await];
        assert_eq!(targets, [TargetId(1), TargetId(2), TargetId(3)]);
        for target in [TargetId(1), TargetId(2)] {
            assert_eq!(
                cluster.refused(MgmtRequest::RemoveTarget { target, accept_loss: false }).await.errno,
                Errno::EBUSY
            );
            cluster.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        }
        let error =
            cluster.refused(MgmtRequest::RemoveTarget { target: TargetId(1), accept_loss: false }).await;
        assert!(error.errno == Errno::ENOTEMPTY && error.message.contains("inode 7"), "{error}");
        cluster.ask(MgmtRequest::RemoveTarget { target: TargetId(2), accept_loss: false }).await.unwrap();
        assert!(cluster.map().target(TargetId(2)).is_none());
        cluster.refused(MgmtRequest::SetDrain { target: TargetId(3), drain: true }).await;
        cluster.refused(MgmtRequest::RemoveNode { node }).await;
    });
}

#[test]
fn watchers_see_every_change() {
    in_cluster(async |cluster| {
        let after = cluster.map().epoch;
        let watching = Channel::in_process(cluster.management.clone() as Arc<dyn net::Handler<_, _>>);
        let seen = Arc::new(Mutex::new(None));
        let published = seen.clone();
        rt::spawn(async move {
            *published.lock().unwrap() = Some(watching.call(MgmtRequest::WatchMap { after }, None).await);
        });
        rt::yield_now().await;
        assert!(seen.lock().unwrap().is_none(), "nothing has changed yet");
        cluster.join("a", 7501).await;
        while seen.lock().unwrap().is_none() {
            rt::yield_now().await;
        }
        let map = cluster.map();
        assert_eq!(*seen.lock().unwrap(), Some(Ok(MgmtReply::Map { map: map.clone() })));
        assert!(map.epoch > after);
        let at_once = cluster.ask(MgmtRequest::WatchMap { after: Epoch(0) }).await;
        assert_eq!(at_once, Ok(MgmtReply::Map { map }));
    });
}

#[test]
fn state_survives_a_restart_of_management() {
    in_cluster(async |mut cluster| {
        let node = cluster.join("a", 7501).await;
        cluster.ask(MgmtRequest::Register(cluster.registration(node, 1, 7501, &[]))).await.unwrap();
        let target = cluster.add(node, "/t1").await;
        cluster.ask(cluster.heartbeat(node, 1, &[target])).await.unwrap();
        let gone = cluster.join("b", 7502).await;
        cluster.ask(MgmtRequest::RemoveNode { node: gone }).await.unwrap();
        let before = cluster.map();
        cluster.management = open(&cluster.writer, &cluster.superblock, &cluster.authority).await;
        assert_eq!(cluster.map(), before);
        // The node continues, and registers again when told to.
        cluster.management.refresh().await.unwrap();
        assert_eq!(cluster.map().node(node).unwrap().state, NodeState::Online);
        assert_eq!(cluster.refused(cluster.heartbeat(node, 1, &[target])).await.errno, Errno::ENOTCONN);
        cluster.ask(MgmtRequest::Register(cluster.registration(node, 1, 7501, &[target]))).await.unwrap();
        cluster.ask(cluster.heartbeat(node, 1, &[target])).await.unwrap();
        assert_eq!(cluster.join("c", 7503).await, NodeId(4), "numbers are never given twice");
    });
}

#[test]
fn an_unreferenced_pool_can_be_emptied() {
    in_cluster(async |cluster| {
        let node = cluster.join("b", 7501).await;
        let add =
            |path: &str, pool: &str| MgmtRequest::AddTarget { node, path: path.into(), pool: pool.into() };
        let added = async |path: &str, pool: &str| match cluster.ask(add(path, pool)).await {
            Ok(MgmtReply::Added { target }) => target,
            other => panic!("{other:?}"),
        };
        // The files are on target 1, and the default pool is referred to.
        let (full, empty) = (added("/full", "full").await, added("/empty", "empty").await);
        let moved = added("/moved", "moved").await;
        let kept = added("/kept", DEFAULT_POOL.1).await;
        assert_eq!(full, TargetId(1));
        cluster.ask(MgmtRequest::RemoveTarget { target: empty, accept_loss: false }).await.unwrap();
        cluster.ask(MgmtRequest::RemovePool { pool: "empty".into() }).await.unwrap();
        cluster.ask(MgmtRequest::SetPool { target: moved, pool: DEFAULT_POOL.1.into() }).await.unwrap();
        cluster.ask(MgmtRequest::RemovePool { pool: "moved".into() }).await.unwrap();
        let error =
            cluster.ask(MgmtRequest::RemoveTarget { target: full, accept_loss: false }).await.unwrap_err();
        assert_eq!(error.errno, Errno::ENOTEMPTY);
        assert!(!cluster.map().target(full).unwrap().drain, "it gets new files as before");
        cluster.ask(MgmtRequest::SetDrain { target: moved, drain: true }).await.unwrap();
        for named in [
            MgmtRequest::RemoveTarget { target: kept, accept_loss: false },
            MgmtRequest::SetPool { target: kept, pool: "other".into() },
        ] {
            assert!(cluster.refused(named).await.message.contains("refers to that pool"));
        }
        assert!(cluster.map().pool_named("other").is_none());
    });
}

#[test]
fn export_rules_are_stored_and_listed() {
    in_cluster(async |cluster| {
        let rule: types::ExportRule =
            serde_json::from_str(r#"{"clients":"10.0.0.0/8","access":"ro"}"#).unwrap();
        let before = cluster.map().epoch;
        cluster.ask(MgmtRequest::SetExport { rule: rule.clone() }).await.unwrap();
        assert_eq!(cluster.map().epoch.0, before.0 + 1, "nobody would hear of it");
        let rules = cluster.ask(MgmtRequest::ListExports).await.unwrap();
        assert_eq!(rules, MgmtReply::Exports { exports: vec![rule.clone()] });
        let again = open(&cluster.writer, &cluster.superblock, &cluster.authority).await;
        assert_eq!(again.current().exports, std::slice::from_ref(&rule));
        let wrong = "10.0.0.0/9".parse().unwrap();
        cluster.refused(MgmtRequest::RemoveExport { clients: wrong }).await;
        cluster.ask(MgmtRequest::RemoveExport { clients: rule.clients }).await.unwrap();
        assert!(cluster.map().exports.is_empty());
    });
}

#[test]
fn a_rule_for_a_name_is_refused_where_clients_prove_none() {
    in_cluster(async |cluster| {
        let rule: types::ExportRule =
            serde_json::from_str(r#"{"clients":"client:login1","access":"ro"}"#).unwrap();
        let error = cluster.refused(MgmtRequest::SetExport { rule }).await;
        assert!(error.errno == Errno::EOPNOTSUPP && error.message.contains("client:login1"), "{error}");
    });
}

#[test]
fn clients_of_other_clusters_are_sent_away() {
    in_cluster(async |cluster| {
        let attach = |uuid: &str, version: &str, ahead: i64| MgmtRequest::Attach {
            cluster: uuid.into(),
            version: version.into(),
            clock_s: rt::now().secs + ahead,
        };
        let uuid = cluster.superblock.uuid.clone();
        let welcome = cluster.ask(attach(&uuid, VERSION, 0)).await.unwrap();
        assert!(matches!(welcome, MgmtReply::Welcome { facts, .. } if facts.uuid == uuid));
        assert_eq!(cluster.refused(attach("other", VERSION, 0)).await.errno, Errno::EINVAL);
        assert_eq!(cluster.refused(attach(&uuid, "7.0.0", 0)).await.errno, Errno::EPROTO);
        assert!(cluster.refused(attach(&uuid, VERSION, 60)).await.message.contains("clock of this client"));
    });
}

#[test]
fn lists_show_nodes_targets_and_pools() {
    in_cluster(async |cluster| {
        let Ok(MgmtReply::Health(health)) = cluster.ask(MgmtRequest::Health).await else { panic!() };
        assert_eq!(health.verdict, Verdict::Critical, "a cluster without targets can't hold files");
        let node = cluster.join("", 7501).await;
        cluster.ask(MgmtRequest::RenameNode { node, name: "oss1".into() }).await.unwrap();
        let Ok(MgmtReply::Nodes { nodes }) = cluster.ask(MgmtRequest::ListNodes).await else { panic!() };
        let names: Vec<&str> = nodes.iter().map(|n| &*n.node.name).collect();
        assert_eq!(names, ["first", "oss1"]);
        let token =
            cluster.ask(MgmtRequest::NewToken(NewToken { client: true, ..NewToken::default() })).await;
        assert_eq!(token, Ok(MgmtReply::Token { token: "token for true".into() }));
        cluster.ask(MgmtRequest::EvictSession { session: SessionId(3) }).await.unwrap();
    });
}

/// Checks that a refusal names object, cause and remedy.
fn says(error: &Error, object: &str, cause: &str, remedy: &str) {
    let fits = error.message.contains(object) && error.message.contains(cause) && error.hint.contains(remedy);
    assert!(fits, "{object:?}, {cause:?}, {remedy:?}: {error}");
}

#[test]
fn two_nodes_that_claim_one_target() {
    in_cluster(async |cluster| {
        let (one, two) = (cluster.join("a", 7501).await, cluster.join("b", 7502).await);
        cluster.ask(MgmtRequest::Register(cluster.registration(one, 1, 7501, &[]))).await.unwrap();
        let target = cluster.add(one, "/t1").await;
        cluster.ask(cluster.heartbeat(one, 1, &[target])).await.unwrap();
        let claim = MgmtRequest::Register(cluster.registration(two, 2, 7502, &[target]));
        let error = cluster.refused(claim).await;
        assert_eq!(error.errno, Errno::EBUSY);
        says(&error, "target 1", "served by node 2 (a)", "stop the node");
    });
}

#[test]
fn a_target_of_another_cluster() {
    in_cluster(async |cluster| {
        let node = cluster.join("a", 7501).await;
        let mut register = cluster.registration(node, 1, 7501, &[TargetId(1)]);
        register.targets[0].cluster = "another".into();
        let error = cluster.refused(MgmtRequest::Register(register)).await;
        says(&error, "target 1", "cluster another", "node.toml");
    });
}

#[test]
fn versions_too_far_apart() {
    in_cluster(async |cluster| {
        let asked = Join { version: "0.9.0".into(), ..join("a", 7501, "sesame") };
        says(
            &cluster.refused(MgmtRequest::Join(asked)).await,
            "0.9.0",
            "too far apart",
            "install weft 0.4.0",
        );
        let node = cluster.join("a", 7501).await;
        let register = Register { version: "1.4.0".into(), ..cluster.registration(node, 1, 7501, &[]) };
        says(
            &cluster.refused(MgmtRequest::Register(register)).await,
            "node 2",
            "too far apart",
            "install weft 0.4.0",
        );
    });
}

#[test]
fn clocks_far_apart() {
    in_cluster(async |cluster| {
        let asked = Join { clock_s: rt::now().secs + 3600, ..join("a", 7501, "sesame") };
        says(&cluster.refused(MgmtRequest::Join(asked)).await, "clock of", "ahead", "NTP");
        let node = cluster.join("a", 7501).await;
        let late = Register { clock_s: rt::now().secs - 3600, ..cluster.registration(node, 1, 7501, &[]) };
        says(&cluster.refused(MgmtRequest::Register(late)).await, "node 2", "behind", "NTP");
        // For any clock of a peer, the difference can be computed.
        let (cluster_id, version) = (cluster.superblock.uuid.clone(), VERSION.to_string());
        let attach = MgmtRequest::Attach { cluster: cluster_id, version, clock_s: i64::MIN };
        says(&cluster.refused(attach).await, "this client", "behind", "NTP");
        let first = Register { clock_s: i64::MIN, ..cluster.registration(node, 1, 7501, &[]) };
        says(&cluster.refused(MgmtRequest::Register(first)).await, "node 2", "behind", "NTP");
    });
}

#[test]
fn a_removed_node_that_comes_back() {
    in_cluster(async |cluster| {
        let node = cluster.join("a", 7501).await;
        cluster.ask(MgmtRequest::Register(cluster.registration(node, 1, 7501, &[]))).await.unwrap();
        cluster.ask(MgmtRequest::Goodbye { node, instance: 1 }).await.unwrap();
        cluster.ask(MgmtRequest::RemoveNode { node }).await.unwrap();
        let back = MgmtRequest::Register(cluster.registration(node, 2, 7501, &[]));
        let error = cluster.refused(back).await;
        assert_eq!(error.errno, Errno::ENODEV);
        says(&error, "node 2", "removed", "join again");
        says(&cluster.refused(cluster.heartbeat(node, 1, &[])).await, "node 2", "removed", "join again");
    });
}

#[test]
fn draining_the_last_target_of_a_pool_and_removing_one_that_holds_data() {
    in_cluster(async |cluster| {
        let node = cluster.join("a", 7501).await;
        cluster.ask(MgmtRequest::Register(cluster.registration(node, 1, 7501, &[]))).await.unwrap();
        let target = cluster.add(node, "/t1").await;
        let last = cluster.refused(MgmtRequest::SetDrain { target, drain: true }).await;
        says(&last, "target 1", "last of pool default", "weft target add");
        cluster.add(node, "/t2").await;
        let not_drained = cluster.refused(MgmtRequest::RemoveTarget { target, accept_loss: false }).await;
        says(&not_drained, "target 1", "new files", "weft target drain 1");
        cluster.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        let holds_data = cluster.refused(MgmtRequest::RemoveTarget { target, accept_loss: false }).await;
        says(&holds_data, "target 1", "inode 7", "weft target drain 1");
    });
}
