//! Every limit of the service, with its unit and its reason.

use std::time::Duration;

/// Bytes of keys and values kept in memory, over all partitions. Some 80,000 inodes with their entries.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// Parts of the cache with a lock each, so that cores seldom meet.
pub(crate) const CACHE_SHARDS: usize = 16;

/// Bytes of the largest value that is kept: inline content of the default limit, which an open brings along, is.
pub(crate) const MAX_CACHED_VALUE: usize = 8 << 10;

/// Answers kept per session for requests that are sent again; a client has fewer changes than that under way.
pub(crate) const REPLIES_PER_SESSION: usize = 256;

/// Sessions at a time.
pub(crate) const MAX_SESSIONS: usize = 65_536;

/// How long a change that nobody synced may be lost to a crash of the machine: half of the second that is promised,
/// the other half being the disk's.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(500);

/// Deleted files whose chunks are removed at a time, and records read at a time by background work.
pub(crate) const BACKGROUND_BATCH: usize = 64;

/// Rest before chunks are deleted again that could not be deleted.
pub(crate) const REAP_RETRY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::MAX_CACHED_VALUE;
    use types::StripePattern;

    #[test]
    fn inline_content_of_the_default_limit_is_cached() {
        let largest = StripePattern::default().inline_limit as usize;
        assert!(largest + 64 <= MAX_CACHED_VALUE, "{largest} bytes and what surrounds them");
    }
}
