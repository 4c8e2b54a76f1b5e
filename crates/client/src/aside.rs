//! The only session of a process makes way without leases.
//!
//! A session that is alone relies on everything without asking, so nothing can be recalled from it.
//! Who works in the same process and has to be alone with a file for a moment (to move a part of
//! it) asks the session itself: what runs ends, what only it knows is told, what it knows is
//! forgotten, and whoever comes meanwhile waits at the file's gate.

use crate::Client;
use crate::inode::OpenInode;
use std::future::Future;
use types::{Errno, Error, InodeId, Result};

impl Client {
    /// Carries `work` out while nothing here uses the content of a file. The service has been told
    /// size and times by then, and what is known of the file is asked for again afterwards. `work`
    /// must not wait for a request of this session about the same file.
    ///
    /// # Errors
    /// Where that doesn't come about, nothing of `work` has been done.
    pub async fn while_aside<T>(&self, ino: InodeId, work: impl Future<Output = T>) -> Result<T> {
        let inode = self.inodes.acquire(ino);
        let outcome = self.aside(&inode, work).await;
        self.end_use(&inode).await;
        outcome
    }

    async fn aside<T>(&self, inode: &OpenInode, work: impl Future<Output = T>) -> Result<T> {
        let _alone = self.alone(inode).await?;
        self.finish_cut(inode).await?;
        self.end_write(inode, true).await?;
        {
            let mut content = inode.content.lock();
            if content.is_unfinished() {
                let message = format!("inode {} isn't settled", inode.ino);
                return Err(Error::new(Errno::EBUSY, message).hint("it is tried again by itself"));
            }
            // Also where nothing is loaded: an answer that is on its way is of before.
            content.unload();
        }
        Ok(work.await)
    }
}
