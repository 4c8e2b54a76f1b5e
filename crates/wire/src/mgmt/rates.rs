//! What targets do, and how much of their ceilings that is.

use serde::{Deserialize, Serialize};
use types::TargetId;

/// What a target has done since its node's process has opened it, for programs and for copies
/// alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TargetWork {
    /// Transfers from it.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Transfers to it.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
}

/// How fast a target was in the last ten seconds, and how busy its drive, then and at most since
/// management was started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TargetRate {
    pub target: TargetId,
    /// Bytes a second.
    pub read_bytes: f64,
    pub written_bytes: f64,
    /// Transfers a second.
    pub reads: f64,
    pub writes: f64,
    /// The other targets with rates that are known to be on its drive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub one_drive_with: Vec<TargetId>,
    /// The share of the ceiling that binds, of all targets on its drive together; absent where
    /// ceilings are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<CeilingShare>,
    /// The largest share of any ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<CeilingShare>,
}

/// How much of a ceiling was reached.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CeilingShare {
    /// Which binds; `storage-write` and the like.
    pub limit: String,
    /// 1 is all. Above 1, memory of the node has answered.
    pub share: f64,
}
