//! Messages of the control socket; `--json` prints the same.

use crate::node_config::TargetConfig;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use types::{CapacityClass, Errno, Error, NodeId, PoolId, TargetId, TargetState};
use wire::MgmtRequest;

/// A request of a command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Request {
    /// Returns [`ClusterStatus`].
    Status,
    /// Returns a list of [`TargetStatus`].
    Targets,
    /// Returns a list of [`PoolStatus`].
    Pools,
    /// Returns [`DiskFree`].
    Df,
    /// Returns a list of [`PeerInfo`]: the connections of a node or a mount.
    Net,
    /// Returns [`MountSession`] of a mount.
    Session,
    /// Returns [`MountHow`] of a mount.
    MountHow,
    /// Forwards the request to management, and returns its answer.
    Manage { request: MgmtRequest },
    /// Makes a directory of this node a target. Returns its id.
    AddTarget { target: TargetConfig },
    /// Checks the cluster while it is in use. Returns [`fsck::CheckReport`].
    Check {
        #[serde(default)]
        orders: CheckParameters,
    },
    /// Returns [`CheckProgress`].
    CheckProgress,
    /// Returns [`fsck::Exposure`].
    Exposure,
    /// Returns [`fsck::Losses`]: what would be lost by the removal of an offline target.
    Losses { order: LossParameters },
    /// Makes a metadata backup at this place, or in the process's own folder. Returns
    /// [`BackupResult`].
    Backup { place: Option<PathBuf>, changes_only: bool },
    /// Returns [`BackupProgress`].
    BackupProgress,
    /// Measures the hardware. Returns a list of [`wire::mgmt::CeilingInfo`]. Aborts when the caller
    /// closes the connection.
    Measure { order: MeasurementRequest },
    /// Replaces the log filter of the process, if there is one. Returns [`LogLevel`].
    Log { filter: Option<String> },
    /// Stops the process. Returns [`Stopping`]; the connection closes when the process has ended.
    Stop,
}

impl Request {
    /// Returns whether every user of a machine may send it to a mount: it changes nothing, and its
    /// answer is what a client of the cluster may see.
    pub fn is_public(&self) -> bool {
        match self {
            Request::Status | Request::Targets | Request::Pools | Request::Df => true,
            Request::Manage { request } => matches!(
                request,
                MgmtRequest::Health
                    | MgmtRequest::ListNodes
                    | MgmtRequest::ListTargets
                    | MgmtRequest::ListPools
                    | MgmtRequest::ListGroups
            ),
            _ => false,
        }
    }
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
            Answer::Error { error, hint, errno } => Err(Error::new(Errno::Number(errno), error).hint(hint)),
        }
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Answer {
        let text =
            if error.message.is_empty() { error.errno.name().into() } else { error.message.to_string() };
        Answer::Error { error: text, hint: error.hint.into_owned(), errno: wire::error_number(error.errno) }
    }
}

/// Status of a running cluster. Sizes are in bytes.
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
    /// NUMA zone that the process is bound to.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Epoch of the cluster map.
    pub epoch: u64,
    pub capacity: u64,
    pub used: u64,
    pub free: u64,
    pub targets: Vec<TargetStatus>,
    /// Directories that this process should serve but doesn't.
    #[serde(default)]
    pub unserved: Vec<UnservedTarget>,
    /// Problems that were found when the process was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Notice>,
    pub counters: Counters,
}

/// A problem that an administrator can solve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// Object and cause.
    pub what: String,
    /// Remedy.
    pub hint: String,
}

/// A target's directory that isn't served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnservedTarget {
    /// Path of the directory.
    pub path: String,
    /// Cause.
    pub cause: String,
    /// Remedy.
    pub hint: String,
}

/// Counts of work since the process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Requests from the kernel.
    pub fuse_requests: u64,
    /// Commands that the metadata service executed.
    pub metadata_commands: u64,
    /// Batches that wrote these commands.
    pub metadata_batches: u64,
    /// Commits of the metadata store.
    pub metadata_commits: u64,
    /// Syncs of the metadata store.
    pub metadata_syncs: u64,
    /// Requests to storage targets.
    pub storage_requests: u64,
}

/// A target. Sizes are in bytes; targets on one local file system have equal shares of its space.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TargetStatus {
    pub id: TargetId,
    pub pool: String,
    pub path: String,
    /// NUMA zone of its disk, if this node's own file gives it.
    #[serde(default)]
    pub numa: Option<u32>,
    pub state: TargetState,
    pub class: CapacityClass,
    pub capacity: u64,
    /// Upper bound of the bytes in weft's own files; all used space until they have been added up.
    pub used: u64,
    /// Used by other files on the same local file system.
    #[serde(default)]
    pub other: u64,
    pub free: u64,
    /// Requests since the process started; `None` if another process serves the target.
    #[serde(default)]
    pub operations: Option<u64>,
}

/// A pool. Sizes are in bytes.
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
    /// Percentage of each target that new files leave free.
    #[serde(default)]
    pub spare: u8,
}

/// Space of the whole cluster and of its targets, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct DiskFree {
    pub mount: String,
    pub capacity: u64,
    /// In weft's own files.
    pub used: u64,
    /// In other files on the disks of targets.
    #[serde(default)]
    pub other: u64,
    pub free: u64,
    pub targets: Vec<TargetStatus>,
}

/// A process that a node is connected to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PeerInfo {
    pub name: String,
    /// In the peer's order of preference.
    pub addresses: Vec<String>,
    /// Addresses that this end may not use, and why.
    pub unused: Vec<String>,
    pub links: Vec<LinkInfo>,
}

/// The connection of one core to a peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LinkInfo {
    pub core: u32,
    /// Address and transport; `None` without a connection.
    pub connected: Option<String>,
    /// Addresses that failed at the last attempt, and why.
    pub failures: Vec<String>,
    pub round_trip_us: Option<u64>,
    /// Number of connections made so far.
    pub connections: u64,
    pub requests: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// The session of a mount, and the sessions that it replaced. Times are seconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MountSession {
    /// The current session, or the last one that was ended.
    pub session: u64,
    /// Why there is no session now.
    pub missing: Option<String>,
    /// Rack of the mount, if known.
    #[serde(default)]
    pub rack: Option<String>,
    /// Number of session failovers.
    pub replacements: u64,
    /// The last session failover.
    pub replaced: Option<ReplacedSessionInfo>,
    /// Files of ended sessions that applications still have open.
    pub files_of_before: u64,
}

/// Settings by which a mount reaches its cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MountSettings {
    /// UUID of the cluster.
    pub cluster: String,
    /// Cluster file of the mount.
    pub file: PathBuf,
    /// Networks for connections, best first; empty: all.
    pub networks: Vec<String>,
    /// Rack from the command line or the cluster file.
    pub rack: Option<String>,
    pub timeout_s: u64,
    pub server_cache: bool,
    #[serde(default)]
    pub write_behind: bool,
    #[serde(default)]
    pub wsync: bool,
    pub shared_memory: bool,
    /// Whether it answers other users than root, too.
    #[serde(default)]
    pub public_socket: bool,
}

/// A session that the cluster has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ReplacedSessionInfo {
    pub session: u64,
    /// When another session replaced it.
    pub at_s: i64,
    /// Why it was ended.
    pub cause: String,
    /// Files that were open then.
    pub files: u64,
}

/// A metadata backup that was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackupResult {
    /// Path of the backup.
    pub file: String,
    /// The backup that it builds on; `None` for a full one.
    pub base: Option<String>,
    /// Point in time of its content, in seconds since 1970.
    pub created_s: i64,
    /// Keys of the store at that time.
    pub keys: u64,
    /// How many of them are in this file.
    pub written: u64,
    /// Keys of the base that were deleted.
    pub removed: u64,
    /// Length of the file, in bytes.
    pub bytes: u64,
}

/// Options of a file system check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckParameters {
    /// Repair damage.
    pub repair: bool,
    /// Give up content that no replica has, and list it in this file, which exists.
    pub forget: Option<PathBuf>,
    /// Check only this path of the file system and everything below it.
    pub path: Option<String>,
    /// Delete orphaned chunk files, instead of moving them aside.
    pub delete: bool,
    /// Repair even if the metadata looks older than the chunk files.
    pub accept_loss: bool,
}

/// Parameters for listing what would be lost with a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LossParameters {
    /// Id of the target.
    pub target: TargetId,
    /// File for the list of all files, which exists.
    pub list: Option<PathBuf>,
}

/// Progress of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckProgress {
    /// Current step.
    pub what: String,
    /// Items done of `total`.
    pub done: u64,
    /// Number of items.
    pub total: u64,
}

/// What to measure, and the duration of each measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MeasurementRequest {
    /// A target's drive, with a file of this size in bytes.
    Drive { target: TargetId, size: u64, milliseconds: u64 },
    /// The network from one node to another.
    Network { from: NodeId, to: NodeId, streams: u32, milliseconds: u64 },
    /// A node's memory and processor.
    Cpu { node: NodeId, milliseconds: u64 },
}

impl fmt::Display for MeasurementRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeasurementRequest::Drive { target, .. } => write!(f, "target {target}"),
            MeasurementRequest::Network { from, to, streams, .. } => {
                write!(f, "node {from} to node {to}, {streams} streams")
            }
            MeasurementRequest::Cpu { node, .. } => write!(f, "processor of node {node}"),
        }
    }
}

/// Progress of a metadata backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackupProgress {
    /// Whether a backup is being made.
    pub is_running: bool,
    /// Keys read so far.
    pub keys: u64,
    /// Bytes of these keys and their values.
    pub bytes: u64,
}

/// Log filter of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogLevel {
    /// Levels, as `weft log level` takes them.
    pub filter: String,
}

/// Answer to a stop request: the process has begun to stop.
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
