//! Resync of a member: sends it what may differ, piece by piece, while each piece is locked against
//! changes.

use super::member::member_restarted;
use super::primary::{WHOLE_FILE, state_after_miss};
use crate::group::range_locks::LockMode;
use crate::group::rate_limiter::{self, RateLimiter};
use crate::group::replica::Replica;
use crate::group::resync_progress::ProgressGuard;
use crate::group::{GroupService, version_fence};
use chunkstore::{IoPath, Kind, Seek};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{BLOCK_SIZE, ByteRange, Epoch, Errno, Error, InodeId, MemberState, Result, TargetId};
use wire::{
    AllocateMode, DataPath, GroupContext, GroupRole, MAX_REGIONS, RegionSelection, StorageOp, StorageReply,
    StorageRequest,
};

/// Data sent at a time, bytes. Writes to the piece wait that long.
const PIECE_BYTES: u64 = 1 << 20;

/// Pieces of a file in flight at a time, so that the disks of both sides and the network work
/// concurrently.
const PIECES_AT_ONCE: usize = 4;

/// Files that are sent at a time: each takes some round trips, and small files consist of nearly
/// nothing else.
const FILES_SENT_AT_ONCE: usize = 4;

/// How often the settings are checked while resync is paused.
const SETTINGS_POLL: Duration = Duration::from_millis(200);

/// Reason for the pause, for administrators.
const PAUSED: &str = "it is paused (weft group resync resume)";

/// Files that are checked for existence here at a time.
const FILES_AT_ONCE: usize = 64;

/// Sequence ids of changes sent at a time.
const SEQUENCE_IDS_AT_ONCE: usize = 64;

/// Ranges to be sent, by file.
type ResyncWork = BTreeMap<InodeId, Vec<ByteRange>>;

/// The resync of one member.
pub(super) struct MemberResync<'a> {
    pub(super) groups: &'a Arc<GroupService>,
    pub(super) replica: &'a Replica,
    pub(super) member: TargetId,
    /// The version of the group in which it began, and the member's state since then.
    since: Epoch,
    pub(super) state: MemberState,
    pub(super) progress: ProgressGuard<'a>,
    rate_limiter: RateLimiter,
    sent: std::cell::Cell<u64>,
    /// The member's verifier under which it received the data.
    verifier: std::cell::Cell<Option<u64>>,
    /// Damage found here, to be repaired from the member as far as it has the content.
    pub(super) damaged: RefCell<Vec<(InodeId, ByteRange)>>,
}

/// The position up to which a file has been given to the senders.
struct SendPosition {
    at: Cell<u64>,
    /// Held by the sender that looks for the next piece.
    lock: rt::sync::RwLock,
}

/// The node's turn to send while clients have requests; one at a time per node.
struct SendTurn<'a> {
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
        rate_limiter: RateLimiter::new(now_ns),
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
        let mut here = Vec::new();
        for some in work.into_iter().collect::<Vec<_>>().chunks(FILES_AT_ONCE) {
            here.extend(self.remove_absent(some).await?);
        }
        self.send_files(here).await?;
        self.send_sequence_ids().await?;
        self.call_member(InodeId(0), StorageOp::SyncTarget, None).await?;
        let (verifier, instead_of) = (self.replica.store.verifier(), self.verifier.get().unwrap_or_default());
        self.call_member(InodeId(0), StorageOp::AdoptVerifier { verifier, instead_of }, None).await?;
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
        let mut from = Some(InodeId(0));
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
        let mut from = Some(InodeId(0));
        while let Some(at) = from {
            let op = StorageOp::Regions { from: at, which };
            let StorageReply::Regions { regions, next } = self.call_member(InodeId(0), op, None).await?
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

    pub(super) async fn len(&self, ino: InodeId) -> Result<u64> {
        let stat = self.replica.store.stat(ino).await;
        stat.map(|stat| stat.len).map_err(|error| self.replica.failed(&error))
    }

    /// Removes from the member the files that don't exist here, and returns the others. After a
    /// crash the intent log names many files that never existed.
    async fn remove_absent(&self, some: &[(InodeId, Vec<ByteRange>)]) -> Result<ResyncWork> {
        let mut here = ResyncWork::new();
        let mut deletions = Vec::new();
        for (ino, ranges) in some {
            if self.is_here(*ino).await? {
                here.insert(*ino, ranges.clone());
            } else {
                deletions.push(self.send_file(*ino, ranges.clone()));
            }
        }
        rt::join_all(deletions).await.into_iter().collect::<Result<()>>()?;
        Ok(here)
    }

    /// Whether the chunk file exists here. An open file counts even if another program has unlinked
    /// it: its content can still be read.
    pub(super) async fn is_here(&self, ino: InodeId) -> Result<bool> {
        if self.replica.store.is_open(ino) {
            return Ok(true);
        }
        self.replica.store.has_chunk_file(ino).await.map_err(|error| self.replica.failed(&error))
    }

    /// Fails if an absent chunk file was removed by another program and has only now been closed:
    /// the next attempt begins by restoring it.
    async fn require_deleted(&self, ino: InodeId) -> Result<()> {
        match self.replica.store.is_missing(ino).await.map_err(|error| self.replica.failed(&error))? {
            false => Ok(()),
            true => {
                let message =
                    format!("target {}: the chunk file of inode {ino} is missing", self.replica.target);
                Err(Error::new(Errno::EAGAIN, message).hint("the member is resynced again automatically"))
            }
        }
    }

    /// Sends files, some at a time. Begins no more after a failure.
    async fn send_files(&self, files: Vec<(InodeId, Vec<ByteRange>)>) -> Result<()> {
        let left = RefCell::new(files.into_iter());
        let next = || left.borrow_mut().next();
        let senders = (0..FILES_SENT_AT_ONCE).map(|_| async {
            while let Some((ino, ranges)) = next() {
                if let Err(error) = self.send_file(ino, ranges).await {
                    left.borrow_mut().by_ref().for_each(drop);
                    return Err(error);
                }
            }
            Ok(())
        });
        rt::join_all(senders.collect()).await.into_iter().collect()
    }

    /// Resyncs one file: its existence, its length, and the content of the ranges.
    async fn send_file(&self, ino: InodeId, ranges: Vec<ByteRange>) -> Result<()> {
        let replica = self.replica;
        let turn = self.wait_for_turn().await?;
        self.restore_length(ino).await?;
        let (is_there, repeated) = {
            let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Exclusive).await;
            match self.is_here(ino).await? {
                true => {
                    let len = self.len(ino).await?;
                    let missing = self.missing_tail(ino, len, &ranges).await?;
                    (true, missing.into_iter().chain(self.set_len(ino, len).await?).collect())
                }
                false => {
                    self.require_deleted(ino).await?;
                    self.call_member(ino, StorageOp::Delete, None).await?;
                    (false, Vec::new())
                }
            }
        };
        self.yield_to_clients(turn).await;
        if is_there {
            for range in merged(repeated.into_iter().chain(ranges).collect()) {
                self.send_range(ino, range).await?;
            }
            self.set_time(ino).await?;
        }
        self.progress.file_done(0);
        Ok(())
    }

    /// Gives the member's replica the modification time of this one: the member may have to report
    /// it one day.
    async fn set_time(&self, ino: InodeId) -> Result<()> {
        let _held = self.replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Exclusive).await;
        let stat = self.replica.store.stat(ino).await.map_err(|error| self.replica.failed(&error))?;
        match stat.len {
            0 => Ok(()),
            _ => self.call_member(ino, StorageOp::SetTime { time: stat.mtime }, None).await.map(drop),
        }
    }

    /// Returns what the member's replica lacks beyond its end, of a file of `len` bytes, unless the
    /// ranges cover the whole file. The intent log doesn't record that another program removed or
    /// truncated a chunk file there, with its checksums: what lies between its end and the ranges
    /// would become a hole.
    async fn missing_tail(&self, ino: InodeId, len: u64, ranges: &[ByteRange]) -> Result<Option<ByteRange>> {
        let whole = ByteRange::new(0, len);
        let is_all = |range: &ByteRange| range.intersect(whole) == whole;
        if len == 0 || merged(ranges.to_vec()).iter().any(is_all) {
            return Ok(None);
        }
        let StorageReply::Stat { len: has, .. } = self.call_member(ino, StorageOp::Stat, None).await? else {
            return Ok(None);
        };
        let start = has / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        Ok((has < len).then(|| ByteRange::new(start, len)))
    }

    /// Sets the length of the member's replica. If the block in which it ends is damaged there,
    /// that block is cut off and must be sent.
    async fn set_len(&self, ino: InodeId, len: u64) -> Result<Option<ByteRange>> {
        let truncate = |len| self.call_member(ino, StorageOp::Truncate { len }, None);
        match truncate(len).await {
            Ok(_) => return Ok(None),
            Err(error) if error.errno == Errno::EIO => {}
            Err(error) => return Err(error),
        }
        let block = ByteRange::new(len / BLOCK_SIZE as u64 * BLOCK_SIZE as u64, len);
        if let Err(error) = truncate(block.start).await {
            if error.errno != Errno::EIO {
                return Err(error);
            }
            // Another program has removed it there: everything must be sent.
            self.call_member(ino, StorageOp::Delete, None).await?;
            truncate(len).await?;
            return Ok(Some(ByteRange::new(0, len)));
        }
        truncate(len).await?;
        Ok(Some(block))
    }

    /// Sends a range of a file, some pieces at a time.
    async fn send_range(&self, ino: InodeId, range: ByteRange) -> Result<()> {
        let position = SendPosition { at: Cell::new(range.start), lock: rt::sync::RwLock::new() };
        let senders = (0..PIECES_AT_ONCE).map(|_| async {
            let sent = self.send_pieces(ino, range.end, &position).await;
            if sent.is_err() {
                // The other senders begin nothing more.
                position.at.set(u64::MAX);
            }
            sent
        });
        rt::join_all(senders.collect()).await.into_iter().collect()
    }

    /// Sends pieces, one after the other, that no other sender has taken.
    async fn send_pieces(&self, ino: InodeId, end: u64, position: &SendPosition) -> Result<()> {
        // A sender that finds nothing left here needs no turn.
        while position.at.get() < end {
            let turn = self.wait_for_turn().await?;
            let Some(piece) = self.next_piece(ino, end, position).await? else { return Ok(()) };
            self.send_piece(ino, piece).await?;
            self.yield_to_clients(turn).await;
        }
        Ok(())
    }

    /// Returns the next piece of a file that contains data; `None` at its end.
    async fn next_piece(&self, ino: InodeId, end: u64, position: &SendPosition) -> Result<Option<ByteRange>> {
        let _exclusive = position.lock.write().await;
        let end = end.min(self.len(ino).await?);
        if position.at.get() >= end {
            return Ok(None);
        }
        let start = self.punch_hole(ino, ByteRange::new(position.at.get(), end)).await?;
        // Aligned to pieces, so that all but the first are whole.
        let next = ((start / PIECE_BYTES + 1) * PIECE_BYTES).min(end);
        if position.at.get() != u64::MAX {
            position.at.set(next.max(start));
        }
        Ok((start < end).then(|| ByteRange::new(start, next)))
    }

    /// Punches a hole in the member's replica where a range begins with a hole here, whatever its
    /// length; returns its end.
    async fn punch_hole(&self, ino: InodeId, range: ByteRange) -> Result<u64> {
        let block = BLOCK_SIZE as u64;
        // In whole blocks, so that the member's content doesn't matter; at the end of a file up to
        // the end of its last block.
        let limit = range.end.next_multiple_of(block);
        let data = async |from| {
            let found = self.replica.store.seek(ino, from, Seek::Data).await;
            let found = found.map_err(|error| self.replica.failed(&error))?;
            Ok::<u64, Error>(found.unwrap_or(u64::MAX).min(limit))
        };
        let end = |data: u64| data / block * block;
        let seen = end(data(range.start).await?);
        if seen < range.start + PIECE_BYTES && seen < range.end {
            return Ok(range.start);
        }
        let hole = ByteRange::new(range.start, seen);
        let _held = self.replica.ranges.acquire(ino, hole, LockMode::Shared).await;
        let true_end = self.true_hole_end(ino, hole).await?;
        if end(data(range.start).await?) < hole.end || true_end < hole.end.min(hole.start + PIECE_BYTES) {
            return Ok(range.start);
        }
        let hole = ByteRange::new(hole.start, true_end);
        self.call_member(ino, StorageOp::Allocate { range: hole, how: AllocateMode::Punch }, None).await?;
        self.progress.moved(0, hole.len(), rt::monotonic_ns());
        Ok(hole.end)
    }

    /// Sends a piece while it is locked against changes.
    async fn send_piece(&self, ino: InodeId, piece: ByteRange) -> Result<()> {
        let replica = self.replica;
        let _held = replica.ranges.acquire(ino, piece, LockMode::Shared).await;
        let now = piece.intersect(ByteRange::new(0, self.len(ino).await?));
        let mut moved = 0;
        if !now.is_empty() {
            let buf = IoBuf::alloc(now.len() as usize);
            match replica.store.read(ino, now.start, &buf, IoPath::Direct).await {
                Ok(()) => moved = self.send(ino, now, &buf).await?,
                Err(error) if matches!(error.kind(), Kind::Corrupt { .. } | Kind::Io) => {
                    self.salvage(ino, now, replica.failed(&error)).await?;
                    moved = now.len();
                }
                Err(error) => return Err(replica.failed(&error)),
            }
        }
        self.sent.set(self.sent.get() + moved);
        // Comparing the member's content costs the disks as much as sending it.
        self.rate_limiter.record_sent(now.len());
        self.progress.moved(moved, piece.len(), rt::monotonic_ns());
        Ok(())
    }

    /// Writes to the member.
    pub(super) async fn write(&self, ino: InodeId, offset: u64, data: IoBuf) -> Result<()> {
        let op = StorageOp::Write { offset, path: DataPath::Direct, durable: false };
        self.call_member(ino, op, Some(data)).await.map(drop)
    }

    /// Sends the parts of a range that the member lacks; returns the number of bytes.
    async fn send(&self, ino: InodeId, range: ByteRange, data: &IoBuf) -> Result<u64> {
        let missing = self.differing_blocks(ino, range, data).await;
        let writes = missing.iter().map(|part| {
            let at = |offset: u64| (offset - range.start) as usize;
            self.write(ino, part.start, data.slice(at(part.start)..at(part.end)))
        });
        rt::join_all(writes.collect()).await.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(missing.iter().map(|part| part.len()).sum())
    }

    /// Waits until the rate allows more data, while resync is paused, and for the node's turn when
    /// clients have requests. Work done in a turn ends with [`MemberResync::yield_to_clients`].
    async fn wait_for_turn(&self) -> Result<Option<SendTurn<'_>>> {
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
                self.rate_limiter.skip(rt::monotonic_ns());
                continue;
            }
            self.progress.set_hindrance(None);
            let has_client_requests = self.groups.client_activity.is_active(now_ns);
            let allowed =
                self.rate_limiter.allowed(settings, self.progress.bytes_left(), has_client_requests, now_ns);
            let pause_ns = self.rate_limiter.pause_ns(allowed.rate, now_ns);
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
    async fn yield_to_clients(&self, turn: Option<SendTurn<'_>>) {
        let Some(turn) = turn else { return };
        let until_ns = rate_limiter::yield_until_ns(turn.from_ns, rt::monotonic_ns());
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
            let send = |(session, number, ino): &(types::SessionId, wire::SlotSequence, InodeId)| {
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

    pub(super) async fn call_member(
        &self,
        ino: InodeId,
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

fn add(work: &mut ResyncWork, regions: Vec<(InodeId, ByteRange)>) {
    for (ino, range) in regions {
        work.entry(ino).or_default().push(range);
    }
}

/// Merges ranges that touch, in order.
fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
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
