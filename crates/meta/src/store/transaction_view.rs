//! What a command reads: the store, with the overlay of uncommitted writes on top.

use crate::partition::executor::{LockedExecutors, Overlay, PendingWrite};
use crate::service::stats::Counters;
use crate::store::cache::Cache;
use crate::store::remote_data::{Fetched, MissingData};
use bytes::Bytes;
use kv::{Engine, KvError, Ticket};
use namespace::{ReadError, Reader, keys, record};
use std::cell::{Cell, RefCell};
use std::collections::btree_map::Range;
use std::iter::Peekable;
use types::{Errno, Error, InodeId, PartitionId, Refusal};

/// The state of the locked partitions, for one command.
pub(crate) struct View<'a> {
    /// The store's engine, if it is in this process.
    pub engine: Option<&'a dyn Engine>,
    /// For a remote store: data fetched from it.
    pub fetched: &'a Fetched,
    /// For a remote store: data that has to be fetched.
    pub missing: RefCell<Vec<MissingData>>,
    pub cache: &'a Cache,
    pub counters: &'a Counters,
    pub locked: &'a LockedExecutors<'a>,
    /// The last uncommitted commit from which the command read.
    pub depends_on: RefCell<Option<Ticket>>,
    /// The directory in which the command only looks up a name: its times don't appear in the
    /// answer.
    pub searched_dir: Cell<Option<InodeId>>,
}

impl View<'_> {
    /// Notes that the answer depends on this commit, and has to wait for it.
    pub fn depend_on(&self, ticket: &Ticket) {
        let mut seen = self.depends_on.borrow_mut();
        if seen.as_ref().is_none_or(|seen| seen.number() < ticket.number()) {
            *seen = Some(ticket.clone());
        }
    }

    /// For a directory that is only searched: whether the same users may search it with and without
    /// an uncommitted write. Then the answer doesn't depend on the write, and needn't wait for
    /// commands that add other names there.
    fn is_unaffected_by(&self, key: &[u8], write: &PendingWrite) -> bool {
        if self.searched_dir.get().is_none_or(|dir| keys::inode(dir)[..] != *key) {
            return false;
        }
        let (Some(after), Some(Some(before))) = (write.value.clone(), self.cache.get(key)) else {
            return false;
        };
        let rights = |value: Bytes| {
            let inode = record::decode::<record::Inode>(key, value).ok()?;
            Some((inode.mode, inode.uid, inode.gid, inode.nlink > 0))
        };
        rights(before).is_some_and(|before| Some(before) == rights(after))
    }

    fn overlay(&self, key: &[u8]) -> Result<&Overlay, ReadError> {
        let partition = keys::partition_of_key(key);
        self.locked.overlay(partition).ok_or(ReadError::NeedPartition(partition))
    }

    fn stored(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.engine {
            Some(engine) => engine.get(key).map_err(|error| ReadError::Store(store_error(&error))),
            None => self.fetched.value(key).ok_or_else(|| self.miss(MissingData::Key(key.to_vec()))),
        }
    }

    fn stored_range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<kv::Pair>, ReadError> {
        if let Some(engine) = self.engine {
            return engine.scan(from, to, limit).map_err(|error| ReadError::Store(store_error(&error)));
        }
        self.fetched.range(from, to, limit).ok_or_else(|| {
            let limit = Fetched::with_spare(limit);
            self.miss(MissingData::Range { from: from.to_vec(), to: to.to_vec(), limit })
        })
    }

    fn miss(&self, missing: MissingData) -> ReadError {
        self.missing.borrow_mut().push(missing);
        ReadError::NotFetched
    }
}

impl Reader for View<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if self.locked.is_remote_partition(keys::partition_of_key(key)) {
            return self.stored(key);
        }
        if let Some(write) = self.overlay(key)?.get(key) {
            if !self.is_unaffected_by(key, write) {
                self.depend_on(&write.ticket);
            }
            return Ok(write.value.clone());
        }
        if let Some(value) = self.cache.get(key) {
            self.counters.cache_hits.add(1);
            return Ok(value);
        }
        self.counters.cache_misses.add(1);
        let value = self.stored(key)?;
        self.cache.put(Bytes::copy_from_slice(key), value.clone());
        Ok(value)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        if from >= to {
            return Ok(Vec::new());
        }
        if self.locked.is_remote_partition(keys::partition_of_key(from)) {
            let mut stored = self.stored_range(from, to, limit)?;
            stored.truncate(limit);
            return Ok(stored);
        }
        let overlay = self.overlay(from)?;
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
        let pending = overlay.range::<[u8], _>(bounds);
        let hidden = pending.clone().count();
        pending.clone().for_each(|(_, write)| self.depend_on(&write.ticket));
        // Reads as many more as the overlay may hide, so that the rest is complete up to the limit.
        let mut stored = self.stored_range(from, to, limit.saturating_add(hidden))?;
        if hidden == 0 {
            stored.truncate(limit);
            return Ok(stored);
        }
        Ok(merge(stored, pending.peekable(), limit))
    }

    fn expect(&self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(), ReadError> {
        if self.engine.is_some() {
            return Ok(());
        }
        for key in keys {
            let is_here = self.overlay(&key)?.contains_key(key.as_slice())
                || self.fetched.value(&key).is_some()
                || self.cache.get(&key).is_some();
            if !is_here {
                self.miss(MissingData::Key(key));
            }
        }
        if self.missing.borrow().is_empty() { Ok(()) } else { Err(ReadError::NotFetched) }
    }
}

fn merge(
    stored: Vec<kv::Pair>,
    mut pending: Peekable<Range<'_, Bytes, crate::partition::executor::PendingWrite>>,
    limit: usize,
) -> Vec<kv::Pair> {
    let mut merged = Vec::with_capacity(stored.len());
    for pair in stored {
        while let Some((key, write)) = pending.next_if(|(key, _)| **key < pair.0) {
            merged.extend(write.value.clone().map(|value| (key.clone(), value)));
        }
        match pending.next_if(|(key, _)| **key == pair.0) {
            Some((key, write)) => merged.extend(write.value.clone().map(|value| (key.clone(), value))),
            None => merged.push(pair),
        }
    }
    merged.extend(pending.filter_map(|(key, write)| Some((key.clone(), write.value.clone()?))));
    merged.truncate(limit);
    merged
}

/// Converts a failure of the store to an error for a client.
pub(crate) fn store_error(error: &KvError) -> Error {
    match error {
        KvError::NoSpace { .. } => Error::new(Errno::ENOSPC, error.to_string())
            .hint("free space on that device, then restart the metadata service"),
        KvError::Locked { .. } => Error::new(Errno::EBUSY, error.to_string()),
        KvError::Unreachable { .. } => Error::new(Errno::ETIMEDOUT, error.to_string())
            .hint("check that weft serve runs on the management node, and that this node can reach it"),
        KvError::TooLarge { .. } => Error::new(Errno::E2BIG, error.to_string()),
        KvError::NoSnapshot { .. } => Error::new(Errno::EOPNOTSUPP, error.to_string()),
        KvError::Io { .. } | KvError::Corrupt { .. } => Error::new(Errno::EIO, error.to_string())
            .hint("check the kernel's log for this device, then restart the metadata service"),
    }
}

/// The answer of a service that doesn't own a partition.
pub(crate) fn not_owner(partition: PartitionId) -> Error {
    Error::new(
        Refusal::PartitionNotServed,
        format!("partition {partition} is executed by another metadata service"),
    )
}
