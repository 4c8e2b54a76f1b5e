//! Executors: who runs commands on a partition, and what they have under way.

use crate::cache::Cache;
use crate::fetch::{Fetched, Readings, Want, partitions_of};
use crate::limits::MAX_FETCHES;
use crate::stats::Counters;
use crate::view::{View, not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome, Store, Ticket};
use namespace::leases::Due;
use namespace::{Failure, Writes, keys};
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use types::{Errno, Error, PartitionId, Result};

/// Writes of a partition that are on their way to the store.
pub(crate) type Overlay = BTreeMap<Bytes, PendingWrite>;

pub(crate) struct PendingWrite {
    pub ticket: Ticket,
    pub value: Option<Bytes>,
}

/// All executors of a service.
pub(crate) struct Executors {
    pub store: Store,
    pub counters: Counters,
    cache: Cache,
    partitions: Vec<Mutex<Executor>>,
}

struct Executor {
    partition: PartitionId,
    /// That this service owns the partition, as every commit checks.
    owner: Guard,
    overlay: Overlay,
    /// Commits under way, in order, with the keys that they write here.
    pending: VecDeque<(Ticket, Vec<Bytes>)>,
    /// A commit that concerns other partitions too: nothing is run on top of it.
    barrier: Option<Ticket>,
    /// Another service owns the partition now.
    replaced: bool,
    /// Whether another service owns it has to be asked of the store.
    in_doubt: bool,
    /// Commands that fetch something of the partition.
    readings: Readings,
}

/// The partitions that a command holds, in ascending order.
pub(crate) struct Held<'a> {
    executors: Vec<MutexGuard<'a, Executor>>,
}

/// What a command did.
pub(crate) struct Change<T> {
    pub answer: T,
    pub writes: Writes,
}

/// Why a command was not carried out.
pub(crate) enum Stop {
    /// Refused; nothing changes.
    Refused(Error),
    /// Needs this partition too; nothing changes.
    NeedPartition(PartitionId),
    /// Leases are in the way; nothing changes until these recalls are answered.
    Leases(Vec<Due>),
    /// Something has to be fetched, of which the view knows; nothing changes.
    NotHere,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        match failure {
            Failure::Refused(error) => Stop::Refused(error),
            Failure::NeedPartition(partition) => Stop::NeedPartition(partition),
            Failure::NotHere => Stop::NotHere,
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refused(error)
    }
}

/// What came of a command.
pub(crate) enum Ran<T> {
    Answered(T),
    /// To be run again when these recalls are answered.
    Leases(Vec<Due>),
}

/// How far an attempt came.
enum Attempt<T> {
    /// These recalls have to be answered first.
    Leases(Vec<Due>),
    /// This one is needed as well.
    Need(PartitionId),
    /// This commit has to be in first.
    After(Ticket),
    /// This has to be fetched first.
    Fetch(Vec<Want>),
    /// The store has to be asked first who owns this partition.
    Doubt(PartitionId),
    /// Carried out; to be answered when the commit is in.
    Done { answer: Result<T>, after: Option<Ticket> },
}

impl Executors {
    /// Executors of the partitions that these guards say are owned, in ascending order from 0.
    pub fn new(store: Store, owners: Vec<Guard>) -> Executors {
        let executor = |(partition, owner)| {
            Mutex::new(Executor {
                partition: PartitionId(partition as u16),
                owner,
                overlay: Overlay::new(),
                pending: VecDeque::new(),
                barrier: None,
                replaced: false,
                in_doubt: false,
                readings: Readings::default(),
            })
        };
        Executors {
            store,
            counters: Counters::default(),
            cache: Cache::new(),
            partitions: owners.into_iter().enumerate().map(executor).collect(),
        }
    }

    /// Runs `command` on the partitions, and on all that it turns out to need, and returns its answer once everything
    /// that the answer tells of is committed. `enqueued` is called while the partitions are held, when the command's
    /// writes have got their place.
    pub async fn transact<T>(
        &self,
        partitions: &[PartitionId],
        mut command: impl FnMut(&View<'_>) -> Result<Change<T>, Stop>,
        mut enqueued: impl FnMut(&Ticket, &T),
    ) -> Result<Ran<T>> {
        let mut partitions = partitions.to_vec();
        partitions.sort_unstable();
        partitions.dedup();
        self.check(&partitions)?;
        let mut reading = Reading { executors: self, fetched: Fetched::default() };
        let mut fetches = 0;
        loop {
            self.store.admit().await;
            match self.attempt(&partitions, &mut reading.fetched, &mut command, &mut enqueued) {
                Attempt::Done { answer, after: None } => return answer.map(Ran::Answered),
                Attempt::Done { answer, after: Some(ticket) } => {
                    return self.committed(&partitions, &ticket).await.and(answer).map(Ran::Answered);
                }
                Attempt::Leases(due) => {
                    self.counters.reruns.add(1);
                    return Ok(Ran::Leases(due));
                }
                Attempt::After(ticket) => {
                    self.counters.reruns.add(1);
                    // Its outcome is the business of who asked for it; a failure of the store is met again right below.
                    let _ = self.store.wait(&ticket).await;
                    if matches!(ticket.result(), Some(Err(_))) {
                        return self.committed(&partitions, &ticket).await.and(Err(Errno::EIO.into()));
                    }
                }
                Attempt::Fetch(wants) => {
                    self.counters.reruns.add(1);
                    fetches += 1;
                    if fetches > MAX_FETCHES {
                        return Err(Error::new(Errno::EIO, "a command reads without end"));
                    }
                    reading.fetched.fetch(&self.store, wants).await.map_err(|error| store_error(&error))?;
                }
                Attempt::Doubt(partition) => self.settle_doubt(partition).await?,
                Attempt::Need(partition) => {
                    self.counters.reruns.add(1);
                    // The set grows with every round, so that there are at most as many as partitions.
                    match partitions.binary_search(&partition) {
                        Err(at) => partitions.insert(at, partition),
                        Ok(_) => return Err(bad_partition(partition)),
                    }
                    self.check(&partitions)?;
                }
            }
        }
    }

    /// Runs a command that no lease can be in the way of.
    pub async fn transact_freely<T>(
        &self,
        partition: PartitionId,
        command: impl FnMut(&View<'_>) -> Result<Change<T>, Stop>,
    ) -> Result<T> {
        match self.transact(&[partition], command, |_, _| ()).await? {
            Ran::Answered(answer) => Ok(answer),
            Ran::Leases(_) => Err(Error::new(Errno::EIO, "background work waits for a lease")),
        }
    }

    /// Commits writes of background work in the name of a partition.
    pub async fn write(&self, partition: PartitionId, writes: Writes) -> Result<()> {
        let command = |_: &View<'_>| Ok(Change { answer: (), writes: writes.clone() });
        self.transact_freely(partition, command).await
    }

    fn check(&self, partitions: &[PartitionId]) -> Result<()> {
        match partitions.last() {
            Some(last) if (last.0 as usize) < self.partitions.len() => Ok(()),
            Some(last) => Err(bad_partition(*last)),
            None => Ok(()),
        }
    }

    fn attempt<T>(
        &self,
        partitions: &[PartitionId],
        fetched: &mut Fetched,
        command: &mut impl FnMut(&View<'_>) -> Result<Change<T>, Stop>,
        enqueued: &mut impl FnMut(&Ticket, &T),
    ) -> Attempt<T> {
        let executors = partitions.iter().map(|p| self.partitions[p.0 as usize].lock()).collect();
        let mut held = Held { executors };
        for executor in &mut held.executors {
            self.retire(executor);
            if executor.replaced {
                return Attempt::Done { answer: Err(not_owner(executor.partition)), after: None };
            }
            if executor.in_doubt {
                return Attempt::Doubt(executor.partition);
            }
            if let Some(ticket) = &executor.barrier {
                return Attempt::After(ticket.clone());
            }
            executor.check(fetched);
        }
        let view = View {
            engine: self.store.engine().map(|engine| &**engine),
            fetched,
            wants: RefCell::default(),
            cache: &self.cache,
            counters: &self.counters,
            held: &held,
            seen: RefCell::new(None),
        };
        let result = command(&view);
        let (seen, wants) = (view.seen.into_inner(), view.wants.into_inner());
        match result {
            Err(Stop::NotHere) => {
                for partition in partitions_of(&wants) {
                    if let Some(executor) = held.executor(partition) {
                        fetched.begin(partition, &mut executor.readings);
                    }
                }
                Attempt::Fetch(wants)
            }
            Err(Stop::NeedPartition(partition)) => Attempt::Need(partition),
            Err(Stop::Leases(due)) => Attempt::Leases(due),
            Err(Stop::Refused(error)) => Attempt::Done { answer: Err(error), after: seen },
            Ok(change) if change.writes.is_empty() => {
                Attempt::Done { answer: Ok(change.answer), after: seen }
            }
            Ok(change) => {
                let ticket = self.enqueue(&mut held, change.writes);
                enqueued(&ticket, &change.answer);
                Attempt::Done { answer: Ok(change.answer), after: Some(ticket) }
            }
        }
    }

    /// Gives the writes their place in the order of commits, and shows them to later commands.
    fn enqueue(&self, held: &mut Held<'_>, writes: Writes) -> Ticket {
        let mut shown: Vec<(Bytes, Option<Bytes>)> = Vec::with_capacity(writes.len());
        for (key, value) in &writes {
            shown.push((Bytes::copy_from_slice(key), value.clone()));
        }
        let guards = held.executors.iter().map(|executor| executor.owner.clone()).collect();
        let ticket = self.store.enqueue(Batch { guards, writes });
        if matches!(ticket.result(), Some(Err(_))) {
            // The writer takes no writes any more. What was not enqueued must not pile up here. A ticket that is settled well already
            // (another core led the commit meanwhile) goes on like any other: the cache has to learn of its writes.
            return ticket;
        }
        let spans = held.executors.len() > 1;
        for executor in &mut held.executors {
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

    /// Waits for a commit that an answer tells of.
    async fn committed(&self, partitions: &[PartitionId], ticket: &Ticket) -> Result<()> {
        match self.store.wait(ticket).await {
            Ok(Outcome::Won) => Ok(()),
            Ok(outcome) => {
                for partition in partitions {
                    self.retire(&mut self.partitions[partition.0 as usize].lock());
                }
                Err(match outcome {
                    Outcome::Unknown => {
                        Error::new(Errno::EIO, "the metadata store does not know the outcome of a commit")
                    }
                    _ => Error::new(
                        Errno::ESTALE,
                        "a partition of this request has moved to another metadata service",
                    ),
                })
            }
            Err(error) => Err(store_error(&error)),
        }
    }

    /// Forgets what is settled. After a failure of the store everything stays: nobody knows what it holds.
    fn retire(&self, executor: &mut Executor) {
        while let Some((ticket, _)) = executor.pending.front() {
            let outcome = match ticket.result() {
                Some(Ok(outcome)) => outcome,
                Some(Err(_)) | None => break,
            };
            let Some((ticket, keys)) = executor.pending.pop_front() else { break };
            if outcome == Outcome::Won && executor.readings.are_active() {
                self.keep(executor, &ticket, keys);
                continue;
            }
            for key in keys {
                if let Entry::Occupied(write) = executor.overlay.entry(key)
                    && write.get().ticket.number() == ticket.number()
                {
                    let (key, write) = write.remove_entry();
                    self.remember(outcome, key, write.value);
                }
            }
            if outcome != Outcome::Won {
                executor.readings.make_void();
                self.doubt(executor);
            }
        }
        executor.readings.release(&mut executor.overlay);
        if executor.barrier.as_ref().is_some_and(|ticket| matches!(ticket.result(), Some(Ok(_)))) {
            executor.barrier = None;
        }
    }

    /// As in [`Executors::retire`], but leaves the writes where they are, for commands that fetch.
    fn keep(&self, executor: &mut Executor, ticket: &Ticket, keys: Vec<Bytes>) {
        for key in &keys {
            let write = executor.overlay.get(key).filter(|write| write.ticket.number() == ticket.number());
            if let Some(write) = write {
                self.remember(Outcome::Won, key.clone(), write.value.clone());
            }
        }
        executor.readings.keep(ticket, keys);
    }

    fn remember(&self, outcome: Outcome, key: Bytes, value: Option<Bytes>) {
        match outcome {
            Outcome::Won => self.cache.put(key, value),
            _ => self.cache.remove(&key),
        }
    }

    /// A commit was lost: asks the store who owns the partition. If the service still does, another partition of that
    /// commit was the cause, and nothing was run on top of it.
    fn doubt(&self, executor: &mut Executor) {
        match self.store.engine() {
            Some(engine) => {
                let owner = engine.get(&executor.owner.key);
                if !owner.is_ok_and(|owner| owner == executor.owner.expected) {
                    executor.replace();
                }
            }
            None => executor.in_doubt = true,
        }
    }

    /// Asks a store that is elsewhere who owns a partition. Nothing is run there meanwhile.
    async fn settle_doubt(&self, partition: PartitionId) -> Result<()> {
        let executor = || self.partitions[partition.0 as usize].lock();
        let expected = executor().owner.clone();
        let owner = self.store.get(&expected.key).await.map_err(|error| store_error(&error))?;
        let mut executor = executor();
        if executor.in_doubt && executor.owner == expected {
            executor.in_doubt = false;
            if owner != expected.expected {
                executor.replace();
            }
        }
        Ok(())
    }
}

impl Executor {
    fn check(&mut self, fetched: &mut Fetched) {
        fetched.check(self.partition, &mut self.readings, &mut self.overlay);
    }

    /// Another service has taken the partition over.
    fn replace(&mut self) {
        tracing::error!(
            partition = self.partition.0,
            "another metadata service has taken this partition over"
        );
        self.replaced = true;
        self.overlay.clear();
        self.pending.clear();
        self.barrier = None;
        self.readings.make_void();
    }
}

/// What a command has fetched; ends its readings when it is dropped.
struct Reading<'a> {
    executors: &'a Executors,
    fetched: Fetched,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        for partition in self.fetched.partitions() {
            let executor = &mut *self.executors.partitions[partition.0 as usize].lock();
            self.fetched.end(partition, &mut executor.readings, &mut executor.overlay);
        }
    }
}

impl Held<'_> {
    /// What is on its way in a partition; `None` when it is not held.
    pub fn overlay(&self, partition: PartitionId) -> Option<&Overlay> {
        // One or two as a rule.
        self.executors
            .iter()
            .find(|executor| executor.partition == partition)
            .map(|executor| &executor.overlay)
    }

    fn executor(&mut self, partition: PartitionId) -> Option<&mut Executor> {
        self.executors.iter_mut().find(|e| e.partition == partition).map(|executor| &mut **executor)
    }
}

fn bad_partition(partition: PartitionId) -> Error {
    Error::new(Errno::ESTALE, format!("there is no partition {partition}"))
}
