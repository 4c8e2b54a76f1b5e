//! The locks that the metadata service has granted to this session, for lock reclaim.
//!
//! A restarted service has lost all locks. Every session reports its locks, from this list, before
//! the service grants new ones. The list may contain more than the service had (a lock that is just
//! being released), never less. A grant whose request was sent before the last report isn't
//! trusted, and the request is sent again.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use types::{Error, InodeId};
use wire::{HeldLock, LockFamily, LockKind, LockOwner, LockRange};

/// Every possible byte of a file.
const WHOLE_FILE: LockRange = LockRange { start: 0, last: u64::MAX };

/// A holder, whose own locks don't conflict with each other.
type Holder = (InodeId, LockFamily, LockOwner);

/// The locks of a session. The service bounds their number.
#[derive(Default)]
pub(crate) struct HeldLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often the locks were listed for a report.
    listings: u64,
    /// Without empty lists; the parts of a list are disjoint.
    by_holder: BTreeMap<Holder, Vec<HeldRange>>,
    /// The open files through which a holder has taken its locks.
    files: BTreeMap<Holder, Vec<Weak<AtomicBool>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HeldRange {
    range: LockRange,
    kind: LockKind,
    pid: u32,
}

/// Number of listings when a request was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReportCount(u64);

impl HeldLocks {
    /// To be called before a lock is requested. Changing the kind of a `flock` releases the old
    /// lock, whether the new one is granted or not.
    pub(crate) fn begin_request(&self, lock: &HeldLock) -> ReportCount {
        let mut state = self.state.lock();
        if lock.family == LockFamily::Flock {
            let converts = |part: &HeldRange| part.kind != lock.kind;
            if state.by_holder.get(&holder(lock)).is_some_and(|parts| parts.iter().any(converts)) {
                state.by_holder.remove(&holder(lock));
            }
        }
        ReportCount(state.listings)
    }

    /// Records a granted lock. Returns false if the locks were listed since the request was sent:
    /// the service that got that report may not have this one. `through` is set when the lock is
    /// lost.
    pub(crate) fn record_grant(
        &self,
        report_count: ReportCount,
        lock: &HeldLock,
        lock_lost: Option<&Arc<AtomicBool>>,
    ) -> bool {
        let mut state = self.state.lock();
        if state.listings != report_count.0 {
            return false;
        }
        if let Some(file) = lock_lost {
            let files = state.files.entry(holder(lock)).or_default();
            files.retain(|known| known.strong_count() > 0 && known.as_ptr() != Arc::as_ptr(file));
            files.push(Arc::downgrade(file));
        }
        let parts = state.by_holder.entry(holder(lock)).or_default();
        let mut part =
            HeldRange { range: covered_range(lock.family, lock.range), kind: lock.kind, pid: lock.pid };
        remove_range(parts, part.range);
        parts.retain(|other| {
            let merges = other.kind == part.kind && other.pid == part.pid && touch(other.range, part.range);
            if merges {
                part.range.start = part.range.start.min(other.range.start);
                part.range.last = part.range.last.max(other.range.last);
            }
            !merges
        });
        parts.push(part);
        true
    }

    /// Removes a range that is about to be released.
    pub(crate) fn remove(&self, holder: Holder, range: LockRange) {
        let mut state = self.state.lock();
        state.remove(holder, range);
    }

    /// Records that the service has reported a lock as lost. Returns false if its holder had
    /// released it already; else marks the open files through which it was taken.
    pub(crate) fn mark_lost(&self, lock: &HeldLock) -> bool {
        let (holder, mut state) = (holder(lock), self.state.lock());
        let range = covered_range(lock.family, lock.range);
        let parts = state.by_holder.get(&holder);
        if !parts.is_some_and(|parts| parts.iter().any(|part| overlap(part.range, range))) {
            return false;
        }
        let files = state.files.get(&holder).into_iter().flatten();
        files.filter_map(Weak::upgrade).for_each(|lost| lost.store(true, Ordering::Relaxed));
        state.remove(holder, range);
        true
    }

    /// Marks the open file of a lock that a service has granted to another session meanwhile.
    pub(crate) fn handle_lost_lock(&self, lock: &HeldLock, error: &Error) {
        if self.mark_lost(lock) {
            let HeldLock { ino, pid, .. } = lock;
            tracing::error!(%ino, pid, %error, "a process has lost an advisory lock: the open file through which it was taken fails with EIO until it is closed");
        }
    }

    /// Returns all locks, for a report.
    pub(crate) fn list(&self) -> Vec<HeldLock> {
        let mut state = self.state.lock();
        state.listings += 1;
        let locks = state.by_holder.iter().flat_map(|(&(ino, family, owner), parts)| {
            parts.iter().map(move |&HeldRange { range, kind, pid }| HeldLock {
                ino,
                family,
                owner,
                pid,
                kind,
                range,
            })
        });
        locks.collect()
    }

    /// Returns a holder's locks within a range, and the parts of it without a lock.
    pub(crate) fn locks_within(
        &self,
        holder: Holder,
        range: LockRange,
    ) -> (Vec<(LockKind, LockRange)>, Vec<LockRange>) {
        let range = covered_range(holder.1, range);
        let mut held: Vec<HeldRange> = self.state.lock().by_holder.get(&holder).cloned().unwrap_or_default();
        held.retain(|part| overlap(part.range, range));
        held.sort_unstable_by_key(|part| part.range.start);
        let (mut locks, mut free, mut next) = (Vec::new(), Vec::new(), Some(range.start));
        for part in held {
            let (start, last) = (part.range.start.max(range.start), part.range.last.min(range.last));
            if let Some(next) = next.filter(|next| *next < start) {
                free.push(LockRange { start: next, last: start - 1 });
            }
            locks.push((part.kind, LockRange { start, last }));
            next = last.checked_add(1);
        }
        if let Some(start) = next.filter(|next| *next <= range.last) {
            free.push(LockRange { start, last: range.last });
        }
        (locks, free)
    }
}

impl State {
    fn remove(&mut self, holder: Holder, range: LockRange) {
        if let Some(parts) = self.by_holder.get_mut(&holder) {
            remove_range(parts, covered_range(holder.1, range));
            if parts.is_empty() {
                self.by_holder.remove(&holder);
            }
        }
        if !self.by_holder.contains_key(&holder) {
            self.files.remove(&holder);
        }
    }
}

fn holder(lock: &HeldLock) -> Holder {
    (lock.ino, lock.family, lock.owner)
}

/// The bytes that a lock of this family covers.
fn covered_range(family: LockFamily, range: LockRange) -> LockRange {
    match family {
        LockFamily::Posix => range,
        LockFamily::Flock => WHOLE_FILE,
    }
}

/// Removes a range from disjoint parts.
fn remove_range(parts: &mut Vec<HeldRange>, range: LockRange) {
    let mut remainders = Vec::new();
    parts.retain(|part| {
        if !overlap(part.range, range) {
            return true;
        }
        if let Some(last) = range.start.checked_sub(1).filter(|last| part.range.start <= *last) {
            remainders.push(HeldRange { range: LockRange { last, ..part.range }, ..*part });
        }
        if let Some(start) = range.last.checked_add(1).filter(|start| *start <= part.range.last) {
            remainders.push(HeldRange { range: LockRange { start, ..part.range }, ..*part });
        }
        false
    });
    parts.append(&mut remainders);
}

fn overlap(a: LockRange, b: LockRange) -> bool {
    a.start <= b.last && b.start <= a.last
}

/// Whether the ranges overlap or are adjacent.
fn touch(a: LockRange, b: LockRange) -> bool {
    a.start <= b.last.saturating_add(1) && b.start <= a.last.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::LockKind::{Exclusive, Shared};

    const INO: InodeId = InodeId(7);
    const POSIX: Holder = (INO, LockFamily::Posix, LockOwner(5));

    fn range(start: u64, last: u64) -> LockRange {
        LockRange { start, last }
    }

    fn lock(kind: LockKind, range: LockRange) -> HeldLock {
        let (ino, family, owner) = POSIX;
        HeldLock { ino, family, owner, pid: 9, kind, range }
    }

    fn grant(locks: &HeldLocks, lock: HeldLock) {
        let report_count = locks.begin_request(&lock);
        assert!(locks.record_grant(report_count, &lock, None));
    }

    fn listed(locks: &HeldLocks) -> Vec<(LockKind, LockRange)> {
        let mut all: Vec<_> = locks.list().iter().map(|lock| (lock.kind, lock.range)).collect();
        all.sort_unstable_by_key(|(_, range)| range.start);
        all
    }

    #[test]
    fn locks_replace_split_and_merge() {
        let locks = HeldLocks::default();
        grant(&locks, lock(Shared, range(0, 99)));
        grant(&locks, lock(Exclusive, range(20, 29)));
        let split = [(Shared, range(0, 19)), (Exclusive, range(20, 29)), (Shared, range(30, 99))];
        assert_eq!(listed(&locks), split);
        grant(&locks, lock(Shared, range(15, 40)));
        assert_eq!(listed(&locks), [(Shared, range(0, 99))]);
        grant(&locks, lock(Shared, range(100, u64::MAX)));
        assert_eq!(listed(&locks), [(Shared, range(0, u64::MAX))]);
        locks.remove(POSIX, range(10, u64::MAX));
        assert_eq!(listed(&locks), [(Shared, range(0, 9))]);
        locks.remove(POSIX, range(0, u64::MAX));
        assert!(locks.state.lock().by_holder.is_empty());
    }

    #[test]
    fn a_grant_requested_before_a_report_is_not_trusted() {
        let locks = HeldLocks::default();
        let report_count = locks.begin_request(&lock(Shared, range(0, 9)));
        assert!(listed(&locks).is_empty());
        assert!(!locks.record_grant(report_count, &lock(Shared, range(0, 9)), None));
        assert!(listed(&locks).is_empty());
    }

    #[test]
    fn open_files_are_marked_when_their_held_locks_are_lost() {
        let locks = HeldLocks::default();
        let files = [(); 3].map(|()| Arc::<AtomicBool>::default());
        for (number, file) in (1..).zip(&files) {
            let lock = HeldLock { owner: LockOwner(number), ..lock(Shared, range(0, 9)) };
            let report_count = locks.begin_request(&lock);
            assert!(locks.record_grant(report_count, &lock, Some(file)));
        }
        let of = |number| HeldLock { owner: LockOwner(number), ..lock(Shared, range(5, 5)) };
        locks.remove((INO, LockFamily::Posix, LockOwner(2)), range(0, 9));
        assert!(locks.mark_lost(&of(1)) && !locks.mark_lost(&of(2)));
        assert!(!locks.mark_lost(&of(1)), "it is lost once");
        assert_eq!(files.each_ref().map(|lost| lost.load(Ordering::Relaxed)), [true, false, false]);
        assert_eq!(locks.state.lock().files.len(), 2);
        (1..4).for_each(|number| locks.remove((INO, LockFamily::Posix, LockOwner(number)), range(0, 9)));
        assert!(locks.state.lock().files.is_empty());
    }

    #[test]
    fn converting_a_flock_releases_it_but_a_byte_range_lock_stays() {
        let locks = HeldLocks::default();
        let flock = |kind| HeldLock { family: LockFamily::Flock, ..lock(kind, range(3, 4)) };
        grant(&locks, flock(Shared));
        assert_eq!(listed(&locks), [(Shared, WHOLE_FILE)]);
        locks.begin_request(&flock(Exclusive));
        assert!(listed(&locks).is_empty());
        grant(&locks, lock(Shared, range(3, 4)));
        locks.begin_request(&lock(Exclusive, range(3, 4)));
        assert_eq!(listed(&locks), [(Shared, range(3, 4))]);
    }

    #[test]
    fn held_and_free_parts_of_a_range() {
        let locks = HeldLocks::default();
        grant(&locks, lock(Shared, range(10, 19)));
        grant(&locks, lock(Exclusive, range(30, u64::MAX)));
        let (kept, free) = locks.locks_within(POSIX, range(15, u64::MAX));
        assert_eq!(kept, [(Shared, range(15, 19)), (Exclusive, range(30, u64::MAX))]);
        assert_eq!(free, [range(20, 29)]);
        let (kept, free) = locks.locks_within(POSIX, range(0, 12));
        assert_eq!((kept, free), (vec![(Shared, range(10, 12))], vec![range(0, 9)]));
        let (kept, free) = locks.locks_within((InodeId(8), LockFamily::Flock, LockOwner(1)), range(3, 4));
        assert_eq!((kept, free), (vec![], vec![WHOLE_FILE]));
    }
}
