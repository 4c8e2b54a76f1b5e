//! A request that is sent again is carried out once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::SessionKind;
use std::sync::Arc;
use support::{Client, Store, create, entry, errno, on_cores, open};
use types::{Errno, InodeId, SessionId};
use wire::{MetaOp, MetaReply};

fn unlink(name: &str) -> MetaOp {
    MetaOp::Unlink { parent: InodeId::ROOT, name: support::bytes(name) }
}

#[test]
fn a_repeated_change_gets_the_first_answer() {
    let store = Store::new();
    rt::block_on(async move {
        let client = Client::new(&open(store.writer()).await, 1);
        let first = entry(client.call_numbered(1, create(InodeId::ROOT, "a")).await).unwrap();
        let again = entry(client.call_numbered(1, create(InodeId::ROOT, "a")).await).unwrap();
        assert_eq!(first, again);
        assert_eq!(client.meta.stats().repeated, 1);
        // Another number is another request, and so is the same number of another session.
        assert_eq!(errno(client.call_numbered(2, create(InodeId::ROOT, "a")).await), Errno::EEXIST);
        let other = Client::new(&client.meta, 2);
        assert_eq!(errno(other.call_numbered(1, create(InodeId::ROOT, "a")).await), Errno::EEXIST);
        client.call_numbered(3, unlink("a")).await.unwrap();
        client.call_numbered(3, unlink("a")).await.unwrap();
        assert_eq!(errno(client.call_numbered(4, unlink("a")).await), Errno::ENOENT);
    })
    .unwrap();
}

#[test]
fn copies_on_several_cores_at_once_are_carried_out_once() {
    let store = Store::new();
    let meta = rt::block_on(open(store.writer())).unwrap();
    let inos = Arc::new(parking_lot::Mutex::new(vec![None; 100]));
    let shared = inos.clone();
    on_cores(4, move |_| {
        let (client, inos) = (Client::new(&meta, 1), shared.clone());
        async move {
            for sequence in 1..=100u64 {
                let op = create(InodeId::ROOT, &sequence.to_string());
                let ino = entry(client.call_numbered(sequence, op).await).unwrap().ino;
                let known = *inos.lock()[sequence as usize - 1].get_or_insert(ino);
                assert_eq!(known, ino);
            }
        }
    });
}

#[test]
fn a_durable_session_is_known_after_a_restart_and_another_is_not() {
    let store = Store::new();
    rt::block_on(async move {
        let before = {
            let meta = open(store.writer()).await;
            meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
            let (durable, fleeting) = (Client::new(&meta, 1), Client::new(&meta, 2));
            fleeting.call_numbered(1, create(InodeId::ROOT, "b")).await.unwrap();
            entry(durable.call_numbered(1, create(InodeId::ROOT, "a")).await).unwrap()
        };
        let meta = open(store.writer()).await;
        meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
        let (durable, fleeting) = (Client::new(&meta, 1), Client::new(&meta, 2));
        let again = entry(durable.call_numbered(1, create(InodeId::ROOT, "a")).await).unwrap();
        assert_eq!(again, before);
        assert_eq!(errno(fleeting.call_numbered(1, create(InodeId::ROOT, "b")).await), Errno::EEXIST);
        // The end of the session is the end of its records.
        meta.end_session(SessionId(1)).await.unwrap();
        meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
        assert_eq!(errno(durable.call_numbered(1, create(InodeId::ROOT, "a")).await), Errno::EEXIST);
    })
    .unwrap();
}

#[test]
fn records_of_a_durable_session_do_not_pile_up() {
    let store = Store::new();
    rt::block_on(async move {
        let writer = store.writer();
        let meta = open(writer.clone()).await;
        meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
        let client = Client::new(&meta, 1);
        let SessionId(id) = client.session;
        for sequence in 1..=600 {
            let reply = client.call_numbered(sequence, create(InodeId::ROOT, &sequence.to_string())).await;
            assert!(matches!(reply, Ok(MetaReply::Created { .. })));
        }
        let range = namespace::keys::operations_of(SessionId(id));
        let records = writer.engine().scan(&range.from, &range.to, usize::MAX).unwrap();
        assert_eq!(records.len(), 256);
    })
    .unwrap();
}
