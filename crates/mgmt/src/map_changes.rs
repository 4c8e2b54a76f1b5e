//! Changes of the cluster map on behalf of administrators and nodes, permitted or refused. Pure.

mod exports;
mod groups;
mod roles;
mod settings;

use crate::limits::{MAX_ADDRESSES, MAX_NAME, MAX_NODES, MAX_TARGETS};
use crate::liveness::{Liveness, is_skewed};
use crate::refusal;
use crate::removal::sole_in_sync_groups;
use crate::replacement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use types::{
    CapacityClass, ClusterMap, Error, Group, GroupId, Node, NodeId, NodeState, Pool, PoolId, Result, Role,
    Target, TargetId, TargetState,
};
use wire::mgmt::{Join, NodeChange, Register, TargetReport};

/// A name that no rack can have, since on the command line it means no rack.
const NO_RACK: &str = "none";

/// The next numbers; assigned ones are never reused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NextNumbers {
    pub next_node: u32,
    pub next_target: u32,
    pub next_pool: u16,
    /// Of mirrored groups; 0 in a cluster from before there were any.
    #[serde(default)]
    pub next_group: u32,
}

/// The map with the state that is needed to change it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    pub map: ClusterMap,
    pub numbers: NextNumbers,
}

/// Identity of management, for errors and checks.
#[derive(Clone, Debug)]
pub struct ManagementIdentity {
    /// UUID of the cluster.
    pub uuid: String,
    /// Version of weft that management runs.
    pub version: String,
}

impl NextNumbers {
    /// Numbers above all in a map, for one from before numbers were stored.
    pub fn above(map: &ClusterMap) -> NextNumbers {
        NextNumbers {
            next_node: map.nodes.last().map_or(1, |n| n.id.0 + 1),
            next_target: map.targets.last().map_or(1, |t| t.id.0 + 1),
            next_pool: map.pools.last().map_or(1, |p| p.id.0 + 1),
            next_group: map.groups.last().map_or(0, |g| g.id.0 + 1).max(layout::FIRST_MIRRORED),
        }
    }
}

impl Roster {
    /// Adds a machine as a node.
    pub fn join(&mut self, join: &Join, host: &ManagementIdentity, now_s: i64) -> Result<Node> {
        let who = if join.name.is_empty() { "the new node" } else { &join.name };
        check_version(who, &join.version, &host.version)?;
        check_clock(who, join.clock_s.saturating_sub(now_s))?;
        if join.roles.is_empty() || join.roles.contains(&Role::Mgmt) {
            return Err(refusal::unsupported_roles(&join.roles));
        }
        self.check_addresses(NodeId(self.numbers.next_node), &join.addresses)?;
        if self.map.nodes.len() >= MAX_NODES {
            return Err(refusal::too_many_nodes());
        }
        let id = NodeId(self.numbers.next_node);
        let name = if join.name.is_empty() { default_node_name(id) } else { join.name.clone() };
        check_name("node", &name)?;
        self.require_free_node_name(&name, id)?;
        join.rack.as_deref().map_or(Ok(()), check_rack)?;
        let node = Node {
            id,
            name,
            addresses: join.addresses.clone(),
            roles: join.roles.clone(),
            state: NodeState::Offline,
            version: join.version.clone(),
            rack: join.rack.clone(),
        };
        self.numbers.next_node += 1;
        self.map.nodes.push(node.clone());
        Ok(node)
    }

    /// Registers a node that starts to serve; `liveness` shows which others serve.
    pub fn register(
        &mut self,
        request: &Register,
        liveness: &Liveness,
        host: &ManagementIdentity,
        now_s: i64,
    ) -> Result<()> {
        if request.cluster != host.uuid {
            return Err(refusal::other_cluster(&request.cluster, &host.uuid));
        }
        let node = self.known_node(request.node)?;
        let who = format!("node {} ({})", node.id, node.name);
        check_version(&who, &request.version, &host.version)?;
        check_clock(&who, request.clock_s.saturating_sub(now_s))?;
        self.check_addresses(request.node, &request.addresses)?;
        let is_other_process =
            liveness.process(request.node).is_some_and(|seen| seen.instance != request.instance);
        // At the same address it can only be the successor of a dead process.
        if is_other_process && node.state != NodeState::Offline && node.addresses != request.addresses {
            return Err(refusal::duplicate_node(node));
        }
        for report in &request.targets {
            self.check_claim(request.node, report, host)?;
        }
        let node = self.node_mut(request.node)?;
        node.addresses = request.addresses.clone();
        node.version = request.version.clone();
        node.state = NodeState::Online;
        for report in &request.targets {
            // A removed target has no owner, and doesn't prevent serving the node's others.
            if let Ok(target) = self.target_mut(report.target) {
                target.node = request.node;
                target.path = report.path.clone();
            }
        }
        Ok(())
    }

    /// Refuses a target of another cluster or another node.
    fn check_claim(&self, node: NodeId, report: &TargetReport, host: &ManagementIdentity) -> Result<()> {
        let (id, path) = (report.target, &report.path);
        if report.cluster != host.uuid {
            return Err(refusal::foreign_target(id, path, &report.cluster, &host.uuid));
        }
        match self.map.target(id) {
            Some(_) => require_claimable(&self.map, node, id, path),
            None => Ok(()),
        }
    }

    /// Makes a directory of a node a target. A repeated request before the target is first served
    /// returns the same id.
    pub fn add_target(&mut self, node: NodeId, path: &str, pool: &str) -> Result<TargetId> {
        self.known_node(node)?;
        if let Some(known) = self.map.targets.iter().find(|t| t.node == node && t.path == path) {
            return Ok(known.id);
        }
        if self.map.targets.len() >= MAX_TARGETS {
            return Err(refusal::too_many_targets());
        }
        let pool = self.pool_or_new(pool)?;
        let id = TargetId(self.numbers.next_target);
        self.numbers.next_target += 1;
        self.map.targets.push(Target {
            id,
            node,
            pool,
            path: path.to_string(),
            // Until its node reports that it serves it.
            state: TargetState::Offline,
            capacity: 0,
            free: 0,
            class: CapacityClass::Normal,
            drain: false,
            used: None,
        });
        self.add_single_groups();
        Ok(id)
    }

    /// Assigns the target to a pool for new files.
    pub fn set_pool(&mut self, target: TargetId, pool: &str) -> Result<()> {
        let before = self.known_target(target)?.pool;
        if self.map.pool_named(pool).is_some_and(|same| same.id == before) {
            return Ok(());
        }
        self.require_not_last(target)?;
        self.set_pool_of_last(target, pool)
    }

    /// The same for the last target of a pool; the caller ensures that no inode refers to the pool.
    pub fn set_pool_of_last(&mut self, target: TargetId, pool: &str) -> Result<()> {
        self.known_target(target)?;
        self.require_no_member(target, "change its pool")?;
        let pool = self.pool_or_new(pool)?;
        self.target_mut(target)?.pool = pool;
        for group in self.map.groups.iter_mut().filter(|g| g.members == [target]) {
            group.pool = pool;
        }
        self.add_missing_groups(pool);
        Ok(())
    }

    /// Starts or ends draining of the target.
    pub fn set_drain(&mut self, target: TargetId, drain: bool) -> Result<()> {
        self.known_target(target)?;
        if drain {
            self.require_not_last(target)?;
        }
        self.target_mut(target)?.drain = drain;
        if !drain {
            self.add_missing_groups(self.known_target(target)?.pool);
        }
        Ok(())
    }

    /// Excludes the target from new files, or admits it again, even if it is the last of its pool.
    /// The caller ensures that no inode refers to the pool.
    pub fn set_drain_unchecked(&mut self, target: TargetId, drain: bool) -> Result<()> {
        self.target_mut(target)?.drain = drain;
        Ok(())
    }

    /// Refuses to exclude the only target of a pool that gets new files.
    fn require_not_last(&self, target: TargetId) -> Result<()> {
        let current = self.known_target(target)?;
        let takes_files = |t: &&Target| t.pool == current.pool && !t.drain;
        let mut others = self.map.targets.iter().filter(takes_files).filter(|t| t.id != target);
        match current.drain || others.next().is_some() {
            true => Ok(()),
            false => Err(refusal::last_of_pool(target, &self.pool_name(current.pool))),
        }
    }

    /// Refuses to remove a target that may get new files. The caller ensures that it holds none.
    pub fn ensure_removable(&self, target: TargetId) -> Result<()> {
        self.require_no_member(target, "be removed")?;
        match self.known_target(target)?.drain {
            true => Ok(()),
            false => Err(refusal::not_drained(target)),
        }
    }

    /// Removes a target, with its group.
    pub fn remove_target(&mut self, target: TargetId) -> Result<()> {
        self.ensure_removable(target)?;
        self.map.targets.retain(|t| t.id != target);
        self.map.groups.retain(|g| !g.members.contains(&target));
        Ok(())
    }

    /// Removes an offline target. `alone`: the groups of which it was the only member in sync when
    /// their files were counted; those that are `used` are lost from now on. Other targets replace
    /// it in its other groups.
    pub fn remove_offline_target(
        &mut self,
        target: TargetId,
        sole_groups: &BTreeSet<GroupId>,
        used: &BTreeSet<GroupId>,
    ) -> Result<()> {
        let known = self.known_target(target)?;
        if known.state != TargetState::Offline || sole_in_sync_groups(&self.map, target) != *sole_groups {
            return Err(refusal::state_changed(target));
        }
        replacement::replace_offline(&mut self.map, target, sole_groups)?;
        for group in self.map.groups.iter_mut().filter(|group| sole_groups.contains(&group.id)) {
            group.mark_lost();
        }
        // Members of mirrored groups may have replicas that aren't in sync: they remove them while
        // the map has the group.
        let stays = |group: &Group| group.scheme.spans_targets() || used.contains(&group.id);
        self.map.groups.retain(|group| !sole_groups.contains(&group.id) || stays(group));
        self.map.targets.retain(|t| t.id != target);
        Ok(())
    }

    /// Renames a node.
    pub fn rename_node(&mut self, node: NodeId, name: &str) -> Result<()> {
        self.known_node(node)?;
        check_name("node", name)?;
        self.require_free_node_name(name, node)?;
        self.node_mut(node)?.name = name.to_string();
        Ok(())
    }

    /// Sets the rack of a node. Groups stay as they are until an administrator rebalances them.
    pub fn set_rack(&mut self, node: NodeId, rack: Option<&str>) -> Result<()> {
        self.known_node(node)?;
        rack.map_or(Ok(()), check_rack)?;
        self.node_mut(node)?.rack = rack.map(String::from);
        Ok(())
    }

    /// Several changes of a node. The caller doesn't store a roster that refuses one of them.
    pub fn set_node(&mut self, node: NodeId, changes: &[NodeChange]) -> Result<()> {
        changes.iter().try_for_each(|change| match change {
            NodeChange::Name(name) => self.rename_node(node, name),
            NodeChange::Rack(rack) => self.set_rack(node, rack.as_deref()),
            NodeChange::Roles(roles) => self.set_roles(node, roles),
        })
    }

    /// Removes a node.
    pub fn remove_node(&mut self, node: NodeId) -> Result<()> {
        let known = self.map.node(node).ok_or_else(|| refusal::no_node(node))?;
        if known.roles.contains(&Role::Mgmt) {
            return Err(refusal::management_node(known));
        }
        self.require_no_targets(known)?;
        self.require_stopped(known)?;
        self.map.nodes.retain(|n| n.id != node);
        Ok(())
    }

    /// Renames a pool.
    pub fn rename_pool(&mut self, pool: &str, name: &str) -> Result<()> {
        let id = self.map.pool_named(pool).ok_or_else(|| refusal::no_pool(pool))?.id;
        check_name("pool", name)?;
        if self.map.pool_named(name).is_some_and(|other| other.id != id) {
            return Err(refusal::taken_name("pool", name));
        }
        for pool in self.map.pools.iter_mut().filter(|p| p.id == id) {
            pool.name = name.to_string();
        }
        Ok(())
    }

    /// Removes a pool.
    pub fn remove_pool(&mut self, pool: &str) -> Result<()> {
        let id = self.map.pool_named(pool).ok_or_else(|| refusal::no_pool(pool))?.id;
        let count = self.map.targets.iter().filter(|t| t.pool == id).count();
        if count > 0 {
            return Err(refusal::pool_has_targets(pool, count));
        }
        if id == crate::management::DEFAULT_POOL.0 {
            return Err(refusal::default_pool(pool));
        }
        self.map.pools.retain(|p| p.id != id);
        Ok(())
    }

    /// Sets the state of a node that shuts down, or whose heartbeats are overdue.
    pub fn set_node_state(&mut self, node: NodeId, state: NodeState) {
        if let Some(node) = self.map.nodes.iter_mut().find(|n| n.id == node) {
            node.state = state;
        }
    }

    fn pool_or_new(&mut self, name: &str) -> Result<PoolId> {
        if let Some(known) = self.map.pool_named(name) {
            return Ok(known.id);
        }
        check_name("pool", name)?;
        let id = PoolId(self.numbers.next_pool);
        self.numbers.next_pool += 1;
        self.map.pools.push(Pool { id, name: name.to_string(), spare: 0 });
        Ok(id)
    }

    fn pool_name(&self, id: PoolId) -> String {
        self.map.pool(id).map_or_else(|| id.to_string(), |pool| pool.name.clone())
    }

    fn check_addresses(&self, node: NodeId, addresses: &[String]) -> Result<()> {
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
            return Err(refusal::bad_addresses(addresses.len()));
        }
        for address in addresses {
            check_address(address)?;
            let taken = |other: &&Node| other.id != node && other.addresses.contains(address);
            if let Some(other) = self.map.nodes.iter().find(taken) {
                return Err(refusal::taken_address(address, other));
            }
        }
        Ok(())
    }

    fn require_free_node_name(&self, name: &str, id: NodeId) -> Result<()> {
        match self.map.nodes.iter().any(|node| node.name == name && node.id != id) {
            true => Err(refusal::taken_name("node", name)),
            false => Ok(()),
        }
    }

    /// The node, unless it was removed or never existed.
    pub fn known_node(&self, id: NodeId) -> Result<&Node> {
        let missing =
            || if id.0 < self.numbers.next_node { refusal::removed_node(id) } else { refusal::no_node(id) };
        self.map.node(id).ok_or_else(missing)
    }

    fn known_target(&self, id: TargetId) -> Result<&Target> {
        self.map.target(id).ok_or_else(|| refusal::no_target(id))
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node> {
        self.map.nodes.iter_mut().find(|n| n.id == id).ok_or_else(|| refusal::no_node(id))
    }

    fn target_mut(&mut self, id: TargetId) -> Result<&mut Target> {
        self.map.targets.iter_mut().find(|t| t.id == id).ok_or_else(|| refusal::no_target(id))
    }
}

/// Refuses an address that isn't one of a single machine.
pub fn check_address(address: &str) -> Result<()> {
    match address.parse::<std::net::SocketAddr>() {
        Ok(parsed) if !parsed.ip().is_unspecified() && parsed.port() != 0 => Ok(()),
        _ => Err(refusal::bad_address(address)),
    }
}

/// Refuses a target that the cluster doesn't have (any more).
pub fn require_known<'a>(map: &'a ClusterMap, target: TargetId, path: &str) -> Result<&'a Target> {
    map.target(target).ok_or_else(|| refusal::unknown_target(target, path))
}

/// The same, and refuses a target that another reachable node serves.
pub fn require_claimable(map: &ClusterMap, node: NodeId, target: TargetId, path: &str) -> Result<()> {
    let known = require_known(map, target, path)?;
    match map.node(known.node) {
        Some(owner) if owner.id != node && owner.state != NodeState::Offline => {
            Err(refusal::claimed_target(known, owner, path))
        }
        _ => Ok(()),
    }
}

/// Refuses names that would be ambiguous on a command line.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('-') {
        true => Ok(()),
        false => Err(refusal::bad_name(what, name)),
    }
}

/// Returns the name of a node whose machine has none.
pub fn default_node_name(node: NodeId) -> String {
    format!("node{node}")
}

/// Refuses invalid names of racks.
pub fn check_rack(name: &str) -> Result<()> {
    if name.eq_ignore_ascii_case(NO_RACK) {
        return Err(refusal::no_rack_name(name));
    }
    check_name("rack", name)
}

/// Refuses a clock that is too far from management's.
pub fn check_clock(who: &str, skew_s: i64) -> Result<()> {
    if is_skewed(skew_s) { Err(refusal::clock(who, skew_s)) } else { Ok(()) }
}

/// Refuses a version with another first number, or whose second number differs by more than one.
pub fn check_version(who: &str, theirs: &str, ours: &str) -> Result<()> {
    let refused = || -> Error { refusal::version(who, theirs, ours) };
    let ((a, b), (c, d)) =
        (version_numbers(theirs).ok_or_else(refused)?, version_numbers(ours).ok_or_else(refused)?);
    if a == c && b.abs_diff(d) <= 1 { Ok(()) } else { Err(refused()) }
}

/// The first two numbers of a version.
pub(crate) fn version_numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
