//! Attributes of inodes.

use crate::{InodeFlags, InodeId, ProjectId, Timestamp};

/// File type and permission bits, as in `st_mode`.
pub mod mode {
    #![allow(missing_docs)]
    pub const S_IFMT: u32 = 0o170000;
    pub const S_IFSOCK: u32 = 0o140000;
    pub const S_IFLNK: u32 = 0o120000;
    pub const S_IFREG: u32 = 0o100000;
    pub const S_IFBLK: u32 = 0o060000;
    pub const S_IFDIR: u32 = 0o040000;
    pub const S_IFCHR: u32 = 0o020000;
    pub const S_IFIFO: u32 = 0o010000;
    pub const S_ISUID: u32 = 0o4000;
    pub const S_ISGID: u32 = 0o2000;
    pub const S_ISVTX: u32 = 0o1000;
    pub const S_IXGRP: u32 = 0o0010;
    pub const PERMISSIONS: u32 = 0o7777;
}

/// Type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    /// The type that `st_mode` encodes; `None` for an unknown type field.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & mode::S_IFMT {
            mode::S_IFREG => FileKind::Regular,
            mode::S_IFDIR => FileKind::Directory,
            mode::S_IFLNK => FileKind::Symlink,
            mode::S_IFIFO => FileKind::Fifo,
            mode::S_IFSOCK => FileKind::Socket,
            mode::S_IFCHR => FileKind::CharDevice,
            mode::S_IFBLK => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// The type field of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => mode::S_IFREG,
            FileKind::Directory => mode::S_IFDIR,
            FileKind::Symlink => mode::S_IFLNK,
            FileKind::Fifo => mode::S_IFIFO,
            FileKind::Socket => mode::S_IFSOCK,
            FileKind::CharDevice => mode::S_IFCHR,
            FileKind::BlockDevice => mode::S_IFBLK,
        }
    }
}

/// Attributes that `stat` and `statx` report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: InodeId,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's 32-bit encoding (`new_encode_dev`).
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Time of creation.
    pub btime: Timestamp,
    /// Flags set by chattr(1).
    pub flags: InodeFlags,
    /// Project that it belongs to.
    pub project: ProjectId,
    /// It surely has no extended attributes, and no access control list.
    pub has_no_xattrs: bool,
}

impl Attr {
    /// The kind of the inode.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).expect("an inode is made with a known type and keeps it")
    }
}

/// Whether an access at `now` must be recorded, as with the mount option `relatime`: it is the
/// first one since the last change, or the recorded one is a day old.
pub fn needs_atime_update(atime: Timestamp, changed: Timestamp, now: Timestamp) -> bool {
    const DAY_S: i64 = 24 * 60 * 60;
    atime <= changed || now.secs.saturating_sub(atime.secs) >= DAY_S
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// A given time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves an attribute unchanged. A separate request changes the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct SetAttr {
    /// Permission bits only (`0o7777`).
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<Timestamp>,
    /// Clear setuid, and setgid where the group may execute (a write or a change of owner by an
    /// unprivileged user).
    pub kill_suid_sgid: bool,
    /// The complete new set of flags; it replaces the present one.
    pub flags: Option<InodeFlags>,
    pub project: Option<ProjectId>,
}

/// User, group and process that issue a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Process id, for lock owners and messages.
    pub pid: u32,
}

impl Credentials {
    /// Stands for ids that the client's kernel doesn't disclose (`FUSE_INVALID_UIDGID` of Linux's
    /// `include/uapi/linux/fuse.h`). No user has this id.
    pub const UNKNOWN_ID: u32 = u32::MAX;

    /// Whether the client's kernel doesn't disclose the user.
    pub fn is_unknown(&self) -> bool {
        self.uid == Credentials::UNKNOWN_ID
    }
}
