//! Forced recovery: a group continues from a replica that has missed something, because all members
//! that were in sync are lost and an administrator has accepted the loss.
//!
//! Until the recovery is complete, no client is served: clients that rely on content acknowledged
//! under the group's verifier must learn that it may be lost, files that were deleted meanwhile
//! must not reappear, and truncated content must stay invisible. The map requests the recovery
//! until this primary reports its end, so a process that dies in between starts it again.

use super::replica::Replica;
use super::{GroupService, MemberChange};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use types::{ChunkFileId, Epoch, Group, MemberState, Result, TargetId};
use wire::MAX_REGIONS;

/// State of a replica's forced recovery.
pub(crate) struct ForcedRecovery {
    /// Held by the task that runs it.
    running: rt::sync::RwLock,
    /// The replica has another verifier, and all its files are listed for crash reconciliation: the
    /// rest is up to the metadata service.
    is_done: AtomicBool,
    /// A task runs it to its end.
    has_task: AtomicBool,
}

impl Default for ForcedRecovery {
    fn default() -> ForcedRecovery {
        ForcedRecovery {
            running: rt::sync::RwLock::new(),
            is_done: AtomicBool::new(false),
            has_task: AtomicBool::new(false),
        }
    }
}

impl ForcedRecovery {
    /// Resets the state when the map no longer requests it, so that the next request runs it again.
    pub(crate) fn update_group(&self, group: &Group, own: TargetId) {
        if group.revived != Some(own) {
            self.is_done.store(false, Ordering::Release);
        }
    }

    /// Whether it must run before clients are served.
    pub(crate) fn is_required(&self, group: &Group, own: TargetId) -> bool {
        group.revived == Some(own) && !self.is_done.load(Ordering::Acquire)
    }
}

impl GroupService {
    /// Lists all files of this replica for crash reconciliation, under a new verifier. Must run
    /// before clients are served, when all processes know who is ejected.
    ///
    /// # Errors
    /// `GroupVersionMismatch` when the group has other members by now; the store's error when the
    /// disk fails.
    #[cold]
    pub(crate) async fn prepare_forced_recovery(&self, replica: &Replica) -> Result<()> {
        let _exclusive = replica.forced_recovery.running.write().await;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        if !replica.forced_recovery.is_required(group, replica.target) {
            return Ok(());
        }
        // Changes of a former primary have ended then, and no more arrive.
        let _version_guard = replica.version_fence.enter(replica.group, group.since, true).await?;
        let failed = |error| replica.failed(&error);
        // The group's verifier may be on this disk, if the process has restarted since this replica
        // missed something.
        replica.store.drop_verifier();
        replica.store.adopt_verifier(replica.store.verifier()).await.map_err(failed)?;
        let (mut names, mut from) = (Vec::new(), Some(ChunkFileId(0)));
        while let Some(at) = from {
            let (some, next) = replica.store.files(at, MAX_REGIONS).await.map_err(failed)?;
            names.extend(some);
            from = next;
        }
        tracing::warn!(
            group = %replica.group, target_id = %replica.target, files = names.len(),
            "forced recovery: a group continues from a replica that had missed changes; its files are reconciled with the metadata"
        );
        replica.unreconciled.add(names);
        replica.forced_recovery.is_done.store(true, Ordering::Release);
        Ok(())
    }

    /// Runs the recovery and reports its end to management. Continues in the background; needs only
    /// an occasional call.
    pub(crate) fn start_forced_recovery(self: &Arc<Self>, replica: &Arc<Replica>) {
        if replica.forced_recovery.has_task.swap(true, Ordering::AcqRel) {
            return;
        }
        let (groups, replica) = (self.clone(), replica.clone());
        rt::spawn(async move {
            if let Err(error) = groups.run_forced_recovery(&replica).await {
                tracing::warn!(
                    group = %replica.group, target_id = %replica.target, %error,
                    "the forced recovery of a group hasn't ended yet"
                );
            }
            replica.forced_recovery.has_task.store(false, Ordering::Release);
        });
    }

    async fn run_forced_recovery(self: &Arc<Self>, replica: &Arc<Replica>) -> Result<()> {
        self.wait_for_confirmation(replica).await?;
        self.prepare_forced_recovery(replica).await?;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        if group.revived != Some(replica.target) || replica.forced_recovery.is_required(group, replica.target)
        {
            return Ok(());
        }
        match replica.unreconciled.is_pending() {
            true => self.start_reconciliation(replica),
            false => self.report_recovered(replica, group.since).await?,
        }
        Ok(())
    }

    /// Reports to management that this replica agrees with the metadata.
    async fn report_recovered(&self, replica: &Replica, since: Epoch) -> Result<()> {
        let _exclusive = replica.report_lock.write().await;
        let change = MemberChange {
            group: replica.group,
            version: since,
            target: replica.target,
            state: MemberState::InSync,
            reason: "its files agree with the metadata".to_string(),
            is_orderly: true,
        };
        self.peers.management.set_member(change).await.map(drop)
    }
}
