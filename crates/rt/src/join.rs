//! Helpers for tasks and futures.

use crate::context::{self, Runtime};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Starts a task on this core. It ends with the core at the latest. Panics outside of a runtime.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    match context::current().expect("spawn needs rt::block_on or rt::start_core") {
        Runtime::Core(core) => core.spawn(Box::pin(task)),
        Runtime::Sim(world) => world.spawn(Box::pin(task)),
    }
}

/// Lets the other tasks that are ready run first.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Runs futures concurrently within the calling task; returns their outputs in the order of the
/// futures.
///
/// Meant for a handful (the targets of one request): every wake polls all that are unfinished.
pub async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<Running<F>> = futures.into_iter().map(|f| Running::Pending(Box::pin(f))).collect();
    poll_fn(|cx| {
        let mut all_done = true;
        for slot in &mut running {
            if let Running::Pending(future) = slot {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *slot = Running::Done(output),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if all_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let output = |slot| match slot {
        Running::Done(output) => output,
        Running::Pending(_) => unreachable!("all futures are done"),
    };
    running.into_iter().map(output).collect()
}

enum Running<F: Future> {
    Pending(Pin<Box<F>>),
    Done(F::Output),
}
