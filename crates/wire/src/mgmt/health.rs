//! Health of a cluster: an overall status and its details.

use super::{MeasuredPlace, TargetRate};
use serde::{Deserialize, Serialize};

/// Overall health status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No action needed.
    Healthy,
    /// Everything is reachable, but an administrator should check something.
    Warning,
    /// Some data can't be read or written.
    Critical,
}

/// The health of a cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Health {
    pub verdict: Verdict,
    pub findings: Vec<HealthFinding>,
    /// Daily backups of the metadata; absent where none are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<BackupsInfo>,
    /// The metadata store; absent where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreInfo>,
    /// When the ceilings of each target and node were last measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<MeasuredPlace>,
    /// Throughput of targets, and its share of their ceilings; for targets with recent reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<TargetRate>,
}

/// Daily backups of the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackupsInfo {
    /// Their folder, on the management node.
    pub folder: String,
    /// Number of retained backups; 0: none are made.
    pub kept: u32,
    /// File of the newest one.
    pub newest: Option<String>,
    /// Age of the newest one in seconds.
    pub age_s: Option<u64>,
    /// Error of the last attempt, if it failed.
    pub failure: Option<String>,
}

/// The metadata store and its disk; sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreInfo {
    /// Its folder, on the management node.
    pub path: String,
    /// Size of the store.
    pub used: u64,
    /// Capacity of the disk.
    pub capacity: u64,
    /// Free space of the disk.
    pub free: u64,
    /// Free space that is needed to create anything.
    pub needed: u64,
}

/// A problem of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HealthFinding {
    /// Severity.
    pub verdict: Verdict,
    /// Object and cause.
    pub what: String,
    /// The remedy.
    pub hint: String,
}
