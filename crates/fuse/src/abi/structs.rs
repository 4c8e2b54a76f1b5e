//! Structs of requests and replies.

use super::pod::pods;

pods! {
    /// Header of every request.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    /// Header of every reply and notification.
    OutHeader: 16 { len: u32, error: i32, unique: u64 }

    /// Attributes of an inode.
    RawAttr: 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// Reply of LOOKUP and of every operation that creates an entry.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: RawAttr,
    }
    /// Reply of GETATTR and SETATTR.
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: RawAttr }
    /// GETATTR.
    GetattrIn: 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    /// STATX.
    StatxIn: 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// A time in STATX.
    SxTime: 16 { sec: i64, nsec: u32, reserved: i32 }
    /// Attributes in the reply of STATX.
    RawStatx: 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Reply of STATX.
    StatxOut: 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: RawStatx }
    /// SETATTR.
    SetattrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }

    /// FORGET.
    ForgetIn: 8 { nlookup: u64 }
    /// One of the inodes in BATCH_FORGET.
    ForgetOne: 16 { nodeid: u64, nlookup: u64 }
    /// BATCH_FORGET; `count` times [`ForgetOne`] follow.
    BatchForgetIn: 8 { count: u32, dummy: u32 }
    /// INTERRUPT.
    InterruptIn: 8 { unique: u64 }

    /// MKNOD.
    MknodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR.
    MkdirIn: 8 { mode: u32, umask: u32 }
    /// RENAME.
    RenameIn: 8 { newdir: u64 }
    /// RENAME2.
    Rename2In: 16 { newdir: u64, flags: u32, padding: u32 }
    /// LINK.
    LinkIn: 8 { oldnodeid: u64 }

    /// OPEN and OPENDIR.
    OpenIn: 8 { flags: u32, open_flags: u32 }
    /// CREATE and TMPFILE.
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Reply of OPEN and OPENDIR, and second half of CREATE's and TMPFILE's.
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn: 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn: 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// WRITE.
    WriteIn: 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// Reply of WRITE and COPY_FILE_RANGE.
    WriteOut: 8 { size: u32, padding: u32 }
    /// FSYNC and FSYNCDIR.
    FsyncIn: 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// FALLOCATE.
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// IOCTL.
    IoctlIn: 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Header of the reply of IOCTL.
    IoctlOut: 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// Data of `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` (`struct fsxattr` of
    /// `include/uapi/linux/fs.h`).
    FsXattr: 28 { xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8] }
    /// LSEEK.
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Reply of LSEEK.
    LseekOut: 8 { offset: u64 }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn: 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Reply of COPY_FILE_RANGE_64.
    CopyFileRangeOut: 8 { bytes_copied: u64 }

    /// SETXATTR with `SETXATTR_EXT`.
    SetxattrIn: 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// SETXATTR of a kernel without `SETXATTR_EXT`.
    SetxattrShortIn: 8 { size: u32, flags: u32 }
    /// GETXATTR and LISTXATTR.
    GetxattrIn: 8 { size: u32, padding: u32 }
    /// Reply of GETXATTR and LISTXATTR to a request of size 0.
    GetxattrOut: 8 { size: u32, padding: u32 }

    /// A lock.
    FileLock: 24 { start: u64, end: u64, kind: u32, pid: u32 }
    /// GETLK, SETLK and SETLKW.
    LkIn: 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    /// Reply of GETLK.
    LkOut: 24 { lk: FileLock }

    /// Reply of STATFS.
    StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }

    /// One entry in the reply of READDIR; the name follows, padded to 8 bytes.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32 }

    /// INIT.
    InitIn: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// Reply of INIT.
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }

    /// Notification `INVAL_INODE`.
    NotifyInvalInode: 24 { ino: u64, off: i64, len: i64 }

    /// Metadata of a request in an entry's header.
    UringEntInOut: 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// The command in an SQE.
    UringCmdReq: 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{bytes_of, read};

    #[test]
    fn short_bytes_are_no_struct() {
        assert!(read::<InHeader>(&[0; 39]).is_none());
        assert!(read::<InHeader>(&[0; 40]).is_some());
    }

    #[test]
    fn fields_lie_where_the_kernel_puts_them() {
        let stat = RawStatx {
            ino: 7,
            rdev_minor: 9,
            btime: SxTime { sec: -1, nsec: 5, reserved: 0 },
            ..Default::default()
        };
        let bytes = bytes_of(&stat);
        assert_eq!(bytes[32..40], 7u64.to_ne_bytes());
        assert_eq!(bytes[80..88], (-1i64).to_ne_bytes());
        assert_eq!(bytes[132..136], 9u32.to_ne_bytes());
        assert_eq!(read::<RawStatx>(bytes), Some(stat));
    }
}
