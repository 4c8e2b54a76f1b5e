//! Ownership of partitions: the service adopts those that the cluster map assigns to it, and
//! releases those that the map assigns to others.
//!
//! The owner record in the store decides. A service adopts a partition whose record says that its
//! owner has released it, or whose owner is down. It writes its own record, and from then on the
//! previous owner can't commit anything. Sessions reclaim what they have open there. Until all have
//! done so, the partition stays closed, as after a restart.

use crate::data::orphans::Orphans;
use crate::data::reaper::Reaper;
use crate::data::reported_sizes::ReportedSizes;
use crate::data::size_recovery::SizeRecovery;
use crate::data::truncations::PendingTruncations;
use crate::lease::table::Leases;
use crate::limits::{ASSIGNMENT_POLL, RETRY_PAUSE};
use crate::partition::executor::{Executors, PartitionState};
use crate::partition::peers::PeerServices;
use crate::partition::serving::Serving;
use crate::service::MetaOptions;
use crate::service::command::env;
use crate::session::eviction::Eviction;
use crate::session::grace_period::{GracePeriod, SessionReturns};
use crate::session::locks::Locks;
use crate::session::table::Sessions;
use crate::store::record::Owner;
use crate::store::transaction_view::store_error;
use kv::{Batch, Guard, Outcome};
use namespace::{Key, decode_key, keys};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{
    ClusterMap, Credentials, Epoch, Errno, Error, InodeId, MapHandle, NodeId, NodeState, PartitionId, Result,
    SessionId,
};

/// A partition, and which of its adoptions by this service is meant.
#[derive(Clone, Copy)]
struct Adoption {
    partition: PartitionId,
    adoption: u64,
}

/// Adopts and releases partitions.
pub(crate) struct Ownership {
    pub options: MetaOptions,
    pub map: MapHandle,
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub locks: Arc<Locks>,
    pub leases: Arc<Leases>,
    pub truncations: Arc<PendingTruncations>,
    pub reported_sizes: Arc<ReportedSizes>,
    pub grace: Arc<GracePeriod>,
    pub returns: Arc<SessionReturns>,
    pub eviction: Arc<Eviction>,
    pub sizes: Arc<SizeRecovery>,
    pub orphans: Arc<Orphans>,
    pub reaper: Arc<Reaper>,
    /// The other services that share the partitions; `None` if this service owns all of them.
    pub peers: Option<Arc<PeerServices>>,
    pub serving: Arc<Serving>,
}

impl Ownership {
    /// Adopts and releases partitions as the cluster map says, until the service stops. Needs a
    /// runtime; call it once for each service that shares partitions.
    pub async fn follow_assignment(self: Arc<Self>) {
        let mut applied = None;
        while !self.serving.is_stopping() {
            // Read before the map: a map from before the term may be outdated.
            let term = self.peers.as_ref().and_then(|peers| peers.term());
            let map = self.map.load();
            if applied != Some((map.epoch, term)) || self.lacks_partitions(&map) {
                applied = match self.apply_assignment(&map, term).await {
                    Ok(true) => Some((map.epoch, term)),
                    Ok(false) => None,
                    Err(error) => {
                        tracing::warn!(%error, "the partitions can't be adopted or released as the cluster map says yet");
                        None
                    }
                };
            }
            rt::sleep(ASSIGNMENT_POLL).await;
        }
    }

    /// Whether this service does not own yet, or has lost, a partition that the map assigns to it.
    pub fn lacks_partitions(&self, map: &ClusterMap) -> bool {
        self.executors.all().any(|p| self.is_assigned(map, p) && !self.executors.is_owned(p))
    }

    fn is_assigned(&self, map: &ClusterMap, partition: PartitionId) -> bool {
        map.owner(partition).is_some_and(|node| node.id == self.options.node)
    }

    /// Adopts and releases partitions as a map says. `term`: the current period of management's
    /// trust in the node. Returns true when nothing is left to do.
    async fn apply_assignment(self: &Arc<Self>, map: &ClusterMap, term: Option<u64>) -> Result<bool> {
        let records = self.owner_records().await?;
        let mut adoptable = Vec::new();
        let mut to_release = Vec::new();
        let mut is_done = true;
        for partition in self.executors.all() {
            let record = records.get(&partition);
            let is_own_record =
                record.is_some_and(|owner| owner.node == self.options.node.0 && !owner.released);
            if self.executors.is_owned(partition) && !is_own_record {
                // Another service has taken over the partition, because management considered this
                // one dead. Cached state may be outdated, and this service can't commit anything
                // there.
                self.executors.lock(partition)?.mark_not_owned();
                self.forget_partition(partition);
                self.returns.drop_pending_reclaims(partition);
                tracing::warn!(
                    partition = partition.0,
                    "a partition was taken over by another metadata service"
                );
            }
            match (self.is_assigned(map, partition), self.executors.is_owned(partition)) {
                (true, true) => {}
                (true, false) if may_adopt(record, self.options.node, map) => adoptable.push(partition),
                (true, false) => is_done = false,
                (false, true) => to_release.push(partition),
                // An earlier process of this node owned it.
                (false, false) if is_own_record => to_release.push(partition),
                (false, false) => {}
            }
        }
        for &partition in &to_release {
            let mut executor = self.executors.lock(partition)?;
            if executor.is_owned() {
                executor.set_state(PartitionState::Releasing);
            }
        }
        self.peers.iter().for_each(|peers| peers.record_owners_read(term));
        for partition in to_release {
            self.release_partition(partition).await?;
        }
        if !adoptable.is_empty() {
            let live = self.adopt(&adoptable, PartitionState::Recovering).await?;
            tracing::info!(partitions = adoptable.len(), epoch = map.epoch.0, "partitions adopted");
            let adopted = self.adoptions(&adoptable)?;
            rt::spawn(self.clone().recover_and_open(adopted, live));
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

    /// Writes this service's owner record for the partitions, and the root directory of a new file
    /// system. From then on no other service changes them. Returns the sessions that may have files
    /// open there: they must reclaim their state before the partitions open. This holds even if
    /// this node owned the partition before: it may have died before all sessions had moved to it
    /// from the owner before that.
    ///
    /// # Errors
    /// Those of the store; `EBUSY` when another service takes over partitions at the same time.
    pub async fn adopt(
        &self,
        partitions: &[PartitionId],
        state: PartitionState,
    ) -> Result<BTreeSet<SessionId>> {
        let mut keys_to_read: Vec<Vec<u8>> = partitions.iter().map(|p| keys::owner(*p).to_vec()).collect();
        keys_to_read.push(keys::inode(InodeId::ROOT).to_vec());
        let stored =
            self.executors.store.get_many(&keys_to_read).await.map_err(|error| store_error(&error))?;
        let is_new = stored.last().is_none_or(Option::is_none);
        let mut batch = Batch::default();
        let mut owners = Vec::with_capacity(partitions.len());
        let mut to_reclaim = Vec::new();
        for (&partition, before) in partitions.iter().zip(stored) {
            let key = keys::owner(partition).to_vec();
            let next = self.executors.next_owner(partition, before.as_deref())?;
            let value = next.encode_to_vec();
            if self.peers.is_some() {
                to_reclaim.push(partition);
            }
            batch.guards.push(Guard { key: key.clone(), expected: before });
            batch.writes.push((key.clone(), Some(value.clone().into())));
            owners.push((partition, next.epoch, Guard { key, expected: Some(value.into()) }));
        }
        if partitions.contains(&InodeId::ROOT.partition()) && is_new {
            let map = self.map.load();
            let env = env(&self.options, SessionId(0), Credentials::default(), &map);
            batch.writes.extend(namespace::format(&env, &self.options.root_pattern));
        }
        match self.executors.store.commit(batch).await.map_err(|error| store_error(&error))? {
            Outcome::Applied => {}
            Outcome::GuardFailed | Outcome::Uncertain => {
                let message = "another metadata service is taking over partitions";
                return Err(Error::new(Errno::EBUSY, message));
            }
        }
        for (partition, epoch, owner) in owners {
            self.forget_partition(partition);
            self.leases.adopted(partition, epoch);
            let mut executor = self.executors.lock(partition)?;
            executor.mark_not_owned();
            executor.owner = owner;
            executor.adoption_number += 1;
            executor.set_state(state);
        }
        // Sessions that register after this have no state there yet.
        let live = match self.eviction.expect_sessions(&to_reclaim).await {
            Ok(live) => live,
            Err(error) => {
                for &partition in partitions {
                    self.executors.lock(partition)?.mark_not_owned();
                }
                return Err(error);
            }
        };
        // Sessions that wait for recalls learn of it now.
        live.iter().filter_map(|id| self.sessions.find(*id)).for_each(|session| session.wake());
        Ok(live)
    }

    /// Discards leases and cached state from an earlier ownership of the partition.
    fn forget_partition(&self, partition: PartitionId) {
        self.executors.invalidate_cached_partition(partition);
        self.leases.forget_partition(partition);
        self.truncations.forget_partition(partition);
        self.reported_sizes.forget_partition(partition);
        self.locks.forget_partition(partition);
    }

    /// The partitions that were just adopted, each with its adoption number.
    fn adoptions(&self, partitions: &[PartitionId]) -> Result<Vec<Adoption>> {
        let adopted = |&partition: &PartitionId| {
            Ok(Adoption { partition, adoption: self.executors.lock(partition)?.adoption_number })
        };
        partitions.iter().map(adopted).collect()
    }

    /// Whether the service still owns a partition by the same adoption: it may have released and
    /// adopted it again meanwhile.
    fn is_current(&self, adopted: Adoption) -> bool {
        let executor = self.executors.lock(adopted.partition);
        executor.is_ok_and(|executor| executor.is_owned() && executor.adoption_number == adopted.adoption)
    }

    /// Recovers the sizes of files that were being written in the partitions. Opens the partitions
    /// when the sessions that may have files open there have reclaimed their state. Files that
    /// those sessions were writing are recovered when they reclaim, or are evicted.
    async fn recover_and_open(self: Arc<Self>, mut adopted: Vec<Adoption>, live: BTreeSet<SessionId>) {
        while let Err(error) = self.recover_adopted(&adopted, &live).await {
            tracing::warn!(%error, "size recovery of adopted partitions has not completed yet");
            if self.serving.is_stopping() {
                return;
            }
            // The next owner recovers a partition that was released meanwhile; the task of the
            // later adoption recovers one that was adopted again.
            adopted.retain(|adopted| self.is_current(*adopted));
            rt::sleep(RETRY_PAUSE).await;
        }
        self.open_recovered(&adopted);
        self.reaper.request_everywhere();
        self.eviction.wait_for_grace().await;
        adopted.retain(|adopted| self.is_current(*adopted));
        let partitions: Vec<PartitionId> = adopted.iter().map(|adopted| adopted.partition).collect();
        self.orphans.reclaim_unknown(&partitions).await;
    }

    async fn recover_adopted(&self, adopted: &[Adoption], live: &BTreeSet<SessionId>) -> Result<()> {
        for adopted in adopted {
            // The set of live sessions is known for this adoption only.
            let is_ended = |session| !live.contains(&session) && self.is_current(*adopted);
            self.sizes.recover_sizes_of_ended(&[adopted.partition], is_ended).await?;
        }
        Ok(())
    }

    fn open_recovered(&self, adopted: &[Adoption]) {
        for &Adoption { partition, adoption } in adopted {
            let Ok(mut executor) = self.executors.lock(partition) else { continue };
            if executor.state == PartitionState::Recovering && executor.adoption_number == adoption {
                // If the grace period is still on, its end opens the partition.
                let state =
                    if self.grace.is_on() { PartitionState::Reclaiming } else { PartitionState::Serving };
                executor.set_state(state);
            }
        }
    }

    /// Lets everything that is under way in a partition complete, and releases it.
    async fn release_partition(&self, partition: PartitionId) -> Result<()> {
        loop {
            let (changed, ticket) = {
                let mut executor = self.executors.lock(partition)?;
                self.executors.retire(&mut executor);
                if executor.is_owned() {
                    executor.set_state(PartitionState::Releasing);
                }
                let ticket = executor.pending.back().map(|(ticket, _)| ticket.clone());
                if executor.locked_by.is_none() && ticket.is_none() {
                    break;
                }
                (executor.state_changed.clone(), ticket)
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
            owner.map_err(|cause| Error::new(Errno::EIO, format!("the owner record is damaged: {cause}")))?;
        if let Some(owner) = owner.filter(|owner| owner.node == self.options.node.0) {
            let value = Owner { released: true, ..owner }.encode_to_vec();
            let guards = vec![Guard { key: key.clone(), expected: before }];
            let batch = Batch { guards, writes: vec![(key, Some(value.into()))] };
            match self.executors.store.commit(batch).await.map_err(|error| store_error(&error))? {
                // A service that won over this commit has already taken over the partition.
                Outcome::Applied | Outcome::GuardFailed => {}
                Outcome::Uncertain => return Err(Errno::EAGAIN.into()),
            }
        }
        self.executors.lock(partition)?.mark_not_owned();
        self.forget_partition(partition);
        self.returns.drop_pending_reclaims(partition);
        tracing::info!(partition = partition.0, "a partition was released");
        Ok(())
    }

    /// Does what has to wait for the end of the grace period after a start.
    pub async fn reclaim_orphans_after_grace(self: Arc<Self>) {
        if self.peers.is_some() || !self.grace.was_needed() {
            return;
        }
        self.eviction.wait_for_grace().await;
        self.orphans.reclaim_unknown(&self.executors.owned()).await;
    }

    /// Waits until this service owns a partition, if the map assigns it to this service.
    ///
    /// # Errors
    /// `PartitionNotServed` when another service owns it, or no service does for too long.
    pub async fn wait_until_owned(&self, partition: PartitionId, refusal: Error) -> Result<()> {
        let Some(peers) = self.peers.as_ref() else { return Err(refusal) };
        let began_ns = rt::monotonic_ns();
        while peers.is_assigned_to_self(partition) {
            let changed = {
                let executor = self.executors.lock(partition)?;
                if executor.is_owned() {
                    return Ok(());
                }
                executor.state_changed.clone()
            };
            if rt::monotonic_ns() - began_ns > crate::limits::CROSS_PARTITION_TIMEOUT.as_nanos() as u64 {
                break;
            }
            rt::timeout(RETRY_PAUSE, changed.wait()).await;
        }
        Err(refusal)
    }
}

/// Whether this service may take over a partition: its owner has released it, is this node, or is
/// down.
fn may_adopt(record: Option<&Owner>, own: NodeId, map: &ClusterMap) -> bool {
    let Some(record) = record else { return true };
    let owner = NodeId(record.node);
    let is_down = || map.node(owner).is_none_or(|node| node.state == NodeState::Offline);
    // A map without nodes is that of a single process.
    record.released || owner == own || (map.epoch > Epoch(0) && is_down())
}
