//! An open file and the session that it belongs to.

use crate::file::handle::Caching;
use crate::{CachedAttr, Cancel, Client, Handle, ReadOptions, WriteOptions};
use rt::IoBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use types::{ByteRange, Credentials, Errno, Error, InodeId, Result, SetAttr};
use wire::{HeldLock, LockFamily, LockKind, LockOwner, LockRange};

/// An open file. After the cluster has ended its session, or a lock that was taken through it is
/// lost, every operation fails with `EIO` until it is closed.
pub struct File {
    client: Arc<Client>,
    handle: Arc<Handle>,
    /// It was written to since the last successful sync.
    unsynced: AtomicBool,
    /// A lock that was taken through it has been lost: other sessions may have changed what it
    /// protected.
    lock_lost: Arc<AtomicBool>,
}

impl File {
    pub(crate) fn new(client: Arc<Client>, handle: Arc<Handle>) -> File {
        File { client, handle, unsynced: AtomicBool::new(false), lock_lost: Arc::default() }
    }

    /// The inode of the open file.
    pub fn ino(&self) -> InodeId {
        self.handle.ino()
    }

    /// How its content may be cached while other sessions exist.
    pub fn caching(&self) -> Caching {
        self.handle.caching()
    }

    /// Whether its session has ended.
    pub fn is_lost(&self) -> bool {
        self.client.has_ended()
    }

    /// Whether a lock that was taken through it is lost.
    pub fn has_lost_lock(&self) -> bool {
        self.lock_lost.load(Ordering::Relaxed)
    }

    /// [`Client::read`].
    pub async fn read(&self, offset: u64, buf: IoBuf, how: ReadOptions) -> Result<usize> {
        self.ensure_locks()?;
        self.map_error(self.client.read(&self.handle, offset, buf, how).await)
    }

    /// [`Client::write`].
    pub async fn write(&self, offset: u64, buf: IoBuf, how: WriteOptions) -> Result<usize> {
        // Dirty pages of mappings may belong to other processes.
        if !how.written_back {
            self.ensure_locks()?;
        }
        self.mark_written();
        self.map_error(self.client.write(&self.handle, offset, buf, how).await)
    }

    /// [`Client::fsync`].
    pub async fn fsync(&self, data_only: bool) -> Result<()> {
        self.ensure_locks()?;
        // Cleared first, so that a concurrent write counts as a later one.
        let unsynced = self.unsynced.swap(false, Ordering::AcqRel);
        let synced = self.map_error(self.client.fsync(&self.handle, data_only).await);
        if synced.is_err() && unsynced {
            self.unsynced.store(true, Ordering::Release);
        }
        synced
    }

    /// Closes a descriptor. Applications that don't sync learn here, once, that some of their
    /// writes or changes of attributes may be lost.
    pub async fn flush(&self) -> Result<()> {
        if let Some(ended) = self.client.session.end_cause() {
            let unsynced = self.unsynced.swap(false, Ordering::AcqRel);
            let is_lost = unsynced || self.client.names.changes.has_lost(self.ino());
            return if is_lost { Err(self.lost(&ended)) } else { Ok(()) };
        }
        self.map_error(self.client.flush(&self.handle).await)
    }

    /// Releases the last descriptor.
    pub async fn release(&self) {
        self.client.release(self.handle.clone()).await;
    }

    /// [`Client::fallocate`], which clears setuid and setgid as a write does.
    pub async fn fallocate(&self, who: Credentials, mode: u32, range: ByteRange) -> Result<()> {
        self.ensure_locks()?;
        self.mark_written();
        let done = async {
            self.client.fallocate(&self.handle, mode, range).await?;
            self.client.files.clear_suid_sgid(&self.handle, who).await
        };
        self.map_error(done.await)
    }

    /// [`Client::lseek`].
    pub async fn lseek(&self, offset: u64, whence: u32) -> Result<u64> {
        self.ensure_locks()?;
        self.map_error(self.client.lseek(&self.handle, offset, whence).await)
    }

    /// [`Client::copy_file_range`], which clears setuid and setgid of the other file as a write
    /// does.
    pub async fn copy_file_range(
        &self,
        who: Credentials,
        offset: u64,
        (to, to_offset): (&File, u64),
        len: u64,
    ) -> Result<u64> {
        if !Arc::ptr_eq(&self.client, &to.client) {
            // One of the sessions has ended, or both.
            self.ensure_session().and(to.ensure_session())?;
        }
        self.ensure_locks().and(to.ensure_locks())?;
        to.mark_written();
        let copied = async {
            let copied =
                self.client.copy_file_range(&self.handle, offset, &to.handle, to_offset, len).await?;
            self.client.files.clear_suid_sgid(&to.handle, who).await?;
            Ok(copied)
        };
        self.map_error(copied.await)
    }

    /// [`Client::setattr`] of an open file.
    pub async fn setattr(
        &self,
        credentials: Credentials,
        set: SetAttr,
        size: Option<u64>,
    ) -> Result<CachedAttr> {
        self.ensure_locks()?;
        self.map_error(self.client.setattr(credentials, self.ino(), set, size).await)
    }

    /// [`Client::lock`].
    #[allow(clippy::too_many_arguments, reason = "the fields of one lock request")]
    pub async fn lock(
        &self,
        family: LockFamily,
        owner: LockOwner,
        pid: u32,
        kind: LockKind,
        range: LockRange,
        wait: bool,
        cancel: &Cancel,
    ) -> Result<()> {
        self.ensure_locks()?;
        let lock = HeldLock { ino: self.ino(), family, owner, pid, kind, range };
        self.map_error(self.client.session.lock(Some(&self.lock_lost), lock, wait, cancel).await)
    }

    /// [`Client::unlock`]. A lost lock is an error here, too.
    pub async fn unlock(&self, family: LockFamily, owner: LockOwner, range: LockRange) -> Result<()> {
        self.map_error(self.client.unlock(self.ino(), family, owner, range).await)?;
        self.ensure_locks()
    }

    /// Like [`File::unlock`], when a descriptor is closed: a lost lock is released already.
    pub async fn drop_locks(&self, family: LockFamily, owner: LockOwner, range: LockRange) -> Result<()> {
        if self.is_lost() {
            return Ok(());
        }
        let dropped = self.client.unlock(self.ino(), family, owner, range).await;
        if self.is_lost() { Ok(()) } else { dropped }
    }

    /// [`Client::test_lock`].
    pub async fn test_lock(
        &self,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Option<(LockKind, LockRange, u32)>> {
        self.ensure_locks()?;
        self.map_error(self.client.test_lock(self.ino(), owner, kind, range).await)
    }

    /// Marks an asynchronously created file as unsynced: a session that ends loses it.
    pub(crate) fn mark_unsynced_create(&self) {
        if self.handle.inode.async_create().is_some() {
            self.unsynced.store(true, Ordering::Release);
        }
    }

    /// Marks the file as written to, unless the session has ended already.
    fn mark_written(&self) {
        if !self.unsynced.load(Ordering::Relaxed) && !self.is_lost() {
            self.unsynced.store(true, Ordering::Release);
        }
    }

    fn ensure_session(&self) -> Result<()> {
        self.client.session.end_cause().map_or(Ok(()), |ended| Err(self.lost(&ended)))
    }

    fn ensure_locks(&self) -> Result<()> {
        if !self.has_lost_lock() {
            return Ok(());
        }
        let message = format!("this open file of inode {} has lost an advisory lock", self.ino());
        Err(Error::new(Errno::EIO, message).hint("close the file and open it again"))
    }

    /// Maps the error of an operation if the file's session has ended.
    fn map_error<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.client.session.end_cause().map_or(error, |ended| self.lost(&ended)))
    }

    fn lost(&self, ended: &Error) -> Error {
        let message = format!(
            "inode {} was opened in session {}, which has ended: {}",
            self.ino(),
            self.client.session.id,
            ended.message
        );
        Error::new(Errno::EIO, message).hint("close the file and open it again")
    }
}
