//! Commands: the path of one from its request to its commit.

use crate::data::reaper::Reaper;
use crate::data::truncations::PendingTruncations;
use crate::lease::coherence::{Coherence, ConflictFree, Granted};
use crate::lease::recalls::RecallWaits;
use crate::partition::executor::{Abort, CommandOrigin, CommandOutput, Executors, TransactOutcome};
use crate::partition::peers::PeerServices;
use crate::partition::serving::Serving;
use crate::service::MetaOptions;
use crate::session::exports::permit;
use crate::session::table::{Session, SessionKind};
use crate::store::transaction_view::{View, not_owner};
use kv::Store;
use namespace::{Applied, Env};
use net::Deadline;
use std::sync::Arc;
use types::{
    ClusterMap, Credentials, Errno, Error, ExportAccess, InodeId, MapHandle, PartitionId, Result, SessionId,
};
use wire::spec::MetaEffect;
use wire::{MetaOp, MetaReply, MetaRequest};

/// Runs commands.
pub(crate) struct Commands {
    pub options: MetaOptions,
    pub map: MapHandle,
    pub executors: Arc<Executors>,
    pub coherence: Coherence,
    pub recalls: Arc<RecallWaits>,
    pub truncations: Arc<PendingTruncations>,
    /// The other services that share the partitions; `None` if this service owns all of them.
    pub peers: Option<Arc<PeerServices>>,
    pub serving: Arc<Serving>,
    pub reaper: Arc<Reaper>,
}

/// The answer to a command.
pub(crate) struct CommandAnswer {
    pub reply: MetaReply,
    pub granted: Granted,
    /// The client may only read the file.
    pub is_read_only: bool,
    /// The reaper has something to delete in the command's home partition.
    pub dooms_chunk_files: bool,
}

impl CommandAnswer {
    /// The answer to a request that was executed before.
    fn of_earlier(reply: MetaReply) -> CommandAnswer {
        CommandAnswer { reply, granted: Granted::default(), is_read_only: false, dooms_chunk_files: false }
    }
}

/// What a lookup returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupScope {
    WithInode,
    /// Another service owns the inode.
    EntryOnly,
}

impl Commands {
    /// Executes a name space command and returns its answer once it is committed. Waits for recalls
    /// of conflicting leases.
    pub async fn execute(
        self: &Arc<Self>,
        origin: CommandOrigin,
        request: &MetaRequest,
        session: &Arc<Session>,
        deadline: &Deadline,
    ) -> Result<CommandAnswer> {
        let map = self.map.load();
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
            match self.executors.transact((origin, deadline), &partitions, command, enqueued).await? {
                TransactOutcome::Answered(answered) => break answered,
                TransactOutcome::Leases(due) => {
                    // The session that is waited for may be waiting for a lease of this client.
                    let acknowledged = self.recalls.wait_for_acknowledgements(due);
                    deadline.unless_disconnected(acknowledged).await?;
                    // The service answers no more requests; the client asks the next owner.
                    if self.serving.is_stopping() {
                        return Err(not_owner(first));
                    }
                }
                // The inode's own service returns its attributes and grants the lease on it.
                TransactOutcome::CrossPartition(_) if matches!(request.op, MetaOp::Lookup { .. }) => {
                    scope = LookupScope::EntryOnly
                }
                TransactOutcome::CrossPartition(partitions) => {
                    break Box::pin(self.run_cross_partition(request, session, partitions, deadline.clone()))
                        .await?;
                }
            }
        };
        if answer.dooms_chunk_files {
            self.reaper.request(first);
        }
        Ok(answer)
    }

    pub fn apply(
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
            let answer = CommandAnswer { is_read_only, ..CommandAnswer::of_earlier(recorded.reply) };
            return Ok(CommandOutput { answer, writes: Vec::new() });
        }
        // The session may have been evicted while the command waited.
        session.check()?;
        if let Some(reply) = session.replayed_creates.reply_to(&request.op) {
            return Ok(CommandOutput { answer: CommandAnswer::of_earlier(reply), writes: Vec::new() });
        }
        self.coherence.recall_for_names(&request.op, session, (view, conflict_free))?;
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
        if let MetaOp::Reclaim { ino, others } = &request.op {
            let in_use = self.coherence.reclaim(session, &applied.writes);
            if !in_use.is_empty() {
                applied = reclaim_unused(&env, view, others.iter().chain([ino]), &in_use)?;
            }
        }
        if grows_store(&request.op) && !applied.writes.is_empty() {
            check_free_space(&*self.executors.store)?;
        }
        let granted = self.coherence.reconcile(&request.op, session, (view, conflict_free), &mut applied)?;
        self.truncations.track_command(request, &mut applied)?;
        session.store_reply(request, &applied.reply, &mut applied.writes);
        let dooms_chunk_files =
            matches!(request.op, MetaOp::Reclaim { .. }) && namespace::dooms_chunk_files(&applied.writes);
        let answer = CommandAnswer { reply: applied.reply, granted, is_read_only, dooms_chunk_files };
        Ok(CommandOutput { answer, writes: applied.writes })
    }

    /// Executes a command in the name of a session that doesn't exist any more.
    pub async fn run_for_session(self: &Arc<Self>, session: SessionId, op: MetaOp) -> Result<()> {
        let ended_session = Arc::new(Session::new(session, SessionKind::Local));
        self.run_with_leases_of(&ended_session, session, op).await
    }

    /// The same, with the leases of another session.
    pub async fn run_with_leases_of(
        self: &Arc<Self>,
        holder: &Arc<Session>,
        session: SessionId,
        op: MetaOp,
    ) -> Result<()> {
        let request = MetaRequest {
            session,
            slot_sequence: None,
            credentials: Credentials::default(),
            privileged: false,
            op,
        };
        self.execute(CommandOrigin::Background, &request, holder, &Deadline::NEVER).await.map(|_| ())
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

/// Deletes the orphans that aren't in use.
fn reclaim_unused<'a>(
    env: &Env<'_>,
    view: &View<'_>,
    orphans: impl Iterator<Item = &'a InodeId>,
    in_use: &[InodeId],
) -> Result<Applied, Abort> {
    let mut unused: Vec<InodeId> = orphans.copied().filter(|ino| !in_use.contains(ino)).collect();
    match unused.pop() {
        Some(ino) => Ok(namespace::apply(env, view, &MetaOp::Reclaim { ino, others: unused })?),
        None => Ok(Applied { reply: MetaReply::Unit, writes: Vec::new() }),
    }
}

/// Refuses to let the store grow while its disk is nearly full. A failed write would end all
/// writing, also that of deletions.
fn check_free_space(store: &dyn Store) -> Result<(), Abort> {
    if store.has_room() {
        return Ok(());
    }
    let message = format!("the disk of the metadata store at {} is nearly full", store.location());
    Err(Abort::Refused(Error::new(Errno::ENOSPC, message).hint("delete files, or free space on that disk")))
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
