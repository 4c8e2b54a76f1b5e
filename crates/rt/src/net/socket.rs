//! One connection of a real machine.

use super::address::RawAddress;
use super::{Address, check, is_transient};
use crate::buf::{Access, Borrowed, IoBuf};
use crate::driver::{KeepAlive, OnDrop, large, to_result};
use crate::op::Op;
use io_uring::squeue::Entry128;
use io_uring::{opcode, types::Fd};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Limit of one operation; the length field of the ring has 32 bits.
const MAX_TRANSFER: usize = 1 << 30;
/// The congestion control that replaces BBR.
const CONGESTION_CONTROL: &[u8] = b"cubic";
/// Longest name of a congestion control (TCP_CA_NAME_MAX).
const MAX_NAME_BYTES: usize = 16;
/// Pieces of memory in one send (UIO_MAXIOV).
const MAX_PIECES: usize = 1024;

/// A stream connection. Its operations run on the core that calls them. To move it to another core,
/// pass its descriptor ([`RealSocket::into_fd`]) while none is in progress.
#[derive(Debug)]
pub(super) struct RealSocket {
    fd: Arc<OwnedFd>,
}

impl RealSocket {
    /// Connects, within `timeout`.
    pub(super) async fn connect(address: Address, timeout: Duration) -> io::Result<RealSocket> {
        let raw = RawAddress::new(&address)?;
        // SAFETY: a plain system call; a non-negative result is a descriptor without another owner.
        let fd = unsafe {
            let fd = check(libc::socket(raw.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
            OwnedFd::from_raw_fd(fd)
        };
        let socket = RealSocket::from_fd(fd);
        let raw = Box::new(raw);
        let entry = opcode::Connect::new(socket.raw(), raw.as_ptr(), raw.len()).build();
        // SAFETY: the entry points to the boxed address, which `keep` owns.
        let connect = unsafe { Op::start(large(entry), socket.keep(None).with(raw), OnDrop::Cancel)? };
        match crate::timeout(timeout, connect).await {
            Some(result) => to_result(result).map(|_| socket),
            None => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        }
    }

    /// Makes a connection from its descriptor. Small messages are sent at once (`TCP_NODELAY`), and
    /// large ones without BBR's pacing.
    pub(super) fn from_fd(fd: OwnedFd) -> RealSocket {
        let socket = RealSocket { fd: Arc::new(fd) };
        // A Unix socket refuses the option, and doesn't need it.
        let _ = socket.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        socket.replace_bbr();
        socket
    }

    /// Replaces BBR, if it is the system's default. BBR sends by a timer, at its estimated rate,
    /// which on the short paths of a cluster costs a quarter to a third of the throughput of bulk
    /// transfers. Any other choice of the administrator stays.
    fn replace_bbr(&self) {
        if self.congestion_control().is_some_and(|name| name.starts_with("bbr")) {
            let name = CONGESTION_CONTROL.as_ptr().cast();
            let len = CONGESTION_CONTROL.len() as libc::socklen_t;
            // SAFETY: the pointer is to bytes of the length given. A kernel without cubic refuses,
            // and BBR stays.
            unsafe {
                libc::setsockopt(self.fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, len)
            };
        }
    }

    /// The name of the congestion control; `None` for a socket that isn't TCP.
    fn congestion_control(&self) -> Option<String> {
        let mut name = [0_u8; MAX_NAME_BYTES];
        let mut len = name.len() as libc::socklen_t;
        let out = name.as_mut_ptr().cast();
        // SAFETY: the pointers are to bytes of the length given, and to that length.
        let result = unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, out, &raw mut len)
        };
        check(result).ok()?;
        let name = name.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// The descriptor, for another core or program.
    pub(super) fn into_fd(self) -> io::Result<OwnedFd> {
        Arc::try_unwrap(self.fd).or_else(|shared| shared.try_clone())
    }

    /// The address of the peer.
    pub(super) fn peer_addr(&self) -> io::Result<Address> {
        let mut raw = RawAddress::empty();
        let (address, len) = raw.as_out();
        // SAFETY: the pointers are to storage for any address and to its size.
        check(unsafe { libc::getpeername(self.fd.as_raw_fd(), address, len) })?;
        raw.decode()
    }

    /// Fixes the size of the kernel's buffers, which it otherwise adjusts by itself; beyond the
    /// system's limit only with CAP_NET_ADMIN.
    pub(super) fn set_buffer_size(&self, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        for (forced, plain) in
            [(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF), (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)]
        {
            self.set_option(libc::SOL_SOCKET, forced, bytes)
                .or_else(|_| self.set_option(libc::SOL_SOCKET, plain, bytes))?;
        }
        Ok(())
    }

    /// Ends a TCP connection with an error when sent data stays unacknowledged for this long
    /// (`TCP_USER_TIMEOUT`). A Unix socket has no such limit. The limit doesn't apply to a peer
    /// with a closed window that keeps sending: its acknowledgements reset the kernel's timer
    /// (`tcp_ack_probe`).
    pub(super) fn set_stall_limit(&self, limit: Duration) -> io::Result<()> {
        let ms = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX).max(1);
        self.set_option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms)
    }

    /// Bytes that the peer of a TCP connection has acknowledged so far; `None` for a socket that
    /// isn't TCP.
    pub(super) fn acknowledged_bytes(&self) -> Option<u64> {
        // SAFETY: an all-zero `tcp_info` is valid.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        let out = (&raw mut info).cast();
        // SAFETY: the pointers are to bytes of the length given, and to that length.
        let result = unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, out, &raw mut len)
        };
        check(result).ok().map(|_| info.tcpi_bytes_acked)
    }

    /// Receives available data, at least one byte, into `buf` and returns the length; 0 is the end
    /// of the stream.
    pub(super) async fn recv(&self, buf: IoBuf) -> io::Result<usize> {
        self.recv_part(buf, 0).await
    }

    /// Fills `buf`; fails with `UnexpectedEof` if the stream ends before.
    pub(super) async fn recv_exact(&self, buf: IoBuf) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.recv_part(buf.slice(done..buf.len()), libc::MSG_WAITALL).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => done += got,
            }
        }
        Ok(())
    }

    async fn recv_part(&self, buf: IoBuf, flags: libc::c_int) -> io::Result<usize> {
        loop {
            let len = buf.len().min(MAX_TRANSFER) as u32;
            let borrowed = Borrowed::new(buf.clone(), Access::Write);
            let entry = opcode::Recv::new(self.raw(), borrowed.as_mut_ptr(), len).flags(flags).build();
            // SAFETY: the entry points to `borrowed`, which `keep` owns.
            match unsafe { self.run(large(entry), self.keep(Some(borrowed))) }.await {
                Err(e) if is_transient(&e) => {}
                result => return result,
            }
        }
    }

    /// Sends all the bytes of all the pieces, in order. The caller must not change them until this
    /// returns.
    pub(super) async fn send(&self, pieces: Vec<IoBuf>) -> io::Result<()> {
        let mut rest = UnsentPieces { pieces, first: 0, skip: 0 };
        rest.advance(0);
        while !rest.is_empty() {
            let sent = match &rest.pieces[rest.first..] {
                [only] => self.send_one(only.slice(rest.skip..only.len())).await,
                many => self.send_many(many.iter().take(MAX_PIECES).cloned().collect(), rest.skip).await,
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => rest.advance(sent),
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn send_one(&self, buf: IoBuf) -> io::Result<usize> {
        let len = buf.len().min(MAX_TRANSFER) as u32;
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let borrowed = Borrowed::new(buf, Access::Read);
        let entry = opcode::Send::new(self.raw(), borrowed.as_ptr(), len).flags(flags).build();
        // SAFETY: the entry points to `borrowed`, which `keep` owns.
        unsafe { self.run(large(entry), self.keep(Some(borrowed))) }.await
    }

    async fn send_many(&self, pieces: Vec<IoBuf>, skip: usize) -> io::Result<usize> {
        let message = Message::new(pieces, skip);
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let entry = opcode::SendMsg::new(self.raw(), &raw const message.header).flags(flags as u32).build();
        // SAFETY: the entry points to the boxed message, which owns what it points to, and which
        // `keep` owns.
        unsafe { self.run(large(entry), self.keep(None).with(message)) }.await
    }

    /// Ends the connection in both directions: operations in progress complete, and the peer sees
    /// the end of the stream.
    pub(super) fn shutdown(&self) {
        // SAFETY: a plain system call on an open descriptor. It fails only if the peer has already
        // closed the connection.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// # Safety
    /// As for [`Op::start`].
    async unsafe fn run(&self, entry: Entry128, keep: KeepAlive) -> io::Result<usize> {
        // SAFETY: passed on to the caller.
        let op = unsafe { Op::start(entry, keep, OnDrop::Cancel)? };
        to_result(op.await)
    }

    fn set_option(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the pointer is to a value of the length given.
        let result =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
        check(result).map(drop)
    }

    pub(super) fn raw(&self) -> Fd {
        Fd(self.fd.as_raw_fd())
    }

    pub(super) fn keep(&self, buf: Option<Borrowed>) -> KeepAlive {
        KeepAlive { bufs: [buf, None], fd: Some(self.fd.clone()), ..KeepAlive::default() }
    }
}

/// The unsent part of a send: the pieces from `first` on, without the first `skip` bytes of that
/// one.
struct UnsentPieces {
    pieces: Vec<IoBuf>,
    first: usize,
    skip: usize,
}

impl UnsentPieces {
    fn is_empty(&self) -> bool {
        self.first == self.pieces.len()
    }

    /// Notes that `sent` more bytes were sent. Stops at a piece that has bytes left.
    fn advance(&mut self, sent: usize) {
        self.skip += sent;
        while let Some(piece) = self.pieces.get(self.first)
            && self.skip >= piece.len()
        {
            self.skip -= piece.len();
            self.first += 1;
        }
    }
}

/// The header of a vectored send with everything that it points to.
struct Message {
    header: libc::msghdr,
    /// What `header` points to.
    _vector: Vec<libc::iovec>,
    /// What `_vector` points to.
    _pieces: Vec<Borrowed>,
}

impl Message {
    /// Leaves out the first `skip` bytes of the first piece.
    fn new(pieces: Vec<IoBuf>, skip: usize) -> Box<Message> {
        let whole =
            |piece: &IoBuf| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        let mut vector: Vec<libc::iovec> = pieces.iter().map(whole).collect();
        let first = pieces[0].slice(skip..pieces[0].len());
        vector[0] = whole(&first);
        // SAFETY: an all-zero msghdr is valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vector.as_mut_ptr();
        header.msg_iovlen = vector.len() as _;
        let borrowed = pieces.into_iter().map(|piece| Borrowed::new(piece, Access::Read)).collect();
        Box::new(Message { header, _vector: vector, _pieces: borrowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn bulk_is_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let choice = |name: &[u8]| {
            let name = (name.as_ptr().cast(), name.len() as libc::socklen_t);
            // SAFETY: the pointer is to bytes of the length given.
            unsafe {
                libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.0, name.1)
            }
        };
        let taken = || RealSocket::from_fd(stream.try_clone().unwrap().into()).congestion_control().unwrap();
        // Every kernel has `reno`; `bbr` and `cubic` may be missing.
        assert_eq!(choice(b"reno"), 0);
        assert_eq!(taken(), "reno");
        if choice(CONGESTION_CONTROL) == 0 && choice(b"bbr") == 0 {
            assert_eq!(taken(), "cubic");
        }
        let (local, _other) = UnixStream::pair().unwrap();
        assert_eq!(RealSocket::from_fd(local.into()).congestion_control(), None);
    }

    #[test]
    fn short_counts_are_resumed_where_they_ended() {
        let pieces = [3, 0, 5, 0].map(IoBuf::alloc).to_vec();
        let mut rest = UnsentPieces { pieces, first: 0, skip: 0 };
        rest.advance(0);
        assert_eq!((rest.first, rest.skip), (0, 0));
        rest.advance(2);
        assert_eq!((rest.first, rest.skip), (0, 2));
        rest.advance(2);
        assert_eq!((rest.first, rest.skip), (2, 1));
        rest.advance(4);
        assert!(rest.is_empty());
    }
}
