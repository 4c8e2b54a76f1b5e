//! The lock that one process holds while it serves a state directory.

use crate::error::{Error, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Longest text that is read from a lock file, bytes: a pid is shorter.
const MAX_LOCK_BYTES: u64 = 64;

/// Held until dropped, or until the process dies. The lock is the kernel's (`flock`), so a file that a killed
/// process left behind holds nobody up; the pid inside is only for the message.
#[derive(Debug)]
pub struct StateLock {
    file: File,
}

impl StateLock {
    /// Takes the lock of the state directory `dir`.
    ///
    /// # Errors
    /// [`Error::InUse`] names the process that holds it.
    pub fn take(dir: &Path, path: &Path) -> Result<StateLock> {
        let failed = |e| Error::io("lock", path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { path: dir.to_path_buf(), pid: holder(&mut file) });
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(StateLock { file })
    }
}

impl Drop for StateLock {
    /// Leaves the file as it was found: a start that is refused further on changes nothing.
    fn drop(&mut self) {
        // A pid that stays is harmless.
        let _ = self.file.set_len(0);
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(MAX_LOCK_BYTES).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_string(),
        _ => "(starting)".to_string(),
    }
}
