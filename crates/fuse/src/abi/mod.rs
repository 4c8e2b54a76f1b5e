//! The kernel's FUSE protocol, version 7.45: numbers and layouts as in `include/uapi/linux/fuse.h`.
//! This module only defines them; `request` and `dispatch` document what the fields mean to weft.

mod opcode;
#[allow(unsafe_code)] // Structs are copied from and to the kernel's bytes; the SAFETY comments are beside it.
mod pod;
mod structs;

pub use opcode::Opcode;
pub use pod::{Pod, bytes_of, read};
pub use structs::*;

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version that these definitions cover.
pub const MINOR: u32 = 45;
/// Oldest supported minor version (Linux 5.4): below it the kernel lacks `MAX_PAGES` and cached
/// directories.
pub const MINOR_OLDEST: u32 = 31;

/// First minor version of kernels that check the permission to set inode flags, and set them by
/// IOCTL (Linux 5.14).
pub const MINOR_FILE_ATTRIBUTES: u32 = 34;

/// First minor version with epochs of dentries (Linux 6.16).
pub const MINOR_EPOCHS: u32 = 44;

/// Flags of the INIT request and reply.
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `valid` of SETATTR.
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `open_flags` of replies to OPEN, CREATE and OPENDIR.
#[allow(missing_docs)]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `open_flags` of OPEN and CREATE: clear setuid and setgid, since O_TRUNC comes from an
/// unprivileged user.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `release_flags`: drop the flock of `lock_owner`.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `read_flags`: there is a lock owner. The kernel sets it for reads by applications, and not when
/// it fills its page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `write_flags`: the page cache writes back dirty mapped pages.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `write_flags`: clear setuid and setgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fsync_flags`: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `lk_flags`: an flock, not a range of bytes.
pub const LK_FLOCK: u32 = 1 << 0;
/// `setxattr_flags`: setting the access ACL clears setgid.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Notification: invalidate attributes, and cached data where the range is not empty.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: revalidate all dentries that are cached now before their next use (protocol 7.44).
pub const NOTIFY_INC_EPOCH: i32 = 8;

/// `ioctl` that attaches a second open of `/dev/fuse` to a connection.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;

/// io_uring command: register an entry of a queue.
pub const URING_CMD_REGISTER: u32 = 1;
/// io_uring command: commit the reply of an entry and fetch its next request.
pub const URING_CMD_COMMIT_AND_FETCH: u32 = 2;
/// Offset of the operation's struct in an entry's header.
pub const URING_OP_IN_OFFSET: usize = 128;
/// Longest struct of an operation in an entry's header, in bytes.
pub const URING_OP_IN_LEN: usize = 128;
/// Offset of [`UringEntInOut`] in an entry's header.
pub const URING_ENT_OFFSET: usize = 256;
/// Length of an entry's header, in bytes.
pub const URING_HEADER_LEN: usize = 288;
