//! Asynchronous writes (`io_submit(2)`) as applications make them with libaio.

#![allow(unsafe_code, reason = "system calls that the standard library doesn't have")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `IOCB_CMD_PWRITE` of `linux/aio_abi.h`.
const PWRITE: u16 = 1;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

/// Pins the calling thread to one processor.
pub fn stay_on(processor: usize) {
    let mut set = [0_u64; 16];
    set[processor / 64] |= 1 << (processor % 64);
    // SAFETY: the kernel reads as many bytes as the set has.
    let done = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&set), set.as_ptr()) };
    assert!(done >= 0, "{}", io::Error::last_os_error());
}

/// Writes at `offset` by an asynchronous request, and waits for its result.
pub fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    let mut context = 0_usize;
    let control = Control {
        opcode: PWRITE,
        fd: file.as_raw_fd() as u32,
        buf: data.as_ptr() as u64,
        len: data.len() as u64,
        offset: offset as i64,
        ..Control::default()
    };
    let (controls, mut event) = ([&raw const control], Event::default());
    let checked = |done: libc::c_long| if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) };
    // SAFETY: all memory that the calls point to lives until the request has ended, for which
    // `io_getevents` waits.
    unsafe {
        checked(libc::syscall(libc::SYS_io_setup, 1, &mut context))?;
        checked(libc::syscall(libc::SYS_io_submit, context, 1, controls.as_ptr()))?;
        checked(libc::syscall(libc::SYS_io_getevents, context, 1, 1, &mut event, 0))?;
        checked(libc::syscall(libc::SYS_io_destroy, context))?;
    }
    if event.result < 0 {
        Err(io::Error::from_raw_os_error(-event.result as i32))
    } else {
        Ok(event.result as usize)
    }
}
