//! Which files refer to a target or a pool.

use crate::data::chunks::ChunkFiles;
use crate::limits::BACKGROUND_BATCH;
use crate::partition::executor::Executors;
use std::sync::Arc;
use types::{ChunkFileId, InodeId, Layout, PartitionId, PoolId, Result, StripePattern, TargetId};

/// Finds files that refer to a target or a pool.
pub(crate) struct References {
    pub executors: Arc<Executors>,
    pub chunks: Arc<ChunkFiles>,
}

impl References {
    /// Returns a file whose layout includes the target, if there is one, in a partition.
    ///
    /// # Errors
    /// `PartitionNotServed` if another service owns the partition.
    pub async fn file_on_in(&self, target: TargetId, partition: PartitionId) -> Result<Option<InodeId>> {
        {
            let mut after = InodeId(0);
            loop {
                let page = self
                    .executors
                    .read(partition, |view| namespace::inodes(view, partition, after, BACKGROUND_BATCH))
                    .await?;
                let Some(&(last, _)) = page.last() else { break };
                after = last;
                for (ino, inode) in &page {
                    let Some(layout) = &inode.layout else { continue };
                    let layout = Layout::try_from(layout)?;
                    if self.chunks.stripe_on(&layout, target)?.is_some() {
                        return Ok(Some(*ino));
                    }
                }
                rt::yield_now().await;
            }
            // Deleted files whose chunk files still exist.
            let doomed = self
                .executors
                .read(partition, |view| namespace::doomed(view, partition, ChunkFileId(0), usize::MAX))
                .await?;
            for (name, layout) in doomed {
                if self.chunks.stripe_on(&layout, target)?.is_some() {
                    return Ok(Some(name.owner()));
                }
            }
        }
        Ok(None)
    }

    /// Returns an inode whose pattern names the pool, for itself or for its new files, if there is
    /// one in a partition.
    ///
    /// # Errors
    /// `PartitionNotServed` if another service owns the partition.
    pub async fn inode_naming_pool_in(
        &self,
        pool: PoolId,
        partition: PartitionId,
    ) -> Result<Option<InodeId>> {
        let mut after = InodeId(0);
        loop {
            let page = self
                .executors
                .read(partition, |view| namespace::inodes(view, partition, after, BACKGROUND_BATCH))
                .await?;
            let Some(&(last, _)) = page.last() else { return Ok(None) };
            after = last;
            for (ino, inode) in &page {
                let named = inode.pattern.as_ref().map(StripePattern::try_from).transpose()?;
                if named.is_some_and(|pattern| pattern.pool == pool) {
                    return Ok(Some(*ino));
                }
            }
            rt::yield_now().await;
        }
    }
}
