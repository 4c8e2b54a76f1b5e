//! A retransmitted request is executed once.

use crate::support;
use crate::support::{Client, Store, create, entry, errno, on_cores, open};
use meta::SessionKind;
use std::sync::Arc;
use types::{Errno, InodeId, SessionId};
use wire::MetaOp;

fn unlink(name: &str) -> MetaOp {
    MetaOp::Unlink { parent: InodeId::ROOT, name: support::bytes(name), ino: None }
}

fn lookup(name: &str) -> MetaOp {
    MetaOp::Lookup { parent: InodeId::ROOT, name: support::bytes(name) }
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
fn concurrent_retransmissions_are_executed_once() {
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
        // The end of the session deletes its records.
        meta.end_session(SessionId(1)).await.unwrap();
        meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
        assert_eq!(errno(durable.call_numbered(1, create(InodeId::ROOT, "a")).await), Errno::EEXIST);
    })
    .unwrap();
}

#[test]
fn a_late_retransmission_is_executed_once() {
    let store = Store::new();
    rt::block_on(async move {
        let session = SessionId(1);
        let made_again = {
            let meta = open(store.writer()).await;
            meta.register_session(session, SessionKind::Remote).await.unwrap();
            let client = Client::new(&meta, 1);
            client.call_in_lane(0, 1, create(InodeId::ROOT, "a")).await.unwrap();
            client.call_in_lane(0, 2, unlink("a")).await.unwrap();
            // The answer is lost, and other applications of the mount go on.
            for sequence in 1..=700 {
                client.call_in_lane(1, sequence, create(InodeId::ROOT, &sequence.to_string())).await.unwrap();
            }
            let made_again =
                entry(client.call_in_lane(1, 701, create(InodeId::ROOT, "a")).await).unwrap().ino;
            client.call_in_lane(0, 2, unlink("a")).await.unwrap();
            assert_eq!(entry(client.call(lookup("a")).await).unwrap().ino, made_again);
            made_again
        };
        let meta = open(store.writer()).await;
        meta.register_session(session, SessionKind::Remote).await.unwrap();
        let client = Client::new(&meta, 1);
        client.call_in_lane(0, 2, unlink("a")).await.unwrap();
        assert_eq!(entry(client.call(lookup("a")).await).unwrap().ino, made_again);
    })
    .unwrap();
}

#[test]
fn a_retransmission_of_a_superseded_change_is_refused() {
    let store = Store::new();
    rt::block_on(async move {
        let client = Client::new(&open(store.writer()).await, 1);
        client.call_in_lane(0, 1, create(InodeId::ROOT, "a")).await.unwrap();
        client.call_in_lane(0, 2, unlink("a")).await.unwrap();
        assert_eq!(errno(client.call_in_lane(0, 1, create(InodeId::ROOT, "a")).await), Errno::EPROTO);
        assert_eq!(errno(client.call_in_lane(0, 3, unlink("a")).await), Errno::ENOENT);
        assert_eq!(errno(client.call_in_lane(1 << 20, 1, create(InodeId::ROOT, "b")).await), Errno::EPROTO);
    })
    .unwrap();
}

#[test]
fn a_session_has_one_record_a_slot() {
    let store = Store::new();
    rt::block_on(async move {
        let writer = store.writer();
        let meta = open(writer.clone()).await;
        meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
        let client = Client::new(&meta, 1);
        for sequence in 1..=600 {
            client
                .call_in_lane(sequence % 2, sequence, create(InodeId::ROOT, &sequence.to_string()))
                .await
                .unwrap();
            // Refused changes leave no record.
            assert_eq!(errno(client.call_in_lane(2, sequence, unlink("no such file")).await), Errno::ENOENT);
        }
        let range = namespace::keys::operations_of(client.session);
        let records = || writer.engine().scan(&range.from, &range.to, usize::MAX).unwrap().len();
        assert_eq!(records(), 2);
        for first in (10..30_000).step_by(1000) {
            let record =
                |slot| (namespace::keys::operation(client.session, slot), Some("of no matter".into()));
            let writes = (first..first + 1000).map(record).collect();
            let batch = kv::Batch { guards: Vec::new(), writes };
            assert_eq!(writer.commit(batch).await.unwrap(), kv::Outcome::Applied);
        }
        assert!(records() > 29_000);
        meta.end_session(client.session).await.unwrap();
        assert_eq!(records(), 0);
    })
    .unwrap();
}
