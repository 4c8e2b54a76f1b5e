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
//! ([`Leases::lease_covering`]): the answer granted the lease, or the session has held it
//! continuously since before the request.
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
//!   checks them again under it (`file::access`). Under the lock it sends only requests for which
//!   the service recalls nothing: requests to storage; changes under `Write`, when no other session
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
//!   waiting at the gate (`kernel::page_fill`).
//! - *The kernel waits for the write-back of a mapped page.* Writes aren't blocked before step 3.
//!   The loaded content may not allow them, if a read bypassed the gate and an application changed
//!   the page at once. Then the client loads the service's answer as if the file were shared, until
//!   step 3 (`file::access`).
//! - *A change of a directory waits at the service for another session's recall acknowledgement,
//!   while the kernel holds the directory's lock.* Dropping names from the kernel's cache doesn't
//!   take that lock (see `fuse::notify`).
//! - *The service ended the session.* Every wait ends, with `ESTALE`.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use types::{HashMap, HashSet, InodeId, NodeId, PartitionId};
use wire::{LeaseGrant, LeaseMode, MetaReply, MetaResponse, Recall};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;
/// Maximum number of inodes for which a shard remembers a recall or release. Beyond it, the shard
/// drops the individual records and refuses all grants that are older than the newest of them.
const MAX_FLOORS: usize = 1024;

/// Age of the last check for expired leases from which on none is relied on. The service may end
/// the session 3 s after the client's leases expire ([`super::lease_expiry`]).
const MAX_CHECK_AGE: Duration = Duration::from_secs(2);

/// When a request was sent, which decides what its answer is worth.
#[derive(Clone, Copy)]
pub struct RequestStamp {
    /// Value of the table's event counter at that time.
    clock: u64,
    /// Unique number of the request.
    id: u64,
}

impl RequestStamp {
    /// The table's event counter when the request was sent.
    pub(crate) fn clock(self) -> u64 {
        self.clock
    }

    /// Whether this request was sent later than `other`.
    pub(crate) fn is_after(self, other: RequestStamp) -> bool {
        self.id > other.id
    }
}

/// An answer whose grants have been recorded in the table.
pub(crate) struct Answer {
    pub(crate) reply: MetaReply,
    pub(crate) stamp: RequestStamp,
}

struct Lease {
    mode: LeaseMode,
    /// The service that granted it.
    home: NodeId,
    /// Event counter when the session got the lease, which it has held ever since.
    since: u64,
    /// The last request whose answer granted it.
    granting_request: u64,
}

/// Events that invalidate older grants.
#[derive(Clone, Copy)]
struct GrantFloor {
    /// The last recall that was seen, and the service that numbered it.
    recall: u64,
    home: NodeId,
    /// Event counter when the lease was given back; `u64::MAX` while the `Release` request is in
    /// flight.
    released: u64,
}

impl Default for GrantFloor {
    fn default() -> GrantFloor {
        GrantFloor { recall: 0, home: NodeId(0), released: 0 }
    }
}

#[derive(Default)]
struct Shard {
    held: HashMap<InodeId, Lease>,
    floors: HashMap<InodeId, GrantFloor>,
    /// Lower bounds for all inodes: recall numbers, by service, and the event counter of releases.
    recall_floors: HashMap<NodeId, u64>,
    release_floor: u64,
    /// Number of recalls in progress, by inode.
    recalling: HashMap<InodeId, usize>,
    /// Inodes without a lease that the service believes to be open in this session.
    believed_open: HashSet<InodeId>,
}

/// All leases of a session.
pub(crate) struct Leases {
    /// This is the only session: every lease counts as held, without asking a service.
    only_session: bool,
    /// The session has ended: no grant is accepted any more.
    ended: AtomicBool,
    /// Services that don't answer, whose leases are suspended.
    suspended_services: Mutex<HashSet<NodeId>>,
    suspended_count: AtomicUsize,
    /// When the expiry of leases was last checked, on the monotonic clock; 0 before the first time.
    checked_ns: AtomicU64,
    shards: Vec<Mutex<Shard>>,
    /// Set when a recall begins or ends.
    recalls_changed: rt::sync::Event,
    clock: AtomicU64,
    next_request_id: AtomicU64,
}

impl Leases {
    /// Creates a table without leases. `only_session`: this is the only session.
    pub(crate) fn new(only_session: bool) -> Leases {
        Leases {
            only_session,
            ended: AtomicBool::new(false),
            suspended_services: Mutex::default(),
            suspended_count: AtomicUsize::new(0),
            checked_ns: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            recalls_changed: rt::sync::Event::new(),
            clock: AtomicU64::new(1),
            next_request_id: AtomicU64::new(1),
        }
    }

    /// Whether this is the only session.
    pub(crate) fn is_only_session(&self) -> bool {
        self.only_session
    }

    fn shard(&self, ino: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Advances the event counter and returns it: later requests have at least this value, earlier
    /// requests a smaller one.
    pub(crate) fn advance_clock(&self) -> u64 {
        self.tick()
    }

    /// Stamps a request; to be called before it is sent.
    pub(crate) fn stamp_request(&self) -> RequestStamp {
        let id = self.next_request_id.fetch_add(1, Ordering::Relaxed);
        RequestStamp { clock: self.clock.load(Ordering::Acquire), id }
    }

    /// Records the grants of a service's answer that are still valid.
    pub(crate) fn take_grants(&self, stamp: RequestStamp, home: NodeId, response: &MetaResponse) {
        for grant in &response.grants {
            self.take_grant(stamp, home, *grant, response.recalls);
        }
    }

    fn take_grant(&self, stamp: RequestStamp, home: NodeId, grant: LeaseGrant, recalls: u64) {
        let mut shard = self.shard(grant.ino);
        // Checked under the shard's lock, so that the end of the session also ends this grant.
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let floor = shard.grant_floor(grant.ino, home);
        if recalls < floor.recall || stamp.clock < floor.released || shard.recalling.contains_key(&grant.ino)
        {
            return;
        }
        match shard.held.get_mut(&grant.ino) {
            Some(lease) if lease.home == home => match (lease.mode, grant.mode) {
                // The lease restarts: earlier answers may be outdated, except for permissions.
                (LeaseMode::Permissions, more) if more != LeaseMode::Permissions => {
                    (lease.mode, lease.since, lease.granting_request) = (more, self.tick(), stamp.id);
                }
                // The grant is older than the held lease, whatever arrived first. Answers that came
                // with it may be outdated.
                (held, LeaseMode::Permissions) if held != LeaseMode::Permissions => {}
                (held, more) => (lease.mode, lease.granting_request) = (join_modes(held, more), stamp.id),
            },
            // The partition has moved: the lease of the old owner must be given up first.
            Some(_) => {}
            None => {
                let lease = Lease { mode: grant.mode, home, since: self.tick(), granting_request: stamp.id };
                shard.held.insert(grant.ino, lease);
            }
        }
    }

    /// Suspends or resumes all leases that a service granted. Returns whether they were suspended
    /// before.
    pub(crate) fn set_suspended(&self, home: NodeId, suspended: bool) -> bool {
        if !suspended && self.suspended_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut services = self.suspended_services.lock();
        let changed = if suspended { services.insert(home) } else { services.remove(&home) };
        self.suspended_count.store(services.len(), Ordering::Release);
        changed != suspended
    }

    /// Records that the leases of services that don't answer have just been suspended.
    pub(crate) fn note_expiry_check(&self) {
        self.checked_ns.store(rt::monotonic_ns(), Ordering::Release);
    }

    /// Whether the last check for expired leases was so long ago that they may have expired since:
    /// this process was stopped, and the task that checks hasn't run yet.
    pub(crate) fn is_check_overdue(&self) -> bool {
        let checked_ns = self.checked_ns.load(Ordering::Acquire);
        checked_ns > 0 && rt::monotonic_ns().saturating_sub(checked_ns) > MAX_CHECK_AGE.as_nanos() as u64
    }

    fn is_service_suspended(&self, home: NodeId) -> bool {
        let is_suspended = || {
            self.suspended_count.load(Ordering::Acquire) > 0 && self.suspended_services.lock().contains(&home)
        };
        self.is_check_overdue() || is_suspended()
    }

    /// Whether the lease on an inode is suspended.
    pub(crate) fn is_suspended(&self, ino: InodeId) -> bool {
        if self.suspended_count.load(Ordering::Acquire) == 0 && !self.is_check_overdue() {
            return false;
        }
        let home = self.shard(ino).held.get(&ino).map(|lease| lease.home);
        home.is_some_and(|home| self.is_service_suspended(home))
    }

    /// Returns the lease that has covered an inode continuously since the request `stamp`. `None`
    /// if the answer may be outdated, even in part.
    pub(crate) fn lease_covering(&self, stamp: RequestStamp, ino: InodeId) -> Option<LeaseMode> {
        self.lease_held_since(stamp, ino).filter(|mode| *mode != LeaseMode::Permissions)
    }

    /// Whether an answer's type, mode, owner and group of a directory are still valid.
    pub(crate) fn covers_permissions(&self, stamp: RequestStamp, ino: InodeId) -> bool {
        self.lease_held_since(stamp, ino).is_some_and(|mode| mode != LeaseMode::Shared)
    }

    fn lease_held_since(&self, stamp: RequestStamp, ino: InodeId) -> Option<LeaseMode> {
        if self.only_session {
            return Some(LeaseMode::Write);
        }
        let shard = self.shard(ino);
        if shard.recalling.contains_key(&ino) {
            return None;
        }
        let lease = shard.held.get(&ino).filter(|lease| !self.is_service_suspended(lease.home))?;
        (lease.since <= stamp.clock || lease.granting_request == stamp.id).then_some(lease.mode)
    }

    /// Whether everything in an answer about an inode may be cached until a recall.
    pub(crate) fn is_cacheable(&self, stamp: RequestStamp, ino: InodeId) -> bool {
        matches!(self.lease_covering(stamp, ino), Some(LeaseMode::Read | LeaseMode::Write))
    }

    /// The lease that is held, even if it is being recalled.
    pub(crate) fn mode(&self, ino: InodeId) -> Option<LeaseMode> {
        self.shard(ino).held.get(&ino).map(|lease| lease.mode)
    }

    /// Waits until no recall of the inode is in progress.
    pub(crate) async fn wait_for_recall_end(&self, ino: InodeId) {
        loop {
            let changed = self.recalls_changed.wait();
            if !self.shard(ino).recalling.contains_key(&ino) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until a recall of the inode is in progress.
    async fn wait_for_recall_start(&self, ino: InodeId) {
        loop {
            let changed = self.recalls_changed.wait();
            if self.shard(ino).recalling.contains_key(&ino) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the result of `work`, or `None` if a recall of the inode begins first.
    pub(crate) async fn unless_recalled<T>(&self, ino: InodeId, work: impl Future<Output = T>) -> Option<T> {
        rt::select(work, self.wait_for_recall_start(ino)).await.first()
    }

    /// Begins the handling of a recall.
    pub(crate) fn begin_recall(&self, home: NodeId, recall: &Recall) {
        {
            let mut shard = self.shard(recall.ino);
            shard.record_recall(home, recall);
            *shard.recalling.entry(recall.ino).or_default() += 1;
        }
        self.wake();
    }

    /// Returns which lease a recall takes, and which one remains.
    pub(crate) fn recall_terms(&self, recall: &Recall) -> RecallTerms {
        let shard = self.shard(recall.ino);
        let held = shard.held.get(&recall.ino).map(|lease| lease.mode);
        let remaining = match (held, recall.retain) {
            (Some(LeaseMode::Write), keep) => keep,
            (Some(LeaseMode::Read), Some(LeaseMode::Permissions)) => recall.retain,
            (held, keep) if held == keep => keep,
            _ => None,
        };
        RecallTerms { held, remaining }
    }

    /// Records that a recall has been acknowledged: the session holds `remaining` from now on.
    pub(crate) fn end_recall(&self, ino: InodeId, remaining: Option<LeaseMode>) {
        {
            let mut shard = self.shard(ino);
            // The lease restarts: answers under the stronger lease may be outdated.
            match (remaining, shard.held.get_mut(&ino)) {
                (Some(mode), Some(lease)) => {
                    (lease.mode, lease.since, lease.granting_request) = (mode, self.tick(), 0);
                }
                _ => drop(shard.held.remove(&ino)),
            }
            if let Some(count) = shard.recalling.get_mut(&ino) {
                *count -= 1;
                if *count == 0 {
                    shard.recalling.remove(&ino);
                }
            }
        }
        self.wake();
    }

    /// Wakes the tasks that wait for a recall to begin or end, so that they check again.
    pub(crate) fn wake(&self) {
        self.recalls_changed.set();
        self.recalls_changed.clear();
    }

    /// Drops an unused lease. Returns false while a recall of it is in progress, whose
    /// acknowledgement gives it back anyway.
    pub(crate) fn drop_lease(&self, ino: InodeId) -> bool {
        let mut shard = self.shard(ino);
        if shard.recalling.contains_key(&ino) {
            return false;
        }
        shard.held.remove(&ino);
        shard.believed_open.remove(&ino);
        shard.record_release(ino, u64::MAX);
        true
    }

    /// Records that the service has processed the release of these leases: later requests may bring
    /// new ones.
    pub(crate) fn end_release(&self, inodes: &[InodeId]) {
        let now = self.tick();
        for &ino in inodes {
            self.shard(ino).record_release(ino, now);
        }
    }

    /// Records that the service counts the inode as open in this session, whatever the lease.
    pub(crate) fn mark_open(&self, ino: InodeId) {
        if !self.only_session {
            self.shard(ino).believed_open.insert(ino);
        }
    }

    /// Whether the service believes that the inode is open in this session.
    pub(crate) fn is_marked_open(&self, ino: InodeId) -> bool {
        self.shard(ino).believed_open.contains(&ino)
    }

    /// Drops all leases and recall numbers of a service that has dropped them itself. Grants in
    /// answers to earlier requests are ignored. Returns the inodes on which a lease was held.
    pub(crate) fn end_leases_of(&self, home: NodeId) -> Vec<InodeId> {
        self.end_where(
            |_, lease| lease.home == home,
            |shard| {
                shard.recall_floors.remove(&home);
                let records = shard.floors.values_mut().filter(|floor| floor.home == home);
                records.for_each(|bar| bar.recall = 0);
            },
        )
    }

    /// Drops all leases on inodes of partitions that have moved to another service. Returns the
    /// inodes on which a lease was held.
    pub(crate) fn end_leases_in(&self, partitions: &[PartitionId]) -> Vec<InodeId> {
        self.end_where(
            |ino, _| partitions.contains(&ino.partition()),
            |shard| {
                shard.believed_open.retain(|ino| !partitions.contains(&ino.partition()));
            },
        )
    }

    /// Ends all leases for good. Returns the inodes on which a lease was held.
    pub(crate) fn end_all(&self) -> Vec<InodeId> {
        self.ended.store(true, Ordering::Release);
        self.end_where(|_, _| true, |shard| shard.believed_open.clear())
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
    pub(crate) fn inodes_leased_by(&self, home: NodeId) -> Vec<InodeId> {
        let of_shard = |shard: &Mutex<Shard>| -> Vec<InodeId> {
            let shard = shard.lock();
            shard.held.iter().filter(|(_, lease)| lease.home == home).map(|(ino, _)| *ino).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }
}

/// Returns the mode that covers both. A session's lease grows by its requests and shrinks by
/// recalls only; grants from before a recall don't count.
fn join_modes(held: LeaseMode, granted: LeaseMode) -> LeaseMode {
    if held == LeaseMode::Write { held } else { granted }
}

/// What a recall takes and leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecallTerms {
    /// The lease that was held when the recall arrived.
    pub(crate) held: Option<LeaseMode>,
    /// The lease that remains after it.
    pub(crate) remaining: Option<LeaseMode>,
}

impl RecallTerms {
    /// Whether the kernel may cache attributes, names and pages that it has to drop.
    pub(crate) fn ends_caching(&self) -> bool {
        let caches = |mode| matches!(mode, Some(LeaseMode::Read | LeaseMode::Write));
        caches(self.held) && !caches(self.remaining)
    }
}

impl Shard {
    /// The events that a grant of a service must be newer than.
    fn grant_floor(&self, ino: InodeId, home: NodeId) -> GrantFloor {
        let own = self.floors.get(&ino).copied().unwrap_or_default();
        let recall = if own.home == home { own.recall } else { 0 };
        let floor = self.recall_floors.get(&home).copied().unwrap_or(0);
        GrantFloor { recall: recall.max(floor), home, released: own.released.max(self.release_floor) }
    }

    fn record_recall(&mut self, home: NodeId, recall: &Recall) {
        let floor = self.floor_mut(recall.ino);
        let before = if floor.home == home { floor.recall } else { 0 };
        (floor.home, floor.recall) = (home, before.max(recall.number));
    }

    fn record_release(&mut self, ino: InodeId, released: u64) {
        self.floor_mut(ino).released = released;
    }

    fn floor_mut(&mut self, ino: InodeId) -> &mut GrantFloor {
        if self.floors.len() >= MAX_FLOORS && !self.floors.contains_key(&ino) {
            self.raise_floors();
        }
        self.floors.entry(ino).or_default()
    }

    /// Replaces the records of single inodes by lower bounds. Records whose `Release` is in flight
    /// stay.
    fn raise_floors(&mut self) {
        let Shard { floors: records, recall_floors, release_floor, .. } = self;
        records.retain(|_, record| {
            let floor = recall_floors.entry(record.home).or_default();
            *floor = record.recall.max(*floor);
            if record.released < u64::MAX {
                *release_floor = record.released.max(*release_floor);
            }
            record.released == u64::MAX
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeId = InodeId(77);
    const HOME: NodeId = NodeId(3);

    fn answer(leases: &Leases, stamp: RequestStamp, mode: LeaseMode, recalls: u64) -> RequestStamp {
        let grants = vec![LeaseGrant { ino: INO, mode }];
        leases.take_grants(stamp, HOME, &MetaResponse { grants, recalls, ..MetaReply::Unit.into() });
        stamp
    }

    fn recall(number: u64, keep: Option<LeaseMode>) -> Recall {
        Recall { number, ino: INO, retain: keep }
    }

    #[test]
    fn no_lease_counts_after_a_stop_of_the_process_until_expiry_is_checked() {
        let run = async {
            let leases = Leases::new(false);
            let stamp = answer(&leases, leases.stamp_request(), LeaseMode::Write, 0);
            leases.note_expiry_check();
            assert!(leases.lease_covering(stamp, INO).is_some() && !leases.is_suspended(INO));
            rt::sleep(2 * MAX_CHECK_AGE).await;
            assert!(leases.lease_covering(stamp, INO).is_none() && leases.is_suspended(INO));
            leases.note_expiry_check();
            assert!(leases.lease_covering(stamp, INO).is_some() && !leases.is_suspended(INO));
        };
        rt::sim::Machine::new(1).run(run).unwrap();
    }

    #[test]
    fn a_grant_covers_its_own_answer_until_its_recall() {
        let leases = Leases::new(false);
        let before = leases.stamp_request();
        let stamp = answer(&leases, leases.stamp_request(), LeaseMode::Read, 0);
        assert!(leases.is_cacheable(stamp, INO));
        assert!(
            !leases.is_cacheable(before, INO),
            "asked before the lease was there, and answered without it"
        );
        assert!(leases.is_cacheable(leases.stamp_request(), INO), "asked under the lease");
        leases.begin_recall(HOME, &recall(1, None));
        let terms = leases.recall_terms(&recall(1, None));
        assert_eq!(terms, RecallTerms { held: Some(LeaseMode::Read), remaining: None });
        assert!(!leases.is_cacheable(leases.stamp_request(), INO));
        leases.end_recall(INO, terms.remaining);
        assert!(leases.mode(INO).is_none());
    }

    #[test]
    fn a_grant_older_than_a_seen_recall_is_ignored() {
        let leases = Leases::new(false);
        let (early, late) = (leases.stamp_request(), leases.stamp_request());
        leases.begin_recall(HOME, &recall(4, None));
        assert_eq!(leases.recall_terms(&recall(4, None)).held, None);
        answer(&leases, late, LeaseMode::Read, 9);
        assert!(leases.mode(INO).is_none(), "nothing is granted while a recall is handled");
        leases.end_recall(INO, None);
        answer(&leases, early, LeaseMode::Read, 3);
        assert!(leases.mode(INO).is_none());
        answer(&leases, early, LeaseMode::Read, 4);
        assert!(leases.mode(INO).is_some());
    }

    #[test]
    fn a_grant_requested_before_the_release_is_ignored() {
        let leases = Leases::new(false);
        let stamp = leases.stamp_request();
        assert!(leases.drop_lease(INO));
        answer(&leases, leases.stamp_request(), LeaseMode::Read, 0);
        assert!(leases.mode(INO).is_none(), "the service is being told");
        leases.end_release(&[INO]);
        answer(&leases, stamp, LeaseMode::Read, 0);
        assert!(leases.mode(INO).is_none());
        answer(&leases, leases.stamp_request(), LeaseMode::Read, 0);
        assert!(leases.mode(INO).is_some());
    }

    #[test]
    fn a_recall_leaves_at_most_the_held_lease() {
        for (held, keep, remaining) in [
            (LeaseMode::Write, Some(LeaseMode::Shared), Some(LeaseMode::Shared)),
            (LeaseMode::Write, Some(LeaseMode::Read), Some(LeaseMode::Read)),
            (LeaseMode::Shared, Some(LeaseMode::Shared), Some(LeaseMode::Shared)),
            (LeaseMode::Read, Some(LeaseMode::Shared), None),
            (LeaseMode::Shared, None, None),
        ] {
            let leases = Leases::new(false);
            answer(&leases, leases.stamp_request(), held, 0);
            leases.begin_recall(HOME, &recall(1, keep));
            assert_eq!(
                leases.recall_terms(&recall(1, keep)).remaining,
                remaining,
                "{held:?} down to {keep:?}"
            );
            leases.end_recall(INO, remaining);
            assert_eq!(leases.lease_covering(leases.stamp_request(), INO), remaining);
        }
    }

    #[test]
    fn a_directory_recall_can_leave_permissions() {
        let leases = Leases::new(false);
        let keep = Some(LeaseMode::Permissions);
        let stamp = answer(&leases, leases.stamp_request(), LeaseMode::Read, 0);
        assert!(leases.covers_permissions(stamp, INO));
        leases.begin_recall(HOME, &recall(1, keep));
        let terms = leases.recall_terms(&recall(1, keep));
        assert_eq!((terms.remaining, terms.ends_caching()), (keep, true));
        assert!(!leases.covers_permissions(stamp, INO), "nothing is said in between");
        leases.end_recall(INO, terms.remaining);
        let stamp = leases.stamp_request();
        assert!(leases.covers_permissions(stamp, INO));
        assert_eq!((leases.lease_covering(stamp, INO), leases.is_cacheable(stamp, INO)), (None, false));
        // A change of permissions recalls the remaining lease, under which the kernel caches
        // nothing.
        leases.begin_recall(HOME, &recall(2, None));
        let terms = leases.recall_terms(&recall(2, None));
        assert_eq!((terms.remaining, terms.ends_caching()), (None, false));
        leases.end_recall(INO, None);
        assert!(!leases.covers_permissions(stamp, INO));
    }

    #[test]
    fn answers_under_permissions_are_not_cacheable_under_a_stronger_lease() {
        let leases = Leases::new(false);
        let weak = answer(&leases, leases.stamp_request(), LeaseMode::Permissions, 0);
        let late = leases.stamp_request();
        let under = leases.stamp_request();
        assert!(leases.covers_permissions(weak, INO) && !leases.is_cacheable(weak, INO));
        let strong = answer(&leases, leases.stamp_request(), LeaseMode::Read, 0);
        assert!(leases.is_cacheable(strong, INO) && leases.is_cacheable(leases.stamp_request(), INO));
        assert!(!leases.is_cacheable(weak, INO) && !leases.is_cacheable(under, INO));
        // A late answer to an earlier request removes nothing, and doesn't become cacheable.
        answer(&leases, late, LeaseMode::Permissions, 0);
        assert_eq!(leases.mode(INO), Some(LeaseMode::Read));
        assert!(!leases.is_cacheable(late, INO));
    }

    #[test]
    fn dropping_recall_records_refuses_more_grants_never_fewer() {
        let leases = Leases::new(false);
        let other = |n: u64| InodeId(77 + n * SHARDS as u64);
        for n in 1..=2 * MAX_FLOORS as u64 {
            leases.begin_recall(HOME, &Recall { number: n, ino: other(n), retain: None });
            leases.end_recall(other(n), None);
        }
        assert!(leases.shards.iter().all(|shard| shard.lock().floors.len() <= MAX_FLOORS));
        for n in 1..=2 * MAX_FLOORS as u64 {
            let grants = vec![LeaseGrant { ino: other(n), mode: LeaseMode::Read }];
            leases.take_grants(
                leases.stamp_request(),
                HOME,
                &MetaResponse { grants, recalls: n - 1, ..MetaReply::Unit.into() },
            );
            assert!(leases.mode(other(n)).is_none(), "recall {n}");
        }
    }
}
