//! Files with several names: the first name is copied, and the others become links to the copy.

use super::FileId;
use crate::walk::attributes_of;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, linkat, openat2};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use types::HashMap;

/// The copies of files that have several names.
#[derive(Default)]
pub struct Links {
    /// The copy of the named directory; paths begin there.
    root: OnceLock<OwnedFd>,
    copies: Mutex<HashMap<FileId, Arc<Mutex<Option<Copied>>>>>,
}

/// A copy that exists: its path and identity.
struct Copied {
    path: PathBuf,
    id: FileId,
}

impl Links {
    /// Sets the directory that paths begin with.
    pub fn set_root(&self, root: OwnedFd) {
        let _ = self.root.set(root);
    }

    /// Makes a copy with `create`, unless the same file has been copied: then `name` becomes a link
    /// to that copy. A thread that finds another one copying waits for it.
    pub fn copy_once(
        &self,
        source: FileId,
        at: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
        create: impl FnOnce() -> Result<FileId, Errno>,
    ) -> Result<(), Errno> {
        let copy = {
            let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
            copies.entry(source).or_default().clone()
        };
        let mut copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
        match &*copy {
            Some(copied) => self.link(copied, at, name),
            None => {
                *copy = Some(Copied { id: create()?, path: path.to_path_buf() });
                Ok(())
            }
        }
    }

    fn link(&self, copied: &Copied, at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let root = self.root.get().ok_or(Errno::NOENT)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let existing = match openat2(root, &copied.path, flags, Mode::empty(), resolve) {
            // The last component may be a symlink, the copy of one with several names.
            Err(Errno::LOOP) => return self.link_symlink(copied, at, name),
            existing => existing?,
        };
        if super::id(&attributes_of(existing.as_fd())?) != copied.id {
            return Err(Errno::STALE);
        }
        let from = format!("/proc/self/fd/{}", existing.as_raw_fd());
        link_or_replace(|| linkat(CWD, &*from, at, name, AtFlags::SYMLINK_FOLLOW), at, name)
    }

    /// Links another name to the copy of a symlink.
    fn link_symlink(&self, copied: &Copied, at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let root = self.root.get().ok_or(Errno::NOENT)?;
        let above = copied.path.parent().filter(|above| !above.as_os_str().is_empty());
        let file = copied.path.file_name().ok_or(Errno::NOENT)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = openat2(root, above.unwrap_or(Path::new(".")), flags, Mode::empty(), resolve)?;
        link_or_replace(|| linkat(&dir, file, at, name, AtFlags::empty()), at, name)
    }
}

/// Links; a regular file with that name is replaced, as its content would be.
fn link_or_replace(
    link: impl Fn() -> Result<(), Errno>,
    at: BorrowedFd<'_>,
    name: &CStr,
) -> Result<(), Errno> {
    match link() {
        Err(Errno::EXIST) => {
            let existing = crate::walk::attributes(at, name)?;
            if !rustix::fs::FileType::from_raw_mode(existing.stx_mode.into()).is_file() {
                return Err(Errno::EXIST);
            }
            rustix::fs::unlinkat(at, name, AtFlags::empty())?;
            link()
        }
        linked => linked,
    }
}
