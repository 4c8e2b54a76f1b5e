//! Locks on ranges of a chunk file.
//!
//! Conflicting claims are served first come, first served; claims that don't conflict are held at
//! the same time. Usable from any core. The requests in progress bound the number of waiters.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use types::ByteRange;

/// The largest folio of the kernel's page cache, bytes (one PMD entry).
const MAX_FOLIO_BYTES: u64 = 2 << 20;

/// How the holder of a range changes it.
///
/// A direct write evicts the folios that it touches from the page cache. If a cached write dirties
/// one at that moment, the eviction fails and the kernel reports an I/O error for the file. Folios
/// can be larger than a block, so the two kinds keep a folio's distance from each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WritePath {
    /// Writes past the page cache.
    Direct,
    /// Writes through the page cache.
    Cached,
    /// Writes nothing.
    None,
}

#[derive(Clone, Copy)]
struct Claim {
    id: u64,
    range: ByteRange,
    path: WritePath,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        if self.range.overlaps(other.range) {
            return true;
        }
        let mixed = self.path != other.path && self.path != WritePath::None && other.path != WritePath::None;
        mixed && folios_of(self.range).overlaps(folios_of(other.range))
    }
}

fn folios_of(range: ByteRange) -> ByteRange {
    let end = range.end.checked_next_multiple_of(MAX_FOLIO_BYTES).unwrap_or(u64::MAX);
    ByteRange::new(range.start / MAX_FOLIO_BYTES * MAX_FOLIO_BYTES, end)
}

struct Waiter {
    claim: Claim,
    waker: Waker,
}

#[derive(Default)]
struct State {
    next_id: u64,
    held: Vec<Claim>,
    waiting: VecDeque<Waiter>,
}

impl State {
    fn is_free(&self, claim: &Claim, waiters_before: usize) -> bool {
        !self.held.iter().any(|held| held.conflicts(claim))
            && !self.waiting.iter().take(waiters_before).any(|earlier| earlier.claim.conflicts(claim))
    }

    /// Moves all waiters that can proceed to held.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut i = 0;
        while i < self.waiting.len() {
            if self.is_free(&self.waiting[i].claim, i) {
                let waiter = self.waiting.remove(i).expect("the index was checked by the loop");
                self.held.push(waiter.claim);
                wakers.push(waiter.waker);
            } else {
                i += 1;
            }
        }
        wakers
    }

    /// Removes a claim, held or waiting.
    fn withdraw(&mut self, id: u64) -> Vec<Waker> {
        if let Some(i) = self.held.iter().position(|claim| claim.id == id) {
            self.held.swap_remove(i);
        } else {
            self.waiting.retain(|waiter| waiter.claim.id != id);
        }
        if self.waiting.is_empty() { Vec::new() } else { self.grant() }
    }
}

/// The locks of one chunk file.
#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
}

impl RangeLock {
    /// Waits until no earlier claim conflicts, and holds the range until the guard is dropped.
    pub(crate) fn acquire(&self, range: ByteRange, path: WritePath) -> Acquire<'_> {
        Acquire { lock: self, range, path, id: None }
    }

    fn withdraw(&self, id: u64) {
        let wakers = self.state.lock().withdraw(id);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The wait for a range.
pub(crate) struct Acquire<'a> {
    lock: &'a RangeLock,
    range: ByteRange,
    path: WritePath,
    id: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = RangeGuard<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard<'a>> {
        let lock = self.lock;
        let mut state = lock.state.lock();
        let id = match self.id {
            None => {
                let id = state.next_id;
                state.next_id += 1;
                let claim = Claim { id, range: self.range, path: self.path };
                if !state.is_free(&claim, state.waiting.len()) {
                    state.waiting.push_back(Waiter { claim, waker: cx.waker().clone() });
                    self.id = Some(id);
                    return Poll::Pending;
                }
                state.held.push(claim);
                id
            }
            Some(id) => {
                if let Some(waiter) = state.waiting.iter_mut().find(|waiter| waiter.claim.id == id) {
                    waiter.waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                id
            }
        };
        // From here on the guard owns the claim.
        self.id = None;
        Poll::Ready(RangeGuard { lock, id })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.lock.withdraw(id);
        }
    }
}

/// A held range.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    id: u64,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.withdraw(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn blocks(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start * 4096, end * 4096)
    }

    #[test]
    fn disjoint_ranges_hold_together_and_overlapping_ones_take_turns() {
        let lock = RangeLock::default();
        let mut first = pin!(lock.acquire(blocks(0, 2), WritePath::Direct));
        let mut beside = pin!(lock.acquire(blocks(2, 4), WritePath::Direct));
        let mut across = pin!(lock.acquire(blocks(1, 3), WritePath::Direct));
        let Poll::Ready(first) = poll(first.as_mut()) else { panic!("nobody is in the way") };
        let Poll::Ready(beside) = poll(beside.as_mut()) else { panic!("the ranges are disjoint") };
        assert!(poll(across.as_mut()).is_pending());
        drop(first);
        assert!(poll(across.as_mut()).is_pending());
        drop(beside);
        assert!(poll(across.as_mut()).is_ready());
    }

    #[test]
    fn a_late_small_claim_does_not_overtake() {
        let lock = RangeLock::default();
        let mut first = pin!(lock.acquire(blocks(0, 1), WritePath::Cached));
        let mut wide = pin!(lock.acquire(blocks(0, 100), WritePath::Cached));
        let mut late = pin!(lock.acquire(blocks(50, 51), WritePath::Cached));
        let Poll::Ready(first) = poll(first.as_mut()) else { panic!("nobody is in the way") };
        assert!(poll(wide.as_mut()).is_pending());
        assert!(poll(late.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(wide) = poll(wide.as_mut()) else { panic!("it is its turn") };
        assert!(poll(late.as_mut()).is_pending());
        drop(wide);
        assert!(poll(late.as_mut()).is_ready());
    }

    #[test]
    fn a_wait_that_is_given_up_lets_others_pass() {
        let lock = RangeLock::default();
        let mut first = pin!(lock.acquire(blocks(0, 1), WritePath::Cached));
        let Poll::Ready(first) = poll(first.as_mut()) else { panic!("nobody is in the way") };
        let mut late = pin!(lock.acquire(blocks(5, 6), WritePath::Cached));
        {
            let mut wide = pin!(lock.acquire(blocks(0, 100), WritePath::Cached));
            assert!(poll(wide.as_mut()).is_pending());
            assert!(poll(late.as_mut()).is_pending());
        }
        assert!(poll(late.as_mut()).is_ready());
        drop(first);
        assert!(lock.state.lock().held.is_empty());
    }

    #[test]
    fn direct_and_cached_writes_keep_their_distance() {
        let lock = RangeLock::default();
        let mut direct = pin!(lock.acquire(blocks(0, 1), WritePath::Direct));
        let Poll::Ready(direct) = poll(direct.as_mut()) else { panic!("nobody is in the way") };
        let mut near = pin!(lock.acquire(blocks(9, 10), WritePath::Cached));
        let mut far = pin!(lock.acquire(blocks(512, 513), WritePath::Cached));
        let mut onlooker = pin!(lock.acquire(blocks(20, 21), WritePath::None));
        assert!(poll(near.as_mut()).is_pending());
        assert!(poll(far.as_mut()).is_ready());
        assert!(poll(onlooker.as_mut()).is_ready());
        drop(direct);
        assert!(poll(near.as_mut()).is_ready());
    }
}
