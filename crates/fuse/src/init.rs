//! The INIT handshake: decides which kernel features are used. Pure.

use crate::abi::{self, InitIn, InitOut, init::*};
use types::{Errno, Error};

/// Largest READ and WRITE, in bytes: 256 pages, the kernel's default limit
/// (`/proc/sys/fs/fuse/max_pages_limit`).
pub const MAX_IO: usize = 1 << 20;
/// Largest READ and WRITE for a kernel without `MAX_PAGES`, in bytes.
const MAX_IO_WITHOUT_MAX_PAGES: usize = 32 * PAGE;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Background requests (read-ahead, asynchronous I/O) that may be in flight at a time; the kernel's
/// own default of 12 starves deep queues.
const MAX_BACKGROUND: u16 = 256;
/// Number of background requests from which on the kernel considers the mount congested.
const CONGESTION: u16 = MAX_BACKGROUND / 4 * 3;
/// Read-ahead in bytes; takes effect through `read_ahead_kb`, which the mount sets.
pub const READ_AHEAD: u32 = 4 << 20;

/// Features that weft uses where the kernel has them. Left out on purpose:
///
/// - `WRITEBACK_CACHE`: acknowledged writes must survive the death of this process, and the client
///   owns the size.
/// - `NO_EXPORT_SUPPORT`: file handles work.
/// - `ATOMIC_O_TRUNC`: with it the kernel has a file truncated before it checks whether the open
///   must fail, as it must for a running executable.
const WANTED: u64 = ASYNC_READ
    | POSIX_LOCKS
    | EXPORT_SUPPORT
    | BIG_WRITES
    | DONT_MASK
    | FLOCK_LOCKS
    | DO_READDIRPLUS
    | READDIRPLUS_AUTO
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | POSIX_ACL
    | MAX_PAGES
    | CACHE_SYMLINKS
    | NO_OPENDIR_SUPPORT
    | EXPLICIT_INVAL_DATA
    | HANDLE_KILLPRIV_V2
    | SETXATTR_EXT
    | INIT_EXT
    | HAS_EXPIRE_ONLY
    | DIRECT_IO_ALLOW_MMAP;

/// Features that the kernel and this process agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NegotiatedFeatures {
    /// The flags in effect.
    pub flags: u64,
    /// Largest READ and WRITE, bytes.
    pub max_io: usize,
    /// Minor version in effect.
    pub minor: u32,
}

impl NegotiatedFeatures {
    /// Returns true if requests arrive over io_uring.
    pub fn uses_uring(&self) -> bool {
        self.flags & OVER_IO_URING != 0
    }

    /// Returns true if one notification can invalidate all dentries of the kernel.
    pub fn supports_dentry_epochs(&self) -> bool {
        self.minor >= abi::MINOR_EPOCHS
    }

    /// Returns true if a read or write that bypasses the page cache first writes back dirty mapped
    /// pages, so that an open need not do that.
    pub fn direct_io_flushes_mappings(&self) -> bool {
        self.flags & DIRECT_IO_ALLOW_MMAP != 0
    }

    /// Returns true if idmapped mounts of the file system are allowed. Then only requests that
    /// create an inode carry ids, which are mapped already.
    pub fn allows_idmap(&self) -> bool {
        self.flags & ALLOW_IDMAP != 0
    }

    /// Returns true if directories need no OPENDIR.
    pub fn skips_opendir(&self) -> bool {
        self.flags & NO_OPENDIR_SUPPORT != 0
    }
}

/// Result of an INIT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// The kernel speaks a later major version; this reply makes it repeat INIT with ours.
    RetryVersion(InitOut),
    /// Agreed; the reply contains the agreement.
    Done(NegotiatedFeatures, InitOut),
}

/// Returns all flags of an INIT.
pub fn offered_flags(request: &InitIn) -> u64 {
    let high = if u64::from(request.flags) & INIT_EXT != 0 { request.flags2 } else { 0 };
    u64::from(request.flags) | u64::from(high) << 32
}

/// What a mount requests of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeOptions {
    /// Use io_uring if the kernel offers it.
    pub uring: bool,
    /// Other clients use the same file system.
    pub is_shared: bool,
    /// Allow idmapped mounts.
    pub idmap: bool,
}

/// Answers an INIT.
///
/// # Errors
/// `EPROTO` for a kernel that is too old, `EOPNOTSUPP` for one that doesn't support idmapped FUSE
/// mounts.
pub fn negotiate(request: &InitIn, requested: HandshakeOptions) -> Result<Handshake, Error> {
    if request.major > abi::MAJOR {
        return Ok(Handshake::RetryVersion(InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            ..Default::default()
        }));
    }
    if request.major < abi::MAJOR || request.minor < abi::MINOR_OLDEST {
        let (major, minor) = (request.major, request.minor);
        return Err(Error::new(Errno::EPROTO, format!("the kernel speaks FUSE {major}.{minor}"))
            .hint(format!("{}.{} is needed: Linux 5.4 or later", abi::MAJOR, abi::MINOR_OLDEST)));
    }
    if requested.idmap && offered_flags(request) & ALLOW_IDMAP == 0 {
        return Err(Error::new(Errno::EOPNOTSUPP, "this kernel doesn't support idmapped FUSE mounts")
            .hint("use Linux 6.12 or later, or mount without idmap"));
    }
    let mut wanted = if requested.uring { WANTED | OVER_IO_URING } else { WANTED };
    if requested.idmap {
        wanted |= ALLOW_IDMAP;
    }
    wanted &= match requested.is_shared {
        // For a directory opened without a request the kernel caches the listing. It then checks
        // only the times that it has cached and sends no request.
        true => !NO_OPENDIR_SUPPORT,
        // No other client needs to know of locks. The kernel manages them itself then, and a close
        // needs no request for their sake.
        false => !(POSIX_LOCKS | FLOCK_LOCKS),
    };
    let flags = wanted & offered_flags(request);
    let max_io = if flags & MAX_PAGES != 0 { MAX_IO } else { MAX_IO_WITHOUT_MAX_PAGES };
    let features = NegotiatedFeatures { flags, max_io, minor: request.minor.min(abi::MINOR) };
    let reply = InitOut {
        major: abi::MAJOR,
        minor: features.minor,
        max_readahead: READ_AHEAD,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION,
        max_write: max_io as u32,
        time_gran: 1,
        max_pages: (max_io / PAGE) as u16,
        ..Default::default()
    };
    Ok(Handshake::Done(features, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(minor: u32, flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 131072,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..Default::default()
        }
    }

    const PLAIN: HandshakeOptions = HandshakeOptions { uring: true, is_shared: false, idmap: false };

    fn agree(minor: u32, flags: u64, uring: bool) -> (NegotiatedFeatures, InitOut) {
        match negotiate(&request(minor, flags), HandshakeOptions { uring, ..PLAIN }) {
            Ok(Handshake::Done(agreement, reply)) => (agreement, reply),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_wanted_features_are_enabled() {
        let (features, reply) = agree(45, u64::MAX, true);
        assert_eq!(features.flags, WANTED & !(POSIX_LOCKS | FLOCK_LOCKS) | OVER_IO_URING);
        assert!(features.uses_uring() && features.skips_opendir());
        assert_eq!(u64::from(reply.flags) | u64::from(reply.flags2) << 32, features.flags);
        assert_eq!((reply.max_write, reply.max_pages, reply.time_gran), (1 << 20, 256, 1));
        const WRITEBACK_CACHE: u64 = 1 << 16;
        const ATOMIC_O_TRUNC: u64 = 1 << 3;
        assert_eq!(features.flags & (WRITEBACK_CACHE | ATOMIC_O_TRUNC), 0);
    }

    #[test]
    fn beside_other_clients_requests_open_directories_and_take_locks() {
        match negotiate(&request(45, u64::MAX), HandshakeOptions { is_shared: true, ..PLAIN }) {
            Ok(Handshake::Done(agreement, _)) => {
                assert!(!agreement.skips_opendir());
                assert_eq!(agreement.flags & (POSIX_LOCKS | FLOCK_LOCKS), POSIX_LOCKS | FLOCK_LOCKS);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ids_are_mapped_only_on_request_and_by_kernels_that_can() {
        assert!(!agree(45, u64::MAX, true).0.allows_idmap());
        let requested = HandshakeOptions { idmap: true, ..PLAIN };
        match negotiate(&request(45, u64::MAX), requested) {
            Ok(Handshake::Done(agreement, _)) => assert!(agreement.allows_idmap()),
            other => panic!("{other:?}"),
        }
        let refused = negotiate(&request(40, !ALLOW_IDMAP), requested).unwrap_err();
        assert_eq!(refused.errno, Errno::EOPNOTSUPP);
    }

    #[test]
    fn nothing_is_claimed_that_was_not_offered() {
        let (features, reply) = agree(31, ASYNC_READ | MAX_PAGES, true);
        assert_eq!(features.flags, ASYNC_READ | MAX_PAGES);
        assert_eq!((reply.flags2, reply.minor), (0, 31));
        assert!(!features.uses_uring());
    }

    #[test]
    fn uring_is_off_unless_requested() {
        assert!(!agree(45, u64::MAX, false).0.uses_uring());
    }

    #[test]
    fn high_flags_count_only_with_the_extended_init() {
        let (features, _) = agree(45, OVER_IO_URING | ASYNC_READ, true);
        assert_eq!(features.flags, ASYNC_READ);
    }

    #[test]
    fn without_page_counts_requests_stay_small() {
        let (features, reply) = agree(40, ASYNC_READ, false);
        assert_eq!((features.max_io, reply.max_write), (128 << 10, 128 << 10));
    }

    #[test]
    fn a_newer_minor_is_answered_with_ours() {
        assert_eq!(agree(99, u64::MAX, true).1.minor, abi::MINOR);
    }

    #[test]
    fn other_majors() {
        let newer = InitIn { major: 8, minor: 0, ..Default::default() };
        assert!(matches!(negotiate(&newer, PLAIN), Ok(Handshake::RetryVersion(InitOut { major: 7, .. }))));
        let older = InitIn { major: 6, minor: 99, ..Default::default() };
        assert_eq!(negotiate(&older, PLAIN).unwrap_err().errno, Errno::EPROTO);
        assert_eq!(negotiate(&request(30, u64::MAX), PLAIN).unwrap_err().errno, Errno::EPROTO);
    }
}
