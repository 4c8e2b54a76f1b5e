//! The HTTP+JSON interface of management: the administrator's commands, for programs. Off unless
//! `api` in `node.toml` names an address.
//!
//! A caller authenticates with a token from a file in the node's directory, or with the certificate
//! of a node of the cluster ([`access`]). Connections are encrypted with a certificate for
//! well-known names ([`certificate`]), unless the cluster has no certificates. Each connection
//! carries one request and has its own thread: administration is rare and doesn't belong on the
//! cores that serve clients.
//!
//! Invariants:
//! - connections that send nothing, or send slowly, don't block other callers
//!   ([`connection_limits`]);
//! - read-only callers don't block administrators.

mod access;
mod certificate;
mod connection_limits;
mod deadline;
mod http;
#[cfg(test)]
mod http_fuzzing;
mod openapi;
mod routes;
#[cfg(test)]
mod tests;

pub use access::Tokens;
pub use certificate::{Certificate, certificate_names, write_ca};

use crate::control::Service;
use crate::output::os_error;
use connection_limits::{Network, RunningRequests, WaitingConnections};
use deadline::{Deadline, DeadlineStream};
use http::{Response, read_request};
use identity::Member;
use rustls::{ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{MapHandle, NodeId, Result};

/// Longest time for the handshake and the request together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for a peer to receive the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Configuration of the interface.
pub struct ApiOptions {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// `None` if the cluster has no certificates.
    pub tls: Option<Certificate>,
    /// Tokens that authenticate callers.
    pub tokens: Tokens,
    /// The cluster map, which has the roles of calling nodes.
    pub map: MapHandle,
    /// Longest time for a request to arrive.
    pub request_timeout: Duration,
}

impl ApiOptions {
    /// Options with the default time-outs.
    pub fn new(
        listen: Vec<SocketAddr>,
        tls: Option<Certificate>,
        tokens: Tokens,
        map: MapHandle,
    ) -> ApiOptions {
        ApiOptions { listen, tls, tokens, map, request_timeout: REQUEST_TIMEOUT }
    }
}

struct Api {
    options: ApiOptions,
    service: Arc<dyn Service>,
    waiting: Mutex<WaitingConnections<TcpStream>>,
    running: RunningRequests,
}

/// Starts the interface on its own threads, which run until the process ends. Returns the addresses
/// that it listens on.
pub fn start(options: ApiOptions, service: Arc<dyn Service>) -> Result<Vec<SocketAddr>> {
    let listen = options.listen.clone();
    let api =
        Arc::new(Api { options, service, waiting: Mutex::default(), running: RunningRequests::default() });
    let mut addresses = Vec::new();
    for address in listen {
        let failed = |e: std::io::Error| os_error(format_args!("can't listen at {address} (api)"), &e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        addresses.push(listener.local_addr().map_err(failed)?);
        let api = api.clone();
        let accept = move || api.accept(&listener);
        let started = std::thread::Builder::new().name("weft-api".into()).spawn(accept);
        started.map_err(|e| os_error("can't start a thread", &e))?;
    }
    Ok(addresses)
}

/// A connection, and its number among the waiting ones.
struct PendingConnection {
    stream: TcpStream,
    number: u64,
}

impl Api {
    fn waiting(&self) -> MutexGuard<'_, WaitingConnections<TcpStream>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Api>, listener: &TcpListener) {
        for accepted in listener.incoming() {
            match accepted {
                Ok(stream) => self.clone().take(stream),
                // The process may be out of descriptors, for example: accepting again at once would
                // fail again.
                Err(e) => {
                    tracing::warn!("accepting a connection to the HTTP interface failed: {e}");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn take(self: Arc<Api>, stream: TcpStream) {
        // A connection that is already closed has no peer address.
        let (Ok(peer), Ok(handle)) = (stream.peer_addr(), stream.try_clone()) else { return };
        let (number, evicted) = self.waiting().enter(Network::of(peer.ip()), handle);
        if let Some(evicted) = evicted {
            tracing::debug!(%peer, "an older connection to the HTTP interface is closed: it has sent no request");
            // This also ends the thread of that connection.
            let _ = evicted.shutdown(Shutdown::Both);
        }
        let api = self.clone();
        let serve = move || {
            if let Err(e) = api.serve(PendingConnection { stream, number }) {
                tracing::debug!(%peer, "a connection to the HTTP interface ended: {e}");
            }
            api.waiting().leave(number);
        };
        if std::thread::Builder::new().name("weft-api-call".into()).spawn(serve).is_err() {
            self.waiting().leave(number);
        }
    }

    fn serve(&self, PendingConnection { stream, number }: PendingConnection) -> std::io::Result<()> {
        let deadline = Deadline::after(self.options.request_timeout);
        let mut stream = DeadlineStream::by(stream, &deadline);
        let Some(certificate) = &self.options.tls else {
            return self.answer(&mut stream, &deadline, number, None);
        };
        let mut connection = ServerConnection::new(certificate.config()).map_err(std::io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        let peer = identity::tls::peer_identity(connection.peer_certificates());
        let node = match peer {
            Ok(Some(identity::Identity { role: Member::Node(node), .. })) => Some(node),
            _ => None,
        };
        let mut stream = StreamOwned::new(connection, stream);
        self.answer(&mut stream, &deadline, number, node)?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    /// Answers one request. `node`: the node whose certificate the caller presented.
    fn answer(
        &self,
        stream: &mut (impl Read + Write),
        deadline: &Deadline,
        number: u64,
        node: Option<NodeId>,
    ) -> std::io::Result<()> {
        let request = match read_request(stream)? {
            Err(refusal) => return refusal.write(stream),
            Ok(request) => request,
        };
        let is_head = request.method == "HEAD";
        let map = self.options.map.load();
        let Some(rights) = access::rights_of(&self.options.tokens, node, &map, &request) else {
            tracing::warn!(
                path = request.path,
                "a request to the HTTP interface without a valid token was refused"
            );
            let hint = "send Authorization: Bearer TOKEN, from the file api.token or api.read-tokens";
            return Response::error(401, "the token is missing or wrong", hint)
                .write_response(stream, is_head);
        };
        // The connection was evicted while its request arrived.
        if !self.waiting().leave(number) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        // The slot is held until the peer has received the response, so callers that don't read it
        // hold a bounded number of threads.
        let slot = self.running.take(rights);
        let response = match &slot {
            _ if !rights.allow(&request.method) => Response::error(
                403,
                "this token or certificate may only read",
                "use the token in api.token, on the management node",
            ),
            None => Response::error(503, "too many concurrent requests", "try again in a moment"),
            Some(_) => routes::answer(&*self.service, &request),
        };
        deadline.extend(RESPONSE_TIMEOUT);
        response.write_response(stream, is_head)
    }
}
