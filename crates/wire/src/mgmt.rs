//! Requests to the management service.
//!
//! They are rare, so they are encoded as JSON: the same text that a node's control socket takes,
//! that `--json` prints and that the map is stored as. New fields have defaults; unknown fields are
//! ignored.

mod ceilings;
mod clients;
mod health;
mod progress;
mod rates;
mod reachability;

pub use ceilings::{CeilingInfo, MAX_CEILINGS, MeasuredPlace};
pub use clients::{ClientInfo, ClientState, NewClient, NewToken, RevocationInfo, SessionInfo, TokenInfo};
pub use health::{BackupsInfo, Health, HealthCode, HealthFinding, StoreInfo, Verdict};
pub use progress::{DrainProgress, MemberReplacement, ResyncInfo, ResyncProgress};
pub use rates::{CeilingShare, IoCounters, TargetRate};
pub use reachability::{MAX_UNREACHABLE, UnreachableNode};

use crate::authorization::{self, AuthorizationRule};
use crate::{AnswerKind, Malformed, Message, Request, Service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{
    ChunkFileId, ClusterMap, Epoch, Export, ExportClients, ExportRule, Group, GroupId, MemberState, Node,
    NodeId, PartitionId, PoolId, ResyncSettings, Role, Scheme, ScrubSettings, SessionId, Target, TargetId,
};

/// Largest number of files in one [`MgmtRequest::Reconcile`].
pub const MAX_RECONCILE_FILES: usize = 20_000;

/// A change of a node's properties.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeChange {
    /// Its name.
    Name(String),
    /// Its rack; `None`: unknown.
    Rack(Option<String>),
    /// Its roles; services of other nodes permit it only what these need.
    Roles(Vec<Role>),
}

/// Chunk files that were being changed or created before a crash, for crash reconciliation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReconcileFiles {
    /// Chunk files that were being changed (at most [`MAX_RECONCILE_FILES`]).
    pub files: Vec<ChunkFileId>,
    /// Ranges of inode numbers whose chunk files were being created, some of which may be missing:
    /// from the first number up to the second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub new: Vec<(ChunkFileId, ChunkFileId)>,
}

impl ReconcileFiles {
    /// Makes one from changed chunk files.
    pub fn of(files: impl Into<Vec<ChunkFileId>>) -> ReconcileFiles {
        ReconcileFiles { files: files.into(), new: Vec::new() }
    }

    /// Splits it into pieces that fit into one request each.
    pub fn split(&self) -> Vec<ReconcileFiles> {
        let mut pieces: Vec<ReconcileFiles> =
            self.files.chunks(MAX_RECONCILE_FILES).map(ReconcileFiles::of).collect();
        // Last, after the existing chunk files are reconciled.
        if !self.new.is_empty() {
            pieces.push(ReconcileFiles { files: Vec::new(), new: self.new.clone() });
        }
        pieces
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.new.is_empty()
    }

    /// Splits it by the partitions of the files.
    pub fn by_partition(self) -> BTreeMap<PartitionId, ReconcileFiles> {
        let mut parts: BTreeMap<PartitionId, ReconcileFiles> = BTreeMap::new();
        for ino in self.files {
            parts.entry(ino.partition()).or_default().files.push(ino);
        }
        for range in self.new {
            parts.entry(range.0.partition()).or_default().new.push(range);
        }
        parts
    }
}

/// A request to the management service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MgmtRequest {
    /// A machine joins as a node: `Joined`.
    Join(Join),
    /// A node that has joined starts to serve: `Registered`.
    Register(Register),
    /// A registered node is alive: `Alive`.
    Heartbeat(Heartbeat),
    /// A node shuts down in an orderly way: `Done`.
    Goodbye { node: NodeId, instance: u64 },
    /// A client requests to mount: `Welcome`. `cluster`: the UUID that it expects.
    Attach { cluster: String, version: String, clock_s: i64 },
    /// Waits for a map with a later epoch than this: `Map`.
    WatchMap { after: Epoch },
    /// Reports nodes that a member of the cluster can't reach, in place of its previous report:
    /// `Done`. `member`: its own name for itself.
    ReportUnreachable { member: String, nodes: Vec<UnreachableNode> },
    /// Makes a directory of a node a target: `Added`. A repeated request for the same directory
    /// gets the same id.
    AddTarget { node: NodeId, path: String, pool: String },
    /// Crash reconciliation of a target: enforces the metadata of these files (at most
    /// [`MAX_RECONCILE_FILES`]), which were being changed when it crashed. `Done` when that is on
    /// disk. Meanwhile the target must admit the metadata service, but no clients.
    #[serde(rename = "tidy")]
    Reconcile {
        target: TargetId,
        #[serde(flatten)]
        touched: ReconcileFiles,
    },
    /// The same for a mirrored group whose members in sync have all crashed, and one of which still
    /// counts as in sync: `Done` when that is on disk on all members in sync at that time. Goes
    /// through the primary.
    #[serde(rename = "tidy-group")]
    ReconcileGroup {
        group: GroupId,
        #[serde(flatten)]
        touched: ReconcileFiles,
    },

    /// `Nodes`.
    ListNodes,
    /// `Done`.
    RenameNode { node: NodeId, name: String },
    /// Sets the rack of a node; `None`: unknown: `Done`.
    SetRack { node: NodeId, rack: Option<String> },
    /// Changes several properties of a node, or none if one is refused: `Done`.
    SetNode { node: NodeId, changes: Vec<NodeChange> },
    /// Removes a node without targets: `Done`.
    RemoveNode { node: NodeId },
    /// `Targets`.
    ListTargets,
    /// Assigns the target to a pool for new files, which is created if it doesn't exist: `Done`.
    SetPool { target: TargetId, pool: String },
    /// Starts or ends draining of the target, which gets no new files meanwhile: `Done`.
    SetDrain { target: TargetId, drain: bool },
    /// Removes a target that holds no data: `Done`. With `accept_loss` also one that is offline and
    /// holds data: content without another replica is then lost.
    RemoveTarget {
        target: TargetId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        accept_loss: bool,
    },
    /// `Pools`.
    ListPools,
    /// `Done`.
    RenamePool { pool: String, name: String },
    /// Removes a pool without targets: `Done`.
    RemovePool { pool: String },
    /// `Sessions`.
    ListSessions,
    /// Evicts a session: `Done`.
    EvictSession { session: SessionId },
    /// `Metas`.
    ListMetas,
    /// Distributes partitions evenly over the metadata services that are up: `Metas`.
    RebalanceMetas,
    /// `Exports`.
    ListExports,
    /// Sets the export rule of some clients, in place of an earlier one: `Done`.
    SetExport { rule: ExportRule },
    /// Removes the export rule of some clients: `Done`.
    RemoveExport { clients: ExportClients },
    /// `Health`.
    Health,
    /// `Groups`.
    ListGroups,
    /// Creates the missing groups of a scheme in a pool: `Groups` of that pool and scheme.
    MakeGroups { pool: String, scheme: Scheme },
    /// The primary reports a new state of a member of a mirrored group: `Map` when that is in force
    /// at all members that count. `since`: the primary's version of the group; if management has
    /// another one, the `Map` is the whole answer. `orderly`: the primary reports itself, has no
    /// change in progress and starts none, so that the next primary needn't resync the others.
    SetMember {
        group: GroupId,
        since: Epoch,
        target: TargetId,
        state: MemberState,
        reason: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        orderly: bool,
    },
    /// Sets how members are resynced and replaced: `Done`.
    SetResync { settings: ResyncSettings },
    /// Sets how targets are scrubbed: `Done`.
    SetScrub { settings: ScrubSettings },
    /// Switches checksums of data on or off: `Done`.
    SetChecksums { on: bool },
    /// Sets the share of each target of a pool that new files leave free, in percent: `Done`.
    SetSpare { pool: String, percent: u8 },
    /// Lists the resync settings and the members that aren't in sync, with their progress:
    /// `Resyncs`.
    ListResyncs,
    /// Moves memberships until all targets of a pool have about equally many: `Moves`. `dry_run`:
    /// only computes them.
    RebalanceGroups { pool: String, dry_run: bool },
    /// Recovers a mirrored group from a member that missed writes, since all members that were in
    /// sync are lost for good: `Groups` with it. Without `accept_loss` it only checks whether that
    /// is possible, and refuses with the loss that it would cause (`EPERM`).
    RecoverGroup {
        group: GroupId,
        from: TargetId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        accept_loss: bool,
    },
    /// Progress of scrubs: `Scrubs`.
    ListScrubs,
    /// Stores the just measured performance of hardware, in place of earlier values of the same
    /// limits and places: `Done`.
    NoteCeilings { ceilings: Vec<CeilingInfo> },
    /// `Ceilings`.
    ListCeilings,
    /// Creates a join token, or a cluster file that clients share: `Token`.
    NewToken(NewToken),
    /// `Tokens`.
    ListTokens,
    /// Revokes a join token, named by its id: `Done`.
    RevokeToken { token: String },
    /// Creates a cluster file for a client of its own: `Token`.
    AddClient(NewClient),
    /// `Clients`.
    ListClients,
    /// Revokes a client, whose certificates no service accepts any more, and evicts its sessions:
    /// `Revoked`.
    RevokeClient { name: String },
    /// Renews the certificate of a member that shows a valid one (`client/login1`, `node/3`), by a
    /// signing request in hexadecimal digits: `Certificate`.
    Renew { member: String, csr: String },
    /// Issues a certificate for the HTTP interface of a node, by a signing request in hexadecimal
    /// digits: `Certificate`. `names`: DNS names and addresses. A request over a connection gets
    /// those that the map has of its node, and those of the machine itself.
    CertifyApi { node: NodeId, csr: String, names: Vec<String> },
}

/// A machine's request to become a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The secret of the join token.
    pub secret: String,
    /// Name for people; empty: management chooses one.
    pub name: String,
    /// Requested roles.
    pub roles: Vec<Role>,
    /// Addresses on which it will listen.
    pub addresses: Vec<String>,
    /// Certificate signing request; empty where connections are unencrypted.
    #[serde(default)]
    pub csr: String,
    /// Version of weft that it runs.
    pub version: String,
    /// Its clock, Unix seconds.
    pub clock_s: i64,
    /// Its rack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// A node's report of what it serves, when it starts to serve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Register {
    /// UUID of the cluster that it expects.
    pub cluster: String,
    /// Its id.
    pub node: NodeId,
    /// Random number of its process.
    pub instance: u64,
    /// Addresses on which it listens.
    pub addresses: Vec<String>,
    /// Its roles.
    pub roles: Vec<Role>,
    /// Version of weft that it runs.
    pub version: String,
    /// Its clock, Unix seconds.
    pub clock_s: i64,
    /// Its targets.
    pub targets: Vec<TargetReport>,
    /// This process has registered before, and no content left by a crash of an earlier process
    /// counts as in sync: management has restarted, not the node.
    #[serde(default)]
    pub again: bool,
    /// None of the addresses belongs to its machine: the machine has moved, or is behind address
    /// translation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_elsewhere: bool,
}

/// A target as its node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetReport {
    /// Id in its superblock.
    pub target: TargetId,
    /// Cluster UUID in its superblock.
    pub cluster: String,
    /// Its directory.
    pub path: String,
    /// Its space; `None` if it can't be determined.
    pub space: Option<TargetSpace>,
    /// Its I/O counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<IoCounters>,
}

/// Space of the local file system of a target, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TargetSpace {
    pub capacity: u64,
    pub free: u64,
    /// Identifies the file system among those of all machines: targets on the same one share its
    /// space.
    pub device: u64,
    /// Bytes in the target's own files, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<u64>,
}

/// A node's heartbeat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Its id.
    pub node: NodeId,
    /// Number of its process, as registered.
    pub instance: u64,
    /// Epoch of its map.
    pub epoch: Epoch,
    /// Its clock, Unix seconds.
    pub clock_s: i64,
    /// Current state of its targets.
    pub targets: Vec<TargetReport>,
    /// Resyncs that it is running as primary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resyncs: Vec<ResyncProgress>,
    /// Scrub progress of each of its targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scrubs: Vec<ScrubProgress>,
}

/// Progress and findings of a target's scrub. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// The target.
    pub target: TargetId,
    /// Whether a scrub is running.
    pub is_running: bool,
    /// Number of the last requested scrub that was started ([`ScrubSettings::asked`]).
    pub asked: u64,
    /// Start of the last scrub, Unix seconds; zero: never.
    pub began_s: i64,
    /// End of the last complete scrub, Unix seconds; zero: never.
    pub ended_s: i64,
    /// Bytes read by the running scrub, or by the last one.
    pub bytes_done: u64,
    /// Bytes to read in total, estimated by the previous scrub; `None` in the first one.
    pub bytes_total: Option<u64>,
    /// Chunk files read.
    pub files_done: u64,
    /// Damaged ranges found.
    pub damaged: u64,
    /// Of those, ranges repaired from another replica.
    pub mended: u64,
    /// Missing chunk files, and chunk files that belong to no file: only `weft fsck` searches for
    /// the latter.
    pub missing: u64,
    #[allow(missing_docs)]
    pub stray: u64,
    /// Why it doesn't progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
}

/// Answers; [`MgmtRequest`] names the answer of each request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MgmtReply {
    Done,
    Joined(Joined),
    Registered(Registered),
    Alive(Alive),
    /// `export`: the client's access, by the address of its connection.
    Welcome {
        facts: ClusterConstants,
        map: Arc<ClusterMap>,
        #[serde(default)]
        export: Export,
    },
    Map {
        map: Arc<ClusterMap>,
    },
    Added {
        target: TargetId,
    },
    Nodes {
        nodes: Vec<NodeInfo>,
    },
    Targets {
        targets: Vec<TargetInfo>,
    },
    Pools {
        pools: Vec<PoolInfo>,
    },
    Sessions {
        sessions: Vec<SessionInfo>,
    },
    Metas {
        metas: Vec<MetaInfo>,
    },
    Exports {
        exports: Vec<ExportRule>,
    },
    Groups {
        groups: Vec<GroupInfo>,
    },
    /// All members that aren't in sync, by group.
    Resyncs {
        settings: ResyncSettings,
        members: Vec<ResyncInfo>,
    },
    /// Moved memberships, and the groups whose members are closer to each other (by rack or node)
    /// than they need be, since no target further away has space.
    Moves {
        moves: Vec<MemberReplacement>,
        crowded: Vec<GroupId>,
    },
    /// The last report of each target that has sent one.
    Scrubs {
        settings: ScrubSettings,
        scrubs: Vec<ScrubProgress>,
    },
    /// By place and limit; and the targets that are online, grouped by file system.
    Ceilings {
        ceilings: Vec<CeilingInfo>,
        #[serde(default)]
        drives: Vec<Vec<TargetId>>,
    },
    Health(Health),
    Token {
        token: String,
    },
    Tokens {
        tokens: Vec<TokenInfo>,
    },
    Clients {
        clients: Vec<ClientInfo>,
    },
    Revoked(RevocationInfo),
    /// PEM: the certificate, then the authority's.
    Certificate {
        chain: String,
    },
}

/// Properties of a cluster that never change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterConstants {
    /// Random; every target's superblock has it too.
    pub uuid: String,
    /// Name for people.
    pub name: String,
    /// Key of the hash that orders entries in directories, as 16 hexadecimal digits each.
    pub hash_key: (String, String),
    /// Number of partitions.
    pub partitions: u16,
    /// Time of creation, Unix seconds.
    pub created_s: i64,
}

/// Answer to a machine that joined as a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// Its id.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its cluster.
    pub facts: ClusterConstants,
    /// PEM; empty where connections are unencrypted.
    #[serde(default)]
    pub certificate: String,
    /// Map that contains the node.
    pub map: Arc<ClusterMap>,
}

/// Answer to a node that may serve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registered {
    /// Longest time that it may continue without an answer to a heartbeat, in milliseconds.
    pub lease_ms: u64,
    /// The current map.
    pub map: Arc<ClusterMap>,
    /// Keys that sign and verify capabilities.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub keys: Secret,
    /// The cluster's time, by which capabilities expire, Unix seconds.
    pub time_s: i64,
}

/// Secret text, never displayed: keys that management gives to nodes.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl Secret {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Answer to a heartbeat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Alive {
    /// Lease of the node from the time that it sent the heartbeat, in milliseconds.
    pub lease_ms: u64,
    /// A map that is newer than the node's.
    pub map: Option<Arc<ClusterMap>>,
    /// As in [`Registered`].
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub keys: Secret,
    /// As in [`Registered`].
    pub time_s: i64,
}

/// A node, for display.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its entry in the map.
    #[serde(flatten)]
    pub node: Node,
    /// Targets that it serves.
    pub targets: Vec<TargetId>,
    /// Seconds since its last heartbeat; `None`: none since management started.
    pub silent_s: Option<u64>,
}

/// A target, for display.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Its entry in the map.
    #[serde(flatten)]
    pub target: Target,
    /// Name of its node; empty in a cluster of one process.
    pub node_name: String,
    /// Name of its pool.
    pub pool_name: String,
    /// Draining progress, if it is being drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DrainProgress>,
}

/// A pool, for display. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PoolInfo {
    pub id: PoolId,
    pub name: String,
    pub targets: usize,
    pub groups: usize,
    pub capacity: u64,
    pub free: u64,
    /// Share of each target that new files leave free, in percent.
    #[serde(default)]
    pub spare: u8,
}

/// A redundancy group, for display.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupInfo {
    /// Its entry in the map.
    #[serde(flatten)]
    pub group: Group,
    /// Name of its pool.
    pub pool_name: String,
    /// The member that orders writes; `None` if none is in sync.
    pub primary: Option<TargetId>,
    /// Members that are being resynced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resyncs: Vec<ResyncProgress>,
    /// Rack of each member, in their order; empty if none is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub racks: Vec<Option<String>>,
}

/// A metadata service, for display.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MetaInfo {
    /// Its node.
    #[serde(flatten)]
    pub node: Node,
    /// Partitions that management assigned to it.
    pub assigned: Vec<PartitionId>,
    /// Partitions whose requests it answers now; `None` if it doesn't answer.
    #[serde(default)]
    pub executed: Option<Vec<PartitionId>>,
}

impl Message for MgmtRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        write(self, out);
    }

    fn decode(bytes: &[u8]) -> Result<MgmtRequest, Malformed> {
        read(bytes)
    }
}

impl Message for MgmtReply {
    fn encode(&self, out: &mut Vec<u8>) {
        write(self, out);
    }

    fn decode(bytes: &[u8]) -> Result<MgmtReply, Malformed> {
        read(bytes)
    }
}

impl MgmtRequest {
    /// Returns the request that changes a node's name, rack or roles, as far as given, all or
    /// nothing; `None` if nothing is given.
    pub fn node_change_request(
        node: NodeId,
        name: Option<String>,
        rack: Option<Option<String>>,
        roles: Option<Vec<Role>>,
    ) -> Option<MgmtRequest> {
        match (name, rack, roles) {
            // Older management services understand these, too.
            (Some(name), None, None) => Some(MgmtRequest::RenameNode { node, name }),
            (None, Some(rack), None) => Some(MgmtRequest::SetRack { node, rack }),
            (None, None, None) => None,
            (name, rack, roles) => {
                let changes =
                    [rack.map(NodeChange::Rack), name.map(NodeChange::Name), roles.map(NodeChange::Roles)];
                Some(MgmtRequest::SetNode { node, changes: changes.into_iter().flatten().collect() })
            }
        }
    }
}

impl Request for MgmtRequest {
    const SERVICE: Service = Service::Management;

    fn answer_kind(&self) -> AnswerKind {
        match self.spec().has_no_deadline {
            true => AnswerKind::Unbounded,
            false => AnswerKind::NoPayload,
        }
    }

    fn rule(&self) -> AuthorizationRule {
        authorization::management(self)
    }
}

fn write(message: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, message)
        .expect("messages have string keys only, and a vector takes any bytes");
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(bytes).map_err(|e| Malformed::new(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{NodeState, Role};

    fn text(message: &impl Message) -> String {
        let mut out = Vec::new();
        message.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn messages_are_frozen() {
        let goodbye = MgmtRequest::Goodbye { node: NodeId(3), instance: 7 };
        assert_eq!(text(&goodbye), r#"{"ask":"goodbye","node":3,"instance":7}"#);
        let watch = MgmtRequest::WatchMap { after: Epoch(9) };
        assert_eq!(text(&watch), r#"{"ask":"watch-map","after":9}"#);
        assert_eq!(watch.answer_kind(), AnswerKind::Unbounded);
        let map = ClusterMap {
            epoch: Epoch(2),
            nodes: vec![Node {
                id: NodeId(1),
                name: "a".into(),
                addresses: vec!["127.0.0.1:7500".into()],
                roles: vec![Role::Mgmt],
                state: NodeState::ProbablyOffline,
                version: "0.1.0".into(),
                rack: None,
            }],
            ..ClusterMap::default()
        };
        let alive = MgmtReply::Alive(Alive {
            lease_ms: 10_000,
            map: Some(Arc::new(map)),
            keys: Secret::default(),
            time_s: 1_800_000_000,
        });
        let expected = r#"{"answer":"alive","lease_ms":10000,"map":{"epoch":2,"nodes":[{"id":1,"name":"a","addresses":["127.0.0.1:7500"],"roles":["mgmt"],"state":"probably-offline","version":"0.1.0"}],"targets":[],"pools":[],"groups":[]},"time_s":1800000000}"#;
        assert_eq!(text(&alive), expected);
        assert_eq!(MgmtReply::decode(expected.as_bytes()).unwrap(), alive);
        let set = MgmtRequest::SetRack { node: NodeId(3), rack: Some("r1".into()) };
        assert_eq!(text(&set), r#"{"ask":"set-rack","node":3,"rack":"r1"}"#);
        let changes = vec![NodeChange::Name("b".into()), NodeChange::Rack(None)];
        let set = MgmtRequest::SetNode { node: NodeId(3), changes };
        assert_eq!(text(&set), r#"{"ask":"set-node","node":3,"changes":[{"name":"b"},{"rack":null}]}"#);
        let touched = || ReconcileFiles::of([ChunkFileId(7)]);
        let reconcile = MgmtRequest::Reconcile { target: TargetId(3), touched: touched() };
        assert_eq!(text(&reconcile), r#"{"ask":"tidy","target":3,"files":[7]}"#);
        let reconcile = MgmtRequest::ReconcileGroup { group: GroupId(9), touched: touched() };
        assert_eq!(text(&reconcile), r#"{"ask":"tidy-group","group":9,"files":[7]}"#);
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_requests_are_malformed() {
        let later = br#"{"ask":"goodbye","node":3,"instance":7,"mood":"good"}"#;
        let goodbye = MgmtRequest::Goodbye { node: NodeId(3), instance: 7 };
        assert_eq!(MgmtRequest::decode(later).unwrap(), goodbye);
        for bytes in [&b""[..], b"\xff", b"{}", br#"{"ask":"explode"}"#, br#"{"ask":"goodbye","node":-1}"#] {
            assert!(MgmtRequest::decode(bytes).is_err());
        }
    }
}
