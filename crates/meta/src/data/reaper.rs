//! The reaper: deletes the chunk files of deleted files.

use crate::data::chunks::{ChunkFiles, EpochedChunkFile};
use crate::drain::{Claim, Claims};
use crate::lease::table::Leases;
use crate::limits::{BACKGROUND_BATCH, CONCURRENT_DELETIONS, REAP_RETRY};
use crate::partition::executor::{CommandOutput, Executors};
use crate::partition::serving::Serving;
use crate::store::transaction_view::{View, store_error};
use namespace::Writes;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ChunkFileId, Layout, PartitionId, Result};

/// Deletes the chunk files of deleted files.
pub(crate) struct Reaper {
    pub executors: Arc<Executors>,
    pub leases: Arc<Leases>,
    pub chunks: Arc<ChunkFiles>,
    pub claims: Arc<Claims>,
    pub serving: Arc<Serving>,
    /// Partitions in which there may be chunk files to delete.
    pub requested: Mutex<BTreeSet<PartitionId>>,
    /// Set when there are such partitions, or when the service stops.
    pub needed: rt::sync::Event,
}

impl Reaper {
    /// Deletes chunk files when that is needed, until the service stops.
    pub async fn run(&self) {
        while !self.serving.is_stopping() {
            self.needed.wait().await;
            // Cleared first: the next round sees what is doomed from here on, if this one doesn't.
            self.needed.clear();
            let requested = std::mem::take(&mut *self.requested.lock());
            if let Err(error) = self.reap(requested).await {
                tracing::warn!(%error, "chunk files of deleted files can't be deleted yet");
            }
        }
    }

    /// Lets [`Reaper::run`] try again from time to time, until the service stops.
    pub async fn retry_periodically(self: Arc<Self>) {
        while !self.serving.is_stopping() {
            rt::sleep(REAP_RETRY).await;
            self.request_everywhere();
        }
    }

    /// Lets [`Reaper::run`] delete chunk files of deleted files of a partition.
    pub fn request(&self, partition: PartitionId) {
        self.requested.lock().insert(partition);
        self.needed.set();
    }

    /// Lets [`Reaper::run`] delete chunk files of deleted files of all owned partitions.
    pub fn request_everywhere(&self) {
        self.requested.lock().extend(self.executors.owned());
        self.needed.set();
    }

    /// Deletes the chunk files of all deleted files of partitions that this service owns. Those on
    /// targets that don't answer are left for the next time.
    pub async fn reap(&self, partitions: BTreeSet<PartitionId>) -> Result<()> {
        let mut first_error = Ok(());
        for partition in partitions.into_iter().filter(|partition| self.executors.is_owned(*partition)) {
            let mut after = ChunkFileId(0);
            loop {
                let page = self.doomed_page(partition, after).await?;
                let Some(&(last, _)) = page.last() else { break };
                after = last;
                let reaped = self.reap_page(partition, page).await;
                first_error = first_error.and(reaped);
                if self.serving.is_stopping() {
                    return first_error;
                }
            }
        }
        first_error
    }

    async fn doomed_page(
        &self,
        partition: PartitionId,
        after: ChunkFileId,
    ) -> Result<Vec<(ChunkFileId, Layout)>> {
        self.executors
            .read(partition, |view| namespace::doomed(view, partition, after, BACKGROUND_BATCH))
            .await
    }

    /// The deletion of the file is on disk before its chunk files are deleted: a power loss must
    /// not bring back a file without its content. Then the chunk files are deleted, then the doomed
    /// record. A crash in between repeats the deletion. A power loss may bring back what a target
    /// had just deleted: its start asks for crash reconciliation (`data::reconciliation`). As long
    /// as the record exists, the answer is that another task handles the chunk file; the record
    /// then stays, and the deletion is repeated.
    async fn reap_page(&self, partition: PartitionId, page: Vec<(ChunkFileId, Layout)>) -> Result<()> {
        self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        // With the claims, which are held until the doomed records are deleted: no migration may
        // begin to fill a chunk file that is just being deleted.
        let mut claimed = Vec::new();
        for (name, layout) in page {
            // A chunk file that a migration fills is deleted when the migration is given up. A
            // migration that has just succeeded changed the record before it released its claim.
            let Some(claims) = self.claim_to_delete(name, &layout) else { continue };
            // The record is read again under the claims. Chunk files that were added since the page
            // was read aren't claimed, and a migration may be filling them.
            if self.executors.read(partition, |view| namespace::doomed_layout(view, name)).await?.as_ref()
                != Some(&layout)
            {
                continue;
            }
            claimed.push((name, layout, claims));
        }
        let mut outcomes = Vec::with_capacity(claimed.len());
        for concurrent in claimed.chunks(CONCURRENT_DELETIONS) {
            let deletions = concurrent.iter().map(|(name, layout, _)| {
                let record = EpochedChunkFile { name: *name, epoch: self.leases.next_epoch(name.owner()) };
                self.chunks.delete_doomed(record, layout)
            });
            outcomes.extend(rt::join_all(deletions.collect()).await);
        }
        // Only now, when all deletions have ended: reconciliation that starts from here on waits
        // for the end of this.
        let mut failed = Ok(());
        let mut deleted = Vec::new();
        let mut all = 0;
        for ((name, layout, claims), outcome) in claimed.iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    all += 1;
                    if claims.iter().all(Claim::mark_deleted) {
                        deleted.push((*name, layout));
                    }
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        self.forget_doomed(partition, &deleted).await?;
        self.executors.counters.reaped.add(deleted.len() as u64);
        if deleted.len() < all {
            self.request(partition);
        }
        failed
    }

    /// Claims all chunk files of a layout; `None` if one of them is claimed already.
    fn claim_to_delete(&self, record: ChunkFileId, layout: &Layout) -> Option<Vec<Claim<'_>>> {
        let mut claims = Vec::new();
        for (stripe, &group) in layout.groups.iter().enumerate() {
            // In a group that isn't in the map, nothing is filled, and nothing is deleted either.
            if let Ok(location) = self.chunks.location(group) {
                claims.push(
                    self.claims
                        .claim_to_delete(location, namespace::doomed_chunk_file(record, layout, stripe))?,
                );
            }
        }
        Some(claims)
    }

    async fn forget_doomed(&self, partition: PartitionId, deleted: &[(ChunkFileId, &Layout)]) -> Result<()> {
        let command = |view: &View<'_>| {
            let mut writes = Writes::new();
            for (name, layout) in deleted {
                writes.extend(namespace::forget_doomed(view, *name, layout)?);
            }
            Ok(CommandOutput { answer: (), writes })
        };
        self.executors.transact_without_leases(partition, command).await
    }
}
