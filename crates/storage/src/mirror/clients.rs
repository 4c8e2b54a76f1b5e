//! Whether a node has client requests: background work yields to them.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a client counts as active after a request.
const MEMORY_NS: u64 = 100_000_000;

/// Time of the last client request.
#[derive(Default)]
pub(crate) struct Clients(AtomicU64);

impl Clients {
    /// Records a client request.
    pub(crate) fn ask(&self, now_ns: u64) {
        // Approximate and rarely written, because all cores share it.
        if now_ns.saturating_sub(self.0.load(Ordering::Relaxed)) > MEMORY_NS / 4 {
            self.0.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Whether a client sent a request a moment ago.
    pub(super) fn are_busy(&self, now_ns: u64) -> bool {
        let asked_ns = self.0.load(Ordering::Relaxed);
        asked_ns > 0 && now_ns.saturating_sub(asked_ns) < MEMORY_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_counts_for_a_moment() {
        let clients = Clients::default();
        assert!(!clients.are_busy(5));
        clients.ask(1_000_000_000);
        assert!(clients.are_busy(1_000_000_001) && !clients.are_busy(1_000_000_000 + MEMORY_NS));
        for at in 0..100 {
            clients.ask(1_000_000_000 + at * 10_000_000);
            assert!(clients.are_busy(1_000_000_000 + at * 10_000_000));
        }
    }
}
