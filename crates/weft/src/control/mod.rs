//! How commands talk to the process that serves a cluster: a socket in the state directory, one JSON line
//! each way.
//!
//! A request is `{"cmd":"status"}`; the answer is `{"ok":…}` or `{"error":…,"hint":…}`. A connection that
//! asked for a stop is held open until the process ends, so that its end is the signal that everything is
//! over.

mod client;
mod protocol;
mod server;

pub use client::{Control, not_running};
pub use protocol::{
    Answer, ClusterStatus, Counters, DiskFree, LinkInfo, PeerInfo, PoolStatus, Request, Stopping,
    TargetStatus,
};
pub use server::{Service, start};

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest line either side accepts, bytes: the status of [`crate::cli`]'s most targets with long paths fits
/// many times.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// How long either side waits for the other's line.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// A short name for a socket at a path of any length: socket addresses end at 108 bytes. Valid while the
/// directory is held open.
fn short_path(dir: &std::fs::File, socket: &Path) -> PathBuf {
    let name = socket.file_name().expect("a socket's path ends with its name");
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}
