//! Whether a node has client requests: background work yields to them.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a client counts as active after a request.
const ACTIVITY_WINDOW_NS: u64 = 100_000_000;

/// Time of the last client request.
#[derive(Default)]
pub(crate) struct ClientActivity(AtomicU64);

impl ClientActivity {
    /// Records a client request.
    pub(crate) fn record_request(&self, now_ns: u64) {
        // Approximate and rarely written, because all cores share it.
        if now_ns.saturating_sub(self.0.load(Ordering::Relaxed)) > ACTIVITY_WINDOW_NS / 4 {
            self.0.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Whether a client sent a request a moment ago.
    pub(crate) fn is_active(&self, now_ns: u64) -> bool {
        let asked_ns = self.0.load(Ordering::Relaxed);
        asked_ns > 0 && now_ns.saturating_sub(asked_ns) < ACTIVITY_WINDOW_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_as_active_for_a_moment() {
        let clients = ClientActivity::default();
        assert!(!clients.is_active(5));
        clients.record_request(1_000_000_000);
        assert!(clients.is_active(1_000_000_001) && !clients.is_active(1_000_000_000 + ACTIVITY_WINDOW_NS));
        for at in 0..100 {
            clients.record_request(1_000_000_000 + at * 10_000_000);
            assert!(clients.is_active(1_000_000_000 + at * 10_000_000));
        }
    }
}
