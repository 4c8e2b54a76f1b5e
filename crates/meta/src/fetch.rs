//! What a command fetches from a store that is elsewhere.
//!
//! A command runs with its partitions locked, and nobody waits for anything while holding a lock.
//! So a command that misses something stops, the locks are given back, what it misses is fetched,
//! and it runs again with what was fetched.
//!
//! Meanwhile the partition changes. Why what was fetched is still right when the command runs
//! again: a *reading* is noted in the partition while it is locked, before anything is fetched.
//! Whatever was committed before that moment is in what the store answers. Whatever is committed
//! later stays in the partition's overlay for as long as the reading is noted, settled or not, and
//! the overlay goes before what was fetched. When that can't be had (a commit was lost, or its
//! outcome isn't known; somebody else wrote to the partition; too much would have to be kept), the
//! reading is made void, and what was fetched for it is thrown away.
//!
//! Invariant: a value or range that was fetched under a reading that isn't void, with the overlay
//! laid over it, is what the partition holds.

use crate::executor::Overlay;
use crate::limits::{KEPT_FOR_READINGS, SPARE_PAIRS};
use bytes::Bytes;
use kv::{KvError, Pair, Store, Ticket};
use namespace::keys;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{HashMap, PartitionId};

/// The readings of a partition, and what is kept for them.
#[derive(Default)]
pub(crate) struct Readings {
    begun: u64,
    active: BTreeSet<u64>,
    /// Readings up to this number are void.
    void: u64,
    /// Commits that are in and whose writes stay in the overlay, in order.
    kept: VecDeque<Kept>,
    kept_keys: usize,
}

struct Kept {
    /// The last reading that may have missed the commit.
    reading: u64,
    /// The commit.
    number: u64,
    keys: Vec<Bytes>,
}

impl Readings {
    fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.active.insert(self.begun);
        self.begun
    }

    fn is_valid(&self, reading: u64) -> bool {
        reading > self.void
    }

    /// Whether anybody reads.
    pub fn are_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// What was fetched until now may be wrong.
    pub fn make_void(&mut self) {
        self.void = self.begun;
    }

    /// Keeps the writes of a commit that is in for those who read at this moment.
    pub fn keep(&mut self, ticket: &Ticket, keys: Vec<Bytes>) {
        self.kept_keys += keys.len();
        self.kept.push_back(Kept { reading: self.begun, number: ticket.number(), keys });
        if self.kept_keys > KEPT_FOR_READINGS {
            self.make_void();
        }
    }

    /// Takes out of the overlay what nobody needs there any more.
    pub fn release(&mut self, overlay: &mut Overlay) {
        let oldest = self.active.range(self.void + 1..).next().copied().unwrap_or(u64::MAX);
        while self.kept.front().is_some_and(|kept| kept.reading < oldest)
            && let Some(kept) = self.kept.pop_front()
        {
            self.kept_keys -= kept.keys.len();
            for key in kept.keys {
                // A later write to the key is on its way, or kept itself.
                if overlay.get(&key).is_some_and(|write| write.ticket.number() == kept.number) {
                    overlay.remove(&key);
                }
            }
        }
    }

    fn end(&mut self, reading: u64, overlay: &mut Overlay) {
        self.active.remove(&reading);
        self.release(overlay);
    }
}

/// Something that a command misses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Key(Vec<u8>),
    Range { from: Vec<u8>, to: Vec<u8>, limit: usize },
}

impl Want {
    fn partition(&self) -> PartitionId {
        let (Want::Key(key) | Want::Range { from: key, .. }) = self;
        keys::partition_of_key(key)
    }
}

/// Pairs of a range.
struct FetchedRange {
    pairs: Vec<Pair>,
    /// There are no more.
    is_whole: bool,
}

/// What was fetched for one command.
#[derive(Default)]
pub(crate) struct Fetched {
    values: HashMap<Vec<u8>, Option<Bytes>>,
    ranges: HashMap<(Vec<u8>, Vec<u8>), FetchedRange>,
    readings: BTreeMap<PartitionId, u64>,
}

impl Fetched {
    /// The value of a key, if it was fetched.
    pub fn value(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.values.get(key).cloned()
    }

    /// The first pairs of a range, at least `limit` of them or all that there are, if they were
    /// fetched.
    pub fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Option<Vec<Pair>> {
        let range = self.ranges.get(&(from.to_vec(), to.to_vec()))?;
        (range.is_whole || range.pairs.len() >= limit).then(|| range.pairs.clone())
    }

    /// What to ask for so that `limit` pairs are left even if more of them are hidden by then.
    pub fn with_spare(limit: usize) -> usize {
        limit.saturating_add(SPARE_PAIRS)
    }

    /// The partitions in which something was noted for this command.
    pub fn partitions(&self) -> Vec<PartitionId> {
        self.readings.keys().copied().collect()
    }

    /// Throws away what is not known to be right any more. To be called while the partition is
    /// held, before anything is read.
    pub fn check(&mut self, partition: PartitionId, readings: &mut Readings, overlay: &mut Overlay) {
        let Some(&reading) = self.readings.get(&partition) else { return };
        if !readings.is_valid(reading) {
            self.end(partition, readings, overlay);
            self.values.retain(|key, _| keys::partition_of_key(key) != partition);
            self.ranges.retain(|(from, _), _| keys::partition_of_key(from) != partition);
        }
    }

    /// Notes that something of a partition is about to be fetched. To be called while it is held.
    pub fn begin(&mut self, partition: PartitionId, readings: &mut Readings) {
        self.readings.entry(partition).or_insert_with(|| readings.begin());
    }

    /// Takes the note back.
    pub fn end(&mut self, partition: PartitionId, readings: &mut Readings, overlay: &mut Overlay) {
        if let Some(reading) = self.readings.remove(&partition) {
            readings.end(reading, overlay);
        }
    }

    /// Fetches. Nothing is held meanwhile.
    pub async fn fetch(&mut self, store: &Store, wants: Vec<Want>) -> Result<(), KvError> {
        let mut asked = Vec::new();
        for want in wants {
            match want {
                Want::Key(key) => asked.push(key),
                Want::Range { from, to, limit } => {
                    let pairs = store.scan(&from, &to, limit).await?;
                    let is_whole = pairs.len() < limit;
                    self.ranges.insert((from, to), FetchedRange { pairs, is_whole });
                }
            }
        }
        if !asked.is_empty() {
            let values = store.get_many(&asked).await?;
            self.values.extend(asked.into_iter().zip(values));
        }
        Ok(())
    }
}

/// The partitions of what is missed.
pub(crate) fn partitions_of(wants: &[Want]) -> BTreeSet<PartitionId> {
    wants.iter().map(Want::partition).collect()
}
