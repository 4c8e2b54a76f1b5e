//! Counters for status and metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the service was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Answered requests.
    pub commands: u64,
    /// Of these, those that were refused.
    pub refused: u64,
    /// Of these, those that were answered from the duplicate request cache.
    pub repeated: u64,
    /// How often a request had to run again because it needed another partition or had to wait.
    pub reruns: u64,
    /// Committed batches of writes.
    pub batches: u64,
    /// Commits of the store that carried them.
    pub commits: u64,
    /// Syncs of the store.
    pub persists: u64,
    /// Reads that the cache answered, and those that needed the store.
    pub cache_hits: u64,
    #[allow(missing_docs)]
    pub cache_misses: u64,
    /// Deleted files whose chunk files were removed.
    pub reaped: u64,
    /// Known sessions.
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

/// A number that any core may increase.
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
