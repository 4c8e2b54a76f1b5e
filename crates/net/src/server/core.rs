//! One core of a server and the connections assigned to it.

use super::authorization::Authorizer;
use super::connection::Connection;
use super::memory_budget::MemoryBudget;
use super::router::Router;
use super::{ServerOptions, accept};
use crate::Caller;
use crate::limits::MAX_SHARED_MEMORY_IN_ALL;
use crate::signal::Signal;
use crate::stream::DetachedStream;
use identity::Member;
use parking_lot::Mutex;
use rt::SharedMemory;
use rt::net::Listener;
use rt::sync::Event;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wire::frame::LocalEndpoint;

/// State shared by the cores of a server.
pub(super) struct Shared {
    pub(super) options: ServerOptions,
    pub(super) router: Router,
    pub(super) authorizer: Authorizer,
    /// Set when the server must stop.
    pub(super) stop: Event,
    /// One for each core.
    inboxes: Vec<Inbox>,
    connections: AtomicUsize,
    /// Bytes of memory that clients on this machine share.
    mapped: AtomicUsize,
    /// How clients on this machine reach the server.
    pub(super) on_host: Option<LocalEndpoint>,
}

/// Connections being moved to a core. Bounded by the number of connections.
#[derive(Default)]
struct Inbox {
    arrivals: Mutex<Vec<IncomingConnection>>,
    arrived: Event,
}

/// A connection that has sent its hello.
pub(super) struct IncomingConnection {
    pub(super) stream: DetachedStream,
    /// Memory that a client on this machine shares.
    pub(super) memory: Option<Arc<SharedMemory>>,
    pub(super) caller: Caller,
    pub(super) incarnation: u64,
    pub(super) slot: ConnectionSlot,
}

/// A connection's place among those that the server may have; freed when dropped.
pub(super) struct ConnectionSlot {
    shared: Arc<Shared>,
    /// Bytes mapped for the connection.
    mapped: usize,
}

impl ConnectionSlot {
    /// Counts memory that a client shares; fails if that would exceed the server's limit.
    pub(super) fn add_shared_memory(&mut self, bytes: usize) -> io::Result<()> {
        self.mapped += bytes;
        let before = self.shared.mapped.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= MAX_SHARED_MEMORY_IN_ALL {
            return Ok(());
        }
        let message = format!(
            "clients on this machine share {before} bytes already, {MAX_SHARED_MEMORY_IN_ALL} at most are allowed"
        );
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, message))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.mapped.fetch_sub(self.mapped, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn new(options: ServerOptions, router: Router, on_host: Option<LocalEndpoint>) -> Shared {
        let inboxes = (0..options.cores.max(1)).map(|_| Inbox::default()).collect();
        let (connections, mapped) = Default::default();
        let authorizer = Authorizer::new(options.map.clone());
        Shared { options, router, authorizer, stop: Event::new(), inboxes, connections, mapped, on_host }
    }

    pub(super) fn cores(&self) -> usize {
        self.inboxes.len()
    }

    /// Reserves a place for another connection; `None` if the server has its maximum.
    pub(super) fn reserve_slot(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let slot = ConnectionSlot { shared: self.clone(), mapped: 0 };
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        (before < self.options.limits.connections).then_some(slot)
    }

    /// Moves a connection to the core that serves its client core.
    pub(super) fn assign_to_core(&self, arrival: IncomingConnection) {
        let inbox = &self.inboxes[arrival.caller.core as usize % self.inboxes.len()];
        inbox.arrivals.lock().push(arrival);
        inbox.arrived.set();
    }
}

/// One core of one client: it has one connection at a time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientCore {
    /// Its proved role, so that a client can't end another client's connections by using its
    /// number.
    pub(super) role: Option<Member>,
    /// Random number of its process.
    pub(super) client: u64,
    pub(super) core: u32,
}

impl ClientCore {
    pub(super) fn of(caller: &Caller) -> ClientCore {
        ClientCore { role: caller.proof.role().cloned(), client: caller.client, core: caller.core }
    }
}

/// State shared by the connections of one core.
pub(super) struct ServerCore {
    pub(super) shared: Arc<Shared>,
    pub(super) memory_budget: MemoryBudget,
    /// The newest connection of each client core. Each connection is owned by its tasks, and
    /// dropped with them.
    clients: RefCell<BTreeMap<ClientCore, Weak<Connection>>>,
    /// Notified when a connection has ended.
    pub(super) changed: Signal,
}

/// The client core has a newer connection.
pub(super) struct Outdated;

impl ServerCore {
    /// The newest connection of a client core.
    pub(super) fn newest(&self, key: &ClientCore) -> Option<Rc<Connection>> {
        self.clients.borrow().get(key).and_then(Weak::upgrade)
    }

    /// Makes a connection the newest of its client core. Returns the previous one, which the caller
    /// must end.
    pub(super) fn register(&self, connection: &Rc<Connection>) -> Result<Option<Rc<Connection>>, Outdated> {
        let mut clients = self.clients.borrow_mut();
        let key = connection.key();
        let prior = clients.get(&key).and_then(Weak::upgrade);
        if prior.as_ref().is_some_and(|prior| prior.incarnation() >= connection.incarnation()) {
            return Err(Outdated);
        }
        clients.insert(key, Rc::downgrade(connection));
        Ok(prior)
    }

    /// Removes a connection that has ended.
    pub(super) fn unregister(&self, connection: &Rc<Connection>) {
        let mut clients = self.clients.borrow_mut();
        let key = connection.key();
        if clients.get(&key).is_some_and(|known| known.as_ptr() == Rc::as_ptr(connection)) {
            clients.remove(&key);
        }
        self.changed.notify();
    }
}

/// Serves the connections of one core until the server stops.
pub(super) async fn run_core(shared: Arc<Shared>, index: usize, listeners: Vec<Listener>) {
    let core = Rc::new(ServerCore {
        memory_budget: MemoryBudget::new(shared.options.limits.payload_bytes_per_core),
        shared: shared.clone(),
        clients: RefCell::default(),
        changed: Signal::default(),
    });
    for listener in listeners {
        rt::spawn(accept::accept_all(shared.clone(), listener));
    }
    let inbox = &shared.inboxes[index];
    while !shared.stop.is_set() {
        inbox.arrived.clear();
        let arrivals = std::mem::take(&mut *inbox.arrivals.lock());
        for arrival in arrivals {
            rt::spawn(Connection::serve(core.clone(), arrival));
        }
        rt::select(inbox.arrived.wait(), shared.stop.wait()).await;
    }
    core.drain_all().await;
}

impl ServerCore {
    fn connections(&self) -> Vec<Rc<Connection>> {
        self.clients.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// Ends all connections in good order, within the stop time-out.
    async fn drain_all(&self) {
        let connections = self.connections();
        connections.iter().for_each(|connection| connection.drain());
        let all_gone = self.changed.wait_until(|| self.clients.borrow().is_empty());
        let limit = self.shared.options.limits.stop_timeout;
        if rt::timeout(limit, all_gone).await.is_none() {
            let left = self.connections();
            tracing::warn!(
                connections = left.len(),
                "requests still ran when the server stopped after {limit:?}"
            );
            left.iter().for_each(|connection| connection.end(None));
        }
    }
}
