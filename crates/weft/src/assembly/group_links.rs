//! Connections of a process's storage service for mirrored groups: to the other members, and to
//! management, which decides on membership.

use super::current_map::{CurrentMap, unexpected_reply};
use super::peers::{MgmtChannel, Peers};
use net::{Channel, LocalFuture, StorageChannel, StorageChannels, WhenOffline};
use std::sync::Arc;
use storage::{GroupManagement, GroupPeers, MemberChange, StorageService};
use types::{ClusterMap, GroupId, MapHandle, Node, NodeId, Result, TargetId};
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
            match self.management.call(MgmtRequest::TidyGroup { group, touched }, None).await? {
                MgmtReply::Done => Ok(()),
                other => Err(unexpected_reply(&other)),
            }
        })
    }
}

/// Returns the connections of a node: other members are on other nodes, according to the map.
pub fn of_node(
    node: NodeId,
    (map, current_map): (MapHandle, Arc<CurrentMap>),
    peers: Arc<Peers>,
    service: &Arc<StorageService>,
    management: MgmtChannel,
) -> GroupPeers {
    let own = Arc::downgrade(service);
    let connect = move |other: &Node| match own.upgrade().filter(|_| other.id == node) {
        Some(service) => Channel::in_process(service),
        None => peers.storage(other),
    };
    let members = Arc::new(StorageChannels::mapped(map.clone(), WhenOffline::Try, Box::new(connect)));
    GroupPeers {
        map,
        members,
        management: Arc::new(ManagementClient { management, current_map: Some(current_map) }),
    }
}

/// Returns the connections for a cluster in one process.
pub fn of_one_process(
    map: MapHandle,
    targets: impl Iterator<Item = TargetId>,
    channel: &StorageChannel,
    management: MgmtChannel,
) -> GroupPeers {
    let members = Arc::new(targets.map(|id| (id, channel.clone())).collect::<StorageChannels>());
    GroupPeers { map, members, management: Arc::new(ManagementClient { management, current_map: None }) }
}
