//! The service: its parts, and the path of a request through it.

mod access_times;
pub(crate) mod administration;
mod background;
pub(crate) mod stats;
mod usage;

use crate::data::chunks::Chunks;
use crate::data::group_creation::GroupCreator;
use crate::data::quarantine::Quarantine;
use crate::data::reported_sizes::ReportedSizes;
use crate::data::truncations::PendingTruncations;
use crate::drain::{Claims, Drains, Migrations};
use crate::lease::coherence::{ConflictFree, Granted};
use crate::lease::table::Leases;
use crate::partition::executor::{
    Abort, CommandOrigin, CommandOutput, Executors, PartitionState, TransactOutcome,
};
use crate::partition::peers::{PeerContext, PeerServices};
use crate::service::stats::MetaStats;
use crate::session::eviction::RequestOrigin;
use crate::session::exports::{is_unrestricted, permit};
use crate::session::grace_period::GracePeriod;
use crate::session::locks::Locks;
use crate::session::table::{Session, Sessions};
use crate::store::transaction_view::{View, not_owner, store_error};
use identity::CapabilityRing;
use kv::Store;
use namespace::locks::{Holder, LockRequest, OnConflict};
use namespace::{Applied, Env, ReadError};
use net::{Deadline, Handler, LocalFuture};
use parking_lot::Mutex;
use routing::StorageChannels;
use rt::IoBuf;
use std::sync::{Arc, OnceLock, Weak};
use types::{
    ClusterMap, Credentials, Errno, Error, ExportAccess, InodeId, MapHandle, NodeId, PartitionId, Refusal,
    Result, SessionId, TargetId,
};
use wire::spec::{MetaEffect, Stage};
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
}

/// A metadata service. All cores share it; it has no state of a single core.
pub struct MetaService {
    pub(crate) options: MetaOptions,
    /// Number of this service process: sessions tell it by that from earlier and later processes.
    process: u64,
    /// The other services that share the partitions; `None` if this service owns all of them.
    pub(crate) peers: Option<PeerServices>,
    pub(crate) executors: Executors,
    pub(crate) sessions: Sessions,
    pub(crate) grace: GracePeriod,
    pub(crate) locks: Locks,
    pub(crate) leases: Leases,
    pub(crate) truncations: PendingTruncations,
    /// Sessions that were evicted while a target was down, which still has to be fenced. Bounded by
    /// the evictions during that time.
    pub(crate) pending_fences: Mutex<Vec<(SessionId, TargetId)>>,
    /// Sessions that an administrator evicts. One entry for each command.
    pub(crate) evictions: (Mutex<Vec<SessionId>>, rt::sync::Event),
    /// The keys that sign capabilities; empty if the service issues none.
    pub(crate) capabilities: OnceLock<Arc<CapabilityRing>>,
    /// Access rules for clients of certain networks.
    pub(crate) exports: net::Exports,
    pub(crate) chunks: Chunks,
    pub(crate) claims: Claims,
    /// Files in quarantine.
    pub(crate) quarantine: Quarantine,
    pub(crate) reported_sizes: ReportedSizes,
    pub(crate) drains: Drains,
    pub(crate) migrations: Migrations,
    /// Creates groups for pools and schemes that a file asks for.
    pub(crate) group_creator: OnceLock<Arc<dyn GroupCreator>>,
    /// Set when there may be chunk files to delete.
    pub(crate) reap_needed: rt::sync::Event,
    pub(crate) stopping: rt::sync::Event,
    /// A reference to the service itself, for tasks that outlive the request that started them.
    pub(crate) self_ref: Weak<MetaService>,
}

/// The answer to a command.
pub(crate) struct CommandAnswer {
    pub reply: MetaReply,
    granted: Granted,
    /// The client may only read the file.
    is_read_only: bool,
}

/// What a lookup returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupScope {
    WithInode,
    /// Another service owns the inode.
    EntryOnly,
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
        let service = MetaService::make(store, options, map, storage.into(), None);
        let all: Vec<PartitionId> = service.all_partitions().collect();
        service.adopt(&all, PartitionState::Reclaiming).await?;
        service.open_after_grace();
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
        let peers = PeerServices::new(options.node, map.clone(), context);
        MetaService::make(store, options, map, storage.into(), Some(peers))
    }

    fn make(
        store: Arc<dyn Store>,
        options: MetaOptions,
        map: MapHandle,
        storage: StorageChannels,
        peers: Option<PeerServices>,
    ) -> Arc<MetaService> {
        Arc::new_cyclic(|myself| MetaService {
            options,
            process: rt::random_u64().max(1),
            peers,
            executors: Executors::new(store, options.partitions),
            sessions: Sessions::default(),
            grace: GracePeriod::default(),
            locks: Locks::default(),
            leases: Leases::default(),
            truncations: PendingTruncations::default(),
            pending_fences: Mutex::default(),
            evictions: (Mutex::default(), rt::sync::Event::new()),
            capabilities: OnceLock::new(),
            exports: net::Exports::default(),
            chunks: Chunks { map, channels: storage },
            claims: Claims::default(),
            quarantine: Quarantine::default(),
            reported_sizes: ReportedSizes::default(),
            drains: Drains::default(),
            migrations: Migrations::default(),
            group_creator: OnceLock::new(),
            reap_needed: rt::sync::Event::new(),
            stopping: rt::sync::Event::new(),
            self_ref: myself.clone(),
        })
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

    pub(crate) fn all_partitions(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.options.partitions).map(PartitionId)
    }

    /// Whether the file system has this partition.
    pub(crate) fn has_partition(&self, partition: PartitionId) -> bool {
        partition.0 < self.options.partitions
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
        self.check_holder_if_known(id, holder)?;
        match &request.op {
            MetaOp::Register { in_use, pending_creates, reporting_process } => {
                self.require_current_process(*reporting_process)?;
                self.register(id, (in_use, pending_creates), holder).await?;
                return Ok(self.unit_with_verifier());
            }
            MetaOp::ReclaimLocks { locks } => self.reclaim_locks(id, locks).await?,
            MetaOp::ReclaimOpens { inodes } => self.reclaim_opens(id, inodes)?,
            MetaOp::ReclaimSizes { sizes } => {
                self.reclaim_sizes(id, sizes)?;
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
        self.require_service()?;
        // What is rare, or takes long, is kept out of the future of every request.
        if request.op.spec().stage == Stage::Reclaim {
            return Box::pin(self.reclaim_state(request, holder)).await;
        }
        let origin = holder.map_or(RequestOrigin::InProcess, |_| RequestOrigin::OtherProcess);
        if self.is_unmount_of_unknown_session(&request)? {
            return Box::pin(self.end_cleanly(request.session)).await.map(|()| MetaReply::Unit.into());
        }
        let session = self.session_of(request.session, origin)?;
        holder.map_or(Ok(()), |holder| self.check_holder(&session, holder))?;
        if session.is_remote() {
            session.note_contact();
        }
        let reply = match request.op {
            MetaOp::Lock { ino, .. } | MetaOp::Unlock { ino, .. } | MetaOp::TestLock { ino, .. } => {
                let term = self.require_owned(ino).await?;
                if !matches!(request.op, MetaOp::Unlock { .. }) {
                    Box::pin(self.wait_until_serving(ino)).await?;
                }
                let answer = Box::pin(self.answer_lock(request)).await;
                // The service may have released the partition meanwhile, with all its locks.
                self.require_owned(ino).await?;
                self.require_term(term)?;
                answer?
            }
            MetaOp::Follow { partitions, in_use, pending_creates, reporting_process } => {
                self.require_current_process(reporting_process)?;
                Box::pin(self.reclaim_partitions(&session, &partitions, (&in_use, &pending_creates))).await?;
                return Ok(self.unit_with_verifier());
            }
            MetaOp::NextRecalls { after } => {
                let next_reply = self.next_recalls(&session, after).await?;
                // A client relies on its leases for some time after an answer, even if it receives
                // nothing else.
                self.require_service()?;
                next_reply
            }
            MetaOp::SupplyGroups { groups, .. } => {
                session.users.set_groups(request.credentials, groups).map(|()| MetaReply::Unit)?
            }
            MetaOp::RecallsInProgress { seen } => session.note_working(seen),
            MetaOp::AckRecalls { acks: yields } => {
                Box::pin(self.handle_acknowledgements(&session, &yields)).await
            }
            MetaOp::Release { inodes, seen } => Box::pin(self.handle_releases(&session, &inodes, seen)).await,
            MetaOp::EndSession => {
                Box::pin(self.end_cleanly(request.session)).await.map(|()| MetaReply::Unit)?
            }
            MetaOp::NoteAccess { accesses } => {
                Box::pin(self.record_access_times(&accesses)).await.map(|()| MetaReply::Unit)?
            }
            MetaOp::Usage => MetaReply::Usage(Box::pin(self.usage()).await?),
            MetaOp::Sync => {
                self.executors.store.sync().await.map_err(|error| store_error(&error))?;
                return Ok(self.unit_with_verifier());
            }
            _ => {
                if self.grace.is_on() && self.peers.is_none() {
                    self.wait_for_grace().await;
                }
                let answered = self.execute_at_home(&request, &session, deadline).await;
                let CommandAnswer { mut reply, granted, is_read_only } =
                    answered.inspect_err(|error| self.record_refusal(&request.op, error))?;
                self.answer_migration(&request.op, &mut reply)?;
                let Granted { grants, last_recall: recalls, directories } = granted;
                let capability = self.capability_for(&session, &request.op, &reply, is_read_only);
                return Ok(MetaResponse { reply, grants, recalls, capability, directories, verifier: 0 });
            }
        };
        Ok(reply.into())
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
        deadline: Deadline,
    ) -> Result<CommandAnswer> {
        let home = namespace::home_partition(&request.op);
        loop {
            let term = self.require_service()?;
            match self.execute_with_groups(request, session, deadline).await {
                Err(error) if error.errno == Refusal::PartitionNotServed && !self.is_owned(home) => {
                    Box::pin(self.wait_until_owned(home, error)).await?;
                }
                // The result is invalid once another service may have taken over the partitions.
                answer => return self.require_term(term).and(answer),
            }
        }
    }

    /// Refuses requests while management may have assigned the partitions to other services.
    /// Returns the term in which this service owns them.
    pub(crate) fn require_service(&self) -> Result<u64> {
        let Some(peers) = &self.peers else { return Ok(0) };
        peers.serving_term().ok_or_else(cut_off_error)
    }

    /// Refuses a result that was obtained in another term.
    fn require_term(&self, term: u64) -> Result<()> {
        if self.require_service()? == term { Ok(()) } else { Err(cut_off_error()) }
    }

    async fn require_owned(&self, ino: InodeId) -> Result<u64> {
        let term = self.require_service()?;
        let partition = ino.partition();
        if self.has_partition(partition) && !self.is_owned(partition) {
            Box::pin(self.wait_until_owned(partition, not_owner(partition))).await?;
        }
        Ok(term)
    }

    /// Waits for sessions that have not reclaimed their state of a partition yet: they may hold
    /// what the client requests.
    async fn wait_until_serving(&self, ino: InodeId) -> Result<()> {
        let partition = ino.partition();
        if self.peers.is_none() || !self.has_partition(partition) {
            return Ok(());
        }
        let nothing = |_: &View<'_>| Ok(CommandOutput { answer: (), writes: Vec::new() });
        self.executors.transact(CommandOrigin::Command, &[partition], nothing, |_, _| ()).await.map(drop)
    }

    async fn answer_lock(&self, request: MetaRequest) -> Result<MetaReply> {
        let session = request.session;
        if self.grace.is_on() && !matches!(request.op, MetaOp::Unlock { .. }) {
            // A session of the previous owner that has not reclaimed its locks yet may hold this
            // one.
            self.wait_for_grace().await;
        }
        match request.op {
            MetaOp::Lock { ino, family: space, owner, pid, kind, range, wait } => {
                let holder = Holder { session, family: space, owner };
                let on_conflict = if wait { OnConflict::Wait } else { OnConflict::Refuse };
                let lock = LockRequest { ino, holder, pid, kind, range };
                self.locks.lock(lock, on_conflict).await.map(|()| MetaReply::Unit)
            }
            MetaOp::Unlock { ino, family: space, owner, range } => {
                let holder = Holder { session, family: space, owner };
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

    /// Sets how many leases the service grants, in each of the tables that inodes are spread over.
    /// The default uses about 450 MiB.
    pub fn limit_leases(&self, limits: namespace::leases::Limits) {
        self.leases.limit(limits);
    }

    /// Executes a name space command and returns its answer once it is committed. Waits for recalls
    /// of conflicting leases.
    pub(crate) async fn execute(
        &self,
        origin: CommandOrigin,
        request: &MetaRequest,
        session: &Arc<Session>,
        deadline: Deadline,
    ) -> Result<CommandAnswer> {
        let map = self.chunks.map.load();
        let (first, second) = partitions_of(&request.op);
        let partitions = [first, second.unwrap_or(first)];
        let number = request.slot_sequence;
        let conflict_free = ConflictFree::default();
        let mut scope = LookupScope::WithInode;
        let answer = loop {
            let command = |view: &View<'_>| {
                // The command may have waited for long. After the time-out the application was told
                // that it failed, so that executing it now could undo what the application did
                // since.
                if deadline.has_passed() {
                    return Err(Abort::Refused(deadline.error()));
                }
                self.apply((request, scope), session, &map, (view, &conflict_free))
            };
            let enqueued = |ticket: &kv::Ticket, answered: &CommandAnswer| {
                session.cache_reply(number, &answered.reply, ticket);
            };
            match self.executors.transact(origin, &partitions, command, enqueued).await? {
                TransactOutcome::Answered(answered) => break answered,
                TransactOutcome::Leases(due) => {
                    self.wait_for_acknowledgements(due).await;
                    // The service answers no more requests; the client asks the next owner.
                    if self.stopping.is_set() {
                        return Err(not_owner(first));
                    }
                }
                // The inode's own service returns its attributes and grants the lease on it.
                TransactOutcome::CrossPartition(_) if matches!(request.op, MetaOp::Lookup { .. }) => {
                    scope = LookupScope::EntryOnly
                }
                TransactOutcome::CrossPartition(partitions) => {
                    break Box::pin(self.run_cross_partition(request, session, partitions, deadline)).await?;
                }
            }
        };
        if matches!(request.op, MetaOp::Reclaim { .. }) {
            self.reap_needed.set();
        }
        Ok(answer)
    }

    pub(crate) fn apply(
        &self,
        (request, scope): (&MetaRequest, LookupScope),
        session: &Session,
        map: &ClusterMap,
        (view, conflict_free): (&View<'_>, &ConflictFree),
    ) -> Result<CommandOutput<CommandAnswer>, Abort> {
        // Checked while the executors are locked: another core may be executing the original of
        // this retransmission.
        if let Some(recorded) = session.cached_reply(request.slot_sequence)? {
            self.executors.counters.repeated.add(1);
            recorded.ticket.iter().for_each(|ticket| view.depend_on(ticket));
            let is_read_only = session.export().access == ExportAccess::Ro;
            let answer = CommandAnswer { reply: recorded.reply, granted: Granted::default(), is_read_only };
            return Ok(CommandOutput { answer, writes: Vec::new() });
        }
        // The session may have been evicted while the command waited.
        session.check()?;
        if let Some(reply) = session.replayed_creates.reply_to(&request.op) {
            let answer = CommandAnswer { reply, granted: Granted::default(), is_read_only: false };
            return Ok(CommandOutput { answer, writes: Vec::new() });
        }
        self.recall_for_names(&request.op, session, (view, conflict_free))?;
        if let MetaOp::Lookup { parent, name } = &request.op
            && !matches!(&name[..], b"." | b"..")
        {
            view.searched_dir.set(Some(*parent));
        }
        let env = env(&self.options, request.session, request.credentials, map);
        let is_read_only = permit(request, session, &env, view)?;
        let mut applied = match (&request.op, scope) {
            (MetaOp::Lookup { parent, name }, LookupScope::EntryOnly) => {
                let (ino, mode) = namespace::find(&env, view, *parent, name)?;
                Applied { reply: MetaReply::Redirect { ino, mode }, writes: Vec::new() }
            }
            (op, _) => namespace::apply(&env, view, op)?,
        };
        if grows_store(&request.op) && !applied.writes.is_empty() {
            self.check_free_space()?;
        }
        let granted = self.reconcile(&request.op, session, (view, conflict_free), &mut applied)?;
        self.track_truncation(request, &mut applied)?;
        session.store_reply(request, &applied.reply, &mut applied.writes);
        let answer = CommandAnswer { reply: applied.reply, granted, is_read_only };
        Ok(CommandOutput { answer, writes: applied.writes })
    }

    /// Refuses to let the store grow while its disk is nearly full. A failed write would end all
    /// writing, also that of deletions.
    fn check_free_space(&self) -> Result<(), Abort> {
        let store = &self.executors.store;
        if store.has_room() {
            return Ok(());
        }
        let message = format!("the disk of the metadata store at {} is nearly full", store.location());
        Err(Abort::Refused(
            Error::new(Errno::ENOSPC, message).hint("delete files, or free space on that disk"),
        ))
    }

    /// Reads from a partition in background work.
    pub(crate) async fn read<T>(
        &self,
        partition: PartitionId,
        mut read: impl FnMut(&View<'_>) -> Result<T, ReadError>,
    ) -> Result<T> {
        let command = |view: &View<'_>| match read(view) {
            Ok(answer) => Ok(CommandOutput { answer, writes: Vec::new() }),
            Err(ReadError::NeedPartition(partition)) => Err(Abort::NeedPartition(partition)),
            Err(ReadError::Store(error)) => Err(Abort::Refused(error)),
            Err(ReadError::NotFetched) => Err(Abort::NotFetched),
        };
        self.executors.transact_without_leases(partition, command).await
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
        if let MetaOp::Register { pending_creates, .. } = &mut request.op
            && !is_unrestricted(&self.export_of(caller))
        {
            // The session learns its access rules only when it is registered.
            pending_creates.clear();
        }
        if !matches!(request.op, MetaOp::Register { .. }) {
            return Box::pin(self.answer(request, Some(caller.holder), deadline));
        }
        Box::pin(async move {
            let id = request.session;
            let registered = self.answer(request, Some(caller.holder), deadline).await?;
            if let Some(session) = self.sessions.find(id) {
                session.set_client_info(caller);
                session.set_export(self.export_of(caller));
            }
            Ok(registered)
        })
    }
}

pub(crate) fn env<'a>(
    options: &MetaOptions,
    session: SessionId,
    credentials: Credentials,
    map: &'a ClusterMap,
) -> Env<'a> {
    Env {
        now: rt::now(),
        session,
        credentials,
        hash_key: options.hash_key,
        partitions: options.partitions,
        seed: rt::random_u64(),
        map,
    }
}

fn cut_off_error() -> Error {
    let message = "this metadata service can't reach management, or couldn't until just now";
    Error::new(Refusal::PartitionNotServed, message).hint("check the network of its node")
}

/// Whether a command makes the store grow. The other commands free space, or need so little that
/// they may use the reserve: a client must be able to finish a file that it began, and a full file
/// system must be cleaned up.
fn grows_store(op: &MetaOp) -> bool {
    op.spec().effect == MetaEffect::Grow
}

/// The partitions that a command certainly needs.
fn partitions_of(op: &MetaOp) -> (PartitionId, Option<PartitionId>) {
    let first = namespace::home_partition(op);
    let second = op.spec().other.map(|ino| ino.partition()).filter(|partition| *partition != first);
    (first, second)
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
