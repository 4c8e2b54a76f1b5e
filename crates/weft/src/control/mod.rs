//! How commands talk to the process that serves a cluster: a socket in the state directory, one
//! JSON line each way. The process of a mount has one, too, in `/run/weft`.
//!
//! A request is `{"cmd":"status"}`; the answer is `{"ok":…}` or `{"error":…,"hint":…}`. A
//! connection that asked for a stop is held open until the process ends, so that its end is the
//! signal that everything is over.

mod client;
mod protocol;
mod server;

pub use client::{Control, not_running};
pub use protocol::{
    Answer, CheckOrders, CheckProgress, ClusterStatus, CopyMade, CopyProgress, Counters, DiskFree, LinkInfo,
    LossOrder, MeasureOrder, MountHow, MountSession, Notice, PeerInfo, PoolStatus, ReplacedInfo, Request,
    Stopping, TargetStatus, Unserved,
};
pub use server::{Service, start};

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest request, bytes: those that hold a list have some thousand items at most.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Longest answer, bytes: it may hold the longest answer of a service, as text.
const MAX_ANSWER_BYTES: u64 = 2 * wire::frame::MAX_ANSWER_BYTES as u64;

/// Where the control sockets of root's mounts are.
const RUN_DIR: &str = "/run/weft";

/// The longest part of a mount point in the name of its socket, bytes: with a sum before it and
/// what [`short_path`] puts before that, it has to fit the address of a socket.
const MAX_MOUNT_NAME: usize = 64;

/// How long either side waits for the other's line.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the control socket of a mount may be, best first: processes of root have theirs in the
/// first place.
pub fn mount_sockets(mountpoint: &Path) -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("weft"));
    let folders = [Some(PathBuf::from(RUN_DIR)), session];
    folders.into_iter().flatten().map(|folder| folder.join(mount_name(mountpoint))).collect()
}

/// A file name of its own for each mount point: `/mnt/a` is `mnt-a.sock`, other characters than the
/// plain ones are written as numbers, and of a long path there is the end and a sum of the whole.
fn mount_name(mountpoint: &Path) -> String {
    let path = mountpoint.as_os_str().as_bytes();
    let mut name = String::new();
    for &byte in path.strip_prefix(b"/").unwrap_or(path) {
        match byte {
            b'/' => name.push('-'),
            b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => name.push(byte.into()),
            _ => name += &format!("%{byte:02x}"),
        }
    }
    if name.len() > MAX_MOUNT_NAME {
        name = format!("{:08x}%{}", types::crc32c(path), &name[name.len() - MAX_MOUNT_NAME..]);
    }
    name + ".sock"
}

/// A short path of a socket in a folder with a path of any length: socket addresses end at 108
/// bytes, of which this takes up to 22. Valid while the directory is held open.
fn short_path(dir: &std::fs::File, socket: &Path) -> PathBuf {
    let name = socket.file_name().expect("a socket's path ends with its name");
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}
