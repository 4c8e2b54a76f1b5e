//! The primary's sequence numbers of changes: tracks which changes are on all replicas.

use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeSet;
use std::time::Duration;
use types::Epoch;

/// How often a task that waits for older changes checks again; as a rule it is woken.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The changes of one replica while it is the primary.
#[derive(Default)]
pub(crate) struct Sequences {
    state: Mutex<State>,
    ended: Event,
}

#[derive(Default)]
struct State {
    version: Epoch,
    /// Sequence numbers of this version that were assigned.
    assigned: u64,
    outstanding: BTreeSet<u64>,
    /// Unfinished changes of older versions.
    older: usize,
    /// The version and number that members were last told.
    last_sent: (Epoch, u64),
}

/// A change until it is on all replicas, or the intent log retains its region.
pub(crate) struct Ticket<'a> {
    sequences: &'a Sequences,
    version: Epoch,
    /// Its sequence number in its version.
    pub(crate) sequence: u64,
}

impl State {
    fn advance_to(&mut self, version: Epoch) {
        if version > self.version {
            self.older += self.outstanding.len();
            self.outstanding.clear();
            self.assigned = 0;
            self.version = version;
        }
    }

    /// Returns the lowest number that isn't on all replicas. From 1 on, all changes of older
    /// versions are on all replicas, too.
    fn settled(&self) -> u64 {
        match self.older {
            0 => self.outstanding.first().copied().unwrap_or(self.assigned + 1),
            _ => 0,
        }
    }
}

impl Sequences {
    /// Begins a change that is sent to the members of a version.
    pub(crate) fn begin(&self, version: Epoch) -> Ticket<'_> {
        let mut state = self.state.lock();
        state.advance_to(version);
        if version < state.version {
            // It counts as one of those that the newer version waits for.
            state.older += 1;
            return Ticket { sequences: self, version, sequence: 0 };
        }
        state.assigned += 1;
        let sequence = state.assigned;
        state.outstanding.insert(sequence);
        Ticket { sequences: self, version, sequence }
    }

    /// Returns the settled number that members of a version may be told.
    pub(crate) fn settled(&self, version: Epoch) -> u64 {
        let mut state = self.state.lock();
        state.advance_to(version);
        let settled = if version == state.version { state.settled() } else { 0 };
        state.last_sent = state.last_sent.max((version, settled));
        settled
    }

    /// Whether the settled number has grown since members were last told.
    pub(crate) fn has_unsent(&self, version: Epoch) -> bool {
        let mut state = self.state.lock();
        state.advance_to(version);
        version == state.version && (version, state.settled()) > state.last_sent.max((version, 0))
    }

    /// Waits until no change of an older version is left.
    pub(crate) async fn wait_for_older(&self, version: Epoch) {
        loop {
            let waiting = {
                let mut state = self.state.lock();
                state.advance_to(version);
                if state.older == 0 {
                    return;
                }
                self.ended.clear();
                self.ended.wait()
            };
            rt::timeout(RECHECK_INTERVAL, waiting).await;
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.sequences.state.lock();
        if self.sequence > 0 && state.version == self.version {
            state.outstanding.remove(&self.sequence);
            return;
        }
        state.older -= 1;
        if state.older == 0 {
            self.sequences.ended.set();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settled_number_grows_with_the_oldest_change() {
        let sequences = Sequences::default();
        assert_eq!(sequences.settled(Epoch(1)), 1);
        let first = sequences.begin(Epoch(1));
        let second = sequences.begin(Epoch(1));
        assert_eq!((first.sequence, second.sequence), (1, 2));
        drop(second);
        assert_eq!(sequences.settled(Epoch(1)), 1);
        drop(first);
        assert!(sequences.has_unsent(Epoch(1)));
        assert_eq!(sequences.settled(Epoch(1)), 3);
        assert!(!sequences.has_unsent(Epoch(1)));
    }

    #[test]
    fn a_version_is_not_settled_before_the_older_ones() {
        let sequences = Sequences::default();
        let old = sequences.begin(Epoch(1));
        let new = sequences.begin(Epoch(2));
        assert_eq!((new.sequence, sequences.settled(Epoch(2))), (1, 0));
        let late = sequences.begin(Epoch(1));
        drop(old);
        assert_eq!(sequences.settled(Epoch(2)), 0);
        drop(late);
        assert_eq!(sequences.settled(Epoch(2)), 1);
        drop(new);
        assert_eq!(sequences.settled(Epoch(2)), 2);
    }
}
