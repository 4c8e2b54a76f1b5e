//! Changes of which this client doesn't know whether the metadata service has made them: the answer
//! was lost, or came too late.
//!
//! The lease under which such a change was asked for is still held, but what is known under it may
//! not be true any more:
//! - *`Truncate` or `WriteInline`.* Size and inline content are asked for again before they are
//!   used, and before the lease is given up. The service waits for chunks to be cut after a
//!   `Truncate` that it has made, and would cut them itself some day, whatever has been written by
//!   then: so they are cut to the size that it tells.
//! - *`EndWrite` at the end of a use.* The session may not be on record any more as changing the
//!   file: the service would neither believe its next report nor settle what it wrote. So it goes
//!   on record again before it changes anything.

use crate::inode::{Content, OpenInode};
use crate::{Client, entry, file_info};
use types::{Errno, InodeId, Result};
use wire::{MetaOp, MetaReply};

impl Content {
    /// It is there, and true.
    pub(crate) fn is_known(&self) -> bool {
        self.loaded && !self.doubted
    }

    /// The service counts on changes of chunks by this session.
    pub(crate) fn is_on_record(&self) -> bool {
        self.writing && !self.end_in_doubt
    }

    /// A change of size or inline content was asked for under the lease of an era.
    pub(crate) fn doubt_unless_answered(&mut self, ino: InodeId, era: u64, answer: &Result<MetaReply>) {
        // Content that is on its way to chunks is refused so, and left as it was.
        let may_be_made = answer.as_ref().is_err_and(|error| error.errno != Errno::ERANGE);
        if may_be_made && self.still(ino, era).is_ok() {
            self.doubted = true;
            self.cut_pending |= self.layout.is_some() && self.inline.is_none();
        }
    }
}

impl Client {
    /// Asks again for what may have changed. The gate is held exclusively, under a lease that lets
    /// nobody else change the file.
    pub(crate) async fn leave_doubt(&self, inode: &OpenInode) -> Result<()> {
        let era = {
            let content = inode.content.lock();
            if !content.doubted {
                return Ok(());
            }
            content.era
        };
        let info = file_info(self.ask(MetaOp::Open { ino: inode.ino, wish: None }).await?.reply)?;
        let mut content = inode.content.lock();
        content.still(inode.ino, era)?;
        content.take(info);
        Ok(())
    }

    /// Sends a report of the end; the size that the service knows then.
    pub(crate) async fn tell_end(&self, inode: &OpenInode, era: u64, op: MetaOp) -> Result<u64> {
        let ends = matches!(op, MetaOp::EndWrite { done: true, .. });
        let told = self.report(op).await;
        if ends && told.is_err() {
            let mut content = inode.content.lock();
            content.end_in_doubt |= content.still(inode.ino, era).is_ok();
        }
        Ok(entry(told?)?.size)
    }
}
