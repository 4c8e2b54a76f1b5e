//! The mount itself: `mount(2)`, its settings, and its end.

use crate::init::READ_AHEAD;
use crate::sys;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// File system type, as `mount` and `findmnt` show it.
const FS_TYPE: &str = "fuse.weft";
/// Where the kernel lists FUSE connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Parameters of a mount.
pub struct MountParams {
    /// What is mounted, as `mount` and `df` show it.
    pub source: String,
    /// Mounts read-only.
    pub read_only: bool,
    /// Lets users other than the one that mounts use the mount; the kernel checks permissions
    /// either way.
    pub allow_other: bool,
}

/// A mounted file system, whose connection may have ended.
pub struct Mount {
    mountpoint: PathBuf,
    device: OwnedFd,
    /// `major:minor`, which identifies the mount in sysfs.
    number: Option<(u32, u32)>,
}

impl Mount {
    /// Mounts at an empty directory. The first request from the device is INIT.
    pub fn new(mountpoint: &Path, how: &MountParams) -> Result<Mount> {
        let mountpoint = check_mountpoint(mountpoint)?;
        let device = sys::open_device().map_err(|e| device_error(&e))?;
        let mut options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions", device.as_raw_fd());
        if how.allow_other {
            options.push_str(",allow_other");
        }
        // Device nodes and setuid programs work as on a local file system: only root can make this
        // mount.
        let flags = if how.read_only { libc::MS_RDONLY } else { 0 };
        sys::mount(&how.source, &mountpoint, FS_TYPE, flags, &options)
            .map_err(|e| mount_error(&mountpoint, &e))?;
        let number = device_number(&mountpoint);
        Ok(Mount { mountpoint, device, number })
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the device, which stays open as long as the mount exists.
    pub fn device(&self) -> RawFd {
        self.device.as_raw_fd()
    }

    /// Returns whether reads update access times: not on a mount with `noatime` or a read-only one.
    /// A remount may change that.
    pub fn updates_atime(&self) -> bool {
        let Ok(table) = fs::read("/proc/self/mountinfo") else { return false };
        self.number.is_some_and(|number| updates_atime_in(&table, number))
    }

    /// Sets the read-ahead; INIT can only lower it.
    pub fn set_read_ahead(&self) {
        let Some((major, minor)) = self.number else { return };
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = sys::write_setting(&path, &(READ_AHEAD / 1024).to_string()) {
            tracing::warn!(path, %error, "read-ahead stays at the kernel's default, buffered reads are slower");
        }
    }

    /// Unmounts. A mount that is in use disappears from the tree now and ends with its last user.
    /// If another process has unmounted it already, this does nothing, also not to another mount in
    /// its place.
    pub fn unmount(&self) -> io::Result<()> {
        if !self.is_still_mounted() {
            return Ok(());
        }
        match sys::unmount(&self.mountpoint, 0) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                sys::unmount(&self.mountpoint, libc::MNT_DETACH)
            }
            // Another process has unmounted it first.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Removes what is left of a mount whose connection has ended. After an orderly end nothing is
    /// left.
    pub fn remove_dead_mount(&self) {
        if self.is_still_mounted() {
            // Another process may unmount it in between; the result doesn't matter.
            let _ = sys::unmount(&self.mountpoint, libc::MNT_DETACH);
        }
    }

    /// Without a number the mount was never found in the mount table; then any mount at the path
    /// counts as this one.
    fn is_still_mounted(&self) -> bool {
        self.number.is_none() || device_number(&self.mountpoint) == self.number
    }

    /// Ends the connection at once: every request fails and every transport ends. The last resort.
    pub fn abort(&self) {
        let Some((_, minor)) = self.number else {
            // Without a number the mount was never found; a forced unmount aborts its connection
            // too.
            let _ = sys::unmount(&self.mountpoint, libc::MNT_FORCE);
            return;
        };
        if let Err(error) = abort_connection(minor) {
            tracing::debug!(connection = minor, %error, "the connection has ended already, or can't be aborted; forcing the unmount");
            let _ = sys::unmount(&self.mountpoint, libc::MNT_FORCE);
        }
    }

    /// Returns the number of its connection in sysfs, or `None` if the mount was never found in the
    /// mount table.
    pub fn connection(&self) -> Option<u32> {
        self.number.map(|(_, minor)| minor)
    }
}

/// Ends the connection with this sysfs number at once, whichever process serves it.
///
/// # Errors
/// The system's error, when there is no connection with that number.
pub fn abort_connection(number: u32) -> io::Result<()> {
    if !Path::new(CONNECTIONS).join(number.to_string()).exists() {
        // Rare: minimal systems don't mount fusectl.
        let _ = sys::mount("fusectl", Path::new(CONNECTIONS), "fusectl", 0, "");
    }
    sys::write_setting(format!("{CONNECTIONS}/{number}/abort"), "1")
}

/// Returns the absolute path of an empty directory that is not a mount point.
fn check_mountpoint(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let absolute = fs::canonicalize(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => Error::new(Errno::ENOENT, format!("mount point {shown} does not exist"))
            .hint(format!("mkdir -p {shown}")),
        Some(libc::ENOTCONN) => dead_mount(path),
        _ => Error::new(errno(&e), format!("mount point {shown}: {e}")),
    })?;
    let meta = fs::metadata(&absolute).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTCONN) => dead_mount(path),
        _ => Error::new(errno(&e), format!("mount point {shown}: {e}")),
    })?;
    if !meta.is_dir() {
        return Err(Error::new(Errno::ENOTDIR, format!("mount point {shown} is not a directory")));
    }
    let parent = absolute.parent().and_then(|p| fs::metadata(p).ok());
    if parent.is_none_or(|p| p.dev() != meta.dev()) {
        return Err(Error::new(Errno::EBUSY, format!("another file system is mounted at {shown} already"))
            .hint(format!("umount {shown}, or choose another directory")));
    }
    let mut entries =
        fs::read_dir(&absolute).map_err(|e| Error::new(errno(&e), format!("mount point {shown}: {e}")))?;
    if entries.next().is_some() {
        return Err(Error::new(Errno::ENOTEMPTY, format!("mount point {shown} is not empty"))
            .hint("mount at an empty directory: the mount would hide what is in this one"));
    }
    Ok(absolute)
}

fn dead_mount(path: &Path) -> Error {
    let shown = path.display();
    Error::new(Errno::ENOTCONN, format!("{shown} is a mount whose process has died"))
        .hint(format!("umount -l {shown}, and mount again"))
}

fn device_error(e: &io::Error) -> Error {
    let error = Error::new(errno(e), format!("{}: {e}", sys::DEVICE));
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            error.hint("modprobe fuse; a container also needs --device /dev/fuse")
        }
        Some(libc::EPERM | libc::EACCES) => {
            error.hint("run as root; a container also needs --device /dev/fuse")
        }
        _ => error,
    }
}

fn mount_error(mountpoint: &Path, e: &io::Error) -> Error {
    let error = Error::new(errno(e), format!("mounting at {}: {e}", mountpoint.display()));
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            error.hint("run as root; a container also needs --cap-add SYS_ADMIN")
        }
        Some(libc::ENODEV) => error.hint("modprobe fuse"),
        _ => error,
    }
}

/// Returns the error number of an I/O error.
pub fn errno(e: &io::Error) -> Errno {
    Errno::Number(e.raw_os_error().unwrap_or(libc::EIO))
}

/// Returns `major:minor` of the newest mount at a path, without calling the file system itself.
fn device_number(mountpoint: &Path) -> Option<(u32, u32)> {
    number_in_mountinfo(&fs::read("/proc/self/mountinfo").ok()?, mountpoint)
}

fn number_in_mountinfo(table: &[u8], mountpoint: &Path) -> Option<(u32, u32)> {
    let newest = table.split(|&b| b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&b| b == b' ').skip(2);
        let number = fields.next()?;
        let path = unescape(fields.nth(1)?);
        let kind = line.windows(3).position(|w| w == b" - ").map(|at| &line[at + 3..])?;
        (path == mountpoint && kind.starts_with(FS_TYPE.as_bytes())).then_some(number)
    })?;
    let (major, minor) = std::str::from_utf8(newest).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns whether a mount in this table has neither `noatime` nor `ro`.
fn updates_atime_in(table: &[u8], (major, minor): (u32, u32)) -> bool {
    let number = format!("{major}:{minor}");
    let mut lines = table.split(|&b| b == b'\n').map(|line| line.split(|&b| b == b' ').collect::<Vec<_>>());
    let Some(line) = lines.find(|line| line.get(2) == Some(&number.as_bytes())) else { return false };
    let mut options = line.get(5).copied().unwrap_or_default().split(|&b| b == b',');
    !options.any(|option| option == b"noatime" || option == b"ro")
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = if first == b'\\' { tail.get(..3) } else { None };
        let code = code.and_then(|c| std::str::from_utf8(c).ok()).and_then(|c| u8::from_str_radix(c, 8).ok());
        match code {
            Some(byte) => {
                path.push(byte);
                rest = &tail[3..];
            }
            None => {
                path.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// Returns true for a path at which a weft file system is mounted, alive or not.
pub fn is_mounted(mountpoint: &Path) -> bool {
    let absolute = fs::canonicalize(mountpoint);
    device_number(absolute.as_deref().unwrap_or(mountpoint)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_mount_at_a_path_is_found() {
        let table = b"22 1 0:20 / / rw - ext4 /dev/vda rw\n\
            36 22 0:45 / /mnt/my\\040data rw,relatime shared:1 - fuse.weft weft rw\n\
            37 22 0:46 / /mnt/my\\040data rw,relatime - fuse.weft weft rw\n\
            38 22 0:47 / /mnt/other rw - tmpfs none rw\n";
        assert_eq!(number_in_mountinfo(table, Path::new("/mnt/my data")), Some((0, 46)));
        assert_eq!(number_in_mountinfo(table, Path::new("/mnt/other")), None);
        assert_eq!(number_in_mountinfo(table, Path::new("/mnt")), None);
        assert_eq!(number_in_mountinfo(b"", Path::new("/")), None);
    }

    #[test]
    fn mount_options_determine_atime_updates() {
        let table = b"36 22 0:45 / /a rw,relatime shared:1 - fuse.weft weft rw\n\
            37 22 0:46 / /b rw,nosuid,noatime - fuse.weft weft rw\n\
            38 22 0:47 / /c ro,relatime - fuse.weft weft rw\n";
        let kept: Vec<bool> = (45..49).map(|minor| updates_atime_in(table, (0, minor))).collect();
        assert_eq!(kept, [true, false, false, false]);
    }

    #[test]
    fn mount_points_are_checked_before_anything_happens() {
        let base = std::env::temp_dir().join(format!("weft-fuse-mountpoint-{}", std::process::id()));
        fs::create_dir_all(base.join("full/child")).unwrap();
        fs::create_dir_all(base.join("empty")).unwrap();
        fs::write(base.join("file"), b"").unwrap();
        let errno_of = |name: &str| check_mountpoint(&base.join(name)).map_err(|e| e.errno);
        assert_eq!(errno_of("missing"), Err(Errno::ENOENT));
        assert_eq!(errno_of("file"), Err(Errno::ENOTDIR));
        assert_eq!(errno_of("full"), Err(Errno::ENOTEMPTY));
        assert!(errno_of("empty").is_ok());
        assert_eq!(check_mountpoint(Path::new("/proc")).map_err(|e| e.errno), Err(Errno::EBUSY));
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(b"/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape(b"/tail\\04"), PathBuf::from("/tail\\04"));
    }
}
