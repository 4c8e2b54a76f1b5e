//! Checks of the owner and mode of files and directories.
//!
//! Root may do everything anyway, so files that belong to root are as trusted as the process's own.

use crate::error::{Error, Result};
use rustix::process::geteuid;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Mode bits that let other users than the owner read, write or search a file.
const OTHERS: u32 = 0o077;

/// Mode bits that let other users than the owner change a directory.
const OTHERS_WRITE: u32 = 0o022;

/// Refuses a file with a secret that other users may read or change. `meta`: of the open file.
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

/// Refuses a directory in which other users may create, replace or remove files. A missing one is
/// accepted.
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
