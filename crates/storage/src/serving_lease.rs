//! The lease that allows this node to change data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, Result, TargetId};

/// How long a request waits for the lease: less than a client's usual time-out, so that the client
/// learns the reason.
const WAIT_TIMEOUT: Duration = Duration::from_secs(45);

/// How often it checks.
const POLL: Duration = Duration::from_millis(50);

/// A lease that management renews by answering heartbeats. When it has expired, the node refuses
/// changes by itself: management may have given the roles of its targets to other members by then.
/// Times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub struct ServingLease {
    until_ns: AtomicU64,
    /// How often it was renewed after it had expired.
    expirations: AtomicU64,
}

impl ServingLease {
    /// A lease that never ends, for a process that contains management.
    pub fn forever() -> ServingLease {
        ServingLease { until_ns: AtomicU64::new(u64::MAX), expirations: AtomicU64::new(0) }
    }

    /// A lease that is not granted yet.
    pub fn not_granted() -> ServingLease {
        ServingLease { until_ns: AtomicU64::new(0), expirations: AtomicU64::new(0) }
    }

    /// Renews the lease after an answered heartbeat. It counts from `sent_ns`, when the heartbeat
    /// was sent, because the answer took some time to arrive.
    pub fn renew(&self, sent_ns: u64, now_ns: u64, length: Duration) {
        if !self.is_valid(now_ns) {
            // Before the lease is valid again, so that the new term is never taken for the old one.
            self.expirations.fetch_add(1, Ordering::AcqRel);
        }
        self.until_ns.fetch_max(sent_ns.saturating_add(length.as_nanos() as u64), Ordering::AcqRel);
    }

    /// Ends the lease: management has rejected this process.
    pub fn end(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Whether the lease is valid at this time.
    pub fn is_valid(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Acquire)
    }

    /// Waits until the lease is valid, for a request to a target.
    #[cold]
    pub(crate) async fn wait(&self, target: TargetId) -> Result<()> {
        let began = rt::monotonic_ns();
        while !self.is_valid(rt::monotonic_ns()) {
            if rt::monotonic_ns() - began > WAIT_TIMEOUT.as_nanos() as u64 {
                let message = format!(
                    "target {target} takes no changes: its node has had no answer from management for more than {} s",
                    WAIT_TIMEOUT.as_secs()
                );
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("check that management runs and that the node can reach it"));
            }
            rt::sleep(POLL).await;
        }
        Ok(())
    }

    /// Returns the number of the term in which the lease has been valid without interruption until
    /// now; `None` when it isn't valid.
    pub fn term(&self, now_ns: u64) -> Option<u64> {
        let term = self.expirations.load(Ordering::Acquire);
        self.is_valid(now_ns).then_some(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_counts_from_when_the_heartbeat_was_sent() {
        let lease = ServingLease::not_granted();
        let s = Duration::from_secs(1).as_nanos() as u64;
        assert!(!lease.is_valid(0));
        lease.renew(5 * s, 5 * s, Duration::from_secs(10));
        assert!(lease.is_valid(15 * s - 1) && !lease.is_valid(15 * s));
        // A late answer doesn't shorten what a later one has granted.
        lease.renew(7 * s, 8 * s, Duration::from_secs(10));
        lease.renew(6 * s, 9 * s, Duration::from_secs(10));
        assert!(lease.is_valid(17 * s - 1) && !lease.is_valid(17 * s));
        lease.end();
        assert!(!lease.is_valid(8 * s));
        assert!(ServingLease::forever().is_valid(u64::MAX - 1));
    }

    #[test]
    fn a_lease_renewed_after_expiry_has_a_new_term() {
        let (lease, s) = (ServingLease::not_granted(), Duration::from_secs(1).as_nanos() as u64);
        let renew = |sent_s: u64, now_s: u64| lease.renew(sent_s * s, now_s * s, Duration::from_secs(10));
        assert_eq!(lease.term(0), None);
        renew(1, 1);
        let first = lease.term(2 * s);
        assert!(first.is_some());
        renew(9, 10);
        assert_eq!(lease.term(18 * s), first);
        assert_eq!(lease.term(19 * s), None);
        // Sent in time but answered too late: management may have counted on other members
        // meanwhile.
        renew(18, 20);
        assert!(lease.term(21 * s).is_some_and(|term| Some(term) != first));
    }
}
