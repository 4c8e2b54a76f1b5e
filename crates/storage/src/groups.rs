//! Mirrored groups, as the service of a node has them: which part of it answers, and what it does
//! for all of them.

use crate::mirror::{self, GroupLinks, Mirrors, Replica};
use crate::service::{Served, StorageService};
use chunkstore::IfAbsent;
use net::Deadline;
use rt::IoBuf;
use std::sync::Arc;
use types::{ClusterMap, Errno, Error, Result, TargetId};
use wire::mgmt::ResyncProgress;
use wire::{InGroup, Part, StorageReply, StorageRequest};

impl StorageService {
    /// Serves members of mirrored groups from now on. Beside it
    /// [`StorageService::keep_groups_in_step`] has to run.
    pub fn serve_groups(&self, links: GroupLinks) {
        self.mirrors.get_or_init(|| {
            let (lease, fences) = (self.lease.clone(), self.fences.clone());
            Arc::new(Mirrors::new(links, lease, fences, self.watches.clone()))
        });
    }

    /// Opens what a target has of mirrored groups already, which recovers it after a crash.
    pub async fn open_groups(&self, target: TargetId) -> Result<()> {
        let (Some(mirrors), Some(served)) = (self.mirrors.get(), self.find(target)) else { return Ok(()) };
        let groups = served.store.groups().await.map_err(|e| served.failed(&e))?;
        let mut outcome = Ok(());
        for &group in &groups {
            outcome = outcome
                .and(mirrors.replica(&served.store, &served.tally, group, IfAbsent::Make).await.map(drop));
        }
        mirrors.found_on(target, groups);
        outcome
    }

    /// Whether no copy here may be without what a crash of an earlier process has cost it, and
    /// counts as good by this map nevertheless. Management has that in mind while it runs; to one
    /// that was started anew such a process is one that was started anew as well.
    pub fn is_settled(&self, map: &ClusterMap) -> bool {
        self.mirrors.get().is_none_or(|mirrors| {
            self.served().all(|served| mirrors.is_settled_on(map, served.store.target()))
        })
    }

    /// Closes what is open of mirrored groups, all of it; the first failure is told then.
    pub async fn close_groups(&self) -> Result<()> {
        let mut outcome = Ok(());
        for replica in self.replicas() {
            let closed = replica.store.close().await;
            outcome = outcome.and(closed.map_err(|e| replica.failed(&e)));
        }
        outcome
    }

    /// Opens what the targets have of mirrored groups, and brings members in step whose primaries
    /// are served here, until the service is gone. Runs beside requests, on one core.
    pub async fn keep_groups_in_step(service: Arc<StorageService>) {
        let Some(mirrors) = service.mirrors.get().cloned() else { return };
        let found: Vec<TargetId> = service.stores().map(|store| store.target()).collect();
        for target in found {
            if let Err(error) = service.open_groups(target).await {
                // Who asks for such a group is told; the others are served.
                tracing::error!(
                    hint = &*error.hint,
                    "what target {target} has of mirrored groups can't be opened: {}",
                    error.message
                );
            }
        }
        let service = Arc::downgrade(&service);
        let targets = move || {
            let service = service.upgrade()?;
            // One that is offline is no source.
            let online = service.served().filter(|served| !served.is_offline());
            Some(online.map(|served| (served.store.clone(), served.tally.clone())).collect())
        };
        mirror::keep_in_step(mirrors, targets).await;
    }

    /// How far members are that are brought in step from here.
    pub fn resyncs(&self) -> Vec<ResyncProgress> {
        self.mirrors.get().map(|mirrors| mirrors.progress()).unwrap_or_default()
    }

    /// What is open of mirrored groups.
    pub(crate) fn replicas(&self) -> Vec<Arc<Replica>> {
        self.mirrors.get().map(|mirrors| mirrors.open_replicas()).unwrap_or_default()
    }

    /// Brings to disk what a target has of mirrored groups.
    pub(crate) async fn sync_replicas(&self, target: TargetId) -> Result<()> {
        for replica in self.replicas().iter().filter(|replica| replica.target == target) {
            replica.store.sync_all().await.map_err(|e| replica.failed(&e))?;
        }
        Ok(())
    }

    /// Answers a request that is about a mirrored group.
    pub(crate) async fn answer_in_group(
        &self,
        served: &Served,
        asked: InGroup,
        request: StorageRequest,
        deadline: Deadline,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let Some(mirrors) = self.mirrors.get() else {
            return Err(Error::new(Errno::EOPNOTSUPP, "this process has no members of mirrored groups"));
        };
        if asked.part == Part::Primary {
            Box::pin(mirrors.require_member(served.store.target(), &asked)).await?;
        }
        // A member that is brought in step is sent everything that it lacks, also when it has lost
        // all.
        let if_absent = if asked.part == Part::Resync { IfAbsent::MakeAnew } else { IfAbsent::Make };
        let replica = match mirrors.replica(&served.store, &served.tally, asked.group, if_absent).await {
            Ok(replica) => replica,
            Err(error) if asked.part == Part::Primary => {
                return Err(Box::pin(mirrors.without_replica(served.store.target(), &asked, error)).await);
            }
            Err(error) => return Err(error),
        };
        match asked.part {
            Part::Primary => mirrors.as_primary(replica, asked, request, deadline, payload).await,
            Part::Member { sequence, settled } => {
                mirrors.as_member(replica, asked, (sequence, settled), request, payload).await
            }
            Part::Resync => Box::pin(mirrors.as_resynced(replica, asked, request, payload)).await,
        }
    }
}
