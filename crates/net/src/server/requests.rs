//! The requests that run for one connection.

use crate::Deadline;
use crate::limits::GIVEN_UP_FOR;
use crate::signal::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The requests that run for one connection. The client's credits bound it.
#[derive(Default)]
pub(super) struct Requests {
    running: Cell<usize>,
    /// The latest deadline of all that don't wait.
    latest: Cell<Option<Deadline>>,
    /// Those that may take as long as they like, by id; what cancels them.
    waiting: RefCell<BTreeMap<u64, Rc<Cancel>>>,
    changed: Signal,
}

/// Ends a request that waits.
#[derive(Default)]
pub(super) struct Cancel {
    cancelled: Cell<bool>,
    signal: Signal,
}

/// A request that runs; it is counted until this is dropped.
pub(super) struct Running {
    requests: Rc<Requests>,
    id: u64,
    /// For one that waits.
    pub(super) cancel: Option<Rc<Cancel>>,
}

impl Requests {
    /// How many run.
    pub(super) fn running(&self) -> usize {
        self.running.get()
    }

    /// How many of them may wait for others.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Whether one of those has this id. A second one would not be counted, and nothing could end
    /// it.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        self.waiting.borrow().contains_key(&id)
    }

    /// How many of them do not.
    pub(super) fn working(&self) -> usize {
        self.running() - self.waiting()
    }

    /// Begins a request; `deadline` is when its client gives it up.
    pub(super) fn begin(self: &Rc<Self>, id: u64, waits: bool, deadline: Deadline) -> Running {
        self.running.set(self.running.get() + 1);
        if !waits {
            self.latest.set(Some(self.latest.get().map_or(deadline, |latest| latest.max(deadline))));
        }
        let cancel = waits.then(Rc::<Cancel>::default);
        if let Some(cancel) = &cancel {
            self.waiting.borrow_mut().insert(id, cancel.clone());
        }
        Running { requests: self.clone(), id, cancel }
    }

    /// Ends one that waits; others, and unknown ones, run to their end.
    pub(super) fn cancel(&self, id: u64) {
        let cancel = self.waiting.borrow().get(&id).cloned();
        cancel.inspect(|cancel| cancel.cancel());
    }

    /// Ends all that wait.
    pub(super) fn cancel_all(&self) {
        let all: Vec<Rc<Cancel>> = self.waiting.borrow().values().cloned().collect();
        all.iter().for_each(|cancel| cancel.cancel());
    }

    /// Whether the clients of all that run have given them up, so that nobody repeats them any
    /// more.
    pub(super) fn are_given_up(&self) -> bool {
        let latest = self.latest.get();
        self.waiting.borrow().is_empty() && latest.is_none_or(|latest| latest.is_over_for(GIVEN_UP_FOR))
    }

    /// Waits until none runs.
    pub(super) async fn ended(&self) {
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

impl Drop for Running {
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
