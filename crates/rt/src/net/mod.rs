//! Stream sockets: TCP and Unix sockets on a core's ring, TCP between simulated hosts.
//!
//! A [`Socket`] may have one receive and one send in progress at a time: two sends would mix their
//! bytes. Dropping a future cancels its operation. Bytes that it had received or sent are lost, so
//! the connection can't be used afterwards.

mod address;
mod descriptor;
mod host;
mod interfaces;
mod listener;
mod socket;

pub use address::Address;
pub(crate) use host::boot_id;
pub use host::{host_id, user_id};
pub use interfaces::local_addresses;

use crate::buf::IoBuf;
use crate::context;
use crate::sim::{SimListener, SimSocket};
use listener::RealListener;
use socket::RealSocket;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A stream connection. Its operations run on the core that calls them; it may be moved to another
/// core while none is in progress.
#[derive(Debug)]
pub struct Socket {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Real(RealSocket),
    Sim(SimSocket),
}

impl Socket {
    /// Connects, within `timeout`.
    pub async fn connect(address: impl Into<Address>, timeout: Duration) -> io::Result<Socket> {
        let address = address.into();
        let inner = match is_simulated() {
            true => Inner::Sim(SimSocket::connect(address, timeout).await?),
            false => Inner::Real(RealSocket::connect(address, timeout).await?),
        };
        Ok(Socket { inner })
    }

    /// Makes a connection from its descriptor. Small messages are sent at once (`TCP_NODELAY`).
    pub fn from_fd(fd: OwnedFd) -> Socket {
        Socket { inner: Inner::Real(RealSocket::from_fd(fd)) }
    }

    /// The descriptor, for another core or program. A simulated socket has none.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        match self.inner {
            Inner::Real(socket) => socket.into_fd(),
            Inner::Sim(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated socket has no descriptor"))
            }
        }
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> io::Result<Address> {
        match &self.inner {
            Inner::Real(socket) => socket.peer_addr(),
            Inner::Sim(socket) => Ok(socket.peer_addr()),
        }
    }

    /// Sends a descriptor, with one byte, over a Unix socket.
    pub async fn send_fd(&self, fd: OwnedFd) -> io::Result<()> {
        match &self.inner {
            Inner::Real(socket) => socket.send_fd(fd).await,
            Inner::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Receives one byte and the descriptor sent with it. Fails with `InvalidData` if the byte
    /// comes without a descriptor, or with several.
    pub async fn recv_fd(&self) -> io::Result<OwnedFd> {
        match &self.inner {
            Inner::Real(socket) => socket.recv_fd().await,
            Inner::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The user id of the process at the other end of a Unix socket: the one that connected, or the
    /// one that listened.
    pub fn peer_user(&self) -> io::Result<u32> {
        match &self.inner {
            Inner::Real(socket) => socket.peer_user(),
            Inner::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Fixes the size of the kernel's buffers, which it otherwise adjusts by itself; beyond the
    /// system's limit only with CAP_NET_ADMIN.
    pub fn set_buffer_size(&self, bytes: usize) -> io::Result<()> {
        match &self.inner {
            Inner::Real(socket) => socket.set_buffer_size(bytes),
            Inner::Sim(socket) => socket.set_buffer_size(bytes),
        }
    }

    /// Ends a TCP connection with an error when sent data stays unacknowledged for this long
    /// (`TCP_USER_TIMEOUT`). A Unix socket has no such limit. The kernel doesn't detect a peer that
    /// keeps sending without reading; see [`Socket::acknowledged_bytes`].
    pub fn set_stall_limit(&self, limit: Duration) -> io::Result<()> {
        match &self.inner {
            Inner::Real(socket) => socket.set_stall_limit(limit),
            Inner::Sim(socket) => socket.set_stall_limit(limit),
        }
    }

    /// Bytes that the peer of a TCP connection has acknowledged so far. `None` for a Unix socket,
    /// and for a simulated one, whose stall limit detects every peer that doesn't read.
    pub fn acknowledged_bytes(&self) -> Option<u64> {
        match &self.inner {
            Inner::Real(socket) => socket.acknowledged_bytes(),
            Inner::Sim(_) => None,
        }
    }

    /// Receives available data, at least one byte, into `buf` and returns the length; 0 is the end
    /// of the stream.
    pub async fn recv(&self, buf: IoBuf) -> io::Result<usize> {
        buf.discard_checksums();
        match &self.inner {
            Inner::Real(socket) => socket.recv(buf).await,
            Inner::Sim(socket) => socket.recv(buf).await,
        }
    }

    /// Fills `buf`; fails with `UnexpectedEof` if the stream ends before.
    pub async fn recv_exact(&self, buf: IoBuf) -> io::Result<()> {
        buf.discard_checksums();
        match &self.inner {
            Inner::Real(socket) => socket.recv_exact(buf).await,
            Inner::Sim(socket) => socket.recv_exact(buf).await,
        }
    }

    /// Sends all the bytes of all the pieces, in order. The caller must not change them until this
    /// returns.
    pub async fn send(&self, pieces: Vec<IoBuf>) -> io::Result<()> {
        match &self.inner {
            Inner::Real(socket) => socket.send(pieces).await,
            Inner::Sim(socket) => socket.send(pieces).await,
        }
    }

    /// Ends the connection in both directions: operations in progress complete, and the peer sees
    /// the end of the stream.
    pub fn shutdown(&self) {
        match &self.inner {
            Inner::Real(socket) => socket.shutdown(),
            Inner::Sim(socket) => socket.shutdown(),
        }
    }
}

/// A listening socket. It may be bound on any thread; connections are accepted on a core.
#[derive(Debug)]
pub struct Listener {
    inner: InnerListener,
}

#[derive(Debug)]
enum InnerListener {
    Real(RealListener),
    Sim(SimListener),
}

impl Listener {
    /// Binds to an address and listens. Port 0 chooses a free one (see [`Listener::local_addr`]). A
    /// path must not exist.
    pub fn bind(address: impl Into<Address>) -> io::Result<Listener> {
        let address = address.into();
        let inner = match is_simulated() {
            true => InnerListener::Sim(SimListener::bind(&address)?),
            false => InnerListener::Real(RealListener::bind(address)?),
        };
        Ok(Listener { inner })
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<Address> {
        match &self.inner {
            InnerListener::Real(listener) => listener.local_addr(),
            InnerListener::Sim(listener) => Ok(listener.local_addr()),
        }
    }

    /// Waits for a connection; returns it with the peer's address. After an error (because
    /// descriptors are exhausted, say) the listener remains usable.
    pub async fn accept(&self) -> io::Result<(Socket, Address)> {
        match &self.inner {
            InnerListener::Real(listener) => {
                let (socket, peer) = listener.accept().await?;
                Ok((Socket { inner: Inner::Real(socket) }, peer))
            }
            InnerListener::Sim(listener) => {
                let (socket, peer) = listener.accept().await?;
                Ok((Socket { inner: Inner::Sim(socket) }, peer))
            }
        }
    }
}

fn is_simulated() -> bool {
    context::with_sim(|_| ()).is_some()
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether a signal interrupted the operation, which must be repeated.
fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}
