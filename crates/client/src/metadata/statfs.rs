//! `statfs(2)`: the space of the whole file system.

use crate::session::Session;
use crate::session::privileges::RequestUser;
use crate::unexpected;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, MapHandle, Result};
use wire::{MetaOp, MetaReply, MetadataUsage, StoreSpace};

/// Block size, in bytes.
const BLOCK: u64 = 4096;
/// How long the count of inodes is cached, in nanoseconds: applications call `statfs` in bursts.
const CACHED_NS: u64 = 1_000_000_000;
/// Time-out for the metadata services: if one is unavailable, `df` shows the last values.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum space for an inode with its name and the store's overhead, in bytes.
const BYTES_PER_INODE: u64 = 1024;
/// With fewer inodes than this, the store's size doesn't show the space per inode.
const MIN_INODES: u64 = 100_000;

/// Result of `statfs`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatFs {
    /// Block size, in bytes.
    pub block_size: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Total number of inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// Measures the space of the file system.
pub(crate) struct Space {
    session: Arc<Session>,
    map: MapHandle,
    /// Last answer of the metadata services, and its time on the monotonic clock.
    last_usage: Mutex<Option<(u64, MetadataUsage)>>,
}

impl Space {
    pub(crate) fn new(session: Arc<Session>, map: MapHandle) -> Space {
        Space { session, map, last_usage: Mutex::default() }
    }

    /// Returns the space of all targets together, as management last measured it: management knows
    /// which targets share a disk. Also returns the number of inodes, as the metadata services
    /// count them, and an estimate of how many more their store can hold.
    pub(crate) async fn statfs(&self) -> Result<StatFs> {
        let map = self.map.load();
        let capacity: u64 = map.targets.iter().map(|target| target.capacity).sum();
        let free: u64 = map.targets.iter().map(|target| target.free).sum();
        let (blocks, blocks_free) = (capacity / BLOCK, free / BLOCK);
        let usage = self.usage().await;
        // If the store's disk is unknown, there can't be more files than blocks.
        let files_free = usage.store.map_or(blocks_free, |store| inodes_left(store, usage.inodes));
        Ok(StatFs {
            block_size: BLOCK as u32,
            blocks,
            blocks_free,
            files: usage.inodes.saturating_add(files_free),
            files_free,
            name_max: 255,
        })
    }

    /// Returns the current usage, or the last known one.
    async fn usage(&self) -> MetadataUsage {
        let known = *self.last_usage.lock();
        if let Some((at_ns, usage)) = known
            && rt::monotonic_ns().saturating_sub(at_ns) < CACHED_NS
        {
            return usage;
        }
        let answer = rt::timeout(TIMEOUT, Box::pin(self.query_usage())).await;
        match answer.unwrap_or_else(|| Err(Errno::ETIMEDOUT.into())) {
            Ok(usage) => {
                *self.last_usage.lock() = Some((rt::monotonic_ns(), usage));
                usage
            }
            Err(error) => {
                tracing::debug!(%error, "the number of inodes could not be determined");
                known.map_or(MetadataUsage::default(), |(_, usage)| usage)
            }
        }
    }

    async fn query_usage(&self) -> Result<MetadataUsage> {
        let owners = self.session.owners().into_iter();
        let requests = owners.map(|(partition, _)| {
            self.session.send_for(partition, None, RequestUser::default(), MetaOp::Usage)
        });
        let mut all = MetadataUsage::default();
        for answer in rt::join_all(requests.collect()).await {
            match answer?.reply {
                MetaReply::Usage(one) => {
                    all.inodes = all.inodes.saturating_add(one.inodes);
                    all.store = all.store.or(one.store);
                }
                other => return Err(unexpected(other)),
            }
        }
        Ok(all)
    }
}

/// Estimates how many inodes a store has space for, from the space of the existing ones.
fn inodes_left(store: StoreSpace, inodes: u64) -> u64 {
    store.free / (store.used / inodes.max(MIN_INODES)).max(BYTES_PER_INODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_inodes_are_estimated_from_existing_ones() {
        let store = |used| StoreSpace { used, free: 1 << 30 };
        assert_eq!(inodes_left(store(64 << 20), 10), 1 << 20, "journals of an empty store say nothing");
        assert_eq!(inodes_left(store(0), 0), 1 << 20);
        assert_eq!(inodes_left(store(1 << 32), 1 << 20), 1 << 18, "4 KiB each");
        assert_eq!(inodes_left(store(1 << 30), 1 << 22), 1 << 20, "never less than what one needs");
    }
}
