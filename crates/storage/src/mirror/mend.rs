//! Makes one replica equal to another, as a file system check requests it: the bytes of a range,
//! and the length of the chunk file if the range reaches its end.
//!
//! The primary repairs piece by piece, with each piece locked against changes. Pieces that aren't
//! repaired yet stay as they were or are refused, also after a crash ([`StorageOp::Rewrite`]). Only
//! the target replica changes. A member that can't be repaired is ejected, because its content is
//! unknown then.

use super::primary::WHOLE;
use super::ranges::Hold;
use super::repair::{expected_parts, expected_sums};
use super::replica::Replica;
use super::{Mirrors, turns};
use crate::service::perform;
use rt::IoBuf;
use std::sync::Arc;
use types::{BLOCK_SIZE, ByteRange, Errno, Error, Group, InodeId, MemberState, Result, TargetId};
use wire::{InGroup, Part, Path, Seek, StorageOp, StorageReply, Survey};

/// Bytes that are repaired at a time. Requests to the piece wait that long.
const PIECE_BYTES: u64 = 1 << 20;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The replicas of one chunk file, as the primary of its group sees them.
pub(super) struct Mender {
    mirrors: Arc<Mirrors>,
    replica: Arc<Replica>,
    ino: InodeId,
}

impl Mender {
    pub(super) fn new(mirrors: Arc<Mirrors>, replica: Arc<Replica>, ino: InodeId) -> Mender {
        Mender { mirrors, replica, ino }
    }

    /// Makes the replica of `to` equal to that of `from`.
    pub(super) async fn mend(self, from: TargetId, to: TargetId, range: ByteRange) -> Result<StorageReply> {
        if from == to {
            return Err(Error::new(Errno::EINVAL, format!("target {to} can't be mended from itself")));
        }
        let _entered = self.replica.gate.read().await;
        // Until the last step nothing of it counts as settled, so that no client reads a
        // half-repaired replica there.
        let _unsettled = self.replica.sequences.begin(self.mirrors.since(self.replica.group));
        let range = self.begin(from, to, range).await?;
        let mut at = range.start;
        while at < range.end {
            let piece = ByteRange::new(at, ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(range.end));
            at = piece.end;
            if !self.piece(from, to, piece).await? {
                break;
            }
        }
        self.set_time(from, to).await?;
        Ok(StorageReply::Unit)
    }

    /// Gives the repaired replica the modification time of its source: no application has changed
    /// the file.
    async fn set_time(&self, from: TargetId, to: TargetId) -> Result<()> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE, Hold::Alone).await;
        match self.look(from, StorageOp::Stat, None).await? {
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
        let _held = self.replica.ranges.acquire(self.ino, WHOLE, Hold::Alone).await;
        let right = self.len(from).await?;
        let found = self.survey(to, ByteRange::new(0, 0)).await?;
        let wrong = if found.is_there { found.len } else { 0 };
        let end = range.end.checked_next_multiple_of(BLOCK).unwrap_or(range.end);
        if wrong == 0 && right > 0 {
            // Another program may have removed it, with or without its checksums.
            self.expect(from, to, right).await?;
            return Ok(ByteRange::new(0, right.next_multiple_of(BLOCK)));
        }
        if range.end < right || right == wrong {
            return Ok(ByteRange::new(range.start / BLOCK * BLOCK, end));
        }
        if right == 0 {
            self.change(from, to, StorageOp::Truncate { len: 0 }, None).await?;
        } else {
            // With its last block, which the wrong length may have damaged.
            let last = ByteRange::new((right - 1) / BLOCK * BLOCK, right);
            self.rewrite(from, to, last, Some(right)).await?;
        }
        Ok(ByteRange::new(range.start.min(right).min(wrong) / BLOCK * BLOCK, end))
    }

    /// Surveys the replica of a member in a range, by its checksums.
    async fn survey(&self, member: TargetId, range: ByteRange) -> Result<Survey> {
        match self.look(member, StorageOp::Survey { range, unit: BLOCK, read: false }, None).await? {
            StorageReply::Survey(survey) => Ok(survey),
            _ => Err(out_of_turn()),
        }
    }

    /// Repairs a piece of the range; false at the end of the file.
    async fn piece(&self, from: TargetId, to: TargetId, piece: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, piece, Hold::Alone).await;
        let len = self.len(from).await?;
        let piece = piece.intersect(ByteRange::new(0, len));
        if piece.is_empty() {
            return Ok(false);
        }
        let seek = StorageOp::Seek { from: piece.start, what: Seek::Data };
        let is_hole = match self.look(from, seek, None).await? {
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
        let read = StorageOp::Read { offset: range.start, path: Path::Direct };
        self.look(from, read, Some(buf.clone())).await?;
        self.change(from, to, StorageOp::Rewrite { range, len }, Some(buf)).await
    }

    /// Creates a file of which the member has nothing yet.
    async fn expect(&self, from: TargetId, to: TargetId, len: u64) -> Result<()> {
        for part in expected_parts(len) {
            let survey = self.survey(from, part).await?;
            let op = StorageOp::Expect { first: part.start / BLOCK, len };
            self.change(from, to, op, Some(expected_sums(&survey, part)?)).await?;
        }
        Ok(())
    }

    /// Replaces by holes what is on no replica any more.
    pub(super) async fn forget(self, range: ByteRange) -> Result<StorageReply> {
        let _entered = self.replica.gate.read().await;
        let mut lost = Vec::new();
        if self.make_absent_one(range).await? {
            lost.push((self.ino, range));
        } else {
            let mut at = range.start / BLOCK * BLOCK;
            while at < range.end {
                let block = ByteRange::at(at, BLOCK);
                at = block.end;
                if self.forget_block(block).await? {
                    lost.push((self.ino, block));
                }
            }
        }
        Ok(StorageReply::Regions { regions: lost, next: None })
    }

    /// Makes a hole of a chunk file that no member has, or of a range beyond its end on all of
    /// them.
    async fn make_absent_one(&self, range: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE, Hold::Alone).await;
        let members = self.all_members()?;
        for member in &members {
            let len = self.len(*member).await?;
            if len > 0 && len > range.start {
                return Ok(false);
            }
        }
        for member in members {
            self.change_one(member, StorageOp::Forget { range }, None).await?;
        }
        Ok(true)
    }

    /// Makes a hole of a block; true if no member could read it.
    async fn forget_block(&self, block: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, block, Hold::Alone).await;
        let members = self.all_members()?;
        for member in &members {
            let buf = IoBuf::alloc(BLOCK_SIZE);
            let read = StorageOp::Read { offset: block.start, path: Path::Cached };
            match self.look(*member, read, Some(buf)).await {
                // It can be repaired from here.
                Ok(_) => return Ok(false),
                Err(error) if error.errno == Errno::EIO => {}
                Err(error) => return Err(error),
            }
        }
        for member in members {
            self.change_one(member, StorageOp::Forget { range: block }, None).await?;
        }
        Ok(true)
    }

    /// Returns all members; fails unless all are in sync, because a resynced one might restore the
    /// lost content.
    fn all_members(&self) -> Result<Vec<TargetId>> {
        let view = self.mirrors.primary_view(&self.replica)?;
        let group = view.group()?;
        if group.is_degraded() {
            let message = format!("group {} has members that aren't in step", group.id);
            return Err(Error::new(Errno::EBUSY, message)
                .hint("what is lost on one may be on them: wait until they are good (weft group list)"));
        }
        Ok(group.members.clone())
    }

    async fn len(&self, member: TargetId) -> Result<u64> {
        match self.look(member, StorageOp::Stat, None).await? {
            StorageReply::Stat { len, .. } => Ok(len),
            _ => Err(out_of_turn()),
        }
    }

    /// Sends a read-only request to a member, about its own replica. The caller holds the range.
    async fn look(&self, member: TargetId, op: StorageOp, payload: Option<IoBuf>) -> Result<StorageReply> {
        let (mirrors, replica) = (&self.mirrors, &*self.replica);
        mirrors.lease_holds(replica.target).await?;
        let view = mirrors.primary_view(replica)?;
        let group = view.group()?;
        require_good(group, member)?;
        if member == replica.target {
            replica.turns.enter(replica.group, group.since, false).await?;
            return perform(&replica.store, self.ino, op, payload).await.map_err(|e| replica.failed(&e));
        }
        let in_group = self.in_group(group, 0);
        mirrors.ask_member(member, (self.ino, op), in_group, payload).await
    }

    fn in_group(&self, group: &Group, sequence: u64) -> InGroup {
        let settled = match sequence {
            0 => 0,
            _ => self.replica.sequences.settled(group.since),
        };
        InGroup { group: group.id, since: group.since, part: Part::Member { sequence, settled } }
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
        let (mirrors, replica) = (&self.mirrors, &*self.replica);
        let view = mirrors.primary_view(replica)?;
        let group = view.group()?;
        require_good(group, from)?;
        let Err(error) = self.change_one(to, op, payload).await else { return Ok(()) };
        if error.errno != Errno::EREMCHG {
            if to == replica.target {
                replica.leave(group.since);
            }
            mirrors.expel(replica, to, MemberState::NeedsResync, &error.message).await;
        }
        Err(error)
    }

    async fn change_one(&self, to: TargetId, op: StorageOp, payload: Option<IoBuf>) -> Result<()> {
        let (mirrors, replica) = (&self.mirrors, &*self.replica);
        mirrors.lease_holds(replica.target).await?;
        let _noted = replica.store.hold_notes();
        let view = mirrors.primary_view(replica)?;
        let group = view.group()?;
        require_good(group, to)?;
        let ticket = replica.sequences.begin(group.since);
        if mirrors.since(replica.group) != group.since {
            return Err(turns::another_version(replica.group));
        }
        if to == replica.target {
            let _turn = replica.turns.enter(replica.group, group.since, true).await?;
            let done = perform(&replica.store, self.ino, op, payload).await;
            return done.map(drop).map_err(|e| replica.failed(&e));
        }
        let in_group = self.in_group(group, ticket.sequence);
        mirrors.ask_member(to, (self.ino, op), in_group, payload).await.map(drop)
    }
}

fn out_of_turn() -> Error {
    Error::new(Errno::EPROTO, "a member answered out of turn")
        .hint("install the same version of weft on all machines")
}

/// A member that isn't in sync is resynced anyhow.
fn require_good(group: &Group, member: TargetId) -> Result<()> {
    match group.state_of(member) {
        Some(MemberState::Good) => Ok(()),
        Some(_) => Err(turns::another_version(group.id)),
        None => {
            let message = format!("target {member} is no member of group {}", group.id);
            Err(Error::new(Errno::EINVAL, message).hint("weft group list shows who is"))
        }
    }
}
