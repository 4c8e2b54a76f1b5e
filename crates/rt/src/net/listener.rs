//! Listening sockets on a real machine.

use super::address::RawAddress;
use super::{Address, RealSocket, check, is_transient};
use crate::driver::{KeepAlive, OnDrop, large, to_result};
use crate::op::Op;
use io_uring::{opcode, types::Fd};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time to wait for an address in use. It may be in use for a moment after a crash. A
/// process that tries to connect to the dead one on the same machine may have got that very port as
/// its own, and so have connected to itself.
const ADDRESS_IN_USE_TIMEOUT: Duration = Duration::from_secs(6);
/// Pause between two attempts.
const ADDRESS_RETRY_INTERVAL: Duration = Duration::from_millis(100);

fn bind_with_retry(address: SocketAddr) -> io::Result<TcpListener> {
    let began = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < ADDRESS_IN_USE_TIMEOUT =>
            {
                std::thread::sleep(ADDRESS_RETRY_INTERVAL);
            }
            bound => return bound,
        }
    }
}

/// A listening socket. It may be bound on any thread; connections are accepted on a core.
#[derive(Debug)]
pub(super) struct RealListener {
    fd: Arc<OwnedFd>,
}

impl RealListener {
    /// Binds to an address and listens. Port 0 chooses a free one (see
    /// [`RealListener::local_addr`]). A path must not exist.
    pub(super) fn bind(address: Address) -> io::Result<RealListener> {
        let fd: OwnedFd = match address {
            Address::Inet(address) => bind_with_retry(address)?.into(),
            Address::Unix(path) => UnixListener::bind(path)?.into(),
            Address::Abstract(name) => {
                let address = UnixAddress::from_abstract_name(name)?;
                UnixListener::bind_addr(&address)?.into()
            }
        };
        Ok(RealListener { fd: Arc::new(fd) })
    }

    /// The address that it is bound to.
    pub(super) fn local_addr(&self) -> io::Result<Address> {
        let mut raw = RawAddress::empty();
        let (address, len) = raw.as_out();
        // SAFETY: the pointers are to storage for any address and to its size.
        check(unsafe { libc::getsockname(self.fd.as_raw_fd(), address, len) })?;
        raw.decode()
    }

    /// Waits for a connection; returns it with the peer's address. After an error (because
    /// descriptors are exhausted, say) the listener remains usable.
    pub(super) async fn accept(&self) -> io::Result<(RealSocket, Address)> {
        loop {
            let fd = Fd(self.fd.as_raw_fd());
            let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build();
            let keep = KeepAlive { fd: Some(self.fd.clone()), ..KeepAlive::default() };
            // SAFETY: the entry points to no memory.
            let accept = unsafe { Op::start(large(entry), keep, OnDrop::CancelAndClose)? };
            match to_result(accept.await) {
                Ok(fd) => {
                    // SAFETY: the kernel has just opened the descriptor for us.
                    let socket = RealSocket::from_fd(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
                    // A peer that has already disconnected has no address any more, and is skipped.
                    if let Ok(peer) = socket.peer_addr() {
                        return Ok((socket, peer));
                    }
                }
                Err(e) if is_transient(&e) || e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(e),
            }
        }
    }
}
