//! Status of a peer's connections.

use crate::Transport;
use parking_lot::Mutex;
use rt::net::Address;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A peer and the connections to it.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// The peer's name.
    pub name: String,
    /// Its addresses in order of preference.
    pub addresses: Vec<SocketAddr>,
    /// Addresses that this end may not use, and why.
    pub unused: Vec<AddressFailure>,
    /// One for each core of this process that has called it.
    pub links: Vec<LinkStatus>,
}

/// The link of one core to a peer.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The core.
    pub core: u32,
    /// The address in use and its transport; `None` without a connection.
    pub connected: Option<(Address, Transport)>,
    /// Addresses that failed in their last attempt, and why.
    pub failures: Vec<AddressFailure>,
    /// Duration of the last exchange that involves no service: a handshake or a ping.
    pub round_trip: Option<Duration>,
    /// Connections made in total.
    pub connections: u64,
    /// Requests sent, including retransmissions.
    pub requests: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

/// An address that couldn't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressFailure {
    /// The address.
    pub address: Address,
    /// The error.
    pub reason: String,
}

/// Counters of a link. Written by its core, read from any thread.
#[derive(Default)]
pub(super) struct LinkCounters {
    pub(super) core: u32,
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    /// Nanoseconds; 0: unknown.
    pub(super) round_trip_ns: AtomicU64,
    pub(super) state: Mutex<LinkState>,
}

/// The address that a link is connected to, and those that failed.
#[derive(Default)]
pub(super) struct LinkState {
    pub(super) connected: Option<(Address, Transport)>,
    /// At most one for each address of the peer.
    pub(super) failures: Vec<AddressFailure>,
}

impl LinkCounters {
    pub(super) fn new(core: u32) -> LinkCounters {
        LinkCounters { core, ..LinkCounters::default() }
    }

    pub(super) fn fail(&self, address: Address, reason: String) {
        let mut state = self.state.lock();
        state.failures.retain(|failure| failure.address != address);
        state.failures.push(AddressFailure { address, reason });
    }

    pub(super) fn connect(&self, address: Address, transport: Transport) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.failures.retain(|failure| failure.address != address);
        state.connected = Some((address, transport));
    }

    pub(super) fn disconnect(&self, address: Address, reason: String) {
        self.state.lock().connected = None;
        self.fail(address, reason);
    }

    pub(super) fn status(&self) -> LinkStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let round_trip_ns = get(&self.round_trip_ns);
        let state = self.state.lock();
        LinkStatus {
            core: self.core,
            connected: state.connected.clone(),
            failures: state.failures.clone(),
            round_trip: (round_trip_ns > 0).then(|| Duration::from_nanos(round_trip_ns)),
            connections: get(&self.connections),
            requests: get(&self.requests),
            bytes_sent: get(&self.bytes_sent),
            bytes_received: get(&self.bytes_received),
        }
    }
}
