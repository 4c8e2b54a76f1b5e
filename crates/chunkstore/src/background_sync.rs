//! Syncing changes to disk, on demand and in the background.

use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result, StoreError};
use crate::intent::{DirtyRegions, MAX_SPANS};
use crate::paths;
use crate::range_lock::WritePath;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::ChunkFileId;

/// Period of background passes. Written content is on disk within about twice this time once its
/// file isn't changed any more, and within about ten times while it is.
const MAINTENANCE_PERIOD: Duration = Duration::from_millis(500);
/// Number of files from which on one sync of the whole file system is cheaper than one for each.
const BULK_SYNC_FILES: usize = 16;
/// Passes without a change after which a region's entry retires: long enough that a file with
/// random writes doesn't need new entries all the time, short enough that little is left to examine
/// after a crash.
const IDLE_PASSES: u64 = 16;
/// The same when there are many entries. Still longer than the metadata service takes to make a new
/// file durable: until then its entry tells the next start to check its chunks.
const EAGER_IDLE_PASSES: u64 = 4;
/// Number of entries from which on they retire early: recovery may then have to examine tens of
/// GiB.
const EAGER_ENTRIES: usize = 16 * 1024;
/// The same for spans, since beyond [`MAX_SPANS`] each new file needs an entry in the log.
const EAGER_SPANS: usize = MAX_SPANS / 2;
/// Entries that may be retained for other replicas that have missed something, including those that
/// a span stands for: some 64 MiB of memory.
const MAX_RETAINED_ENTRIES: usize = 128 * 1024;
/// Multiple of the entry limit that holds may retain: half of the log.
const HELD_ENTRY_LIMITS: usize = 2;
/// Passes of a shutdown until nothing is left to do.
const CLOSING_PASSES: usize = 4;
/// Failures that are retained for the syncs that have to report them.
const MAX_SYNC_FAILURES: usize = 1024;

impl Store {
    /// Everything acknowledged of this chunk file is on disk when this returns.
    pub async fn sync(&self, ino: ChunkFileId) -> Result<()> {
        if let Some(message) = self.sync_failures.lock().remove(&ino) {
            return Err(StoreError::new(Kind::Io, message, "write the data again; check the target's disk"));
        }
        match self.find(ino).await? {
            Some(file) => self.sync_file(&file).await?,
            None => self.sync_absence(ino).await?,
        }
        self.drc_rows().sync().await
    }

    /// Everything acknowledged of the target is on disk when this returns.
    pub async fn sync_all(&self) -> Result<()> {
        let failed: Vec<ChunkFileId> = self.sync_failures.lock().keys().copied().collect();
        for ino in failed {
            self.sync(ino).await?;
        }
        self.maintain(u64::MAX).await?;
        self.drc_rows().sync().await
    }

    /// Writes changes back periodically until the store is closed. A failure makes later syncs
    /// fail, but doesn't end this.
    pub async fn background(self: Arc<Self>) {
        loop {
            rt::sleep(MAINTENANCE_PERIOD).await;
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            let many = self
                .intents
                .as_ref()
                .is_some_and(|log| log.entry_count() > EAGER_ENTRIES || log.span_count() > EAGER_SPANS);
            let idle_passes = if many { EAGER_IDLE_PASSES } else { IDLE_PASSES };
            if let Err(e) = self.pass(idle_passes, Due::Idle).await {
                tracing::error!(target_id = %self.target(), "changes can't be written to disk: {e}");
            }
        }
    }

    /// One maintenance pass: makes all changes durable, and drops entries that no change has relied
    /// on for `idle_passes`.
    ///
    /// # Errors
    /// The first one; the pass still does everything else.
    pub async fn maintain(&self, idle_passes: u64) -> Result<()> {
        self.pass(idle_passes, Due::All).await
    }

    async fn pass(&self, idle_passes: u64, due: Due) -> Result<()> {
        let _exclusive = self.maintenance.write().await;
        let unsynced = match due {
            Due::All => self.unsynced.lock().take_all(),
            Due::Idle => self.unsynced.lock().take_due(|ino| self.is_idle(ino)),
        };
        let retiring = match &self.intents {
            Some(log) => log.begin_retiring(idle_passes),
            None => BTreeMap::new(),
        };
        let mut pass = Pass { store: self, retiring, failures: BTreeMap::new(), first_error: None };
        pass.prepare().await;
        let mut all: BTreeSet<ChunkFileId> = unsynced;
        all.extend(pass.retiring.keys());
        if all.len() > BULK_SYNC_FILES {
            pass.sync_together(&all).await;
        } else {
            for ino in &all {
                pass.sync_one(*ino).await;
            }
        }
        pass.finish().await
    }

    /// Whether a file hasn't been changed since the last call.
    fn is_idle(&self, ino: ChunkFileId) -> bool {
        self.cache.get(ino).is_none_or(|file| !file.is_hot.swap(false, Ordering::Relaxed))
    }

    /// Retires old entries when the intent log has too many. Called without any range held, since
    /// it waits for changes to end.
    pub(crate) async fn retire_entries_if_full(&self) -> Result<()> {
        let Some(log) = &self.intents else { return Ok(()) };
        let retains_all = log.holds().retains_all();
        if log.logged_count() <= log.entry_limit()
            && !(retains_all && log.entry_count() > MAX_RETAINED_ENTRIES)
        {
            return Ok(());
        }
        let are_held = self.group.is_some() && log.logged_count() > HELD_ENTRY_LIMITS * log.entry_limit();
        if retains_all || are_held {
            Box::pin(self.mark_overflow(are_held)).await?;
        }
        Box::pin(self.maintain(0)).await
    }

    /// Makes everything durable, and retires every entry that isn't retained for other replicas; no
    /// changes begin any more.
    pub(crate) async fn sync_everything(&self) -> Result<()> {
        for _ in 0..CLOSING_PASSES {
            self.maintain(0).await?;
            let entries_left = self.intents.as_ref().map_or(0, |log| log.entry_count());
            if entries_left == 0 && self.unsynced.lock().is_empty() {
                return Ok(());
            }
        }
        for file in self.cache.to_write_back() {
            self.rebuild_stale_sums(&file).await?;
            self.flush_sums(&file).await?;
        }
        self.sync_filesystem().await
    }

    /// Syncs the target's file system, and checks that it is still the right one.
    pub(crate) async fn sync_filesystem(&self) -> Result<()> {
        let synced = self.store_dir.confirm(rt::sync_filesystem(&self.dir).await);
        synced.map_err(|e| self.failed("sync", &self.dir, e))
    }

    /// Makes the data of a file durable. Its checksums may be written later as long as its entries
    /// are retained.
    ///
    /// The file stays in the list of unsynced files until then: a concurrent sync of everything has
    /// to wait for the disk, too.
    pub(crate) async fn sync_file(&self, file: &ChunkFile) -> Result<()> {
        // Before the sync: a change during it has to be synced again.
        file.unsynced.store(false, Ordering::Release);
        file.cached.sync_data().await.map_err(|e| {
            self.mark_unsynced(file);
            self.failed("sync", &file.path, e)
        })?;
        let mut unsynced = self.unsynced.lock();
        // A task that marks or deletes the file from here on adds it to the list afterwards.
        if !file.unsynced.load(Ordering::Acquire) && !file.deleted.load(Ordering::Acquire) {
            unsynced.remove(file.ino);
        }
        Ok(())
    }

    pub(crate) async fn sync_sums(&self, file: &ChunkFile) -> Result<()> {
        let failed = |e| self.failed("sync", file.sum_path(), e);
        match file.sum_file().await.map_err(failed)? {
            Some(sums) => sums.sync_data().await.map_err(failed),
            None => Ok(()),
        }
    }

    /// Makes the removal of a chunk file durable.
    async fn sync_absence(&self, ino: ChunkFileId) -> Result<()> {
        let folder = paths::folder(&self.dir, ino);
        match self.store_dir.confirm(rt::sync_dir(&folder).await) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.failed("sync", &folder, e)),
            _ => Ok(()),
        }
    }
}

/// Which changes a pass makes durable.
#[derive(Clone, Copy)]
enum Due {
    All,
    /// Those of files that weren't changed lately, or have been changing for long.
    Idle,
}

/// A maintenance pass in progress.
struct Pass<'a> {
    store: &'a Store,
    retiring: BTreeMap<ChunkFileId, Vec<DirtyRegions>>,
    failures: BTreeMap<ChunkFileId, String>,
    first_error: Option<StoreError>,
}

impl Pass<'_> {
    fn failed(&mut self, ino: ChunkFileId, error: StoreError) {
        self.failures.insert(ino, error.message().to_string());
        self.first_error.get_or_insert(error);
    }

    /// For each file with retiring entries: waits for the changes that rely on them, and writes its
    /// checksums.
    async fn prepare(&mut self) {
        let files: Vec<ChunkFileId> = self.retiring.keys().copied().collect();
        for ino in files {
            if let Err(e) = self.prepare_one(ino).await {
                self.failed(ino, e);
            }
        }
    }

    async fn prepare_one(&self, ino: ChunkFileId) -> Result<()> {
        let Some(file) = self.store.find(ino).await? else { return Ok(()) };
        for entry in &self.retiring[&ino] {
            drop(file.ranges.acquire(entry.bytes(), WritePath::None).await);
        }
        self.store.rebuild_stale_sums(&file).await?;
        self.store.flush_sums(&file).await
    }

    async fn sync_one(&mut self, ino: ChunkFileId) {
        if let Err(e) = self.try_sync_one(ino).await {
            self.failed(ino, e);
        }
    }

    async fn try_sync_one(&self, ino: ChunkFileId) -> Result<()> {
        let Some(file) = self.store.find(ino).await? else { return self.store.sync_absence(ino).await };
        self.store.sync_file(&file).await?;
        if self.retiring.contains_key(&ino) { self.store.sync_sums(&file).await } else { Ok(()) }
    }

    async fn sync_together(&mut self, all: &BTreeSet<ChunkFileId>) {
        for file in all.iter().filter_map(|ino| self.store.cache.get(*ino)) {
            file.unsynced.store(false, Ordering::Release);
        }
        if let Err(error) = self.store.sync_filesystem().await {
            for ino in all {
                self.failures.insert(*ino, error.message().to_string());
            }
            self.first_error.get_or_insert(error);
        }
    }

    /// Drops the entries of what is durable now; keeps the others, and records the failures.
    async fn finish(mut self) -> Result<()> {
        if let Some(log) = &self.store.intents {
            for ino in self.retiring.keys() {
                if self.failures.contains_key(ino) { log.reactivate(*ino) } else { log.retire(*ino) }
            }
            if let Err(e) = log.compact(&self.store.statistics).await {
                self.first_error.get_or_insert(e);
            }
        }
        self.failures.keys().for_each(|ino| self.store.unsynced.lock().insert(*ino));
        let mut failures = self.store.sync_failures.lock();
        for (ino, message) in self.failures {
            if failures.len() < MAX_SYNC_FAILURES {
                failures.insert(ino, message);
            }
        }
        self.first_error.map_or(Ok(()), Err)
    }
}
