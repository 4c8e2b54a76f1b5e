//! The default engine: an LSM tree (fjall) in a directory.

use crate::at_rest::required::{self, Synced};
use crate::at_rest::{self, Depth};
use crate::frozen::Frozen;
use crate::merge::Merge;
use crate::room::{Measure, Room};
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

/// Bytes of decoded blocks kept in memory.
const BLOCK_CACHE_BYTES: u64 = 128 << 20;

/// Bytes of recent writes kept in memory before they are sorted into a table. They take about four
/// times as much there as they count, and up to four such memtables wait to be written before fjall
/// holds writers back.
const MEMTABLE_BYTES: u64 = 8 << 20;

/// Bytes of journals on disk; fjall asks for at least 64 MiB and rotates its journal at that size.
const JOURNAL_BYTES: u64 = 128 << 20;

/// Threads for flushing and compaction. With two or more, fjall's first worker spins for as long as
/// another one compacts, which costs a whole core.
const WORKER_THREADS: usize = 1;

/// Table files held open.
const OPEN_TABLES: usize = 256;

/// Guarded keys whose values are kept; there are as many as partitions.
const GUARD_CACHE_ENTRIES: usize = 8192;

/// Ending of fjall's journal files, whose names are their ascending numbers.
const JOURNAL_SUFFIX: &str = ".jnl";

/// The file that fjall locks.
const LOCK_FILE: &str = "lock";

/// How often, and after what rest, a close looks whether recent writes are sorted into tables: half
/// a second at most.
const FLUSH_LOOKS: usize = 50;
const FLUSH_REST: Duration = Duration::from_millis(10);

/// How often a journal may vanish between being listed and being opened.
const JOURNAL_RACES: usize = 16;

/// Bytes written to find out whether a failed flush was for want of space.
const SPACE_PROBE_BYTES: usize = 1 << 20;

/// Tables of up to so many bytes together are all read at a start: about a second's work of a disk.
/// Blocks of larger ones are checked when they are needed, and by every backup, which reads all of
/// them.
pub const READ_AT_START_BYTES: u64 = 1 << 30;

/// Damage that was met, if any.
pub(crate) type Damage = Arc<OnceLock<KvError>>;

/// A store in a directory, one process at a time.
///
/// A commit hands its journal record to the kernel before it returns, so that it survives the death
/// of the process; [`Engine::persist`] puts it on disk.
pub struct Embedded {
    // Declared first, so that it is closed before the database.
    keyspace: Keyspace,
    database: Database,
    path: PathBuf,
    /// Values of guarded keys as the store has them. Its lock also makes `apply` exclusive.
    guarded: Mutex<HashMap<Vec<u8>, Option<Bytes>>>,
    room: Room,
    damage: Damage,
    verifier: Verifier,
    /// What the first failure on the way to the disk was. The kernel tells of a write that failed
    /// once: what was lost isn't known any more afterwards.
    unsynced: OnceLock<KvError>,
    /// Nothing is acknowledged before it is on disk.
    is_strict: bool,
    /// A batch with this number or a higher one was committed.
    committed: AtomicU64,
    synced: Synced,
}

impl Embedded {
    /// Opens the store in `path`, making it when it is not there.
    ///
    /// Errors: [`KvError::Locked`] when another process has it open; [`KvError::Corrupt`] when a
    /// file isn't what was written ([`at_rest`](crate::at_rest)).
    pub fn open(path: &Path) -> Result<Embedded, KvError> {
        Embedded::open_after_reading(path, READ_AT_START_BYTES)
    }

    /// The same; tables are all read if they have at most so many bytes together, or if damage was
    /// met when the store was in use last.
    pub fn open_after_reading(path: &Path, read_bytes: u64) -> Result<Embedded, KvError> {
        if at_rest::is_there(path) {
            let is_suspect = at_rest::is_suspect(path);
            let depth = if is_suspect { Depth::Everything } else { Depth::UpTo(read_bytes) };
            let _alone = alone(path)?;
            at_rest::examine(path, depth)?;
            if is_suspect {
                at_rest::acquit(path)?;
            }
            required::forget_closed(path)?;
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
            guarded: Mutex::default(),
            room: Room::default(),
            damage: Damage::default(),
            verifier: Verifier::open(path),
            unsynced: OnceLock::new(),
            is_strict: false,
            committed: AtomicU64::new(0),
            synced: Synced::open(path),
        })
    }

    /// Bytes that the store takes on disk.
    pub fn disk_bytes(&self) -> Result<u64, KvError> {
        self.database.disk_space().map_err(|e| self.failed(e))
    }

    /// When those who use it take a commit for done.
    pub fn acknowledging(self, durability: Durability) -> Embedded {
        Embedded { is_strict: durability == Durability::Disk, ..self }
    }

    fn put_on_disk(&self) -> Result<(), KvError> {
        if let Some(error) = self.unsynced.get() {
            return Err(error.clone());
        }
        self.sync_now().inspect_err(|error| _ = self.unsynced.set(error.clone()))
    }

    fn sync_now(&self) -> Result<(), KvError> {
        let committed = self.committed.load(Acquire);
        match self.sync_journal() {
            Ok(Some(journal)) => {
                // The kernel tells a failed write-back once. If fjall was told, it has poisoned
                // itself, and says so here.
                self.database.persist(PersistMode::Buffer).map_err(|e| self.failed(e))?;
                self.synced.note(&self.path, journal, committed, self.database.seqno());
                Ok(())
            }
            Ok(None) => self.database.persist(PersistMode::SyncData).map_err(|e| self.failed(e)),
            Err(error) => Err(self.failed(fjall::Error::Io(error))),
        }
    }

    /// Notes what has to be there at the next start. Everything is on disk, and nothing is
    /// committed meanwhile.
    fn note_closed(&self) {
        // When recent writes are sorted into a table, the journals that hold nothing else go a
        // moment later.
        for _ in 0..FLUSH_LOOKS {
            if self.keyspace.sealed_memtable_count() == 0 {
                break;
            }
            std::thread::sleep(FLUSH_REST);
        }
        if self.database.journal_count() > 1 {
            std::thread::sleep(FLUSH_REST);
        }
        if let Err(error) = required::note_closed(&self.path) {
            tracing::warn!(
                %error,
                "can't note what the metadata store consists of: a loss of the end of a journal may go unnoticed"
            );
        }
    }

    fn failed(&self, error: fjall::Error) -> KvError {
        noted(&self.damage, &self.path, translate(&self.path, error))
    }

    fn stored_guard(
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

    /// The journal that is being written: the one with the highest number.
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

    /// Puts the active journal on disk without fjall's journal lock, which fjall itself would hold
    /// for the milliseconds that it takes, with every commit waiting behind it.
    ///
    /// Enough, because every commit has handed its record to the kernel, and fjall puts a journal
    /// on disk before it starts the next one. The journal's number; `None` when no journal could be
    /// found.
    fn sync_journal(&self) -> io::Result<Option<u64>> {
        for _ in 0..JOURNAL_RACES {
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
        sound(&self.damage)?;
        // Copied, because a slice of a block would keep the whole block in memory for as long as a
        // caller caches it.
        let value = self.keyspace.get(key).map_err(|e| self.failed(e))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        sound(&self.damage)?;
        let pair = |guard: fjall::Guard| {
            let (key, value) = guard.into_inner().map_err(|e| self.failed(e))?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        };
        self.keyspace.range(from..to).take(limit).map(pair).collect()
    }

    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        sound(&self.damage)?;
        let mut guarded = self.guarded.lock();
        let (merge, outcomes) = Merge::decide(batches, |key| self.stored_guard(&mut guarded, key))?;
        if merge.writes().is_empty() {
            return Ok(outcomes);
        }
        if !self.is_strict {
            self.verifier.unsettle()?;
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
        self.room.note_applied(merge.writes().iter().map(length).sum::<usize>() as u64);
        for (key, value) in merge.writes() {
            if let Some(known) = guarded.get_mut(*key) {
                *known = value.map(Bytes::copy_from_slice);
            }
        }
        Ok(outcomes)
    }

    fn snapshot(&self) -> Option<Arc<dyn Engine>> {
        Some(Arc::new(Frozen::new(
            self.database.snapshot(),
            self.keyspace.clone(),
            self.path.clone(),
            self.damage.clone(),
        )))
    }

    fn has_room(&self) -> bool {
        self.room.is_enough(rt::monotonic_ns(), || Measure::take(&self.path, self.keyspace.disk_space()))
    }

    fn space(&self) -> Option<Space> {
        Some(Measure::take(&self.path, self.keyspace.disk_space()).ok()?.into())
    }

    fn damage(&self) -> Option<KvError> {
        self.damage.get().cloned()
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn persist(&self) -> Result<(), KvError> {
        self.put_on_disk()?;
        // What the process before had left in memory may have been acknowledged without being on
        // disk.
        if self.is_strict {
            self.verifier.settle();
        }
        Ok(())
    }

    fn verifier(&self) -> u64 {
        self.verifier.number()
    }

    fn settle(&self) -> Result<(), KvError> {
        // Nobody commits meanwhile; who does so later takes the mark away again.
        let _alone = self.guarded.lock();
        self.put_on_disk()?;
        self.note_closed();
        self.verifier.settle();
        Ok(())
    }
}

/// Keeps the first damage that is met, and lets the next start know of it. What has met damage once
/// answers nothing any more: what else is wrong isn't known.
pub(crate) fn noted(damage: &Damage, path: &Path, error: KvError) -> KvError {
    if matches!(error, KvError::Corrupt { .. }) && damage.set(error.clone()).is_ok() {
        tracing::error!(%error, "the metadata store is damaged, and serves nothing any more");
        at_rest::suspect(path, &error);
    }
    error
}

/// Refuses an engine in which damage was met.
pub(crate) fn sound(damage: &Damage) -> Result<(), KvError> {
    damage.get().map_or(Ok(()), |error| Err(error.clone()))
}

/// Nobody else has the engine open as long as this is held: what is torn may be cut.
fn alone(path: &Path) -> Result<fs::File, KvError> {
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

/// fjall doesn't keep the cause of a failed background flush. A full device is the usual one, and
/// the one that the reader can do something about, so it is asked for.
fn poisoned(path: &Path) -> KvError {
    let probe = path.join("space-probe");
    let written = fs::write(&probe, vec![0; SPACE_PROBE_BYTES]);
    // A probe that stays behind does no harm: it is overwritten by the next one.
    let _ = fs::remove_file(&probe);
    match written {
        Err(error) => io_failed(path.display().to_string(), &error),
        Ok(()) => KvError::Io {
            path: path.display().to_string(),
            cause: "an earlier write or flush failed; nothing is written until it is opened again".into(),
        },
    }
}
