//! The end of a use of a file: reports its size and times, which only this session knows, at once
//! or later.

use crate::Handle;
use crate::file::Files;
use crate::file::chunk_files::striping::Allocated;
use crate::file::content::phase::Event;
use crate::file::inode::OpenInode;
use crate::session::recall::RETRY_PAUSE;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Result};
use wire::{LeaseMode, MetaOp};

/// Pause before the report of a closed file is repeated.
const REPORT_PAUSE: Duration = Duration::from_secs(5);

/// Files whose size and times are reported concurrently: a fraction of the requests that one
/// connection carries at a time.
const REPORTS_AT_ONCE: usize = 64;

/// Required accuracy of the allocated blocks when a use ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockAccuracy {
    /// As the targets report them.
    Exact,
    /// Estimated for targets that don't answer.
    Estimated,
}

impl Files {
    /// Closes one descriptor. Sends the file's asynchronous create to the service, and delayed
    /// writes to the storage services.
    ///
    /// # Errors
    /// The failure of these, once for each handle.
    pub(crate) async fn flush(&self, handle: &Arc<Handle>) -> Result<()> {
        let flushed = self.flush_delayed(handle).await;
        if handle.is_writable() {
            handle.inode.note_writer_close();
        }
        flushed
    }

    async fn flush_delayed(&self, handle: &Handle) -> Result<()> {
        handle.inode.wait_for_commit().await?;
        if self.write_behind.is_none() || !handle.is_writable() {
            return Ok(());
        }
        let inode = &handle.inode;
        drop(self.lock_io_shared(inode).await?);
        self.session
            .request_timeout
            .bound((inode.ino, "the flush of delayed writes"), inode.in_flight.wait_for_delayed())
            .await?;
        handle.report_flush_failure()
    }

    /// Releases the last descriptor of a handle.
    pub(crate) async fn release(&self, handle: Arc<Handle>) {
        if handle.is_writable() {
            let size = handle.inode.content.lock().size;
            handle.inode.note_change(size);
        }
        handle.end_writing();
        self.end_use(&handle.inode).await;
    }

    /// Ends one use of an inode; the last one reports what was written.
    pub(crate) async fn end_use(&self, inode: &Arc<OpenInode>) {
        let unfinished = inode.content.lock().has_unreported_state();
        if !unfinished {
            return self.inodes.release(inode.ino);
        }
        // Held until the use has ended: of two uses that end at once, one must see that it is the
        // last.
        let guard = self.lock_io_exclusive(inode).await;
        let reported = match &guard {
            Ok(_) if self.inodes.is_last_use(inode.ino) => {
                let left = self.chunk_files.renew_tainted_epoch(inode).await;
                left.and(self.end_write(inode, true).await)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.clone()),
        };
        self.inodes.release(inode.ino);
        if let Err(error) = reported {
            tracing::warn!(ino = %inode.ino, %error, "size and times of a closed file could not be reported; the report is retried");
            self.inodes.note_unreported(inode.ino);
        }
    }

    /// Repeats failed reports of closed files, for as long as the session lives. Until then they
    /// count as open, and keep their space when they are deleted.
    pub(crate) async fn report_closed(self: Arc<Self>) {
        loop {
            self.inodes.wait_for_unreported().await;
            if self.session.has_ended() {
                return;
            }
            rt::sleep(REPORT_PAUSE).await;
            for batch in self.inodes.take_unreported().chunks(REPORTS_AT_ONCE) {
                let report = async |ino| self.end_use(&self.inodes.acquire(ino)).await;
                rt::join_all(batch.iter().map(|ino| report(*ino)).collect()).await;
            }
        }
    }

    /// Reports every open file, and returns the first failure after it has tried all. Files are
    /// reported concurrently, so that an unreachable service costs one time-out instead of one for
    /// each file.
    pub(crate) async fn report_all(&self, done: bool) -> Result<()> {
        let mut outcome = Ok(());
        for batch in self.inodes.open_inodes().chunks(REPORTS_AT_ONCE) {
            let reports = batch.iter().map(|inode| async move {
                let reported = self.report_progress(inode, done).await;
                // A file that was closed, deleted and reclaimed meanwhile needs no report.
                if self.inodes.open(inode.ino).is_some() { reported } else { Ok(()) }
            });
            outcome = rt::join_all(reports.collect()).await.into_iter().fold(outcome, Result::and);
        }
        outcome
    }

    /// Reports size and mtime to the metadata service if they changed.
    pub(crate) async fn report_progress(&self, inode: &OpenInode, done: bool) -> Result<()> {
        let needed = {
            let content = inode.content.lock();
            content.phase.needs_report() || (done && content.has_unreported_state())
        };
        if !needed {
            return Ok(());
        }
        let _exclusive = self.lock_io_exclusive(inode).await?;
        self.end_write(inode, done).await
    }

    /// Like `report_progress`, for a caller that holds the I/O lock exclusively.
    pub(crate) async fn end_write(&self, inode: &OpenInode, done: bool) -> Result<()> {
        self.end_write_with(inode, done, BlockAccuracy::Exact).await
    }

    /// Like [`Files::end_write`]. With `Estimated` blocks it doesn't wait for unavailable targets,
    /// because other sessions wait for this report.
    pub(crate) async fn end_write_with(
        &self,
        inode: &OpenInode,
        done: bool,
        exact: BlockAccuracy,
    ) -> Result<()> {
        // Without the `Write` lease, the session can't know the end of the file.
        let is_exclusive = inode.content.lock().lease == LeaseMode::Write;
        if done && is_exclusive {
            self.finish_truncate(inode).await?;
        }
        let (size, mtime, layout, generation, end) = {
            let content = inode.content.lock();
            if !content.phase.is_writer() || !(content.phase.needs_report() || done) {
                return Ok(());
            }
            let end = if content.has_only_written_chunks { content.size } else { u64::MAX };
            (content.size, content.phase.unreported_change(), content.layout.clone(), content.generation, end)
        };
        let Allocated { blocks, lens } = match &layout {
            Some(layout) if exact == BlockAccuracy::Exact => {
                self.chunk_files.allocated(inode.ino, layout, end).await?
            }
            Some(layout) => self.chunk_files.allocated_estimate(inode.ino, layout, size).await?,
            None => Allocated { blocks: 0, lens: Vec::new() },
        };
        let ino = inode.ino;
        let op =
            MetaOp::EndWrite { ino, size, blocks, lens: lens.clone(), mtime, done, kill_suid_sgid: false };
        let known = self.send_end_write(inode, generation, op.clone()).await?;
        if known < size && inode.content.lock().check_generation(inode.ino, generation).is_ok() {
            // An earlier `EndWrite` succeeded, but its answer was lost. Later writes aren't on
            // record yet.
            self.change_as_client(MetaOp::BeginWrite { ino: inode.ino }).await?;
            inode.content.lock().on(Event::WriteBegunAgain);
            self.send_end_write(inode, generation, op).await?;
        }
        self.inodes.note_report(inode.ino);
        let mut content = inode.content.lock();
        if content.generation != generation {
            // Unloaded meanwhile: the service has recovered the size, or its successor will.
            return Ok(());
        }
        content.note_lens(&lens, size);
        content.on(Event::Reported { done });
        Ok(())
    }

    /// Reports to the service what only this session knows. The caller holds the I/O lock
    /// exclusively. Repeats until it succeeds or the session ends, since the service then recovers
    /// the size itself.
    pub(crate) async fn report_and_unload(&self, inode: &OpenInode, remaining: Option<LeaseMode>) {
        self.flush_dirty(inode).await;
        loop {
            // Changes that may still be in flight must not arrive after those of other sessions.
            let mut reported = self.chunk_files.renew_tainted_epoch(inode).await;
            // Chunks beyond the end are truncated before other sessions get the lease.
            if reported.is_ok() {
                reported = self.finish_truncate(inode).await;
            }
            if reported.is_ok() {
                reported = self
                    .end_write_with(inode, remaining != Some(LeaseMode::Shared), BlockAccuracy::Estimated)
                    .await;
            }
            match reported {
                Err(error) if error.errno != Errno::ESTALE && self.session.end_cause().is_none() => {
                    tracing::warn!(ino = %inode.ino, %error, "a lease can't be given back: size and times could not be reported; retrying");
                    rt::sleep(RETRY_PAUSE).await;
                }
                _ => break,
            }
        }
        let mut content = inode.content.lock();
        inode.pending_recalls.fetch_sub(1, Ordering::Relaxed);
        match remaining {
            Some(LeaseMode::Permissions) | None => content.unload(),
            Some(mode) => {
                content.lease = mode;
                content.has_only_written_chunks = false;
            }
        }
    }
}
