//! Lost unsynced data: files that lost content in a crash that was not synced.
//!
//! The inode of such a file has what its writer reported at the end, and chunk files that were
//! never synced are gone. The size stays, since it may have been acknowledged, and missing content
//! reads as zeros, as after the crash of a local file system. But the block count must shrink: the
//! file check takes a file with as many blocks as bytes for complete, and a missing chunk file for
//! damage. A chunk file that is known to have been longer is extended again, by a hole at its end,
//! before clients access it: a chunk file shorter than its known length is damage, too.

use crate::data::chunks::{ChunkLocation, EpochedChunkFile};
use crate::data::reconciliation::Reconciliation;
use crate::limits::BACKGROUND_BATCH;
use crate::store::restore_records::RestoreRecord;
use crate::store::transaction_view::View;
use namespace::Chunks;
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, ChunkFileId, Errno, InodeId, Layout, Result, SessionId};
use wire::{AllocateMode, MetaOp, StorageOp, StorageReply};

/// Unit of the block count of a file, in bytes.
const SPACE_UNIT: u64 = 512;

/// Recorded attributes of a file of which a chunk file may be shorter than recorded.
#[derive(Clone, Copy)]
pub(crate) struct RecordedChunk {
    pub size: u64,
    pub blocks: u64,
    /// Recorded length of the chunk file, in bytes.
    pub local_len: u64,
    /// Bytes that the chunk file is known to have at least.
    pub min_len: u64,
}

impl RecordedChunk {
    /// The missing bytes of the chunk file if it has `len` bytes, and the most blocks that the file
    /// has then; `None` if the recorded count isn't larger.
    fn loss_at(self, len: u64) -> Option<(u64, u64)> {
        let missing = self.local_len.saturating_sub(len);
        let blocks = self.size.saturating_sub(missing) / SPACE_UNIT;
        (missing > 0 && blocks < self.blocks).then_some((missing, blocks))
    }
}

/// The first pause between checks whether a file is still being written, and the longest: some
/// files stay open for days.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(64);

/// Whether clients can access the location during a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientAccess {
    /// Not before the check is over.
    Closed,
    /// They can.
    Open,
}

impl Reconciliation {
    /// The recorded attributes for the chunk file of this name; `None` if the file has none there.
    pub fn recorded_chunk(
        &self,
        location: ChunkLocation,
        name: ChunkFileId,
        layout: &Layout,
        (size, blocks, known): (u64, u64, &[u64]),
    ) -> Result<Option<RecordedChunk>> {
        let stripe = self.chunks.stripe_in(layout, name.slot(), location)?;
        Ok(stripe.map(|stripe| RecordedChunk {
            size,
            blocks,
            local_len: layout::local_len(layout, stripe, size),
            min_len: layout::length_bounds::of_stripe(known, stripe),
        }))
    }

    /// Finds files that lost a new chunk file which was never synced: after a crash only the
    /// metadata knows that it existed.
    pub async fn check_new_chunk_files(
        self: &Arc<Self>,
        location: ChunkLocation,
        (first, end): (ChunkFileId, ChunkFileId),
        restore_record: &RestoreRecord,
    ) -> Result<()> {
        let (partition, slot) = (first.partition(), first.slot());
        if !self.executors.has(partition) || end <= first {
            return Ok(());
        }
        let last = ChunkFileId(end.0 - 1).owner();
        let mut after = InodeId(first.owner().0.saturating_sub(1));
        loop {
            let read = |view: &View<'_>| namespace::inodes(view, partition, after, BACKGROUND_BATCH);
            let page = self.executors.read(partition, read).await?;
            let Some(&(seen, _)) = page.last() else { return Ok(()) };
            after = seen;
            let here = page.into_iter().filter(|(ino, inode)| {
                *ino <= last
                    && inode.layout.is_some()
                    && !restore_record.existed_at_backup(*ino, inode.attr(*ino).ctime)
            });
            let checks = here.map(|(ino, _)| async move {
                let name = ino.chunk_file(slot);
                if !self.check_unless_writing(location, name, ClientAccess::Closed).await? {
                    self.check_when_written(location, name);
                }
                Result::Ok(())
            });
            rt::join_all(checks.collect()).await.into_iter().collect::<Result<()>>()?;
            if seen >= last {
                return Ok(());
            }
        }
    }

    /// The same for a file that is being written, once that has ended. Its writer, which may have
    /// survived, asks all chunk files for their blocks at the end: some of them may have answered
    /// before the crash.
    pub fn check_when_written(self: &Arc<Self>, location: ChunkLocation, name: ChunkFileId) {
        let myself = self.clone();
        rt::spawn(async move {
            let mut backoff = FIRST_BACKOFF;
            while !myself.serving.is_stopping() {
                rt::sleep(backoff).await;
                backoff = LONGEST_BACKOFF.min(2 * backoff);
                match myself.check_unless_writing(location, name, ClientAccess::Open).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(error) if !myself.executors.is_owned(name.partition()) => {
                        return tracing::debug!(ino = name.0, %error, "another metadata service owns the file now");
                    }
                    Err(error) => tracing::debug!(ino = name.0, %error, "a file can't be checked yet"),
                }
            }
        });
    }

    /// Checks a chunk file. Returns false if the file is still being written.
    async fn check_unless_writing(
        self: &Arc<Self>,
        location: ChunkLocation,
        name: ChunkFileId,
        access: ClientAccess,
    ) -> Result<bool> {
        let ino = name.owner();
        let chunks = self.executors.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
        let (layout, attributes) = match chunks {
            Chunks::Changing { .. } => return Ok(false),
            Chunks::None => return Ok(true),
            Chunks::Stable { layout, size, blocks, length_bounds: known, .. } => {
                (layout, (size, blocks, known))
            }
        };
        let (size, blocks, known) = attributes;
        let Some(recorded) = self.recorded_chunk(location, name, &layout, (size, blocks, &known))? else {
            return Ok(true);
        };
        if recorded.local_len > 0 {
            let file = EpochedChunkFile { name, epoch: self.leases.epoch(ino) };
            self.record_loss(location, file, recorded, access).await?;
        }
        self.correct_length(location, name).await
    }

    /// Cuts a chunk file whose truncation was undone by a power loss: the client that truncated it
    /// doesn't know of that, and a client that extends the file would read the old content. Extends
    /// one that is shorter than known after a power loss. Returns false if a session changes the
    /// file again.
    async fn correct_length(&self, location: ChunkLocation, name: ChunkFileId) -> Result<bool> {
        if self.length_correction(location, name).await?.is_none() {
            return Ok(true);
        }
        let ino = name.owner();
        let migrator = self.sessions.register_local(SessionId::from_random(rt::secret_u64()))?;
        let correct = async {
            // Under this lease no other session knows of an end beyond the recorded one.
            let _lease = self.exclusive.acquire_exclusive_lease(&migrator, ino).await?;
            let Some(correction) = self.length_correction(location, name).await? else { return Ok(()) };
            let file = EpochedChunkFile { name, epoch: self.leases.epoch(ino) };
            self.chunks.at(location, file, correction).await?;
            self.chunks.at(location, file, StorageOp::Sync).await.map(drop)
        };
        let done = self.exclusive.with_local_mount_suspended(ino, correct).await;
        self.sessions.remove(migrator.id);
        match done {
            Err(error) if error.errno == Errno::EBUSY => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// The operation that corrects a chunk file's length, if no session is changing its file.
    async fn length_correction(
        &self,
        location: ChunkLocation,
        name: ChunkFileId,
    ) -> Result<Option<StorageOp>> {
        let ino = name.owner();
        let chunks = self.executors.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
        let Chunks::Stable { layout, size, blocks, length_bounds: known, changed } = chunks else {
            return Ok(None);
        };
        // Content that a restored store doesn't know may still be needed.
        if RestoreRecord::read(&*self.executors.store).await?.existed_at_backup(ino, changed) {
            return Ok(None);
        }
        let recorded = self.recorded_chunk(location, name, &layout, (size, blocks, &known))?;
        let Some(recorded) = recorded else { return Ok(None) };
        let file = EpochedChunkFile { name, epoch: self.leases.epoch(ino) };
        match self.chunks.at(location, file, StorageOp::Stat).await? {
            StorageReply::Stat { len, .. } if len > recorded.local_len => {
                Ok(Some(StorageOp::Truncate { len: recorded.local_len }))
            }
            StorageReply::Stat { len, is_lost: false, .. } if len < recorded.min_len => {
                Ok(Some(extend_to(recorded.min_len)))
            }
            _ => Ok(None),
        }
    }

    /// Checks how much of a chunk file that was changing has survived a crash, and reduces the
    /// recorded block count if it is less. Not if the chunk file had been on disk and is gone all
    /// the same: that is damage, and has to stay visible.
    pub async fn record_loss(
        self: &Arc<Self>,
        location: ChunkLocation,
        file: EpochedChunkFile,
        recorded: RecordedChunk,
        access: ClientAccess,
    ) -> Result<()> {
        let StorageReply::Stat { len, is_lost, .. } = self.chunks.at(location, file, StorageOp::Stat).await?
        else {
            return Ok(());
        };
        let ino = file.name.owner();
        if is_lost {
            tracing::error!(ino = ino.0, %location, "a chunk file that had been synced is missing after a crash: run weft fsck");
            return Ok(());
        }
        if let Some((missing, blocks)) = recorded.loss_at(len) {
            tracing::warn!(ino = ino.0, %location, missing, "unsynced content was lost in a crash");
            self.reduce_blocks(ino, blocks);
        }
        if len < recorded.min_len && access == ClientAccess::Closed {
            self.chunks.at(location, file, extend_to(recorded.min_len)).await?;
        }
        Ok(())
    }

    /// Runs in the background: it may conflict with a lease whose holder waits for this
    /// reconciliation.
    fn reduce_blocks(self: &Arc<Self>, ino: InodeId, blocks: u64) {
        let myself = self.clone();
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
            if let Err(error) = myself.commands.run_for_session(SessionId(0), op).await {
                tracing::warn!(ino = ino.0, %error, "the block count of a file could not be reduced: weft fsck will report missing chunk files");
            }
        });
    }
}

/// Extends a chunk file by a hole: it writes only the last byte, as 0.
fn extend_to(len: u64) -> StorageOp {
    StorageOp::Allocate { range: ByteRange::new(len.saturating_sub(1), len), how: AllocateMode::Zero }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_takes_no_space() {
        let claimed = |blocks| RecordedChunk { size: 3000, blocks, local_len: 1000, min_len: 0 };
        assert_eq!(claimed(6).loss_at(0), Some((1000, 3)));
        assert_eq!(claimed(1).loss_at(0), None, "a file with holes");
        // Always fewer than the file has bytes.
        assert!(claimed(6).loss_at(999).is_some_and(|(_, blocks)| blocks * SPACE_UNIT < 3000));
    }

    #[test]
    fn of_what_is_longer_than_it_has_to_be_nothing_is_missing() {
        let claimed = RecordedChunk { size: 3000, blocks: 8, local_len: 1000, min_len: 0 };
        assert_eq!([1000, 1001, 5000].map(|len| claimed.loss_at(len)), [None; 3]);
    }
}
