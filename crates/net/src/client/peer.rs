//! A process that services are in.

use super::dial::{self, ProbeFailure};
use super::lookup::{Lookup, LookupState};
use super::reach::Reach;
use super::status::{AddressFailure, LinkCounters, PeerStatus};
use crate::limits::{DEFAULT_CALL_TIMEOUT, SILENCE_BEFORE_DEATH, SILENCE_BEFORE_PING};
use crate::networks::Ways;
use crate::{Distance, Liveness, Networks, Security};
use parking_lot::Mutex;
use rt::sync::Event;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::{Epoch, Subnet};

/// Who this process is when it says hello.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The cluster's UUID; empty if it isn't known yet.
    pub cluster: String,
    /// What servers call this process in messages.
    pub name: String,
    /// A random number, the same for all peers of the process.
    pub client: u64,
}

/// Whether a peer on this machine is reached over a Unix socket, with payloads in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SameHost {
    /// It is reached as if it were elsewhere.
    #[default]
    OverTcp,
    /// Where that works; where it doesn't, that is told, and TCP is used.
    SharedMemory,
}

/// What a peer is made of.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// What to call it in messages.
    pub name: String,
    /// Where it is, in order of preference.
    pub addresses: Vec<SocketAddr>,
    /// Tells before each try to connect where it is now; `None`: the addresses stay until
    /// [`Peer::set_addresses`].
    pub lookup: Option<Lookup>,
    /// Which of them may be used, and which are better: this end's word goes before the peer's.
    pub networks: Networks,
    /// What is used if the peer is on this machine.
    pub same_host: SameHost,
    /// Networks that this machine is in, by which near peers are known.
    pub near: Vec<Subnet>,
    /// How long a call is repeated before it fails with `ETIMEDOUT`.
    pub timeout: Duration,
    /// Who asks.
    pub identity: ClientIdentity,
    /// How connections are protected.
    pub security: Security,
    /// When a silent connection with requests in flight is given up.
    pub liveness: Liveness,
    /// Whether payloads are summed when they are sent. What the other side has summed is checked in
    /// any case.
    pub sum_payloads: bool,
}

impl PeerOptions {
    /// With the usual time-out, over any network, without protection, with payloads summed.
    pub fn new(name: impl Into<String>, addresses: Vec<SocketAddr>, identity: ClientIdentity) -> PeerOptions {
        PeerOptions {
            name: name.into(),
            addresses,
            lookup: None,
            networks: Networks::default(),
            same_host: SameHost::default(),
            near: Vec::new(),
            timeout: DEFAULT_CALL_TIMEOUT,
            identity,
            security: Security::Plain,
            liveness: Liveness { ask_after: SILENCE_BEFORE_PING, give_up_after: SILENCE_BEFORE_DEATH },
            sum_payloads: true,
        }
    }
}

/// A process that services are in. Every core that calls it has a connection of its own, made when
/// it is needed. Dropping the peer ends its connections; calls that run hold it.
pub struct Peer {
    shared: Arc<Shared>,
}

/// What the links of all cores share.
pub(super) struct Shared {
    /// Names the peer within the process.
    pub(super) id: u64,
    pub(super) options: PeerOptions,
    pub(super) addresses: Mutex<Vec<SocketAddr>>,
    /// Set and taken back when the addresses change.
    pub(super) moved: Event,
    pub(super) lookup: LookupState,
    pub(super) epoch: AtomicU64,
    pub(super) reach: Reach,
    /// It was reached by a way that only this machine has.
    pub(super) is_on_this_host: AtomicBool,
    /// The peer was dropped.
    pub(super) gone: Event,
    /// One for each core that is calling or has called.
    pub(super) links: Mutex<Vec<Arc<LinkCounters>>>,
}

impl Peer {
    /// A peer. Nothing is connected before it is called.
    pub fn new(options: PeerOptions) -> Arc<Peer> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            addresses: Mutex::new(options.addresses.clone()),
            moved: Event::new(),
            lookup: LookupState::default(),
            options,
            epoch: AtomicU64::new(0),
            reach: Reach::default(),
            is_on_this_host: AtomicBool::new(false),
            gone: Event::new(),
            links: Mutex::default(),
        };
        Arc::new(Peer { shared: Arc::new(shared) })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// Says where the peer is now. Connections to addresses that it doesn't have any more are
    /// ended: whoever answers there is not the peer, and where nothing answers it would take until
    /// the silence is noticed.
    pub fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        self.shared.set_addresses(addresses);
    }

    /// Why calls wait for this peer, if no address of it has been reached for at least this time.
    /// `None`, too, when nothing has been asked of it lately.
    pub fn out_of_reach(&self, at_least: Duration) -> Option<String> {
        let gone = self.shared.reach.lost_for(rt::monotonic_ns())?;
        (gone >= at_least).then(|| self.shared.trouble())
    }

    /// Tries one address, as a connection of this core number would: the handshake, the hello and
    /// the welcome. The connection is closed then. Returns what the other end calls itself; where
    /// connections are protected it has proved to be the peer.
    ///
    /// # Errors
    /// What kept it from being reached there, within the time.
    pub async fn probe(
        &self,
        address: SocketAddr,
        core: u32,
        limit: Duration,
    ) -> Result<String, ProbeFailure> {
        let probed = rt::timeout(limit, Box::pin(dial::probe(&self.shared, address, core))).await;
        probed.unwrap_or(Err(ProbeFailure::TimedOut))
    }

    /// Says which cluster map this process knows; requests carry it.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.shared.epoch.store(epoch.0, Ordering::Relaxed);
    }

    /// How the peer is reached, or why it isn't.
    pub fn status(&self) -> PeerStatus {
        let unused = self.shared.unused();
        PeerStatus {
            name: self.shared.options.name.clone(),
            addresses: self.shared.addresses.lock().clone(),
            unused,
            links: self.shared.links.lock().iter().map(|link| link.status()).collect(),
        }
    }

    /// How far away it is, as far as is known: that it is on this machine shows when it was
    /// reached.
    pub(super) fn distance(&self) -> Distance {
        let shared = &self.shared;
        if shared.is_on_this_host.load(Ordering::Relaxed) {
            return Distance::SameHost;
        }
        let near = &shared.options.near;
        let is_near = |address: &SocketAddr| near.iter().any(|network| network.contains(address.ip()));
        let addresses = shared.addresses.lock();
        if addresses.iter().any(is_near) { Distance::SameNetwork } else { Distance::Far }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// The addresses in the order in which this end prefers them.
    pub(super) fn ways(&self) -> Ways {
        self.options.networks.ways(&self.addresses.lock())
    }

    pub(super) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        let is_other = std::mem::replace(&mut *self.addresses.lock(), addresses.clone()) != addresses;
        if is_other {
            self.moved.set();
            self.moved.clear();
        }
    }

    /// What the last tries have come to.
    fn trouble(&self) -> String {
        let links = self.links.lock();
        let last = links.iter().find_map(|link| {
            let place = link.place.lock();
            place.failures.last().map(|failure| format!("{}: {}", failure.address, failure.reason))
        });
        last.unwrap_or_else(|| match self.ways().usable.is_empty() {
            true if self.addresses.lock().is_empty() => "no address is known".into(),
            true => format!("none of its addresses is in the networks {}", self.options.networks),
            false => "no address has answered".into(),
        })
    }

    /// Addresses that may not be used, and why.
    pub(super) fn unused(&self) -> Vec<AddressFailure> {
        let reason = format!("not in the networks to be used, {}", self.options.networks);
        let unused = self.ways().unused.into_iter();
        unused.map(|address| AddressFailure { address: address.into(), reason: reason.clone() }).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.gone.set();
    }
}
