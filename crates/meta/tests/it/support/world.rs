//! Sessions with leases on a simulated machine.

use super::{Chunks, Client, bytes, map, open_mapped};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaService, SessionKind};
use parking_lot::Mutex;
use rt::sim::Machine;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, InodeId, MapHandle, SessionId, SetAttr, TargetState};
use wire::{LeaseMode, MetaOp, MetaReply, Recall, RecallAck};

pub const ROOT: InodeId = InodeId::ROOT;
pub const SECOND: Duration = Duration::from_secs(1);

pub struct World {
    pub meta: Arc<MetaService>,
    pub chunks: Arc<Chunks>,
    pub memory: Arc<Memory>,
    pub map: MapHandle,
}

impl World {
    pub async fn new() -> World {
        World::start(Arc::default(), Arc::default(), map()).await
    }

    async fn start(memory: Arc<Memory>, chunks: Arc<Chunks>, map: MapHandle) -> World {
        let writer = Writer::with_blocking(memory.clone(), Durability::Process, Blocking::Inline);
        let meta = open_mapped(Arc::new(writer), chunks.channels(), map.clone()).await;
        meta.recover().await.unwrap();
        rt::spawn(meta.clone().background());
        World { meta, chunks, memory, map }
    }

    /// The service after a restart of its process.
    pub async fn restart(&self) -> World {
        self.meta.stop();
        World::start(self.memory.clone(), self.chunks.clone(), self.map.clone()).await
    }

    /// The service over its store as it is now, as after a restore from a backup made just now.
    pub async fn restored(&self) -> World {
        self.meta.stop();
        let mut rewriter = meta::RestoreRewriter::new(super::PARTITIONS, 0, 0);
        let mut writes = Vec::new();
        for (key, value) in self.memory.scan(&[], &[0xFF; 9], usize::MAX).unwrap() {
            let value = rewriter.record(&key, value).unwrap();
            writes.push((key.to_vec(), value));
        }
        writes.extend(
            rewriter.additional_records().unwrap().into_iter().map(|(key, value)| (key, Some(value))),
        );
        self.memory.apply(&[kv::Batch { writes, ..kv::Batch::default() }]).unwrap();
        World::start(self.memory.clone(), self.chunks.clone(), self.map.clone()).await
    }

    /// Sets the state of all targets in the cluster map.
    pub fn targets_are(&self, state: TargetState) {
        let mut changed = ClusterMap::clone(&self.map.load());
        changed.targets.iter_mut().for_each(|target| target.state = state);
        self.map.store(Arc::new(changed));
    }

    /// A session that gets leases.
    pub async fn client(&self, session: u64) -> Client {
        self.meta.register_session(SessionId(session), SessionKind::Remote).await.unwrap();
        Client::new(&self.meta, session)
    }
}

/// Runs a test on a simulated machine.
pub fn simulated<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    simulated_with(1, test);
}

/// The same with a seed.
pub fn simulated_with<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    test: impl FnOnce(World) -> F + 'static,
) -> T {
    let run = async {
        let world = World::new().await;
        let meta = world.meta.clone();
        let result = test(world).await;
        meta.stop();
        result
    };
    Machine::new(seed).run(run).unwrap()
}

pub fn getattr(ino: InodeId) -> MetaOp {
    MetaOp::Getattr { ino }
}

pub fn lookup(name: &str) -> MetaOp {
    MetaOp::Lookup { parent: ROOT, name: bytes(name) }
}

pub fn open_with_lease(ino: InodeId, mode: LeaseMode) -> MetaOp {
    MetaOp::Open { ino, requested_lease: Some(mode) }
}

pub fn chmod(ino: InodeId) -> MetaOp {
    MetaOp::Setattr { ino, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } }
}

pub async fn recalls(client: &Client, after: u64) -> Vec<Recall> {
    match client.call(MetaOp::NextRecalls { after }).await.unwrap() {
        MetaReply::Recalls(recalls) => recalls,
        other => panic!("{other:?}"),
    }
}

pub async fn acknowledge(client: &Client, recall: &Recall, in_use: bool) {
    let yields = vec![RecallAck { number: recall.number, ino: recall.ino, in_use }];
    client.call(MetaOp::AckRecalls { acks: yields }).await.unwrap();
}

/// Work under way.
pub struct Started<T>(Arc<Mutex<Option<T>>>);

impl<T: 'static> Started<T> {
    pub fn new(work: impl Future<Output = T> + 'static) -> Started<T> {
        let result = Arc::new(Mutex::new(None));
        let shared = result.clone();
        rt::spawn(async move {
            let value = work.await;
            *shared.lock() = Some(value);
        });
        Started(result)
    }

    pub fn is_done(&self) -> bool {
        self.0.lock().is_some()
    }

    pub async fn wait(self) -> T {
        while !self.is_done() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        self.0.lock().take().unwrap()
    }
}

/// A request under way.
pub type Call = Started<types::Result<MetaReply>>;

impl Call {
    /// Sends a request and lets it run as far as it can.
    pub async fn call(client: &Client, op: MetaOp) -> Call {
        let client = client.clone();
        let started = Started::new(async move { client.call(op).await });
        rt::sleep(Duration::from_millis(1)).await;
        started
    }
}
