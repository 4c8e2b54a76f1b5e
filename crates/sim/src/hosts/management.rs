//! Management's process, and the metadata services of a cluster that has one.
//!
//! The management service is the real one. Without mirrored groups its nodes are metadata hosts
//! only, and the targets in the map stay as initially created. Its process also contains the
//! metadata store, which the services reach over the network, as on real nodes.

use super::node_process::{RETRY, VERSION, address_of, register_and_follow, storage_channel};
use super::process::{HostsCluster, Service, capability_keys, new_identity, peer, serve};
use crate::cluster::{HASH_KEY, PARTITIONS};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::PartitionsChannel;
use mgmt::{FIRST_NODE, FirstNode, Management, MembershipAuthority, Superblock};
use net::{Channel, ClientIdentity, Handler, Router};
use node::{
    MetadataServices, fetch_map, has_offline_targets, metadata_service, run_metadata, storage_of_node,
    unexpected_reply,
};
use routing::StorageChannels;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Node, NodeId, Result, Role, TargetState, Timestamp};
use wire::mgmt::{Join, NewToken};
use wire::{MetaRequest, MetaResponse, MgmtReply, MgmtRequest, PartitionsReply, PartitionsRequest};

/// Interval at which a service checks for targets that need crash reconciliation.
const RECONCILIATION_INTERVAL: Duration = Duration::from_millis(100);

/// Admits every node.
struct AdmitAll;

impl MembershipAuthority for AdmitAll {
    fn check(&self, _join: &Join, _now_s: i64) -> Result<()> {
        Ok(())
    }

    fn admit(&self, _join: &Join, _node: NodeId, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }

    fn token(&self, _wanted: &NewToken, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }

    fn capability_keys(&self, _now_s: i64) -> Result<String> {
        Ok(capability_keys())
    }
}

/// Management's host and its persistent state.
#[derive(Clone)]
pub(super) struct ManagementState {
    pub(super) ip: Ipv4Addr,
    pub(super) engine: Arc<Memory>,
}

/// Returns the constants of the simulated cluster.
fn superblock() -> Superblock {
    Superblock {
        uuid: new_identity("").cluster,
        name: "sim".into(),
        hash_key: HASH_KEY,
        partitions: PARTITIONS,
        created: Timestamp::default(),
    }
}

/// Returns the channel to the metadata service of a node.
fn partitions_channel(node: &Node, identity: &ClientIdentity) -> PartitionsChannel {
    Channel::remote(peer(node.name.clone(), address_of(node), identity))
}

impl HostsCluster {
    /// Runs management's process.
    pub(super) async fn serve_management(self) -> Result<()> {
        let Some(management_state) = &self.management_state else { return Ok(()) };
        let engine: Arc<dyn Engine> = management_state.engine.clone();
        let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
        let superblock = superblock();
        let first = FirstNode {
            name: "management".into(),
            addresses: vec![format!("{}:7000", management_state.ip)],
            roles: vec![Role::Mgmt],
            version: VERSION.into(),
            rack: None,
        };
        let opened = Management::open_cluster(writer, &superblock, &first, Path::new("/")).await;
        let management = Arc::new(opened.map_err(Error::from)?);
        management.set_authority(Arc::new(AdmitAll));
        management.refresh().await?;
        let identity = new_identity("management");
        management.set_metadata(Arc::new(MetadataServices {
            node: FIRST_NODE,
            service: None,
            map: management.map(),
            connect: Box::new(move |node| partitions_channel(node, &identity)),
            store: self.writer(),
            partitions: PARTITIONS,
        }));
        rt::spawn(management.clone().background());
        let service: Arc<dyn Handler<MgmtRequest, MgmtReply>> = management;
        let router = Router::new().with(service).with(self.store_service());
        let _server = serve("management".into(), management_state.ip, router)?;
        std::future::pending().await
    }

    /// Runs a metadata host's process in a cluster with management.
    pub(super) async fn serve_metadata_node(self, index: usize) -> Result<()> {
        let identity = new_identity(&format!("metadata {index}"));
        let ip = self.meta_ips[index];
        let own_identity = identity.clone();
        let service = Service::Metadata(index);
        let member = self.join_cluster(&identity, (&format!("meta{index}"), ip), service).await;
        member.service.set_targets_complete();
        let store = loop {
            match self.store(&identity, index).await {
                Ok(store) => break store,
                // Management's process is down.
                Err(_) => rt::sleep(RETRY).await,
            }
        };
        let map = member.map.handle();
        let storage: StorageChannels = match self.scheme.has_primary() {
            false => self.storage_channels(&identity).into(),
            true => {
                let own = identity.clone();
                storage_of_node(&member, map.clone(), move |node| storage_channel(node, &own))
            }
        };
        let connect = move |node: &Node| partitions_channel(node, &own_identity);
        let meta = metadata_service(&member, store, &superblock(), (map.clone(), storage), connect);
        let names: Arc<dyn Handler<MetaRequest, MetaResponse>> = meta.clone();
        let partitions: Arc<dyn Handler<PartitionsRequest, PartitionsReply>> = meta.clone();
        let router = Router::new().with(names).with(partitions);
        let _server = serve(format!("metadata {index}"), ip, router)?;
        register_and_follow(&member).await;
        rt::spawn(run_metadata(meta.clone(), move || has_offline_targets(&map)));
        loop {
            rt::sleep(RECONCILIATION_INTERVAL).await;
            // The next iteration retries failures.
            let _ = self.reconcile(&meta).await;
        }
    }

    /// Lets management create the mirrored groups once all storage hosts have reported their
    /// targets.
    pub(super) async fn make_groups(&self) -> Result<()> {
        let identity = new_identity("setting up");
        let management = self.management(&identity).ok_or(Errno::ENODEV)?;
        loop {
            let map = fetch_map(&management).await?;
            let is_online = |target: &&types::Target| target.state == TargetState::Online;
            if map.targets.iter().filter(is_online).count() == self.storage_ips.len() {
                break;
            }
            rt::sleep(RETRY).await;
        }
        let make = MgmtRequest::MakeGroups { pool: "default".into(), scheme: self.scheme };
        match management.call(make, None).await? {
            MgmtReply::Groups { groups } if !groups.is_empty() => Ok(()),
            other => Err(unexpected_reply(&other)),
        }
    }
}
