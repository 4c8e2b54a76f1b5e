//! Crash reconciliation: makes chunk files agree with the metadata after a crash of a target.

use crate::data::chunks::{ChunkFiles, ChunkLocation, EpochedChunkFile};
use crate::data::lost_data::ClientAccess;
use crate::drain::{Claim, Claims, ExclusiveAccess, ReconcileClaim};
use crate::lease::table::Leases;
use crate::limits::DELETION_COMMIT_POLL;
use crate::partition::executor::Executors;
use crate::partition::serving::Serving;
use crate::service::command::Commands;
use crate::session::table::Sessions;
use crate::store::restore_records::RestoreRecord;
use crate::store::transaction_view::store_error;
use namespace::Chunks;
use std::sync::Arc;
use types::{ChunkFileId, Result};
use wire::StorageOp;
use wire::mgmt::ReconcileFiles;

/// Makes chunk files agree with the metadata.
pub(crate) struct Reconciliation {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
    pub chunks: Arc<ChunkFiles>,
    pub claims: Arc<Claims>,
    pub commands: Arc<Commands>,
    pub exclusive: Arc<ExclusiveAccess>,
    pub serving: Arc<Serving>,
}

impl Reconciliation {
    /// Reconciles chunk files at a location: see
    /// [`MetaService::reconcile_target`](crate::MetaService::reconcile_target).
    pub async fn reconcile(
        self: &Arc<Self>,
        location: ChunkLocation,
        touched: &ReconcileFiles,
    ) -> Result<()> {
        let lock = self.claims.reconcile_lock(location);
        let _guard = lock.write().await;
        if touched.is_empty() {
            return Ok(());
        }
        // A power loss now must not bring back a file whose chunk files are deleted here.
        self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        let restore_record = RestoreRecord::read(&*self.executors.store).await?;
        for &name in touched.files.iter().filter(|ino| self.executors.has(ino.partition())) {
            let Some(_claim) = self.claim_to_reconcile(location, name).await else { continue };
            let ino = name.owner();
            let chunks = self.executors.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
            let recorded = match chunks {
                // A chunk file that a migration left behind after its deletion: no writer of the
                // file uses it.
                Chunks::Changing { layout: Some(layout) }
                    if restore_record == RestoreRecord::default()
                        && self.chunks.stripe_in(&layout, name.slot(), location)?.is_none() =>
                {
                    None
                }
                Chunks::Changing { .. } => {
                    self.check_when_written(location, name);
                    continue;
                }
                // The file was created after the backup that the store was restored from: a restore
                // of a later backup may still need it.
                Chunks::None if restore_record.is_skipped(ino) => continue,
                Chunks::None => None,
                // The same holds for content that it had beyond its size in the backup.
                Chunks::Stable { changed, .. } if restore_record.existed_at_backup(ino, changed) => continue,
                Chunks::Stable { layout, size, blocks, length_bounds: known, .. } => {
                    self.recorded_chunk(location, name, &layout, (size, blocks, &known))?
                }
            };
            if recorded.is_none() {
                // Deletions and migrations since the start must be on disk, too.
                self.executors.store.sync().await.map_err(|error| store_error(&error))?;
            }
            // Both operations ignore an absent chunk file.
            let change = recorded
                .map_or(StorageOp::Delete, |recorded| StorageOp::Truncate { len: recorded.local_len });
            // If this service is replaced meanwhile, the target refuses this operation once other
            // services use the file.
            let epoch = if recorded.is_some() { self.leases.epoch(ino) } else { self.leases.next_epoch(ino) };
            let file = EpochedChunkFile { name, epoch };
            self.chunks.at(location, file, change).await?;
            if let Some(recorded) = recorded.filter(|claimed| claimed.local_len > 0) {
                self.record_loss(location, file, recorded, ClientAccess::Closed).await?;
            }
        }
        for range in &touched.new {
            self.check_new_chunk_files(location, *range, &restore_record).await?;
        }
        self.chunks.at(location, EpochedChunkFile::TARGET, StorageOp::SyncTarget).await.map(drop)
    }

    /// `None` if another task handles the chunk file. A migration fills a chunk file that belongs
    /// to no file yet, and notices that the target, or the group's primary, restarted. A deletion
    /// under way is repeated.
    async fn claim_to_reconcile(&self, location: ChunkLocation, name: ChunkFileId) -> Option<Claim<'_>> {
        loop {
            match self.claims.claim_to_reconcile(location, name) {
                ReconcileClaim::Free(claim) => return Some(claim),
                ReconcileClaim::HandledByHolder => return None,
                ReconcileClaim::RetrySoon => rt::sleep(DELETION_COMMIT_POLL).await,
            }
        }
    }
}
