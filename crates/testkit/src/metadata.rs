//! A metadata service whose store is in memory.

use crate::channel::{MetaHandler, Pace, Route, StorageHandler, to_storage};
use crate::targets;
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService};
use std::cell::RefCell;
use std::sync::Arc;
use types::{MapHandle, NodeId};
use wire::{MetaRequest, MetaResponse};

/// How a metadata service runs.
#[derive(Clone, Copy, Debug)]
pub struct MetadataOptions {
    /// Partitions of the namespace.
    pub partitions: u16,
    /// Where the engine waits for its disk: simulated machines have no threads.
    pub blocking: Blocking,
    /// Whether the service does its background work.
    pub background: bool,
    /// How long messages of clients take.
    pub pace: Pace,
}

/// A metadata service that can be started again over the same store.
pub struct Metadata {
    options: MetadataOptions,
    engine: Arc<Memory>,
    map: MapHandle,
    storage: StorageHandler,
    running: RefCell<Running>,
    route: Arc<Route<MetaRequest, MetaResponse>>,
}

/// The process that runs now.
struct Running {
    service: Arc<MetaService>,
    writer: Arc<Writer>,
}

/// The writer of an engine in memory.
pub fn writer(engine: &Arc<Memory>, blocking: Blocking) -> Arc<Writer> {
    let engine: Arc<dyn Engine> = engine.clone();
    Arc::new(Writer::with_blocking(engine, Durability::Process, blocking))
}

/// The options of a node's service.
pub fn options(node: NodeId, partitions: u16) -> MetaOptions {
    MetaOptions { node, hash_key: (1, 2), partitions }
}

impl Metadata {
    /// Starts the service over what `engine` holds, and recovers what an earlier one left there.
    pub async fn start(
        engine: Arc<Memory>,
        map: MapHandle,
        storage: StorageHandler,
        options: MetadataOptions,
    ) -> Metadata {
        let running = serve(&engine, &map, &storage, &options).await;
        let route = Route::new(options.pace, running.service.clone());
        let running = RefCell::new(running);
        Metadata { options, engine, map, storage, running, route }
    }

    /// The service that runs now.
    pub fn service(&self) -> Arc<MetaService> {
        self.running.borrow().service.clone()
    }

    /// The writer of the service that runs now.
    pub fn writer(&self) -> Arc<Writer> {
        self.running.borrow().writer.clone()
    }

    /// The store.
    pub fn engine(&self) -> &Arc<Memory> {
        &self.engine
    }

    /// The way to the service that runs, also after a restart.
    pub fn route(&self) -> &Arc<Route<MetaRequest, MetaResponse>> {
        &self.route
    }

    /// The same way, for what wraps it.
    pub fn handler(&self) -> MetaHandler {
        self.route.clone()
    }

    /// Ends the service without warning, and starts another one.
    pub async fn restart(&self) {
        self.service().stop();
        self.replace().await;
    }

    /// The machine of the store loses its power, and with it what wasn't synced; then the service
    /// starts again.
    pub async fn lose_power(&self) {
        self.service().stop();
        self.engine.crash(0);
        self.replace().await;
    }

    async fn replace(&self) {
        let next = serve(&self.engine, &self.map, &self.storage, &self.options).await;
        self.route.lead_to(next.service.clone());
        self.running.replace(next);
    }
}

async fn serve(
    engine: &Arc<Memory>,
    map: &MapHandle,
    storage: &StorageHandler,
    with: &MetadataOptions,
) -> Running {
    let targets = targets::of_map(&map.read().unwrap());
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
