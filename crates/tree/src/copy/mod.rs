//! Copies trees, as `cp -r` and `cp -a` do.
//!
//! Data is copied by the file system (`copy_file_range`) where it can, and holes stay holes. Other
//! than GNU cp, it never writes through a symlink at the destination.
//!
//! Memory: with `archive`, an entry for each file with several names.

mod data;
mod links;
mod metadata;

use crate::walk::{Dir, Mounts, Next, Position, Visitor, attributes, attributes_of, walk};
use crate::{Failure, Job};
use links::Links;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, mkdirat, mknodat, openat, symlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What has been copied so far.
#[derive(Default, Debug)]
pub struct CopyCounts {
    /// Files, symlinks and everything else that isn't a directory.
    pub files: AtomicU64,
    pub directories: AtomicU64,
    /// Bytes of data, without holes.
    pub bytes: AtomicU64,
}

/// How a tree is copied.
#[derive(Clone, Copy, Default, Debug)]
pub struct CopyOptions {
    /// Directories, and everything below them.
    pub recursive: bool,
    /// Keep owner, mode, times, extended attributes with ACLs, and hard links.
    pub archive: bool,
}

/// Identity of a file: device and inode.
pub(crate) type FileId = (u32, u32, u64);

pub(crate) fn id(found: &Statx) -> FileId {
    (found.stx_dev_major, found.stx_dev_minor, found.stx_ino)
}

/// Copies `from` to exactly `to`. Existing directories get what is missing, and existing files new
/// content.
pub fn copy(from: &Path, to: &Path, options: CopyOptions, counts: &CopyCounts, job: Job) {
    let links = options.archive.then(Links::default);
    let named = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL);
    let copied = named(from).and_then(|source| {
        let copying = Copying { to: named(to)?, root: OnceLock::new(), links, options, counts, job };
        copying.copy_named(source)
    });
    if copied == Err(Errno::CANCELED) {
        // A stop leaves the file incomplete.
        let _ = std::fs::remove_file(to);
    } else if let Err(cause) = copied {
        (job.report)(Failure { path: from.to_path_buf(), what: "can't copy", cause: cause.into() });
    }
}

struct Copying<'a> {
    to: CString,
    /// The directory that is created for the named one.
    root: OnceLock<FileId>,
    links: Option<Links>,
    options: CopyOptions,
    counts: &'a CopyCounts,
    job: Job<'a>,
}

/// The copy of a directory.
struct Target {
    fd: OwnedFd,
    source: Statx,
    /// Path below the copy of the named directory.
    path: PathBuf,
    is_new: bool,
    /// Whether new files in it get an ACL.
    gives_acl: bool,
}

/// Where a file is copied to.
struct Place<'a> {
    at: BorrowedFd<'a>,
    name: &'a CStr,
    /// Directory that links are searched from, and the path there.
    path: PathBuf,
    /// Whether the directory has given it an ACL.
    inherits_acl: bool,
}

impl Copying<'_> {
    fn copy_named(&self, source: CString) -> Result<(), Errno> {
        let found = attributes(CWD, &source)?;
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        if !kind.is_dir() {
            let place = Place { at: CWD, name: &self.to, path: PathBuf::new(), inherits_acl: false };
            return self.copy_file(CWD, &source, kind, &place);
        }
        if !self.options.recursive {
            return Err(Errno::ISDIR);
        }
        walk(source, Mounts::Cross, self, self.job.stop);
        Ok(())
    }

    fn fail(&self, path: PathBuf, cause: io::Error) {
        (self.job.report)(Failure { path, what: "can't copy", cause });
    }

    /// Copies anything that isn't a directory.
    fn copy_file(
        &self,
        at: BorrowedFd<'_>,
        name: &CStr,
        kind: FileType,
        to: &Place<'_>,
    ) -> Result<(), Errno> {
        let found = attributes(at, name)?;
        if FileType::from_raw_mode(found.stx_mode.into()) != kind {
            // It was just replaced.
            return Err(Errno::STALE);
        }
        let create = || self.create_copy(at, name, &found, to);
        match &self.links {
            Some(links) if found.stx_nlink > 1 => {
                links.copy_once(id(&found), to.at, to.name, &to.path, create)?
            }
            _ => create().map(drop)?,
        }
        self.counts.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Creates the copy of a file. Returns its identity.
    fn create_copy(
        &self,
        at: BorrowedFd<'_>,
        name: &CStr,
        found: &Statx,
        to: &Place<'_>,
    ) -> Result<FileId, Errno> {
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        if kind.is_file() {
            return self.copy_regular(at, name, found, to);
        }
        let mode = Mode::from_raw_mode(found.stx_mode.into());
        if kind.is_symlink() {
            symlinkat(rustix::fs::readlinkat(at, name, Vec::new())?, to.at, to.name)?;
        } else {
            let device = rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor);
            mknodat(to.at, to.name, kind, mode, device)?;
        }
        if self.options.archive {
            metadata::keep_of_name(found, to.at, to.name)?;
        }
        Ok(id(&attributes(to.at, to.name)?))
    }

    fn copy_regular(
        &self,
        at: BorrowedFd<'_>,
        name: &CStr,
        found: &Statx,
        to: &Place<'_>,
    ) -> Result<FileId, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = openat(at, name, flags, Mode::empty())?;
        if id(&attributes_of(source.as_fd())?) != id(found) {
            return Err(Errno::STALE);
        }
        // Others get access when the owner is right.
        let mode = if self.options.archive { 0o600 } else { u32::from(found.stx_mode) & 0o777 };
        let mode = Mode::from_raw_mode(mode);
        let target = create_or_truncate(to.at, to.name, mode, id(found))?;
        data::copy(source.as_fd(), target.as_fd(), found, &self.counts.bytes, self.job.stop)?;
        if self.options.archive {
            metadata::keep(found, source.as_fd(), target.as_fd(), to.inherits_acl)?;
        }
        let copy = id(&attributes_of(target.as_fd())?);
        // A file system may report only now that it can't store the content.
        rt::close(target).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(copy)
    }

    fn create_directory(&self, dir: &Position<'_, Target>, fd: BorrowedFd<'_>) -> Result<Target, io::Error> {
        let source = attributes_of(fd)?;
        if self.root.get() == Some(&id(&source)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is the copy itself"));
        }
        let (at, name) = match dir.parent {
            Some(parent) => (parent.state.fd.as_fd(), dir.name),
            None => (CWD, &*self.to),
        };
        let mode = Mode::from_raw_mode(u32::from(source.stx_mode) & 0o1777 | 0o700);
        let is_new = match mkdirat(at, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(cause) => return Err(cause.into()),
        };
        // A symlink that the caller names as the destination is followed.
        let nofollow = if dir.parent.is_some() { OFlags::NOFOLLOW } else { OFlags::empty() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | nofollow;
        let target = openat(at, name, flags, Mode::empty())?;
        let path = match dir.parent {
            Some(parent) => parent.state.path.join(std::ffi::OsStr::from_bytes(dir.name.to_bytes())),
            None => {
                let root = id(&attributes_of(target.as_fd())?);
                if root == id(&source) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "source and copy are the same"));
                }
                let _ = self.root.set(root);
                if let Some(links) = &self.links {
                    links.set_root(target.try_clone()?);
                }
                PathBuf::new()
            }
        };
        let gives_acl = self.options.archive && metadata::gives_acl(target.as_fd());
        Ok(Target { fd: target, source, path, is_new, gives_acl })
    }

    /// Gives a complete directory its attributes.
    fn complete_directory(&self, dir: &Dir<Target>) -> Result<(), Errno> {
        let target = &dir.state;
        if self.options.archive {
            let inherits_acl = dir.parent().is_some_and(|above| above.state.gives_acl);
            return metadata::keep(&target.source, dir.fd(), target.fd.as_fd(), inherits_acl);
        }
        let lacking = 0o700 & !u32::from(target.source.stx_mode);
        if target.is_new && lacking != 0 {
            let mode = u32::from(attributes_of(target.fd.as_fd())?.stx_mode);
            rustix::fs::fchmod(&target.fd, Mode::from_raw_mode(mode & 0o7777 & !lacking))?;
        }
        Ok(())
    }
}

/// Opens a file for writing, which is empty then. Refuses the source itself, and symlinks.
fn create_or_truncate(at: BorrowedFd<'_>, name: &CStr, mode: Mode, source: FileId) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(at, name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Err(Errno::EXIST) => (),
        created => return created,
    }
    let existing = attributes(at, name)?;
    if !FileType::from_raw_mode(existing.stx_mode.into()).is_file() || id(&existing) == source {
        return Err(Errno::EXIST);
    }
    let opened = openat(at, name, flags | OFlags::NONBLOCK, Mode::empty())?;
    if id(&attributes_of(opened.as_fd())?) != id(&existing) {
        return Err(Errno::STALE);
    }
    rustix::fs::ftruncate(&opened, 0)?;
    Ok(opened)
}

impl Visitor for Copying<'_> {
    type State = Target;

    fn enter(&self, dir: &Position<'_, Target>, fd: BorrowedFd<'_>) -> Option<Target> {
        self.create_directory(dir, fd).map_err(|cause| self.fail(dir.path(), cause)).ok()
    }

    fn not_opened(&self, dir: &Position<'_, Target>, cause: Errno) {
        self.fail(dir.path(), cause.into());
    }

    fn entry(&self, dir: &Dir<Target>, name: &CStr, kind: FileType) -> Next {
        let kind = match kind {
            FileType::Unknown => {
                attributes(dir.fd(), name).map(|found| FileType::from_raw_mode(found.stx_mode.into()))
            }
            kind => Ok(kind),
        };
        if kind.is_ok_and(FileType::is_dir) {
            return Next::Descend;
        }
        let path = match &self.links {
            Some(_) => dir.state.path.join(std::ffi::OsStr::from_bytes(name.to_bytes())),
            None => PathBuf::new(),
        };
        let inherits_acl = dir.state.gives_acl;
        let to = Place { at: dir.state.fd.as_fd(), name, path, inherits_acl };
        let copied = kind.and_then(|kind| self.copy_file(dir.fd(), name, kind, &to));
        if let Err(cause) = copied {
            // A stop leaves the file incomplete: it is removed.
            if cause == Errno::CANCELED {
                let _ = rustix::fs::unlinkat(to.at, to.name, AtFlags::empty());
            } else {
                self.fail(dir.path_of(name), cause.into());
            }
        }
        Next::Done
    }

    fn not_read(&self, dir: &Dir<Target>, cause: Errno) {
        self.fail(dir.path(), cause.into());
    }

    fn leave(&self, dir: &Dir<Target>) {
        self.counts.directories.fetch_add(1, Ordering::Relaxed);
        if let Err(cause) = self.complete_directory(dir) {
            self.fail(dir.path(), cause.into());
        }
    }
}
