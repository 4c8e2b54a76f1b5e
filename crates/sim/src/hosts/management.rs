//! Management's process, and the metadata services of a cluster that has one.
//!
//! The management service is the real one. Without mirrored groups its nodes are metadata hosts
//! only, and the targets in the map stay as initially created. Its process also contains the
//! metadata store, which the services reach over the network, as on real nodes.

use super::node_process::{RETRY, VERSION, address_of, register_and_follow};
use super::process::{HostsCluster, Service, capability_keys, new_identity, peer, serve};
use crate::cluster::{HASH_KEY, PARTITIONS};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService, PartitionsChannel, PeerContext};
use mgmt::{FirstNode, Management, MembershipAuthority, Superblock};
use net::{Channel, ClientIdentity, Handler, LocalFuture, Router, WhenOffline};
use node::{Membership, fetch_map, unexpected_reply};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{
    Errno, Error, GroupId, GroupUsage, InodeId, Node, NodeId, NodeState, PartitionId, PoolId, Result, Role,
    SessionId, TargetId, TargetState, Timestamp,
};
use wire::mgmt::{DrainProgress, Join, NewToken, ReconcileFiles, SessionInfo};
use wire::{MetaRequest, MetaResponse, MgmtReply, MgmtRequest, PartitionsReply, PartitionsRequest};

/// Interval at which a service checks for targets that need crash reconciliation.
const TIDY_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time that a start of a metadata service waits for the hosts of group members, which size
/// recovery needs.
const NODES_TIMEOUT: Duration = Duration::from_secs(20);

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

/// The metadata services as seen by management, for crash reconciliation of targets. The simulation
/// uses no other request.
struct MetadataServices {
    management: Arc<Management>,
    identity: ClientIdentity,
}

impl MetadataServices {
    fn owner(&self, partition: PartitionId) -> Result<PartitionsChannel> {
        let map = self.management.current();
        let node = map.owner(partition).filter(|node| node.state != NodeState::Offline);
        let node = node
            .ok_or_else(|| Error::new(Errno::EAGAIN, format!("no service executes partition {partition}")))?;
        Ok(Channel::remote(peer(node.name.clone(), address_of(node), &self.identity)))
    }

    async fn reconcile_partitions(
        &self,
        touched: ReconcileFiles,
        to_request: impl Fn(ReconcileFiles) -> PartitionsRequest,
    ) -> Result<()> {
        for (partition, part) in touched.by_partition() {
            if partition.0 < PARTITIONS {
                self.owner(partition)?.call(to_request(part), None).await?;
            }
        }
        Ok(())
    }
}

impl mgmt::Metadata for MetadataServices {
    fn reconcile(&self, target: TargetId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(
            self.reconcile_partitions(touched, move |touched| PartitionsRequest::Tidy { target, touched }),
        )
    }

    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(
            self.reconcile_partitions(touched, move |touched| PartitionsRequest::TidyGroup {
                group,
                touched,
            }),
        )
    }

    fn find_file_on(&self, _target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }

    fn usage(&self, _groups: BTreeSet<GroupId>) -> LocalFuture<'_, Result<GroupUsage>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }

    fn find_pool_reference(&self, _pool: PoolId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }

    fn drains(&self) -> LocalFuture<'_, Vec<(TargetId, DrainProgress)>> {
        Box::pin(async { Vec::new() })
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }

    fn executed<'a>(&'a self, _node: &'a Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }

    fn evict(&self, _session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }
}

impl HostsCluster {
    /// Runs management's process.
    pub(super) async fn serve_management(self) -> Result<()> {
        let Some(management_state) = &self.management_state else { return Ok(()) };
        let engine: Arc<dyn Engine> = management_state.engine.clone();
        let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
        let superblock = Superblock {
            uuid: new_identity("").cluster,
            name: "sim".into(),
            hash_key: HASH_KEY,
            partitions: PARTITIONS,
            created: Timestamp::default(),
        };
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
        if self.scheme.has_primary() {
            let identity = new_identity("management");
            management.set_metadata(Arc::new(MetadataServices { management: management.clone(), identity }));
        }
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
        let service = Service::Metadata(index);
        let member = self.join_cluster(&identity, (&format!("meta{index}"), ip), service).await;
        member.service.set_targets_complete();
        register_and_follow(&member).await;
        let store = loop {
            match self.store(&identity, index).await {
                Ok(store) => break store,
                // Management's process is down.
                Err(_) => rt::sleep(RETRY).await,
            }
        };
        let options = MetaOptions { node: member.node(), hash_key: HASH_KEY, partitions: PARTITIONS };
        let (me, map) = (member.clone(), member.map.handle());
        let own_identity = identity.clone();
        let peer_context = PeerContext {
            connect: Box::new(move |to: &Node| {
                Channel::remote(peer(to.name.clone(), address_of(to), &own_identity))
            }),
            term: Box::new(move || me.lease.term(rt::monotonic_ns())),
        };
        let meta = match self.scheme.has_primary() {
            false => {
                MetaService::open_shared(store, options, map, self.storage_channels(&identity), peer_context)
            }
            true => {
                let storage = self.storage_by_map(&identity, &map, WhenOffline::Refuse);
                MetaService::open_shared(store, options, map, storage, peer_context)
            }
        };
        meta.sign_with(member.ring.clone());
        if self.scheme.has_primary() {
            rt::spawn(execute(meta.clone(), member.clone()));
        } else {
            rt::spawn(meta.clone().background());
            rt::spawn(meta.clone().follow_assignment());
        }
        let names: Arc<dyn Handler<MetaRequest, MetaResponse>> = meta.clone();
        let partitions: Arc<dyn Handler<PartitionsRequest, PartitionsReply>> = meta.clone();
        let router = Router::new().with(names).with(partitions);
        let _server = serve(format!("metadata {index}"), ip, router)?;
        loop {
            rt::sleep(TIDY_INTERVAL).await;
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

/// Executes the partitions that the map assigns, once the hosts with targets are registered.
async fn execute(meta: Arc<MetaService>, member: Arc<Membership>) {
    let began_ns = rt::monotonic_ns();
    let has_offline_targets =
        || member.map.current().targets.iter().any(|target| target.state == TargetState::Offline);
    while has_offline_targets() && rt::monotonic_ns() - began_ns < NODES_TIMEOUT.as_nanos() as u64 {
        rt::sleep(TIDY_INTERVAL).await;
    }
    rt::spawn(meta.clone().background());
    meta.follow_assignment().await;
}
