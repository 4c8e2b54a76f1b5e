//! A whole cluster in one process on a simulated machine.

use chunkstore::{Identity, Options, Store};
use client::{Client, ClientOptions};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService};
use net::Channel;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use storage::StorageService;
use types::{
    CapacityClass, ClusterMap, Credentials, Epoch, Errno, Error, HashMap, InodeId, MapHandle, NodeId, Pool,
    PoolId, Result, SessionId, Target, TargetId, TargetState,
};
use wire::mgmt::ReconcileFiles;
use wire::{StorageReply, StorageRequest, XattrMode};

/// Number of targets: the stripe count of the default pattern.
const TARGETS: u32 = 4;
/// Number of partitions: few, so that commands often need two.
pub(crate) const PARTITIONS: u16 = 4;
/// Key of the name hash; any value works.
pub(crate) const HASH_KEY: (u64, u64) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
/// Size of each intent log file in bytes: small, so that short runs fill one.
pub(crate) const LOG_BYTES: u64 = 256 * 1024;
/// Striping pattern of new files: the smallest chunk size, so that small files have several chunks.
pub(crate) const PATTERN: &[u8] = br#"{"chunk_size":65536}"#;
/// Capacity of a target in the cluster map, in bytes; all of it is free.
const CAPACITY: u64 = 1 << 40;

pub(crate) type StorageChannel = Channel<StorageRequest, StorageReply>;

/// State that survives the process besides the simulated disk, and options for starting the next
/// process.
#[derive(Clone)]
pub(crate) struct ClusterState {
    /// The metadata engine.
    pub(crate) engine: Arc<Memory>,
    /// Whether targets keep an intent log. Without one, checksums are wrong after a crash.
    pub(crate) intent_log: bool,
}

/// A running cluster with one client.
pub(crate) struct Cluster {
    pub(crate) client: Arc<Client>,
    map: MapHandle,
    writer: Arc<Writer>,
    stores: BTreeMap<TargetId, Arc<Store>>,
    meta: Arc<MetaService>,
}

impl ClusterState {
    /// Creates the targets and the root directory of a new file system.
    pub(crate) async fn format(&self) -> Result<()> {
        for target in targets() {
            Store::format_with_log(&directory(target), &identity(target), LOG_BYTES)
                .await
                .map_err(store_error)?;
        }
        let cluster = self.start(SessionId(1)).await?;
        let root = Credentials::default();
        cluster.client.setxattr(root, InodeId::ROOT, b"weft.pattern", PATTERN, XattrMode::Any, false).await?;
        cluster.stop().await
    }

    /// Starts all services and recovers from the crash of the previous process.
    pub(crate) async fn start(&self, session: SessionId) -> Result<Cluster> {
        let map = MapHandle::new(cluster_map());
        let mut stores = BTreeMap::new();
        for target in targets() {
            let options = Options { intent_log: self.intent_log, ..Options::default() };
            let opened = Store::open(&directory(target), &identity(target), options).await;
            let (store, _report) = opened.map_err(store_error)?;
            stores.insert(target, store);
        }
        let service = Arc::new(StorageService::new(stores.values().cloned()));
        let channels: HashMap<TargetId, StorageChannel> =
            targets().map(|target| (target, Channel::in_process(service.clone()))).collect();
        let engine: Arc<dyn Engine> = self.engine.clone();
        let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
        let options = MetaOptions {
            node: NodeId(1),
            hash_key: HASH_KEY,
            partitions: PARTITIONS,
            root_pattern: types::StripePattern::default(),
        };
        let meta = MetaService::open(writer.clone(), options, map.clone(), channels.clone()).await?;
        meta.recover().await?;
        for (&target, store) in &stores {
            let touched =
                ReconcileFiles { files: store.take_changing_at_crash(), new: store.take_created_at_crash() };
            meta.reconcile_target(target, &touched).await?;
            store.mark_reconciled();
        }
        let client = Client::new(ClientOptions {
            session,
            meta: Channel::in_process(meta.clone()).into(),
            storage: channels.into(),
            map: map.clone(),
            server_cache: false,
            write_behind: false,
            wsync: false,
            only_session: true,
        });
        Ok(Cluster { client, map, writer, stores, meta })
    }
}

impl Cluster {
    /// Starts the background tasks of all components.
    pub(crate) fn start_background(&self) {
        rt::spawn(self.meta.clone().background());
        rt::spawn(self.client.clone().background());
        for store in self.stores.values() {
            rt::spawn(store.clone().background());
        }
    }

    /// Runs the file system check. Nothing else may run meanwhile.
    pub(crate) async fn check(&self) -> Result<fsck::CheckReport> {
        let map = self.map.load();
        let subject = fsck::Subject {
            metadata: &*self.writer,
            partitions: PARTITIONS,
            hash_key: HASH_KEY,
            map: &map,
            stores: &self.stores,
            replicas: &fsck::Replicas::new(),
            unopened: &fsck::UnopenedReplicas::new(),
        };
        fsck::check(&subject, &fsck::CheckOptions::default(), &|_, _, _| ()).await
    }

    /// Shuts the client and all services down cleanly.
    pub(crate) async fn stop(self) -> Result<()> {
        self.client.shutdown().await?;
        self.meta.stop();
        for store in self.stores.values() {
            store.close().await.map_err(store_error)?;
        }
        self.writer.sync().await.map_err(|error| Error::new(Errno::EIO, error.to_string()))
    }
}

pub(crate) fn targets() -> impl Iterator<Item = TargetId> {
    (1..=TARGETS).map(TargetId)
}

pub(crate) fn directory(target: TargetId) -> PathBuf {
    PathBuf::from(format!("/targets/t{target}"))
}

pub(crate) fn identity(target: TargetId) -> Identity {
    Identity { cluster: "00000000-0000-4000-8000-000000000001".into(), target }
}

pub(crate) fn cluster_map() -> ClusterMap {
    let target = |id: TargetId| Target {
        id,
        node: NodeId(1),
        pool: PoolId(1),
        path: directory(id).display().to_string(),
        state: TargetState::Online,
        capacity: CAPACITY,
        free: CAPACITY,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let mut map = ClusterMap {
        nodes: vec![],
        epoch: Epoch(1),
        targets: targets().map(target).collect(),
        pools: vec![Pool { id: PoolId(1), name: "default".into(), spare: 0 }],
        groups: Vec::new(),
        partitions: Vec::new(),
        exports: Vec::new(),
        revoked: Vec::new(),
        settings: Default::default(),
    };
    map.groups = layout::single_groups(&map);
    map
}

pub(crate) fn store_error(error: chunkstore::StoreError) -> Error {
    Error::new(Errno::EIO, error.to_string())
}
