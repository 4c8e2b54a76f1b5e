//! What one core of a server holds of requests, their payloads and the answers that they ask for.
//!
//! Most of it is for all. A part is kept for nodes, and one for small requests. Nodes do for each
//! other what clients wait for: a primary holds its client's data until the other members of the
//! group have done their part, so that part must never wait for the data of clients, least of all
//! on two nodes that wait for each other. And small requests end large ones, as unlocking and
//! heartbeats do: they needn't wait behind data.

use crate::Caller;
use crate::budget::{Budget, Permit};
use crate::either::{Either, either};
use crate::limits::{KEPT_ROOM_IS_ONE_OF, SMALL_REQUEST_BYTES};
use identity::Role;
use std::rc::Rc;

/// The room of a core.
pub(super) struct Room {
    for_all: Rc<Budget>,
    for_nodes: Rc<Budget>,
    for_small: Rc<Budget>,
}

impl Room {
    /// Room for so many bytes in all.
    pub(super) fn new(total: usize) -> Room {
        let kept = total / KEPT_ROOM_IS_ONE_OF;
        Room {
            for_all: Budget::new(total - 2 * kept),
            for_nodes: Budget::new(kept),
            for_small: Budget::new(kept),
        }
    }

    /// What is kept for such requests, if there is something.
    fn kept(&self, caller: &Caller, amount: usize) -> Option<&Rc<Budget>> {
        if matches!(caller.proof.role(), Some(Role::Node(_))) {
            return Some(&self.for_nodes);
        }
        (amount < SMALL_REQUEST_BYTES).then_some(&self.for_small)
    }

    /// Takes so much for a request if there is room at once.
    pub(super) fn try_take(&self, caller: &Caller, amount: usize) -> Option<Permit> {
        let kept = || self.kept(caller, amount)?.try_acquire(amount);
        self.for_all.try_acquire(amount).or_else(kept)
    }

    /// Waits for so much room for a request.
    pub(super) async fn take(&self, caller: &Caller, amount: usize) -> Option<Permit> {
        let from_all = self.for_all.acquire(amount);
        match self.kept(caller, amount) {
            None => from_all.await,
            Some(kept) => match either(kept.acquire(amount), from_all).await {
                Either::First(permit) | Either::Second(permit) => permit,
            },
        }
    }
}
