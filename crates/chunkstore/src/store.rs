//! An open target.

use crate::block_sums::{self, PAGE_BYTES, SumBudget};
use crate::cache::{self, FileCache};
use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result, StoreError};
use crate::fixed_records::Rows;
use crate::group::{self, DEFAULT_GROUP_LOG_BYTES};
use crate::identity::{self, Identity, Owner};
use crate::intent::{DEFAULT_LOG_BYTES, IntentLog, ShutdownState};
use crate::min_length::{ChangingAtCrash, IncompleteFiles};
use crate::paths::{self, CHUNKS, DRC_ROWS, FENCES, OVERFLOW};
use crate::recent_reads::RecentReads;
use crate::recover::RecoveryReport;
use crate::reserve::SpaceGrant;
use crate::statistics::Statistics;
use crate::store_dir::StoreDir;
use crate::unsynced::Unsynced;
use crate::verifier::Verifier;
use parking_lot::Mutex;
use rt::IoBuf;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use types::{BLOCK_SIZE, ByteRange, ChunkFileId, GroupId, TargetId, Timestamp};

/// Default number of chunk files that are kept open. Each takes up to three descriptors: cached,
/// direct and checksums.
pub const DEFAULT_MAX_OPEN_FILES: usize = 4096;
/// Default memory for checksums, bytes; covers a thousand times as much data.
pub const DEFAULT_SUM_CACHE_BYTES: usize = 64 << 20;
/// Default number of blocks that are remembered as read: 4 GiB of data, in 2 MiB.
pub const DEFAULT_RECENT_READS: usize = 1 << 20;
/// Longest chunk file, bytes: what a signed offset can address, in whole blocks.
pub(crate) const MAX_CHUNK_FILE_BYTES: u64 = i64::MAX as u64 / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
/// Attempts to evict a page of checksums before a new page exceeds the budget.
const EVICTION_ATTEMPTS: usize = 8;

/// How often a shutdown checks whether the changes in progress have ended.
const CLOSING_POLL: Duration = Duration::from_millis(1);

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Unused chunk files that are kept open.
    pub max_open_files: usize,
    /// Memory for checksums, bytes.
    pub sum_cache_bytes: usize,
    /// Blocks that are remembered as read, 2 bytes each. As many as the page cache can hold; reads
    /// never bring blocks beyond that number into it.
    pub seen_blocks: usize,
    /// If false, a crash leaves checksums that don't match: only to show that the log is needed.
    pub intent_log: bool,
    /// If false, the store doesn't report where replicas may differ, although it records that: only
    /// to show that it is needed.
    pub reports_differences: bool,
    /// Length of each intent log file of a new store of a group, bytes.
    pub group_log_bytes: u64,
    /// A lock (`flock`) that prevents other processes from opening the target; released when the
    /// store is closed.
    pub lock: Option<Arc<std::fs::File>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_open_files: DEFAULT_MAX_OPEN_FILES,
            sum_cache_bytes: DEFAULT_SUM_CACHE_BYTES,
            seen_blocks: DEFAULT_RECENT_READS,
            intent_log: true,
            reports_differences: true,
            group_log_bytes: DEFAULT_GROUP_LOG_BYTES,
            lock: None,
        }
    }
}

/// How data moves between buffer and disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoPath {
    /// Past the page cache where offset, length and memory allow it; through it elsewhere.
    Direct,
    /// Through the page cache; small reads only enter it if they are likely to be repeated.
    Cached,
}

/// An operation on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Reserve space; content and length stay.
    Reserve,
    /// Free the space; the range reads as zeros, the length stays.
    Punch,
    /// Zeros with space reserved; the length grows to the range's end.
    Zero,
}

/// What to search for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Seek {
    Data,
    Hole,
}

/// Attributes of a chunk file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChunkStat {
    /// Bytes.
    pub len: u64,
    /// Allocated 512-byte units, without checksums.
    pub blocks: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// No chunk file exists, although one was on disk before the last crash: its checksums still
    /// existed.
    pub is_lost: bool,
}

/// Space of a target's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Total bytes.
    pub capacity: u64,
    /// Free bytes.
    pub free: u64,
}

/// An open target. Used from several cores at once; all I/O runs on the calling core.
///
/// A future that is dropped before its end leaves its change done, not done, or partially done;
/// data and checksums stay consistent.
pub struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) store_dir: Arc<StoreDir>,
    pub(crate) identity: Identity,
    pub(crate) group: Option<GroupId>,
    pub(crate) options: Options,
    pub(crate) statistics: Arc<Statistics>,
    /// `None`: switched off.
    pub(crate) intents: Option<IntentLog>,
    pub(crate) cache: FileCache,
    pub(crate) budget: Arc<SumBudget>,
    pub(crate) recent_reads: Arc<RecentReads>,
    pub(crate) space_grant: Arc<SpaceGrant>,
    /// The log couldn't retain all dirty regions that it had to: see [`Store::has_overflowed`].
    pub(crate) overflowed: AtomicBool,
    /// Held while the overflow mark on disk is written or removed.
    pub(crate) mark_lock: rt::sync::RwLock,
    /// Held by the maintenance pass in progress.
    pub(crate) maintenance: rt::sync::RwLock,
    /// Files changed since they were last synced. Bounded by what ten maintenance periods can
    /// change.
    pub(crate) unsynced: Mutex<Unsynced>,
    /// Why a background sync of a file failed: the file's next sync returns it.
    pub(crate) sync_failures: Mutex<BTreeMap<ChunkFileId, String>>,
    /// Damaged blocks that were logged already.
    pub(crate) reported: Mutex<BTreeSet<(ChunkFileId, u64)>>,
    /// Files that were changing when the store was last left; taken once.
    pub(crate) changing_at_crash: Mutex<Vec<ChunkFileId>>,
    /// The spans of the last recovery; taken once.
    pub(crate) created_at_crash: Mutex<Vec<(ChunkFileId, ChunkFileId)>>,
    /// Exists as long as the store is open: it explains missing content.
    pub(crate) at_crash: ChangingAtCrash,
    pub(crate) incomplete: IncompleteFiles,
    /// Crash reconciliation hasn't finished: another start must find the same state again.
    pub(crate) needs_reconciliation: AtomicBool,
    /// Files of which the last recovery found orphaned checksums. Checksums reach the disk after
    /// their chunk file, so a chunk file had existed.
    pub(crate) orphaned_sums: Mutex<BTreeSet<ChunkFileId>>,
    /// Stored for the service: the duplicate request cache, and ended sessions.
    drc_rows: Rows,
    fences: Rows,
    pub(crate) verifier: Verifier,
    pub(crate) closed: AtomicBool,
    changes_in_progress: AtomicUsize,
}

/// State that the stores of a target share.
pub(crate) struct TargetShared {
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) budget: Arc<SumBudget>,
    pub(crate) recent_reads: Arc<RecentReads>,
    pub(crate) space_grant: Arc<SpaceGrant>,
}

/// A change in progress; a shutdown waits for it.
pub(crate) struct InProgress<'a>(&'a Store);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.changes_in_progress.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    /// Creates a target in a directory that holds none; creates the directory if necessary.
    pub async fn format(dir: &Path, identity: &Identity) -> Result<()> {
        Store::format_with_log(dir, identity, DEFAULT_LOG_BYTES).await
    }

    /// As [`Store::format`], with a given length of each of the two intent log files, bytes.
    pub async fn format_with_log(dir: &Path, identity: &Identity, log_bytes: u64) -> Result<()> {
        identity::require_empty(dir, identity).await?;
        let failed = |e| StoreError::io(identity.target, "make", dir, e);
        rt::create_dir_all(&dir.join(CHUNKS)).await.map_err(failed)?;
        IntentLog::format(identity.target, dir, log_bytes).await?;
        // Last, since the superblock makes the directory a target.
        identity::write(dir, &Owner { identity: identity.clone(), group: None }).await
    }

    /// Fails if [`Store::open`] would reject the directory because of its identity. Changes
    /// nothing.
    pub async fn check(dir: &Path, expected: &Identity) -> Result<()> {
        identity::check(dir, expected).await
    }

    /// Returns the identity of the target in a directory; `None` if it holds none.
    pub async fn identify(dir: &Path) -> Result<Option<Identity>> {
        identity::find(dir, TargetId(0)).await
    }

    /// Returns the path of an inode's chunk file on a target in `dir`.
    pub fn chunk_file_path(dir: &Path, ino: ChunkFileId) -> PathBuf {
        paths::chunk_file(dir, ino)
    }

    /// Opens a target after checking that it is the expected one; rebuilds checksums if it wasn't
    /// shut down.
    ///
    /// The caller makes sure that no other process has the target open ([`Options::lock`]), and
    /// runs [`Store::background`].
    ///
    /// # Errors
    /// If the directory isn't a target, is another one, has a newer version or is damaged,
    /// everything on disk stays as it was.
    pub async fn open(
        dir: &Path,
        expected: &Identity,
        options: Options,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        identity::check(dir, expected).await?;
        let shared = TargetShared {
            statistics: Arc::default(),
            budget: Arc::new(SumBudget::new(options.sum_cache_bytes)),
            recent_reads: Arc::new(RecentReads::new(options.seen_blocks)),
            space_grant: Arc::default(),
        };
        let owner = Owner { identity: expected.clone(), group: None };
        Store::open_checked(dir, owner, options, shared, DEFAULT_LOG_BYTES).await
    }

    /// As [`Store::open`], for a directory whose identity has been checked.
    pub(crate) async fn open_checked(
        dir: &Path,
        Owner { identity, group }: Owner,
        options: Options,
        shared: TargetShared,
        log_bytes: u64,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        let expected = &identity;
        let store_dir = Arc::new(StoreDir::hold(dir, Owner { identity: identity.clone(), group })?);
        let (log, shutdown) = match IntentLog::open(expected.target, dir).await? {
            Some(found) => (Some(found.log), found.shutdown),
            None => (None, ShutdownState::LogLost),
        };
        let drc_rows = Rows::open(expected.target, dir.join(DRC_ROWS)).await?;
        let fences = Rows::open(expected.target, dir.join(FENCES)).await?;
        rt::sync_dir(dir).await.map_err(|e| StoreError::io(expected.target, "sync", dir, e))?;
        let was_clean = matches!(shutdown, ShutdownState::Clean);
        let was_shut_down = matches!(shutdown, ShutdownState::Clean | ShutdownState::CleanWithEntries(_));
        let verifier = Verifier::open(expected.target, dir, group.is_some(), was_shut_down).await?;
        let overflowed = group::has_mark(expected.target, &dir.join(OVERFLOW)).await?;
        let mut store = Store {
            dir: dir.to_path_buf(),
            store_dir,
            identity: expected.clone(),
            group,
            statistics: shared.statistics,
            intents: None,
            cache: FileCache::new(options.max_open_files),
            options: options.clone(),
            budget: shared.budget,
            recent_reads: shared.recent_reads,
            space_grant: shared.space_grant,
            overflowed: AtomicBool::new(overflowed),
            mark_lock: rt::sync::RwLock::new(),
            maintenance: rt::sync::RwLock::new(),
            unsynced: Mutex::default(),
            sync_failures: Mutex::default(),
            reported: Mutex::default(),
            changing_at_crash: Mutex::default(),
            created_at_crash: Mutex::default(),
            at_crash: ChangingAtCrash::default(),
            incomplete: IncompleteFiles::default(),
            needs_reconciliation: AtomicBool::new(false),
            orphaned_sums: Mutex::default(),
            drc_rows,
            fences,
            verifier,
            closed: AtomicBool::new(false),
            changes_in_progress: AtomicUsize::new(0),
        };
        if group.is_some() && matches!(shutdown, ShutdownState::LogLost) {
            store.mark_overflow(false).await?;
        }
        let (report, inherited) =
            if options.intent_log { store.recover(shutdown).await? } else { Default::default() };
        // A lost log is replaced only now, so that a crash before leaves the loss visible.
        let log = match log {
            Some(log) => log,
            None => IntentLog::replace(expected.target, dir, log_bytes).await?,
        };
        log.resume(&inherited).await?;
        log.holds().set_release_all(store.overflowed.load(Ordering::SeqCst));
        log.holds().set_retain_all(group.is_some() && !was_clean);
        store.intents = options.intent_log.then_some(log);
        Ok((Arc::new(store), report))
    }

    /// The target's id.
    pub fn target(&self) -> TargetId {
        self.identity.target
    }

    /// Whether it was shut down.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Checks by two calls of `stat(2)` that the directory is still the one that was opened: cheap
    /// enough for every heartbeat, on any thread.
    ///
    /// # Errors
    /// [`Kind::Vanished`] if it isn't.
    pub fn check_dir(&self) -> Result<()> {
        self.store_dir.check_all().map_err(|e| self.failed("examine", &self.dir, e))
    }

    /// The same check, including the superblock. Must be called before this store is the source for
    /// another replica, and before it counts as complete.
    ///
    /// # Errors
    /// [`Kind::Vanished`] if it isn't the store that was opened; [`Kind::Io`] if the check failed.
    pub async fn verify_dir(&self) -> Result<()> {
        self.store_dir.verify().await
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes the files that were changing when the store was last left without a shutdown,
    /// including those without a chunk file: a crash of the machine may have undone a part of their
    /// changes. Returned once; see [`Store::mark_reconciled`].
    pub fn take_changing_at_crash(&self) -> Vec<ChunkFileId> {
        std::mem::take(&mut *self.changing_at_crash.lock())
    }

    /// Takes the ranges of inodes whose chunk files were being created when the store was last left
    /// without a shutdown; the second number is exclusive. Some chunk files may never have reached
    /// the disk, and no other record names those. Returned once.
    pub fn take_created_at_crash(&self) -> Vec<(ChunkFileId, ChunkFileId)> {
        std::mem::take(&mut *self.created_at_crash.lock())
    }

    /// Records that crash reconciliation of the files has finished or isn't needed. Until then a
    /// shutdown preserves the state after the crash.
    pub fn mark_reconciled(&self) {
        self.needs_reconciliation.store(false, Ordering::Release);
    }

    /// The rows of the duplicate request cache. Every sync of data syncs them, too.
    pub fn drc_rows(&self) -> &Rows {
        &self.drc_rows
    }

    /// The rows of ended sessions.
    pub fn fences(&self) -> &Rows {
        &self.fences
    }

    /// Counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the attributes of a chunk file; zeros for an absent one.
    pub async fn stat(&self, ino: ChunkFileId) -> Result<ChunkStat> {
        let Some(file) = self.find(ino).await? else {
            let is_lost = self.orphaned_sums.lock().contains(&ino);
            return Ok(ChunkStat { is_lost, ..ChunkStat::default() });
        };
        let stat = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?;
        Ok(ChunkStat { len: stat.len, blocks: stat.blocks, mtime: stat.mtime, is_lost: false })
    }

    /// Returns the space of the target's file system.
    pub async fn space(&self) -> Result<Space> {
        let found = self.store_dir.confirm(rt::file_system_space(&self.dir).await);
        let (capacity, free) = found.map_err(|e| self.failed("read the free space of", &self.dir, e))?;
        Ok(Space { capacity, free })
    }

    /// Writes everything to disk and records that no recovery is needed. Refuses later changes.
    pub async fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        while self.changes_in_progress.load(Ordering::SeqCst) > 0 {
            rt::sleep(CLOSING_POLL).await;
        }
        let synced = self.record_shutdown().await;
        let unlocked = self.options.lock.as_ref().map_or(Ok(()), |lock| lock.unlock());
        synced.and(unlocked.map_err(|e| self.failed("unlock", &self.dir, e)))
    }

    /// Syncs everything, and records a clean shutdown unless crash reconciliation is unfinished.
    async fn record_shutdown(&self) -> Result<()> {
        if self.needs_reconciliation.load(Ordering::Acquire) {
            return self.maintain(u64::MAX).await;
        }
        self.sync_everything().await?;
        match &self.intents {
            Some(log) => log.record_shutdown().await,
            None => Ok(()),
        }
    }

    pub(crate) fn failed(&self, doing: &str, path: &Path, error: io::Error) -> StoreError {
        StoreError::io(self.identity.target, doing, path, error)
    }

    /// Must be called before a change begins; the result is held until the change has ended. Fails
    /// when the store is shut down.
    pub(crate) fn begin_change(&self) -> Result<InProgress<'_>> {
        self.changes_in_progress.fetch_add(1, Ordering::SeqCst);
        let in_progress = InProgress(self);
        if self.closed.load(Ordering::SeqCst) {
            Err(StoreError::closed(self.target()))
        } else {
            Ok(in_progress)
        }
    }

    /// Returns the end of `len` bytes from `offset`.
    pub(crate) fn checked_end(&self, ino: ChunkFileId, offset: u64, len: u64) -> Result<u64> {
        offset.checked_add(len).filter(|end| *end <= MAX_CHUNK_FILE_BYTES).ok_or_else(|| {
            StoreError::new(
                Kind::TooLarge,
                format!(
                    "target {}: offset {offset} is beyond what the chunk file of inode {ino} can hold",
                    self.target()
                ),
                "stripe the file over more targets",
            )
        })
    }

    /// Returns the chunk file of an inode if it exists.
    pub(crate) async fn find(&self, ino: ChunkFileId) -> Result<Option<Arc<ChunkFile>>> {
        match self.cache.get(ino) {
            Some(file) => Ok(Some(file)),
            // Rare, and large: kept out of the future of every request.
            None => Box::pin(self.find_on_disk(ino)).await,
        }
    }

    async fn find_on_disk(&self, ino: ChunkFileId) -> Result<Option<Arc<ChunkFile>>> {
        let shard = self.cache.shard(ino);
        let _opening = shard.opening.write().await;
        if let Some(file) = shard.get(ino) {
            return Ok(Some(file));
        }
        match ChunkFile::open(&self.store_dir, ino, &self.budget).await {
            Ok(Some(file)) => Ok(Some(self.cache_opened(shard, file).await)),
            Ok(None) => Ok(None),
            Err(e) => Err(self.failed("open", &paths::chunk_file(&self.dir, ino), e)),
        }
    }

    /// Returns the chunk file of an inode; creates it if absent.
    pub(crate) async fn find_or_create(&self, ino: ChunkFileId) -> Result<Arc<ChunkFile>> {
        match self.find(ino).await? {
            Some(file) => Ok(file),
            None => Box::pin(self.create(ino)).await,
        }
    }

    async fn create(&self, ino: ChunkFileId) -> Result<Arc<ChunkFile>> {
        let shard = self.cache.shard(ino);
        let _opening = shard.opening.write().await;
        if let Some(file) = shard.get(ino) {
            return Ok(file);
        }
        // Otherwise the parts that aren't written now would read as zeros from then on.
        if self.has_orphaned_sums(ino).await? {
            return Err(self.report_removed(ino, ByteRange::new(0, u64::MAX)));
        }
        if let Some(log) = &self.intents {
            // Before a chunk file exists that the metadata may not know after a crash. Usually the
            // entry covers the first write, too.
            log.mark_new_file(ino, &self.statistics).await?;
        }
        match ChunkFile::create(&self.store_dir, ino, &self.budget).await {
            Ok(file) => Ok(self.cache_opened(shard, file).await),
            Err(e) => Err(self.failed("create", &paths::chunk_file(&self.dir, ino), e)),
        }
    }

    /// Puts a file just opened into the cache; the caller holds the shard's `opening`.
    async fn cache_opened(&self, shard: &cache::Shard, file: ChunkFile) -> Arc<ChunkFile> {
        self.statistics.file_opens.add(1);
        if let Some(log) = &self.intents {
            log.observe(file.ino);
        }
        if let cache::CloseResult::FlushFirst(other) = self.cache.evict(shard) {
            let flushed = self.flush_sums(&other).await;
            drop(other);
            match flushed {
                Ok(()) => drop(self.cache.evict(shard)),
                // It stays open and dirty; its next sync returns the error.
                Err(e) => tracing::warn!(target_id = %self.target(), "checksums can't be written back: {e}"),
            }
        }
        let file = Arc::new(file);
        self.cache.insert(file.clone());
        file
    }

    /// Loads a page of checksums into memory. Boxed, since it is rare, and large for the future of
    /// every request.
    pub(crate) fn load_sums<'a>(
        &'a self,
        file: &'a Arc<ChunkFile>,
        missing: block_sums::Missing,
    ) -> Pin<Box<impl Future<Output = Result<()>> + use<'a>>> {
        Box::pin(self.read_sums(file, missing))
    }

    async fn read_sums(
        &self,
        file: &Arc<ChunkFile>,
        block_sums::Missing(number): block_sums::Missing,
    ) -> Result<()> {
        self.evict_sums_if_full().await;
        let failed = |e| self.failed("read", file.sum_path(), e);
        let page = IoBuf::alloc(PAGE_BYTES);
        loop {
            let invalidations = file.sums.invalidations();
            let got = match file.sum_file().await.map_err(failed)? {
                Some(sums) => sums.read_at(page.clone(), number * PAGE_BYTES as u64).await.map_err(failed)?,
                None => 0,
            };
            page.zero(got..PAGE_BYTES);
            self.statistics.sum_page_loads.add(1);
            if file.sums.insert(file, number, invalidations, page.as_slice()) {
                return Ok(());
            }
        }
    }

    /// Keeps the memory for checksums within its budget; writes some back if necessary.
    pub(crate) async fn evict_sums_if_full(&self) {
        for _ in 0..EVICTION_ATTEMPTS {
            match self.budget.evict_pages() {
                block_sums::EvictionResult::Enough => return,
                block_sums::EvictionResult::FlushFirst(other) => {
                    if let Err(e) = self.flush_sums(&other).await {
                        tracing::warn!(target_id = %self.target(), "checksums can't be written back: {e}");
                        return;
                    }
                }
            }
        }
    }

    /// Writes a file's checksums to the local file system, without a sync.
    pub(crate) async fn flush_sums(&self, file: &Arc<ChunkFile>) -> Result<()> {
        let _write_back = file.write_back.write().await;
        let failed = |e| self.failed("write", file.sum_path(), e);
        let mut from = 0;
        if !file.lacks_sum_file() && !file.sums.is_dirty() {
            return Ok(());
        }
        let Some(sum_file) = file.sum_file_for_writing().await.map_err(failed)? else { return Ok(()) };
        while let Some(page) = file.sums.next_write(from) {
            let at = page.number * PAGE_BYTES as u64;
            sum_file.write_at(page.bytes.clone(), at).await.map_err(failed)?;
            from = page.number + 1;
            page.done();
            self.statistics.sum_page_writes.add(1);
        }
        Ok(())
    }

    /// Records in the intent log that a range is about to change. The caller holds the range.
    pub(crate) async fn mark_dirty(&self, file: &ChunkFile, range: ByteRange) -> Result<()> {
        match &self.intents {
            Some(log) => log.mark_dirty(file.ino, range, &self.statistics).await,
            None => Ok(()),
        }
    }

    /// Records that a file has unsynced changes.
    pub(crate) fn mark_unsynced(&self, file: &ChunkFile) {
        // Checked first, so that the cores that write to a file mostly share the cache line.
        if !file.is_hot.load(Ordering::Relaxed) {
            file.is_hot.store(true, Ordering::Relaxed);
        }
        if !file.unsynced.swap(true, Ordering::AcqRel) {
            self.unsynced.lock().insert(file.ino);
        }
    }
}

#[cfg(test)]
mod tests;
