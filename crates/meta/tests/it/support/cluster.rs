//! Several metadata services over one store, and clients that find the right one.

use super::remote_store::RemoteStore;
use super::{Chunks, PARTITIONS, TARGETS, numbered};
use kv::{Blocking, Durability, Memory, Store, Writer};
use meta::{MetaOptions, MetaService, PartitionsChannel, PeerContext};
use net::{Channel, Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::map::{self, MapBuilder};
use types::{
    Attr, ClusterMap, Credentials, Errno, Error, InodeId, MapHandle, Node, NodeId, NodeState, PartitionId,
    Refusal, Result, SessionId,
};
use wire::{
    LeaseGrant, MetaOp, MetaReply, MetaRequest, MetaResponse, PartitionsReply, PartitionsRequest, Recall,
    RecallAck,
};

/// Running services by node.
type Services = Arc<Mutex<BTreeMap<NodeId, Arc<MetaService>>>>;

pub struct Cluster {
    pub map: MapHandle,
    pub services: Services,
    pub memory: Arc<Memory>,
    /// Nodes that management doesn't trust.
    pub cut_off: Arc<Mutex<BTreeSet<NodeId>>>,
    pub chunks: Arc<Chunks>,
    /// The store is in the process of the first service.
    writer: Arc<Writer>,
    /// One of so many messages between services is lost after it was executed.
    pub lost: Arc<Mutex<Option<u64>>>,
}

/// The channel to a service of another node. It has latency, and breaks when the service dies.
struct PeerLink {
    node: NodeId,
    services: Services,
    lost: Arc<Mutex<Option<u64>>>,
}

fn running_service(living: &Services, node: NodeId) -> Result<Arc<MetaService>> {
    let service = living.lock().get(&node).cloned();
    service.ok_or_else(|| Error::new(Errno::ETIMEDOUT, format!("node {node} doesn't answer")))
}

async fn delay() {
    rt::sleep(Duration::from_micros(rt::random_u64() % 500)).await;
}

impl Handler<PartitionsRequest, PartitionsReply> for PeerLink {
    fn handle(
        &self,
        request: PartitionsRequest,
        _: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<PartitionsReply>> {
        Box::pin(async move {
            delay().await;
            let service = running_service(&self.services, self.node)?;
            let reply = service.handle(request, None).await;
            delay().await;
            running_service(&self.services, self.node)?;
            let lost = *self.lost.lock();
            if lost.is_some_and(|every| rt::random_u64().is_multiple_of(every)) {
                return Err(Error::new(Errno::ETIMEDOUT, "the answer was lost"));
            }
            reply
        })
    }
}

impl Cluster {
    /// A cluster of `nodes`; the first one owns all partitions.
    pub async fn new(nodes: u32) -> Rc<Cluster> {
        let memory = Arc::new(Memory::new());
        let writer = Writer::with_blocking(memory.clone(), Durability::Process, Blocking::Inline);
        let ids: Vec<NodeId> = (1..=nodes).map(NodeId).collect();
        let map = MapBuilder::new(TARGETS).single_groups().metadata_nodes(&ids, PARTITIONS).share();
        let cluster = Rc::new(Cluster {
            map,
            services: Services::default(),
            memory,
            cut_off: Arc::default(),
            chunks: Arc::default(),
            writer: Arc::new(writer),
            lost: Arc::default(),
        });
        ids.into_iter().for_each(|node| cluster.start(node));
        cluster
    }

    /// Starts the service of a node.
    pub fn start(&self, node: NodeId) {
        let store: Arc<dyn Store> = match node {
            NodeId(1) => self.writer.clone(),
            _ => RemoteStore::new(&self.memory, Duration::from_micros(300)).writer(),
        };
        let (living, lost) = (self.services.clone(), self.lost.clone());
        let connect = move |to: &Node| -> PartitionsChannel {
            let link = PeerLink { node: to.id, services: living.clone(), lost: lost.clone() };
            Channel::in_process(Arc::new(link))
        };
        let cut_off = self.cut_off.clone();
        let term = move || (!cut_off.lock().contains(&node)).then_some(0);
        let context = PeerContext { connect: Box::new(connect), term: Box::new(term) };
        let options = MetaOptions {
            node,
            hash_key: (1, 2),
            partitions: PARTITIONS,
            root_pattern: types::StripePattern::default(),
        };
        let storage = self.chunks.channels();
        let service = MetaService::open_shared(store, options, self.map.clone(), storage, context);
        rt::spawn(service.clone().background());
        rt::spawn(service.clone().follow_assignment());
        self.services.lock().insert(node, service);
        self.change(|map| map.nodes[node.0 as usize - 1].state = NodeState::Online);
    }

    /// Kills a service. Management notices after a while, and assigns its partitions to others.
    pub async fn kill(&self, node: NodeId) {
        let service = self.services.lock().remove(&node).unwrap();
        service.stop();
        rt::sleep(Duration::from_secs(15)).await;
        self.change(|map| {
            map.nodes[node.0 as usize - 1].state = NodeState::Offline;
            spread(map);
        });
    }

    /// Assigns every service its share.
    pub fn rebalance(&self) {
        self.change(spread);
    }

    pub fn give(&self, partition: PartitionId, node: NodeId) {
        self.change(|map| map.partitions[partition.0 as usize] = node);
    }

    pub fn change(&self, edit: impl FnOnce(&mut ClusterMap)) {
        map::update(&self.map, edit);
    }

    /// Waits until every partition is served by its owner in the map.
    pub async fn wait_until_served(&self) {
        loop {
            let map = self.map.load();
            let executes = |p: &u16| {
                let owner = map.partitions[*p as usize];
                let service = self.services.lock().get(&owner).cloned();
                service.is_some_and(|service| service.serving_partitions().contains(&PartitionId(*p)))
            };
            if (0..PARTITIONS).all(|p| executes(&p)) {
                return;
            }
            rt::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn service(&self, node: u32) -> Arc<MetaService> {
        self.services.lock()[&NodeId(node)].clone()
    }

    pub fn stop(&self) {
        self.services.lock().values().for_each(|service| service.stop());
    }
}

fn spread(map: &mut ClusterMap) {
    let online = map.nodes.iter().filter(|node| node.state == NodeState::Online);
    let online: Vec<NodeId> = online.map(|node| node.id).collect();
    map.partitions = layout::distribute_partitions(&map.partitions, PARTITIONS, &online);
}

/// A client that asks the owner in the map, and asks again when that has changed.
pub struct RoutingClient {
    cluster: Rc<Cluster>,
    pub session: SessionId,
    sequence: Cell<u64>,
    /// One of so many answers to its changes is lost.
    pub lost: Cell<Option<u64>>,
    /// Its open files.
    pub in_use: Mutex<Vec<InodeId>>,
    pub stopping: Cell<bool>,
}

impl RoutingClient {
    /// A client that handles recalls.
    pub fn new(cluster: &Rc<Cluster>, session: u64) -> Rc<RoutingClient> {
        let client = Rc::new(RoutingClient {
            cluster: cluster.clone(),
            session: SessionId(session),
            sequence: Cell::new(1),
            lost: Cell::new(None),
            in_use: Mutex::default(),
            stopping: Cell::new(false),
        });
        for node in 1..=cluster.map.load().nodes.len() {
            rt::spawn(client.clone().answer_recalls(NodeId(node as u32)));
        }
        client
    }

    async fn send(&self, node: NodeId, sequence: u64, op: MetaOp) -> Result<MetaResponse> {
        delay().await;
        let service = running_service(&self.cluster.services, node)?;
        let credentials = Credentials { uid: 0, gid: 0, pid: 1 };
        let reply = service
            .handle(
                MetaRequest {
                    session: self.session,
                    slot_sequence: numbered(sequence),
                    credentials,
                    privileged: false,
                    op,
                },
                None,
            )
            .await;
        delay().await;
        running_service(&self.cluster.services, node)?;
        reply
    }

    /// Sends one of the services a request that changes nothing.
    pub async fn call_at(&self, node: NodeId, op: MetaOp) -> Result<MetaReply> {
        self.send(node, 0, op).await.map(|response| response.reply)
    }

    async fn register(&self, node: NodeId) -> Result<()> {
        let in_use = self.report_opens(node).await?;
        self.send(
            node,
            0,
            MetaOp::Register {
                in_use,
                pending_creates: vec![],
                pending_changes: vec![],
                reporting_process: 0,
            },
        )
        .await
        .map(|_| ())
    }

    /// Reports half of the open files to a service, as a session with many open files does before
    /// it registers or reclaims; returns the rest.
    async fn report_opens(&self, node: NodeId) -> Result<Vec<InodeId>> {
        let mut in_use = self.in_use.lock().clone();
        let inodes = in_use.split_off(in_use.len().div_ceil(2));
        if !inodes.is_empty() {
            self.send(node, 0, MetaOp::ReclaimOpens { inodes }).await?;
        }
        Ok(in_use)
    }

    /// Asks until there is an answer.
    pub async fn respond(&self, op: MetaOp) -> Result<MetaResponse> {
        let sequence = self.sequence.replace(self.sequence.get() + 1);
        let home = namespace::home_partition(&op);
        loop {
            let node = self.cluster.map.load().partitions[home.0 as usize];
            let answer = self.send(node, sequence, op.clone()).await;
            let is_lost = self.lost.get().is_some_and(|every| rt::random_u64().is_multiple_of(every));
            match answer {
                Err(error)
                    if matches!(
                        error.errno,
                        Errno::Refusal(Refusal::PartitionNotServed) | Errno::ETIMEDOUT
                    ) =>
                {
                    rt::sleep(Duration::from_millis(5)).await;
                }
                Err(error) if error.errno == Errno::ENOTCONN => {
                    // The service may die, or its partition may be taken over, at this moment.
                    let _ = self.register(node).await;
                }
                _ if is_lost => {}
                answer => return answer,
            }
        }
    }

    pub async fn call(&self, op: MetaOp) -> Result<MetaReply> {
        self.respond(op).await.map(|response| response.reply)
    }

    pub async fn entry(&self, op: MetaOp) -> Result<Attr> {
        let reply = match self.call(op).await? {
            MetaReply::Redirect { ino, .. } => self.call(MetaOp::Getattr { ino }).await?,
            reply => reply,
        };
        match reply {
            MetaReply::Entry(attr) | MetaReply::Attr(attr) | MetaReply::Created { attr, .. } => Ok(attr),
            MetaReply::Renamed { moved, .. } => Ok(moved),
            other => panic!("{other:?}"),
        }
    }

    /// Leases that come with an answer.
    pub async fn grants(&self, op: MetaOp) -> Vec<LeaseGrant> {
        self.respond(op).await.unwrap().grants
    }

    async fn answer_recalls(self: Rc<Self>, node: NodeId) {
        let mut after = 0;
        while !self.stopping.get() {
            match self.send(node, 0, MetaOp::NextRecalls { after }).await {
                Ok(response) => match response.reply {
                    MetaReply::Recalls(recalls) => {
                        after = recalls.last().map_or(after, |recall| recall.number);
                        self.give_up(node, recalls).await;
                    }
                    MetaReply::PartitionsTakenOver { partitions } => {
                        let Ok(in_use) = self.report_opens(node).await else { continue };
                        let _ = self
                            .send(
                                node,
                                0,
                                MetaOp::Follow {
                                    partitions,
                                    in_use,
                                    pending_creates: vec![],
                                    pending_changes: vec![],
                                    reporting_process: 0,
                                },
                            )
                            .await;
                    }
                    other => panic!("{other:?}"),
                },
                Err(error) if error.errno == Errno::ENOTCONN => {
                    let _ = self.register(node).await;
                    after = 0;
                }
                Err(_) => rt::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn give_up(&self, node: NodeId, recalls: Vec<Recall>) {
        let answer = |recall: Recall| {
            let in_use = self.in_use.lock().contains(&recall.ino);
            RecallAck { number: recall.number, ino: recall.ino, in_use }
        };
        let yields: Vec<RecallAck> = recalls.into_iter().map(answer).collect();
        if !yields.is_empty() {
            // A service that has died needs no acknowledgement.
            let _ = self.send(node, 0, MetaOp::AckRecalls { acks: yields }).await;
        }
    }
}
