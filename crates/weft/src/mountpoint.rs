//! What is mounted where.

use crate::output::os_error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// The type under which the kernel lists our mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.weft";

/// Unmounts what a killed process left at `mountpoint`: a weft file system that nobody serves any more.
///
/// # Errors
/// A mount point that another process still serves is refused.
pub fn clear_leftover(mountpoint: &Path) -> Result<()> {
    let mounted = weft_mounts()?.iter().filter(|m| *m == mountpoint).count();
    if mounted == 0 {
        return Ok(());
    }
    match std::fs::symlink_metadata(mountpoint) {
        Err(e) if e.raw_os_error() == Some(Errno::ENOTCONN.0) => {}
        _ => {
            let message = format!("{} has a weft file system mounted already", mountpoint.display());
            let hint = "name another mount point with --mount, or stop that cluster with weft down --dir DIR";
            return Err(Error::new(Errno::EBUSY, message).hint(hint));
        }
    }
    tracing::warn!("unmounting {}, which a killed process left behind", mountpoint.display());
    rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH)
        .map_err(|e| os_error(format_args!("can't unmount {}", mountpoint.display()), &e.into()))
}

/// Refuses a mount point inside the state directory or around it: the process would wait for itself.
pub fn require_apart(dir: &Path, mountpoint: &Path) -> Result<()> {
    if !dir.starts_with(mountpoint) && !mountpoint.starts_with(dir) {
        return Ok(());
    }
    let message = format!("mount point {} and directory {} are inside each other", mountpoint.display(), dir.display());
    Err(Error::new(Errno::EINVAL, message).hint("name a mount point beside the directory with --mount"))
}

/// Mount points of weft file systems in this mount namespace.
fn weft_mounts() -> Result<Vec<PathBuf>> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(path).map_err(|e| os_error(path, &e))?;
    Ok(text.lines().filter_map(weft_mount).collect())
}

/// The mount point of one line of mountinfo (proc_pid_mountinfo(5)), when it is ours.
fn weft_mount(line: &str) -> Option<PathBuf> {
    let (mount, device) = line.split_once(" - ")?;
    if device.split(' ').next()? != FILE_SYSTEM_TYPE {
        return None;
    }
    let escaped = mount.split(' ').nth(4)?.as_bytes();
    let mut path = Vec::with_capacity(escaped.len());
    let mut at = 0;
    while at < escaped.len() {
        // Space, tab, newline and backslash stand as three octal digits.
        let octal = escaped.get(at + 1..at + 4).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(|_| escaped[at] == b'\\') {
            Some(byte) => {
                path.push(byte);
                at += 4;
            }
            None => {
                path.push(escaped[at]);
                at += 1;
            }
        }
    }
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found() {
        let ours = r"36 35 0:41 / /mnt/with\040space rw,relatime shared:1 - fuse.weft weft rw,user_id=0";
        assert_eq!(weft_mount(ours), Some("/mnt/with space".into()));
        assert_eq!(weft_mount("36 35 0:41 / /mnt rw - fuse.weft weft rw"), Some("/mnt".into()));
    }

    #[test]
    fn other_mounts_are_passed_over() {
        for line in ["", "36 35 98:0 / / rw - ext4 /dev/root rw", "36 35 0:4 / /mnt rw - fuse.other weft rw"] {
            assert_eq!(weft_mount(line), None);
        }
    }

    #[test]
    fn a_mount_point_must_be_apart_from_the_data() {
        let apart = |dir: &str, mount: &str| require_apart(Path::new(dir), Path::new(mount)).is_ok();
        assert!(apart("/a/data", "/a/mnt"));
        assert!(apart("/a/data", "/a/data2"));
        assert!(!apart("/a/data", "/a/data"));
        assert!(!apart("/a/data", "/a"));
        assert!(!apart("/a/data", "/a/data/mnt"));
    }
}
