//! Advisory locks: `fcntl` byte ranges and `flock` whole files.
//!
//! A [`LockTable`] tracks holders and waiters; the caller delivers outcomes and grants to the
//! clients. Semantics are Linux's (`fs/locks.c`):
//!
//! - Locks of one holder never conflict: a new one replaces what it covers, splitting and merging
//!   ranges.
//! - A `flock` of another kind first releases the old one, so a conversion that has to wait, or is
//!   refused, has lost it.
//! - Waiters are served in order of arrival, each as soon as no held lock conflicts. Earlier
//!   waiters never block a request: a process that extends its locks on a file would deadlock with
//!   a waiter.
//! - A wait that would close a cycle of `fcntl` waits is refused. Cycles are detected within one
//!   table.
//!
//! Invariants: the locks of one holder are disjoint, and adjacent ones differ in kind; no two
//! holders' locks conflict; every waiter has a conflicting held lock. Pure, and deterministic:
//! nothing is iterated in hash order.

use std::collections::{BTreeMap, BTreeSet};
use types::{Errno, InodeId, PartitionId, SessionId};
use wire::{LockFamily, LockKind, LockOwner, LockRange};

/// Most locks on one inode, with waiters counted twice (see [`GROWTH`]); beyond that, `ENOLCK`.
pub const MAX_LOCKS_PER_INODE: usize = 65_536;
/// Most locks in a table, with waiters counted twice: about 500 MiB of memory; beyond that,
/// `ENOLCK`.
pub const MAX_LOCKS: usize = 4 << 20;
/// The most that one grant adds to the number of held locks: a lock in the middle of a larger one
/// of another kind turns one into three. A waiter reserves as much, so that a grant never fails.
const GROWTH: usize = 2;

const WHOLE_FILE: LockRange = LockRange { start: 0, last: u64::MAX };

/// The holder of a lock, or a waiter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub struct Holder {
    pub session: SessionId,
    pub family: LockFamily,
    pub owner: LockOwner,
}

/// A requested lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The file.
    pub ino: InodeId,
    /// The requester.
    pub holder: Holder,
    /// Requesting process, as [`LockTable::test`] reports it; not part of the holder's identity.
    pub pid: u32,
    /// Strength.
    pub kind: LockKind,
    /// Bytes; ignored for `flock`.
    pub range: LockRange,
}

/// What to do if a lock conflicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum OnConflict {
    Refuse,
    Wait,
}

/// A waiting request. Later waits have larger numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitId(u64);

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOutcome {
    /// The lock is held now.
    Granted,
    /// Another holder's lock conflicts (`EAGAIN`).
    WouldBlock,
    /// Queued; a later call returns this id as granted.
    Waiting(WaitId),
    /// Waiting would never end (`EDEADLK`).
    Deadlock,
    /// `ENOLCK` at a limit, `EINVAL` for a range that ends before it starts; nothing changed.
    Refused(Errno),
}

/// The outcome of a request, and the waits that it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockResult {
    /// The requester's outcome.
    pub outcome: LockOutcome,
    /// Waits granted because the request weakened or released a lock, even if it was not granted
    /// itself.
    pub granted: Vec<WaitId>,
}

/// Effects of the end of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Released {
    /// Waits of other sessions that are granted now.
    pub granted: Vec<WaitId>,
    /// Waits of the session itself, which have ended.
    pub cancelled: Vec<WaitId>,
}

/// A held lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LockEntry {
    holder: Holder,
    pid: u32,
    kind: LockKind,
    range: LockRange,
}

/// The locks of one inode.
#[derive(Default)]
struct InodeLocks {
    /// Sorted by start.
    held: Vec<LockEntry>,
    /// In order of arrival.
    queue: BTreeSet<WaitId>,
}

/// All locks of the inodes in the table.
#[derive(Default)]
pub struct LockTable {
    inodes: BTreeMap<InodeId, InodeLocks>,
    waits: BTreeMap<WaitId, LockRequest>,
    waits_by_holder: BTreeSet<(Holder, WaitId)>,
    last_wait: u64,
    /// Held locks of all inodes.
    held_total: usize,
}

impl LockTable {
    /// A table without locks.
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// Requests a lock.
    pub fn lock(&mut self, request: &LockRequest, on_conflict: OnConflict) -> LockResult {
        let refused = |errno| LockResult { outcome: LockOutcome::Refused(errno), granted: Vec::new() };
        let request = LockRequest { range: effective_range(&request.holder, request.range), ..*request };
        if request.range.start > request.range.last {
            return refused(Errno::EINVAL);
        }
        if !self.has_room(request.ino, GROWTH) {
            return refused(Errno::ENOLCK);
        }
        let released = self.release_for_conversion(&request);
        let (outcome, weakened) = if self.conflicting(&request).next().is_none() {
            (LockOutcome::Granted, self.hold(&request))
        } else {
            (self.refuse_or_wait(request, on_conflict), false)
        };
        let granted = if released || weakened { self.grant_waiters(request.ino) } else { Vec::new() };
        self.forget_if_unused(request.ino);
        LockResult { outcome, granted }
    }

    /// Releases the holder's locks on a range; returns the waits that this grants. It is no error
    /// if there are none.
    ///
    /// Errors: `ENOLCK` if a lock would be split at the limit, `EINVAL` for a range that ends
    /// before it starts.
    pub fn unlock(&mut self, ino: InodeId, holder: Holder, range: LockRange) -> Result<Vec<WaitId>, Errno> {
        let range = effective_range(&holder, range);
        if range.start > range.last {
            return Err(Errno::EINVAL);
        }
        let splits = self.inodes.get(&ino).is_some_and(|locks| locks.splits(holder, range));
        if splits && !self.has_room(ino, 1) {
            return Err(Errno::ENOLCK);
        }
        Ok(self.clear(ino, holder, range))
    }

    /// Ends a wait. Returns false if there is none: it was granted before, or never existed.
    pub fn cancel(&mut self, wait: WaitId) -> bool {
        let Some(request) = self.dequeue(wait) else {
            return false;
        };
        // No request waits for a waiter, so this grants nothing.
        self.forget_if_unused(request.ino);
        true
    }

    /// The first lock (by offset) that conflicts with a request: its kind, range and process.
    pub fn test(&self, request: &LockRequest) -> Option<(LockKind, LockRange, u32)> {
        let request = LockRequest { range: effective_range(&request.holder, request.range), ..*request };
        self.conflicting(&request).next().map(|lock| (lock.kind, lock.range, lock.pid))
    }

    /// Releases all locks of a holder on an inode, as a close does; returns the waits that this
    /// grants. The holder's own wait continues: it belongs to another thread.
    pub fn release_owner(&mut self, ino: InodeId, holder: Holder) -> Vec<WaitId> {
        self.clear(ino, holder, WHOLE_FILE)
    }

    /// Ends all waits and releases all locks of a session.
    pub fn release_session(&mut self, session: SessionId) -> Released {
        let of_session = |(wait, request): (&WaitId, &LockRequest)| {
            (request.holder.session == session).then_some((*wait, request.ino))
        };
        let waits: Vec<(WaitId, InodeId)> = self.waits.iter().filter_map(of_session).collect();
        let mut touched: BTreeSet<InodeId> = waits.iter().map(|&(_, ino)| ino).collect();
        for &(wait, _) in &waits {
            self.dequeue(wait);
        }
        for (&ino, locks) in &mut self.inodes {
            let before = locks.held.len();
            locks.held.retain(|lock| lock.holder.session != session);
            self.held_total -= before - locks.held.len();
            if locks.held.len() != before {
                touched.insert(ino);
            }
        }
        let mut granted = Vec::new();
        for ino in touched {
            granted.extend(self.grant_waiters(ino));
            self.forget_if_unused(ino);
        }
        Released { granted, cancelled: waits.into_iter().map(|(wait, _)| wait).collect() }
    }

    /// Drops all locks of a partition; returns the cancelled waits.
    pub fn forget_partition(&mut self, partition: PartitionId) -> Vec<WaitId> {
        let of_it = |(wait, request): (&WaitId, &LockRequest)| {
            (request.ino.partition() == partition).then_some(*wait)
        };
        let waits: Vec<WaitId> = self.waits.iter().filter_map(of_it).collect();
        for &wait in &waits {
            self.dequeue(wait);
        }
        self.inodes.retain(|ino, locks| {
            let stays = ino.partition() != partition;
            self.held_total -= if stays { 0 } else { locks.held.len() };
            stays
        });
        waits
    }

    /// Whether `more` locks fit both limits.
    fn has_room(&self, ino: InodeId, more: usize) -> bool {
        let on_inode = self.inodes.get(&ino).map_or(0, |locks| locks.held.len() + GROWTH * locks.queue.len());
        let in_table = self.held_total + GROWTH * self.waits.len();
        on_inode + more <= MAX_LOCKS_PER_INODE && in_table + more <= MAX_LOCKS
    }

    /// The held locks that conflict with a request, by offset.
    fn conflicting(&self, request: &LockRequest) -> impl Iterator<Item = &LockEntry> {
        self.inodes.get(&request.ino).into_iter().flat_map(move |locks| locks.blockers(request))
    }

    /// Releases a `flock` of another kind than the requested one; returns whether there was one.
    fn release_for_conversion(&mut self, request: &LockRequest) -> bool {
        if request.holder.family != LockFamily::Flock {
            return false;
        }
        let Some(locks) = self.inodes.get_mut(&request.ino) else {
            return false;
        };
        let before = locks.held.len();
        locks.held.retain(|lock| lock.holder != request.holder || lock.kind == request.kind);
        let released = before - locks.held.len();
        self.held_total -= released;
        released > 0
    }

    fn refuse_or_wait(&mut self, request: LockRequest, on_conflict: OnConflict) -> LockOutcome {
        match on_conflict {
            OnConflict::Refuse => LockOutcome::WouldBlock,
            OnConflict::Wait if self.would_deadlock(&request) => LockOutcome::Deadlock,
            OnConflict::Wait => LockOutcome::Waiting(self.enqueue(request)),
        }
    }

    /// Whether a conflicting holder waits, directly or through others, for the requester. `flock`
    /// is not checked, as in Linux: the progress of an open file doesn't depend on a single
    /// process.
    fn would_deadlock(&self, request: &LockRequest) -> bool {
        if request.holder.family != LockFamily::Posix {
            return false;
        }
        let mut reached: BTreeSet<Holder> = self.conflicting(request).map(|lock| lock.holder).collect();
        let mut unexplored: Vec<Holder> = reached.iter().copied().collect();
        while let Some(holder) = unexplored.pop() {
            if holder == request.holder {
                return true;
            }
            for wait in self.waits_of(holder) {
                for lock in self.conflicting(&self.waits[&wait]) {
                    if reached.insert(lock.holder) {
                        unexplored.push(lock.holder);
                    }
                }
            }
        }
        false
    }

    /// The waits of a holder; several if several of its threads wait.
    fn waits_of(&self, holder: Holder) -> impl Iterator<Item = WaitId> {
        let all = (holder, WaitId(0))..=(holder, WaitId(u64::MAX));
        self.waits_by_holder.range(all).map(|&(_, wait)| wait)
    }

    fn enqueue(&mut self, request: LockRequest) -> WaitId {
        self.last_wait += 1;
        let wait = WaitId(self.last_wait);
        self.waits.insert(wait, request);
        self.waits_by_holder.insert((request.holder, wait));
        self.inodes.entry(request.ino).or_default().queue.insert(wait);
        wait
    }

    fn dequeue(&mut self, wait: WaitId) -> Option<LockRequest> {
        let request = self.waits.remove(&wait)?;
        self.waits_by_holder.remove(&(request.holder, wait));
        let locks = self.inodes.get_mut(&request.ino).expect("an inode with waiters is in the table");
        locks.queue.remove(&wait);
        Some(request)
    }

    /// Adds a lock without conflicts; returns whether this weakened the holder's earlier locks.
    fn hold(&mut self, request: &LockRequest) -> bool {
        let locks = self.inodes.entry(request.ino).or_default();
        let before = locks.held.len();
        let lock =
            LockEntry { holder: request.holder, pid: request.pid, kind: request.kind, range: request.range };
        let weakened = locks.insert(lock);
        self.held_total = self.held_total + locks.held.len() - before;
        weakened
    }

    /// Releases a range and returns the waits that this grants.
    fn clear(&mut self, ino: InodeId, holder: Holder, range: LockRange) -> Vec<WaitId> {
        let Some(locks) = self.inodes.get_mut(&ino) else {
            return Vec::new();
        };
        let before = locks.held.len();
        let changed = locks.remove(holder, range);
        self.held_total = self.held_total + locks.held.len() - before;
        let granted = if changed { self.grant_waiters(ino) } else { Vec::new() };
        self.forget_if_unused(ino);
        granted
    }

    /// Grants the waits without conflicts, in order of arrival.
    fn grant_waiters(&mut self, ino: InodeId) -> Vec<WaitId> {
        let mut granted = Vec::new();
        loop {
            let mut weakened = false;
            let queue: Vec<WaitId> =
                self.inodes.get(&ino).into_iter().flat_map(|l| l.queue.iter().copied()).collect();
            for wait in queue {
                let request = self.waits[&wait];
                if self.conflicting(&request).next().is_none() {
                    self.dequeue(wait);
                    weakened |= self.hold(&request);
                    granted.push(wait);
                }
            }
            // A granted wait may have turned an exclusive lock into a shared one, which may allow
            // earlier waits.
            if !weakened {
                return granted;
            }
        }
    }

    fn forget_if_unused(&mut self, ino: InodeId) {
        if self.inodes.get(&ino).is_some_and(|locks| locks.held.is_empty() && locks.queue.is_empty()) {
            self.inodes.remove(&ino);
        }
    }
}

impl InodeLocks {
    /// The held locks that conflict with a request, by offset.
    fn blockers(&self, request: &LockRequest) -> impl Iterator<Item = &LockEntry> {
        let LockRequest { holder, kind, range, .. } = *request;
        let in_reach = self.held.iter().take_while(move |lock| lock.range.start <= range.last);
        in_reach.filter(move |lock| {
            lock.holder.family == holder.family
                && lock.holder != holder
                && overlap(lock.range, range)
                && (kind == LockKind::Exclusive || lock.kind == LockKind::Exclusive)
        })
    }

    /// Whether releasing `range` would split a lock into two.
    fn splits(&self, holder: Holder, range: LockRange) -> bool {
        let mut own = self.held.iter().filter(|lock| lock.holder == holder);
        own.any(|lock| lock.range.start < range.start && range.last < lock.range.last)
    }

    /// Adds a lock in place of the holder's locks there, merged with adjacent ones of its kind;
    /// returns whether an exclusive lock became shared.
    fn insert(&mut self, mut lock: LockEntry) -> bool {
        let requested = lock.range;
        let mut weakened = false;
        let mut remainders = Vec::new();
        self.held.retain(|old| {
            if old.holder != lock.holder || !overlap_or_adjoin(old.range, requested) {
                return true;
            }
            if old.kind == lock.kind {
                lock.range.start = lock.range.start.min(old.range.start);
                lock.range.last = lock.range.last.max(old.range.last);
                return false;
            }
            if !overlap(old.range, requested) {
                return true;
            }
            weakened |= old.kind == LockKind::Exclusive;
            remainders.extend(old.without(requested));
            false
        });
        remainders.into_iter().for_each(|rest| self.insert_sorted(rest));
        self.insert_sorted(lock);
        weakened
    }

    /// Removes a range from a holder's locks; returns whether it held any of it.
    fn remove(&mut self, holder: Holder, range: LockRange) -> bool {
        let mut changed = false;
        let mut remainders = Vec::new();
        self.held.retain(|old| {
            let hit = old.holder == holder && overlap(old.range, range);
            if hit {
                changed = true;
                remainders.extend(old.without(range));
            }
            !hit
        });
        remainders.into_iter().for_each(|rest| self.insert_sorted(rest));
        changed
    }

    fn insert_sorted(&mut self, lock: LockEntry) {
        let at = self.held.partition_point(|other| other.range.start <= lock.range.start);
        self.held.insert(at, lock);
    }
}

impl LockEntry {
    /// The rests of a lock before and behind a range that overlaps it.
    fn without(self, range: LockRange) -> impl Iterator<Item = LockEntry> {
        let before = range.start.checked_sub(1).filter(|&last| self.range.start <= last);
        let behind = range.last.checked_add(1).filter(|&start| start <= self.range.last);
        let before = before.map(|last| LockEntry { range: LockRange { last, ..self.range }, ..self });
        let behind = behind.map(|start| LockEntry { range: LockRange { start, ..self.range }, ..self });
        before.into_iter().chain(behind)
    }
}

/// The bytes that a request of this holder covers.
fn effective_range(holder: &Holder, range: LockRange) -> LockRange {
    match holder.family {
        LockFamily::Posix => range,
        LockFamily::Flock => WHOLE_FILE,
    }
}

fn overlap(a: LockRange, b: LockRange) -> bool {
    a.start <= b.last && b.start <= a.last
}

/// Whether the ranges overlap or are adjacent.
fn overlap_or_adjoin(a: LockRange, b: LockRange) -> bool {
    a.start <= b.last.saturating_add(1) && b.start <= a.last.saturating_add(1)
}

#[cfg(test)]
mod tests;
