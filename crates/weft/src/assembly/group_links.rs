//! What the storage service of a process needs for mirrored groups: the ways to other members, and
//! management's word on who counts.

use super::follow::{MapInForce, out_of_turn};
use super::peers::{MgmtChannel, Peers};
use net::{Channel, LocalFuture, StorageChannel, StorageChannels, WhenOffline};
use std::sync::Arc;
use storage::{GroupLinks, Groups, MemberChange, StorageService};
use types::{ClusterMap, GroupId, MapHandle, Node, NodeId, Result, TargetId};
use wire::mgmt::Touched;
use wire::{MgmtReply, MgmtRequest};

/// Management, asked for a service.
struct Decisions {
    management: MgmtChannel,
    /// What is told of another map; `None` where management's own map is the one in force.
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

/// For a node: other members are on other nodes, as the map says.
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

/// For a cluster of one process.
pub fn of_one_process(
    map: MapHandle,
    targets: impl Iterator<Item = TargetId>,
    channel: &StorageChannel,
    management: MgmtChannel,
) -> GroupLinks {
    let members = Arc::new(targets.map(|id| (id, channel.clone())).collect::<StorageChannels>());
    GroupLinks { map, members, management: Arc::new(Decisions { management, in_force: None }) }
}
