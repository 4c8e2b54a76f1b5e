//! Ring operations that don't concern files: driver commands, and readiness.

use crate::buf::{Access, Borrowed, IoBuf};
use crate::context;
use crate::driver::{KeepAlive, OnDrop, large, to_result};
use crate::op::Op;
use io_uring::squeue::Entry128;
use io_uring::{opcode, types::Fd};
use std::io;
use std::os::fd::RawFd;

/// Sends a driver command (`IORING_OP_URING_CMD`) with 80 bytes of payload and returns the driver's
/// result, negative for an error number: `EOPNOTSUPP` where entries have 64 bytes
/// ([`crate::IoUringSupport`]). `addr` and `len` fill the entry's fields of these names.
///
/// The driver reads and fills `buffers` until the completion. The command isn't cancelled when the
/// future is dropped.
///
/// # Safety
/// `fd` stays open until the command is submitted, and everything that `cmd` and `addr` refer to
/// lives until the completion, also when the future is dropped.
pub async unsafe fn uring_cmd(
    fd: RawFd,
    (cmd_op, cmd): (u32, [u8; 80]),
    (addr, len): (u64, u32),
    buffers: [Option<IoBuf>; 2],
) -> i32 {
    match context::require_core() {
        Ok(core) if core.has_large_entries() => {}
        // The second half of the command would be lost.
        Ok(_) => return -libc::EOPNOTSUPP,
        Err(e) => return -e.raw_os_error().unwrap_or(libc::EINVAL),
    }
    let mut entry = opcode::UringCmd80::new(Fd(fd), cmd_op).cmd(cmd).build();
    set_addr_and_len(&mut entry, addr, len);
    let bufs = buffers.map(|buf| buf.map(|buf| Borrowed::new(buf, Access::Write)));
    let keep = KeepAlive { bufs, ..KeepAlive::default() };
    // SAFETY: the caller vouches for what the command refers to.
    match unsafe { Op::start(entry, keep, OnDrop::Abandon) } {
        Ok(op) => op.await,
        Err(e) => -e.raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// Sets both fields: the builder lacks `len`, and so the pair that describes a vector of buffers.
fn set_addr_and_len(entry: &mut Entry128, addr: u64, len: u32) {
    const ADDR_OFFSET: usize = 16;
    const LEN_OFFSET: usize = 24;
    let bytes = (entry as *mut Entry128).cast::<u8>();
    // SAFETY: an Entry128 is the 128 bytes of struct io_uring_sqe (repr(C)), in which `addr` is at
    // 16 and `len` at 24.
    unsafe {
        bytes.add(ADDR_OFFSET).cast::<u64>().write_unaligned(addr);
        bytes.add(LEN_OFFSET).cast::<u32>().write_unaligned(len);
    }
}

/// Waits until `fd` can be read without blocking, or is at its end. `fd` must stay open meanwhile.
pub async fn readable(fd: RawFd) -> io::Result<()> {
    let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
    // SAFETY: a poll points to no memory.
    let op = unsafe { Op::start(large(entry), Default::default(), OnDrop::Cancel)? };
    to_result(op.await).map(drop)
}
