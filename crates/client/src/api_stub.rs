//! Signatures only; replaced by the real modules.
#![allow(missing_docs, unused_variables, clippy::todo, clippy::too_many_arguments)]
use bytes::Bytes;
use rt::IoBuf;
use std::sync::Arc;
use types::*;
use wire::*;

/// An open file or directory.
pub struct Handle;
pub struct Client;
pub struct StatFs {
    pub block_size: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
}

/// A cancellable wait: set by INTERRUPT.
#[derive(Clone, Default)]
pub struct Cancel;
impl Cancel {
    pub fn cancel(&self) {}
}

impl Client {
    /// `.`/`..` too. Each success adds one kernel reference to the inode.
    pub async fn lookup(&self, c: Credentials, parent: InodeId, name: &[u8]) -> Result<Attr> {
        todo!()
    }
    /// Drops kernel references; must not block, any thread.
    pub fn forget(&self, ino: InodeId, count: u64) {
        todo!()
    }
    pub async fn getattr(&self, ino: InodeId) -> Result<Attr> {
        todo!()
    }
    /// `size` first, then the rest.
    pub async fn setattr(
        &self,
        c: Credentials,
        ino: InodeId,
        set: SetAttr,
        size: Option<u64>,
    ) -> Result<Attr> {
        todo!()
    }
    pub async fn readlink(&self, ino: InodeId) -> Result<Bytes> {
        todo!()
    }
    /// Regular (without opening), fifo, socket, device. Adds a reference, like every call that returns an entry.
    pub async fn mknod(
        &self,
        c: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Attr> {
        todo!()
    }
    pub async fn mkdir(
        &self,
        c: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Attr> {
        todo!()
    }
    pub async fn symlink(&self, c: Credentials, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        todo!()
    }
    pub async fn link(&self, c: Credentials, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        todo!()
    }
    pub async fn unlink(&self, c: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub async fn rmdir(&self, c: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub async fn rename(
        &self,
        c: Credentials,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        todo!()
    }
    /// flags: the open(2) flags.
    pub async fn open(&self, c: Credentials, ino: InodeId, flags: u32) -> Result<Arc<Handle>> {
        todo!()
    }
    pub async fn create(
        &self,
        c: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(Attr, Arc<Handle>)> {
        todo!()
    }
    pub async fn tmpfile(
        &self,
        c: Credentials,
        parent: InodeId,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(Attr, Arc<Handle>)> {
        todo!()
    }
    /// Fills `buf` from `offset`; the number of bytes before the end of the file.
    pub async fn read(&self, h: &Arc<Handle>, offset: u64, buf: IoBuf, direct: bool) -> Result<usize> {
        todo!()
    }
    /// Writes all of `buf`. `append` is resolved by the kernel's offset. `kill`: clear setuid/setgid. `durable`: O_SYNC/O_DSYNC.
    pub async fn write(&self, h: &Arc<Handle>, offset: u64, buf: IoBuf, how: WriteHow) -> Result<usize> {
        todo!()
    }
    /// close(2) of one descriptor.
    pub async fn flush(&self, h: &Arc<Handle>) -> Result<()> {
        todo!()
    }
    /// The last descriptor is gone.
    pub async fn release(&self, h: Arc<Handle>) {
        todo!()
    }
    pub async fn fsync(&self, h: &Arc<Handle>, data_only: bool) -> Result<()> {
        todo!()
    }
    pub async fn fsyncdir(&self, ino: InodeId) -> Result<()> {
        todo!()
    }
    pub async fn syncfs(&self) -> Result<()> {
        todo!()
    }
    /// mode: the fallocate(2) flags.
    pub async fn fallocate(&self, h: &Arc<Handle>, mode: u32, range: ByteRange) -> Result<()> {
        todo!()
    }
    /// whence: SEEK_DATA or SEEK_HOLE.
    pub async fn lseek(&self, h: &Arc<Handle>, offset: u64, whence: u32) -> Result<u64> {
        todo!()
    }
    pub async fn copy_file_range(
        &self,
        from: &Arc<Handle>,
        from_offset: u64,
        to: &Arc<Handle>,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        todo!()
    }
    /// Entries after cookie without . and .. ; with `attributes` every returned entry adds a reference only when the caller
    /// calls `remember` for it. `parent` in the reply answers "..".
    pub async fn readdir(&self, dir: InodeId, cookie: u64, limit: u32, attributes: bool) -> Result<Listing> {
        todo!()
    }
    /// Adds one kernel reference (a readdirplus entry was handed to the kernel).
    pub fn remember(&self, ino: InodeId) {
        todo!()
    }
    pub async fn getxattr(&self, c: Credentials, ino: InodeId, name: &[u8]) -> Result<Bytes> {
        todo!()
    }
    pub async fn setxattr(
        &self,
        c: Credentials,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<()> {
        todo!()
    }
    pub async fn listxattr(&self, ino: InodeId) -> Result<Vec<Bytes>> {
        todo!()
    }
    pub async fn removexattr(&self, c: Credentials, ino: InodeId, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub async fn statfs(&self) -> Result<StatFs> {
        todo!()
    }
    /// Waits when `wait`; EINTR when `cancel` is triggered from any thread.
    pub async fn lock(
        &self,
        ino: InodeId,
        space: LockSpace,
        owner: LockOwner,
        pid: u32,
        kind: LockKind,
        range: LockRange,
        wait: bool,
        cancel: &Cancel,
    ) -> Result<()> {
        todo!()
    }
    pub async fn unlock(
        &self,
        ino: InodeId,
        space: LockSpace,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
        todo!()
    }
    pub async fn test_lock(
        &self,
        ino: InodeId,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Option<(LockKind, LockRange, u32)>> {
        todo!()
    }
}
#[derive(Clone, Copy, Default)]
pub struct WriteHow {
    pub direct: bool,
    pub durable: bool,
    pub kill_suid_sgid: bool,
}
pub struct Listing {
    pub entries: Vec<DirEntry>,
    pub end: bool,
    pub parent: InodeId,
}
