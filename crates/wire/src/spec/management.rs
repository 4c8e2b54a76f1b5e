//! The operations of the management service.

use crate::MgmtRequest;
use crate::authorization::{Callers, Roles};
use types::Epoch;

/// What an administrator does. Commands run on any node, but only management carries out changes of
/// the cluster.
const ADMIN: Callers = Callers::Nodes(Roles::MGMT);
/// What nodes show to administrators.
const NODES: Callers = Callers::Nodes(Roles::ALL);

/// The entry of an operation in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MgmtSpec {
    /// Name in messages and documents.
    pub name: &'static str,
    /// The callers that may send it.
    pub callers: Callers,
    /// It is answered when something happens: no deadline applies.
    pub has_no_deadline: bool,
}

impl MgmtSpec {
    const fn without_deadline(self) -> MgmtSpec {
        MgmtSpec { has_no_deadline: true, ..self }
    }
}

const fn op(name: &'static str, callers: Callers) -> MgmtSpec {
    MgmtSpec { name, callers, has_no_deadline: false }
}

impl MgmtRequest {
    /// The entry of this operation in the table.
    pub fn spec(&self) -> MgmtSpec {
        use MgmtRequest as R;
        match self {
            R::Join(_) => op("join", Callers::Any),
            R::Register(register) => op("register", Callers::NamedNode(register.node, Roles::ALL)),
            R::Heartbeat(beat) => op("heartbeat", Callers::NamedNode(beat.node, Roles::ALL)),
            R::Goodbye { node, .. } => op("goodbye", Callers::NamedNode(*node, Roles::ALL)),
            R::Attach { .. } => op("attach", Callers::Members),
            R::WatchMap { .. } => op("watch-map", Callers::Members).without_deadline(),
            R::ReportUnreachable { .. } => op("report-unreachable", Callers::Members),
            R::AddTarget { node, .. } => op("add-target", Callers::NamedNode(*node, Roles::STORAGE)),
            R::Reconcile { target, .. } => op("tidy", Callers::NodeOf(*target)).without_deadline(),
            R::ReconcileGroup { group, .. } => {
                let callers = Callers::Group { group: *group, since: Epoch(0), or: Roles::NONE };
                op("tidy-group", callers).without_deadline()
            }
            R::ListNodes => op("list-nodes", Callers::Members),
            R::RenameNode { .. } => op("rename-node", ADMIN),
            R::SetRack { .. } => op("set-rack", ADMIN),
            R::SetNode { .. } => op("set-node", ADMIN),
            R::RemoveNode { .. } => op("remove-node", ADMIN),
            R::ListTargets => op("list-targets", Callers::Members),
            R::SetPool { .. } => op("set-pool", ADMIN),
            R::SetDrain { .. } => op("set-drain", ADMIN),
            R::RemoveTarget { .. } => op("remove-target", ADMIN),
            R::ListPools => op("list-pools", Callers::Members),
            R::RenamePool { .. } => op("rename-pool", ADMIN),
            R::RemovePool { .. } => op("remove-pool", ADMIN),
            R::ListSessions => op("list-sessions", NODES),
            R::EvictSession { .. } => op("evict-session", ADMIN),
            R::ListMetas => op("list-metas", Callers::Members),
            R::RebalanceMetas => op("rebalance-metas", ADMIN),
            R::ListExports => op("list-exports", NODES),
            R::SetExport { .. } => op("set-export", ADMIN),
            R::RemoveExport { .. } => op("remove-export", ADMIN),
            R::Health => op("health", Callers::Members),
            R::ListGroups => op("list-groups", Callers::Members),
            R::MakeGroups { .. } => op("make-groups", Callers::Nodes(Roles::MGMT_AND_META)),
            // Management looks further: only the node of the primary decides.
            R::SetMember { group, since, .. } => {
                let callers = Callers::Group { group: *group, since: *since, or: Roles::NONE };
                op("set-member", callers).without_deadline()
            }
            R::SetResync { .. } => op("set-resync", ADMIN),
            R::SetScrub { .. } => op("set-scrub", ADMIN),
            R::SetChecksums { .. } => op("set-checksums", ADMIN),
            R::SetSpare { .. } => op("set-spare", ADMIN),
            R::ListResyncs => op("list-resyncs", Callers::Members),
            R::RebalanceGroups { .. } => op("rebalance-groups", ADMIN),
            R::RecoverGroup { .. } => op("recover-group", ADMIN),
            R::ListScrubs => op("list-scrubs", NODES),
            R::NoteCeilings { .. } => op("note-ceilings", ADMIN),
            R::ListCeilings => op("list-ceilings", Callers::Members),
            R::NewToken(_) => op("new-token", Callers::LocalAdmin),
            R::ListTokens => op("list-tokens", NODES),
            R::RevokeToken { .. } => op("revoke-token", ADMIN),
            R::AddClient(_) => op("add-client", Callers::LocalAdmin),
            R::ListClients => op("list-clients", NODES),
            R::RevokeClient { .. } => op("revoke-client", ADMIN),
            // Management looks further: a member renews its own certificate.
            R::Renew { .. } => op("renew", Callers::Members),
            R::CertifyApi { node, .. } => op("certify-api", Callers::NamedNode(*node, Roles::ALL)),
        }
    }
}
