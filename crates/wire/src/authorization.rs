//! Authorization table: services, operations and the callers that may request them.
//!
//! Pure. Each kind of request has a row, in a `match` without a wildcard: a new kind doesn't
//! compile before it has one. The transport checks the row against what the connection has proved
//! ([`Principal`]) and against the cluster map's entry of that node, before a service sees the
//! request. Services decide what a client may do with a certain file, by sessions and capabilities.
//!
//! A test generates `docs/reference/authorization.md` from this table.

use crate::{
    InGroup, KvRequest, MetaOp, MetaRequest, MgmtRequest, Part, PartitionsRequest, StorageOp, StorageRequest,
};
use std::fmt;
use types::{ClusterMap, Epoch, GroupId, NodeId, Role, SessionId, TargetId};

/// Proved identity of the peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Principal {
    /// Connections prove nothing in this cluster: every caller is trusted.
    Unproved,
    /// A peer without a certificate.
    Stranger,
    /// A client.
    Client,
    /// This node. The cluster map says what it serves.
    Node(NodeId),
}

/// A set of roles of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roles(u8);

impl Roles {
    /// No role: roles alone admit no node.
    pub const NONE: Roles = Roles(0);
    /// Management.
    pub const MGMT: Roles = Roles(1);
    /// Metadata services.
    pub const META: Roles = Roles(2);
    /// Storage services.
    pub const STORAGE: Roles = Roles(4);
    /// Management and metadata services.
    pub const MGMT_AND_META: Roles = Roles(Roles::MGMT.0 | Roles::META.0);
    /// Every role: any node of the cluster map.
    pub const ALL: Roles = Roles(Roles::MGMT_AND_META.0 | Roles::STORAGE.0);

    /// Whether a role is in the set.
    pub fn has(self, role: Role) -> bool {
        let single = match role {
            Role::Mgmt => Roles::MGMT,
            Role::Meta => Roles::META,
            Role::Storage => Roles::STORAGE,
        };
        self.0 & single.0 != 0
    }

    fn names(self) -> String {
        let all = [Role::Mgmt, Role::Meta, Role::Storage];
        let names: Vec<&str> =
            all.into_iter().filter(|role| self.has(*role)).map(|role| role.name()).collect();
        names.join(" or ")
    }
}

/// Callers that may send a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callers {
    /// Every caller, also without a certificate.
    Anyone,
    /// Clients and nodes.
    Members,
    /// Clients. A node that mounts the file system uses a client's certificate.
    Clients,
    /// Nodes to which the cluster map gives one of these roles.
    Nodes(Roles),
    /// The node that the request names, if it has one of these roles. [`Roles::ALL`] checks only
    /// the certificate: the service itself informs a node that it was removed.
    Itself(NodeId, Roles),
    /// The node that serves the target.
    NodeOf(TargetId),
    /// Nodes that serve a member of the mirrored group, and nodes with one of these roles. The
    /// caller uses version `since` of the group; zero: any version.
    Group {
        /// The group.
        group: GroupId,
        /// Its version, as the caller knows it.
        since: Epoch,
        /// Roles that are admitted without serving a member.
        or: Roles,
    },
    /// No connection: only commands on the management node itself.
    Console,
    /// No caller: the operation can't be requested in this form.
    Nobody,
}

impl Callers {
    /// Whether a principal is admitted, where its certificate alone decides; `None` where the
    /// cluster map decides.
    pub fn by_certificate(&self, principal: Principal) -> Option<bool> {
        match (*self, principal) {
            (Callers::Console | Callers::Nobody, _) => Some(false),
            (Callers::Anyone, _) | (_, Principal::Unproved) => Some(true),
            (_, Principal::Stranger) => Some(false),
            (Callers::Members | Callers::Clients, Principal::Client) => Some(true),
            (_, Principal::Client) => Some(false),
            (Callers::Members, Principal::Node(_)) => Some(true),
            (Callers::Clients, Principal::Node(_)) => Some(false),
            (Callers::Itself(own, roles), Principal::Node(node)) => match own == node {
                true if roles != Roles::ALL => None,
                is_own => Some(is_own),
            },
            (Callers::Nodes(_) | Callers::NodeOf(_) | Callers::Group { .. }, Principal::Node(_)) => None,
        }
    }

    /// Whether this map admits a principal.
    pub fn include(&self, principal: Principal, map: &ClusterMap) -> bool {
        if let Some(decided) = self.by_certificate(principal) {
            return decided;
        }
        let Principal::Node(node) = principal else { return false };
        match *self {
            Callers::Nodes(roles) | Callers::Itself(_, roles) => has_role(map, node, roles),
            Callers::NodeOf(target) => serves(map, node, target),
            Callers::Group { group, or, .. } => {
                let members = map.group(group).map_or(&[][..], |group| &group.members);
                members.iter().any(|member| serves(map, node, *member)) || has_role(map, node, or)
            }
            Callers::Anyone | Callers::Members | Callers::Clients | Callers::Console | Callers::Nobody => {
                false
            }
        }
    }

    /// Whether the caller uses another version of a group than the map: the caller is then told so,
    /// and refreshes its map.
    pub fn know_another_version(&self, map: &ClusterMap) -> bool {
        match self {
            Callers::Group { group, since, .. } if *since != Epoch(0) => {
                map.group(*group).is_none_or(|known| known.since != *since)
            }
            _ => false,
        }
    }

    /// The oldest map that can decide, as far as the request shows.
    pub fn decided_by(&self) -> Epoch {
        match self {
            Callers::Group { since, .. } => *since,
            _ => Epoch(0),
        }
    }
}

fn has_role(map: &ClusterMap, node: NodeId, roles: Roles) -> bool {
    map.node(node).is_some_and(|node| node.roles.iter().any(|role| roles.has(*role)))
}

fn serves(map: &ClusterMap, node: NodeId, target: TargetId) -> bool {
    map.target(target).is_some_and(|target| target.node == node)
}

impl fmt::Display for Callers {
    /// Formats the callers as the subject of "may ask for it".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Callers::Anyone => f.write_str("everybody, also without a certificate"),
            Callers::Members => f.write_str("clients and nodes"),
            Callers::Clients => f.write_str("clients"),
            Callers::Nodes(Roles::ALL) => f.write_str("nodes of the cluster map"),
            Callers::Nodes(roles) => write!(f, "nodes with the role {}", roles.names()),
            Callers::Itself(_, Roles::ALL) => f.write_str("the node itself"),
            Callers::Itself(_, roles) => write!(f, "the node itself, with the role {}", roles.names()),
            Callers::NodeOf(_) => f.write_str("the node that serves the target"),
            Callers::Group { or: Roles::NONE, .. } => f.write_str("nodes with a member of the group"),
            Callers::Group { or, .. } => {
                write!(f, "nodes with a member of the group or the role {}", or.names())
            }
            Callers::Console => f.write_str("commands on the management node itself"),
            Callers::Nobody => f.write_str("nobody"),
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The operation, for messages and documents.
    pub operation: &'static str,
    /// The admitted callers.
    pub callers: Callers,
}

const fn rule(operation: &'static str, callers: Callers) -> Rule {
    Rule { operation, callers }
}

/// Callers of administrative operations. Commands run on any node, but only management carries out
/// changes for them: a node that serves storage can't reconfigure the cluster.
const ADMIN: Callers = Callers::Nodes(Roles::MGMT);
/// Callers of operations that report state to administrators.
const NODES: Callers = Callers::Nodes(Roles::ALL);

/// The rows of the management service.
pub fn management(request: &MgmtRequest) -> Rule {
    use MgmtRequest as R;
    match request {
        R::Join(_) => rule("join", Callers::Anyone),
        R::Register(register) => rule("register", Callers::Itself(register.node, Roles::ALL)),
        R::Heartbeat(beat) => rule("heartbeat", Callers::Itself(beat.node, Roles::ALL)),
        R::Goodbye { node, .. } => rule("goodbye", Callers::Itself(*node, Roles::ALL)),
        R::Attach { .. } => rule("attach", Callers::Members),
        R::WatchMap { .. } => rule("watch-map", Callers::Members),
        R::ReportUnreachable { .. } => rule("report-unreachable", Callers::Members),
        R::AddTarget { node, .. } => rule("add-target", Callers::Itself(*node, Roles::STORAGE)),
        R::Tidy { target, .. } => rule("tidy", Callers::NodeOf(*target)),
        R::TidyGroup { group, .. } => {
            rule("tidy-group", Callers::Group { group: *group, since: Epoch(0), or: Roles::NONE })
        }
        R::ListNodes => rule("list-nodes", Callers::Members),
        R::RenameNode { .. } => rule("rename-node", ADMIN),
        R::SetRack { .. } => rule("set-rack", ADMIN),
        R::SetNode { .. } => rule("set-node", ADMIN),
        R::RemoveNode { .. } => rule("remove-node", ADMIN),
        R::ListTargets => rule("list-targets", Callers::Members),
        R::SetPool { .. } => rule("set-pool", ADMIN),
        R::SetDrain { .. } => rule("set-drain", ADMIN),
        R::RemoveTarget { .. } => rule("remove-target", ADMIN),
        R::ListPools => rule("list-pools", Callers::Members),
        R::RenamePool { .. } => rule("rename-pool", ADMIN),
        R::RemovePool { .. } => rule("remove-pool", ADMIN),
        R::ListSessions => rule("list-sessions", NODES),
        R::EvictSession { .. } => rule("evict-session", ADMIN),
        R::ListMetas => rule("list-metas", Callers::Members),
        R::RebalanceMetas => rule("rebalance-metas", ADMIN),
        R::ListExports => rule("list-exports", NODES),
        R::SetExport { .. } => rule("set-export", ADMIN),
        R::RemoveExport { .. } => rule("remove-export", ADMIN),
        R::Health => rule("health", Callers::Members),
        R::ListGroups => rule("list-groups", Callers::Members),
        R::MakeGroups { .. } => rule("make-groups", Callers::Nodes(Roles::MGMT_AND_META)),
        // Management checks further: only the node of the primary decides.
        R::SetMember { group, since, .. } => {
            rule("set-member", Callers::Group { group: *group, since: *since, or: Roles::NONE })
        }
        R::SetResync { .. } => rule("set-resync", ADMIN),
        R::SetScrub { .. } => rule("set-scrub", ADMIN),
        R::SetChecksums { .. } => rule("set-checksums", ADMIN),
        R::SetSpare { .. } => rule("set-spare", ADMIN),
        R::ListResyncs => rule("list-resyncs", Callers::Members),
        R::RebalanceGroups { .. } => rule("rebalance-groups", ADMIN),
        R::RecoverGroup { .. } => rule("recover-group", ADMIN),
        R::ListScrubs => rule("list-scrubs", NODES),
        R::NoteCeilings { .. } => rule("note-ceilings", ADMIN),
        R::ListCeilings => rule("list-ceilings", Callers::Members),
        R::NewToken(_) => rule("new-token", Callers::Console),
        R::ListTokens => rule("list-tokens", NODES),
        R::RevokeToken { .. } => rule("revoke-token", ADMIN),
        R::AddClient(_) => rule("add-client", Callers::Console),
        R::ListClients => rule("list-clients", NODES),
        R::RevokeClient { .. } => rule("revoke-client", ADMIN),
        // Management checks further: a member renews only its own certificate.
        R::Renew { .. } => rule("renew", Callers::Members),
        R::CertifyApi { node, .. } => rule("certify-api", Callers::Itself(*node, Roles::ALL)),
    }
}

/// The rows of the metadata service. Session 0 belongs to the service itself; no connection may use
/// it.
pub fn metadata(request: &MetaRequest) -> Rule {
    let row = metadata_of_client(&request.op);
    match request.session {
        SessionId(0) => Rule { callers: Callers::Nobody, ..row },
        _ => row,
    }
}

fn metadata_of_client(op: &MetaOp) -> Rule {
    use Callers::Clients;
    match op {
        MetaOp::Lookup { .. } => rule("lookup", Clients),
        MetaOp::Getattr { .. } => rule("getattr", Clients),
        MetaOp::Setattr { .. } => rule("setattr", Clients),
        MetaOp::Create { .. } => rule("create", Clients),
        MetaOp::Reserve { .. } => rule("reserve", Clients),
        MetaOp::Deliver { .. } => rule("deliver", Clients),
        MetaOp::Mkdir { .. } => rule("mkdir", Clients),
        MetaOp::Symlink { .. } => rule("symlink", Clients),
        MetaOp::Tmpfile { .. } => rule("tmpfile", Clients),
        MetaOp::Link { .. } => rule("link", Clients),
        MetaOp::Unlink { .. } => rule("unlink", Clients),
        MetaOp::Rmdir { .. } => rule("rmdir", Clients),
        MetaOp::Rename { .. } => rule("rename", Clients),
        MetaOp::Readlink { .. } => rule("readlink", Clients),
        MetaOp::Readdir { .. } => rule("readdir", Clients),
        MetaOp::GetXattr { .. } => rule("get-xattr", Clients),
        MetaOp::SetXattr { .. } => rule("set-xattr", Clients),
        MetaOp::ListXattr { .. } => rule("list-xattr", Clients),
        MetaOp::RemoveXattr { .. } => rule("remove-xattr", Clients),
        MetaOp::Open { .. } => rule("open", Clients),
        MetaOp::Reopen { .. } => rule("reopen", Clients),
        MetaOp::MayOpen { .. } => rule("may-open", Clients),
        MetaOp::WriteInline { .. } => rule("write-inline", Clients),
        MetaOp::BeginWrite { .. } => rule("begin-write", Clients),
        MetaOp::DropInline { .. } => rule("drop-inline", Clients),
        MetaOp::EndWrite { .. } => rule("end-write", Clients),
        MetaOp::Truncate { .. } => rule("truncate", Clients),
        MetaOp::TruncateDone { .. } => rule("truncate-done", Clients),
        MetaOp::Reclaim { .. } => rule("reclaim", Clients),
        MetaOp::Lock { .. } => rule("lock", Clients),
        MetaOp::Unlock { .. } => rule("unlock", Clients),
        MetaOp::TestLock { .. } => rule("test-lock", Clients),
        MetaOp::ReclaimLocks { .. } => rule("reclaim-locks", Clients),
        MetaOp::ReclaimOpens { .. } => rule("reclaim-opens", Clients),
        MetaOp::ReclaimSizes { .. } => rule("reclaim-sizes", Clients),
        MetaOp::Register { .. } => rule("register", Clients),
        MetaOp::Follow { .. } => rule("follow", Clients),
        MetaOp::NextRecalls { .. } => rule("next-recalls", Clients),
        MetaOp::Introduce { .. } => rule("introduce", Clients),
        MetaOp::Yield { .. } => rule("yield", Clients),
        MetaOp::StillYielding { .. } => rule("still-yielding", Clients),
        MetaOp::Release { .. } => rule("release", Clients),
        MetaOp::EndSession => rule("end-session", Clients),
        MetaOp::Describe { .. } => rule("describe", Clients),
        MetaOp::SetPattern { .. } => rule("set-pattern", Clients),
        MetaOp::Migrate { .. } => rule("migrate", Clients),
        MetaOp::MigrationOf { .. } => rule("migration-of", Clients),
        MetaOp::NoteAccess { .. } => rule("note-access", Clients),
        MetaOp::Usage => rule("usage", Clients),
        MetaOp::Sync => rule("sync", Clients),
    }
}

/// The three forms of a request to a storage service.
struct StorageRow {
    operation: &'static str,
    /// In a client's session. The capability shows whether the session may.
    client: Callers,
    /// In session 0, to a target or to the primary of a group.
    service: Roles,
    /// To a member of a mirrored group, from another one ([`Part::Member`], [`Part::Resync`]).
    has_member_form: bool,
}

const fn row(operation: &'static str, client: Callers, service: Roles, has_member_form: bool) -> StorageRow {
    StorageRow { operation, client, service, has_member_form }
}

/// The rows of the storage service.
pub fn storage(request: &StorageRequest) -> Rule {
    let StorageRow { operation, client, service, has_member_form } = storage_row(&request.op);
    let of_group = |asked: &InGroup, or| Callers::Group { group: asked.group, since: asked.since, or };
    let callers = match (&request.group, request.session) {
        // Management reads single replicas for the file system check.
        (Some(asked), _) if asked.part != Part::Primary => match has_member_form {
            true => of_group(asked, Roles::MGMT),
            false => Callers::Nobody,
        },
        // A member that found damage asks the primary to repair it.
        (Some(asked), SessionId(0)) if matches!(request.op, StorageOp::Heal { .. }) => {
            of_group(asked, service)
        }
        (_, SessionId(0)) if service == Roles::NONE => Callers::Nobody,
        (_, SessionId(0)) => Callers::Nodes(service),
        _ => client,
    };
    Rule { operation, callers }
}

fn storage_row(op: &StorageOp) -> StorageRow {
    use Callers::{Clients, Nobody};
    const SERVICES: Roles = Roles::MGMT_AND_META;
    match op {
        StorageOp::Read { .. } => row("read", Clients, SERVICES, true),
        StorageOp::Write { .. } => row("write", Clients, SERVICES, true),
        StorageOp::Truncate { .. } => row("truncate", Clients, SERVICES, true),
        StorageOp::Allocate { .. } => row("allocate", Clients, SERVICES, true),
        StorageOp::Delete => row("delete", Clients, SERVICES, true),
        StorageOp::Sync => row("sync", Clients, SERVICES, true),
        StorageOp::SyncTarget => row("sync-target", Clients, SERVICES, true),
        StorageOp::Stat => row("stat", Clients, SERVICES, true),
        StorageOp::Seek { .. } => row("seek", Clients, SERVICES, true),
        StorageOp::Space => row("space", Clients, SERVICES, true),
        StorageOp::Room { .. } => row("room", Clients, SERVICES, true),
        StorageOp::Fence { .. } => row("fence", Nobody, Roles::META, false),
        StorageOp::Watch { .. } => row("watch", Nobody, Roles::META, false),
        StorageOp::Changed { .. } => row("changed", Nobody, Roles::META, false),
        StorageOp::Unwatch { .. } => row("unwatch", Nobody, Roles::META, false),
        StorageOp::Settled => row("settled", Nobody, Roles::NONE, true),
        StorageOp::Regions { .. } => row("regions", Nobody, Roles::MGMT, true),
        StorageOp::Survey { .. } => row("survey", Nobody, Roles::NONE, true),
        StorageOp::Heal { .. } => row("heal", Nobody, Roles::MGMT, false),
        StorageOp::Mend { .. } => row("mend", Nobody, Roles::MGMT, false),
        StorageOp::Forget { .. } => row("forget", Nobody, Roles::MGMT, true),
        StorageOp::SetAside => row("set-aside", Nobody, Roles::MGMT, true),
        StorageOp::MarkLost { .. } => row("mark-lost", Nobody, Roles::NONE, true),
        StorageOp::SetTime { .. } => row("set-time", Nobody, Roles::META, true),
        StorageOp::Digests { .. } => row("digests", Nobody, Roles::NONE, true),
        StorageOp::Adopt { .. } => row("adopt", Nobody, Roles::NONE, true),
        StorageOp::Measure { .. } => row("measure", Nobody, Roles::MGMT, false),
        StorageOp::Traffic => row("traffic", Nobody, Roles::ALL, false),
        StorageOp::Rewrite { .. } => row("rewrite", Nobody, Roles::NONE, true),
        StorageOp::Expect { .. } => row("expect", Nobody, Roles::NONE, true),
    }
}

/// The rows of the metadata store.
pub fn key_value(request: &KvRequest) -> Rule {
    const METAS: Callers = Callers::Nodes(Roles::META);
    match request {
        KvRequest::Get { .. } => rule("get", METAS),
        KvRequest::Scan { .. } => rule("scan", METAS),
        KvRequest::Apply { .. } => rule("apply", METAS),
        KvRequest::Persist => rule("persist", METAS),
    }
}

/// The rows of requests between metadata services, and from management to them.
pub fn partitions(request: &PartitionsRequest) -> Rule {
    const METAS: Callers = Callers::Nodes(Roles::META);
    match request {
        PartitionsRequest::Borrow { .. } => rule("borrow", METAS),
        PartitionsRequest::Return { .. } => rule("return", METAS),
        PartitionsRequest::MakeWay { .. } => rule("make-way", METAS),
        PartitionsRequest::Ended { .. } => rule("ended", METAS),
        PartitionsRequest::Tidy { .. } => rule("tidy", ADMIN),
        PartitionsRequest::TidyGroup { .. } => rule("tidy-group", ADMIN),
        PartitionsRequest::FileOn { .. } => rule("file-on", ADMIN),
        PartitionsRequest::NamesPool { .. } => rule("names-pool", ADMIN),
        PartitionsRequest::Sessions => rule("sessions", ADMIN),
        PartitionsRequest::Evict { .. } => rule("evict", ADMIN),
        PartitionsRequest::Executed => rule("executed", ADMIN),
        PartitionsRequest::Drains => rule("drains", ADMIN),
    }
}
