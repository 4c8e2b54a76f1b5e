//! Keeps a process's cluster map current.

use crate::MgmtChannel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use storage::StorageService;
use types::{ClusterMap, Epoch, MapHandle, Result};
use wire::{MgmtReply, MgmtRequest};

/// Backoff after management didn't answer.
const RETRY: Duration = Duration::from_secs(1);

/// Fetches the current cluster map from management.
///
/// # Errors
/// Those of the call, and `EPROTO` for an unexpected reply.
pub async fn fetch_map(management: &MgmtChannel) -> Result<Arc<ClusterMap>> {
    match management.call(MgmtRequest::WatchMap { after: Epoch(0) }, None).await? {
        MgmtReply::Map { map } => Ok(map),
        other => Err(unexpected_reply(&other)),
    }
}

/// A component that follows the map of its process, such as the connections to other processes.
pub trait MapListener: Send + Sync {
    /// Takes the map with which the process starts.
    fn start(&self, map: &Arc<ClusterMap>);
    /// Takes a newer map, before the process uses it.
    fn update(&self, map: &Arc<ClusterMap>);
}

/// A listener that ignores maps.
pub struct NoListener;

impl MapListener for NoListener {
    fn start(&self, _map: &Arc<ClusterMap>) {}

    fn update(&self, _map: &Arc<ClusterMap>) {}
}

/// The cluster map that a process uses, and the components that must be notified of a newer one.
/// Every part of the process reads the map here, for each request.
pub struct CurrentMap {
    map: MapHandle,
    listener: Arc<dyn MapListener>,
    /// Storage service of a node.
    storage: Option<Arc<StorageService>>,
    /// Serializes updates of the map.
    update_lock: Mutex<()>,
}

impl CurrentMap {
    /// Creates it with the map in the handle.
    pub fn new(
        map: MapHandle,
        listener: Arc<dyn MapListener>,
        storage: Option<Arc<StorageService>>,
    ) -> Arc<CurrentMap> {
        let known = map.load();
        apply_checksum_setting(&known);
        listener.start(&known);
        Arc::new(CurrentMap { map, listener, storage, update_lock: Mutex::new(()) })
    }

    /// Returns the epoch of the current map. Every request that begins from now on uses a map of
    /// this epoch or a later one.
    pub fn epoch(&self) -> Epoch {
        self.map.load().epoch
    }

    /// Returns the current map.
    pub fn current(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    /// Returns the handle to the current map.
    pub fn handle(&self) -> MapHandle {
        self.map.clone()
    }

    /// Installs a map, unless it is older than the current one.
    pub fn install(&self, new: Arc<ClusterMap>) {
        let _guard = self.update_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if new.epoch < self.epoch() {
            return;
        }
        apply_checksum_setting(&new);
        self.listener.update(&new);
        if let Some(storage) = &self.storage {
            storage.set_exports(&new);
        }
        // Last: a reader that sees the new epoch may rely on the steps above.
        self.map.store(new);
    }

    /// Follows management for ever: installs every newer map soon after management has published
    /// it.
    pub async fn follow(self: Arc<Self>, management: MgmtChannel) {
        loop {
            match management.call(MgmtRequest::WatchMap { after: self.epoch() }, None).await {
                Ok(MgmtReply::Map { map: new }) => self.install(new),
                Ok(other) => {
                    tracing::error!("{}", unexpected_reply(&other));
                    rt::sleep(RETRY).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "can't follow the cluster map for now");
                    rt::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Switches checksums of data in this process on or off, as the map says.
fn apply_checksum_setting(map: &ClusterMap) {
    let on = !map.settings.checksums_off;
    if !types::set_checksums_enabled(on) {
        return;
    }
    match on {
        true => tracing::warn!("data checksums are on again; data written meanwhile has none"),
        false => tracing::warn!(
            "data checksums are off: data is neither checksummed nor verified; hint: weft cluster set --checksums on"
        ),
    }
}

/// Returns the error for a reply of an unexpected type.
pub fn unexpected_reply(reply: &MgmtReply) -> types::Error {
    types::Error::new(types::Errno::EPROTO, format!("management sent an unexpected reply: {reply:?}"))
        .hint("install the same version of weft on all machines")
}
