//! Memory shared by two processes of one machine.

use crate::buf::{Access, Borrowed, IO_ALIGNMENT, IoBuf};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Forbids to shrink the memory under the other process, to grow it, and to change these seals.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Memory that another process of this machine has mapped as well, and may change at any time. So
/// the type never hands out a reference to it: bytes are copied in and out, and are validated in
/// the copy.
#[derive(Debug)]
pub struct SharedMemory {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is this value's own until it is dropped, and is only accessed by copies of
// ranges that were checked.
unsafe impl Send for SharedMemory {}
// SAFETY: as above. Concurrent copies may mix bytes, which the other process could do as well.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes memory of `len` bytes, and the descriptor by which another process maps it. Pages are
    /// allocated on first use.
    pub fn create(len: usize) -> io::Result<(SharedMemory, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero; a non-negative result is a descriptor without another
        // owner.
        let fd = unsafe {
            let fd = check(libc::memfd_create(c"weft".as_ptr(), flags))?;
            OwnedFd::from_raw_fd(fd)
        };
        let bytes = libc::off_t::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: plain system calls on our own descriptor.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), bytes))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((map(fd.as_fd(), len)?, fd))
    }

    /// Maps memory that another process has made. Refuses memory that could harm this process:
    /// memory that may be truncated while in use (an access would kill the process), and memory
    /// whose pages may be unavailable on access (huge pages). Also refuses more than `most` bytes.
    pub fn open(fd: OwnedFd, most: usize) -> io::Result<SharedMemory> {
        // SAFETY: plain system calls on an open descriptor.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })
            .map_err(|_| refused("the descriptor is not shared memory"))?;
        if seals & SEALS != SEALS {
            return Err(refused("the memory's size isn't fixed"));
        }
        // SAFETY: all-zero values are valid, and the calls fill them.
        let (kind, len) = unsafe {
            let mut system: libc::statfs = std::mem::zeroed();
            check(libc::fstatfs(fd.as_raw_fd(), &raw mut system))?;
            let mut status: libc::stat = std::mem::zeroed();
            check(libc::fstat(fd.as_raw_fd(), &raw mut status))?;
            (system.f_type as u64, status.st_size)
        };
        if kind != libc::TMPFS_MAGIC as u64 {
            return Err(refused("the memory is of an unsupported type"));
        }
        match usize::try_from(len) {
            Ok(len) if len > 0 && len <= most && len.is_multiple_of(IO_ALIGNMENT) => map(fd.as_fd(), len),
            _ => Err(refused(&format!(
                "the memory has {len} bytes; whole pages, {most} bytes at most are allowed"
            ))),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `len` bytes from `at` on lie inside the memory.
    pub fn contains(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Copies `data` to `at`. Panics when the range isn't inside: the caller validates a peer's
    /// numbers first ([`SharedMemory::contains`]).
    pub fn copy_in(&self, at: usize, data: &IoBuf) {
        assert!(
            self.contains(at, data.len()),
            "{at} and {} are not inside of {} bytes",
            data.len(),
            self.len
        );
        // SAFETY: the range was checked; the buffer is this process's own and isn't part of the
        // mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.ptr.as_ptr().add(at), data.len()) }
    }

    /// Copies bytes from `at` on until `into` is full. Panics as [`SharedMemory::copy_in`] does.
    pub fn copy_out(&self, at: usize, into: &IoBuf) {
        assert!(
            self.contains(at, into.len()),
            "{at} and {} are not inside of {} bytes",
            into.len(),
            self.len
        );
        let into = Borrowed::new(into.clone(), Access::Write);
        // SAFETY: as above. If the other process writes meanwhile, the copy may mix old and new
        // bytes, but remains a copy.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr().add(at), into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and there is no reference into it.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<SharedMemory> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; the descriptor is open.
    let ptr =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    if ptr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(SharedMemory { ptr, len })
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("shared memory: {why}"))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = IO_ALIGNMENT;

    #[test]
    fn one_side_copies_out_what_the_other_copied_in() {
        let (ours, fd) = SharedMemory::create(4 * PAGE).unwrap();
        let theirs = SharedMemory::open(fd, 4 * PAGE).unwrap();
        assert_eq!((ours.len(), theirs.len()), (4 * PAGE, 4 * PAGE));
        ours.copy_in(PAGE, &IoBuf::from_slice(b"hello"));
        let seen = IoBuf::alloc(7);
        let page = IoBuf::alloc(PAGE);
        page.note_checksums(vec![17]);
        ours.copy_out(0, &page);
        assert!(page.with_checksums(|_| ()).is_none());
        theirs.copy_out(PAGE - 1, &seen);
        assert_eq!(seen.as_slice(), b"\0hello\0");
        assert!(theirs.contains(4 * PAGE - 5, 5) && theirs.contains(0, 0) && theirs.contains(4 * PAGE, 0));
        assert!(
            !theirs.contains(4 * PAGE - 4, 5)
                && !theirs.contains(usize::MAX, 2)
                && !theirs.contains(4 * PAGE + 1, 0)
        );
    }

    #[test]
    #[should_panic(expected = "not inside")]
    fn nothing_is_copied_beyond_the_end() {
        let (memory, _fd) = SharedMemory::create(PAGE).unwrap();
        memory.copy_in(PAGE - 1, &IoBuf::from_slice(b"ab"));
    }

    fn memory(seals: libc::c_int, len: usize, flags: libc::c_uint) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags;
        // SAFETY: as in `create`.
        unsafe {
            let fd = OwnedFd::from_raw_fd(check(libc::memfd_create(c"test".as_ptr(), flags)).unwrap());
            check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t)).unwrap();
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals)).unwrap();
            fd
        }
    }

    fn refusal(fd: OwnedFd) -> String {
        SharedMemory::open(fd, 4 * PAGE).unwrap_err().to_string()
    }

    #[test]
    fn what_could_hurt_is_refused() {
        // Unsealed: the other process could truncate it, and the next access would kill this one.
        assert!(refusal(memory(0, PAGE, 0)).contains("isn't fixed"));
        assert!(refusal(memory(libc::F_SEAL_GROW, PAGE, 0)).contains("isn't fixed"));
        for len in [0, PAGE + 1, 5 * PAGE] {
            assert!(refusal(memory(SEALS, len, 0)).contains("whole pages"), "{len}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        assert!(refusal(file.into()).contains("not shared memory") || std::fs::metadata("/tmp").is_err());
        assert!(
            refusal(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()).contains("not shared memory")
        );
        // Answers can't be written to read-only memory.
        assert!(SharedMemory::open(memory(SEALS | libc::F_SEAL_WRITE, PAGE, 0), PAGE).is_err());
        // Huge pages may be unavailable on access. SAFETY: as in `create`.
        let huge = unsafe {
            libc::memfd_create(
                c"huge".as_ptr(),
                libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB | libc::MFD_CLOEXEC,
            )
        };
        if huge >= 0 {
            // SAFETY: it has just been opened for us.
            let huge = unsafe { OwnedFd::from_raw_fd(huge) };
            // SAFETY: plain system calls on our own descriptor.
            let sealed = unsafe {
                libc::ftruncate(huge.as_raw_fd(), 2 << 20) == 0
                    && libc::fcntl(huge.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
            };
            let opened = SharedMemory::open(huge, 4 << 20);
            assert!(
                opened.is_err() && (!sealed || opened.unwrap_err().to_string().contains("unsupported type"))
            );
        }
    }
}
