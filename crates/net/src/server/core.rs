//! One core of a server: the connections that it was handed.

use super::admission::Admission;
use super::connection::Connection;
use super::room::Room;
use super::router::Router;
use super::{ServerOptions, accept};
use crate::Caller;
use crate::either::either;
use crate::limits::MAX_SHARED_MEMORY_IN_ALL;
use crate::signal::Signal;
use crate::stream::Parked;
use identity::Role;
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
use wire::frame::OnHost;

/// What the cores of a server share.
pub(super) struct Shared {
    pub(super) options: ServerOptions,
    pub(super) router: Router,
    pub(super) admission: Admission,
    /// The server is to stop.
    pub(super) stop: Event,
    /// One for each core.
    inboxes: Vec<Inbox>,
    connections: AtomicUsize,
    /// Bytes that clients on this machine share.
    mapped: AtomicUsize,
    /// How those reach this server.
    pub(super) on_host: Option<OnHost>,
}

/// Connections on their way to a core. The number of connections bounds it.
#[derive(Default)]
struct Inbox {
    arrivals: Mutex<Vec<Arrival>>,
    came: Event,
}

/// A connection that has said hello.
pub(super) struct Arrival {
    pub(super) stream: Parked,
    /// What a client on this machine shares.
    pub(super) memory: Option<Arc<SharedMemory>>,
    pub(super) caller: Caller,
    pub(super) incarnation: u64,
    pub(super) place: Place,
}

/// A connection's place among those that the server may have; free again when dropped.
pub(super) struct Place {
    shared: Arc<Shared>,
    /// Bytes that are mapped for it.
    mapped: usize,
}

impl Place {
    /// Counts memory that a client shares; an error if that would be too much for this server.
    pub(super) fn map(&mut self, bytes: usize) -> io::Result<()> {
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

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.mapped.fetch_sub(self.mapped, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn new(options: ServerOptions, router: Router, on_host: Option<OnHost>) -> Shared {
        let inboxes = (0..options.cores.max(1)).map(|_| Inbox::default()).collect();
        let (connections, mapped) = Default::default();
        let admission = Admission::by(options.map.clone());
        Shared { options, router, admission, stop: Event::new(), inboxes, connections, mapped, on_host }
    }

    pub(super) fn cores(&self) -> usize {
        self.inboxes.len()
    }

    /// A place for another connection; `None` if there are as many as there may be.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let taken = Place { shared: self.clone(), mapped: 0 };
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        (before < self.options.limits.connections).then_some(taken)
    }

    /// Hands a connection to the core that serves its client core.
    pub(super) fn hand_over(&self, arrival: Arrival) {
        let inbox = &self.inboxes[arrival.caller.core as usize % self.inboxes.len()];
        inbox.arrivals.lock().push(arrival);
        inbox.came.set();
    }
}

/// One core of one client: it has one connection at a time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientCore {
    /// What it has proved to be, so that nobody can end the connections of others by saying their
    /// number.
    pub(super) role: Option<Role>,
    /// Random number of its process.
    pub(super) client: u64,
    pub(super) core: u32,
}

impl ClientCore {
    pub(super) fn of(caller: &Caller) -> ClientCore {
        ClientCore { role: caller.proof.role().cloned(), client: caller.client, core: caller.core }
    }
}

/// What the connections of one core share.
pub(super) struct ServerCore {
    pub(super) shared: Arc<Shared>,
    pub(super) room: Room,
    /// The newest connection of each client core; its tasks own it, so that it ends with them.
    clients: RefCell<BTreeMap<ClientCore, Weak<Connection>>>,
    /// A connection has gone.
    pub(super) changed: Signal,
}

/// Somebody has a newer connection.
pub(super) struct Outdated;

impl ServerCore {
    /// The newest connection of a client core.
    pub(super) fn newest(&self, key: &ClientCore) -> Option<Rc<Connection>> {
        self.clients.borrow().get(key).and_then(Weak::upgrade)
    }

    /// Makes a connection the newest of its client core; gives the one before it, which is to be
    /// ended.
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

    /// Forgets a connection that has ended.
    pub(super) fn forget(&self, connection: &Rc<Connection>) {
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
        room: Room::new(shared.options.limits.payload_bytes_per_core),
        shared: shared.clone(),
        clients: RefCell::default(),
        changed: Signal::default(),
    });
    for listener in listeners {
        rt::spawn(accept::accept_all(shared.clone(), listener));
    }
    let inbox = &shared.inboxes[index];
    while !shared.stop.is_set() {
        inbox.came.clear();
        let arrivals = std::mem::take(&mut *inbox.arrivals.lock());
        for arrival in arrivals {
            rt::spawn(Connection::serve(core.clone(), arrival));
        }
        either(inbox.came.wait(), shared.stop.wait()).await;
    }
    core.end_all().await;
}

impl ServerCore {
    fn connections(&self) -> Vec<Rc<Connection>> {
        self.clients.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// Ends all connections in good order, within the limit.
    async fn end_all(&self) {
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
