//! The cluster map: nodes, targets, pools, groups and their states under one version number.

use crate::settings::is_default;
use crate::{
    Epoch, Errno, Error, ExportRule, GroupId, NodeId, PartitionId, PoolId, Result, Scheme, Settings, TargetId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Reachability of a target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum TargetState {
    Online,
    /// Its node has been unreachable for a while; new files go to other targets.
    ProbablyOffline,
    Offline,
}

/// Reachability of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum NodeState {
    Online,
    /// Heartbeats are overdue.
    ProbablyOffline,
    /// It has joined but never sent a heartbeat, has shut down, or has sent no heartbeat for long.
    #[default]
    Offline,
}

/// Service that a node runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Role {
    Mgmt,
    Meta,
    Storage,
}

impl Role {
    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Role::Mgmt => "mgmt",
            Role::Meta => "meta",
            Role::Storage => "storage",
        }
    }
}

/// A node in the cluster map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Id, never reused.
    pub id: NodeId,
    /// Name for people; unique.
    pub name: String,
    /// Addresses on which it listens, best first: `address:port`.
    pub addresses: Vec<String>,
    /// Sorted.
    pub roles: Vec<Role>,
    /// Reachability.
    pub state: NodeState,
    /// Version of weft that it runs.
    pub version: String,
    /// Failure domain of shared power and switch: members of a group are placed in different racks.
    /// `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// Fill level of a target; placement choosers avoid `Low` and exclude `Emergency`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum CapacityClass {
    Normal,
    Low,
    Emergency,
}

/// Bytes that a target leaves free of a disk of `capacity` bytes: 512 MiB, or an eighth of a small
/// disk. Others need that space: the metadata store for its journals and compaction, and the target
/// for checksums after data. If their writes fail, nothing can be removed any more.
pub fn reserved_space(capacity: u64) -> u64 {
    (capacity / 8).min(512 << 20)
}

/// A target in the cluster map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Id, never reused.
    pub id: TargetId,
    /// The node that serves it.
    pub node: NodeId,
    /// Pool that it belongs to.
    pub pool: PoolId,
    /// Directory on its node.
    pub path: String,
    /// Reachability.
    pub state: TargetState,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Free bytes.
    pub free: u64,
    /// Fill level.
    pub class: CapacityClass,
    /// Draining: no new files are placed on it.
    #[serde(default)]
    pub drain: bool,
    /// Upper bound of the bytes in its own files, where known: other programs may use the disk,
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

/// A named set of targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Pool {
    pub id: PoolId,
    pub name: String,
    /// Share of each target that new files leave free, in percent: spare capacity to rebuild
    /// members of lost targets.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spare: u8,
}

/// State of a member of a mirrored group: which part of the group's data it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// In sync: it has everything that was acknowledged.
    #[default]
    #[serde(rename = "good")]
    InSync,
    /// It missed writes that the other members recorded.
    NeedsResync,
    /// It gets the writes that it missed, and every new write.
    Resyncing,
    /// It missed writes that no member recorded: it needs a full copy.
    #[serde(rename = "bad")]
    NeedsRebuild,
    /// It gets a full copy, and every new write.
    Rebuilding,
}

impl MemberState {
    /// Its name in texts for people.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::InSync => "good",
            MemberState::NeedsResync => "needs-resync",
            MemberState::Resyncing => "resyncing",
            MemberState::NeedsRebuild => "bad",
            MemberState::Rebuilding => "rebuilding",
        }
    }

    /// Whether the member receives every write.
    pub fn receives_writes(self) -> bool {
        matches!(self, MemberState::InSync | MemberState::Resyncing | MemberState::Rebuilding)
    }
}

/// A redundancy group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Id, never reused.
    pub id: GroupId,
    /// Pool that its members come from.
    pub pool: PoolId,
    /// Redundancy scheme.
    pub scheme: Scheme,
    /// Ordered members. The first one in sync is the primary. A group without members is lost
    /// ([`Group::is_lost`]).
    pub members: Vec<TargetId>,
    /// State of each member of a mirrored group; empty while all are in sync.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<MemberState>,
    /// Group version: the epoch of the map that last changed members or states. Requests carry it,
    /// and members refuse requests of another version. Zero in a `single` group.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: Epoch,
    /// A member that is being replaced by another one: it is removed when all others are in sync
    /// and as many as the scheme requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<TargetId>,
    /// A primary that missed writes: all members that were in sync are lost, and an administrator
    /// has accepted that. Set until the primary reports that its content matches the metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revived: Option<TargetId>,
}

fn is_zero(epoch: &Epoch) -> bool {
    *epoch == Epoch(0)
}

impl Group {
    /// A group of one target.
    pub fn single(id: GroupId, pool: PoolId, target: TargetId) -> Group {
        Group {
            id,
            pool,
            scheme: Scheme::Single,
            members: vec![target],
            states: Vec::new(),
            since: Epoch(0),
            leaving: None,
            revived: None,
        }
    }

    /// Returns the members with their states, in order.
    pub fn members_with_states(&self) -> impl Iterator<Item = (TargetId, MemberState)> + '_ {
        let state = |at| self.states.get(at).copied().unwrap_or_default();
        self.members.iter().enumerate().map(move |(at, target)| (*target, state(at)))
    }

    /// The state of a member; `None` if the target isn't a member.
    pub fn state_of(&self, target: TargetId) -> Option<MemberState> {
        self.members_with_states().find(|(member, _)| *member == target).map(|(_, state)| state)
    }

    /// The member that orders writes: the first one in sync. `None` if none is.
    pub fn primary(&self) -> Option<TargetId> {
        self.members_with_states().find(|(_, state)| *state == MemberState::InSync).map(|(member, _)| member)
    }

    /// Returns the members that are in sync.
    pub fn in_sync_members(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.members_with_states()
            .filter(|(_, state)| *state == MemberState::InSync)
            .map(|(member, _)| member)
    }

    /// The replaced member, once it isn't needed any more: all others are in sync, and as many as
    /// the scheme requires.
    pub fn removable_member(&self) -> Option<TargetId> {
        let leaving = self.leaving.filter(|leaving| self.members.contains(leaving))?;
        let stay = || self.members_with_states().filter(|(member, _)| *member != leaving);
        let are_good = stay().all(|(_, state)| state == MemberState::InSync);
        (are_good && stay().count() >= self.scheme.members()).then_some(leaving)
    }

    /// Whether the group's content is lost: the last target that was in sync was removed from the
    /// cluster, and an administrator accepted the loss. The group stays in the map while files
    /// refer to it, so that their reads and writes fail instead of returning zeros.
    pub fn is_lost(&self) -> bool {
        self.members.is_empty()
    }

    /// Gives up the group's content: [`Group::is_lost`] holds from now on.
    pub fn mark_lost(&mut self) {
        self.members.clear();
        self.states.clear();
        (self.leaving, self.revived) = (None, None);
    }

    /// Whether this target is the only member in sync.
    pub fn is_sole_in_sync_member(&self, target: TargetId) -> bool {
        self.in_sync_members().eq([target])
    }

    /// Checks that the group isn't lost.
    ///
    /// # Errors
    /// `EIO` if it is.
    pub fn ensure_not_lost(&self) -> Result<()> {
        match self.is_lost() {
            false => Ok(()),
            true => Err(Error::new(
                Errno::EIO,
                format!("the content of group {} is lost: its target was removed from the cluster", self.id),
            )
            .hint("delete the file, or restore it from a backup; weft fsck lists all files of lost groups")),
        }
    }

    /// Whether a member isn't in sync.
    pub fn is_degraded(&self) -> bool {
        self.members_with_states().any(|(_, state)| state != MemberState::InSync)
    }
}

/// A client whose certificates were revoked. Certificates issued to it later are valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RevokedClient {
    /// Name of the client.
    pub name: String,
    /// Highest issue number of a revoked certificate; issue numbers grow with time.
    pub until: u64,
}

/// Usage of some groups according to the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupUsage {
    /// Number of files with a stripe in one of them.
    pub files: u64,
    /// Bytes of those stripes, by the lengths of the files: holes count.
    pub bytes: u64,
    /// The groups that a file, or a chunk file still to be deleted, refers to.
    pub referenced: BTreeSet<GroupId>,
}

/// The cluster map: everything that decides placement, at one version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Version.
    pub epoch: Epoch,
    /// Sorted by id; empty in a cluster of one process.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Sorted by id.
    pub targets: Vec<Target>,
    /// Sorted by id.
    pub pools: Vec<Pool>,
    /// Sorted by id.
    pub groups: Vec<Group>,
    /// The node whose metadata service owns each partition, indexed by partition number. Empty
    /// while one service owns all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<NodeId>,
    /// Access rules for clients; clients without a rule may do everything. Sorted by the clients
    /// that they apply to, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportRule>,
    /// Clients with revoked certificates, sorted by name, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<RevokedClient>,
    /// Cluster-wide settings of administrators.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: Settings,
}

impl ClusterMap {
    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok().map(|i| &self.nodes[i])
    }

    /// Whether the certificate of a client with this issue number was revoked.
    pub fn is_revoked(&self, client: &str, number: u64) -> bool {
        let found = self.revoked.binary_search_by(|known| known.name.as_str().cmp(client));
        found.is_ok_and(|at| number <= self.revoked[at].until)
    }

    /// The node whose metadata service owns a partition; `None` if no node has the role.
    pub fn owner(&self, partition: PartitionId) -> Option<&Node> {
        match self.partitions.get(partition.0 as usize) {
            Some(owner) => self.node(*owner),
            None => self.nodes.iter().find(|node| node.roles.contains(&Role::Meta)),
        }
    }

    /// The target with this id.
    pub fn target(&self, id: TargetId) -> Option<&Target> {
        self.targets.binary_search_by_key(&id, |t| t.id).ok().map(|i| &self.targets[i])
    }

    /// The rack of a target; `None` if unknown.
    pub fn rack_of(&self, target: TargetId) -> Option<&str> {
        self.node(self.target(target)?.node)?.rack.as_deref()
    }

    /// The group with this id.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.binary_search_by_key(&id, |g| g.id).ok().map(|i| &self.groups[i])
    }

    /// The pool with this id.
    pub fn pool(&self, id: PoolId) -> Option<&Pool> {
        self.pools.binary_search_by_key(&id, |p| p.id).ok().map(|i| &self.pools[i])
    }

    /// The pool with this name.
    pub fn pool_named(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|p| p.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_issued_after_a_revocation_are_valid() {
        let revoked = |name: &str, until| RevokedClient { name: name.into(), until };
        let map = ClusterMap { revoked: vec![revoked("a", 7), revoked("b", 9)], ..ClusterMap::default() };
        assert!(map.is_revoked("a", 0) && map.is_revoked("a", 7) && map.is_revoked("b", 8));
        assert!(!map.is_revoked("a", 8) && !map.is_revoked("ab", 1) && !map.is_revoked("", 0));
    }

    #[test]
    fn a_lost_group_refuses_all_requests() {
        let mut group = Group {
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(1), TargetId(2)],
            states: vec![MemberState::InSync, MemberState::NeedsRebuild],
            leaving: Some(TargetId(1)),
            ..Group::single(GroupId(7), PoolId(1), TargetId(1))
        };
        assert!(group.is_sole_in_sync_member(TargetId(1)) && !group.is_sole_in_sync_member(TargetId(2)));
        assert_eq!(group.ensure_not_lost(), Ok(()));
        group.mark_lost();
        assert!(group.is_lost() && group.primary().is_none() && group.leaving.is_none());
        let refused = group.ensure_not_lost().unwrap_err();
        assert!(refused.errno == Errno::EIO && refused.message.contains("group 7"), "{refused}");
        // A group whose members are both in sync.
        group.members = vec![TargetId(1), TargetId(2)];
        assert!(!group.is_lost() && !group.is_sole_in_sync_member(TargetId(1)));
    }

    #[test]
    fn small_disks_reserve_little_space() {
        assert_eq!(reserved_space(1000 << 30), 512 << 20);
        assert_eq!(reserved_space(1 << 30), 128 << 20);
        assert_eq!(reserved_space(0), 0);
    }
}
