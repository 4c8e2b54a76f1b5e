//! Lists trees: the paths of files with their attributes, as `find` does.

use crate::walk::{Dir, Mounts, Next, Position, Visitor, attributes, walk};
use crate::{Failure, Job};
use rustix::fs::{CWD, FileType, Statx, readlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file or directory that a listing has found.
pub struct Found<'a> {
    /// Its name, without the path; that of a named path is its last component.
    pub name: &'a [u8],
    /// What it is.
    pub kind: FileType,
    /// Levels below the path that the caller named.
    pub depth: usize,
    at: BorrowedFd<'a>,
    entry: &'a CStr,
    path: &'a dyn Fn() -> PathBuf,
}

impl Found<'_> {
    /// The path, beginning with the path that the caller named.
    pub fn path(&self) -> PathBuf {
        (self.path)()
    }

    /// Its attributes, those of the symlink itself if it is one.
    pub fn attributes(&self) -> Result<Statx, Errno> {
        attributes(self.at, self.entry)
    }

    /// The target of a symlink.
    pub fn target(&self) -> Result<CString, Errno> {
        readlinkat(self.at, self.entry, Vec::new())
    }
}

/// What is listed.
#[derive(Clone, Copy, Default, Debug)]
pub struct ListOptions {
    /// Don't enter directories on other file systems.
    pub one_file_system: bool,
    /// Deepest level, where the named path is level 0.
    pub max_depth: Option<usize>,
}

/// Gets each file that is found, from any thread.
pub type Show<'a> = dyn Fn(&Found<'_>) -> Result<(), Errno> + Sync + 'a;

/// Lists everything at and below `path`. A directory comes before what is in it.
pub fn list(path: &Path, options: ListOptions, files: &AtomicU64, show: &Show<'_>, job: Job) {
    let listing = Listing { options, files, show, job };
    if let Err(cause) = listing.list_named(path) {
        listing.fail(path.to_path_buf(), cause);
    }
}

struct Listing<'a> {
    options: ListOptions,
    files: &'a AtomicU64,
    show: &'a Show<'a>,
    job: Job<'a>,
}

/// State of a directory.
struct Level {
    depth: usize,
    device: (u32, u32),
}

impl Listing<'_> {
    fn list_named(&self, path: &Path) -> Result<(), Errno> {
        let bytes = path.as_os_str().as_bytes();
        let entry = CString::new(bytes).map_err(|_| Errno::INVAL)?;
        let kind = FileType::from_raw_mode(attributes(CWD, &entry)?.stx_mode.into());
        let is_open = kind.is_dir() && self.options.max_depth != Some(0);
        let name = path.file_name().map_or(bytes, |name| name.as_bytes());
        let path = || path.to_path_buf();
        self.show(&Found { name, kind, depth: 0, at: CWD, entry: &entry, path: &path });
        if is_open {
            walk(entry.clone(), Mounts::Cross, self, self.job.stop);
        }
        Ok(())
    }

    fn show(&self, found: &Found<'_>) {
        self.files.fetch_add(1, Ordering::Relaxed);
        if let Err(cause) = (self.show)(found) {
            self.fail(found.path(), cause);
        }
    }

    fn fail(&self, path: PathBuf, cause: Errno) {
        (self.job.report)(Failure { path, what: "can't read", cause: cause.into() });
    }
}

impl Visitor for Listing<'_> {
    type State = Level;

    fn enter(&self, dir: &Position<'_, Level>, fd: BorrowedFd<'_>) -> Option<Level> {
        let depth = dir.parent.map_or(0, |parent| parent.state.depth + 1);
        if !self.options.one_file_system {
            return Some(Level { depth, device: (0, 0) });
        }
        let found = match crate::walk::attributes_of(fd) {
            Ok(found) => found,
            Err(cause) => {
                self.fail(dir.path(), cause);
                return None;
            }
        };
        let device = (found.stx_dev_major, found.stx_dev_minor);
        dir.parent.is_none_or(|parent| parent.state.device == device).then_some(Level { depth, device })
    }

    fn not_opened(&self, dir: &Position<'_, Level>, cause: Errno) {
        self.fail(dir.path(), cause);
    }

    fn entry(&self, dir: &Dir<Level>, name: &CStr, kind: FileType) -> Next {
        let depth = dir.state.depth + 1;
        let mut kind = kind;
        if kind == FileType::Unknown {
            match attributes(dir.fd(), name) {
                Ok(found) => kind = FileType::from_raw_mode(found.stx_mode.into()),
                Err(cause) => self.fail(dir.path_of(name), cause),
            }
        }
        let path = || dir.path_of(name);
        self.show(&Found { name: name.to_bytes(), kind, depth, at: dir.fd(), entry: name, path: &path });
        let is_open = kind.is_dir() && self.options.max_depth.is_none_or(|max| depth < max);
        if is_open { Next::Descend } else { Next::Done }
    }

    fn not_read(&self, dir: &Dir<Level>, cause: Errno) {
        self.fail(dir.path(), cause);
    }

    fn leave(&self, _: &Dir<Level>) {}
}
