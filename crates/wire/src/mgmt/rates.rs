//! Throughput of targets, and its share of their ceilings.

use serde::{Deserialize, Serialize};
use types::TargetId;

/// I/O counters of a target since its node's process opened it, for applications, resync and
/// migration alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IoCounters {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// Throughput of a target in the last ten seconds, and utilisation of its drive, then and at its
/// peak since management started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TargetRate {
    pub target: TargetId,
    /// Bytes read a second.
    pub read_bytes: f64,
    pub written_bytes: f64,
    /// Reads a second.
    pub reads: f64,
    pub writes: f64,
    /// Other targets with rates that are known to be on the same drive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub one_drive_with: Vec<TargetId>,
    /// Utilisation of the limiting ceiling, by all targets on its drive together; absent where
    /// ceilings are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<CeilingShare>,
    /// Highest utilisation in any ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<CeilingShare>,
}

/// Utilisation of a ceiling.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CeilingShare {
    /// The limiting ceiling; `storage-write` and the like.
    pub limit: String,
    /// 1 is the whole ceiling. Above 1, reads were served from the node's memory.
    pub share: f64,
}
