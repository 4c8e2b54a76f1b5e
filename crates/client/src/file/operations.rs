//! Operations on files, as the front ends call them.

use crate::file::content::NewFile;
use crate::file::handle::{Handle, O_ACCMODE};
use crate::{CachedAttr, Cancel, Client, ReadOptions, WriteOptions, entry};
use bytes::Bytes;
use rt::IoBuf;
use std::future::Future;
use std::sync::Arc;
use types::{ByteRange, Credentials, InodeFlags, InodeId, ProjectId, Result, SetAttr};
use wire::{HeldLock, LeaseMode, LockFamily, LockKind, LockOwner, LockRange, MetaOp};

impl Client {
    /// Opens an inode. `flags` are those of `open(2)`; the caller handles truncation.
    ///
    /// When this returns, the metadata service knows, by a lease, that the file is in use: a file
    /// that another session deletes stays as long as it is open here.
    pub async fn open(&self, credentials: Credentials, ino: InodeId, flags: u32) -> Result<Arc<Handle>> {
        self.access_checks.check_open(credentials, ino, flags).await?;
        let handle = Handle::new(self.inodes.acquire(ino), flags);
        match self.files.ensure_open_lease(&handle, flags).await {
            Ok(()) => Ok(handle),
            Err(error) => {
                self.files.end_use(&handle.inode).await;
                Err(error)
            }
        }
    }

    /// Creates a regular file, or finds one that another client has created first, and opens it.
    pub async fn create(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(CachedAttr, Arc<Handle>)> {
        const O_EXCL: u32 = 0o200;
        let create_async =
            || self.delegations.create_async(credentials, (parent, name), (mode, umask), flags);
        let mut created = create_async();
        if created.is_none()
            && self.delegations.obtain_for_new_directory(credentials, parent, (mode, flags)).await
        {
            created = create_async();
        }
        if let Some(created) = created {
            self.delegations.count_prefix_create(credentials, parent, name);
            return Ok(created);
        }
        let _made = self.names.begin_create(parent, |ino| self.inodes.note_unused(ino));
        let (name, exclusive) = (Bytes::copy_from_slice(name), flags & O_EXCL != 0);
        // A file that is created for writing is written soon.
        let requested_lease = (flags & O_ACCMODE != 0).then_some(LeaseMode::Write);
        let op =
            MetaOp::Create { parent, name: name.clone(), mode, umask, rdev: 0, exclusive, requested_lease };
        let losses = self.session.verifiers.losses();
        let answer = self.session.change_as(credentials, op).await?;
        let (stamp, fresh) = (answer.stamp, NewFile::of(&answer.reply));
        let attr = entry(answer.reply)?;
        if fresh.is_none() {
            self.access_checks.check_open_found(credentials, attr.ino, flags).await?;
        }
        let (inode, is_sole_use) = self.inodes.remember_and_acquire(&attr);
        let handle = Handle::new(inode, flags);
        if fresh.is_some() {
            handle.inode.content.lock().unsynced_metadata.made(losses);
            self.delegations.count_sync_create(credentials, parent, (mode, flags));
            self.delegations.count_prefix_create(credentials, parent, &name);
        }
        let is_new = fresh.is_some();
        if let Some(fresh) = fresh.filter(|_| is_sole_use) {
            let mut content = handle.inode.content.lock();
            if let Some(lease) = self.session.leases.lease_covering(stamp, attr.ino) {
                content.load_new(&attr, fresh, lease, Bytes::new());
            }
        }
        let found_with = (!is_new).then_some(flags);
        self.files.ensure_created_lease(&handle, found_with).await?;
        Ok((self.attributes.known(stamp, parent, self.inodes.overlay(attr)), handle))
    }

    /// Creates a regular file without a name and opens it.
    pub async fn tmpfile(
        &self,
        credentials: Credentials,
        parent: InodeId,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(CachedAttr, Arc<Handle>)> {
        let losses = self.session.verifiers.losses();
        let answer = self.session.change_as(credentials, MetaOp::Tmpfile { parent, mode, umask }).await?;
        let stamp = answer.stamp;
        let attr = entry(answer.reply)?;
        self.inodes.remember(&attr);
        let handle = Handle::new(self.inodes.acquire(attr.ino), flags);
        self.inodes.unlinked(attr.ino);
        handle.inode.content.lock().unsynced_metadata.made(losses);
        self.files.ensure_created_lease(&handle, None).await?;
        Ok((self.attributes.known(stamp, parent, attr), handle))
    }

    /// Fills `buf` from `offset`; returns how many of its bytes lie before the end of the file.
    pub async fn read(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        buf: IoBuf,
        how: ReadOptions,
    ) -> Result<usize> {
        self.files.read(handle, offset, buf, how).await
    }

    /// Writes all of `buf` at `offset`; returns its length.
    pub async fn write(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        buf: IoBuf,
        how: WriteOptions,
    ) -> Result<usize> {
        self.files.write(handle, offset, buf, how).await
    }

    /// Closes one descriptor. Sends the file's asynchronous create to the service, and delayed
    /// writes to the storage services.
    ///
    /// # Errors
    /// The failure of these, once for each handle. The cause, once, if an asynchronous change of
    /// attributes has failed.
    pub async fn flush(&self, handle: &Arc<Handle>) -> Result<()> {
        self.files.flush(handle).await?;
        self.names.changes.report_failure(handle.ino())
    }

    /// Releases the last descriptor of a handle.
    pub async fn release(&self, handle: Arc<Handle>) {
        self.files.release(handle).await;
    }

    /// Syncs data, size and name of the file.
    ///
    /// # Errors
    /// `EIO`, once for each handle, if a power loss of storage services or of the metadata store
    /// has taken something that was written before. The cause, once for each handle, if a delayed
    /// write could not be stored. The cause, once, if an asynchronous change of attributes has
    /// failed.
    pub async fn fsync(&self, handle: &Arc<Handle>, data_only: bool) -> Result<()> {
        self.names.changes.wait_about(handle.ino()).await;
        self.files.fsync(handle, data_only).await?;
        self.names.changes.report_failure(handle.ino())
    }

    /// Syncs everything whose call had returned before.
    pub async fn syncfs(&self) -> Result<()> {
        self.files.syncfs().await
    }

    /// Syncs creates, removals and renames.
    ///
    /// # Errors
    /// `EIO`, once, if the metadata store has lost power, and possibly some of these. The cause,
    /// once, if an asynchronous change in this directory has failed.
    pub async fn fsyncdir(&self, ino: InodeId) -> Result<()> {
        self.names.changes.wait_about(ino).await;
        self.files.fsyncdir(ino).await?;
        self.names.changes.report_failure(ino)
    }

    /// Reserves, frees or zeroes a range. `mode` contains the flags of `fallocate(2)`.
    pub async fn fallocate(&self, handle: &Arc<Handle>, mode: u32, range: ByteRange) -> Result<()> {
        self.files.fallocate(handle, mode, range).await
    }

    /// Finds data or a hole at or after `offset`. `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    pub async fn lseek(&self, handle: &Arc<Handle>, offset: u64, whence: u32) -> Result<u64> {
        self.files.lseek(handle, offset, whence).await
    }

    /// Copies bytes between two files, or within one; returns the number of bytes.
    pub async fn copy_file_range(
        &self,
        from: &Arc<Handle>,
        from_offset: u64,
        to: &Arc<Handle>,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.files.copy_file_range((from, from_offset), (to, to_offset), len).await
    }

    /// Runs `work` while this session doesn't use the content of a file. By then the service has
    /// size and times, and the content is loaded again afterwards. `work` must not wait for a
    /// request of this session about the same file.
    ///
    /// # Errors
    /// If exclusive access fails, `work` hasn't run.
    pub async fn with_exclusive<T>(&self, ino: InodeId, work: impl Future<Output = T>) -> Result<T> {
        self.files.with_exclusive(ino, work).await
    }

    /// Sets the flags of an inode, and its project if one is given.
    ///
    /// # Errors
    /// `EPERM` without permission, `EOPNOTSUPP` for anything but files and directories.
    pub async fn set_flags(
        &self,
        credentials: Credentials,
        ino: InodeId,
        flags: InodeFlags,
        project: Option<ProjectId>,
    ) -> Result<()> {
        let set = SetAttr { flags: Some(flags), project, ..SetAttr::default() };
        let changed = self.setattr(credentials, ino, set, None).await;
        self.inodes.note_flags(ino, self.session.leases.stamp_request(), None);
        // The kernel doesn't know that the ctime has changed.
        self.kernel.drop_cached_attributes(ino).await;
        changed.map(drop)
    }

    /// Takes a lock. Without `wait`, a conflicting lock is `EAGAIN`; with it, `cancel` ends the
    /// wait with `EINTR`.
    #[allow(clippy::too_many_arguments, reason = "the fields of one lock request")]
    pub async fn lock(
        &self,
        ino: InodeId,
        family: LockFamily,
        owner: LockOwner,
        pid: u32,
        kind: LockKind,
        range: LockRange,
        wait: bool,
        cancel: &Cancel,
    ) -> Result<()> {
        let lock = HeldLock { ino, family, owner, pid, kind, range };
        self.session.lock(None, lock, wait, cancel).await
    }

    /// Releases a range.
    pub async fn unlock(
        &self,
        ino: InodeId,
        family: LockFamily,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
        self.session.unlock(ino, family, owner, range).await
    }

    /// Returns the first conflicting lock, with the process id of its holder.
    pub async fn test_lock(
        &self,
        ino: InodeId,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Option<(LockKind, LockRange, u32)>> {
        self.session.test_lock(ino, owner, kind, range).await
    }
}
