//! Active spans: entries for many new chunk files, written in one durable write.
//!
//! Numbers of new inodes of a partition ascend, so the next files have the next numbers. A span
//! marks region 0 of the chunk files of [`SPAN_INODES`] inodes dirty, most of which don't exist
//! yet. A file that relies on it gets its own entry in memory, which holds the span.
//!
//! A span is *open* while further files may rely on it, then *closed*, and active until nothing
//! holds it any more.

use super::format::{DirtyRegions, Span};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{ChunkFileId, ChunkSlot, HashMap, InodeId, PartitionId};

/// Inodes that a span covers: enough to make the cost of its durable write negligible, and few
/// enough that a recovery looks for all of them in some ten milliseconds.
pub(crate) const SPAN_INODES: u64 = 1024;
/// Active spans at a time, four for each of 64 partitions: a recovery looks for a quarter of a
/// million chunk files at most, and reads the first region of those that exist. It bounds the
/// entries that rely on them, too. Beyond that, each new file gets an entry in the log.
pub(crate) const MAX_SPANS: usize = 256;
/// Passes after which a span closes even if it is used: a recovery needlessly examines the files
/// that have retired since it was opened.
const MAX_OPEN_PASSES: u64 = 64;

/// The origin of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// Written since the store was opened: the files that have relied on it are known.
    Written,
    /// Found in the log: which files relied on it and have no chunk file any more is unknown.
    Inherited,
}

/// A durable span.
pub(crate) struct ActiveSpan {
    span: Span,
    origin: Origin,
    since_pass: u64,
    /// The maintenance pass during which a file last began to rely on it.
    last_pass: AtomicU64,
    /// Set and read under the lock of all spans, except in [`ActiveSpan::is_open`].
    open: AtomicBool,
}

impl ActiveSpan {
    /// Whether a file that relies on it may continue to do so. One that has just closed stays
    /// active as long as it is held.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct State {
    /// The oldest first; at most [`MAX_SPANS`], and those that a recovery found.
    active: Vec<Arc<ActiveSpan>>,
    /// The highest name of each partition and slot that the store has seen.
    highest_names: HashMap<(PartitionId, ChunkSlot), ChunkFileId>,
}

impl State {
    fn observe(&mut self, ino: ChunkFileId) -> bool {
        let highest = self.highest_names.entry((ino.partition(), ino.slot())).or_default();
        let is_beyond = *highest < ino;
        *highest = ino.max(*highest);
        is_beyond
    }

    fn open_span(&self, ino: ChunkFileId) -> Option<&Arc<ActiveSpan>> {
        self.active.iter().rev().find(|known| known.is_open() && known.span.contains(ino))
    }
}

/// All spans of a store.
#[derive(Default)]
pub(crate) struct Spans(Mutex<State>);

/// Returns the span that begins with an inode. It stays within its partition.
fn span_from(first: ChunkFileId) -> Span {
    let partition_end = (first.0 | ((1 << InodeId::SEQUENCE_BITS) - 1)).saturating_add(1);
    Span { first, end: ChunkFileId(first.0.saturating_add(SPAN_INODES).min(partition_end)) }
}

impl Spans {
    /// Records an inode that has a chunk file.
    pub(crate) fn observe(&self, ino: ChunkFileId) {
        self.0.lock().observe(ino);
    }

    /// Returns the span to be written for a new chunk file. Returns none if an open span covers it,
    /// if there are too many, or if the inode isn't higher than all known ones of its partition, so
    /// that the span would cover existing files. `pending` more are about to become active.
    ///
    /// Files that the store hasn't seen since it was opened may be in it all the same: a recovery
    /// examines them needlessly, and takes the content of their first region as right, as in every
    /// dirty region.
    pub(crate) fn propose(&self, ino: ChunkFileId, pending: usize) -> Option<Span> {
        let mut state = self.0.lock();
        let is_beyond = state.observe(ino);
        let wanted = is_beyond && state.open_span(ino).is_none() && state.active.len() + pending < MAX_SPANS;
        wanted.then(|| span_from(ino))
    }

    /// Adds spans that are durable now.
    pub(crate) fn activate(&self, spans: &[Span], pass: u64) {
        self.add(spans, Origin::Written, pass);
    }

    /// Adds spans that the log had when the store was opened.
    pub(crate) fn inherit(&self, spans: &[Span], pass: u64) {
        self.add(spans, Origin::Inherited, pass);
    }

    fn add(&self, spans: &[Span], origin: Origin, pass: u64) {
        let active_span = |span: &Span| {
            Arc::new(ActiveSpan {
                span: *span,
                origin,
                since_pass: pass,
                last_pass: AtomicU64::new(pass),
                open: AtomicBool::new(true),
            })
        };
        self.0.lock().active.extend(spans.iter().map(active_span));
    }

    /// Returns the open span that region 0 of a file may rely on from now on.
    pub(crate) fn use_open(&self, ino: ChunkFileId, pass: u64) -> Option<Arc<ActiveSpan>> {
        let state = self.0.lock();
        let found = state.open_span(ino)?;
        found.last_pass.store(pass, Ordering::Relaxed);
        Some(found.clone())
    }

    /// In maintenance pass `pass`, closes the spans that no file has begun to rely on for
    /// `idle_passes`, and those that have been open for long.
    pub(crate) fn close(&self, pass: u64, idle_passes: u64) {
        let before = pass.saturating_sub(idle_passes);
        for known in &self.0.lock().active {
            let is_idle = known.last_pass.load(Ordering::Relaxed) < before;
            if is_idle || known.since_pass + MAX_OPEN_PASSES < pass {
                known.open.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Drops closed spans that nothing holds. The caller prevents writes of the log.
    pub(crate) fn drop_unused(&self) {
        self.0.lock().active.retain(|known| known.is_open() || Arc::strong_count(known) > 1);
    }

    /// Drops all spans: a new log has begun.
    pub(crate) fn clear(&self) {
        self.0.lock().active.clear();
    }

    pub(crate) fn has_inherited(&self) -> bool {
        self.0.lock().active.iter().any(|known| known.origin == Origin::Inherited)
    }

    /// Returns region 0 of the inodes of inherited spans from `from` on, in order: one more than
    /// `max` of them if there are so many.
    pub(crate) fn inherited_from(&self, from: ChunkFileId, max: usize) -> Vec<DirtyRegions> {
        let state = self.0.lock();
        let mut spans: Vec<Span> = state
            .active
            .iter()
            .filter(|known| known.origin == Origin::Inherited && known.span.end > from)
            .map(|known| known.span)
            .collect();
        drop(state);
        spans.sort_unstable();
        // Spans may overlap: each inode is returned once.
        let mut found: Vec<DirtyRegions> = Vec::new();
        let mut next = from;
        for span in spans {
            let inodes = span.first.max(next).0..span.end.0;
            let limit = (max + 1).saturating_sub(found.len());
            found.extend(inodes.take(limit).map(|ino| DirtyRegions {
                ino: ChunkFileId(ino),
                first: 0,
                end: 1,
            }));
            next = next.max(span.end);
        }
        found
    }

    pub(crate) fn all(&self) -> Vec<Span> {
        self.0.lock().active.iter().map(|known| known.span).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().active.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(partition: u16, sequence: u64) -> ChunkFileId {
        InodeId::new(PartitionId(partition), sequence).first_chunk_file()
    }

    #[test]
    fn a_span_begins_beyond_everything_seen_of_its_partition() {
        let spans = Spans::default();
        spans.observe(ino(1, 50));
        assert_eq!(spans.propose(ino(1, 49), 0), None);
        assert_eq!(spans.propose(ino(1, 50), 0), None);
        let span = spans.propose(ino(1, 51), 0).unwrap();
        assert_eq!(span, Span { first: ino(1, 51), end: ino(1, 51 + SPAN_INODES) });
        spans.activate(&[span], 0);
        assert_eq!(spans.propose(ino(1, 60), 0), None, "it is in the span");
        assert_eq!(spans.propose(ino(1, 50 + SPAN_INODES), 0), None, "it is in the span");
        assert!(spans.propose(ino(1, 51 + SPAN_INODES), 0).is_some());
        assert_eq!(
            spans.propose(ino(2, 1), 0).unwrap().first,
            ino(2, 1),
            "partitions have nothing in common"
        );
    }

    #[test]
    fn a_span_ends_with_its_partition() {
        let last = ino(3, (1 << InodeId::SEQUENCE_BITS) - 1);
        let span = Spans::default().propose(last, 0).unwrap();
        assert_eq!(span, Span { first: last, end: ChunkFileId(last.0 + 1) });
    }

    #[test]
    fn active_spans_are_bounded() {
        let spans = Spans::default();
        for partition in 0..MAX_SPANS as u16 - 1 {
            let span = spans.propose(ino(partition, 1), 0).unwrap();
            spans.activate(&[span], 0);
        }
        assert_eq!(spans.propose(ino(1000, 1), 1), None);
        assert!(spans.propose(ino(1001, 1), 0).is_some());
    }

    #[test]
    fn an_idle_span_closes_and_is_dropped_without_holders() {
        let spans = Spans::default();
        spans.activate(&[span_from(ino(0, 1))], 0);
        let held = spans.use_open(ino(0, 2), 5).unwrap();
        spans.close(6, 1);
        assert!(spans.use_open(ino(0, 3), 5).is_some());
        spans.close(6, 0);
        assert!(!held.is_open() && spans.use_open(ino(0, 3), 6).is_none());
        spans.drop_unused();
        assert_eq!(spans.all(), [span_from(ino(0, 1))]);
        drop(held);
        spans.drop_unused();
        assert_eq!(spans.all(), []);
    }

    #[test]
    fn a_span_in_use_closes_after_a_while() {
        let spans = Spans::default();
        spans.activate(&[span_from(ino(0, 1))], 0);
        for pass in 1..=MAX_OPEN_PASSES {
            spans.close(pass, 1);
            assert!(spans.use_open(ino(0, 1 + pass), pass).is_some());
        }
        spans.close(MAX_OPEN_PASSES + 1, 1);
        assert!(spans.use_open(ino(0, 500), MAX_OPEN_PASSES + 1).is_none());
    }

    #[test]
    fn an_open_span_stays_though_nobody_holds_it() {
        let spans = Spans::default();
        spans.activate(&[span_from(ino(0, 1))], 0);
        spans.drop_unused();
        assert!(spans.use_open(ino(0, 7), 0).is_some());
    }
}
