//! Syncs: `fsync`, `syncfs`, and syncs of directories.

use crate::Handle;
use crate::file::Files;
use crate::file::access::LeaseNeed;
use crate::file::inode::OpenInode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{Credentials, Errno, Error, InodeId, Result};
use wire::{LeaseMode, MetaOp, MetaReply};

impl Handle {
    /// Reports a loss of data that was written before, once.
    ///
    /// # Errors
    /// `EIO` then.
    pub(crate) fn report_loss(&self) -> Result<()> {
        let found = self.inode.content.lock().loss_count();
        match self.losses_reported.swap(found, Ordering::AcqRel) < found {
            true => Err(lost(&format!("inode {}", self.ino()))),
            false => Ok(()),
        }
    }
}

fn lost(what: &str) -> Error {
    let message =
        format!("{what}: unsynced writes were lost in a power failure of storage or of the metadata store");
    Error::new(Errno::EIO, message).hint("repeat all writes since the last successful sync")
}

/// A change of a file's size, layout or inline content that is in flight to the metadata service,
/// until this is dropped. An unanswered one may have been executed.
pub(crate) struct UnsyncedChange(Arc<OpenInode>);

impl Drop for UnsyncedChange {
    fn drop(&mut self) {
        self.0.content.lock().unsynced_metadata.end(false);
    }
}

impl Files {
    /// Syncs data, size and name of the file.
    ///
    /// # Errors
    /// `EIO`, once for each handle, if a power loss of storage services or of the metadata store
    /// has taken something that was written before. The cause, once for each handle, if a delayed
    /// write could not be stored.
    pub(crate) async fn fsync(&self, handle: &Arc<Handle>, data_only: bool) -> Result<()> {
        let _ = data_only;
        let inode = &handle.inode;
        let (layouts, changes) = {
            // Holds the lock, so that a recall can't unload the layout before it is read.
            let _shared = self.lock_shared(inode, LeaseNeed::Read).await?;
            let mut content = inode.content.lock();
            if content.lease == LeaseMode::Shared {
                // Other sessions write as well, and the sync covers their writes, too.
                content.unsynced.assume_unsynced();
            }
            let others =
                content.unsynced_layouts.iter().filter(|other| Some(*other) != content.layout.as_ref());
            let layouts: Vec<_> = content.layout.iter().chain(others).cloned().collect();
            (layouts, content.unsynced.unsynced_changes())
        };
        if let (false, Some(changes)) = (layouts.is_empty(), changes) {
            let synced = layouts.iter().map(|layout| self.chunk_files.sync_stripes(inode, layout)).collect();
            rt::join_all(synced).await.into_iter().collect::<Result<()>>()?;
            let mut content = inode.content.lock();
            // Under the lock that a change takes when it begins, which may count as the first
            // unsynced one.
            let has_lost = |since| layouts.iter().any(|layout| self.chunk_files.has_lost_any(layout, since));
            if content.unsynced.since().is_some_and(has_lost) {
                content.unsynced.record_loss(self.session.verifiers.losses());
            }
            // Only now, so that concurrent syncs wait for the disk as well.
            content.synced(changes);
        }
        // Even after a loss: the remaining data is made durable.
        self.sync_inode(inode).await?;
        handle.report_flush_failure()?;
        handle.report_loss()
    }

    /// Syncs size, layout and inline content of a file. Records a loss of these, which the answer
    /// to the sync shows.
    pub(crate) async fn sync_inode(&self, inode: &OpenInode) -> Result<()> {
        self.report_progress(inode, false).await?;
        let changes = inode.content.lock().unsynced_metadata.unsynced_changes();
        self.session.sync_metadata(inode.ino.partition()).await?;
        let Some(changes) = changes else { return Ok(()) };
        // Under the lock that a change takes when it begins, which may count as the first unsynced
        // one.
        let unsynced = &mut inode.content.lock().unsynced_metadata;
        if unsynced.since().is_some_and(|since| self.session.verifiers.has_lost_metadata(since)) {
            unsynced.record_loss(self.session.verifiers.losses());
        }
        unsynced.synced(changes);
        Ok(())
    }

    /// Records a change that a sync of the file must cover.
    pub(crate) fn note_change(&self, op: &MetaOp) -> Option<UnsyncedChange> {
        let ino = match *op {
            MetaOp::WriteInline { ino, .. }
            | MetaOp::BeginWrite { ino }
            | MetaOp::DropInline { ino, .. }
            | MetaOp::EndWrite { ino, .. }
            | MetaOp::Truncate { ino, .. } => ino,
            _ => return None,
        };
        let inode = self.inodes.open(ino)?;
        inode.content.lock().unsynced_metadata.begin(self.session.verifiers.losses());
        Some(UnsyncedChange(inode))
    }

    /// Sends a change on behalf of the client itself.
    pub(crate) async fn change_as_client(&self, op: MetaOp) -> Result<MetaReply> {
        let _unsynced_change = self.note_change(&op);
        self.session.change_as(Credentials::default(), op).await.map(|answer| answer.reply)
    }

    /// Syncs everything whose call had returned before.
    pub(crate) async fn syncfs(&self) -> Result<()> {
        self.flush_all().await?;
        let outcome = self.chunk_files.sync_all().await;
        let outcome = outcome.and(self.report_all(false).await);
        outcome.and(self.session.sync_all_metadata().await)?;
        if self.session.verifiers.take_loss() { Err(lost("file system")) } else { Ok(()) }
    }

    /// Syncs creates, removals and renames.
    ///
    /// # Errors
    /// `EIO`, once, if the metadata store has lost power, and possibly some of these.
    pub(crate) async fn fsyncdir(&self, ino: InodeId) -> Result<()> {
        self.session.sync_metadata(ino.partition()).await?;
        if self.session.verifiers.take_metadata_loss() {
            Err(lost(&format!("directory {ino}")))
        } else {
            Ok(())
        }
    }
}
