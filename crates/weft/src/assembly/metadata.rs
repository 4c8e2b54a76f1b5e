//! What management asks of the metadata services of the cluster.

use super::peers::Peers;
use meta::{DrainStatus, MetaService, PartitionsChannel};
use net::{Channel, LocalFuture};
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use types::{
    ClusterMap, Errno, Error, InodeId, MapHandle, Node, NodeId, NodeState, PartitionId, Result, Role,
    SessionId, TargetId,
};
use wire::mgmt::{DrainProgress, SessionInfo};
use wire::{PartitionsReply, PartitionsRequest};

/// How long a service is waited for that is only asked what it has.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The metadata services, as management sees them.
pub struct Metadata {
    /// The node of management.
    pub node: NodeId,
    /// The service of its own process, if there is one.
    pub service: Option<Arc<MetaService>>,
    /// The map.
    pub map: MapHandle,
    /// The ways to the others.
    pub peers: Arc<Peers>,
    /// Number of partitions.
    pub partitions: u16,
}

impl Metadata {
    fn current(&self) -> Arc<ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn way(&self, node: &Node) -> PartitionsChannel {
        match &self.service {
            Some(service) if node.id == self.node => Channel::in_process(service.clone()),
            _ => self.peers.partitions(node),
        }
    }

    /// The service that executes a partition.
    fn owner(&self, partition: PartitionId) -> Result<PartitionsChannel> {
        let map = self.current();
        match map.owner(partition) {
            Some(node) if node.state != NodeState::Offline => Ok(self.way(node)),
            _ => Err(Error::new(Errno::EAGAIN, format!("nobody executes partition {partition} for now"))
                .hint("weft meta list shows who is to; start weft serve there")),
        }
    }

    /// All services that aren't known to be down.
    fn all(&self) -> Vec<PartitionsChannel> {
        let is_up = |node: &&Node| node.roles.contains(&Role::Meta) && node.state != NodeState::Offline;
        self.current().nodes.iter().filter(is_up).map(|node| self.way(node)).collect()
    }
}

impl mgmt::Metadata for Metadata {
    fn tidy(&self, target: TargetId, files: Vec<InodeId>) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut parts: BTreeMap<PartitionId, Vec<InodeId>> = BTreeMap::new();
            for ino in files.into_iter().filter(|ino| ino.partition().0 < self.partitions) {
                parts.entry(ino.partition()).or_default().push(ino);
            }
            // A service that has yet to settle sizes from chunk files says so, and the node asks again.
            for (partition, files) in parts {
                let tidy = PartitionsRequest::Tidy { target, files };
                self.owner(partition)?.call(tidy, None).await?;
            }
            Ok(())
        })
    }

    fn file_on(&self, target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async move {
            for partition in (0..self.partitions).map(PartitionId) {
                let ask = PartitionsRequest::FileOn { target, partition };
                match self.owner(partition)?.call(ask, None).await? {
                    PartitionsReply::File(None) => {}
                    PartitionsReply::File(found) => return Ok(found),
                    other => return Err(out_of_turn(&other)),
                }
            }
            Ok(None)
        })
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        Box::pin(async move {
            let ask = |way: PartitionsChannel| async move {
                rt::timeout(ANSWER_TIME, way.call(PartitionsRequest::Sessions, None)).await
            };
            let mut all: BTreeMap<SessionId, SessionInfo> = BTreeMap::new();
            for answer in rt::join_all(self.all().into_iter().map(ask).collect()).await {
                let Some(Ok(PartitionsReply::Sessions(sessions))) = answer else { continue };
                for info in sessions {
                    match all.get_mut(&info.session) {
                        Some(known) => join(known, &info),
                        None => _ = all.insert(info.session, info),
                    }
                }
            }
            Ok(all.into_values().collect())
        })
    }

    fn executed<'a>(&'a self, node: &'a Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async move {
            let way = self.way(node);
            let answer = rt::timeout(ANSWER_TIME, way.call(PartitionsRequest::Executed, None)).await;
            match answer.ok_or(Errno::ETIMEDOUT)?? {
                PartitionsReply::Executed(partitions) => Ok(partitions),
                other => Err(out_of_turn(&other)),
            }
        })
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut refusal = Err(Error::new(Errno::ENOENT, format!("there is no session {session}"))
                .hint("weft session list shows all"));
            for way in self.all() {
                match way.call(PartitionsRequest::Evict { session }, None).await {
                    // It tells the others.
                    Ok(_) => return Ok(()),
                    Err(error) if error.errno == Errno::ENOENT => {}
                    Err(error) => refusal = Err(error),
                }
            }
            refusal
        })
    }
}

/// The metadata service of a cluster of one process.
pub struct OnlyMetadata {
    /// The service.
    pub service: Arc<MetaService>,
    /// Set when it has settled what an earlier run left.
    pub recovered: Arc<Event>,
}

impl mgmt::Metadata for OnlyMetadata {
    fn tidy(&self, target: TargetId, files: Vec<InodeId>) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            // Sizes are settled from chunk files first, and then chunk files are cut to sizes.
            self.recovered.wait().await;
            self.service.tidy(target, &files).await
        })
    }

    fn file_on(&self, target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(self.service.file_on(target))
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        Box::pin(async { Ok(self.service.session_infos()) })
    }

    fn executed<'a>(&'a self, _node: &'a Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async { Ok(self.service.executed()) })
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move { self.service.evict_session(session) })
    }
}

/// What two services know of one session.
fn join(known: &mut SessionInfo, other: &SessionInfo) {
    known.idle_s = match (known.idle_s, other.idle_s) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
    known.leases = sum(known.leases, other.leases);
    known.in_use = sum(known.in_use, other.in_use);
}

fn out_of_turn(reply: &PartitionsReply) -> Error {
    Error::new(Errno::EPROTO, format!("a metadata service answered out of turn: {reply:?}"))
        .hint("install the same version of weft on all machines")
}
