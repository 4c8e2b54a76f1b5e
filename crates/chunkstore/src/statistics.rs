//! Statistics of a store since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, each since the store was opened.
#[derive(Default, Debug)]
pub struct Statistics {
    /// Read requests.
    pub reads: Counter,
    /// Requested bytes.
    pub read_bytes: Counter,
    /// Read requests that bypassed the page cache.
    pub direct_reads: Counter,
    /// Reads that were repeated under a lock because of a concurrent write.
    pub read_retries: Counter,
    /// Write requests.
    pub writes: Counter,
    /// Bytes of write requests.
    pub written_bytes: Counter,
    /// Write requests that bypassed the page cache.
    pub direct_writes: Counter,
    /// Chunk files opened, that is, cache misses.
    pub file_opens: Counter,
    /// Pages of checksums loaded.
    pub sum_page_loads: Counter,
    /// Pages of checksums written back.
    pub sum_page_writes: Counter,
    /// Durable writes of the intent log.
    pub intent_writes: Counter,
    /// Entries and spans in them.
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

    /// The current number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
