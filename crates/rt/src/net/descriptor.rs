//! Passing descriptors over Unix sockets (`SCM_RIGHTS`).

use super::check;
use super::socket::RealSocket;
use crate::driver::{OnDrop, large, to_result};
use crate::op::Op;
use io_uring::opcode;
use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// Words of a control message with one descriptor: its header, and the descriptor.
const CONTROL_WORDS: usize = (size_of::<libc::cmsghdr>() + size_of::<u64>()) / size_of::<u64>();

/// A message of one byte with space for one descriptor, and everything that its header points to.
struct DescriptorMessage {
    header: UnsafeCell<libc::msghdr>,
    vector: UnsafeCell<libc::iovec>,
    byte: UnsafeCell<u8>,
    control: UnsafeCell<[u64; CONTROL_WORDS]>,
    /// The descriptor to send, kept open until then.
    _sent: Option<OwnedFd>,
    /// A descriptor in it came from the kernel and is ours to close.
    received: bool,
}

impl DescriptorMessage {
    fn new(sent: Option<OwnedFd>) -> Rc<DescriptorMessage> {
        // SAFETY: all-zero values are valid for both.
        let (header, vector) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut control = [0; CONTROL_WORDS];
        if let Some(fd) = &sent {
            // SAFETY: the words have room for the header and one descriptor, and are aligned for
            // both.
            unsafe {
                let message = control.as_mut_ptr().cast::<libc::cmsghdr>();
                (*message).cmsg_level = libc::SOL_SOCKET;
                (*message).cmsg_type = libc::SCM_RIGHTS;
                (*message).cmsg_len = message_bytes();
                libc::CMSG_DATA(message).cast::<RawFd>().write(fd.as_raw_fd());
            }
        }
        let rights_message = Rc::new(DescriptorMessage {
            header: UnsafeCell::new(header),
            vector: UnsafeCell::new(vector),
            byte: UnsafeCell::new(0),
            control: UnsafeCell::new(control),
            received: sent.is_none(),
            _sent: sent,
        });
        // SAFETY: there is no other reference to the message; its pointers are to its own fields,
        // at a fixed address.
        unsafe {
            *rights_message.vector.get() =
                libc::iovec { iov_base: rights_message.byte.get().cast(), iov_len: 1 };
            let header = &mut *rights_message.header.get();
            header.msg_iov = rights_message.vector.get();
            header.msg_iovlen = 1;
            header.msg_control = rights_message.control.get().cast();
            // Not a byte more: a second descriptor would fit into the alignment padding.
            header.msg_controllen = message_bytes();
        }
        rights_message
    }

    /// Takes the received descriptor. Anything else that was received is closed.
    fn take(&self) -> Option<OwnedFd> {
        // SAFETY: the kernel is done with the message; all-zero words are a message without length,
        // and one with a length was written by it.
        unsafe {
            let message = self.control.get().cast::<libc::cmsghdr>();
            let rights =
                (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS;
            let whole = (*message).cmsg_len >= message_bytes();
            (*message).cmsg_len = 0;
            (rights && whole).then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(message).cast::<RawFd>().read()))
        }
    }

    fn was_truncated(&self) -> bool {
        // SAFETY: the kernel is done with the message.
        unsafe { (*self.header.get()).msg_flags & libc::MSG_CTRUNC != 0 }
    }
}

impl Drop for DescriptorMessage {
    fn drop(&mut self) {
        // The receiving future was dropped before the descriptor arrived.
        if self.received {
            drop(self.take());
        }
    }
}

/// Bytes of a control message with one descriptor.
/// In the type of `cmsg_len`, which C libraries define differently.
fn message_bytes<T: TryFrom<libc::c_uint, Error: std::fmt::Debug>>() -> T {
    // SAFETY: a computation.
    let bytes = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as libc::c_uint) };
    T::try_from(bytes).expect("a message with one descriptor is short")
}

impl RealSocket {
    pub(super) async fn send_fd(&self, fd: OwnedFd) -> io::Result<()> {
        let rights_message = DescriptorMessage::new(Some(fd));
        let entry = opcode::SendMsg::new(self.raw(), rights_message.header.get())
            .flags(libc::MSG_NOSIGNAL as u32)
            .build();
        // SAFETY: the entry points to the message, which owns what it points to, and which the
        // operation keeps.
        let op = unsafe {
            Op::start(large(entry), self.keep(None).with(Box::new(rights_message)), OnDrop::Cancel)?
        };
        to_result(op.await).map(drop)
    }

    pub(super) async fn recv_fd(&self) -> io::Result<OwnedFd> {
        let rights_message = DescriptorMessage::new(None);
        let entry = opcode::RecvMsg::new(self.raw(), rights_message.header.get())
            .flags(libc::MSG_CMSG_CLOEXEC as u32)
            .build();
        let kept = Box::new(rights_message.clone());
        // SAFETY: as above.
        let op = unsafe { Op::start(large(entry), self.keep(None).with(kept), OnDrop::Cancel)? };
        let received = to_result(op.await)?;
        let fd = rights_message.take();
        match fd {
            _ if received == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ if rights_message.was_truncated() => Err(invalid("more than one descriptor was received")),
            Some(fd) => Ok(fd),
            None => Err(invalid("no descriptor was received")),
        }
    }

    pub(super) fn peer_user(&self) -> io::Result<u32> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: the pointers are to a value of the kind that the option has, and to its size.
        check(unsafe {
            libc::getsockopt(self.raw().0, level, option, (&raw mut peer).cast(), &raw mut len)
        })?;
        Ok(peer.uid)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
