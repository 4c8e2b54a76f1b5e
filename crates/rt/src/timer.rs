//! Timers of a core.

use crate::context::{self, Runtime};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
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
    Sleep::new(duration)
}

/// Returns a future's output, or `None` (and drops it) if it hasn't completed within `limit`,
/// counted from the first poll. Starts a timer only if the future isn't ready at once. A future
/// that is to continue after the limit is passed by pinned reference. Panics outside of a runtime.
pub fn timeout<F: Future>(limit: Duration, future: F) -> Timeout<F> {
    Timeout { future, limit, sleep: None }
}

/// A future with a time limit, see [`timeout`]. It needs the space of the future once, which the
/// state of an `async fn` wouldn't guarantee.
pub struct Timeout<F> {
    future: F,
    limit: Duration,
    sleep: Option<Sleep>,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        // SAFETY: only `future` needs to stay in its place, and nothing moves it from here on: it
        // is only accessed below, pinned again, and the type has no `Drop` of its own.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: it is pinned as a part of `self`.
        if let Poll::Ready(output) = unsafe { Pin::new_unchecked(&mut this.future) }.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let sleep = this.sleep.get_or_insert_with(|| Sleep::new(this.limit));
        Pin::new(sleep).poll(cx).map(|()| None)
    }
}

struct Sleep {
    deadline_ns: u64,
    armed: Option<TimerKey>,
}

impl Sleep {
    fn new(duration: Duration) -> Sleep {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Sleep { deadline_ns: crate::monotonic_ns().saturating_add(nanos), armed: None }
    }
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
