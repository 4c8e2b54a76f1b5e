//! Lock state of the mount: requests that wait for a lock, and owners of byte-range locks. The
//! locks themselves belong to the metadata service.

use client::Cancel;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{Errno, HashMap, InodeId, Result};
use wire::LockOwner;

/// Interrupts retained for requests that haven't begun to wait yet. An interrupt overtakes its
/// request by microseconds, so a few would suffice. The rest is for interrupts of requests that
/// never wait, which stay until they are displaced.
const MAX_EARLY_INTERRUPTS: usize = 1024;
/// Pairs of file and owner that hold byte-range locks; beyond it locking fails with `ENOLCK`.
const MAX_LOCK_OWNERS: usize = 1 << 20;

/// Waits that an INTERRUPT can end, by the number of the request.
#[derive(Default)]
pub struct Interrupts {
    state: Mutex<InterruptTable>,
}

#[derive(Default)]
struct InterruptTable {
    waiting: HashMap<u64, Cancel>,
    early_interrupts: VecDeque<u64>,
    ended: bool,
}

impl Interrupts {
    /// Registers the wait of a request. If the request was interrupted already, the wait is
    /// cancelled at once. Drop the guard when the wait ends.
    pub fn register(&self, unique: u64) -> InterruptibleWait<'_> {
        let cancel = Cancel::default();
        let mut state = self.state.lock();
        let early = state.early_interrupts.iter().position(|&u| u == unique);
        if let Some(at) = early {
            state.early_interrupts.remove(at);
        }
        if early.is_some() || state.ended {
            cancel.cancel();
        }
        state.waiting.insert(unique, cancel.clone());
        InterruptibleWait { interrupts: self, unique, cancel }
    }

    /// Handles an INTERRUPT. Request numbers are never reused, so the interrupt of a finished
    /// request has no effect.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(cancel) = state.waiting.get(&unique).cloned() {
            drop(state);
            cancel.cancel();
            return;
        }
        if state.early_interrupts.len() == MAX_EARLY_INTERRUPTS {
            state.early_interrupts.pop_front();
        }
        state.early_interrupts.push_back(unique);
    }

    /// Ends all waits, present and future: the connection has ended.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let waiting: Vec<Cancel> = state.waiting.values().cloned().collect();
        drop(state);
        waiting.iter().for_each(Cancel::cancel);
    }
}

/// A registered wait.
pub struct InterruptibleWait<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
    /// Cancelled by the interrupt.
    pub cancel: Cancel,
}

impl Drop for InterruptibleWait<'_> {
    fn drop(&mut self) {
        self.interrupts.state.lock().waiting.remove(&self.unique);
    }
}

/// Owners of byte-range locks, so that a close by a process without locks costs nothing.
#[derive(Default)]
pub struct LockOwners {
    /// With the open file through which the owner took its latest lock.
    pairs: Mutex<HashMap<(InodeId, LockOwner), OpenFileId>>,
    count: AtomicUsize,
}

/// Identifies an open file for as long as it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFileId(pub usize);

impl LockOwners {
    /// Records that `owner` may hold locks on `ino`, before it requests one through an open file.
    pub fn add(&self, ino: InodeId, owner: LockOwner, through: OpenFileId) -> Result<()> {
        let mut pairs = self.pairs.lock();
        if pairs.len() >= MAX_LOCK_OWNERS && !pairs.contains_key(&(ino, owner)) {
            return Err(Errno::ENOLCK.into());
        }
        pairs.insert((ino, owner), through);
        self.count.store(pairs.len(), Ordering::Release);
        Ok(())
    }

    /// Returns true once if `owner` may hold locks on `ino`: the caller removes them.
    pub fn take(&self, ino: InodeId, owner: LockOwner) -> bool {
        self.take_if(ino, owner, |_| true)
    }

    /// Like [`LockOwners::take`], but only if the owner took its latest lock through this open
    /// file.
    pub fn take_last(&self, ino: InodeId, owner: LockOwner, through: OpenFileId) -> bool {
        self.take_if(ino, owner, |last| last == through)
    }

    fn take_if(&self, ino: InodeId, owner: LockOwner, is_match: impl FnOnce(OpenFileId) -> bool) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut pairs = self.pairs.lock();
        let found = pairs.get(&(ino, owner)).is_some_and(|last| is_match(*last));
        if found {
            pairs.remove(&(ino, owner));
        }
        self.count.store(pairs.len(), Ordering::Release);
        found
    }

    /// Removes all owners: no locks are left.
    pub fn clear(&self) {
        let mut pairs = self.pairs.lock();
        pairs.clear();
        self.count.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_waiting(interrupts: &Interrupts, unique: u64) -> bool {
        interrupts.state.lock().waiting.contains_key(&unique)
    }

    #[test]
    fn an_early_interrupt_cancels_its_later_wait() {
        let interrupts = Interrupts::default();
        interrupts.interrupt(8);
        assert_eq!(interrupts.state.lock().early_interrupts.len(), 1);
        let waiting = interrupts.register(8);
        assert!(interrupts.state.lock().early_interrupts.is_empty());
        assert!(is_waiting(&interrupts, 8));
        drop(waiting);
        assert!(!is_waiting(&interrupts, 8));
    }

    #[test]
    fn late_interrupts_are_bounded() {
        let interrupts = Interrupts::default();
        for unique in 0..3 * MAX_EARLY_INTERRUPTS as u64 {
            interrupts.interrupt(unique);
        }
        let state = interrupts.state.lock();
        assert_eq!(state.early_interrupts.len(), MAX_EARLY_INTERRUPTS);
        assert_eq!(state.early_interrupts.back(), Some(&(3 * MAX_EARLY_INTERRUPTS as u64 - 1)));
    }

    #[test]
    fn an_interrupt_of_a_registered_wait_is_not_stored() {
        let interrupts = Interrupts::default();
        let _waiting = interrupts.register(8);
        interrupts.interrupt(8);
        assert!(interrupts.state.lock().early_interrupts.is_empty());
    }

    #[test]
    fn holders_are_taken_once() {
        let holders = LockOwners::default();
        let (ino, owner) = (InodeId(5), LockOwner(6));
        assert!(!holders.take(ino, owner));
        let [one, other] = [OpenFileId(1), OpenFileId(2)];
        holders.add(ino, owner, one).unwrap();
        holders.add(ino, owner, other).unwrap();
        assert!(!holders.take(ino, LockOwner(7)) && !holders.take(InodeId(6), owner));
        assert!(!holders.take_last(ino, owner, one), "it has locked again through the other one");
        assert!(holders.take_last(ino, owner, other));
        holders.add(ino, owner, one).unwrap();
        assert!(holders.take(ino, owner));
        assert!(!holders.take(ino, owner));
    }
}
