//! The end of a session: what becomes of its state and its files.

use crate::data::orphans::Orphans;
use crate::data::size_recovery::{Recovery, SizeRecovery};
use crate::data::truncations::PendingTruncations;
use crate::lease::table::Leases;
use crate::limits::RETRY_PAUSE;
use crate::partition::executor::Executors;
use crate::partition::serving::Serving;
use crate::session::locks::Locks;
use crate::session::records::SessionRecords;
use crate::session::table::Sessions;
use std::sync::Arc;
use types::{PartitionId, Result, SessionId};

/// Releases the state of ended sessions, and recovers their files.
pub(crate) struct SessionCleanup {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub locks: Arc<Locks>,
    pub leases: Arc<Leases>,
    pub truncations: Arc<PendingTruncations>,
    pub records: Arc<SessionRecords>,
    pub orphans: Arc<Orphans>,
    pub sizes: Arc<SizeRecovery>,
    pub serving: Arc<Serving>,
}

impl SessionCleanup {
    /// Releases the session's state and recovers its files. Its leases end last: until the sizes
    /// are recovered, or the files are in quarantine, no other session may read their size.
    pub async fn clean_up_session(&self, session: SessionId) -> Result<Recovery> {
        self.locks.release_session(session);
        let mut recovery = Recovery::default();
        for partition in self.executors.owned() {
            while let Err(error) =
                self.end_sessions_in(partition, &|other| other == session, &mut recovery).await
            {
                // The new owner of a partition recovers its files. A remote store may come back,
                // but not a local one that failed.
                if self.serving.is_stopping() || !self.executors.is_owned(partition) {
                    break;
                }
                if self.executors.store.engine().is_some() {
                    self.end_leases(session);
                    return Err(error);
                }
                tracing::warn!(session = session.0, %error, "size recovery of an ended session's files has not completed yet");
                rt::sleep(RETRY_PAUSE).await;
            }
        }
        log_recovery(recovery);
        self.end_leases(session);
        self.truncations.forget_session(session);
        self.records.delete_replies(session).await?;
        Ok(recovery)
    }

    fn end_leases(&self, session: SessionId) {
        self.sessions.find(session).iter().for_each(|session| session.complete_end());
        self.leases.end_session(session);
    }

    /// Ends sessions of an earlier run: deletes their files without a name, and recovers the sizes
    /// of those that they were writing.
    pub async fn end_sessions(
        &self,
        partitions: &[PartitionId],
        is_ended: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.end_sessions_in(partition, &is_ended, &mut recovery).await?;
        }
        log_recovery(recovery);
        Ok(recovery)
    }

    async fn end_sessions_in(
        &self,
        partition: PartitionId,
        is_ended: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        self.orphans.reclaim(partition, is_ended, recovery).await?;
        self.sizes.recover_sizes(partition, is_ended, recovery).await
    }
}

fn log_recovery(recovery: Recovery) {
    if recovery != Recovery::default() {
        let Recovery { reclaimed, sizes_recovered, sizes_pending } = recovery;
        tracing::info!(reclaimed, sizes_recovered, sizes_pending, "recovered files of ended sessions");
    }
}
