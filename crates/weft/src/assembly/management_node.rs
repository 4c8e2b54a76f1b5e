//! The role that exists once in a cluster: management, with the metadata store.

use super::backups::Backups;
use super::inventory::take_inventories;
use super::management_addresses::update_cluster_file;
use super::membership_authority::MembershipAuthority;
use super::metadata_store::{mark_store_created, open_engine};
use super::offline_check::OnlineChecks;
use super::online_check::OnlineCheck;
use super::peers::Peers;
use super::reachability::keep_probing;
use crate::cli;
use crate::control::{CheckParameters, LossParameters};
use crate::node_config::NodeConfig;
use ::node::MetadataServices;
use kv::{Durability, Writer};
use meta::MetaService;
use mgmt::{FirstNode, Management, StatePaths, Superblock};
use net::Channel;
use routing::{StorageChannels, WhenOffline};
use std::sync::Arc;
use storage::StorageService;
use types::{NodeId, Result};

/// Management, and the metadata store.
pub struct ManagementNode {
    writer: Arc<Writer>,
    /// Owns the cluster map.
    pub management: Arc<Management>,
    peers: Arc<Peers>,
    online: Arc<OnlineCheck>,
    /// Checks that run on this node.
    pub checks: OnlineChecks,
    /// Backups of the metadata.
    pub copies: Arc<Backups>,
}

/// Opens management, which stores the map in the metadata store.
pub async fn open_management(
    paths: &StatePaths,
    superblock: &Superblock,
    config: &NodeConfig,
) -> Result<(Arc<Writer>, Arc<Management>)> {
    let durability = match config.durability {
        cli::Durability::Relaxed => Durability::Process,
        cli::Durability::Strict => Durability::Disk,
    };
    let engine = open_engine(paths, superblock)?.with_durability(durability);
    let writer = Arc::new(Writer::new(Arc::new(engine), durability));
    let first = FirstNode {
        name: config.name.clone(),
        addresses: config.addresses.clone(),
        roles: config.roles.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        rack: config.rack.clone(),
    };
    let management = Management::open_cluster(writer.clone(), superblock, &first, paths.root()).await?;
    mark_store_created(paths)?;
    update_cluster_file(paths, &superblock.uuid, &config.addresses);
    management.set_authority(Arc::new(MembershipAuthority::load(paths, superblock, config)?));
    // Before any service uses the map: it may be older than the record of revoked clients.
    management.refresh().await?;
    Ok((writer, Arc::new(management)))
}

impl ManagementNode {
    /// Connects management to the metadata services. `service`: that of this process, if there is
    /// one.
    pub fn new(
        writer: Arc<Writer>,
        management: Arc<Management>,
        superblock: &Superblock,
        copies: Arc<Backups>,
        (node, service): (NodeId, Option<Arc<MetaService>>),
        peers: Arc<Peers>,
        own_storage: Arc<StorageService>,
    ) -> ManagementNode {
        let to = peers.clone();
        let connect = move |node_to: &types::Node| match node_to.id == node {
            true => Channel::in_process(own_storage.clone()),
            false => to.storage(node_to),
        };
        let online = Arc::new(OnlineCheck {
            partitions: superblock.partitions,
            hash_key: superblock.hash_key,
            storage: StorageChannels::mapped(management.map(), WhenOffline::Refuse, Box::new(connect)),
            map: management.map(),
        });
        copies.register_with(&management);
        let to = peers.clone();
        let metadata = MetadataServices {
            node,
            service,
            map: management.map(),
            connect: Box::new(move |node| to.partitions(node)),
            store: writer.clone(),
            partitions: superblock.partitions,
        };
        management.set_metadata(Arc::new(metadata));
        ManagementNode { writer, management, peers, online, checks: OnlineChecks::default(), copies }
    }

    /// Starts the background work on the calling core.
    pub fn spawn_background(&self) {
        rt::spawn(self.management.clone().background());
        rt::spawn(keep_probing(self.management.clone(), self.peers.clone()));
        rt::spawn(self.copies.clone().run_daily_backups());
        let metadata = self.writer.clone();
        rt::spawn(take_inventories(self.online.clone(), metadata, self.management.clone()));
    }

    /// Runs the file system check while the cluster is in use.
    pub async fn check(&self, orders: &CheckParameters) -> Result<fsck::CheckReport> {
        self.online.run(&*self.writer, orders, &self.checks).await
    }

    /// Returns what would be lost with each target and node.
    pub async fn exposure(&self) -> Result<fsck::Exposure> {
        self.online.exposure(&*self.writer).await
    }

    /// Returns what would be lost by the removal of an offline target.
    pub async fn losses(&self, order: &LossParameters) -> Result<fsck::Losses> {
        self.online.losses(&*self.writer, order).await
    }

    /// Returns the writer of the metadata store.
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Makes everything durable.
    pub async fn close(&self) -> Result<()> {
        self.writer.sync().await.map_err(|e| types::Error::from(mgmt::Error::from(e)))?;
        // A later write would remove the mark of a clean shutdown.
        self.writer.engine().sync_for_close().map_err(|e| mgmt::Error::from(e).into())
    }
}
