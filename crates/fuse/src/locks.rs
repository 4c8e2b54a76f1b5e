//! What this side remembers of locks: who waits for one, and who holds byte-range locks. The locks
//! themselves are the metadata service's.

use client::Cancel;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{Errno, HashMap, InodeId, Result};
use wire::LockOwner;

/// Interrupts remembered for requests that have yet to begin their wait. An interrupt overtakes its
/// request by microseconds, so that a few would do; the rest is for interrupts of requests that
/// never wait, which nobody picks up.
const MAX_EARLY_INTERRUPTS: usize = 1024;
/// Pairs of file and owner that hold byte-range locks; beyond it locking fails with `ENOLCK`.
const MAX_HOLDERS: usize = 1 << 20;

/// Waits that an INTERRUPT can end, by the number of their request.
#[derive(Default)]
pub struct Interrupts {
    state: Mutex<InterruptState>,
}

#[derive(Default)]
struct InterruptState {
    waiting: HashMap<u64, Cancel>,
    early: VecDeque<u64>,
    ended: bool,
}

impl Interrupts {
    /// Registers the wait of a request; one that was interrupted already comes cancelled. Drop the
    /// guard when the wait is over.
    pub fn register(&self, unique: u64) -> Waiting<'_> {
        let cancel = Cancel::default();
        let mut state = self.state.lock();
        let early = state.early.iter().position(|&u| u == unique);
        if let Some(at) = early {
            state.early.remove(at);
        }
        if early.is_some() || state.ended {
            cancel.cancel();
        }
        state.waiting.insert(unique, cancel.clone());
        Waiting { interrupts: self, unique, cancel }
    }

    /// An INTERRUPT arrived. Requests are numbered once, so one that is over already is never met
    /// again.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(cancel) = state.waiting.get(&unique).cloned() {
            drop(state);
            cancel.cancel();
            return;
        }
        if state.early.len() == MAX_EARLY_INTERRUPTS {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// Ends all waits, now and later: the connection is gone.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let waiting: Vec<Cancel> = state.waiting.values().cloned().collect();
        drop(state);
        waiting.iter().for_each(Cancel::cancel);
    }
}

/// A registered wait.
pub struct Waiting<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
    /// Triggered by the interrupt.
    pub cancel: Cancel,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.interrupts.state.lock().waiting.remove(&self.unique);
    }
}

/// Who holds byte-range locks, so that a close without any costs nothing.
#[derive(Default)]
pub struct Holders {
    /// With the open file through which the owner has locked last.
    pairs: Mutex<HashMap<(InodeId, LockOwner), OpenFileId>>,
    count: AtomicUsize,
}

/// An open file, as long as it is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFileId(pub usize);

impl Holders {
    /// Notes that `owner` may hold locks on `ino`, before it asks for one through an open file.
    pub fn add(&self, ino: InodeId, owner: LockOwner, through: OpenFileId) -> Result<()> {
        let mut pairs = self.pairs.lock();
        if pairs.len() >= MAX_HOLDERS && !pairs.contains_key(&(ino, owner)) {
            return Err(Errno::ENOLCK.into());
        }
        pairs.insert((ino, owner), through);
        self.count.store(pairs.len(), Ordering::Release);
        Ok(())
    }

    /// True, once, if `owner` may hold locks on `ino`: the caller removes them.
    pub fn take(&self, ino: InodeId, owner: LockOwner) -> bool {
        self.take_if(ino, owner, |_| true)
    }

    /// The same where the owner has locked last through this open file.
    pub fn take_last(&self, ino: InodeId, owner: LockOwner, through: OpenFileId) -> bool {
        self.take_if(ino, owner, |last| last == through)
    }

    fn take_if(&self, ino: InodeId, owner: LockOwner, is_meant: impl FnOnce(OpenFileId) -> bool) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut pairs = self.pairs.lock();
        let found = pairs.get(&(ino, owner)).is_some_and(|last| is_meant(*last));
        if found {
            pairs.remove(&(ino, owner));
        }
        self.count.store(pairs.len(), Ordering::Release);
        found
    }

    /// Nobody holds any.
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
    fn an_interrupt_before_its_request_is_kept_for_it() {
        let interrupts = Interrupts::default();
        interrupts.interrupt(8);
        assert_eq!(interrupts.state.lock().early.len(), 1);
        let waiting = interrupts.register(8);
        assert!(interrupts.state.lock().early.is_empty());
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
        assert_eq!(state.early.len(), MAX_EARLY_INTERRUPTS);
        assert_eq!(state.early.back(), Some(&(3 * MAX_EARLY_INTERRUPTS as u64 - 1)));
    }

    #[test]
    fn an_interrupt_of_a_registered_wait_is_not_kept() {
        let interrupts = Interrupts::default();
        let _waiting = interrupts.register(8);
        interrupts.interrupt(8);
        assert!(interrupts.state.lock().early.is_empty());
    }

    #[test]
    fn holders_are_taken_once() {
        let holders = Holders::default();
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
