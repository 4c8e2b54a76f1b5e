//! Waiting for a change on the same core.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

/// Wakes the tasks of this core that wait for something to change.
#[derive(Default)]
pub(crate) struct Signal {
    waiters: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Announces a change: all waiting tasks check their condition again.
    pub(crate) fn notify(&self) {
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits until `condition` returns a value; it is evaluated again after each change.
    pub(crate) fn wait_for<T>(&self, mut condition: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
        poll_fn(move |cx| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Waits until `condition` is true.
    pub(crate) fn wait_until(&self, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
        self.wait_for(move || condition().then_some(()))
    }
}
