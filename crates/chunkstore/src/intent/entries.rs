//! The entries of the intent log, in memory.
//!
//! An entry is *active* while a change may rely on it, then *retiring* while everything that did is
//! made durable, then removed. The log on disk holds at least all active and retiring entries,
//! except region 0 of files that rely on a span: for those it holds the span.

use super::format::{DirtyRegions, Records};
use super::spans::{ActiveSpan, Spans};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{ChunkFileId, HashMap};

/// Independent parts, so that cores rarely contend.
const SHARDS: usize = 16;
/// Regions that are marked dirty at a time when a file grows or is written sequentially.
pub(crate) const AHEAD_REGIONS: u64 = 64;

struct Active {
    end: u64,
    /// The maintenance pass during which a change last relied on it.
    last_pass: u64,
    /// The span that stands for it in the log; `None`: it has its own record.
    span: Option<Arc<ActiveSpan>>,
}

impl Active {
    /// Once the span has closed, a change needs a record of its own: otherwise a file that changes
    /// all the time would keep the span active.
    fn is_usable(&self) -> bool {
        self.span.as_ref().is_none_or(|span| span.is_open())
    }
}

struct Retiring {
    entry: DirtyRegions,
    span: Option<Arc<ActiveSpan>>,
}

#[derive(Default)]
struct FileEntries {
    /// By first region; may overlap.
    active: BTreeMap<u64, Active>,
    retiring: Vec<Retiring>,
}

impl FileEntries {
    /// Returns the first region of `wanted` that isn't dirty; marks the entries before it as used.
    fn first_gap(&mut self, wanted: &Range<u64>, pass: u64) -> Option<u64> {
        let mut region = wanted.start;
        while region < wanted.end {
            match self.active.range_mut(..=region).next_back() {
                Some((_, entry)) if entry.end > region && entry.is_usable() => {
                    entry.last_pass = pass;
                    region = entry.end;
                }
                _ => return Some(region),
            }
        }
        None
    }

    /// Moves the entries that were idle since before pass `before` to the retiring ones; returns
    /// them.
    fn begin_retiring(&mut self, ino: ChunkFileId, before: u64) -> Vec<DirtyRegions> {
        let mut begun = Vec::new();
        self.active.retain(|first, active| {
            let is_idle = active.last_pass < before;
            if is_idle {
                let entry = DirtyRegions { ino, first: *first, end: active.end };
                begun.push(entry);
                self.retiring.push(Retiring { entry, span: active.span.take() });
            }
            !is_idle
        });
        begun
    }

    fn is_dirty_up_to(&self, region: u64) -> bool {
        self.active.range(..region).next_back().is_some_and(|(_, entry)| entry.end == region)
    }
}

/// The entries of all files of a store.
#[derive(Default)]
pub(crate) struct EntryTable {
    shards: [Mutex<HashMap<ChunkFileId, FileEntries>>; SHARDS],
    /// Locked after a shard, if both are.
    spans: Spans,
    len: AtomicUsize,
    /// Entries that have their own record in the log.
    logged: AtomicUsize,
}

impl EntryTable {
    fn shard(&self, ino: ChunkFileId) -> &Mutex<HashMap<ChunkFileId, FileEntries>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Active and retiring entries.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Those of them that have their own record in the log.
    pub(crate) fn logged(&self) -> usize {
        self.logged.load(Ordering::Relaxed)
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Returns the entry that has to be written before regions `wanted` of a file may change;
    /// `None` when all of them are dirty.
    pub(crate) fn missing_entry(
        &self,
        ino: ChunkFileId,
        wanted: Range<u64>,
        pass: u64,
    ) -> Option<DirtyRegions> {
        let mut shard = self.shard(ino).lock();
        let mut first = match shard.get_mut(&ino) {
            Some(file) => file.first_gap(&wanted, pass)?,
            None => wanted.start,
        };
        if first == 0
            && let Some(span) = self.spans.use_open(ino, pass)
        {
            let file = shard.entry(ino).or_default();
            self.add_in_span(file, span, pass);
            first = file.first_gap(&wanted, pass)?;
        }
        let in_order = first == 0 || shard.get(&ino).is_some_and(|file| file.is_dirty_up_to(first));
        let ahead = if in_order { first.saturating_add(AHEAD_REGIONS) } else { 0 };
        Some(DirtyRegions { ino, first, end: wanted.end.max(ahead) })
    }

    /// Adds entries that are durable now.
    pub(crate) fn activate(&self, entries: &[DirtyRegions], pass: u64) {
        for entry in entries {
            let mut shard = self.shard(entry.ino).lock();
            self.add_logged(shard.entry(entry.ino).or_default(), *entry, pass);
        }
    }

    /// Adds an entry that has its own record in the log.
    fn add_logged(&self, file: &mut FileEntries, regions: DirtyRegions, pass: u64) {
        let entry = file.active.entry(regions.first).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            self.logged.fetch_add(1, Ordering::Relaxed);
            Active { end: regions.end, last_pass: pass, span: None }
        });
        if entry.span.take().is_some() {
            self.logged.fetch_add(1, Ordering::Relaxed);
        }
        entry.end = entry.end.max(regions.end);
        entry.last_pass = pass;
    }

    /// Adds an entry of region 0 for which a span is in the log.
    fn add_in_span(&self, file: &mut FileEntries, span: Arc<ActiveSpan>, pass: u64) {
        let entry = file.active.entry(0).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            Active { end: 1, last_pass: pass, span: Some(span.clone()) }
        });
        // An entry with its own record is sufficient, and an open span replaces a closed one.
        if !entry.is_usable() {
            entry.span = Some(span);
        }
        entry.last_pass = pass;
    }

    /// Returns everything that the log must retain. The caller prevents writes of the log.
    pub(crate) fn all(&self) -> Records {
        let mut entries = Vec::with_capacity(self.logged());
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter() {
                let active = file.active.iter().filter(|(_, entry)| entry.span.is_none());
                entries.extend(active.map(|(first, entry)| DirtyRegions {
                    ino: *ino,
                    first: *first,
                    end: entry.end,
                }));
                let retiring = file.retiring.iter().filter(|retiring| retiring.span.is_none());
                entries.extend(retiring.map(|retiring| retiring.entry));
            }
        }
        entries.sort_unstable();
        entries.dedup();
        Records { entries, spans: self.spans.all() }
    }

    /// Returns all entries of files from `from` on, including those that a span stands for,
    /// unordered.
    pub(crate) fn entries_from(&self, from: ChunkFileId) -> Vec<DirtyRegions> {
        let mut entries = Vec::new();
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter().filter(|(ino, _)| **ino >= from) {
                let active = file.active.iter();
                entries.extend(active.map(|(first, entry)| DirtyRegions {
                    ino: *ino,
                    first: *first,
                    end: entry.end,
                }));
                entries.extend(file.retiring.iter().map(|retiring| retiring.entry));
            }
        }
        entries
    }

    /// Starts retiring the entries that no change has relied on in maintenance pass `before` or
    /// later. Changes that begin from here on make new entries.
    pub(crate) fn begin_retiring(&self, before: u64) -> BTreeMap<ChunkFileId, Vec<DirtyRegions>> {
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

    /// Removes the retiring entries of a file: everything that relied on them is durable.
    pub(crate) fn retire(&self, ino: ChunkFileId) {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return };
        self.take_retiring(file);
        if file.active.is_empty() {
            shard.remove(&ino);
        }
    }

    /// Makes the retiring entries of a file active again after a failure.
    pub(crate) fn reactivate(&self, ino: ChunkFileId, pass: u64) {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return };
        for Retiring { entry, span } in self.take_retiring(file) {
            match span {
                Some(span) => self.add_in_span(file, span, pass),
                None => self.add_logged(file, entry, pass),
            }
        }
    }

    fn take_retiring(&self, file: &mut FileEntries) -> Vec<Retiring> {
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

    const INO: ChunkFileId = ChunkFileId(7);

    fn entry(first: u64, end: u64) -> DirtyRegions {
        DirtyRegions { ino: INO, first, end }
    }

    #[test]
    fn sequential_writes_mark_regions_ahead() {
        let table = EntryTable::default();
        assert_eq!(table.missing_entry(INO, 0..1, 0), Some(entry(0, 64)));
        table.activate(&[entry(0, 64)], 0);
        assert_eq!(table.missing_entry(INO, 63..64, 0), None);
        assert_eq!(table.missing_entry(INO, 63..65, 0), Some(entry(64, 128)));
        assert_eq!(table.missing_entry(INO, 500..502, 0), Some(entry(500, 502)));
    }

    #[test]
    fn only_idle_entries_retire_and_changes_make_new_ones() {
        let table = EntryTable::default();
        table.activate(&[entry(0, 64), entry(100, 101)], 0);
        assert_eq!(table.missing_entry(INO, 0..1, 5), None);
        assert_eq!(table.begin_retiring(5), BTreeMap::from([(INO, vec![entry(100, 101)])]));
        assert_eq!(table.missing_entry(INO, 100..101, 5), Some(entry(100, 101)));
        assert_eq!(table.all().entries, [entry(0, 64), entry(100, 101)]);
        table.retire(INO);
        assert_eq!(table.all().entries, [entry(0, 64)]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_failed_retirement_changes_nothing() {
        let table = EntryTable::default();
        table.activate(&[entry(3, 4)], 0);
        table.begin_retiring(1);
        table.reactivate(INO, 1);
        assert_eq!(table.missing_entry(INO, 3..4, 1), None);
        assert_eq!(table.len(), 1);
    }
}
