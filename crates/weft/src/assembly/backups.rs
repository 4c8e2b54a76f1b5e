//! Backups of the metadata: on request, and once a day by the process that owns the store.

use crate::control::{BackupProgress, BackupResult};
use crate::output::os_error;
use backup::{Attached, Chain, Footer, Plan, Progress};
use kv::{KvError, Space, Store};
use mgmt::{Management, StatePaths, Superblock};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use types::{Errno, Error, Result};
use wire::mgmt::{BackupsInfo, StoreInfo};

/// Default number of retained daily backups: a week.
pub const DEFAULT_RETAINED_BACKUPS: u32 = 7;

/// Seconds from one daily backup to the next.
const INTERVAL_S: i64 = 24 * 3600;

/// Seconds from the start of the process to the first backup of all.
const FIRST_BACKUP_DELAY_S: i64 = 60;

/// Seconds until a failed daily backup is tried again.
const RETRY_S: i64 = 3600;

/// Seconds by which a backup's time may be ahead of the clock. The age of one that is further ahead
/// is unknown: the clock was wrong when it was made, or is now. It is ignored while there are
/// others, so that it isn't taken for a recent one.
const MAX_AHEAD_S: i64 = 3600;

/// Interval of checks whether a backup is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);

/// Largest file of the state directory that goes into a backup, in bytes: they are texts of some
/// KiB.
const MAX_ATTACHED_BYTES: u64 = 4 << 20;

/// Makes backups of this process's metadata store.
pub struct Backups {
    store: Arc<dyn Store>,
    superblock: Superblock,
    paths: StatePaths,
    retained: u32,
    started_s: i64,
    /// Locked while a backup is made.
    backup_lock: Mutex<()>,
    progress: Progress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Cause and time of the last daily backup's failure.
    failure: Option<(String, i64)>,
    is_running: bool,
}

impl Backups {
    /// Creates the backups of a store. `retained`: number of daily backups to retain; 0: none are
    /// made.
    pub fn new(
        store: Arc<dyn Store>,
        superblock: &Superblock,
        paths: &StatePaths,
        retained: u32,
    ) -> Arc<Backups> {
        Arc::new(Backups {
            store,
            superblock: superblock.clone(),
            paths: paths.clone(),
            retained,
            started_s: rt::now().secs,
            backup_lock: Mutex::default(),
            progress: Progress::default(),
            state: Mutex::default(),
        })
    }

    /// Makes a backup of the store's current state. `place`: a file that doesn't exist yet, or a
    /// folder in which the backup gets a generated name; by default the state directory's own
    /// folder. With `incremental` the backup is incremental to the newest one in its folder, if
    /// there is one.
    ///
    /// # Errors
    /// `EBUSY` while another backup is made.
    pub fn make(self: &Arc<Self>, place: Option<&Path>, incremental: bool) -> Result<BackupResult> {
        let _guard = match self.backup_lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(Errno::EBUSY, "another metadata backup is running")
                    .hint("try again when it is done"));
            }
        };
        let (folder, file) = self.folder_of(place)?;
        let base = match incremental {
            true => self.newest_chain(&folder)?,
            false => None,
        };
        self.write(&folder, file, base)
    }

    /// Writes a backup on a core of the calling thread, which is no core: it takes long, and
    /// blocks.
    fn write(
        self: &Arc<Self>,
        folder: &Path,
        file: Option<PathBuf>,
        base: Option<Chain>,
    ) -> Result<BackupResult> {
        let created_s = rt::now().secs;
        let id = format!("{:016x}{:016x}", rt::secret_u64(), rt::secret_u64());
        let path = file.unwrap_or_else(|| folder.join(backup::file_name(created_s, &id, base.is_none())));
        let base_path = base.as_ref().map(|base| base.path().display().to_string());
        let plan = Plan {
            path: path.clone(),
            id,
            cluster: self.superblock.uuid.clone(),
            name: self.superblock.name.clone(),
            partitions: self.superblock.partitions,
            created_s,
            version: env!("CARGO_PKG_VERSION").into(),
            base,
            files: Vec::new(),
        };
        let backups = self.clone();
        let written = rt::block_on(async move { backups.write_snapshot(plan).await });
        let footer = written.map_err(|e| os_error("io_uring", &e))??;
        Ok(BackupResult {
            bytes: path.metadata().map_or(0, |meta| meta.len()),
            file: path.display().to_string(),
            base: base_path,
            created_s,
            keys: footer.keys,
            written: footer.puts,
            removed: footer.gone,
        })
    }

    /// Writes a backup of the current state of the store, with the files of the state directory.
    async fn write_snapshot(&self, plan: Plan) -> Result<Footer> {
        let snapshot = self.store.snapshot().await.map_err(snapshot_error)?;
        let plan = Plan { files: attached(&self.paths)?, ..plan };
        self.progress.keys.store(0, Relaxed);
        self.progress.bytes.store(0, Relaxed);
        self.state().is_running = true;
        let written = backup::create(&*snapshot, &plan, &self.progress).await;
        self.state().is_running = false;
        Ok(written?)
    }

    /// Returns the folder of a place, and the file in it if the place names one.
    fn folder_of(&self, place: Option<&Path>) -> Result<(PathBuf, Option<PathBuf>)> {
        let Some(place) = place else {
            let own = self.paths.backups();
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&own)
                .map_err(|e| os_error(format_args!("can't make {}", own.display()), &e))?;
            return Ok((own, None));
        };
        if place.is_dir() {
            return Ok((place.to_path_buf(), None));
        }
        let folder = place.parent().unwrap_or(Path::new("/")).to_path_buf();
        if !folder.is_dir() {
            return Err(Error::new(Errno::ENOENT, format!("{} is not a folder", folder.display()))
                .hint("create it, or give another path"));
        }
        if !place.to_string_lossy().ends_with(backup::SUFFIX) {
            let message =
                format!("{} doesn't end in {}, and isn't a folder", place.display(), backup::SUFFIX);
            return Err(Error::new(Errno::EINVAL, message)
                .hint("backups are found by this suffix: use it, or create the folder"));
        }
        Ok((folder, Some(place.to_path_buf())))
    }

    /// Returns the newest usable backup of this cluster in a folder, with all those it builds on,
    /// as far as a quick check can tell; `None` if there is none.
    fn newest_chain(&self, folder: &Path) -> Result<Option<Chain>> {
        let own = self.plausible_backups(backup::list(folder)?);
        Ok(own.map(|(path, _)| Chain::find(&path)).find_map(|chain| chain.ok()))
    }

    /// Returns the backups of this cluster whose time isn't in the future, newest first.
    fn plausible_backups(&self, entries: Vec<backup::BackupFile>) -> impl Iterator<Item = (PathBuf, i64)> {
        let latest_s = latest_plausible_s();
        let own = backup::newest_first(entries, &self.superblock.uuid, latest_s);
        let made = own.into_iter().map(|(path, head)| (path, head.created_s));
        made.take_while(move |(_, created_s)| *created_s <= latest_s)
    }

    /// Returns the progress of the current backup.
    pub fn progress(&self) -> BackupProgress {
        BackupProgress {
            is_running: self.state().is_running,
            keys: self.progress.keys.load(Relaxed),
            bytes: self.progress.bytes.load(Relaxed),
        }
    }

    /// Registers with management, so that it reports the daily backups and the store's disk usage.
    pub fn register_with(self: &Arc<Self>, management: &Management) {
        let (backups, store) = (self.clone(), self.store.clone());
        management.set_backups(Arc::new(move || backups.info()));
        management.set_store_info(Arc::new(move || store_info(&*store)));
    }

    /// Returns the state of the daily backups.
    pub fn info(&self) -> BackupsInfo {
        let folder = self.paths.backups();
        let newest = self.newest(&folder);
        let age = |(_, created_s): &(PathBuf, i64)| rt::now().secs.saturating_sub(*created_s).max(0) as u64;
        BackupsInfo {
            folder: folder.display().to_string(),
            kept: self.retained,
            age_s: newest.as_ref().map(age),
            newest: newest.map(|(path, _)| path.display().to_string()),
            failure: self.state().failure.as_ref().map(|(cause, _)| cause.clone()),
        }
    }

    /// Returns the newest backup in a folder, and when it was made. A folder that can't be read has
    /// none.
    fn newest(&self, folder: &Path) -> Option<(PathBuf, i64)> {
        self.plausible_backups(backup::list(folder).unwrap_or_default()).next()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the daily backups, each on its own thread. Runs for ever, unless daily backups are
    /// off.
    pub async fn run_daily_backups(self: Arc<Backups>) {
        if self.retained == 0 {
            return;
        }
        loop {
            rt::sleep(CHECK_INTERVAL).await;
            let now_s = rt::now().secs;
            let newest_s = self.newest(&self.paths.backups()).map(|(_, created_s)| created_s);
            let failed_s = self.state().failure.as_ref().map(|(_, failed_s)| *failed_s);
            if !is_due(now_s, self.started_s, newest_s, failed_s) || self.state().is_running {
                continue;
            }
            let backups = self.clone();
            let make = move || backups.run_daily_backup();
            if let Err(error) = std::thread::Builder::new().name("weft-copies".into()).spawn(make) {
                tracing::error!("the daily metadata backup failed: can't start a thread: {error}");
                self.state().failure = Some((error.to_string(), now_s));
            }
        }
    }

    fn run_daily_backup(self: &Arc<Self>) {
        let made = self.make_daily_backup();
        let mut state = self.state();
        match made {
            Ok(made) => {
                tracing::info!(
                    file = made.file,
                    keys = made.keys,
                    bytes = made.bytes,
                    "the daily metadata backup is complete"
                );
                state.failure = None;
            }
            Err(error) => {
                tracing::error!(hint = &*error.hint, "the daily metadata backup failed: {error}");
                state.failure = Some((error.to_string(), rt::now().secs));
            }
        }
    }

    /// Makes a full backup if there is none, or if the chain has as many backups as are retained;
    /// else an incremental one. Then removes those that are too old.
    fn make_daily_backup(self: &Arc<Self>) -> Result<BackupResult> {
        let _guard = self.backup_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, _) = self.folder_of(None)?;
        let base = self.newest_chain(&folder)?.filter(|base| base.header().depth + 1 < self.retained);
        let has_base = base.is_some();
        let made = match self.write(&folder, None, base) {
            Err(error) if has_base => {
                tracing::warn!(%error, "the last daily backup is no usable base; making a full one");
                self.write(&folder, None, None)
            }
            made => made,
        }?;
        for removed in
            backup::prune(&folder, &self.superblock.uuid, self.retained as usize, latest_plausible_s())?
        {
            tracing::info!(file = %removed.display(), "an old metadata backup was removed");
        }
        Ok(made)
    }
}

/// Returns whether a daily backup is due; times are seconds since 1970.
fn is_due(now_s: i64, started_s: i64, newest_s: Option<i64>, failed_s: Option<i64>) -> bool {
    if failed_s.is_some_and(|failed_s| (0..RETRY_S).contains(&(now_s - failed_s))) {
        return false;
    }
    match newest_s {
        Some(newest_s) => now_s - newest_s >= INTERVAL_S,
        // The clock may have been set back since the start.
        None => !(0..FIRST_BACKUP_DELAY_S).contains(&(now_s - started_s)),
    }
}

/// Returns the latest plausible time of a backup by the current clock, in seconds since 1970.
fn latest_plausible_s() -> i64 {
    rt::now().secs.saturating_add(MAX_AHEAD_S)
}

/// Reads the small files that the store needs: identity of the cluster, its authority, paths of its
/// targets.
fn attached(paths: &StatePaths) -> Result<Vec<Attached>> {
    let mut files = Vec::new();
    for path in paths.backup_paths() {
        attach(paths.root(), &path, &mut files)?;
    }
    Ok(files)
}

fn attach(root: &Path, path: &Path, files: &mut Vec<Attached>) -> Result<()> {
    let failed = |e: std::io::Error| os_error(format_args!("can't read {}", path.display()), &e);
    let Ok(meta) = fs::metadata(path) else { return Ok(()) };
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(failed)? {
            attach(root, &entry.map_err(failed)?.path(), files)?;
        }
    } else if meta.len() <= MAX_ATTACHED_BYTES {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let mode = meta.permissions().mode() & 0o777;
        files.push(Attached { name, mode, content: fs::read(path).map_err(failed)? });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}

/// Returns the newest usable backup in a state directory's own folder, and when it was made.
pub fn newest_usable_backup(paths: &StatePaths, cluster: &str) -> Option<(PathBuf, i64)> {
    let own = backup::newest_first(backup::list(&paths.backups()).ok()?, cluster, latest_plausible_s());
    own.into_iter().find_map(|(path, head)| Chain::find(&path).ok().map(|_| (path, head.created_s)))
}

/// Converts the failure of a snapshot.
fn snapshot_error(error: KvError) -> Error {
    match error {
        KvError::NoSnapshot { .. } => Error::new(Errno::EOPNOTSUPP, error.to_string()),
        error => backup::Error::from(error).into(),
    }
}

/// Returns the metadata store's disk usage.
fn store_info(store: &dyn Store) -> Option<StoreInfo> {
    let Space { used, capacity, free, needed } = store.space()?;
    Some(StoreInfo { path: store.location(), used, capacity, free, needed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{Durability, Writer};

    #[test]
    fn a_backup_is_made_once_a_day() {
        let day = INTERVAL_S;
        for (now_s, newest_s, failed_s, expected) in [
            (59, None, None, false),
            (60, None, None, true),
            (60, None, Some(50), false),
            (day, Some(1), None, false),
            (day + 1, Some(1), None, true),
            (day + 1, Some(1), Some(day), false),
            (day + 1 + RETRY_S, Some(1), Some(day), true),
            // The clock was set back.
            (100, Some(200), None, false),
            (-1, None, None, true),
        ] {
            assert_eq!(is_due(now_s, 0, newest_s, failed_s), expected, "{now_s} {newest_s:?} {failed_s:?}");
        }
    }

    /// The clock was ahead when the backup was made, and has been corrected since.
    #[test]
    fn a_backup_with_a_future_time_hides_no_others_and_is_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, superblock) = (StatePaths::new(dir.path()), Superblock::random("test"));
        let engine = Arc::new(kv::Embedded::open(&dir.path().join("meta")).unwrap());
        let backups =
            Backups::new(Arc::new(Writer::new(engine, Durability::Process)), &superblock, &paths, 2);
        let (folder, _) = backups.folder_of(None).unwrap();
        let ahead = Plan {
            path: folder.join(format!("ahead{}", backup::SUFFIX)),
            id: "a".repeat(32),
            cluster: superblock.uuid.clone(),
            name: superblock.name.clone(),
            partitions: superblock.partitions,
            created_s: rt::now().secs + 365 * INTERVAL_S,
            version: "1".into(),
            base: None,
            files: Vec::new(),
        };
        let (writing, plan) = (backups.clone(), ahead.clone());
        rt::block_on(async move { writing.write_snapshot(plan).await }).unwrap().unwrap();
        assert_eq!((backups.info().newest, backups.info().age_s), (None, None));
        assert_eq!(
            newest_usable_backup(&paths, &superblock.uuid),
            Some((ahead.path.clone(), ahead.created_s))
        );
        let first = backups.make_daily_backup().unwrap();
        assert_eq!((first.base, backups.info().newest), (None, Some(first.file.clone())));
        assert!(ahead.path.exists(), "there is room for it yet");
        assert!(!is_due(rt::now().secs, 0, backups.newest(&folder).map(|(_, created_s)| created_s), None));
        let second = backups.make_daily_backup().unwrap();
        assert_eq!(
            (second.base.as_ref(), backups.info().newest),
            (Some(&first.file), Some(second.file.clone()))
        );
        assert!(!ahead.path.exists() && Path::new(&first.file).exists());
    }
}
