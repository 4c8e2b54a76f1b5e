//! Keeping the map of a process current.

use super::peers::{MgmtChannel, Peers};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use types::{ClusterMap, Epoch, MapHandle, Result};
use wire::{MgmtReply, MgmtRequest};

/// Rest before management is asked again after it didn't answer.
const RETRY: Duration = Duration::from_secs(1);

/// The current map.
pub async fn current_map(management: &MgmtChannel) -> Result<Arc<ClusterMap>> {
    match management.call(MgmtRequest::WatchMap { after: Epoch(0) }, None).await? {
        MgmtReply::Map { map } => Ok(map),
        other => Err(out_of_turn(&other)),
    }
}

/// Follows the map for ever: every later one is in the handle, and its addresses are known, soon after management has made it.
pub async fn follow_map(management: MgmtChannel, map: MapHandle, peers: Arc<Peers>) {
    loop {
        let after = map.read().unwrap_or_else(PoisonError::into_inner).epoch;
        match management.call(MgmtRequest::WatchMap { after }, None).await {
            Ok(MgmtReply::Map { map: new }) => take_over(&map, new, &peers),
            Ok(other) => {
                tracing::error!("{}", out_of_turn(&other));
                rt::sleep(RETRY).await;
            }
            Err(error) => {
                tracing::debug!(%error, "the map is not followed for now");
                rt::sleep(RETRY).await;
            }
        }
    }
}

/// Puts a map into force unless a later one is already.
pub fn take_over(handle: &MapHandle, new: Arc<ClusterMap>, peers: &Peers) {
    peers.follow(&new);
    let mut map = handle.write().unwrap_or_else(PoisonError::into_inner);
    if new.epoch >= map.epoch {
        *map = new;
    }
}

/// An answer of a kind that doesn't belong to its question.
pub fn out_of_turn(reply: &MgmtReply) -> types::Error {
    types::Error::new(types::Errno::EPROTO, format!("management answered out of turn: {reply:?}"))
        .hint("install the same version of weft on all machines")
}
