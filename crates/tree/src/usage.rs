//! Space of trees, as `du` computes it.
//!
//! The result is that of GNU du. The apparent size counts the lengths of files and symlinks, as in
//! GNU du since version 9.2; directories have none.
//!
//! Memory: an id for each file with several names, and for every file if several paths are given,
//! so that each file is counted once.

use crate::walk::{Dir, Mounts, Next, Position, Visitor, attributes, attributes_of, walk};
use crate::{Failure, Job};
use rustix::fs::{CWD, FileType, Statx};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use types::HashSet;

/// Bytes of the units in which file systems count blocks, by definition of stat(2).
const BLOCK_BYTES: u64 = 512;
/// Number of sets among which ids are distributed, so that threads rarely wait for each other.
const SETS: usize = 64;

/// Used space.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Sum of the lengths of files and symlinks.
    pub apparent: u64,
    /// Number of files and directories.
    pub files: u64,
}

impl Usage {
    fn of(found: &Statx) -> Usage {
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        let has_length = kind.is_file() || kind.is_symlink();
        let apparent = if has_length { found.stx_size } else { 0 };
        Usage { allocated: found.stx_blocks * BLOCK_BYTES, apparent, files: 1 }
    }

    /// Returns the sum.
    pub fn plus(self, other: Usage) -> Usage {
        Usage {
            allocated: self.allocated + other.allocated,
            apparent: self.apparent + other.apparent,
            files: self.files + other.files,
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Default, Debug)]
pub struct UsageOptions {
    /// Skip directories on other file systems.
    pub one_file_system: bool,
    /// Count a file as often as it has names.
    pub count_links: bool,
    /// Also show single files.
    pub files: bool,
}

/// Space of one directory with everything below it, or of one file.
#[derive(Debug)]
pub struct UsageLine {
    pub path: PathBuf,
    /// Levels below the path that the caller named.
    pub depth: usize,
    pub usage: Usage,
}

/// Measures trees, each file once.
pub struct UsageScan<'a> {
    options: UsageOptions,
    seen: Seen,
    /// Number of files so far, for progress.
    files: AtomicU64,
    /// Gets each result, a directory after those below it.
    show: &'a (dyn Fn(UsageLine) + Sync),
    job: Job<'a>,
}

impl<'a> UsageScan<'a> {
    /// `paths`: how many paths will be measured.
    pub fn new(
        options: UsageOptions,
        paths: usize,
        show: &'a (dyn Fn(UsageLine) + Sync),
        job: Job<'a>,
    ) -> UsageScan<'a> {
        // Paths may overlap.
        let sets = std::array::from_fn(|_| Mutex::default());
        let seen = Seen { all: paths > 1, is_off: options.count_links, sets };
        UsageScan { options, seen, files: AtomicU64::new(0), show, job }
    }

    /// The number of files and directories that have been found.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Measures one path. Returns its space, or `None` if it can't be read, or has been counted
    /// before.
    pub fn measure(&self, path: &Path) -> Option<Usage> {
        let name = CString::new(path.as_os_str().as_bytes()).ok();
        let found = name.ok_or(Errno::INVAL).and_then(|name| Ok((attributes(CWD, &name)?, name)));
        let (found, name) = match found {
            Ok(found) => found,
            Err(cause) => {
                self.fail(path.to_path_buf(), cause);
                return None;
            }
        };
        if !FileType::from_raw_mode(found.stx_mode.into()).is_dir() {
            let usage = self.count(&found)?;
            (self.show)(UsageLine { path: path.to_path_buf(), depth: 0, usage });
            return Some(usage);
        }
        let root = Tree { scan: self, device: device(&found), total: Mutex::new(None) };
        walk(name, Mounts::Cross, &root, self.job.stop);
        root.total.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the space of a file, if it hasn't been counted before.
    fn count(&self, found: &Statx) -> Option<Usage> {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.seen.is_first(found).then(|| Usage::of(found))
    }

    fn fail(&self, path: PathBuf, cause: Errno) {
        (self.job.report)(Failure { path, what: "can't read", cause: cause.into() });
    }
}

/// Files that have been counted.
struct Seen {
    /// Whether a file can be found again under the same name.
    all: bool,
    is_off: bool,
    sets: [Mutex<HashSet<(u64, u64)>>; SETS],
}

impl Seen {
    fn is_first(&self, found: &Statx) -> bool {
        let is_directory = FileType::from_raw_mode(found.stx_mode.into()).is_dir();
        let has_other_names = !is_directory && found.stx_nlink > 1;
        if self.is_off || !(self.all || has_other_names) {
            return true;
        }
        let set = &self.sets[found.stx_ino as usize % SETS];
        set.lock().unwrap_or_else(PoisonError::into_inner).insert((device(found), found.stx_ino))
    }
}

fn device(found: &Statx) -> u64 {
    u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor)
}

/// The tree below one path.
struct Tree<'a> {
    scan: &'a UsageScan<'a>,
    device: u64,
    total: Mutex<Option<Usage>>,
}

/// Sums of a directory and of everything below it that has been measured.
struct Sums {
    allocated: AtomicU64,
    apparent: AtomicU64,
    files: AtomicU64,
    depth: usize,
}

impl Sums {
    fn add(&self, usage: Usage) {
        self.allocated.fetch_add(usage.allocated, Ordering::Relaxed);
        self.apparent.fetch_add(usage.apparent, Ordering::Relaxed);
        self.files.fetch_add(usage.files, Ordering::Relaxed);
    }

    fn usage(&self) -> Usage {
        let value = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Usage {
            allocated: value(&self.allocated),
            apparent: value(&self.apparent),
            files: value(&self.files),
        }
    }
}

impl Visitor for Tree<'_> {
    type State = Sums;

    fn enter(&self, dir: &Position<'_, Sums>, fd: BorrowedFd<'_>) -> Option<Sums> {
        let found = match attributes_of(fd) {
            Ok(found) => found,
            Err(cause) => {
                self.scan.fail(dir.path(), cause);
                return None;
            }
        };
        if self.scan.options.one_file_system && device(&found) != self.device {
            return None;
        }
        let usage = self.scan.count(&found)?;
        let depth = dir.parent.map_or(0, |parent| parent.state.depth + 1);
        let value = |sum| AtomicU64::new(sum);
        let Usage { allocated, apparent, files } = usage;
        Some(Sums { allocated: value(allocated), apparent: value(apparent), files: value(files), depth })
    }

    fn not_opened(&self, dir: &Position<'_, Sums>, cause: Errno) {
        self.scan.fail(dir.path(), cause);
        // Its own blocks count.
        let at = dir.parent.map_or(CWD, |parent| parent.fd());
        let usage = attributes(at, dir.name).ok().and_then(|found| self.scan.count(&found));
        let Some(usage) = usage else { return };
        let depth = dir.parent.map_or(0, |parent| parent.state.depth + 1);
        self.completed(dir.parent.map(|parent| &**parent), UsageLine { path: dir.path(), depth, usage });
    }

    fn entry(&self, dir: &Dir<Sums>, name: &CStr, kind: FileType) -> Next {
        if kind.is_dir() {
            return Next::Descend;
        }
        let found = match attributes(dir.fd(), name) {
            Ok(found) => found,
            Err(cause) => {
                self.scan.fail(dir.path_of(name), cause);
                return Next::Done;
            }
        };
        if FileType::from_raw_mode(found.stx_mode.into()).is_dir() {
            return Next::Descend;
        }
        if let Some(usage) = self.scan.count(&found) {
            dir.state.add(usage);
            if self.scan.options.files {
                let depth = dir.state.depth + 1;
                (self.scan.show)(UsageLine { path: dir.path_of(name), depth, usage });
            }
        }
        Next::Done
    }

    fn not_read(&self, dir: &Dir<Sums>, cause: Errno) {
        self.scan.fail(dir.path(), cause);
    }

    fn leave(&self, dir: &Dir<Sums>) {
        let (depth, usage) = (dir.state.depth, dir.state.usage());
        self.completed(dir.parent(), UsageLine { path: dir.path(), depth, usage });
    }
}

impl Tree<'_> {
    /// Adds a complete directory to the one above it.
    fn completed(&self, above: Option<&Dir<Sums>>, line: UsageLine) {
        let usage = line.usage;
        (self.scan.show)(line);
        match above {
            Some(above) => above.state.add(usage),
            None => *self.total.lock().unwrap_or_else(PoisonError::into_inner) = Some(usage),
        }
    }
}
