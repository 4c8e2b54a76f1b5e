//! A metadata service with an in-memory store.

use crate::channel::{Latency, MetaHandler, Route, StorageHandler, to_storage};
use crate::targets;
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService};
use std::cell::RefCell;
use std::sync::Arc;
use types::{MapHandle, NodeId};
use wire::{MetaRequest, MetaResponse};

/// Options of a metadata service.
#[derive(Clone, Copy, Debug)]
pub struct MetadataOptions {
    /// Number of partitions of the name space.
    pub partitions: u16,
    /// Where the engine blocks on its disk: simulated machines have no threads.
    pub blocking: Blocking,
    /// Whether the service runs its background tasks.
    pub background: bool,
    /// Latency of messages from clients.
    pub latency: Latency,
}

/// A metadata service that can be restarted over the same store.
pub struct Metadata {
    options: MetadataOptions,
    engine: Arc<Memory>,
    map: MapHandle,
    storage: StorageHandler,
    running: RefCell<Running>,
    route: Arc<Route<MetaRequest, MetaResponse>>,
}

/// The running process.
struct Running {
    service: Arc<MetaService>,
    writer: Arc<Writer>,
}

/// Returns a writer for an in-memory engine.
pub fn writer(engine: &Arc<Memory>, blocking: Blocking) -> Arc<Writer> {
    let engine: Arc<dyn Engine> = engine.clone();
    Arc::new(Writer::with_blocking(engine, Durability::Process, blocking))
}

/// Returns the options of a node's service.
pub fn options(node: NodeId, partitions: u16) -> MetaOptions {
    MetaOptions { node, hash_key: (1, 2), partitions, root_pattern: types::StripePattern::default() }
}

impl Metadata {
    /// Starts the service over `engine`, and recovers from the crash of an earlier one.
    pub async fn start(
        engine: Arc<Memory>,
        map: MapHandle,
        storage: StorageHandler,
        options: MetadataOptions,
    ) -> Metadata {
        let running = serve(&engine, &map, &storage, &options).await;
        let route = Route::new(options.latency, running.service.clone());
        let running = RefCell::new(running);
        Metadata { options, engine, map, storage, running, route }
    }

    /// Returns the running service.
    pub fn service(&self) -> Arc<MetaService> {
        self.running.borrow().service.clone()
    }

    /// Returns the writer of the running service.
    pub fn writer(&self) -> Arc<Writer> {
        self.running.borrow().writer.clone()
    }

    /// Returns the store's engine.
    pub fn engine(&self) -> &Arc<Memory> {
        &self.engine
    }

    /// Returns the route to the service; it stays valid after a restart.
    pub fn route(&self) -> &Arc<Route<MetaRequest, MetaResponse>> {
        &self.route
    }

    /// Returns the same route as a handler, so that a test can wrap it.
    pub fn handler(&self) -> MetaHandler {
        self.route.clone()
    }

    /// Crashes the service, and starts a new one.
    pub async fn restart(&self) {
        self.service().stop();
        self.replace().await;
    }

    /// Simulates a power failure of the store's machine, which loses unsynced data, and starts a
    /// new service.
    pub async fn lose_power(&self) {
        self.service().stop();
        self.engine.crash(0);
        self.replace().await;
    }

    async fn replace(&self) {
        let next = serve(&self.engine, &self.map, &self.storage, &self.options).await;
        self.route.redirect_to(next.service.clone());
        self.running.replace(next);
    }
}

async fn serve(
    engine: &Arc<Memory>,
    map: &MapHandle,
    storage: &StorageHandler,
    with: &MetadataOptions,
) -> Running {
    let targets = targets::of_map(&map.load());
    let writer = writer(engine, with.blocking);
    let options = options(NodeId(1), with.partitions);
    let service = MetaService::open(writer.clone(), options, map.clone(), to_storage(targets, storage));
    let service = service.await.unwrap();
    service.recover().await.unwrap();
    if with.background {
        rt::spawn(service.clone().background());
    }
    Running { service, writer }
}
