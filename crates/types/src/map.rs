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
    /// Its node has not been heard of for a while; new files go elsewhere.
    ProbablyOffline,
    Offline,
}

/// Reachability of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum NodeState {
    Online,
    /// Heartbeats are missing.
    ProbablyOffline,
    /// It has joined but was never heard of, has said goodbye, or has been silent for long.
    #[default]
    Offline,
}

/// What a node does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Role {
    Mgmt,
    Meta,
    Storage,
}

impl Role {
    /// The word for it on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Role::Mgmt => "mgmt",
            Role::Meta => "meta",
            Role::Storage => "storage",
        }
    }
}

/// A node as the map describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Id, never reused.
    pub id: NodeId,
    /// For people; unique.
    pub name: String,
    /// Where it listens, best first: `address:port`.
    pub addresses: Vec<String>,
    /// Sorted.
    pub roles: Vec<Role>,
    /// Reachability.
    pub state: NodeState,
    /// The weft that it runs.
    pub version: String,
    /// What it has power and a switch in common with: copies are put into different racks. `None`:
    /// nothing is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// How full a target is; choosers avoid `Low` and refuse `Emergency`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum CapacityClass {
    Normal,
    Low,
    Emergency,
}

/// What a target leaves free of a disk of `capacity` bytes: 512 MiB, or an eighth of a small one.
/// Others write there, too: the metadata store, to its journals and while it compacts, and the
/// target itself, checksums after data. When these can't, nothing can be removed any more.
pub fn kept_free(capacity: u64) -> u64 {
    (capacity / 8).min(512 << 20)
}

/// A target as the map describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Id, never reused.
    pub id: TargetId,
    /// The node that serves it.
    pub node: NodeId,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Directory on its node.
    pub path: String,
    /// Reachability.
    pub state: TargetState,
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes free.
    pub free: u64,
    /// How full it is.
    pub class: CapacityClass,
    /// It gets no new files.
    #[serde(default)]
    pub drain: bool,
    /// Bytes that its own files take, at most, where that is known: others may use its disk, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

/// A named set of targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Pool {
    pub id: PoolId,
    pub name: String,
    /// Share of each target that new files leave free, percent: room for the members of others that
    /// are lost.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spare: u8,
}

/// Consistency of a member of a mirrored group: what it has of the group's data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// Everything that was acknowledged.
    #[default]
    Good,
    /// It has missed what the others have noted.
    NeedsResync,
    /// It gets what it has missed, and every write that comes meanwhile.
    Resyncing,
    /// Nobody knows what it has missed: it needs everything.
    Bad,
    /// It gets everything, and every write that comes meanwhile.
    Rebuilding,
}

impl MemberState {
    /// The word for it in what people read.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Good => "good",
            MemberState::NeedsResync => "needs-resync",
            MemberState::Resyncing => "resyncing",
            MemberState::Bad => "bad",
            MemberState::Rebuilding => "rebuilding",
        }
    }

    /// Whether it is sent every write.
    pub fn gets_writes(self) -> bool {
        matches!(self, MemberState::Good | MemberState::Resyncing | MemberState::Rebuilding)
    }
}

/// A redundancy group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Id, never reused.
    pub id: GroupId,
    /// The pool its members come from.
    pub pool: PoolId,
    /// How it keeps data.
    pub scheme: Scheme,
    /// Ordered members. The first good one is the primary. A group without members is lost
    /// ([`Group::is_lost`]).
    pub members: Vec<TargetId>,
    /// Of each member of a mirrored group; empty while all are good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<MemberState>,
    /// The epoch of the map that changed members or states last: requests carry it, and no member
    /// acts by another one. Zero in a `single` group.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: Epoch,
    /// A member that another one is taking the place of: it goes when the others are good and as
    /// many as the scheme says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<TargetId>,
    /// The primary, which had missed something and is it nevertheless, since all that had
    /// everything are lost and an administrator has accepted that: until it says that what it has
    /// agrees with the metadata.
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

    /// Members with their states, in order.
    pub fn with_states(&self) -> impl Iterator<Item = (TargetId, MemberState)> + '_ {
        let state = |at| self.states.get(at).copied().unwrap_or_default();
        self.members.iter().enumerate().map(move |(at, target)| (*target, state(at)))
    }

    /// The state of a member; `None` when the target is none.
    pub fn state_of(&self, target: TargetId) -> Option<MemberState> {
        self.with_states().find(|(member, _)| *member == target).map(|(_, state)| state)
    }

    /// Who orders writes: the first good member. `None` when none is good.
    pub fn primary(&self) -> Option<TargetId> {
        self.with_states().find(|(_, state)| *state == MemberState::Good).map(|(member, _)| member)
    }

    /// Members that have everything.
    pub fn good(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.with_states().filter(|(_, state)| *state == MemberState::Good).map(|(member, _)| member)
    }

    /// The member that goes, once nobody needs it any more: all others are good, and as many as the
    /// scheme says.
    pub fn dismissed(&self) -> Option<TargetId> {
        let leaving = self.leaving.filter(|leaving| self.members.contains(leaving))?;
        let stay = || self.with_states().filter(|(member, _)| *member != leaving);
        let are_good = stay().all(|(_, state)| state == MemberState::Good);
        (are_good && stay().count() >= self.scheme.members()).then_some(leaving)
    }

    /// Whether its content is lost: the last target that had everything was removed from the
    /// cluster, and an administrator accepted what goes with it. The group stays in the map while
    /// files refer to it, so that reading and writing them fails instead of showing zeros.
    pub fn is_lost(&self) -> bool {
        self.members.is_empty()
    }

    /// Gives its content up: [`Group::is_lost`] from now on.
    pub fn lose(&mut self) {
        self.members.clear();
        self.states.clear();
        (self.leaving, self.revived) = (None, None);
    }

    /// Whether this target is the only one that has everything.
    pub fn is_only_on(&self, target: TargetId) -> bool {
        self.good().eq([target])
    }

    /// Refuses to look for content in a group that is lost.
    ///
    /// # Errors
    /// `EIO`.
    pub fn ensure_not_lost(&self) -> Result<()> {
        match self.is_lost() {
            false => Ok(()),
            true => Err(Error::new(
                Errno::EIO,
                format!("the content of group {} is lost: its target was removed from the cluster", self.id),
            )
            .hint("delete the file, or replace it by a copy from a backup; weft fsck names all files of lost groups")),
        }
    }

    /// Whether a member isn't good.
    pub fn is_degraded(&self) -> bool {
        self.with_states().any(|(_, state)| state != MemberState::Good)
    }
}

/// A client whose certificates were revoked. Those that are issued to it later are good.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RevokedClient {
    /// Its name.
    pub name: String,
    /// The issue number of its last certificate that is refused; numbers grow with time.
    pub until: u64,
}

/// What the metadata has in some groups.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupUsage {
    /// Files with a part in one of them.
    pub files: u64,
    /// Bytes of those parts, by the lengths of the files: holes count.
    pub bytes: u64,
    /// Those of the groups that a file refers to, or a chunk file that is yet to be deleted.
    pub used: BTreeSet<GroupId>,
}

/// Everything that places data, at one version.
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
    /// The node whose metadata service executes each partition, by the partition's number. Empty
    /// while one service has them all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<NodeId>,
    /// What clients of some networks may do; the others may do everything. By whom they are for,
    /// each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportRule>,
    /// Clients whose certificates no service accepts any more, by name, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<RevokedClient>,
    /// What administrators have set.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: Settings,
}

impl ClusterMap {
    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok().map(|i| &self.nodes[i])
    }

    /// Whether a client's certificate with this issue number was revoked.
    pub fn is_revoked(&self, client: &str, number: u64) -> bool {
        let found = self.revoked.binary_search_by(|known| known.name.as_str().cmp(client));
        found.is_ok_and(|at| number <= self.revoked[at].until)
    }

    /// The node whose metadata service executes a partition; `None` when no node has the role.
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

    /// The rack that a target is in; `None` where that isn't known.
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

/// The current map, shared by the services of a process; management replaces it.
pub type MapHandle = std::sync::Arc<std::sync::RwLock<std::sync::Arc<ClusterMap>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_issued_after_a_revocation_is_good() {
        let revoked = |name: &str, until| RevokedClient { name: name.into(), until };
        let map = ClusterMap { revoked: vec![revoked("a", 7), revoked("b", 9)], ..ClusterMap::default() };
        assert!(map.is_revoked("a", 0) && map.is_revoked("a", 7) && map.is_revoked("b", 8));
        assert!(!map.is_revoked("a", 8) && !map.is_revoked("ab", 1) && !map.is_revoked("", 0));
    }

    #[test]
    fn a_lost_group_refuses_everything() {
        let mut group = Group {
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(1), TargetId(2)],
            states: vec![MemberState::Good, MemberState::Bad],
            leaving: Some(TargetId(1)),
            ..Group::single(GroupId(7), PoolId(1), TargetId(1))
        };
        assert!(group.is_only_on(TargetId(1)) && !group.is_only_on(TargetId(2)));
        assert_eq!(group.ensure_not_lost(), Ok(()));
        group.lose();
        assert!(group.is_lost() && group.primary().is_none() && group.leaving.is_none());
        let refused = group.ensure_not_lost().unwrap_err();
        assert!(refused.errno == Errno::EIO && refused.message.contains("group 7"), "{refused}");
        // One of which both members have everything.
        group.members = vec![TargetId(1), TargetId(2)];
        assert!(!group.is_lost() && !group.is_only_on(TargetId(1)));
    }

    #[test]
    fn little_is_kept_free_on_small_disks() {
        assert_eq!(kept_free(1000 << 30), 512 << 20);
        assert_eq!(kept_free(1 << 30), 128 << 20);
        assert_eq!(kept_free(0), 0);
    }
}
