//! Management, as processes see it in a cluster without mirrored groups.
//!
//! Only metadata hosts are nodes there. The storage hosts don't register, so the targets of every
//! map stay as initially created.

use crate::cluster::cluster_map;
use net::{Handler, LocalFuture};
use node::MgmtChannel;
use rt::IoBuf;
use std::sync::Arc;
use types::{ClusterMap, Result};
use wire::{MgmtReply, MgmtRequest};

/// Passes requests on, and replaces the targets in the maps of the answers.
pub(super) struct FixedTargets(pub(super) MgmtChannel);

impl Handler<MgmtRequest, MgmtReply> for FixedTargets {
    fn handle(&self, request: MgmtRequest, _payload: Option<IoBuf>) -> LocalFuture<'_, Result<MgmtReply>> {
        Box::pin(async move {
            let mut reply = self.0.call(request, None).await?;
            match &mut reply {
                MgmtReply::Map { map } => *map = with_fixed_targets(map),
                MgmtReply::Registered(registered) => registered.map = with_fixed_targets(&registered.map),
                MgmtReply::Alive(alive) => alive.map = alive.map.as_ref().map(with_fixed_targets),
                MgmtReply::Joined(joined) => joined.map = with_fixed_targets(&joined.map),
                _ => {}
            }
            Ok(reply)
        })
    }
}

fn with_fixed_targets(map: &Arc<ClusterMap>) -> Arc<ClusterMap> {
    let (nodes, partitions) = (map.nodes.clone(), map.partitions.clone());
    Arc::new(ClusterMap { epoch: map.epoch, nodes, partitions, ..cluster_map() })
}
