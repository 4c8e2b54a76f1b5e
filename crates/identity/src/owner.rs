//! Whose a file or a directory is, and what others may do with it.
//!
//! Root may do everything anyway, so what belongs to root is as good as one's own.

use crate::error::{Error, Result};
use rustix::process::geteuid;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Mode bits with which others than the owner read a file, write to it or search it.
const OTHERS: u32 = 0o077;

/// Mode bits with which others than the owner change what is in a directory.
const OTHERS_WRITE: u32 = 0o022;

/// Refuses a file with a secret that others may read or change. `meta`: of the open file.
///
/// # Errors
/// [`Error::OtherOwner`], [`Error::Exposed`].
pub fn require_private_file(path: &Path, meta: &Metadata) -> Result<()> {
    require_own(path, meta)?;
    match meta.mode() & 0o777 {
        mode if mode & OTHERS != 0 => Err(Error::Exposed { path: path.to_path_buf(), mode }),
        _ => Ok(()),
    }
}

/// Refuses a directory in which others may put, replace or remove files. One that is absent is
/// fine.
///
/// # Errors
/// [`Error::OtherOwner`], [`Error::Writable`], and the system's.
pub fn require_private_directory(path: &Path) -> Result<()> {
    let meta = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|e| Error::io("open", path, e))?,
    };
    require_own(path, &meta)?;
    match meta.mode() & 0o777 {
        mode if mode & OTHERS_WRITE != 0 => Err(Error::Writable { path: path.to_path_buf(), mode }),
        _ => Ok(()),
    }
}

fn require_own(path: &Path, meta: &Metadata) -> Result<()> {
    match meta.uid() {
        uid if uid == 0 || uid == geteuid().as_raw() => Ok(()),
        uid => Err(Error::OtherOwner { path: path.to_path_buf(), uid }),
    }
}
