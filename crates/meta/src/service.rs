//! The service: what it is made of, and the way of a request through it.

use crate::chunks::Chunks;
use crate::coherence::Granted;
use crate::drain::{Claims, Drains};
use crate::executor::{Change, Executors, Ran, Stop};
use crate::grace::{Grace, stored_sessions};
use crate::leases::Leases;
use crate::locks::Locks;
use crate::record::Owner;
use crate::sessions::{Session, Sessions};
use crate::stats::MetaStats;
use crate::view::{View, store_error};
use kv::{Batch, Guard, Outcome, Writer};
use namespace::locks::{Holder, LockRequest, OnConflict};
use namespace::{Env, ReadError, keys};
use net::{Handler, LocalFuture, StorageChannels};
use parking_lot::Mutex;
use prost::Message;
use rt::IoBuf;
use std::sync::{Arc, PoisonError, Weak};
use types::{
    ClusterMap, Credentials, Errno, Error, InodeId, MapHandle, NodeId, PartitionId, Result, SessionId,
    TargetId,
};
use wire::{LockSpace, MetaOp, MetaReply, MetaRequest, MetaResponse};

/// What a service is told when it is opened.
#[derive(Clone, Copy, Debug)]
pub struct MetaOptions {
    /// The node that it runs on.
    pub node: NodeId,
    /// Key of the name hash, fixed when the file system is made.
    pub hash_key: (u64, u64),
    /// Number of partitions, fixed when the file system is made.
    pub partitions: u16,
}

/// A metadata service. Every core may use it; nothing in it belongs to one.
pub struct MetaService {
    options: MetaOptions,
    pub(crate) executors: Executors,
    pub(crate) sessions: Sessions,
    pub(crate) grace: Grace,
    pub(crate) locks: Locks,
    pub(crate) leases: Leases,
    /// Sessions that ended without a target's knowledge. Evictions while it is down bound them.
    pub(crate) owed_fences: Mutex<Vec<(SessionId, TargetId)>>,
    pub(crate) chunks: Chunks,
    pub(crate) claims: Claims,
    pub(crate) drains: Drains,
    /// There may be chunks to delete.
    pub(crate) doomed: rt::sync::Event,
    pub(crate) stopping: rt::sync::Event,
    /// Itself, for work that goes on when the request that began it is dropped.
    pub(crate) myself: Weak<MetaService>,
}

/// What a command is answered.
pub(crate) struct Answered {
    reply: MetaReply,
    granted: Granted,
}

impl MetaService {
    /// Takes all partitions over from whoever had them, and makes an empty file system when there is none.
    ///
    /// Errors: the store's; `EBUSY` when another service does the same at this moment.
    pub async fn open(
        writer: Arc<Writer>,
        options: MetaOptions,
        map: MapHandle,
        storage: impl Into<StorageChannels>,
    ) -> Result<Arc<MetaService>> {
        let owners = take_over(&writer, &options, &map).await?;
        let (living, ended) = stored_sessions(&**writer.engine())?;
        Ok(Arc::new_cyclic(|myself| MetaService {
            options,
            executors: Executors::new(writer, owners),
            sessions: Sessions::new(ended),
            grace: Grace::new(living),
            locks: Locks::default(),
            leases: Leases::default(),
            owed_fences: Mutex::default(),
            chunks: Chunks { map, channels: storage.into() },
            claims: Claims::default(),
            drains: Drains::default(),
            doomed: rt::sync::Event::new(),
            stopping: rt::sync::Event::new(),
            myself: myself.clone(),
        }))
    }

    /// Counts since the service was opened.
    pub fn stats(&self) -> MetaStats {
        let counters = &self.executors.counters;
        let writer = self.executors.writer.stats();
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

    /// Whether inodes can have this partition.
    pub(crate) fn has_partition(&self, partition: PartitionId) -> bool {
        partition.0 < self.options.partitions
    }

    async fn answer(&self, request: MetaRequest) -> Result<MetaResponse> {
        let answer = self.dispatch(request).await;
        self.executors.counters.commands.add(1);
        if answer.is_err() {
            self.executors.counters.refused.add(1);
        }
        answer
    }

    async fn dispatch(&self, request: MetaRequest) -> Result<MetaResponse> {
        if let MetaOp::Register { in_use } = &request.op {
            return self.register(request.session, in_use).await.map(|()| MetaReply::Unit.into());
        }
        let session = self.session_of(request.session)?;
        if session.is_remote() {
            session.hear();
        }
        let reply = match request.op {
            MetaOp::Lock { .. } | MetaOp::Unlock { .. } | MetaOp::TestLock { .. } => {
                self.answer_lock(request).await?
            }
            MetaOp::NextRecalls { after } => MetaReply::Recalls(self.next_recalls(&session, after).await?),
            MetaOp::Yield { yields } => self.take_yields(&session, &yields),
            MetaOp::Release { inodes, seen } => self.take_releases(&session, &inodes, seen),
            MetaOp::EndSession => self.end_in_good_order(request.session).await.map(|()| MetaReply::Unit)?,
            MetaOp::Sync => {
                let synced = self.executors.writer.sync().await;
                synced.map(|()| MetaReply::Unit).map_err(|error| store_error(&error))?
            }
            _ => {
                if self.grace.is_on() {
                    self.wait_for_grace().await;
                }
                let Answered { reply, granted } = self.execute(&request, &session).await?;
                return Ok(MetaResponse { reply, grants: granted.grants, recalls: granted.recalls });
            }
        };
        Ok(reply.into())
    }

    async fn answer_lock(&self, request: MetaRequest) -> Result<MetaReply> {
        let session = request.session;
        match request.op {
            MetaOp::Lock { ino, space, owner, pid, kind, range, wait } => {
                let holder = Holder { session, space, owner };
                let on_conflict = if wait { OnConflict::Wait } else { OnConflict::Refuse };
                let lock = LockRequest { ino, holder, pid, kind, range };
                self.locks.lock(lock, on_conflict).await.map(|()| MetaReply::Unit)
            }
            MetaOp::Unlock { ino, space, owner, range } => {
                let holder = Holder { session, space, owner };
                self.locks.unlock(ino, holder, range).map(|()| MetaReply::Unit)
            }
            MetaOp::TestLock { ino, owner, kind, range } => {
                let holder = Holder { session, space: LockSpace::Posix, owner };
                let lock = LockRequest { ino, holder, pid: request.credentials.pid, kind, range };
                Ok(MetaReply::Lock(self.locks.test(&lock)))
            }
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    /// Carries out a command of the namespace and returns its answer once that is committed. Waits for leases in its way.
    pub(crate) async fn execute(&self, request: &MetaRequest, session: &Arc<Session>) -> Result<Answered> {
        let map = self.chunks.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (first, second) = partitions_of(&request.op);
        let partitions = [first, second.unwrap_or(first)];
        let sequence = request.sequence;
        let answer = loop {
            let command = |view: &View<'_>| self.apply(request, session, &map, view);
            let enqueued = |ticket: &kv::Ticket, answered: &Answered| {
                session.record(sequence, &answered.reply, ticket);
            };
            match self.executors.transact(&partitions, command, enqueued).await? {
                Ran::Answered(answered) => break answered,
                Ran::Leases(due) => self.wait_for_answers(due).await,
            }
        };
        if matches!(request.op, MetaOp::Reclaim { .. }) {
            self.doomed.set();
        }
        Ok(answer)
    }

    fn apply(
        &self,
        request: &MetaRequest,
        session: &Session,
        map: &ClusterMap,
        view: &View<'_>,
    ) -> Result<Change<Answered>, Stop> {
        // Looked up while the partition is held: the first copy of the request may be in another core's hands.
        if let Some(recorded) = session.recorded(request.sequence) {
            self.executors.counters.repeated.add(1);
            recorded.ticket.iter().for_each(|ticket| view.see(ticket));
            let answer = Answered { reply: recorded.reply, granted: Granted::default() };
            return Ok(Change { answer, writes: Vec::new() });
        }
        // It may have been evicted while it waited.
        session.check()?;
        let env = env(&self.options, request.session, request.credentials, map);
        let mut applied = namespace::apply(&env, view, &request.op)?;
        if needs_room(&request.op) && !applied.writes.is_empty() {
            self.check_room()?;
        }
        let granted = self.reconcile(&request.op, session, view, &mut applied)?;
        session.record_durably(request.sequence, &applied.reply, &mut applied.writes);
        let answer = Answered { reply: applied.reply, granted };
        Ok(Change { answer, writes: applied.writes })
    }

    /// Refuses to let the store grow while its disk is nearly full. A failed write would end all writing, of removals, too.
    fn check_room(&self) -> Result<(), Stop> {
        let engine = self.executors.writer.engine();
        if engine.has_room() {
            return Ok(());
        }
        let message = format!("the disk of the metadata store at {} is nearly full", engine.place());
        Err(Stop::Refused(
            Error::new(Errno::ENOSPC, message).hint("delete files, or free space on that disk"),
        ))
    }

    /// Reads a partition as background work does.
    pub(crate) async fn read<T>(
        &self,
        partition: PartitionId,
        mut read: impl FnMut(&View<'_>) -> Result<T, ReadError>,
    ) -> Result<T> {
        let command = |view: &View<'_>| match read(view) {
            Ok(answer) => Ok(Change { answer, writes: Vec::new() }),
            Err(ReadError::NeedPartition(partition)) => Err(Stop::NeedPartition(partition)),
            Err(ReadError::Store(error)) => Err(Stop::Refused(error)),
        };
        self.executors.transact_freely(partition, command).await
    }
}

impl Handler<MetaRequest, MetaResponse> for MetaService {
    fn handle(&self, request: MetaRequest, _payload: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
        Box::pin(self.answer(request))
    }
}

fn env<'a>(
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

/// Whether a command makes the store grow. The others free space, or need so little that they may use what is kept for them: a
/// file that was begun has to be ended, and a full file system has to be tidied.
fn needs_room(op: &MetaOp) -> bool {
    matches!(
        op,
        MetaOp::Create { .. }
            | MetaOp::Mkdir { .. }
            | MetaOp::Symlink { .. }
            | MetaOp::Tmpfile { .. }
            | MetaOp::Link { .. }
            | MetaOp::SetXattr { .. }
            | MetaOp::WriteInline { .. }
    )
}

/// The partitions that a command surely needs.
fn partitions_of(op: &MetaOp) -> (PartitionId, Option<PartitionId>) {
    let first = namespace::home_partition(op);
    let second = match op {
        MetaOp::Link { ino, parent, .. } => Some([ino, parent]),
        MetaOp::Rename { parent, new_parent, .. } => Some([parent, new_parent]),
        _ => None,
    };
    (first, second.and_then(|pair| pair.map(|ino| ino.partition()).into_iter().find(|p| *p != first)))
}

/// Writes the service's name on every partition, and the root directory of a new file system. Returns what every later
/// commit checks.
async fn take_over(writer: &Writer, options: &MetaOptions, map: &MapHandle) -> Result<Vec<Guard>> {
    let engine = writer.engine();
    let get = |key: &[u8]| engine.get(key).map_err(|error| store_error(&error));
    let mut batch = Batch::default();
    let mut owners = Vec::with_capacity(options.partitions as usize);
    for partition in (0..options.partitions).map(PartitionId) {
        let key = keys::owner(partition).to_vec();
        let before = get(&key)?;
        let owner = Owner::after(before.as_deref(), options.node).map_err(|cause| {
            Error::new(Errno::EIO, format!("the owner record of partition {partition} is damaged: {cause}"))
        })?;
        let value = owner.encode_to_vec();
        batch.guards.push(Guard { key: key.clone(), expected: before });
        batch.writes.push((key.clone(), Some(value.clone().into())));
        owners.push(Guard { key, expected: Some(value.into()) });
    }
    if get(&keys::inode(InodeId::ROOT))?.is_none() {
        let map = map.read().unwrap_or_else(PoisonError::into_inner).clone();
        batch.writes.extend(namespace::format(&env(options, SessionId(0), Credentials::default(), &map)));
    }
    match writer.commit(batch).await.map_err(|error| store_error(&error))? {
        Outcome::Won => Ok(owners),
        Outcome::Lost | Outcome::Unknown => {
            Err(Error::new(Errno::EBUSY, "another metadata service takes the partitions over at this moment"))
        }
    }
}
