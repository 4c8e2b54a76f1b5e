//! What a test gets to work with.

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

/// Size of the XFS that rigs stand on when asked for; sparse in memory.
const XFS_BASE_BYTES: u64 = 12 << 30;
/// What the shared file system and one test put on a disk; beside the last percent, in which its
/// targets take no new files.
const ROOM_BYTES: u64 = 4 << 30;
/// The log of a service that a test has started.
const LOG: &str = "output";
/// Warnings that are told of each log after a test that fails, the last ones.
const WARNINGS: usize = 5;

/// What is under test.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A weft of this binary, mounted by this transport.
    Weft { binary: PathBuf, transport: Transport },
    /// An ordinary directory: shows what the tests themselves are worth.
    Directory(PathBuf),
}

impl Subject {
    /// For messages.
    pub fn name(&self) -> &str {
        match self {
            Subject::Weft { transport, .. } => transport.name(),
            Subject::Directory(_) => "directory",
        }
    }
}

/// The place of a series of tests: one subject, started once and shared, and a scratch folder
/// outside of it.
pub struct Stage {
    /// What is under test.
    pub subject: Subject,
    /// The long form of every test.
    pub full: bool,
    form: Form,
    // Fields are dropped in this order: what stands on another goes first.
    rig: Mutex<Option<Rig>>,
    disk: Option<Disk>,
    scratch: TempDir,
    /// Folders that were made since the last [`Stage::tidy`].
    made: Mutex<Vec<PathBuf>>,
}

impl Stage {
    /// A stage on which nothing runs yet.
    pub fn new(subject: Subject, base: BaseKind, form: Form) -> TestResult<Stage> {
        let folder = std::env::temp_dir();
        if let Subject::Weft { .. } = subject {
            ensure_room(&folder)?;
        }
        Stage::below(&folder, subject, base, form)
    }

    /// The same, with its folders below this one.
    pub fn below(folder: &Path, subject: Subject, base: BaseKind, form: Form) -> TestResult<Stage> {
        let scratch = readable_temp_dir(folder)?;
        cleanup::hold(Resource::Folder(scratch.path().to_path_buf()));
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

    /// One for measurements of a cluster of this binary, with its folders below this one.
    pub fn on_folder(weft: &Path, folder: &Path) -> TestResult<Stage> {
        let subject = Subject::Weft { binary: weft.to_path_buf(), transport: Transport::Uring };
        Stage::below(folder, subject, BaseKind::Temp, Form::default())
    }

    /// The numbers of the rounds of a test that has so many in its short and in its long form, or
    /// those of them that were asked for. What a round does follows from its number alone, so that
    /// a long form can be run in pieces, and one round again.
    pub fn rounds(&self, (short, long): (u64, u64)) -> RangeInclusive<u64> {
        let all = if self.full { long } else { short };
        let last = self.form.rounds.map_or(all, |rounds| self.form.from + rounds - 1);
        self.form.from..=last
    }

    /// Prints the last warnings of all services, and copies what they have said, and what programs
    /// have seen, to the folder that was named for it.
    pub fn keep(&self, test: &str) -> TestResult {
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
        // A rig is looked at (`is_alive`) before it is used again, so a panic of its last user does
        // no harm.
        self.rig.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fresh folder outside the file system under test; readable for everybody, removed after the
    /// test.
    pub fn scratch(&self, name: &str) -> TestResult<PathBuf> {
        self.fresh(self.scratch.path(), name)
    }

    /// A fresh folder for a rig of a test's own, removed after the test.
    pub fn base(&self, name: &str) -> TestResult<PathBuf> {
        self.fresh(self.bases(), name)
    }

    /// Where the folders of rigs are.
    fn bases(&self) -> &Path {
        self.disk.as_ref().map_or(self.scratch.path(), Disk::path)
    }

    /// A fresh folder that goes with the test.
    fn fresh(&self, parent: &Path, name: &str) -> TestResult<PathBuf> {
        let folder = fresh_folder(parent, name)?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(folder.clone());
        Ok(folder)
    }

    /// Removes the folders of a test that has ended. What is still in use stays until the stage
    /// ends.
    pub fn tidy(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for folder in made {
            if !mounts::any_below(&folder) {
                drop(fs::remove_dir_all(&folder));
            }
        }
    }

    /// A fresh folder on the shared file system under test, which is started if it doesn't run.
    pub fn folder(&self, name: &str) -> TestResult<PathBuf> {
        fresh_folder(&self.root()?, name)
    }

    /// The top folder of the shared file system under test, which is started if it doesn't run.
    pub fn root(&self) -> TestResult<PathBuf> {
        let (binary, transport) = match &self.subject {
            Subject::Directory(path) => return Ok(path.clone()),
            Subject::Weft { binary, transport } => (binary, *transport),
        };
        let mut shared = self.shared();
        if !shared.as_mut().is_some_and(Rig::is_alive) {
            // The old one must be gone from the mount point before another takes it.
            *shared = None;
            let base = fresh_folder(self.bases(), "shared")?;
            *shared = Some(Rig::start(binary, &base, RigOptions::new(transport))?);
        }
        Ok(shared.as_ref().expect("started above").mount())
    }

    /// Stops and starts the shared file system; an ordinary directory has nothing to restart.
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

    /// Ends the shared file system by force, after a test that hung on it.
    pub fn abandon(&self) {
        if let Ok(mut shared) = self.rig.try_lock() {
            *shared = None;
        }
    }

    /// A weft of the test's own, with its folders below a fresh base.
    pub fn start_rig(&self, name: &str, options: RigOptions) -> TestResult<Rig> {
        Rig::start(self.binary()?, &self.base(name)?, options)
    }

    /// The binary under test; skips where an ordinary directory is.
    pub fn binary(&self) -> TestResult<&Path> {
        match &self.subject {
            Subject::Weft { binary, .. } => Ok(binary),
            Subject::Directory(_) => skip("needs a weft"),
        }
    }

    /// The transport under test; an ordinary directory has none and skips.
    pub fn transport(&self) -> TestResult<Transport> {
        match &self.subject {
            Subject::Weft { transport, .. } => Ok(*transport),
            Subject::Directory(_) => skip("needs a weft"),
        }
    }
}

/// Logs of services and histories, wherever they are below a folder, but for what is mounted or
/// stored there.
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

/// The last lines of a log that tell of trouble.
fn warnings(log: &str) -> Vec<&str> {
    let mut lines: Vec<&str> =
        log.lines().filter(|line| line.contains(" WARN ") || line.contains("ERROR ")).collect();
    lines.drain(..lines.len().saturating_sub(WARNINGS));
    lines
}

/// Empties or makes a folder that everybody may enter.
fn fresh_folder(parent: &Path, name: &str) -> TestResult<PathBuf> {
    let path = parent.join(name);
    if mounts::find(&path.join("mnt")).is_some() {
        return Err(format!("{} still holds a mount", path.display()).into());
    }
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).at(path.display()),
        _ => {}
    }
    fs::create_dir_all(&path).at(path.display())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).at(path.display())?;
    Ok(path)
}

/// A temporary folder that programs of other users may enter.
fn readable_temp_dir(parent: &Path) -> TestResult<TempDir> {
    let dir = tempfile::Builder::new().prefix("weft-").tempdir_in(parent).at("a temporary folder")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).at("a temporary folder")?;
    Ok(dir)
}

/// Skips the tests on a disk that is nearly full: its targets take no new files, and each test
/// would fail with a message of its own.
fn ensure_room(folder: &Path) -> TestResult {
    let (free, total) = sys::space(folder).at(folder.display())?;
    let wanted = ROOM_BYTES + total / 100;
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
