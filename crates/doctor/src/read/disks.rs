//! File systems of directories.

use crate::TargetDir;
use crate::facts::FileSystem;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, openat, statvfs};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(super) fn directory(path: &Path) -> TargetDir {
    let file_system = file_system(path).map_err(|e| {
        let text = e.to_string();
        text.split(" (os error").next().unwrap_or(&text).to_lowercase()
    });
    TargetDir { path: path.to_path_buf(), file_system }
}

fn file_system(path: &Path) -> io::Result<FileSystem> {
    let path = existing_parent(
        &fs::canonicalize(path.parent().unwrap_or(path))
            .map_or_else(|_| path.to_path_buf(), |parent| parent.join(path.file_name().unwrap_or_default())),
    )?;
    let space = statvfs(&path)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let (mount_point, kind) =
        mount_of(&mounts, &path).ok_or_else(|| io::Error::other("its mount isn't listed"))?;
    Ok(FileSystem {
        kind,
        mount_point,
        is_read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
        size: space.f_blocks * space.f_frsize,
        free: space.f_bavail * space.f_frsize,
        inodes: (space.f_files, space.f_favail),
        has_direct_io: direct_io(&path),
    })
}

/// A directory that doesn't exist yet is created in the nearest one that does.
fn existing_parent(path: &Path) -> io::Result<PathBuf> {
    let mut ancestors = path.ancestors();
    let found = ancestors.find(|path| path.is_dir()).ok_or(io::ErrorKind::NotFound)?;
    fs::canonicalize(found)
}

/// Returns mount point and type of the file system at a path without symbolic links, from the text
/// of `/proc/self/mountinfo` (proc_pid_mountinfo(5)). The last of the longest mount points is on
/// top of the others.
fn mount_of(mounts: &str, path: &Path) -> Option<(PathBuf, String)> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(before.split(' ').nth(4)?));
        Some((point, after.split(' ').next()?.to_string()))
    };
    let of_path = mounts.lines().filter_map(mount).filter(|(point, _)| path.starts_with(point));
    of_path.max_by_key(|(point, _)| point.components().count())
}

/// Replaces the octal codes of blanks and backslashes.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (code, character)| text.replace(code, character))
}

/// Tries a nameless file with `O_DIRECT`. `None` where that isn't possible for another reason.
fn direct_io(dir: &Path) -> Option<bool> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let open = |more| openat(rustix::fs::CWD, dir, flags | more, Mode::RUSR | Mode::WUSR);
    match open(OFlags::DIRECT) {
        Ok(_) => Some(true),
        Err(rustix::io::Errno::INVAL) => open(OFlags::empty()).ok().map(|_| false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        30 22 0:25 / /srv/a\\040b rw shared:2 - xfs /dev/vdb rw\n\
        31 30 0:26 / /srv/a\\040b rw shared:3 - tmpfs tmpfs rw\n";

    #[test]
    fn the_top_of_the_nearest_mounts_is_found() {
        let of = |path: &str| mount_of(MOUNTS, Path::new(path)).unwrap();
        assert_eq!(of("/srv"), ("/".into(), "ext4".into()));
        assert_eq!(of("/srv/a b/t1"), ("/srv/a b".into(), "tmpfs".into()));
        assert_eq!(of("/srv/a bc"), ("/".into(), "ext4".into()));
    }

    #[test]
    fn a_directory_to_be_created_has_the_file_system_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let own = directory(dir.path()).file_system.unwrap();
        let inner = directory(&dir.path().join("a/b")).file_system.unwrap();
        assert_eq!((own.kind, own.size), (inner.kind, inner.size));
        assert!(own.size > 0);
    }
}
