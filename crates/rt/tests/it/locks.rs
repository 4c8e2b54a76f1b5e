//! The reader/writer lock: exclusion, fairness, and waiting futures that are dropped.

use rt::sync::{Event, RwLock};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

/// Polls once and returns the output if the future is done.
async fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn writers_are_exclusive_across_cores() {
    const ROUNDS: usize = 3000;
    struct Shared {
        lock: RwLock,
        readers: AtomicUsize,
        writers: AtomicUsize,
        writes: AtomicUsize,
    }
    let shared = Arc::new(Shared {
        lock: RwLock::new(),
        readers: AtomicUsize::new(0),
        writers: AtomicUsize::new(0),
        writes: AtomicUsize::new(0),
    });
    let work = |shared: Arc<Shared>, seed: usize| async move {
        for round in 0..ROUNDS {
            if (round + seed).is_multiple_of(3) {
                let _guard = shared.lock.write().await;
                assert_eq!(shared.writers.fetch_add(1, Ordering::SeqCst), 0);
                assert_eq!(shared.readers.load(Ordering::SeqCst), 0);
                let before = shared.writes.load(Ordering::Relaxed);
                rt::yield_now().await;
                shared.writes.store(before + 1, Ordering::Relaxed);
                shared.writers.fetch_sub(1, Ordering::SeqCst);
            } else {
                let _guard = shared.lock.read().await;
                shared.readers.fetch_add(1, Ordering::SeqCst);
                assert_eq!(shared.writers.load(Ordering::SeqCst), 0);
                rt::yield_now().await;
                shared.readers.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    let cores: Vec<_> = (0..2)
        .map(|core| {
            let shared = shared.clone();
            let config = rt::CoreConfig { name: format!("core-{core}"), ..Default::default() };
            let main = move || async move {
                rt::join_all((0..3).map(|i| work(shared.clone(), i)).collect()).await;
            };
            rt::start_core(config, main).unwrap()
        })
        .collect();
    cores.into_iter().for_each(|core| core.join().unwrap());
    assert_eq!(shared.writes.load(Ordering::Relaxed), 2 * 3 * ROUNDS / 3);
}

#[test]
fn the_lock_is_handed_over_in_order_of_arrival() {
    let order = rt::block_on(async {
        let lock = Rc::new(RwLock::new());
        let order = Rc::new(RefCell::new(Vec::new()));
        let held = lock.write().await;
        for (number, name) in ["read 1", "read 2", "write 3", "read 4", "write 5"].into_iter().enumerate() {
            let (lock, order) = (lock.clone(), order.clone());
            rt::spawn(async move {
                if name.starts_with("read") {
                    let _guard = lock.read().await;
                    order.borrow_mut().push(number + 1);
                } else {
                    let _guard = lock.write().await;
                    rt::yield_now().await;
                    order.borrow_mut().push(number + 1);
                }
            });
            rt::yield_now().await;
        }
        drop(held);
        while order.borrow().len() < 5 {
            rt::yield_now().await;
        }
        order.take()
    });
    assert_eq!(order.unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_reader_waits_behind_a_waiting_writer() {
    rt::block_on(async {
        let lock = RwLock::new();
        let reader = lock.read().await;
        let mut writer = Box::pin(lock.write());
        assert!(poll_once(&mut writer).await.is_none());
        let mut late = Box::pin(lock.read());
        assert!(poll_once(&mut late).await.is_none());
        drop(reader);
        assert!(poll_once(&mut late).await.is_none());
        let guard = poll_once(&mut writer).await.unwrap();
        drop(guard);
        assert!(poll_once(&mut late).await.is_some());
    })
    .unwrap();
}

#[test]
fn a_dropped_waiter_lets_those_behind_it_pass() {
    rt::block_on(async {
        let lock = RwLock::new();
        let reader = lock.read().await;
        let mut writer = Box::pin(lock.write());
        assert!(poll_once(&mut writer).await.is_none());
        let mut behind = Box::pin(lock.read());
        assert!(poll_once(&mut behind).await.is_none());
        drop(writer);
        assert!(poll_once(&mut behind).await.is_some());
        drop(reader);
    })
    .unwrap();
}

#[test]
fn an_unclaimed_grant_is_passed_on() {
    rt::block_on(async {
        let lock = RwLock::new();
        let held = lock.write().await;
        let mut granted = Box::pin(lock.write());
        assert!(poll_once(&mut granted).await.is_none());
        let mut next = Box::pin(lock.write());
        assert!(poll_once(&mut next).await.is_none());
        drop(held);
        drop(granted);
        let guard = poll_once(&mut next).await;
        assert!(guard.is_some());
    })
    .unwrap();
}

#[test]
fn an_event_releases_all_waiters_even_if_cleared_at_once() {
    rt::block_on(async {
        let event = Event::new();
        let mut first = Box::pin(event.wait());
        let mut second = Box::pin(event.wait());
        assert!(poll_once(&mut first).await.is_none());
        assert!(poll_once(&mut second).await.is_none());
        event.set();
        event.clear();
        assert!(!event.is_set());
        assert!(poll_once(&mut first).await.is_some());
        assert!(poll_once(&mut second).await.is_some());
        assert!(poll_once(&mut Box::pin(event.wait())).await.is_none());
    })
    .unwrap();
}
