//! The number by which a server identifies a client's connection.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of the same CPU differ by a multiple of this. It is divisible by every number of server
/// cores up to 16, so a server on the same machine serves a core's requests on the CPU that the
/// core itself is pinned to.
const STRIDE: u32 = 720_720;

/// The numbers used by this process.
#[derive(Default)]
struct CoreNumbers {
    used: Mutex<BTreeSet<u32>>,
    /// Start value for threads that aren't pinned, so that they spread.
    next_unpinned: AtomicU32,
}

/// A number that no other connection of this process has. It decides which core of a server serves
/// the connection. Released when dropped.
pub(super) struct CoreIndex {
    pub(super) number: u32,
    numbers: Arc<CoreNumbers>,
}

impl CoreIndex {
    /// Claims a number for a connection of this thread.
    pub(super) fn claim() -> CoreIndex {
        let cpu = rt::pinned_cpu().map(|cpu| cpu as u32);
        let numbers = rt::process_wide::<CoreNumbers>();
        let first = cpu.unwrap_or_else(|| numbers.next_unpinned.fetch_add(1, Ordering::Relaxed)) % STRIDE;
        let mut used = numbers.used.lock();
        let free =
            (0..u32::MAX / STRIDE).map(|round| round * STRIDE + first).find(|index| !used.contains(index));
        // Thousands of connections of one thread exceed the descriptors of a process. Connections
        // with the same number would only replace each other.
        let number = free.unwrap_or(first);
        used.insert(number);
        drop(used);
        CoreIndex { number, numbers }
    }
}

impl CoreIndex {
    /// The CPU, or the start value of a thread that isn't pinned, as shown to administrators.
    pub(super) fn core(&self) -> u32 {
        self.number % STRIDE
    }
}

impl Drop for CoreIndex {
    fn drop(&mut self) {
        self.numbers.used.lock().remove(&self.number);
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
            assert_ne!(a.number, b.number);
            assert_eq!([a.core(), b.core()], [1, 1]);
            assert!([2, 3, 8, 16].iter().all(|cores| a.number % cores == 1 && b.number % cores == 1));
        });
        thread.unwrap().join().unwrap();
    }
}
