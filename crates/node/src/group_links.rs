//! Connections of a process's storage service for mirrored groups: to the other members, and to
//! management, which decides on membership.

use crate::current_map::{CurrentMap, unexpected_reply};
use crate::{Membership, MgmtChannel};
use net::{Channel, LocalFuture};
use routing::{StorageChannel, StorageChannels, WhenOffline};
use std::sync::Arc;
use storage::{GroupManagement, GroupPeers, MemberChange};
use types::{ClusterMap, GroupId, MapHandle, Node, Result, TargetId};
use wire::mgmt::ReconcileFiles;
use wire::{MgmtReply, MgmtRequest};

/// Management, as the storage service calls it.
struct ManagementClient {
    management: MgmtChannel,
    /// Installs a newer map; `None` if this process uses management's own map.
    current_map: Option<Arc<CurrentMap>>,
}

impl GroupManagement for ManagementClient {
    fn set_member(&self, change: MemberChange) -> LocalFuture<'_, Result<Arc<ClusterMap>>> {
        Box::pin(async move {
            let MemberChange { group, version: since, target, state, reason, is_orderly: orderly } = change;
            let request = MgmtRequest::SetMember { group, since, target, state, reason, orderly };
            match self.management.call(request, None).await? {
                MgmtReply::Map { map } => {
                    if let Some(current_map) = &self.current_map {
                        current_map.install(map.clone());
                    }
                    Ok(map)
                }
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.management.call(MgmtRequest::ReconcileGroup { group, touched }, None).await? {
                MgmtReply::Done => Ok(()),
                other => Err(unexpected_reply(&other)),
            }
        })
    }
}

/// Returns the connections of a node. Other members are on other nodes, according to `map`;
/// `connect` returns the channel to such a node.
pub fn groups_of_node(
    membership: &Membership,
    map: MapHandle,
    connect: impl Fn(&Node) -> StorageChannel + Send + Sync + 'static,
) -> GroupPeers {
    let (own_node, own) = (membership.node(), Arc::downgrade(&membership.service));
    let connect = move |node: &Node| match own.upgrade().filter(|_| node.id == own_node) {
        Some(service) => Channel::in_process(service),
        None => connect(node),
    };
    let members = Arc::new(StorageChannels::mapped(map.clone(), WhenOffline::Try, Box::new(connect)));
    let management = ManagementClient {
        management: membership.management.clone(),
        current_map: Some(membership.map.clone()),
    };
    GroupPeers { map, members, management: Arc::new(management) }
}

/// Returns the connections for a cluster in one process.
pub fn groups_of_one_process(
    map: MapHandle,
    targets: impl Iterator<Item = TargetId>,
    channel: &StorageChannel,
    management: MgmtChannel,
) -> GroupPeers {
    let members = Arc::new(targets.map(|id| (id, channel.clone())).collect::<StorageChannels>());
    GroupPeers { map, members, management: Arc::new(ManagementClient { management, current_map: None }) }
}
