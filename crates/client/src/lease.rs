//! The leases that this session holds, by inode.
//!
//! # Which grants count
//!
//! Answers arrive on many cores and in any order, so a grant may arrive after its lease has ended.
//! The table accepts a grant only if
//! - no recall of the inode has been seen that the service made after the grant
//!   ([`wire::MetaResponse::recalls`]),
//! - the client didn't give the inode's lease back (by `Release`) after it had sent the request,
//! - no recall of the inode is in progress: a grant that arrives then predates the recall.
//!
//! The client may cache attributes, names or content from an answer in two cases only
//! ([`Leases::vouches`]): the answer granted the lease, or the session has held it continuously
//! since before the request.
//!
//! # The steps of a recall (see `recall`)
//!
//! 1. The lease is *closing*: the client marks no answer to the kernel as cacheable, loads no new
//!    content, and blocks reads for the kernel's page cache. Loaded content stays valid and in use,
//!    since the service grants nothing to others before the recall acknowledgement.
//! 2. The kernel drops its cached attributes, names and pages. The client doesn't hold the inode's
//!    I/O lock meanwhile.
//! 3. The client takes the I/O lock exclusively, which waits for running reads and writes. It
//!    reports size and times, and unloads the content, unless a weaker lease remains that covers
//!    it. Then it releases the lock.
//! 4. The client sends the recall acknowledgement. When that is answered, the session holds only
//!    the remaining lease, and blocked callers send their requests again.
//!
//! # Why there is no deadlock
//!
//! - *A request of this session waits at the service for another session's recall acknowledgement,
//!   while that session waits for ours.* The client sends no request that can make the service wait
//!   for other sessions while it holds the I/O lock. It requests leases without the lock, and
//!   checks them again under it (`access`). Under the lock it sends only requests for which the
//!   service recalls nothing: requests to storage; changes under `Write`, when no other session
//!   holds a lease; and under `Shared` the reports `BeginWrite`, `EndWrite`, `TruncateDone`.
//! - *Our own `Open` on an inode whose recall is in progress.* The service answers a session that
//!   holds a lease from that lease, without waiting for the same session. The table ignores the
//!   grant. The caller waits for the end of the recall, without any lock, and asks again.
//! - *Two sessions request a lease on the same inode at once, each holding `Shared`.* Neither holds
//!   its I/O lock while it asks, so both recalls complete, and the service grants one of the two
//!   first.
//! - *The kernel waits for a page that our read is to fill, while the recall waits for the kernel.*
//!   Reads for the page cache wait at the page-fill gate, outside of the I/O lock. A read that has
//!   passed the gate and waits for a lease returns to the gate when it closes. The kernel is told
//!   to drop all pages except those that the waiting reads will fill, which hold no data yet. Reads
//!   that arrive later can block the kernel. If that takes long, the gate lets them bypass it, and
//!   they use the loaded content (or one answer of the service, once): the lease hasn't been given
//!   back yet. Since bypassing reads may have filled pages that the kernel had dropped, the kernel
//!   drops its pages once more afterwards. Applications that read page after page are then all
//!   waiting at the gate (`fill`).
//! - *The kernel waits for the write-back of a mapped page.* Writes aren't blocked before step 3.
//!   The loaded content may not allow them, if a read bypassed the gate and an application changed
//!   the page at once. Then the client loads the service's answer as if the file were shared, until
//!   step 3 (`access`).
//! - *A change of a directory waits at the service for another session's recall acknowledgement,
//!   while the kernel holds the directory's lock.* Dropping names from the kernel's cache doesn't
//!   take that lock (see `fuse::notify`).
//! - *The service ended the session.* Every wait ends, with `ESTALE`.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use types::{HashMap, HashSet, InodeId, NodeId, PartitionId};
use wire::{Grant, LeaseMode, MetaReply, MetaResponse, Recall};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;
/// Maximum number of inodes for which a shard remembers a recall or release. Beyond it, the shard
/// drops the individual records and refuses all grants that are older than the newest of them.
const MAX_BARRED: usize = 1024;

/// When a request was sent, which decides what its answer is worth.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Value of the table's event counter at that time.
    clock: u64,
    /// Unique number of the request.
    id: u64,
}

impl Asked {
    /// The table's event counter when the request was sent.
    pub(crate) fn clock(self) -> u64 {
        self.clock
    }

    /// Whether this request was sent later than `other`.
    pub(crate) fn is_after(self, other: Asked) -> bool {
        self.id > other.id
    }
}

/// An answer whose grants have been recorded in the table.
pub(crate) struct Answer {
    pub(crate) reply: MetaReply,
    pub(crate) asked: Asked,
}

struct Lease {
    mode: LeaseMode,
    /// The service that granted it.
    home: NodeId,
    /// Event counter when the session got the lease, which it has held ever since.
    since: u64,
    /// The last request whose answer granted it.
    granted_by: u64,
}

/// Events that invalidate older grants.
#[derive(Clone, Copy)]
struct Bar {
    /// The last recall that was seen, and the service that numbered it.
    recall: u64,
    home: NodeId,
    /// Event counter when the lease was given back; `u64::MAX` while the `Release` request is in
    /// flight.
    released: u64,
}

impl Default for Bar {
    fn default() -> Bar {
        Bar { recall: 0, home: NodeId(0), released: 0 }
    }
}

#[derive(Default)]
struct Shard {
    held: HashMap<InodeId, Lease>,
    barred: HashMap<InodeId, Bar>,
    /// Lower bounds for all inodes: recall numbers, by service, and the event counter of releases.
    recall_floors: HashMap<NodeId, u64>,
    release_floor: u64,
    /// Number of recalls in progress, by inode.
    closing: HashMap<InodeId, usize>,
    /// Inodes without a lease that the service believes to be open in this session.
    marked: HashSet<InodeId>,
}

/// All leases of a session.
pub(crate) struct Leases {
    /// This is the only session: every lease counts as held, without asking a service.
    alone: bool,
    /// The session has ended: no grant is accepted any more.
    ended: AtomicBool,
    /// Services that don't answer, whose leases are suspended.
    silent: Mutex<HashSet<NodeId>>,
    silent_count: AtomicUsize,
    shards: Vec<Mutex<Shard>>,
    /// Set when a recall begins or ends.
    settled: rt::sync::Event,
    clock: AtomicU64,
    answers: AtomicU64,
}

impl Leases {
    /// Creates a table without leases. `alone`: this is the only session.
    pub(crate) fn new(alone: bool) -> Leases {
        Leases {
            alone,
            ended: AtomicBool::new(false),
            silent: Mutex::default(),
            silent_count: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            settled: rt::sync::Event::new(),
            clock: AtomicU64::new(1),
            answers: AtomicU64::new(1),
        }
    }

    /// Whether this is the only session.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    fn shard(&self, ino: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Advances the event counter and returns it: later requests have at least this value, earlier
    /// requests a smaller one.
    pub(crate) fn now(&self) -> u64 {
        self.tick()
    }

    /// Stamps a request; to be called before it is sent.
    pub(crate) fn asking(&self) -> Asked {
        let id = self.answers.fetch_add(1, Ordering::Relaxed);
        Asked { clock: self.clock.load(Ordering::Acquire), id }
    }

    /// Records the grants of a service's answer that are still valid.
    pub(crate) fn take_grants(&self, asked: Asked, home: NodeId, response: &MetaResponse) {
        for grant in &response.grants {
            self.take_grant(asked, home, *grant, response.recalls);
        }
    }

    fn take_grant(&self, asked: Asked, home: NodeId, grant: Grant, recalls: u64) {
        let mut shard = self.shard(grant.ino);
        // Checked under the shard's lock, so that the end of the session also ends this grant.
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let bar = shard.bar(grant.ino, home);
        if recalls < bar.recall || asked.clock < bar.released || shard.closing.contains_key(&grant.ino) {
            return;
        }
        match shard.held.get_mut(&grant.ino) {
            Some(lease) if lease.home == home => match (lease.mode, grant.mode) {
                // The lease restarts: earlier answers may be outdated, except for permissions.
                (LeaseMode::Permissions, more) if more != LeaseMode::Permissions => {
                    (lease.mode, lease.since, lease.granted_by) = (more, self.tick(), asked.id);
                }
                // The grant is older than the held lease, whatever arrived first. Answers that came
                // with it may be outdated.
                (held, LeaseMode::Permissions) if held != LeaseMode::Permissions => {}
                (held, more) => (lease.mode, lease.granted_by) = (joined(held, more), asked.id),
            },
            // The partition has moved: the lease of the old owner must be given up first.
            Some(_) => {}
            None => {
                let lease = Lease { mode: grant.mode, home, since: self.tick(), granted_by: asked.id };
                shard.held.insert(grant.ino, lease);
            }
        }
    }

    /// Suspends or resumes all leases that a service granted. Returns whether they were suspended
    /// before.
    pub(crate) fn set_suspended(&self, home: NodeId, suspended: bool) -> bool {
        if !suspended && self.silent_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut silent = self.silent.lock();
        let changed = if suspended { silent.insert(home) } else { silent.remove(&home) };
        self.silent_count.store(silent.len(), Ordering::Release);
        changed != suspended
    }

    fn is_silent(&self, home: NodeId) -> bool {
        self.silent_count.load(Ordering::Acquire) > 0 && self.silent.lock().contains(&home)
    }

    /// Whether the lease on an inode is suspended.
    pub(crate) fn is_suspended(&self, ino: InodeId) -> bool {
        if self.silent_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let home = self.shard(ino).held.get(&ino).map(|lease| lease.home);
        home.is_some_and(|home| self.is_silent(home))
    }

    /// Returns the lease that has covered an inode continuously since the request `asked`. `None`
    /// if the answer may be outdated, even in part.
    pub(crate) fn vouches(&self, asked: Asked, ino: InodeId) -> Option<LeaseMode> {
        self.held_since(asked, ino).filter(|mode| *mode != LeaseMode::Permissions)
    }

    /// Whether an answer's type, mode, owner and group of a directory are still valid.
    pub(crate) fn vouches_for_permissions(&self, asked: Asked, ino: InodeId) -> bool {
        self.held_since(asked, ino).is_some_and(|mode| mode != LeaseMode::Shared)
    }

    fn held_since(&self, asked: Asked, ino: InodeId) -> Option<LeaseMode> {
        if self.alone {
            return Some(LeaseMode::Write);
        }
        let shard = self.shard(ino);
        if shard.closing.contains_key(&ino) {
            return None;
        }
        let lease = shard.held.get(&ino).filter(|lease| !self.is_silent(lease.home))?;
        (lease.since <= asked.clock || lease.granted_by == asked.id).then_some(lease.mode)
    }

    /// Whether everything in an answer about an inode may be cached until a recall.
    pub(crate) fn may_be_kept(&self, asked: Asked, ino: InodeId) -> bool {
        matches!(self.vouches(asked, ino), Some(LeaseMode::Read | LeaseMode::Write))
    }

    /// The lease that is held, even if it is being recalled.
    pub(crate) fn mode(&self, ino: InodeId) -> Option<LeaseMode> {
        self.shard(ino).held.get(&ino).map(|lease| lease.mode)
    }

    /// Waits until no recall of the inode is in progress.
    pub(crate) async fn wait_while_closing(&self, ino: InodeId) {
        loop {
            let settled = self.settled.wait();
            if !self.shard(ino).closing.contains_key(&ino) {
                return;
            }
            settled.await;
        }
    }

    /// Waits until a recall of the inode is in progress.
    pub(crate) async fn wait_until_closing(&self, ino: InodeId) {
        loop {
            let settled = self.settled.wait();
            if self.shard(ino).closing.contains_key(&ino) {
                return;
            }
            settled.await;
        }
    }

    /// Begins the handling of a recall.
    pub(crate) fn close(&self, home: NodeId, recall: &Recall) {
        {
            let mut shard = self.shard(recall.ino);
            shard.bar_recall(home, recall);
            *shard.closing.entry(recall.ino).or_default() += 1;
        }
        self.wake();
    }

    /// Returns which lease a recall takes, and which one remains.
    pub(crate) fn terms(&self, recall: &Recall) -> Terms {
        let shard = self.shard(recall.ino);
        let held = shard.held.get(&recall.ino).map(|lease| lease.mode);
        let kept = match (held, recall.keep) {
            (Some(LeaseMode::Write), keep) => keep,
            (Some(LeaseMode::Read), Some(LeaseMode::Permissions)) => recall.keep,
            (held, keep) if held == keep => keep,
            _ => None,
        };
        Terms { held, kept }
    }

    /// Records that a recall has been acknowledged: the session holds `kept` from now on.
    pub(crate) fn closed(&self, ino: InodeId, kept: Option<LeaseMode>) {
        {
            let mut shard = self.shard(ino);
            // The lease restarts: answers under the stronger lease may be outdated.
            match (kept, shard.held.get_mut(&ino)) {
                (Some(mode), Some(lease)) => {
                    (lease.mode, lease.since, lease.granted_by) = (mode, self.tick(), 0);
                }
                _ => drop(shard.held.remove(&ino)),
            }
            if let Some(count) = shard.closing.get_mut(&ino) {
                *count -= 1;
                if *count == 0 {
                    shard.closing.remove(&ino);
                }
            }
        }
        self.wake();
    }

    /// Wakes the tasks that wait for a recall to begin or end, so that they check again.
    pub(crate) fn wake(&self) {
        self.settled.set();
        self.settled.clear();
    }

    /// Drops an unused lease. Returns false while a recall of it is in progress, whose
    /// acknowledgement gives it back anyway.
    pub(crate) fn let_go(&self, ino: InodeId) -> bool {
        let mut shard = self.shard(ino);
        if shard.closing.contains_key(&ino) {
            return false;
        }
        shard.held.remove(&ino);
        shard.marked.remove(&ino);
        shard.bar_release(ino, u64::MAX);
        true
    }

    /// Records that the service has processed the release of these leases: later requests may bring
    /// new ones.
    pub(crate) fn released(&self, inodes: &[InodeId]) {
        let now = self.tick();
        for &ino in inodes {
            self.shard(ino).bar_release(ino, now);
        }
    }

    /// Records that the service counts the inode as open in this session, whatever the lease.
    pub(crate) fn mark(&self, ino: InodeId) {
        if !self.alone {
            self.shard(ino).marked.insert(ino);
        }
    }

    /// Whether the service believes that the inode is open in this session.
    pub(crate) fn is_marked(&self, ino: InodeId) -> bool {
        self.shard(ino).marked.contains(&ino)
    }

    /// Drops all leases and recall numbers of a service that has dropped them itself. Grants in
    /// answers to earlier requests are ignored. Returns the inodes on which a lease was held.
    pub(crate) fn end_those_of(&self, home: NodeId) -> Vec<InodeId> {
        self.end_where(
            |_, lease| lease.home == home,
            |shard| {
                shard.recall_floors.remove(&home);
                let barred = shard.barred.values_mut().filter(|bar| bar.home == home);
                barred.for_each(|bar| bar.recall = 0);
            },
        )
    }

    /// Drops all leases on inodes of partitions that have moved to another service. Returns the
    /// inodes on which a lease was held.
    pub(crate) fn end_those_in(&self, partitions: &[PartitionId]) -> Vec<InodeId> {
        self.end_where(
            |ino, _| partitions.contains(&ino.partition()),
            |shard| {
                shard.marked.retain(|ino| !partitions.contains(&ino.partition()));
            },
        )
    }

    /// Ends all leases for good. Returns the inodes on which a lease was held.
    pub(crate) fn end_all(&self) -> Vec<InodeId> {
        self.ended.store(true, Ordering::Release);
        self.end_where(|_, _| true, |shard| shard.marked.clear())
    }

    fn end_where(
        &self,
        ends: impl Fn(InodeId, &Lease) -> bool,
        mut also: impl FnMut(&mut Shard),
    ) -> Vec<InodeId> {
        let now = self.tick();
        let mut ended = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.release_floor = now;
            ended.extend(shard.held.extract_if(|ino, lease| ends(*ino, lease)).map(|(ino, _)| ino));
            also(&mut shard);
        }
        self.wake();
        ended
    }

    /// Returns all inodes with a lease from a service.
    pub(crate) fn of(&self, home: NodeId) -> Vec<InodeId> {
        let of_shard = |shard: &Mutex<Shard>| -> Vec<InodeId> {
            let shard = shard.lock();
            shard.held.iter().filter(|(_, lease)| lease.home == home).map(|(ino, _)| *ino).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }
}

/// Returns the mode that covers both. A session's lease grows by its requests and shrinks by
/// recalls only; grants from before a recall don't count.
fn joined(held: LeaseMode, granted: LeaseMode) -> LeaseMode {
    if held == LeaseMode::Write { held } else { granted }
}

/// What a recall takes and leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// The lease that was held when the recall arrived.
    pub(crate) held: Option<LeaseMode>,
    /// The lease that remains after it.
    pub(crate) kept: Option<LeaseMode>,
}

impl Terms {
    /// Whether the kernel may cache attributes, names and pages that it has to drop.
    pub(crate) fn ends_caching(&self) -> bool {
        let caches = |mode| matches!(mode, Some(LeaseMode::Read | LeaseMode::Write));
        caches(self.held) && !caches(self.kept)
    }
}

impl Shard {
    /// The events that a grant of a service must be newer than.
    fn bar(&self, ino: InodeId, home: NodeId) -> Bar {
        let own = self.barred.get(&ino).copied().unwrap_or_default();
        let recall = if own.home == home { own.recall } else { 0 };
        let floor = self.recall_floors.get(&home).copied().unwrap_or(0);
        Bar { recall: recall.max(floor), home, released: own.released.max(self.release_floor) }
    }

    fn bar_recall(&mut self, home: NodeId, recall: &Recall) {
        let bar = self.barred_mut(recall.ino);
        let before = if bar.home == home { bar.recall } else { 0 };
        (bar.home, bar.recall) = (home, before.max(recall.number));
    }

    fn bar_release(&mut self, ino: InodeId, released: u64) {
        self.barred_mut(ino).released = released;
    }

    fn barred_mut(&mut self, ino: InodeId) -> &mut Bar {
        if self.barred.len() >= MAX_BARRED && !self.barred.contains_key(&ino) {
            self.raise_floors();
        }
        self.barred.entry(ino).or_default()
    }

    /// Replaces the records of single inodes by lower bounds. Records whose `Release` is in flight
    /// stay.
    fn raise_floors(&mut self) {
        let Shard { barred, recall_floors, release_floor, .. } = self;
        barred.retain(|_, bar| {
            let floor = recall_floors.entry(bar.home).or_default();
            *floor = bar.recall.max(*floor);
            if bar.released < u64::MAX {
                *release_floor = bar.released.max(*release_floor);
            }
            bar.released == u64::MAX
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeId = InodeId(77);
    const HOME: NodeId = NodeId(3);

    fn answer(leases: &Leases, asked: Asked, mode: LeaseMode, recalls: u64) -> Asked {
        let grants = vec![Grant { ino: INO, mode }];
        leases.take_grants(asked, HOME, &MetaResponse { grants, recalls, ..MetaReply::Unit.into() });
        asked
    }

    fn recall(number: u64, keep: Option<LeaseMode>) -> Recall {
        Recall { number, ino: INO, keep }
    }

    #[test]
    fn a_grant_lasts_until_its_recall_and_vouches_for_its_own_answer() {
        let leases = Leases::new(false);
        let before = leases.asking();
        let asked = answer(&leases, leases.asking(), LeaseMode::Read, 0);
        assert!(leases.may_be_kept(asked, INO));
        assert!(
            !leases.may_be_kept(before, INO),
            "asked before the lease was there, and answered without it"
        );
        assert!(leases.may_be_kept(leases.asking(), INO), "asked under the lease");
        leases.close(HOME, &recall(1, None));
        let terms = leases.terms(&recall(1, None));
        assert_eq!(terms, Terms { held: Some(LeaseMode::Read), kept: None });
        assert!(!leases.may_be_kept(leases.asking(), INO));
        leases.closed(INO, terms.kept);
        assert!(leases.mode(INO).is_none());
    }

    #[test]
    fn a_grant_from_before_a_recall_that_was_seen_does_not_count() {
        let leases = Leases::new(false);
        let (early, late) = (leases.asking(), leases.asking());
        leases.close(HOME, &recall(4, None));
        assert_eq!(leases.terms(&recall(4, None)).held, None);
        answer(&leases, late, LeaseMode::Read, 9);
        assert!(leases.mode(INO).is_none(), "nothing is granted while a recall is handled");
        leases.closed(INO, None);
        answer(&leases, early, LeaseMode::Read, 3);
        assert!(leases.mode(INO).is_none());
        answer(&leases, early, LeaseMode::Read, 4);
        assert!(leases.mode(INO).is_some());
    }

    #[test]
    fn a_grant_that_was_asked_for_before_the_lease_was_let_go_does_not_count() {
        let leases = Leases::new(false);
        let asked = leases.asking();
        assert!(leases.let_go(INO));
        answer(&leases, leases.asking(), LeaseMode::Read, 0);
        assert!(leases.mode(INO).is_none(), "the service is being told");
        leases.released(&[INO]);
        answer(&leases, asked, LeaseMode::Read, 0);
        assert!(leases.mode(INO).is_none());
        answer(&leases, leases.asking(), LeaseMode::Read, 0);
        assert!(leases.mode(INO).is_some());
    }

    #[test]
    fn what_may_be_kept_is_kept_and_only_from_what_is_held() {
        for (held, keep, kept) in [
            (LeaseMode::Write, Some(LeaseMode::Shared), Some(LeaseMode::Shared)),
            (LeaseMode::Write, Some(LeaseMode::Read), Some(LeaseMode::Read)),
            (LeaseMode::Shared, Some(LeaseMode::Shared), Some(LeaseMode::Shared)),
            (LeaseMode::Read, Some(LeaseMode::Shared), None),
            (LeaseMode::Shared, None, None),
        ] {
            let leases = Leases::new(false);
            answer(&leases, leases.asking(), held, 0);
            leases.close(HOME, &recall(1, keep));
            assert_eq!(leases.terms(&recall(1, keep)).kept, kept, "{held:?} down to {keep:?}");
            leases.closed(INO, kept);
            assert_eq!(leases.vouches(leases.asking(), INO), kept);
        }
    }

    #[test]
    fn what_is_left_of_a_directory_is_its_permissions() {
        let leases = Leases::new(false);
        let keep = Some(LeaseMode::Permissions);
        let asked = answer(&leases, leases.asking(), LeaseMode::Read, 0);
        assert!(leases.vouches_for_permissions(asked, INO));
        leases.close(HOME, &recall(1, keep));
        let terms = leases.terms(&recall(1, keep));
        assert_eq!((terms.kept, terms.ends_caching()), (keep, true));
        assert!(!leases.vouches_for_permissions(asked, INO), "nothing is said in between");
        leases.closed(INO, terms.kept);
        let asked = leases.asking();
        assert!(leases.vouches_for_permissions(asked, INO));
        assert_eq!((leases.vouches(asked, INO), leases.may_be_kept(asked, INO)), (None, false));
        // A change of permissions recalls the remaining lease, under which the kernel caches
        // nothing.
        leases.close(HOME, &recall(2, None));
        let terms = leases.terms(&recall(2, None));
        assert_eq!((terms.kept, terms.ends_caching()), (None, false));
        leases.closed(INO, None);
        assert!(!leases.vouches_for_permissions(asked, INO));
    }

    #[test]
    fn what_was_said_under_permissions_is_not_kept_under_more() {
        let leases = Leases::new(false);
        let weak = answer(&leases, leases.asking(), LeaseMode::Permissions, 0);
        let late = leases.asking();
        let under = leases.asking();
        assert!(leases.vouches_for_permissions(weak, INO) && !leases.may_be_kept(weak, INO));
        let strong = answer(&leases, leases.asking(), LeaseMode::Read, 0);
        assert!(leases.may_be_kept(strong, INO) && leases.may_be_kept(leases.asking(), INO));
        assert!(!leases.may_be_kept(weak, INO) && !leases.may_be_kept(under, INO));
        // A late answer to an earlier request removes nothing, and doesn't become cacheable.
        answer(&leases, late, LeaseMode::Permissions, 0);
        assert_eq!(leases.mode(INO), Some(LeaseMode::Read));
        assert!(!leases.may_be_kept(late, INO));
    }

    #[test]
    fn forgetting_which_inodes_were_recalled_refuses_more_but_never_less() {
        let leases = Leases::new(false);
        let other = |n: u64| InodeId(77 + n * SHARDS as u64);
        for n in 1..=2 * MAX_BARRED as u64 {
            leases.close(HOME, &Recall { number: n, ino: other(n), keep: None });
            leases.closed(other(n), None);
        }
        assert!(leases.shards.iter().all(|shard| shard.lock().barred.len() <= MAX_BARRED));
        for n in 1..=2 * MAX_BARRED as u64 {
            let grants = vec![Grant { ino: other(n), mode: LeaseMode::Read }];
            leases.take_grants(
                leases.asking(),
                HOME,
                &MetaResponse { grants, recalls: n - 1, ..MetaReply::Unit.into() },
            );
            assert!(leases.mode(other(n)).is_none(), "recall {n}");
        }
    }
}
