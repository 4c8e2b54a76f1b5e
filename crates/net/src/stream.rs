//! What carries bytes. Everything above is the same for every transport.

use rt::IoBuf;
use rt::net::Socket;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How connections are protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all: for one machine, or a network that nobody else is on.
    Plain,
}

/// How a connection is carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Tcp => f.write_str("tcp"),
        }
    }
}

impl Security {
    /// Connects to a peer.
    pub(crate) async fn connect(&self, address: SocketAddr, timeout: Duration) -> io::Result<Stream> {
        match self {
            Security::Plain => Ok(Stream::Plain(Socket::connect(address, timeout).await?)),
        }
    }

    /// Makes a stream of an accepted connection.
    pub(crate) async fn accept(&self, socket: Socket) -> io::Result<Stream> {
        match self {
            Security::Plain => Ok(Stream::Plain(socket)),
        }
    }
}

/// A connection. One send and one receive may be under way at a time, in different tasks.
pub(crate) enum Stream {
    Plain(Socket),
}

/// A connection on its way to another core.
pub(crate) enum Parked {
    Plain(Socket),
}

impl Stream {
    /// Receives at least one byte; 0 is the end.
    pub(crate) async fn recv(&self, buf: IoBuf) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.recv(buf).await,
        }
    }

    /// Fills `buf`.
    pub(crate) async fn recv_exact(&self, buf: IoBuf) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.recv_exact(buf).await,
        }
    }

    /// Sends everything.
    pub(crate) async fn send(&self, pieces: Vec<IoBuf>) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.send(pieces).await,
        }
    }

    /// Ends operations under way and the connection.
    pub(crate) fn shutdown(&self) {
        match self {
            Stream::Plain(socket) => socket.shutdown(),
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        match self {
            Stream::Plain(_) => Transport::Tcp,
        }
    }

    /// Makes it ready to move to another core. Nothing is under way.
    pub(crate) fn park(self) -> io::Result<Parked> {
        match self {
            Stream::Plain(socket) => Ok(Parked::Plain(socket)),
        }
    }
}

impl Parked {
    /// The connection, on its core.
    pub(crate) fn unpark(self) -> Stream {
        match self {
            Parked::Plain(socket) => Stream::Plain(socket),
        }
    }
}
