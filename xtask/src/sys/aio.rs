//! Linux asynchronous I/O (io_submit(2)), which databases use to bypass the page cache.

use super::{AlignedBuffer, check_size};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

const PWRITE: u16 = 1;

/// A `struct iocb` (linux/aio_abi.h).
#[repr(C)]
#[derive(Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    flags_of_write: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// A `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    second_result: i64,
}

/// A queue for one write.
pub struct Aio(libc::c_ulong);

impl Aio {
    pub fn new() -> io::Result<Aio> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the pointer is to the variable in which the kernel stores the context's id.
        succeeded(unsafe { libc::syscall(libc::SYS_io_setup, 1, ptr::from_mut(&mut context)) })?;
        Ok(Aio(context))
    }

    /// Writes all of a buffer, and waits for completion.
    pub fn write_all_at(&self, file: &File, buffer: &mut AlignedBuffer, offset: u64) -> io::Result<()> {
        let bytes = buffer.bytes();
        let mut block = ControlBlock {
            opcode: PWRITE,
            fd: file.as_raw_fd() as u32,
            buffer: bytes.as_ptr() as u64,
            bytes: bytes.len() as u64,
            offset: offset as i64,
            ..ControlBlock::default()
        };
        let blocks = [ptr::from_mut(&mut block)];
        // SAFETY: control block and buffer live until the write has ended, since the function waits
        // for it.
        succeeded(unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, blocks.as_ptr()) })?;
        let mut event = Event::default();
        let no_limit = ptr::null::<libc::timespec>();
        // SAFETY: there is space for the single requested event.
        succeeded(unsafe {
            libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, ptr::from_mut(&mut event), no_limit)
        })?;
        match event.result {
            done if done == bytes.len() as i64 => Ok(()),
            error if error < 0 => Err(io::Error::from_raw_os_error(-error as i32)),
            short => Err(io::Error::new(io::ErrorKind::WriteZero, format!("{short} bytes were written"))),
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: no request is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn succeeded(returned: libc::c_long) -> io::Result<()> {
    check_size(returned as isize).map(drop)
}
