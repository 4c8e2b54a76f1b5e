//! A whole cluster in one process: stores, a storage service and a metadata service.

use crate::channel::{Latency, StorageHandler, to_storage};
use crate::metadata::{Metadata, MetadataOptions};
use crate::{application, clients, map, targets};
use chunkstore::Store;
use client::{Client, ClientOptions};
use kv::{Blocking, Memory};
use routing::MetaChannels;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use types::{ChunkFileId, ClusterMap, InodeId, MapHandle, SessionId, TargetId};
use wire::XattrMode;

/// Interval and maximum number of checks whether a drained target is empty.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const MAX_DRAIN_CHECKS: u32 = 600;

/// Builds a cluster; by default on a simulated machine, with a slow route to the metadata service.
pub struct ClusterBuilder {
    map: ClusterMap,
    base: PathBuf,
    extra_stores: Vec<TargetId>,
    log_bytes: u64,
    engine: Arc<Memory>,
    metadata: MetadataOptions,
}

impl ClusterBuilder {
    /// Creates a builder of a cluster with the targets of a map.
    pub fn new(map: ClusterMap) -> ClusterBuilder {
        let metadata = MetadataOptions {
            partitions: 4,
            blocking: Blocking::Inline,
            background: true,
            latency: Latency::Random,
        };
        ClusterBuilder {
            map,
            base: PathBuf::from(targets::SIMULATED_DIR),
            extra_stores: Vec::new(),
            log_bytes: targets::LOG_BYTES,
            engine: Arc::default(),
            metadata,
        }
    }

    /// Builds on a real machine, below a directory.
    pub fn on_disk(mut self, base: &Path) -> ClusterBuilder {
        self.base = base.to_path_buf();
        self.metadata.blocking = Blocking::Thread;
        self
    }

    /// Sets the size of each target's intent log in bytes.
    pub fn log_bytes(mut self, bytes: u64) -> ClusterBuilder {
        self.log_bytes = bytes;
        self
    }

    /// Adds stores besides those of the map's targets, with their own target ids.
    pub fn extra_stores(mut self, targets: impl IntoIterator<Item = TargetId>) -> ClusterBuilder {
        self.extra_stores.extend(targets);
        self
    }

    /// Builds over an existing metadata store.
    pub fn with_engine(mut self, engine: Arc<Memory>) -> ClusterBuilder {
        self.engine = engine;
        self
    }

    /// Sets the latency of messages to the metadata service.
    pub fn latency(mut self, latency: Latency) -> ClusterBuilder {
        self.metadata.latency = latency;
        self
    }

    /// Disables background tasks of the metadata service until the test starts them.
    pub fn without_background(mut self) -> ClusterBuilder {
        self.metadata.background = false;
        self
    }

    /// Creates the targets, and starts a storage service on them.
    pub async fn create(self) -> StorageCluster {
        for target in self.all_targets() {
            targets::format(&targets::directory(&self.base, target), target, self.log_bytes).await;
        }
        self.open().await
    }

    /// Starts a storage service on existing targets.
    pub async fn open(self) -> StorageCluster {
        let stores = targets::open_all(&self.base, &self.all_targets()).await;
        let storage = Arc::new(StorageService::new(stores.iter().cloned()));
        StorageCluster {
            map: map::share(self.map),
            stores,
            storage,
            engine: self.engine,
            metadata: self.metadata,
        }
    }

    fn all_targets(&self) -> Vec<TargetId> {
        targets::of_map(&self.map).into_iter().chain(self.extra_stores.iter().copied()).collect()
    }
}

/// A cluster in which only the storage service runs.
pub struct StorageCluster {
    /// The map that all services and clients will share.
    pub map: MapHandle,
    /// The store of each target, in order, followed by the additional stores.
    pub stores: Vec<Arc<Store>>,
    /// The storage service of all targets.
    pub storage: Arc<StorageService>,
    engine: Arc<Memory>,
    metadata: MetadataOptions,
}

impl StorageCluster {
    /// Starts the metadata service, with a direct route to the storage service.
    pub async fn serve(self) -> Cluster {
        let storage = self.storage.clone();
        self.serve_with_storage(storage).await
    }

    /// Starts the metadata service, which reaches storage through `to_storage`.
    pub async fn serve_with_storage(self, to_storage: StorageHandler) -> Cluster {
        let StorageCluster { map, stores, storage, engine, metadata } = self;
        let metadata = Metadata::start(engine, map.clone(), to_storage, metadata).await;
        Cluster { map, stores, storage, metadata, sessions: Cell::new(0) }
    }
}

/// A running cluster.
pub struct Cluster {
    /// The map that all services and clients share.
    pub map: MapHandle,
    /// The store of each target, in order, followed by the additional stores.
    pub stores: Vec<Arc<Store>>,
    /// The storage service of all targets.
    pub storage: Arc<StorageService>,
    /// The metadata service.
    pub metadata: Metadata,
    sessions: Cell<u64>,
}

impl Cluster {
    /// Returns the targets of the map.
    pub fn targets(&self) -> Vec<TargetId> {
        targets::of_map(&self.map.load())
    }

    /// Returns the options of a new client with its own session.
    pub fn options(&self, meta: impl Into<MetaChannels>, storage: &StorageHandler) -> ClientOptions {
        self.sessions.set(self.sessions.get() + 1);
        let session = SessionId(self.sessions.get());
        clients::options(session, &self.map, meta, to_storage(self.targets(), storage))
    }

    /// Returns the store of a target, or an additional store.
    pub fn store(&self, target: TargetId) -> &Arc<Store> {
        self.stores.iter().find(|store| store.target() == target).unwrap()
    }

    /// Returns the names of the chunk files on a target.
    pub async fn chunk_files(&self, target: TargetId) -> Vec<ChunkFileId> {
        self.store(target).list().await.unwrap()
    }

    /// Returns whether the metadata service reports a drained target as empty.
    pub fn is_empty(&self, target: TargetId) -> bool {
        let drains = self.metadata.service().drains();
        drains.iter().any(|drain| drain.target == target && drain.is_empty)
    }

    /// Waits until a drained target is empty. Returns false after one minute.
    pub async fn wait_until_empty(&self, target: TargetId) -> bool {
        for _ in 0..MAX_DRAIN_CHECKS {
            if self.is_empty(target) {
                return true;
            }
            rt::sleep(DRAIN_CHECK_INTERVAL).await;
        }
        false
    }
}

/// Sets the layout of files created later.
pub async fn set_pattern(client: &Client, pattern: &[u8]) {
    let (root, user) = (InodeId::ROOT, application::ROOT);
    client.setxattr(user, root, b"weft.pattern", pattern, XattrMode::Any, false).await.unwrap();
}
