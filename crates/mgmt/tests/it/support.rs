//! Management of a cluster, and requests to it.

use kv::{Blocking, Durability, Memory, Writer};
use mgmt::{FirstNode, Management, MembershipAuthority, Metadata, RenewedCertificate, Superblock};
use net::{Channel, LocalFuture};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use types::{
    ClusterMap, Errno, Error, GroupId, GroupUsage, InodeId, NodeId, PartitionId, PoolId, Result,
    RevokedClient, Role, SessionId, TargetId,
};
use wire::mgmt::ReconcileFiles;
use wire::mgmt::*;
use wire::{MgmtReply, MgmtRequest};

pub const VERSION: &str = "0.4.0";

/// An authority that admits joins with the secret "sesame", counts them, and records revoked
/// clients.
#[derive(Default)]
pub struct TestAuthority {
    pub admitted: Mutex<Vec<NodeId>>,
    /// Groups that a file, or a chunk file still to be deleted, refers to.
    pub used: Mutex<Used>,
    pub revoked: Mutex<Vec<RevokedClient>>,
    pub sessions: Mutex<Sessions>,
}

/// Sessions of clients.
#[derive(Default)]
pub struct Sessions {
    pub all: Vec<SessionInfo>,
    /// Sessions that begin when the first one of `all` is ended.
    pub late: Vec<SessionInfo>,
    /// No metadata service answers.
    pub are_unknown: bool,
}

/// Usage of groups by the metadata.
#[derive(Default)]
pub struct Used {
    pub by_files: BTreeSet<GroupId>,
    pub by_deleted: BTreeSet<GroupId>,
    /// Remaining files on each draining target.
    pub left: Option<u64>,
    /// Number of management's queries.
    pub counts: u64,
}

impl MembershipAuthority for TestAuthority {
    fn check(&self, join: &Join, _now_s: i64) -> Result<()> {
        match join.secret == "sesame" {
            true => Ok(()),
            false => Err(Error::new(Errno::EACCES, "the join token is unknown").hint("ask for a new one")),
        }
    }

    fn admit(&self, _join: &Join, node: NodeId, _now_s: i64) -> Result<String> {
        self.admitted.lock().unwrap().push(node);
        Ok(format!("certificate of {node}"))
    }

    fn capability_keys(&self, _now_s: i64) -> Result<String> {
        Ok("keys".into())
    }

    fn token(&self, wanted: &NewToken, _now_s: i64) -> Result<String> {
        Ok(format!("token for {}", wanted.client))
    }

    fn revoke_client(&self, name: &str, _now_s: i64) -> Result<()> {
        let mut revoked = self.revoked.lock().unwrap();
        revoked.retain(|known| known.name != name);
        revoked.push(RevokedClient { name: name.into(), until: 7 });
        revoked.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    fn revoked(&self, _now_s: i64) -> Vec<RevokedClient> {
        self.revoked.lock().unwrap().clone()
    }

    fn renew(
        &self,
        member: &identity::Member,
        present: Option<&identity::Identity>,
        _csr: &str,
        _now_s: i64,
    ) -> Result<RenewedCertificate> {
        let shown = present.map_or_else(|| "nothing".to_string(), |present| present.role.to_string());
        Ok(RenewedCertificate {
            chain: format!("{member} for {shown}"),
            ends_s: rt::now().secs + 1_000_000_000,
        })
    }
}

/// A metadata service with one file, on target 1; for offline targets it returns the authority's
/// `used`.
pub struct OneFile(Arc<TestAuthority>);

impl Metadata for OneFile {
    fn reconcile(&self, _target: TargetId, _touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn reconcile_group(
        &self,
        _group: types::GroupId,
        _touched: ReconcileFiles,
    ) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn find_file_on(&self, target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async move { Ok((target == TargetId(1)).then_some(InodeId(7))) })
    }

    fn usage(&self, groups: BTreeSet<GroupId>) -> LocalFuture<'_, Result<GroupUsage>> {
        Box::pin(async move {
            let mut used = self.0.used.lock().unwrap();
            used.counts += 1;
            let files = groups.intersection(&used.by_files).count() as u64;
            let all: BTreeSet<GroupId> = used.by_files.union(&used.by_deleted).copied().collect();
            let used = groups.intersection(&all).copied().collect();
            Ok(GroupUsage { files, bytes: 5 * files, referenced: used })
        })
    }

    /// The first pool is referred to.
    fn find_pool_reference(&self, pool: PoolId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async move { Ok((pool == PoolId(1)).then_some(InodeId::ROOT)) })
    }

    fn drains(&self) -> LocalFuture<'_, Vec<(TargetId, DrainProgress)>> {
        // Files move off each target at some rate.
        let files_left = self.0.used.lock().unwrap().left;
        let some = DrainProgress { rate: 1000, files_left, ..DrainProgress::default() };
        Box::pin(async move { (1..=8).map(|id| (TargetId(id), some.clone())).collect() })
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        Box::pin(async {
            let sessions = self.0.sessions.lock().unwrap();
            match sessions.are_unknown {
                true => Err(Error::new(Errno::ETIMEDOUT, "node 2 doesn't answer")),
                false => Ok(sessions.all.clone()),
            }
        })
    }

    fn executed<'a>(&'a self, _node: &'a types::Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut sessions = self.0.sessions.lock().unwrap();
            sessions.all.retain(|known| known.session != session);
            let late = std::mem::take(&mut sessions.late);
            sessions.all.extend(late);
            Ok(())
        })
    }
}

#[derive(Clone)]
pub struct Cluster {
    pub memory: Arc<Memory>,
    pub writer: Arc<Writer>,
    pub superblock: Superblock,
    pub management: Arc<Management>,
    pub authority: Arc<TestAuthority>,
}

impl Cluster {
    pub async fn new() -> Cluster {
        let memory = Arc::new(Memory::new());
        let writer = Arc::new(Writer::with_blocking(memory.clone(), Durability::Process, Blocking::Inline));
        let superblock = Superblock::random("test");
        let gate = Arc::new(TestAuthority::default());
        let management = open(&writer, &superblock, &gate).await;
        Cluster { memory, writer, superblock, management, authority: gate }
    }

    pub async fn ask(&self, request: MgmtRequest) -> Result<MgmtReply> {
        Channel::in_process(self.management.clone()).call(request, None).await
    }

    pub async fn refused(&self, request: MgmtRequest) -> Error {
        let before = self.map();
        let error = self.ask(request).await.unwrap_err();
        assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error}");
        assert_eq!(self.map(), before, "refused, and yet changed: {error}");
        error
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        self.management.current()
    }

    pub async fn join(&self, name: &str, port: u16) -> NodeId {
        match self.ask(MgmtRequest::Join(join(name, port, "sesame"))).await {
            Ok(MgmtReply::Joined(joined)) => {
                assert_eq!(joined.certificate, format!("certificate of {}", joined.node));
                assert_eq!(Superblock::from_constants(&joined.facts), Some(self.superblock.clone()));
                joined.node
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn registration(&self, node: NodeId, instance: u64, port: u16, targets: &[TargetId]) -> Register {
        Register {
            cluster: self.superblock.uuid.clone(),
            node,
            instance,
            addresses: vec![format!("127.0.0.1:{port}")],
            roles: vec![Role::Storage],
            version: VERSION.into(),
            clock_s: rt::now().secs,
            targets: targets.iter().map(|id| self.report(*id)).collect(),
            again: false,
            is_elsewhere: false,
        }
    }

    pub fn report(&self, target: TargetId) -> TargetReport {
        let space = Some(TargetSpace { capacity: 100 << 30, free: 50 << 30, device: 1, own: None });
        TargetReport {
            target,
            cluster: self.superblock.uuid.clone(),
            path: format!("/t{target}"),
            space,
            work: None,
        }
    }

    pub fn heartbeat(&self, node: NodeId, instance: u64, targets: &[TargetId]) -> MgmtRequest {
        MgmtRequest::Heartbeat(Heartbeat {
            node,
            instance,
            epoch: self.map().epoch,
            clock_s: rt::now().secs,
            targets: targets.iter().map(|id| self.report(*id)).collect(),
            resyncs: vec![],
            scrubs: vec![],
        })
    }

    pub async fn add(&self, node: NodeId, path: &str) -> TargetId {
        let pool = "default".into();
        match self.ask(MgmtRequest::AddTarget { node, path: path.into(), pool }).await {
            Ok(MgmtReply::Added { target }) => target,
            other => panic!("{other:?}"),
        }
    }
}

pub async fn open(
    writer: &Arc<Writer>,
    superblock: &Superblock,
    gate: &Arc<TestAuthority>,
) -> Arc<Management> {
    let first = FirstNode {
        name: "first".into(),
        addresses: vec!["127.0.0.1:7500".into()],
        roles: vec![Role::Mgmt, Role::Meta],
        version: VERSION.into(),
        rack: None,
    };
    let management = Management::open_cluster(writer.clone(), superblock, &first, Path::new("/state")).await;
    let management = Arc::new(management.unwrap());
    management.set_authority(gate.clone());
    management.set_metadata(Arc::new(OneFile(gate.clone())));
    management
}

pub fn join(name: &str, port: u16, secret: &str) -> Join {
    Join {
        secret: secret.into(),
        name: name.into(),
        roles: vec![Role::Storage],
        addresses: vec![format!("127.0.0.1:{port}")],
        csr: String::new(),
        version: VERSION.into(),
        rack: None,
        clock_s: rt::now().secs,
    }
}
