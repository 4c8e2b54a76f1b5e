//! Inspecting mounts without accessing them, and removing them.
//!
//! A `stat` of a hung mount hangs, so this module uses only the kernel's list of mounts.

use crate::process;
use crate::sys;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest time of a clean unmount.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(60);

/// Where the kernel lists FUSE connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A mount in the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Minor number of its device, which names its FUSE connection.
    pub minor: u32,
    /// Mount point.
    pub path: PathBuf,
    /// Mount options.
    pub options: String,
    /// Type of the file system.
    pub kind: String,
}

/// Returns the topmost mount at exactly this path.
pub fn find(path: &Path) -> Option<Mounted> {
    list().into_iter().rev().find(|mount| mount.path == path)
}

/// Returns whether there is a mount below this folder.
pub fn any_below(folder: &Path) -> bool {
    list().iter().any(|mount| mount.path.starts_with(folder))
}

/// Returns all mount points, oldest first.
pub fn paths() -> Vec<PathBuf> {
    list().into_iter().map(|mount| mount.path).collect()
}

/// Returns all mounts, oldest first.
fn list() -> Vec<Mounted> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Parses one line of `/proc/self/mountinfo`.
fn parse(line: &str) -> Option<Mounted> {
    let (own, kernel) = line.split_once(" - ")?;
    let fields: Vec<&str> = own.split(' ').collect();
    let minor = fields.get(2)?.split_once(':')?.1.parse().ok()?;
    let path = fields.get(4)?.replace("\\040", " ");
    let kind = kernel.split(' ').next()?.to_string();
    Some(Mounted { minor, path: path.into(), options: fields.get(5)?.to_string(), kind })
}

/// Returns whether a weft is mounted here.
pub fn is_weft(path: &Path) -> bool {
    find(path).is_some_and(|mount| mount.kind.starts_with("fuse"))
}

/// Makes the kernel fail every present and future request of this FUSE mount.
pub fn abort(path: &Path) {
    let Some(mount) = find(path).filter(|mount| mount.kind.starts_with("fuse")) else { return };
    let connections = Path::new(CONNECTIONS);
    let ours = find(connections).is_none() && sys::mount("none", connections, "fusectl", 0).is_ok();
    if let Err(error) = fs::write(connections.join(mount.minor.to_string()).join("abort"), "1") {
        eprintln!("warning: cannot abort the FUSE connection of {}: {error}", path.display());
    }
    if ours {
        drop(sys::unmount(connections, 0));
    }
}

/// Unmounts cleanly; an error gives the reason of a failure.
pub fn unmount(path: &Path) -> Result<(), String> {
    if find(path).is_none() {
        return Ok(());
    }
    process::run_ok(Command::new("umount").arg(path), UNMOUNT_DEADLINE).map(drop)
}

/// Unmounts by all available means.
pub fn force_unmount(path: &Path) {
    if unmount(path).is_ok() {
        return;
    }
    abort(path);
    while find(path).is_some() {
        if let Err(error) = sys::unmount(path, libc::MNT_DETACH) {
            eprintln!("warning: {} stays mounted: {error}", path.display());
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line = "36 35 0:98 / /tmp/a\\040b rw,noatime shared:1 - fuse.weft weft rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!(mount.minor, 98);
        assert_eq!(mount.path, Path::new("/tmp/a b"));
        assert_eq!((mount.options.as_str(), mount.kind.as_str()), ("rw,noatime", "fuse.weft"));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(find(Path::new("/")).is_some());
        assert!(!is_weft(Path::new("/")));
    }
}
