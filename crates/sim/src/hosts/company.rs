//! Several metadata services: management's process, what makes a metadata host a member, and how everybody learns of the map.
//!
//! Management is the real one, with nodes for metadata only; what the map says of targets stays as it was made. Its process has the metadata store,
//! too, and the services reach it over the network, as those of real nodes do.

use super::process::{Site, new_identity, peer, peer_with, ring, serve};
use crate::cluster::{HASH_KEY, PARTITIONS, cluster_map};
use kv::{Blocking, Durability, Engine, Memory, Writer};
use meta::{Company, MetaOptions, MetaService};
use mgmt::{FirstNode, Gate, Management, Superblock};
use net::{Channel, ClientIdentity, Handler, MetaChannels, Router};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use storage::ServingLease;
use types::{ClusterMap, Epoch, Errno, Error, InodeId, MapHandle, Node, NodeId, Result, Role, Timestamp};
use wire::mgmt::{Heartbeat, Join, Register};
use wire::{MetaRequest, MetaResponse, MgmtReply, MgmtRequest, PartitionsReply, PartitionsRequest};

type MgmtChannel = Channel<MgmtRequest, MgmtReply>;

/// How long a question to management is repeated: shorter than a serving lease.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client's request to a metadata service is repeated: a partition that has moved may be closed for 15 s, and a command that needs
/// several tries for 15 s to have them all.
pub(super) const NAMES_TIMEOUT: Duration = Duration::from_secs(40);
/// Rest before management is asked again that didn't answer well.
const RETRY: Duration = Duration::from_millis(500);
/// How often a service looks for targets that were left in disorder.
const TIDY_INTERVAL: Duration = Duration::from_millis(100);
/// Of all processes, in each run.
const VERSION: &str = "0.0.0";

/// Lets everybody in.
struct Open;

impl Gate for Open {
    fn check(&self, _join: &Join, _now_s: i64) -> Result<()> {
        Ok(())
    }

    fn admit(&self, _join: &Join, _node: NodeId, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }

    fn token(&self, _client: bool, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }

    /// Everybody has the cluster's keys from the start ([`ring`]).
    fn capability_keys(&self, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }
}

/// Management's host, and what it keeps.
#[derive(Clone)]
pub(super) struct Office {
    pub(super) ip: Ipv4Addr,
    pub(super) engine: Arc<Memory>,
}

/// What a metadata host's process knows of its cluster.
struct Member {
    node: NodeId,
    instance: u64,
    address: String,
    management: MgmtChannel,
    map: MapHandle,
    /// Until when management counts on it.
    lease: ServingLease,
}

impl Site {
    /// Management's process.
    pub(super) async fn serve_management(self) -> Result<()> {
        let Some(office) = &self.office else { return Ok(()) };
        let engine: Arc<dyn Engine> = office.engine.clone();
        let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
        let superblock = Superblock {
            uuid: new_identity("").cluster,
            name: "sim".into(),
            hash_key: HASH_KEY,
            partitions: PARTITIONS,
            created: Timestamp::default(),
        };
        let first = FirstNode {
            name: "management".into(),
            addresses: vec![format!("{}:7000", office.ip)],
            roles: vec![Role::Mgmt],
            version: VERSION.into(),
        };
        let opened = Management::open_cluster(writer, &superblock, &first, Path::new("/")).await;
        let management = Arc::new(opened.map_err(Error::from)?);
        management.set_gate(Arc::new(Open));
        rt::spawn(management.clone().background());
        let service: Arc<dyn Handler<MgmtRequest, MgmtReply>> = management;
        let router = Router::new().with(service).with(self.store_service());
        let _server = serve("management".into(), office.ip, router)?;
        std::future::pending().await
    }

    /// A metadata host's process, where there are several.
    pub(super) async fn serve_share(self, index: usize) -> Result<()> {
        let identity = new_identity(&format!("metadata {index}"));
        let ip = self.meta_ips[index];
        let member = self.become_member(&identity, &format!("meta{index}"), ip).await;
        let store = loop {
            match self.store(&identity).await {
                Ok(store) => break store,
                // Management's process is away for now.
                Err(_) => rt::sleep(RETRY).await,
            }
        };
        let options = MetaOptions { node: member.node, hash_key: HASH_KEY, partitions: PARTITIONS };
        let (me, map) = (member.clone(), member.map.clone());
        let way = identity.clone();
        let company = Company {
            connect: Box::new(move |to: &Node| Channel::remote(peer(to.name.clone(), address_of(to), &way))),
            term: Box::new(move || me.lease.term(rt::monotonic_ns())),
        };
        let meta = MetaService::in_company(store, options, map, self.storage_channels(&identity), company);
        meta.sign_with(ring(true));
        rt::spawn(meta.clone().background());
        rt::spawn(meta.clone().follow_assignment());
        let names: Arc<dyn Handler<MetaRequest, MetaResponse>> = meta.clone();
        let partitions: Arc<dyn Handler<PartitionsRequest, PartitionsReply>> = meta.clone();
        let router = Router::new().with(names).with(partitions);
        let _server = serve(format!("metadata {index}"), ip, router)?;
        loop {
            rt::sleep(TIDY_INTERVAL).await;
            // What fails is tried again.
            let _ = self.tidy(&meta).await;
        }
    }

    fn management(&self, identity: &ClientIdentity) -> Option<MgmtChannel> {
        let office = self.office.as_ref()?;
        Some(Channel::remote(peer_with("management".into(), office.ip, identity, ASK_TIMEOUT)))
    }

    async fn become_member(&self, identity: &ClientIdentity, name: &str, ip: Ipv4Addr) -> Arc<Member> {
        loop {
            match self.try_to_become_member(identity, name, ip).await {
                Ok(member) => return member,
                Err(_) => rt::sleep(RETRY).await,
            }
        }
    }

    async fn try_to_become_member(
        &self,
        identity: &ClientIdentity,
        name: &str,
        ip: Ipv4Addr,
    ) -> Result<Arc<Member>> {
        let management = self.management(identity).ok_or(Errno::ENODEV)?;
        let address = format!("{ip}:7000");
        let map = current_map(&management).await?;
        let node = match map.nodes.iter().find(|node| node.name == name) {
            Some(node) => node.id,
            None => {
                let join = Join {
                    secret: String::new(),
                    name: name.into(),
                    roles: vec![Role::Meta],
                    addresses: vec![address.clone()],
                    csr: String::new(),
                    version: VERSION.into(),
                    clock_s: rt::now().secs,
                };
                match management.call(MgmtRequest::Join(join), None).await? {
                    MgmtReply::Joined(joined) => joined.node,
                    other => return Err(out_of_turn(&other)),
                }
            }
        };
        let member = Arc::new(Member {
            node,
            instance: rt::random_u64(),
            address,
            management: management.clone(),
            map: handle(&map),
            lease: ServingLease::ended(),
        });
        member.register().await?;
        rt::spawn(follow_map(management, member.map.clone()));
        rt::spawn(member.clone().beat());
        Ok(member)
    }

    /// The ways of a client to the metadata services, and the map that they follow.
    pub(super) async fn mapped(&self, identity: &ClientIdentity) -> Result<(MetaChannels, MapHandle)> {
        let management = self.management(identity).ok_or(Errno::ENODEV)?;
        let mut map = current_map(&management).await?;
        while map.owner(InodeId::ROOT.partition()).is_none() {
            rt::sleep(RETRY).await;
            map = current_map(&management).await?;
        }
        let map = handle(&map);
        rt::spawn(follow_map(management, map.clone()));
        let identity = identity.clone();
        let connect = move |node: &Node| {
            Channel::remote(peer_with(node.name.clone(), address_of(node), &identity, NAMES_TIMEOUT))
        };
        Ok((MetaChannels::mapped(map.clone(), Box::new(connect)), map))
    }
}

impl Member {
    async fn register(&self) -> Result<()> {
        let sent_ns = rt::monotonic_ns();
        let register = Register {
            cluster: new_identity("").cluster,
            node: self.node,
            instance: self.instance,
            addresses: vec![self.address.clone()],
            roles: vec![Role::Meta],
            version: VERSION.into(),
            clock_s: rt::now().secs,
            targets: vec![],
            again: false,
        };
        match self.management.call(MgmtRequest::Register(register), None).await? {
            MgmtReply::Registered(registered) => {
                take_over(&self.map, &registered.map);
                self.renew(sent_ns, registered.lease_ms);
                Ok(())
            }
            other => Err(out_of_turn(&other)),
        }
    }

    fn renew(&self, sent_ns: u64, lease_ms: u64) {
        self.lease.renew(sent_ns, rt::monotonic_ns(), Duration::from_millis(lease_ms));
    }

    /// Says that it lives, for as long as it does.
    async fn beat(self: Arc<Self>) {
        loop {
            rt::sleep(mgmt::limits::HEARTBEAT_INTERVAL).await;
            let sent_ns = rt::monotonic_ns();
            let epoch = self.map.read().unwrap_or_else(PoisonError::into_inner).epoch;
            let (node, instance, clock_s) = (self.node, self.instance, rt::now().secs);
            let beat = Heartbeat {
                node,
                instance,
                epoch,
                clock_s,
                targets: vec![],
                resyncs: vec![],
                scrubs: vec![],
            };
            match self.management.call(MgmtRequest::Heartbeat(beat), None).await {
                Ok(MgmtReply::Alive(alive)) => {
                    alive.map.iter().for_each(|map| take_over(&self.map, map));
                    self.renew(sent_ns, alive.lease_ms);
                }
                Err(error) if error.errno == Errno::ETIMEDOUT => {}
                // Management was started anew.
                _ => _ = self.register().await,
            }
        }
    }
}

async fn current_map(management: &MgmtChannel) -> Result<Arc<ClusterMap>> {
    match management.call(MgmtRequest::WatchMap { after: Epoch(0) }, None).await? {
        MgmtReply::Map { map } => Ok(map),
        other => Err(out_of_turn(&other)),
    }
}

async fn follow_map(management: MgmtChannel, handle: MapHandle) {
    loop {
        let after = handle.read().unwrap_or_else(PoisonError::into_inner).epoch;
        match management.call(MgmtRequest::WatchMap { after }, None).await {
            Ok(MgmtReply::Map { map }) => take_over(&handle, &map),
            _ => rt::sleep(RETRY).await,
        }
    }
}

/// Nodes and partitions of a map of management, with the targets as they were made.
fn with_targets(map: &ClusterMap) -> Arc<ClusterMap> {
    let (nodes, partitions) = (map.nodes.clone(), map.partitions.clone());
    Arc::new(ClusterMap { epoch: map.epoch, nodes, partitions, ..cluster_map() })
}

fn handle(map: &ClusterMap) -> MapHandle {
    Arc::new(RwLock::new(with_targets(map)))
}

fn take_over(handle: &MapHandle, new: &ClusterMap) {
    let mut map = handle.write().unwrap_or_else(PoisonError::into_inner);
    if new.epoch > map.epoch {
        *map = with_targets(new);
    }
}

fn address_of(node: &Node) -> Ipv4Addr {
    let ip = node.addresses.iter().find_map(|address| address.rsplit_once(':')?.0.parse().ok());
    ip.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

fn out_of_turn(reply: &MgmtReply) -> Error {
    Error::new(Errno::EPROTO, format!("management answered out of turn: {reply:?}"))
}
