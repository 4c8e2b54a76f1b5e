//! The running requests of one connection.

use crate::Deadline;
use crate::limits::ABANDONED_AFTER;
use crate::signal::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The running requests of one connection. The client's credits bound their number.
#[derive(Default)]
pub(super) struct Requests {
    running: Cell<usize>,
    /// The latest deadline of all requests that don't wait, on the monotonic clock; `u64::MAX` if
    /// one has none, 0 if there was no request.
    latest_deadline_ns: Cell<u64>,
    /// Requests without a time limit, by id, with the handle that cancels each.
    waiting: RefCell<BTreeMap<u64, Rc<Cancel>>>,
    changed: Signal,
}

/// Cancels a request that waits.
#[derive(Default)]
pub(super) struct Cancel {
    cancelled: Cell<bool>,
    signal: Signal,
}

/// A running request; counted until this is dropped.
pub(super) struct RunningRequest {
    requests: Rc<Requests>,
    id: u64,
    /// For a request that may wait.
    pub(super) cancel: Option<Rc<Cancel>>,
}

impl Requests {
    /// Number of running requests.
    pub(super) fn running(&self) -> usize {
        self.running.get()
    }

    /// Number of running requests that may wait for other clients.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Whether one of those has this id. A second one with the same id would not be counted, and
    /// could not be cancelled.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        self.waiting.borrow().contains_key(&id)
    }

    /// Number of running requests that don't wait.
    pub(super) fn non_waiting(&self) -> usize {
        self.running() - self.waiting()
    }

    /// Begins a request; `deadline` is when its client abandons it.
    pub(super) fn begin(self: &Rc<Self>, id: u64, waits: bool, deadline: &Deadline) -> RunningRequest {
        self.running.set(self.running.get() + 1);
        if !waits {
            self.latest_deadline_ns.set(self.latest_deadline_ns.get().max(deadline.at_ns()));
        }
        let cancel = waits.then(Rc::<Cancel>::default);
        if let Some(cancel) = &cancel {
            self.waiting.borrow_mut().insert(id, cancel.clone());
        }
        RunningRequest { requests: self.clone(), id, cancel }
    }

    /// Cancels a request that waits; other requests run to their end, and unknown ids are ignored.
    pub(super) fn cancel(&self, id: u64) {
        let cancel = self.waiting.borrow().get(&id).cloned();
        cancel.inspect(|cancel| cancel.cancel());
    }

    /// Cancels all requests that wait.
    pub(super) fn cancel_all(&self) {
        let all: Vec<Rc<Cancel>> = self.waiting.borrow().values().cloned().collect();
        all.iter().for_each(|cancel| cancel.cancel());
    }

    /// Whether the clients of all running requests have abandoned them, so that none will be
    /// retransmitted.
    pub(super) fn are_abandoned(&self) -> bool {
        let latest_ns = self.latest_deadline_ns.get();
        let passed_ns = rt::monotonic_ns().saturating_sub(latest_ns);
        self.waiting.borrow().is_empty()
            && (latest_ns == 0 || latest_ns != u64::MAX && passed_ns > ABANDONED_AFTER.as_nanos() as u64)
    }

    /// Waits until no request runs.
    pub(super) async fn all_ended(&self) {
        self.changed.wait_until(|| self.running.get() == 0).await;
    }
}

impl Cancel {
    fn cancel(&self) {
        self.cancelled.set(true);
        self.signal.notify();
    }

    /// Waits until the request is cancelled.
    pub(super) async fn cancelled(&self) {
        self.signal.wait_until(|| self.cancelled.get()).await;
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let requests = &self.requests;
        if self.cancel.is_some() {
            requests.waiting.borrow_mut().remove(&self.id);
        }
        requests.running.set(requests.running.get() - 1);
        if requests.running.get() == 0 {
            requests.changed.notify();
        }
    }
}
