//! The duplicate request cache: answers kept for retransmitted requests.

use crate::limits::MAX_LANES;
use kv::{Outcome, Ticket};
use types::{Errno, Error, HashMap, Result};
use wire::{MetaReply, Number};

/// An answer that was sent, or will be when its commit completes.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub reply: MetaReply,
    /// `None` if an earlier run of the service, or another service, committed it.
    pub ticket: Option<Ticket>,
}

/// The last answer of each slot of one session ([`Number`]).
#[derive(Default)]
pub(crate) struct Replies {
    lanes: HashMap<u32, Last>,
}

/// The last executed change of a slot.
struct Last {
    sequence: u32,
    recorded: Recorded,
}

impl Replies {
    /// Returns the cached answer, unless its commit was lost: then the request has to be executed.
    ///
    /// Errors: `EPROTO` if the session has sent a later change in the slot, so that it doesn't wait
    /// for this one, and for a slot beyond all that a client needs.
    pub fn get(&self, number: Number) -> Result<Option<Recorded>> {
        if number.lane >= MAX_LANES {
            let message = format!("a change in lane {}; a session has {MAX_LANES}", number.lane);
            return Err(Error::new(Errno::EPROTO, message));
        }
        let Some(last) = self.lanes.get(&number.lane) else { return Ok(None) };
        if last.sequence > number.sequence {
            let message = "a change was sent again after its client had gone on to a later one";
            return Err(Error::new(Errno::EPROTO, message));
        }
        let is_it = last.sequence == number.sequence && !last.recorded.is_lost();
        Ok(is_it.then(|| last.recorded.clone()))
    }

    /// Caches the answer to a change, unless that of the same or a later one of its slot is cached.
    pub fn keep(&mut self, number: Number, recorded: Recorded) {
        let is_known = |last: &Last| {
            last.sequence > number.sequence || last.sequence == number.sequence && !last.recorded.is_lost()
        };
        if !self.lanes.get(&number.lane).is_some_and(is_known) {
            self.lanes.insert(number.lane, Last { sequence: number.sequence, recorded });
        }
    }
}

impl Recorded {
    fn is_lost(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| matches!(ticket.result(), Some(Ok(Outcome::Lost))))
    }
}
