//! The metadata role of a node: runs the partitions that the map assigns to it, over a store on
//! this node or on the management node.

use super::peers::Peers;
use kv::{RemoteWriter, Store};
use kvnet::RemoteStore;
use meta::{MetaOptions, MetaService, PeerContext};
use mgmt::Superblock;
use net::{Channel, StorageChannels, WhenOffline};
use std::sync::Arc;
use std::time::Duration;
use storage::{ServingLease, StorageService};
use types::{Errno, Error, MapHandle, Node, NodeId, Result, Role, TargetState};

/// Longest time that a start waits for nodes whose targets hold files that need size recovery.
const NODES_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval of checks whether these nodes are online.
const NODES_POLL: Duration = Duration::from_millis(100);

/// Components of a metadata node.
pub struct MetaParts<'a> {
    pub node: NodeId,
    pub superblock: &'a Superblock,
    pub map: MapHandle,
    pub peers: Arc<Peers>,
    /// Storage service of this node.
    pub storage: Arc<StorageService>,
    /// The node's lease from management.
    pub lease: Arc<ServingLease>,
}

/// Opens the metadata store of the management node.
pub async fn remote_store(map: &MapHandle, peers: &Peers) -> Result<(Arc<dyn Store>, Arc<RemoteStore>)> {
    let map = map.load();
    let management_node = map.nodes.iter().find(|node| node.roles.contains(&Role::Mgmt));
    let management_node = management_node.ok_or_else(|| {
        Error::new(Errno::ENODEV, "no node of the cluster has the role mgmt")
            .hint("weft node list shows them")
    })?;
    let place = format!("node {} ({})", management_node.id, management_node.name);
    let store = RemoteStore::open(peers.store(management_node), place).await.map_err(mgmt::Error::from)?;
    Ok((Arc::new(RemoteWriter::new(store.clone())), store))
}

/// Creates the service. It executes no partition yet.
pub fn service(store: Arc<dyn Store>, parts: MetaParts<'_>) -> Arc<MetaService> {
    let MetaParts { node, superblock, map, peers, storage, lease } = parts;
    let to = peers.clone();
    let connect = move |other: &Node| match other.id == node {
        true => Channel::in_process(storage.clone()),
        false => to.storage(other),
    };
    // Calls to an offline node fail at once, and the service repeats them later.
    let storage = StorageChannels::mapped(map.clone(), WhenOffline::Refuse, Box::new(connect));
    let options = MetaOptions { node, hash_key: superblock.hash_key, partitions: superblock.partitions };
    let peer_context = PeerContext {
        connect: Box::new(move |other| peers.partitions(other)),
        term: Box::new(move || lease.term(rt::monotonic_ns())),
    };
    MetaService::open_shared(store, options, map, storage, peer_context)
}

/// Returns whether a target is offline, according to the map.
pub fn has_offline_targets(map: &MapHandle) -> bool {
    let map = map.load();
    map.targets.iter().any(|target| target.state == TargetState::Offline)
}

/// Executes the assigned partitions once the nodes with targets are online: size recovery of files
/// from an earlier run needs them.
pub async fn run(service: Arc<MetaService>, some_missing: impl Fn() -> bool) {
    let began_ns = rt::monotonic_ns();
    while some_missing() {
        if rt::monotonic_ns() - began_ns > NODES_TIMEOUT.as_nanos() as u64 {
            tracing::error!("nodes with targets are offline: size recovery of files on them is delayed");
            break;
        }
        rt::sleep(NODES_POLL).await;
    }
    rt::spawn(service.clone().background());
    service.follow_assignment().await;
}
