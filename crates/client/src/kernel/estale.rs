//! Applications that lost a race: the file whose name they had just looked up was gone.
//!
//! The kernel looks up a name and opens the inode by two requests. If the second fails with
//! `ESTALE`, the kernel repeats both, and returns a second `ESTALE` to the application. If others
//! keep replacing the name, each lookup can find another file. On a local file system an
//! application never sees this error, since a file that was found stays while it is about to be
//! opened. So the client keeps the file that a lookup finds right after such an `ESTALE` in use for
//! a moment.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a found file is kept in use after an `ESTALE`, and how long an `ESTALE` is remembered.
/// The kernel retries at once; the margin is for a busy machine.
pub(crate) const ESTALE_WINDOW: Duration = Duration::from_secs(2);

/// Number of `ESTALE` errors that are remembered. If one is evicted early, its application merely
/// gets no protection.
const MAX_ESTALE: usize = 256;

/// The recent `ESTALE` errors.
#[derive(Default)]
pub(crate) struct RecentEstale {
    /// Length of the list: every lookup checks it without the lock.
    count: AtomicUsize,
    /// Process id and time of the error, newest last.
    list: Mutex<VecDeque<(u32, u64)>>,
}

impl RecentEstale {
    /// Records that this process got `ESTALE` now.
    pub(crate) fn note(&self, pid: u32, now_ns: u64) {
        let mut list = self.list.lock();
        list.retain(|&(other, _)| other != pid);
        list.push_back((pid, now_ns));
        if list.len() > MAX_ESTALE {
            list.pop_front();
        }
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// Whether this process got `ESTALE` within [`ESTALE_WINDOW`].
    pub(crate) fn has(&self, pid: u32, now_ns: impl FnOnce() -> u64) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let now_ns = now_ns();
        let mut list = self.list.lock();
        list.retain(|&(_, noted_ns)| now_ns.saturating_sub(noted_ns) <= ESTALE_WINDOW.as_nanos() as u64);
        self.count.store(list.len(), Ordering::Relaxed);
        list.iter().any(|&(other, _)| other == pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estale_is_remembered_for_the_window() {
        let (recent, window_ns) = (RecentEstale::default(), ESTALE_WINDOW.as_nanos() as u64);
        assert!(!recent.has(7, || unreachable!("nothing is there to be compared")));
        recent.note(7, 100);
        assert!(recent.has(7, || 100 + window_ns));
        assert!(!recent.has(8, || 100));
        assert!(!recent.has(7, || 101 + window_ns));
    }

    #[test]
    fn many_estales_evict_the_oldest() {
        let recent = RecentEstale::default();
        (0..=MAX_ESTALE as u32).for_each(|pid| recent.note(pid, 5));
        assert!(!recent.has(0, || 5));
        assert!(recent.has(1, || 5) && recent.has(MAX_ESTALE as u32, || 5));
    }
}
