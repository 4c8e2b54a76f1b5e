//! The answering side: listeners, cores, and the connections on them.

mod accept;
mod admission;
mod connection;
mod core;
mod requests;
mod room;
mod router;

pub use router::Router;

use self::core::{Shared, run_core};
use crate::limits::{
    IDLE_BEFORE_DEATH, IDLE_BEFORE_PING, MAX_CONNECTIONS, MAX_PAYLOAD_BYTES_PER_CORE, MAX_REQUESTS_IN_FLIGHT,
    STOP_TIMEOUT,
};
use crate::{Liveness, Security};
use rt::net::{Address, Listener};
use rt::{CoreConfig, CoreGroup};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, MapHandle, Result};
use wire::frame::OnHost;

/// What a server is made of.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens; port 0 chooses a free one.
    pub listen: Vec<SocketAddr>,
    /// Threads that serve connections, each on a CPU of its own. At least one.
    pub cores: usize,
    /// What clients call this process in messages.
    pub name: String,
    /// The cluster's UUID. Clients of another cluster are refused; those that know none aren't.
    pub cluster: String,
    /// How connections are protected.
    pub security: Security,
    /// The cluster map that says what the nodes do that call. Members whose rights don't depend on
    /// that are served by an empty one, too.
    pub map: MapHandle,
    /// Whether payloads are summed when they are sent. What a client has summed is checked in any
    /// case.
    pub sum_payloads: bool,
    /// What bounds it.
    pub limits: ServerLimits,
}

/// What bounds a server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Requests in flight on one connection, those that may wait for others not counted.
    pub requests_per_connection: usize,
    /// Connections; more are closed at once.
    pub connections: usize,
    /// Bytes of requests and payloads that one core holds; it reads no more meanwhile. A part of it
    /// is kept for nodes, and one for small requests.
    pub payload_bytes_per_core: usize,
    /// When an idle connection is given up: its client may have vanished without a word. Answers
    /// that a client doesn't take for as long end its connection, too.
    pub liveness: Liveness,
    /// How long a stop waits for running requests.
    pub stop_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            requests_per_connection: MAX_REQUESTS_IN_FLIGHT,
            connections: MAX_CONNECTIONS,
            payload_bytes_per_core: MAX_PAYLOAD_BYTES_PER_CORE,
            liveness: Liveness { ask_after: IDLE_BEFORE_PING, give_up_after: IDLE_BEFORE_DEATH },
            stop_timeout: STOP_TIMEOUT,
        }
    }
}

/// A running server. It stops when told to, or when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: CoreGroup,
}

impl Server {
    /// Listens, and answers requests by `router`.
    pub fn start(options: ServerOptions, router: Router) -> Result<Arc<Server>> {
        let bind = |address: &SocketAddr| Listener::bind(*address).map_err(|e| listen_error(*address, &e));
        let mut listeners = options.listen.iter().map(bind).collect::<Result<Vec<Listener>>>()?;
        let local = listeners.iter().filter_map(|listener| listener.local_addr().ok()?.inet());
        let addresses = local.collect();
        let on_host = listen_on_host(&options.name);
        let way = on_host.as_ref().map(|(_, way)| way.clone());
        listeners.extend(on_host.map(|(listener, _)| listener));
        let shared = Arc::new(Shared::new(options, router, way));
        let server = Server { shared: shared.clone(), addresses, threads: CoreGroup::default() };
        // The first core accepts for all.
        let mut listeners = Some(listeners);
        // A process may be kept to some CPUs, those of a NUMA zone for example.
        let cpus = rt::allowed_cpus();
        for index in 0..shared.cores() {
            let cpu = cpus.get(index).copied();
            let config = CoreConfig { name: format!("weft-net-{index}"), cpu, batch: true };
            let (shared, listeners) = (shared.clone(), listeners.take().unwrap_or_default());
            let started = server.threads.start(config, move || run_core(shared, index, listeners));
            // On failure the server is dropped, which stops what has started.
            started.map_err(|e| thread_error(index, &e))?;
        }
        Ok(Arc::new(server))
    }

    /// The addresses that it listens at.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes no more requests, says goodbye to the clients, waits for running requests to end
    /// (within a limit), and ends the threads. Blocks the calling thread, which must not be one of
    /// its own; on a simulated host it returns at once.
    pub fn stop(&self) {
        self.shared.stop.set();
        let panicked = self.threads.join();
        if panicked > 0 {
            tracing::error!("{panicked} network threads have panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Listens for processes of this machine. Without it they connect as others do.
fn listen_on_host(name: &str) -> Option<(Listener, OnHost)> {
    let host = rt::net::host()?;
    let socket = format!("weft-{:016x}{:016x}", rt::random_u64(), rt::random_u64());
    let user = rt::net::user();
    match Listener::bind(Address::Abstract(socket.clone())) {
        Ok(listener) => Some((listener, OnHost { host, socket, user })),
        Err(e) => {
            tracing::warn!("{name}: clients on this machine can't use shared memory: no Unix socket: {e}");
            None
        }
    }
}

fn listen_error(address: SocketAddr, e: &std::io::Error) -> Error {
    let errno = Errno(e.raw_os_error().unwrap_or(Errno::EIO.0));
    let error = Error::new(errno, format!("can't listen at {address}: {e}"));
    match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            error.hint(format!("see who listens there: ss -ltnp | grep {}", address.port()))
        }
        std::io::ErrorKind::AddrNotAvailable => {
            error.hint("listen at an address of this machine: ip address")
        }
        _ => error,
    }
}

fn thread_error(index: usize, e: &std::io::Error) -> Error {
    Error::new(
        Errno(e.raw_os_error().unwrap_or(Errno::EIO.0)),
        format!("can't start network thread {index}: {e}"),
    )
}
