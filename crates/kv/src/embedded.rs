//! The default engine: an LSM tree (fjall) in a directory.

use crate::at_rest::sync_records::{self, SyncRecord};
use crate::at_rest::{self, VerifyDepth};
use crate::free_space::{FreeSpace, Measure};
use crate::merge::Merge;
use crate::snapshot::EmbeddedSnapshot;
use crate::verifier::Verifier;
use crate::{Batch, Durability, Engine, KvError, Outcome, Pair, Space};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::HashMap;

/// Bytes of decoded blocks cached in memory.
const BLOCK_CACHE_BYTES: u64 = 128 << 20;

/// Bytes of recent writes in memory before they are sorted into a table. They occupy about four
/// times as much memory as they count. Up to four such memtables wait to be written before fjall
/// throttles writers.
const MEMTABLE_BYTES: u64 = 8 << 20;

/// Bytes of journals on disk; fjall requires at least 64 MiB and rotates its journal at that size.
const JOURNAL_BYTES: u64 = 128 << 20;

/// Threads for flushing and compaction. With two or more, fjall's first worker spins for as long as
/// another one compacts, which costs a whole core.
const WORKER_THREADS: usize = 1;

/// Table files held open.
const OPEN_TABLES: usize = 256;

/// Guarded keys whose values are cached; there are as many as partitions.
const GUARD_CACHE_ENTRIES: usize = 8192;

/// Suffix of fjall's journal files, whose names are ascending numbers.
const JOURNAL_SUFFIX: &str = ".jnl";

/// The file that fjall locks.
const LOCK_FILE: &str = "lock";

/// Number of checks by a close whether recent writes are sorted into tables, and the pause between
/// them: half a second at most.
const FLUSH_CHECKS: usize = 50;
const FLUSH_PAUSE: Duration = Duration::from_millis(10);

/// How often a journal may vanish between being listed and being opened.
const MAX_JOURNAL_RACES: usize = 16;

/// Bytes written to find out whether a failed flush was caused by a full disk.
const SPACE_PROBE_BYTES: usize = 1 << 20;

/// If the tables have at most this many bytes in total, a start reads all of them: about a second's
/// work of a disk. Blocks of larger tables are checked when they are needed, and by every backup,
/// which reads all of them.
pub const VERIFY_AT_START_BYTES: u64 = 1 << 30;

/// Damage that was found, if any.
pub(crate) type Damage = Arc<OnceLock<KvError>>;

/// A store in a directory, for one process at a time.
///
/// A commit passes its journal record to the kernel before it returns, so it survives the death of
/// the process; [`Engine::persist`] syncs it to disk.
pub struct Embedded {
    // Declared first, so that it is closed before the database.
    keyspace: Keyspace,
    database: Database,
    path: PathBuf,
    /// Stored values of guarded keys. Its lock also makes `apply` exclusive.
    guard_cache: Mutex<HashMap<Vec<u8>, Option<Bytes>>>,
    free_space: FreeSpace,
    damage: Damage,
    verifier: Verifier,
    /// The first failed sync. The kernel reports a failed write only once: afterwards it isn't
    /// known what was lost.
    sync_failure: OnceLock<KvError>,
    /// Commits are acknowledged only when they are on disk.
    acknowledges_synced: bool,
    /// A batch with this or a higher sequence number was committed.
    committed: AtomicU64,
    synced: SyncRecord,
}

impl Embedded {
    /// Opens the store in `path`, and creates it when it doesn't exist.
    ///
    /// Errors: [`KvError::Locked`] when another process has it open; [`KvError::Corrupt`] when a
    /// file isn't what was written ([`at_rest`](crate::at_rest)).
    pub fn open(path: &Path) -> Result<Embedded, KvError> {
        Embedded::open_verifying(path, VERIFY_AT_START_BYTES)
    }

    /// Like [`Embedded::open`]. Reads all tables if they have at most `read_bytes` in total, or if
    /// damage was found when the store was last in use.
    pub fn open_verifying(path: &Path, read_bytes: u64) -> Result<Embedded, KvError> {
        if at_rest::engine_exists(path) {
            let is_suspect = at_rest::has_damage_marker(path);
            let depth = if is_suspect { VerifyDepth::Everything } else { VerifyDepth::UpTo(read_bytes) };
            let _lock = lock_exclusively(path)?;
            at_rest::verify(path, depth)?;
            if is_suspect {
                at_rest::clear_damage_marker(path)?;
            }
            sync_records::remove_close_record(path)?;
        }
        let failed = |error| translate(path, error);
        let database = Database::builder(path)
            .cache_size(BLOCK_CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .max_cached_files(Some(OPEN_TABLES))
            .worker_threads(WORKER_THREADS)
            .open()
            .map_err(failed)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let keyspace = database.keyspace("weft", options).map_err(failed)?;
        Ok(Embedded {
            keyspace,
            database,
            path: path.to_path_buf(),
            guard_cache: Mutex::default(),
            free_space: FreeSpace::default(),
            damage: Damage::default(),
            verifier: Verifier::open(path),
            sync_failure: OnceLock::new(),
            acknowledges_synced: false,
            committed: AtomicU64::new(0),
            synced: SyncRecord::open(path),
        })
    }

    /// Returns the bytes that the store occupies on disk.
    pub fn disk_bytes(&self) -> Result<u64, KvError> {
        self.database.disk_space().map_err(|e| self.failed(e))
    }

    /// Sets when users of the store acknowledge a commit.
    pub fn with_durability(self, durability: Durability) -> Embedded {
        Embedded { acknowledges_synced: durability == Durability::Disk, ..self }
    }

    fn sync_or_fail(&self) -> Result<(), KvError> {
        if let Some(error) = self.sync_failure.get() {
            return Err(error.clone());
        }
        self.sync_now().inspect_err(|error| _ = self.sync_failure.set(error.clone()))
    }

    fn sync_now(&self) -> Result<(), KvError> {
        let committed = self.committed.load(Acquire);
        match self.sync_journal() {
            Ok(Some(journal)) => {
                // The kernel reports a failed write-back once. If fjall received the report, it has
                // poisoned itself and returns the error here.
                self.database.persist(PersistMode::Buffer).map_err(|e| self.failed(e))?;
                self.synced.record_sync(&self.path, journal, committed, self.database.seqno());
                Ok(())
            }
            Ok(None) => self.database.persist(PersistMode::SyncData).map_err(|e| self.failed(e)),
            Err(error) => Err(self.failed(fjall::Error::Io(error))),
        }
    }

    /// Records what must exist at the next start. The caller has synced everything, and nothing is
    /// committed meanwhile.
    fn record_closed(&self) {
        // Once recent writes are sorted into a table, fjall removes journals with nothing else a
        // moment later.
        for _ in 0..FLUSH_CHECKS {
            if self.keyspace.sealed_memtable_count() == 0 {
                break;
            }
            std::thread::sleep(FLUSH_PAUSE);
        }
        if self.database.journal_count() > 1 {
            std::thread::sleep(FLUSH_PAUSE);
        }
        if let Err(error) = sync_records::write_close_record(&self.path) {
            tracing::warn!(
                %error,
                "can't record the files of the metadata store: a loss of the end of a journal may go unnoticed"
            );
        }
    }

    fn failed(&self, error: fjall::Error) -> KvError {
        record_damage(&self.damage, &self.path, translate(&self.path, error))
    }

    fn cached_guard(
        &self,
        guarded: &mut HashMap<Vec<u8>, Option<Bytes>>,
        key: &[u8],
    ) -> Result<Option<Bytes>, KvError> {
        if let Some(value) = guarded.get(key) {
            return Ok(value.clone());
        }
        let value = self.get(key)?;
        if guarded.len() >= GUARD_CACHE_ENTRIES {
            guarded.clear();
        }
        guarded.insert(key.to_vec(), value.clone());
        Ok(value)
    }

    /// Returns the active journal: the one with the highest number.
    fn active_journal(&self) -> io::Result<Option<(u64, PathBuf)>> {
        let mut newest = None;
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|n| n.strip_suffix(JOURNAL_SUFFIX)).map(str::parse::<u64>);
            if let Some(Ok(number)) = number {
                newest = newest.max(Some((number, self.path.join(&name))));
            }
        }
        Ok(newest)
    }

    /// Syncs the active journal without fjall's journal lock. fjall itself would hold it for the
    /// milliseconds of the sync, with every commit waiting.
    ///
    /// That suffices because every commit has passed its record to the kernel, and fjall syncs a
    /// journal before it starts the next one. Returns the journal's number; `None` when no journal
    /// was found.
    fn sync_journal(&self) -> io::Result<Option<u64>> {
        for _ in 0..MAX_JOURNAL_RACES {
            let Some((number, journal)) = self.active_journal()? else {
                return Ok(None);
            };
            match fs::File::open(&journal) {
                Ok(file) => return file.sync_data().map(|()| Some(number)),
                // Rotated, flushed to tables and removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Engine for Embedded {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        check_undamaged(&self.damage)?;
        // Copied, because a slice of a block would keep the whole block in memory for as long as a
        // caller caches it.
        let value = self.keyspace.get(key).map_err(|e| self.failed(e))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        check_undamaged(&self.damage)?;
        let pair = |guard: fjall::Guard| {
            let (key, value) = guard.into_inner().map_err(|e| self.failed(e))?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        };
        self.keyspace.range(from..to).take(limit).map(pair).collect()
    }

    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        check_undamaged(&self.damage)?;
        let mut guarded = self.guard_cache.lock();
        let (merge, outcomes) = Merge::decide(batches, |key| self.cached_guard(&mut guarded, key))?;
        if merge.writes().is_empty() {
            return Ok(outcomes);
        }
        if !self.acknowledges_synced {
            self.verifier.clear_synced_mark()?;
        }
        let next = self.database.seqno();
        let mut commit = self.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in merge.writes() {
            match value {
                Some(value) => commit.insert(&self.keyspace, *key, *value),
                None => commit.remove(&self.keyspace, *key),
            }
        }
        commit.commit().map_err(|e| self.failed(e))?;
        self.committed.store(next, Release);
        let length = |(key, value): &(&[u8], Option<&[u8]>)| key.len() + value.map_or(0, <[u8]>::len);
        self.free_space.note_applied(merge.writes().iter().map(length).sum::<usize>() as u64);
        for (key, value) in merge.writes() {
            if let Some(known) = guarded.get_mut(*key) {
                *known = value.map(Bytes::copy_from_slice);
            }
        }
        Ok(outcomes)
    }

    fn snapshot(&self) -> Option<Arc<dyn Engine>> {
        Some(Arc::new(EmbeddedSnapshot::new(
            self.database.snapshot(),
            self.keyspace.clone(),
            self.path.clone(),
            self.damage.clone(),
        )))
    }

    fn has_room(&self) -> bool {
        self.free_space.has_room(rt::monotonic_ns(), || Measure::take(&self.path, self.keyspace.disk_space()))
    }

    fn space(&self) -> Option<Space> {
        Some(Measure::take(&self.path, self.keyspace.disk_space()).ok()?.into())
    }

    fn damage(&self) -> Option<KvError> {
        self.damage.get().cloned()
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn persist(&self) -> Result<(), KvError> {
        self.sync_or_fail()?;
        // Data that the previous process left in memory may have been acknowledged without being on
        // disk.
        if self.acknowledges_synced {
            self.verifier.set_synced_mark();
        }
        Ok(())
    }

    fn verifier(&self) -> u64 {
        self.verifier.number()
    }

    fn sync_for_close(&self) -> Result<(), KvError> {
        // No commit runs meanwhile; a later one removes the marker again.
        let _lock = self.guard_cache.lock();
        self.sync_or_fail()?;
        self.record_closed();
        self.verifier.set_synced_mark();
        Ok(())
    }
}

/// Records the first damage found and reports it to the next start. A damaged engine returns only
/// this error: the extent of the damage isn't known.
pub(crate) fn record_damage(damage: &Damage, path: &Path, error: KvError) -> KvError {
    if matches!(error, KvError::Corrupt { .. }) && damage.set(error.clone()).is_ok() {
        tracing::error!(%error, "the metadata store is damaged and refuses all requests");
        at_rest::record_damage_marker(path, &error);
    }
    error
}

/// Returns an error if damage was found in the engine.
pub(crate) fn check_undamaged(damage: &Damage) -> Result<(), KvError> {
    damage.get().map_or(Ok(()), |error| Err(error.clone()))
}

/// Locks the engine: no other process has it open while the lock is held, so torn journal ends may
/// be truncated.
fn lock_exclusively(path: &Path) -> Result<fs::File, KvError> {
    let lock = path.join(LOCK_FILE);
    let failed =
        |error: io::Error| KvError::Io { path: lock.display().to_string(), cause: error.to_string() };
    let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(KvError::Locked { path: path.display().to_string() }),
        Err(fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

pub(crate) fn translate(path: &Path, error: fjall::Error) -> KvError {
    let name = path.display().to_string();
    match error {
        fjall::Error::Locked => KvError::Locked { path: name },
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            io_failed(name, &error)
        }
        fjall::Error::Poisoned => poisoned(path),
        fjall::Error::Storage(error) => KvError::Corrupt { path: name, cause: format!("{error:?}") },
        error => KvError::Corrupt { path: name, cause: format!("{error:?}") },
    }
}

fn io_failed(path: String, error: &io::Error) -> KvError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => KvError::NoSpace { path },
        _ => KvError::Io { path, cause: error.to_string() },
    }
}

/// fjall doesn't report the cause of a failed background flush. A full disk is the most frequent
/// cause, and one that the administrator can fix, so it is checked.
fn poisoned(path: &Path) -> KvError {
    let probe = path.join("space-probe");
    let written = fs::write(&probe, vec![0; SPACE_PROBE_BYTES]);
    // A probe left behind does no harm: the next one overwrites it.
    let _ = fs::remove_file(&probe);
    match written {
        Err(error) => io_failed(path.display().to_string(), &error),
        Ok(()) => KvError::Io {
            path: path.display().to_string(),
            cause: "an earlier write or flush failed; it accepts no writes until it is reopened".into(),
        },
    }
}
