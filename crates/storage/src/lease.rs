//! How long this node may change data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A lease that management prolongs by answering heartbeats. When it has run out, the node takes no changes any more by itself: management
/// may by then have given its targets to somebody else. Times are nanoseconds of the clock that never goes back.
#[derive(Debug)]
pub struct ServingLease {
    until_ns: AtomicU64,
}

impl ServingLease {
    /// Of a process that has management in itself.
    pub fn forever() -> ServingLease {
        ServingLease { until_ns: AtomicU64::new(u64::MAX) }
    }

    /// Not granted yet.
    pub fn ended() -> ServingLease {
        ServingLease { until_ns: AtomicU64::new(0) }
    }

    /// A heartbeat that was sent at `sent_ns` was answered: the lease counts from then, since the answer took its time.
    pub fn renew(&self, sent_ns: u64, length: Duration) {
        self.until_ns.fetch_max(sent_ns.saturating_add(length.as_nanos() as u64), Ordering::Relaxed);
    }

    /// Management has nothing to do with this process any more.
    pub fn end(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Whether it holds at this time.
    pub fn holds(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_question() {
        let lease = ServingLease::ended();
        let s = Duration::from_secs(1).as_nanos() as u64;
        assert!(!lease.holds(0));
        lease.renew(5 * s, Duration::from_secs(10));
        assert!(lease.holds(15 * s - 1) && !lease.holds(15 * s));
        // An answer that comes late doesn't shorten what a later one has given.
        lease.renew(7 * s, Duration::from_secs(10));
        lease.renew(6 * s, Duration::from_secs(10));
        assert!(lease.holds(17 * s - 1) && !lease.holds(17 * s));
        lease.end();
        assert!(!lease.holds(8 * s));
        assert!(ServingLease::forever().holds(u64::MAX - 1));
    }
}
