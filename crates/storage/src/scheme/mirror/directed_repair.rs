//! Makes one replica equal to another, as a file system check requests it: the bytes of a range,
//! and the length of the chunk file if the range reaches its end.
//!
//! The primary repairs piece by piece, with each piece locked against changes. Pieces that aren't
//! repaired yet stay as they were or are refused, also after a crash ([`StorageOp::Rewrite`]). Only
//! the target replica changes. A member that can't be repaired is ejected, because its content is
//! unknown then.

use super::repair::{expected_parts, expected_sums};
use crate::group::range_locks::{LockMode, WHOLE_FILE};
use crate::group::replica::Replica;
use crate::group::{GroupService, version_fence};
use crate::service::execute;
use rt::IoBuf;
use std::sync::Arc;
use types::{
    BLOCK_SIZE, ByteRange, ChunkFileId, Errno, Error, Group, MemberState, Refusal, Result, TargetId,
};
use wire::{DataPath, GroupContext, GroupRole, ReplicaState, SeekTarget, StorageOp, StorageReply};

/// Bytes that are repaired at a time. Requests to the piece wait that long.
const PIECE_BYTES: u64 = 1 << 20;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The replicas of one chunk file, as the primary of its group sees them.
pub(super) struct DirectedRepair {
    groups: Arc<GroupService>,
    replica: Arc<Replica>,
    ino: ChunkFileId,
}

impl DirectedRepair {
    pub(super) fn new(groups: Arc<GroupService>, replica: Arc<Replica>, ino: ChunkFileId) -> DirectedRepair {
        DirectedRepair { groups, replica, ino }
    }

    /// Makes the replica of `to` equal to that of `from`.
    pub(super) async fn repair_from(
        self,
        from: TargetId,
        to: TargetId,
        range: ByteRange,
    ) -> Result<StorageReply> {
        if from == to {
            return Err(Error::new(Errno::EINVAL, format!("target {to} can't be repaired from itself")));
        }
        let _entered = self.replica.role_lock.read().await;
        // Until the last step nothing of it counts as settled, so that no client reads a
        // half-repaired replica there.
        let _unsettled = self.replica.sequences.begin(self.groups.since(self.replica.group));
        let range = self.begin(from, to, range).await?;
        let mut at = range.start;
        while at < range.end {
            let piece = ByteRange::new(at, ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(range.end));
            at = piece.end;
            if !self.repair_piece(from, to, piece).await? {
                break;
            }
        }
        self.set_time(from, to).await?;
        Ok(StorageReply::Unit)
    }

    /// Gives the repaired replica the modification time of its source: no application has changed
    /// the file.
    async fn set_time(&self, from: TargetId, to: TargetId) -> Result<()> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE_FILE, LockMode::Exclusive).await;
        match self.read(from, StorageOp::Stat, None).await? {
            StorageReply::Stat { len, mtime, .. } if len > 0 => {
                self.change(from, to, StorageOp::SetTime { time: mtime }, None).await
            }
            _ => Ok(()),
        }
    }

    /// Returns the range to repair. If the range reaches the end of the file, the length is
    /// repaired, too: excess is cut off, and the difference between the lengths is included. An
    /// absent chunk file is repaired as a whole. The range ends on a block, because blocks are
    /// written as a whole, and the last block may have grown since the check saw it.
    async fn begin(&self, from: TargetId, to: TargetId, range: ByteRange) -> Result<ByteRange> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE_FILE, LockMode::Exclusive).await;
        let source_len = self.len(from).await?;
        let found = self.survey(to, ByteRange::new(0, 0)).await?;
        let found_len = if found.exists { found.len } else { 0 };
        let end = range.end.checked_next_multiple_of(BLOCK).unwrap_or(range.end);
        if found_len == 0 && source_len > 0 {
            // Another program may have removed it, with or without its checksums.
            self.send_expected_sums(from, to, source_len).await?;
            return Ok(ByteRange::new(0, source_len.next_multiple_of(BLOCK)));
        }
        if range.end < source_len || source_len == found_len {
            return Ok(ByteRange::new(range.start / BLOCK * BLOCK, end));
        }
        if source_len == 0 {
            self.change(from, to, StorageOp::Truncate { len: 0 }, None).await?;
        } else {
            // With its last block, which the wrong length may have damaged.
            let last = ByteRange::new((source_len - 1) / BLOCK * BLOCK, source_len);
            self.rewrite(from, to, last, Some(source_len)).await?;
        }
        Ok(ByteRange::new(range.start.min(source_len).min(found_len) / BLOCK * BLOCK, end))
    }

    /// Surveys the replica of a member in a range, by its checksums.
    async fn survey(&self, member: TargetId, range: ByteRange) -> Result<ReplicaState> {
        match self.read(member, StorageOp::Survey { range, unit: BLOCK, read: false }, None).await? {
            StorageReply::Survey(survey) => Ok(survey),
            _ => Err(unexpected_reply()),
        }
    }

    /// Repairs a piece of the range; false at the end of the file.
    async fn repair_piece(&self, from: TargetId, to: TargetId, piece: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, piece, LockMode::Exclusive).await;
        let len = self.len(from).await?;
        let piece = piece.intersect(ByteRange::new(0, len));
        if piece.is_empty() {
            return Ok(false);
        }
        let seek = StorageOp::Seek { from: piece.start, what: SeekTarget::Data };
        let is_hole = match self.read(from, seek, None).await? {
            StorageReply::Offset(data) => data.is_none_or(|data| data >= piece.end),
            _ => false,
        };
        // A hole that has checksums was made by another program, and is damage.
        match is_hole && self.survey(from, piece).await?.sums.is_empty() {
            true => self.change(from, to, StorageOp::Rewrite { range: piece, len: None }, None).await?,
            false => self.rewrite(from, to, piece, None).await?,
        }
        Ok(true)
    }

    /// Copies whole blocks, or everything up to the end of the file.
    async fn rewrite(&self, from: TargetId, to: TargetId, range: ByteRange, len: Option<u64>) -> Result<()> {
        let buf = IoBuf::alloc(range.len() as usize);
        let read = StorageOp::Read { offset: range.start, path: DataPath::Direct };
        self.read(from, read, Some(buf.clone())).await?;
        self.change(from, to, StorageOp::Rewrite { range, len }, Some(buf)).await
    }

    /// Creates a file of which the member has nothing yet.
    async fn send_expected_sums(&self, from: TargetId, to: TargetId, len: u64) -> Result<()> {
        for part in expected_parts(len) {
            let survey = self.survey(from, part).await?;
            let op = StorageOp::ExpectChecksums { first: part.start / BLOCK, len };
            self.change(from, to, op, Some(expected_sums(&survey, part)?)).await?;
        }
        Ok(())
    }

    /// Replaces by holes what is on no replica any more.
    pub(super) async fn give_up(self, range: ByteRange) -> Result<StorageReply> {
        let _entered = self.replica.role_lock.read().await;
        let mut lost = Vec::new();
        if self.make_hole_if_absent(range).await? {
            lost.push((self.ino, range));
        } else {
            let mut at = range.start / BLOCK * BLOCK;
            while at < range.end {
                let block = ByteRange::at(at, BLOCK);
                at = block.end;
                if self.give_up_block(block).await? {
                    lost.push((self.ino, block));
                }
            }
        }
        Ok(StorageReply::Regions { regions: lost, next: None })
    }

    /// Makes a hole of a chunk file that no member has, or of a range beyond its end on all of
    /// them.
    async fn make_hole_if_absent(&self, range: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE_FILE, LockMode::Exclusive).await;
        let members = self.all_members()?;
        for member in &members {
            let len = self.len(*member).await?;
            if len > 0 && len > range.start {
                return Ok(false);
            }
        }
        for member in members {
            self.change_one(member, StorageOp::DiscardLost { range }, None).await?;
        }
        Ok(true)
    }

    /// Makes a hole of a block; true if no member could read it.
    async fn give_up_block(&self, block: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, block, LockMode::Exclusive).await;
        let members = self.all_members()?;
        for member in &members {
            let buf = IoBuf::alloc(BLOCK_SIZE);
            let read = StorageOp::Read { offset: block.start, path: DataPath::Cached };
            match self.read(*member, read, Some(buf)).await {
                // It can be repaired from here.
                Ok(_) => return Ok(false),
                Err(error) if error.errno == Errno::EIO => {}
                Err(error) => return Err(error),
            }
        }
        for member in members {
            self.change_one(member, StorageOp::DiscardLost { range: block }, None).await?;
        }
        Ok(true)
    }

    /// Returns all members; fails unless all are in sync, because a resynced one might restore the
    /// lost content.
    fn all_members(&self) -> Result<Vec<TargetId>> {
        let view = self.groups.primary_view(&self.replica)?;
        let group = view.group()?;
        if group.is_degraded() {
            let message = format!("group {} has members that aren't in sync", group.id);
            return Err(Error::new(Errno::EBUSY, message)
                .hint("these may have the lost content: wait until they are in sync (weft group list)"));
        }
        Ok(group.members.clone())
    }

    async fn len(&self, member: TargetId) -> Result<u64> {
        match self.read(member, StorageOp::Stat, None).await? {
            StorageReply::Stat { len, .. } => Ok(len),
            _ => Err(unexpected_reply()),
        }
    }

    /// Sends a read-only request to a member, about its own replica. The caller holds the range.
    async fn read(&self, member: TargetId, op: StorageOp, payload: Option<IoBuf>) -> Result<StorageReply> {
        let (groups, replica) = (&self.groups, &*self.replica);
        groups.wait_for_lease(replica.target).await?;
        let view = groups.primary_view(replica)?;
        let group = view.group()?;
        require_in_sync(group, member)?;
        if member == replica.target {
            replica.version_fence.enter(replica.group, group.since, false).await?;
            return execute(&replica.store, self.ino, op, payload).await.map_err(|e| replica.failed(&e));
        }
        let in_group = self.group_context(group, 0);
        groups.call_member(member, (self.ino, op), in_group, payload).await
    }

    fn group_context(&self, group: &Group, sequence: u64) -> GroupContext {
        let settled = match sequence {
            0 => 0,
            _ => self.replica.sequences.settled(group.since),
        };
        GroupContext {
            group: group.id,
            version: group.since,
            role: GroupRole::Member { sequence, committed: settled },
        }
    }

    /// Changes one replica. A member that fails is ejected: the source, which is in sync, resyncs
    /// it.
    async fn change(
        &self,
        from: TargetId,
        to: TargetId,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<()> {
        let (groups, replica) = (&self.groups, &*self.replica);
        let view = groups.primary_view(replica)?;
        let group = view.group()?;
        require_in_sync(group, from)?;
        let Err(error) = self.change_one(to, op, payload).await else { return Ok(()) };
        if error.errno != Refusal::GroupVersionMismatch {
            if to == replica.target {
                replica.announce_step_down(group.since);
            }
            groups.eject(replica, to, MemberState::NeedsResync, &error.message).await;
        }
        Err(error)
    }

    async fn change_one(&self, to: TargetId, op: StorageOp, payload: Option<IoBuf>) -> Result<()> {
        let (groups, replica) = (&self.groups, &*self.replica);
        groups.wait_for_lease(replica.target).await?;
        let _entry_hold = replica.store.hold_entries();
        let view = groups.primary_view(replica)?;
        let group = view.group()?;
        require_in_sync(group, to)?;
        let ticket = replica.sequences.begin(group.since);
        if groups.since(replica.group) != group.since {
            return Err(version_fence::version_mismatch(replica.group));
        }
        if to == replica.target {
            let _version_guard = replica.version_fence.enter(replica.group, group.since, true).await?;
            let done = execute(&replica.store, self.ino, op, payload).await;
            return done.map(drop).map_err(|e| replica.failed(&e));
        }
        let in_group = self.group_context(group, ticket.sequence);
        groups.call_member(to, (self.ino, op), in_group, payload).await.map(drop)
    }
}

fn unexpected_reply() -> Error {
    Error::new(Errno::EPROTO, "unexpected reply type from a member")
        .hint("install the same version of weft on all machines")
}

/// A member that isn't in sync is resynced anyhow.
fn require_in_sync(group: &Group, member: TargetId) -> Result<()> {
    match group.state_of(member) {
        Some(MemberState::InSync) => Ok(()),
        Some(_) => Err(version_fence::version_mismatch(group.id)),
        None => {
            let message = format!("target {member} is no member of group {}", group.id);
            Err(Error::new(Errno::EINVAL, message).hint("weft group list shows the members"))
        }
    }
}
