//! The epochs of leases, by which targets know what comes too late.
//!
//! Whatever is asked of a file's chunks carries the epoch of the lease under which it is asked. A
//! target that has seen a later one refuses it with `EKEYREVOKED`: then the metadata service is
//! asked for the epoch as it is now, which it tells only who still has the lease, and the request
//! is sent again.
//!
//! A change that was given up, or failed, may still be on its way. What this session does to the
//! file afterwards could be undone by it, as much as what others do. So its epoch is *spent*:
//! before the file is used again, or its lease is given up, the service is asked for another one.

use crate::access::ended_lease;
use crate::data::Keeper;
use crate::inode::OpenInode;
use crate::{Client, file_info};
use types::{Errno, InodeId, Layout, Result};
use wire::{MetaOp, StorageOp};

/// How often a request is sent in another epoch before its operation begins anew.
pub(crate) const MAX_RENEWALS: u32 = 8;

/// Above all epochs: whichever there is now is spent.
const ANY_EPOCH: u64 = u64::MAX;

/// A file whose chunks are used, and the lease for it: the era for which it is known to be held,
/// and its epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Under {
    pub(crate) ino: InodeId,
    pub(crate) era: u64,
    pub(crate) epoch: u64,
    /// The chunk file that is asked for is known to have at least this length.
    pub(crate) known: u64,
}

impl Under {
    /// Of a file whose chunks are asked for something that may as well come late.
    pub(crate) fn no_lease(ino: InodeId) -> Under {
        Under { ino, era: 0, epoch: 0, known: 0 }
    }
}

impl Client {
    /// An epoch above one that is over, if the lease is still the one of then. May be asked with
    /// the gate held: nobody has to give anything up for it.
    ///
    /// # Errors
    /// `EKEYEXPIRED`: what was begun under the lease has to begin anew.
    pub(crate) async fn renew_epoch(&self, under: Under, past: u64) -> Result<u64> {
        let Under { ino, era, .. } = under;
        let inode = self.inodes.open(ino).ok_or_else(|| ended_lease(ino))?;
        {
            let content = inode.content.lock();
            content.still(ino, era)?;
            if content.epoch > past {
                return Ok(content.epoch);
            }
        }
        let info = file_info(self.ask(MetaOp::Reopen { ino, past }).await?.reply)?;
        self.leases.mark(ino);
        let mut content = inode.content.lock();
        content.still(ino, era)?;
        // A service that has none now was replaced by one of an earlier version.
        content.epoch = if info.epoch == 0 { 0 } else { content.epoch.max(info.epoch) };
        match content.epoch {
            epoch if epoch == 0 || epoch > past => Ok(epoch),
            _ => Err(ended_lease(ino)),
        }
    }

    /// Gets another epoch for a file whose epoch is spent. The gate is held.
    ///
    /// # Errors
    /// `EKEYEXPIRED` when the lease has ended meanwhile.
    pub(crate) async fn leave_spent_epoch(&self, inode: &OpenInode) -> Result<()> {
        let (under, layout) = {
            let mut content = inode.content.lock();
            if !content.is_spent() {
                return Ok(());
            }
            let layout = content.layout.clone().filter(|layout| self.is_mirrored(layout));
            let under = content.under(inode.ino);
            if layout.is_some() {
                content.spent = ANY_EPOCH;
            }
            (under, layout)
        };
        let epoch = self.renew_epoch(under, under.epoch).await?;
        let Some(layout) = layout else { return Ok(()) };
        // What is read next may be answered by a member that has never heard of the change, which
        // is with the primary. So that one learns first that it is too late for it.
        self.on_stripes_there_are(Under { epoch, ..under }, &layout, |_| StorageOp::Sync).await?;
        let mut content = inode.content.lock();
        content.still(inode.ino, under.era)?;
        // Unless another one has failed meanwhile.
        if content.spent == ANY_EPOCH {
            content.spent = 0;
        }
        Ok(())
    }

    fn is_mirrored(&self, layout: &Layout) -> bool {
        layout.groups.iter().any(|group| matches!(self.keeper(*group), Ok(Keeper::Mirror(_))))
    }

    /// The same; false when the lease has ended meanwhile.
    pub(crate) async fn has_left_spent_epoch(&self, inode: &OpenInode) -> Result<bool> {
        match self.leave_spent_epoch(inode).await {
            Err(error) if error.errno == Errno::EKEYEXPIRED => Ok(false),
            left => left.map(|()| true),
        }
    }
}

/// A change on its way: unless it is known to have been made, its epoch is spent when this is
/// dropped.
pub(crate) struct Unanswered<'a> {
    inode: &'a OpenInode,
    era: u64,
    is_durable: bool,
    is_done: bool,
}

impl<'a> Unanswered<'a> {
    /// One that begins, under the lease of an era and after so many losses.
    pub(crate) fn new(inode: &'a OpenInode, era: u64, losses: u64, is_durable: bool) -> Unanswered<'a> {
        inode.content.lock().begin_change(losses);
        Unanswered { inode, era, is_durable, is_done: false }
    }

    /// It has been made.
    pub(crate) fn end(mut self) {
        self.is_done = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let mut content = self.inode.content.lock();
        content.unsynced.end(self.is_durable);
        if self.is_done {
            return;
        }
        // In another era there is another epoch.
        if content.era == self.era {
            content.spent = content.epoch;
        }
    }
}
