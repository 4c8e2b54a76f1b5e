//! The processes of a cluster, each on its own host.

use super::management::ManagementState;
use crate::cluster::{
    HASH_KEY, LOG_BYTES, PARTITIONS, PATTERN, StorageChannel, cluster_map, directory, identity, store_error,
    targets,
};
use chunkstore::{Options, Store};
use client::{Client, ClientOptions, SessionFailover};
use identity::{CapabilityKeys, CapabilityRing};
use kv::{Blocking, Durability, Engine, Memory, RemoteWriter, Writer};
use kvnet::{KvService, RemoteStore};
use meta::{MetaOptions, MetaService};
use net::{
    Channel, ClientIdentity, Handler, Liveness, Peer, PeerOptions, Router, Security, Server, ServerLimits,
    ServerOptions,
};
use routing::{OwnRack, WhenOffline};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage::{ServingLease, StorageService};
use types::{
    Credentials, Errno, Error, HashMap, InodeId, MapHandle, NodeId, Result, Scheme, SessionId, TargetId,
};
use wire::{KvReply, KvRequest, MetaRequest, MetaResponse, StorageReply, StorageRequest, XattrMode};

const PORT: u16 = 7000;
/// Validity of a capability, in seconds.
const CAPABILITY_VALIDITY_S: u16 = 8;
/// Validity of a capability if clocks differ by some seconds, in seconds.
pub(super) const SKEWED_CAPABILITY_VALIDITY_S: u16 = 30;
/// UUID of the simulated cluster.
const CLUSTER: &str = "00000000-0000-4000-8000-000000000001";
/// Longest time that a call is repeated.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Short intervals, so that time-outs of silent connections are frequent in a run.
const LIVENESS: Liveness =
    Liveness { ping_after: Duration::from_millis(500), dead_after: Duration::from_secs(1) };
/// Pause of a metadata service between attempts to start; a start fails while a target doesn't
/// answer.
pub(super) const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// Interval at which the metadata service checks for targets that need crash reconciliation.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(100);

/// A start of a target, and the files on it that may need crash reconciliation.
#[derive(Clone)]
pub(super) struct DirtyAtStart {
    pub(super) target: TargetId,
    pub(super) start: u64,
    pub(super) unreconciled: wire::mgmt::ReconcileFiles,
}

/// A service by the number of its host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Service {
    Metadata(usize),
    Storage(usize),
}

/// Addresses and options of the cluster, and state that outlives processes besides the disks.
#[derive(Clone)]
pub(super) struct HostsCluster {
    pub(super) engine: Arc<Memory>,
    /// Metadata hosts. If there are several, management assigns the partitions to them.
    pub(super) meta_ips: Vec<Ipv4Addr>,
    /// The host of the store, if it isn't the metadata host: management's host if there is one.
    pub(super) store_ip: Option<Ipv4Addr>,
    pub(super) management_state: Option<ManagementState>,
    /// Storage hosts; targets are assigned to them round-robin.
    pub(super) storage_ips: Vec<Ipv4Addr>,
    /// Files that were dirty on a target when it started.
    pub(super) dirty_at_start: Arc<Mutex<Vec<DirtyAtStart>>>,
    /// Number of racks; storage hosts are assigned to them round-robin.
    pub(super) racks: usize,
    /// Redundancy of files. Mirrored files need a management service.
    pub(super) scheme: Scheme,
    /// Whether targets report what may differ between replicas.
    pub(super) reports_differences: bool,
    /// Whether clients use write-behind.
    pub(super) write_behind: bool,
    /// Time-out of clients' requests.
    pub(super) client_timeout: Duration,
    /// Services whose processes must restart: a metadata service depends on commits that the
    /// store's host lost, or management refuses to go on with a node.
    pub(super) services_to_restart: Arc<Mutex<BTreeSet<Service>>>,
    /// Metadata hosts that have opened the store since its host lost power.
    pub(super) metas_with_store: Arc<Mutex<BTreeSet<usize>>>,
    /// Storage hosts whose process hasn't registered with management yet: what the host may have
    /// lost is unknown.
    pub(super) unregistered: Arc<Mutex<BTreeSet<usize>>>,
}

impl HostsCluster {
    /// Returns the storage hosts whose last start management doesn't know.
    pub(super) fn unregistered(&self) -> BTreeSet<usize> {
        lock(&self.unregistered).clone()
    }

    /// Records that a storage host's process is being started.
    pub(super) fn mark_unregistered(&self, index: usize) {
        lock(&self.unregistered).insert(index);
    }

    pub(super) fn mark_registered(&self, index: usize) {
        lock(&self.unregistered).remove(&index);
    }

    /// Returns the services whose processes must restart, each once.
    pub(super) fn take_services_to_restart(&self) -> BTreeSet<Service> {
        std::mem::take(&mut lock(&self.services_to_restart))
    }

    /// Records that the process of a service was killed: it doesn't restart by itself.
    pub(super) fn cancel_restart(&self, service: Service) {
        lock(&self.services_to_restart).remove(&service);
    }

    pub(super) fn metas_with_store(&self) -> BTreeSet<usize> {
        lock(&self.metas_with_store).clone()
    }

    /// Records that the store's host lost power.
    pub(super) fn clear_metas_with_store(&self) {
        lock(&self.metas_with_store).clear();
    }

    fn lock_dirty_at_start(&self) -> MutexGuard<'_, Vec<DirtyAtStart>> {
        self.dirty_at_start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn storage_of(&self, target: TargetId) -> usize {
        (target.0 as usize - 1) % self.storage_ips.len()
    }

    /// Returns the rack of the storage host at an address.
    pub(super) fn rack_at(&self, ip: Ipv4Addr) -> Option<String> {
        let index = self.storage_ips.iter().position(|host| *host == ip)?;
        self.rack(index)
    }

    fn rack(&self, number: usize) -> Option<String> {
        (self.racks > 0).then(|| format!("r{}", number % self.racks))
    }

    fn targets_of(&self, index: usize) -> impl Iterator<Item = TargetId> + '_ {
        targets().filter(move |target| self.storage_of(*target) == index)
    }

    /// Creates the targets of a storage host if management doesn't number them.
    pub(super) async fn format(self, index: usize) -> Result<()> {
        for target in self.targets_of(index) {
            Store::format_with_log(&directory(target), &identity(target), LOG_BYTES)
                .await
                .map_err(store_error)?;
        }
        Ok(())
    }

    /// Runs a storage host's process.
    pub(super) async fn serve_storage(self, index: usize) -> Result<()> {
        if self.scheme.has_primary() {
            return self.serve_mirrored_storage(index).await;
        }
        let mut stores = Vec::new();
        for target in self.targets_of(index) {
            let opened = Store::open(&directory(target), &identity(target), Options::default()).await;
            let (store, _report) = opened.map_err(store_error)?;
            stores.push(store);
        }
        let service = Arc::new(StorageService::under_lease(Arc::new(ServingLease::forever())));
        service.require_capabilities(ring(self.management_state.is_some()));
        let handler: Arc<dyn Handler<StorageRequest, StorageReply>> = service.clone();
        let name = format!("storage host {index}");
        let _server = serve(name, self.storage_ips[index], Router::new().with(handler))?;
        for store in &stores {
            service.add(store.clone())?;
        }
        service.set_targets_complete();
        // Concurrently: one may wait for a partition that no service executes.
        let opened = stores.iter().map(|store| async {
            self.await_reconciliation(store).await;
            service.open_to_clients(store.target());
            // Only now: until then, another crash must find the notes of what was dirty.
            store.clone().background().await;
        });
        rt::join_all(opened.collect()).await;
        std::future::pending().await
    }

    /// Waits until the metadata services have reconciled what was dirty on a target when it
    /// started.
    async fn await_reconciliation(&self, store: &Store) {
        let (target, start) = (store.target(), rt::random_u64());
        let mut left = wire::mgmt::ReconcileFiles {
            files: store.take_changing_at_crash(),
            new: store.take_created_at_crash(),
        };
        left.files.sort_unstable();
        {
            let mut touched = self.lock_dirty_at_start();
            touched.retain(|other| other.target != target);
            touched.push(DirtyAtStart { target, start, unreconciled: left });
        }
        let is_unreconciled = || {
            let touched = self.lock_dirty_at_start();
            touched.iter().any(|other| other.start == start && !other.unreconciled.is_empty())
        };
        while is_unreconciled() {
            rt::sleep(RECONCILE_INTERVAL).await;
        }
        store.mark_reconciled();
    }

    /// Runs the metadata host's process. It starts once the targets answer.
    pub(super) async fn serve_meta(self) {
        let identity = new_identity("metadata");
        loop {
            match self.try_serve_meta(&identity).await {
                Ok(()) => return,
                Err(_) => rt::sleep(RESTART_PAUSE).await,
            }
        }
    }

    async fn try_serve_meta(&self, identity: &ClientIdentity) -> Result<()> {
        let options = MetaOptions {
            node: NodeId(1),
            hash_key: HASH_KEY,
            partitions: PARTITIONS,
            root_pattern: types::StripePattern::default(),
        };
        let meta = MetaService::open(
            self.store(identity, 0).await?,
            options,
            map(),
            self.storage_channels(identity),
        )
        .await?;
        meta.sign_with(ring(false));
        meta.recover().await?;
        self.reconcile(&meta).await?;
        rt::spawn(meta.clone().background());
        let service: Arc<dyn Handler<MetaRequest, MetaResponse>> = meta.clone();
        let _server = serve("metadata".into(), self.meta_ips[0], Router::new().with(service))?;
        loop {
            rt::sleep(RECONCILE_INTERVAL).await;
            // The next iteration retries failures.
            let _ = self.reconcile(&meta).await;
        }
    }

    /// Runs the process of a host that serves only the store.
    pub(super) async fn serve_store(self, ip: Ipv4Addr) -> Result<()> {
        let _server = serve("store".into(), ip, Router::new().with(self.store_service()))?;
        std::future::pending().await
    }

    /// Returns the service that serves the store.
    pub(super) fn store_service(&self) -> Arc<dyn Handler<KvRequest, KvReply>> {
        Arc::new(KvService::new(self.writer()))
    }

    pub(super) fn writer(&self) -> Arc<Writer> {
        let engine: Arc<dyn Engine> = self.engine.clone();
        Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline))
    }

    /// Opens the store for a metadata host.
    pub(super) async fn store(&self, identity: &ClientIdentity, index: usize) -> Result<Arc<dyn kv::Store>> {
        let Some(ip) = self.store_ip else { return Ok(self.writer()) };
        let channel = Channel::remote(peer("store".into(), ip, identity));
        let remote = RemoteStore::open(channel, "the store's host").await;
        let remote = remote.map_err(|error| Error::new(Errno::EIO, error.to_string()))?;
        lock(&self.metas_with_store).insert(index);
        let (lost, outdated) = (remote.data_loss().clone(), self.services_to_restart.clone());
        rt::spawn(async move {
            lost.wait().await;
            lock(&outdated).insert(Service::Metadata(index));
        });
        Ok(Arc::new(RemoteWriter::new(remote)))
    }

    /// Reconciles the files in partitions that the service executes. The service that executes the
    /// partition later retries failures.
    pub(super) async fn reconcile(&self, meta: &MetaService) -> Result<()> {
        let executed = meta.serving_partitions();
        let touched = self.lock_dirty_at_start().clone();
        for DirtyAtStart { target, start, unreconciled: mut left } in touched {
            left.files.retain(|ino| executed.contains(&ino.partition()));
            left.new.retain(|(first, _)| executed.contains(&first.partition()));
            if left.is_empty() {
                continue;
            }
            meta.reconcile_target(target, &left).await?;
            let mut touched = self.lock_dirty_at_start();
            let entry = touched.iter_mut().find(|other| other.start == start);
            entry.into_iter().for_each(|entry| {
                entry.unreconciled.files.retain(|ino| !left.files.contains(ino));
                entry.unreconciled.new.retain(|range| !left.new.contains(range));
            });
        }
        Ok(())
    }

    /// Mounts on the current host. The mount gets a successor session when the cluster ends its
    /// session.
    pub(super) async fn mount(&self) -> Result<Arc<SessionFailover>> {
        let cluster = self.clone();
        let begin = move || -> Pin<Box<dyn Future<Output = Result<Arc<Client>>>>> {
            let cluster = cluster.clone();
            Box::pin(async move { cluster.session(SessionId::from_random(rt::random_u64())).await })
        };
        let first = begin().await?;
        let mount = SessionFailover::new(first, Box::new(begin));
        rt::spawn(mount.clone().run());
        Ok(mount)
    }

    /// Returns a client with a single session, on the current host.
    pub(super) async fn client(&self, session: SessionId) -> Result<Arc<Client>> {
        let client = self.session(session).await?;
        rt::spawn(client.clone().background());
        Ok(client)
    }

    /// Registers a session. Its background tasks don't run yet.
    async fn session(&self, session: SessionId) -> Result<Arc<Client>> {
        let identity = new_identity("client");
        let (meta, map) = match &self.management_state {
            None => (Channel::remote(peer("metadata".into(), self.meta_ips[0], &identity)).into(), map()),
            Some(_) => self.mapped(&identity).await?,
        };
        let mirrored = self.scheme.has_primary();
        let storage = match mirrored {
            true => {
                let rack = self.rack(session.0 as usize);
                let own_rack = Arc::new(OwnRack::new(rack, Box::new(|_| false)));
                self.storage_by_map(&identity, &map, WhenOffline::Try).with_rack(own_rack)
            }
            false => self.storage_channels(&identity).into(),
        };
        let client = Client::new(ClientOptions {
            session,
            meta,
            storage,
            map,
            server_cache: false,
            write_behind: self.write_behind,
            wsync: false,
            only_session: false,
        });
        client.set_request_timeout(self.client_timeout);
        client.register().await?;
        Ok(client)
    }

    pub(super) fn storage_channels(&self, identity: &ClientIdentity) -> HashMap<TargetId, StorageChannel> {
        let addresses = self.storage_ips.iter().enumerate();
        let peers: Vec<Arc<Peer>> =
            addresses.map(|(index, ip)| peer(format!("storage host {index}"), *ip, identity)).collect();
        targets().map(|target| (target, Channel::remote(peers[self.storage_of(target)].clone()))).collect()
    }
}

fn lock<T>(set: &Mutex<BTreeSet<T>>) -> MutexGuard<'_, BTreeSet<T>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the striping pattern of a new file system.
pub(super) async fn set_pattern(client: &Client, scheme: Scheme) -> Result<()> {
    let root = Credentials::default();
    let mirrored = format!(r#"{{"chunk_size":65536,"scheme":"{scheme}"}}"#);
    let pattern = if scheme.has_primary() { mirrored.as_bytes() } else { PATTERN };
    client.setxattr(root, InodeId::ROOT, b"weft.pattern", pattern, XattrMode::Any, false).await
}

fn map() -> MapHandle {
    MapHandle::new(cluster_map())
}

/// Returns the cluster's signing keys. Signatures expire so soon that they are renewed continually.
pub(super) fn ring(clocks_differ: bool) -> Arc<CapabilityRing> {
    let validity_s = if clocks_differ { SKEWED_CAPABILITY_VALIDITY_S } else { CAPABILITY_VALIDITY_S };
    let ring = CapabilityRing::new(validity_s);
    // Without management all clocks are correct.
    ring.set_cluster_time(rt::now().secs, rt::monotonic_ns());
    ring.set(CapabilityKeys::parse(&capability_keys()).expect("it is well-formed"));
    Arc::new(ring)
}

/// Returns the cluster's capability keys as text.
pub(super) fn capability_keys() -> String {
    format!("format = 1\nsigning = 1\n[[key]]\nid = 1\nsecret = \"{}\"\n", "07".repeat(32))
}

pub(super) fn new_identity(name: &str) -> ClientIdentity {
    ClientIdentity { cluster: CLUSTER.into(), name: name.into(), client: rt::random_u64() }
}

pub(super) fn peer(name: String, ip: Ipv4Addr, identity: &ClientIdentity) -> Arc<Peer> {
    peer_with(name, ip, identity, CALL_TIMEOUT)
}

pub(super) fn peer_with(
    name: String,
    ip: Ipv4Addr,
    identity: &ClientIdentity,
    timeout: Duration,
) -> Arc<Peer> {
    let mut options = PeerOptions::new(name, vec![SocketAddr::from((ip, PORT))], identity.clone());
    options.timeout = timeout;
    options.liveness = LIVENESS;
    Peer::new(options)
}

pub(super) fn serve(name: String, ip: Ipv4Addr, router: Router) -> Result<Arc<Server>> {
    let options = ServerOptions {
        listen: vec![SocketAddr::from((ip, PORT))],
        cores: 1,
        name,
        cluster: CLUSTER.into(),
        security: Security::Plain,
        map: types::MapHandle::default(),
        checksum_payloads: true,
        limits: ServerLimits { liveness: LIVENESS, ..ServerLimits::default() },
    };
    Server::start(options, router)
}
