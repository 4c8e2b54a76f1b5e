//! Concurrent transfers of one thread through an io_uring.
#![allow(unsafe_code)] // The kernel reads and writes the buffers meanwhile; nothing else here needs it.
#![warn(clippy::undocumented_unsafe_blocks)]

use super::buffer::Buffer;
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Slots for records in flight, each with its buffer. The file outlives them: it is borrowed as
/// long as the ring exists.
pub(super) struct Ring<'a> {
    ring: IoUring,
    file: &'a File,
    buffers: Vec<Buffer>,
    is_busy: Vec<bool>,
}

impl<'a> Ring<'a> {
    /// Creates a ring for `depth` records of `record_bytes` each. Fails where the kernel forbids
    /// rings.
    pub fn new(file: &'a File, depth: u32, record_bytes: usize) -> io::Result<Ring<'a>> {
        let buffers = (0..depth).map(|_| Buffer::new(record_bytes)).collect();
        Ok(Ring { ring: own_ring(depth)?, file, buffers, is_busy: vec![false; depth as usize] })
    }

    /// Returns the buffer of an idle slot.
    pub fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.is_busy[slot], "the kernel has this buffer");
        self.buffers[slot].bytes()
    }

    /// Submits the transfer of a slot's buffer at once, as fio does: with batches a drive would
    /// idle while the next ones are prepared.
    pub fn send(&mut self, slot: usize, offset: u64, is_write: bool) -> io::Result<()> {
        let buffer = self.buffer(slot);
        let (start, length) = (buffer.as_mut_ptr(), buffer.len() as u32);
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = match is_write {
            true => opcode::Write::new(fd, start, length).offset(offset).build(),
            false => opcode::Read::new(fd, start, length).offset(offset).build(),
        };
        // SAFETY: the buffer's memory doesn't move, and nothing borrows it until its completion
        // clears `is_busy`; dropping waits for all transfers, or leaks the buffers; the descriptor
        // stays open since the file is borrowed.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        pushed.map_err(|_| io::Error::other("the ring is full"))?;
        self.is_busy[slot] = true;
        self.enter(0)
    }

    /// Submits queued entries, and waits until `least` transfers have ended.
    fn enter(&self, least: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(least) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(|_| ()),
            }
        }
    }

    /// Waits for at least one transfer if `least` is 1; adds slot and result of each that has
    /// ended.
    pub fn wait(&mut self, least: usize, ended: &mut Vec<(usize, io::Result<usize>)>) -> io::Result<()> {
        self.enter(least)?;
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize;
            self.is_busy[slot] = false;
            let result =
                usize::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            ended.push((slot, result));
        }
        Ok(())
    }
}

/// Returns a ring for the calling thread only, whose completions don't interrupt it; with older
/// kernels (before 6.1) a plain one.
fn own_ring(depth: u32) -> io::Result<IoUring> {
    let own = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(depth);
    own.or_else(|_| IoUring::new(depth))
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while self.is_busy.contains(&true) {
            if self.wait(1, &mut ended).is_err() {
                // The kernel may still write to them.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
        }
    }
}
