//! Counts for status and metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since the service was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Requests that were answered.
    pub commands: u64,
    /// Of these, those that were refused.
    pub refused: u64,
    /// Of these, those that were answered from the record of an earlier copy.
    pub repeated: u64,
    /// Times that a request had to be run again because it needed one more partition or had to wait
    /// for another.
    pub reruns: u64,
    /// Batches of writes that were committed.
    pub batches: u64,
    /// Commits of the store that carried them.
    pub commits: u64,
    /// Times that the store was put on disk.
    pub persists: u64,
    /// Reads that the cache answered, and those that went to the store.
    pub cache_hits: u64,
    #[allow(missing_docs)]
    pub cache_misses: u64,
    /// Deleted files whose chunks were removed.
    pub reaped: u64,
    /// Sessions that are known.
    pub sessions: u64,
}

/// The counters behind [`MetaStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub commands: Counter,
    pub refused: Counter,
    pub repeated: Counter,
    pub reruns: Counter,
    pub cache_hits: Counter,
    pub cache_misses: Counter,
    pub reaped: Counter,
}

/// A number that any core may raise.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
