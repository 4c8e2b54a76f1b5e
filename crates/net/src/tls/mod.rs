//! Connections between authenticated ends, encrypted unless both ends opt out.
//!
//! A handshake (TLS 1.3, certificates on both sides) ends with one encrypted byte from the server.
//! It says that the server has accepted the client, and which [`Protection`] the server has
//! understood them to agree on. So a refused client knows it before it sends anything, and neither
//! end ever sends plaintext while the other encrypts.

mod session;

use crate::revocations::Revocations;
use identity::tls::{
    UnauthenticatedClients, client_config, join_config, peer_identity, peer_name, server_config,
};
use identity::{Credentials, Identity, JoinToken, Protection};
use parking_lot::RwLock;
use rt::IoBuf;
use rt::net::Socket;
use rustls::{ClientConfig, ServerConfig};
use session::{Plaintext, Session, Step};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::sync::Arc;
use types::NodeId;

/// The TLS configuration of a process. Cheap to clone; clones share the certificate, including a
/// renewed one, and the list of revoked ones.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
    /// The node that must be at the other end of outgoing connections.
    node: Option<NodeId>,
    /// Decides whether a member may connect.
    admit: Option<Arc<Admit>>,
}

/// State shared by all clones.
struct Shared {
    configs: RwLock<HandshakeConfigs>,
    /// `None` for a process without a certificate.
    options: Option<(Protection, UnauthenticatedClients)>,
    revocations: Revocations,
}

/// Configuration of handshakes that begin now.
struct HandshakeConfigs {
    client: Arc<ClientConfig>,
    /// `None` for a process without a certificate.
    server: Option<Arc<ServerConfig>>,
    /// Identity in this process's certificate, for messages.
    own: Arc<str>,
}

impl HandshakeConfigs {
    fn of(
        credentials: &Credentials,
        (protection, unauthenticated_clients): (Protection, UnauthenticatedClients),
    ) -> identity::Result<HandshakeConfigs> {
        let identity = credentials.identity();
        Ok(HandshakeConfigs {
            client: client_config(credentials, protection)?,
            server: Some(server_config(credentials, protection, unauthenticated_clients)?),
            own: format!("{identity}, certificate {}", identity.serial).into(),
        })
    }
}

type Admit = dyn Fn(&Identity) -> bool + Send + Sync;

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Tls {
    /// The configuration of a member. Connections are encrypted unless both ends use
    /// [`Protection::HandshakeOnly`].
    pub fn member(
        credentials: &Credentials,
        protection: Protection,
        unauthenticated_clients: UnauthenticatedClients,
    ) -> identity::Result<Tls> {
        let options = (protection, unauthenticated_clients);
        let shared = Shared {
            configs: RwLock::new(HandshakeConfigs::of(credentials, options)?),
            options: Some(options),
            revocations: Revocations::default(),
        };
        Ok(Tls { shared: Arc::new(shared), node: None, admit: None })
    }

    /// Uses another certificate of the same member from now on, in every clone. Existing
    /// connections aren't affected. Does nothing for a process without a certificate.
    ///
    /// # Errors
    /// The certificate can't be used; nothing has changed then.
    pub fn renew(&self, credentials: &Credentials) -> identity::Result<()> {
        if let Some(options) = self.shared.options {
            let configs = HandshakeConfigs::of(credentials, options)?;
            *self.shared.configs.write() = configs;
        }
        Ok(())
    }

    /// The list by which every clone refuses clients with revoked certificates.
    pub(crate) fn revocations(&self) -> &Revocations {
        &self.shared.revocations
    }

    /// The configuration of a machine with a join token that wants to become a member. It can
    /// connect, to management, and accepts no connections.
    pub fn joining(token: &JoinToken) -> identity::Result<Tls> {
        let own = "a machine with a join token".into();
        let configs = HandshakeConfigs { client: join_config(token)?, server: None, own };
        let shared =
            Shared { configs: RwLock::new(configs), options: None, revocations: Revocations::default() };
        Ok(Tls { shared: Arc::new(shared), node: None, admit: None })
    }

    /// The same, but outgoing connections must reach this node.
    pub fn to_node(&self, node: NodeId) -> Tls {
        Tls { node: Some(node), ..self.clone() }
    }

    /// The same, but only members that `admit` accepts may connect: a certificate is valid for
    /// years, and some members are removed earlier. Called once for each connection.
    pub fn with_admission_check(&self, admit: impl Fn(&Identity) -> bool + Send + Sync + 'static) -> Tls {
        Tls { admit: Some(Arc::new(admit)), ..self.clone() }
    }

    /// Identity in this end's certificate, for messages.
    pub(crate) fn own_identity(&self) -> Arc<str> {
        self.shared.configs.read().own.clone()
    }

    fn client(&self) -> Arc<ClientConfig> {
        self.shared.configs.read().client.clone()
    }

    /// Does the client's handshake. The caller bounds the time.
    pub(crate) async fn connect(&self, socket: Socket) -> io::Result<Authenticated> {
        let session = Session::client(self.client(), peer_name(self.node))?;
        Handshake { socket, session, on_host: false }.handshake_as_client().await
    }

    /// The same over a Unix socket. After the handshake that carries plaintext, whatever protection
    /// other connections have.
    pub(crate) async fn connect_on_host(&self, socket: Socket) -> io::Result<Socket> {
        let session = Session::client(self.client(), peer_name(self.node))?;
        match (Handshake { socket, session, on_host: true }).handshake_as_client().await?.socket {
            SecuredSocket::Plain(socket) => Ok(socket),
            SecuredSocket::Encrypted(_) => Err(refused("a Unix socket is not encrypted")),
        }
    }

    /// Does the server's handshake over a Unix socket.
    pub(crate) async fn accept_on_host(&self, socket: Socket) -> io::Result<(Socket, Option<Identity>)> {
        let Authenticated { identity, socket } = self.accept_handshake(socket, true).await?;
        match socket {
            SecuredSocket::Plain(socket) => Ok((socket, identity)),
            SecuredSocket::Encrypted(_) => Err(refused("a Unix socket is not encrypted")),
        }
    }

    /// Does the server's handshake. The caller bounds the time.
    pub(crate) async fn accept(&self, socket: Socket) -> io::Result<Authenticated> {
        self.accept_handshake(socket, false).await
    }

    async fn accept_handshake(&self, socket: Socket, on_host: bool) -> io::Result<Authenticated> {
        let server = self.shared.configs.read().server.clone();
        let server =
            server.ok_or_else(|| refused("this process has no certificate to be connected to with"))?;
        let session = Session::server(server)?;
        let admit = |identity: &Identity| {
            !self.shared.revocations.is_revoked(identity)
                && self.admit.as_ref().is_none_or(|admit| admit(identity))
        };
        Handshake { socket, session, on_host }.handshake_as_server(&admit).await
    }
}

fn refused(cause: impl Into<String>) -> io::Error {
    TlsRefusal { cause: cause.into(), remedy: CHECK_BOTH, is_of_this_end: false }.into()
}

/// Remedy when it isn't known which end is wrong.
const CHECK_BOTH: &str = "check the address, the clocks of both machines and when their certificates end";

/// Remedy when the other end has a certificate of an unknown authority.
const OTHER_CLUSTER: &str = "check the address: another cluster answers there; a machine joins that cluster with a token of its own (weft cluster \
     token on its management node), and mounts it with a cluster file of its own (weft client add NAME)";

/// Remedy when this end's certificate isn't valid any more.
const NEW_CERTIFICATE: &str = "request a new certificate: on the management node weft client add NAME makes a cluster file for a \
     client, weft cluster token --client makes one that clients share, and weft cluster token lets a node join again";

/// A refusal of one end by the other, which is permanent.
#[derive(Debug)]
pub(crate) struct TlsRefusal {
    cause: String,
    remedy: &'static str,
    /// The intended peer refuses this end.
    is_of_this_end: bool,
}

impl TlsRefusal {
    /// Whether an error is the refusal of this end by the intended peer. Otherwise another process
    /// may have been reached.
    pub(crate) fn is_of_this_end(error: &io::Error) -> bool {
        error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<TlsRefusal>())
            .is_some_and(|refusal| refusal.is_of_this_end)
    }

    /// The hint for an error.
    pub(crate) fn remedy_for(error: &io::Error) -> &'static str {
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsRefusal>());
        refusal.map_or(CHECK_BOTH, |refusal| refusal.remedy)
    }
}

impl fmt::Display for TlsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS: {}", self.cause)
    }
}

impl std::error::Error for TlsRefusal {}

impl From<TlsRefusal> for io::Error {
    fn from(refusal: TlsRefusal) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

/// A connection after its handshake.
pub(crate) struct Authenticated {
    /// The peer's identity; `None` for one without a certificate.
    pub(crate) identity: Option<Identity>,
    pub(crate) socket: SecuredSocket,
}

/// How the bytes after a handshake are transported.
pub(crate) enum SecuredSocket {
    Encrypted(Box<TlsSocket>),
    Plain(Socket),
}

/// A handshake in progress.
struct Handshake {
    socket: Socket,
    session: Session,
    /// Over a Unix socket.
    on_host: bool,
}

impl Handshake {
    async fn handshake_as_client(mut self) -> io::Result<Authenticated> {
        self.complete_handshake().await?;
        let protection = self.negotiated_protection()?;
        let acceptance = IoBuf::alloc(1);
        loop {
            match self.session.decrypt(&acceptance)? {
                Some(0) => self.receive().await?,
                Some(_) => break,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        match acceptance.as_slice()[0] {
            NOT_ADMITTED => {
                let cause = "the server refuses this member: it was removed from the \
                             cluster, or its certificate revoked"
                    .into();
                Err(TlsRefusal { cause, remedy: NEW_CERTIFICATE, is_of_this_end: true }.into())
            }
            byte if byte == self.acceptance_byte(protection) => self.into_authenticated(protection),
            _ => Err(refused("the ends disagree on encryption")),
        }
    }

    async fn handshake_as_server(mut self, admit: &dyn Fn(&Identity) -> bool) -> io::Result<Authenticated> {
        self.complete_handshake().await?;
        let protection = self.negotiated_protection()?;
        let removed = self.identity()?.filter(|identity| !admit(identity));
        let acceptance = if removed.is_some() { NOT_ADMITTED } else { self.acceptance_byte(protection) };
        let acceptance = IoBuf::from_slice(&[acceptance]);
        let sent = self.session.encrypt(&mut Plaintext::new(vec![acceptance]))?;
        self.socket.send(sent.into_iter().collect()).await?;
        match removed {
            Some(identity) => Err(refused(format!("{identity} is not admitted any more"))),
            None => self.into_authenticated(protection),
        }
    }

    async fn complete_handshake(&mut self) -> io::Result<()> {
        loop {
            let step = self.session.continue_handshake();
            // After an error there may be an alert to send, too.
            let control = self.session.take_control();
            if !control.is_empty() {
                self.socket.send(vec![IoBuf::from_slice(&control)]).await?;
            }
            match step? {
                _ if !self.session.is_handshaking() => return Ok(()),
                Step::NeedsBytes => self.receive().await?,
                Step::Continue | Step::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    async fn receive(&mut self) -> io::Result<()> {
        match self.socket.recv(self.session.receive_buffer()).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => {
                self.session.received(bytes);
                Ok(())
            }
        }
    }

    /// The byte by which the server accepts the client. It differs on a Unix socket, so that a byte
    /// for one kind of connection can't be relayed to the other.
    fn acceptance_byte(&self, protection: Protection) -> u8 {
        if self.on_host { ON_HOST } else { protection_byte(protection) }
    }

    fn negotiated_protection(&self) -> io::Result<Protection> {
        Protection::negotiated(self.session.protocol())
            .ok_or_else(|| refused("the peer speaks another protocol"))
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        peer_identity(self.session.peer_certificates()).map_err(|e| refused(e.to_string()))
    }

    fn into_authenticated(self, protection: Protection) -> io::Result<Authenticated> {
        let identity = peer_identity(self.session.peer_certificates()).map_err(|e| refused(e.to_string()))?;
        let socket = match protection {
            Protection::Encrypted if !self.on_host => {
                SecuredSocket::Encrypted(Box::new(TlsSocket::new(self.socket, self.session)))
            }
            _ if self.session.is_drained() => SecuredSocket::Plain(self.socket),
            _ => return Err(refused("the peer sent data before it was accepted")),
        };
        Ok(Authenticated { identity, socket })
    }
}

/// The server's last handshake byte to a member with a valid certificate that isn't admitted.
const NOT_ADMITTED: u8 = 0;

/// The server's last handshake byte to a client that it accepts over a Unix socket.
const ON_HOST: u8 = 3;

/// The server's last handshake byte to a client that it accepts.
fn protection_byte(protection: Protection) -> u8 {
    match protection {
        Protection::Encrypted => 1,
        Protection::HandshakeOnly => 2,
    }
}

/// An encrypted connection. One send and one receive may be in progress at a time, in different
/// tasks.
pub(crate) struct TlsSocket {
    socket: Socket,
    session: RefCell<Session>,
}

impl TlsSocket {
    fn new(socket: Socket, session: Session) -> TlsSocket {
        TlsSocket { socket, session: RefCell::new(session) }
    }

    /// Receives at least one byte; returns 0 at the end of the stream.
    pub(crate) async fn recv(&self, buf: IoBuf) -> io::Result<usize> {
        loop {
            let room = {
                let mut session = self.session.borrow_mut();
                match session.decrypt(&buf)? {
                    None => return Ok(0),
                    Some(0) => session.receive_buffer(),
                    Some(bytes) => return Ok(bytes),
                }
            };
            match self.socket.recv(room).await? {
                0 if self.session.borrow().is_drained() => return Ok(0),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => self.session.borrow_mut().received(bytes),
            }
        }
    }

    /// Fills `buf`.
    pub(crate) async fn recv_exact(&self, buf: IoBuf) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.recv(buf.slice(done..buf.len())).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => done += got,
            }
        }
        Ok(())
    }

    /// Sends everything.
    pub(crate) async fn send(&self, pieces: Vec<IoBuf>) -> io::Result<()> {
        let mut plain = Plaintext::new(pieces);
        loop {
            let records = self.session.borrow_mut().encrypt(&mut plain)?;
            match records {
                Some(records) => self.socket.send(vec![records]).await?,
                None => return Ok(()),
            }
        }
    }

    /// Bytes that the peer has acknowledged so far, see [`Socket::acknowledged_bytes`].
    pub(crate) fn acknowledged_bytes(&self) -> Option<u64> {
        self.socket.acknowledged_bytes()
    }

    /// Ends the connection and all operations on it.
    pub(crate) fn shutdown(&self) {
        self.socket.shutdown();
    }

    /// Prepares the connection for a move to another core. No operation is in progress.
    pub(crate) fn detach(self) -> io::Result<DetachedTls> {
        Ok(DetachedTls { socket: self.socket, session: self.session.into_inner() })
    }
}

/// An encrypted connection that is being moved to another core.
pub(crate) struct DetachedTls {
    socket: Socket,
    session: Session,
}

impl DetachedTls {
    /// Resumes the connection on its new core.
    pub(crate) fn attach(self) -> TlsSocket {
        TlsSocket::new(self.socket, self.session)
    }
}
