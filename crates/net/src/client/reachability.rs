//! How long a peer has been unreachable, over all cores.
//!
//! A call waits for an unreachable peer until that has been unreachable for the time-out, rather
//! than for a time-out of its own. Otherwise a caller with a hundred requests in sequence to a dead
//! host would wait a hundred times. When a peer has been unreachable for longer than the time-out,
//! a call waits for one more attempt.

use crate::limits::{UNREACHABLE_PEER_MEMORY, UNREACHABLE_PEER_WAIT};
use parking_lot::Mutex;
use std::time::Duration;

/// Whether the peer was found unreachable, and since when.
#[derive(Default)]
pub(super) struct Reachability(Mutex<Option<Unreachable>>);

/// An unreachable peer; nanoseconds of the monotonic clock.
struct Unreachable {
    since_ns: u64,
    /// When it was last found unreachable.
    last_attempt_ns: u64,
}

impl Unreachable {
    fn is_recent(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_attempt_ns) <= UNREACHABLE_PEER_MEMORY.as_nanos() as u64
    }
}

impl Reachability {
    /// Notes that a connection was made.
    pub(super) fn note_reachable(&self) {
        self.0.lock().take();
    }

    /// Notes that there is no connection, and returns how long a call may wait for one.
    pub(super) fn wait_limit(&self, timeout: Duration, now_ns: u64) -> Duration {
        let mut unreachable = self.0.lock();
        let since_ns =
            unreachable.as_ref().filter(|lost| lost.is_recent(now_ns)).map_or(now_ns, |lost| lost.since_ns);
        *unreachable = Some(Unreachable { since_ns, last_attempt_ns: now_ns });
        let unreachable_for = Duration::from_nanos(now_ns.saturating_sub(since_ns));
        timeout.saturating_sub(unreachable_for).max(UNREACHABLE_PEER_WAIT.min(timeout))
    }

    /// How long the peer has been unreachable; `None` when it is reachable, or no call has tried
    /// recently.
    pub(super) fn unreachable_for(&self, now_ns: u64) -> Option<Duration> {
        let unreachable = self.0.lock();
        let unreachable = unreachable.as_ref().filter(|lost| lost.is_recent(now_ns))?;
        Some(Duration::from_nanos(now_ns.saturating_sub(unreachable.since_ns)))
    }

    /// Notes that an address didn't answer.
    pub(super) fn note_failure(&self, now_ns: u64) {
        if let Some(unreachable) = &mut *self.0.lock() {
            unreachable.last_attempt_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> u64 {
        seconds * 1_000_000_000
    }

    #[test]
    fn calls_share_the_wait_for_an_unreachable_peer() {
        let reach = Reachability::default();
        assert_eq!(reach.wait_limit(TIMEOUT, at(100)), TIMEOUT);
        (101..140).for_each(|second| reach.note_failure(at(second)));
        assert_eq!(reach.wait_limit(TIMEOUT, at(140)), TIMEOUT - Duration::from_secs(40));
        (141..170).for_each(|second| reach.note_failure(at(second)));
        assert_eq!(reach.wait_limit(TIMEOUT, at(170)), UNREACHABLE_PEER_WAIT);
        assert_eq!(reach.wait_limit(Duration::from_secs(1), at(170)), Duration::from_secs(1));
        assert_eq!(reach.unreachable_for(at(170)), Some(Duration::from_secs(70)));
        reach.note_reachable();
        assert_eq!(reach.unreachable_for(at(170)), None);
        assert_eq!(reach.wait_limit(TIMEOUT, at(171)), TIMEOUT);
    }

    #[test]
    fn reachability_is_unknown_without_recent_calls() {
        let reach = Reachability::default();
        reach.wait_limit(TIMEOUT, at(100));
        (101..=160).for_each(|second| reach.note_failure(at(second)));
        assert_eq!(reach.unreachable_for(at(1000)), None);
        assert_eq!(reach.wait_limit(TIMEOUT, at(1000)), TIMEOUT);
    }
}
