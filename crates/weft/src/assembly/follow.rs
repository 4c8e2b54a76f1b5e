//! Keeping the map of a process current.

use super::peers::{MgmtChannel, Peers};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use storage::StorageService;
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

/// The map that a process acts by, and what has to be told of another one. Every part of the
/// process reads the map here, anew for each request.
pub struct MapInForce {
    map: MapHandle,
    peers: Arc<Peers>,
    /// The storage service of a node.
    storage: Option<Arc<StorageService>>,
    /// Two that bring a map do it one after the other.
    turn: Mutex<()>,
}

impl MapInForce {
    /// Nothing has been told of the map in the handle yet.
    pub fn new(map: MapHandle, peers: Arc<Peers>, storage: Option<Arc<StorageService>>) -> Arc<MapInForce> {
        let known = map.read().unwrap_or_else(PoisonError::into_inner).clone();
        follow_checksums(&known);
        peers.follow_revocations(&known);
        Arc::new(MapInForce { map, peers, storage, turn: Mutex::new(()) })
    }

    /// Every request that begins from now on is carried out by a map of this epoch or a later one.
    pub fn epoch(&self) -> Epoch {
        self.map.read().unwrap_or_else(PoisonError::into_inner).epoch
    }

    /// The map in force.
    pub fn current(&self) -> Arc<ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the map in force is.
    pub fn handle(&self) -> MapHandle {
        self.map.clone()
    }

    /// Puts a map into force unless a later one is already.
    pub fn take_over(&self, new: Arc<ClusterMap>) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if new.epoch < self.epoch() {
            return;
        }
        follow_checksums(&new);
        self.peers.follow(&new);
        if let Some(storage) = &self.storage {
            storage.follow_exports(&new);
        }
        // Last: who sees its epoch can count on the others.
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Follows management for ever: every later map is in force soon after management has made it.
    pub async fn follow(self: Arc<Self>, management: MgmtChannel) {
        loop {
            match management.call(MgmtRequest::WatchMap { after: self.epoch() }, None).await {
                Ok(MgmtReply::Map { map: new }) => self.take_over(new),
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
}

/// Data is summed and checked in this process as the map says.
fn follow_checksums(map: &ClusterMap) {
    let on = !map.settings.checksums_off;
    if !types::switch_checksums(on) {
        return;
    }
    match on {
        true => tracing::warn!("checksums of data are on again; what was written without them stays without"),
        false => tracing::warn!(
            "checksums of data are off: nothing that is written, sent or read is checked; hint: weft cluster set --checksums on"
        ),
    }
}

/// An answer of a kind that doesn't belong to its question.
pub fn out_of_turn(reply: &MgmtReply) -> types::Error {
    types::Error::new(types::Errno::EPROTO, format!("management answered out of turn: {reply:?}"))
        .hint("install the same version of weft on all machines")
}
