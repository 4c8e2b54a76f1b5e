//! Leases: the tables of `namespace`, sharded by inode, and the futures that wait for yields.
//!
//! A lease is granted while the partition of its inode is held, so that nothing changes between
//! what an answer says and the lease on it. It is given up at any time: that only makes way. Locks
//! are taken in the order partition, shard, session.

use crate::limits::{LEASE_SHARDS, LEASES_PER_SHARD, SESSION_LEASES_PER_SHARD};
use crate::ranges::{Names, Ranges};
use crate::sessions::Sessions;
use namespace::leases::{Access, Asker, Due, LeaseTable, Limits, Tally, Wish};
use parking_lot::{Mutex, RwLock};
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use types::{InodeId, PartitionId, SessionId};
use wire::{LeaseMode, Yield};

/// Bits of a lease epoch that count up within one ownership of a partition; those above are of the
/// owner's epoch. A hundred thousand files opened a second use them up in five years, and so many
/// owners, a new one every minute, the others in two.
const EPOCH_BITS: u32 = 44;

/// All leases of the service. A restart forgets them.
pub(crate) struct Leases {
    shards: Vec<Mutex<Shard>>,
    /// Inodes in all tables. While it is 0, nothing can be in anybody's way.
    inodes: AtomicUsize,
    abandoned: Mutex<Vec<InodeId>>,
    some_abandoned: Event,
    /// The last number of [`Leases::next_order`].
    order: AtomicU64,
    /// The lower part of the last epoch, and the upper parts of those of each partition.
    epochs: AtomicU64,
    ownerships: RwLock<Vec<u64>>,
    pub(crate) ranges: Ranges,
}

struct Shard {
    table: LeaseTable,
    /// Set when something of the inode was given up; whoever waits for that bounds it.
    waits: BTreeMap<InodeId, Arc<Event>>,
}

impl Default for Leases {
    fn default() -> Leases {
        let limits = Limits { total: LEASES_PER_SHARD, per_session: SESSION_LEASES_PER_SHARD };
        let shard = || Mutex::new(Shard { table: LeaseTable::new(limits), waits: BTreeMap::new() });
        Leases {
            shards: (0..LEASE_SHARDS).map(|_| shard()).collect(),
            inodes: AtomicUsize::new(0),
            abandoned: Mutex::default(),
            some_abandoned: Event::new(),
            order: AtomicU64::new(0),
            epochs: AtomicU64::new(0),
            ownerships: RwLock::default(),
            ranges: Ranges::default(),
        }
    }
}

impl Leases {
    /// True when nobody holds or uses anything. Whoever holds a partition sees what was granted
    /// under it.
    pub fn is_empty(&self) -> bool {
        self.inodes.load(Relaxed) == 0
    }

    /// A number that is larger than all before. Of two states of an inode, told while its partition
    /// was held, the later one has the larger one.
    pub fn next_order(&self) -> u64 {
        self.order.fetch_add(1, Relaxed) + 1
    }

    /// The service has become the owner of a partition: epochs of its inodes are larger from now on
    /// than under any owner before.
    pub fn adopted(&self, partition: PartitionId, owner_epoch: u64) {
        let mut ownerships = self.ownerships.write();
        if ownerships.len() <= usize::from(partition.0) {
            ownerships.resize(usize::from(partition.0) + 1, 0);
        }
        ownerships[usize::from(partition.0)] = owner_epoch << EPOCH_BITS;
    }

    /// An epoch that is larger than all before of this inode's partition, for requests of the
    /// service itself to chunk files that nobody else uses. What sessions have stays.
    pub fn next_epoch(&self, ino: InodeId) -> u64 {
        let ownership = self.ownerships.read().get(usize::from(ino.partition().0)).copied().unwrap_or(0);
        ownership + self.epochs.fetch_add(1, Relaxed) + 1
    }

    /// As [`LeaseTable::epoch`].
    pub fn epoch(&self, ino: InodeId) -> u64 {
        self.on(ino, |table| table.epoch(ino, || self.next_epoch(ino)))
    }

    /// As [`LeaseTable::outdate`].
    pub fn outdate(&self, ino: InodeId, past: u64) {
        self.on(ino, |table| table.outdate(ino, past));
    }

    /// A new epoch of an inode: targets that have seen it refuse what was sent before.
    pub fn new_epoch(&self, ino: InodeId) -> u64 {
        self.outdate(ino, u64::MAX);
        self.epoch(ino)
    }

    /// Runs `f` on the table of an inode.
    fn on<R>(&self, ino: InodeId, f: impl FnOnce(&mut LeaseTable) -> R) -> R {
        let mut shard = self.shards[shard_of(ino)].lock();
        self.counted(&mut shard, f)
    }

    fn counted<R>(&self, shard: &mut Shard, f: impl FnOnce(&mut LeaseTable) -> R) -> R {
        let before = shard.table.len();
        let result = f(&mut shard.table);
        let after = shard.table.len();
        if after > before {
            self.inodes.fetch_add(after - before, Relaxed);
        } else if after < before {
            self.inodes.fetch_sub(before - after, Relaxed);
        }
        result
    }

    /// Other limits than those of this program, for each of the tables.
    pub fn limit(&self, limits: Limits) {
        self.shards.iter().for_each(|shard| shard.lock().table.set_limits(limits));
    }

    /// Runs what may grant something, and has old leases make way for it when there are many.
    fn grant<R>(
        &self,
        sessions: &Sessions,
        (session, ino): (SessionId, InodeId),
        f: impl FnOnce(&mut LeaseTable) -> R,
    ) -> R {
        let mut send = |session, ino, keep| sessions.recall(session, ino, keep);
        self.on(ino, |table| {
            let result = f(table);
            table.make_room(session, &mut send);
            result
        })
    }

    /// As [`LeaseTable::offer`].
    pub fn offer(&self, sessions: &Sessions, asker: Asker, ino: InodeId) -> Option<LeaseMode> {
        self.offer_as(sessions, asker, ino, LeaseTable::offer)
    }

    /// As [`LeaseTable::offer_directory`].
    pub fn offer_directory(&self, sessions: &Sessions, asker: Asker, ino: InodeId) -> Option<LeaseMode> {
        self.offer_as(sessions, asker, ino, LeaseTable::offer_directory)
    }

    /// Where others know names of the directory that nobody else does it is
    /// [`LeaseTable::offer_permissions`].
    fn offer_as(
        &self,
        sessions: &Sessions,
        asker: Asker,
        ino: InodeId,
        offer: impl Fn(&mut LeaseTable, Asker, InodeId) -> Option<LeaseMode>,
    ) -> Option<LeaseMode> {
        let is_shared = self.has_ranges_of_others(asker.session, ino);
        self.grant(sessions, (asker.session, ino), |table| match is_shared {
            true => table.offer_permissions(asker, ino),
            false => offer(table, asker, ino),
        })
    }

    /// As [`LeaseTable::take_alone`].
    pub fn take_alone(
        &self,
        sessions: &Sessions,
        asker: Asker,
        ino: InodeId,
        due: &mut Vec<Due>,
    ) -> Option<LeaseMode> {
        let mut send = |session, ino, keep| sessions.recall(session, ino, keep);
        self.grant(sessions, (asker.session, ino), |table| table.take_alone(asker, ino, &mut send, due))
    }

    /// As [`LeaseTable::acquire`].
    pub fn acquire(
        &self,
        sessions: &Sessions,
        asker: Asker,
        (ino, wish): (InodeId, Wish),
        due: &mut Vec<Due>,
    ) -> Option<LeaseMode> {
        let mut send = |session, ino, keep| sessions.recall(session, ino, keep);
        self.grant(sessions, (asker.session, ino), |table| table.acquire(asker, ino, wish, &mut send, due))
    }

    /// As [`LeaseTable::make_way`]. Of a directory it is for all of its names.
    pub fn make_way(
        &self,
        sessions: &Sessions,
        asker: Asker,
        (ino, access): (InodeId, Access),
        due: &mut Vec<Due>,
    ) {
        self.make_way_on(sessions, asker, (ino, access), due);
        self.make_way_in_ranges(sessions, asker, (ino, Names::ALL), due);
    }

    /// The same of the inode's own lease alone.
    pub fn make_way_on(
        &self,
        sessions: &Sessions,
        asker: Asker,
        (ino, access): (InodeId, Access),
        due: &mut Vec<Due>,
    ) {
        let mut send = |session, ino, keep| sessions.recall(session, ino, keep);
        self.on(ino, |table| table.make_way(asker, ino, access, &mut send, due));
    }

    /// As [`LeaseTable::make_way_for_names`].
    pub fn make_way_for_names(&self, sessions: &Sessions, asker: Asker, ino: InodeId, due: &mut Vec<Due>) {
        let mut send = |session, ino, keep| sessions.recall(session, ino, keep);
        self.on(ino, |table| table.make_way_for_names(asker, ino, &mut send, due));
    }

    /// As [`LeaseTable::is_written_elsewhere`].
    pub fn is_written_elsewhere(&self, session: SessionId, ino: InodeId) -> bool {
        self.on(ino, |table| table.is_written_elsewhere(session, ino))
    }

    /// As [`LeaseTable::is_written_by`].
    pub fn is_written_by(&self, session: SessionId, ino: InodeId) -> bool {
        self.on(ino, |table| table.is_written_by(session, ino))
    }

    /// As [`LeaseTable::mark_in_use`].
    pub fn mark_in_use(&self, sessions: &Sessions, asker: Asker, ino: InodeId) -> bool {
        self.grant(sessions, (asker.session, ino), |table| table.mark_in_use(asker, ino))
    }

    /// As [`LeaseTable::reclaim`].
    pub fn reclaim(&self, session: SessionId, ino: InodeId) -> bool {
        self.give_up(ino, |table| table.reclaim(session, ino))
    }

    /// As [`LeaseTable::yielded`].
    pub fn yielded(&self, session: SessionId, answer: &Yield) {
        let now_ns = rt::monotonic_ns();
        self.give_up(answer.ino, |table| table.yielded(session, answer, now_ns));
    }

    /// As [`LeaseTable::release`].
    pub fn release(&self, session: SessionId, ino: InodeId, seen: u64) {
        self.give_up(ino, |table| table.release(session, ino, seen));
    }

    /// As [`LeaseTable::end_session`].
    pub fn end_session(&self, session: SessionId) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let freed = self.counted(&mut shard, |table| table.end_session(session));
            freed.into_iter().for_each(|ino| shard.wake(ino));
            self.take_abandoned(&mut shard);
        }
    }

    /// As [`LeaseTable::pass_on`].
    pub fn pass_on(&self, from: SessionId, to: Asker, ino: InodeId) -> bool {
        self.give_up(ino, |table| table.pass_on(from, to, ino))
    }

    /// Forgets a partition that is another service's now. Who waits for answers finds that out.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.ranges.forget_partition(partition);
        for shard in &self.shards {
            let mut shard = shard.lock();
            let forgotten = self.counted(&mut shard, |table| table.forget_partition(partition));
            forgotten.into_iter().for_each(|ino| shard.wake(ino));
        }
    }

    /// As [`LeaseTable::leave`], for all inodes of partitions.
    pub fn leave_partitions(&self, session: SessionId, partitions: &[PartitionId]) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let left = |ino: InodeId| partitions.contains(&ino.partition());
            let freed = self.counted(&mut shard, |table| table.leave(session, left));
            freed.into_iter().for_each(|ino| shard.wake(ino));
            self.take_abandoned(&mut shard);
        }
    }

    /// What each session has. Looks at every lease, a part of the table at a time.
    pub fn tally(&self) -> BTreeMap<SessionId, Tally> {
        let mut all = BTreeMap::new();
        self.shards.iter().for_each(|shard| shard.lock().table.tally(&mut all));
        all
    }

    /// Changes a table in a way that others may wait for.
    fn give_up<R>(&self, ino: InodeId, f: impl FnOnce(&mut LeaseTable) -> R) -> R {
        let mut shard = self.shards[shard_of(ino)].lock();
        let result = self.counted(&mut shard, f);
        shard.wake(ino);
        self.take_abandoned(&mut shard);
        result
    }

    fn take_abandoned(&self, shard: &mut Shard) {
        let abandoned = shard.table.take_abandoned();
        if !abandoned.is_empty() {
            self.abandoned.lock().extend(abandoned);
            self.some_abandoned.set();
        }
    }

    /// Waits for inodes that were to be reclaimed and are free for it now.
    pub async fn abandoned(&self) -> Vec<InodeId> {
        self.some_abandoned.wait().await;
        self.some_abandoned.clear();
        std::mem::take(&mut *self.abandoned.lock())
    }

    /// Lets [`Leases::abandoned`] return.
    pub fn stop(&self) {
        self.some_abandoned.set();
    }

    /// As [`LeaseTable::is_due`].
    pub fn is_due(&self, due: &Due) -> bool {
        self.on(due.ino, |table| table.is_due(due))
    }

    /// What to wait for until a recall may have been answered; `None` when it is.
    pub fn answer_of(&self, due: &Due) -> Option<Arc<Event>> {
        let mut shard = self.shards[shard_of(due.ino)].lock();
        if !shard.table.is_due(due) {
            return None;
        }
        Some(shard.waits.entry(due.ino).or_default().clone())
    }
}

impl Shard {
    fn wake(&mut self, ino: InodeId) {
        if let Some(event) = self.waits.remove(&ino) {
            event.set();
        }
    }
}

/// Inodes of one partition have sequential numbers.
fn shard_of(ino: InodeId) -> usize {
    let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % LEASE_SHARDS
}
