//! Holds that keep entries from retiring.
//!
//! A hold covers the entries that changes rely on during its lifetime. It records the maintenance
//! pass in which it began: an entry that a change has relied on in that pass or later stays. So the
//! cost of a hold doesn't depend on the number of entries.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The log's clock, and the holds.
#[derive(Default)]
pub(crate) struct Holds {
    /// Number of the maintenance pass. Changed under the lock of `held`, so that no hold begins in
    /// a pass that a retirement has left.
    pass: AtomicU64,
    /// Number of holds by the pass in which they began.
    held: Mutex<BTreeMap<u64, usize>>,
    /// Nothing retires at all.
    retain_all: AtomicBool,
    /// Overrides `retain_all`: there were too many entries.
    release_all: AtomicBool,
    /// Holds of this pass and earlier ones are invalid: they retained too much.
    invalid_before: AtomicU64,
}

impl Holds {
    pub(crate) fn pass(&self) -> u64 {
        self.pass.load(Ordering::Relaxed)
    }

    pub(crate) fn set_retain_all(&self, retain: bool) {
        let _held = self.held.lock();
        self.retain_all.store(retain, Ordering::SeqCst);
    }

    /// While set, entries retire even if everything should be retained. Entries with a hold stay.
    pub(crate) fn set_release_all(&self, let_go: bool) {
        let _held = self.held.lock();
        self.release_all.store(let_go, Ordering::SeqCst);
    }

    /// Invalidates the existing holds.
    pub(crate) fn invalidate_holds(&self) {
        let _held = self.held.lock();
        self.invalid_before.store(self.pass() + 1, Ordering::SeqCst);
    }

    /// Whether an invalidated hold still exists.
    pub(crate) fn has_invalidated(&self) -> bool {
        let held = self.held.lock();
        held.first_key_value().is_some_and(|(first, _)| self.is_invalidated(*first))
    }

    fn is_invalidated(&self, pass: u64) -> bool {
        pass < self.invalid_before.load(Ordering::SeqCst)
    }

    pub(crate) fn retains_all(&self) -> bool {
        self.retain_all.load(Ordering::SeqCst) && !self.release_all.load(Ordering::SeqCst)
    }

    /// Begins the next pass. Returns its number, and the pass before which an entry must have been
    /// used last so that it may retire.
    pub(crate) fn next_pass(&self, idle_passes: u64) -> (u64, u64) {
        let held = self.held.lock();
        let pass = self.pass.fetch_add(1, Ordering::Relaxed) + 1;
        if self.retains_all() {
            return (pass, 0);
        }
        let idle_before = pass.saturating_sub(idle_passes);
        let first_held = held.keys().find(|first| !self.is_invalidated(**first));
        (pass, first_held.map_or(idle_before, |first| idle_before.min(*first)))
    }

    pub(crate) fn hold(self: &Arc<Holds>) -> EntryHold {
        let mut held = self.held.lock();
        let pass = self.pass();
        *held.entry(pass).or_default() += 1;
        EntryHold(Some((self.clone(), pass)))
    }
}

/// Retains the entries that changes rely on during its lifetime; see
/// [`Store::hold_entries`](crate::Store::hold_entries).
#[must_use = "entries are retained only until it is dropped"]
pub struct EntryHold(Option<(Arc<Holds>, u64)>);

impl EntryHold {
    /// Holds nothing: for a store without intent log.
    pub(crate) fn empty() -> EntryHold {
        EntryHold(None)
    }
}

impl Drop for EntryHold {
    fn drop(&mut self) {
        let Some((holds, pass)) = &self.0 else { return };
        let mut held = holds.held.lock();
        if let Some(count) = held.get_mut(pass) {
            *count -= 1;
            if *count == 0 {
                held.remove(pass);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_used_since_the_oldest_hold_stay() {
        let holds = Arc::new(Holds::default());
        assert_eq!(holds.next_pass(0), (1, 1));
        let first = holds.hold();
        assert_eq!(holds.next_pass(0), (2, 1));
        let (second, third) = (holds.hold(), holds.hold());
        drop(first);
        assert_eq!(holds.next_pass(0), (3, 2));
        assert_eq!(holds.next_pass(3), (4, 1), "idleness asks for more");
        drop(second);
        assert_eq!(holds.next_pass(0), (5, 2));
        drop(third);
        assert_eq!(holds.next_pass(0), (6, 6));
    }

    #[test]
    fn everything_can_be_kept() {
        let holds = Holds::default();
        holds.set_retain_all(true);
        assert_eq!(holds.next_pass(0), (1, 0));
        holds.set_release_all(true);
        assert_eq!(holds.next_pass(0), (2, 2));
        holds.set_release_all(false);
        assert_eq!(holds.next_pass(0), (3, 0));
        holds.set_retain_all(false);
        assert_eq!(holds.next_pass(0), (4, 4));
    }

    #[test]
    fn invalidated_holds_are_counted_until_dropped() {
        let holds = Arc::new(Holds::default());
        let broken = holds.hold();
        holds.invalidate_holds();
        assert_eq!(holds.next_pass(0), (1, 1));
        let later = holds.hold();
        assert_eq!(holds.next_pass(0), (2, 1));
        assert!(holds.has_invalidated());
        drop(broken);
        assert!(!holds.has_invalidated());
        drop(later);
    }
}
