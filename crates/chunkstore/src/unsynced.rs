//! Chunk files with changes that may not be on disk.
//!
//! The background writes a file back once it hasn't been changed for a pass: otherwise repeated
//! writes would reach the disk each time. A file that changes all the time is written back after
//! [`MAX_DIRTY_PASSES`] all the same.

use std::collections::{BTreeMap, BTreeSet};
use types::ChunkFileId;

/// Passes after which a file that changes all the time is written back.
const MAX_DIRTY_PASSES: u64 = 9;

/// Chunk files with unsynced changes, by the pass before which the first of these came.
#[derive(Default)]
pub(crate) struct Unsynced {
    since: BTreeMap<ChunkFileId, u64>,
    /// Number of background passes so far.
    passes: u64,
}

impl Unsynced {
    pub(crate) fn insert(&mut self, ino: ChunkFileId) {
        self.since.entry(ino).or_insert(self.passes);
    }

    pub(crate) fn remove(&mut self, ino: ChunkFileId) {
        self.since.remove(&ino);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// Takes all of them.
    pub(crate) fn take_all(&mut self) -> BTreeSet<ChunkFileId> {
        std::mem::take(&mut self.since).into_keys().collect()
    }

    /// Takes those that are to be written back in this pass of the background. `is_idle` tells
    /// whether a file hasn't been changed since the last one.
    pub(crate) fn take_due(&mut self, is_idle: impl Fn(ChunkFileId) -> bool) -> BTreeSet<ChunkFileId> {
        let passes = self.passes;
        self.passes += 1;
        let is_due = |since: u64| passes - since >= MAX_DIRTY_PASSES;
        let due = self.since.iter().filter(|(ino, since)| is_idle(**ino) || is_due(**since));
        let due: BTreeSet<ChunkFileId> = due.map(|(ino, _)| *ino).collect();
        due.iter().for_each(|ino| self.remove(*ino));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_back_when_idle_or_after_many_passes() {
        let (rests, never_rests) = (ChunkFileId(1), ChunkFileId(2));
        let mut unsynced = Unsynced::default();
        [rests, never_rests].into_iter().for_each(|ino| unsynced.insert(ino));
        assert!(unsynced.take_due(|_| false).is_empty(), "both were changed a moment ago");
        assert_eq!(unsynced.take_due(|ino| ino == rests), BTreeSet::from([rests]));
        for _ in 2..MAX_DIRTY_PASSES {
            unsynced.insert(never_rests);
            assert!(unsynced.take_due(|_| false).is_empty());
        }
        assert_eq!(unsynced.take_due(|_| false), BTreeSet::from([never_rests]));
        assert!(unsynced.is_empty());
        // Its time starts again.
        unsynced.insert(never_rests);
        assert!(unsynced.take_due(|_| false).is_empty());
        assert_eq!(unsynced.take_all(), BTreeSet::from([never_rests]));
    }
}
