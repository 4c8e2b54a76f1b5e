//! Safe wrappers of the system calls that this crate needs.

use rt::IoBuf;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The device that connects the kernel with a file system in a process.
pub const DEVICE: &str = "/dev/fuse";

/// Opens `/dev/fuse`.
pub fn open_device() -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
    Ok(OwnedFd::from(file))
}

/// Opens `/dev/fuse` again for the connection of `original`, with non-blocking reads.
pub fn clone_device(original: RawFd) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
    let mut source = original as u32;
    // SAFETY: the ioctl reads one u32 from a pointer that is valid for the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), crate::abi::DEV_IOC_CLONE as _, &raw mut source) };
    check(result as isize)?;
    let clone = OwnedFd::from(file);
    set_nonblocking(clone.as_raw_fd())?;
    Ok(clone)
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with these commands takes and returns integers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) } as isize)?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags as libc::c_int | libc::O_NONBLOCK) } as isize)?;
    Ok(())
}

/// Returns a second descriptor of the same open file.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with this command takes and returns integers.
    let new = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } as isize)?;
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(new as RawFd) })
}

/// Reads into `buf`.
pub fn read(fd: RawFd, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length are those of a slice that is exclusively borrowed for the call.
    check(unsafe { libc::read(fd, buf.as_mut_ptr().cast(), buf.len()) })
}

/// Reads into `buf`, whose memory the caller may change.
pub fn read_into(fd: RawFd, buf: &IoBuf) -> io::Result<usize> {
    // SAFETY: an IoBuf's memory is writable over its length as long as it lives; its contract
    // allows one writer at a time.
    check(unsafe { libc::read(fd, buf.as_mut_ptr().cast(), buf.len()) })
}

/// Writes all of `buf` in one call, as the device requires.
pub fn write(fd: RawFd, buf: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length are those of a slice that is borrowed for the call.
    check(unsafe { libc::write(fd, buf.as_ptr().cast(), buf.len()) }).map(drop)
}

/// mount(2).
pub fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let (source, kind, options) = (CString::new(source)?, CString::new(kind)?, CString::new(options)?);
    let target = CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: all pointers are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    };
    check(result as isize).map(drop)
}

/// Requests an extended attribute of a file and ignores its value; symlinks aren't followed.
pub fn probe_xattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    // SAFETY: the pointers are NUL-terminated strings that outlive the call; for a value of size 0
    // the kernel writes nothing.
    check(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) }).map(drop)
}

/// umount2(2); symlinks aren't followed.
pub fn unmount(target: &Path, flags: libc::c_int) -> io::Result<()> {
    let target = CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: the pointer is a NUL-terminated string that outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } as isize).map(drop)
}

/// Returns the processors that this process may run on, up to `limit`.
pub fn allowed_cpus(limit: usize) -> Vec<usize> {
    // SAFETY: a cpu_set_t is an array of integers, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Vec::new();
    }
    let limit = limit.min(libc::CPU_SETSIZE as usize);
    // SAFETY: every index is below CPU_SETSIZE.
    (0..limit).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Maps zeroed, page-aligned address space for buffers. It takes memory only where it is touched
/// and stays mapped for the life of the process.
pub fn map_permanently(len: usize) -> io::Result<IoBuf> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is readable and writable over `len` bytes, and it is never unmapped.
    Ok(unsafe { IoBuf::from_raw(address.cast(), len) })
}

/// Returns the memory behind a mapping to the system; the addresses stay valid and read as zeros.
///
/// # Safety
/// `mapping` came whole from [`map_permanently`], and nobody uses its contents any more.
pub unsafe fn discard(mapping: &IoBuf) {
    // SAFETY: it is private anonymous memory, as the caller vouches. A failure only means that the
    // memory stays in use.
    unsafe { libc::madvise(mapping.as_mut_ptr().cast(), mapping.len(), libc::MADV_DONTNEED) };
}

/// Writes a setting below `/sys` or `/proc`.
pub fn write_setting(path: impl AsRef<Path>, value: &str) -> io::Result<()> {
    use std::io::Write;
    let mut file: File = OpenOptions::new().write(true).open(path)?;
    file.write_all(value.as_bytes())
}

fn check(result: isize) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}
