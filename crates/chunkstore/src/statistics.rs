//! What a store has done since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, each since the store was opened.
#[derive(Default, Debug)]
pub struct Statistics {
    /// Read requests.
    pub reads: Counter,
    /// Bytes asked for by them.
    pub read_bytes: Counter,
    /// Read requests that went past the page cache.
    pub direct_reads: Counter,
    /// Reads that were repeated under a lock, since a write was racing with them.
    pub read_retries: Counter,
    /// Write requests.
    pub writes: Counter,
    /// Bytes handed over by them.
    pub written_bytes: Counter,
    /// Write requests that went past the page cache.
    pub direct_writes: Counter,
    /// Chunk files opened, cache misses in other words.
    pub file_opens: Counter,
    /// Pages of checksums loaded.
    pub sum_page_loads: Counter,
    /// Pages of checksums written back.
    pub sum_page_writes: Counter,
    /// Durable writes of the intent log.
    pub intent_writes: Counter,
    /// Notes and spans in them.
    pub intents: Counter,
    /// Times the intent log was rewritten.
    pub intent_compactions: Counter,
    /// Ranges found damaged.
    pub corrupt_ranges: Counter,
}

/// A number that only grows.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
