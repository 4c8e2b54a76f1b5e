//! Waiting for locks across cores.

use crate::support::cluster::Cluster;
use crate::support::{Client, Store, errno, on_cores, open};
use parking_lot::Mutex;
use rt::sim::Machine;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use types::{Errno, InodeId, SessionId};
use wire::{HeldLock, LockFamily, LockKind, LockOwner, LockRange, MetaOp, MetaReply};

const WHOLE: LockRange = LockRange { start: 0, last: u64::MAX };

fn lock(owner: u64, wait: bool) -> MetaOp {
    let (family, kind, range) = (LockFamily::Posix, LockKind::Exclusive, WHOLE);
    MetaOp::Lock { ino: InodeId(7), family, owner: LockOwner(owner), pid: owner as u32, kind, range, wait }
}

fn unlock(owner: u64) -> MetaOp {
    MetaOp::Unlock { ino: InodeId(7), family: LockFamily::Posix, owner: LockOwner(owner), range: WHOLE }
}

#[test]
fn a_lock_excludes_across_cores_and_every_waiter_gets_it() {
    let store = Store::new();
    let meta = rt::block_on(open(store.writer())).unwrap();
    let inside = Arc::new(Mutex::new((0, 0)));
    let shared = inside.clone();
    on_cores(4, move |core| {
        let (client, inside) = (Client::new(&meta, core as u64 + 1), shared.clone());
        async move {
            for _ in 0..100 {
                client.call(lock(1, true)).await.unwrap();
                {
                    let mut inside = inside.lock();
                    assert_eq!(inside.0, 0);
                    inside.0 += 1;
                }
                rt::yield_now().await;
                {
                    let mut inside = inside.lock();
                    inside.0 -= 1;
                    inside.1 += 1;
                }
                client.call(unlock(1)).await.unwrap();
            }
        }
    });
    assert_eq!(*inside.lock(), (0, 400));
}

#[test]
fn a_conflicting_lock_is_refused_and_reported() {
    let store = Store::new();
    rt::block_on(async move {
        let meta = open(store.writer()).await;
        let (one, two) = (Client::new(&meta, 1), Client::new(&meta, 2));
        one.call(lock(5, false)).await.unwrap();
        assert_eq!(errno(two.call(lock(5, false)).await), Errno::EAGAIN);
        let test = || MetaOp::TestLock {
            ino: InodeId(7),
            owner: LockOwner(5),
            kind: LockKind::Shared,
            range: LockRange { start: 3, last: 4 },
        };
        let reply = two.call(test()).await.unwrap();
        assert!(matches!(reply, MetaReply::Lock(Some((LockKind::Exclusive, WHOLE, 5)))), "{reply:?}");
        assert!(matches!(one.call(test()).await.unwrap(), MetaReply::Lock(None)));
    })
    .unwrap();
}

#[test]
fn the_end_of_a_session_frees_its_locks_and_ends_its_waits() {
    let store = Store::new();
    rt::block_on(async move {
        let meta = open(store.writer()).await;
        let (one, two) = (Client::new(&meta, 1), Client::new(&meta, 2));
        one.call(lock(1, false)).await.unwrap();
        let ended = Arc::new(Mutex::new(Vec::new()));
        for client in [&two, &one] {
            let (client, ended) = (client.clone(), ended.clone());
            rt::spawn(async move {
                // Session 1's second owner waits for its first; the end of the session ends both.
                let owner = client.session.0 + 1;
                let errno = client.call(lock(owner, true)).await.err().map(|error| error.errno);
                ended.lock().push((client.session, errno));
            });
        }
        rt::yield_now().await;
        assert!(ended.lock().is_empty());
        meta.end_session(SessionId(1)).await.unwrap();
        while ended.lock().len() < 2 {
            rt::yield_now().await;
        }
        let mut ended = ended.lock().clone();
        ended.sort_by_key(|(session, _)| *session);
        assert_eq!(ended, [(SessionId(1), Some(Errno::ECANCELED)), (SessionId(2), None)]);
    })
    .unwrap();
}

#[test]
fn a_wait_that_is_dropped_takes_no_lock() {
    let store = Store::new();
    rt::block_on(async move {
        let meta = open(store.writer()).await;
        let (one, two, three) = (Client::new(&meta, 1), Client::new(&meta, 2), Client::new(&meta, 3));
        one.call(lock(1, false)).await.unwrap();
        {
            // One wait is dropped while it waits, the other after it was granted.
            let mut early = pin!(two.call(lock(1, true)));
            let mut late = pin!(three.call(lock(1, true)));
            let mut context = Context::from_waker(Waker::noop());
            assert!(early.as_mut().poll(&mut context).is_pending());
            assert!(late.as_mut().poll(&mut context).is_pending());
            one.call(unlock(1)).await.unwrap();
        }
        one.call(lock(1, false)).await.unwrap();
    })
    .unwrap();
}

/// As after the death of all services, when the first one that restarts has yet to adopt its
/// partitions.
#[test]
fn a_service_reports_no_lost_locks_of_an_unknown_session_with_a_record() {
    let run = async {
        let cluster = Cluster::new(2).await;
        cluster.wait_until_served().await;
        let register = MetaOp::Register {
            in_use: vec![],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        };
        Client::new(&cluster.service(1), 1).call(register).await.unwrap();
        let (ino, family, kind) = (InodeId(7), LockFamily::Posix, LockKind::Exclusive);
        let held = HeldLock { ino, family, owner: LockOwner(1), pid: 1, kind, range: WHOLE };
        let says = async |session| {
            let claim = MetaOp::ReclaimLocks { locks: vec![held] };
            Client::new(&cluster.service(2), session).call(claim).await
        };
        says(1).await.unwrap();
        assert_eq!(errno(says(3).await), Errno::ENOLCK);
        cluster.stop();
    };
    Machine::new(1).run(run).unwrap();
}
