//! One copy made what another one is, at the word of a check: the bytes of a range, and how long
//! the chunk file is where the range reaches its end.
//!
//! The primary does it piece by piece, each while nobody changes it. What isn't mended yet stays as
//! it was or is refused, also after a crash in between ([`StorageOp::Rewrite`]). Only the copy that
//! is mended changes. Who can't be mended is taken out, since nobody knows then what it has.

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

/// Bytes that are mended at a time: as long as this takes, who uses them waits.
const PIECE_BYTES: u64 = 1 << 20;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The copies of one chunk file, as the primary of its group sees them.
pub(super) struct Mender {
    mirrors: Arc<Mirrors>,
    replica: Arc<Replica>,
    ino: InodeId,
}

impl Mender {
    pub(super) fn new(mirrors: Arc<Mirrors>, replica: Arc<Replica>, ino: InodeId) -> Mender {
        Mender { mirrors, replica, ino }
    }

    /// Makes the copy of `to` what that of `from` is.
    pub(super) async fn mend(self, from: TargetId, to: TargetId, range: ByteRange) -> Result<StorageReply> {
        if from == to {
            return Err(Error::new(Errno::EINVAL, format!("target {to} can't be mended from itself")));
        }
        let _entered = self.replica.gate.read().await;
        // Until the last step nothing of it counts as settled, so that nobody reads a half-mended
        // copy there.
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

    /// What was mended is as old as what it was mended from: nobody has changed the file.
    async fn set_time(&self, from: TargetId, to: TargetId) -> Result<()> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE, Hold::Alone).await;
        match self.look(from, StorageOp::Stat, None).await? {
            StorageReply::Stat { len, mtime, .. } if len > 0 => {
                self.change(from, to, StorageOp::SetTime { time: mtime }, None).await
            }
            _ => Ok(()),
        }
    }

    /// What to go through. Of a range that reaches the end of the file the length is part, too:
    /// what is too long is cut, and what differs by the lengths is mended as well. Of a copy that
    /// isn't there all is made. It ends with a block: blocks are written as a whole, and what has
    /// come behind the end that a check has seen is in the last one, too.
    async fn begin(&self, from: TargetId, to: TargetId, range: ByteRange) -> Result<ByteRange> {
        let _held = self.replica.ranges.acquire(self.ino, WHOLE, Hold::Alone).await;
        let right = self.len(from).await?;
        let found = self.survey(to, ByteRange::new(0, 0)).await?;
        let wrong = if found.is_there { found.len } else { 0 };
        let end = range.end.checked_next_multiple_of(BLOCK).unwrap_or(range.end);
        if wrong == 0 && right > 0 {
            // Somebody may have removed it, with its checksums or without.
            self.expect(from, to, right).await?;
            return Ok(ByteRange::new(0, right.next_multiple_of(BLOCK)));
        }
        if range.end < right || right == wrong {
            return Ok(ByteRange::new(range.start / BLOCK * BLOCK, end));
        }
        if right == 0 {
            self.change(from, to, StorageOp::Truncate { len: 0 }, None).await?;
        } else {
            // With its last block, which may be damaged by the wrong length.
            let last = ByteRange::new((right - 1) / BLOCK * BLOCK, right);
            self.rewrite(from, to, last, Some(right)).await?;
        }
        Ok(ByteRange::new(range.start.min(right).min(wrong) / BLOCK * BLOCK, end))
    }

    /// What the copy of a member looks like in a range, by its checksums.
    async fn survey(&self, member: TargetId, range: ByteRange) -> Result<Survey> {
        match self.look(member, StorageOp::Survey { range, unit: BLOCK, read: false }, None).await? {
            StorageReply::Survey(survey) => Ok(survey),
            _ => Err(out_of_turn()),
        }
    }

    /// A piece of the range; false at the end of the file.
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
        // One that somebody else has made is damage.
        match is_hole && self.survey(from, piece).await?.sums.is_empty() {
            true => self.change(from, to, StorageOp::Rewrite { range: piece, len: None }, None).await?,
            false => self.rewrite(from, to, piece, None).await?,
        }
        Ok(true)
    }

    /// Copies whole blocks, or all up to the end of the file.
    async fn rewrite(&self, from: TargetId, to: TargetId, range: ByteRange, len: Option<u64>) -> Result<()> {
        let buf = IoBuf::alloc(range.len() as usize);
        let read = StorageOp::Read { offset: range.start, path: Path::Direct };
        self.look(from, read, Some(buf.clone())).await?;
        self.change(from, to, StorageOp::Rewrite { range, len }, Some(buf)).await
    }

    /// Has a file made of which nothing is there yet.
    async fn expect(&self, from: TargetId, to: TargetId, len: u64) -> Result<()> {
        for part in expected_parts(len) {
            let survey = self.survey(from, part).await?;
            let op = StorageOp::Expect { first: part.start / BLOCK, len };
            self.change(from, to, op, Some(expected_sums(&survey, part)?)).await?;
        }
        Ok(())
    }

    /// Makes holes of what is on no copy any more.
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

    /// Makes a hole of a chunk file that no member has, or of what is behind its end on all of
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

    /// True: nobody could read it.
    async fn forget_block(&self, block: ByteRange) -> Result<bool> {
        let _held = self.replica.ranges.acquire(self.ino, block, Hold::Alone).await;
        let members = self.all_members()?;
        for member in &members {
            let buf = IoBuf::alloc(BLOCK_SIZE);
            let read = StorageOp::Read { offset: block.start, path: Path::Cached };
            match self.look(*member, read, Some(buf)).await {
                // It can be mended from here.
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

    /// All members, if all of them are good: nobody knows what one that is behind could bring back.
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

    /// Asks a member for what it has itself. The caller holds what it asks about.
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

    /// Changes one copy. One that can't be changed is taken out: the other, which is good, brings
    /// it in step.
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

/// One that isn't is brought in step anyhow.
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
