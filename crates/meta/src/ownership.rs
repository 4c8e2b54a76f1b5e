//! Which partitions this service executes: it adopts those that the map gives it, and gives up
//! those that the map gives to others.
//!
//! The truth is the record of the owner in the store. A service adopts a partition whose record
//! says that its owner has released it, or whose owner is down; it writes its own name there, and
//! from then on nothing of the one before can be committed any more. What sessions have open there,
//! they say again; until all have done so, the partition stays closed, as after a restart.

use crate::executor::Standing;
use crate::limits::{ASSIGNMENT_POLL, RETRY_TIME};
use crate::record::Owner;
use crate::service::{MetaService, env};
use crate::view::store_error;
use kv::{Batch, Guard, Outcome};
use namespace::{Key, decode_key, keys};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use types::{
    ClusterMap, Credentials, Epoch, Errno, Error, InodeId, NodeId, NodeState, PartitionId, Result, SessionId,
};

/// A partition, with which of its adoptions by this service is meant.
#[derive(Clone, Copy)]
struct Adopted {
    partition: PartitionId,
    adoption: u64,
}

impl MetaService {
    /// Adopts and gives up what the map says, as long as the service runs. Needs a runtime; one
    /// call for each service that shares partitions.
    pub async fn follow_assignment(self: Arc<Self>) {
        let mut settled = None;
        while !self.stopping.is_set() {
            // First: a map from before the term could be of no use.
            let term = self.neighbours.as_ref().and_then(|neighbours| neighbours.term());
            let map = self.chunks.map.read().unwrap_or_else(PoisonError::into_inner).clone();
            if settled != Some((map.epoch, term)) || self.lacks_some(&map) {
                settled = match self.settle_in(&map, term).await {
                    Ok(true) => Some((map.epoch, term)),
                    Ok(false) => None,
                    Err(error) => {
                        tracing::warn!(%error, "partitions are not as the map says yet");
                        None
                    }
                };
            }
            rt::sleep(ASSIGNMENT_POLL).await;
        }
    }

    /// Whether a partition that the map gives to this service was taken from it, or is still to
    /// come.
    pub(crate) fn lacks_some(&self, map: &ClusterMap) -> bool {
        self.all_partitions().any(|p| self.is_given(map, p) && !self.is_owned(p))
    }

    fn is_given(&self, map: &ClusterMap, partition: PartitionId) -> bool {
        map.owner(partition).is_some_and(|node| node.id == self.options.node)
    }

    /// Whether this service executes a partition.
    pub(crate) fn is_owned(&self, partition: PartitionId) -> bool {
        self.executors.lock(partition).is_ok_and(|executor| executor.is_owned())
    }

    /// Partitions that this service executes, settles or keeps closed for now.
    pub(crate) fn owned(&self) -> Vec<PartitionId> {
        self.all_partitions().filter(|p| self.is_owned(*p)).collect()
    }

    /// Partitions whose requests are answered now.
    pub fn executed(&self) -> Vec<PartitionId> {
        self.all_partitions().filter(|p| self.executes(*p)).collect()
    }

    /// Whether requests of a partition are answered now.
    pub(crate) fn executes(&self, partition: PartitionId) -> bool {
        self.executors.lock(partition).is_ok_and(|executor| executor.standing == Standing::Open)
    }

    /// Does what a map says, of a term of management's counting on the node; true when nothing is
    /// left to be done.
    async fn settle_in(self: &Arc<Self>, map: &ClusterMap, term: Option<u64>) -> Result<bool> {
        let records = self.owner_records().await?;
        let mut adoptable = Vec::new();
        let mut leaving = Vec::new();
        let mut is_done = true;
        for partition in self.all_partitions() {
            let record = records.get(&partition);
            let is_mine = record.is_some_and(|owner| owner.node == self.options.node.0 && !owner.released);
            if self.is_owned(partition) && !is_mine {
                // Taken by another service, which took this one for dead: what is remembered of it
                // here may be old, and nothing can be committed.
                self.executors.lock(partition)?.leave();
                self.forget_partition(partition);
                self.forget_follows(partition);
                tracing::warn!(
                    partition = partition.0,
                    "a partition was taken over by another metadata service"
                );
            }
            match (self.is_given(map, partition), self.is_owned(partition)) {
                (true, true) => {}
                (true, false) if may_adopt(record, self.options.node, map) => adoptable.push(partition),
                (true, false) => is_done = false,
                (false, true) => leaving.push(partition),
                // An earlier process of this node had it.
                (false, false) if is_mine => leaving.push(partition),
                (false, false) => {}
            }
        }
        for &partition in &leaving {
            let mut executor = self.executors.lock(partition)?;
            if executor.is_owned() {
                executor.stand(Standing::Leaving);
            }
        }
        self.neighbours.iter().for_each(|neighbours| neighbours.has_looked(term));
        for partition in leaving {
            self.give_up(partition).await?;
        }
        if !adoptable.is_empty() {
            let living = self.adopt(&adoptable, Standing::Settling).await?;
            tracing::info!(partitions = adoptable.len(), epoch = map.epoch.0, "partitions adopted");
            let adopted = self.adoptions(&adoptable)?;
            rt::spawn(self.clone().bring_up(adopted, living));
        }
        Ok(is_done)
    }

    async fn owner_records(&self) -> Result<BTreeMap<PartitionId, Owner>> {
        let range = keys::all_owners();
        let limit = self.options.partitions as usize + 1;
        let stored = self.executors.store.scan(&range.from, &range.to, limit).await;
        let stored = stored.map_err(|error| store_error(&error))?;
        let mut records = BTreeMap::new();
        for (key, value) in stored {
            let Some(Key::Owner(partition)) = decode_key(&key) else { continue };
            let owner = Owner::decode(value).map_err(|cause| {
                Error::new(
                    Errno::EIO,
                    format!("the owner record of partition {partition} is damaged: {cause}"),
                )
            })?;
            records.insert(partition, owner);
        }
        Ok(records)
    }

    /// Writes the service's name on partitions, and the root directory of a new file system. From
    /// then on no other service changes them. Sessions that may have something open there have to
    /// say so before the partitions are open: these are returned. They have to follow even if this
    /// node had the partition before: it may have died before all of them had followed from the
    /// service before that.
    ///
    /// # Errors
    /// The store's; `EBUSY` when another service does the same at this moment.
    pub(crate) async fn adopt(
        &self,
        partitions: &[PartitionId],
        standing: Standing,
    ) -> Result<BTreeSet<SessionId>> {
        let mut asked: Vec<Vec<u8>> = partitions.iter().map(|p| keys::owner(*p).to_vec()).collect();
        asked.push(keys::inode(InodeId::ROOT).to_vec());
        let stored = self.executors.store.get_many(&asked).await.map_err(|error| store_error(&error))?;
        let is_new = stored.last().is_none_or(Option::is_none);
        let mut batch = Batch::default();
        let mut owners = Vec::with_capacity(partitions.len());
        let mut followed = Vec::new();
        for (&partition, before) in partitions.iter().zip(stored) {
            let key = keys::owner(partition).to_vec();
            let next = self.next_owner(partition, before.as_deref())?;
            let value = next.encode_to_vec();
            if self.neighbours.is_some() {
                followed.push(partition);
            }
            batch.guards.push(Guard { key: key.clone(), expected: before });
            batch.writes.push((key.clone(), Some(value.clone().into())));
            owners.push((partition, next.epoch, Guard { key, expected: Some(value.into()) }));
        }
        if partitions.contains(&InodeId::ROOT.partition()) && is_new {
            let map = self.chunks.map.read().unwrap_or_else(PoisonError::into_inner).clone();
            let env = env(&self.options, SessionId(0), Credentials::default(), &map);
            batch.writes.extend(namespace::format(&env));
        }
        match self.executors.store.commit(batch).await.map_err(|error| store_error(&error))? {
            Outcome::Won => {}
            Outcome::Lost | Outcome::Unknown => {
                let message = "another metadata service takes partitions over at this moment";
                return Err(Error::new(Errno::EBUSY, message));
            }
        }
        for (partition, epoch, owner) in owners {
            self.forget_partition(partition);
            self.leases.adopted(partition, epoch);
            let mut executor = self.executors.lock(partition)?;
            executor.leave();
            executor.owner = owner;
            executor.adoption += 1;
            executor.stand(standing);
        }
        // Sessions that register after this have nothing there yet.
        let living = match self.expect_sessions(&followed).await {
            Ok(living) => living,
            Err(error) => {
                for &partition in partitions {
                    self.executors.lock(partition)?.leave();
                }
                return Err(error);
            }
        };
        // Who waits for recalls learns of it now.
        living.iter().filter_map(|id| self.sessions.find(*id)).for_each(|session| session.wake());
        Ok(living)
    }

    /// What was granted and read here when the partition was this service's before.
    fn forget_partition(&self, partition: PartitionId) {
        self.executors.forget_cached_partition(partition);
        self.leases.forget_partition(partition);
        self.cuts.forget_partition(partition);
        self.sizes.forget_partition(partition);
        self.locks.forget_partition(partition);
    }

    /// What was just adopted, with the adoption that each of it belongs to from now on.
    fn adoptions(&self, partitions: &[PartitionId]) -> Result<Vec<Adopted>> {
        let adopted = |&partition: &PartitionId| {
            Ok(Adopted { partition, adoption: self.executors.lock(partition)?.adoption })
        };
        partitions.iter().map(adopted).collect()
    }

    /// Whether a partition is this service's by the same adoption still: it may have been given up
    /// meanwhile, and adopted anew.
    fn is_still(&self, adopted: Adopted) -> bool {
        let executor = self.executors.lock(adopted.partition);
        executor.is_ok_and(|executor| executor.is_owned() && executor.adoption == adopted.adoption)
    }

    /// Settles what was left in partitions, and opens them when the sessions that may have
    /// something open there are back. What those have left is settled when they follow, or are
    /// ended.
    async fn bring_up(self: Arc<Self>, mut adopted: Vec<Adopted>, living: BTreeSet<SessionId>) {
        while let Err(error) = self.settle_adopted(&adopted, &living).await {
            tracing::warn!(%error, "partitions that were adopted are not settled yet");
            if self.stopping.is_set() {
                return;
            }
            // What has gone on to another service is settled there, and what was adopted anew by
            // who brings that up.
            adopted.retain(|adopted| self.is_still(*adopted));
            rt::sleep(RETRY_TIME).await;
        }
        self.open_settled(&adopted);
        self.doomed.set();
        self.wait_for_grace().await;
        adopted.retain(|adopted| self.is_still(*adopted));
        let partitions: Vec<PartitionId> = adopted.iter().map(|adopted| adopted.partition).collect();
        self.reclaim_unknown(&partitions).await;
    }

    async fn settle_adopted(&self, adopted: &[Adopted], living: &BTreeSet<SessionId>) -> Result<()> {
        for adopted in adopted {
            // Who was living is known for this adoption only.
            let is_over = |session| !living.contains(&session) && self.is_still(*adopted);
            self.settle_left(&[adopted.partition], is_over).await?;
        }
        Ok(())
    }

    fn open_settled(&self, adopted: &[Adopted]) {
        for &Adopted { partition, adoption } in adopted {
            let Ok(mut executor) = self.executors.lock(partition) else { continue };
            if executor.standing == Standing::Settling && executor.adoption == adoption {
                // The end of the grace opens what is closed after it has ended.
                let standing = if self.grace.is_on() { Standing::Closed } else { Standing::Open };
                executor.stand(standing);
            }
        }
    }

    /// Opens what waited for the end of the grace.
    pub(crate) fn open_closed(&self) {
        if self.grace.is_on() {
            // Another one has begun.
            return;
        }
        for partition in self.all_partitions() {
            let Ok(mut executor) = self.executors.lock(partition) else { continue };
            if executor.standing == Standing::Closed {
                executor.stand(Standing::Open);
            }
        }
    }

    /// Lets everything that is under way in a partition come to its end, and releases it.
    async fn give_up(&self, partition: PartitionId) -> Result<()> {
        loop {
            let (changed, ticket) = {
                let mut executor = self.executors.lock(partition)?;
                self.executors.retire(&mut executor);
                if executor.is_owned() {
                    executor.stand(Standing::Leaving);
                }
                let ticket = executor.pending.back().map(|(ticket, _)| ticket.clone());
                if executor.loan.is_none() && ticket.is_none() {
                    break;
                }
                (executor.changed.clone(), ticket)
            };
            match ticket {
                Some(ticket) => _ = self.executors.store.wait(&ticket).await.map_err(|e| store_error(&e))?,
                None => changed.wait().await,
            }
        }
        let key = keys::owner(partition).to_vec();
        let before = self.executors.store.get(&key).await.map_err(|error| store_error(&error))?;
        let owner = before.as_deref().map(Owner::decode).transpose();
        let owner =
            owner.map_err(|cause| Error::new(Errno::EIO, format!("a damaged owner record: {cause}")))?;
        if let Some(owner) = owner.filter(|owner| owner.node == self.options.node.0) {
            let value = Owner { released: true, ..owner }.encode_to_vec();
            let guards = vec![Guard { key: key.clone(), expected: before }];
            let batch = Batch { guards, writes: vec![(key, Some(value.into()))] };
            match self.executors.store.commit(batch).await.map_err(|error| store_error(&error))? {
                // Who has won over this has taken it over already.
                Outcome::Won | Outcome::Lost => {}
                Outcome::Unknown => return Err(Errno::EAGAIN.into()),
            }
        }
        self.executors.lock(partition)?.leave();
        self.forget_partition(partition);
        self.forget_follows(partition);
        tracing::info!(partition = partition.0, "a partition is given up");
        Ok(())
    }

    /// Waits until this service executes a partition, if the map says that it is to.
    ///
    /// # Errors
    /// `EREMOTE` when it is another service's, or nobody's for too long.
    pub(crate) async fn await_assignment(&self, partition: PartitionId, refusal: Error) -> Result<()> {
        let Some(neighbours) = self.neighbours.as_ref() else { return Err(refusal) };
        let began_ns = rt::monotonic_ns();
        while neighbours.is_own(partition) {
            let changed = {
                let executor = self.executors.lock(partition)?;
                if executor.is_owned() {
                    return Ok(());
                }
                executor.changed.clone()
            };
            if rt::monotonic_ns() - began_ns > crate::limits::ERRAND_TIME.as_nanos() as u64 {
                break;
            }
            crate::eviction::within(RETRY_TIME, changed.wait()).await;
        }
        Err(refusal)
    }
}

/// Whether a partition may be taken over from who has it: it was given up, or its owner is this
/// very node, or down.
fn may_adopt(record: Option<&Owner>, own: NodeId, map: &ClusterMap) -> bool {
    let Some(record) = record else { return true };
    let owner = NodeId(record.node);
    let is_down = || map.node(owner).is_none_or(|node| node.state == NodeState::Offline);
    // A map without nodes is that of one process.
    record.released || owner == own || (map.epoch > Epoch(0) && is_down())
}
