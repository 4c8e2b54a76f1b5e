//! A process that provides services.

use super::dial::{self, ProbeFailure};
use super::lookup::{Lookup, LookupState};
use super::reachability::Reachability;
use super::status::{AddressFailure, LinkCounters, PeerStatus};
use crate::limits::{DEFAULT_CALL_TIMEOUT, SILENCE_BEFORE_PING, SILENCE_TIMEOUT};
use crate::networks::RankedAddresses;
use crate::{Distance, Liveness, Networks, Security};
use parking_lot::Mutex;
use rt::sync::Event;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::{Epoch, Subnet};

/// Identity of this process in its hello.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The cluster's UUID; empty if it isn't known yet.
    pub cluster: String,
    /// Name of this process in messages of servers.
    pub name: String,
    /// A random number, the same for all peers of the process.
    pub client: u64,
}

/// Whether a peer on this machine is reached over a Unix socket, with payloads in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SameHost {
    /// Over TCP, like any other peer.
    #[default]
    OverTcp,
    /// Over shared memory. If that fails the client logs it and uses TCP.
    SharedMemory,
}

/// Options of a peer.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Name of the peer in messages.
    pub name: String,
    /// Its addresses, in order of preference.
    pub addresses: Vec<SocketAddr>,
    /// Looks up the addresses before each attempt to connect; `None`: they stay until
    /// [`Peer::set_addresses`].
    pub lookup: Option<Lookup>,
    /// Which of them may be used, and which are better. These preferences override the peer's
    /// order.
    pub networks: Networks,
    /// Transport to a peer on this machine.
    pub same_host: SameHost,
    /// Networks that this machine is attached to; a peer on one of them is near.
    pub near_networks: Vec<Subnet>,
    /// How long a call is retried before it fails with `ETIMEDOUT`.
    pub timeout: Duration,
    /// Identity of this process.
    pub identity: ClientIdentity,
    /// How connections are protected.
    pub security: Security,
    /// When a silent connection with requests in flight is ended.
    pub liveness: Liveness,
    /// Whether payloads get a checksum when they are sent. Checksums of received payloads are
    /// always verified.
    pub checksum_payloads: bool,
}

impl PeerOptions {
    /// The default time-out, any network, no protection, checksums of payloads.
    pub fn new(name: impl Into<String>, addresses: Vec<SocketAddr>, identity: ClientIdentity) -> PeerOptions {
        PeerOptions {
            name: name.into(),
            addresses,
            lookup: None,
            networks: Networks::default(),
            same_host: SameHost::default(),
            near_networks: Vec::new(),
            timeout: DEFAULT_CALL_TIMEOUT,
            identity,
            security: Security::Plain,
            liveness: Liveness { ping_after: SILENCE_BEFORE_PING, dead_after: SILENCE_TIMEOUT },
            checksum_payloads: true,
        }
    }
}

/// A process that provides services. Every core that calls it has its own connection, made when it
/// is needed. Dropping the peer ends its connections; running calls hold the peer.
pub struct Peer {
    shared: Arc<Shared>,
}

/// State shared by the links of all cores.
pub(super) struct Shared {
    /// Identifies the peer within the process.
    pub(super) id: u64,
    pub(super) options: PeerOptions,
    pub(super) addresses: Mutex<Vec<SocketAddr>>,
    /// Set and cleared when the addresses change.
    pub(super) addresses_changed: Event,
    pub(super) lookup: LookupState,
    pub(super) epoch: AtomicU64,
    pub(super) reachability: Reachability,
    /// The last connection used an address that only this machine can reach.
    pub(super) is_same_host: AtomicBool,
    /// The peer was dropped.
    pub(super) dropped: Event,
    /// One for each core that has called the peer.
    pub(super) links: Mutex<Vec<Arc<LinkCounters>>>,
}

impl Peer {
    /// Makes a peer. It connects when it is first called.
    pub fn new(options: PeerOptions) -> Arc<Peer> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            addresses: Mutex::new(options.addresses.clone()),
            addresses_changed: Event::new(),
            lookup: LookupState::default(),
            options,
            epoch: AtomicU64::new(0),
            reachability: Reachability::default(),
            is_same_host: AtomicBool::new(false),
            dropped: Event::new(),
            links: Mutex::default(),
        };
        Arc::new(Peer { shared: Arc::new(shared) })
    }

    /// Name of the peer.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// Replaces the peer's addresses. Connections to addresses that it no longer has are ended:
    /// another process may answer there, and where none answers the silence would be noticed late.
    pub fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        self.shared.set_addresses(addresses);
    }

    /// Why calls wait for this peer, if none of its addresses has been reachable for at least this
    /// time. `None` also when it hasn't been called recently.
    pub fn unreachable_reason(&self, at_least: Duration) -> Option<String> {
        let unreachable_for = self.shared.reachability.unreachable_for(rt::monotonic_ns())?;
        (unreachable_for >= at_least).then(|| self.shared.last_failure())
    }

    /// Probes one address, as a connection with this core number would: TLS handshake, hello and
    /// welcome. Then closes the connection. Returns the name that the other end gives itself; with
    /// TLS it has proved to be the peer.
    ///
    /// # Errors
    /// The reason why the peer wasn't reached there within the time.
    pub async fn probe(
        &self,
        address: SocketAddr,
        core: u32,
        limit: Duration,
    ) -> Result<String, ProbeFailure> {
        let probed = rt::timeout(limit, Box::pin(dial::probe(&self.shared, address, core))).await;
        probed.unwrap_or(Err(ProbeFailure::TimedOut))
    }

    /// Sets the epoch of the cluster map that this process has; requests carry it.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.shared.epoch.store(epoch.0, Ordering::Relaxed);
    }

    /// The connections to the peer, and why addresses failed.
    pub fn status(&self) -> PeerStatus {
        let unused = self.shared.unusable_addresses();
        PeerStatus {
            name: self.shared.options.name.clone(),
            addresses: self.shared.addresses.lock().clone(),
            unused,
            links: self.shared.links.lock().iter().map(|link| link.status()).collect(),
        }
    }

    /// Network distance, as far as it is known. Whether the peer is on this machine is known after
    /// a connection was made.
    pub(super) fn distance(&self) -> Distance {
        let shared = &self.shared;
        if shared.is_same_host.load(Ordering::Relaxed) {
            return Distance::SameHost;
        }
        let near = &shared.options.near_networks;
        let is_near = |address: &SocketAddr| near.iter().any(|network| network.contains(address.ip()));
        let addresses = shared.addresses.lock();
        if addresses.iter().any(is_near) { Distance::SameNetwork } else { Distance::Remote }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// The addresses in this end's order of preference.
    pub(super) fn ranked_addresses(&self) -> RankedAddresses {
        self.options.networks.rank_addresses(&self.addresses.lock())
    }

    pub(super) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        let is_other = std::mem::replace(&mut *self.addresses.lock(), addresses.clone()) != addresses;
        if is_other {
            self.addresses_changed.set();
            self.addresses_changed.clear();
        }
    }

    /// The result of the last attempts.
    fn last_failure(&self) -> String {
        let links = self.links.lock();
        let last = links.iter().find_map(|link| {
            let state = link.state.lock();
            state.failures.last().map(|failure| format!("{}: {}", failure.address, failure.reason))
        });
        last.unwrap_or_else(|| match self.ranked_addresses().usable.is_empty() {
            true if self.addresses.lock().is_empty() => "no address is known".into(),
            true => format!("none of its addresses is in the networks {}", self.options.networks),
            false => "no address has answered".into(),
        })
    }

    /// Addresses that may not be used, and why.
    pub(super) fn unusable_addresses(&self) -> Vec<AddressFailure> {
        let reason = format!("not in the configured networks, {}", self.options.networks);
        let unused = self.ranked_addresses().unused.into_iter();
        unused.map(|address| AddressFailure { address: address.into(), reason: reason.clone() }).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.dropped.set();
    }
}
