//! The link of one core to a peer: at most one connection that accepts calls, made when it is
//! needed.

use super::connection::Connection;
use super::core_index::CoreIndex;
use super::dial::{DialError, NewConnection, dial, dial_on_host};
use super::peer::SameHost;
use super::peer::Shared;
use super::status::LinkCounters;
use crate::limits::{
    FAILED_ADDRESS_BACKOFF, FIRST_BACKOFF, LONGEST_ADDRESS_BACKOFF, LONGEST_BACKOFF, POOLED_BODIES,
    POOLED_BODY_BYTES,
};
use crate::signal::Signal;
use rt::Either;
use rt::net::Address;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, HashMap, Result};

/// A core's links, by peer.
#[derive(Default)]
struct Links(RefCell<HashMap<u64, Rc<Link>>>);

/// Refusals by the peer.
#[derive(Default)]
struct Refusals {
    /// Number of refusals.
    count: u64,
    /// The error and time (by the monotonic clock) of the last attempt, if it was refused.
    last: Option<(Error, u64)>,
}

/// The last failure of an address.
#[derive(Clone, Copy)]
struct Failure {
    /// When, by the monotonic clock.
    at_ns: u64,
    /// How long the address is tried after the others.
    backoff: Duration,
}

impl Failure {
    /// A failure that happens now.
    fn now(backoff: Duration) -> Failure {
        Failure { at_ns: rt::monotonic_ns(), backoff }
    }

    /// Whether the address is still tried after the others.
    fn is_recent(&self) -> bool {
        rt::monotonic_ns().saturating_sub(self.at_ns) < self.backoff.as_nanos() as u64
    }
}

/// The link of this core to a peer.
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    counters: Arc<LinkCounters>,
    index: CoreIndex,
    /// Number of links that the peer had when this one was made.
    ordinal: usize,
    connection: RefCell<Option<Rc<Connection>>>,
    /// Calls that wait for a connection.
    waiting: Cell<usize>,
    refusals: RefCell<Refusals>,
    changed: Signal,
    /// The last failure of each address.
    failures: RefCell<HashMap<Address, Failure>>,
    /// Pooled buffers for the bodies of requests.
    bodies: RefCell<Vec<Vec<u8>>>,
}

impl Link {
    /// This core's link to a peer, made if necessary. Panics outside of a runtime.
    pub(super) fn of(shared: &Arc<Shared>) -> Rc<Link> {
        let links = rt::local::<Links>();
        if let Some(link) = links.0.borrow().get(&shared.id).cloned() {
            return link;
        }
        let index = CoreIndex::claim();
        let counters = Arc::new(LinkCounters::new(index.core()));
        let ordinal = {
            let mut links = shared.links.lock();
            links.push(counters.clone());
            links.len() - 1
        };
        let link = Rc::new(Link {
            shared: shared.clone(),
            counters,
            index,
            ordinal,
            connection: RefCell::default(),
            waiting: Cell::new(0),
            refusals: RefCell::default(),
            changed: Signal::default(),
            failures: RefCell::default(),
            bodies: RefCell::default(),
        });
        links.0.borrow_mut().insert(shared.id, link.clone());
        rt::spawn(LinkTask { link: link.clone(), links }.run());
        link
    }

    /// Returns a connection that accepts calls. Waits for one at most `left`, and no longer than
    /// the peer may be unreachable.
    pub(super) async fn connection(&self, left: Duration) -> Result<Rc<Connection>> {
        if let Some(connection) = self.usable_connection() {
            return Ok(connection);
        }
        // Retrying a refused client more often than the longest backoff doesn't help.
        if let Some(refusal) = self.refused_within(LONGEST_BACKOFF) {
            return Err(refusal);
        }
        let _waiting = WaitingCall::new(self);
        let before = self.refusals.borrow().count;
        let answer = self.changed.wait_for(|| {
            let refusals = self.refusals.borrow();
            match &refusals.last {
                Some((error, _)) if refusals.count > before => Some(Err(error.clone())),
                _ => self.usable_connection().map(Ok),
            }
        });
        let wait_limit = self.shared.reachability.wait_limit(self.shared.options.timeout, rt::monotonic_ns());
        let left = left.min(wait_limit);
        // A peer that refuses the client is not unreachable, however long it has been refusing.
        let given_up = || self.refused_within(Duration::MAX).unwrap_or_else(|| self.timed_out());
        rt::timeout(left, answer).await.unwrap_or_else(|| Err(given_up()))
    }

    /// The refusal in which the last attempt ended, if that is less than `time` ago. Only a lasting
    /// refusal: a connection can also be refused because of another one of the same core.
    fn refused_within(&self, time: Duration) -> Option<Error> {
        let refusals = self.refusals.borrow();
        let is_permanent = |error: &Error| matches!(error.errno, Errno::EACCES | Errno::EPROTO);
        let (error, at_ns) = refusals.last.as_ref().filter(|(error, _)| is_permanent(error))?;
        let age_ns = rt::monotonic_ns().saturating_sub(*at_ns);
        (u128::from(age_ns) < time.as_nanos()).then(|| error.clone())
    }

    /// Notes the outcome of an attempt.
    fn note_outcome(&self, refusal: Option<Error>) {
        let mut refusals = self.refusals.borrow_mut();
        refusals.count += u64::from(refusal.is_some());
        refusals.last = refusal.map(|error| (error, rt::monotonic_ns()));
    }

    /// The error of a call that has timed out.
    pub(super) fn timed_out(&self) -> Error {
        let (name, waited) = (&self.shared.options.name, self.shared.options.timeout);
        let state = self.counters.state.lock();
        let message = match (&state.connected, state.failures.last()) {
            (Some((address, _)), _) => format!("{name} at {address} has not answered within {waited:?}"),
            (None, Some(failure)) => {
                format!("{name} has been unreachable for {waited:?}; {}: {}", failure.address, failure.reason)
            }
            (None, None) if self.shared.addresses.lock().is_empty() => {
                format!("{name} has been unreachable for {waited:?}: no address is known")
            }
            (None, None) if self.shared.ranked_addresses().usable.is_empty() => {
                let networks = &self.shared.options.networks;
                format!("{name} is unreachable: none of its addresses is in the networks {networks}")
            }
            (None, None) => format!("{name} has been unreachable for {waited:?}: no address has answered"),
        };
        Error::new(Errno::ETIMEDOUT, message).hint(format!("check whether {name} runs: weft net show"))
    }

    /// An empty buffer for a request.
    pub(super) fn take_body(&self) -> Vec<u8> {
        self.bodies.borrow_mut().pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub(super) fn return_body(&self, mut body: Vec<u8>) {
        let mut bodies = self.bodies.borrow_mut();
        if bodies.len() < POOLED_BODIES && body.capacity() <= POOLED_BODY_BYTES {
            body.clear();
            bodies.push(body);
        }
    }

    fn usable_connection(&self) -> Option<Rc<Connection>> {
        self.connection.borrow().as_ref().filter(|connection| connection.is_usable()).cloned()
    }

    /// Tries each address once. Returns an error when all have failed, with the refusal if it is a
    /// lasting one. A wrong process at one address proves nothing about a peer that may come back
    /// at another address.
    async fn connect(self: &Rc<Self>) -> Result<AddressedConnection, Option<Error>> {
        self.shared.look_up().await;
        let (mut refusal, mut wrong_peer, mut may_succeed_later) = (None, None, false);
        for (rank, address) in self.ordered_addresses() {
            match self.try_address(address).await {
                Ok(connection) => return Ok(AddressedConnection::new(connection, rank, address)),
                Err(DialError::Failed(_)) => may_succeed_later = true,
                Err(DialError::Refused(error)) => refusal = Some(error),
                Err(DialError::WrongPeer(error)) => wrong_peer = Some(error),
            }
        }
        Err(refusal.or(wrong_peer.filter(|_| !may_succeed_later)))
    }

    /// Connects to an address and makes the connection the one that calls use. Notes a failure.
    async fn try_address(self: &Rc<Self>, address: SocketAddr) -> Result<Rc<Connection>, DialError> {
        match dial(&self.shared, address, self.index.number).await {
            Ok(dialled) => {
                let dialled = self.prefer_shared_memory(dialled).await;
                Ok(self.adopt(dialled, address.into()))
            }
            Err(error) => {
                self.note_failure(address.into(), error.to_string());
                Err(error)
            }
        }
    }

    /// Replaces a connection to a server on this machine by one over shared memory, if that is
    /// enabled. The server ends the connection over TCP.
    async fn prefer_shared_memory(&self, dialled: NewConnection) -> NewConnection {
        let wanted = self.shared.options.same_host == SameHost::SharedMemory;
        let Some(endpoint) = dialled.on_host.clone().filter(|_| wanted) else { return dialled };
        let address = Address::Abstract(endpoint.socket.clone());
        if self.failed_recently(address.clone()) {
            return dialled;
        }
        match dial_on_host(&self.shared, &endpoint, self.index.number).await {
            Ok(shared) => shared,
            Err(error) => self.without_shared_memory(dialled, address, error.to_string()),
        }
    }

    fn without_shared_memory(
        &self,
        dialled: NewConnection,
        address: Address,
        reason: String,
    ) -> NewConnection {
        let name = &self.shared.options.name;
        tracing::warn!(
            "{name} is on this machine, but reached over TCP: shared memory can't be used: {reason}"
        );
        self.note_failure(address, reason);
        dialled
    }

    fn adopt(self: &Rc<Self>, dialled: NewConnection, address: Address) -> Rc<Connection> {
        let NewConnection { stream, inbound, arena, credits, round_trip_ns, .. } = dialled;
        self.counters.round_trip_ns.store(round_trip_ns, Ordering::Relaxed);
        self.counters.connect(address.clone(), stream.transport());
        let is_here = address.inet().is_none_or(|address| address.ip().is_loopback());
        self.shared.is_same_host.store(is_here, Ordering::Relaxed);
        self.shared.reachability.note_reachable();
        let options = &self.shared.options;
        let connection = Connection::start(stream, inbound, arena, credits, options, self.counters.clone());
        self.watch_end(connection.clone(), address);
        *self.connection.borrow_mut() = Some(connection.clone());
        self.changed.notify();
        connection
    }

    fn note_failure(&self, address: Address, reason: String) {
        tracing::debug!(peer = self.shared.options.name, %address, reason, "a connection failed");
        self.shared.reachability.note_failure(rt::monotonic_ns());
        let mut failures = self.failures.borrow_mut();
        let backoff = failures.get(&address).map_or(FAILED_ADDRESS_BACKOFF, |before| before.backoff);
        failures.insert(address.clone(), Failure::now(backoff));
        self.counters.fail(address, reason);
    }

    /// Notes that a connection broke after an address was good enough to make it: its frames may be
    /// too large for that path, or get damaged on it. So other addresses are preferred, each time
    /// for longer.
    fn note_broken_connection(&self, connection: &AddressedConnection) {
        let mut failures = self.failures.borrow_mut();
        let address = Address::from(connection.address);
        let lasted = rt::monotonic_ns().saturating_sub(connection.since_ns);
        let backoff = match failures.get(&address) {
            Some(before) if lasted < LONGEST_ADDRESS_BACKOFF.as_nanos() as u64 => before.backoff * 2,
            _ => FAILED_ADDRESS_BACKOFF,
        };
        failures.insert(address, Failure::now(backoff.min(LONGEST_ADDRESS_BACKOFF)));
    }

    /// The addresses in order of preference; those that failed recently come last.
    fn ordered_addresses(&self) -> Vec<(usize, SocketAddr)> {
        let ranked = self.shared.ranked_addresses();
        // Names of Unix sockets change with each start of a server.
        let known = |address: &Address, failure: &mut Failure| match address.inet() {
            Some(address) => ranked.rank(address).is_some(),
            None => failure.is_recent(),
        };
        self.failures.borrow_mut().retain(known);
        ranked.order(self.ordinal, |address| self.failed_recently((*address).into()))
    }

    /// Whether an address failed recently.
    fn failed_recently(&self, address: Address) -> bool {
        self.failures.borrow().get(&address).is_some_and(Failure::is_recent)
    }

    /// Waits until an address with a better rank may be tried.
    async fn wait_for_better_address(&self, rank: usize) -> (usize, SocketAddr) {
        if rank == 0 {
            return std::future::pending().await;
        }
        loop {
            rt::sleep(FAILED_ADDRESS_BACKOFF).await;
            let is_retriable =
                |better: &(usize, SocketAddr)| better.0 < rank && !self.failed_recently(better.1.into());
            if let Some(better) = self.ordered_addresses().into_iter().find(is_retriable) {
                return better;
            }
        }
    }

    /// Waits until the peer no longer has this address.
    async fn wait_until_address_removed(&self, address: SocketAddr) {
        loop {
            // Before the check, so that no change is missed between the two.
            let moved = self.shared.addresses_changed.wait();
            if self.shared.ranked_addresses().rank(address).is_none() {
                return;
            }
            moved.await;
        }
    }

    /// Notes the end of a connection.
    fn watch_end(self: &Rc<Self>, connection: Rc<Connection>, address: Address) {
        let link = self.clone();
        rt::spawn(async move {
            let reason = connection.wait_until_closed().await;
            tracing::debug!(peer = link.shared.options.name, %address, reason, "a connection has ended");
            let newest =
                link.connection.borrow().as_ref().is_some_and(|newest| Rc::ptr_eq(newest, &connection));
            if newest {
                link.connection.take();
                link.counters.disconnect(address, reason);
            }
        });
    }
}

/// A call that waits for a connection, which makes the link connect.
struct WaitingCall<'a>(&'a Link);

impl<'a> WaitingCall<'a> {
    fn new(link: &'a Link) -> WaitingCall<'a> {
        link.waiting.set(link.waiting.get() + 1);
        link.changed.notify();
        WaitingCall(link)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Keeps a link connected while it is needed. The link is dropped with this task: with the peer, or
/// with the core.
struct LinkTask {
    link: Rc<Link>,
    /// The links of the core.
    links: Rc<Links>,
}

impl LinkTask {
    async fn run(self) {
        let link = self.link.clone();
        let shared = link.shared.clone();
        if let Either::Second(()) = rt::select(link.stay_connected(), shared.dropped.wait()).await
            && let Some(connection) = link.usable_connection()
        {
            connection.close_gracefully();
        }
    }
}

impl Drop for LinkTask {
    fn drop(&mut self) {
        let Link { shared, counters, .. } = &*self.link;
        let link = self.links.0.borrow_mut().remove(&shared.id);
        drop(link);
        shared.links.lock().retain(|known| !Arc::ptr_eq(known, counters));
    }
}

/// A connection, and the address that it was made to.
struct AddressedConnection {
    connection: Rc<Connection>,
    address: SocketAddr,
    /// Rank of the address: 0 is best.
    rank: usize,
    /// When it was made, by the monotonic clock.
    since_ns: u64,
}

impl AddressedConnection {
    fn new(connection: Rc<Connection>, rank: usize, address: SocketAddr) -> AddressedConnection {
        AddressedConnection { connection, address, rank, since_ns: rt::monotonic_ns() }
    }
}

impl Link {
    /// Uses a connection until it, or a better one that replaced it, accepts no more calls. Returns
    /// whether this side gave it up.
    ///
    /// A link that had to take an address of lower rank moves back once a better one answers. The
    /// server then ends the old connection, and the calls in flight on it are retransmitted.
    async fn use_until_ended(self: &Rc<Self>, mut current: AddressedConnection) -> bool {
        loop {
            let connection = current.connection.clone();
            let elsewhere = rt::select(
                self.wait_for_better_address(current.rank),
                self.wait_until_address_removed(current.address),
            );
            match rt::select(connection.wait_until_ending(), elsewhere).await {
                Either::First(()) => {
                    if connection.has_path_failure() {
                        self.note_broken_connection(&current);
                    }
                    return connection.was_abandoned();
                }
                Either::Second(Either::Second(())) => {
                    connection.close_for_address_change();
                    return true;
                }
                Either::Second(Either::First((rank, address))) => {
                    if let Ok(better) = self.try_address(address).await {
                        connection.close_gracefully();
                        current = AddressedConnection::new(better, rank, address);
                    }
                }
            }
        }
    }

    async fn stay_connected(self: &Rc<Self>) {
        let mut pause = FIRST_BACKOFF;
        loop {
            self.changed.wait_until(|| self.waiting.get() > 0 && self.usable_connection().is_none()).await;
            let mut lasted = false;
            match self.connect().await {
                Ok(connection) => {
                    self.note_outcome(None);
                    let began = rt::monotonic_ns();
                    let given_up = self.use_until_ended(connection).await;
                    let age_ns = rt::monotonic_ns() - began;
                    lasted = age_ns > LONGEST_BACKOFF.as_nanos() as u64 || given_up;
                }
                Err(refusal) => {
                    self.note_outcome(refusal);
                    self.changed.notify();
                }
            }
            // A connection that breaks soon is no better than none.
            if lasted {
                pause = FIRST_BACKOFF;
                continue;
            }
            // Randomized, so that the clients of a server that comes back don't all connect at
            // once.
            let nanos = pause.as_nanos() as u64;
            rt::sleep(Duration::from_nanos(nanos / 2 + rt::random_u64() % (nanos / 2))).await;
            pause = (pause * 2).min(LONGEST_BACKOFF);
        }
    }
}
