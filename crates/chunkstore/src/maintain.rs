//! Getting changes to disk, on demand and in the background.

use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result, StoreError};
use crate::intent::{MAX_SPANS, Note};
use crate::place;
use crate::range_lock::Passage;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::InodeId;

/// How often the background looks. What was written is on disk within about twice this when its
/// file rests, and within about ten times as long when it doesn't.
const MAINTENANCE_PERIOD: Duration = Duration::from_millis(500);
/// From so many files on, one sync of the whole file system is cheaper than one for each.
const BULK_SYNC_FILES: usize = 16;
/// Passes without a change after which a region's note goes: long enough that a file written at
/// random places isn't noted anew all the time, short enough that little is left to examine after a
/// crash.
const IDLE_PASSES: u64 = 16;
/// The same when there are many notes. Still longer than the metadata service takes to make a new
/// file durable: until then its note is what tells the next start to look at its chunks.
const EAGER_IDLE_PASSES: u64 = 4;
/// Notes from which on they go as soon as they can: what a recovery may have to examine, in
/// regions, is then in the tens of GiB.
const EAGER_NOTES: usize = 16 * 1024;
/// The same for spans, since beyond [`MAX_SPANS`] new files are noted one by one.
const EAGER_SPANS: usize = MAX_SPANS / 2;
/// Notes that may be kept for other copies to learn what they have missed, those that a span stands
/// for included: some 64 MiB of memory.
const MAX_KEPT_NOTES: usize = 128 * 1024;
/// How many times the notes that may take room in the log may be held: half of the log.
const HELD_NOTE_LIMITS: usize = 2;
/// Passes that a shutdown makes until nothing is left to do.
const CLOSING_PASSES: usize = 4;
/// Failures that are remembered for the syncs that have to report them.
const MAX_SYNC_FAILURES: usize = 1024;

impl Store {
    /// Everything acknowledged of this chunk file is on disk when this returns.
    pub async fn sync(&self, ino: InodeId) -> Result<()> {
        if let Some(message) = self.sync_failures.lock().remove(&ino) {
            return Err(StoreError::new(Kind::Io, message, "write the data again; check the target's disk"));
        }
        match self.find(ino).await? {
            Some(file) => self.sync_file(&file).await?,
            None => self.sync_absence(ino).await?,
        }
        self.recent().sync().await
    }

    /// Everything acknowledged of the target is on disk when this returns.
    pub async fn sync_all(&self) -> Result<()> {
        let failed: Vec<InodeId> = self.sync_failures.lock().keys().copied().collect();
        for ino in failed {
            self.sync(ino).await?;
        }
        self.maintain(u64::MAX).await?;
        self.recent().sync().await
    }

    /// Keeps changes on their way to disk until the store is closed; fails requests, never itself.
    pub async fn background(self: Arc<Self>) {
        loop {
            rt::sleep(MAINTENANCE_PERIOD).await;
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            let many = self
                .intents
                .as_ref()
                .is_some_and(|log| log.note_count() > EAGER_NOTES || log.span_count() > EAGER_SPANS);
            let idle_passes = if many { EAGER_IDLE_PASSES } else { IDLE_PASSES };
            if let Err(e) = self.pass(idle_passes, Due::Rested).await {
                tracing::error!(target_id = %self.target(), "changes can't be written to disk: {e}");
            }
        }
    }

    /// One maintenance pass: makes all changes durable, and drops notes that no change has relied
    /// on for `idle_passes`.
    ///
    /// # Errors
    /// The first of those that occurred; everything that could be done is done.
    pub async fn maintain(&self, idle_passes: u64) -> Result<()> {
        self.pass(idle_passes, Due::All).await
    }

    async fn pass(&self, idle_passes: u64, due: Due) -> Result<()> {
        let _alone = self.maintenance.write().await;
        let unsynced = match due {
            Due::All => self.unsynced.lock().take_all(),
            Due::Rested => self.unsynced.lock().take_due(|ino| self.has_rested(ino)),
        };
        let retiring = match &self.intents {
            Some(log) => log.begin_retiring(idle_passes),
            None => BTreeMap::new(),
        };
        let mut pass = Pass { store: self, retiring, failures: BTreeMap::new(), first_error: None };
        pass.prepare().await;
        let mut all: BTreeSet<InodeId> = unsynced;
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

    /// Whether a file hasn't been changed since this was asked last.
    fn has_rested(&self, ino: InodeId) -> bool {
        self.cache.get(ino).is_none_or(|file| !file.is_hot.swap(false, Ordering::Relaxed))
    }

    /// Lets old notes retire when the intent log has too many. Called without any range held, since
    /// it waits for changes to end.
    pub(crate) async fn make_room_for_notes(&self) -> Result<()> {
        let Some(log) = &self.intents else { return Ok(()) };
        let keeps_everything = log.holds().keeps_everything();
        if log.logged_count() <= log.note_limit() && !(keeps_everything && log.note_count() > MAX_KEPT_NOTES)
        {
            return Ok(());
        }
        let are_held = self.group.is_some() && log.logged_count() > HELD_NOTE_LIMITS * log.note_limit();
        if keeps_everything || are_held {
            Box::pin(self.mark_overflow(are_held)).await?;
        }
        Box::pin(self.maintain(0)).await
    }

    /// Makes everything durable, and every note unnecessary that isn't kept for other copies;
    /// changes don't come any more.
    pub(crate) async fn settle_everything(&self) -> Result<()> {
        for _ in 0..CLOSING_PASSES {
            self.maintain(0).await?;
            let notes_left = self.intents.as_ref().map_or(0, |log| log.note_count());
            if notes_left == 0 && self.unsynced.lock().is_empty() {
                return Ok(());
            }
        }
        for file in self.cache.to_write_back() {
            self.settle(&file).await?;
            self.flush_sums(&file).await?;
        }
        self.sync_filesystem().await
    }

    /// Brings everything on the target's file system to disk, and knows that it was that file
    /// system.
    pub(crate) async fn sync_filesystem(&self) -> Result<()> {
        let synced = self.home.confirm(rt::sync_filesystem(&self.dir).await);
        synced.map_err(|e| self.failed("sync", &self.dir, e))
    }

    /// Makes the data of a file durable. Its checksums may lag behind as long as its notes are
    /// kept.
    ///
    /// It stays in the list of what isn't synced until it is: who syncs everything meanwhile has to
    /// wait for the disk, too.
    pub(crate) async fn sync_file(&self, file: &ChunkFile) -> Result<()> {
        // Before the sync: a change that comes while it runs has to be synced again.
        file.unsynced.store(false, Ordering::Release);
        file.cached.sync_data().await.map_err(|e| {
            self.mark_unsynced(file);
            self.failed("sync", &file.path, e)
        })?;
        let mut unsynced = self.unsynced.lock();
        // Whoever marks or deletes it from here on puts it into the list afterwards.
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
    async fn sync_absence(&self, ino: InodeId) -> Result<()> {
        let folder = place::folder(&self.dir, ino);
        match self.home.confirm(rt::sync_dir(&folder).await) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.failed("sync", &folder, e)),
            _ => Ok(()),
        }
    }
}

/// Which changes a pass makes durable.
#[derive(Clone, Copy)]
enum Due {
    All,
    /// Those of files that have rested, or haven't rested for long.
    Rested,
}

/// A maintenance pass in progress.
struct Pass<'a> {
    store: &'a Store,
    retiring: BTreeMap<InodeId, Vec<Note>>,
    failures: BTreeMap<InodeId, String>,
    first_error: Option<StoreError>,
}

impl Pass<'_> {
    fn failed(&mut self, ino: InodeId, error: StoreError) {
        self.failures.insert(ino, error.message().to_string());
        self.first_error.get_or_insert(error);
    }

    /// For each file with notes that retire: waits for the changes that rely on them, and hands its
    /// checksums over.
    async fn prepare(&mut self) {
        let files: Vec<InodeId> = self.retiring.keys().copied().collect();
        for ino in files {
            if let Err(e) = self.prepare_one(ino).await {
                self.failed(ino, e);
            }
        }
    }

    async fn prepare_one(&self, ino: InodeId) -> Result<()> {
        let Some(file) = self.store.find(ino).await? else { return Ok(()) };
        for note in &self.retiring[&ino] {
            drop(file.ranges.acquire(note.bytes(), Passage::Neutral).await);
        }
        self.store.settle(&file).await?;
        self.store.flush_sums(&file).await
    }

    async fn sync_one(&mut self, ino: InodeId) {
        if let Err(e) = self.try_sync_one(ino).await {
            self.failed(ino, e);
        }
    }

    async fn try_sync_one(&self, ino: InodeId) -> Result<()> {
        let Some(file) = self.store.find(ino).await? else { return self.store.sync_absence(ino).await };
        self.store.sync_file(&file).await?;
        if self.retiring.contains_key(&ino) { self.store.sync_sums(&file).await } else { Ok(()) }
    }

    async fn sync_together(&mut self, all: &BTreeSet<InodeId>) {
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

    /// Drops the notes of what is durable now; keeps those of what isn't, and remembers why.
    async fn finish(mut self) -> Result<()> {
        if let Some(log) = &self.store.intents {
            for ino in self.retiring.keys() {
                if self.failures.contains_key(ino) { log.reactivate(*ino) } else { log.retire(*ino) }
            }
            if let Err(e) = log.tidy(&self.store.statistics).await {
                self.first_error.get_or_insert(e);
            }
        }
        self.failures.keys().for_each(|ino| self.store.unsynced.lock().insert(*ino));
        let mut remembered = self.store.sync_failures.lock();
        for (ino, message) in self.failures {
            if remembered.len() < MAX_SYNC_FAILURES {
                remembered.insert(ino, message);
            }
        }
        self.first_error.map_or(Ok(()), Err)
    }
}
