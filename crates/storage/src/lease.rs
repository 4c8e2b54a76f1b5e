//! How long this node may change data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, Result, TargetId};

/// How long a request waits for the lease: less than a client's usual patience, so that the client
/// learns the reason.
const PATIENCE: Duration = Duration::from_secs(45);

/// How often it looks.
const POLL: Duration = Duration::from_millis(50);

/// A lease that management prolongs by answering heartbeats. When it has run out, the node takes no
/// changes any more by itself: management may by then have given its targets to somebody else.
/// Times are nanoseconds of the clock that never goes back.
#[derive(Debug)]
pub struct ServingLease {
    until_ns: AtomicU64,
    /// How often it was prolonged when it had run out.
    lapses: AtomicU64,
}

impl ServingLease {
    /// Of a process that has management in itself.
    pub fn forever() -> ServingLease {
        ServingLease { until_ns: AtomicU64::new(u64::MAX), lapses: AtomicU64::new(0) }
    }

    /// Not granted yet.
    pub fn ended() -> ServingLease {
        ServingLease { until_ns: AtomicU64::new(0), lapses: AtomicU64::new(0) }
    }

    /// A heartbeat that was sent at `sent_ns` was answered, which is heard of now: the lease counts
    /// from then, since the answer took its time.
    pub fn renew(&self, sent_ns: u64, now_ns: u64, length: Duration) {
        if !self.holds(now_ns) {
            // Before it holds again, so that nobody takes the new time for the old one.
            self.lapses.fetch_add(1, Ordering::AcqRel);
        }
        self.until_ns.fetch_max(sent_ns.saturating_add(length.as_nanos() as u64), Ordering::AcqRel);
    }

    /// Management has nothing to do with this process any more.
    pub fn end(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Whether it holds at this time.
    pub fn holds(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Acquire)
    }

    /// Waits until it holds, for the sake of a request for a target.
    #[cold]
    pub(crate) async fn wait(&self, target: TargetId) -> Result<()> {
        let began = rt::monotonic_ns();
        while !self.holds(rt::monotonic_ns()) {
            if rt::monotonic_ns() - began > PATIENCE.as_nanos() as u64 {
                let message = format!(
                    "target {target} takes no changes: its node hasn't heard of management for more than {} s",
                    PATIENCE.as_secs()
                );
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("check that management runs and that the network between the two works"));
            }
            rt::sleep(POLL).await;
        }
        Ok(())
    }

    /// Tells the time in which it has held without a break until now from others; `None` when it
    /// doesn't hold.
    pub fn term(&self, now_ns: u64) -> Option<u64> {
        let term = self.lapses.load(Ordering::Acquire);
        self.holds(now_ns).then_some(term)
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
        lease.renew(5 * s, 5 * s, Duration::from_secs(10));
        assert!(lease.holds(15 * s - 1) && !lease.holds(15 * s));
        // An answer that comes late doesn't shorten what a later one has given.
        lease.renew(7 * s, 8 * s, Duration::from_secs(10));
        lease.renew(6 * s, 9 * s, Duration::from_secs(10));
        assert!(lease.holds(17 * s - 1) && !lease.holds(17 * s));
        lease.end();
        assert!(!lease.holds(8 * s));
        assert!(ServingLease::forever().holds(u64::MAX - 1));
    }

    #[test]
    fn a_time_after_a_break_is_another_one() {
        let (lease, s) = (ServingLease::ended(), Duration::from_secs(1).as_nanos() as u64);
        let renew = |sent_s: u64, now_s: u64| lease.renew(sent_s * s, now_s * s, Duration::from_secs(10));
        assert_eq!(lease.term(0), None);
        renew(1, 1);
        let first = lease.term(2 * s);
        assert!(first.is_some());
        renew(9, 10);
        assert_eq!(lease.term(18 * s), first);
        assert_eq!(lease.term(19 * s), None);
        // Asked in time, and answered too late: others may have been counted on meanwhile.
        renew(18, 20);
        assert!(lease.term(21 * s).is_some_and(|term| Some(term) != first));
    }
}
