//! Exclusive access for other components of the process, if it has the only session and so no
//! leases.
//!
//! The only session relies on everything without asking, so nothing can be recalled from it. A
//! component of the same process that needs a file exclusively for a moment (to migrate a part of
//! it) asks the session itself. The session then ends running operations, reports what only it
//! knows, and unloads the content. New operations wait at the file's I/O lock.

use crate::file::Files;
use crate::file::inode::OpenInode;
use std::future::Future;
use types::{Errno, Error, InodeId, Result};

impl Files {
    /// Runs `work` while this session doesn't use the content of a file. By then the service has
    /// size and times, and the content is loaded again afterwards. `work` must not wait for a
    /// request of this session about the same file.
    ///
    /// # Errors
    /// If exclusive access fails, `work` hasn't run.
    pub(crate) async fn with_exclusive<T>(&self, ino: InodeId, work: impl Future<Output = T>) -> Result<T> {
        let inode = self.inodes.acquire(ino);
        let outcome = self.run_exclusive(&inode, work).await;
        self.end_use(&inode).await;
        outcome
    }

    async fn run_exclusive<T>(&self, inode: &OpenInode, work: impl Future<Output = T>) -> Result<T> {
        let _exclusive = self.lock_io_exclusive(inode).await?;
        self.finish_truncate(inode).await?;
        self.end_write(inode, true).await?;
        {
            let mut content = inode.content.lock();
            if content.has_unreported_state() {
                let message = format!("inode {} has unreported changes", inode.ino);
                return Err(Error::new(Errno::EBUSY, message)
                    .hint("no action needed: the operation is retried automatically"));
            }
            // Even if nothing is loaded: an answer in flight is outdated.
            content.unload();
        }
        Ok(work.await)
    }
}
