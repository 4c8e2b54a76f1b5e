//! Copies the data of a file, and leaves its holes.

use rustix::fs::{SeekFrom, Statx, copy_file_range, ftruncate, seek};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that one system call copies at most: a stop waits for them.
const PIECE_BYTES: u64 = 64 << 20;
/// Bytes that are copied through memory where the file systems can't copy by themselves.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of the units in which file systems count blocks, by definition of stat(2).
const BLOCK_BYTES: u64 = 512;

/// Copies everything to an empty file. `CANCELED` after a stop.
pub fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    found: &Statx,
    bytes: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), Errno> {
    let has_holes = found.stx_blocks * BLOCK_BYTES < found.stx_size;
    let mut copier = Copier { from, to, in_kernel: true, bytes, stop };
    if !has_holes {
        // A file that grows meanwhile is copied to its end.
        return copier.copy_until(0, u64::MAX).map(drop);
    }
    let mut begin = 0;
    while begin < found.stx_size {
        let data = match seek(from, SeekFrom::Data(begin)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(cause) => return Err(cause),
        };
        let end = seek(from, SeekFrom::Hole(data))?;
        begin = copier.copy_until(data, end)?;
        if begin < end {
            // The file was truncated meanwhile.
            return Ok(());
        }
    }
    if begin < found.stx_size {
        ftruncate(to, found.stx_size)?;
    }
    Ok(())
}

struct Copier<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    in_kernel: bool,
    bytes: &'a AtomicU64,
    stop: &'a AtomicBool,
}

impl Copier<'_> {
    /// Copies from `begin` to `end`, or to the end of the file. Returns where it ended.
    fn copy_until(&mut self, begin: u64, end: u64) -> Result<u64, Errno> {
        let mut at = begin;
        while at < end {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Errno::CANCELED);
            }
            let copied = self.copy_some(at, end - at)?;
            if copied == 0 {
                break;
            }
            self.bytes.fetch_add(copied, Ordering::Relaxed);
            at += copied;
        }
        Ok(at)
    }

    fn copy_some(&mut self, at: u64, length: u64) -> Result<u64, Errno> {
        if self.in_kernel {
            let length = length.min(PIECE_BYTES) as usize;
            let (mut from_at, mut to_at) = (at, at);
            match copy_file_range(self.from, Some(&mut from_at), self.to, Some(&mut to_at), length) {
                // Some special file systems have content beyond their size.
                Ok(0) if at > 0 => return Ok(0),
                Ok(0) => self.in_kernel = false,
                Ok(copied) => return Ok(copied as u64),
                Err(Errno::INTR) => return self.copy_some(at, length as u64),
                Err(
                    Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM | Errno::BADF,
                ) => {
                    self.in_kernel = false;
                }
                Err(cause) => return Err(cause),
            }
        }
        let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(length).unwrap_or(BUFFER_BYTES))];
        let read = pread(self.from, &mut buffer, at)?;
        let mut written = 0;
        while written < read {
            written += pwrite(self.to, &buffer[written..read], at + written as u64)?;
        }
        Ok(read as u64)
    }
}
