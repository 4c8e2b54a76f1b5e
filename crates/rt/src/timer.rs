//! Timers of a core.

use crate::context::{self, Runtime};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A deadline in nanoseconds of the monotonic clock, and a number that makes it unique.
pub(crate) type TimerKey = (u64, u64);

/// Sleeping futures in order of their deadlines. An ordered map rather than a heap, since most
/// timers guard an operation that completes earlier, and are removed before they are due.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerKey, Waker>,
    next: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline_ns: u64, waker: Waker) -> TimerKey {
        self.next += 1;
        let key = (deadline_ns, self.next);
        self.waiting.insert(key, waker);
        key
    }

    /// Sets the waker; false if the timer no longer exists.
    pub(crate) fn update(&mut self, key: TimerKey, waker: &Waker) -> bool {
        self.waiting.get_mut(&key).map(|known| known.clone_from(waker)).is_some()
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.waiting.remove(&key)
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(key, _)| key.0)
    }

    /// Moves the wakers of due timers to `due`.
    pub(crate) fn take_due(&mut self, now_ns: u64, due: &mut Vec<Waker>) {
        while let Some(first) = self.waiting.first_entry() {
            if first.key().0 > now_ns {
                return;
            }
            due.push(first.remove());
        }
    }
}

/// Waits for `duration`. Panics outside of a runtime.
pub fn sleep(duration: Duration) -> impl Future<Output = ()> {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Sleep { deadline_ns: crate::monotonic_ns().saturating_add(nanos), armed: None }
}

/// Returns a future's output, or `None` (and drops it) if it hasn't completed within `limit`.
/// Panics outside of a runtime.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(limit));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
    })
    .await
}

struct Sleep {
    deadline_ns: u64,
    armed: Option<TimerKey>,
}

/// Runs `f` on the timers of this thread's runtime.
fn with_timers<R>(f: impl FnOnce(&mut Timers) -> R) -> Option<R> {
    match context::current()? {
        Runtime::Core(core) => Some(f(&mut core.timers.borrow_mut())),
        Runtime::Sim(world) => Some(world.with_timers(f)),
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if crate::monotonic_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        let deadline_ns = self.deadline_ns;
        let armed = self.armed;
        let key = with_timers(|timers| match armed {
            Some(key) if timers.update(key, cx.waker()) => key,
            _ => timers.insert(deadline_ns, cx.waker().clone()),
        });
        self.armed = Some(key.expect("sleep needs rt::block_on or rt::start_core"));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.armed {
            let removed = with_timers(|timers| timers.remove(key));
            drop(removed);
        }
    }
}
