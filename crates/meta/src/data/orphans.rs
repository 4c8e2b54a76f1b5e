//! Deletion of orphans: files without a name that no session uses any more.

use crate::data::size_recovery::Recovery;
use crate::lease::table::Leases;
use crate::limits::BACKGROUND_BATCH;
use crate::partition::executor::Executors;
use crate::partition::serving::Serving;
use crate::service::command::Commands;
use crate::session::table::Sessions;
use namespace::OrphanInode;
use std::sync::Arc;
use types::{InodeId, PartitionId, Result, SessionId};
use wire::MetaOp;

/// Deletes orphans.
pub(crate) struct Orphans {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
    pub commands: Arc<Commands>,
    pub serving: Arc<Serving>,
}

impl Orphans {
    /// Deletes the orphans of partitions that ended sessions had open.
    async fn reclaim_all(&self, partitions: &[PartitionId], of: impl Fn(SessionId) -> bool) -> Result<()> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.reclaim(partition, &of, &mut recovery).await?;
        }
        Ok(())
    }

    /// Deletes the orphans of a partition that ended sessions had open.
    pub async fn reclaim(
        &self,
        partition: PartitionId,
        is_ended: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page: Vec<OrphanInode> = self
                .executors
                .read(partition, |view| namespace::orphans(view, partition, after, BACKGROUND_BATCH))
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.ino;
            for orphan in page.into_iter().filter(|orphan| is_ended(orphan.session)) {
                self.commands
                    .run_for_session(orphan.session, MetaOp::Reclaim { ino: orphan.ino, others: Vec::new() })
                    .await?;
                recovery.reclaimed += 1;
            }
        }
    }

    /// Deletes files without a name that sessions had open which didn't return.
    pub async fn reclaim_unknown(&self, partitions: &[PartitionId]) {
        let is_unknown = |session| self.sessions.find(session).is_none();
        if let Err(error) = self.reclaim_all(partitions, is_unknown).await {
            tracing::warn!(%error, "orphaned files can't be deleted before the next start");
        }
    }

    /// Deletes files whose last user has closed them, until the service stops.
    pub async fn delete_abandoned(self: Arc<Self>) {
        while !self.serving.is_stopping() {
            for ino in self.leases.abandoned().await {
                if let Err(error) = self
                    .commands
                    .run_for_session(SessionId(0), MetaOp::Reclaim { ino, others: Vec::new() })
                    .await
                {
                    tracing::warn!(ino = ino.0, %error, "an orphaned file can't be deleted before the next start");
                }
            }
        }
    }
}
