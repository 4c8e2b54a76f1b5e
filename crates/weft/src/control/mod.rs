//! The control socket between commands and the process that serves a cluster. It is in the state
//! directory, and carries one JSON line each way. The process of a mount has one, too, in
//! `/run/weft`, and a public one that answers a few requests of every user ([`public`]).
//!
//! A request is `{"cmd":"status"}`; the answer is `{"ok":…}` or `{"error":…,"hint":…}`. A
//! connection that requested a stop stays open until the process ends, so its end shows that the
//! stop is complete.

mod client;
mod leftovers;
mod protocol;
mod public;
mod server;

pub use client::{Control, not_running};
pub use leftovers::{lock_and_clear, make_private_folder};
pub use protocol::{
    Answer, BackupProgress, BackupResult, CheckParameters, CheckProgress, ClusterStatus, Counters, DiskFree,
    LinkInfo, LogLevel, LossParameters, MeasurementRequest, MountSession, MountSettings, Notice, PeerInfo,
    PoolStatus, ReplacedSessionInfo, Request, Stopping, TargetStatus, UnservedTarget,
};
pub use public::{PublicSocket, public_socket};

pub use server::{Service, start};

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest request, in bytes: those with a list have some thousand items at most.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Longest answer, in bytes: it may contain the longest answer of a service, as text.
const MAX_ANSWER_BYTES: u64 = 2 * wire::frame::MAX_ANSWER_BYTES as u64;

/// Directory with the control sockets of root's mounts.
const RUN_DIR: &str = "/run/weft";

/// Longest part of a mount point in the name of its socket, in bytes. With a checksum before it,
/// and the prefix of [`short_path`], the name must fit a socket address.
const MAX_MOUNT_NAME: usize = 64;

/// Time-out of either side for the other's line.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the possible paths of a mount's control socket, best first: processes of root use the
/// first one.
pub fn mount_sockets(mountpoint: &Path) -> Vec<PathBuf> {
    private_folders().into_iter().map(|folder| folder.join(mount_name(mountpoint))).collect()
}

/// Returns the possible folders of mounts' control sockets, best first.
fn private_folders() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("weft"));
    [Some(PathBuf::from(RUN_DIR)), session].into_iter().flatten().collect()
}

/// Returns the path of a mount's public socket.
fn public_path(mountpoint: &Path) -> PathBuf {
    Path::new(public::PUBLIC_DIR).join(mount_name(mountpoint))
}

/// Returns a unique file name for a mount point: `/mnt/a` becomes `mnt-a.sock`. Special characters
/// are written as numbers. A long path is reduced to its end, after a checksum of the whole.
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

/// Returns a short path of a socket in a folder with a path of any length: socket addresses are
/// limited to 108 bytes, of which this prefix takes up to 22. Valid while the directory is held
/// open.
fn short_path(dir: &std::fs::File, socket: &Path) -> PathBuf {
    let name = socket.file_name().expect("a socket's path ends with its name");
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}
