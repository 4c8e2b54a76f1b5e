//! The server side: listeners, cores, and their connections.

mod accept;
mod authorization;
mod connection;
mod core;
mod memory_budget;
mod requests;
mod router;

pub use router::Router;

use self::core::{Shared, run_core};
use crate::limits::{
    IDLE_BEFORE_PING, IDLE_TIMEOUT, MAX_CONNECTIONS, MAX_PAYLOAD_BYTES_PER_CORE, MAX_REQUESTS_IN_FLIGHT,
    STOP_TIMEOUT,
};
use crate::{Liveness, Security};
use rt::net::{Address, Listener};
use rt::{CoreConfig, CoreGroup};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, MapHandle, Result};
use wire::frame::LocalEndpoint;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Addresses to listen on; port 0 chooses a free port.
    pub listen: Vec<SocketAddr>,
    /// Threads that serve connections, each pinned to its own CPU. At least one.
    pub cores: usize,
    /// Name of this process in messages of clients.
    pub name: String,
    /// The cluster's UUID. Clients of another cluster are refused; those that don't know their
    /// cluster aren't.
    pub cluster: String,
    /// How connections are protected.
    pub security: Security,
    /// The cluster map by which requests of nodes are authorized. Callers whose rights don't depend
    /// on it are served with an empty map, too.
    pub map: MapHandle,
    /// Whether payloads get a checksum when they are sent. Checksums of received payloads are
    /// always verified.
    pub checksum_payloads: bool,
    /// Limits of the server.
    pub limits: ServerLimits,
}

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Requests in flight on one connection, except those that may wait for other clients.
    pub requests_per_connection: usize,
    /// Connections; more are refused.
    pub connections: usize,
    /// Bytes of requests and payloads that one core holds; above that it stops reading. One part is
    /// reserved for nodes, and one for small requests.
    pub payload_bytes_per_core: usize,
    /// When an idle connection is ended: its client may have vanished. A client that reads no
    /// answers for that long loses its connection, too.
    pub liveness: Liveness,
    /// Longest time that a stop waits for running requests.
    pub stop_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            requests_per_connection: MAX_REQUESTS_IN_FLIGHT,
            connections: MAX_CONNECTIONS,
            payload_bytes_per_core: MAX_PAYLOAD_BYTES_PER_CORE,
            liveness: Liveness { ping_after: IDLE_BEFORE_PING, dead_after: IDLE_TIMEOUT },
            stop_timeout: STOP_TIMEOUT,
        }
    }
}

/// A running server. Stops on [`Server::stop`], or when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: CoreGroup,
}

impl Server {
    /// Listens, and dispatches requests to the services of `router`.
    pub fn start(options: ServerOptions, router: Router) -> Result<Arc<Server>> {
        let bind = |address: &SocketAddr| Listener::bind(*address).map_err(|e| listen_error(*address, &e));
        let mut listeners = options.listen.iter().map(bind).collect::<Result<Vec<Listener>>>()?;
        let local = listeners.iter().filter_map(|listener| listener.local_addr().ok()?.inet());
        let addresses = local.collect();
        let on_host = listen_on_host(&options.name);
        let endpoint = on_host.as_ref().map(|(_, way)| way.clone());
        listeners.extend(on_host.map(|(listener, _)| listener));
        let shared = Arc::new(Shared::new(options, router, endpoint));
        let server = Server { shared: shared.clone(), addresses, threads: CoreGroup::default() };
        // The first core accepts for all.
        let mut listeners = Some(listeners);
        // A process may be restricted to some CPUs, those of a NUMA node for example.
        let cpus = rt::allowed_cpus();
        for index in 0..shared.cores() {
            let cpu = cpus.get(index).copied();
            let config = CoreConfig { name: format!("weft-net-{index}"), cpu, batch: true };
            let (shared, listeners) = (shared.clone(), listeners.take().unwrap_or_default());
            let started = server.threads.start(config, move || run_core(shared, index, listeners));
            // On failure the server is dropped, which stops the cores that have started.
            started.map_err(|e| thread_error(index, &e))?;
        }
        Ok(Arc::new(server))
    }

    /// The addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Stops accepting requests, sends a goodbye to the clients, waits for running requests (within
    /// the time-out), and ends the threads. Blocks the calling thread, which must not be one of the
    /// server's; on a simulated host it returns at once.
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

/// Listens for processes of this machine. If that fails they connect over TCP.
fn listen_on_host(name: &str) -> Option<(Listener, LocalEndpoint)> {
    let host = rt::net::host_id()?;
    let socket = format!("weft-{:016x}{:016x}", rt::random_u64(), rt::random_u64());
    let user = rt::net::user_id();
    match Listener::bind(Address::Abstract(socket.clone())) {
        Ok(listener) => Some((listener, LocalEndpoint { host, socket, user })),
        Err(e) => {
            tracing::warn!("{name}: clients on this machine can't use shared memory: no Unix socket: {e}");
            None
        }
    }
}

fn listen_error(address: SocketAddr, e: &std::io::Error) -> Error {
    let errno = Errno::Number(e.raw_os_error().unwrap_or(Errno::EIO.number()));
    let error = Error::new(errno, format!("can't listen at {address}: {e}"));
    match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            error.hint(format!(
                "ss -ltnp 'sport = :{}' shows who listens there; a node can listen elsewhere: listen and addresses in node.toml",
                address.port()
            ))
        }
        std::io::ErrorKind::AddrNotAvailable => {
            error.hint("listen at an address of this machine: ip address")
        }
        _ => error,
    }
}

fn thread_error(index: usize, e: &std::io::Error) -> Error {
    Error::new(
        Errno::Number(e.raw_os_error().unwrap_or(Errno::EIO.number())),
        format!("can't start network thread {index}: {e}"),
    )
}
