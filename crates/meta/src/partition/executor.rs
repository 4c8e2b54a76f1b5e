//! Executors: they run the commands of a partition, and keep its uncommitted writes.

use crate::limits::MAX_FETCHES;
use crate::service::stats::Counters;
use crate::store::cache::Cache;
use crate::store::remote_data::{Fetched, MissingData, Readings, partitions_of};
use crate::store::transaction_view::{View, not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome, Store, Ticket};
use namespace::leases::{InodeAccess, PendingRecall};
use namespace::{Failure, ReadError, Writes, keys};
use net::Deadline;
use parking_lot::{Mutex, MutexGuard};
use rt::sync::Event;
use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use types::{Errno, Error, InodeId, NodeId, PartitionId, Refusal, Result};

/// Uncommitted writes of a partition.
pub(crate) type Overlay = BTreeMap<Bytes, PendingWrite>;

pub(crate) struct PendingWrite {
    pub ticket: Ticket,
    pub value: Option<Bytes>,
}

/// All executors of a service.
pub(crate) struct Executors {
    pub store: Arc<dyn Store>,
    pub counters: Counters,
    /// The node that the service runs on.
    pub node: NodeId,
    cache: Cache,
    partitions: Vec<Mutex<Executor>>,
}

pub(crate) struct Executor {
    pub partition: PartitionId,
    /// What this service may do on the partition.
    pub state: PartitionState,
    /// Guard of every commit: this service owns the partition. Meaningless if it doesn't.
    pub owner: Guard,
    /// How often this service has adopted the partition.
    pub adoption_number: u64,
    /// Token of the transaction that holds the partition lock.
    pub locked_by: Option<u64>,
    /// Set, and replaced by a new event, when `state` or `locked_by` change.
    pub state_changed: Arc<Event>,
    overlay: Overlay,
    /// Commits under way, in order, with the keys that they write in this partition.
    pub pending: VecDeque<(Ticket, Vec<Bytes>)>,
    /// A commit that spans other partitions, too: no command runs on top of it.
    barrier: Option<Ticket>,
    /// The store must be asked whether another service owns the partition.
    pub owner_uncertain: bool,
    /// Fetches that commands have under way in the partition.
    readings: Readings,
}

/// State of a partition at this service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartitionState {
    /// Not owned: another service executes it, or none.
    NotOwned,
    /// Owned; size recovery runs there.
    Recovering,
    /// Owned; commands wait, since sessions of the previous owner may still reclaim their state.
    Reclaiming,
    /// Owned; everything is allowed.
    Serving,
    /// Owned, but about to be released to another service: nothing new starts.
    Releasing,
}

/// Origin of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandOrigin {
    /// A client's command.
    Command,
    /// Background work of the service.
    Background,
    /// A cross-partition transaction, by the token of its partition locks.
    CrossPartition(u64),
}

/// A partition of another service that this one has locked for a transaction.
pub(crate) struct RemotePartition {
    pub owner: Guard,
    pub partition: PartitionId,
    /// Keys that the transaction wrote.
    pub written: Mutex<Vec<Bytes>>,
}

/// The partitions that a command runs on.
pub(crate) struct ExecutionScope<'a> {
    /// Partition whose owner executes the command.
    pub home: PartitionId,
    /// Partitions of this service, in ascending order.
    pub own: &'a [PartitionId],
    /// Partitions of other services.
    pub remote: &'a [RemotePartition],
    pub origin: CommandOrigin,
}

/// The executors that a command has locked, in ascending order.
pub(crate) struct LockedExecutors<'a> {
    executors: Vec<MutexGuard<'a, Executor>>,
    remote: &'a [RemotePartition],
}

/// Result of a command.
pub(crate) struct CommandOutput<T> {
    pub answer: T,
    pub writes: Writes,
}

/// Why a command was not executed. Nothing changes in any of these cases.
pub(crate) enum Abort {
    /// Refused with an error.
    Refused(Error),
    /// The command needs this partition, too.
    NeedPartition(PartitionId),
    /// Leases conflict: the command waits for the acknowledgements of these recalls.
    Leases(Vec<PendingRecall>),
    /// Leases that other services granted may conflict: the command waits until they report that
    /// there are none.
    RemoteLeases(Vec<(InodeId, InodeAccess)>),
    /// Keys or ranges have to be fetched from the store first; the view lists them.
    NotFetched,
}

impl From<Failure> for Abort {
    fn from(failure: Failure) -> Abort {
        match failure {
            Failure::Refused(error) => Abort::Refused(error),
            Failure::NeedPartition(partition) => Abort::NeedPartition(partition),
            Failure::NotFetched => Abort::NotFetched,
        }
    }
}

impl From<ReadError> for Abort {
    fn from(error: ReadError) -> Abort {
        Failure::from(error).into()
    }
}

impl From<Error> for Abort {
    fn from(error: Error) -> Abort {
        Abort::Refused(error)
    }
}

/// Outcome of [`Executors::transact`].
pub(crate) enum TransactOutcome<T> {
    Answered(T),
    /// Run the command again when these recalls are acknowledged.
    Leases(Vec<PendingRecall>),
    /// Run the command as a cross-partition transaction: it needs these partitions, and other
    /// services own some of them.
    CrossPartition(Vec<PartitionId>),
}

/// Outcome of one attempt to run a command.
pub(crate) enum Attempt<T> {
    /// Leases that other services granted may conflict.
    RemoteLeases(Vec<(InodeId, InodeAccess)>),
    /// Other services own some of the partitions.
    CrossPartition,
    /// Run the command again when this event is set.
    StateChanged(Arc<Event>),
    /// These recalls must be acknowledged first.
    Leases(Vec<PendingRecall>),
    /// The command needs this partition, too.
    NeedPartition(PartitionId),
    /// This commit must complete first.
    AfterCommit(Ticket),
    /// These keys and ranges must be fetched first.
    Fetch(Vec<MissingData>),
    /// The store must be asked first which service owns this partition.
    CheckOwner(PartitionId),
    /// Executed; the answer may be sent when the commit completes.
    Done { answer: Result<T>, after: Option<Ticket> },
}

impl Executors {
    /// Creates executors of `partitions` partitions, none of which this service owns yet.
    pub fn new(store: Arc<dyn Store>, node: NodeId, partitions: u16) -> Executors {
        let executor = |partition| {
            Mutex::new(Executor {
                partition,
                state: PartitionState::NotOwned,
                owner: Guard { key: keys::owner(partition).to_vec(), expected: None },
                adoption_number: 0,
                locked_by: None,
                state_changed: Arc::default(),
                overlay: Overlay::new(),
                pending: VecDeque::new(),
                barrier: None,
                owner_uncertain: false,
                readings: Readings::default(),
            })
        };
        Executors {
            store,
            counters: Counters::default(),
            node,
            cache: Cache::new(),
            partitions: (0..partitions).map(PartitionId).map(executor).collect(),
        }
    }

    /// Runs `command` on the partitions and on those that it turns out to need. Returns its answer
    /// once everything that the answer depends on is committed. The first partition is the
    /// command's home: the owner of that executes the command. `enqueued` is called while the
    /// executors are locked, when the command's writes have their place in the commit order.
    /// `deadline` ends the wait for a partition that isn't served yet.
    pub async fn transact<T>(
        &self,
        (origin, deadline): (CommandOrigin, &Deadline),
        partitions: &[PartitionId],
        mut command: impl FnMut(&View<'_>) -> Result<CommandOutput<T>, Abort>,
        mut enqueued: impl FnMut(&Ticket, &T),
    ) -> Result<TransactOutcome<T>> {
        let Some(&home) = partitions.first() else { return Err(Errno::EINVAL.into()) };
        let mut partitions = partitions.to_vec();
        partitions.sort_unstable();
        partitions.dedup();
        self.check(&partitions)?;
        let mut reading = Reading::new(self);
        loop {
            self.store.admit().await;
            let scope = ExecutionScope { home, own: &partitions, remote: &[], origin };
            match self.attempt(&scope, &mut reading.fetched, &mut command, &mut enqueued) {
                Attempt::Done { answer, after: None } => return answer.map(TransactOutcome::Answered),
                Attempt::Done { answer, after: Some(ticket) } => {
                    return self
                        .committed(&partitions, &ticket)
                        .await
                        .and(answer)
                        .map(TransactOutcome::Answered);
                }
                Attempt::Leases(due) => {
                    self.counters.reruns.add(1);
                    return Ok(TransactOutcome::Leases(due));
                }
                Attempt::CrossPartition => return Ok(TransactOutcome::CrossPartition(partitions)),
                Attempt::StateChanged(changed) => {
                    self.counters.reruns.add(1);
                    // The partition may wait for the client's own state.
                    deadline.unless_disconnected(changed.wait()).await?;
                }
                Attempt::RemoteLeases(_) => return Err(bad_partition(home)),
                Attempt::AfterCommit(ticket) => {
                    self.counters.reruns.add(1);
                    // The command that enqueued the commit handles its outcome; a failure of the
                    // store shows right below.
                    let _ = self.store.wait(&ticket).await;
                    if matches!(ticket.result(), Some(Err(_))) {
                        return self.committed(&partitions, &ticket).await.and(Err(Errno::EIO.into()));
                    }
                }
                Attempt::Fetch(missing) => {
                    self.counters.reruns.add(1);
                    reading.fetch(missing).await?;
                }
                Attempt::CheckOwner(partition) => self.check_owner_remotely(partition).await?,
                Attempt::NeedPartition(partition) => {
                    self.counters.reruns.add(1);
                    // The set grows with every round, so that there are at most as many rounds as
                    // partitions.
                    match partitions.binary_search(&partition) {
                        Err(at) => partitions.insert(at, partition),
                        Ok(_) => return Err(bad_partition(partition)),
                    }
                    self.check(&partitions)?;
                }
            }
        }
    }

    /// Runs a command that can't conflict with leases.
    pub async fn transact_without_leases<T>(
        &self,
        partition: PartitionId,
        command: impl FnMut(&View<'_>) -> Result<CommandOutput<T>, Abort>,
    ) -> Result<T> {
        match self
            .transact((CommandOrigin::Background, &Deadline::NEVER), &[partition], command, |_, _| ())
            .await?
        {
            TransactOutcome::Answered(answer) => Ok(answer),
            TransactOutcome::CrossPartition(_) => Err(not_owner(partition)),
            TransactOutcome::Leases(_) => {
                Err(Error::new(Errno::EIO, "background work waits for a lease (a bug in weft)"))
            }
        }
    }

    /// Reads from a partition in background work.
    pub async fn read<T>(
        &self,
        partition: PartitionId,
        mut read: impl FnMut(&View<'_>) -> Result<T, ReadError>,
    ) -> Result<T> {
        let command = |view: &View<'_>| Ok(CommandOutput { answer: read(view)?, writes: Vec::new() });
        self.transact_without_leases(partition, command).await
    }

    fn check(&self, partitions: &[PartitionId]) -> Result<()> {
        match partitions.last() {
            Some(last) if (last.0 as usize) < self.partitions.len() => Ok(()),
            Some(last) => Err(bad_partition(*last)),
            None => Ok(()),
        }
    }

    /// All partitions of the file system.
    pub fn all(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.partitions.len() as u16).map(PartitionId)
    }

    /// Whether the file system has this partition.
    pub fn has(&self, partition: PartitionId) -> bool {
        usize::from(partition.0) < self.partitions.len()
    }

    /// Whether this service owns a partition.
    pub fn is_owned(&self, partition: PartitionId) -> bool {
        self.lock(partition).is_ok_and(|executor| executor.is_owned())
    }

    /// Partitions that this service owns, including those that it recovers or keeps closed.
    pub fn owned(&self) -> Vec<PartitionId> {
        self.all().filter(|p| self.is_owned(*p)).collect()
    }

    /// Whether this service answers requests of a partition now.
    pub fn is_serving(&self, partition: PartitionId) -> bool {
        self.lock(partition).is_ok_and(|executor| executor.state == PartitionState::Serving)
    }

    /// Partitions whose requests this service answers now.
    pub fn serving(&self) -> Vec<PartitionId> {
        self.all().filter(|p| self.is_serving(*p)).collect()
    }

    /// Locks the executor of a partition.
    pub fn lock(&self, partition: PartitionId) -> Result<MutexGuard<'_, Executor>> {
        match self.partitions.get(partition.0 as usize) {
            Some(executor) => Ok(executor.lock()),
            None => Err(bad_partition(partition)),
        }
    }

    /// Invalidates cache entries of keys that another service has written.
    pub fn invalidate_cached(&self, keys: &[Bytes]) {
        keys.iter().for_each(|key| self.cache.remove(key));
    }

    /// Invalidates all cache entries of a partition: another service may have changed it.
    pub fn invalidate_cached_partition(&self, partition: PartitionId) {
        self.cache.forget(partition);
    }

    /// Attempts once to run a command.
    pub fn attempt<T>(
        &self,
        scope: &ExecutionScope<'_>,
        fetched: &mut Fetched,
        command: &mut impl FnMut(&View<'_>) -> Result<CommandOutput<T>, Abort>,
        enqueued: &mut impl FnMut(&Ticket, &T),
    ) -> Attempt<T> {
        let executors = scope.own.iter().map(|p| self.partitions[p.0 as usize].lock()).collect();
        let mut locked = LockedExecutors { executors, remote: scope.remote };
        for executor in &mut locked.executors {
            self.retire(executor);
            match executor.admit(scope.origin) {
                Admission::Now => {}
                Admission::Later => return Attempt::StateChanged(executor.state_changed.clone()),
                Admission::Never if executor.partition == scope.home => {
                    return Attempt::Done { answer: Err(not_owner(executor.partition)), after: None };
                }
                Admission::Never => return Attempt::CrossPartition,
            }
            if executor.owner_uncertain {
                return Attempt::CheckOwner(executor.partition);
            }
            if let Some(ticket) = &executor.barrier {
                return Attempt::AfterCommit(ticket.clone());
            }
            executor.check(fetched);
        }
        let view = View {
            engine: self.store.engine().map(|engine| &**engine),
            fetched,
            missing: RefCell::default(),
            cache: &self.cache,
            counters: &self.counters,
            locked: &locked,
            depends_on: RefCell::new(None),
            searched_dir: Cell::new(None),
        };
        let result = command(&view);
        let (depends_on, missing) = (view.depends_on.into_inner(), view.missing.into_inner());
        match result {
            Err(Abort::NotFetched) => {
                for partition in partitions_of(&missing) {
                    if let Some(executor) = locked.executor(partition) {
                        fetched.begin(partition, &mut executor.readings);
                    }
                }
                Attempt::Fetch(missing)
            }
            Err(Abort::NeedPartition(partition)) => Attempt::NeedPartition(partition),
            Err(Abort::Leases(due)) => Attempt::Leases(due),
            Err(Abort::RemoteLeases(accesses)) => Attempt::RemoteLeases(accesses),
            Err(Abort::Refused(error)) => Attempt::Done { answer: Err(error), after: depends_on },
            Ok(change) if change.writes.is_empty() => {
                Attempt::Done { answer: Ok(change.answer), after: depends_on }
            }
            Ok(change) => {
                let ticket = self.enqueue(&mut locked, change.writes);
                enqueued(&ticket, &change.answer);
                Attempt::Done { answer: Ok(change.answer), after: Some(ticket) }
            }
        }
    }

    /// Gives the writes their place in the commit order, and adds them to the overlay.
    fn enqueue(&self, locked: &mut LockedExecutors<'_>, writes: Writes) -> Ticket {
        let mut shown: Vec<(Bytes, Option<Bytes>)> = Vec::with_capacity(writes.len());
        for (key, value) in &writes {
            shown.push((Bytes::copy_from_slice(key), value.clone()));
        }
        let mut guards: Vec<Guard> = locked.executors.iter().map(|executor| executor.owner.clone()).collect();
        guards.extend(locked.remote.iter().map(|remote| remote.owner.clone()));
        let ticket = self.store.enqueue(Batch { guards, writes });
        if matches!(ticket.result(), Some(Err(_))) {
            // The writer accepts no more writes, so they must not pile up in the overlay. A ticket
            // that is already committed (another core led the commit meanwhile) takes the usual
            // path: the cache has to learn of its writes.
            return ticket;
        }
        let spans = locked.executors.len() + locked.remote.len() > 1;
        for remote in locked.remote {
            let keys = shown.iter().map(|(key, _)| key);
            remote
                .written
                .lock()
                .extend(keys.filter(|key| keys::partition_of_key(key) == remote.partition).cloned());
        }
        for executor in &mut locked.executors {
            let mut keys = Vec::with_capacity(shown.len());
            for (key, value) in &shown {
                if keys::partition_of_key(key) == executor.partition {
                    let write = PendingWrite { ticket: ticket.clone(), value: value.clone() };
                    executor.overlay.insert(key.clone(), write);
                    keys.push(key.clone());
                }
            }
            executor.pending.push_back((ticket.clone(), keys));
            executor.barrier = spans.then(|| ticket.clone());
        }
        ticket
    }

    /// Waits for a commit that an answer depends on.
    pub async fn committed(&self, partitions: &[PartitionId], ticket: &Ticket) -> Result<()> {
        match self.store.wait(ticket).await {
            Ok(Outcome::Applied) => Ok(()),
            Ok(outcome) => {
                for partition in partitions {
                    self.retire(&mut self.partitions[partition.0 as usize].lock());
                }
                Err(match outcome {
                    Outcome::Uncertain => {
                        Error::new(Errno::EIO, "the outcome of a commit to the metadata store is unknown")
                    }
                    _ => Error::new(
                        Refusal::PartitionNotServed,
                        "a partition of this request has moved to another metadata service",
                    ),
                })
            }
            Err(error) => Err(store_error(&error)),
        }
    }

    /// Removes completed commits from the overlay. After a failure of the store they all stay: it
    /// is unknown what the store holds.
    pub fn retire(&self, executor: &mut Executor) {
        while let Some((ticket, _)) = executor.pending.front() {
            let outcome = match ticket.result() {
                Some(Ok(outcome)) => outcome,
                Some(Err(_)) | None => break,
            };
            let Some((ticket, keys)) = executor.pending.pop_front() else { break };
            if outcome == Outcome::Applied && executor.readings.is_any_active() {
                self.retain_writes(executor, &ticket, keys);
                continue;
            }
            for key in keys {
                if let Entry::Occupied(write) = executor.overlay.entry(key)
                    && write.get().ticket.number() == ticket.number()
                {
                    let (key, write) = write.remove_entry();
                    self.update_cache(outcome, key, write.value);
                }
            }
            if outcome != Outcome::Applied {
                executor.readings.invalidate();
                self.check_owner(executor);
            }
        }
        executor.readings.release(&mut executor.overlay);
        if executor.barrier.as_ref().is_some_and(|ticket| matches!(ticket.result(), Some(Ok(_)))) {
            executor.barrier = None;
        }
    }

    /// As [`Executors::retire`], but leaves the writes in the overlay, for commands that fetch.
    fn retain_writes(&self, executor: &mut Executor, ticket: &Ticket, keys: Vec<Bytes>) {
        for key in &keys {
            let write = executor.overlay.get(key).filter(|write| write.ticket.number() == ticket.number());
            if let Some(write) = write {
                self.update_cache(Outcome::Applied, key.clone(), write.value.clone());
            }
        }
        executor.readings.keep(ticket, keys);
    }

    fn update_cache(&self, outcome: Outcome, key: Bytes, value: Option<Bytes>) {
        match outcome {
            Outcome::Applied => self.cache.put(key, value),
            _ => self.cache.remove(&key),
        }
    }

    /// Handles a lost commit: asks the store which service owns the partition. If this service
    /// still does, another partition of that commit was the cause, and no command ran on top of it.
    fn check_owner(&self, executor: &mut Executor) {
        match self.store.engine() {
            Some(engine) => {
                let owner = engine.get(&executor.owner.key);
                if !owner.is_ok_and(|owner| owner == executor.owner.expected) {
                    executor.mark_taken_over();
                }
            }
            None => executor.owner_uncertain = true,
        }
    }

    /// Asks a remote store which service owns a partition. No command runs there meanwhile.
    pub async fn check_owner_remotely(&self, partition: PartitionId) -> Result<()> {
        let expected = {
            let executor = self.lock(partition)?;
            if !executor.owner_uncertain {
                return Ok(());
            }
            executor.owner.clone()
        };
        let owner = self.store.get(&expected.key).await.map_err(|error| store_error(&error))?;
        let mut executor = self.lock(partition)?;
        if executor.owner_uncertain && executor.owner == expected {
            executor.owner_uncertain = false;
            if owner != expected.expected {
                executor.mark_taken_over();
            }
        }
        Ok(())
    }
}

impl Executor {
    fn check(&mut self, fetched: &mut Fetched) {
        fetched.check(self.partition, &mut self.readings, &mut self.overlay);
    }

    /// Records that another service has taken over the partition.
    fn mark_taken_over(&mut self) {
        tracing::error!(
            partition = self.partition.0,
            "another metadata service has taken this partition over"
        );
        self.mark_not_owned();
    }
}

/// Whether a command may run on a partition.
enum Admission {
    Now,
    /// Once the partition's state changes.
    Later,
    /// Another service owns it.
    Never,
}

impl Executor {
    fn admit(&self, origin: CommandOrigin) -> Admission {
        let is_command = origin != CommandOrigin::Background;
        match self.state {
            PartitionState::NotOwned | PartitionState::Releasing => Admission::Never,
            PartitionState::Recovering | PartitionState::Reclaiming if is_command => Admission::Later,
            _ => match self.locked_by {
                Some(token) if origin != CommandOrigin::CrossPartition(token) => Admission::Later,
                _ => Admission::Now,
            },
        }
    }

    /// Whether this service owns the partition and isn't releasing it.
    pub fn is_owned(&self) -> bool {
        !matches!(self.state, PartitionState::NotOwned | PartitionState::Releasing)
    }

    /// Sets the partition's state and wakes those that wait for a change.
    pub fn set_state(&mut self, state: PartitionState) {
        self.state = state;
        self.notify();
    }

    /// Locks the partition for a transaction, or unlocks it with `None`. Invalidates what commands
    /// have fetched before.
    pub fn set_lock(&mut self, token: Option<u64>) {
        self.locked_by = token;
        self.readings.invalidate();
        self.readings.release(&mut self.overlay);
        self.notify();
    }

    /// Marks the partition as owned by another service, which may have changed everything.
    pub fn mark_not_owned(&mut self) {
        self.overlay.clear();
        self.pending.clear();
        self.barrier = None;
        self.locked_by = None;
        self.owner_uncertain = false;
        self.readings.invalidate();
        self.readings.release(&mut self.overlay);
        self.set_state(PartitionState::NotOwned);
    }

    fn notify(&mut self) {
        std::mem::take(&mut self.state_changed).set();
    }
}

/// Data that a command has fetched; ends its readings when it is dropped.
pub(crate) struct Reading<'a> {
    executors: &'a Executors,
    pub fetched: Fetched,
    fetches: usize,
}

impl<'a> Reading<'a> {
    pub fn new(executors: &'a Executors) -> Reading<'a> {
        Reading { executors, fetched: Fetched::default(), fetches: 0 }
    }

    /// Fetches what the command misses.
    ///
    /// # Errors
    /// Those of the store; `EIO` after [`MAX_FETCHES`].
    async fn fetch(&mut self, missing: Vec<MissingData>) -> Result<()> {
        self.fetches += 1;
        if self.fetches > MAX_FETCHES {
            return Err(Error::new(
                Errno::EIO,
                "a command needed too many reads from the metadata store (a bug in weft)",
            ));
        }
        self.fetched.fetch(&*self.executors.store, missing).await.map_err(|error| store_error(&error))
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        for partition in self.fetched.partitions() {
            let executor = &mut *self.executors.partitions[partition.0 as usize].lock();
            self.fetched.end(partition, &mut executor.readings, &mut executor.overlay);
        }
    }
}

impl LockedExecutors<'_> {
    /// Overlay of a partition; `None` if its executor isn't locked.
    pub fn overlay(&self, partition: PartitionId) -> Option<&Overlay> {
        // Usually one or two.
        self.executors
            .iter()
            .find(|executor| executor.partition == partition)
            .map(|executor| &executor.overlay)
    }

    /// Whether the command holds partitions of other services.
    pub fn has_remote_partitions(&self) -> bool {
        !self.remote.is_empty()
    }

    /// Whether the command holds this partition of another service.
    pub fn is_remote_partition(&self, partition: PartitionId) -> bool {
        self.remote.iter().any(|remote| remote.partition == partition)
    }

    fn executor(&mut self, partition: PartitionId) -> Option<&mut Executor> {
        self.executors.iter_mut().find(|e| e.partition == partition).map(|executor| &mut **executor)
    }
}

fn bad_partition(partition: PartitionId) -> Error {
    Error::new(Errno::ESTALE, format!("there is no partition {partition}"))
}
