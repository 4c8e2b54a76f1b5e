//! What this session may rely on: the leases that it holds, by inode.
//!
//! # Which grants count
//!
//! Answers come in on many cores and in any order, so a grant may arrive when the lease that it
//! tells of is gone again. A grant is taken into the table only if
//! - no recall of the inode has been seen that the service made after the grant
//!   ([`wire::MetaResponse::recalls`]),
//! - the inode was not let go (by `Release`) after the request had been sent,
//! - no recall of it is being handled: what is granted then belongs to the time before.
//!
//! Attributes, names or content that came with an answer may be relied on for longer than that one
//! answer only if the answer brought the lease, or if the lease was held from before the question
//! until now ([`Leases::vouches`]).
//!
//! # A recall, step by step (see `recall`)
//!
//! 1. The lease is *closing*: no answer is told to the kernel as lasting, no new content is loaded,
//!    reads for the kernel's page cache wait. What is loaded stays true and in use, since the
//!    service lets nobody else in before the yield.
//! 2. The kernel forgets: attributes, names, pages. The gate of the inode is not held meanwhile.
//! 3. The gate is taken exclusively: running reads and writes end. What is owned is reported, what
//!    is loaded is forgotten or, if a weaker lease is kept, stays. The gate is given back.
//! 4. The yield is sent. When it is answered, the lease is what was kept, and those who wait go on
//!    by asking anew.
//!
//! # Why nobody waits for ever
//!
//! - *A request of this session waits at the service for another session's yield while that session
//!   waits for ours.* No request that can make the service wait for others is asked while the gate
//!   is held: leases are asked for outside of it and looked at again inside (`access`). Under the
//!   gate are only asked: requests to storage; changes under `Write`, when nobody else holds
//!   anything; and under `Shared` the notes and reports `BeginWrite`, `EndWrite`, `TruncateDone`,
//!   for which the service recalls nothing.
//! - *Our own `Open` on the inode whose recall is under way.* The service answers a session that
//!   holds a lease from what it holds, without waiting for that same session; the answer's grant
//!   doesn't count, and the caller waits for the end of the closing, holding nothing, and asks
//!   again.
//! - *Two sessions ask for the same inode at once, each holding `Shared`.* Neither holds its gate
//!   while it asks, so both recalls go through; one of the two is granted first.
//! - *The kernel waits for a page that a read of ours is to fill, while the recall waits for the
//!   kernel.* Reads for the page cache wait outside of the gate, at a door; one that is already
//!   behind it, waiting for a lease, comes back to it when it is closed. The kernel is told to
//!   forget all but the pages of those that wait there, in which nothing is yet. Those that come
//!   later, and are in its way, are let through when it takes long, from what is still loaded (or
//!   from one answer that is used once): the lease has not been yielded yet. Since they may have
//!   filled pages behind the kernel's back, the kernel forgets once more afterwards; and programs
//!   that read one page after another are all at the door then (`fill`).
//! - *The kernel waits for the write-back of a mapped page.* Writes aren't held back before step 3.
//!   Where what is loaded doesn't allow them (a page was let through, and a program has changed it
//!   at once), what the service says is loaded as if the file were shared, until step 3 (`access`).
//! - *A change of a directory waits at the service for another session's yield, and the kernel
//!   holds the directory's lock meanwhile.* Forgetting names takes no such lock (see
//!   `fuse::notify`).
//! - *The service ended the session.* Every wait ends, with `ESTALE`.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use types::{HashMap, HashSet, InodeId, NodeId, PartitionId};
use wire::{Grant, LeaseMode, MetaReply, MetaResponse, Recall};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;
/// Inodes a shard remembers as recalled or let go. Beyond it, the shard forgets which they were,
/// and refuses grants that are older than any of them.
const MAX_BARRED: usize = 1024;

/// What the answer to a request needs to know of the time when it was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Events of the table so far.
    clock: u64,
    /// Tells this answer from all others.
    id: u64,
}

impl Asked {
    /// Events of the table when it was asked.
    pub(crate) fn clock(self) -> u64 {
        self.clock
    }

    /// Whether it was asked later than another.
    pub(crate) fn is_after(self, other: Asked) -> bool {
        self.id > other.id
    }
}

/// An answer whose grants have been taken into the table.
pub(crate) struct Answer {
    pub(crate) reply: MetaReply,
    pub(crate) asked: Asked,
}

struct Lease {
    mode: LeaseMode,
    /// The service that granted it.
    home: NodeId,
    /// When it began; it has been held ever since.
    since: u64,
    /// The last answer that granted it.
    granted_by: u64,
}

/// What older answers may not bring back.
#[derive(Clone, Copy)]
struct Bar {
    /// The last recall that was seen, and the service that numbered it.
    recall: u64,
    home: NodeId,
    /// When it was let go; `u64::MAX` while the service is being told.
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
    /// Holds for all inodes: recalls, by service, and the time of release.
    recall_floors: HashMap<NodeId, u64>,
    release_floor: u64,
    /// Recalls under way, by inode.
    closing: HashMap<InodeId, usize>,
    /// Inodes without a lease of which the service was told that they are open here.
    marked: HashSet<InodeId>,
}

/// All leases of a session.
pub(crate) struct Leases {
    /// This is the only session that there is: it relies on everything, and nobody is asked.
    alone: bool,
    /// The session has ended: nothing is granted any more.
    ended: AtomicBool,
    /// Services that are silent: nothing that they granted counts for now.
    silent: Mutex<HashSet<NodeId>>,
    silent_count: AtomicUsize,
    shards: Vec<Mutex<Shard>>,
    /// Some closing has begun or ended.
    settled: rt::sync::Event,
    clock: AtomicU64,
    answers: AtomicU64,
}

impl Leases {
    /// A table without leases. `alone`: of the only session that there is.
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

    /// True for the only session that there is.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    fn shard(&self, ino: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A moment: what is asked from now on has a clock of at least this, what was asked before has
    /// a smaller one.
    pub(crate) fn now(&self) -> u64 {
        self.tick()
    }

    /// To be called before a request is sent.
    pub(crate) fn asking(&self) -> Asked {
        let id = self.answers.fetch_add(1, Ordering::Relaxed);
        Asked { clock: self.clock.load(Ordering::Acquire), id }
    }

    /// Takes the grants of a service's answer, those that count.
    pub(crate) fn take_grants(&self, asked: Asked, home: NodeId, response: &MetaResponse) {
        for grant in &response.grants {
            self.take_grant(asked, home, *grant, response.recalls);
        }
    }

    fn take_grant(&self, asked: Asked, home: NodeId, grant: Grant, recalls: u64) {
        let mut shard = self.shard(grant.ino);
        // Looked at under the lock: what is granted before the end is ended with the rest.
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let bar = shard.bar(grant.ino, home);
        if recalls < bar.recall || asked.clock < bar.released || shard.closing.contains_key(&grant.ino) {
            return;
        }
        match shard.held.get_mut(&grant.ino) {
            Some(lease) if lease.home == home => match (lease.mode, grant.mode) {
                // Begins anew: what was answered before may have changed, but for permissions.
                (LeaseMode::Permissions, more) if more != LeaseMode::Permissions => {
                    (lease.mode, lease.since, lease.granted_by) = (more, self.tick(), asked.id);
                }
                // Granted before the lease that is held, whatever came in first: what was answered
                // with it may have changed in between.
                (held, LeaseMode::Permissions) if held != LeaseMode::Permissions => {}
                (held, more) => (lease.mode, lease.granted_by) = (joined(held, more), asked.id),
            },
            // Until the session has followed the partition, what the old service granted is given
            // up first.
            Some(_) => {}
            None => {
                let lease = Lease { mode: grant.mode, home, since: self.tick(), granted_by: asked.id };
                shard.held.insert(grant.ino, lease);
            }
        }
    }

    /// From now on nothing that a service granted counts, or all of it does again; what was so
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

    /// Whether what is held of an inode doesn't count for now.
    pub(crate) fn is_suspended(&self, ino: InodeId) -> bool {
        if self.silent_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let home = self.shard(ino).held.get(&ino).map(|lease| lease.home);
        home.is_some_and(|home| self.is_silent(home))
    }

    /// The lease by which what an answer says of an inode stays true; `None` when it may have
    /// changed already, be it only in part.
    pub(crate) fn vouches(&self, asked: Asked, ino: InodeId) -> Option<LeaseMode> {
        self.held_since(asked, ino).filter(|mode| *mode != LeaseMode::Permissions)
    }

    /// True when what an answer says of a directory's kind, mode, owner and group stays true.
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

    /// True when everything that an answer says of an inode may be kept until a recall.
    pub(crate) fn may_be_kept(&self, asked: Asked, ino: InodeId) -> bool {
        matches!(self.vouches(asked, ino), Some(LeaseMode::Read | LeaseMode::Write))
    }

    /// The lease that is held, be it closing.
    pub(crate) fn mode(&self, ino: InodeId) -> Option<LeaseMode> {
        self.shard(ino).held.get(&ino).map(|lease| lease.mode)
    }

    /// Waits until no recall of the inode is under way.
    pub(crate) async fn wait_while_closing(&self, ino: InodeId) {
        loop {
            let settled = self.settled.wait();
            if !self.shard(ino).closing.contains_key(&ino) {
                return;
            }
            settled.await;
        }
    }

    /// Waits until a recall of the inode is under way.
    pub(crate) async fn wait_until_closing(&self, ino: InodeId) {
        loop {
            let settled = self.settled.wait();
            if self.shard(ino).closing.contains_key(&ino) {
                return;
            }
            settled.await;
        }
    }

    /// Starts to give a lease up that a service recalls.
    pub(crate) fn close(&self, home: NodeId, recall: &Recall) {
        {
            let mut shard = self.shard(recall.ino);
            shard.bar_recall(home, recall);
            *shard.closing.entry(recall.ino).or_default() += 1;
        }
        self.wake();
    }

    /// What a closing ends: what is held, and what will be left of it.
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

    /// The lease has been yielded: what was kept is held from now on.
    pub(crate) fn closed(&self, ino: InodeId, kept: Option<LeaseMode>) {
        {
            let mut shard = self.shard(ino);
            // Begins anew: what was answered under the stronger lease may have changed since.
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

    /// Lets those look again who wait for the end of a closing.
    pub(crate) fn wake(&self) {
        self.settled.set();
        self.settled.clear();
    }

    /// Lets a lease go that nobody needs; false while a recall of it is under way, whose yield will
    /// say the same.
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

    /// The service knows that these were let go: requests from now on may bring new leases on them.
    pub(crate) fn released(&self, inodes: &[InodeId]) {
        let now = self.tick();
        for &ino in inodes {
            self.shard(ino).bar_release(ino, now);
        }
    }

    /// The service counts the inode as open here, whatever the lease.
    pub(crate) fn mark(&self, ino: InodeId) {
        if !self.alone {
            self.shard(ino).marked.insert(ino);
        }
    }

    /// True for an inode of which the service believes that it is open here.
    pub(crate) fn is_marked(&self, ino: InodeId) -> bool {
        self.shard(ino).marked.contains(&ino)
    }

    /// Forgets what a service granted, since it did so itself, and its recalls. Answers to what was
    /// asked before bring nothing any more. Returns the inodes of which something was held.
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

    /// The same of all inodes of partitions that have moved to another service.
    pub(crate) fn end_those_in(&self, partitions: &[PartitionId]) -> Vec<InodeId> {
        self.end_where(
            |ino, _| partitions.contains(&ino.partition()),
            |shard| {
                shard.marked.retain(|ino| !partitions.contains(&ino.partition()));
            },
        )
    }

    /// Forgets everything.
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

    /// All inodes with a lease of a service.
    pub(crate) fn of(&self, home: NodeId) -> Vec<InodeId> {
        let of_shard = |shard: &Mutex<Shard>| -> Vec<InodeId> {
            let shard = shard.lock();
            shard.held.iter().filter(|(_, lease)| lease.home == home).map(|(ino, _)| *ino).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }
}

/// The mode that covers both. A session's lease grows by its wishes and shrinks by recalls only,
/// and grants from before a recall don't count.
fn joined(held: LeaseMode, granted: LeaseMode) -> LeaseMode {
    if held == LeaseMode::Write { held } else { granted }
}

/// A lease that is being given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// What was held when the recall came.
    pub(crate) held: Option<LeaseMode>,
    /// What will be held after it.
    pub(crate) kept: Option<LeaseMode>,
}

impl Terms {
    /// The kernel may have attributes, names and pages that it has to forget.
    pub(crate) fn ends_caching(&self) -> bool {
        let caches = |mode| matches!(mode, Some(LeaseMode::Read | LeaseMode::Write));
        caches(self.held) && !caches(self.kept)
    }
}

impl Shard {
    /// What grants of a service have to be newer than.
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

    /// Forgets single inodes. Those that the service is just being told of are kept.
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
        // Who changes permissions takes the rest, of which the kernel has nothing.
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
        // An answer from before, which comes in afterwards, takes nothing away and is not made
        // better by it.
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
