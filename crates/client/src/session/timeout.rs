//! Time-out of an application's request when services don't answer.
//!
//! The transport bounds each call. This module bounds the other waits: for a file's I/O lock, for
//! the end of a recall, for the registration, for a service to answer again. Each ends with
//! `ETIMEDOUT` after the time-out of a call.

use crate::Client;
use crate::file::inode::OpenInode;
use rt::sync::{ReadGuard, WriteGuard};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Default, if the mount sets no other; also the transport's default.
const DEFAULT: Duration = Duration::from_secs(60);

/// The longest time that a request waits.
pub(crate) struct RequestTimeout(AtomicU64);

impl Default for RequestTimeout {
    fn default() -> RequestTimeout {
        RequestTimeout(AtomicU64::new(DEFAULT.as_nanos() as u64))
    }
}

impl RequestTimeout {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Client {
    /// Sets the time-out of a request, which is also that of the calls to services.
    pub fn set_request_timeout(&self, time_out: Duration) {
        self.request_timeout.0.store(time_out.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Takes a file's I/O lock shared, without a dirty extent (see `file::write_behind`).
    pub(crate) async fn lock_io_shared<'a>(&self, inode: &'a OpenInode) -> Result<ReadGuard<'a>> {
        loop {
            self.wait_for_commit(inode).await?;
            let guard = self
                .with_timeout((inode.ino, "a change of its size or layout"), inode.io_lock.read())
                .await?;
            if self.write_behind.is_none() || inode.content.lock().dirty.is_none() {
                return Ok(guard);
            }
            drop(guard);
            drop(Box::pin(self.lock_io_exclusive(inode)).await?);
        }
    }

    /// Takes a file's I/O lock exclusively, without a dirty extent.
    pub(crate) async fn lock_io_exclusive<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        let guard = self.lock_io_exclusive_dirty(inode).await?;
        if self.write_behind.is_some() {
            self.flush_dirty(inode).await;
        }
        Ok(guard)
    }

    /// Takes a file's I/O lock exclusively, and leaves a dirty extent as it is.
    pub(crate) async fn lock_io_exclusive_dirty<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        self.wait_for_commit(inode).await?;
        self.with_timeout((inode.ino, "operations on its content"), inode.io_lock.write()).await
    }

    /// Waits until an asynchronous create of the file is committed.
    async fn wait_for_commit(&self, inode: &OpenInode) -> Result<()> {
        // Boxed, since it is rare.
        if inode.async_create().is_some() { Box::pin(self.commit_async_create(inode)).await } else { Ok(()) }
    }

    /// Waits for an event about a file, with the time-out of a request. `what` names the event in
    /// the error.
    pub(crate) async fn with_timeout<T>(
        &self,
        (ino, what): (InodeId, &str),
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let time_out = self.request_timeout.get();
        rt::timeout(time_out, work).await.ok_or_else(|| blocked(ino, what, time_out))
    }
}

fn blocked(ino: InodeId, what: &str, waited: Duration) -> Error {
    let message = format!("inode {ino} is blocked by an earlier request: {what} took more than {waited:?}");
    Error::new(Errno::ETIMEDOUT, message)
        .hint("a service doesn't answer: weft health on the management node shows which")
}
