//! Programs that were told that a file is gone which they had just found by its name.
//!
//! The kernel finds a name and gets at what it names by two requests. When the second one says
//! `ESTALE`, it does both once more, and hands a second `ESTALE` to the program. A name that others
//! keep replacing can be another file each time; on one machine no program would ever learn of it,
//! since the file that was found stays while somebody is about to use it. So what a program finds
//! right after a miss is kept in use for a moment.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long what is found is kept after a miss, and how long a miss is remembered. The kernel asks
/// again at once; this is for a busy machine.
pub(crate) const MOMENT: Duration = Duration::from_secs(2);

/// Misses that are remembered. One that was pushed out only means that its program isn't helped.
const MAX_MISSES: usize = 256;

/// Those programs.
#[derive(Default)]
pub(crate) struct Missed {
    /// As many as are in the list: looked at by every search, without the lock.
    count: AtomicUsize,
    /// The process's id and when it was told, the latest last.
    list: Mutex<VecDeque<(u32, u64)>>,
}

impl Missed {
    /// This process was told so now.
    pub(crate) fn note(&self, pid: u32, now_ns: u64) {
        let mut list = self.list.lock();
        list.retain(|&(other, _)| other != pid);
        list.push_back((pid, now_ns));
        if list.len() > MAX_MISSES {
            list.pop_front();
        }
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// Whether this process was told so a moment ago.
    pub(crate) fn has(&self, pid: u32, now_ns: impl FnOnce() -> u64) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let now_ns = now_ns();
        let mut list = self.list.lock();
        list.retain(|&(_, told_ns)| now_ns.saturating_sub(told_ns) <= MOMENT.as_nanos() as u64);
        self.count.store(list.len(), Ordering::Relaxed);
        list.iter().any(|&(other, _)| other == pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_remembered_for_a_moment() {
        let (missed, moment) = (Missed::default(), MOMENT.as_nanos() as u64);
        assert!(!missed.has(7, || unreachable!("nothing is there to be compared")));
        missed.note(7, 100);
        assert!(missed.has(7, || 100 + moment));
        assert!(!missed.has(8, || 100));
        assert!(!missed.has(7, || 101 + moment));
    }

    #[test]
    fn many_misses_push_out_the_oldest() {
        let missed = Missed::default();
        (0..=MAX_MISSES as u32).for_each(|pid| missed.note(pid, 5));
        assert!(!missed.has(0, || 5));
        assert!(missed.has(1, || 5) && missed.has(MAX_MISSES as u32, || 5));
    }
}
