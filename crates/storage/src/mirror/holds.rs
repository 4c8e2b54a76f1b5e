//! A member's notes of changes of which it doesn't know yet whether all members have them.

use chunkstore::NoteHold;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::Epoch;

/// The holds of one replica while it isn't the primary. As many as changes are under way, and those of the second before.
#[derive(Default)]
pub(crate) struct Holds(Mutex<State<NoteHold>>);

struct State<H> {
    version: Epoch,
    by_sequence: BTreeMap<u64, H>,
    /// Of versions before this one.
    older: Vec<H>,
}

impl<H> Default for State<H> {
    fn default() -> State<H> {
        State { version: Epoch(0), by_sequence: BTreeMap::new(), older: Vec::new() }
    }
}

impl<H> State<H> {
    fn turn_to(&mut self, version: Epoch) {
        if version > self.version {
            self.older.extend(std::mem::take(&mut self.by_sequence).into_values());
            self.version = version;
        }
    }

    fn begin(&mut self, version: Epoch, sequence: u64, hold: H) {
        self.turn_to(version);
        if version == self.version {
            self.by_sequence.insert(sequence, hold);
        } else {
            self.older.push(hold);
        }
    }

    /// Gives what needn't be held any more.
    fn settle(&mut self, version: Epoch, settled: u64) -> Vec<H> {
        self.turn_to(version);
        if version < self.version || settled == 0 {
            return Vec::new();
        }
        let open = self.by_sequence.split_off(&settled);
        let mut over = std::mem::take(&mut self.older);
        over.extend(std::mem::replace(&mut self.by_sequence, open).into_values());
        over
    }
}

impl Holds {
    /// A change begins.
    pub(crate) fn begin(&self, version: Epoch, sequence: u64, hold: NoteHold) {
        self.0.lock().begin(version, sequence, hold);
    }

    /// All changes below `settled`, and from 1 on those of older versions, are on all copies.
    pub(crate) fn settle(&self, version: Epoch, settled: u64) {
        let over = self.0.lock().settle(version, settled);
        // Outside of the lock, since the log is told of each.
        drop(over);
    }

    /// The group is in step, with this replica as its primary.
    pub(crate) fn let_go(&self) {
        let over = std::mem::take(&mut *self.0.lock());
        drop(over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_is_let_go_and_older_versions_with_the_first() {
        let mut state = State::default();
        state.begin(Epoch(1), 1, "a");
        state.begin(Epoch(1), 2, "b");
        assert_eq!(state.settle(Epoch(1), 2), ["a"]);
        state.begin(Epoch(2), 1, "c");
        assert!(state.settle(Epoch(2), 0).is_empty());
        assert!(state.settle(Epoch(1), 5).is_empty(), "a version that is over says nothing");
        assert_eq!(state.settle(Epoch(2), 1), ["b"]);
        state.begin(Epoch(1), 9, "late");
        assert_eq!(state.settle(Epoch(2), 2), ["late", "c"]);
    }
}
