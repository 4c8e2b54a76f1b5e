//! The number by which a server knows a client's connection.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of the same CPU differ by a multiple of this, which every number of server cores up to 16 divides: a core's requests are
/// served on the CPU that it is pinned to itself when both are on one machine.
const STRIDE: u32 = 720_720;

/// Numbers in use by this process.
static USED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
/// What threads that aren't pinned start from, so that they spread.
static NEXT_UNPINNED: AtomicU32 = AtomicU32::new(0);

/// A number that no other connection of this process has. It decides which core of a server serves the connection. Given back when dropped.
pub(super) struct CoreIndex(pub(super) u32);

impl CoreIndex {
    /// For a connection of this thread.
    pub(super) fn claim() -> CoreIndex {
        let cpu = rt::pinned_cpu().map(|cpu| cpu as u32);
        let first = cpu.unwrap_or_else(|| NEXT_UNPINNED.fetch_add(1, Ordering::Relaxed)) % STRIDE;
        let mut used = USED.lock();
        let free =
            (0..u32::MAX / STRIDE).map(|round| round * STRIDE + first).find(|index| !used.contains(index));
        // Thousands of connections of one thread are more than a process has descriptors for; sharing a number would only make
        // them replace each other.
        let index = free.unwrap_or(first);
        used.insert(index);
        CoreIndex(index)
    }
}

impl Drop for CoreIndex {
    fn drop(&mut self) {
        USED.lock().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_stay_on_the_cpu() {
        let config = rt::CoreConfig { name: "pinned".into(), cpu: Some(1), batch: false };
        let thread = rt::start_core(config, || async {
            let [a, b] = [CoreIndex::claim(), CoreIndex::claim()];
            assert_ne!(a.0, b.0);
            assert!([2, 3, 8, 16].iter().all(|cores| a.0 % cores == 1 && b.0 % cores == 1));
        });
        thread.unwrap().join().unwrap();
    }
}
