//! Cache of open chunk files.

use crate::chunk_file::ChunkFile;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{ChunkFileId, HashMap};

/// Independent parts, so that cores rarely contend.
const SHARDS: usize = 64;

#[derive(Default)]
struct Files {
    by_ino: HashMap<ChunkFileId, Arc<ChunkFile>>,
    /// Second-chance queue of candidates for closing.
    queue: VecDeque<ChunkFileId>,
}

/// One part of the cache.
pub(crate) struct Shard {
    files: Mutex<Files>,
    /// Held while a file of this shard is opened, created or removed, so that an inode never has
    /// two [`ChunkFile`]s.
    pub(crate) opening: rt::sync::RwLock,
}

/// Result of a search for files to close.
pub(crate) enum CloseResult {
    /// The shard is within its limit, or everything in it is in use.
    Enough,
    /// This file's checksums have to be written first.
    FlushFirst(Arc<ChunkFile>),
}

/// Open chunk files by inode, with a limit on idle ones.
pub(crate) struct FileCache {
    shards: Vec<Shard>,
    files_per_shard: usize,
}

impl FileCache {
    pub(crate) fn new(max_files: usize) -> FileCache {
        let shard = || Shard { files: Mutex::default(), opening: rt::sync::RwLock::new() };
        FileCache {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            files_per_shard: max_files.div_ceil(SHARDS).max(1),
        }
    }

    pub(crate) fn shard(&self, ino: ChunkFileId) -> &Shard {
        // Not the low bits: among the inodes of one file set, they correlate with the position in
        // the stripe.
        let hash = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 58) as usize % SHARDS]
    }

    pub(crate) fn get(&self, ino: ChunkFileId) -> Option<Arc<ChunkFile>> {
        self.shard(ino).get(ino)
    }

    /// Adds a file that was opened under the shard's `opening` lock.
    pub(crate) fn insert(&self, file: Arc<ChunkFile>) {
        let mut files = self.shard(file.ino).files.lock();
        files.queue.push_back(file.ino);
        files.by_ino.insert(file.ino, file);
    }

    /// Closes idle files until the shard is within its limit.
    pub(crate) fn evict(&self, shard: &Shard) -> CloseResult {
        let mut files = shard.files.lock();
        let mut dirty = None;
        // Two rounds: the first takes away second chances.
        for _ in 0..2 * files.queue.len() {
            if files.by_ino.len() <= self.files_per_shard {
                return CloseResult::Enough;
            }
            let Some(ino) = files.queue.pop_front() else { break };
            let Some(file) = files.by_ino.get(&ino) else { continue };
            let idle = Arc::strong_count(file) == 1 && !file.used.swap(false, Ordering::Relaxed);
            if idle && !file.needs_write_back() {
                files.by_ino.remove(&ino);
                continue;
            }
            if idle && dirty.is_none() {
                dirty = Some(file.clone());
            }
            files.queue.push_back(ino);
        }
        dirty.map_or(CloseResult::Enough, CloseResult::FlushFirst)
    }

    /// Returns files with state that is only in memory, in order of their inodes.
    pub(crate) fn to_write_back(&self) -> Vec<Arc<ChunkFile>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let files = shard.files.lock();
            found.extend(files.by_ino.values().filter(|file| file.needs_write_back()).cloned());
        }
        found.sort_unstable_by_key(|file| file.ino);
        found
    }

    /// Number of open files.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.files.lock().by_ino.len()).sum()
    }
}

impl Shard {
    pub(crate) fn get(&self, ino: ChunkFileId) -> Option<Arc<ChunkFile>> {
        let files = self.files.lock();
        let file = files.by_ino.get(&ino)?;
        file.used.store(true, Ordering::Relaxed);
        Some(file.clone())
    }

    pub(crate) fn remove(&self, ino: ChunkFileId) {
        let mut files = self.files.lock();
        files.by_ino.remove(&ino);
        files.queue.retain(|queued| *queued != ino);
    }
}
