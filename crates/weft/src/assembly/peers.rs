//! Connections of a process to the other processes of its cluster.

use super::locality::local_networks;
use super::management_addresses::ManagementAddresses;
use crate::control::{LinkInfo, PeerInfo};
use crate::node_config::Protection;
use ::node::{MapListener, MgmtChannel};
use identity::tls::UnauthenticatedClients;
use identity::{Credentials, JoinToken};
use mgmt::limits::PROBE_TIMEOUT;
use mgmt::{DueProbe, FIRST_NODE, ProbeOutcome};
use net::{
    AddressFailure, Channel, ClientIdentity, LinkStatus, Lookup, Networks, Peer, PeerOptions, PeerStatus,
    ProbeFailure, SameHost, Security,
};
use routing::{MetaChannel, StorageChannel};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::{ClusterMap, Epoch, Errno, Error, HashMap, Node, NodeId, Result, Subnet};
use wire::mgmt::{MAX_UNREACHABLE, UnreachableNode};

/// Time-out of a request to management, including retransmissions. After a heartbeat without an
/// answer in this time comes another; the serving lease ([`mgmt::limits::SERVING_LEASE`]) outlasts
/// it.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a node must be unreachable before that is reported: a lost connection is usually
/// restored sooner.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(3);

/// The identity of this process and the settings of its connections.
#[derive(Clone)]
pub struct LocalIdentity {
    /// UUID of the cluster; empty for a process that joins.
    pub cluster: String,
    /// Name of this process in messages of others.
    pub name: String,
    /// Protection of connections.
    pub security: Security,
    /// Networks that connections use.
    pub networks: Networks,
    /// Transport to nodes on the same machine.
    pub same_host: SameHost,
}

/// All other processes that this one talks to.
pub struct Peers {
    identity: ClientIdentity,
    /// Identity for probes of addresses: servers take it for another client, so a probe doesn't
    /// fence the regular connections.
    probe_identity: ClientIdentity,
    /// Addresses of management.
    places: Arc<ManagementAddresses>,
    security: Security,
    networks: Networks,
    same_host: SameHost,
    timeout: Duration,
    /// Networks that this machine is in.
    local_networks: Vec<Subnet>,
    management: Arc<Peer>,
    /// Epoch of the latest map. Services decide on requests by this map or a newer one.
    epoch: AtomicU64,
    /// At most as many as the map has nodes.
    nodes: Mutex<HashMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    /// Creates it without connections. `timeout`: time-out of requests to metadata and storage
    /// services, including retransmissions.
    pub fn new(
        local_identity: LocalIdentity,
        places: Arc<ManagementAddresses>,
        timeout: Duration,
    ) -> Result<Arc<Peers>> {
        let client = rt::secret_u64();
        let identity = ClientIdentity { cluster: local_identity.cluster, name: local_identity.name, client };
        let known = places.clone();
        let options = PeerOptions {
            timeout: MANAGEMENT_TIMEOUT.min(timeout),
            // A former address of management may belong to another member now.
            security: restricted_to(&local_identity.security, FIRST_NODE),
            networks: local_identity.networks.clone(),
            lookup: Some(Lookup::new(move || known.resolve().unwrap_or_default())),
            ..PeerOptions::new("management", places.resolve()?, identity.clone())
        };
        Ok(Arc::new(Peers {
            probe_identity: ClientIdentity { client: rt::secret_u64(), ..identity.clone() },
            identity,
            places,
            security: local_identity.security,
            networks: local_identity.networks,
            same_host: local_identity.same_host,
            timeout,
            local_networks: local_networks(),
            management: Peer::new(options),
            epoch: AtomicU64::new(0),
            nodes: Mutex::default(),
        }))
    }

    /// Returns the name of this process.
    pub fn own_name(&self) -> &str {
        &self.identity.name
    }

    /// Returns the channel to management.
    pub fn management(&self) -> MgmtChannel {
        Channel::remote(self.management.clone())
    }

    /// Returns the channel to a node's storage service.
    pub fn storage(&self, node: &Node) -> StorageChannel {
        Channel::remote(self.node(node))
    }

    /// Returns the channel to a node's metadata service, for clients.
    pub fn metadata(&self, node: &Node) -> MetaChannel {
        Channel::remote(self.node(node))
    }

    /// Returns the channel to a node's metadata service, for other services.
    pub fn partitions(&self, node: &Node) -> meta::PartitionsChannel {
        Channel::remote(self.node(node))
    }

    /// Returns the channel to the metadata store, on the node that has it.
    pub fn store(&self, node: &Node) -> kvnet::KvChannel {
        Channel::remote(self.node(node))
    }

    /// Returns nodes that have pending requests and are unreachable, up to [`MAX_UNREACHABLE`].
    pub fn unreachable(&self) -> Vec<UnreachableNode> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |(node, peer): (&NodeId, &Arc<Peer>)| {
            Some(UnreachableNode { node: *node, cause: peer.unreachable_reason(UNREACHABLE_AFTER)? })
        };
        let mut all: Vec<UnreachableNode> = nodes.iter().filter_map(named).collect();
        all.sort_by_key(|named| named.node);
        all.truncate(MAX_UNREACHABLE);
        all
    }

    /// Probes whether a node answers at an address.
    pub async fn probe(&self, probe: &DueProbe) -> ProbeOutcome {
        let Ok(address) = probe.address.parse::<SocketAddr>() else {
            return ProbeOutcome::Failed(ProbeFailure::Failed("it is not an address".into()));
        };
        if self.networks.rank(address.ip()).is_none() {
            return ProbeOutcome::NotUsed;
        }
        let options = PeerOptions {
            identity: self.probe_identity.clone(),
            same_host: SameHost::OverTcp,
            ..self.options_of(probe.node, format!("node {}", probe.node), vec![address])
        };
        let is_plain = matches!(self.security, Security::Plain);
        match Peer::new(options).probe(address, probe.index, PROBE_TIMEOUT).await {
            // Without protection the server has proved no identity, only its name can be compared.
            Ok(server) if is_plain && !server.starts_with(&format!("node {} ", probe.node)) => {
                ProbeOutcome::Failed(ProbeFailure::WrongPeer(format!("{server} answers there")))
            }
            Ok(_) => ProbeOutcome::Reached,
            Err(failure) => ProbeOutcome::Failed(failure),
        }
    }

    /// Returns the status of every process that this one has talked to.
    pub fn status(&self) -> Vec<PeerStatus> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<PeerStatus> = nodes.values().map(|peer| peer.status()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.insert(0, self.management.status());
        all
    }

    /// Returns [`Peers::status`] as commands show it.
    pub fn infos(&self) -> Vec<PeerInfo> {
        self.status().iter().map(peer_info).collect()
    }

    fn options_of(&self, node: NodeId, name: String, addresses: Vec<SocketAddr>) -> PeerOptions {
        PeerOptions {
            timeout: self.timeout,
            security: restricted_to(&self.security, node),
            networks: self.networks.clone(),
            same_host: self.same_host,
            near_networks: self.local_networks.clone(),
            ..PeerOptions::new(name, addresses, self.identity.clone())
        }
    }

    fn node(&self, node: &Node) -> Arc<Peer> {
        let new = || {
            let name = format!("node {} ({})", node.id, node.name);
            let peer = Peer::new(self.options_of(node.id, name, addresses(node)));
            peer.set_epoch(Epoch(self.epoch.load(Ordering::Relaxed)));
            peer
        };
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(node.id).or_insert_with(new).clone()
    }
}

impl MapListener for Peers {
    /// Makes the servers of this process refuse clients whose certificates the map revokes.
    fn start(&self, map: &Arc<ClusterMap>) {
        self.security.follow(map);
    }

    /// Does the same, and updates the nodes' addresses and the known epoch.
    fn update(&self, map: &Arc<ClusterMap>) {
        self.security.follow(map);
        self.places.follow(map);
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        self.epoch.store(map.epoch.0, Ordering::Relaxed);
        for (id, peer) in nodes.iter() {
            if let Some(node) = map.node(*id) {
                peer.set_addresses(addresses(node));
            }
            peer.set_epoch(map.epoch);
        }
    }
}

/// Restricts the protection to connections that reach this node.
fn restricted_to(security: &Security, node: NodeId) -> Security {
    match security {
        Security::Plain => Security::Plain,
        Security::Tls(tls) => Security::Tls(tls.to_node(node)),
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

/// Management checked these addresses when the node registered.
fn addresses(node: &Node) -> Vec<SocketAddr> {
    node.addresses.iter().filter_map(|address| address.parse().ok()).collect()
}

/// Returns how a member protects its connections.
pub fn member_security(
    protection: Protection,
    credentials: Option<&Credentials>,
    strangers: UnauthenticatedClients,
) -> Result<Security> {
    let how = match protection {
        Protection::Plain => return Ok(Security::Plain),
        Protection::Authenticated => identity::Protection::HandshakeOnly,
        Protection::Tls => identity::Protection::Encrypted,
    };
    let credentials = credentials.ok_or_else(|| {
        Error::new(Errno::EACCES, "there is no certificate to connect with")
            .hint("let the machine join again; for a client, weft client add NAME creates a cluster file")
    })?;
    Ok(Security::Tls(net::Tls::member(credentials, how, strangers)?))
}

/// Returns how a process that has only a token protects its connections.
pub fn joining_security(protection: Protection, token: &JoinToken) -> Result<Security> {
    match protection {
        Protection::Plain => Ok(Security::Plain),
        _ => Ok(Security::Tls(net::Tls::joining(token)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::{Authority, Validity};
    use net::{Router, Server, ServerLimits, ServerOptions};
    use types::{MapHandle, NodeState, RevokedClient, Role};

    const CLUSTER: &str = "01234567-89ab-4def-8123-456789abcdef";

    fn places() -> Arc<ManagementAddresses> {
        ManagementAddresses::fixed(&["127.0.0.1:7500".to_string()])
    }

    fn peers(security: Security, places: Arc<ManagementAddresses>) -> Arc<Peers> {
        let local_identity = LocalIdentity {
            cluster: CLUSTER.into(),
            name: "node 1 (m)".into(),
            security,
            networks: Networks::default(),
            same_host: SameHost::OverTcp,
        };
        Peers::new(local_identity, places, Duration::from_secs(60)).unwrap()
    }

    /// Starts a server without services.
    fn serve(node: u32, security: Security) -> Arc<Server> {
        let options = ServerOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            cores: 1,
            name: format!("node {node} (n{node})"),
            cluster: CLUSTER.into(),
            security,
            map: MapHandle::default(),
            checksum_payloads: true,
            limits: ServerLimits::default(),
        };
        Server::start(options, Router::new()).unwrap()
    }

    /// Probes the address of a server as that of a node.
    fn probed(peers: &Arc<Peers>, node: u32, server: &Server) -> ProbeOutcome {
        let address = server.addresses()[0].to_string();
        let probe = DueProbe { node: NodeId(node), instance: 1, address, index: 0 };
        let peers = peers.clone();
        rt::block_on(async move { peers.probe(&probe).await }).unwrap()
    }

    #[test]
    fn another_node_at_an_address_is_not_taken_for_the_one_that_is_meant() {
        let authority = Authority::create(CLUSTER, "test", rt::now().secs).unwrap();
        let of_node = |id: u32| {
            let role = identity::Member::Node(NodeId(id));
            let credentials = authority.issue(&role, Validity::of_node(rt::now().secs)).unwrap();
            member_security(Protection::Tls, Some(&credentials), UnauthenticatedClients::Refused).unwrap()
        };
        for (ours, theirs) in [(of_node(1), of_node(2)), (Security::Plain, Security::Plain)] {
            let (own, server) = (peers(ours, places()), serve(2, theirs));
            assert_eq!(probed(&own, 2, &server), ProbeOutcome::Reached);
            let other = probed(&own, 3, &server);
            assert!(matches!(other, ProbeOutcome::Failed(ProbeFailure::WrongPeer(_))), "{other:?}");
            server.stop();
        }
    }

    #[test]
    fn servers_refuse_clients_that_are_revoked_by_the_map_that_is_followed() {
        let authority = Authority::create(CLUSTER, "test", rt::now().secs).unwrap();
        let member = |credentials: &Credentials| {
            member_security(Protection::Tls, Some(credentials), UnauthenticatedClients::Refused).unwrap()
        };
        let node = authority.issue(&identity::Member::Node(NodeId(1)), Validity::of_node(rt::now().secs));
        let client = authority.issue_to_client("a", Validity::of_client(rt::now().secs), 5);
        let (ours, theirs) = (member(&node.unwrap()), member(&client.unwrap()));
        let (server, own, client) = (serve(1, ours.clone()), peers(ours, places()), peers(theirs, places()));
        assert_eq!(probed(&client, 1, &server), ProbeOutcome::Reached);
        let revoked = vec![RevokedClient { name: "a".into(), until: 5 }];
        own.update(&Arc::new(ClusterMap { epoch: Epoch(2), revoked, ..ClusterMap::default() }));
        let refused = probed(&client, 1, &server);
        assert!(matches!(refused, ProbeOutcome::Failed(ProbeFailure::WrongPeer(_))), "{refused:?}");
        server.stop();
    }

    #[test]
    fn a_map_says_where_management_and_the_nodes_are() {
        let places = places();
        let peers = peers(Security::Plain, places.clone());
        let node = |id: u32, role: Role, address: &str| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![address.into()],
            roles: vec![role],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        let _channel = peers.storage(&node(2, Role::Storage, "127.0.0.2:7500"));
        let nodes = vec![node(1, Role::Mgmt, "127.0.0.3:7500"), node(2, Role::Storage, "127.0.0.4:7500")];
        peers.update(&Arc::new(ClusterMap { epoch: Epoch(2), nodes, ..ClusterMap::default() }));
        let management: Vec<String> = places.resolve().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(management, ["127.0.0.3:7500", "127.0.0.1:7500"]);
        assert_eq!(peers.infos()[1].addresses, ["127.0.0.4:7500"]);
    }
}
