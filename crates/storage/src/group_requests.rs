//! Mirrored groups in the service of a node: which part of it answers a request, and what it does
//! for all of them.

use crate::group::{self, GroupPeers, GroupService, Replica};
use crate::service::{Served, StorageService};
use chunkstore::IfAbsent;
use net::Deadline;
use rt::IoBuf;
use std::sync::Arc;
use types::{ClusterMap, Errno, Error, Result, TargetId};
use wire::mgmt::ResyncProgress;
use wire::{GroupContext, GroupRole, StorageReply, StorageRequest};

impl StorageService {
    /// Serves members of mirrored groups from now on. [`StorageService::run_group_resyncs`] has to
    /// run beside it.
    pub fn serve_groups(&self, peers: GroupPeers) {
        self.groups.get_or_init(|| {
            let (lease, fences) = (self.lease.clone(), self.fences.clone());
            Arc::new(GroupService::new(peers, lease, fences, self.dirty_trackers.clone()))
        });
    }

    /// Opens the replicas of mirrored groups on a target, which recovers them after a crash.
    pub async fn open_groups(&self, target: TargetId) -> Result<()> {
        let (Some(groups), Some(served)) = (self.groups.get(), self.find(target)) else { return Ok(()) };
        let found = served.store.groups().await.map_err(|e| served.failed(&e))?;
        let mut outcome = Ok(());
        for &group in &found {
            outcome = outcome.and(
                groups.replica(&served.store, &served.counters, group, IfAbsent::Create).await.map(drop),
            );
        }
        groups.record_found(target, found);
        outcome
    }

    /// Whether no replica here that this map counts as in sync may lack content that a crash of an
    /// earlier process lost. A management service that keeps running remembers such crashes; a
    /// restarted one only knows what processes report.
    pub fn is_reconciled(&self, map: &ClusterMap) -> bool {
        self.groups.get().is_none_or(|groups| {
            self.served().all(|served| groups.is_reconciled_on(map, served.store.target()))
        })
    }

    /// Closes all open replicas of mirrored groups, and returns the first failure afterwards.
    pub async fn close_groups(&self) -> Result<()> {
        let mut outcome = Ok(());
        for replica in self.replicas() {
            let closed = replica.store.close().await;
            outcome = outcome.and(closed.map_err(|e| replica.failed(&e)));
        }
        outcome
    }

    /// Opens the replicas of mirrored groups on the targets, and resyncs members whose primaries
    /// run here, until the service is gone. Runs beside requests, on one core.
    pub async fn run_group_resyncs(service: Arc<StorageService>) {
        let Some(groups) = service.groups.get().cloned() else { return };
        let found: Vec<TargetId> = service.stores().map(|store| store.target()).collect();
        for target in found {
            if let Err(error) = service.open_groups(target).await {
                // Requests to such a group get the error; the other groups are served.
                tracing::error!(
                    hint = &*error.hint,
                    "the replicas of mirrored groups on target {target} can't be opened: {}",
                    error.message
                );
            }
        }
        let service = Arc::downgrade(&service);
        let targets = move || {
            let service = service.upgrade()?;
            // An offline target is no source.
            let online = service.served().filter(|served| !served.is_offline());
            Some(online.map(|served| (served.store.clone(), served.counters.clone())).collect())
        };
        group::run_resyncs(groups, targets).await;
    }

    /// Returns the progress of the resyncs that run from here.
    pub fn resyncs(&self) -> Vec<ResyncProgress> {
        self.groups.get().map(|groups| groups.progress()).unwrap_or_default()
    }

    /// Returns the open replicas of mirrored groups.
    pub(crate) fn replicas(&self) -> Vec<Arc<Replica>> {
        self.groups.get().map(|groups| groups.open_replicas()).unwrap_or_default()
    }

    /// Syncs the replicas of mirrored groups on a target to disk.
    pub(crate) async fn sync_replicas(&self, target: TargetId) -> Result<()> {
        for replica in self.replicas().iter().filter(|replica| replica.target == target) {
            replica.store.sync_all().await.map_err(|e| replica.failed(&e))?;
        }
        Ok(())
    }

    /// Answers a request to a mirrored group.
    pub(crate) async fn handle_group_request(
        &self,
        served: &Served,
        context: GroupContext,
        request: StorageRequest,
        deadline: Deadline,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let Some(groups) = self.groups.get() else {
            return Err(Error::new(Errno::EOPNOTSUPP, "this process has no members of mirrored groups"));
        };
        if context.role == GroupRole::Primary {
            Box::pin(groups.require_member(served.store.target(), &context)).await?;
        }
        // Resync sends a member everything that it lacks, even when it has lost everything.
        let if_absent = if context.role == GroupRole::Resync { IfAbsent::Recreate } else { IfAbsent::Create };
        let replica = match groups.replica(&served.store, &served.counters, context.group, if_absent).await {
            Ok(replica) => replica,
            Err(error) if context.role == GroupRole::Primary => {
                return Err(Box::pin(groups.step_down_without_replica(
                    served.store.target(),
                    &context,
                    error,
                ))
                .await);
            }
            Err(error) => return Err(error),
        };
        match context.role {
            GroupRole::Primary => {
                groups.handle_as_primary(replica, context, request, deadline, payload).await
            }
            GroupRole::Member { sequence, committed: settled } => {
                groups.handle_as_member(replica, context, (sequence, settled), request, payload).await
            }
            GroupRole::Resync => {
                Box::pin(groups.handle_as_resynced(replica, context, request, payload)).await
            }
        }
    }
}
