//! The service: its parts, and the path of a request through it.

mod access_times;
mod administration;
mod assembly;
mod background;
pub(crate) mod command;
pub(crate) mod stats;
mod usage;

use crate::data::group_creation::{GroupCreator, OnDemandGroups};
use crate::data::reaper::Reaper;
use crate::data::reconciliation::Reconciliation;
use crate::data::references::References;
use crate::data::size_recovery::{Recovery, SizeRecovery};
use crate::drain::{Drainer, Drains, LocalMount, Migrations, Migrator};
use crate::lease::coherence::Granted;
use crate::lease::recalls::RecallWaits;
use crate::lease::table::Leases;
use crate::partition::executor::{CommandOrigin, CommandOutput, Executors, PartitionState};
use crate::partition::ownership::Ownership;
use crate::partition::peers::{PeerContext, PeerServices};
use crate::partition::serving::Serving;
use crate::service::command::CommandAnswer;
use crate::service::stats::MetaStats;
use crate::session::async_changes::Unsent;
use crate::session::capabilities::Capabilities;
use crate::session::eviction::Eviction;
use crate::session::exports::{AccessRules, is_unrestricted};
use crate::session::grace_period::GracePeriod;
use crate::session::locks::Locks;
use crate::session::registration::{Registration, RequestOrigin};
use crate::session::table::{Session, SessionKind, Sessions};
use crate::store::transaction_view::{View, not_owner, store_error};
use identity::CapabilityRing;
use kv::Store;
use namespace::locks::{Holder, LockRequest, OnConflict};
use net::{Deadline, Handler, LocalFuture};
use routing::StorageChannels;
use rt::IoBuf;
use std::sync::Arc;
use types::{
    Errno, Error, InodeId, MapHandle, NodeId, PartitionId, Refusal, Result, SessionId, StripePattern,
};
use wire::spec::Stage;
use wire::{LockFamily, MetaOp, MetaReply, MetaRequest, MetaResponse};

/// Configuration of a service.
#[derive(Clone, Copy, Debug)]
pub struct MetaOptions {
    /// The node that the service runs on.
    pub node: NodeId,
    /// Key of the name hash, fixed when the file system is made.
    pub hash_key: (u64, u64),
    /// Number of partitions, fixed when the file system is made.
    pub partitions: u16,
    /// Pattern of the root directory, if the service has to create it.
    pub root_pattern: StripePattern,
}

/// A metadata service. All cores share it; it has no state of a single core.
///
/// It passes each request to the part that owns the state (`service::assembly` lists the parts).
pub struct MetaService {
    /// Number of this service process: sessions tell it by that from earlier and later processes.
    process: u64,
    /// Whether other services share the partitions.
    shares_partitions: bool,
    pub(crate) serving: Arc<Serving>,
    pub(crate) executors: Arc<Executors>,
    pub(crate) sessions: Arc<Sessions>,
    grace: Arc<GracePeriod>,
    locks: Arc<Locks>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) recalls: Arc<RecallWaits>,
    capabilities: Capabilities,
    pub(crate) access_rules: AccessRules,
    groups: OnDemandGroups,
    sizes: Arc<SizeRecovery>,
    pub(crate) eviction: Arc<Eviction>,
    registration: Registration,
    ownership: Arc<Ownership>,
    reaper: Arc<Reaper>,
    references: Arc<References>,
    reconciliation: Arc<Reconciliation>,
    drains: Arc<Drains>,
    drainer: Arc<Drainer>,
    migrations: Arc<Migrations>,
    migrator: Arc<Migrator>,
}

impl MetaService {
    /// Takes over all partitions from their previous owner, and creates an empty file system if
    /// there is none.
    ///
    /// Errors: those of the store; `EBUSY` when another service takes over partitions at the same
    /// time.
    pub async fn open(
        store: Arc<dyn Store>,
        options: MetaOptions,
        map: MapHandle,
        storage: impl Into<StorageChannels>,
    ) -> Result<Arc<MetaService>> {
        let service = assembly::assemble(store, options, map, storage.into(), None);
        let all: Vec<PartitionId> = service.executors.all().collect();
        service.ownership.adopt(&all, PartitionState::Reclaiming).await?;
        service.eviction.returns.open_after_grace();
        Ok(service)
    }

    /// Creates a service that shares the partitions with others of its cluster. It executes those
    /// that the cluster map assigns to it once [`MetaService::follow_assignment`] runs.
    pub fn open_shared(
        store: Arc<dyn Store>,
        options: MetaOptions,
        map: MapHandle,
        storage: impl Into<StorageChannels>,
        context: PeerContext,
    ) -> Arc<MetaService> {
        let peers = Arc::new(PeerServices::new(options.node, map.clone(), context));
        assembly::assemble(store, options, map, storage.into(), Some(peers))
    }

    /// Adopts and releases partitions as the cluster map says, until the service stops. Needs a
    /// runtime; call it once for each service that shares partitions.
    pub async fn follow_assignment(self: Arc<Self>) {
        self.ownership.clone().follow_assignment().await;
    }

    /// Partitions whose requests this service answers now.
    pub fn serving_partitions(&self) -> Vec<PartitionId> {
        self.executors.serving()
    }

    /// Ends all sessions of an earlier run, except those of other processes that may return. Call
    /// it before the first request, when the storage services answer.
    pub async fn recover(&self) -> Result<Recovery> {
        let owned = self.executors.owned();
        let recovery = match self.grace.is_on() {
            // Sessions that may return continue, and may have files without a name open.
            true => {
                self.sizes.recover_sizes_of_ended(&owned, |session| !self.grace.is_expected(session)).await?
            }
            false => self.eviction.cleanup.end_sessions(&owned, |_| true).await?,
        };
        // Chunk files whose deletion the earlier run had begun.
        self.reaper.request_everywhere();
        Ok(recovery)
    }

    /// Registers a session. A session of another process is durable when this returns.
    pub async fn register_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        self.registration.register_session(id, kind).await
    }

    /// Ends a session: releases its locks, deletes its files without a name, and recovers the sizes
    /// of those that it was writing.
    pub async fn end_session(&self, session: SessionId) -> Result<Recovery> {
        self.eviction.end_session(session).await
    }

    /// Deletes the records of sessions that were evicted long ago. `now_s`: seconds since 1970.
    pub async fn delete_old_tombstones(&self, now_s: i64) -> Result<()> {
        self.eviction.records.delete_old(&self.sessions, now_s).await
    }

    /// Sets the group creator. Only the first call has an effect.
    pub fn set_group_creator(&self, creator: Arc<dyn GroupCreator>) {
        self.groups.set_creator(creator);
    }

    /// Allows migration of files that the mount in this process uses. Only the first call has an
    /// effect.
    pub fn set_local_mount(&self, mount: Arc<dyn LocalMount>) {
        let _ = self.drains.local_mount.set(mount);
    }

    /// Counters since the service was opened.
    pub fn stats(&self) -> MetaStats {
        let counters = &self.executors.counters;
        let writer = self.executors.store.stats();
        MetaStats {
            commands: counters.commands.get(),
            refused: counters.refused.get(),
            repeated: counters.repeated.get(),
            reruns: counters.reruns.get(),
            batches: writer.batches,
            commits: writer.commits,
            persists: writer.persists,
            cache_hits: counters.cache_hits.get(),
            cache_misses: counters.cache_misses.get(),
            reaped: counters.reaped.get(),
            sessions: self.sessions.len() as u64,
        }
    }

    /// `holder`: the client's process, if it is another process.
    async fn answer(
        &self,
        request: MetaRequest,
        holder: Option<u64>,
        deadline: Deadline,
    ) -> Result<MetaResponse> {
        let answer = self.dispatch(request, holder, deadline).await;
        self.executors.counters.commands.add(1);
        if answer.is_err() {
            self.executors.counters.refused.add(1);
        }
        answer
    }

    /// Handles a session that registers or reclaims its state: opens, locks, sizes and asynchronous
    /// creates.
    async fn reclaim_state(&self, request: MetaRequest, holder: Option<u64>) -> Result<MetaResponse> {
        let id = request.session;
        self.sessions.check_holder_if_known(id, holder)?;
        match &request.op {
            MetaOp::Register { in_use, pending_creates, pending_changes, reporting_process } => {
                self.require_current_process(*reporting_process)?;
                let unsent = Unsent { creates: pending_creates, changes: pending_changes };
                self.registration.register(id, (in_use, unsent), holder).await?;
                return Ok(self.unit_with_verifier());
            }
            MetaOp::ReclaimLocks { locks } => self.registration.reclaim_locks(id, locks).await?,
            MetaOp::ReclaimOpens { inodes } => self.registration.reclaim_opens(id, inodes)?,
            MetaOp::ReclaimSizes { sizes } => {
                self.eviction.returns.reclaim_sizes(id, sizes)?;
                return Ok(MetaReply::Process(self.process).into());
            }
            _ => {}
        }
        Ok(MetaReply::Unit.into())
    }

    async fn dispatch(
        &self,
        request: MetaRequest,
        holder: Option<u64>,
        deadline: Deadline,
    ) -> Result<MetaResponse> {
        self.serving.require()?;
        // What is rare, or takes long, is kept out of the future of every request.
        if request.op.spec().stage == Stage::Reclaim {
            return Box::pin(self.reclaim_state(request, holder)).await;
        }
        let origin = holder.map_or(RequestOrigin::InProcess, |_| RequestOrigin::OtherProcess);
        if self.sessions.is_unmount_of_unknown_session(&request)? {
            return Box::pin(self.eviction.end_cleanly(request.session))
                .await
                .map(|()| MetaReply::Unit.into());
        }
        let session = self.registration.session_of(request.session, origin)?;
        holder.map_or(Ok(()), |holder| session.check_holder(holder))?;
        if session.is_remote() {
            session.note_contact();
        }
        let reply = match request.op {
            MetaOp::Lock { ino, .. } | MetaOp::Unlock { ino, .. } | MetaOp::TestLock { ino, .. } => {
                Box::pin(self.handle_lock_request(ino, request, &deadline)).await?
            }
            MetaOp::Follow { partitions, in_use, pending_creates, pending_changes, reporting_process } => {
                self.require_current_process(reporting_process)?;
                let unsent = Unsent { creates: &pending_creates, changes: &pending_changes };
                Box::pin(self.registration.reclaim_partitions(&session, &partitions, (&in_use, unsent)))
                    .await?;
                return Ok(self.unit_with_verifier());
            }
            MetaOp::NextRecalls { after } => {
                let next_reply = self.registration.next_recalls(&session, after).await?;
                // A client relies on its leases for some time after an answer, even if it receives
                // nothing else.
                self.serving.require()?;
                next_reply
            }
            MetaOp::SupplyGroups { groups, .. } => {
                session.users.set_groups(request.credentials, groups).map(|()| MetaReply::Unit)?
            }
            MetaOp::RecallsInProgress { seen } => session.note_working(seen),
            MetaOp::AckRecalls { acks: yields } => {
                Box::pin(self.sizes.handle_acknowledgements(&session, &yields)).await
            }
            MetaOp::Release { inodes, seen } => {
                Box::pin(self.sizes.handle_releases(&session, &inodes, seen)).await
            }
            MetaOp::EndSession => {
                Box::pin(self.eviction.end_cleanly(request.session)).await.map(|()| MetaReply::Unit)?
            }
            MetaOp::NoteAccess { accesses } => {
                Box::pin(self.executors.record_access_times(&accesses)).await.map(|()| MetaReply::Unit)?
            }
            MetaOp::Usage => MetaReply::Usage(Box::pin(self.executors.usage()).await?),
            MetaOp::Sync => {
                self.executors.store.sync().await.map_err(|error| store_error(&error))?;
                return Ok(self.unit_with_verifier());
            }
            _ => return self.answer_command(&request, &session, &deadline).await,
        };
        Ok(reply.into())
    }

    /// Executes a name space command, and adds to its answer what comes with it.
    async fn answer_command(
        &self,
        request: &MetaRequest,
        session: &Arc<Session>,
        deadline: &Deadline,
    ) -> Result<MetaResponse> {
        if self.grace.is_on() && !self.shares_partitions {
            deadline.unless_disconnected(self.eviction.wait_for_grace()).await?;
        }
        let answered = self.execute_at_home(request, session, deadline).await;
        let CommandAnswer { mut reply, granted, is_read_only, .. } =
            answered.inspect_err(|error| self.migrations.record_refusal(&request.op, error))?;
        self.migrations.answer_migration(&request.op, &mut reply)?;
        let Granted { grants, last_recall: recalls, directories } = granted;
        let capability = self.capabilities.capability_for(session, &request.op, &reply, is_read_only);
        Ok(MetaResponse { reply, grants, recalls, capability, directories, verifier: 0 })
    }

    /// Refuses a session that has reported its state to an earlier process: the client
    /// retransmitted the request when that process had died.
    fn require_current_process(&self, process: u64) -> Result<()> {
        match process == 0 || process == self.process {
            true => Ok(()),
            false => Err(Error::new(Errno::EAGAIN, "the metadata service restarted meanwhile")
                .hint("no action is needed: the client registers again by itself")),
        }
    }

    /// An answer with the store's verifier. It is read after the operation, so that everything that
    /// was acknowledged under another verifier counts as lost.
    fn unit_with_verifier(&self) -> MetaResponse {
        MetaResponse { verifier: self.executors.store.verifier(), ..MetaReply::Unit.into() }
    }

    /// Executes a command if this service owns its home partition.
    async fn execute_at_home(
        &self,
        request: &MetaRequest,
        session: &Arc<Session>,
        deadline: &Deadline,
    ) -> Result<CommandAnswer> {
        let home = namespace::home_partition(&request.op);
        loop {
            let term = self.serving.require()?;
            match self.groups.execute(request, session, deadline).await {
                Err(error)
                    if error.errno == Refusal::PartitionNotServed && !self.executors.is_owned(home) =>
                {
                    Box::pin(self.ownership.wait_until_owned(home, error)).await?;
                }
                // The result is invalid once another service may have taken over the partitions.
                answer => return self.serving.require_term(term).and(answer),
            }
        }
    }

    async fn require_owned(&self, ino: InodeId) -> Result<u64> {
        let term = self.serving.require()?;
        let partition = ino.partition();
        if self.executors.has(partition) && !self.executors.is_owned(partition) {
            Box::pin(self.ownership.wait_until_owned(partition, not_owner(partition))).await?;
        }
        Ok(term)
    }

    /// Waits for sessions that have not reclaimed their state of a partition yet: they may hold
    /// what the client requests.
    async fn wait_until_serving(&self, ino: InodeId, deadline: &Deadline) -> Result<()> {
        let partition = ino.partition();
        if !self.shares_partitions || !self.executors.has(partition) {
            return Ok(());
        }
        let nothing = |_: &View<'_>| Ok(CommandOutput { answer: (), writes: Vec::new() });
        self.executors
            .transact((CommandOrigin::Command, deadline), &[partition], nothing, |_, _| ())
            .await
            .map(drop)
    }

    /// Handles a request for advisory locks of an inode.
    async fn handle_lock_request(
        &self,
        ino: InodeId,
        request: MetaRequest,
        deadline: &Deadline,
    ) -> Result<MetaReply> {
        let term = self.require_owned(ino).await?;
        if !matches!(request.op, MetaOp::Unlock { .. }) {
            self.wait_until_serving(ino, deadline).await?;
        }
        let answer = self.answer_lock(request, deadline).await;
        // The service may have released the partition meanwhile, with all its locks.
        self.require_owned(ino).await?;
        self.serving.require_term(term)?;
        answer
    }

    async fn answer_lock(&self, request: MetaRequest, deadline: &Deadline) -> Result<MetaReply> {
        let session = request.session;
        if self.grace.is_on() && !matches!(request.op, MetaOp::Unlock { .. }) {
            // A session of the previous owner that has not reclaimed its locks yet may hold this
            // one.
            deadline.unless_disconnected(self.eviction.wait_for_grace()).await?;
        }
        match request.op {
            MetaOp::Lock { ino, family, owner, pid, kind, range, wait } => {
                let holder = Holder { session, family, owner };
                let on_conflict = if wait { OnConflict::Wait } else { OnConflict::Refuse };
                let lock = LockRequest { ino, holder, pid, kind, range };
                self.locks.lock(lock, on_conflict).await.map(|()| MetaReply::Unit)
            }
            MetaOp::Unlock { ino, family, owner, range } => {
                let holder = Holder { session, family, owner };
                self.locks.unlock(ino, holder, range).map(|()| MetaReply::Unit)
            }
            MetaOp::TestLock { ino, owner, kind, range } => {
                let holder = Holder { session, family: LockFamily::Posix, owner };
                let lock = LockRequest { ino, holder, pid: request.credentials.pid, kind, range };
                Ok(MetaReply::Lock(self.locks.test(&lock)))
            }
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    /// Issues capabilities from now on, signed with these keys. Only the first call has an effect.
    pub fn sign_with(&self, ring: Arc<CapabilityRing>) {
        self.capabilities.sign_with(ring);
    }

    /// Sets how many leases the service grants, in each of the tables that inodes are spread over.
    /// The default uses about 450 MiB.
    pub fn limit_leases(&self, limits: namespace::leases::Limits) {
        self.leases.limit(limits);
    }
}

impl Handler<MetaRequest, MetaResponse> for MetaService {
    fn handle(&self, request: MetaRequest, _payload: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
        Box::pin(self.answer(request, None, Deadline::NEVER))
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a net::Caller,
        request: MetaRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<MetaResponse>> {
        self.handle_with_deadline(caller, Deadline::NEVER, request, payload)
    }

    fn handle_with_deadline<'a>(
        &'a self,
        caller: &'a net::Caller,
        deadline: Deadline,
        request: MetaRequest,
        _payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<MetaResponse>> {
        let mut request = match self.apply_export(caller, request) {
            Ok(request) => request,
            Err(refusal) => return Box::pin(async { Err(refusal) }),
        };
        if let MetaOp::Register { pending_creates, pending_changes, .. } = &mut request.op
            && !is_unrestricted(&self.access_rules.of(caller))
        {
            // The session learns its access rules only when it is registered.
            pending_creates.clear();
            pending_changes.clear();
        }
        if !matches!(request.op, MetaOp::Register { .. }) {
            return Box::pin(self.answer(request, Some(caller.holder), deadline));
        }
        Box::pin(async move {
            let id = request.session;
            let registered = self.answer(request, Some(caller.holder), deadline).await?;
            if let Some(session) = self.sessions.find(id) {
                session.set_client_info(caller);
                session.set_export(self.access_rules.of(caller));
            }
            Ok(registered)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn futures_of_requests_are_small() {
        type Parts = (&'static MetaService, MetaRequest);
        // Each future is copied into its box, and the larger ones around it before that.
        let answer = future_bytes(|(service, request): Parts| service.answer(request, None, Deadline::NEVER));
        assert!(answer <= 4096, "{answer} bytes");
    }
}
