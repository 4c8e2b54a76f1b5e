//! Concurrent work with a limit.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` on every item, at most `width` at a time, in the order of the items. `done` gets
/// each result as it arrives, one at a time.
pub fn run<T: Send, R: Send>(
    items: Vec<T>,
    width: usize,
    work: impl Fn(T) -> R + Sync,
    done: impl FnMut(R) + Send,
) {
    let (items, done) = (Mutex::new(items.into_iter()), Mutex::new(done));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..width.max(1) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = work(item);
                    (done.lock().unwrap_or_else(PoisonError::into_inner))(result);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once_and_no_more_at_a_time_than_allowed() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut results = Vec::new();
        let work = |item: u64| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            item * 2
        };
        run((0..100).collect(), 3, work, |result| results.push(result));
        results.sort_unstable();
        assert_eq!(results, (0..100).map(|item| item * 2).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= 3);
    }

    #[test]
    fn items_run_side_by_side() {
        // Each waits for the other: sequential execution would never end.
        let meeting = Barrier::new(2);
        let mut count = 0;
        run(vec![(), ()], 2, |()| meeting.wait().is_leader(), |is_leader| count += usize::from(is_leader));
        assert_eq!(count, 1);
    }
}
