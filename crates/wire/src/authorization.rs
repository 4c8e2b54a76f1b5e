//! Which callers may send which request.
//!
//! Pure. The tables of operations ([`crate::spec`]) say it for each kind of request, in a `match`
//! without a wildcard: a kind that is added doesn't compile before it has an entry. The transport
//! compares the entry with what a connection has proved ([`Principal`]) and with what the cluster
//! map says of that node, before a service sees the request. What a client may do with a certain
//! file is for the services: sessions and capabilities say that.
//!
//! A test generates `docs/reference/authorization.md` from this table.

use crate::spec::MgmtSpec;
use crate::{
    GroupContext, GroupRole, KvRequest, MetaRequest, MgmtRequest, PartitionsRequest, StorageRequest,
};
use std::fmt;
use types::{ClusterMap, Epoch, GroupId, NodeId, Role, SessionId, TargetId};

/// Proved identity of the peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Principal {
    /// Connections prove nothing in this cluster: every caller is trusted.
    Unauthenticated,
    /// A peer without a certificate.
    NoCertificate,
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
    Any,
    /// Clients and nodes.
    Members,
    /// Clients. A node that mounts the file system uses a client's certificate.
    Clients,
    /// Nodes to which the cluster map gives one of these roles.
    Nodes(Roles),
    /// The node that the request names, if it has one of these roles. [`Roles::ALL`] checks only
    /// the certificate: the service itself informs a node that it was removed.
    NamedNode(NodeId, Roles),
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
    LocalAdmin,
    /// No caller: the operation can't be requested in this form.
    NoCaller,
}

impl Callers {
    /// Whether a principal is admitted, where its certificate alone decides; `None` where the
    /// cluster map decides.
    pub fn admits_by_certificate(&self, principal: Principal) -> Option<bool> {
        match (*self, principal) {
            (Callers::LocalAdmin | Callers::NoCaller, _) => Some(false),
            (Callers::Any, _) | (_, Principal::Unauthenticated) => Some(true),
            (_, Principal::NoCertificate) => Some(false),
            (Callers::Members | Callers::Clients, Principal::Client) => Some(true),
            (_, Principal::Client) => Some(false),
            (Callers::Members, Principal::Node(_)) => Some(true),
            (Callers::Clients, Principal::Node(_)) => Some(false),
            (Callers::NamedNode(own, roles), Principal::Node(node)) => match own == node {
                true if roles != Roles::ALL => None,
                is_own => Some(is_own),
            },
            (Callers::Nodes(_) | Callers::NodeOf(_) | Callers::Group { .. }, Principal::Node(_)) => None,
        }
    }

    /// Whether this map admits a principal.
    pub fn admit(&self, principal: Principal, map: &ClusterMap) -> bool {
        if let Some(decided) = self.admits_by_certificate(principal) {
            return decided;
        }
        let Principal::Node(node) = principal else { return false };
        match *self {
            Callers::Nodes(roles) | Callers::NamedNode(_, roles) => has_role(map, node, roles),
            Callers::NodeOf(target) => serves(map, node, target),
            Callers::Group { group, or, .. } => {
                let members = map.group(group).map_or(&[][..], |group| &group.members);
                members.iter().any(|member| serves(map, node, *member)) || has_role(map, node, or)
            }
            Callers::Any | Callers::Members | Callers::Clients | Callers::LocalAdmin | Callers::NoCaller => {
                false
            }
        }
    }

    /// Whether the caller uses another version of a group than the map: the caller gets an error,
    /// and refreshes its map.
    pub fn have_other_group_version(&self, map: &ClusterMap) -> bool {
        match self {
            Callers::Group { group, since, .. } if *since != Epoch(0) => {
                map.group(*group).is_none_or(|known| known.since != *since)
            }
            _ => false,
        }
    }

    /// The oldest map that can decide, as far as the request shows.
    pub fn oldest_deciding_epoch(&self) -> Epoch {
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
            Callers::Any => f.write_str("any caller, also without a certificate"),
            Callers::Members => f.write_str("clients and nodes"),
            Callers::Clients => f.write_str("clients"),
            Callers::Nodes(Roles::ALL) => f.write_str("all nodes in the cluster map"),
            Callers::Nodes(roles) => write!(f, "nodes with the role {}", roles.names()),
            Callers::NamedNode(_, Roles::ALL) => f.write_str("the node itself"),
            Callers::NamedNode(_, roles) => write!(f, "the node itself, with the role {}", roles.names()),
            Callers::NodeOf(_) => f.write_str("the node that serves the target"),
            Callers::Group { or: Roles::NONE, .. } => f.write_str("nodes with a member of the group"),
            Callers::Group { or, .. } => {
                write!(f, "nodes with a member of the group or the role {}", or.names())
            }
            Callers::LocalAdmin => f.write_str("commands on the management node itself"),
            Callers::NoCaller => f.write_str("no caller"),
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuthorizationRule {
    /// The operation, for messages and documents.
    pub operation: &'static str,
    /// The admitted callers.
    pub callers: Callers,
}

const fn rule(operation: &'static str, callers: Callers) -> AuthorizationRule {
    AuthorizationRule { operation, callers }
}

/// What an administrator does. Only management carries out changes of the cluster: a node that
/// serves storage can't reconfigure it.
const ADMIN: Callers = Callers::Nodes(Roles::MGMT);

/// The row of a request to the management service.
pub fn management(request: &MgmtRequest) -> AuthorizationRule {
    let MgmtSpec { name, callers, .. } = request.spec();
    rule(name, callers)
}

/// The row of a request to the metadata service. Session 0 is the service's own, for which no
/// connection speaks.
pub fn metadata(request: &MetaRequest) -> AuthorizationRule {
    let callers = match request.session {
        SessionId(0) => Callers::NoCaller,
        _ => Callers::Clients,
    };
    rule(request.op.spec().name, callers)
}

/// The row of a request to the storage service, which depends on the sender that it names: a
/// client's session, a service (session 0), or another member of a mirrored group
/// ([`GroupRole::Member`], [`GroupRole::Resync`]).
pub fn storage(request: &StorageRequest) -> AuthorizationRule {
    let spec = request.op.spec();
    let of_group =
        |context: &GroupContext, or| Callers::Group { group: context.group, since: context.version, or };
    let callers = match (&request.group, request.session) {
        // Management reads single replicas for the check of the file system.
        (Some(asked), _) if asked.role != GroupRole::Primary => match spec.by_members {
            true => of_group(asked, Roles::MGMT),
            false => Callers::NoCaller,
        },
        (Some(asked), SessionId(0)) if spec.by_members_to_primary => of_group(asked, spec.by_services),
        (_, SessionId(0)) if spec.by_services == Roles::NONE => Callers::NoCaller,
        (_, SessionId(0)) => Callers::Nodes(spec.by_services),
        // The capability says whether the session may.
        _ if spec.by_clients => Callers::Clients,
        _ => Callers::NoCaller,
    };
    rule(spec.name, callers)
}

/// The rows of the metadata store.
pub fn key_value(request: &KvRequest) -> AuthorizationRule {
    const METAS: Callers = Callers::Nodes(Roles::META);
    match request {
        KvRequest::Get { .. } => rule("get", METAS),
        KvRequest::Scan { .. } => rule("scan", METAS),
        KvRequest::Apply { .. } => rule("apply", METAS),
        KvRequest::Persist => rule("persist", METAS),
    }
}

/// The rows of requests between metadata services, and from management to them.
pub fn partitions(request: &PartitionsRequest) -> AuthorizationRule {
    const METAS: Callers = Callers::Nodes(Roles::META);
    match request {
        PartitionsRequest::LockPartition { .. } => rule("lock-partition", METAS),
        PartitionsRequest::UnlockPartition { .. } => rule("unlock-partition", METAS),
        PartitionsRequest::RecallConflicting { .. } => rule("recall-conflicting", METAS),
        PartitionsRequest::Ended { .. } => rule("ended", METAS),
        PartitionsRequest::Reconcile { .. } => rule("reconcile", ADMIN),
        PartitionsRequest::ReconcileGroup { .. } => rule("reconcile-group", ADMIN),
        PartitionsRequest::FileOn { .. } => rule("file-on", ADMIN),
        PartitionsRequest::FindPoolReference { .. } => rule("find-pool-reference", ADMIN),
        PartitionsRequest::Sessions => rule("sessions", ADMIN),
        PartitionsRequest::Evict { .. } => rule("evict", ADMIN),
        PartitionsRequest::Executed => rule("executed", ADMIN),
        PartitionsRequest::Drains => rule("drains", ADMIN),
    }
}
