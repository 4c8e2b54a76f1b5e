//! Answers kept for requests that are sent again.

use crate::limits::REPLIES_PER_SESSION;
use kv::Ticket;
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
    pub fn get(&self, sequence: u64) -> Option<Recorded> {
        self.by_sequence.get(&sequence).cloned()
    }

    pub fn insert(&mut self, sequence: u64, recorded: Recorded) {
        self.by_sequence.insert(sequence, recorded);
        if self.by_sequence.len() > REPLIES_PER_SESSION {
            self.by_sequence.pop_first();
        }
    }
}
