//! A cluster on a simulated machine whose files have two copies.

use super::group::{Groups, change, copy, take_out};
use chunkstore::{Identity, Options, Store};
use client::{Client, ClientOptions, Handle, ReadHow, WriteHow};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService};
use net::{Caller, Channel, Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::Cell;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use storage::StorageService;
use types::{
    CapacityClass, ClusterMap, Credentials, Epoch, Group, GroupId, InodeId, MapHandle, NodeId, Pool, PoolId,
    Result, Scheme, SessionId, Target, TargetId, TargetState,
};
use wire::{MetaRequest, MetaResponse, XattrMode};

pub(crate) const TARGETS: u32 = 3;
/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64 * 1024;
/// Each pair of targets has a group: 11 is of 1 and 2, 12 of 2 and 3, 13 of 3 and 1.
pub(crate) const GROUPS: [u32; 3] = [11, 12, 13];
pub(crate) const ROOT: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };
const PATTERN: &[u8] = br#"{"chunk_size":65536,"inline_limit":0,"scheme":"mirror:2"}"#;
const LOG_BYTES: u64 = 256 * 1024;
const CAPACITY: u64 = 1 << 40;

pub(crate) struct Cluster {
    pub(crate) meta: Arc<MetaService>,
    /// The way of all clients to the metadata service that there is now.
    names: Arc<Names>,
    engine: Arc<Memory>,
    pub(crate) map: MapHandle,
    pub(crate) groups: Arc<Groups>,
    stores: Vec<Arc<Store>>,
    sessions: Cell<u64>,
}

/// Leads to the metadata service that there is now.
struct Names(Mutex<Arc<MetaService>>);

impl Handler<MetaRequest, MetaResponse> for Names {
    fn handle(&self, request: MetaRequest, payload: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
        let now = self.0.lock().clone();
        Box::pin(async move { now.handle(request, payload).await })
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: MetaRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<MetaResponse>> {
        let now = self.0.lock().clone();
        Box::pin(async move { now.handle_from(caller, request, payload).await })
    }
}

async fn serve_names(engine: &Arc<Memory>, groups: &Arc<Groups>, map: &MapHandle) -> Arc<MetaService> {
    let engine: Arc<dyn Engine> = engine.clone();
    let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
    let options = MetaOptions { node: NodeId(1), hash_key: (1, 2), partitions: 4 };
    let meta = MetaService::open(writer, options, map.clone(), ways(groups)).await.unwrap();
    meta.recover().await.unwrap();
    rt::spawn(meta.clone().background());
    meta
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Cluster>) -> F + 'static) {
    let run = async move { test(Rc::new(Cluster::start().await)).await };
    Machine::new(1).run(run).unwrap();
}

impl Cluster {
    async fn start() -> Cluster {
        let map: MapHandle = Arc::new(RwLock::new(Arc::new(cluster_map())));
        let copies = GROUPS.iter().flat_map(|&group| pair(group).map(|target| copy(target, GroupId(group))));
        let mut stores = Vec::new();
        for target in (1..=TARGETS).map(TargetId).chain(copies) {
            Store::format_with_log(&directory(target), &identity(target), LOG_BYTES).await.unwrap();
            let opened = Store::open(&directory(target), &identity(target), Options::default()).await;
            stores.push(opened.unwrap().0);
        }
        let groups = Groups::new(Arc::new(StorageService::new(stores.iter().cloned())), map.clone());
        let engine = Arc::new(Memory::new());
        let meta = serve_names(&engine, &groups, &map).await;
        let names = Arc::new(Names(Mutex::new(meta.clone())));
        let cluster = Cluster { meta, names, engine, map, groups, stores, sessions: Cell::new(0) };
        let first = cluster.client().await;
        first.setxattr(ROOT, InodeId::ROOT, b"weft.pattern", PATTERN, XattrMode::Any, false).await.unwrap();
        first.shutdown().await.unwrap();
        cluster
    }

    /// Ends the metadata service without warning, and starts another.
    pub(crate) async fn restart_names(&self) {
        let old = self.names.0.lock().clone();
        old.stop();
        let next = serve_names(&self.engine, &self.groups, &self.map).await;
        *self.names.0.lock() = next;
    }

    /// A client that hears of maps as the members do.
    pub(crate) async fn client(&self) -> Arc<Client> {
        self.client_by(self.map.clone()).await
    }

    /// A client with a map of its own.
    pub(crate) async fn client_by(&self, map: MapHandle) -> Arc<Client> {
        self.sessions.set(self.sessions.get() + 1);
        let client = Client::new(ClientOptions {
            session: SessionId(self.sessions.get()),
            meta: Channel::in_process(self.names.clone()).into(),
            storage: ways(&self.groups),
            map,
            server_cache: false,
            write_behind: false,
            alone: false,
        });
        client.register().await.unwrap();
        rt::spawn(client.clone().background());
        client
    }

    /// A map that stays as it is.
    pub(crate) fn map_of_now(&self) -> MapHandle {
        Arc::new(RwLock::new(self.map.read().unwrap().clone()))
    }

    /// All members of groups that a target is in know that it is out.
    pub(crate) fn take_out(&self, target: u32) {
        for group in GROUPS.into_iter().filter(|&group| pair(group).contains(&TargetId(target))) {
            take_out(&self.map, GroupId(group), TargetId(target));
        }
    }

    pub(crate) fn change(&self, edit: impl FnOnce(&mut ClusterMap)) {
        change(&self.map, edit);
    }

    /// Chunk files of a target's copy of a group.
    pub(crate) async fn chunk_files(&self, target: u32, group: u32) -> Vec<InodeId> {
        self.store(copy(TargetId(target), GroupId(group))).list().await.unwrap()
    }

    /// The store of this name.
    pub(crate) fn store(&self, target: TargetId) -> &Arc<Store> {
        self.stores.iter().find(|store| store.target() == target).unwrap()
    }
}

fn ways(groups: &Arc<Groups>) -> net::StorageChannels {
    (1..=TARGETS).map(|target| (TargetId(target), Channel::in_process(groups.clone()))).collect()
}

/// Does something after a while.
pub(crate) fn later(ms: u64, what: impl FnOnce() + 'static) {
    rt::spawn(async move {
        rt::sleep(Duration::from_millis(ms)).await;
        what();
    });
}

/// What programs do on one client.
pub(crate) trait Program {
    async fn make(&self, name: &str) -> Arc<Handle>;
    async fn open_named(&self, name: &str) -> Arc<Handle>;
    async fn try_put(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) -> Result<usize>;
    async fn put(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8);
    async fn runs(&self, file: &Arc<Handle>) -> Vec<(u8, usize)>;
}

impl Program for Arc<Client> {
    async fn make(&self, name: &str) -> Arc<Handle> {
        self.create(ROOT, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, 2).await.unwrap().1
    }

    async fn open_named(&self, name: &str) -> Arc<Handle> {
        let found = self.lookup(ROOT, InodeId::ROOT, name.as_bytes()).await.unwrap();
        self.open(ROOT, found.ino, 2).await.unwrap()
    }

    async fn try_put(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) -> Result<usize> {
        let data = IoBuf::from_slice(&vec![byte; len]);
        self.write(file, offset as u64, data, WriteHow::default()).await
    }

    async fn put(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) {
        assert_eq!(self.try_put(file, offset, len, byte).await.unwrap(), len);
    }

    /// All there is, as runs of equal bytes.
    async fn runs(&self, file: &Arc<Handle>) -> Vec<(u8, usize)> {
        let mut bytes = Vec::new();
        loop {
            let buf = IoBuf::alloc(256 * 1024);
            let got = self.read(file, bytes.len() as u64, buf.clone(), ReadHow::default()).await.unwrap();
            if got == 0 {
                return bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
            }
            bytes.extend_from_slice(&buf.as_slice()[..got]);
        }
    }
}

/// The targets of a group.
pub(crate) fn pair(group: u32) -> [TargetId; 2] {
    let first = group - 10;
    [TargetId(first), TargetId(first % TARGETS + 1)]
}

fn directory(target: TargetId) -> PathBuf {
    PathBuf::from(format!("/targets/t{target}"))
}

fn identity(target: TargetId) -> Identity {
    Identity { cluster: "00000000-0000-4000-8000-000000000001".into(), target }
}

fn cluster_map() -> ClusterMap {
    let pool = PoolId(1);
    let target = |id: TargetId| Target {
        id,
        node: NodeId(1),
        pool,
        path: directory(id).display().to_string(),
        state: TargetState::Online,
        capacity: CAPACITY,
        free: CAPACITY,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let mut map = ClusterMap {
        epoch: Epoch(1),
        targets: (1..=TARGETS).map(TargetId).map(target).collect(),
        pools: vec![Pool { id: pool, name: "default".into(), spare: 0 }],
        ..ClusterMap::default()
    };
    map.groups = layout::single_groups(&map);
    map.groups.extend(GROUPS.map(|id| Group {
        id: GroupId(id),
        pool,
        scheme: Scheme::Mirror(2),
        members: pair(id).to_vec(),
        states: Vec::new(),
        since: Epoch(1),
        leaving: None,
        revived: None,
    }));
    map
}
