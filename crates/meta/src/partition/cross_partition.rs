//! Cross-partition transactions: commands that also need partitions of other services. These are
//! renames, links and removals across directories, and new directories.
//!
//! The coordinator locks all partitions before it runs the command: its own, and those of other
//! services, in ascending order, so that no two transactions deadlock. It commits one batch,
//! guarded by the owner records of all of them, and unlocks them. If the command turns out to need
//! one more partition, or leases have to be recalled, it unlocks everything first: what sessions
//! flush at a recall needs these very partitions.

use crate::lease::coherence::ConflictFree;
use crate::limits::{
    CROSS_PARTITION_BACKOFF, CROSS_PARTITION_TIMEOUT, REMOTE_LOCK_TIMEOUT, REMOTE_RECALL_TIMEOUT,
};
use crate::partition::executor::{Abort, Attempt, CommandOrigin, ExecutionScope, Reading, RemotePartition};
use crate::partition::peers::{PartitionsChannel, PeerServices};
use crate::service::command::{CommandAnswer, Commands, LookupScope};
use crate::session::table::Session;
use crate::store::transaction_view::{View, not_owner, store_error};
use kv::{Guard, Outcome, Ticket};
use namespace::keys;
use namespace::leases::{InodeAccess, PendingRecall};
use net::Deadline;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Errno, Error, InodeId, PartitionId, Refusal, Result};
use wire::{MetaRequest, PartitionsReply, PartitionsRequest};

/// A command with its context.
struct CrossPartitionTx {
    commands: Arc<Commands>,
    request: MetaRequest,
    session: Arc<Session>,
    /// When the caller stops waiting for the answer.
    deadline: Deadline,
}

/// Partitions that a transaction has locked.
struct LockedPartitions {
    token: u64,
    own: Vec<PartitionId>,
    remote: Vec<RemotePartition>,
    channels: BTreeMap<PartitionId, PartitionsChannel>,
    conflict_free: ConflictFree,
}

/// Outcome of one attempt.
enum TxStep {
    Answered(Box<CommandAnswer>),
    Refused(Error),
    /// It is unknown whether the commit happened. Partitions of other services are not unlocked:
    /// their owners find out by revoking the lock.
    Uncertain(Error),
    /// The command needs this partition, too.
    Need(PartitionId),
    /// These recalls must be acknowledged first.
    Leases(Vec<PendingRecall>),
    /// These leases of other services must be recalled first.
    RecallRemote(Vec<(InodeId, InodeAccess)>),
    /// The conditions have changed: try again.
    Retry,
}

impl Commands {
    /// Runs a command on partitions some of which other services own. Continues when the caller is
    /// dropped: other commands wait for the partitions that it has locked.
    pub(crate) async fn run_cross_partition(
        self: &Arc<Self>,
        request: &MetaRequest,
        session: &Arc<Session>,
        partitions: Vec<PartitionId>,
        deadline: Deadline,
    ) -> Result<CommandAnswer> {
        if self.peers.is_none() {
            return Err(not_owner(namespace::home_partition(&request.op)));
        }
        let transaction = CrossPartitionTx {
            commands: self.clone(),
            request: request.clone(),
            session: session.clone(),
            deadline,
        };
        let outcome = Arc::new((Mutex::new(None), Event::new()));
        let task_outcome = outcome.clone();
        rt::spawn(async move {
            let answer = transaction.run(partitions).await;
            *task_outcome.0.lock() = Some(answer);
            task_outcome.1.set();
        });
        outcome.1.wait().await;
        let answer = outcome.0.lock().take();
        answer.unwrap_or_else(|| Err(Errno::ECANCELED.into()))
    }
}

impl CrossPartitionTx {
    fn peers(&self) -> Result<&PeerServices> {
        self.commands.peers.as_deref().ok_or_else(|| Refusal::PartitionNotServed.into())
    }

    async fn run(&self, mut partitions: Vec<PartitionId>) -> Result<CommandAnswer> {
        let began_ns = rt::monotonic_ns();
        loop {
            if self.deadline.has_passed() {
                return Err(self.deadline.error());
            }
            let step = match self.lock_all(&partitions).await {
                Ok(locked) => {
                    let step = self.run_locked(&locked).await;
                    match step {
                        TxStep::Uncertain(_) => locked
                            .own
                            .iter()
                            .for_each(|p| self.commands.executors.unlock_partition(*p, locked.token, None)),
                        _ => self.unlock_all(locked, matches!(step, TxStep::Answered(_))),
                    }
                    step
                }
                Err(error) if error.errno == Errno::EAGAIN => TxStep::Retry,
                Err(error) => return Err(error),
            };
            self.commands.executors.counters.reruns.add(1);
            match step {
                TxStep::Answered(answer) => return Ok(*answer),
                TxStep::Refused(error) | TxStep::Uncertain(error) => return Err(error),
                TxStep::Need(partition) => match partitions.binary_search(&partition) {
                    Err(at) => partitions.insert(at, partition),
                    Ok(_) => return Err(not_owner(partition)),
                },
                TxStep::Leases(due) => self.commands.recalls.wait_for_acknowledgements(due).await,
                TxStep::RecallRemote(accesses) => self.wait_for_remote_recalls(accesses).await,
                TxStep::Retry => rt::sleep(CROSS_PARTITION_BACKOFF).await,
            }
            if rt::monotonic_ns() - began_ns > CROSS_PARTITION_TIMEOUT.as_nanos() as u64 {
                let message = "a partition of this request can't be locked at its metadata service";
                // The client asks again, as long as its own time-out allows.
                return Err(Error::new(Refusal::PartitionNotServed, message));
            }
        }
    }

    /// Locks all partitions, in ascending order.
    ///
    /// # Errors
    /// `PartitionNotServed` when another service owns the command's home partition; `EAGAIN` when a
    /// partition can't be locked now. No partition stays locked then.
    async fn lock_all(&self, partitions: &[PartitionId]) -> Result<LockedPartitions> {
        let mut locked = LockedPartitions {
            // A new token for each attempt: a message about an earlier lock must not affect a later
            // one.
            token: rt::random_u64().max(1),
            own: Vec::new(),
            remote: Vec::new(),
            channels: BTreeMap::new(),
            conflict_free: ConflictFree::default(),
        };
        for &partition in partitions {
            if let Err(error) = self.lock_one(partition, &mut locked).await {
                self.unlock_all(locked, false);
                let is_lost = partition == namespace::home_partition(&self.request.op);
                return match error.errno {
                    Errno::Refusal(Refusal::PartitionNotServed) if is_lost => Err(error),
                    // The service isn't the owner any more, or doesn't answer: the cluster map will
                    // name the owner.
                    Errno::Refusal(Refusal::PartitionNotServed)
                    | Errno::ETIMEDOUT
                    | Errno::EHOSTDOWN
                    | Errno::EAGAIN => Err(Error::new(Errno::EAGAIN, error.message)),
                    _ => Err(error),
                };
            }
        }
        Ok(locked)
    }

    async fn lock_one(&self, partition: PartitionId, locked: &mut LockedPartitions) -> Result<()> {
        let is_own = self.commands.executors.lock(partition)?.is_owned();
        if is_own || partition == namespace::home_partition(&self.request.op) {
            self.commands.executors.lock_partition(partition, locked.token).await?;
            locked.own.push(partition);
            return Ok(());
        }
        let channel = self.peers()?.owner_of(partition)?;
        let request = PartitionsRequest::LockPartition { partition, token: locked.token };
        let answer = rt::timeout(REMOTE_LOCK_TIMEOUT, channel.call(request, None))
            .await
            .unwrap_or(Err(Errno::ETIMEDOUT.into()));
        let (owner, no_leases) = match answer {
            Ok(PartitionsReply::Locked { owner, no_leases }) => (owner, no_leases),
            Ok(_) => return Err(unexpected_reply()),
            Err(refused)
                if matches!(refused.errno, Errno::Refusal(Refusal::PartitionNotServed) | Errno::EAGAIN) =>
            {
                return Err(refused);
            }
            Err(error) => {
                // The owner may have locked it, and the answer was lost.
                rt::spawn(return_partition(channel, partition, locked.token, Vec::new()));
                return Err(error);
            }
        };
        let owner = Guard { key: keys::owner(partition).to_vec(), expected: Some(owner) };
        locked.remote.push(RemotePartition { owner, partition, written: Mutex::default() });
        locked.channels.insert(partition, channel);
        if no_leases {
            locked.conflict_free.partitions.insert(partition);
        }
        Ok(())
    }

    /// Runs the command, with all partitions locked.
    async fn run_locked(&self, locked: &LockedPartitions) -> TxStep {
        let commands = &self.commands;
        let map = commands.map.load();
        let mut inodes = locked.conflict_free.inodes.clone();
        // Data fetched from partitions of other services stays valid as long as they are locked.
        let mut reading = Reading::new(&commands.executors);
        loop {
            commands.executors.store.admit().await;
            let conflict_free =
                ConflictFree { inodes: inodes.clone(), partitions: locked.conflict_free.partitions.clone() };
            let mut command = |view: &View<'_>| {
                // As in `execute`: the command may have waited for long since its partitions were
                // locked.
                if self.deadline.has_passed() {
                    return Err(Abort::Refused(self.deadline.error()));
                }
                commands.apply(
                    (&self.request, LookupScope::WithInode),
                    &self.session,
                    &map,
                    (view, &conflict_free),
                )
            };
            let home = namespace::home_partition(&self.request.op);
            let origin = CommandOrigin::CrossPartition(locked.token);
            let scope = ExecutionScope { home, own: &locked.own, remote: &locked.remote, origin };
            match commands.executors.attempt(&scope, &mut reading.fetched, &mut command, &mut |_, _| ()) {
                Attempt::Done { answer, after: None } => return answered(answer),
                Attempt::Done { answer, after: Some(ticket) } => {
                    return self.after_commit(locked, answer, &ticket).await;
                }
                Attempt::RemoteLeases(accesses) => match self.is_clear_at_owners(locked, &accesses).await {
                    Ok(true) => inodes.extend(accesses.iter().map(|(ino, _)| *ino)),
                    Ok(false) => return TxStep::RecallRemote(accesses),
                    Err(_) => return TxStep::Retry,
                },
                Attempt::Fetch(missing) => {
                    if let Err(error) = reading.fetched.fetch(&*commands.executors.store, missing).await {
                        return TxStep::Refused(store_error(&error));
                    }
                }
                Attempt::CheckOwner(_) => return TxStep::Retry,
                Attempt::Leases(due) => return TxStep::Leases(due),
                Attempt::NeedPartition(partition) => return TxStep::Need(partition),
                Attempt::AfterCommit(ticket) => {
                    // The command that enqueued the commit handles its outcome.
                    if commands.executors.store.wait(&ticket).await.is_err() {
                        return TxStep::Refused(Errno::EIO.into());
                    }
                }
                Attempt::CrossPartition | Attempt::StateChanged(_) => return TxStep::Retry,
            }
        }
    }

    /// Waits for the commit that an answer depends on.
    async fn after_commit(
        &self,
        locked: &LockedPartitions,
        answer: Result<CommandAnswer>,
        ticket: &Ticket,
    ) -> TxStep {
        let executors = &self.commands.executors;
        match executors.store.wait(ticket).await {
            Ok(Outcome::Applied) => {}
            Ok(Outcome::GuardFailed) => {
                // Finds out whether this service lost one of its own partitions.
                _ = executors.committed(&locked.own, ticket).await;
                return TxStep::Retry;
            }
            Ok(Outcome::Uncertain) => {
                let message = "the outcome of a commit to the metadata store is unknown";
                return TxStep::Uncertain(Error::new(Errno::EIO, message));
            }
            Err(error) => return TxStep::Uncertain(store_error(&error)),
        }
        if let Ok(answered) = &answer {
            self.session.cache_reply(self.request.slot_sequence, &answered.reply, ticket);
        }
        answered(answer)
    }

    /// Unlocks all partitions. `written`: the writes are committed.
    fn unlock_all(&self, locked: LockedPartitions, written: bool) {
        for &partition in &locked.own {
            self.commands.executors.unlock_partition(partition, locked.token, None);
        }
        for remote in locked.remote {
            let Some(channel) = locked.channels.get(&remote.partition).cloned() else { continue };
            let keys = if written { remote.written.into_inner() } else { Vec::new() };
            rt::spawn(return_partition(channel, remote.partition, locked.token, keys));
        }
    }

    /// Asks the owners of locked partitions whether leases conflict, and makes them recall those.
    async fn is_clear_at_owners(
        &self,
        locked: &LockedPartitions,
        accesses: &[(InodeId, InodeAccess)],
    ) -> Result<bool> {
        let mut all = true;
        for (partition, accesses) in by_partition(accesses) {
            let Some(channel) = locked.channels.get(&partition) else { continue };
            all &= self.recall_conflicting_at(channel, accesses, false).await?;
        }
        Ok(all)
    }

    async fn wait_for_remote_recalls(&self, accesses: Vec<(InodeId, InodeAccess)>) {
        for (partition, accesses) in by_partition(&accesses) {
            let Ok(peers) = self.peers() else { return };
            // If no owner is reachable now, the next attempt reports the reason.
            let Ok(channel) = peers.owner_of(partition) else { continue };
            if let Err(error) = self.recall_conflicting_at(&channel, accesses, true).await {
                tracing::debug!(partition = partition.0, %error, "leases of another metadata service are not recalled yet");
                rt::sleep(CROSS_PARTITION_BACKOFF).await;
            }
        }
    }

    async fn recall_conflicting_at(
        &self,
        channel: &PartitionsChannel,
        accesses: Vec<(InodeId, InodeAccess)>,
        wait: bool,
    ) -> Result<bool> {
        let request = PartitionsRequest::RecallConflicting { session: self.request.session, accesses, wait };
        match rt::timeout(REMOTE_RECALL_TIMEOUT, channel.call(request, None)).await {
            Some(answer) => match answer? {
                PartitionsReply::Clear(clear) => Ok(clear),
                _ => Err(unexpected_reply()),
            },
            None => Err(Errno::ETIMEDOUT.into()),
        }
    }
}

fn answered(answer: Result<CommandAnswer>) -> TxStep {
    answer.map_or_else(TxStep::Refused, |answer| TxStep::Answered(Box::new(answer)))
}

async fn return_partition(
    channel: PartitionsChannel,
    partition: PartitionId,
    token: u64,
    written: Vec<bytes::Bytes>,
) {
    let request = PartitionsRequest::UnlockPartition { partition, token, written };
    if let Err(error) = channel.call(request, None).await {
        tracing::warn!(partition = partition.0, %error, "a partition lock could not be returned: the partition's owner will revoke it");
    }
}

fn by_partition(accesses: &[(InodeId, InodeAccess)]) -> BTreeMap<PartitionId, Vec<(InodeId, InodeAccess)>> {
    let mut parts: BTreeMap<PartitionId, Vec<(InodeId, InodeAccess)>> = BTreeMap::new();
    for &(ino, access) in accesses {
        parts.entry(ino.partition()).or_default().push((ino, access));
    }
    parts
}

fn unexpected_reply() -> Error {
    Error::new(Errno::EPROTO, "another metadata service sent an unexpected reply type")
        .hint("install the same version of weft on all machines")
}
