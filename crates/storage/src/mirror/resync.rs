//! Who sees to it that members are brought in step: looks at the map now and then, and at the
//! groups whose primary is here.

use super::replica::Replica;
use super::{Mirrors, leaving, step};
use crate::tally::Tally;
use chunkstore::{IfAbsent, Store};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, Epoch, Group, GroupId, MemberState, TargetId, TargetState};
use wire::{InGroup, Part, StorageOp};

/// How often the map is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How often it is looked whether there is something here of groups that have moved on.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Members that are brought in step from one node at a time: each takes its share of disk and
/// network.
const MAX_AT_ONCE: usize = 2;

/// Rest before another attempt at a member with which one has failed; doubled with every further
/// one, up to [`MAX_REST`].
const MIN_REST: Duration = Duration::from_secs(1);

/// The longest such rest: who mends what was in the way waits no longer.
const MAX_REST: Duration = Duration::from_secs(30);

/// Attempts that have failed, by member: when the next may begin, and the rest after it.
type Rests = Mutex<BTreeMap<(GroupId, TargetId), (u64, Duration)>>;

/// A target that is served here.
pub(crate) type Local = (Arc<Store>, Arc<Tally>);

/// Keeps the groups in step whose primaries are served here, until `targets` says that the service
/// is gone.
pub(crate) async fn keep_in_step(mirrors: Arc<Mirrors>, targets: impl Fn() -> Option<Vec<Local>>) {
    let rests = Arc::new(Rests::default());
    let mut swept_ns = rt::monotonic_ns();
    loop {
        rt::sleep(LOOK_INTERVAL).await;
        let Some(targets) = targets() else { return };
        let map = mirrors.map();
        for replica in mirrors.open_replicas() {
            if let Some(group) = map.group(replica.group) {
                replica.follow(group);
                mirrors.let_notes_go(&replica, group).await;
            }
        }
        if !mirrors.lease.holds(rt::monotonic_ns()) {
            continue;
        }
        if rt::monotonic_ns() - swept_ns >= SWEEP_INTERVAL.as_nanos() as u64 {
            for (store, tally) in &targets {
                leaving::sweep(&mirrors, &map, store, tally).await;
            }
            swept_ns = rt::monotonic_ns();
        }
        for group in map.groups.iter().filter(|group| group.since > Epoch(0)) {
            // Nor is one that management believes to be gone, whatever it looks like from here.
            let is_there = |id: &TargetId| map.target(*id).is_some_and(|t| t.state != TargetState::Offline);
            let primary = group.primary().filter(is_there);
            let here = targets.iter().find(|(store, _)| Some(store.target()) == primary);
            if let Some((store, tally)) = here {
                see_to(&mirrors, &rests, &map, group, (store, tally)).await;
            }
        }
    }
}

/// Sees to one group whose primary is here.
async fn see_to(
    mirrors: &Arc<Mirrors>,
    rests: &Arc<Rests>,
    map: &ClusterMap,
    group: &Group,
    (store, tally): (&Arc<Store>, &Arc<Tally>),
) {
    let is_known = mirrors.slots.read().contains_key(&(store.target(), group.id));
    if !is_known && !group.is_degraded() && group.leaving.is_none() {
        return;
    }
    let Ok(replica) = mirrors.replica(store, tally, group.id, IfAbsent::Make).await else { return };
    if replica.is_unclean() && mirrors.put_others_out(&replica).await.is_err() {
        return;
    }
    if group.revived == Some(replica.target) {
        // Others are brought in step afterwards, and are sent nothing that the metadata doesn't
        // know of.
        return mirrors.begin_to_revive(&replica);
    }
    if replica.leftovers.are_there() {
        // Others are brought in step afterwards: their notes would go then, and after another crash
        // nobody knew what to look at.
        return mirrors.begin_to_tidy(&replica);
    }
    mirrors.clone().tell_settled(&replica, group);
    let dismissed = group.dismissed();
    let is_online = |id: TargetId| map.target(id).is_some_and(|target| target.state == TargetState::Online);
    // Copies that can't be reached aren't counted by management.
    let may_go = |leaving: &TargetId| {
        let mut others = group.members.iter().filter(|id| *id != leaving);
        group.state_of(*leaving) == Some(MemberState::Good) && others.all(|id| is_online(*id))
    };
    if let Some(leaving) = dismissed.filter(may_go) {
        leaving::let_go(mirrors, &replica, group.since, leaving);
    }
    if map.settings.resync.paused {
        return;
    }
    for (member, state) in group.with_states().filter(|(member, _)| dismissed != Some(*member)) {
        if state != MemberState::Good && is_online(member) {
            begin(mirrors, rests, &replica, member);
        }
    }
}

/// Begins to bring a member in step, unless that is done already or others are.
fn begin(mirrors: &Arc<Mirrors>, rests: &Arc<Rests>, replica: &Arc<Replica>, member: TargetId) {
    let key = (replica.group, member);
    let now_ns = rt::monotonic_ns();
    if rests.lock().get(&key).is_some_and(|(from_ns, _)| now_ns < *from_ns) {
        return;
    }
    {
        let mut busy = mirrors.busy.lock();
        if busy.len() >= MAX_AT_ONCE || !busy.insert(key) {
            return;
        }
    }
    let (mirrors, rests, replica) = (mirrors.clone(), rests.clone(), replica.clone());
    rt::spawn(async move {
        match step::run(&mirrors, &replica, member).await {
            Ok(()) => {
                rests.lock().remove(&key);
            }
            Err(error) => {
                tracing::warn!(group = %key.0, target_id = %member, %error, "a member is not in step yet");
                let mut rests = rests.lock();
                let rest = rests.get(&key).map_or(MIN_REST, |(_, rest)| (*rest * 2).min(MAX_REST));
                rests.insert(key, (rt::monotonic_ns() + rest.as_nanos() as u64, rest));
            }
        }
        mirrors.busy.lock().remove(&key);
    });
}

impl Mirrors {
    /// Tells members what is on all copies, if nothing has told them since.
    fn tell_settled(self: Arc<Self>, replica: &Arc<Replica>, group: &Group) {
        if !replica.sequences.is_news(group.since) {
            return;
        }
        let settled = replica.sequences.settled(group.since);
        let part = Part::Member { sequence: 0, settled };
        let in_group = InGroup { group: group.id, since: group.since, part };
        let others = group.with_states().filter(|(target, _)| *target != replica.target);
        for (member, _) in others.filter(|(_, state)| state.gets_writes()) {
            let mirrors = self.clone();
            rt::spawn(async move {
                let asked = (types::InodeId(0), StorageOp::Settled);
                // Who doesn't hear it hears the next; until then it keeps some notes longer.
                let _ = mirrors.ask_member(member, asked, in_group, None).await;
            });
        }
    }

    /// What was kept of a time out of step isn't needed when all copies are equal again.
    async fn let_notes_go(&self, replica: &Replica, group: &Group) {
        if group.is_degraded() || replica.is_unclean() || replica.leftovers.are_there() {
            return;
        }
        if group.primary() == Some(replica.target) {
            replica.holds.let_go();
        }
        if replica.store.notes_overflowed()
            && let Err(error) = replica.store.forget_overflow().await
        {
            replica.failed(&error);
        }
    }
}
