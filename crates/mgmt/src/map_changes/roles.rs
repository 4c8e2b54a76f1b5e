//! Roles of nodes. Services of other nodes permit a node only what its roles in the map need.

use super::Roster;
use crate::refusal;
use types::{Node, NodeId, NodeState, Result, Role, TargetId};

impl Roster {
    /// Sets the roles of a node.
    ///
    /// # Errors
    /// Management stays on its node, with its metadata service. The role `storage` can be removed
    /// only without targets. The role `meta` is added and removed while the node is stopped:
    /// partitions are assigned to running nodes.
    pub fn set_roles(&mut self, node: NodeId, roles: &[Role]) -> Result<()> {
        let known = self.known_node(node)?;
        let mut roles = roles.to_vec();
        roles.sort_unstable();
        roles.dedup();
        let has = |role: Role| roles.contains(&role);
        let had = |role: Role| known.roles.contains(&role);
        let is_kept = has(Role::Mgmt) == had(Role::Mgmt) && (has(Role::Meta) || !has(Role::Mgmt));
        if roles.is_empty() || !is_kept {
            return Err(refusal::invalid_roles(known, &roles));
        }
        if !has(Role::Storage) {
            self.require_no_targets(known)?;
        }
        if has(Role::Meta) != had(Role::Meta) {
            self.require_stopped(known)?;
        }
        self.node_mut(node)?.roles = roles;
        Ok(())
    }

    pub(super) fn require_no_targets(&self, node: &Node) -> Result<()> {
        let targets: Vec<TargetId> =
            self.map.targets.iter().filter(|t| t.node == node.id).map(|t| t.id).collect();
        if targets.is_empty() { Ok(()) } else { Err(refusal::node_has_targets(node, &targets)) }
    }

    /// Refuses a running node, and the only one that may own partitions.
    pub(super) fn require_stopped(&self, node: &Node) -> Result<()> {
        if node.state != NodeState::Offline {
            return Err(refusal::node_serves(node));
        }
        match self.map.partitions.contains(&node.id) {
            true => Err(refusal::node_has_partitions(node)),
            false => Ok(()),
        }
    }
}
