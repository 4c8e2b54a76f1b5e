//! Leases: the tables of `namespace`, sharded, and the waits for recall acknowledgements.
//!
//! Messages name a lease by a number, the tables by its key: [`Leases::key_of`] finds the key of a
//! number.
//!
//! A lease is granted while the executor of its inode is locked, so that nothing changes between
//! the content of an answer and the lease on it. It can be given up at any time, since that only
//! removes conflicts. Mutexes are taken in the order executor, name delegations, shard, session.

use crate::lease::name_delegations::NameDelegations;
use crate::limits::{LEASE_SHARDS, LEASES_PER_SHARD, SESSION_LEASES_PER_SHARD};
use crate::session::table::Sessions;
use namespace::leases::{
    Acknowledgement, InodeAccess, LeaseCounts, LeaseKey, LeaseRequest, LeaseTable, Limits, PendingRecall,
    Requester,
};
use parking_lot::{Mutex, RwLock};
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use types::{InodeId, PartitionId, SessionId};
use wire::spec::EntryNames;
use wire::{LeaseMode, RecallAck};

/// Bits of a lease epoch that count within one ownership of a partition; the bits above hold the
/// ownership epoch. At a hundred thousand opens a second, the lower bits last five years; at one
/// new owner a minute, the upper ones last two.
const EPOCH_BITS: u32 = 44;

/// All leases of the service. A restart discards them.
pub(crate) struct Leases {
    shards: Vec<Mutex<Shard>>,
    /// Keys in all tables. While it is 0, no lease can conflict.
    keys: AtomicUsize,
    abandoned: Mutex<Vec<InodeId>>,
    abandoned_ready: Event,
    /// The last number of [`Leases::next_state_number`].
    last_state_number: AtomicU64,
    /// The lower part of the last epoch, and the upper part of each partition's epochs.
    epochs: AtomicU64,
    owner_epochs: RwLock<Vec<u64>>,
    pub(crate) name_delegations: NameDelegations,
}

struct Shard {
    table: LeaseTable,
    /// Set when a lease or use ends. Bounded by the tasks that wait for that.
    waits: BTreeMap<LeaseKey, Arc<Event>>,
}

impl Default for Leases {
    fn default() -> Leases {
        let limits = Limits { total: LEASES_PER_SHARD, per_session: SESSION_LEASES_PER_SHARD };
        let shard = || Mutex::new(Shard { table: LeaseTable::new(limits), waits: BTreeMap::new() });
        Leases {
            shards: (0..LEASE_SHARDS).map(|_| shard()).collect(),
            keys: AtomicUsize::new(0),
            abandoned: Mutex::default(),
            abandoned_ready: Event::new(),
            last_state_number: AtomicU64::new(0),
            epochs: AtomicU64::new(0),
            owner_epochs: RwLock::default(),
            name_delegations: NameDelegations::default(),
        }
    }
}

impl Leases {
    /// True if no session holds a lease or uses an inode. A caller that holds an executor's mutex
    /// sees what was granted under it.
    pub fn is_empty(&self) -> bool {
        self.keys.load(Relaxed) == 0
    }

    /// Returns a number that is larger than all before. If two states of an inode are reported
    /// while its executor is locked, the later one has the larger number.
    pub fn next_state_number(&self) -> u64 {
        self.last_state_number.fetch_add(1, Relaxed) + 1
    }

    /// Notes that the service has become the owner of a partition: epochs of its inodes are larger
    /// from now on than under any earlier owner.
    pub fn adopted(&self, partition: PartitionId, owner_epoch: u64) {
        let mut ownerships = self.owner_epochs.write();
        if ownerships.len() <= usize::from(partition.0) {
            ownerships.resize(usize::from(partition.0) + 1, 0);
        }
        ownerships[usize::from(partition.0)] = owner_epoch << EPOCH_BITS;
    }

    /// Returns an epoch larger than all before of this inode's partition, for requests of the
    /// service itself to chunk files that no client uses. The sessions' epoch stays.
    pub fn next_epoch(&self, ino: InodeId) -> u64 {
        let ownership = self.owner_epochs.read().get(usize::from(ino.partition().0)).copied().unwrap_or(0);
        ownership + self.epochs.fetch_add(1, Relaxed) + 1
    }

    /// As [`LeaseTable::epoch`].
    pub fn epoch(&self, ino: InodeId) -> u64 {
        self.on(ino, |table| table.epoch(ino, || self.next_epoch(ino)))
    }

    /// As [`LeaseTable::end_epoch`].
    pub fn end_epoch(&self, ino: InodeId, past: u64) {
        self.on(ino, |table| table.end_epoch(ino, past));
    }

    /// Starts a new epoch of an inode: targets that have seen it refuse requests of earlier ones.
    pub fn new_epoch(&self, ino: InodeId) -> u64 {
        self.end_epoch(ino, u64::MAX);
        self.epoch(ino)
    }

    /// Runs `f` on the table of a key.
    fn on<R>(&self, key: impl Into<LeaseKey>, f: impl FnOnce(&mut LeaseTable) -> R) -> R {
        let mut shard = self.shards[shard_of(key.into())].lock();
        self.counted(&mut shard, f)
    }

    fn counted<R>(&self, shard: &mut Shard, f: impl FnOnce(&mut LeaseTable) -> R) -> R {
        let before = shard.table.len();
        let result = f(&mut shard.table);
        let after = shard.table.len();
        if after > before {
            self.keys.fetch_add(after - before, Relaxed);
        } else if after < before {
            self.keys.fetch_sub(before - after, Relaxed);
        }
        result
    }

    /// Sets other limits than the defaults, for each of the tables.
    pub fn limit(&self, limits: Limits) {
        self.shards.iter().for_each(|shard| shard.lock().table.set_limits(limits));
    }

    /// Runs an `f` that may grant a lease, and recalls old leases if there are many.
    fn grant<R>(
        &self,
        sessions: &Sessions,
        (session, key): (SessionId, impl Into<LeaseKey>),
        f: impl FnOnce(&mut LeaseTable) -> R,
    ) -> R {
        let mut send = |session, key, keep| sessions.recall(session, key, keep);
        self.on(key, |table| {
            let result = f(table);
            table.make_room(session, &mut send);
            result
        })
    }

    /// As [`LeaseTable::offer`].
    pub fn offer(&self, sessions: &Sessions, requester: Requester, ino: InodeId) -> Option<LeaseMode> {
        self.offer_as(sessions, requester, ino, LeaseTable::offer)
    }

    /// As [`LeaseTable::offer_directory`].
    pub fn offer_directory(
        &self,
        sessions: &Sessions,
        requester: Requester,
        ino: InodeId,
    ) -> Option<LeaseMode> {
        self.offer_as(sessions, requester, ino, LeaseTable::offer_directory)
    }

    /// If other sessions have name-prefix delegations in the directory, offers only permissions
    /// ([`LeaseTable::offer_permissions`]).
    fn offer_as(
        &self,
        sessions: &Sessions,
        requester: Requester,
        ino: InodeId,
        offer: impl Fn(&mut LeaseTable, Requester, InodeId) -> Option<LeaseMode>,
    ) -> Option<LeaseMode> {
        let is_shared = self.others_have_name_delegations(requester.session, ino);
        self.grant(sessions, (requester.session, ino), |table| match is_shared {
            true => table.offer_permissions(requester, ino),
            false => offer(table, requester, ino),
        })
    }

    /// As [`LeaseTable::grant_exclusive`].
    pub fn acquire_exclusive(
        &self,
        sessions: &Sessions,
        requester: Requester,
        key: LeaseKey,
        due: &mut Vec<PendingRecall>,
    ) -> Option<LeaseMode> {
        let mut send = |session, key, keep| sessions.recall(session, key, keep);
        self.grant(sessions, (requester.session, key), |table| {
            table.grant_exclusive(requester, key, &mut send, due)
        })
    }

    /// As [`LeaseTable::acquire`].
    pub fn acquire(
        &self,
        sessions: &Sessions,
        requester: Requester,
        (ino, wish): (InodeId, LeaseRequest),
        due: &mut Vec<PendingRecall>,
    ) -> Option<LeaseMode> {
        let mut send = |session, key, keep| sessions.recall(session, key, keep);
        self.grant(sessions, (requester.session, ino), |table| {
            table.acquire(requester, ino, wish, &mut send, due)
        })
    }

    /// As [`LeaseTable::recall_conflicting`]. For a directory it covers all of its names.
    pub fn recall_conflicting(
        &self,
        sessions: &Sessions,
        requester: Requester,
        (ino, access): (InodeId, InodeAccess),
        due: &mut Vec<PendingRecall>,
    ) {
        self.recall_conflicting_on(sessions, requester, (ino.into(), access), due);
        self.recall_name_delegations(sessions, requester, (ino, EntryNames::ALL), due);
    }

    /// The same for this key only.
    pub fn recall_conflicting_on(
        &self,
        sessions: &Sessions,
        requester: Requester,
        (key, access): (LeaseKey, InodeAccess),
        due: &mut Vec<PendingRecall>,
    ) {
        let mut send = |session, key, keep| sessions.recall(session, key, keep);
        self.on(key, |table| table.recall_conflicting(requester, key, access, &mut send, due));
    }

    /// As [`LeaseTable::recall_name_conflicts`].
    pub fn recall_for_name_change(
        &self,
        sessions: &Sessions,
        requester: Requester,
        ino: InodeId,
        due: &mut Vec<PendingRecall>,
    ) {
        let mut send = |session, key, keep| sessions.recall(session, key, keep);
        self.on(ino, |table| table.recall_name_conflicts(requester, ino, &mut send, due));
    }

    /// As [`LeaseTable::is_written_elsewhere`].
    pub fn is_written_elsewhere(&self, session: SessionId, ino: InodeId) -> bool {
        self.on(ino, |table| table.is_written_elsewhere(session, ino))
    }

    /// As [`LeaseTable::is_written_by`].
    pub fn is_written_by(&self, session: SessionId, key: LeaseKey) -> bool {
        self.on(key, |table| table.is_written_by(session, key))
    }

    /// As [`LeaseTable::mark_in_use`].
    pub fn mark_in_use(&self, sessions: &Sessions, requester: Requester, ino: InodeId) -> bool {
        self.grant(sessions, (requester.session, ino), |table| table.mark_in_use(requester, ino))
    }

    /// As [`LeaseTable::reclaim`].
    pub fn reclaim(&self, session: SessionId, ino: InodeId) -> bool {
        self.give_up(ino, |table| table.reclaim(session, ino))
    }

    /// What the lease with this number in messages is on.
    pub fn key_of(&self, number: InodeId) -> LeaseKey {
        match self.name_delegations.find(number) {
            Some(names) => LeaseKey::NamePrefix(names),
            None => LeaseKey::Inode(number),
        }
    }

    /// Handles a recall acknowledgement: see [`LeaseTable::acknowledge`].
    pub fn acknowledged(&self, session: SessionId, RecallAck { ino, number, in_use }: RecallAck) {
        let key = self.key_of(ino);
        // Names of a directory aren't open.
        let acknowledgement = Acknowledgement { key, number, in_use: in_use && key.inode().is_some() };
        let now_ns = rt::monotonic_ns();
        self.give_up(key, |table| table.acknowledge(session, acknowledgement, now_ns));
    }

    /// As [`LeaseTable::release`].
    pub fn release(&self, session: SessionId, key: LeaseKey, seen: u64) {
        self.give_up(key, |table| table.release(session, key, seen));
    }

    /// As [`LeaseTable::end_session`].
    pub fn end_session(&self, session: SessionId) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let freed = self.counted(&mut shard, |table| table.end_session(session));
            freed.into_iter().for_each(|key| shard.wake(key));
            self.take_abandoned(&mut shard);
        }
    }

    /// As [`LeaseTable::transfer`].
    pub fn transfer(&self, from: SessionId, to: Requester, ino: InodeId) -> bool {
        self.give_up(ino, |table| table.transfer(from, to, ino))
    }

    /// Discards the leases of a partition that another service owns now. Tasks that wait for
    /// acknowledgements notice that.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.name_delegations.forget_partition(partition);
        for shard in &self.shards {
            let mut shard = shard.lock();
            let forgotten = self.counted(&mut shard, |table| table.forget_partition(partition));
            forgotten.into_iter().for_each(|key| shard.wake(key));
        }
    }

    /// As [`LeaseTable::drop_session_leases`], for all inodes of partitions.
    pub fn drop_session_in(&self, session: SessionId, partitions: &[PartitionId]) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let is_in_partitions = |key: LeaseKey| partitions.contains(&key.partition());
            let freed =
                self.counted(&mut shard, |table| table.drop_session_leases(session, is_in_partitions));
            freed.into_iter().for_each(|key| shard.wake(key));
            self.take_abandoned(&mut shard);
        }
    }

    /// Counts the leases of each session. Scans every lease, one shard at a time.
    pub fn tally(&self) -> BTreeMap<SessionId, LeaseCounts> {
        let mut all = BTreeMap::new();
        self.shards.iter().for_each(|shard| shard.lock().table.tally(&mut all));
        all
    }

    /// Runs an `f` that ends a lease or use, and wakes the tasks that wait for that.
    fn give_up<R>(&self, key: impl Into<LeaseKey>, f: impl FnOnce(&mut LeaseTable) -> R) -> R {
        let key = key.into();
        let mut shard = self.shards[shard_of(key)].lock();
        let result = self.counted(&mut shard, f);
        shard.wake(key);
        self.take_abandoned(&mut shard);
        result
    }

    fn take_abandoned(&self, shard: &mut Shard) {
        let abandoned = shard.table.take_abandoned();
        if !abandoned.is_empty() {
            self.abandoned.lock().extend(abandoned);
            self.abandoned_ready.set();
        }
    }

    /// Waits for inodes whose reclaim was deferred and is possible now.
    pub async fn abandoned(&self) -> Vec<InodeId> {
        self.abandoned_ready.wait().await;
        self.abandoned_ready.clear();
        std::mem::take(&mut *self.abandoned.lock())
    }

    /// Makes [`Leases::abandoned`] return.
    pub fn stop(&self) {
        self.abandoned_ready.set();
    }

    /// As [`LeaseTable::is_pending`].
    pub fn is_pending(&self, due: &PendingRecall) -> bool {
        self.on(due.key, |table| table.is_pending(due))
    }

    /// The event to wait for until a recall may be acknowledged; `None` if it is.
    pub fn acknowledgement_event(&self, due: &PendingRecall) -> Option<Arc<Event>> {
        let mut shard = self.shards[shard_of(due.key)].lock();
        if !shard.table.is_pending(due) {
            return None;
        }
        Some(shard.waits.entry(due.key).or_default().clone())
    }
}

impl Shard {
    fn wake(&mut self, key: LeaseKey) {
        if let Some(event) = self.waits.remove(&key) {
            event.set();
        }
    }
}

/// Leases of one partition have sequential numbers.
fn shard_of(key: LeaseKey) -> usize {
    let mixed = key.number().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % LEASE_SHARDS
}
