//! Mirrored groups: the copies of a group are kept equal by its primary, as
//! docs/concepts/replication.md describes.
//!
//! Each target has a store of its own for each group, a *replica*. Changes come to the primary's,
//! which orders them and sends them to the others; what a member can't do or doesn't answer makes
//! management take it out, and later the primary brings it in step again.
//!
//! Invariants:
//! - a change is answered when all members that management counts as good have it;
//! - changes that overlap are done in one order on all copies, and nobody reads what isn't on all;
//! - nothing is done under a version of the group when something has begun under a newer one;
//! - what may differ between the copies is noted on disk.

mod clients;
mod compare;
mod detached;
mod differing;
mod holds;
mod leaving;
mod member;
mod mend;
mod pace;
mod primary;
mod progress;
mod ranges;
mod reader;
mod repair;
mod replica;
mod resync;
mod revive;
mod room;
mod salvage;
mod sequences;
mod step;
mod tidy;
mod turns;
mod verdict;

pub(crate) use primary::is_look;
pub(crate) use replica::Replica;
pub(crate) use resync::keep_in_step;

use crate::fences::Fences;
use crate::lease::ServingLease;
use crate::tally::Tally;
use crate::watches::Watches;
use chunkstore::{IfAbsent, Store};
use clients::Clients;
use net::{LocalFuture, StorageChannels};
use parking_lot::{Mutex, RwLock};
use progress::Progress;
use rt::IoBuf;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;
use types::{
    ClusterMap, Epoch, Errno, Error, Group, GroupId, InodeId, MapHandle, MemberState, Result, TargetId,
    TargetState,
};
use wire::mgmt::Touched;
use wire::{InGroup, Part, StorageOp, StorageReply, StorageRequest};

/// How long a request of a newer version of its group than this process knows waits for the map:
/// management tells everybody within a moment. Less than [`MEMBER_PATIENCE`], so that who only
/// hears late isn't taken for dead.
const MAP_PATIENCE: Duration = Duration::from_secs(3);

/// How often it looks.
const MAP_POLL: Duration = Duration::from_millis(10);

/// How long the primary waits for a member before it asks management to take it out: a client waits
/// as long. Longer than a disk stalls in everyday life.
const MEMBER_PATIENCE: Duration = Duration::from_secs(5);

/// The same where the member has to bring data to disk, which takes as long as there is much of it.
const SYNC_PATIENCE: Duration = Duration::from_secs(25);

/// How long a client's request waits for management: less than its usual patience, so that it
/// learns the reason.
const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(45);

/// How often it is looked meanwhile whether its node is heard of.
const PRESENCE_LOOK: Duration = Duration::from_secs(1);

/// How a member of a mirrored group has changed, as its primary says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberChange {
    /// The group.
    pub group: GroupId,
    /// Its version, as the primary knows it.
    pub since: Epoch,
    /// The member.
    pub target: TargetId,
    /// What it is from now on.
    pub state: MemberState,
    /// For people.
    pub reason: String,
    /// The primary speaks of itself, has nothing under way and begins nothing more.
    pub orderly: bool,
}

/// Management, as far as mirrored groups need it.
pub trait Groups: Send + Sync {
    /// Says that a member has changed. When it returns, that holds for everybody who counts, and
    /// the map of this process is at least the one that says so, or one of another version of the
    /// group if it had changed before.
    fn set_member(&self, change: MemberChange) -> LocalFuture<'_, Result<Arc<ClusterMap>>>;

    /// Has what the metadata knows of these files enforced on a group which has been through a
    /// crash with all that its good members had. When it returns, that is on disk.
    fn tidy_group(&self, group: GroupId, touched: Touched) -> LocalFuture<'_, Result<()>>;
}

/// What a service needs to have members of mirrored groups.
pub struct GroupLinks {
    /// The map in force in this process.
    pub map: MapHandle,
    /// The ways to other members.
    pub members: Arc<StorageChannels>,
    /// Who decides which members count.
    pub management: Arc<dyn Groups>,
}

/// The replicas of a service.
pub(crate) struct Mirrors {
    links: GroupLinks,
    lease: Arc<ServingLease>,
    pub(crate) fences: Arc<Fences>,
    slots: RwLock<BTreeMap<(TargetId, GroupId), Arc<Slot>>>,
    /// What a start has found of groups on targets: opened, unless that has failed.
    found: Mutex<BTreeMap<TargetId, Vec<GroupId>>>,
    progress: Progress,
    /// Of the service.
    watches: Arc<Watches>,
    /// Whether clients ask this node for anything.
    pub(crate) clients: Clients,
    /// Held by who sends a member something while clients ask for something, and for their part of
    /// the time afterwards.
    yielding: rt::sync::RwLock,
    /// Members that are being brought in step now.
    busy: Mutex<BTreeSet<(GroupId, TargetId)>>,
    /// Files that are being mended because somebody has met damage.
    healing: Mutex<BTreeSet<(GroupId, InodeId)>>,
}

/// The place of one replica.
#[derive(Default)]
struct Slot {
    /// Held by who opens it.
    opening: rt::sync::RwLock,
    replica: OnceLock<Arc<Replica>>,
}

/// A group by the map that is in force at some time.
pub(crate) struct View {
    map: Arc<ClusterMap>,
    group: GroupId,
}

impl View {
    fn has_other_primary(&self, replica: &Replica) -> Result<bool> {
        Ok(self.group()?.primary() != Some(replica.target))
    }

    fn group(&self) -> Result<&Group> {
        self.map.group(self.group).ok_or_else(|| {
            Error::new(Errno::ENXIO, format!("there is no group {} in the cluster's map", self.group))
                .hint("weft group list shows which there are")
        })
    }
}

impl Mirrors {
    pub(crate) fn new(
        links: GroupLinks,
        lease: Arc<ServingLease>,
        fences: Arc<Fences>,
        watches: Arc<Watches>,
    ) -> Mirrors {
        Mirrors {
            links,
            lease,
            fences,
            slots: RwLock::default(),
            found: Mutex::default(),
            progress: Progress::default(),
            watches,
            clients: Clients::default(),
            yielding: rt::sync::RwLock::new(),
            busy: Mutex::default(),
            healing: Mutex::default(),
        }
    }

    /// The map in force.
    fn map(&self) -> Arc<ClusterMap> {
        self.links.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn view(&self, group: GroupId) -> View {
        View { map: self.map(), group }
    }

    /// The version of a group that is in force; zero for an unknown one.
    fn since(&self, group: GroupId) -> Epoch {
        self.map().group(group).map_or(Epoch(0), |group| group.since)
    }

    /// The group as a request knows it, when this process has heard of that version.
    ///
    /// # Errors
    /// `EREMCHG` when it goes by another version.
    async fn agreed(&self, asked: &InGroup) -> Result<View> {
        let began_ns = rt::monotonic_ns();
        loop {
            let view = self.view(asked.group);
            let since = view.map.group(asked.group).map_or(Epoch(0), |group| group.since);
            if since == asked.since {
                view.group()?;
                return Ok(view);
            }
            let waited = rt::monotonic_ns() - began_ns;
            if since > asked.since || waited > MAP_PATIENCE.as_nanos() as u64 {
                return Err(turns::another_version(asked.group));
            }
            rt::sleep(MAP_POLL).await;
        }
    }

    /// Refuses a request about a group of which the target has nothing, before anything is made of
    /// it: anybody who may ask at all could fill the disk else.
    ///
    /// # Errors
    /// `EREMCHG` when it goes by another version of the group, `ENXIO` for one that isn't there.
    pub(crate) async fn require_member(&self, target: TargetId, asked: &InGroup) -> Result<()> {
        let key = (target, asked.group);
        if self.slots.read().get(&key).is_some_and(|slot| slot.replica.get().is_some()) {
            return Ok(());
        }
        let view = self.agreed(asked).await?;
        match view.group()?.members.contains(&target) {
            true => Ok(()),
            false => Err(turns::another_version(asked.group)),
        }
    }

    /// The replica of a group on a target, opened or made if need be.
    ///
    /// # Errors
    /// As [`Store::open_group`].
    pub(crate) async fn replica(
        &self,
        target: &Arc<Store>,
        tally: &Arc<Tally>,
        group: GroupId,
        if_absent: IfAbsent,
    ) -> Result<Arc<Replica>> {
        if let Some(replica) = self.slot((target.target(), group)).replica.get() {
            return Ok(replica.clone());
        }
        // Rare, and large: kept out of the future of every request.
        Box::pin(self.open_alone(target, tally, (group, if_absent))).await
    }

    async fn open_alone(
        &self,
        target: &Arc<Store>,
        tally: &Arc<Tally>,
        (group, if_absent): (GroupId, IfAbsent),
    ) -> Result<Arc<Replica>> {
        let key = (target.target(), group);
        loop {
            let slot = self.slot(key);
            let _alone = slot.opening.write().await;
            // What was in it may have been removed meanwhile, and the place with it.
            if Arc::ptr_eq(&slot, &self.slot(key)) {
                return self.open(target, tally, (group, if_absent), &slot).await;
            }
        }
    }

    fn slot(&self, key: (TargetId, GroupId)) -> Arc<Slot> {
        let known = self.slots.read().get(&key).cloned();
        known.unwrap_or_else(|| self.slots.write().entry(key).or_default().clone())
    }

    /// Opens a replica whose place is held, unless it is open by now.
    async fn open(
        &self,
        target: &Arc<Store>,
        tally: &Arc<Tally>,
        (group, if_absent): (GroupId, IfAbsent),
        slot: &Slot,
    ) -> Result<Arc<Replica>> {
        if let Some(replica) = slot.replica.get() {
            return Ok(replica.clone());
        }
        let key = (target.target(), group);
        let opened =
            Store::open_group(target, group, if_absent).await.map_err(|e| tally.failed(target, &e))?;
        let Some((store, report)) = opened else {
            return Err(Error::new(Errno::EIO, format!("target {}: group {group} can't be made", key.0)));
        };
        tracing::debug!(target_id = %key.0, %group, ?report, "replica opened");
        rt::spawn(background(store.clone()));
        let is_fenced = |session| self.fences.is_fenced(session);
        let leftovers = report
            .was_needed
            .then(|| Touched { files: store.take_touched(), new: store.take_new_at_crash() });
        let replica = Arc::new(Replica::new(group, store, leftovers, tally.clone(), is_fenced));
        Ok(slot.replica.get_or_init(|| replica).clone())
    }

    /// A target was found with these groups, which have been opened as far as they can be.
    pub(crate) fn found_on(&self, target: TargetId, groups: Vec<GroupId>) {
        self.found.lock().insert(target, groups);
    }

    /// Whether what a target has of groups in which it counts as good is open, and nothing of it
    /// was left by a crash that nobody has seen to.
    pub(crate) fn is_settled_on(&self, map: &ClusterMap, target: TargetId) -> bool {
        let is_good =
            |group: &Group| group.scheme.is_mirrored() && group.state_of(target) == Some(MemberState::Good);
        let mut good = map.groups.iter().filter(|group| is_good(group)).peekable();
        if good.peek().is_none() {
            return true;
        }
        let found = self.found.lock().get(&target).cloned();
        let (Some(found), slots) = (found, self.slots.read()) else { return false };
        good.all(|group| match slots.get(&(target, group.id)).and_then(|slot| slot.replica.get()) {
            Some(replica) => !replica.is_unclean(),
            // Nothing was there at the start, and nobody has asked for it since.
            None => !found.contains(&group.id),
        })
    }

    /// The replicas that are open.
    pub(crate) fn open_replicas(&self) -> Vec<Arc<Replica>> {
        self.slots.read().values().filter_map(|slot| slot.replica.get().cloned()).collect()
    }

    /// How far members are that are brought in step from here.
    pub(crate) fn progress(&self) -> Vec<wire::mgmt::ResyncProgress> {
        self.progress.all()
    }

    /// Waits until management has been heard of lately.
    async fn lease_holds(&self, target: TargetId) -> Result<()> {
        if self.lease.holds(rt::monotonic_ns()) { Ok(()) } else { self.lease.wait(target).await }
    }

    /// Asks a member for something as the primary. It is sent whether or not the caller goes on
    /// waiting, and whoever it reaches when the group has another version refuses it.
    async fn ask_member(
        self: &Arc<Self>,
        member: TargetId,
        asked: (InodeId, StorageOp),
        in_group: InGroup,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let request = StorageRequest {
            group: Some(in_group),
            ..StorageRequest::new(types::SessionId(0), member, asked.0, asked.1)
        };
        self.send(request, payload).await
    }

    /// Sends a request to a member, and waits for it as long as it is worthwhile.
    async fn send(self: &Arc<Self>, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        let patience = match request.op {
            StorageOp::Sync | StorageOp::SyncTarget | StorageOp::Write { durable: true, .. } => SYNC_PATIENCE,
            StorageOp::Rewrite { .. } | StorageOp::Expect { .. } => SYNC_PATIENCE,
            _ => MEMBER_PATIENCE,
        };
        let (member, members) = (request.target, self.links.members.clone());
        // In a task of its own, which keeps the payload's memory until the transport doesn't need
        // it any more.
        let mut answer = pin!(detached::run(async move { members.call(request, payload).await }));
        let began_ns = rt::monotonic_ns();
        let mut rest = MEMBER_PATIENCE;
        loop {
            if let Some(answer) = rt::timeout(rest, answer.as_mut()).await {
                return answer;
            }
            let waited = Duration::from_nanos(rt::monotonic_ns() - began_ns);
            // A disk that takes its time is waited for, a node that isn't heard of any more isn't.
            if waited >= patience || !self.is_heard_of(member) {
                let message = format!("target {member} hasn't answered within {} s", waited.as_secs());
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("look at its node: weft node list, and its log"));
            }
            rest = PRESENCE_LOOK;
        }
    }

    /// Whether management hears of a target's node.
    fn is_heard_of(&self, target: TargetId) -> bool {
        self.map().target(target).is_some_and(|target| target.state == TargetState::Online)
    }

    /// Tells management of a member, unless the group has another version by now. Returns when the
    /// version has changed, or after a short rest when management could not be asked.
    async fn decide(
        &self,
        replica: &Replica,
        since: Epoch,
        target: TargetId,
        state: MemberState,
        reason: &str,
    ) {
        /// Rest before management is asked again.
        const REST: Duration = Duration::from_millis(500);
        let _alone = replica.deciding.write().await;
        if self.since(replica.group) != since {
            return;
        }
        let (group, reason_given) = (replica.group, reason.to_string());
        let change = MemberChange { group, since, target, state, reason: reason_given, orderly: false };
        tracing::warn!(group = %replica.group, target_id = %target, ?state, "a member of a group changes: {reason}");
        loop {
            match self.links.management.set_member(change.clone()).await {
                Ok(map) => {
                    replica.is_known_to_all(map.group(replica.group).map_or(since, |group| group.since));
                    if self.since(replica.group) != since {
                        return;
                    }
                    break;
                }
                Err(error) => {
                    tracing::warn!(group = %replica.group, %error, "management doesn't decide on a member of a group");
                    // The map may have come without the answer: then it doesn't hold for everybody
                    // yet. Asked again, management waits for that.
                    if self.since(replica.group) == since || self.primary_view(replica).is_err() {
                        break;
                    }
                    rt::sleep(REST).await;
                }
            }
        }
        rt::sleep(REST).await;
    }
}

impl Mirrors {
    /// Waits until nobody takes a member for good that isn't. A map in which one is out may come
    /// here before it comes there, and there somebody may read: what that one has missed must not
    /// be acknowledged yet, nor shown to anybody else. Management's word is that it is so.
    ///
    /// # Errors
    /// `EREMCHG` when this isn't the primary any more. `ETIMEDOUT` when management can't be asked.
    async fn known_to_all(&self, replica: &Replica) -> Result<()> {
        match replica.has_doubtful() {
            // Rare, and large: kept out of the future of every request.
            true => Box::pin(self.wait_for_word(replica)).await,
            false => Ok(()),
        }
    }

    async fn wait_for_word(&self, replica: &Replica) -> Result<()> {
        /// Rest before management is asked again.
        const REST: Duration = Duration::from_millis(200);
        let began_ns = rt::monotonic_ns();
        while replica.has_doubtful() {
            // Who asks management for something else gets the same word.
            let _alone = replica.deciding.write().await;
            let view = self.primary_view(replica)?;
            if !replica.has_doubtful() {
                break;
            }
            let change = MemberChange {
                group: replica.group,
                since: view.group()?.since,
                target: replica.target,
                state: MemberState::Good,
                reason: "it goes on as the primary".to_string(),
                orderly: false,
            };
            match self.links.management.set_member(change).await {
                Ok(map) => {
                    let told = map.group(replica.group).map_or(Epoch(0), |group| group.since);
                    replica.is_known_to_all(told);
                }
                Err(error) if rt::monotonic_ns() - began_ns > MANAGEMENT_PATIENCE.as_nanos() as u64 => {
                    let message = format!(
                        "group {} waits for management's word on who knows its members: {}",
                        replica.group, error.message
                    );
                    return Err(
                        Error::new(Errno::ETIMEDOUT, message).hint("weft health tells how management is")
                    );
                }
                Err(error) => {
                    tracing::debug!(group = %replica.group, %error, "management doesn't say who knows the members of a group");
                    rt::sleep(REST).await;
                }
            }
        }
        Ok(())
    }
}

async fn background(store: Arc<Store>) {
    store.background().await;
}

/// Whether a request is one that the primary sends to members.
pub(crate) fn is_between_members(request: &StorageRequest) -> bool {
    request.group.is_some_and(|group| group.part != Part::Primary)
}
