//! Size recovery, after clients that died: of files whose chunk files may differ from their inodes.

use crate::data::chunks::{ChunkFiles, EpochedFile};
use crate::data::quarantine::Quarantine;
use crate::data::reported_sizes::ReportedSizes;
use crate::data::truncations::PendingTruncations;
use crate::lease::table::Leases;
use crate::limits::BACKGROUND_BATCH;
use crate::partition::executor::Executors;
use crate::partition::serving::Serving;
use crate::service::command::Commands;
use crate::session::grace_period::GracePeriod;
use crate::session::table::{Session, SessionKind, Sessions};
use crate::store::restore_records::RestoreRecord;
use namespace::UnrecoveredFile;
use std::sync::Arc;
use types::{InodeId, Layout, PartitionId, Result, SessionId};
use wire::{MetaOp, StorageOp, WriteRecord};

/// What the recovery of ended sessions did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Files without a name that were deleted.
    pub reclaimed: usize,
    /// Files whose size and times were read from their chunk files.
    pub sizes_recovered: usize,
    /// Files whose size could not be recovered because a target did not answer. They keep their
    /// write record, and the recorded size.
    pub sizes_pending: usize,
}

/// Recovers the sizes of files that ended sessions were writing.
pub(crate) struct SizeRecovery {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
    pub grace: Arc<GracePeriod>,
    pub chunks: Arc<ChunkFiles>,
    pub commands: Arc<Commands>,
    pub truncations: Arc<PendingTruncations>,
    pub quarantine: Arc<Quarantine>,
    pub reported_sizes: Arc<ReportedSizes>,
    pub serving: Arc<Serving>,
}

impl SizeRecovery {
    /// Recovers the sizes of files that ended sessions were writing.
    pub async fn recover_sizes_of_ended(
        &self,
        partitions: &[PartitionId],
        is_ended: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.recover_sizes(partition, &is_ended, &mut recovery).await?;
        }
        Ok(recovery)
    }

    /// Recovers the sizes of files that a session was writing which has registered again. In
    /// partitions that it has yet to reclaim, it still relies on leases of another service, and
    /// reports sizes with the reclaim.
    pub async fn recover_session_sizes(&self, session: SessionId) -> Result<()> {
        let mut recovery = Recovery::default();
        let to_reclaim = self.grace.partitions_to_reclaim(session);
        for partition in
            self.executors.owned().into_iter().filter(|partition| !to_reclaim.contains(partition))
        {
            self.recover_sizes(partition, &|other| other == session, &mut recovery).await?;
        }
        Ok(())
    }

    pub async fn recover_sizes(
        &self,
        partition: PartitionId,
        is_ended: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page: Vec<UnrecoveredFile> = self
                .executors
                .read(partition, |view| {
                    namespace::unrecovered_files(view, partition, after, BACKGROUND_BATCH)
                })
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.record.ino;
            for file in page.into_iter().filter(|file| is_ended(file.record.session)) {
                let WriteRecord { ino, session, .. } = file.record;
                match self.recover_file_size(ino, session).await {
                    Ok(()) => recovery.sizes_recovered += 1,
                    Err(error) => {
                        tracing::warn!(ino = ino.0, %error, "the size of a file could not be recovered: the file is in quarantine until it can");
                        recovery.sizes_pending += 1;
                    }
                }
            }
        }
    }

    /// Recovers a file that a session was writing. If that isn't possible now, puts the file into
    /// quarantine.
    pub async fn recover_file_size(&self, ino: InodeId, session: SessionId) -> Result<()> {
        let _guard = self.quarantine.recovery_lock(ino).write().await;
        let outcome = match self.write_record_of(ino, session).await {
            Ok(Some((file, known_size))) => self.recover_size(&file, known_size).await,
            // Another task was first.
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => self.end_quarantine(ino, session),
            Err(_) => self.quarantine_file(ino, session)?,
        }
        outcome
    }

    /// A session's write record of a file, and the size that the session reported. If other
    /// sessions have records as well, it did not know the size.
    async fn write_record_of(
        &self,
        ino: InodeId,
        session: SessionId,
    ) -> Result<Option<(UnrecoveredFile, Option<u64>)>> {
        let before = InodeId(ino.0.wrapping_sub(1));
        let mut records = self
            .executors
            .read(ino.partition(), |view| namespace::unrecovered_files(view, ino.partition(), before, 1))
            .await?;
        records.retain(|file| file.record.ino == ino);
        let known_size = self.reported_sizes.of(ino, session).filter(|_| records.len() == 1);
        Ok(records.into_iter().find(|file| file.record.session == session).map(|file| (file, known_size)))
    }

    /// Makes the inode and chunk files of a file agree, and removes the write record.
    async fn recover_size(&self, file: &UnrecoveredFile, known_size: Option<u64>) -> Result<()> {
        let ino = file.record.ino;
        // The new epoch makes targets refuse requests of the session that are still unanswered.
        let epoched_file = EpochedFile { ino, epoch: self.leases.new_epoch(ino) };
        let (size, blocks) = (file.attr.size, file.attr.blocks);
        let mut report = WriteReport { size, blocks, lens: Vec::new(), mtime: None };
        match &file.layout {
            // An unfinished move to chunks: the inline content is still valid.
            Some(layout) if file.inline => {
                self.chunks.change_durably(epoched_file, layout, |_| StorageOp::Delete).await?;
            }
            Some(layout) => {
                if let Some(size) = file.record.truncate_to {
                    self.cut_chunks(epoched_file, layout, size).await?;
                }
                let mut chunks = self.chunks.measure(epoched_file, layout).await?;
                // Content beyond it is from in-flight writes, which the session repeats (`sizes`).
                let known_size = known_size.map(|size| size.max(file.attr.size));
                if let Some(size) = known_size.filter(|size| layout::file_end(layout, &chunks.lens) > *size) {
                    self.cut_chunks(epoched_file, layout, size).await?;
                    chunks = self.chunks.measure(epoched_file, layout).await?;
                }
                report.size = report.size.max(layout::file_end(layout, &chunks.lens));
                // After a restore all chunk files may be gone, and the loss of content that was on
                // disk before a crash is damage. Such a file must not look as if it had a hole
                // there: the file check relies on the block count.
                let is_gone = chunks.is_lost
                    || (chunks.blocks == 0
                        && RestoreRecord::read(&*self.executors.store).await?.restored_s > 0);
                report.blocks = if is_gone { file.attr.blocks } else { chunks.blocks };
                report.mtime = Some(file.attr.mtime.max(chunks.mtime));
                report.lens = chunks.lens;
            }
            None => {}
        }
        let session = file.record.session;
        // The lease of the quarantine must not conflict.
        let holder = self.quarantine.holder_of(ino);
        let holder = holder.unwrap_or_else(|| Arc::new(Session::new(session, SessionKind::Local)));
        self.commands.run_with_leases_of(&holder, session, report.into_op(ino)).await?;
        self.commands.run_with_leases_of(&holder, session, MetaOp::TruncateDone { ino }).await
    }

    async fn cut_chunks(&self, epoched_file: EpochedFile, layout: &Layout, size: u64) -> Result<()> {
        let cut = |stripe| StorageOp::Truncate { len: layout::local_len(layout, stripe, size) };
        self.chunks.change_durably(epoched_file, layout, cut).await
    }
}

struct WriteReport {
    size: u64,
    blocks: u64,
    lens: Vec<u64>,
    mtime: Option<types::Timestamp>,
}

impl WriteReport {
    fn into_op(self, ino: InodeId) -> MetaOp {
        let WriteReport { size, blocks, lens, mtime } = self;
        MetaOp::EndWrite { ino, size, blocks, lens, mtime, done: true, kill_suid_sgid: false }
    }
}
