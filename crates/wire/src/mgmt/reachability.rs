//! Nodes that a member of the cluster can't reach.

use serde::{Deserialize, Serialize};
use types::NodeId;

/// Largest number of nodes in one report. A member that reaches none of many nodes has a problem in
/// its own network.
pub const MAX_UNREACHABLE: usize = 8;

/// A node that a member can't reach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnreachableNode {
    /// The node.
    pub node: NodeId,
    /// Address and cause.
    pub cause: String,
}
