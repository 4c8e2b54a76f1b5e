//! Cross-partition transactions: commands that also need partitions of other services. These are
//! renames, links and removals across directories, and new directories.
//!
//! The coordinator locks all partitions before it runs the command: its own, and those of other
//! services, in ascending order, so that no two transactions deadlock. It commits one batch,
//! guarded by the owner records of all of them, and unlocks them. If the command turns out to need
//! one more partition, or leases have to be recalled, it unlocks everything first: what sessions
//! flush at a recall needs these very partitions.

use crate::coherence::Cleared;
use crate::eviction::within;
use crate::executor::{Attempt, Guest, Pass, Place, Reading, Stop};
use crate::limits::{BORROW_TIME, ERRAND_REST, ERRAND_TIME, MAKE_WAY_TIME};
use crate::neighbours::{Neighbours, PartitionsChannel};
use crate::service::{Answered, Found, MetaService};
use crate::sessions::Session;
use crate::view::{View, not_owner, store_error};
use kv::{Guard, Outcome};
use namespace::keys;
use namespace::leases::{Access, Due};
use net::Deadline;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use types::{Errno, Error, InodeId, PartitionId, Result};
use wire::{MetaRequest, PartitionsReply, PartitionsRequest};

/// A command with its context.
struct Errand {
    service: Arc<MetaService>,
    request: MetaRequest,
    session: Arc<Session>,
    /// When the caller stops waiting for the answer.
    deadline: Deadline,
}

/// Partitions that a transaction has locked.
struct Taken {
    token: u64,
    own: Vec<PartitionId>,
    guests: Vec<Guest>,
    ways: BTreeMap<PartitionId, PartitionsChannel>,
    cleared: Cleared,
}

/// Outcome of one attempt.
enum Step {
    Answered(Box<Answered>),
    Refused(Error),
    /// It is unknown whether the commit happened. Partitions of other services are not unlocked:
    /// their owners find out by revoking the lock.
    Unsure(Error),
    /// The command needs this partition, too.
    Need(PartitionId),
    /// These recalls must be acknowledged first.
    Leases(Vec<Due>),
    /// These leases of other services must be recalled first.
    MakeWay(Vec<(InodeId, Access)>),
    /// The conditions have changed: try again.
    Again,
}

impl MetaService {
    /// Runs a command on partitions some of which other services own. Continues when the caller is
    /// dropped: other commands wait for the partitions that it has locked.
    pub(crate) async fn run_errand(
        &self,
        request: &MetaRequest,
        session: &Arc<Session>,
        partitions: Vec<PartitionId>,
        deadline: Deadline,
    ) -> Result<Answered> {
        let Some(service) = self.myself.upgrade() else { return Err(Errno::ECANCELED.into()) };
        if self.neighbours.is_none() {
            return Err(not_owner(namespace::home_partition(&request.op)));
        }
        let errand = Errand { service, request: request.clone(), session: session.clone(), deadline };
        let outcome = Arc::new((Mutex::new(None), Event::new()));
        let told = outcome.clone();
        rt::spawn(async move {
            let answer = errand.run(partitions).await;
            *told.0.lock() = Some(answer);
            told.1.set();
        });
        outcome.1.wait().await;
        let answer = outcome.0.lock().take();
        answer.unwrap_or_else(|| Err(Errno::ECANCELED.into()))
    }
}

impl Errand {
    fn neighbours(&self) -> Result<&Neighbours> {
        self.service.neighbours.as_ref().ok_or_else(|| Errno::EREMOTE.into())
    }

    async fn run(&self, mut partitions: Vec<PartitionId>) -> Result<Answered> {
        let began_ns = rt::monotonic_ns();
        loop {
            if self.deadline.is_over() {
                return Err(self.deadline.error());
            }
            let step = match self.take(&partitions).await {
                Ok(taken) => {
                    let step = self.run_on(&taken).await;
                    match step {
                        Step::Unsure(_) => {
                            taken.own.iter().for_each(|p| self.service.give_back(*p, taken.token, None))
                        }
                        _ => self.give_back(taken, matches!(step, Step::Answered(_))),
                    }
                    step
                }
                Err(error) if error.errno == Errno::EAGAIN => Step::Again,
                Err(error) => return Err(error),
            };
            self.service.executors.counters.reruns.add(1);
            match step {
                Step::Answered(answer) => return Ok(*answer),
                Step::Refused(error) | Step::Unsure(error) => return Err(error),
                Step::Need(partition) => match partitions.binary_search(&partition) {
                    Err(at) => partitions.insert(at, partition),
                    Ok(_) => return Err(not_owner(partition)),
                },
                Step::Leases(due) => self.service.wait_for_answers(due).await,
                Step::MakeWay(accesses) => self.wait_until_clear(accesses).await,
                Step::Again => rt::sleep(ERRAND_REST).await,
            }
            if rt::monotonic_ns() - began_ns > ERRAND_TIME.as_nanos() as u64 {
                let message = "a partition of this request is not to be had from its metadata service";
                // The client asks again, as long as its own time-out allows.
                return Err(Error::new(Errno::EREMOTE, message));
            }
        }
    }

    /// Locks all partitions, in ascending order.
    ///
    /// # Errors
    /// `EREMOTE` when another service owns the command's home partition; `EAGAIN` when a partition
    /// can't be locked now. No partition stays locked then.
    async fn take(&self, partitions: &[PartitionId]) -> Result<Taken> {
        let mut taken = Taken {
            // A new token for each attempt: a message about an earlier lock must not affect a later
            // one.
            token: rt::random_u64().max(1),
            own: Vec::new(),
            guests: Vec::new(),
            ways: BTreeMap::new(),
            cleared: Cleared::default(),
        };
        for &partition in partitions {
            if let Err(error) = self.take_one(partition, &mut taken).await {
                self.give_back(taken, false);
                let is_lost = partition == namespace::home_partition(&self.request.op);
                return match error.errno {
                    Errno::EREMOTE if is_lost => Err(error),
                    // The service isn't the owner any more, or doesn't answer: the cluster map will
                    // name the owner.
                    Errno::EREMOTE | Errno::ETIMEDOUT | Errno::EHOSTDOWN | Errno::EAGAIN => {
                        Err(Error::new(Errno::EAGAIN, error.message))
                    }
                    _ => Err(error),
                };
            }
        }
        Ok(taken)
    }

    async fn take_one(&self, partition: PartitionId, taken: &mut Taken) -> Result<()> {
        let is_own = self.service.executors.lock(partition)?.is_owned();
        if is_own || partition == namespace::home_partition(&self.request.op) {
            self.service.park(partition, taken.token).await?;
            taken.own.push(partition);
            return Ok(());
        }
        let way = self.neighbours()?.owner_of(partition)?;
        let ask = PartitionsRequest::Borrow { partition, token: taken.token };
        let answer = within(BORROW_TIME, way.call(ask, None)).await.unwrap_or(Err(Errno::ETIMEDOUT.into()));
        let (owner, quiet) = match answer {
            Ok(PartitionsReply::Lent { owner, quiet }) => (owner, quiet),
            Ok(_) => return Err(out_of_turn()),
            Err(refused) if matches!(refused.errno, Errno::EREMOTE | Errno::EAGAIN) => return Err(refused),
            Err(error) => {
                // The owner may have locked it, and the answer was lost.
                rt::spawn(bring_back(way, partition, taken.token, Vec::new()));
                return Err(error);
            }
        };
        let owner = Guard { key: keys::owner(partition).to_vec(), expected: Some(owner) };
        taken.guests.push(Guest { owner, partition, written: Mutex::default() });
        taken.ways.insert(partition, way);
        if quiet {
            taken.cleared.partitions.insert(partition);
        }
        Ok(())
    }

    /// Runs the command, with all partitions locked.
    async fn run_on(&self, taken: &Taken) -> Step {
        let service = &self.service;
        let map = service.chunks.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut inodes = taken.cleared.inodes.clone();
        // Data fetched from partitions of other services stays valid as long as they are locked.
        let mut reading = Reading::new(&service.executors);
        loop {
            service.executors.store.admit().await;
            let cleared = Cleared { inodes: inodes.clone(), partitions: taken.cleared.partitions.clone() };
            let mut command = |view: &View<'_>| {
                // As in `execute`: the command may have waited for long since its partitions were
                // locked.
                if self.deadline.is_over() {
                    return Err(Stop::Refused(self.deadline.error()));
                }
                service.apply((&self.request, Found::WithInode), &self.session, &map, (view, &cleared))
            };
            let home = namespace::home_partition(&self.request.op);
            let pass = Pass::Errand(taken.token);
            let place = Place { home, own: &taken.own, guests: &taken.guests, pass };
            match service.executors.attempt(&place, &mut reading.fetched, &mut command, &mut |_, _| ()) {
                Attempt::Done { answer, after: None } => {
                    return answered(answer);
                }
                Attempt::Done { answer, after: Some(ticket) } => {
                    match service.executors.store.wait(&ticket).await {
                        Ok(Outcome::Won) => {}
                        Ok(Outcome::Lost) => {
                            // Finds out whether this service lost one of its own partitions.
                            _ = service.executors.committed(&taken.own, &ticket).await;
                            return Step::Again;
                        }
                        Ok(Outcome::Unknown) => {
                            let message = "the metadata store does not know the outcome of a commit";
                            return Step::Unsure(Error::new(Errno::EIO, message));
                        }
                        Err(error) => return Step::Unsure(store_error(&error)),
                    }
                    if let Ok(answered) = &answer {
                        self.session.record(self.request.number, &answered.reply, &ticket);
                    }
                    return answered(answer);
                }
                Attempt::Elsewhere(accesses) => match self.ask_whether_clear(taken, &accesses).await {
                    Ok(true) => inodes.extend(accesses.iter().map(|(ino, _)| *ino)),
                    Ok(false) => return Step::MakeWay(accesses),
                    Err(_) => return Step::Again,
                },
                Attempt::Fetch(wants) => {
                    if let Err(error) = reading.fetched.fetch(&service.executors.store, wants).await {
                        return Step::Refused(store_error(&error));
                    }
                }
                Attempt::Doubt(_) => return Step::Again,
                Attempt::Leases(due) => return Step::Leases(due),
                Attempt::Need(partition) => return Step::Need(partition),
                Attempt::After(ticket) => {
                    // The command that enqueued the commit handles its outcome.
                    if service.executors.store.wait(&ticket).await.is_err() {
                        return Step::Refused(Errno::EIO.into());
                    }
                }
                Attempt::Across | Attempt::Changed(_) => return Step::Again,
            }
        }
    }

    /// Unlocks all partitions. `written`: the writes are committed.
    fn give_back(&self, taken: Taken, written: bool) {
        for &partition in &taken.own {
            self.service.give_back(partition, taken.token, None);
        }
        for guest in taken.guests {
            let Some(way) = taken.ways.get(&guest.partition).cloned() else { continue };
            let keys = if written { guest.written.into_inner() } else { Vec::new() };
            rt::spawn(bring_back(way, guest.partition, taken.token, keys));
        }
    }

    /// Asks the owners of locked partitions whether leases conflict, and makes them recall those.
    async fn ask_whether_clear(&self, taken: &Taken, accesses: &[(InodeId, Access)]) -> Result<bool> {
        let mut all = true;
        for (partition, accesses) in by_partition(accesses) {
            let Some(way) = taken.ways.get(&partition) else { continue };
            all &= self.make_way_at(way, accesses, false).await?;
        }
        Ok(all)
    }

    async fn wait_until_clear(&self, accesses: Vec<(InodeId, Access)>) {
        for (partition, accesses) in by_partition(&accesses) {
            let Ok(neighbours) = self.neighbours() else { return };
            // If no owner is reachable now, the next attempt reports the reason.
            let Ok(way) = neighbours.owner_of(partition) else { continue };
            if let Err(error) = self.make_way_at(&way, accesses, true).await {
                tracing::debug!(partition = partition.0, %error, "leases at another service are not recalled yet");
                rt::sleep(ERRAND_REST).await;
            }
        }
    }

    async fn make_way_at(
        &self,
        way: &PartitionsChannel,
        accesses: Vec<(InodeId, Access)>,
        wait: bool,
    ) -> Result<bool> {
        let ask = PartitionsRequest::MakeWay { session: self.request.session, accesses, wait };
        match within(MAKE_WAY_TIME, way.call(ask, None)).await {
            Some(answer) => match answer? {
                PartitionsReply::Clear(clear) => Ok(clear),
                _ => Err(out_of_turn()),
            },
            None => Err(Errno::ETIMEDOUT.into()),
        }
    }
}

fn answered(answer: Result<Answered>) -> Step {
    answer.map_or_else(Step::Refused, |answer| Step::Answered(Box::new(answer)))
}

async fn bring_back(way: PartitionsChannel, partition: PartitionId, token: u64, written: Vec<bytes::Bytes>) {
    let back = PartitionsRequest::Return { partition, token, written };
    if let Err(error) = way.call(back, None).await {
        tracing::warn!(partition = partition.0, %error, "a partition was not given back: its owner will call it in");
    }
}

fn by_partition(accesses: &[(InodeId, Access)]) -> BTreeMap<PartitionId, Vec<(InodeId, Access)>> {
    let mut parts: BTreeMap<PartitionId, Vec<(InodeId, Access)>> = BTreeMap::new();
    for &(ino, access) in accesses {
        parts.entry(ino.partition()).or_default().push((ino, access));
    }
    parts
}

fn out_of_turn() -> Error {
    Error::new(Errno::EPROTO, "another metadata service answered out of turn")
        .hint("install the same version of weft on all machines")
}
