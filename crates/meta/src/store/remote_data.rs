//! Data that a command fetches from a remote store.
//!
//! A command runs with its executors locked, and no task waits while it holds a mutex. So a command
//! that misses data stops, unlocks, fetches the data, and runs again on it.
//!
//! Meanwhile the partition changes. Fetched data is still valid when the command runs again,
//! because a *reading* is registered in the executor, under its mutex, before anything is fetched.
//! What was committed before that moment is in the store's answer. What is committed later stays in
//! the overlay as long as the reading is registered, and the overlay takes precedence over fetched
//! data. If that can't be guaranteed, the reading is invalidated and the data fetched for it is
//! discarded. This happens when a commit was lost, its outcome is unknown, another service wrote to
//! the partition, or too many writes would have to be retained.
//!
//! Invariant: a value or range that was fetched under a valid reading, with the overlay on top, is
//! what the partition holds.

use crate::limits::{MAX_RETAINED_KEYS, SPARE_PAIRS};
use crate::partition::executor::Overlay;
use bytes::Bytes;
use kv::{KvError, Pair, Store, Ticket};
use namespace::keys;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{HashMap, PartitionId};

/// The readings of a partition, and the writes retained for them.
#[derive(Default)]
pub(crate) struct Readings {
    begun: u64,
    active: BTreeSet<u64>,
    /// Readings up to this number are invalid.
    invalid_up_to: u64,
    /// Completed commits whose writes stay in the overlay, in order.
    retained: VecDeque<RetainedCommit>,
    retained_keys: usize,
}

struct RetainedCommit {
    /// The last reading that may have missed the commit.
    reading: u64,
    /// Number of the commit.
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
        reading > self.invalid_up_to
    }

    /// Whether any reading is active.
    pub fn is_any_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Invalidates everything that was fetched until now.
    pub fn invalidate(&mut self) {
        self.invalid_up_to = self.begun;
    }

    /// Retains the writes of a completed commit for the readings that are active.
    pub fn keep(&mut self, ticket: &Ticket, keys: Vec<Bytes>) {
        self.retained_keys += keys.len();
        self.retained.push_back(RetainedCommit { reading: self.begun, number: ticket.number(), keys });
        if self.retained_keys > MAX_RETAINED_KEYS {
            self.invalidate();
        }
    }

    /// Removes writes from the overlay that no reading needs any more.
    pub fn release(&mut self, overlay: &mut Overlay) {
        let oldest = self.active.range(self.invalid_up_to + 1..).next().copied().unwrap_or(u64::MAX);
        while self.retained.front().is_some_and(|commit| commit.reading < oldest)
            && let Some(commit) = self.retained.pop_front()
        {
            self.retained_keys -= commit.keys.len();
            for key in commit.keys {
                // A later write to the key is under way, or is retained itself.
                if overlay.get(&key).is_some_and(|write| write.ticket.number() == commit.number) {
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

/// Data that a command misses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MissingData {
    Key(Vec<u8>),
    Range { from: Vec<u8>, to: Vec<u8>, limit: usize },
}

impl MissingData {
    fn partition(&self) -> PartitionId {
        let (MissingData::Key(key) | MissingData::Range { from: key, .. }) = self;
        keys::partition_of_key(key)
    }
}

/// Key-value pairs of a range.
struct FetchedRange {
    pairs: Vec<Pair>,
    /// The range has no more pairs.
    is_whole: bool,
}

/// Data fetched for one command.
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

    /// The first pairs of a range, if they were fetched: at least `limit` of them, or all that
    /// there are.
    pub fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Option<Vec<Pair>> {
        let range = self.ranges.get(&(from.to_vec(), to.to_vec()))?;
        (range.is_whole || range.pairs.len() >= limit).then(|| range.pairs.clone())
    }

    /// How many pairs to fetch so that `limit` of them are left even if the overlay hides more by
    /// then.
    pub fn with_spare(limit: usize) -> usize {
        limit.saturating_add(SPARE_PAIRS)
    }

    /// The partitions in which this command has a reading.
    pub fn partitions(&self) -> Vec<PartitionId> {
        self.readings.keys().copied().collect()
    }

    /// Discards data that may be invalid. Call it while the executor is locked, before reading.
    pub fn check(&mut self, partition: PartitionId, readings: &mut Readings, overlay: &mut Overlay) {
        let Some(&reading) = self.readings.get(&partition) else { return };
        if !readings.is_valid(reading) {
            self.end(partition, readings, overlay);
            self.values.retain(|key, _| keys::partition_of_key(key) != partition);
            self.ranges.retain(|(from, _), _| keys::partition_of_key(from) != partition);
        }
    }

    /// Registers a reading for data that is about to be fetched. Call it while the executor is
    /// locked.
    pub fn begin(&mut self, partition: PartitionId, readings: &mut Readings) {
        self.readings.entry(partition).or_insert_with(|| readings.begin());
    }

    /// Ends the reading.
    pub fn end(&mut self, partition: PartitionId, readings: &mut Readings, overlay: &mut Overlay) {
        if let Some(reading) = self.readings.remove(&partition) {
            readings.end(reading, overlay);
        }
    }

    /// Fetches the data. No mutex is held meanwhile.
    pub async fn fetch(&mut self, store: &dyn Store, missing: Vec<MissingData>) -> Result<(), KvError> {
        let mut keys = Vec::new();
        for missing in missing {
            match missing {
                MissingData::Key(key) => keys.push(key),
                MissingData::Range { from, to, limit } => {
                    let pairs = store.scan(&from, &to, limit).await?;
                    let is_whole = pairs.len() < limit;
                    self.ranges.insert((from, to), FetchedRange { pairs, is_whole });
                }
            }
        }
        if !keys.is_empty() {
            let values = store.get_many(&keys).await?;
            self.values.extend(keys.into_iter().zip(values));
        }
        Ok(())
    }
}

/// The partitions of missing data.
pub(crate) fn partitions_of(missing: &[MissingData]) -> BTreeSet<PartitionId> {
    missing.iter().map(MissingData::partition).collect()
}
