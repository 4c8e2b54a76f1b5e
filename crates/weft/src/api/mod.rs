//! The HTTP+JSON interface of management: what the commands do, for programs. Off unless `api` in
//! `node.toml` names an address.
//!
//! A caller proves what it may by a token from a file of the node's directory, or by the
//! certificate of a node of the cluster ([`access`]). Connections are encrypted, under names that
//! programs know ([`certificate`]), unless the cluster has no certificates. One request a
//! connection, each on a thread of its own: administration is rare, and none of it belongs on the
//! cores that serve clients.
//!
//! Invariants:
//! - connections that send nothing, or little by little, keep nobody out ([`slots`]);
//! - callers that only read keep no administrator out.

mod access;
mod certificate;
mod http;
#[cfg(test)]
mod http_fuzzing;
mod openapi;
mod routes;
mod slots;
#[cfg(test)]
mod tests;
mod timed;

pub use access::Tokens;
pub use certificate::{Certificate, names, write_ca};

use crate::control::Service;
use crate::output::os_error;
use http::{Response, read_request};
use identity::Role;
use rustls::{ServerConnection, StreamOwned};
use slots::{Network, Running, Waiting};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use timed::{Deadline, Timed};
use types::{MapHandle, NodeId, Result};

/// How long a peer may take for its handshake and its request, all together.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// How long a peer may take to take the answer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Rest after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How the interface is offered.
pub struct ApiOptions {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Nothing where the cluster has no certificates.
    pub tls: Option<Certificate>,
    /// What callers prove themselves with.
    pub tokens: Tokens,
    /// The cluster map, which says what nodes do that call.
    pub map: MapHandle,
    /// How long a request may take to come.
    pub request_time: Duration,
}

impl ApiOptions {
    /// The usual times.
    pub fn new(
        listen: Vec<SocketAddr>,
        tls: Option<Certificate>,
        tokens: Tokens,
        map: MapHandle,
    ) -> ApiOptions {
        ApiOptions { listen, tls, tokens, map, request_time: REQUEST_TIME }
    }
}

struct Api {
    options: ApiOptions,
    service: Arc<dyn Service>,
    waiting: Mutex<Waiting<TcpStream>>,
    running: Running,
}

/// Opens the interface on threads of its own, until the process ends. Where it listens.
pub fn start(options: ApiOptions, service: Arc<dyn Service>) -> Result<Vec<SocketAddr>> {
    let listen = options.listen.clone();
    let api = Arc::new(Api { options, service, waiting: Mutex::default(), running: Running::default() });
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

/// A connection, and its number among those that wait.
struct Arrival {
    stream: TcpStream,
    number: u64,
}

impl Api {
    fn waiting(&self) -> MutexGuard<'_, Waiting<TcpStream>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Api>, listener: &TcpListener) {
        for accepted in listener.incoming() {
            match accepted {
                Ok(stream) => self.clone().take(stream),
                // Out of descriptors, for example: it would fail again at once.
                Err(e) => {
                    tracing::warn!("accepting a connection to the HTTP interface failed: {e}");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn take(self: Arc<Api>, stream: TcpStream) {
        // One that is gone already has no address.
        let (Ok(peer), Ok(handle)) = (stream.peer_addr(), stream.try_clone()) else { return };
        let (number, gone) = self.waiting().enter(Network::of(peer.ip()), handle);
        if let Some(gone) = gone {
            tracing::debug!(%peer, "an older connection to the HTTP interface is closed: it has sent no request");
            // Its thread ends with it.
            let _ = gone.shutdown(Shutdown::Both);
        }
        let api = self.clone();
        let serve = move || {
            if let Err(e) = api.serve(Arrival { stream, number }) {
                tracing::debug!(%peer, "a connection to the HTTP interface ended: {e}");
            }
            api.waiting().leave(number);
        };
        if std::thread::Builder::new().name("weft-api-call".into()).spawn(serve).is_err() {
            self.waiting().leave(number);
        }
    }

    fn serve(&self, Arrival { stream, number }: Arrival) -> std::io::Result<()> {
        let deadline = Deadline::after(self.options.request_time);
        let mut stream = Timed::by(stream, &deadline);
        let Some(certificate) = &self.options.tls else {
            return self.answer(&mut stream, &deadline, number, None);
        };
        let mut connection = ServerConnection::new(certificate.config()).map_err(std::io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        let peer = identity::tls::peer_identity(connection.peer_certificates());
        let node = match peer {
            Ok(Some(identity::Identity { role: Role::Node(node), .. })) => Some(node),
            _ => None,
        };
        let mut stream = StreamOwned::new(connection, stream);
        self.answer(&mut stream, &deadline, number, node)?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    /// Answers one request. `node`: the one whose certificate the caller has.
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
        let map = self.options.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(rights) = access::rights_of(&self.options.tokens, node, &map, &request) else {
            tracing::warn!(path = request.path, "a request to the HTTP interface without a token is refused");
            let hint = "send Authorization: Bearer TOKEN, from the file api.token or api.read-tokens";
            return Response::refused(401, "the token is missing or wrong", hint).write_for(stream, is_head);
        };
        // It had to go while its request came.
        if !self.waiting().leave(number) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        // Until the answer is taken, too: callers that take none hold a bounded number of threads.
        let slot = self.running.take(rights);
        let response = match &slot {
            _ if !rights.allow(&request.method) => Response::refused(
                403,
                "this token or certificate may only read",
                "use the token in api.token, on the management node",
            ),
            None => {
                Response::refused(503, "too many requests are being carried out", "ask again in a moment")
            }
            Some(_) => routes::answer(&*self.service, &request),
        };
        deadline.extend(ANSWER_TIME);
        response.write_for(stream, is_head)
    }
}
