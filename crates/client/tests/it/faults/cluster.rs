//! A cluster on a simulated machine, its client behind taps.

use super::tap::Tap;
use chunkstore::{Identity, Options, Store};
use client::{Client, ClientOptions, Handle, Known, ReadHow, WriteHow};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{LocalMount, MetaOptions, MetaService};
use net::{Channel, Handler, LocalFuture};
use rt::IoBuf;
use rt::sim::Machine;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;
use storage::StorageService;
use types::{
    CapacityClass, ClusterMap, Credentials, Epoch, HashMap, InodeId, MapHandle, NodeId, Pool, PoolId, Result,
    SessionId, SetAttr, Target, TargetId, TargetState,
};
use wire::mgmt::Touched;
use wire::{MetaOp, MetaRequest, MetaResponse, Number, StorageReply, StorageRequest, XattrMode};

/// Targets of the cluster; every file is striped over all of them.
pub(crate) const TARGETS: u32 = 4;
/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64 * 1024;
const PATTERN: &[u8] = br#"{"chunk_size":65536}"#;
const PARTITIONS: u16 = 4;
const LOG_BYTES: u64 = 256 * 1024;
const CAPACITY: u64 = 1 << 40;
/// The client's session at first.
const SESSION: SessionId = SessionId(1);
/// A number that no other change has.
const LATE: Number = Number { lane: 60_000, sequence: 1 };

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) client: Arc<Client>,
    /// What the client says to storage.
    pub(crate) storage: Arc<Tap<StorageRequest, StorageReply>>,
    /// What the client says to the metadata service.
    pub(crate) names: Arc<Tap<MetaRequest, MetaResponse>>,
    engine: Arc<Memory>,
    map: MapHandle,
    writer: Arc<Writer>,
    stores: Vec<Arc<Store>>,
    meta: Arc<MetaService>,
}

/// The client, as the mover knows it.
struct Here(Weak<Client>);

impl LocalMount for Here {
    fn while_aside<'a>(&'a self, ino: InodeId, work: LocalFuture<'a, ()>) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move { self.0.upgrade().unwrap().while_aside(ino, work).await })
    }
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Cluster) -> F + 'static) {
    with_cluster_of_seed(1, test);
}

/// The same with another order of events.
pub(crate) fn with_cluster_of_seed<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Cluster) -> F + 'static,
) {
    let run = async move {
        for target in targets() {
            Store::format_with_log(&directory(target), &identity(target), LOG_BYTES).await.unwrap();
        }
        let cluster = Cluster::start(Arc::new(Memory::new()), SESSION).await;
        let root = Credentials::default();
        let set =
            cluster.client.setxattr(root, InodeId::ROOT, b"weft.pattern", PATTERN, XattrMode::Any, false);
        set.await.unwrap();
        test(cluster).await;
    };
    Machine::new(seed).run(run).unwrap();
}

impl Cluster {
    async fn start(engine: Arc<Memory>, session: SessionId) -> Cluster {
        let map: MapHandle = Arc::new(RwLock::new(Arc::new(cluster_map())));
        let mut stores = Vec::new();
        for target in targets() {
            let opened = Store::open(&directory(target), &identity(target), Options::default()).await;
            stores.push(opened.unwrap().0);
        }
        let service = Arc::new(StorageService::new(stores.iter().cloned()));
        let direct: HashMap<_, _> =
            targets().map(|target| (target, Channel::in_process(service.clone()))).collect();
        let shared: Arc<dyn Engine> = engine.clone();
        let writer = Arc::new(Writer::with_blocking(shared, Durability::Process, Blocking::Inline));
        let options = MetaOptions { node: NodeId(1), hash_key: (1, 2), partitions: PARTITIONS };
        let meta = MetaService::open(writer.clone(), options, map.clone(), direct).await.unwrap();
        meta.recover().await.unwrap();
        for store in &stores {
            meta.tidy(store.target(), &Touched::of(store.take_touched())).await.unwrap();
            store.crash_is_seen_to();
        }
        let (storage, names) = (Tap::new(service), Tap::new(meta.clone()));
        let tapped: HashMap<_, _> =
            targets().map(|target| (target, Channel::in_process(storage.clone()))).collect();
        let client = Client::new(ClientOptions {
            session,
            meta: Channel::in_process(names.clone()).into(),
            storage: tapped.into(),
            map: map.clone(),
            server_cache: false,
            write_behind: false,
            alone: true,
        });
        Cluster { client, storage, names, engine, map, writer, stores, meta }
    }

    /// Ends everything in good order and starts it again.
    pub(crate) async fn restart(self) -> Cluster {
        self.client.shutdown().await.unwrap();
        self.meta.stop();
        for store in &self.stores {
            store.close().await.unwrap();
        }
        self.writer.sync().await.unwrap();
        Cluster::start(self.engine.clone(), SessionId(2)).await
    }

    /// Starts what moves files off targets that are drained, from the client, too.
    pub(crate) fn start_moving(&self) {
        self.meta.set_local_mount(Arc::new(Here(Arc::downgrade(&self.client))));
        rt::spawn(self.meta.clone().background());
    }

    /// Empties a target; true when that is done within a while.
    pub(crate) async fn empty(&self, target: TargetId) -> bool {
        let mut map = ClusterMap::clone(&self.map.read().unwrap());
        map.epoch.0 += 1;
        map.targets.iter_mut().for_each(|t| t.drain = t.id == target);
        *self.map.write().unwrap() = Arc::new(map);
        for _ in 0..600 {
            if self.meta.drains().iter().any(|drain| drain.target == target && drain.is_empty) {
                return true;
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        false
    }

    /// Chunk files on a target.
    pub(crate) async fn chunk_files(&self, target: TargetId) -> usize {
        self.stores[target.0 as usize - 1].list().await.unwrap().len()
    }

    /// Another client, which knows only what the services know.
    pub(crate) fn stranger(&self) -> Arc<Client> {
        Client::new(ClientOptions {
            session: SessionId(99),
            meta: Channel::in_process(self.meta.clone()).into(),
            storage: targets().map(|target| (target, Channel::in_process(self.storage.clone()))).collect(),
            map: self.map.clone(),
            server_cache: false,
            write_behind: false,
            alone: true,
        })
    }

    /// A request of the client that it has given up comes to the service now.
    pub(crate) async fn ask_late(&self, op: MetaOp) {
        let (session, credentials) = (SESSION, Credentials::default());
        let request = MetaRequest { session, number: Some(LATE), credentials, op };
        self.meta.handle(request, None).await.unwrap();
    }

    pub(crate) async fn create(&self, name: &str) -> (InodeId, Arc<Handle>) {
        let root = Credentials::default();
        let made = self.client.create(root, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, 0).await;
        let (attr, handle) = made.unwrap();
        (attr.ino, handle)
    }

    pub(crate) async fn open(&self, ino: InodeId) -> Arc<Handle> {
        self.client.open(Credentials::default(), ino, 0).await.unwrap()
    }

    /// Writes `len` times the same byte.
    pub(crate) async fn fill(
        &self,
        file: &Arc<Handle>,
        offset: usize,
        len: usize,
        byte: u8,
    ) -> Result<usize> {
        let data = IoBuf::from_slice(&vec![byte; len]);
        self.client.write(file, offset as u64, data, WriteHow::default()).await
    }

    /// The same at the end of the file.
    pub(crate) async fn append(&self, file: &Arc<Handle>, len: usize, byte: u8) -> Result<usize> {
        let how = WriteHow { append: true, ..WriteHow::default() };
        self.client.write(file, 0, IoBuf::from_slice(&vec![byte; len]).slice(0..len), how).await
    }

    pub(crate) async fn set_size(&self, ino: InodeId, size: usize) -> Result<Known> {
        let root = Credentials::default();
        self.client.setattr(root, ino, SetAttr::default(), Some(size as u64)).await
    }

    /// Everything in a file, as runs of equal bytes: `(byte, how many)`.
    pub(crate) async fn runs(&self, file: &Arc<Handle>) -> Vec<(u8, usize)> {
        let size = self.client.getattr(file.ino()).await.unwrap().size as usize;
        let buf = IoBuf::alloc(size);
        assert_eq!(self.client.read(file, 0, buf.clone(), ReadHow::default()).await.unwrap(), size);
        buf.as_slice().chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
    }
}

pub(crate) fn targets() -> impl Iterator<Item = TargetId> {
    (1..=TARGETS).map(TargetId)
}

fn directory(target: TargetId) -> PathBuf {
    PathBuf::from(format!("/targets/t{target}"))
}

fn identity(target: TargetId) -> Identity {
    Identity { cluster: "00000000-0000-4000-8000-000000000001".into(), target }
}

fn cluster_map() -> ClusterMap {
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
        settings: Default::default(),
    };
    map.groups = layout::single_groups(&map);
    map
}
