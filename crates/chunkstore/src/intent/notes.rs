//! Which regions are noted, in memory.
//!
//! A note is *active* while a change may rely on it, then *retiring* while everything that did is
//! made durable, then gone. The log on disk holds at least all active and retiring notes, but for
//! region 0 of files that rely on a span: there it holds the span.

use super::format::{Note, Records};
use super::spans::{SpanInForce, Spans};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{HashMap, InodeId};

/// Independent parts, so that cores rarely meet.
const SHARDS: usize = 16;
/// Regions noted at a time when a file grows or is written in order.
pub(crate) const AHEAD_REGIONS: u64 = 64;

struct Active {
    end: u64,
    /// The maintenance pass during which a change last relied on it.
    last_pass: u64,
    /// What stands for it in the log; `None`: a note of its own.
    span: Option<Arc<SpanInForce>>,
}

impl Active {
    /// A change needs a note of its own once the span has closed: else a file that is changed all
    /// the time would keep it in force.
    fn can_be_relied_on(&self) -> bool {
        self.span.as_ref().is_none_or(|span| span.is_open())
    }
}

struct Retiring {
    note: Note,
    span: Option<Arc<SpanInForce>>,
}

#[derive(Default)]
struct FileNotes {
    /// By first region; may overlap.
    active: BTreeMap<u64, Active>,
    retiring: Vec<Retiring>,
}

impl FileNotes {
    /// The first region of `wanted` that isn't noted; marks the noted ones before it as used.
    fn first_gap(&mut self, wanted: &Range<u64>, pass: u64) -> Option<u64> {
        let mut region = wanted.start;
        while region < wanted.end {
            match self.active.range_mut(..=region).next_back() {
                Some((_, note)) if note.end > region && note.can_be_relied_on() => {
                    note.last_pass = pass;
                    region = note.end;
                }
                _ => return Some(region),
            }
        }
        None
    }

    /// Moves the notes that were idle since before pass `before` to those that retire; returns
    /// them.
    fn begin_retiring(&mut self, ino: InodeId, before: u64) -> Vec<Note> {
        let mut begun = Vec::new();
        self.active.retain(|first, active| {
            let is_idle = active.last_pass < before;
            if is_idle {
                let note = Note { ino, first: *first, end: active.end };
                begun.push(note);
                self.retiring.push(Retiring { note, span: active.span.take() });
            }
            !is_idle
        });
        begun
    }

    fn is_noted_up_to(&self, region: u64) -> bool {
        self.active.range(..region).next_back().is_some_and(|(_, note)| note.end == region)
    }
}

/// Notes of all files of a store.
#[derive(Default)]
pub(crate) struct NoteTable {
    shards: [Mutex<HashMap<InodeId, FileNotes>>; SHARDS],
    /// Locked after a shard, if both are.
    spans: Spans,
    len: AtomicUsize,
    /// Notes that are in the log themselves.
    logged: AtomicUsize,
}

impl NoteTable {
    fn shard(&self, ino: InodeId) -> &Mutex<HashMap<InodeId, FileNotes>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Active and retiring notes.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Those of them that take room in the log.
    pub(crate) fn logged(&self) -> usize {
        self.logged.load(Ordering::Relaxed)
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// What has to be noted before regions `wanted` of a file may be changed; `None` when all of
    /// them are.
    pub(crate) fn lacking(&self, ino: InodeId, wanted: Range<u64>, pass: u64) -> Option<Note> {
        let mut shard = self.shard(ino).lock();
        let mut first = match shard.get_mut(&ino) {
            Some(file) => file.first_gap(&wanted, pass)?,
            None => wanted.start,
        };
        if first == 0
            && let Some(span) = self.spans.rely(ino, pass)
        {
            let file = shard.entry(ino).or_default();
            self.add_in_span(file, span, pass);
            first = file.first_gap(&wanted, pass)?;
        }
        let in_order = first == 0 || shard.get(&ino).is_some_and(|file| file.is_noted_up_to(first));
        let ahead = if in_order { first.saturating_add(AHEAD_REGIONS) } else { 0 };
        Some(Note { ino, first, end: wanted.end.max(ahead) })
    }

    /// Adds notes that are durable now.
    pub(crate) fn activate(&self, notes: &[Note], pass: u64) {
        for note in notes {
            let mut shard = self.shard(note.ino).lock();
            self.add_logged(shard.entry(note.ino).or_default(), *note, pass);
        }
    }

    /// Adds a note that is in the log.
    fn add_logged(&self, file: &mut FileNotes, note: Note, pass: u64) {
        let entry = file.active.entry(note.first).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            self.logged.fetch_add(1, Ordering::Relaxed);
            Active { end: note.end, last_pass: pass, span: None }
        });
        if entry.span.take().is_some() {
            self.logged.fetch_add(1, Ordering::Relaxed);
        }
        entry.end = entry.end.max(note.end);
        entry.last_pass = pass;
    }

    /// Adds a note of region 0 for which a span is in the log.
    fn add_in_span(&self, file: &mut FileNotes, span: Arc<SpanInForce>, pass: u64) {
        let entry = file.active.entry(0).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            Active { end: 1, last_pass: pass, span: Some(span.clone()) }
        });
        // A note of its own is as good, and one in an open span is better than one in a closed one.
        if !entry.can_be_relied_on() {
            entry.span = Some(span);
        }
        entry.last_pass = pass;
    }

    /// Everything that the log must not forget. The caller keeps the log from being written.
    pub(crate) fn all(&self) -> Records {
        let mut notes = Vec::with_capacity(self.logged());
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter() {
                let active = file.active.iter().filter(|(_, note)| note.span.is_none());
                notes.extend(active.map(|(first, note)| Note { ino: *ino, first: *first, end: note.end }));
                let retiring = file.retiring.iter().filter(|retiring| retiring.span.is_none());
                notes.extend(retiring.map(|retiring| retiring.note));
            }
        }
        notes.sort_unstable();
        notes.dedup();
        Records { notes, spans: self.spans.all() }
    }

    /// All notes of files from `from` on, those that a span stands for included, in no order.
    pub(crate) fn noted(&self, from: InodeId) -> Vec<Note> {
        let mut notes = Vec::new();
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter().filter(|(ino, _)| **ino >= from) {
                let active = file.active.iter();
                notes.extend(active.map(|(first, note)| Note { ino: *ino, first: *first, end: note.end }));
                notes.extend(file.retiring.iter().map(|retiring| retiring.note));
            }
        }
        notes
    }

    /// Starts retiring the notes that no change has relied on in maintenance pass `before` or
    /// later. Changes that begin from here on note anew.
    pub(crate) fn begin_retiring(&self, before: u64) -> BTreeMap<InodeId, Vec<Note>> {
        let mut retiring = BTreeMap::new();
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter_mut() {
                let begun = file.begin_retiring(*ino, before);
                if !begun.is_empty() {
                    retiring.insert(*ino, begun);
                }
            }
        }
        retiring
    }

    /// Everything that relied on the retiring notes of a file is durable: they go.
    pub(crate) fn retire(&self, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return };
        self.take_retiring(file);
        if file.active.is_empty() {
            shard.remove(&ino);
        }
    }

    /// Retiring didn't work out: the notes stand as before.
    pub(crate) fn reactivate(&self, ino: InodeId, pass: u64) {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return };
        for Retiring { note, span } in self.take_retiring(file) {
            match span {
                Some(span) => self.add_in_span(file, span, pass),
                None => self.add_logged(file, note, pass),
            }
        }
    }

    fn take_retiring(&self, file: &mut FileNotes) -> Vec<Retiring> {
        let retiring = std::mem::take(&mut file.retiring);
        let logged = retiring.iter().filter(|retiring| retiring.span.is_none()).count();
        self.len.fetch_sub(retiring.len(), Ordering::Relaxed);
        self.logged.fetch_sub(logged, Ordering::Relaxed);
        retiring
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
        assert_eq!(table.all().notes, [note(0, 64), note(100, 101)]);
        table.retire(INO);
        assert_eq!(table.all().notes, [note(0, 64)]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_failed_retirement_changes_nothing() {
        let table = NoteTable::default();
        table.activate(&[note(3, 4)], 0);
        table.begin_retiring(1);
        table.reactivate(INO, 1);
        assert_eq!(table.lacking(INO, 3..4, 1), None);
        assert_eq!(table.len(), 1);
    }
}
