//! Tasks, timers and wakes on one core and between two.

use rt::sync::Event;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

fn core(name: &str) -> rt::CoreConfig {
    rt::CoreConfig { name: name.into(), cpu: None, batch: true }
}

#[test]
fn block_on_returns_the_output() {
    assert_eq!(rt::block_on(async { 7 }).unwrap(), 7);
}

#[test]
fn a_nested_block_on_is_an_error() {
    assert!(rt::block_on(async { rt::block_on(async {}).is_err() }).unwrap());
    // The outer core has left the thread, so another one may start.
    assert!(rt::block_on(async {}).is_ok());
}

#[test]
fn spawned_tasks_run_between_the_turns_of_the_main_one() {
    let count = rt::block_on(async {
        let count = Rc::new(Cell::new(0));
        for _ in 0..1000 {
            let count = count.clone();
            rt::spawn(async move {
                rt::yield_now().await;
                count.set(count.get() + 1);
            });
        }
        while count.get() < 1000 {
            rt::yield_now().await;
        }
        count.get()
    });
    assert_eq!(count.unwrap(), 1000);
}

/// Three sleeps that end in another order than they begin. `None` if this thread was descheduled
/// until one had ended before all had begun.
async fn order_of_three_sleeps() -> Option<Vec<u64>> {
    let began_ns = rt::monotonic_ns();
    let (begun, order) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    for ms in [30u64, 10, 20] {
        let (begun, order) = (begun.clone(), order.clone());
        let (start_ns, sleep) = (rt::monotonic_ns(), rt::sleep(Duration::from_millis(ms)));
        rt::spawn(async move {
            begun.set(begun.get() + 1);
            sleep.await;
            assert!(rt::monotonic_ns() - start_ns >= ms * 1_000_000);
            order.borrow_mut().push(ms);
        });
    }
    while begun.get() < 3 {
        rt::yield_now().await;
    }
    let in_time = rt::monotonic_ns() - began_ns < 10_000_000;
    while order.borrow().len() < 3 {
        rt::sleep(Duration::from_millis(1)).await;
    }
    in_time.then(|| order.take())
}

#[test]
fn timers_fire_in_order_of_their_deadlines() {
    let order = (0..200).find_map(|_| rt::block_on(order_of_three_sleeps()).unwrap());
    assert_eq!(order.unwrap(), [10, 20, 30]);
}

#[test]
fn a_dropped_sleep_wakes_no_task() {
    let polls = rt::block_on(async {
        let mut long = Box::pin(rt::sleep(Duration::from_millis(200)));
        poll_fn(|cx| {
            assert!(long.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(long);
        let polls = Cell::new(0);
        let mut longer = Box::pin(rt::sleep(Duration::from_millis(400)));
        poll_fn(|cx| {
            polls.set(polls.get() + 1);
            longer.as_mut().poll(cx)
        })
        .await;
        polls.get()
    });
    // One if the machine was so busy that the sleep had ended at the first poll.
    assert!(matches!(polls.unwrap(), 1 | 2));
}

#[test]
fn cores_wake_each_other() {
    const ROUNDS: u64 = 2000;
    let ball = Arc::new((Event::new(), Event::new(), AtomicU64::new(0)));
    let other = ball.clone();
    let thread = rt::start_core(core("pong"), move || async move {
        for _ in 0..ROUNDS {
            other.0.wait().await;
            other.0.clear();
            other.2.fetch_add(1, Ordering::Relaxed);
            other.1.set();
        }
    });
    let rounds = ball.clone();
    rt::block_on(async move {
        for round in 1..=ROUNDS {
            rounds.0.set();
            rounds.1.wait().await;
            rounds.1.clear();
            assert_eq!(rounds.2.load(Ordering::Relaxed), round);
        }
    })
    .unwrap();
    thread.unwrap().join().unwrap();
    assert_eq!(ball.2.load(Ordering::Relaxed), ROUNDS);
}

#[test]
fn a_plain_thread_wakes_a_sleeping_core() {
    let event = Arc::new(Event::new());
    let setter = event.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        setter.set();
    });
    rt::block_on(async move { event.wait().await }).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_wake_after_the_core_has_ended_is_harmless() {
    let event = Arc::new(Event::new());
    let waited = event.clone();
    let alive = Arc::new(());
    let held = alive.clone();
    let waker = rt::block_on(async move {
        rt::spawn(async move {
            waited.wait().await;
            drop(held);
        });
        rt::yield_now().await;
        poll_fn(|cx| Poll::Ready(cx.waker().clone())).await
    });
    waker.unwrap().wake();
    event.set();
    assert_eq!(Arc::strong_count(&alive), 1, "the task was dropped with its core");
}

#[test]
fn a_panic_in_a_task_leaves_the_thread_usable() {
    let panicked = std::panic::catch_unwind(|| rt::block_on::<()>(async { panic!("on purpose") }));
    assert!(panicked.is_err());
    assert_eq!(rt::block_on(async { 1 }).unwrap(), 1);
}

#[test]
fn join_all_keeps_the_order_of_its_futures() {
    let outputs = rt::block_on(async {
        let late_first = (0..50u64).map(|i| async move {
            for _ in i..50 {
                rt::yield_now().await;
            }
            i
        });
        rt::join_all(late_first.collect()).await
    });
    assert_eq!(outputs.unwrap(), (0..50).collect::<Vec<_>>());
}

#[test]
fn random_numbers_differ_between_threads() {
    let here = rt::random_u64();
    let there = std::thread::spawn(rt::random_u64).join().unwrap();
    assert_ne!(here, there);
    assert_ne!(here, rt::random_u64());
}
