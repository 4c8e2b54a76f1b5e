//! Waits that another thread can cancel.

use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use types::{Errno, Result};

/// Ends a wait from any thread: the waiting call returns `EINTR`.
#[derive(Clone, Default)]
pub struct Cancel {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Default)]
struct CancelState {
    cancelled: bool,
    waiter: Option<Waker>,
}

impl Cancel {
    /// Cancels the wait, even if it has yet to begin.
    pub fn cancel(&self) {
        let waiter = {
            let mut state = self.state.lock();
            state.cancelled = true;
            state.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Runs `work` until it is done or cancelled; cancelled work is dropped. A result that is ready
    /// takes precedence over a cancellation.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            let mut state = self.state.lock();
            if state.cancelled {
                return Poll::Ready(Err(Errno::EINTR.into()));
            }
            state.waiter = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}
