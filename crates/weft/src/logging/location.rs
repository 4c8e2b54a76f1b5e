//! Choice of the log file of a detached process.

use rustix::fs::{Access, access};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Preferred directory for logs.
const LOG_DIR: &str = "/var/log/weft";

/// Returns the log file of the process that serves a state directory: in [`LOG_DIR`] if that is on
/// another file system than the metadata store, which a log must not fill; otherwise in the state
/// directory.
pub fn of_service(dir: &Path) -> PathBuf {
    let beside = mgmt::StatePaths::new(dir).log();
    match usable_log_dir() {
        Some(logs) if device_of(logs) != device_of(dir) => logs.join(file_name(dir)),
        _ => beside,
    }
}

/// Returns the log file of a mount's process.
pub fn of_mount(mountpoint: &Path) -> PathBuf {
    match usable_log_dir() {
        Some(logs) => logs.join(file_name(mountpoint)),
        None => match private_temp_dir() {
            Some(logs) => logs.join(file_name(mountpoint)),
            None => "/dev/null".into(),
        },
    }
}

/// Makes the log of a service findable in its state directory, by a link to `log` if the log is
/// elsewhere. Failures only cost the link.
pub fn link_from(dir: &Path, log: &Path) {
    let link = mgmt::StatePaths::new(dir).log();
    if link == log || fs::read_link(&link).is_ok_and(|target| target == log) {
        return;
    }
    // The log of an earlier process, or a link to another place.
    let mut old = link.clone().into_os_string();
    old.push(".old");
    let _ = fs::rename(&link, old);
    let _ = symlink(log, &link);
}

fn usable_log_dir() -> Option<&'static Path> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(LOG_DIR);
    let is_private = identity::require_private_directory(Path::new(LOG_DIR)).is_ok();
    let is_usable = made.is_ok() && is_private && access(LOG_DIR, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    is_usable.then(|| Path::new(LOG_DIR))
}

/// Returns a directory for logs of a user who may not write to [`LOG_DIR`]. Refused if another user
/// owns it: that user could read logs, or have files overwritten through links.
fn private_temp_dir() -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let dir = std::env::temp_dir().join(format!("weft-logs-{user}"));
    let _ = DirBuilder::new().mode(0o700).create(&dir);
    let meta = fs::symlink_metadata(&dir).ok()?;
    (meta.is_dir() && meta.uid() == user && meta.mode() & 0o077 == 0).then_some(dir)
}

/// Returns the device that a path is on, or will be on.
fn device_of(path: &Path) -> Option<u64> {
    path.ancestors().find_map(|path| fs::metadata(path).ok()).map(|meta| meta.dev())
}

fn file_name(path: &Path) -> String {
    format!("{}.log", path.to_string_lossy().trim_matches('/').replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_elsewhere_is_found_from_the_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (beside, elsewhere) = (dir.path().join("weft.log"), dir.path().join("elsewhere.log"));
        fs::write(&beside, "before").unwrap();
        fs::write(&elsewhere, "now").unwrap();
        for _ in 0..2 {
            link_from(dir.path(), &elsewhere);
            assert_eq!(fs::read_to_string(&beside).unwrap(), "now");
            assert_eq!(fs::read_to_string(dir.path().join("weft.log.old")).unwrap(), "before");
        }
        // A log in the directory itself needs no link.
        fs::remove_file(&beside).unwrap();
        link_from(dir.path(), &beside);
        assert!(fs::symlink_metadata(&beside).is_err());
    }

    #[test]
    fn a_log_is_in_the_state_directory_or_on_another_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let log = of_service(dir.path());
        let apart = device_of(&log) != device_of(dir.path());
        assert!(apart || log == dir.path().join("weft.log"), "{}", log.display());
    }
}
