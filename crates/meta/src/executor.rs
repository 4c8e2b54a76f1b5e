//! Executors: who runs commands on a partition, and what they have under way.

use crate::cache::Cache;
use crate::fetch::{Fetched, Readings, Want, partitions_of};
use crate::limits::MAX_FETCHES;
use crate::stats::Counters;
use crate::view::{View, not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome, Store, Ticket};
use namespace::leases::{Access, Due};
use namespace::{Failure, Writes, keys};
use parking_lot::{Mutex, MutexGuard};
use rt::sync::Event;
use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use types::{Errno, Error, InodeId, PartitionId, Result};

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

pub(crate) struct Executor {
    pub partition: PartitionId,
    /// What this service may do on it.
    pub standing: Standing,
    /// That this service owns the partition, as every commit checks. Of no meaning where it
    /// doesn't.
    pub owner: Guard,
    /// How often this service has adopted it.
    pub adoption: u64,
    /// The errand that has it to itself.
    pub loan: Option<u64>,
    /// Set, and replaced by another one, when standing or loan change.
    pub changed: Arc<Event>,
    overlay: Overlay,
    /// Commits under way, in order, with the keys that they write here.
    pub pending: VecDeque<(Ticket, Vec<Bytes>)>,
    /// A commit that concerns other partitions too: nothing is run on top of it.
    barrier: Option<Ticket>,
    /// Whether another service owns it has to be asked of the store.
    pub in_doubt: bool,
    /// Commands that fetch something of the partition.
    readings: Readings,
}

/// What a service may do on a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Nothing: another service executes it, or nobody.
    Elsewhere,
    /// Settle what was left there.
    Settling,
    /// What needs no commands: sessions of before may still come back.
    Closed,
    /// Everything.
    Open,
    /// Nothing new: it is about to go to another service.
    Leaving,
}

/// Who wants to run something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// A client's command.
    Command,
    /// The service itself.
    Background,
    /// A command that has the partitions on loan.
    Errand(u64),
}

/// A partition of another service, on loan.
pub(crate) struct Guest {
    pub owner: Guard,
    pub partition: PartitionId,
    /// The keys that were written.
    pub written: Mutex<Vec<Bytes>>,
}

/// What a command is to be run on.
pub(crate) struct Place<'a> {
    /// Without it, the command is another service's.
    pub home: PartitionId,
    /// Partitions of this service, in ascending order.
    pub own: &'a [PartitionId],
    /// Partitions of other services.
    pub guests: &'a [Guest],
    pub pass: Pass,
}

/// The partitions that a command holds, in ascending order.
pub(crate) struct Held<'a> {
    executors: Vec<MutexGuard<'a, Executor>>,
    guests: &'a [Guest],
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
    /// Leases of other services may be in the way; nothing changes until they say that there are
    /// none.
    Elsewhere(Vec<(InodeId, Access)>),
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
    /// To be run as an errand: it needs these partitions, not all of which are this service's.
    Across(Vec<PartitionId>),
}

/// How far an attempt came.
pub(crate) enum Attempt<T> {
    /// Leases of other services may be in the way.
    Elsewhere(Vec<(InodeId, Access)>),
    /// Some of the partitions are other services'.
    Across,
    /// To be run again when this is set.
    Changed(Arc<Event>),
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
    /// Executors of so many partitions, none of which is this service's.
    pub fn new(store: Store, partitions: u16) -> Executors {
        let executor = |partition| {
            Mutex::new(Executor {
                partition,
                standing: Standing::Elsewhere,
                owner: Guard { key: keys::owner(partition).to_vec(), expected: None },
                adoption: 0,
                loan: None,
                changed: Arc::default(),
                overlay: Overlay::new(),
                pending: VecDeque::new(),
                barrier: None,
                in_doubt: false,
                readings: Readings::default(),
            })
        };
        Executors {
            store,
            counters: Counters::default(),
            cache: Cache::new(),
            partitions: (0..partitions).map(PartitionId).map(executor).collect(),
        }
    }

    /// Runs `command` on the partitions, and on all that it turns out to need, and returns its
    /// answer once everything that the answer tells of is committed. The first of them is its home:
    /// where that is another service's, the command is, too. `enqueued` is called while the
    /// partitions are held, when the command's writes have got their place.
    pub async fn transact<T>(
        &self,
        pass: Pass,
        partitions: &[PartitionId],
        mut command: impl FnMut(&View<'_>) -> Result<Change<T>, Stop>,
        mut enqueued: impl FnMut(&Ticket, &T),
    ) -> Result<Ran<T>> {
        let Some(&home) = partitions.first() else { return Err(Errno::EINVAL.into()) };
        let mut partitions = partitions.to_vec();
        partitions.sort_unstable();
        partitions.dedup();
        self.check(&partitions)?;
        let mut reading = Reading::new(self);
        let mut fetches = 0;
        loop {
            self.store.admit().await;
            let place = Place { home, own: &partitions, guests: &[], pass };
            match self.attempt(&place, &mut reading.fetched, &mut command, &mut enqueued) {
                Attempt::Done { answer, after: None } => return answer.map(Ran::Answered),
                Attempt::Done { answer, after: Some(ticket) } => {
                    return self.committed(&partitions, &ticket).await.and(answer).map(Ran::Answered);
                }
                Attempt::Leases(due) => {
                    self.counters.reruns.add(1);
                    return Ok(Ran::Leases(due));
                }
                Attempt::Across => return Ok(Ran::Across(partitions)),
                Attempt::Changed(changed) => {
                    self.counters.reruns.add(1);
                    changed.wait().await;
                }
                Attempt::Elsewhere(_) => return Err(bad_partition(home)),
                Attempt::After(ticket) => {
                    self.counters.reruns.add(1);
                    // Its outcome is the business of who asked for it; a failure of the store is
                    // met again right below.
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
                    // The set grows with every round, so that there are at most as many as
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

    /// Runs a command that no lease can be in the way of.
    pub async fn transact_freely<T>(
        &self,
        partition: PartitionId,
        command: impl FnMut(&View<'_>) -> Result<Change<T>, Stop>,
    ) -> Result<T> {
        match self.transact(Pass::Background, &[partition], command, |_, _| ()).await? {
            Ran::Answered(answer) => Ok(answer),
            Ran::Across(_) => Err(not_owner(partition)),
            Ran::Leases(_) => Err(Error::new(Errno::EIO, "background work waits for a lease")),
        }
    }

    fn check(&self, partitions: &[PartitionId]) -> Result<()> {
        match partitions.last() {
            Some(last) if (last.0 as usize) < self.partitions.len() => Ok(()),
            Some(last) => Err(bad_partition(*last)),
            None => Ok(()),
        }
    }

    /// The state of a partition.
    pub fn lock(&self, partition: PartitionId) -> Result<MutexGuard<'_, Executor>> {
        match self.partitions.get(partition.0 as usize) {
            Some(executor) => Ok(executor.lock()),
            None => Err(bad_partition(partition)),
        }
    }

    /// Forgets what the cache has of keys that another service has written.
    pub fn forget_cached(&self, keys: &[Bytes]) {
        keys.iter().for_each(|key| self.cache.remove(key));
    }

    /// Forgets what the cache has of a partition: another service may have changed it.
    pub fn forget_cached_partition(&self, partition: PartitionId) {
        self.cache.forget(partition);
    }

    /// One attempt to run a command.
    pub fn attempt<T>(
        &self,
        place: &Place<'_>,
        fetched: &mut Fetched,
        command: &mut impl FnMut(&View<'_>) -> Result<Change<T>, Stop>,
        enqueued: &mut impl FnMut(&Ticket, &T),
    ) -> Attempt<T> {
        let executors = place.own.iter().map(|p| self.partitions[p.0 as usize].lock()).collect();
        let mut held = Held { executors, guests: place.guests };
        for executor in &mut held.executors {
            self.retire(executor);
            match executor.admit(place.pass) {
                Admission::Now => {}
                Admission::Later => return Attempt::Changed(executor.changed.clone()),
                Admission::Never if executor.partition == place.home => {
                    return Attempt::Done { answer: Err(not_owner(executor.partition)), after: None };
                }
                Admission::Never => return Attempt::Across,
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
            searched: Cell::new(None),
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
            Err(Stop::Elsewhere(accesses)) => Attempt::Elsewhere(accesses),
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
        let mut guards: Vec<Guard> = held.executors.iter().map(|executor| executor.owner.clone()).collect();
        guards.extend(held.guests.iter().map(|guest| guest.owner.clone()));
        let ticket = self.store.enqueue(Batch { guards, writes });
        if matches!(ticket.result(), Some(Err(_))) {
            // The writer takes no writes any more. What was not enqueued must not pile up here. A
            // ticket that is settled well already (another core led the commit meanwhile) goes on
            // like any other: the cache has to learn of its writes.
            return ticket;
        }
        let spans = held.executors.len() + held.guests.len() > 1;
        for guest in held.guests {
            let keys = shown.iter().map(|(key, _)| key);
            guest
                .written
                .lock()
                .extend(keys.filter(|key| keys::partition_of_key(key) == guest.partition).cloned());
        }
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
    pub async fn committed(&self, partitions: &[PartitionId], ticket: &Ticket) -> Result<()> {
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
                        Errno::EREMOTE,
                        "a partition of this request has moved to another metadata service",
                    ),
                })
            }
            Err(error) => Err(store_error(&error)),
        }
    }

    /// Forgets what is settled. After a failure of the store everything stays: nobody knows what it
    /// holds.
    pub fn retire(&self, executor: &mut Executor) {
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

    /// A commit was lost: asks the store who owns the partition. If the service still does, another
    /// partition of that commit was the cause, and nothing was run on top of it.
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
    pub async fn settle_doubt(&self, partition: PartitionId) -> Result<()> {
        let expected = {
            let executor = self.lock(partition)?;
            if !executor.in_doubt {
                return Ok(());
            }
            executor.owner.clone()
        };
        let owner = self.store.get(&expected.key).await.map_err(|error| store_error(&error))?;
        let mut executor = self.lock(partition)?;
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
        self.leave();
    }
}

/// Whether a command may run on a partition.
enum Admission {
    Now,
    /// When it changes.
    Later,
    /// It is another service's.
    Never,
}

impl Executor {
    fn admit(&self, pass: Pass) -> Admission {
        let is_command = pass != Pass::Background;
        match self.standing {
            Standing::Elsewhere | Standing::Leaving => Admission::Never,
            Standing::Settling | Standing::Closed if is_command => Admission::Later,
            _ => match self.loan {
                Some(token) if pass != Pass::Errand(token) => Admission::Later,
                _ => Admission::Now,
            },
        }
    }

    /// Whether this service executes the partition, for itself at least.
    pub fn is_owned(&self) -> bool {
        !matches!(self.standing, Standing::Elsewhere | Standing::Leaving)
    }

    /// Changes what may be done.
    pub fn stand(&mut self, standing: Standing) {
        self.standing = standing;
        self.tell();
    }

    /// Lets an errand have the partition, or nobody. What was read before may not be so any more
    /// after it.
    pub fn lend(&mut self, loan: Option<u64>) {
        self.loan = loan;
        self.readings.make_void();
        self.readings.release(&mut self.overlay);
        self.tell();
    }

    /// It is another service's now, which may have changed everything.
    pub fn leave(&mut self) {
        self.overlay.clear();
        self.pending.clear();
        self.barrier = None;
        self.loan = None;
        self.in_doubt = false;
        self.readings.make_void();
        self.readings.release(&mut self.overlay);
        self.stand(Standing::Elsewhere);
    }

    fn tell(&mut self) {
        std::mem::take(&mut self.changed).set();
    }
}

/// What a command has fetched; ends its readings when it is dropped.
pub(crate) struct Reading<'a> {
    executors: &'a Executors,
    pub fetched: Fetched,
}

impl<'a> Reading<'a> {
    pub fn new(executors: &'a Executors) -> Reading<'a> {
        Reading { executors, fetched: Fetched::default() }
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

impl Held<'_> {
    /// What is on its way in a partition; `None` when it is not held.
    pub fn overlay(&self, partition: PartitionId) -> Option<&Overlay> {
        // One or two as a rule.
        self.executors
            .iter()
            .find(|executor| executor.partition == partition)
            .map(|executor| &executor.overlay)
    }

    /// Whether any partition of another service is held.
    pub fn has_guests(&self) -> bool {
        !self.guests.is_empty()
    }

    /// Whether a partition of another service is held.
    pub fn is_guest(&self, partition: PartitionId) -> bool {
        self.guests.iter().any(|guest| guest.partition == partition)
    }

    fn executor(&mut self, partition: PartitionId) -> Option<&mut Executor> {
        self.executors.iter_mut().find(|e| e.partition == partition).map(|executor| &mut **executor)
    }
}

fn bad_partition(partition: PartitionId) -> Error {
    Error::new(Errno::ESTALE, format!("there is no partition {partition}"))
}
