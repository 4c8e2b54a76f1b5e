//! What the hardware gives, as management keeps it.

use serde::{Deserialize, Serialize};

/// Ceilings that are kept, and that one [`MgmtRequest::NoteCeilings`] may bring.
pub const MAX_CEILINGS: usize = 10_000;

/// What the hardware gives at one place, as `bench` has it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CeilingInfo {
    /// Of what; `storage-write` and the like.
    pub limit: String,
    /// Where: `target 3`, `node 1 to node 2`, `node 1`.
    pub place: String,
    /// Bytes or operations a second, as the limit says.
    pub rate: f64,
    /// The number of streams, transfers or threads that gave most.
    pub streams: u32,
    /// When it was measured, RFC 3339.
    pub measured: String,
}

/// When what a place gives was measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MeasuredPlace {
    /// Where: a target, a node, or a pair of nodes.
    pub place: String,
    /// RFC 3339; `None`: never.
    #[serde(default)]
    pub measured: Option<String>,
}
