//! Creates, checks and opens the targets of a process.

use ::node::store_error;
use ceilings::drive;
use chunkstore::{
    DEFAULT_MAX_OPEN_FILES, DEFAULT_SUM_CACHE_BYTES, Identity, Kind, Options as StoreOptions, Store,
};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{BLOCK_SIZE, Result};

/// Memory for cached checksums of all targets together, in bytes; covers a thousand times as much
/// data.
const SUM_CACHE_BYTES: usize = 256 << 20;

/// Descriptors per open chunk file: cached, direct and checksums.
const FILES_PER_CHUNK_FILE: u64 = 3;

/// Descriptors reserved for everything but chunk files: the metadata store's tables, rings, FUSE
/// devices, sockets.
const RESERVED_FILES: u64 = 1024;

/// Open chunk files per target, however few descriptors there are.
const MIN_OPEN_CHUNK_FILES: usize = 16;

/// Longest wait for a target that another process has open, and the interval of attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Bounds of the number of blocks that a target remembers as read, at 2 bytes each.
const MIN_SEEN_BLOCKS: usize = 1 << 16;
const MAX_SEEN_BLOCKS: usize = 1 << 24;

/// Makes a directory a target, unless an interrupted first start did so already.
pub async fn create_target(directory: &Path, identity: &Identity) -> Result<()> {
    mgmt::require_target_or_vacant(directory)?;
    match Store::format(directory, identity).await {
        Err(e) if e.kind() == Kind::NotEmpty => Store::check(directory, identity).await.map_err(store_error),
        made => made.map_err(store_error),
    }
}

/// Opens a target, one of `count` of this process.
///
/// # Errors
/// Refused while another process has it open: two processes would corrupt it.
pub async fn open_target(directory: &Path, identity: &Identity, count: usize) -> Result<Arc<Store>> {
    let lock = Some(Arc::new(lock(directory).await?));
    drive::remove_leftovers(directory);
    let options = StoreOptions { lock, ..store_options(count) };
    let opened = Store::open(directory, identity, options).await;
    let (store, report) = opened.map_err(store_error)?;
    tracing::debug!(target_id = identity.target.0, ?report, "target opened");
    Ok(store)
}

/// Locks a target. Waits a moment, since a killed process may be about to release the lock.
async fn lock(directory: &Path) -> Result<File> {
    let until_ns = rt::monotonic_ns() + LOCK_TIMEOUT.as_nanos() as u64;
    loop {
        match mgmt::lock_target(directory) {
            Err(mgmt::Error::TargetInUse { .. }) if rt::monotonic_ns() < until_ns => {
                rt::sleep(LOCK_POLL_INTERVAL).await
            }
            taken => return Ok(taken?),
        }
    }
}

/// Returns the share of one of `count` targets in the process's descriptors and memory.
fn store_options(count: usize) -> StoreOptions {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(RESERVED_FILES);
    let files = files / (FILES_PER_CHUNK_FILE * count as u64);
    StoreOptions {
        max_open_files: (files as usize).clamp(MIN_OPEN_CHUNK_FILES, DEFAULT_MAX_OPEN_FILES),
        sum_cache_bytes: (SUM_CACHE_BYTES / count).min(DEFAULT_SUM_CACHE_BYTES),
        seen_blocks: (memory_pages() / count).clamp(MIN_SEEN_BLOCKS, MAX_SEEN_BLOCKS),
        ..StoreOptions::default()
    }
}

/// Returns the pages of the machine's memory, the most blocks that its page cache can hold.
fn memory_pages() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize) / BLOCK_SIZE
}
