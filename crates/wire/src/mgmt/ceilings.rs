//! Measured ceilings of the hardware, as management stores them.

use serde::{Deserialize, Serialize};

/// Largest number of stored ceilings, and of those in one [`crate::MgmtRequest::NoteCeilings`].
pub const MAX_CEILINGS: usize = 10_000;

/// Measured performance of the hardware at one place, as `bench` reports it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CeilingInfo {
    /// The limit: `storage-write` and the like.
    pub limit: String,
    /// The place: `target 3`, `node 1 to node 2`, `node 1`.
    pub place: String,
    /// Bytes or operations a second, depending on the limit.
    pub rate: f64,
    /// Number of streams, transfers or threads that achieved the highest rate.
    pub streams: u32,
    /// Time of the measurement, RFC 3339.
    pub measured: String,
}

/// When a place was last measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MeasuredPlace {
    /// The place: a target, a node, or a pair of nodes.
    pub place: String,
    /// RFC 3339; `None`: never.
    #[serde(default)]
    pub measured: Option<String>,
}
