//! The environment of tests.

use super::cleanup::{self, Resource};
use super::disk::{Disk, DiskKind};
use super::outcome::{At, TestResult, skip};
use super::rig::{Rig, RigOptions, Transport};
use super::{BaseKind, Form, mounts};
use crate::sys;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// Size of the XFS below rigs if requested; sparse in memory.
const XFS_BASE_BYTES: u64 = 12 << 30;
/// Space that the shared file system and one test use on a disk, in addition to the last percent,
/// in which targets accept no new files.
const REQUIRED_BYTES: u64 = 4 << 30;
/// Name of the log of a service that a test has started.
const LOG: &str = "output";
/// Maximum number of warnings shown per log after a failed test; the last ones.
const WARNINGS: usize = 5;

/// The system under test.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A weft of this binary, mounted with this transport.
    Weft { binary: PathBuf, transport: Transport },
    /// An ordinary directory, which verifies the tests themselves.
    Directory(PathBuf),
}

impl Subject {
    /// Returns its name for messages.
    pub fn name(&self) -> &str {
        match self {
            Subject::Weft { transport, .. } => transport.name(),
            Subject::Directory(_) => "directory",
        }
    }
}

/// The environment of a series of tests: one subject, started once and shared, and a scratch folder
/// outside of it.
pub struct Stage {
    /// The system under test.
    pub subject: Subject,
    /// Whether tests run in their long form.
    pub full: bool,
    form: Form,
    // Fields are dropped in this order: dependents first.
    rig: Mutex<Option<Rig>>,
    disk: Option<Disk>,
    scratch: TempDir,
    /// Folders created since the last [`Stage::remove_test_folders`].
    made: Mutex<Vec<PathBuf>>,
}

impl Stage {
    /// Creates a stage without running services.
    pub fn new(subject: Subject, base: BaseKind, form: Form) -> TestResult<Stage> {
        let folder = std::env::temp_dir();
        if let Subject::Weft { .. } = subject {
            ensure_space(&folder)?;
        }
        Stage::below(&folder, subject, base, form)
    }

    /// The same, with its folders below `folder`.
    pub fn below(folder: &Path, subject: Subject, base: BaseKind, form: Form) -> TestResult<Stage> {
        let scratch = readable_temp_dir(folder)?;
        cleanup::register(Resource::Folder(scratch.path().to_path_buf()));
        let disk = match (base, &subject) {
            (BaseKind::Xfs, Subject::Weft { .. }) => {
                Some(Disk::new(scratch.path(), "base", DiskKind::Xfs, XFS_BASE_BYTES)?)
            }
            _ => None,
        };
        Ok(Stage {
            subject,
            full: form.full,
            form,
            rig: Mutex::new(None),
            disk,
            scratch,
            made: Mutex::default(),
        })
    }

    /// Creates a stage for measurements of a cluster of this binary, with its folders below
    /// `folder`.
    pub fn on_folder(weft: &Path, folder: &Path) -> TestResult<Stage> {
        let subject = Subject::Weft { binary: weft.to_path_buf(), transport: Transport::Uring };
        Stage::below(folder, subject, BaseKind::Temp, Form::default())
    }

    /// Returns the numbers of a test's rounds in its short or long form, or the requested ones. A
    /// round depends only on its number, so a long form can run in parts, and a single round can be
    /// repeated.
    pub fn rounds(&self, (short, long): (u64, u64)) -> RangeInclusive<u64> {
        let all = if self.full { long } else { short };
        let last = self.form.rounds.map_or(all, |rounds| self.form.from + rounds - 1);
        self.form.from..=last
    }

    /// Prints the last warnings of all services, and copies logs and histories to the folder
    /// requested for them.
    pub fn save_evidence(&self, test: &str) -> TestResult {
        let base = self.scratch.path();
        let mut found = Vec::new();
        evidence(base, &mut found)?;
        for path in found.iter().filter(|path| path.ends_with(LOG)) {
            let log = fs::read_to_string(path).unwrap_or_default();
            let name = path.strip_prefix(base).unwrap_or(path);
            warnings(&log).iter().for_each(|line| println!("    {}: {line}", name.display()));
        }
        let Some(keep) = &self.form.keep else { return Ok(()) };
        let into = keep.join(format!("{test}-{}-{}", std::process::id(), self.form.from));
        for path in &found {
            let place = into.join(path.strip_prefix(base).unwrap_or(path));
            fs::create_dir_all(place.parent().unwrap_or(&into)).at(into.display())?;
            fs::copy(path, &place).at(place.display())?;
        }
        println!("e2e {test}: logs and histories are in {}", into.display());
        Ok(())
    }

    fn shared(&self) -> MutexGuard<'_, Option<Rig>> {
        // A rig is checked (`is_alive`) before each use, so a panic of its last user is harmless.
        self.rig.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an empty folder outside the file system under test, readable by all users, and
    /// removed after the test.
    pub fn scratch(&self, name: &str) -> TestResult<PathBuf> {
        self.fresh(self.scratch.path(), name)
    }

    /// Creates an empty folder for a test's own rig, removed after the test.
    pub fn base(&self, name: &str) -> TestResult<PathBuf> {
        self.fresh(self.bases(), name)
    }

    /// Returns the folder that contains the folders of rigs.
    fn bases(&self) -> &Path {
        self.disk.as_ref().map_or(self.scratch.path(), Disk::path)
    }

    /// Creates an empty folder that is removed after the test.
    fn fresh(&self, parent: &Path, name: &str) -> TestResult<PathBuf> {
        let folder = fresh_folder(parent, name)?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(folder.clone());
        Ok(folder)
    }

    /// Removes the folders of a finished test. Folders in use remain until the stage ends.
    pub fn remove_test_folders(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for folder in made {
            if !mounts::any_below(&folder) {
                drop(fs::remove_dir_all(&folder));
            }
        }
    }

    /// Creates an empty folder on the shared file system under test, which is started if necessary.
    pub fn folder(&self, name: &str) -> TestResult<PathBuf> {
        fresh_folder(&self.root()?, name)
    }

    /// Returns the root folder of the shared file system under test, which is started if necessary.
    pub fn root(&self) -> TestResult<PathBuf> {
        let (binary, transport) = match &self.subject {
            Subject::Directory(path) => return Ok(path.clone()),
            Subject::Weft { binary, transport } => (binary, *transport),
        };
        let mut shared = self.shared();
        if !shared.as_mut().is_some_and(Rig::is_alive) {
            // The old one must have left the mount point before a new one uses it.
            *shared = None;
            let base = fresh_folder(self.bases(), "shared")?;
            *shared = Some(Rig::start(binary, &base, RigOptions::new(transport))?);
        }
        Ok(shared.as_ref().expect("started above").mount())
    }

    /// Restarts the shared file system; does nothing for an ordinary directory.
    pub fn restart(&self) -> TestResult {
        match self.shared().as_mut() {
            Some(rig) => rig.restart(),
            None => Ok(()),
        }
    }

    /// Stops the shared file system and checks it.
    pub fn close(&self) -> TestResult {
        let Some(mut rig) = self.shared().take() else { return skip("nothing was mounted") };
        rig.down()?;
        rig.fsck()
    }

    /// Kills the shared file system after a test that hung on it.
    pub fn kill_shared(&self) {
        if let Ok(mut shared) = self.rig.try_lock() {
            *shared = None;
        }
    }

    /// Starts a weft for one test, with its folders below a new base.
    pub fn start_rig(&self, name: &str, options: RigOptions) -> TestResult<Rig> {
        Rig::start(self.binary()?, &self.base(name)?, options)
    }

    /// Returns the binary under test; skips the test on an ordinary directory.
    pub fn binary(&self) -> TestResult<&Path> {
        match &self.subject {
            Subject::Weft { binary, .. } => Ok(binary),
            Subject::Directory(_) => skip("needs a weft"),
        }
    }

    /// Returns the transport under test; skips the test on an ordinary directory.
    pub fn transport(&self) -> TestResult<Transport> {
        match &self.subject {
            Subject::Weft { transport, .. } => Ok(*transport),
            Subject::Directory(_) => skip("needs a weft"),
        }
    }
}

/// Collects logs of services and histories anywhere below a folder, except in mounts and targets.
fn evidence(folder: &Path, found: &mut Vec<PathBuf>) -> TestResult {
    for entry in fs::read_dir(folder).at(folder.display())?.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && !["mnt", "state", "target"].contains(&name.as_str()) {
            evidence(&path, found)?;
        } else if !is_folder && (name == LOG || name.ends_with(".jsonl")) {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the last lines of a log that contain warnings or errors.
fn warnings(log: &str) -> Vec<&str> {
    let mut lines: Vec<&str> =
        log.lines().filter(|line| line.contains(" WARN ") || line.contains("ERROR ")).collect();
    lines.drain(..lines.len().saturating_sub(WARNINGS));
    lines
}

/// Empties or creates a folder that all users may enter.
fn fresh_folder(parent: &Path, name: &str) -> TestResult<PathBuf> {
    let path = parent.join(name);
    if mounts::find(&path.join("mnt")).is_some() {
        return Err(format!("{} still contains a mount", path.display()).into());
    }
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).at(path.display()),
        _ => {}
    }
    fs::create_dir_all(&path).at(path.display())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).at(path.display())?;
    Ok(path)
}

/// Creates a temporary folder that other users may enter.
fn readable_temp_dir(parent: &Path) -> TestResult<TempDir> {
    let dir = tempfile::Builder::new().prefix("weft-").tempdir_in(parent).at("a temporary folder")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).at("a temporary folder")?;
    Ok(dir)
}

/// Skips the tests on a nearly full disk: its targets accept no new files, so each test would fail
/// with a different message.
fn ensure_space(folder: &Path) -> TestResult {
    let (free, total) = sys::space(folder).at(folder.display())?;
    let wanted = REQUIRED_BYTES + total / 100;
    if free >= wanted {
        return Ok(());
    }
    skip(format!(
        "{} has {} MiB free, and a test needs {} MiB; hint: set TMPDIR to a folder with more room",
        folder.display(),
        free >> 20,
        wanted >> 20
    ))
}
