//! Lease epochs, by which targets detect requests that arrive too late.
//!
//! Every request for a file's chunks carries the epoch of the lease under which it is sent. A
//! target that has seen a later epoch refuses it with `RevokedLeaseEpoch`. The client then asks the
//! metadata service for the current epoch, which the service returns only to a session that still
//! holds the lease, and sends the request again.
//!
//! A change that was abandoned or has failed may still be in flight. It could overwrite later
//! changes by this session as well as those by others. So its epoch is *tainted*: before the file
//! is used again, or its lease is given back, the client asks the service for another epoch.

use super::ChunkFiles;
use crate::file::access::{ended_lease, is_lease_over};
use crate::file::chunk_files::striping::ChunkLocation;
use crate::file::inode::OpenInode;
use crate::file_info;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use types::{InodeId, Layout, Result};
use wire::{MetaOp, StorageOp};

/// How often a request is sent in another epoch before its operation restarts.
pub(crate) const MAX_RENEWALS: u32 = 8;

/// How often a slow change checks that its lease is still held.
const LEASE_CHECK: Duration = Duration::from_millis(500);
/// How long a change is still retried after its lease has ended: together with [`LEASE_CHECK`],
/// less than the session waits for it.
const RETRY_TIME: Duration = Duration::from_millis(3_500);

/// Greater than every epoch: the current one, whatever it is, is tainted.
const ANY_EPOCH: u64 = u64::MAX;

/// A file whose chunks are accessed, and the lease for that: the generation in which it was
/// checked, and its epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseContext {
    pub(crate) ino: InodeId,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    /// Minimum length that the chunk file is known to have, in bytes.
    pub(crate) known_len: u64,
}

impl LeaseContext {
    /// For requests that may safely arrive late.
    pub(crate) fn without_lease(ino: InodeId) -> LeaseContext {
        LeaseContext { ino, generation: 0, epoch: 0, known_len: 0 }
    }
}

impl ChunkFiles {
    /// Returns an epoch greater than `past`, if the session still holds the same lease. Callable
    /// under the I/O lock: the service recalls nothing for it.
    ///
    /// # Errors
    /// `EndedLease`: the operation must restart under a new lease.
    pub(crate) async fn renew_epoch(&self, under: LeaseContext, past: u64) -> Result<u64> {
        let LeaseContext { ino, generation, .. } = under;
        let inode = self.inodes.open(ino).ok_or_else(|| ended_lease(ino))?;
        {
            let content = inode.content.lock();
            content.check_generation(ino, generation)?;
            if content.epoch > past {
                return Ok(content.epoch);
            }
        }
        let info = file_info(self.session.query(MetaOp::Reopen { ino, above_epoch: past }).await?.reply)?;
        self.session.leases.mark_open(ino);
        let mut content = inode.content.lock();
        content.check_generation(ino, generation)?;
        // A service without epochs runs an earlier version and has replaced one with epochs.
        content.epoch = if info.epoch == 0 { 0 } else { content.epoch.max(info.epoch) };
        match content.epoch {
            epoch if epoch == 0 || epoch > past => Ok(epoch),
            _ => Err(ended_lease(ino)),
        }
    }

    /// Gets a new epoch for a file whose epoch is tainted. The caller holds the I/O lock.
    ///
    /// # Errors
    /// `EndedLease`: the lease has ended meanwhile.
    pub(crate) async fn renew_tainted_epoch(&self, inode: &OpenInode) -> Result<()> {
        let (under, layout) = {
            let mut content = inode.content.lock();
            if !content.is_tainted() {
                return Ok(());
            }
            let layout = content.layout.clone().filter(|layout| self.is_mirrored(layout));
            let under = content.under(inode.ino);
            if layout.is_some() {
                content.tainted_epoch = ANY_EPOCH;
            }
            (under, layout)
        };
        let epoch = self.renew_epoch(under, under.epoch).await?;
        let Some(layout) = layout else { return Ok(()) };
        // The next read may go to a replica that doesn't know of the change that the primary still
        // has in flight. So the primary must see the new epoch first, and refuse that change.
        self.on_present_stripes(LeaseContext { epoch, ..under }, &layout, |_| StorageOp::Sync).await?;
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, under.generation)?;
        // Unless another change has failed meanwhile.
        if content.tainted_epoch == ANY_EPOCH {
            content.tainted_epoch = 0;
        }
        Ok(())
    }

    fn is_mirrored(&self, layout: &Layout) -> bool {
        layout.groups.iter().any(|group| matches!(self.chunk_location(*group), Ok(ChunkLocation::Group(_))))
    }

    /// Like [`ChunkFiles::renew_tainted_epoch`]; returns false if the lease has ended meanwhile.
    pub(crate) async fn try_renew_tainted_epoch(&self, inode: &OpenInode) -> Result<bool> {
        match self.renew_tainted_epoch(inode).await {
            Err(error) if is_lease_over(&error) => Ok(false),
            left => left.map(|()| true),
        }
    }

    /// Changes chunk files under the lease of a generation, which the caller has just checked. If
    /// the lease ends meanwhile, the change isn't retried for longer than the session waits before
    /// it permits other sessions: it could overwrite their changes. `is_durable`: the change is on
    /// disk when it is answered.
    ///
    /// # Errors
    /// `EndedLease`: the generation has ended, and the outcome of the change is uncertain.
    pub(crate) async fn change_under_lease<T>(
        &self,
        inode: &OpenInode,
        generation: u64,
        is_durable: bool,
        mut change: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let unanswered = InFlightChange::new(inode, generation, self.session.verifiers.losses(), is_durable);
        let mut ended_ns = None;
        loop {
            if let Some(done) = rt::timeout(LEASE_CHECK, change.as_mut()).await {
                if done.is_ok() {
                    unanswered.end();
                }
                return done;
            }
            if let Err(ended) = inode.content.lock().check_generation(inode.ino, generation) {
                let since_ns = *ended_ns.get_or_insert_with(rt::monotonic_ns);
                if rt::monotonic_ns().saturating_sub(since_ns) > RETRY_TIME.as_nanos() as u64 {
                    return Err(ended);
                }
            }
        }
    }
}

/// A change in flight. Unless it ends with success, dropping this taints its epoch.
pub(crate) struct InFlightChange<'a> {
    inode: &'a OpenInode,
    generation: u64,
    is_durable: bool,
    is_done: bool,
}

impl<'a> InFlightChange<'a> {
    /// Begins a change under the lease of a generation. `losses` is the current number of losses of
    /// storage services.
    pub(crate) fn new(
        inode: &'a OpenInode,
        generation: u64,
        losses: u64,
        is_durable: bool,
    ) -> InFlightChange<'a> {
        inode.content.lock().begin_change(losses);
        InFlightChange { inode, generation, is_durable, is_done: false }
    }

    /// Records that the change has succeeded.
    pub(crate) fn end(mut self) {
        self.is_done = true;
    }
}

impl Drop for InFlightChange<'_> {
    fn drop(&mut self) {
        let mut content = self.inode.content.lock();
        content.unsynced.end(self.is_durable);
        if self.is_done {
            return;
        }
        // Another generation has another epoch.
        if content.generation == self.generation {
            content.tainted_epoch = content.epoch;
        }
    }
}
