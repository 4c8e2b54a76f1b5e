//! Bounds the bytes of requests, their payloads and their answers that one core of a server holds.
//!
//! Most of the budget is shared. One part is reserved for nodes, and one for small requests.
//! Clients wait for requests between nodes: a primary holds its client's data until the other
//! members of the group have written it. So such a write must never wait for data of clients, least
//! of all on two nodes that wait for each other. Small requests such as unlocks and heartbeats let
//! large ones complete, so they must not queue behind data.

use crate::Caller;
use crate::budget::{Budget, Permit};
use crate::limits::{RESERVED_BUDGET_DIVISOR, SMALL_REQUEST_BYTES};
use identity::Member;
use rt::Either;
use std::rc::Rc;

/// The memory budget of a core.
pub(super) struct MemoryBudget {
    shared: Rc<Budget>,
    reserved_for_nodes: Rc<Budget>,
    reserved_for_small: Rc<Budget>,
}

impl MemoryBudget {
    /// A budget of `total` bytes.
    pub(super) fn new(total: usize) -> MemoryBudget {
        let reserved = total / RESERVED_BUDGET_DIVISOR;
        MemoryBudget {
            shared: Budget::new(total - 2 * reserved),
            reserved_for_nodes: Budget::new(reserved),
            reserved_for_small: Budget::new(reserved),
        }
    }

    /// The reserved part that a request may use, if any.
    fn reserved(&self, caller: &Caller, amount: usize) -> Option<&Rc<Budget>> {
        if matches!(caller.proof.role(), Some(Member::Node(_))) {
            return Some(&self.reserved_for_nodes);
        }
        (amount < SMALL_REQUEST_BYTES).then_some(&self.reserved_for_small)
    }

    /// Takes a permit for a request if one is available at once.
    pub(super) fn try_acquire(&self, caller: &Caller, amount: usize) -> Option<Permit> {
        let reserved = || self.reserved(caller, amount)?.try_acquire(amount);
        self.shared.try_acquire(amount).or_else(reserved)
    }

    /// Waits for a permit for a request.
    pub(super) async fn take(&self, caller: &Caller, amount: usize) -> Option<Permit> {
        let from_all = self.shared.acquire(amount);
        match self.reserved(caller, amount) {
            None => from_all.await,
            Some(reserved) => match rt::select(reserved.acquire(amount), from_all).await {
                Either::First(permit) | Either::Second(permit) => permit,
            },
        }
    }
}
