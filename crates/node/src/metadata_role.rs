//! The metadata role of a node: runs the partitions that the map assigns to it, over a store on
//! this node or on the management node.

use crate::{Membership, MgmtChannel, unexpected_reply};
use kv::{RemoteWriter, Store};
use kvnet::{KvChannel, RemoteStore};
use meta::{GroupCreator, MetaOptions, MetaService, PartitionsChannel, PeerContext};
use mgmt::Superblock;
use net::{Channel, LocalFuture};
use routing::{StorageChannel, StorageChannels, WhenOffline};
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, MapHandle, Node, Result, Role, Scheme, StripePattern, TargetState};
use wire::{MgmtReply, MgmtRequest};

/// Longest time that a start waits for nodes whose targets hold files that need size recovery.
const NODES_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval of checks whether these nodes are online.
const NODES_POLL: Duration = Duration::from_millis(100);

/// Management, which metadata services ask for groups.
pub struct ManagementGroupCreator(pub MgmtChannel);

impl GroupCreator for ManagementGroupCreator {
    fn make<'a>(&'a self, pool: &'a str, scheme: Scheme) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.0.call(MgmtRequest::MakeGroups { pool: pool.into(), scheme }, None).await? {
                MgmtReply::Groups { .. } => Ok(()),
                other => Err(unexpected_reply(&other)),
            }
        })
    }
}

/// Opens the metadata store of the management node; `connect` returns the channel to a node.
///
/// # Errors
/// `ENODEV` if the map has no management node; otherwise those of the connection.
pub async fn remote_store(
    map: &MapHandle,
    connect: impl FnOnce(&Node) -> KvChannel,
) -> Result<(Arc<dyn Store>, Arc<RemoteStore>)> {
    let map = map.load();
    let management_node = map.nodes.iter().find(|node| node.roles.contains(&Role::Mgmt));
    let management_node = management_node.ok_or_else(|| {
        Error::new(Errno::ENODEV, "no node of the cluster has the role mgmt")
            .hint("weft node list shows them")
    })?;
    let place = format!("node {} ({})", management_node.id, management_node.name);
    let store = RemoteStore::open(connect(management_node), place).await.map_err(mgmt::Error::from)?;
    Ok((Arc::new(RemoteWriter::new(store.clone())), store))
}

/// Returns a node's channels to all storage services by the map, for its metadata service.
/// `connect` returns the channel to another node.
pub fn storage_of_node(
    membership: &Membership,
    map: MapHandle,
    connect: impl Fn(&Node) -> StorageChannel + Send + Sync + 'static,
) -> StorageChannels {
    let (own, service) = (membership.node(), membership.service.clone());
    let connect = move |node: &Node| match node.id == own {
        true => Channel::in_process(service.clone()),
        false => connect(node),
    };
    // Calls to an offline node fail at once, and the service repeats them later.
    StorageChannels::mapped(map, WhenOffline::Refuse, Box::new(connect))
}

/// Creates the metadata service of a node, which executes no partition yet. `connect` returns the
/// channel to the metadata service of another node.
pub fn metadata_service(
    membership: &Membership,
    store: Arc<dyn Store>,
    superblock: &Superblock,
    (map, storage): (MapHandle, StorageChannels),
    connect: impl Fn(&Node) -> PartitionsChannel + Send + Sync + 'static,
) -> Arc<MetaService> {
    let options = MetaOptions {
        node: membership.node(),
        hash_key: superblock.hash_key,
        partitions: superblock.partitions,
        root_pattern: StripePattern::of_new_root(),
    };
    let lease = membership.lease.clone();
    let peer_context =
        PeerContext { connect: Box::new(connect), term: Box::new(move || lease.term(rt::monotonic_ns())) };
    let service = MetaService::open_shared(store, options, map, storage, peer_context);
    service.sign_with(membership.ring.clone());
    service.set_group_creator(Arc::new(ManagementGroupCreator(membership.management.clone())));
    service
}

/// Returns whether a target is offline, according to the map.
pub fn has_offline_targets(map: &MapHandle) -> bool {
    let map = map.load();
    map.targets.iter().any(|target| target.state == TargetState::Offline)
}

/// Executes the assigned partitions once the nodes with targets are online: size recovery of files
/// from an earlier run needs them. `some_missing` returns whether some aren't.
pub async fn run_metadata(service: Arc<MetaService>, some_missing: impl Fn() -> bool) {
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
