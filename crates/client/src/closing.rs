//! The end of a use of a file: what only this session knows of its size and times is reported, at
//! once or later.

use crate::data::Allocated;
use crate::inode::OpenInode;
use crate::{Client, Handle, REPORTS_AT_ONCE};
use std::sync::Arc;
use std::time::Duration;
use types::Result;
use wire::{LeaseMode, MetaOp};

/// Rest before a closed file is reported again that couldn't be.
const REPORT_REST: Duration = Duration::from_secs(5);

/// How well the space that a file occupies has to be known when its end is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocks {
    /// As the targets say.
    Exact,
    /// Guessed where a target doesn't answer.
    Rough,
}

impl Client {
    /// One descriptor is closed. Of a file that was only promised this brings the service the file;
    /// what was written and kept for a moment goes to the storage services.
    ///
    /// # Errors
    /// What failed of that, once for each handle.
    pub async fn flush(&self, handle: &Arc<Handle>) -> Result<()> {
        let flushed = self.flush_kept(handle).await;
        if handle.is_writable() {
            handle.inode.note_flush();
        }
        flushed
    }

    async fn flush_kept(&self, handle: &Handle) -> Result<()> {
        self.keep_promise(&handle.inode).await?;
        if self.behind.is_none() || !handle.is_writable() {
            return Ok(());
        }
        let inode = &handle.inode;
        drop(self.share(inode).await?);
        self.patiently((inode.ino, "what was written a moment ago"), inode.landing.all_told_landed()).await?;
        handle.tell_failure()
    }

    /// The last descriptor is gone.
    pub async fn release(&self, handle: Arc<Handle>) {
        if handle.is_writable() {
            let size = handle.inode.content.lock().size;
            handle.inode.note_change(size);
        }
        handle.end_writing();
        self.end_use(&handle.inode).await;
    }

    /// Ends one use of an inode; the last one reports what was written.
    pub(crate) async fn end_use(&self, inode: &Arc<OpenInode>) {
        let unfinished = inode.content.lock().is_unfinished();
        if !unfinished {
            return self.inodes.release(inode.ino);
        }
        // Held until the use has ended: of two uses that end at once, one must see that it is the
        // last.
        let alone = self.alone(inode).await;
        let reported = match &alone {
            Ok(_) if self.inodes.is_last_use(inode.ino) => {
                let left = self.leave_spent_epoch(inode).await;
                left.and(self.end_write(inode, true).await)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.clone()),
        };
        self.inodes.release(inode.ino);
        if let Err(error) = reported {
            tracing::warn!(ino = %inode.ino, %error, "size and times of a closed file aren't reported yet");
            self.inodes.note_unreported(inode.ino);
        }
    }

    /// Reports of closed files what couldn't be reported when they were closed, for as long as the
    /// session lives: until then they count as open, and keep their room when they are deleted.
    pub(crate) async fn report_closed(self: Arc<Self>) {
        loop {
            self.inodes.wait_for_unreported().await;
            if self.is_over() {
                return;
            }
            rt::sleep(REPORT_REST).await;
            for some in self.inodes.take_unreported().chunks(REPORTS_AT_ONCE) {
                let report = async |ino| self.end_use(&self.inodes.acquire(ino)).await;
                rt::join_all(some.iter().map(|ino| report(*ino)).collect()).await;
            }
        }
    }

    /// Tells the metadata service size and mtime if it doesn't know them.
    pub(crate) async fn report_progress(&self, inode: &OpenInode, done: bool) -> Result<()> {
        let needed = {
            let content = inode.content.lock();
            content.unreported || (done && content.is_unfinished())
        };
        if !needed {
            return Ok(());
        }
        let _alone = self.alone(inode).await?;
        self.end_write(inode, done).await
    }

    /// The same under the exclusive gate.
    pub(crate) async fn end_write(&self, inode: &OpenInode, done: bool) -> Result<()> {
        self.end_write_with(inode, done, Blocks::Exact).await
    }

    /// The same; others wait for it where `Rough` blocks do.
    pub(crate) async fn end_write_with(&self, inode: &OpenInode, done: bool, exact: Blocks) -> Result<()> {
        // Who isn't alone can't tell what is beyond the end.
        let alone = inode.content.lock().lease == LeaseMode::Write;
        if done && alone {
            self.finish_cut(inode).await?;
        }
        let (size, mtime, layout, era) = {
            let content = inode.content.lock();
            if !content.writing || !(content.unreported || done) {
                return Ok(());
            }
            (content.size, content.mtime, content.layout.clone(), content.era)
        };
        let Allocated { blocks, lens } = match &layout {
            Some(layout) if exact == Blocks::Exact => self.allocated(inode.ino, layout).await?,
            Some(layout) => self.allocated_roughly(inode.ino, layout, size).await?,
            None => Allocated { blocks: 0, lens: Vec::new() },
        };
        let ino = inode.ino;
        let op =
            MetaOp::EndWrite { ino, size, blocks, lens: lens.clone(), mtime, done, kill_suid_sgid: false };
        let known = self.tell_end(inode, era, op.clone()).await?;
        if known < size && inode.content.lock().still(inode.ino, era).is_ok() {
            // An earlier report took this session off the record, and its answer was lost: what was
            // written since isn't known yet.
            self.report(MetaOp::BeginWrite { ino: inode.ino }).await?;
            inode.content.lock().end_in_doubt = false;
            self.tell_end(inode, era, op).await?;
        }
        self.inodes.reported(inode.ino);
        let mut content = inode.content.lock();
        if content.era != era {
            // Forgotten meanwhile: the service has settled it, or the next one does.
            return Ok(());
        }
        content.note_lens(&lens, size);
        content.unreported = false;
        content.note_reported_change();
        content.writing = !done;
        // A report that ends nothing leaves it open whether an earlier one did.
        content.end_in_doubt &= !done;
        Ok(())
    }
}
