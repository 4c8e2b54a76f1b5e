//! Files of which a crash has taken content that nobody had synced.
//!
//! What is on record of such a file is what its writer said when it was done, and chunk files that
//! never came to disk are gone. Then its size stays, since that may have been promised, and what is
//! missing reads as zeros, as after the crash of a local file system. But it mustn't be said to
//! have space there: the file check takes a file that has as much space as bytes for whole, so that
//! a missing chunk file of it is damage. And a chunk file that is known to have been longer is made
//! as long again, by a hole at its end, before clients reach it: what is missing of a known length
//! is damage, too.

use crate::chunks::{Place, Under};
use crate::limits::BACKGROUND_BATCH;
use crate::rewind::Rewound;
use crate::service::MetaService;
use crate::view::View;
use namespace::Chunks;
use std::time::Duration;
use types::{ByteRange, Errno, InodeId, Layout, Result, SessionId};
use wire::{Allocate, MetaOp, StorageOp, StorageReply};

/// Unit of the space that a file occupies, bytes.
const SPACE_UNIT: u64 = 512;

/// What is on record of a file of which a chunk file may be shorter than that says.
#[derive(Clone, Copy)]
pub(crate) struct Claimed {
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// Bytes of the chunk file in question.
    pub(crate) local_len: u64,
    /// Bytes that it is known to have at least.
    pub(crate) known: u64,
}

impl Claimed {
    /// What is missing of the chunk file if it is `len` bytes long, and the space that the file has
    /// at most then; `None` if that isn't less than it is said to have.
    fn without(self, len: u64) -> Option<(u64, u64)> {
        let missing = self.local_len.saturating_sub(len);
        let blocks = self.size.saturating_sub(missing) / SPACE_UNIT;
        (missing > 0 && blocks < self.blocks).then_some((missing, blocks))
    }
}

/// The first rest before it is looked whether a file isn't being written any more, and the longest:
/// some stay open for days.
const FIRST_REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(64);

/// Whether clients reach a place whose chunk files are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Not before this is over.
    Closed,
    /// They do.
    Open,
}

impl MetaService {
    /// What is on record of the chunk file of this name; `None` if the file has none there.
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

    /// Looks which files have lost a chunk file that was being made there and never came to disk:
    /// after a crash nobody but the metadata knows that there had been one.
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

    /// The same for a file that is being written, when it isn't any more. Its writer, which may
    /// have lived on, asks all chunk files for their space when it is done: some of them may have
    /// answered before the crash.
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

    /// Whether that has been done, or isn't necessary.
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

    /// Cuts a chunk file that the power has made longer again than its file is: who had cut it
    /// lives on and doesn't know of that, and whoever makes the file longer one day would read what
    /// had been cut off. Makes one longer that the power has made shorter than is known. False:
    /// somebody changes the file again.
    async fn fit_to_record(&self, place: Place, name: InodeId) -> Result<bool> {
        if self.misfit(place, name).await?.is_none() {
            return Ok(true);
        }
        let ino = name.of_chunk_file();
        let mover = self.sessions.register_local(SessionId::drawn(rt::secret_u64()))?;
        let fit = async {
            // Nobody else knows of an end beyond the one on record then.
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

    /// What gives a chunk file its right length if nobody is changing its file.
    async fn misfit(&self, place: Place, name: InodeId) -> Result<Option<StorageOp>> {
        let ino = name.of_chunk_file();
        let known = self.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
        let Chunks::Settled { layout, size, blocks, known, changed } = known else { return Ok(None) };
        // What a store that went back in time doesn't know of may be needed yet.
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

    /// Looks how much of a chunk file that was changing has outlived a crash, and corrects what is
    /// on record where it is less. Not where the chunk file had been on disk and is gone all the
    /// same: that is damage, and has to look like it.
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

    /// In the background: a lease may be in the way, whose holder waits for what is being put right
    /// here.
    fn correct_space(&self, ino: InodeId, blocks: u64) {
        let Some(service) = self.myself.upgrade() else { return };
        rt::spawn(async move {
            // Nothing but the space changes by the word of a session that isn't changing the file.
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

/// Makes a chunk file so long, by a hole: only its last byte is written, with 0.
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
        // Never as much as the file has bytes.
        assert!(claimed(6).without(999).is_some_and(|(_, blocks)| blocks * SPACE_UNIT < 3000));
    }

    #[test]
    fn of_what_is_longer_than_it_has_to_be_nothing_is_missing() {
        let claimed = Claimed { size: 3000, blocks: 8, local_len: 1000, known: 0 };
        assert_eq!([1000, 1001, 5000].map(|len| claimed.without(len)), [None; 3]);
    }
}
