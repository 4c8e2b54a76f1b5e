//! Mount points: checks, and the kernel's mount table.

use crate::output::os_error;
use rustix::io::Errno as Os;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// File system type of weft mounts in the kernel's list.
pub const FILE_SYSTEM_TYPE: &str = "fuse.weft";

/// Checks that a directory can be a mount point, before anything is created or changed. A leftover
/// weft mount of a killed process is unmounted.
pub fn prepare(mountpoint: &Path) -> Result<()> {
    let shown = mountpoint.display();
    if weft_mounts()?.iter().any(|m| m == mountpoint) {
        return unmount_leftover(mountpoint);
    }
    let meta = std::fs::metadata(mountpoint).map_err(|e| {
        let hint =
            if e.kind() == io::ErrorKind::NotFound { format!("mkdir -p {shown}") } else { String::new() };
        os_error(format_args!("mount point {shown}"), &e).hint(hint)
    })?;
    if !meta.is_dir() {
        return Err(Error::new(Errno::ENOTDIR, format!("mount point {shown} is not a directory"))
            .hint("name an empty directory with --mount"));
    }
    let parent = mountpoint.parent().and_then(|p| std::fs::metadata(p).ok());
    if parent.is_none_or(|p| p.dev() != meta.dev()) {
        return Err(Error::new(Errno::EBUSY, format!("something is mounted at {shown} already"))
            .hint(format!("umount {shown}, or name another directory with --mount")));
    }
    let mut entries =
        std::fs::read_dir(mountpoint).map_err(|e| os_error(format_args!("mount point {shown}"), &e))?;
    if entries.next().is_some() {
        return Err(Error::new(Errno::ENOTEMPTY, format!("mount point {shown} is not empty"))
            .hint("name an empty directory with --mount: the mount would hide what is in this one"));
    }
    Ok(())
}

/// Returns the absolute path of a mount point. A weft mount is never accessed: its process may be
/// gone or hang. Even a slash at the end of the path is removed, since it would make the kernel
/// check for a directory.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let plain: PathBuf =
        std::path::absolute(path).map_err(|e| os_error(path.display(), &e))?.components().collect();
    if let (Some(Ok(parent)), Some(name)) = (plain.parent().map(Path::canonicalize), plain.file_name()) {
        let path = parent.join(name);
        if is_weft_mount(&path)? {
            return Ok(path);
        }
    }
    if let Ok(resolved) = path.canonicalize() {
        return Ok(resolved);
    }
    let path = std::path::absolute(path).map_err(|e| os_error(path.display(), &e))?;
    Ok(match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path,
    })
}

/// Returns whether a weft file system is mounted there.
pub fn is_weft_mount(mountpoint: &Path) -> Result<bool> {
    Ok(weft_mounts()?.iter().any(|m| m == mountpoint))
}

/// A mount in this mount namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Mount point.
    pub at: PathBuf,
    /// Device; of a weft mount the state directory or the cluster file.
    pub source: PathBuf,
    /// Whether the file system is weft.
    pub is_weft: bool,
}

/// Returns all mounts; where several are at one path, the last one is visible.
pub fn all_mounts() -> Result<Vec<Mounted>> {
    let table = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(table).map_err(|e| os_error(table, &e))?;
    Ok(text.lines().filter_map(mounted).collect())
}

fn mounted(line: &str) -> Option<Mounted> {
    let (mount, device) = line.split_once(" - ")?;
    let mut device = device.split(' ');
    let is_weft = device.next()? == FILE_SYSTEM_TYPE;
    Some(Mounted { at: unescaped(mount.split(' ').nth(4)?), source: unescaped(device.next()?), is_weft })
}

/// Returns mount point and source of the weft mount that contains a path; `None` if another file
/// system does.
pub fn containing_mount(path: &Path) -> Result<Option<(PathBuf, PathBuf)>> {
    let device = std::fs::metadata(path).map_err(|e| os_error(path.display(), &e))?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(table).map_err(|e| os_error(table, &e))?;
    Ok(text.lines().filter(|line| line.split(' ').nth(2) == Some(&device)).rev().find_map(mount_and_source))
}

/// Returns whether a weft file system with this state directory as source is mounted, in this mount
/// namespace.
pub fn is_mounted_from(dir: &Path) -> Result<bool> {
    let table = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(table).map_err(|e| os_error(table, &e))?;
    Ok(text.lines().filter_map(mount_and_source).any(|(_, source)| source == dir))
}

/// Returns mount point and source of a line of mountinfo, if it is a weft mount.
fn mount_and_source(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (_, mounted) = line.split_once(" - ")?;
    Some((weft_mount(line)?, unescaped(mounted.split(' ').nth(1)?)))
}

/// Returns the file that aborts the FUSE connection of a mount when something is written to it.
pub fn abort_file(mountpoint: &Path) -> Result<Option<PathBuf>> {
    let connection = connection_of(mountpoint)?;
    Ok(connection.map(|number| PathBuf::from(format!("/sys/fs/fuse/connections/{number}/abort"))))
}

/// Returns the number of a mount's FUSE connection: the minor number of its device.
fn connection_of(mountpoint: &Path) -> Result<Option<u32>> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(path).map_err(|e| os_error(path, &e))?;
    let line = text.lines().rfind(|line| weft_mount(line).as_deref() == Some(mountpoint));
    let minor = line.and_then(|line| line.split(' ').nth(2)?.split_once(':')).map(|(_, minor)| minor);
    Ok(minor.and_then(|minor| minor.parse().ok()))
}

fn unmount_leftover(mountpoint: &Path) -> Result<()> {
    if is_served(mountpoint)? {
        let message = format!("{} has a weft file system mounted already", mountpoint.display());
        let hint = "name another mount point, or unmount that one: weft umount, with --force if its process hangs (or weft down --dir DIR)";
        return Err(Error::new(Errno::EBUSY, message).hint(hint));
    }
    tracing::warn!("unmounting {}, which a killed process left behind", mountpoint.display());
    rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH)
        .map_err(|e| os_error(format_args!("can't unmount {}", mountpoint.display()), &e.into()))
}

/// Returns whether a process serves the mount. A hanging process counts, and the file system must
/// not be accessed then: the access would hang as long, and couldn't even be killed.
fn is_served(mountpoint: &Path) -> Result<bool> {
    let Some(connection) = connection_of(mountpoint)? else { return Ok(false) };
    if is_connection_open(connection)?
        || crate::control::Control::of_mount(mountpoint).is_ok_and(|found| found.is_some())
    {
        return Ok(true);
    }
    // No weft process is visible: it may be in another container, or gone. This queries the file
    // system itself, since attributes of the mount point may still be in the kernel's cache.
    Ok(!matches!(rustix::fs::statfs(mountpoint), Err(Os::NOTCONN | Os::CONNABORTED | Os::CONNREFUSED)))
}

/// Returns whether a visible process has a FUSE connection open, if this kernel shows the
/// connection of a descriptor.
fn is_connection_open(connection: u32) -> Result<bool> {
    let line = format!("fuse_connection:\t{connection}");
    let processes = std::fs::read_dir("/proc").map_err(|e| os_error("/proc", &e))?;
    for process in processes.flatten() {
        // The process may have ended, or belong to another user.
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            let is_fuse = std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new("/dev/fuse"));
            let info = process.path().join("fdinfo").join(file.file_name());
            if is_fuse && std::fs::read_to_string(info).is_ok_and(|text| text.lines().any(|l| l == line)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Refuses a mount point inside the state directory or around it: the process would wait for
/// itself.
pub fn require_disjoint(dir: &Path, mountpoint: &Path) -> Result<()> {
    if !dir.starts_with(mountpoint) && !mountpoint.starts_with(dir) {
        return Ok(());
    }
    let message =
        format!("mount point {} and directory {} are inside each other", mountpoint.display(), dir.display());
    Err(Error::new(Errno::EINVAL, message).hint("name a mount point beside the directory with --mount"))
}

/// Returns the mount points of weft file systems in this mount namespace.
fn weft_mounts() -> Result<Vec<PathBuf>> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(path).map_err(|e| os_error(path, &e))?;
    Ok(text.lines().filter_map(weft_mount).collect())
}

/// Returns the mount point of a line of mountinfo (proc_pid_mountinfo(5)), if it is a weft mount.
fn weft_mount(line: &str) -> Option<PathBuf> {
    let (mount, device) = line.split_once(" - ")?;
    if device.split(' ').next()? != FILE_SYSTEM_TYPE {
        return None;
    }
    Some(unescaped(mount.split(' ').nth(4)?))
}

/// Decodes a path of mountinfo: space, tab, newline and backslash are three octal digits there.
fn unescaped(text: &str) -> PathBuf {
    let escaped = text.as_bytes();
    let mut path = Vec::with_capacity(escaped.len());
    let mut at = 0;
    while at < escaped.len() {
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
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found() {
        let ours = r"36 35 0:41 / /mnt/with\040space rw,relatime shared:1 - fuse.weft weft rw,user_id=0";
        assert_eq!(weft_mount(ours), Some("/mnt/with space".into()));
        assert_eq!(weft_mount("36 35 0:41 / /mnt rw - fuse.weft weft rw"), Some("/mnt".into()));
        let named = r"36 35 0:41 / /mnt rw - fuse.weft /srv/my\040weft rw";
        assert_eq!(mount_and_source(named), Some(("/mnt".into(), "/srv/my weft".into())));
        let shown = mounted(named).unwrap();
        assert_eq!((shown.at, shown.source, shown.is_weft), ("/mnt".into(), "/srv/my weft".into(), true));
        assert!(all_mounts().unwrap().iter().any(|m| m.at == Path::new("/proc") && !m.is_weft));
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(containing_mount(elsewhere.path()), Ok(None));
    }

    #[test]
    fn other_mounts_are_passed_over() {
        for line in ["", "36 35 98:0 / / rw - ext4 /dev/root rw", "36 35 0:4 / /mnt rw - fuse.other weft rw"]
        {
            assert_eq!(weft_mount(line), None);
        }
    }

    #[test]
    fn mount_points_are_checked_before_anything_happens() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(base.path().join("full/child")).unwrap();
        std::fs::create_dir(base.path().join("empty")).unwrap();
        std::fs::write(base.path().join("file"), "").unwrap();
        let errno = |path: &Path| prepare(path).map_err(|e| e.errno);
        assert_eq!(errno(&base.path().join("missing")), Err(Errno::ENOENT));
        assert_eq!(errno(&base.path().join("file")), Err(Errno::ENOTDIR));
        assert_eq!(errno(&base.path().join("full")), Err(Errno::ENOTEMPTY));
        assert_eq!(errno(&base.path().join("empty")), Ok(()));
        assert_eq!(errno(Path::new("/proc")), Err(Errno::EBUSY));
    }

    #[test]
    fn a_mount_point_must_be_apart_from_the_data() {
        let apart = |dir: &str, mount: &str| require_disjoint(Path::new(dir), Path::new(mount)).is_ok();
        assert!(apart("/a/data", "/a/mnt"));
        assert!(apart("/a/data", "/a/data2"));
        assert!(!apart("/a/data", "/a/data"));
        assert!(!apart("/a/data", "/a"));
        assert!(!apart("/a/data", "/a/data/mnt"));
    }
}
