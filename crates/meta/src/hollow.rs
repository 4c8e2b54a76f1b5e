//! Lost unsynced data: files that lost content in a crash that was not synced.
//!
//! The inode of such a file has what its writer reported at the end, and chunk files that were
//! never synced are gone. The size stays, since it may have been acknowledged, and missing content
//! reads as zeros, as after the crash of a local file system. But the block count must shrink: the
//! file check takes a file with as many blocks as bytes for complete, and a missing chunk file for
//! damage. A chunk file that is known to have been longer is extended again, by a hole at its end,
//! before clients access it: a chunk file shorter than its known length is damage, too.

use crate::chunks::{Place, Under};
use crate::limits::BACKGROUND_BATCH;
use crate::rewind::Rewound;
use crate::service::MetaService;
use crate::view::View;
use namespace::Chunks;
use std::time::Duration;
use types::{ByteRange, Errno, InodeId, Layout, Result, SessionId};
use wire::{Allocate, MetaOp, StorageOp, StorageReply};

/// Unit of the block count of a file, in bytes.
const SPACE_UNIT: u64 = 512;

/// Recorded attributes of a file of which a chunk file may be shorter than recorded.
#[derive(Clone, Copy)]
pub(crate) struct Claimed {
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// Recorded length of the chunk file, in bytes.
    pub(crate) local_len: u64,
    /// Bytes that the chunk file is known to have at least.
    pub(crate) known: u64,
}

impl Claimed {
    /// The missing bytes of the chunk file if it has `len` bytes, and the most blocks that the file
    /// has then; `None` if the recorded count isn't larger.
    fn without(self, len: u64) -> Option<(u64, u64)> {
        let missing = self.local_len.saturating_sub(len);
        let blocks = self.size.saturating_sub(missing) / SPACE_UNIT;
        (missing > 0 && blocks < self.blocks).then_some((missing, blocks))
    }
}

/// The first pause between checks whether a file is still being written, and the longest: some
/// files stay open for days.
const FIRST_REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(64);

/// Whether clients can access the location during a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Not before the check is over.
    Closed,
    /// They can.
    Open,
}

impl MetaService {
    /// The recorded attributes for the chunk file of this name; `None` if the file has none there.
    pub(crate) fn claimed(
        &self,
        place: Place,
        name: InodeId,
        layout: &Layout,
        (size, blocks, known): (u64, u64, &[u64]),
    ) -> Result<Option<Claimed>> {
        let stripe = self.chunks.stripe_in(layout, name.slot(), place)?;
        Ok(stripe.map(|stripe| Claimed {
            size,
            blocks,
            local_len: layout::local_len(layout, stripe, size),
            known: layout::known::of_stripe(known, stripe),
        }))
    }

    /// Finds files that lost a new chunk file which was never synced: after a crash only the
    /// metadata knows that it existed.
    pub(crate) async fn look_for_new(
        &self,
        place: Place,
        (first, end): (InodeId, InodeId),
        rewound: &Rewound,
    ) -> Result<()> {
        let (partition, slot) = (first.partition(), first.slot());
        if !self.has_partition(partition) || end <= first {
            return Ok(());
        }
        let last = InodeId(end.0 - 1).of_chunk_file();
        let mut after = InodeId(first.of_chunk_file().0.saturating_sub(1));
        loop {
            let read = |view: &View<'_>| namespace::inodes(view, partition, after, BACKGROUND_BATCH);
            let page = self.read(partition, read).await?;
            let Some(&(seen, _)) = page.last() else { return Ok(()) };
            after = seen;
            let here = page.into_iter().filter(|(ino, inode)| {
                *ino <= last && inode.layout.is_some() && !rewound.is_of_before(*ino, inode.attr(*ino).ctime)
            });
            let looks = here.map(|(ino, _)| async move {
                let name = ino.chunk_file(slot);
                if !self.look_if_settled(place, name, Reach::Closed).await? {
                    self.look_when_settled(place, name);
                }
                Result::Ok(())
            });
            rt::join_all(looks.collect()).await.into_iter().collect::<Result<()>>()?;
            if seen >= last {
                return Ok(());
            }
        }
    }

    /// The same for a file that is being written, once that has ended. Its writer, which may have
    /// survived, asks all chunk files for their blocks at the end: some of them may have answered
    /// before the crash.
    pub(crate) fn look_when_settled(&self, place: Place, name: InodeId) {
        let Some(service) = self.myself.upgrade() else { return };
        rt::spawn(async move {
            let mut rest = FIRST_REST;
            while !service.stopping.is_set() {
                rt::sleep(rest).await;
                rest = LONGEST_REST.min(2 * rest);
                match service.look_if_settled(place, name, Reach::Open).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(error) if !service.is_owned(name.partition()) => {
                        return tracing::debug!(ino = name.0, %error, "it is another service's now");
                    }
                    Err(error) => tracing::debug!(ino = name.0, %error, "a file can't be looked at yet"),
                }
            }
        });
    }

    /// Checks a chunk file. Returns false if the file is still being written.
    async fn look_if_settled(&self, place: Place, name: InodeId, reach: Reach) -> Result<bool> {
        let ino = name.of_chunk_file();
        let known = self.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
        let (layout, claim) = match known {
            Chunks::Unsettled { .. } => return Ok(false),
            Chunks::None => return Ok(true),
            Chunks::Settled { layout, size, blocks, known, .. } => (layout, (size, blocks, known)),
        };
        let (size, blocks, known) = claim;
        let Some(claimed) = self.claimed(place, name, &layout, (size, blocks, &known))? else {
            return Ok(true);
        };
        if claimed.local_len > 0 {
            let file = Under { ino: name, epoch: self.leases.epoch(ino) };
            self.account_for_loss(place, file, claimed, reach).await?;
        }
        self.fit_to_record(place, name).await
    }

    /// Cuts a chunk file whose truncation was undone by a power loss: the client that truncated it
    /// doesn't know of that, and a client that extends the file would read the old content. Extends
    /// one that is shorter than known after a power loss. Returns false if a session changes the
    /// file again.
    async fn fit_to_record(&self, place: Place, name: InodeId) -> Result<bool> {
        if self.misfit(place, name).await?.is_none() {
            return Ok(true);
        }
        let ino = name.of_chunk_file();
        let mover = self.sessions.register_local(SessionId::drawn(rt::secret_u64()))?;
        let fit = async {
            // Under this lease no other session knows of an end beyond the recorded one.
            let _alone = self.hold_alone(&mover, ino).await?;
            let Some(fit) = self.misfit(place, name).await? else { return Ok(()) };
            let file = Under { ino: name, epoch: self.leases.epoch(ino) };
            self.chunks.at(place, file, fit).await?;
            self.chunks.at(place, file, StorageOp::Sync).await.map(drop)
        };
        let done = self.without_local_mount(ino, fit).await;
        self.sessions.remove(mover.id);
        match done {
            Err(error) if error.errno == Errno::EBUSY => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// The operation that corrects a chunk file's length, if no session is changing its file.
    async fn misfit(&self, place: Place, name: InodeId) -> Result<Option<StorageOp>> {
        let ino = name.of_chunk_file();
        let known = self.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
        let Chunks::Settled { layout, size, blocks, known, changed } = known else { return Ok(None) };
        // Content that a restored store doesn't know may still be needed.
        if self.rewound().await?.is_of_before(ino, changed) {
            return Ok(None);
        }
        let claimed = self.claimed(place, name, &layout, (size, blocks, &known))?;
        let Some(claimed) = claimed else { return Ok(None) };
        let file = Under { ino: name, epoch: self.leases.epoch(ino) };
        match self.chunks.at(place, file, StorageOp::Stat).await? {
            StorageReply::Stat { len, .. } if len > claimed.local_len => {
                Ok(Some(StorageOp::Truncate { len: claimed.local_len }))
            }
            StorageReply::Stat { len, is_lost: false, .. } if len < claimed.known => {
                Ok(Some(lengthened(claimed.known)))
            }
            _ => Ok(None),
        }
    }

    /// Checks how much of a chunk file that was changing has survived a crash, and reduces the
    /// recorded block count if it is less. Not if the chunk file had been on disk and is gone all
    /// the same: that is damage, and has to stay visible.
    pub(crate) async fn account_for_loss(
        &self,
        place: Place,
        file: Under,
        claimed: Claimed,
        reach: Reach,
    ) -> Result<()> {
        let StorageReply::Stat { len, is_lost, .. } = self.chunks.at(place, file, StorageOp::Stat).await?
        else {
            return Ok(());
        };
        let ino = file.ino.of_chunk_file();
        if is_lost {
            tracing::error!(ino = ino.0, %place, "a chunk file that had been on disk is gone after a crash: see weft fsck");
            return Ok(());
        }
        if let Some((missing, blocks)) = claimed.without(len) {
            tracing::warn!(ino = ino.0, %place, missing, "content that had not been synced went with a crash");
            self.correct_space(ino, blocks);
        }
        if len < claimed.known && reach == Reach::Closed {
            self.chunks.at(place, file, lengthened(claimed.known)).await?;
        }
        Ok(())
    }

    /// Runs in the background: it may conflict with a lease whose holder waits for this
    /// reconciliation.
    fn correct_space(&self, ino: InodeId, blocks: u64) {
        let Some(service) = self.myself.upgrade() else { return };
        rt::spawn(async move {
            // From a session that isn't changing the file, this changes the block count only.
            let op = MetaOp::EndWrite {
                ino,
                size: 0,
                blocks,
                lens: Vec::new(),
                mtime: None,
                done: false,
                kill_suid_sgid: false,
            };
            if let Err(error) = service.run_as(SessionId(0), op).await {
                tracing::warn!(ino = ino.0, %error, "a file still counts as whole: weft fsck will say that chunk files are gone");
            }
        });
    }
}

/// Extends a chunk file by a hole: it writes only the last byte, as 0.
fn lengthened(len: u64) -> StorageOp {
    StorageOp::Allocate { range: ByteRange::new(len.saturating_sub(1), len), how: Allocate::Zero }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_takes_no_space() {
        let claimed = |blocks| Claimed { size: 3000, blocks, local_len: 1000, known: 0 };
        assert_eq!(claimed(6).without(0), Some((1000, 3)));
        assert_eq!(claimed(1).without(0), None, "a file with holes");
        // Always fewer than the file has bytes.
        assert!(claimed(6).without(999).is_some_and(|(_, blocks)| blocks * SPACE_UNIT < 3000));
    }

    #[test]
    fn of_what_is_longer_than_it_has_to_be_nothing_is_missing() {
        let claimed = Claimed { size: 3000, blocks: 8, local_len: 1000, known: 0 };
        assert_eq!([1000, 1001, 5000].map(|len| claimed.without(len)), [None; 3]);
    }
}
