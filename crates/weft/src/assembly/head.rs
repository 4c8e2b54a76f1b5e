//! The roles that a cluster has once: management and metadata.

use super::gate::Gate;
use super::metadata::Metadata;
use super::online_check::OnlineCheck;
use super::peers::Peers;
use crate::cli;
use crate::node_config::NodeConfig;
use kv::{Durability, Embedded, Writer};
use meta::{MetaOptions, MetaService};
use mgmt::{FirstNode, Management, StatePaths, Superblock};
use net::{Channel, StorageChannels, WhenOffline};
use rt::sync::Event;
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use types::{ClusterMap, NodeId, Result};

/// How long a start waits for the nodes whose targets hold files that are to be settled.
const NODES_TIMEOUT: Duration = Duration::from_secs(20);

/// How often it looks whether they have come.
const NODES_POLL: Duration = Duration::from_millis(100);

/// Rest before files are settled again that could not be.
const RETRY: Duration = Duration::from_secs(5);

/// Management and metadata.
pub struct Head {
    writer: Arc<Writer>,
    /// Keeps the map.
    pub management: Arc<Management>,
    /// Names and attributes.
    pub meta: Arc<MetaService>,
    /// Set when the metadata service may be asked.
    pub recovered: Arc<Event>,
    online: OnlineCheck,
}

/// Opens management, which keeps the map in the metadata store.
pub async fn open_management(
    paths: &StatePaths,
    superblock: &Superblock,
    config: &NodeConfig,
) -> Result<(Arc<Writer>, Arc<Management>)> {
    let durability = match config.durability {
        cli::Durability::Relaxed => Durability::Process,
        cli::Durability::Strict => Durability::Disk,
    };
    let engine = Embedded::open(&paths.meta()).map_err(mgmt::Error::from)?;
    let writer = Arc::new(Writer::new(Arc::new(engine), durability));
    let first = FirstNode {
        name: config.name.clone(),
        addresses: config.addresses.clone(),
        roles: config.roles.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let management = Management::open_cluster(writer.clone(), superblock, &first, paths.root()).await?;
    management.set_gate(Arc::new(Gate::load(paths, superblock, config)?));
    Ok((writer, Arc::new(management)))
}

impl Head {
    /// Opens the metadata service over the same store. `own` is the storage service of this very node.
    pub async fn open(
        writer: Arc<Writer>,
        management: Arc<Management>,
        superblock: &Superblock,
        own: (NodeId, Arc<StorageService>),
        peers: Arc<Peers>,
    ) -> Result<Head> {
        let (node, service) = own;
        let connect = move |to: &types::Node| match to.id == node {
            true => Channel::in_process(service.clone()),
            false => peers.storage(to),
        };
        let online = OnlineCheck {
            partitions: superblock.partitions,
            hash_key: superblock.hash_key,
            storage: StorageChannels::mapped(
                management.map(),
                WhenOffline::Refuse,
                Box::new(connect.clone()),
            ),
        };
        // What can't be done now is done later: nobody waits for a node that is down.
        let storage = StorageChannels::mapped(management.map(), WhenOffline::Refuse, Box::new(connect));
        let options = MetaOptions { node, hash_key: superblock.hash_key, partitions: superblock.partitions };
        let meta = MetaService::open(writer.clone(), options, management.map(), storage).await?;
        let recovered = Arc::new(Event::new());
        let metadata = Metadata { service: meta.clone(), recovered: recovered.clone() };
        management.set_metadata(Arc::new(metadata));
        Ok(Head { writer, management, meta, recovered, online })
    }

    /// Starts what runs beside requests, on the calling core.
    pub fn spawn_background(&self) {
        rt::spawn(self.management.clone().background());
        rt::spawn(recover(self.management.clone(), self.meta.clone(), self.recovered.clone()));
    }

    /// What the file system check finds in the cluster as it is being used.
    pub async fn check(&self, map: &ClusterMap) -> Result<fsck::Report> {
        self.online.run(&**self.writer.engine(), map).await
    }

    /// Makes everything durable.
    pub async fn close(&self) -> Result<()> {
        self.meta.stop();
        self.writer.sync().await.map_err(|e| mgmt::Error::from(e).into())
    }
}

/// Settles what an earlier run left, as soon as its nodes are there, and lets clients in then.
async fn recover(management: Arc<Management>, meta: Arc<MetaService>, recovered: Arc<Event>) {
    let began_ns = rt::monotonic_ns();
    loop {
        let missing = management.missing_nodes();
        if missing.is_empty() {
            break;
        }
        if rt::monotonic_ns() - began_ns > NODES_TIMEOUT.as_nanos() as u64 {
            tracing::error!(nodes = ?missing, "nodes with targets have not come: files on them stay unsettled for now");
            break;
        }
        rt::sleep(NODES_POLL).await;
    }
    loop {
        match meta.recover().await {
            Ok(recovery) => {
                if recovery.unsettled > 0 {
                    tracing::error!(
                        files = recovery.unsettled,
                        "files keep the size on record until the next start"
                    );
                }
                break;
            }
            Err(error) => tracing::error!(%error, "the metadata service can't start"),
        }
        rt::sleep(RETRY).await;
    }
    recovered.set();
    tracing::info!("the metadata service is open");
    meta.background().await;
}
