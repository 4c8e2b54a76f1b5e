//! Files on the machine's file systems.
//!
//! Operations use the ring where it offers them. Direct system calls remain where the ring has no
//! operation. They also remain where the ring would move a quick call to a kernel thread, which
//! costs more than the call itself.

use super::{Durability, Fallocate, FileStat, MAX_ATTRIBUTE_BYTES, OpenOptions, UnallocatedRanges};
use crate::blocking;
use crate::buf::{Access, Borrowed, IoBuf};
use crate::driver::{KeepAlive, OnDrop, large, to_result};
use crate::op::{self, Op};
use io_uring::{opcode, types::Fd, types::FsyncFlags};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use types::Timestamp;

/// Permissions of new files: only the service's user has access.
const FILE_MODE: libc::mode_t = 0o600;
/// Limit of one transfer; the kernel truncates longer ones a little below 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

/// System call number of `cachestat(2)`, the same on all architectures except Alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct CacheRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheCounts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// `FS_IOC_FIEMAP` of `linux/fs.h`, the same on all architectures with this encoding of requests
/// (x86-64, ARM, RISC-V).
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// Extents that one call lists.
const EXTENTS: usize = 256;
/// Calls for one file: beyond this number of extents, the rest of the file counts as allocated.
const MAX_EXTENT_CALLS: usize = 256;

/// `struct fiemap` of `linux/fiemap.h`, with space for extents.
#[repr(C)]
struct ExtentMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// An open file.
#[derive(Debug)]
pub(super) struct RealFile {
    fd: Arc<OwnedFd>,
    direct: bool,
}

impl RealFile {
    pub(super) async fn open(path: &Path, options: OpenOptions) -> io::Result<RealFile> {
        let flags = open_flags(options);
        // The ring passes every open that may create or truncate a file to a kernel thread, which
        // costs more than the call.
        let fd = if options.create || options.truncate {
            open_now(path, flags)?
        } else {
            open_on_ring(path, flags).await?
        };
        if !options.direct {
            expect_random_reads(&fd);
        }
        Ok(RealFile { fd: Arc::new(fd), direct: options.direct })
    }

    pub(super) async fn read_at(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        let mut done = if self.direct {
            0
        } else {
            match self.read_cached(&buf, offset)? {
                Cached::Complete(done) => return Ok(done),
                Cached::Partial(done) => done,
            }
        };
        while done < buf.len() {
            let part = Borrowed::new(buf.slice(done..buf.len().min(done + MAX_TRANSFER)), Access::Write);
            let (address, len) = (part.as_mut_ptr(), part.len() as u32);
            let entry = opcode::Read::new(self.raw(), address, len).offset(offset + done as u64).build();
            // SAFETY: the entry points to `part`, which `keep` owns.
            let got = unsafe { op::run(large(entry), self.keep(part)) }.await;
            match got {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
            // A direct read that ends unaligned has reached the end of the file.
            if self.direct && !done.is_multiple_of(crate::buf::IO_ALIGNMENT) {
                break;
            }
        }
        Ok(done)
    }

    /// Reads from the page cache with one system call, without using the ring.
    fn read_cached(&self, buf: &IoBuf, offset: u64) -> io::Result<Cached> {
        let mut done = 0;
        while done < buf.len() {
            let rest = Borrowed::new(buf.slice(done..buf.len()), Access::Write);
            let part = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let at = (offset + done as u64) as libc::off_t;
            // SAFETY: the vector describes `rest`, which lives during the call.
            let got = unsafe { libc::preadv2(self.fd.as_raw_fd(), &part, 1, at, libc::RWF_NOWAIT) };
            if got > 0 {
                done += got as usize;
            } else if got == 0 {
                return Ok(Cached::Complete(done));
            } else {
                return match io::Error::last_os_error() {
                    e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINTR)) => {
                        Ok(Cached::Partial(done))
                    }
                    e => Err(e),
                };
            }
        }
        Ok(Cached::Complete(done))
    }

    /// See [`super::File::may_be_cached`]. A read with `RWF_NOWAIT` would tell as well, but it
    /// brings missing pages into the cache.
    pub(super) fn may_be_cached(&self, offset: u64, len: u64) -> bool {
        let (range, mut found) = (CacheRange { offset, len }, CacheCounts::default());
        // SAFETY: both are laid out as the kernel defines them, and live during the call.
        let done = unsafe { libc::syscall(SYS_CACHESTAT, self.fd.as_raw_fd(), &range, &mut found, 0) };
        done != 0 || found.cached > 0
    }

    pub(super) async fn write_at(
        &self,
        buf: IoBuf,
        offset: u64,
        durability: Durability,
    ) -> io::Result<usize> {
        let flags = if durability == Durability::Now { libc::RWF_DSYNC } else { 0 };
        let mut done = 0;
        while done < buf.len() {
            let part = Borrowed::new(buf.slice(done..buf.len().min(done + MAX_TRANSFER)), Access::Read);
            let (address, len) = (part.as_ptr(), part.len() as u32);
            let at = offset + done as u64;
            let entry = opcode::Write::new(self.raw(), address, len).offset(at).rw_flags(flags).build();
            // SAFETY: the entry points to `part`, which `keep` owns.
            let put = unsafe { op::run(large(entry), self.keep(part)) }.await;
            match put {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(put) => done += put,
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    pub(super) async fn sync_data(&self) -> io::Result<()> {
        fsync_on_ring(&self.fd, FsyncFlags::DATASYNC).await
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        let len = libc::off_t::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: a plain system call on an open descriptor.
        check(unsafe { libc::ftruncate(self.fd.as_raw_fd(), len) }).map(drop)
    }

    pub(super) async fn allocate(&self, how: Fallocate, offset: u64, len: u64) -> io::Result<()> {
        let mode = match how {
            Fallocate::Reserve => libc::FALLOC_FL_KEEP_SIZE,
            Fallocate::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Fallocate::Zero => libc::FALLOC_FL_ZERO_RANGE,
        };
        loop {
            let entry = opcode::Fallocate::new(self.raw(), len).offset(offset).mode(mode).build();
            let keep = KeepAlive { fd: Some(self.fd.clone()), ..KeepAlive::default() };
            // SAFETY: the entry points to no memory.
            match unsafe { op::run(large(entry), keep) }.await {
                Err(e) if is_transient(&e) => {}
                result => return result.map(drop),
            }
        }
    }

    pub(super) fn unallocated_ranges(&self, range: Range<u64>, most: usize) -> io::Result<UnallocatedRanges> {
        let mut gaps = UnallocatedRanges::of(range, most);
        let mut map = Box::new(ExtentMap {
            start: 0,
            length: 0,
            flags: 0,
            mapped: 0,
            room: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        });
        for _ in 0..MAX_EXTENT_CALLS {
            let rest = gaps.rest();
            if rest.is_empty() {
                return Ok(gaps);
            }
            (map.start, map.length) = (rest.start, rest.end - rest.start);
            // SAFETY: the structure is that of the request, and has room for as many extents as it
            // says.
            check(unsafe { libc::ioctl(self.fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut *map) })?;
            let found = &map.extents[..(map.mapped as usize).min(EXTENTS)];
            found.iter().for_each(|extent| gaps.skip(extent.logical..extent.logical + extent.length));
            if found.len() < EXTENTS {
                return Ok(gaps.finish());
            }
        }
        Ok(gaps)
    }

    pub(super) fn stat(&self) -> io::Result<FileStat> {
        // SAFETY: an all-zero stat is valid, and the call fills it.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            check(libc::fstat(self.fd.as_raw_fd(), &mut stat))?;
            stat
        };
        Ok(FileStat {
            len: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mtime: Timestamp::new(stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: Timestamp::new(stat.st_ctime, stat.st_ctime_nsec as u32),
            inode: stat.st_ino,
        })
    }

    pub(super) fn set_time(&self, time: Timestamp) -> io::Result<()> {
        let same = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
        let times = [same, libc::timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }];
        // SAFETY: the call reads two times from the array, and nothing after it has returned.
        check(unsafe { libc::futimens(self.fd.as_raw_fd(), times.as_ptr()) }).map(drop)
    }

    pub(super) fn set_attribute(&self, name: &CStr, value: &[u8]) -> io::Result<()> {
        // SAFETY: name and value live as long as the call, and the length is the value's.
        let done = unsafe {
            libc::fsetxattr(self.fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        };
        check(done).map(drop)
    }

    pub(super) fn attribute(&self, name: &CStr) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
        // SAFETY: the call writes at most the length that it is told, which is the buffer's.
        let got = unsafe {
            libc::fgetxattr(self.fd.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        match usize::try_from(got) {
            Ok(len) => {
                value.truncate(len);
                Ok(Some(value))
            }
            Err(_) => match io::Error::last_os_error() {
                e if matches!(e.raw_os_error(), Some(libc::ENODATA | libc::ERANGE | libc::EOPNOTSUPP)) => {
                    Ok(None)
                }
                e => Err(e),
            },
        }
    }

    pub(super) fn seek_data(&self, from: u64) -> io::Result<Option<u64>> {
        match self.seek(from, libc::SEEK_DATA) {
            Ok(at) => Ok(Some(at)),
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn seek_hole(&self, from: u64) -> io::Result<u64> {
        self.seek(from, libc::SEEK_HOLE)
    }

    fn seek(&self, from: u64, whence: libc::c_int) -> io::Result<u64> {
        let from = libc::off_t::try_from(from).map_err(|_| io::Error::from_raw_os_error(libc::ENXIO))?;
        // SAFETY: a plain system call on an open descriptor; the descriptor's position isn't used.
        let at = unsafe { libc::lseek(self.fd.as_raw_fd(), from, whence) };
        if at < 0 { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
    }

    fn raw(&self) -> Fd {
        Fd(self.fd.as_raw_fd())
    }

    fn keep(&self, buf: Borrowed) -> KeepAlive {
        KeepAlive { bufs: [Some(buf), None], fd: Some(self.fd.clone()), ..KeepAlive::default() }
    }
}

/// Result of a read from the page cache.
enum Cached {
    /// Everything, up to the end of the file.
    Complete(usize),
    /// Only this many bytes; the rest must be read.
    Partial(usize),
}

fn open_flags(options: OpenOptions) -> libc::c_int {
    let access = match (options.read, options.write) {
        (true, true) => libc::O_RDWR,
        (false, true) => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    };
    let flag = |on: bool, flag: libc::c_int| if on { flag } else { 0 };
    access
        | libc::O_CLOEXEC
        | flag(options.create, libc::O_CREAT)
        | flag(options.create && options.exclusive, libc::O_EXCL)
        | flag(options.truncate, libc::O_TRUNC)
        | flag(options.direct, libc::O_DIRECT)
}

fn open_now(path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string; a non-negative result is a descriptor without another owner.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::open(path.as_ptr(), flags, FILE_MODE))?)) }
}

async fn open_on_ring(path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    loop {
        let path = path.clone();
        let entry = opcode::OpenAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).flags(flags).build();
        let keep = KeepAlive { paths: [Some(path), None], ..KeepAlive::default() };
        // SAFETY: the entry points to the path's heap memory, which `keep` owns.
        let open = unsafe { Op::start(large(entry), keep, OnDrop::Close)? };
        match to_result(open.await) {
            // SAFETY: the kernel has just opened the descriptor for us.
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Advises the kernel of random reads: readahead is done by the layer above, which requests what it
/// wants.
fn expect_random_reads(fd: &OwnedFd) {
    // SAFETY: a plain system call on an open descriptor. It is advice: a refusal changes nothing.
    unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}

async fn fsync_on_ring(fd: &Arc<OwnedFd>, flags: FsyncFlags) -> io::Result<()> {
    loop {
        let entry = opcode::Fsync::new(Fd(fd.as_raw_fd())).flags(flags).build();
        let keep = KeepAlive { fd: Some(fd.clone()), ..KeepAlive::default() };
        // SAFETY: the entry points to no memory.
        match unsafe { op::run(large(entry), keep) }.await {
            Err(e) if is_transient(&e) => {}
            result => return result.map(drop),
        }
    }
}

/// Renames through the ring: the call may wait for the file system's journal.
pub(super) async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    let here = Fd(libc::AT_FDCWD);
    let entry = opcode::RenameAt::new(here, from.as_ptr(), here, to.as_ptr()).build();
    // SAFETY: the entry points to the paths' heap memory, which `keep` owns.
    unsafe { op::run(large(entry), KeepAlive { paths: [Some(from), Some(to)], ..KeepAlive::default() }) }
        .await
        .map(drop)
}

/// Removes through the ring: freeing the space of a large file takes long.
pub(super) async fn remove_file(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let entry = opcode::UnlinkAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).build();
    // SAFETY: the entry points to the path's heap memory, which `keep` owns.
    unsafe { op::run(large(entry), KeepAlive { paths: [Some(path), None], ..KeepAlive::default() }) }
        .await
        .map(drop)
}

/// Removes an empty directory through the ring.
pub(super) async fn remove_dir(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let entry = opcode::UnlinkAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).flags(libc::AT_REMOVEDIR).build();
    // SAFETY: the entry points to the path's heap memory, which `keep` owns.
    unsafe { op::run(large(entry), KeepAlive { paths: [Some(path), None], ..KeepAlive::default() }) }
        .await
        .map(drop)
}

pub(super) async fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = Arc::new(OwnedFd::from(fs::File::open(path)?));
    fsync_on_ring(&dir, FsyncFlags::empty()).await
}

pub(super) async fn sync_filesystem(path: &Path) -> io::Result<()> {
    let dir = fs::File::open(path)?;
    blocking::run(move || {
        // SAFETY: a plain system call on an open descriptor.
        check(unsafe { libc::syncfs(dir.as_raw_fd()) }).map(drop)
    })
    .await
}

/// Requests a mount id that is never reused until reboot (Linux 6.8, `statx(2)`); older kernels
/// return one that may be reused.
const STATX_MNT_ID_UNIQUE: libc::c_uint = 0x4000;

pub(super) fn unsynced_data_verifier(path: &Path) -> io::Result<String> {
    let boot = crate::net::boot_id()?;
    let mount = mount_of(path)?;
    // A service may run in a mount namespace of its own, whose mounts differ at its next start.
    // Those of the first process stay.
    let init_mount = path.strip_prefix("/").ok().map(|path| Path::new("/proc/1/root").join(path));
    let init_mount = init_mount
        .and_then(|path| mount_of(&path).ok())
        .filter(|outside| outside.directory == mount.directory);
    Ok(format!("{boot}/{}", init_mount.unwrap_or(mount).id))
}

/// The mount and identity of a directory.
struct Mount {
    id: u64,
    /// Device (major, minor) and inode.
    directory: (u32, u32, u64),
}

fn mount_of(path: &Path) -> io::Result<Mount> {
    let path = c_path(path)?;
    // SAFETY: an all-zero statx is valid, the path is a C string, and the call fills the structure.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let wanted = libc::STATX_INO | libc::STATX_MNT_ID | STATX_MNT_ID_UNIQUE;
        check(libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, wanted, &mut found))?;
        found
    };
    Ok(Mount { id: found.stx_mnt_id, directory: (found.stx_dev_major, found.stx_dev_minor, found.stx_ino) })
}

/// A descriptor of a file or directory, with its identity, which is unique while it is open.
#[derive(Debug)]
pub(super) struct RealPathGuard {
    _fd: OwnedFd,
    identity: (libc::dev_t, libc::ino_t),
}

impl RealPathGuard {
    pub(super) fn new(path: &Path) -> io::Result<RealPathGuard> {
        let fd = open_now(path, libc::O_PATH | libc::O_CLOEXEC)?;
        // SAFETY: an all-zero stat is valid, and the call fills it.
        let found = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            check(libc::fstat(fd.as_raw_fd(), &mut found))?;
            found
        };
        Ok(RealPathGuard { _fd: fd, identity: (found.st_dev, found.st_ino) })
    }

    pub(super) fn leads_to_same_file(&self, path: &Path) -> io::Result<bool> {
        let path = c_path(path)?;
        // SAFETY: an all-zero stat is valid, the path is a C string, and the call fills the
        // structure.
        let found = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            check(libc::stat(path.as_ptr(), &mut found))?;
            found
        };
        Ok((found.st_dev, found.st_ino) == self.identity)
    }
}

pub(super) fn space(path: &Path) -> io::Result<(u64, u64)> {
    let path = c_path(path)?;
    // SAFETY: an all-zero statvfs is valid, the path is a C string, and the call fills the
    // structure.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        check(libc::statvfs(path.as_ptr(), &mut stat))?;
        stat
    };
    Ok((stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize))
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether a signal interrupted the operation, which must be repeated.
fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}
