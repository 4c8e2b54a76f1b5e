//! A batch's place in the order of commits, and waiting for its commit.

use super::Writer;
use crate::{KvError, Outcome};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

/// A batch that was enqueued.
#[derive(Clone, Debug)]
pub struct Ticket {
    state: Arc<TicketState>,
}

#[derive(Debug, Default)]
struct TicketState {
    number: u64,
    result: OnceLock<Result<Outcome, KvError>>,
    /// At most one per waiting future: a future that is polled again finds its own waker.
    wakers: Mutex<Vec<Waker>>,
}

impl Ticket {
    pub(crate) fn pending(number: u64) -> Ticket {
        Ticket { state: Arc::new(TicketState { number, ..TicketState::default() }) }
    }

    /// Returns the batch's place in the order of commits. If a batch is settled without an error,
    /// all with lower numbers are settled too.
    pub fn number(&self) -> u64 {
        self.state.number
    }

    /// Returns true once the batch is committed, refused or failed.
    pub fn is_complete(&self) -> bool {
        self.state.result.get().is_some()
    }

    /// Returns the result of the batch; `None` until it is settled.
    pub fn result(&self) -> Option<Result<Outcome, KvError>> {
        self.state.result.get().cloned()
    }

    pub(crate) fn complete(&self, result: Result<Outcome, KvError>) {
        let first = self.state.result.set(result).is_ok();
        debug_assert!(first, "a batch is settled once");
        self.wake();
    }

    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.state.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.state.wakers.lock().is_empty()
    }

    pub(crate) fn wake(&self) {
        // Taken out first: a waker may run code that calls this again.
        let wakers = std::mem::take(&mut *self.state.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Waits for a batch; returned by [`Writer::wait`].
pub struct Commit<'a> {
    writer: &'a Writer,
    ticket: &'a Ticket,
    waiting: bool,
}

impl<'a> Commit<'a> {
    pub(super) fn new(writer: &'a Writer, ticket: &'a Ticket) -> Commit<'a> {
        Commit { writer, ticket, waiting: false }
    }
}

impl Future for Commit<'_> {
    type Output = Result<Outcome, KvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.ticket.is_complete() && !self.writer.drive(self.ticket, context.waker()) {
            self.waiting = true;
            return Poll::Pending;
        }
        self.waiting = false;
        Poll::Ready(self.ticket.result().expect("a settled ticket has a result"))
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        if self.waiting && !self.ticket.is_complete() {
            self.writer.wake_all_waiters();
        }
    }
}
