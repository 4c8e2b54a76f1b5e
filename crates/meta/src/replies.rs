//! Answers kept for requests that are sent again.

use crate::limits::REPLIES_PER_SESSION;
use kv::{Outcome, Ticket};
use std::collections::BTreeMap;
use wire::MetaReply;

/// An answer that was given, or will be when its commit is in.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub reply: MetaReply,
    /// `None` when it was committed by an earlier run of the service.
    pub ticket: Option<Ticket>,
}

/// The last answers of one session, by the number of the request.
#[derive(Default)]
pub(crate) struct Replies {
    by_sequence: BTreeMap<u64, Recorded>,
}

impl Replies {
    /// The answer, unless its commit turned out to be lost: then the request is to be carried out.
    pub fn get(&self, sequence: u64) -> Option<Recorded> {
        let recorded = self.by_sequence.get(&sequence)?;
        let is_lost = recorded.ticket.as_ref().is_some_and(|t| matches!(t.result(), Some(Ok(Outcome::Lost))));
        (!is_lost).then(|| recorded.clone())
    }

    /// Adds one that is in the store, unless it is known.
    pub fn insert_old(&mut self, sequence: u64, recorded: Recorded) {
        if self.get(sequence).is_none() {
            self.insert(sequence, recorded);
        }
    }

    pub fn insert(&mut self, sequence: u64, recorded: Recorded) {
        self.by_sequence.insert(sequence, recorded);
        if self.by_sequence.len() > REPLIES_PER_SESSION {
            self.by_sequence.pop_first();
        }
    }
}
