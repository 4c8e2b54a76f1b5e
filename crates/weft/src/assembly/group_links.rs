//! Connections of a process's storage service for mirrored groups: to the other members, and to
//! management, which decides on membership.

use super::follow::{MapInForce, out_of_turn};
use super::peers::{MgmtChannel, Peers};
use net::{Channel, LocalFuture, StorageChannel, StorageChannels, WhenOffline};
use std::sync::Arc;
use storage::{GroupLinks, Groups, MemberChange, StorageService};
use types::{ClusterMap, GroupId, MapHandle, Node, NodeId, Result, TargetId};
use wire::mgmt::Touched;
use wire::{MgmtReply, MgmtRequest};

/// Management, as the storage service calls it.
struct Decisions {
    management: MgmtChannel,
    /// Installs a newer map; `None` if this process uses management's own map.
    in_force: Option<Arc<MapInForce>>,
}

impl Groups for Decisions {
    fn set_member(&self, change: MemberChange) -> LocalFuture<'_, Result<Arc<ClusterMap>>> {
        Box::pin(async move {
            let MemberChange { group, since, target, state, reason, orderly } = change;
            let ask = MgmtRequest::SetMember { group, since, target, state, reason, orderly };
            match self.management.call(ask, None).await? {
                MgmtReply::Map { map } => {
                    if let Some(in_force) = &self.in_force {
                        in_force.take_over(map.clone());
                    }
                    Ok(map)
                }
                other => Err(out_of_turn(&other)),
            }
        })
    }

    fn tidy_group(&self, group: GroupId, touched: Touched) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.management.call(MgmtRequest::TidyGroup { group, touched }, None).await? {
                MgmtReply::Done => Ok(()),
                other => Err(out_of_turn(&other)),
            }
        })
    }
}

/// Returns the connections of a node: other members are on other nodes, according to the map.
pub fn of_node(
    node: NodeId,
    (map, in_force): (MapHandle, Arc<MapInForce>),
    peers: Arc<Peers>,
    service: &Arc<StorageService>,
    management: MgmtChannel,
) -> GroupLinks {
    let own = Arc::downgrade(service);
    let connect = move |other: &Node| match own.upgrade().filter(|_| other.id == node) {
        Some(service) => Channel::in_process(service),
        None => peers.storage(other),
    };
    let members = Arc::new(StorageChannels::mapped(map.clone(), WhenOffline::Try, Box::new(connect)));
    GroupLinks { map, members, management: Arc::new(Decisions { management, in_force: Some(in_force) }) }
}

/// Returns the connections for a cluster in one process.
pub fn of_one_process(
    map: MapHandle,
    targets: impl Iterator<Item = TargetId>,
    channel: &StorageChannel,
    management: MgmtChannel,
) -> GroupLinks {
    let members = Arc::new(targets.map(|id| (id, channel.clone())).collect::<StorageChannels>());
    GroupLinks { map, members, management: Arc::new(Decisions { management, in_force: None }) }
}
