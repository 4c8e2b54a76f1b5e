//! A cluster on a simulated machine with several metadata services, which share the partitions.

use super::cluster::{TARGETS, targets};
use super::delayed_requests::HoldingNetwork;
use chunkstore::Store;
use client::Client;
use kv::{Blocking, Memory};
use meta::{MetaService, PeerContext as Neighbourhood};
use net::Channel;
use parking_lot::Mutex;
use routing::MetaChannels;
use rt::sim::Machine;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use storage::StorageService;
use testkit::channel::{self, CuttableRoute, Route, StorageHandler};
use testkit::cluster::ClusterBuilder;
use testkit::map::{self, MapBuilder};
use testkit::{clients, metadata};
use types::{ChunkFileId, ClusterMap, MapHandle, Node, NodeId, NodeState, PartitionId, SessionId, TargetId};
use wire::{MetaRequest, MetaResponse};

/// Nodes with a metadata service.
pub(crate) const FIRST: NodeId = NodeId(1);
pub(crate) const SECOND: NodeId = NodeId(2);
/// Many, so that directories are in different ones.
pub(crate) const PARTITIONS: u16 = 8;

type Connection = Arc<CuttableRoute<MetaRequest, MetaResponse>>;
type Processes = Arc<Mutex<BTreeMap<NodeId, Arc<MetaService>>>>;

/// A running cluster.
pub(crate) struct PartitionedCluster {
    engine: Arc<Memory>,
    map: MapHandle,
    /// The map of each service.
    known: RefCell<BTreeMap<NodeId, MapHandle>>,
    /// A service that is cut off from management: it gets no maps, and management doesn't count on
    /// it.
    cut_off: Arc<Mutex<Option<NodeId>>>,
    /// How often management counted on a node again.
    rejoin_count: Arc<AtomicU64>,
    storage: Arc<StorageService>,
    stores: Vec<Arc<Store>>,
    /// The services' connections to storage.
    to_storage: RefCell<BTreeMap<NodeId, Arc<HoldingNetwork>>>,
    processes: Processes,
    sessions: Cell<u64>,
}

/// A client with its own map, and its connections to the services.
pub(crate) struct ClientWithManualMap {
    pub(crate) client: Arc<Client>,
    pub(crate) map: MapHandle,
    connections: Arc<Mutex<BTreeMap<NodeId, Connection>>>,
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_partitioned_cluster<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Rc<PartitionedCluster>) -> F + 'static,
) {
    let run = async move {
        let cluster = PartitionedCluster::start().await;
        test(Rc::new(cluster)).await;
    };
    Machine::new(1).run(run).unwrap();
}

impl PartitionedCluster {
    async fn start() -> PartitionedCluster {
        let map = MapBuilder::new(TARGETS).single_groups().metadata_nodes(&[FIRST, SECOND], PARTITIONS);
        let site = ClusterBuilder::new(map.build()).create().await;
        let cluster = PartitionedCluster {
            engine: Arc::new(Memory::new()),
            map: site.map,
            storage: site.storage,
            stores: site.stores,
            to_storage: RefCell::default(),
            known: RefCell::default(),
            cut_off: Arc::default(),
            rejoin_count: Arc::default(),
            processes: Processes::default(),
            sessions: Cell::new(0),
        };
        cluster.serve(FIRST);
        cluster.serve(SECOND);
        cluster.wait_for_owners().await;
        cluster
    }

    /// Starts the service of a node.
    fn serve(&self, node: NodeId) {
        let to_storage = HoldingNetwork::new(self.storage.clone());
        self.to_storage.borrow_mut().insert(node, to_storage.clone());
        let storage: StorageHandler = to_storage;
        let direct = channel::to_storage(targets(), &storage);
        let writer = metadata::writer(&self.engine, Blocking::Inline);
        let options = metadata::options(node, PARTITIONS);
        let processes = self.processes.clone();
        let connect = Box::new(move |to: &Node| Channel::in_process(processes.lock()[&to.id].clone()));
        let (cut_off, seen_again) = (self.cut_off.clone(), self.rejoin_count.clone());
        let term =
            Box::new(move || (*cut_off.lock() != Some(node)).then(|| seen_again.load(Ordering::Relaxed)));
        let map = map::fork(&self.map);
        self.known.borrow_mut().insert(node, map.clone());
        let peers = Neighbourhood { connect, term };
        let meta = MetaService::open_shared(writer, options, map, direct, peers);
        rt::spawn(meta.clone().background());
        rt::spawn(meta.clone().follow_assignment());
        self.processes.lock().insert(node, meta);
    }

    /// Names of the chunk files on a target.
    pub(crate) async fn chunk_files(&self, target: TargetId) -> Vec<ChunkFileId> {
        self.stores[target.0 as usize - 1].list().await.unwrap()
    }

    /// Names of the chunk files on each target.
    pub(crate) async fn all_chunk_files(&self) -> Vec<Vec<ChunkFileId>> {
        let mut all = Vec::new();
        for target in targets() {
            all.push(self.chunk_files(target).await);
        }
        all
    }

    /// A service's connection to storage.
    pub(crate) fn storage_connection(&self, node: NodeId) -> Arc<HoldingNetwork> {
        self.to_storage.borrow()[&node].clone()
    }

    /// Changes the map of the services.
    pub(crate) fn change_map(&self, change: impl FnOnce(&mut ClusterMap)) {
        let map = map::update(&self.map, change);
        let cut_off = *self.cut_off.lock();
        let known = self.known.borrow();
        for (_, handle) in known.iter().filter(|(node, _)| Some(**node) != cut_off) {
            handle.store(map.clone());
        }
    }

    /// Makes a node unreachable for management, but not for its service's clients, and assigns its
    /// partitions to the other node.
    pub(crate) fn cut_off_from_management(&self, node: NodeId) {
        *self.cut_off.lock() = Some(node);
        self.declare_dead(node);
    }

    /// Makes the node reachable for management again, and assigns all partitions to it at the same
    /// moment.
    pub(crate) fn reconnect_to_management(&self, node: NodeId) {
        *self.cut_off.lock() = None;
        self.rejoin_count.fetch_add(1, Ordering::Relaxed);
        self.change_map(|map| {
            map.nodes.iter_mut().for_each(|node| node.state = NodeState::Online);
            map.partitions.iter_mut().for_each(|owner| *owner = node);
        });
    }

    /// Assigns partitions to a node, in the map of the services.
    pub(crate) fn assign(&self, partitions: impl IntoIterator<Item = PartitionId>, node: NodeId) {
        self.change_map(|map| {
            partitions.into_iter().for_each(|partition| map.partitions[partition.0 as usize] = node);
        });
    }

    /// Waits until every service owns what the map assigns to it.
    pub(crate) async fn wait_for_owners(&self) {
        loop {
            let map = self.map.load();
            let processes = self.processes.lock().clone();
            let executes = |partition: PartitionId| {
                let service = processes.get(&map.partitions[partition.0 as usize]);
                service.is_some_and(|service| service.serving_partitions().contains(&partition))
            };
            if (0..PARTITIONS).map(PartitionId).all(executes) {
                return;
            }
            rt::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills a node's service, and informs management.
    pub(crate) fn kill(&self, node: NodeId) {
        let dead = self.processes.lock().remove(&node).unwrap();
        dead.stop();
        self.declare_dead(node);
    }

    fn declare_dead(&self, node: NodeId) {
        let survivor = if node == FIRST { SECOND } else { FIRST };
        self.change_map(|map| {
            map.nodes.iter_mut().filter(|n| n.id == node).for_each(|n| n.state = NodeState::Offline);
            map.partitions.iter_mut().for_each(|owner| *owner = survivor);
        });
    }

    /// Adds a client that gets every map of the services.
    pub(crate) async fn client(&self) -> Arc<Client> {
        self.member(self.map.clone()).await.client
    }

    /// Adds a client that gets maps only by [`ClientWithManualMap::update_map`], and whose
    /// connections can be cut.
    pub(crate) async fn client_with_manual_map(&self) -> ClientWithManualMap {
        self.member(map::fork(&self.map)).await
    }

    async fn member(&self, map: MapHandle) -> ClientWithManualMap {
        self.sessions.set(self.sessions.get() + 1);
        let ways: Arc<Mutex<BTreeMap<NodeId, Connection>>> = Arc::default();
        let (processes, made) = (self.processes.clone(), ways.clone());
        let connect = Box::new(move |to: &Node| {
            let way = match processes.lock().get(&to.id) {
                Some(service) => CuttableRoute::new(Route::slow(service.clone())),
                None => panic!("node {} was dead when it was first needed", to.id),
            };
            made.lock().insert(to.id, way.clone());
            Channel::in_process(way)
        });
        let storage: StorageHandler = Route::slow(self.storage.clone());
        let (session, meta) = (SessionId(self.sessions.get()), MetaChannels::mapped(map.clone(), connect));
        let client =
            clients::start(clients::options(session, &map, meta, channel::to_storage(targets(), &storage)))
                .await;
        ClientWithManualMap { client, map, connections: ways }
    }

    /// Creates directories until one is in a matching partition.
    pub(crate) async fn directory_in(
        &self,
        client: &Client,
        wanted: impl Fn(PartitionId) -> bool,
    ) -> types::InodeId {
        for number in 0.. {
            let name = format!("dir{}-{number}", rt::random_u64());
            let root = types::InodeId::ROOT;
            let made = client.mkdir(super::cluster::ROOT, root, name.as_bytes(), 0o755, 0).await.unwrap();
            if wanted(made.ino.partition()) {
                return made.ino;
            }
        }
        unreachable!("some directory lies there")
    }
}

impl ClientWithManualMap {
    /// Gives the client the current map.
    pub(crate) fn update_map(&self, cluster: &PartitionedCluster) {
        let map = cluster.map.load();
        self.map.store(map);
    }

    /// Cuts the connection between the client and a service.
    pub(crate) fn cut(&self, node: NodeId) {
        self.connections.lock()[&node].cut();
    }
}
