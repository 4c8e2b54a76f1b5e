//! Requests of management to the metadata services of the cluster.

use kv::{KvError, Store};
use meta::{MetaService, PartitionsChannel};
use net::{Channel, LocalFuture};
use rt::sync::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::{
    ClusterMap, Errno, Error, GroupId, GroupUsage, InodeId, MapHandle, Node, NodeId, NodeState, PartitionId,
    PoolId, Result, Role, SessionId, TargetId,
};
use wire::mgmt::{DrainProgress, ReconcileFiles, SessionInfo};
use wire::{PartitionsReply, PartitionsRequest};

/// Longest wait for a service that is only asked for information.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The metadata services, as management sees them.
pub struct MetadataServices {
    /// Node of management.
    pub node: NodeId,
    /// Metadata service of this process, if there is one.
    pub service: Option<Arc<MetaService>>,
    /// The cluster map.
    pub map: MapHandle,
    /// Returns the channel to the service of another node.
    pub connect: routing::Connect<PartitionsRequest, PartitionsReply>,
    /// The metadata store.
    pub store: Arc<dyn Store>,
    /// Number of partitions.
    pub partitions: u16,
}

impl MetadataServices {
    fn current(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    fn channel(&self, node: &Node) -> PartitionsChannel {
        match &self.service {
            Some(service) if node.id == self.node => Channel::in_process(service.clone()),
            _ => (self.connect)(node),
        }
    }

    /// Returns the service that executes a partition.
    fn owner(&self, partition: PartitionId) -> Result<PartitionsChannel> {
        let map = self.current();
        match map.owner(partition) {
            Some(node) if node.state != NodeState::Offline => Ok(self.channel(node)),
            _ => Err(Error::new(
                Errno::EAGAIN,
                format!("no metadata service executes partition {partition} now"),
            )
            .hint("weft meta list shows its node; start weft serve there")),
        }
    }

    /// Returns all services that aren't known to be offline.
    fn all(&self) -> Vec<PartitionsChannel> {
        let is_up = |node: &&Node| node.roles.contains(&Role::Meta) && node.state != NodeState::Offline;
        self.current().nodes.iter().filter(is_up).map(|node| self.channel(node)).collect()
    }

    /// Has the service of each partition reconcile its part of the files after a crash.
    async fn reconcile_partitions(
        &self,
        touched: ReconcileFiles,
        to_request: impl Fn(ReconcileFiles) -> PartitionsRequest,
    ) -> Result<()> {
        // A service that has size recovery left refuses with an error, and the node asks again.
        for (partition, part) in touched.by_partition() {
            if partition.0 < self.partitions {
                self.owner(partition)?.call(to_request(part), None).await?;
            }
        }
        Ok(())
    }
}

impl mgmt::Metadata for MetadataServices {
    fn reconcile(&self, target: TargetId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        let to_request = move |touched| PartitionsRequest::Reconcile { target, touched };
        Box::pin(self.reconcile_partitions(touched, to_request))
    }

    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        let to_request = move |touched| PartitionsRequest::ReconcileGroup { group, touched };
        Box::pin(self.reconcile_partitions(touched, to_request))
    }

    fn find_file_on(&self, target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async move {
            for partition in (0..self.partitions).map(PartitionId) {
                let request = PartitionsRequest::FileOn { target, partition };
                match self.owner(partition)?.call(request, None).await? {
                    PartitionsReply::File(None) => {}
                    PartitionsReply::File(found) => return Ok(found),
                    other => return Err(unexpected_partitions_reply(&other)),
                }
            }
            Ok(None)
        })
    }

    fn usage(&self, groups: BTreeSet<GroupId>) -> LocalFuture<'_, Result<GroupUsage>> {
        Box::pin(async move {
            let snapshot = self.store.snapshot().await.map_err(|error| match error {
                KvError::NoSnapshot { .. } => Error::new(Errno::EOPNOTSUPP, error.to_string())
                    .hint("ask the node with management, which has the store (weft node list)"),
                error => mgmt::Error::from(error).into(),
            })?;
            fsck::usage(&*snapshot, self.partitions, &groups).await
        })
    }

    fn find_pool_reference(&self, pool: PoolId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async move {
            for partition in (0..self.partitions).map(PartitionId) {
                let request = PartitionsRequest::FindPoolReference { pool, partition };
                match self.owner(partition)?.call(request, None).await? {
                    PartitionsReply::File(None) => {}
                    PartitionsReply::File(found) => return Ok(found),
                    other => return Err(unexpected_partitions_reply(&other)),
                }
            }
            Ok(None)
        })
    }

    fn drains(&self) -> LocalFuture<'_, Vec<(TargetId, DrainProgress)>> {
        Box::pin(async move {
            let query = |channel: PartitionsChannel| async move {
                rt::timeout(ANSWER_TIMEOUT, channel.call(PartitionsRequest::Drains, None)).await
            };
            let mut all: BTreeMap<TargetId, DrainProgress> = BTreeMap::new();
            let mut failure = (0..self.partitions).find_map(|p| self.owner(PartitionId(p)).err());
            let mut answers = Vec::new();
            for answer in rt::join_all(self.all().into_iter().map(query).collect()).await {
                match answer.unwrap_or_else(|| Err(Errno::ETIMEDOUT.into())) {
                    Ok(PartitionsReply::Drains(drains)) => answers.push(drains),
                    Ok(other) => failure = Some(unexpected_partitions_reply(&other)),
                    Err(error) => failure = Some(error),
                }
            }
            let services = answers.len();
            let mut reporting: BTreeMap<TargetId, usize> = BTreeMap::new();
            for (target, progress) in answers.into_iter().flatten() {
                *reporting.entry(target).or_default() += 1;
                match all.get_mut(&target) {
                    Some(known) => add_drain_progress(known, progress),
                    None => _ = all.insert(target, progress),
                }
            }
            for (target, progress) in &mut all {
                if let Some(error) = &failure {
                    let why = || format!("a metadata service doesn't report its progress: {error}");
                    progress.hindrance.get_or_insert_with(why);
                }
                // A service that hasn't yet seen that the target is drained may have files there.
                if failure.is_some() || reporting.get(target) != Some(&services) {
                    (progress.empty, progress.files_left, progress.remaining_s) = (false, None, None);
                }
            }
            all.into_iter().collect()
        })
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        Box::pin(async move {
            let query = |channel: PartitionsChannel| async move {
                rt::timeout(ANSWER_TIMEOUT, channel.call(PartitionsRequest::Sessions, None)).await
            };
            let mut all: BTreeMap<SessionId, SessionInfo> = BTreeMap::new();
            for answer in rt::join_all(self.all().into_iter().map(query).collect()).await {
                let Some(Ok(PartitionsReply::Sessions(sessions))) = answer else { continue };
                for info in sessions {
                    match all.get_mut(&info.session) {
                        Some(known) => merge_session_info(known, &info),
                        None => _ = all.insert(info.session, info),
                    }
                }
            }
            Ok(all.into_values().collect())
        })
    }

    fn executed<'a>(&'a self, node: &'a Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async move {
            let channel = self.channel(node);
            let answer = rt::timeout(ANSWER_TIMEOUT, channel.call(PartitionsRequest::Executed, None)).await;
            match answer.ok_or(Errno::ETIMEDOUT)?? {
                PartitionsReply::Executed(partitions) => Ok(partitions),
                other => Err(unexpected_partitions_reply(&other)),
            }
        })
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut refusal = Err(Error::new(Errno::ENOENT, format!("there is no session {session}"))
                .hint("weft session list shows all"));
            for channel in self.all() {
                match channel.call(PartitionsRequest::Evict { session }, None).await {
                    // This service notifies the others.
                    Ok(_) => return Ok(()),
                    Err(error) if error.errno == Errno::ENOENT => {}
                    Err(error) => refusal = Err(error),
                }
            }
            refusal
        })
    }
}

/// The metadata service of a cluster in one process.
pub struct LocalMetadata {
    /// The service.
    pub service: Arc<MetaService>,
    /// Set once recovery from an earlier run is complete.
    pub recovered: Arc<Event>,
}

impl mgmt::Metadata for LocalMetadata {
    fn reconcile(&self, target: TargetId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            // Size recovery reads the chunk files; only then may reconciliation cut them.
            self.recovered.wait().await;
            self.service.reconcile_target(target, &touched).await
        })
    }

    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            self.recovered.wait().await;
            self.service.reconcile_group(group, &touched).await
        })
    }

    fn find_file_on(&self, target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(self.service.file_on(target))
    }

    /// Not needed: no target is removed from a cluster in one process.
    fn usage(&self, _groups: BTreeSet<GroupId>) -> LocalFuture<'_, Result<GroupUsage>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP.into()) })
    }

    fn find_pool_reference(&self, pool: PoolId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(self.service.inode_naming_pool(pool))
    }

    fn drains(&self) -> LocalFuture<'_, Vec<(TargetId, DrainProgress)>> {
        Box::pin(async { self.service.drain_progress() })
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        Box::pin(async { Ok(self.service.session_infos()) })
    }

    fn executed<'a>(&'a self, _node: &'a Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async { Ok(self.service.serving_partitions()) })
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move { self.service.evict_session(session) })
    }
}

/// Merges what two services know about one session.
fn merge_session_info(known: &mut SessionInfo, other: &SessionInfo) {
    known.idle_s = match (known.idle_s, other.idle_s) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
    known.leases = sum(known.leases, other.leases);
    known.in_use = sum(known.in_use, other.in_use);
}

/// Adds up the drain progress of two services.
fn add_drain_progress(known: &mut DrainProgress, other: DrainProgress) {
    known.empty &= other.empty;
    known.files_left = known.files_left.zip(other.files_left).map(|(a, b)| a + b);
    known.bytes_left += other.bytes_left;
    known.files_moved += other.files_moved;
    known.bytes_moved += other.bytes_moved;
    known.rate += other.rate;
    // The services work in parallel.
    known.remaining_s = known.remaining_s.zip(other.remaining_s).map(|(a, b)| a.max(b));
    known.hindrance = known.hindrance.take().or(other.hindrance);
}

fn unexpected_partitions_reply(reply: &PartitionsReply) -> Error {
    Error::new(Errno::EPROTO, format!("a metadata service sent an unexpected reply: {reply:?}"))
        .hint("install the same version of weft on all machines")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_of_services_add_up() {
        let one = DrainProgress {
            files_left: Some(2),
            bytes_left: 20,
            rate: 5,
            remaining_s: Some(4),
            ..DrainProgress::default()
        };
        let empty = DrainProgress {
            empty: true,
            files_left: Some(0),
            files_moved: 3,
            remaining_s: Some(0),
            ..DrainProgress::default()
        };
        let mut sum = one.clone();
        add_drain_progress(&mut sum, empty.clone());
        assert_eq!(sum, DrainProgress { files_moved: 3, ..one.clone() });
        add_drain_progress(
            &mut sum,
            DrainProgress { hindrance: Some("why".into()), ..DrainProgress::default() },
        );
        assert_eq!((sum.files_left, sum.remaining_s, sum.hindrance.as_deref()), (None, None, Some("why")));
        let mut both = empty.clone();
        add_drain_progress(&mut both, empty);
        assert!(both.empty && both.files_left == Some(0) && both.files_moved == 6);
    }
}
