//! Whether clients ask a node for anything: what is done in the background makes way for them then.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a client that has asked for something counts as one that goes on.
const MEMORY_NS: u64 = 100_000_000;

/// When a client asked for something last.
#[derive(Default)]
pub(crate) struct Clients(AtomicU64);

impl Clients {
    /// A client asks for something.
    pub(crate) fn ask(&self, now_ns: u64) {
        // Not exact, and written seldom: all cores share it.
        if now_ns.saturating_sub(self.0.load(Ordering::Relaxed)) > MEMORY_NS / 4 {
            self.0.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Whether one has asked a moment ago.
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
