//! Operations on inodes and names, in the current session.

use super::{File, SessionFailover, is_session_end};
use crate::{CachedAttr, Client, Found, Listing, StatFs};
use bytes::Bytes;
use std::sync::Arc;
use types::{Attr, Credentials, Errno, Error, InodeFlags, InodeId, ProjectId, Result, SetAttr};
use wire::{LockFamily, LockOwner, LockRange, RenameMode, XattrMode};

/// Passes operations to the current session. `read_only` is for read-only operations, which are
/// repeated in a successor. `change` is for a single change, which is repeated if it was surely not
/// executed. `once` is for several changes, which are never repeated.
macro_rules! operations {
    ($($how:ident $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl SessionFailover {
            $(
                #[doc = concat!("[`Client::", stringify!($name), "`] in the current session.")]
                pub async fn $name(&self, $($argument: $type),*) -> Result<$result> {
                    self.$how(async |client: &Arc<Client>| client.$name($($argument),*).await).await
                }
            )*
        }
    };
}

operations! {
    read_only find(credentials: Credentials, parent: InodeId, name: &[u8]) -> Found;
    read_only lookup(credentials: Credentials, parent: InodeId, name: &[u8]) -> CachedAttr;
    read_only getattr(ino: InodeId) -> CachedAttr;
    read_only readlink(ino: InodeId) -> Bytes;
    read_only readdir_for(credentials: Credentials, dir: InodeId, cookie: u64, limit: u32, attributes: bool) -> Listing;
    read_only fsyncdir(ino: InodeId) -> ();
    read_only getxattr(credentials: Credentials, ino: InodeId, name: &[u8]) -> Bytes;
    read_only listxattr(ino: InodeId) -> Vec<Bytes>;
    read_only statfs() -> StatFs;
    read_only syncfs() -> ();
    change mknod(credentials: Credentials, parent: InodeId, name: &[u8], mode: u32, umask: u32, rdev: u32) -> CachedAttr;
    change mkdir(credentials: Credentials, parent: InodeId, name: &[u8], mode: u32, umask: u32) -> CachedAttr;
    change symlink(credentials: Credentials, parent: InodeId, name: &[u8], target: &[u8]) -> CachedAttr;
    change link(credentials: Credentials, ino: InodeId, parent: InodeId, name: &[u8]) -> CachedAttr;
    change unlink(credentials: Credentials, parent: InodeId, name: &[u8]) -> ();
    change rmdir(credentials: Credentials, parent: InodeId, name: &[u8]) -> ();
    change rename(credentials: Credentials, parent: InodeId, name: &[u8], new_parent: InodeId, new_name: &[u8], mode: RenameMode) -> ();
    once setattr(credentials: Credentials, ino: InodeId, set: SetAttr, size: Option<u64>) -> CachedAttr;
    change set_flags(credentials: Credentials, ino: InodeId, flags: InodeFlags, project: Option<ProjectId>) -> ();
    change setxattr(credentials: Credentials, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> ();
    change removexattr(credentials: Credentials, ino: InodeId, name: &[u8]) -> ();
}

impl SessionFailover {
    /// [`Client::permissions`] in the current session.
    pub fn permissions(&self, ino: InodeId) -> Option<CachedAttr> {
        self.current().permissions(ino)
    }

    /// [`Client::errno_for_missing`] in the current session.
    pub fn errno_for_missing(&self, credentials: Credentials, ino: InodeId) -> Errno {
        self.current().errno_for_missing(credentials, ino)
    }

    /// [`Client::errno_for_replaced`] in the current session.
    pub fn errno_for_replaced(&self, credentials: Credentials) -> Errno {
        self.current().errno_for_replaced(credentials)
    }

    /// [`Client::removed_directory`] in the current session.
    pub fn removed_directory(&self, ino: InodeId) -> Option<CachedAttr> {
        self.current().removed_directory(ino)
    }

    /// Opens an inode in the current session.
    pub async fn open(&self, credentials: Credentials, ino: InodeId, flags: u32) -> Result<File> {
        self.read_only(async |client: &Arc<Client>| {
            let handle = client.open(credentials, ino, flags).await?;
            match client.session.end_cause() {
                Some(ended) if self.only.is_none() => {
                    client.release(handle).await;
                    Err(ended)
                }
                _ => Ok(File::new(client.clone(), handle)),
            }
        })
        .await
    }

    /// [`Client::create`] in the current session.
    pub async fn create(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(CachedAttr, File)> {
        self.change(async |client: &Arc<Client>| {
            let (known, handle) = client.create(credentials, parent, name, mode, umask, flags).await?;
            let file = File::new(client.clone(), handle);
            file.mark_unsynced_create();
            Ok((known, file))
        })
        .await
    }

    /// [`Client::tmpfile`] in the current session.
    pub async fn tmpfile(
        &self,
        credentials: Credentials,
        parent: InodeId,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(CachedAttr, File)> {
        self.change(async |client: &Arc<Client>| {
            let (known, handle) = client.tmpfile(credentials, parent, mode, umask, flags).await?;
            Ok((known, File::new(client.clone(), handle)))
        })
        .await
    }

    /// Releases an owner's byte-range locks on a file, in the current session: those of earlier
    /// sessions are gone.
    pub async fn drop_locks(&self, ino: InodeId, owner: LockOwner, range: LockRange) -> Result<()> {
        let client = self.current();
        let dropped = client.unlock(ino, LockFamily::Posix, owner, range).await;
        if client.has_ended() && self.only.is_none() { Ok(()) } else { dropped }
    }

    /// Drops kernel references. Callable from any thread; doesn't wait.
    pub fn forget(&self, ino: InodeId, count: u64) {
        self.current.read().forget(ino, count);
    }

    /// Adds one kernel reference: the caller passed an entry of a listing with attributes to the
    /// kernel.
    pub fn remember_listed(&self, attr: &Attr, listing: &Listing) {
        self.current.read().remember_listed(attr, listing);
    }

    /// Executes a read-only operation, which may be repeated.
    async fn read_only<T>(&self, operation: impl AsyncFn(&Arc<Client>) -> Result<T>) -> Result<T> {
        if let Some(only) = &self.only {
            return operation(only).await;
        }
        loop {
            let client = self.live_session().await?;
            match operation(&client).await {
                Err(error) if is_session_end(&client, &error) && !self.is_closing() => {}
                done => return done,
            }
        }
    }

    /// Executes a single change, and repeats it if the session's end surely prevented it.
    async fn change<T>(&self, operation: impl AsyncFn(&Arc<Client>) -> Result<T>) -> Result<T> {
        if let Some(only) = &self.only {
            return operation(only).await;
        }
        loop {
            let client = self.live_session().await?;
            match operation(&client).await {
                Err(error) if is_session_end(&client, &error) && !self.is_closing() => {
                    if error.errno != Errno::ESHUTDOWN {
                        return Err(unknown_outcome(&client, &error));
                    }
                }
                done => return done,
            }
        }
    }

    /// Executes several changes; their outcome is uncertain if the session ends meanwhile.
    async fn once<T>(&self, operation: impl AsyncFn(&Arc<Client>) -> Result<T>) -> Result<T> {
        if let Some(only) = &self.only {
            return operation(only).await;
        }
        let client = self.live_session().await?;
        match operation(&client).await {
            Err(error) if is_session_end(&client, &error) => Err(unknown_outcome(&client, &error)),
            done => done,
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(std::sync::atomic::Ordering::Acquire)
    }
}

fn unknown_outcome(client: &Client, error: &Error) -> Error {
    let message = format!(
        "session {} ended before the change was answered; its outcome is uncertain: {}",
        client.session.id, error.message
    );
    Error::new(Errno::EIO, message).hint("check whether the change was made, and repeat it if not")
}
