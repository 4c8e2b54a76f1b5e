//! Background work: the tasks of the service, and syncing the store.

use crate::limits::SYNC_INTERVAL;
use crate::service::MetaService;
use std::sync::Arc;
use types::Result;

impl MetaService {
    /// Runs until [`MetaService::stop`]: syncs the store every [`SYNC_INTERVAL`] if there are
    /// changes, deletes the chunk files of deleted files, and evicts unreachable sessions. Needs a
    /// runtime; one call per service.
    pub async fn background(self: Arc<Self>) {
        rt::spawn(self.clone().sync_periodically());
        rt::spawn(self.reaper.clone().retry_periodically());
        rt::spawn(self.eviction.clone().evict_unreachable_sessions());
        rt::spawn(self.eviction.clone().run_requested_evictions());
        rt::spawn(self.ownership.orphans.clone().delete_abandoned());
        rt::spawn(self.ownership.clone().reclaim_orphans_after_grace());
        rt::spawn(self.drainer.clone().drain_targets());
        rt::spawn(self.migrator.clone().migrate_files());
        rt::spawn(self.sizes.clone().retry_quarantined());
        self.reaper.run().await;
    }

    /// Deletes the chunk files of all deleted files. Those on targets that don't answer are left
    /// for the next time.
    pub async fn reap(&self) -> Result<()> {
        self.reaper.reap(self.executors.owned().into_iter().collect()).await
    }

    /// Ends [`MetaService::background`].
    pub fn stop(&self) {
        self.serving.stopping.set();
        self.reaper.needed.set();
        self.migrations.work_available.set();
        self.leases.stop();
        self.sizes.quarantine.stop();
    }

    async fn sync_periodically(self: Arc<Self>) {
        while !self.serving.is_stopping() {
            rt::sleep(SYNC_INTERVAL).await;
            if self.executors.store.is_dirty()
                && let Err(error) = self.executors.store.sync().await
            {
                if self.executors.store.engine().is_none() {
                    // A remote store may come back.
                    tracing::warn!(%error, "the last changes are not on disk yet");
                    continue;
                }
                // The writer has logged an error of its own, and accepts no writes any more.
                tracing::debug!(%error, "the periodic sync has ended");
                return;
            }
        }
    }
}
