//! The duplicate request cache: answers kept for retransmitted requests.

use crate::limits::MAX_SESSION_SLOTS;
use kv::{Outcome, Ticket};
use types::{Errno, Error, HashMap, Result};
use wire::{MetaReply, SlotSequence};

/// An answer that was sent, or will be when its commit completes.
#[derive(Clone)]
pub(crate) struct CachedReply {
    pub reply: MetaReply,
    /// `None` if an earlier run of the service, or another service, committed it.
    pub ticket: Option<Ticket>,
}

/// The last answer of each slot of one session ([`SlotSequence`]).
#[derive(Default)]
pub(crate) struct ReplyCache {
    slots: HashMap<u32, SlotReply>,
}

/// The last executed change of a slot.
struct SlotReply {
    sequence: u32,
    recorded: CachedReply,
}

impl ReplyCache {
    /// Returns the cached answer, unless its commit was lost: then the request has to be executed.
    ///
    /// Errors: `EPROTO` if the session has sent a later change in the slot, so that it doesn't wait
    /// for this one, and for a slot beyond all that a client needs.
    pub fn get(&self, number: SlotSequence) -> Result<Option<CachedReply>> {
        if number.slot >= MAX_SESSION_SLOTS {
            let message =
                format!("a request in session slot {}; a session has {MAX_SESSION_SLOTS} slots", number.slot);
            return Err(Error::new(Errno::EPROTO, message));
        }
        let Some(last) = self.slots.get(&number.slot) else { return Ok(None) };
        if last.sequence > number.sequence {
            let message =
                "a request was retransmitted after its client had sent a later one in the same session slot";
            return Err(Error::new(Errno::EPROTO, message));
        }
        let is_it = last.sequence == number.sequence && !last.recorded.is_lost();
        Ok(is_it.then(|| last.recorded.clone()))
    }

    /// Caches the answer to a change, unless that of the same or a later one of its slot is cached.
    pub fn store(&mut self, number: SlotSequence, recorded: CachedReply) {
        let is_known = |last: &SlotReply| {
            last.sequence > number.sequence || last.sequence == number.sequence && !last.recorded.is_lost()
        };
        if !self.slots.get(&number.slot).is_some_and(is_known) {
            self.slots.insert(number.slot, SlotReply { sequence: number.sequence, recorded });
        }
    }
}

impl CachedReply {
    fn is_lost(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| matches!(ticket.result(), Some(Ok(Outcome::GuardFailed))))
    }
}
