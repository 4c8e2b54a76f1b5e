//! What is said over the control socket; `--json` prints the same.

use crate::node_config::TargetConfig;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use types::{CapacityClass, Errno, Error, NodeId, PoolId, TargetId, TargetState};

/// What a command asks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Request {
    /// [`ClusterStatus`].
    Status,
    /// A list of [`TargetStatus`].
    Targets,
    /// A list of [`PoolStatus`].
    Pools,
    /// [`DiskFree`].
    Df,
    /// A list of [`PeerInfo`]: the connections of a node or a mount.
    Net,
    /// [`MountSession`], of a mount.
    Session,
    /// [`MountHow`], of a mount.
    MountHow,
    /// What management answers to this.
    Manage { request: wire::MgmtRequest },
    /// A directory of this node becomes a target: its id.
    AddTarget { target: TargetConfig },
    /// A [`fsck::Report`] of the cluster as it is being used.
    Check {
        #[serde(default)]
        orders: CheckOrders,
    },
    /// [`CheckProgress`].
    CheckProgress,
    /// A [`fsck::Exposure`].
    Exposure,
    /// [`fsck::Losses`]: what would be lost if a target were removed that is offline.
    Losses { order: LossOrder },
    /// [`CopyMade`]: a copy of the metadata at this place, or in the folder that is the process's own for them.
    Backup { place: Option<PathBuf>, changes_only: bool },
    /// [`CopyProgress`].
    BackupProgress,
    /// A list of [`wire::mgmt::CeilingInfo`]: what the hardware gives. Ends early when the
    /// connection is closed.
    Measure { order: MeasureOrder },
    /// [`Stopping`], and then the end of the connection when the process has ended.
    Stop,
}

/// The answer line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Answer {
    Ok { ok: serde_json::Value },
    Error { error: String, hint: String, errno: i32 },
}

impl From<Answer> for types::Result<serde_json::Value> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Ok { ok } => Ok(ok),
            Answer::Error { error, hint, errno } => Err(Error::new(Errno(errno), error).hint(hint)),
        }
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Answer {
        let text =
            if error.message.is_empty() { error.errno.name().into() } else { error.message.to_string() };
        Answer::Error { error: text, hint: error.hint.into_owned(), errno: error.errno.0 }
    }
}

/// A running cluster. Sizes are bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ClusterStatus {
    pub version: String,
    pub name: String,
    pub uuid: String,
    pub pid: u32,
    pub uptime_s: u64,
    pub dir: String,
    pub mount: String,
    pub transport: String,
    pub durability: String,
    pub read_only: bool,
    /// The NUMA zone that the process is bound to.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Version of the cluster map.
    pub epoch: u64,
    pub capacity: u64,
    pub used: u64,
    pub free: u64,
    pub targets: Vec<TargetStatus>,
    /// Directories that this process should serve and doesn't.
    #[serde(default)]
    pub unserved: Vec<Unserved>,
    /// What was found when the process was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Notice>,
    pub counters: Counters,
}

/// Something that isn't as it should be, and that an administrator can change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// Object and cause.
    pub what: String,
    /// The remedy.
    pub hint: String,
}

/// A target's directory that isn't served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unserved {
    /// The directory.
    pub path: String,
    /// Why.
    pub cause: String,
    /// What the reader can do.
    pub hint: String,
}

/// Work done since the process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Requests from the kernel.
    pub fuse_requests: u64,
    /// Commands carried out by the metadata service.
    pub metadata_commands: u64,
    /// Batches that the commands were written in.
    pub metadata_batches: u64,
    /// Commits of the metadata store.
    pub metadata_commits: u64,
    /// Times that the metadata store was made durable.
    pub metadata_syncs: u64,
    /// Requests to storage targets.
    pub storage_requests: u64,
}

/// A target. Sizes are bytes; targets on one local file system have equal parts of its room.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TargetStatus {
    pub id: TargetId,
    pub pool: String,
    pub path: String,
    /// The NUMA zone that its disk is near, as far as this node's own file says so.
    #[serde(default)]
    pub numa: Option<u32>,
    pub state: TargetState,
    pub class: CapacityClass,
    pub capacity: u64,
    pub used: u64,
    pub free: u64,
    /// Requests since the process started.
    pub operations: u64,
}

/// A pool. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PoolStatus {
    pub id: PoolId,
    pub name: String,
    pub targets: usize,
    pub groups: usize,
    pub capacity: u64,
    pub used: u64,
    pub free: u64,
    /// Share of each target that new files leave free, percent.
    #[serde(default)]
    pub spare: u8,
}

/// Room in the whole cluster and in its parts, bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct DiskFree {
    pub mount: String,
    pub capacity: u64,
    pub used: u64,
    pub free: u64,
    pub targets: Vec<TargetStatus>,
}

/// A process that a node talks to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PeerInfo {
    pub name: String,
    /// In the peer's order of preference.
    pub addresses: Vec<String>,
    /// Those that this end may not use, and why.
    pub unused: Vec<String>,
    pub links: Vec<LinkInfo>,
}

/// The way of one core to a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LinkInfo {
    pub core: u32,
    /// Address and transport; `None` without a connection.
    pub connected: Option<String>,
    /// Addresses that weren't usable when they were last tried, and why.
    pub failures: Vec<String>,
    pub round_trip_us: Option<u64>,
    /// Connections that were made in all.
    pub connections: u64,
    pub requests: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// The session of a mount, and what became of those before. Times are seconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MountSession {
    /// The one in use, or the one that was ended last.
    pub session: u64,
    /// Why there is none at the moment.
    pub missing: Option<String>,
    /// The rack that the mount is in, if it is known.
    #[serde(default)]
    pub rack: Option<String>,
    /// How often another session took the place of one that the cluster had ended.
    pub replacements: u64,
    /// The last time.
    pub replaced: Option<ReplacedInfo>,
    /// Files of sessions that have ended, which their programs have yet to close.
    pub files_of_before: u64,
}

/// By what a mount reaches its cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MountHow {
    /// UUID of the cluster.
    pub cluster: String,
    /// The cluster file that it was mounted with.
    pub file: PathBuf,
    /// Networks that connections use, best first; none: all.
    pub networks: Vec<String>,
    /// The rack that was named.
    pub rack: Option<String>,
    pub timeout_s: u64,
    pub server_cache: bool,
    #[serde(default)]
    pub write_behind: bool,
    pub shared_memory: bool,
}

/// A session that the cluster has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ReplacedInfo {
    pub session: u64,
    /// When another one took its place.
    pub at_s: i64,
    /// Why it was ended.
    pub cause: String,
    /// Files that were open then.
    pub files: u64,
}

/// A copy of the metadata that was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyMade {
    /// Where it is.
    pub file: String,
    /// The copy that it builds on; none for a full one.
    pub base: Option<String>,
    /// The moment that it shows, seconds since 1970.
    pub created_s: i64,
    /// Keys that the store had at that moment.
    pub keys: u64,
    /// Of these, how many are in this file.
    pub written: u64,
    /// Keys of the base that were gone.
    pub removed: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// What a check of the file system is told to do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckOrders {
    /// Mend what can be mended.
    pub repair: bool,
    /// Give up what no copy has, and list it in this file, which is there.
    pub forget: Option<PathBuf>,
    /// Only what is at or below this path of the file system.
    pub path: Option<String>,
    /// Delete chunk files of no file, instead of moving them aside.
    pub delete: bool,
    /// Mend although the metadata looks older than the chunk files.
    pub accept_loss: bool,
}

/// What would be lost with a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LossOrder {
    /// The target.
    pub target: TargetId,
    /// All files are listed in this file, which is there.
    pub list: Option<PathBuf>,
}

/// How far a check is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckProgress {
    /// What it does.
    pub what: String,
    /// Of `total` things.
    pub done: u64,
    /// All of them.
    pub total: u64,
}

/// What is measured, each figure for so many milliseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MeasureOrder {
    /// A target's drive, in a file of so many bytes.
    Drive { target: TargetId, size: u64, milliseconds: u64 },
    /// The way from one node to another.
    Network { from: NodeId, to: NodeId, streams: u32, milliseconds: u64 },
    /// A node's memory and processor.
    Cpu { node: NodeId, milliseconds: u64 },
}

impl fmt::Display for MeasureOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeasureOrder::Drive { target, .. } => write!(f, "target {target}"),
            MeasureOrder::Network { from, to, streams, .. } => {
                write!(f, "node {from} to node {to}, {streams} streams")
            }
            MeasureOrder::Cpu { node, .. } => write!(f, "processor of node {node}"),
        }
    }
}

/// How far a copy of the metadata is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyProgress {
    /// Whether one is being made.
    pub is_running: bool,
    /// Keys that were read.
    pub keys: u64,
    /// Bytes of them and their values.
    pub bytes: u64,
}

/// The process has begun to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Stopping {
    pub pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_scripts_write() {
        assert_eq!(serde_json::from_str::<Request>(r#"{"cmd":"status"}"#).unwrap(), Request::Status);
        assert_eq!(serde_json::to_string(&Request::Df).unwrap(), r#"{"cmd":"df"}"#);
        assert!(serde_json::from_str::<Request>(r#"{"cmd":"explode"}"#).is_err());
    }

    #[test]
    fn errors_cross_the_socket() {
        let error = Error::new(Errno::EBUSY, "the mount is busy").hint("wait");
        let line = serde_json::to_string(&Answer::from(error.clone())).unwrap();
        let answer: Answer = serde_json::from_str(&line).unwrap();
        assert_eq!(types::Result::from(answer), Err(error));
    }
}
