//! Nodes that a member of the cluster can't reach.

use serde::{Deserialize, Serialize};
use types::NodeId;

/// Nodes that one report may name. A member that can reach none of many has a network of its own to
/// look at.
pub const MAX_UNREACHABLE: usize = 8;

/// A node that a member can't reach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnreachableNode {
    /// Which.
    pub node: NodeId,
    /// Address and cause.
    pub cause: String,
}
