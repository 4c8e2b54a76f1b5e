//! The directory of a load: the load changes nothing outside of it, and it is removed however the
//! load ends.

use super::ClientRank;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use types::{Errno, Error, Result};

/// Distinguishes several directories of one process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A directory that is removed with this value.
pub(super) struct LoadDirectory {
    path: PathBuf,
    is_removed: bool,
}

impl LoadDirectory {
    /// Creates the directory. With several clients the leader creates and removes the directory of
    /// the load; each iteration has its own one in it, which the clients create if it is missing.
    pub fn make(place: &Path, rank: ClientRank, iteration: u32) -> Result<LoadDirectory> {
        if rank != ClientRank::SINGLE {
            let path = rank.folder(place).join(iteration.to_string());
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    let hint = "DIR must be the same directory of one file system on all clients";
                    return Err(failed(format!("can't create {}", path.display()), error).hint(hint));
                }
                _ => return Ok(LoadDirectory { path, is_removed: rank.client > 0 }),
            }
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("weft-bench-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| failed(format!("can't create {}", path.display()), error))?;
        Ok(LoadDirectory { path, is_removed: false })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory, and returns an error if that fails.
    pub fn remove(mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_removed, true) {
            return Ok(());
        }
        fs::remove_dir_all(&self.path).map_err(|error| {
            failed(format!("can't remove {}", self.path.display()), error).hint("remove it by hand: rm -r")
        })
    }
}

impl Drop for LoadDirectory {
    fn drop(&mut self) {
        if !self.is_removed {
            // Another error is already being reported.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Returns an error with the text of the operating system.
pub(super) fn io_error(error: io::Error) -> Error {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
    Error::new(error.raw_os_error().map_or(Errno::EIO, Errno::Number), text)
}

/// Adds to an error what failed.
pub(super) fn with_context(what: String, error: Error) -> Error {
    let cause = if error.message.is_empty() { error.errno.name().into() } else { error.message };
    Error { message: format!("{what}: {cause}").into(), ..error }
}

/// Returns the error of a failed system call on an object.
pub(super) fn failed(what: String, error: io::Error) -> Error {
    with_context(what, io_error(error))
}
