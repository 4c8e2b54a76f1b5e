//! One open chunk file.

use crate::block_sums::{SumBudget, SumCache};
use crate::paths;
use crate::range_lock::RangeLock;
use crate::store_dir::StoreDir;
use parking_lot::Mutex;
use rt::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use types::{ByteRange, ChunkFileId, Errno};

/// A chunk file with its checksums and locks. At most one per inode and store exists at a time.
pub(crate) struct ChunkFile {
    pub(crate) ino: ChunkFileId,
    pub(crate) path: PathBuf,
    sum_path: PathBuf,
    store_dir: Arc<StoreDir>,
    /// Through the page cache.
    pub(crate) cached: File,
    /// Past the page cache; `None` when the local file system doesn't support that.
    direct: OnceLock<Option<File>>,
    sum_file: OnceLock<File>,
    /// Created by this store: an existing checksum file is the leftover of a deletion that a crash
    /// interrupted.
    is_new: bool,
    pub(crate) sums: SumCache,
    pub(crate) ranges: RangeLock,
    /// Serializes write-backs of checksums and truncations of the checksum file. Its holder neither
    /// locks ranges nor makes room for pages.
    pub(crate) write_back: rt::sync::RwLock,
    /// Changed since its last sync began.
    pub(crate) unsynced: AtomicBool,
    /// Changed since the last background pass.
    pub(crate) is_hot: AtomicBool,
    pub(crate) deleted: AtomicBool,
    /// Used since the last pass of the cache.
    pub(crate) used: AtomicBool,
    /// Small reads since it was opened that found nothing in memory.
    pub(crate) misses: AtomicU32,
    /// Lower bound of its length when that was last checked.
    pub(crate) min_len: AtomicU64,
    /// Range in which a change was abandoned or failed half-way, so that checksums may not match.
    stale_sums: Mutex<Option<ByteRange>>,
}

const READ_WRITE: OpenOptions =
    OpenOptions { read: true, write: true, create: false, exclusive: false, truncate: false, direct: false };

fn absent_as_none(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl ChunkFile {
    /// Opens an existing chunk file; `None` when it doesn't exist.
    pub(crate) async fn open(
        store_dir: &Arc<StoreDir>,
        ino: ChunkFileId,
        budget: &Arc<SumBudget>,
    ) -> io::Result<Option<ChunkFile>> {
        let path = paths::chunk_file(store_dir.dir(), ino);
        let file = absent_as_none(store_dir.confirm(File::open(&path, READ_WRITE).await))?;
        Ok(file.map(|file| ChunkFile::new(store_dir, ino, path, file, budget)))
    }

    /// Creates a chunk file, which must not exist.
    pub(crate) async fn create(
        store_dir: &Arc<StoreDir>,
        ino: ChunkFileId,
        budget: &Arc<SumBudget>,
    ) -> io::Result<ChunkFile> {
        let path = paths::chunk_file(store_dir.dir(), ino);
        let options = OpenOptions { create: true, exclusive: true, ..READ_WRITE };
        let file = match File::open(&path, options).await {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // First, so that no folders are created below an empty mount point.
                store_dir.check()?;
                rt::create_dir_all(&paths::folder(store_dir.dir(), ino)).await?;
                File::open(&path, options).await?
            }
            opened => opened?,
        };
        store_dir.check()?;
        Ok(ChunkFile { is_new: true, ..ChunkFile::new(store_dir, ino, path, file, budget) })
    }

    fn new(
        store_dir: &Arc<StoreDir>,
        ino: ChunkFileId,
        path: PathBuf,
        cached: File,
        budget: &Arc<SumBudget>,
    ) -> ChunkFile {
        ChunkFile {
            ino,
            path,
            sum_path: paths::sum_file(store_dir.dir(), ino),
            store_dir: store_dir.clone(),
            cached,
            direct: OnceLock::new(),
            sum_file: OnceLock::new(),
            is_new: false,
            sums: SumCache::new(budget.clone()),
            ranges: RangeLock::default(),
            write_back: rt::sync::RwLock::new(),
            unsynced: AtomicBool::new(false),
            is_hot: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
            used: AtomicBool::new(true),
            misses: AtomicU32::new(0),
            min_len: AtomicU64::new(0),
            stale_sums: Mutex::new(None),
        }
    }

    /// Returns the descriptor for direct I/O; `None` where the local file system doesn't support
    /// it.
    pub(crate) async fn direct(&self) -> io::Result<Option<&File>> {
        if let Some(file) = self.direct.get() {
            return Ok(file.as_ref());
        }
        let opened = File::open(&self.path, OpenOptions { direct: true, ..READ_WRITE }).await;
        let opened = match self.store_dir.confirm(opened) {
            Ok(file) => Some(file),
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL.number()) => None,
            // Deleted meanwhile; open descriptors stay valid.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        Ok(self.direct.get_or_init(|| opened).as_ref())
    }

    /// Returns the checksum file if it exists.
    pub(crate) async fn sum_file(&self) -> io::Result<Option<&File>> {
        if self.lacks_sum_file() {
            return Ok(None);
        }
        self.open_sum_file(READ_WRITE).await
    }

    /// Returns the checksum file, created if necessary; `None` when the chunk file is deleted. The
    /// caller holds `write_back`.
    pub(crate) async fn sum_file_for_writing(&self) -> io::Result<Option<&File>> {
        if self.deleted.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.open_sum_file(OpenOptions { create: true, truncate: self.is_new, ..READ_WRITE }).await
    }

    async fn open_sum_file(&self, options: OpenOptions) -> io::Result<Option<&File>> {
        if let Some(file) = self.sum_file.get() {
            return Ok(Some(file));
        }
        let opened = absent_as_none(self.store_dir.confirm(File::open(&self.sum_path, options).await))?;
        Ok(opened.map(|file| self.sum_file.get_or_init(|| file)))
    }

    /// Whether it is a new chunk file whose checksum file hasn't been created yet.
    pub(crate) fn lacks_sum_file(&self) -> bool {
        self.is_new && self.sum_file.get().is_none()
    }

    /// Whether closing it now would lose state that is only in memory.
    pub(crate) fn needs_write_back(&self) -> bool {
        self.lacks_sum_file() || self.sums.is_dirty() || self.stale_sums().is_some()
    }

    pub(crate) fn sum_path(&self) -> &Path {
        &self.sum_path
    }

    /// Records that checksums in a range may not match the data because of an unfinished change,
    /// and not because of damage.
    pub(crate) fn mark_sums_stale(&self, range: ByteRange) {
        let mut unsettled = self.stale_sums.lock();
        let hull =
            unsettled.map_or(range, |old| ByteRange::new(old.start.min(range.start), old.end.max(range.end)));
        *unsettled = Some(hull);
    }

    pub(crate) fn stale_sums(&self) -> Option<ByteRange> {
        *self.stale_sums.lock()
    }

    /// Records that checksums in a range match again.
    pub(crate) fn mark_sums_valid(&self, range: ByteRange) {
        let mut unsettled = self.stale_sums.lock();
        if unsettled.is_some_and(|u| range.start <= u.start && u.end <= range.end) {
            *unsettled = None;
        }
    }
}

pub(crate) fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Guards a change of data and checksums: dropped before [`Change::complete`], it records that they
/// may not match.
pub(crate) struct Change<'a> {
    file: &'a ChunkFile,
    range: ByteRange,
    is_complete: bool,
}

impl<'a> Change<'a> {
    pub(crate) fn begin(file: &'a ChunkFile, range: ByteRange) -> Change<'a> {
        Change { file, range, is_complete: false }
    }

    pub(crate) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.file.mark_sums_stale(self.range);
        }
    }
}
