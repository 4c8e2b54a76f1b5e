//! Calls on files, names and attributes.

use super::{c_name, c_path, check, check_size};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::Path;

/// `fallocate(2)` with `FALLOC_FL_*` mode bits.
pub fn fallocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: takes integers only; the descriptor is open while `file` is borrowed.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) })
}

/// `close(2)`, whose error the standard library ignores.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: nothing else closes the descriptor, since its owner has given it up.
    check(unsafe { libc::close(file.into_raw_fd()) })
}

/// `truncate(2)`.
pub fn truncate(path: &Path, length: u64) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is NUL-terminated and lives through the call.
    check(unsafe { libc::truncate(path.as_ptr(), length as i64) })
}

/// `fcntl(2)` with `F_SETFL`.
pub fn set_status_flags(file: &File, flags: i32) -> io::Result<()> {
    // SAFETY: takes integers only; the descriptor is open while `file` is borrowed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) })
}

/// `lseek(2)`; used for `SEEK_HOLE` and `SEEK_DATA`.
pub fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    // SAFETY: takes integers only; the descriptor is open while `file` is borrowed.
    let result = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// `copy_file_range(2)` with explicit offsets; returns the number of bytes copied.
pub fn copy_file_range(from: &File, from_at: u64, to: &File, to_at: u64, length: usize) -> io::Result<usize> {
    let (mut source, mut target) = (from_at as i64, to_at as i64);
    // SAFETY: both offsets are live locals for the length of the call.
    check_size(unsafe {
        libc::copy_file_range(from.as_raw_fd(), &mut source, to.as_raw_fd(), &mut target, length, 0)
    })
}

/// `flock(2)` with `LOCK_*` bits.
pub fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: takes integers only; the descriptor is open while `file` is borrowed.
    check(unsafe { libc::flock(file.as_raw_fd(), operation) })
}

/// A POSIX byte-range lock of `fcntl(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLock {
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// First byte.
    pub start: u64,
    /// Length in bytes; 0 extends to the end of the file.
    pub length: u64,
    /// The holder, filled in by `F_GETLK`.
    pub pid: i32,
}

/// `fcntl(2)` with `F_SETLK`, `F_SETLKW` or `F_GETLK`; returns the lock as the kernel left it.
pub fn range_lock(file: &File, command: i32, lock: RangeLock) -> io::Result<RangeLock> {
    // SAFETY: `flock` is plain integers, for which all-zero is a valid value.
    let mut raw: libc::flock = unsafe { std::mem::zeroed() };
    raw.l_type = lock.kind as i16;
    raw.l_whence = libc::SEEK_SET as i16;
    raw.l_start = lock.start as i64;
    raw.l_len = lock.length as i64;
    // SAFETY: `raw` is live and of the type that these commands read and write.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &mut raw) })?;
    Ok(RangeLock {
        kind: raw.l_type.into(),
        start: raw.l_start as u64,
        length: raw.l_len as u64,
        pid: raw.l_pid,
    })
}

/// `renameat2(2)` with `RENAME_*` flags.
pub fn rename(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    // SAFETY: both strings are NUL-terminated and live for the length of the call.
    check(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}

/// `mknod(2)`: `mode` carries the type bits.
pub fn mknod(path: &Path, mode: u32, device: u64) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the string is NUL-terminated and live for the length of the call.
    check(unsafe { libc::mknod(path.as_ptr(), mode, device) })
}

/// Returns the device number of `major` and `minor`.
pub fn device(major: u32, minor: u32) -> u64 {
    libc::makedev(major, minor)
}

/// Links an unnamed file (`O_TMPFILE`) to a name.
pub fn link_open_file(file: &File, to: &Path) -> io::Result<()> {
    let from = c_name(&format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = c_path(to)?;
    // SAFETY: both strings are NUL-terminated and live for the length of the call.
    check(unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    })
}

/// `setxattr(2)` with `XATTR_*` flags.
pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c_path(path)?, c_name(name)?);
    // SAFETY: the strings are NUL-terminated, `value` is live, and its length is passed with it.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
}

/// `getxattr(2)`.
pub fn get_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path)?, c_name(name)?);
    let mut value = vec![0u8; MAX_XATTR_BYTES];
    // SAFETY: the strings are NUL-terminated and the buffer's own length is passed with it.
    let length = check_size(unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    })?;
    value.truncate(length);
    Ok(value)
}

/// `listxattr(2)`, sorted.
pub fn list_xattrs(path: &Path) -> io::Result<Vec<String>> {
    let path = c_path(path)?;
    let mut names = vec![0u8; MAX_XATTR_BYTES];
    // SAFETY: the string is NUL-terminated and the buffer's own length is passed with it.
    let length =
        check_size(unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) })?;
    let mut list: Vec<String> = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    list.sort();
    Ok(list)
}

/// `removexattr(2)`.
pub fn remove_xattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c_path(path)?, c_name(name)?);
    // SAFETY: both strings are NUL-terminated and live for the length of the call.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

/// The kernel's limit on the size of one attribute's value and of the list of names
/// (`XATTR_SIZE_MAX`).
const MAX_XATTR_BYTES: usize = 64 * 1024;

/// Returns the birth time of a file in seconds and nanoseconds since 1970; `None` if the file
/// system doesn't record it.
pub fn birth_time(path: &Path) -> io::Result<Option<(i64, u32)>> {
    let path = c_path(path)?;
    // SAFETY: `statx` is plain integers, for which all-zero is a valid value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the string is NUL-terminated and `out` is live and of the right type.
    check(unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_BTIME, &mut out) })?;
    Ok((out.stx_mask & libc::STATX_BTIME != 0).then_some((out.stx_btime.tv_sec, out.stx_btime.tv_nsec)))
}

/// Maximum size of the opaque part of a file handle (`MAX_HANDLE_SZ`).
const MAX_HANDLE_BYTES: usize = 128;

/// A file handle of `name_to_handle_at(2)`: it identifies an inode beyond the lifetime of its path
/// and of the mount.
#[repr(C, align(8))]
#[derive(Clone)]
pub struct FileHandle {
    bytes: u32,
    kind: i32,
    opaque: [u8; MAX_HANDLE_BYTES],
}

/// `name_to_handle_at(2)`.
pub fn handle_of(path: &Path) -> io::Result<FileHandle> {
    let path = c_path(path)?;
    let mut handle = FileHandle { bytes: MAX_HANDLE_BYTES as u32, kind: 0, opaque: [0; MAX_HANDLE_BYTES] };
    let mut mount_id = 0;
    // SAFETY: `FileHandle` has the layout of the kernel's `file_handle`, with space for the stated
    // size.
    check(unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &mut mount_id, 0)
    })?;
    Ok(handle)
}

/// `open_by_handle_at(2)`, for reading; `mount` is any open file of the file system.
pub fn open_handle(mount: &File, handle: &FileHandle) -> io::Result<File> {
    let mut handle = handle.clone();
    // SAFETY: `FileHandle` has the layout of the kernel's `file_handle`; the descriptor is open
    // while borrowed.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY) };
    check(fd)?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// `syncfs(2)`: everything written to the file system is on disk when this returns.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: takes a descriptor only, open while `file` is borrowed.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Returns free and total bytes of the file system that contains `path`.
pub fn space(path: &Path) -> io::Result<(u64, u64)> {
    let path = c_path(path)?;
    // SAFETY: `statvfs` is plain integers, for which all-zero is a valid value.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the string is NUL-terminated and `out` is live and of the right type.
    check(unsafe { libc::statvfs(path.as_ptr(), &mut out) })?;
    Ok((out.f_bavail * out.f_frsize, out.f_blocks * out.f_frsize))
}

/// Returns the bytes of memory available to programs (`MemAvailable`).
pub fn available_memory() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("no MemAvailable"))
}

/// A memory mapping of a file.
pub struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes for reading and writing, `MAP_SHARED` or `MAP_PRIVATE`.
    pub fn new(file: &File, length: usize, sharing: i32) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no existing memory.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, sharing, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address: address.cast(), length })
    }

    /// Copies bytes into the mapping.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.length, "a write outside the mapping");
        // SAFETY: the range was checked to lie in the live mapping, and `data` can't overlap it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.address.add(offset), data.len()) }
    }

    /// Copies bytes out of the mapping.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length, "a read outside the mapping");
        let mut data = vec![0u8; length];
        // SAFETY: the range was checked to lie in the live mapping, and `data` can't overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.address.add(offset), data.as_mut_ptr(), length) }
        data
    }

    /// `msync(2)` with `MS_SYNC`.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: names exactly the live mapping.
        check(unsafe { libc::msync(self.address.cast(), self.length, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: names exactly the live mapping, to which no reference remains.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

/// A page-aligned buffer for `O_DIRECT`.
pub struct AlignedBuffer {
    memory: Vec<Page>,
    length: usize,
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

impl AlignedBuffer {
    /// Allocates zeroed memory.
    pub fn new(length: usize) -> AlignedBuffer {
        AlignedBuffer { memory: vec![Page([0; 4096]); length.div_ceil(4096)], length }
    }

    /// Returns the bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are contiguous plain bytes, at least `length` of them, borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.length) }
    }
}
