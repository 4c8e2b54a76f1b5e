//! Locks on ranges of the files of a replica.
//!
//! The primary holds a range from before a change until all members have it. So overlapping changes
//! have one order on all replicas, and a reader sees nothing that some members might lack.
//! Conflicting claims are served first come, first served. Usable from any core; the requests in
//! progress bound the number of waiters.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use types::{ByteRange, ChunkFileId, HashMap};

/// Parts of the table with a lock each, so that cores rarely contend.
const SHARDS: usize = 16;

/// The whole range of a file.
pub(crate) const WHOLE_FILE: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// Lock mode of a claim on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    /// Other shared claims may hold it, too.
    Shared,
    /// No other claim holds any part of it.
    Exclusive,
}

/// The locks of all files of a replica.
pub(crate) struct RangeLocks {
    shards: Vec<Mutex<HashMap<ChunkFileId, FileRanges>>>,
}

impl Default for RangeLocks {
    fn default() -> RangeLocks {
        RangeLocks { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

#[derive(Clone, Copy)]
struct Claim {
    id: u64,
    range: ByteRange,
    mode: LockMode,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        let both_share = self.mode == LockMode::Shared && other.mode == LockMode::Shared;
        !both_share && self.range.overlaps(other.range)
    }
}

struct Waiter {
    claim: Claim,
    waker: Waker,
}

/// The claims on one file; unused files have no entry.
#[derive(Default)]
struct FileRanges {
    next_id: u64,
    held: Vec<Claim>,
    waiting: VecDeque<Waiter>,
}

impl FileRanges {
    fn is_free(&self, claim: &Claim, waiters_before: usize) -> bool {
        !self.held.iter().any(|held| held.conflicts(claim))
            && !self.waiting.iter().take(waiters_before).any(|earlier| earlier.claim.conflicts(claim))
    }

    /// Moves all waiters that can proceed to held.
    fn grant(&mut self) -> Vec<Waker> {
        let (mut wakers, mut at) = (Vec::new(), 0);
        while at < self.waiting.len() {
            if !self.is_free(&self.waiting[at].claim, at) {
                at += 1;
            } else if let Some(waiter) = self.waiting.remove(at) {
                self.held.push(waiter.claim);
                wakers.push(waiter.waker);
            }
        }
        wakers
    }
}

impl RangeLocks {
    /// Waits until no earlier claim conflicts, and holds the range until the guard is dropped.
    pub(crate) fn acquire(&self, ino: ChunkFileId, range: ByteRange, mode: LockMode) -> Acquire<'_> {
        Acquire { ranges: self, ino, range, mode, id: None }
    }

    fn shard(&self, ino: ChunkFileId) -> &Mutex<HashMap<ChunkFileId, FileRanges>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Removes a claim, held or waiting.
    fn withdraw(&self, ino: ChunkFileId, id: u64) {
        let wakers = {
            let mut shard = self.shard(ino).lock();
            let Some(file) = shard.get_mut(&ino) else { return };
            file.held.retain(|claim| claim.id != id);
            file.waiting.retain(|waiter| waiter.claim.id != id);
            let wakers = file.grant();
            if file.held.is_empty() && file.waiting.is_empty() {
                shard.remove(&ino);
            }
            wakers
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The wait for a range.
pub(crate) struct Acquire<'a> {
    ranges: &'a RangeLocks,
    ino: ChunkFileId,
    range: ByteRange,
    mode: LockMode,
    id: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = RangeGuard<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard<'a>> {
        let (ranges, ino) = (self.ranges, self.ino);
        let mut shard = ranges.shard(ino).lock();
        let file = shard.entry(ino).or_default();
        let id = match self.id {
            None => {
                let id = file.next_id;
                file.next_id += 1;
                let claim = Claim { id, range: self.range, mode: self.mode };
                if !file.is_free(&claim, file.waiting.len()) {
                    file.waiting.push_back(Waiter { claim, waker: cx.waker().clone() });
                    self.id = Some(id);
                    return Poll::Pending;
                }
                file.held.push(claim);
                id
            }
            Some(id) => {
                if let Some(waiter) = file.waiting.iter_mut().find(|waiter| waiter.claim.id == id) {
                    waiter.waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                id
            }
        };
        // From here on the guard owns the claim.
        self.id = None;
        Poll::Ready(RangeGuard { ranges, ino, id })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.ranges.withdraw(self.ino, id);
        }
    }
}

/// A held range.
pub(crate) struct RangeGuard<'a> {
    ranges: &'a RangeLocks,
    ino: ChunkFileId,
    id: u64,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.ranges.withdraw(self.ino, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    const INO: ChunkFileId = ChunkFileId(7);

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn readers_share_and_writers_are_not_overtaken() {
        let ranges = RangeLocks::default();
        let range = |start, end| ByteRange::new(start, end);
        let mut first = pin!(ranges.acquire(INO, range(0, 10), LockMode::Shared));
        let mut second = pin!(ranges.acquire(INO, range(5, 15), LockMode::Shared));
        let mut writer = pin!(ranges.acquire(INO, range(8, 9), LockMode::Exclusive));
        let mut late = pin!(ranges.acquire(INO, range(8, 12), LockMode::Shared));
        let mut beside = pin!(ranges.acquire(INO, range(15, 20), LockMode::Exclusive));
        let mut other_file = pin!(ranges.acquire(ChunkFileId(8), range(0, 20), LockMode::Exclusive));
        let Poll::Ready(first) = poll(first.as_mut()) else { panic!("nobody is in the way") };
        let Poll::Ready(second) = poll(second.as_mut()) else { panic!("readers share") };
        assert!(poll(writer.as_mut()).is_pending());
        assert!(poll(late.as_mut()).is_pending(), "who comes later doesn't overtake the writer");
        assert!(poll(beside.as_mut()).is_ready() && poll(other_file.as_mut()).is_ready());
        drop(first);
        assert!(poll(writer.as_mut()).is_pending());
        drop(second);
        let Poll::Ready(writer) = poll(writer.as_mut()) else { panic!("it is its turn") };
        assert!(poll(late.as_mut()).is_pending());
        drop(writer);
        assert!(poll(late.as_mut()).is_ready());
        assert!(ranges.shards.iter().all(|shard| shard.lock().is_empty()), "nothing is kept of unused files");
    }

    #[test]
    fn an_abandoned_wait_does_not_block_others() {
        let ranges = RangeLocks::default();
        let mut first = pin!(ranges.acquire(INO, ByteRange::new(0, 1), LockMode::Exclusive));
        let Poll::Ready(_first) = poll(first.as_mut()) else { panic!("nobody is in the way") };
        let mut late = pin!(ranges.acquire(INO, ByteRange::new(5, 6), LockMode::Exclusive));
        {
            let mut wide = pin!(ranges.acquire(INO, ByteRange::new(0, 100), LockMode::Exclusive));
            assert!(poll(wide.as_mut()).is_pending());
            assert!(poll(late.as_mut()).is_pending());
        }
        assert!(poll(late.as_mut()).is_ready());
    }
}
