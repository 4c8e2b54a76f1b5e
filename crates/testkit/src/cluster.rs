//! A whole cluster in one process: stores, a storage service, a metadata service.

use crate::channel::{Pace, StorageHandler, to_storage};
use crate::metadata::{Metadata, MetadataOptions};
use crate::{clients, map, program, targets};
use chunkstore::Store;
use client::{Client, ClientOptions};
use kv::{Blocking, Memory};
use net::MetaChannels;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use types::{ClusterMap, InodeId, MapHandle, SessionId, TargetId};
use wire::XattrMode;

/// How often a cluster looks whether a target is empty, and how many times.
const DRAIN_LOOK: Duration = Duration::from_millis(100);
const DRAIN_LOOKS: u32 = 600;

/// Builds a cluster: on a simulated machine, with one route that is slow, if nothing else is said.
pub struct ClusterBuilder {
    map: ClusterMap,
    base: PathBuf,
    copies: Vec<TargetId>,
    log_bytes: u64,
    engine: Arc<Memory>,
    metadata: MetadataOptions,
}

impl ClusterBuilder {
    /// A cluster with the targets of a map.
    pub fn new(map: ClusterMap) -> ClusterBuilder {
        let metadata =
            MetadataOptions { partitions: 4, blocking: Blocking::Inline, background: true, pace: Pace::Slow };
        ClusterBuilder {
            map,
            base: PathBuf::from(targets::SIMULATED),
            copies: Vec::new(),
            log_bytes: targets::LOG_BYTES,
            engine: Arc::default(),
            metadata,
        }
    }

    /// On a real machine, below a directory.
    pub fn on_disk(mut self, base: &Path) -> ClusterBuilder {
        self.base = base.to_path_buf();
        self.metadata.blocking = Blocking::Thread;
        self
    }

    /// Bytes of each target's intent log.
    pub fn log_bytes(mut self, bytes: u64) -> ClusterBuilder {
        self.log_bytes = bytes;
        self
    }

    /// Stores beside those of the targets, under names of their own.
    pub fn copies(mut self, copies: impl IntoIterator<Item = TargetId>) -> ClusterBuilder {
        self.copies.extend(copies);
        self
    }

    /// Over a metadata store that has been used before.
    pub fn over(mut self, engine: Arc<Memory>) -> ClusterBuilder {
        self.engine = engine;
        self
    }

    /// How long messages to the metadata service take.
    pub fn pace(mut self, pace: Pace) -> ClusterBuilder {
        self.metadata.pace = pace;
        self
    }

    /// The metadata service does no background work until the test starts it.
    pub fn without_background(mut self) -> ClusterBuilder {
        self.metadata.background = false;
        self
    }

    /// Makes the targets, and starts a storage service on them.
    pub async fn create(self) -> Site {
        for target in self.all_targets() {
            targets::format(&targets::directory(&self.base, target), target, self.log_bytes).await;
        }
        self.open().await
    }

    /// Starts a storage service on targets that have been made before.
    pub async fn open(self) -> Site {
        let stores = targets::open_all(&self.base, &self.all_targets()).await;
        let storage = Arc::new(StorageService::new(stores.iter().cloned()));
        Site { map: map::share(self.map), stores, storage, engine: self.engine, metadata: self.metadata }
    }

    fn all_targets(&self) -> Vec<TargetId> {
        targets::of_map(&self.map).into_iter().chain(self.copies.iter().copied()).collect()
    }
}

/// A cluster whose storage service runs, and nothing else yet.
pub struct Site {
    /// The map, as all services and clients will see it.
    pub map: MapHandle,
    /// The store of each target, in order, and then the copies.
    pub stores: Vec<Arc<Store>>,
    /// The storage service of all targets.
    pub storage: Arc<StorageService>,
    engine: Arc<Memory>,
    metadata: MetadataOptions,
}

impl Site {
    /// Starts the metadata service, which reaches the storage service directly.
    pub async fn serve(self) -> Cluster {
        let storage = self.storage.clone();
        self.serve_over(storage).await
    }

    /// Starts the metadata service, which reaches storage through `to_storage`.
    pub async fn serve_over(self, to_storage: StorageHandler) -> Cluster {
        let Site { map, stores, storage, engine, metadata } = self;
        let metadata = Metadata::start(engine, map.clone(), to_storage, metadata).await;
        Cluster { map, stores, storage, metadata, sessions: Cell::new(0) }
    }
}

/// A running cluster.
pub struct Cluster {
    /// The map, as all services and clients see it.
    pub map: MapHandle,
    /// The store of each target, in order, and then the copies.
    pub stores: Vec<Arc<Store>>,
    /// The storage service of all targets.
    pub storage: Arc<StorageService>,
    /// The metadata service.
    pub metadata: Metadata,
    sessions: Cell<u64>,
}

impl Cluster {
    /// The targets.
    pub fn targets(&self) -> Vec<TargetId> {
        targets::of_map(&self.map.read().unwrap())
    }

    /// The options of one more client, with a session of its own.
    pub fn options(&self, meta: impl Into<MetaChannels>, storage: &StorageHandler) -> ClientOptions {
        self.sessions.set(self.sessions.get() + 1);
        let session = SessionId(self.sessions.get());
        clients::options(session, &self.map, meta, to_storage(self.targets(), storage))
    }

    /// The store of a target or of a copy.
    pub fn store(&self, target: TargetId) -> &Arc<Store> {
        self.stores.iter().find(|store| store.target() == target).unwrap()
    }

    /// Chunk files on a target, by name.
    pub async fn chunk_files(&self, target: TargetId) -> Vec<InodeId> {
        self.store(target).list().await.unwrap()
    }

    /// Whether the metadata service says that a target is empty.
    pub fn is_empty(&self, target: TargetId) -> bool {
        let drains = self.metadata.service().drains();
        drains.iter().any(|drain| drain.target == target && drain.is_empty)
    }

    /// Waits until a drained target is empty; false when that takes more than a minute.
    pub async fn becomes_empty(&self, target: TargetId) -> bool {
        for _ in 0..DRAIN_LOOKS {
            if self.is_empty(target) {
                return true;
            }
            rt::sleep(DRAIN_LOOK).await;
        }
        false
    }
}

/// Sets the layout of files that will be created.
pub async fn set_pattern(client: &Client, pattern: &[u8]) {
    let (root, user) = (InodeId::ROOT, program::ROOT);
    client.setxattr(user, root, b"weft.pattern", pattern, XattrMode::Any, false).await.unwrap();
}
