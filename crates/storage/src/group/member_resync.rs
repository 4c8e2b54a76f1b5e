//! Resync of a member: finds what may differ, and has it brought in line by the group's scheme, at
//! the rate that the settings allow.

use super::member::member_restarted;
use super::membership::state_after_miss;
use super::range_locks::WHOLE_FILE;
use super::replica::Replica;
use super::resync_progress::ProgressGuard;
use super::resync_rate::{self, ResyncRate};
use super::{GroupService, version_fence};
use rt::IoBuf;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, ChunkFileId, Epoch, Errno, Error, MemberState, Result, TargetId};
use wire::{
    DataPath, GroupContext, GroupRole, MAX_REGIONS, RegionSelection, StorageOp, StorageReply, StorageRequest,
};

/// How often the settings are checked while resync is paused.
const SETTINGS_POLL: Duration = Duration::from_millis(200);

/// Reason for the pause, for administrators.
const PAUSED: &str = "it is paused (weft group resync resume)";

/// Sequence ids of changes sent at a time.
const SEQUENCE_IDS_AT_ONCE: usize = 64;

/// Ranges to be sent, by file.
pub(crate) type ResyncWork = BTreeMap<ChunkFileId, Vec<ByteRange>>;

/// The resync of one member.
pub(crate) struct MemberResync<'a> {
    pub(crate) groups: &'a Arc<GroupService>,
    pub(crate) replica: &'a Replica,
    pub(crate) member: TargetId,
    /// The version of the group in which it began, and the member's state since then.
    since: Epoch,
    pub(crate) state: MemberState,
    pub(crate) progress: ProgressGuard<'a>,
    pub(crate) resync_rate: ResyncRate,
    pub(crate) sent: std::cell::Cell<u64>,
    /// The member's verifier under which it received the data.
    verifier: std::cell::Cell<Option<u64>>,
    /// Damage found here, to be repaired from the member as far as it has the content.
    pub(crate) damaged: RefCell<Vec<(ChunkFileId, ByteRange)>>,
}

/// The node's turn to send while clients have requests; one at a time per node.
pub(crate) struct SendTurn<'a> {
    _alone: rt::sync::WriteGuard<'a>,
    from_ns: u64,
}

/// Resyncs a member, from the report that it begins to the report that the member is in sync.
pub(crate) async fn run(groups: &Arc<GroupService>, replica: &Replica, member: TargetId) -> Result<()> {
    let before = groups.primary_view(replica)?;
    let Some(state) = before.group()?.state_of(member) else {
        return Err(version_fence::version_mismatch(replica.group));
    };
    let to = match state {
        MemberState::InSync => return Ok(()),
        MemberState::NeedsResync | MemberState::Resyncing => MemberState::Resyncing,
        MemberState::NeedsRebuild | MemberState::Rebuilding => MemberState::Rebuilding,
    };
    let mut since = before.group()?.since;
    if state == to {
        // The former attempt was abandoned. Its requests may still arrive late, and only another
        // version refuses them.
        groups
            .report_member(replica, since, member, state_after_miss(to), "its resync was interrupted")
            .await;
        since = groups.since(replica.group);
    }
    groups.report_member(replica, since, member, to, "its primary resyncs it").await;
    let view = groups.primary_view(replica)?;
    let group = view.group()?;
    if group.since <= before.group()?.since || group.state_of(member) != Some(to) {
        return Err(version_fence::version_mismatch(replica.group));
    }
    let now_ns = rt::monotonic_ns();
    let resync = MemberResync {
        groups,
        replica,
        member,
        since: group.since,
        state: to,
        progress: groups.progress.begin(replica.group, member, now_ns),
        resync_rate: ResyncRate::new(now_ns),
        sent: std::cell::Cell::new(0),
        verifier: std::cell::Cell::default(),
        damaged: RefCell::default(),
    };
    let outcome = resync.send_everything(to == MemberState::Rebuilding).await;
    let (state, reason) = match &outcome {
        Ok(()) => (MemberState::InSync, "it is in sync".to_string()),
        Err(error) => (state_after_miss(to), error.message.to_string()),
    };
    // Unless another member is the primary by now, or this member was ejected.
    let view = groups.primary_view(replica)?;
    let group = view.group()?;
    if group.state_of(member) == Some(to) {
        groups.report_member(replica, group.since, member, state, &reason).await;
    }
    if outcome.is_ok() {
        groups.repair_all_later(replica, resync.damaged.take());
    }
    outcome
}

impl MemberResync<'_> {
    async fn send_everything(&self, is_rebuilt: bool) -> Result<()> {
        self.verify_source().await?;
        // By then, changes that don't go to the member have ended, and the intent log here lists
        // them.
        self.replica.sequences.wait_for_older(self.since).await;
        let work = self.collect_work(is_rebuilt).await?;
        let bytes = self.count_bytes(&work).await?;
        self.progress.counted(work.len() as u64, bytes);
        tracing::info!(
            group = %self.replica.group, target_id = %self.member, files = work.len(), bytes,
            "resync of a member begins"
        );
        self.groups.view(self.replica.group).scheme()?.resync(self, work).await?;
        self.send_sequence_ids().await?;
        self.call_member(ChunkFileId(0), StorageOp::SyncTarget, None).await?;
        let (verifier, instead_of) = (self.replica.store.verifier(), self.verifier.get().unwrap_or_default());
        self.call_member(ChunkFileId(0), StorageOp::AdoptVerifier { verifier, instead_of }, None).await?;
        // The member counts as in sync from here on, on the basis of what was found here until now.
        self.verify_source().await?;
        tracing::info!(
            group = %self.replica.group, target_id = %self.member, bytes_moved = self.sent.get(),
            "resync of a member has ended: it is in sync"
        );
        Ok(())
    }

    /// Fails if the directory here isn't the store that was opened: files that aren't found there
    /// would be removed from the member.
    async fn verify_source(&self) -> Result<()> {
        self.replica.store.verify_dir().await.map_err(|error| self.replica.failed(&error))
    }

    /// Returns what may differ, from the dirty regions of both, or everything if those are
    /// incomplete.
    async fn collect_work(&self, is_rebuilt: bool) -> Result<ResyncWork> {
        let store = &self.replica.store;
        let mut which =
            if is_rebuilt || store.has_overflowed() { RegionSelection::All } else { RegionSelection::Dirty };
        let mut work = ResyncWork::new();
        if which == RegionSelection::Dirty {
            match self.add_member_regions(which, &mut work).await {
                Err(error) if error.errno == Errno::EOVERFLOW => which = RegionSelection::All,
                listed => listed?,
            }
        }
        if which == RegionSelection::All {
            self.add_member_regions(which, &mut work).await?;
        }
        self.add_own_regions(which, &mut work).await?;
        if which == RegionSelection::Dirty && store.has_overflowed() {
            // It overflowed during the listing: what is missing is in neither list.
            self.add_member_regions(RegionSelection::All, &mut work).await?;
            self.add_own_regions(RegionSelection::All, &mut work).await?;
        }
        work.values_mut().for_each(|ranges| *ranges = merged(std::mem::take(ranges)));
        Ok(work)
    }

    async fn add_own_regions(&self, which: RegionSelection, work: &mut ResyncWork) -> Result<()> {
        let store = &self.replica.store;
        let mut from = Some(ChunkFileId(0));
        while let Some(at) = from {
            let (regions, next) = match which {
                RegionSelection::Dirty => store.dirty_ranges(at, MAX_REGIONS).await,
                RegionSelection::All => store
                    .files(at, MAX_REGIONS)
                    .await
                    .map(|(files, next)| (files.into_iter().map(|ino| (ino, WHOLE_FILE)).collect(), next)),
            }
            .map_err(|error| self.replica.failed(&error))?;
            add(work, regions);
            from = next;
        }
        Ok(())
    }

    async fn add_member_regions(&self, which: RegionSelection, work: &mut ResyncWork) -> Result<()> {
        let mut from = Some(ChunkFileId(0));
        while let Some(at) = from {
            let op = StorageOp::Regions { from: at, which };
            let StorageReply::Regions { regions, next } = self.call_member(ChunkFileId(0), op, None).await?
            else {
                return Err(Error::new(Errno::EPROTO, "unexpected reply type from a member")
                    .hint("install the same version of weft on all machines"));
            };
            add(work, regions);
            from = next;
        }
        Ok(())
    }

    /// Returns the number of bytes to send, at most.
    async fn count_bytes(&self, work: &ResyncWork) -> Result<u64> {
        let mut bytes = 0;
        for (ino, ranges) in work {
            let len = self.len(*ino).await?;
            bytes += ranges.iter().map(|range| range.intersect(ByteRange::new(0, len)).len()).sum::<u64>();
        }
        Ok(bytes)
    }

    pub(crate) async fn len(&self, ino: ChunkFileId) -> Result<u64> {
        let stat = self.replica.store.stat(ino).await;
        stat.map(|stat| stat.len).map_err(|error| self.replica.failed(&error))
    }

    /// Waits until the rate allows more data, while resync is paused, and for the node's turn when
    /// clients have requests. Work done in a turn ends with [`MemberResync::yield_to_clients`].
    pub(crate) async fn wait_for_turn(&self) -> Result<Option<SendTurn<'_>>> {
        let mut turn = None;
        loop {
            let map = self.groups.map();
            let (settings, now_ns) = (&map.settings.resync, rt::monotonic_ns());
            if settings.paused {
                // Other resyncs of this node must not wait for this one.
                turn = None;
                self.progress.set_hindrance(Some(PAUSED));
                self.require_current()?;
                rt::sleep(SETTINGS_POLL).await;
                self.resync_rate.skip(rt::monotonic_ns());
                continue;
            }
            self.progress.set_hindrance(None);
            let has_client_requests = self.groups.client_activity.is_active(now_ns);
            let allowed =
                self.resync_rate.allowed(settings, self.progress.bytes_left(), has_client_requests, now_ns);
            let pause_ns = self.resync_rate.pause_ns(allowed.rate, now_ns);
            if pause_ns > 0 {
                turn = None;
                rt::sleep(Duration::from_nanos(pause_ns).min(SETTINGS_POLL)).await;
            } else if allowed.yields_to_clients && turn.is_none() {
                let alone = self.groups.resync_turn.write().await;
                turn = Some(SendTurn { _alone: alone, from_ns: rt::monotonic_ns() });
            } else {
                return Ok(turn.filter(|_| allowed.yields_to_clients));
            }
        }
    }

    /// Leaves clients their share of the time after work that was done in a turn.
    pub(crate) async fn yield_to_clients(&self, turn: Option<SendTurn<'_>>) {
        let Some(turn) = turn else { return };
        let until_ns = resync_rate::yield_until_ns(turn.from_ns, rt::monotonic_ns());
        loop {
            let now_ns = rt::monotonic_ns();
            // No client has requests any more.
            if now_ns >= until_ns || !self.groups.client_activity.is_active(now_ns) {
                return;
            }
            rt::sleep(Duration::from_nanos(until_ns - now_ns).min(SETTINGS_POLL)).await;
        }
    }

    /// Fails if the member's state has changed, so that this resync isn't wanted any more.
    fn require_current(&self) -> Result<()> {
        let view = self.groups.primary_view(self.replica)?;
        match view.group()?.state_of(self.member) == Some(self.state) {
            true => Ok(()),
            false => Err(version_fence::version_mismatch(self.replica.group)),
        }
    }

    /// Sends the sequence ids of executed changes, so that the member doesn't execute them again if
    /// it becomes the primary.
    async fn send_sequence_ids(&self) -> Result<()> {
        let done = self.replica.drc.completed();
        for some in done.chunks(SEQUENCE_IDS_AT_ONCE) {
            let send = |(session, number, ino): &(types::SessionId, wire::SlotSequence, ChunkFileId)| {
                let op = StorageOp::Write { offset: 0, path: DataPath::Cached, durable: false };
                let request = StorageRequest {
                    slot_sequence: Some(*number),
                    group: Some(self.group_context()),
                    ..StorageRequest::new(*session, self.member, *ino, op)
                };
                self.groups.send(request, Some(IoBuf::alloc(0)))
            };
            let replies = rt::join_all(some.iter().map(send).collect()).await;
            replies.into_iter().collect::<Result<Vec<_>>>()?;
        }
        Ok(())
    }

    /// The ejection of another member makes a new version, under which this resync continues. If
    /// this member was ejected, the old version is refused.
    fn group_context(&self) -> GroupContext {
        let view = self.groups.view(self.replica.group);
        let now = view.map.group(self.replica.group).filter(|group| {
            group.primary() == Some(self.replica.target) && group.state_of(self.member) == Some(self.state)
        });
        let since = now.map_or(self.since, |group| group.since);
        GroupContext { group: self.replica.group, version: since, role: GroupRole::Resync }
    }

    pub(crate) async fn call_member(
        &self,
        ino: ChunkFileId,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let reply = self.groups.call_member(self.member, (ino, op), self.group_context(), payload).await?;
        if let StorageReply::Done { verifier } = reply
            && self.verifier.replace(Some(verifier)).is_some_and(|before| before != verifier)
        {
            return Err(member_restarted(self.member));
        }
        Ok(reply)
    }
}

fn add(work: &mut ResyncWork, regions: Vec<(ChunkFileId, ByteRange)>) {
    for (ino, range) in regions {
        work.entry(ino).or_default().push(range);
    }
}

/// Merges ranges that touch, in order.
pub(crate) fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<ByteRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_are_merged() {
        let range = |start, end| ByteRange::new(start, end);
        assert_eq!(
            merged(vec![range(5, 9), range(0, 5), range(20, 30), range(7, 8)]),
            [range(0, 9), range(20, 30)]
        );
    }
}
