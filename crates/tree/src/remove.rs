//! Removes trees, as `rm -r` does.
//!
//! Other than GNU rm, it never enters a mount point, and it asks no questions.

use crate::walk::{Dir, Mounts, Next, Position, Visitor, attributes, walk};
use crate::{Failure, Job};
use rustix::fs::{AtFlags, CWD, FileType, StatxAttributes, unlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What has been removed so far.
#[derive(Default, Debug)]
pub struct RemoveCounts {
    /// Names of files, symlinks and everything else that isn't a directory.
    pub files: AtomicU64,
    pub directories: AtomicU64,
    /// Files and directories that could not be removed; a directory that isn't empty because of one
    /// of them isn't counted.
    pub failed: AtomicU64,
}

impl RemoveCounts {
    /// The number of names that have been removed.
    pub fn removed(&self) -> u64 {
        self.files.load(Ordering::Relaxed) + self.directories.load(Ordering::Relaxed)
    }
}

/// What is removed.
#[derive(Clone, Copy, Default, Debug)]
pub struct RemoveOptions {
    /// Directories, and everything below them.
    pub recursive: bool,
    /// A path that doesn't exist is no failure.
    pub force: bool,
}

/// Why a path must not be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The path is empty or has a NUL byte.
    NoPath,
    /// Its last component is `.` or `..`.
    DotDirectory,
    /// It is the root directory.
    RootDirectory,
    /// It is a mount point.
    MountPoint,
}

/// Returns why `path` must not be removed, if so. Nothing is changed.
pub fn removal_refusal(path: &Path) -> Option<Refusal> {
    let bytes = without_slashes(path);
    let Ok(name) = CString::new(bytes) else { return Some(Refusal::NoPath) };
    if path.as_os_str().is_empty() {
        return Some(Refusal::NoPath);
    }
    if matches!(bytes.rsplit(|byte| *byte == b'/').next(), Some(b"." | b"..")) {
        return Some(Refusal::DotDirectory);
    }
    // A path that doesn't exist is reported when it is removed.
    let found = attributes(CWD, if bytes.is_empty() { c"/" } else { &name }).ok()?;
    let root = attributes(CWD, c"/").ok()?;
    let id = |stat: &rustix::fs::Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
    if id(&found) == id(&root) {
        return Some(Refusal::RootDirectory);
    }
    let is_mount_point = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    is_mount_point.then_some(Refusal::MountPoint)
}

/// Removes `path`, after [`removal_refusal`]. With `recursive`, directories and what is below them.
pub fn remove(path: &Path, options: RemoveOptions, counts: &RemoveCounts, job: Job) {
    let removal = Removal { options, counts, job };
    if let Err(cause) = removal.remove_named(path) {
        removal.fail(None, path.to_path_buf(), cause.into());
    }
}

/// The bytes of a path without the slashes at its end.
fn without_slashes(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &bytes[..end]
}

struct Removal<'a> {
    options: RemoveOptions,
    counts: &'a RemoveCounts,
    job: Job<'a>,
}

/// Whether something in a directory is left, so that it can't be removed itself.
struct IsLeft(AtomicBool);

impl Removal<'_> {
    fn remove_named(&self, path: &Path) -> Result<(), Errno> {
        let bytes = without_slashes(path);
        let name = CString::new(bytes).map_err(|_| Errno::INVAL)?;
        let found = match attributes(CWD, &name) {
            Err(Errno::NOENT) if self.options.force => return Ok(()),
            found => found?,
        };
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        if kind.is_dir() && !self.options.recursive {
            return Err(Errno::ISDIR);
        }
        if !kind.is_dir() {
            let has_slash = bytes.len() < path.as_os_str().len();
            return if has_slash { Err(Errno::NOTDIR) } else { self.unlink(CWD, &name) };
        }
        walk(name, Mounts::Refuse, self, self.job.stop);
        Ok(())
    }

    fn unlink(&self, at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        match unlinkat(at, name, AtFlags::empty()) {
            Ok(()) => self.counts.files.fetch_add(1, Ordering::Relaxed),
            // Another process removed it.
            Err(Errno::NOENT) if self.options.force => 0,
            Err(cause) => return Err(cause),
        };
        Ok(())
    }

    fn rmdir(&self, at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        match unlinkat(at, name, AtFlags::REMOVEDIR) {
            Ok(()) => self.counts.directories.fetch_add(1, Ordering::Relaxed),
            Err(Errno::NOENT) if self.options.force => 0,
            Err(cause) => return Err(cause),
        };
        Ok(())
    }

    /// Reports a failure in the directory `above`, whose ancestors can't be removed either.
    fn fail(&self, above: Option<&Dir<IsLeft>>, path: PathBuf, cause: io::Error) {
        let mut above = above;
        while let Some(dir) = above {
            if dir.state.0.swap(true, Ordering::Relaxed) {
                break;
            }
            above = dir.parent();
        }
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        (self.job.report)(Failure { path, what: "can't remove", cause });
    }
}

impl Visitor for Removal<'_> {
    type State = IsLeft;

    fn enter(&self, _: &Position<'_, IsLeft>, _: BorrowedFd<'_>) -> Option<IsLeft> {
        Some(IsLeft(AtomicBool::new(false)))
    }

    fn not_opened(&self, dir: &Position<'_, IsLeft>, cause: Errno) {
        let at = dir.parent.map_or(CWD, |parent| parent.fd());
        let removed = match cause {
            // Another process replaced it by something else, which is removed as what it is.
            Errno::NOTDIR | Errno::LOOP => self.unlink(at, dir.name),
            Errno::XDEV => Err(cause),
            // A directory that can't be read may be empty.
            _ => self.rmdir(at, dir.name),
        };
        let cause = match removed {
            Ok(()) => return,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => cause,
            Err(cause) => cause,
        };
        let cause = match cause {
            Errno::XDEV => {
                io::Error::new(io::ErrorKind::CrossesDevices, "another file system is mounted there")
            }
            cause => cause.into(),
        };
        self.fail(dir.parent.map(|parent| &**parent), dir.path(), cause);
    }

    fn entry(&self, dir: &Dir<IsLeft>, name: &CStr, kind: FileType) -> Next {
        if kind.is_dir() {
            return Next::Descend;
        }
        match self.unlink(dir.fd(), name) {
            Ok(()) => Next::Done,
            Err(Errno::ISDIR) => Next::Descend,
            Err(cause) => {
                self.fail(Some(dir), dir.path_of(name), cause.into());
                Next::Done
            }
        }
    }

    fn not_read(&self, dir: &Dir<IsLeft>, cause: Errno) {
        self.fail(Some(dir), dir.path(), cause.into());
    }

    fn leave(&self, dir: &Dir<IsLeft>) {
        if dir.state.0.load(Ordering::Relaxed) {
            return;
        }
        let (at, name) = dir.place();
        if let Err(cause) = self.rmdir(at, name) {
            self.fail(dir.parent(), dir.path(), cause.into());
        }
    }
}
