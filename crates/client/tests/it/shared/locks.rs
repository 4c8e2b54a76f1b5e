//! Advisory locks, and restarts of metadata services.

use super::cluster::{Application, with_cluster, with_cluster_of_seed};
use client::{Cancel, Client};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, InodeId, Result};
use wire::{LockFamily, LockKind, LockOwner, LockRange};

const SECOND: Duration = Duration::from_secs(1);
/// Number of runs, each with its own seed and with the event at another moment.
const MOMENTS: u64 = 200;
const OWNER: LockOwner = LockOwner(5);

fn range(start: u64, last: u64) -> LockRange {
    LockRange { start, last }
}

async fn lock(client: &Client, ino: InodeId, kind: LockKind, range: LockRange) -> Result<()> {
    client.lock(ino, LockFamily::Posix, OWNER, 7, kind, range, false, &Cancel::default()).await
}

async fn flock(client: &Client, ino: InodeId, kind: LockKind, cancel: Option<&Cancel>) -> Result<()> {
    let (wait, none) = (cancel.is_some(), Cancel::default());
    let cancel = cancel.unwrap_or(&none);
    client.lock(ino, LockFamily::Flock, OWNER, 7, kind, range(0, 0), wait, cancel).await
}

/// The locks that conflict with the other client.
async fn conflicting_locks(client: &Client, ino: InodeId) -> Vec<(LockKind, u64, u64)> {
    let (mut found, mut start) = (Vec::new(), 0);
    while let Some((kind, held, pid)) =
        client.test_lock(ino, OWNER, LockKind::Exclusive, range(start, u64::MAX)).await.unwrap()
    {
        assert_eq!(pid, 7);
        found.push((kind, held.start, held.last));
        let Some(next) = held.last.checked_add(1) else { break };
        start = next;
    }
    found
}

#[test]
fn locks_survive_a_metadata_restart() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let ino = one.create_file("f").await.ino();
        lock(&one, ino, LockKind::Shared, range(0, 99)).await.unwrap();
        lock(&one, ino, LockKind::Exclusive, range(20, 29)).await.unwrap();
        one.unlock(ino, LockFamily::Posix, OWNER, range(90, 99)).await.unwrap();
        flock(&one, ino, LockKind::Exclusive, None).await.unwrap();
        let held = [(LockKind::Shared, 0, 19), (LockKind::Exclusive, 20, 29), (LockKind::Shared, 30, 89)];
        assert_eq!(conflicting_locks(&two, ino).await, held);
        for _ in 0..2 {
            cluster.restart_metadata().await;
            assert_eq!(conflicting_locks(&two, ino).await, held);
            assert_eq!(
                lock(&two, ino, LockKind::Shared, range(25, 25)).await.unwrap_err().errno,
                Errno::EAGAIN
            );
            assert_eq!(flock(&two, ino, LockKind::Shared, None).await.unwrap_err().errno, Errno::EAGAIN);
        }
        one.unlock(ino, LockFamily::Posix, OWNER, range(0, u64::MAX)).await.unwrap();
        cluster.restart_metadata().await;
        assert_eq!(conflicting_locks(&two, ino).await, []);
        one.shutdown().await.unwrap();
        flock(&two, ino, LockKind::Exclusive, None).await.unwrap();
    });
}

#[test]
fn lock_waits_survive_a_metadata_restart() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let ino = one.create_file("f").await.ino();
        flock(&one, ino, LockKind::Exclusive, None).await.unwrap();
        let order: Rc<RefCell<Vec<&str>>> = Rc::default();
        let (waiter, told): (Arc<Client>, _) = (two.clone(), order.clone());
        rt::spawn(async move {
            flock(&waiter, ino, LockKind::Exclusive, Some(&Cancel::default())).await.unwrap();
            told.borrow_mut().push("granted");
        });
        rt::sleep(SECOND).await;
        cluster.restart_metadata().await;
        rt::sleep(2 * SECOND).await;
        order.borrow_mut().push("given back");
        one.unlock(ino, LockFamily::Flock, OWNER, range(0, 0)).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(*order.borrow(), ["given back", "granted"]);
        assert_eq!(flock(&one, ino, LockKind::Shared, None).await.unwrap_err().errno, Errno::EAGAIN);
    });
}

/// Restarts at every moment of a lock's life: the next service knows the locks that the client was
/// granted.
#[test]
fn locks_that_are_taken_while_the_service_ends_are_held_or_refused() {
    for seed in 1..=MOMENTS {
        let delay_us = seed * 13 % 400;
        with_cluster_of_seed(seed, move |cluster| async move {
            let [one, two] = cluster.clients().await;
            let ino = one.create_file("f").await.ino();
            lock(&one, ino, LockKind::Exclusive, range(100, 199)).await.unwrap();
            let done: Rc<RefCell<u32>> = Rc::default();
            let (locker, unlocker, told, also) = (one.clone(), one.clone(), done.clone(), done.clone());
            rt::spawn(async move {
                lock(&locker, ino, LockKind::Exclusive, range(0, 9)).await.unwrap();
                *told.borrow_mut() += 1;
            });
            rt::spawn(async move {
                unlocker.unlock(ino, LockFamily::Posix, OWNER, range(150, 299)).await.unwrap();
                *also.borrow_mut() += 1;
            });
            rt::sleep(Duration::from_micros(delay_us)).await;
            cluster.restart_metadata().await;
            while *done.borrow() < 2 {
                rt::sleep(SECOND).await;
            }
            let held = [(LockKind::Exclusive, 0, 9), (LockKind::Exclusive, 100, 149)];
            assert_eq!(conflicting_locks(&two, ino).await, held, "seed {seed}");
        });
    }
}

/// Interrupts at every moment of a wait that is about to be granted: a client without an answer
/// doesn't hold the lock, and keeps its earlier ones.
#[test]
fn an_interrupted_wait_leaves_no_lock_behind() {
    for seed in 1..=MOMENTS {
        let delay_us = seed * 13 % 400;
        with_cluster_of_seed(seed, move |cluster| async move {
            let [one, two] = cluster.clients().await;
            let ino = one.create_file("f").await.ino();
            lock(&one, ino, LockKind::Shared, range(0, 9)).await.unwrap();
            lock(&two, ino, LockKind::Shared, range(0, 9)).await.unwrap();
            let (cancel, waiter) = (Cancel::default(), two.clone());
            let (interrupt, outcome): (Cancel, Rc<RefCell<Option<Result<()>>>>) =
                (cancel.clone(), Rc::default());
            let told = outcome.clone();
            rt::spawn(async move {
                let (kind, wanted) = (LockKind::Exclusive, range(0, 19));
                let got = waiter.lock(ino, LockFamily::Posix, OWNER, 7, kind, wanted, true, &cancel).await;
                *told.borrow_mut() = Some(got);
            });
            rt::spawn(async move { one.unlock(ino, LockFamily::Posix, OWNER, range(0, 9)).await.unwrap() });
            rt::sleep(Duration::from_micros(delay_us)).await;
            interrupt.cancel();
            rt::sleep(SECOND).await;
            let three = cluster.client().await;
            let expected = match outcome.borrow_mut().take().unwrap() {
                Ok(()) => (LockKind::Exclusive, 0, 19),
                Err(error) => {
                    assert_eq!(error.errno, Errno::EINTR);
                    (LockKind::Shared, 0, 9)
                }
            };
            assert_eq!(conflicting_locks(&three, ino).await, [expected], "seed {seed}");
        });
    }
}
