//! Revocation of a client: the map has it, and management waits for the nodes.

use super::{Process, Site, TWO, seconds, simulated};
use crate::support::open;
use kv::{Blocking, Durability, Memory, Writer};
use std::rc::Rc;
use std::sync::Arc;
use types::{NodeId, SessionId};
use wire::mgmt::{RevocationInfo, SessionInfo};
use wire::{MgmtReply, MgmtRequest};

async fn revoke(site: &Rc<Site>, name: &str) -> RevocationInfo {
    match site.ask(MgmtRequest::RevokeClient { name: name.into() }).await {
        Ok(MgmtReply::Revoked(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn ids(nodes: &[Rc<Process>]) -> Vec<NodeId> {
    nodes.iter().map(|process| process.node).collect()
}

#[test]
fn a_revocation_waits_for_every_node() {
    simulated(2, TWO, async |site, nodes| {
        // The first node sends no heartbeats in this test: by now it is offline.
        rt::sleep(seconds(20)).await;
        assert!(revoke(&site, "a").await.unaware.is_empty());
        let cluster = site.cluster();
        let map = cluster.map();
        assert!(map.is_revoked("a", 7) && !map.is_revoked("b", 7));
        assert!(nodes.iter().all(|process| process.epoch.get() >= map.epoch));
        nodes[1].ignores_maps.set(true);
        assert_eq!(revoke(&site, "b").await.unaware, ids(&nodes[1..]), "it serves the client yet");
        nodes[1].ignores_maps.set(false);
        assert!(revoke(&site, "b").await.unaware.is_empty());
        // An unreachable node is not waited for, and is listed.
        nodes[0].connected.set(false);
        rt::sleep(seconds(8)).await;
        let began_ns = rt::monotonic_ns();
        assert_eq!(revoke(&site, "c").await.unaware, ids(&nodes[..1]));
        assert!(rt::monotonic_ns() - began_ns < 6_000_000_000, "in time of the simulation");
    });
}

#[test]
fn a_revocation_ends_the_sessions_of_this_client_alone() {
    simulated(2, TWO, async |site, _| {
        let session = |id, client: &str| SessionInfo {
            session: SessionId(id),
            client: client.into(),
            host: "a:1".into(),
            address: String::new(),
            idle_s: None,
            leases: None,
            in_use: None,
        };
        let of_others = [session(6, "client/ab"), session(7, "a"), session(8, "client/clients")];
        let gate = site.cluster().authority;
        gate.sessions.lock().unwrap().all = [&[session(5, "client/a")][..], &of_others[..]].concat();
        assert_eq!(revoke(&site, "a").await.sessions, [SessionId(5)]);
        assert_eq!(gate.sessions.lock().unwrap().all, of_others);
    });
}

#[test]
fn a_session_that_begins_before_every_service_knows_is_ended_too() {
    simulated(2, TWO, async |site, _| {
        rt::sleep(seconds(20)).await;
        let session = |session: u64, client: &str| SessionInfo {
            session: SessionId(session),
            client: format!("client/{client}"),
            host: String::new(),
            address: String::new(),
            idle_s: None,
            leases: None,
            in_use: None,
        };
        let cluster = site.cluster();
        {
            let mut sessions = cluster.authority.sessions.lock().unwrap();
            sessions.all = vec![session(5, "a"), session(6, "b")];
            sessions.late = vec![session(7, "a")];
        }
        assert_eq!(revoke(&site, "a").await.sessions, [SessionId(5), SessionId(7)]);
        let left = cluster.authority.sessions.lock().unwrap();
        assert_eq!(left.all, [session(6, "b")]);
    });
}

#[test]
fn a_client_is_revoked_although_its_sessions_cannot_be_ended() {
    simulated(2, TWO, async |site, _| {
        let cluster = site.cluster();
        cluster.authority.sessions.lock().unwrap().are_unknown = true;
        let error = site.ask(MgmtRequest::RevokeClient { name: "a".into() }).await.unwrap_err();
        assert!(error.message.contains("client a is refused from now on, but"), "{error}");
        assert!(error.hint.contains("weft client revoke a"), "{}", error.hint);
        assert!(cluster.map().is_revoked("a", 7));
    });
}

#[test]
fn a_revocation_outlives_the_map() {
    simulated(2, TWO, async |site, _| {
        revoke(&site, "a").await;
        let cluster = site.cluster();
        // The metadata store was restored to an earlier state.
        let writer = Writer::with_blocking(Arc::new(Memory::new()), Durability::Process, Blocking::Inline);
        let again = open(&Arc::new(writer), &cluster.superblock, &cluster.authority).await;
        assert!(!again.current().is_revoked("a", 7));
        again.refresh().await.unwrap();
        assert!(again.current().is_revoked("a", 7));
    });
}
