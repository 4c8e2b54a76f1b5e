//! Making a connection: connecting to an address, and the handshake.

use super::peer::Shared;
use crate::Security;
use crate::fault::Fault;
use crate::inbound::Inbound;
use crate::limits::{CONNECT_TIMEOUT, MAX_REQUESTS_IN_FLIGHT, SHARED_MEMORY_BYTES};
use crate::shared_arena::Arena;
use crate::stream::Stream;
use crate::tls::TlsRefusal;
use rt::{IoBuf, SharedMemory};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{Errno, Error};
use wire::Message;
use wire::frame::{FrameKind, Header, Hello, LocalEndpoint, VERSION, Welcome};

/// A connection that has been welcomed.
pub(super) struct NewConnection {
    pub(super) stream: Rc<Stream>,
    pub(super) inbound: Inbound,
    /// Memory shared with a server on this machine.
    pub(super) arena: Option<Rc<Arena>>,
    pub(super) credits: usize,
    pub(super) round_trip_ns: u64,
    /// How to reach the server from its own machine, if this process runs there.
    pub(super) on_host: Option<LocalEndpoint>,
    /// Name that the server gives itself.
    server: String,
}

/// Why an address of a peer can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeFailure {
    /// Nothing listens there.
    Refused,
    /// Nothing answers.
    TimedOut,
    /// The process that answers is not the peer, or refuses this process.
    WrongPeer(String),
    /// Something else.
    Failed(String),
}

impl fmt::Display for ProbeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeFailure::Refused => f.write_str("connection refused"),
            ProbeFailure::TimedOut => f.write_str("timed out"),
            ProbeFailure::WrongPeer(cause) | ProbeFailure::Failed(cause) => f.write_str(cause),
        }
    }
}

impl From<DialError> for ProbeFailure {
    fn from(error: DialError) -> ProbeFailure {
        match error {
            DialError::Failed(cause) => ProbeFailure::Failed(cause),
            DialError::Refused(error) | DialError::WrongPeer(error) => {
                ProbeFailure::WrongPeer(error.message.to_string())
            }
        }
    }
}

/// Why a connection couldn't be made.
pub(super) enum DialError {
    /// A retry may work later, or at another address.
    Failed(String),
    /// The server refuses this client.
    Refused(Error),
    /// The process at this address may not be the server, which may be at another address.
    WrongPeer(Error),
}

impl DialError {
    /// Without authentication a refusal may come from another process, of another cluster for
    /// example.
    fn or_wrong_peer(self, security: &Security) -> DialError {
        match (self, security) {
            (DialError::Refused(e), Security::Plain) if e.errno == Errno::EACCES => DialError::WrongPeer(e),
            (error, _) => error,
        }
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::Failed(reason) => f.write_str(reason),
            DialError::Refused(error) | DialError::WrongPeer(error) => write!(f, "refused: {error}"),
        }
    }
}

impl From<Fault> for DialError {
    fn from(fault: Fault) -> DialError {
        DialError::Failed(fault.to_string())
    }
}

/// Connects to one address, as core `core` of this process.
pub(super) async fn dial(
    shared: &Shared,
    address: SocketAddr,
    core: u32,
) -> Result<NewConnection, DialError> {
    let connected = shared.options.security.connect(address, CONNECT_TIMEOUT).await;
    let stream = connected.map_err(|e| connect_error(shared, address, &e))?;
    handshake(shared, stream, core).await
}

/// Connects to one address as [`dial`] does, and closes the connection.
pub(super) async fn probe(shared: &Shared, address: SocketAddr, core: u32) -> Result<String, ProbeFailure> {
    let connected = shared.options.security.connect(address, CONNECT_TIMEOUT).await;
    let stream = connected.map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => ProbeFailure::Refused,
        io::ErrorKind::TimedOut => ProbeFailure::TimedOut,
        _ => connect_error(shared, address, &e).into(),
    })?;
    Ok(handshake(shared, stream, core).await?.server)
}

/// Connects to a server on this machine.
pub(super) async fn dial_on_host(
    shared: &Shared,
    endpoint: &LocalEndpoint,
    core: u32,
) -> Result<NewConnection, DialError> {
    let (memory, fd) = SharedMemory::create(SHARED_MEMORY_BYTES).map_err(Fault::from)?;
    let connected = shared.options.security.connect_on_host(endpoint, fd, CONNECT_TIMEOUT).await;
    let dialled = handshake(shared, connected.map_err(Fault::from)?, core).await?;
    Ok(NewConnection { arena: Some(Arena::new(memory)), ..dialled })
}

/// Sends the hello and waits for the welcome.
async fn handshake(shared: &Shared, stream: Stream, core: u32) -> Result<NewConnection, DialError> {
    let stream = Rc::new(stream);
    let mut inbound = Inbound::new(stream.clone());
    let began = rt::monotonic_ns();
    send_hello(shared, &stream, core).await?;
    let mut waited = false;
    let welcome = loop {
        let answer = rt::timeout(shared.options.liveness.dead_after, receive_welcome(&mut inbound)).await;
        let answer = answer.unwrap_or(Err(DialError::from(Fault::Silent)));
        match answer.map_err(|e| e.or_wrong_peer(&shared.options.security))? {
            Some(welcome) => break welcome,
            None => waited = true,
        }
    };
    let round_trip_ns = if waited { 0 } else { rt::monotonic_ns() - began };
    let credits = (welcome.credits as usize).clamp(1, MAX_REQUESTS_IN_FLIGHT);
    let on_host = welcome.on_host.filter(|endpoint| rt::net::host_id().as_ref() == Some(&endpoint.host));
    let server = welcome.name;
    Ok(NewConnection { stream, inbound, arena: None, credits, round_trip_ns, on_host, server })
}

/// Number of connections that this process has made. Each connection gets a higher incarnation than
/// the earlier ones of its core.
#[derive(Default)]
struct Incarnations(AtomicU64);

/// A refusal by one end is permanent; all other failures may be temporary.
fn connect_error(shared: &Shared, address: SocketAddr, e: &io::Error) -> DialError {
    match (e.kind(), &shared.options.security) {
        (io::ErrorKind::PermissionDenied, Security::Tls(tls)) => {
            let message =
                format!("{} at {address}: {e} (this end is {})", shared.options.name, tls.own_identity());
            let error = Error::new(Errno::EACCES, message).hint(TlsRefusal::remedy_for(e));
            if TlsRefusal::is_of_this_end(e) {
                DialError::Refused(error)
            } else {
                DialError::WrongPeer(error)
            }
        }
        _ => DialError::Failed(e.to_string()),
    }
}

async fn send_hello(shared: &Shared, stream: &Stream, core: u32) -> Result<(), DialError> {
    let identity = &shared.options.identity;
    let hello = Hello {
        protocol: VERSION.into(),
        cluster: identity.cluster.clone(),
        name: identity.name.clone(),
        client: identity.client,
        core,
        cores: 0,
        incarnation: 1 + rt::process_wide::<Incarnations>().0.fetch_add(1, Ordering::Relaxed),
    };
    let mut body = Vec::new();
    hello.encode(&mut body);
    let mut frame = Header::new(FrameKind::Hello, 0).with_body(&body).encode().to_vec();
    frame.extend_from_slice(&body);
    stream.send(vec![IoBuf::from_slice(&frame)]).await.map_err(|e| Fault::from(e).into())
}

/// Receives the answer to the hello; `None` for a ping, after which the answer is still to come.
async fn receive_welcome(inbound: &mut Inbound) -> Result<Option<Welcome>, DialError> {
    let header = inbound.header().await?.ok_or(Fault::Closed)?;
    let body = inbound.body(&header).await?;
    inbound.skip(header.inline_bytes()).await?;
    match header.kind {
        FrameKind::Welcome => Ok(Some(Welcome::decode(body.as_slice()).map_err(Fault::from)?)),
        FrameKind::Ping => Ok(None),
        FrameKind::Error => {
            let error = Error::decode(body.as_slice()).map_err(Fault::from)?;
            // The server has its maximum of connections at the moment.
            let may_succeed_later = error.errno == Errno::EBUSY;
            Err(if may_succeed_later {
                DialError::Failed(error.to_string())
            } else {
                DialError::Refused(error)
            })
        }
        FrameKind::Close => Err(DialError::Failed("the server is stopping".into())),
        kind => Err(Fault::unexpected(format!("a hello was answered by a frame of kind {kind:?}")).into()),
    }
}
