//! Unsettled changes of a member: it doesn't know yet whether all members have them. Their dirty
//! regions are retained, and their ranges can't be read here.

use chunkstore::EntryHold;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{ByteRange, ChunkFileId, Epoch, HashMap};

/// The unsettled changes of one replica while it isn't the primary: those under way, and those of
/// the previous second.
#[derive(Default)]
pub(crate) struct UnsettledChanges(Mutex<State<EntryHold>>);

/// Identifies a change: the version in which it was sent, and its sequence number there.
type ChangeId = (Epoch, u64);

/// A change that isn't known to be on all replicas.
struct UnsettledChange<H> {
    ino: ChunkFileId,
    _hold: H,
}

struct State<H> {
    version: Epoch,
    by_id: BTreeMap<ChangeId, UnsettledChange<H>>,
    /// The ranges of the changes, by file.
    ranges: HashMap<ChunkFileId, Vec<(ChangeId, ByteRange)>>,
}

impl<H> Default for State<H> {
    fn default() -> State<H> {
        State { version: Epoch(0), by_id: BTreeMap::new(), ranges: HashMap::default() }
    }
}

impl<H> State<H> {
    fn begin(&mut self, id: ChangeId, (ino, range): (ChunkFileId, ByteRange), hold: H) {
        self.version = self.version.max(id.0);
        // A change may arrive twice after a broken connection: it is the same one.
        self.remove_range(id);
        self.by_id.insert(id, UnsettledChange { ino, _hold: hold });
        self.ranges.entry(ino).or_default().push((id, range));
    }

    /// Returns the changes whose dirty regions needn't be retained any more.
    fn settle(&mut self, version: Epoch, settled: u64) -> Vec<UnsettledChange<H>> {
        self.version = self.version.max(version);
        if version < self.version || settled == 0 {
            return Vec::new();
        }
        let open = self.by_id.split_off(&(version, settled));
        let settled_changes = std::mem::replace(&mut self.by_id, open);
        for (id, change) in &settled_changes {
            self.remove_from_file(*id, change.ino);
        }
        settled_changes.into_values().collect()
    }

    fn remove_range(&mut self, id: ChangeId) {
        if let Some(ino) = self.by_id.get(&id).map(|change| change.ino) {
            self.remove_from_file(id, ino);
        }
    }

    fn remove_from_file(&mut self, id: ChangeId, ino: ChunkFileId) {
        let Some(ranges) = self.ranges.get_mut(&ino) else { return };
        ranges.retain(|(other, _)| *other != id);
        if ranges.is_empty() {
            self.ranges.remove(&ino);
        }
    }

    fn is_unsettled(&self, ino: ChunkFileId, range: ByteRange) -> bool {
        let ranges = self.ranges.get(&ino).map(Vec::as_slice).unwrap_or_default();
        ranges.iter().any(|(_, open)| open.overlaps(range))
    }
}

impl UnsettledChanges {
    /// Records that a change begins.
    pub(crate) fn begin(
        &self,
        (version, sequence): (Epoch, u64),
        (ino, range): (ChunkFileId, ByteRange),
        hold: EntryHold,
    ) {
        self.0.lock().begin((version, sequence), (ino, range), hold);
    }

    /// Records that all changes below `settled`, and if that is at least 1 those of older versions,
    /// are on all replicas.
    pub(crate) fn settle(&self, version: Epoch, settled: u64) {
        let settled_changes = self.0.lock().settle(version, settled);
        // Outside of the lock, since each drop updates the intent log.
        drop(settled_changes);
    }

    /// Whether this range of a file has a change that isn't known to be on all replicas.
    pub(crate) fn is_unsettled(&self, ino: ChunkFileId, range: ByteRange) -> bool {
        self.0.lock().is_unsettled(ino, range)
    }

    /// Drops all: the group is in sync, with this replica as its primary.
    pub(crate) fn clear(&self) {
        let settled_changes = std::mem::take(&mut *self.0.lock());
        drop(settled_changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    const INO: ChunkFileId = ChunkFileId(7);

    /// Records its name when it is dropped.
    struct Hold(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Drop for Hold {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    #[test]
    fn settled_changes_are_dropped_with_all_older_versions() {
        let gone = Rc::<RefCell<Vec<&str>>>::default();
        let mut state = State::default();
        let begin = |state: &mut State<Hold>, version, sequence, name| {
            let range = ByteRange::at(sequence * 10, 10);
            state.begin((Epoch(version), sequence), (INO, range), Hold(name, gone.clone()));
        };
        let settle = |state: &mut State<Hold>, version, settled| {
            drop(state.settle(Epoch(version), settled));
            std::mem::take(&mut *gone.borrow_mut())
        };
        begin(&mut state, 1, 1, "a");
        begin(&mut state, 1, 2, "b");
        assert!(
            state.is_unsettled(INO, ByteRange::new(0, 11)) && state.is_unsettled(INO, ByteRange::new(29, 99))
        );
        assert_eq!(settle(&mut state, 1, 2), ["a"]);
        assert!(
            !state.is_unsettled(INO, ByteRange::new(0, 20))
                && !state.is_unsettled(ChunkFileId(8), ByteRange::new(20, 30))
        );
        begin(&mut state, 2, 1, "c");
        assert!(settle(&mut state, 2, 0).is_empty());
        assert!(settle(&mut state, 1, 5).is_empty(), "a version that is over says nothing");
        assert!(state.is_unsettled(INO, ByteRange::new(20, 30)));
        assert_eq!(settle(&mut state, 2, 1), ["b"]);
        begin(&mut state, 1, 9, "late");
        assert_eq!(settle(&mut state, 2, 2), ["late", "c"]);
        assert!(state.ranges.is_empty() && state.by_id.is_empty());
    }

    #[test]
    fn a_repeated_change_counts_once() {
        let mut state = State::default();
        for hold in ["first", "second"] {
            state.begin((Epoch(1), 1), (INO, ByteRange::new(0, 10)), hold);
        }
        assert_eq!(state.settle(Epoch(1), 2).len(), 1);
        assert!(!state.is_unsettled(INO, ByteRange::new(0, 10)));
    }
}
