//! The locks that one process holds while it serves a state directory, and while it has a target
//! open.

use crate::error::{Error, Result};
use identity::require_private_directory;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Longest text to read from a lock file, in bytes: a pid is shorter.
const MAX_LOCK_BYTES: u64 = 64;

/// Held until dropped, or until the process dies. The lock is the kernel's (`flock`), so a file
/// that a killed process left behind blocks no other process; the pid inside is only for the
/// message.
#[derive(Debug)]
pub struct StateLock {
    file: File,
}

impl StateLock {
    /// Takes the lock of the state directory `dir`.
    ///
    /// # Errors
    /// [`Error::InUse`] names the process that holds it; [`Error::NotPrivate`] if other users may
    /// change the directory's content.
    pub fn take(dir: &Path, path: &Path) -> Result<StateLock> {
        require_private_directory(dir)?;
        let failed = |e| Error::io("lock", path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { path: dir.to_path_buf(), pid: holder(&mut file) });
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        // Only a message needs the pid: on a full disk it is omitted.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(StateLock { file })
    }
}

impl Drop for StateLock {
    /// Empties the file again: a start that is refused later changes nothing.
    fn drop(&mut self) {
        // A pid that remains is harmless.
        let _ = self.file.set_len(0);
    }
}

/// Takes the lock of a target's directory: held until the file is closed, or the process dies. It
/// is a lock of the directory itself (`flock`), so that no file is left there.
///
/// # Errors
/// [`Error::TargetInUse`] names the process that has the target open; [`Error::NotPrivate`] if
/// other users may change its content.
pub fn lock_target(directory: &Path) -> Result<File> {
    require_private_directory(directory)?;
    let failed = |e| Error::io("lock", directory, e);
    let file = File::open(directory).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let pid = fs::read_to_string("/proc/locks")
                .ok()
                .zip(file.metadata().ok())
                .and_then(|(locks, found)| flock_holder(&locks, found.ino()))
                .unwrap_or_else(|| "(unknown)".to_string());
            Err(Error::TargetInUse { path: directory.to_path_buf(), pid })
        }
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

/// The process that holds the `flock` of an inode, from the lines of `/proc/locks` (proc_locks(5)):
/// `1: FLOCK ADVISORY WRITE 2178 08:05:131181 0 EOF`. The device is ignored: on some file systems
/// it isn't the one that stat returns.
fn flock_holder(locks: &str, inode: u64) -> Option<String> {
    let wanted = inode.to_string();
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let (pid, place) = (words.nth(2)?, words.next()?);
        (is_flock && place.rsplit(':').next() == Some(wanted.as_str())).then(|| pid.to_string())
    })
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(MAX_LOCK_BYTES).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_string(),
        _ => "(starting)".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_locked_once_and_the_refusal_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_target(dir.path()).unwrap();
        match lock_target(dir.path()) {
            Err(Error::TargetInUse { path, pid }) => {
                assert_eq!((path.as_path(), pid), (dir.path(), std::process::id().to_string()));
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        drop(lock_target(dir.path()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left there");
    }

    #[test]
    fn directories_that_others_may_change_are_not_served() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let state = || StateLock::take(dir.path(), &dir.path().join("lock"));
        for mode in [0o777, 0o770, 0o702, 0o1777] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            for refused in [state().map(drop), lock_target(dir.path()).map(drop)] {
                let error = refused.unwrap_err();
                assert!(matches!(error, Error::NotPrivate(_)), "{mode:o}: {error}");
                assert!(error.hint().contains("chmod go-w"), "{}", error.hint());
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made there");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        drop((state().unwrap(), lock_target(dir.path()).unwrap()));
    }

    #[test]
    fn the_holder_is_found_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:05:42 0 EOF\n2: FLOCK  ADVISORY  WRITE 2178 08:05:42 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 08:05:142 0 EOF\n4: -> FLOCK\n\n";
        assert_eq!(flock_holder(locks, 42).as_deref(), Some("2178"));
        assert_eq!(flock_holder(locks, 142).as_deref(), Some("9"));
        assert_eq!(flock_holder(locks, 2), None);
    }
}
