//! The byte stream of a connection. All layers above are the same for every transport.

use crate::caller::Proof;
use crate::limits::MAX_SHARED_MEMORY_BYTES;
use crate::revocations::Revocations;
use crate::tls::{Authenticated, DetachedTls, SecuredSocket, Tls, TlsSocket};
use rt::net::{Address, Socket};
use rt::{IoBuf, SharedMemory};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use types::ClusterMap;
use wire::frame::LocalEndpoint;

/// How connections are protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all: within one machine, and in tests. Claims of identity aren't verified.
    Plain,
    /// Both ends authenticate; encrypted, unless both opt out.
    Tls(Tls),
}

/// How a connection is transported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP without authentication.
    Tcp,
    /// Plain TCP between authenticated ends.
    AuthenticatedTcp,
    /// Encrypted TCP between authenticated ends.
    Tls,
    /// A Unix socket, and payloads in shared memory. Nothing leaves the machine, so nothing is
    /// encrypted. The ends authenticate where those of TCP have to.
    SharedMemory,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Tcp => f.write_str("tcp"),
            Transport::AuthenticatedTcp => f.write_str("tcp, authenticated"),
            Transport::Tls => f.write_str("tls"),
            Transport::SharedMemory => f.write_str("shared memory"),
        }
    }
}

impl Security {
    /// Refuses clients whose certificates this map revokes, on existing connections too, in every
    /// clone of this.
    pub fn follow(&self, map: &Arc<ClusterMap>) {
        if let Security::Tls(tls) = self {
            tls.revocations().follow(map);
        }
    }

    /// The revocation list; `None` where connections aren't authenticated.
    pub(crate) fn revocations(&self) -> Option<&Revocations> {
        match self {
            Security::Plain => None,
            Security::Tls(tls) => Some(tls.revocations()),
        }
    }

    /// Connects to a peer.
    pub(crate) async fn connect(&self, address: SocketAddr, timeout: Duration) -> io::Result<Stream> {
        match self {
            Security::Plain => Ok(Stream::Plain(Socket::connect(address, timeout).await?, Transport::Tcp)),
            Security::Tls(tls) => {
                let authenticated = async { tls.connect(Socket::connect(address, timeout).await?).await };
                let authenticated = rt::timeout(timeout, authenticated).await;
                Ok(Stream::from(authenticated.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?.socket))
            }
        }
    }

    /// Connects to a peer on this machine and hands it the memory to share.
    pub(crate) async fn connect_on_host(
        &self,
        endpoint: &LocalEndpoint,
        memory: OwnedFd,
        timeout: Duration,
    ) -> io::Result<Stream> {
        let connected = rt::timeout(timeout, async {
            let socket = Socket::connect(Address::Abstract(endpoint.socket.clone()), timeout).await?;
            // Any process can bind an abstract name once its owner is gone, and the connection
            // isn't encrypted.
            if socket.peer_user()? != endpoint.user {
                let message = "the socket belongs to another user than the server";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
            }
            let socket = match self {
                Security::Plain => socket,
                Security::Tls(tls) => tls.connect_on_host(socket).await?,
            };
            socket.send_fd(memory).await?;
            Ok(Stream::Plain(socket, Transport::SharedMemory))
        });
        connected.await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// As [`Security::accept`], for a connection from this machine. Returns the memory that its
    /// client shares as well.
    pub(crate) async fn accept_on_host(&self, socket: Socket) -> io::Result<(Stream, Proof, SharedMemory)> {
        let (socket, proof) = match self {
            Security::Plain => (socket, Proof::NotRequired),
            Security::Tls(tls) => {
                let (socket, identity) = tls.accept_on_host(socket).await?;
                (socket, identity.map_or(Proof::Unauthenticated, Proof::Member))
            }
        };
        let memory = SharedMemory::open(socket.recv_fd().await?, MAX_SHARED_MEMORY_BYTES)?;
        Ok((Stream::Plain(socket, Transport::SharedMemory), proof, memory))
    }

    /// Makes a stream of an accepted connection, and returns what its peer has proved. The caller
    /// bounds the time.
    pub(crate) async fn accept(&self, socket: Socket) -> io::Result<(Stream, Proof)> {
        match self {
            Security::Plain => Ok((Stream::Plain(socket, Transport::Tcp), Proof::NotRequired)),
            Security::Tls(tls) => {
                let Authenticated { identity, socket } = tls.accept(socket).await?;
                Ok((Stream::from(socket), identity.map_or(Proof::Unauthenticated, Proof::Member)))
            }
        }
    }
}

/// A connection. One send and one receive may be in progress at a time, in different tasks.
pub(crate) enum Stream {
    Plain(Socket, Transport),
    Tls(Box<TlsSocket>),
}

/// A connection that is being moved to another core.
pub(crate) enum DetachedStream {
    Plain(Socket, Transport),
    Tls(Box<DetachedTls>),
}

impl From<SecuredSocket> for Stream {
    fn from(socket: SecuredSocket) -> Stream {
        match socket {
            SecuredSocket::Plain(socket) => Stream::Plain(socket, Transport::AuthenticatedTcp),
            SecuredSocket::Encrypted(tls) => Stream::Tls(tls),
        }
    }
}

impl Stream {
    /// Receives at least one byte; returns 0 at the end of the stream.
    pub(crate) async fn recv(&self, buf: IoBuf) -> io::Result<usize> {
        match self {
            Stream::Plain(socket, _) => socket.recv(buf).await,
            Stream::Tls(tls) => tls.recv(buf).await,
        }
    }

    /// Fills `buf`.
    pub(crate) async fn recv_exact(&self, buf: IoBuf) -> io::Result<()> {
        match self {
            Stream::Plain(socket, _) => socket.recv_exact(buf).await,
            Stream::Tls(tls) => tls.recv_exact(buf).await,
        }
    }

    /// Sends everything.
    pub(crate) async fn send(&self, pieces: Vec<IoBuf>) -> io::Result<()> {
        match self {
            Stream::Plain(socket, _) => socket.send(pieces).await,
            Stream::Tls(tls) => tls.send(pieces).await,
        }
    }

    /// Bytes that the peer of a TCP connection has acknowledged so far, see
    /// [`Socket::acknowledged_bytes`].
    pub(crate) fn acknowledged_bytes(&self) -> Option<u64> {
        match self {
            Stream::Plain(socket, _) => socket.acknowledged_bytes(),
            Stream::Tls(tls) => tls.acknowledged_bytes(),
        }
    }

    /// Ends the connection and all operations on it.
    pub(crate) fn shutdown(&self) {
        match self {
            Stream::Plain(socket, _) => socket.shutdown(),
            Stream::Tls(tls) => tls.shutdown(),
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        match self {
            Stream::Plain(_, transport) => *transport,
            Stream::Tls(_) => Transport::Tls,
        }
    }

    /// Prepares the connection for a move to another core. No operation is in progress.
    pub(crate) fn detach(self) -> io::Result<DetachedStream> {
        match self {
            Stream::Plain(socket, transport) => Ok(DetachedStream::Plain(socket, transport)),
            Stream::Tls(tls) => Ok(DetachedStream::Tls(Box::new(tls.detach()?))),
        }
    }
}

impl DetachedStream {
    /// Resumes the connection on its new core.
    pub(crate) fn attach(self) -> Stream {
        match self {
            DetachedStream::Plain(socket, transport) => Stream::Plain(socket, transport),
            DetachedStream::Tls(tls) => Stream::Tls(Box::new(tls.attach())),
        }
    }
}
