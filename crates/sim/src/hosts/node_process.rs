//! A process in a cluster with management: it joins, registers, sends heartbeats, and follows the
//! map.

use super::process::{HostsCluster, new_identity, peer_with, ring};
use crate::cluster::cluster_map;
use chunkstore::Store;
use identity::CapabilityRing;
use net::{Channel, ClientIdentity, LocalFuture, MetaChannels, StorageChannel, StorageChannels, WhenOffline};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use storage::{GroupManagement, MemberChange, ServingLease, StorageService};
use types::{ClusterMap, Epoch, Errno, Error, GroupId, InodeId, MapHandle, Node, NodeId, Result, Role};
use wire::mgmt::{Heartbeat, Join, ReconcileFiles, Register, TargetReport, TargetSpace};
use wire::{MgmtReply, MgmtRequest};

pub(super) type MgmtChannel = Channel<MgmtRequest, MgmtReply>;

/// Longest time that a request to management is repeated: shorter than a serving lease.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a client's request to a metadata service is repeated. A partition that has
/// moved may be closed for 15 s, and a command that needs several attempts has another 15 s. A
/// request to a mirrored group may wait as long for a new primary.
pub(super) const METADATA_TIMEOUT: Duration = Duration::from_secs(40);
/// Pause before a failed request to management is repeated.
pub(super) const RETRY: Duration = Duration::from_millis(500);
/// Version of all processes, in each run.
pub(super) const VERSION: &str = "0.0.0";

/// A process's view of its cluster.
pub(super) struct NodeProcess {
    pub(super) node: NodeId,
    instance: u64,
    address: String,
    role: Role,
    pub(super) management: MgmtChannel,
    pub(super) map: FollowedMap,
    /// The serving lease from management.
    pub(super) lease: Arc<ServingLease>,
    /// Present on a storage host.
    storage: Option<Arc<StorageService>>,
    has_registered: AtomicBool,
    /// Keys that sign or verify capabilities.
    pub(super) ring: Arc<CapabilityRing>,
}

/// The map that a process follows.
#[derive(Clone)]
pub(super) struct FollowedMap {
    pub(super) handle: MapHandle,
    /// Whether management also manages the targets. Otherwise targets stay as initially created.
    includes_targets: bool,
}

impl FollowedMap {
    fn seen(&self, map: &Arc<ClusterMap>) -> Arc<ClusterMap> {
        if self.includes_targets {
            return map.clone();
        }
        let (nodes, partitions) = (map.nodes.clone(), map.partitions.clone());
        Arc::new(ClusterMap { epoch: map.epoch, nodes, partitions, ..cluster_map() })
    }

    fn install(&self, new: &Arc<ClusterMap>) {
        if new.epoch > self.handle.epoch() {
            self.handle.store(self.seen(new));
        }
    }

    pub(super) fn current(&self) -> Arc<ClusterMap> {
        self.handle.load()
    }

    async fn follow(self, management: MgmtChannel) {
        loop {
            match management.call(MgmtRequest::WatchMap { after: self.current().epoch }, None).await {
                Ok(MgmtReply::Map { map }) => self.install(&map),
                _ => rt::sleep(RETRY).await,
            }
        }
    }
}

/// Management's decisions on group members.
struct GroupDecisions {
    management: MgmtChannel,
    map: FollowedMap,
}

impl GroupManagement for GroupDecisions {
    fn set_member(&self, change: MemberChange) -> LocalFuture<'_, Result<Arc<ClusterMap>>> {
        Box::pin(async move {
            let MemberChange { group, version: since, target, state, reason, is_orderly: orderly } = change;
            let request = MgmtRequest::SetMember { group, since, target, state, reason, orderly };
            match self.management.call(request, None).await? {
                MgmtReply::Map { map } => {
                    self.map.install(&map);
                    Ok(map)
                }
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.management.call(MgmtRequest::TidyGroup { group, touched }, None).await? {
                MgmtReply::Done => Ok(()),
                other => Err(unexpected_reply(&other)),
            }
        })
    }
}

impl HostsCluster {
    pub(super) fn management(&self, identity: &ClientIdentity) -> Option<MgmtChannel> {
        let management_state = self.management_state.as_ref()?;
        Some(Channel::remote(peer_with(
            "management".into(),
            management_state.ip,
            identity,
            MANAGEMENT_TIMEOUT,
        )))
    }

    pub(super) fn followed_map(&self, map: &Arc<ClusterMap>) -> FollowedMap {
        let followed =
            FollowedMap { handle: MapHandle::default(), includes_targets: self.scheme.has_primary() };
        let seen = followed.seen(map);
        FollowedMap { handle: MapHandle::new(seen), ..followed }
    }

    /// Joins if necessary. The process isn't registered yet.
    pub(super) async fn join_cluster(
        &self,
        identity: &ClientIdentity,
        (name, ip): (&str, Ipv4Addr),
        storage: Option<(Arc<StorageService>, Arc<ServingLease>)>,
    ) -> Arc<NodeProcess> {
        loop {
            match self.try_join_cluster(identity, (name, ip), storage.clone()).await {
                Ok(member) => return Arc::new(member),
                Err(_) => rt::sleep(RETRY).await,
            }
        }
    }

    async fn try_join_cluster(
        &self,
        identity: &ClientIdentity,
        (name, ip): (&str, Ipv4Addr),
        storage: Option<(Arc<StorageService>, Arc<ServingLease>)>,
    ) -> Result<NodeProcess> {
        let management = self.management(identity).ok_or(Errno::ENODEV)?;
        let role = if storage.is_some() { Role::Storage } else { Role::Meta };
        let address = format!("{ip}:7000");
        let map = current_map(&management).await?;
        let node = match map.nodes.iter().find(|node| node.name == name) {
            Some(node) => node.id,
            None => {
                let join = Join {
                    secret: String::new(),
                    name: name.into(),
                    roles: vec![role],
                    addresses: vec![address.clone()],
                    csr: String::new(),
                    version: VERSION.into(),
                    rack: self.rack_at(ip),
                    clock_s: rt::now().secs,
                };
                match management.call(MgmtRequest::Join(join), None).await? {
                    MgmtReply::Joined(joined) => joined.node,
                    other => return Err(unexpected_reply(&other)),
                }
            }
        };
        let (storage, lease) = match storage {
            Some((storage, lease)) => (Some(storage), lease),
            None => (None, Arc::new(ServingLease::not_granted())),
        };
        Ok(NodeProcess {
            node,
            instance: rt::random_u64(),
            address,
            role,
            management,
            map: self.followed_map(&map),
            lease,
            storage,
            has_registered: AtomicBool::new(false),
            ring: ring(true),
        })
    }

    /// Returns a client's channels to the metadata services, and the map that they follow.
    pub(super) async fn mapped(&self, identity: &ClientIdentity) -> Result<(MetaChannels, MapHandle)> {
        let management = self.management(identity).ok_or(Errno::ENODEV)?;
        let mut map = current_map(&management).await?;
        while map.owner(InodeId::ROOT.partition()).is_none() {
            rt::sleep(RETRY).await;
            map = current_map(&management).await?;
        }
        let map = self.followed_map(&map);
        rt::spawn(map.clone().follow(management));
        let identity = identity.clone();
        let connect = move |node: &Node| {
            Channel::remote(peer_with(node.name.clone(), address_of(node), &identity, METADATA_TIMEOUT))
        };
        Ok((MetaChannels::mapped(map.handle.clone(), Box::new(connect)), map.handle))
    }

    /// Returns channels to the storage hosts in the map. `own`: the service of this process, if it
    /// is one of them.
    pub(super) fn storage_by_map(
        &self,
        identity: &ClientIdentity,
        map: &MapHandle,
        when_offline: WhenOffline,
        own: Option<(NodeId, &Arc<StorageService>)>,
    ) -> StorageChannels {
        let identity = identity.clone();
        let own = own.map(|(node, service)| (node, Arc::downgrade(service)));
        let connect = move |node: &Node| -> StorageChannel {
            let own = own.as_ref().filter(|(id, _)| *id == node.id);
            match own.and_then(|(_, service)| service.upgrade()) {
                Some(service) => Channel::in_process(service),
                None => Channel::remote(peer_with(
                    node.name.clone(),
                    address_of(node),
                    &identity,
                    METADATA_TIMEOUT,
                )),
            }
        };
        StorageChannels::mapped(map.clone(), when_offline, Box::new(connect))
    }
}

impl NodeProcess {
    /// Returns the source of management's decisions on group members, for this process's service.
    pub(super) fn decisions(&self) -> Arc<dyn GroupManagement> {
        Arc::new(GroupDecisions { management: self.management.clone(), map: self.map.clone() })
    }

    /// Registers for the first time, with unlimited retries, and sends heartbeats from then on.
    pub(super) async fn register_and_follow(self: &Arc<Self>) {
        while self.register().await.is_err() {
            rt::sleep(RETRY).await;
        }
        rt::spawn(self.map.clone().follow(self.management.clone()));
        rt::spawn(self.clone().send_heartbeats());
    }

    async fn target_reports(&self) -> Vec<TargetReport> {
        let Some(storage) = &self.storage else { return Vec::new() };
        let mut reports = Vec::new();
        for store in storage.stores() {
            reports.push(report(store, storage.is_available(store.target())).await);
        }
        reports
    }

    async fn register(&self) -> Result<()> {
        // As on a node: until crash reconciliation is finished, management decides what happens to
        // the storage host's state.
        let has_registered = self.has_registered.load(Ordering::Relaxed);
        let is_reconciled = self.storage.as_ref().map(|storage| storage.is_reconciled(&self.map.current()));
        let again = has_registered && is_reconciled == Some(true);
        if is_reconciled.is_some() && !again {
            self.lease.end();
        }
        let sent_ns = rt::monotonic_ns();
        let register = Register {
            cluster: new_identity("").cluster,
            node: self.node,
            instance: self.instance,
            addresses: vec![self.address.clone()],
            roles: vec![self.role],
            version: VERSION.into(),
            clock_s: rt::now().secs,
            targets: self.target_reports().await,
            again,
            is_elsewhere: false,
        };
        match self.management.call(MgmtRequest::Register(register), None).await? {
            MgmtReply::Registered(registered) => {
                self.has_registered.store(true, Ordering::Relaxed);
                // Install the map first: the process must not act on an older map under a lease
                // that came with this one.
                self.map.install(&registered.map);
                self.ring.set_cluster_time(registered.time_s, rt::monotonic_ns());
                self.renew(sent_ns, registered.lease_ms);
                Ok(())
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    fn renew(&self, sent_ns: u64, lease_ms: u64) {
        self.lease.renew(sent_ns, rt::monotonic_ns(), Duration::from_millis(lease_ms));
    }

    /// Sends heartbeats as long as the process runs.
    async fn send_heartbeats(self: Arc<Self>) {
        loop {
            rt::sleep(mgmt::limits::HEARTBEAT_INTERVAL).await;
            let sent_ns = rt::monotonic_ns();
            let heartbeat = Heartbeat {
                node: self.node,
                instance: self.instance,
                epoch: self.map.current().epoch,
                clock_s: rt::now().secs,
                targets: self.target_reports().await,
                resyncs: self.storage.as_ref().map(|storage| storage.resyncs()).unwrap_or_default(),
                scrubs: vec![],
            };
            match self.management.call(MgmtRequest::Heartbeat(heartbeat), None).await {
                Ok(MgmtReply::Alive(alive)) => {
                    alive.map.iter().for_each(|map| self.map.install(map));
                    self.ring.set_cluster_time(alive.time_s, rt::monotonic_ns());
                    self.renew(sent_ns, alive.lease_ms);
                }
                Err(error) if error.errno == Errno::ETIMEDOUT => {}
                // Management has restarted.
                _ => _ = self.register().await,
            }
        }
    }
}

async fn report(store: &Arc<Store>, is_proven: bool) -> TargetReport {
    let space = store.space().await.ok().filter(|_| is_proven);
    // Each target has its own file system.
    let device = u64::from(store.target().0);
    TargetReport {
        target: store.target(),
        cluster: new_identity("").cluster,
        path: store.dir().display().to_string(),
        space: space.map(|s| TargetSpace { capacity: s.capacity, free: s.free, device, own: None }),
        work: None,
    }
}

pub(super) async fn current_map(management: &MgmtChannel) -> Result<Arc<ClusterMap>> {
    match management.call(MgmtRequest::WatchMap { after: Epoch(0) }, None).await? {
        MgmtReply::Map { map } => Ok(map),
        other => Err(unexpected_reply(&other)),
    }
}

pub(super) fn address_of(node: &Node) -> Ipv4Addr {
    let ip = node.addresses.iter().find_map(|address| address.rsplit_once(':')?.0.parse().ok());
    ip.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

pub(super) fn unexpected_reply(reply: &MgmtReply) -> Error {
    Error::new(Errno::EPROTO, format!("management sent an unexpected reply: {reply:?}"))
}
