//! The ways of a process to the other processes of its cluster.

use super::near::own_networks;
use crate::control::{LinkInfo, PeerInfo};
use crate::node_config::{Protection, resolve};
use identity::tls::Strangers;
use identity::{Credentials, JoinToken};
use net::{
    AddressFailure, Channel, ClientIdentity, LinkStatus, MetaChannel, Networks, Peer, PeerOptions,
    PeerStatus, SameHost, Security, StorageChannel,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::{ClusterMap, Epoch, Errno, Error, HashMap, Node, NodeId, Result, Subnet};
use wire::{MgmtReply, MgmtRequest};

/// The way to management.
pub type MgmtChannel = Channel<MgmtRequest, MgmtReply>;

/// How long a question to management is repeated. A heartbeat that isn't answered in this time is followed by another; the serving lease
/// ([`mgmt::limits::SERVING_LEASE`]) outlasts it.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Who this process is.
#[derive(Clone)]
pub struct Oneself {
    /// The cluster's UUID; empty for one that wants to join.
    pub cluster: String,
    /// What others call this process in messages.
    pub name: String,
    /// How connections are protected.
    pub security: Security,
    /// Which networks its connections use.
    pub networks: Networks,
    /// How it reaches nodes on its own machine.
    pub same_host: SameHost,
}

/// All other processes that this one talks to.
pub struct Peers {
    identity: ClientIdentity,
    security: Security,
    networks: Networks,
    same_host: SameHost,
    timeout: Duration,
    /// Networks that this machine is in.
    near: Vec<Subnet>,
    management: Arc<Peer>,
    /// The latest map that was followed. Services decide on requests by no older one.
    epoch: AtomicU64,
    /// As many as the map has nodes.
    nodes: Mutex<HashMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    /// Nothing is connected yet. `timeout`: how long requests to metadata and storage services are repeated.
    pub fn new(oneself: Oneself, management: &[String], timeout: Duration) -> Result<Arc<Peers>> {
        let client = rt::secret_u64();
        let identity = ClientIdentity { cluster: oneself.cluster, name: oneself.name, client };
        let options = PeerOptions {
            timeout: MANAGEMENT_TIMEOUT.min(timeout),
            security: oneself.security.clone(),
            networks: oneself.networks.clone(),
            ..PeerOptions::new("management", resolve(management)?, identity.clone())
        };
        Ok(Arc::new(Peers {
            identity,
            security: oneself.security,
            networks: oneself.networks,
            same_host: oneself.same_host,
            timeout,
            near: own_networks(),
            management: Peer::new(options),
            epoch: AtomicU64::new(0),
            nodes: Mutex::default(),
        }))
    }

    /// The way to management.
    pub fn management(&self) -> MgmtChannel {
        Channel::remote(self.management.clone())
    }

    /// The way to a node's storage service.
    pub fn storage(&self, node: &Node) -> StorageChannel {
        Channel::remote(self.node(node))
    }

    /// The way to a node's metadata service.
    pub fn metadata(&self, node: &Node) -> MetaChannel {
        Channel::remote(self.node(node))
    }

    /// The way to a node's metadata service, for other services.
    pub fn partitions(&self, node: &Node) -> meta::PartitionsChannel {
        Channel::remote(self.node(node))
    }

    /// The way to the store of metadata, on the node that has it.
    pub fn store(&self, node: &Node) -> kvnet::KvChannel {
        Channel::remote(self.node(node))
    }

    /// Takes over where the nodes are, and which map is known.
    pub fn follow(&self, map: &ClusterMap) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        self.epoch.store(map.epoch.0, Ordering::Relaxed);
        for (id, peer) in nodes.iter() {
            if let Some(node) = map.node(*id) {
                peer.set_addresses(addresses(node));
            }
            peer.set_epoch(map.epoch);
        }
    }

    /// Every process that this one has talked to.
    pub fn status(&self) -> Vec<PeerStatus> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<PeerStatus> = nodes.values().map(|peer| peer.status()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.insert(0, self.management.status());
        all
    }

    /// The same, as commands show it.
    pub fn infos(&self) -> Vec<PeerInfo> {
        self.status().iter().map(peer_info).collect()
    }

    fn node(&self, node: &Node) -> Arc<Peer> {
        let new = || {
            let name = format!("node {} ({})", node.id, node.name);
            let security = match &self.security {
                Security::Plain => Security::Plain,
                Security::Tls(tls) => Security::Tls(tls.to_node(node.id)),
            };
            let options = PeerOptions {
                timeout: self.timeout,
                security,
                networks: self.networks.clone(),
                same_host: self.same_host,
                near: self.near.clone(),
                ..PeerOptions::new(name, addresses(node), self.identity.clone())
            };
            let peer = Peer::new(options);
            peer.set_epoch(Epoch(self.epoch.load(Ordering::Relaxed)));
            peer
        };
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(node.id).or_insert_with(new).clone()
    }
}

fn peer_info(peer: &PeerStatus) -> PeerInfo {
    let failures = |failures: &[AddressFailure]| -> Vec<String> {
        failures.iter().map(|failure| format!("{}: {}", failure.address, failure.reason)).collect()
    };
    let link = |link: &LinkStatus| LinkInfo {
        core: link.core,
        connected: link.connected.as_ref().map(|(address, transport)| format!("{address} ({transport})")),
        failures: failures(&link.failures),
        round_trip_us: link.round_trip.map(|time| time.as_micros() as u64),
        connections: link.connections,
        requests: link.requests,
        bytes_sent: link.bytes_sent,
        bytes_received: link.bytes_received,
    };
    PeerInfo {
        name: peer.name.clone(),
        addresses: peer.addresses.iter().map(ToString::to_string).collect(),
        unused: failures(&peer.unused),
        links: peer.links.iter().map(link).collect(),
    }
}

/// Management has checked them when the node registered.
fn addresses(node: &Node) -> Vec<SocketAddr> {
    node.addresses.iter().filter_map(|address| address.parse().ok()).collect()
}

/// How a member protects its connections.
pub fn security(
    protection: Protection,
    credentials: Option<&Credentials>,
    strangers: Strangers,
) -> Result<Security> {
    let how = match protection {
        Protection::Plain => return Ok(Security::Plain),
        Protection::Authenticated => identity::Protection::HandshakeOnly,
        Protection::Tls => identity::Protection::Encrypted,
    };
    let credentials = credentials.ok_or_else(|| {
        Error::new(Errno::EACCES, "there is no certificate to connect with").hint(
            "let the machine join again; for a client, weft cluster token --client prints a new cluster file",
        )
    })?;
    Ok(Security::Tls(net::Tls::member(credentials, how, strangers)?))
}

/// How somebody who has nothing but a token connects.
pub fn joining(protection: Protection, token: &JoinToken) -> Result<Security> {
    match protection {
        Protection::Plain => Ok(Security::Plain),
        _ => Ok(Security::Tls(net::Tls::joining(token)?)),
    }
}
