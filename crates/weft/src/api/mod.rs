//! The HTTP+JSON interface of management: what the commands do, for programs. Off unless `api` in `node.toml` names an address.
//!
//! Who asks proves to be an administrator by the certificate of a node of the cluster, or by the token in the file `api.token` of the node's
//! directory. Connections are encrypted with the node's certificate, unless the cluster has none. One request a connection, each on a thread of its
//! own: administration is rare, and none of it belongs on the cores that serve clients.

mod http;
#[cfg(test)]
mod http_fuzzing;
mod openapi;
mod routes;
#[cfg(test)]
mod tests;

use crate::control::Service;
use crate::node_config::write_whole;
use crate::output::os_error;
use http::{Response, read_request};
use identity::{Credentials, Role};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::Result;

/// Connections at a time; more are closed at once. Each has a thread.
const MAX_CONNECTIONS: usize = 32;

/// How long a peer may take to send its request or to take the answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the interface is offered.
pub struct ApiOptions {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Nothing where the cluster has no certificates.
    pub tls: Option<Arc<ServerConfig>>,
    /// What an administrator proves itself with.
    pub token: String,
}

/// The configuration of TLS for a node's credentials: who brings no certificate needs the token.
pub fn tls_config(credentials: &Credentials) -> Result<Arc<ServerConfig>> {
    let strangers = identity::tls::Strangers::MayJoin;
    let config = identity::tls::server_config(credentials, identity::Protection::Encrypted, strangers)?;
    let mut config = ServerConfig::clone(&config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The token of a node's directory, made when there is none.
pub fn token_in(dir: &Path) -> Result<String> {
    let path = dir.join("api.token");
    match std::fs::read_to_string(&path) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_string()),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(os_error(path.display(), &e)),
        _ => {}
    }
    let token: String = (0..4).map(|_| format!("{:016x}", rt::random_u64())).collect();
    write_whole(&path, &format!("{token}\n"), 0o600)?;
    Ok(token)
}

struct Api {
    tls: Option<Arc<ServerConfig>>,
    token: String,
    service: Arc<dyn Service>,
    connections: AtomicUsize,
}

/// Opens the interface on threads of its own, until the process ends. Where it listens.
pub fn start(options: ApiOptions, service: Arc<dyn Service>) -> Result<Vec<SocketAddr>> {
    let ApiOptions { listen, tls, token } = options;
    let api = Arc::new(Api { tls, token, service, connections: AtomicUsize::new(0) });
    let mut addresses = Vec::new();
    for address in listen {
        let failed = |e: std::io::Error| os_error(format_args!("can't listen at {address} (api)"), &e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        addresses.push(listener.local_addr().map_err(failed)?);
        let api = api.clone();
        let accept = move || listener.incoming().flatten().for_each(|stream| api.clone().take(stream));
        let started = std::thread::Builder::new().name("weft-api".into()).spawn(accept);
        started.map_err(|e| os_error("can't start a thread", &e))?;
    }
    Ok(addresses)
}

impl Api {
    fn take(self: Arc<Api>, stream: TcpStream) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("a connection to the HTTP interface is refused: there are {MAX_CONNECTIONS}");
            return;
        }
        let api = self.clone();
        let serve = move || {
            if let Err(e) = api.serve(stream) {
                tracing::debug!("a connection to the HTTP interface ended: {e}");
            }
            api.connections.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("weft-api-call".into()).spawn(serve).is_err() {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some(config) = &self.tls else { return self.answer(&mut stream, false) };
        let mut connection = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        let peer = identity::tls::peer_identity(connection.peer_certificates());
        let is_node = peer.is_ok_and(|peer| peer.is_some_and(|peer| matches!(peer.role, Role::Node(_))));
        let mut stream = StreamOwned::new(connection, stream);
        self.answer(&mut stream, is_node)?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    fn answer(&self, stream: &mut (impl Read + Write), is_node: bool) -> std::io::Result<()> {
        let response = match read_request(stream)? {
            Err(refusal) => refusal,
            Ok(request)
                if !is_node && !request.token.as_deref().is_some_and(|token| self.is_token(token)) =>
            {
                tracing::warn!(
                    path = request.path,
                    "a request to the HTTP interface without the token is refused"
                );
                Response::refused(
                    401,
                    "the token is missing or wrong",
                    "send Authorization: Bearer TOKEN, from the file api.token",
                )
            }
            Ok(request) => routes::answer(&*self.service, &request),
        };
        response.write(stream)
    }

    /// Takes as long for every wrong token of its length.
    fn is_token(&self, given: &str) -> bool {
        let (given, token) = (given.as_bytes(), self.token.as_bytes());
        given.len() == token.len() && given.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}
