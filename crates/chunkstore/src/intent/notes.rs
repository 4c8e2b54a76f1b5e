//! Which regions are noted, in memory.
//!
//! A note is *active* while a change may rely on it, then *retiring* while everything that did is made durable, then gone. The log on
//! disk holds at least all active and retiring notes.

use super::format::Note;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::InodeId;

/// Independent parts, so that cores rarely meet.
const SHARDS: usize = 16;
/// Regions noted at a time when a file grows or is written in order.
pub(crate) const AHEAD_REGIONS: u64 = 64;

struct Active {
    end: u64,
    /// The maintenance pass during which a change last relied on it.
    last_pass: u64,
}

#[derive(Default)]
struct FileNotes {
    /// By first region; may overlap.
    active: BTreeMap<u64, Active>,
    retiring: Vec<Note>,
}

impl FileNotes {
    /// The first region of `wanted` that isn't noted; marks the noted ones before it as used.
    fn first_gap(&mut self, wanted: &Range<u64>, pass: u64) -> Option<u64> {
        let mut region = wanted.start;
        while region < wanted.end {
            match self.active.range_mut(..=region).next_back() {
                Some((_, note)) if note.end > region => {
                    note.last_pass = pass;
                    region = note.end;
                }
                _ => return Some(region),
            }
        }
        None
    }

    fn is_noted_up_to(&self, region: u64) -> bool {
        self.active.range(..region).next_back().is_some_and(|(_, note)| note.end == region)
    }
}

/// Notes of all files of a store.
#[derive(Default)]
pub(crate) struct NoteTable {
    shards: [Mutex<HashMap<InodeId, FileNotes>>; SHARDS],
    len: AtomicUsize,
}

impl NoteTable {
    fn shard(&self, ino: InodeId) -> &Mutex<HashMap<InodeId, FileNotes>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Active and retiring notes.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// What has to be noted before regions `wanted` of a file may be changed; `None` when all of them are.
    pub(crate) fn lacking(&self, ino: InodeId, wanted: Range<u64>, pass: u64) -> Option<Note> {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else {
            let ahead = if wanted.start == 0 { AHEAD_REGIONS } else { 0 };
            return Some(Note { ino, first: wanted.start, end: wanted.end.max(ahead) });
        };
        let first = file.first_gap(&wanted, pass)?;
        let in_order = first == 0 || file.is_noted_up_to(first);
        let ahead = if in_order { first.saturating_add(AHEAD_REGIONS) } else { 0 };
        Some(Note { ino, first, end: wanted.end.max(ahead) })
    }

    /// Adds notes that are durable now.
    pub(crate) fn activate(&self, notes: &[Note], pass: u64) {
        for note in notes {
            let mut shard = self.shard(note.ino).lock();
            let active = &mut shard.entry(note.ino).or_default().active;
            let entry = active.entry(note.first).or_insert_with(|| {
                self.len.fetch_add(1, Ordering::Relaxed);
                Active { end: note.end, last_pass: pass }
            });
            entry.end = entry.end.max(note.end);
            entry.last_pass = pass;
        }
    }

    /// Everything that the log must not forget.
    pub(crate) fn all(&self) -> Vec<Note> {
        let mut all = Vec::with_capacity(self.len());
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter() {
                all.extend(file.active.iter().map(|(first, note)| Note {
                    ino: *ino,
                    first: *first,
                    end: note.end,
                }));
                all.extend(&file.retiring);
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Starts retiring the notes that no change has relied on since before pass `before`. Changes that begin from here on note anew.
    pub(crate) fn begin_retiring(&self, before: u64) -> BTreeMap<InodeId, Vec<Note>> {
        let mut retiring = BTreeMap::new();
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter_mut() {
                let idle = file.active.iter().filter(|(_, note)| note.last_pass < before);
                let notes: Vec<Note> =
                    idle.map(|(first, note)| Note { ino: *ino, first: *first, end: note.end }).collect();
                file.active.retain(|_, note| note.last_pass >= before);
                if !notes.is_empty() {
                    file.retiring.extend(&notes);
                    retiring.insert(*ino, notes);
                }
            }
        }
        retiring
    }

    /// Everything that relied on the retiring notes of a file is durable: they go.
    pub(crate) fn retire(&self, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return };
        self.len.fetch_sub(file.retiring.len(), Ordering::Relaxed);
        file.retiring.clear();
        if file.active.is_empty() {
            shard.remove(&ino);
        }
    }

    /// Retiring didn't work out: the notes stand as before.
    pub(crate) fn reactivate(&self, ino: InodeId, pass: u64) {
        let notes = {
            let mut shard = self.shard(ino).lock();
            let Some(file) = shard.get_mut(&ino) else { return };
            self.len.fetch_sub(file.retiring.len(), Ordering::Relaxed);
            std::mem::take(&mut file.retiring)
        };
        self.activate(&notes, pass);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeId = InodeId(7);

    fn note(first: u64, end: u64) -> Note {
        Note { ino: INO, first, end }
    }

    #[test]
    fn a_file_written_in_order_is_noted_ahead() {
        let table = NoteTable::default();
        assert_eq!(table.lacking(INO, 0..1, 0), Some(note(0, 64)));
        table.activate(&[note(0, 64)], 0);
        assert_eq!(table.lacking(INO, 63..64, 0), None);
        assert_eq!(table.lacking(INO, 63..65, 0), Some(note(64, 128)));
        assert_eq!(table.lacking(INO, 500..502, 0), Some(note(500, 502)));
    }

    #[test]
    fn only_idle_notes_retire_and_changes_note_anew() {
        let table = NoteTable::default();
        table.activate(&[note(0, 64), note(100, 101)], 0);
        assert_eq!(table.lacking(INO, 0..1, 5), None);
        assert_eq!(table.begin_retiring(5), BTreeMap::from([(INO, vec![note(100, 101)])]));
        assert_eq!(table.lacking(INO, 100..101, 5), Some(note(100, 101)));
        assert_eq!(table.all(), [note(0, 64), note(100, 101)]);
        table.retire(INO);
        assert_eq!(table.all(), [note(0, 64)]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_failed_retirement_changes_nothing() {
        let table = NoteTable::default();
        table.activate(&[note(3, 4)], 0);
        table.begin_retiring(u64::MAX);
        table.reactivate(INO, 1);
        assert_eq!(table.lacking(INO, 3..4, 1), None);
        assert_eq!(table.len(), 1);
    }
}
