//! A cluster on a simulated machine with several clients.

use super::late::Holding;
use super::slow::{Cuttable, Slow};
use chunkstore::{Identity, Options, Store};
use client::{Client, ClientOptions, Handle, ReadHow, Succession, WriteHow};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService};
use net::{Channel, Handler};
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use storage::StorageService;
use types::{
    CapacityClass, ClusterMap, Credentials, Epoch, Errno, Error, InodeId, MapHandle, NodeId, Pool, PoolId,
    Result, SessionId, SetAttr, Target, TargetId, TargetState,
};
use wire::{MetaRequest, MetaResponse, StorageReply, StorageRequest, XattrMode};

/// Targets; every file is striped over all of them.
pub(crate) const TARGETS: u32 = 3;
/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64 * 1024;
/// Reading, and reading and writing.
pub(crate) const RDONLY: u32 = 0;
pub(crate) const RDWR: u32 = 2;
/// Who asks.
pub(crate) const ROOT: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };
const PATTERN: &[u8] = br#"{"chunk_size":65536}"#;
const PARTITIONS: u16 = 4;
pub(crate) const LOG_BYTES: u64 = 256 * 1024;
const CAPACITY: u64 = 1 << 40;

/// A running cluster.
pub(crate) struct Cluster {
    meta: RefCell<Arc<MetaService>>,
    /// The way of all clients to the metadata service.
    names: Arc<Slow<MetaRequest, MetaResponse>>,
    engine: Arc<Memory>,
    map: MapHandle,
    storage: Arc<StorageService>,
    pub(crate) stores: Vec<Arc<Store>>,
    sessions: Cell<u64>,
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Cluster>) -> F + 'static) {
    with_cluster_of_seed(1, test);
}

/// The same with another order of events.
pub(crate) fn with_cluster_of_seed<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Rc<Cluster>) -> F + 'static,
) {
    let run = async move {
        let cluster = Cluster::start().await;
        test(Rc::new(cluster)).await;
    };
    Machine::new(seed).run(run).unwrap();
}

impl Cluster {
    async fn start() -> Cluster {
        for target in targets() {
            Store::format_with_log(&directory(target), &identity(target), LOG_BYTES).await.unwrap();
        }
        let map: MapHandle = Arc::new(RwLock::new(Arc::new(cluster_map())));
        let mut stores = Vec::new();
        for target in targets() {
            let opened = Store::open(&directory(target), &identity(target), Options::default()).await;
            stores.push(opened.unwrap().0);
        }
        let storage = Arc::new(StorageService::new(stores.iter().cloned()));
        let engine = Arc::new(Memory::new());
        let meta = serve_names(&engine, &storage, &map).await;
        let names = Slow::new(meta.clone());
        let (meta, sessions) = (RefCell::new(meta), Cell::new(0));
        let cluster = Cluster { meta, names, engine, map, storage, stores, sessions };
        let first = cluster.client().await;
        first.setxattr(ROOT, InodeId::ROOT, b"weft.pattern", PATTERN, XattrMode::Any, false).await.unwrap();
        first.shutdown().await.unwrap();
        cluster
    }

    /// Requests to the metadata service so far.
    pub(crate) fn requests(&self) -> u64 {
        self.names.requests()
    }

    /// Requests to the storage service so far.
    pub(crate) fn storage_requests(&self) -> u64 {
        targets().map(|target| self.storage.counters(target).unwrap().requests).sum()
    }

    /// Ends the metadata service without warning, and starts another.
    pub(crate) async fn restart_names(&self) {
        let old = self.meta.borrow().clone();
        old.stop();
        let meta = serve_names(&self.engine, &self.storage, &self.map).await;
        self.names.lead_to(meta.clone());
        self.meta.replace(meta);
    }

    /// The machine of the metadata store loses its power, and with it what wasn't synced; then the service is there again.
    pub(crate) async fn lose_power_of_names(&self) {
        self.meta.borrow().stop();
        self.engine.crash(0);
        let meta = serve_names(&self.engine, &self.storage, &self.map).await;
        self.names.lead_to(meta.clone());
        self.meta.replace(meta);
    }

    /// Begins to empty a target, or lets it be.
    pub(crate) fn drain(&self, target: u32, drain: bool) {
        let mut map = ClusterMap::clone(&self.map.read().unwrap());
        map.epoch.0 += 1;
        map.targets.iter_mut().filter(|t| t.id == TargetId(target)).for_each(|t| t.drain = drain);
        *self.map.write().unwrap() = Arc::new(map);
    }

    /// Waits until a target is empty, for a while.
    pub(crate) async fn emptied(&self, target: u32) {
        for _ in 0..600 {
            if self.is_empty(target) {
                return;
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?}", self.meta.borrow().drains());
    }

    /// Whether the metadata service calls a target empty.
    pub(crate) fn is_empty(&self, target: u32) -> bool {
        let drains = self.meta.borrow().drains();
        drains.iter().any(|drain| drain.target == TargetId(target) && drain.is_empty)
    }

    /// Files that this metadata service has moved off a target.
    pub(crate) fn moved(&self, target: u32) -> u64 {
        let drains = self.meta.borrow().drains();
        drains.iter().filter(|drain| drain.target == TargetId(target)).map(|drain| drain.files_moved).sum()
    }

    /// Chunk files on a target, by name.
    pub(crate) async fn chunk_files(&self, target: u32) -> Vec<InodeId> {
        self.stores[target as usize - 1].list().await.unwrap()
    }

    /// One more client.
    pub(crate) async fn client(&self) -> Arc<Client> {
        let client = self.unregistered();
        client.register().await.unwrap();
        rt::spawn(client.clone().background());
        client
    }

    /// Some more clients.
    pub(crate) async fn clients<const N: usize>(&self) -> [Arc<Client>; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"))
    }

    /// A client whose way to the metadata service can be cut.
    pub(crate) async fn client_to_cut(&self) -> (Arc<Client>, Arc<Cuttable<MetaRequest, MetaResponse>>) {
        let way = Cuttable::new(self.names.clone());
        let storage = Slow::new(self.storage.clone());
        let client = self.client_over(Channel::in_process(way.clone()), storage);
        client.register().await.unwrap();
        rt::spawn(client.clone().background());
        (client, way)
    }

    /// A client whose way to the storage services can be cut.
    pub(crate) async fn client_to_cut_from_storage(
        &self,
    ) -> (Arc<Client>, Arc<Cuttable<StorageRequest, StorageReply>>) {
        let way = Cuttable::new(Slow::new(self.storage.clone()));
        let client = self.client_over(Channel::in_process(self.names.clone()), way.clone());
        client.register().await.unwrap();
        rt::spawn(client.clone().background());
        (client, way)
    }

    /// One that keeps small writes for a moment.
    pub(crate) async fn client_that_keeps(
        &self,
    ) -> (Arc<Client>, Arc<Cuttable<StorageRequest, StorageReply>>) {
        let way = Cuttable::new(Slow::new(self.storage.clone()));
        let client = self.client_of(Channel::in_process(self.names.clone()), way.clone(), true);
        client.register().await.unwrap();
        rt::spawn(client.clone().background());
        (client, way)
    }

    /// A client whose changes of chunk files can be held up.
    pub(crate) async fn client_over_a_holding_network(&self) -> (Arc<Client>, Arc<Holding>) {
        let way = Holding::new(self.storage.clone());
        let client = self.client_over(Channel::in_process(self.names.clone()), way.clone());
        client.register().await.unwrap();
        rt::spawn(client.clone().background());
        (client, way)
    }

    /// A mount that gets another session when the cluster has ended one. Its way to the metadata service can be cut.
    pub(crate) async fn mount(&self) -> (Arc<Succession>, Arc<Cuttable<MetaRequest, MetaResponse>>) {
        self.mount_let_in_by(Arc::default()).await
    }

    /// The same where another session is refused as long as that is set.
    pub(crate) async fn mount_let_in_by(
        &self,
        refused: Arc<AtomicBool>,
    ) -> (Arc<Succession>, Arc<Cuttable<MetaRequest, MetaResponse>>) {
        let way = Cuttable::new(self.names.clone());
        let (names, storage, map) = (way.clone(), Slow::new(self.storage.clone()), self.map.clone());
        let begin = move || -> Pin<Box<dyn Future<Output = Result<Arc<Client>>>>> {
            let client = client_over(&map, Channel::in_process(names.clone()), storage.clone());
            let refused = refused.clone();
            Box::pin(async move {
                if refused.load(Ordering::Relaxed) {
                    return Err(Error::new(Errno::EACCES, "not from this network"));
                }
                client.register().await.map(|()| client)
            })
        };
        let first = begin().await.unwrap();
        let mount = Succession::new(first, Box::new(begin));
        rt::spawn(mount.clone().run());
        (mount, way)
    }

    /// Ends the session of a mount, as an administrator does, and waits until it has another one.
    pub(crate) async fn replace_session(&self, mount: &Succession) {
        let before = mount.lineage();
        self.evict(mount);
        while mount.lineage().replacements == before.replacements {
            rt::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends the session of a mount, as an administrator does.
    pub(crate) fn evict(&self, mount: &Succession) {
        let meta = self.meta.borrow().clone();
        meta.evict_session(mount.lineage().session).unwrap();
    }

    /// What the cluster map says of all targets from now on.
    pub(crate) fn targets_are(&self, state: TargetState) {
        let mut map = self.map.write().unwrap();
        let mut changed = (**map).clone();
        changed.targets.iter_mut().for_each(|target| target.state = state);
        *map = Arc::new(changed);
    }

    /// A client that nobody knows and that hears of no recall yet.
    pub(crate) fn unregistered(&self) -> Arc<Client> {
        self.client_over(Channel::in_process(self.names.clone()), Slow::new(self.storage.clone()))
    }

    fn client_over(
        &self,
        meta: Channel<MetaRequest, MetaResponse>,
        storage: Arc<dyn Handler<StorageRequest, StorageReply>>,
    ) -> Arc<Client> {
        self.client_of(meta, storage, false)
    }

    fn client_of(
        &self,
        meta: Channel<MetaRequest, MetaResponse>,
        storage: Arc<dyn Handler<StorageRequest, StorageReply>>,
        write_behind: bool,
    ) -> Arc<Client> {
        self.sessions.set(self.sessions.get() + 1);
        Client::new(ClientOptions {
            session: SessionId(self.sessions.get()),
            meta: meta.into(),
            storage: targets().map(|target| (target, Channel::in_process(storage.clone()))).collect(),
            map: self.map.clone(),
            server_cache: false,
            write_behind,
            alone: false,
        })
    }
}

fn client_over(
    map: &MapHandle,
    meta: Channel<MetaRequest, MetaResponse>,
    storage: Arc<dyn Handler<StorageRequest, StorageReply>>,
) -> Arc<Client> {
    Client::new(ClientOptions {
        session: SessionId::drawn(rt::random_u64()),
        meta: meta.into(),
        storage: targets().map(|target| (target, Channel::in_process(storage.clone()))).collect(),
        map: map.clone(),
        server_cache: false,
        write_behind: false,
        alone: false,
    })
}

async fn serve_names(
    engine: &Arc<Memory>,
    storage: &Arc<StorageService>,
    map: &MapHandle,
) -> Arc<MetaService> {
    let direct: net::StorageChannels =
        targets().map(|target| (target, Channel::in_process(storage.clone()))).collect();
    let engine: Arc<dyn Engine> = engine.clone();
    let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
    let options = MetaOptions { node: NodeId(1), hash_key: (1, 2), partitions: PARTITIONS };
    let meta = MetaService::open(writer, options, map.clone(), direct).await.unwrap();
    meta.recover().await.unwrap();
    rt::spawn(meta.clone().background());
    meta
}

/// What programs do on one client.
pub(crate) trait Program {
    async fn make(&self, name: &str) -> Arc<Handle>;
    async fn open_named(&self, name: &str, flags: u32) -> Arc<Handle>;
    async fn put(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8);
    async fn append(&self, file: &Arc<Handle>, data: &[u8]);
    async fn bytes(&self, file: &Arc<Handle>) -> Vec<u8>;
    async fn try_bytes(&self, file: &Arc<Handle>) -> Result<Vec<u8>>;
    async fn size(&self, ino: InodeId) -> u64;
    async fn set_size(&self, ino: InodeId, size: usize);
}

impl Program for Arc<Client> {
    async fn make(&self, name: &str) -> Arc<Handle> {
        self.create(ROOT, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap().1
    }

    async fn open_named(&self, name: &str, flags: u32) -> Arc<Handle> {
        let found = self.lookup(ROOT, InodeId::ROOT, name.as_bytes()).await.unwrap();
        self.open(ROOT, found.ino, flags).await.unwrap()
    }

    async fn put(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) {
        let data = IoBuf::from_slice(&vec![byte; len]);
        assert_eq!(self.write(file, offset as u64, data, WriteHow::default()).await.unwrap(), len);
    }

    async fn append(&self, file: &Arc<Handle>, data: &[u8]) {
        let how = WriteHow { append: true, ..WriteHow::default() };
        assert_eq!(self.write(file, 0, IoBuf::from_slice(data), how).await.unwrap(), data.len());
    }

    /// All there is, as a program finds it that reads to the end.
    async fn bytes(&self, file: &Arc<Handle>) -> Vec<u8> {
        self.try_bytes(file).await.unwrap()
    }

    async fn try_bytes(&self, file: &Arc<Handle>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let buf = IoBuf::alloc(256 * 1024);
            let got = self.read(file, bytes.len() as u64, buf.clone(), ReadHow::default()).await?;
            if got == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&buf.as_slice()[..got]);
        }
    }

    async fn size(&self, ino: InodeId) -> u64 {
        self.getattr(ino).await.unwrap().size
    }

    async fn set_size(&self, ino: InodeId, size: usize) {
        self.setattr(ROOT, ino, SetAttr::default(), Some(size as u64)).await.unwrap();
    }
}

/// Bytes as runs of equal ones: `(byte, how many)`.
pub(crate) fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
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
        settings: Default::default(),
    };
    map.groups = layout::single_groups(&map);
    map
}
