//! Requests to the management service.
//!
//! They are few and far between, so they travel as JSON: the same text that the control socket of a
//! node takes, that `--json` prints and that the map is stored as. Fields that are added have
//! defaults; fields that are not known are passed over.

mod ceilings;
mod clients;
mod health;
mod moves;
mod rates;
mod reachability;

pub use ceilings::{CeilingInfo, MAX_CEILINGS, MeasuredPlace};
pub use clients::{ClientInfo, ClientState, NewClient, NewToken, RevocationInfo, SessionInfo, TokenInfo};
pub use health::{CopiesInfo, Health, HealthFinding, StoreInfo, Verdict};
pub use moves::{DrainProgress, MembershipMove, ResyncInfo, ResyncProgress};
pub use rates::{CeilingShare, TargetRate, TargetWork};
pub use reachability::{MAX_UNREACHABLE, UnreachableNode};

use crate::authorization::{self, Rule};
use crate::{Answer, Malformed, Message, Request, Service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{
    ClusterMap, Epoch, Export, ExportClients, ExportRule, Group, GroupId, InodeId, MemberState, Node, NodeId,
    PartitionId, PoolId, ResyncSettings, Role, Scheme, ScrubSettings, SessionId, Target, TargetId,
};

/// Files that one [`MgmtRequest::Tidy`] may name.
pub const MAX_TIDY_FILES: usize = 20_000;

/// What may be said of a node that is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeChange {
    /// Its name.
    Name(String),
    /// The rack that it is in; none: nothing is known of it.
    Rack(Option<String>),
    /// What it does; services of other nodes let it do no more than that.
    Roles(Vec<Role>),
}

/// What was changing where a crash has left chunk files.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Touched {
    /// Chunk files (at most [`MAX_TIDY_FILES`]).
    pub files: Vec<InodeId>,
    /// Where chunk files were being made, some of which may not be there: from the first of two
    /// numbers up to the second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub new: Vec<(InodeId, InodeId)>,
}

impl Touched {
    /// These chunk files.
    pub fn of(files: impl Into<Vec<InodeId>>) -> Touched {
        Touched { files: files.into(), new: Vec::new() }
    }

    /// The same in pieces that can be sent.
    pub fn pieces(&self) -> Vec<Touched> {
        let mut pieces: Vec<Touched> = self.files.chunks(MAX_TIDY_FILES).map(Touched::of).collect();
        // Last, when what is there has been put right.
        if !self.new.is_empty() {
            pieces.push(Touched { files: Vec::new(), new: self.new.clone() });
        }
        pieces
    }

    /// Whether nothing was changing.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.new.is_empty()
    }

    /// By the partitions of the files.
    pub fn by_partition(self) -> BTreeMap<PartitionId, Touched> {
        let mut parts: BTreeMap<PartitionId, Touched> = BTreeMap::new();
        for ino in self.files {
            parts.entry(ino.partition()).or_default().files.push(ino);
        }
        for range in self.new {
            parts.entry(range.0.partition()).or_default().new.push(range);
        }
        parts
    }
}

/// What is asked of the management service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MgmtRequest {
    /// A machine becomes a node: `Joined`.
    Join(Join),
    /// A node that has joined serves from now on: `Registered`.
    Register(Register),
    /// A registered node is alive: `Alive`.
    Heartbeat(Heartbeat),
    /// A node stops in good order: `Done`.
    Goodbye { node: NodeId, instance: u64 },
    /// A client wants to mount: `Welcome`. `cluster`: which one it expects.
    Attach { cluster: String, version: String, clock_s: i64 },
    /// `Map` as soon as there is one with a later epoch than this.
    WatchMap { after: Epoch },
    /// Nodes that a member of the cluster can't reach, instead of those that it named before:
    /// `Done`. `member`: what it calls itself.
    ReportUnreachable { member: String, nodes: Vec<UnreachableNode> },
    /// A directory of a node becomes a target: `Added`. Asked again for the same directory, it
    /// answers with the same id.
    AddTarget { node: NodeId, path: String, pool: String },
    /// What the metadata knows of these files is enforced on the target (at most [`MAX_TIDY_FILES`]
    /// of them), which had been changing them when it crashed: `Done` when that is on disk. The
    /// metadata service must be let in meanwhile, clients must not.
    Tidy {
        target: TargetId,
        #[serde(flatten)]
        touched: Touched,
    },
    /// The same for a mirrored group all of whose good members have been through the crash, of
    /// which one is left that counts as good: `Done` when that is on disk on all that do by then.
    /// Goes through the primary.
    TidyGroup {
        group: GroupId,
        #[serde(flatten)]
        touched: Touched,
    },

    /// `Nodes`.
    ListNodes,
    /// `Done`.
    RenameNode { node: NodeId, name: String },
    /// The rack that a node is in from now on; none: nothing is known of it: `Done`.
    SetRack { node: NodeId, rack: Option<String> },
    /// Several things of a node, or none of them where one is refused: `Done`.
    SetNode { node: NodeId, changes: Vec<NodeChange> },
    /// Forgets a node without targets: `Done`.
    RemoveNode { node: NodeId },
    /// `Targets`.
    ListTargets,
    /// New files of the pool may live on the target; a pool that isn't there is made: `Done`.
    SetPool { target: TargetId, pool: String },
    /// The target gets no new files any more, or gets some again: `Done`.
    SetDrain { target: TargetId, drain: bool },
    /// Forgets a target that holds no data: `Done`. With `accept_loss` also one that is offline and
    /// holds some: what it alone has is lost then.
    RemoveTarget {
        target: TargetId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        accept_loss: bool,
    },
    /// `Pools`.
    ListPools,
    /// `Done`.
    RenamePool { pool: String, name: String },
    /// Forgets a pool without targets: `Done`.
    RemovePool { pool: String },
    /// `Sessions`.
    ListSessions,
    /// Ends a session by force: `Done`.
    EvictSession { session: SessionId },
    /// `Metas`.
    ListMetas,
    /// Spreads partitions evenly over the metadata services that are up: `Metas`.
    RebalanceMetas,
    /// `Exports`.
    ListExports,
    /// What holds for clients of a network from now on, instead of what held before: `Done`.
    SetExport { rule: ExportRule },
    /// No rule for clients of a network any more: `Done`.
    RemoveExport { clients: ExportClients },
    /// `Health`.
    Health,
    /// `Groups`.
    ListGroups,
    /// The groups of a scheme that a pool should have are made, as far as they aren't there:
    /// `Groups` of that pool and scheme.
    MakeGroups { pool: String, scheme: Scheme },
    /// A member of a mirrored group has changed, says the primary: `Map` when that holds for
    /// everybody who counts. `since`: the version of the group that the primary goes by; where
    /// there is another, `Map` is all the answer. `orderly`: the primary speaks of itself, has
    /// nothing under way and begins nothing more, so that the others need not be brought in step by
    /// the next one.
    SetMember {
        group: GroupId,
        since: Epoch,
        target: TargetId,
        state: MemberState,
        reason: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        orderly: bool,
    },
    /// How members are brought in step and replaced from now on: `Done`.
    SetResync { settings: ResyncSettings },
    /// How targets are searched for damage from now on: `Done`.
    SetScrub { settings: ScrubSettings },
    /// Whether data is summed and checked from now on: `Done`.
    SetChecksums { on: bool },
    /// Share of each target of a pool that new files leave free, percent: `Done`.
    SetSpare { pool: String, percent: u8 },
    /// How members are brought in step, and how far those are that have missed something:
    /// `Resyncs`.
    ListResyncs,
    /// Memberships are moved until all targets of a pool have about equally many of them: `Moves`.
    /// `dry_run`: they are only told.
    RebalanceGroups { pool: String, dry_run: bool },
    /// A mirrored group goes on from a member that has missed something, since all that had
    /// everything are lost for good: `Groups` with it. Without `accept_loss` it is only looked
    /// whether that could be, and refused with what would be lost (`EPERM`).
    RecoverGroup {
        group: GroupId,
        from: TargetId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        accept_loss: bool,
    },
    /// How far targets are searched for damage: `Scrubs`.
    ListScrubs,
    /// What the hardware gives, as it has just been measured, is kept instead of what was known of
    /// the same limits and places: `Done`.
    NoteCeilings { ceilings: Vec<CeilingInfo> },
    /// `Ceilings`.
    ListCeilings,
    /// A new token, or a cluster file that clients share: `Token`.
    NewToken(NewToken),
    /// `Tokens`.
    ListTokens,
    /// Nobody joins with a token any more, named by its id: `Done`.
    RevokeToken { token: String },
    /// A cluster file for a client of its own: `Token`.
    AddClient(NewClient),
    /// `Clients`.
    ListClients,
    /// No service accepts a client any more, and its sessions are ended: `Revoked`.
    RevokeClient { name: String },
    /// Another certificate for a member that shows one (`client/login1`, `node/3`), by a request
    /// for it as hexadecimal digits: `Certificate`.
    Renew { member: String, csr: String },
    /// A certificate for the HTTP interface of a node, by a request for one as hexadecimal digits:
    /// `Certificate`. `names`: DNS names and addresses. A connection gets those that the map knows
    /// of its node, and those of the machine itself.
    CertifyApi { node: NodeId, csr: String, names: Vec<String> },
}

/// A machine asks to become a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// What the join token proves itself with.
    pub secret: String,
    /// For people; empty: management makes one.
    pub name: String,
    /// What it is to do.
    pub roles: Vec<Role>,
    /// Where it will listen.
    pub addresses: Vec<String>,
    /// A certificate signing request, or nothing where connections are plain.
    #[serde(default)]
    pub csr: String,
    /// The weft that it runs.
    pub version: String,
    /// Its time of day, seconds.
    pub clock_s: i64,
    /// The rack that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// A node tells what it serves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Register {
    /// The cluster it believes to belong to.
    pub cluster: String,
    /// Its id.
    pub node: NodeId,
    /// Random, another one for every process.
    pub instance: u64,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// What it does.
    pub roles: Vec<Role>,
    /// The weft that it runs.
    pub version: String,
    /// Its time of day, seconds.
    pub clock_s: i64,
    /// What it serves.
    pub targets: Vec<TargetReport>,
    /// This process has registered before, and nothing that a crash of an earlier one has left
    /// there still counts as good: it is management that has been started anew.
    #[serde(default)]
    pub again: bool,
    /// None of the addresses is one of its machine's: the machine has moved, or is behind a
    /// translation of addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_elsewhere: bool,
}

/// A target as its node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetReport {
    /// The target, as its superblock says.
    pub target: TargetId,
    /// The cluster that its superblock names.
    pub cluster: String,
    /// Where it is.
    pub path: String,
    /// Its room; `None` when it can't be measured.
    pub space: Option<TargetSpace>,
    /// What it has done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<TargetWork>,
}

/// Room of the local file system that a target is on, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TargetSpace {
    pub capacity: u64,
    pub free: u64,
    /// Which file system it is, of those of all machines: targets that share one share its room.
    pub device: u64,
    /// What the target's own files take, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<u64>,
}

/// A node is alive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Who.
    pub node: NodeId,
    /// As it registered.
    pub instance: u64,
    /// The map that it knows.
    pub epoch: Epoch,
    /// Its time of day, seconds.
    pub clock_s: i64,
    /// Its targets now.
    pub targets: Vec<TargetReport>,
    /// Copies that it is bringing in step now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resyncs: Vec<ResyncProgress>,
    /// Of each of its targets, how far it is searched for damage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scrubs: Vec<ScrubProgress>,
}

/// How far a target is searched for damage, and what was found. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// The target.
    pub target: TargetId,
    /// Whether one is under way.
    pub is_running: bool,
    /// The number of the last one by hand that was begun ([`ScrubSettings::asked`]).
    pub asked: u64,
    /// When the last one began, seconds; zero: never.
    pub began_s: i64,
    /// When the last whole one ended, seconds; zero: never.
    pub ended_s: i64,
    /// Looked at by the one that runs, or by the last.
    pub bytes_done: u64,
    /// What it has to look at in all, by what the last one looked at; `None` in the first.
    pub bytes_total: Option<u64>,
    /// Chunk files looked at.
    pub files_done: u64,
    /// Damaged ranges found.
    pub damaged: u64,
    /// Of those, mended from another copy.
    pub mended: u64,
    /// Chunk files that are missing, and such that belong to no file: the latter are looked for by
    /// `weft fsck` only.
    pub missing: u64,
    #[allow(missing_docs)]
    pub stray: u64,
    /// Why it stands still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
}

/// The answers; which one belongs to which request is said there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MgmtReply {
    Done,
    Joined(Joined),
    Registered(Registered),
    Alive(Alive),
    /// `export`: what holds for the client, by the address that it asks from.
    Welcome {
        facts: Facts,
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
    /// All members that aren't good, by group.
    Resyncs {
        settings: ResyncSettings,
        members: Vec<ResyncInfo>,
    },
    /// What is moved, and the groups whose members stay nearer to one another than they need to be,
    /// since nobody further away has room.
    Moves {
        moves: Vec<MembershipMove>,
        crowded: Vec<GroupId>,
    },
    /// The last word of each target that has said anything yet.
    Scrubs {
        settings: ScrubSettings,
        scrubs: Vec<ScrubProgress>,
    },
    /// By place and limit; and the targets that are online, those on one file system together.
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

/// What never changes of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Random; every target carries it too.
    pub uuid: String,
    /// For people.
    pub name: String,
    /// Key of the hash that orders names in directories, as 16 hexadecimal digits each.
    pub hash_key: (String, String),
    /// Number of partitions of the inode space.
    pub partitions: u16,
    /// When it was made, seconds.
    pub created_s: i64,
}

/// A machine has become a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// Its id from now on.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its cluster.
    pub facts: Facts,
    /// PEM, or nothing where connections are plain.
    #[serde(default)]
    pub certificate: String,
    /// The map with the node in it.
    pub map: Arc<ClusterMap>,
}

/// A node may serve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registered {
    /// How long it may go on without an answer to a heartbeat, milliseconds.
    pub lease_ms: u64,
    /// The current map.
    pub map: Arc<ClusterMap>,
    /// What capabilities are signed and checked with.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub keys: Secret,
    /// The cluster's time, by which capabilities end, Unix seconds.
    pub time_s: i64,
}

/// Text that is shown to nobody: keys, as they are handed from management to nodes.
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

/// A node may go on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Alive {
    /// How long from when it sent the heartbeat, milliseconds.
    pub lease_ms: u64,
    /// A map that is newer than the one it knows.
    pub map: Option<Arc<ClusterMap>>,
    /// As in [`Registered`].
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub keys: Secret,
    /// As in [`Registered`].
    pub time_s: i64,
}

/// A node for people.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// What the map says.
    #[serde(flatten)]
    pub node: Node,
    /// Targets that it serves.
    pub targets: Vec<TargetId>,
    /// Seconds since it was last heard of; `None`: not since management has started.
    pub silent_s: Option<u64>,
}

/// A target for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetInfo {
    /// What the map says.
    #[serde(flatten)]
    pub target: Target,
    /// Name of its node; empty in a cluster of one process.
    pub node_name: String,
    /// Name of its pool.
    pub pool_name: String,
    /// How far it is emptied, if it is drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DrainProgress>,
}

/// A pool for people. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PoolInfo {
    pub id: PoolId,
    pub name: String,
    pub targets: usize,
    pub groups: usize,
    pub capacity: u64,
    pub free: u64,
    /// Share of each target that new files leave free, percent.
    #[serde(default)]
    pub spare: u8,
}

/// A redundancy group for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupInfo {
    /// What the map says.
    #[serde(flatten)]
    pub group: Group,
    /// Name of its pool.
    pub pool_name: String,
    /// The member that orders writes; `None` when none is good.
    pub primary: Option<TargetId>,
    /// Members that are being brought in step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resyncs: Vec<ResyncProgress>,
    /// The rack of each member, in their order; empty when none is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub racks: Vec<Option<String>>,
}

/// A metadata service for people.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MetaInfo {
    /// Its node.
    #[serde(flatten)]
    pub node: Node,
    /// Partitions that it is to execute.
    pub assigned: Vec<PartitionId>,
    /// Those whose requests it answers now; `None` when it doesn't say.
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
    /// What gives a node another name, rack or roles, as far as something is said of them: all of
    /// it is done, or nothing.
    pub fn change_node(
        node: NodeId,
        name: Option<String>,
        rack: Option<Option<String>>,
        roles: Option<Vec<Role>>,
    ) -> Option<MgmtRequest> {
        match (name, rack, roles) {
            // These are understood by older management services, too.
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

    fn answer_payload(&self) -> Answer {
        match self {
            MgmtRequest::WatchMap { .. }
            | MgmtRequest::Tidy { .. }
            | MgmtRequest::TidyGroup { .. }
            | MgmtRequest::SetMember { .. } => Answer::Waits,
            _ => Answer::Plain,
        }
    }

    fn rule(&self) -> Rule {
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
        assert_eq!(watch.answer_payload(), Answer::Waits);
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
    }

    #[test]
    fn later_fields_are_passed_over_and_unknown_requests_are_malformed() {
        let later = br#"{"ask":"goodbye","node":3,"instance":7,"mood":"good"}"#;
        let goodbye = MgmtRequest::Goodbye { node: NodeId(3), instance: 7 };
        assert_eq!(MgmtRequest::decode(later).unwrap(), goodbye);
        for bytes in [&b""[..], b"\xff", b"{}", br#"{"ask":"explode"}"#, br#"{"ask":"goodbye","node":-1}"#] {
            assert!(MgmtRequest::decode(bytes).is_err());
        }
    }
}
