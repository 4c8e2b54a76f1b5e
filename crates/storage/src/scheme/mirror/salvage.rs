//! Resync from a replica with damage in a dirty region.
//!
//! A block that can't be read here is copied from another in-sync member. Where no such member has
//! it, the resynced member may: if its content matches its checksum, and that equals the checksum
//! stored here, then it is what was written last. A block that no member has is refused on the
//! resynced member, as it is here: the older content there would be taken for the written one. All
//! of that is repaired or reported as soon as the member is in sync, as damage that a scrub finds.

use super::resync::ReplicaResync;
use crate::convert;
use crate::group::range_locks::{LockMode, WHOLE_FILE};
use rt::IoBuf;
use std::collections::BTreeMap;
use types::{BLOCK_SIZE, ByteRange, ChunkFileId, Errno, Error, MemberState, Result, TargetId};
use wire::{DataPath, GroupContext, GroupRole, ReplicaState, StorageOp, StorageReply};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Where a block comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Here,
    /// Another in-sync member.
    Other(TargetId),
    /// The resynced member has it.
    Member,
    Lost,
}

/// Surveys of the replicas in a piece: sums are of single blocks.
struct Surveys {
    here: ReplicaState,
    others: BTreeMap<TargetId, ReplicaState>,
    member: ReplicaState,
}

impl ReplicaResync<'_> {
    /// Sends a piece that can't be read as a whole here. The caller holds it; `refusal` is the read
    /// error.
    pub(super) async fn salvage(&self, ino: ChunkFileId, piece: ByteRange, refusal: Error) -> Result<()> {
        let blocks = ByteRange::new(piece.start / BLOCK * BLOCK, piece.end.next_multiple_of(BLOCK));
        let failed = |error| self.resync.replica.failed(&error);
        let here = self.resync.replica.store.survey(ino, blocks, BLOCK, true).await.map_err(failed)?;
        let here = convert::survey(here);
        if !here.exists {
            return Err(refusal);
        }
        let op = StorageOp::Survey { range: blocks, unit: BLOCK, read: true };
        let member = survey(self.resync.call_member(ino, op.clone(), None).await?)?;
        let mut others = BTreeMap::new();
        for target in self.others()? {
            // A member that doesn't answer isn't a source.
            if let Ok(reply) = self.call_other(target, ino, op.clone(), None).await {
                others.insert(target, survey(reply)?);
            }
        }
        let surveys = Surveys { here, others, member };
        for (range, source) in sources(&surveys, blocks) {
            self.send_from(ino, range.intersect(piece), source).await?;
        }
        Ok(())
    }

    async fn send_from(&self, ino: ChunkFileId, range: ByteRange, source: Source) -> Result<()> {
        let replica = self.resync.replica;
        if source != Source::Here {
            self.resync.damaged.borrow_mut().push((ino, range));
        }
        let buf = IoBuf::alloc(range.len() as usize);
        match source {
            Source::Member => return Ok(()),
            Source::Lost => {
                tracing::error!(
                    group = %replica.group, target_id = %replica.target, inode = %ino, %range,
                    "no intact replica is left of this range; hint: weft fsck names the file; restore it from a backup"
                );
                return self.resync.call_member(ino, StorageOp::MarkLost { range }, None).await.map(drop);
            }
            Source::Here => {
                let read = replica.store.read(ino, range.start, &buf, chunkstore::IoPath::Direct).await;
                read.map_err(|error| replica.failed(&error))?;
            }
            Source::Other(target) => {
                let op = StorageOp::Read { offset: range.start, path: DataPath::Direct };
                self.call_other(target, ino, op, Some(buf.clone())).await?;
            }
        }
        self.write(ino, range.start, buf).await
    }

    /// Restores the length of the chunk file here if another program has removed or truncated it,
    /// so that the member doesn't lose its content by that.
    pub(super) async fn restore_length(&self, ino: ChunkFileId) -> Result<()> {
        let (replica, store) = (self.resync.replica, &self.resync.replica.store);
        if !self.is_shortened(ino).await? {
            return Ok(());
        }
        let group = replica.group;
        if !self.others()?.is_empty() {
            // The comparison of lengths happens where the file ends here.
            let end = self.resync.len(ino).await?.max(1);
            for at in [0, end - 1] {
                let range = ByteRange::at(at, 1);
                self.resync.groups.request_repair(replica.target, group, ino, range).await?;
            }
            if !self.is_shortened(ino).await? {
                self.resync.damaged.borrow_mut().push((ino, WHOLE_FILE));
                return Ok(());
            }
        }
        let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Exclusive).await;
        let op = StorageOp::Survey { range: ByteRange::new(0, BLOCK), unit: BLOCK, read: false };
        let member = survey(self.resync.call_member(ino, op, None).await?)?;
        let failed = |error| replica.failed(&error);
        let is_extended = store.restore_length(ino, member.len).await.map_err(failed)?;
        // An open file here is sent from its handle, and rewritten from the member afterwards: it
        // is lost when it is closed.
        if is_extended || store.is_replaced(ino).await.map_err(failed)? {
            tracing::error!(
                %group, target_id = %replica.target, inode = %ino,
                "another program removed or truncated the chunk file of inode {ino}; the resynced member keeps its content"
            );
            self.resync.damaged.borrow_mut().push((ino, WHOLE_FILE));
        }
        Ok(())
    }

    /// Whether the chunk file here is shorter than its checksums say, or missing although it exists
    /// elsewhere.
    async fn is_shortened(&self, ino: ChunkFileId) -> Result<bool> {
        let (replica, store) = (self.resync.replica, &self.resync.replica.store);
        let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Shared).await;
        let failed = |error| replica.failed(&error);
        if !self.is_here(ino).await? {
            return Ok(store.is_missing(ino).await.map_err(failed)? || self.longest(ino).await? > 0);
        }
        let survey = store.survey(ino, ByteRange::new(0, 0), BLOCK, false).await.map_err(failed)?;
        Ok(!survey.exists || survey.sum_end > survey.len.next_multiple_of(BLOCK))
    }

    /// Returns the length of the file on the other in-sync members. One that doesn't answer may
    /// have more than is here: as long as it counts as in sync, its answer is needed. If its node
    /// is unreachable, management ejects it.
    async fn longest(&self, ino: ChunkFileId) -> Result<u64> {
        let mut longest = 0;
        for target in self.others()? {
            match self.call_other(target, ino, StorageOp::Stat, None).await {
                Ok(StorageReply::Stat { len, .. }) => longest = longest.max(len),
                Ok(_) => {}
                Err(error) if self.resync.groups.is_reachable(target) => return Err(error),
                Err(error) => self.eject_unreachable(target, error).await?,
            }
        }
        Ok(longest)
    }

    /// Ejects another member whose node is unreachable; fails while it is still in sync.
    async fn eject_unreachable(&self, target: TargetId, error: Error) -> Result<()> {
        let since = self.resync.groups.primary_view(self.resync.replica)?.group()?.since;
        self.resync
            .groups
            .report_member(self.resync.replica, since, target, MemberState::NeedsResync, &error.message)
            .await;
        match self.others()?.contains(&target) {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Returns where an apparent hole here ends according to the checksums.
    pub(super) async fn true_hole_end(&self, ino: ChunkFileId, hole: ByteRange) -> Result<u64> {
        let store = &self.resync.replica.store;
        store.true_hole_end(ino, hole).await.map_err(|error| self.resync.replica.failed(&error))
    }

    /// Returns the in-sync members besides this one.
    fn others(&self) -> Result<Vec<TargetId>> {
        let view = self.resync.groups.primary_view(self.resync.replica)?;
        let good = view.group()?.members_with_states().filter(|(target, state)| {
            *target != self.resync.replica.target
                && *target != self.resync.member
                && *state == MemberState::InSync
        });
        Ok(good.map(|(target, _)| target).collect())
    }

    /// Sends a request to another in-sync member. The range held here doesn't change there either.
    async fn call_other(
        &self,
        target: TargetId,
        ino: ChunkFileId,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let group = self.resync.groups.primary_view(self.resync.replica)?.group()?.clone();
        let part = GroupRole::Member { sequence: 0, committed: 0 };
        let in_group = GroupContext { group: group.id, version: group.since, role: part };
        self.resync.groups.call_member(target, (ino, op), in_group, payload).await
    }
}

fn survey(reply: StorageReply) -> Result<ReplicaState> {
    match reply {
        StorageReply::Survey(survey) => Ok(survey),
        other => Err(Error::new(Errno::EPROTO, format!("unexpected reply type from a member: {other:?}"))
            .hint("install the same version of weft on all machines")),
    }
}

/// Returns the sources of the blocks of a piece, as ranges in order.
fn sources(surveys: &Surveys, piece: ByteRange) -> Vec<(ByteRange, Source)> {
    let mut found: Vec<(ByteRange, Source)> = Vec::new();
    for (index, at) in (piece.start..piece.end).step_by(BLOCK_SIZE).enumerate() {
        let block = ByteRange::at(at, BLOCK);
        let source = source(surveys, index, block);
        match found.last_mut() {
            Some((range, last)) if *last == source => range.end = block.end,
            _ => found.push((block, source)),
        }
    }
    found
}

fn source(surveys: &Surveys, index: usize, block: ByteRange) -> Source {
    let is_good =
        |survey: &ReplicaState| survey.exists && !survey.damaged.iter().any(|range| range.overlaps(block));
    let sum = |survey: &ReplicaState| survey.sums.get(index).copied().unwrap_or(0);
    if is_good(&surveys.here) {
        return Source::Here;
    }
    if let Some((target, _)) = surveys.others.iter().find(|(_, survey)| is_good(survey)) {
        return Source::Other(*target);
    }
    // A hole has no checksum, and neither has a block whose checksum was lost.
    match is_good(&surveys.member) && sum(&surveys.here) != 0 && sum(&surveys.here) == sum(&surveys.member) {
        true => Source::Member,
        false => Source::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(sums: &[u32], damaged: &[u64]) -> ReplicaState {
        let len = sums.len() as u64 * BLOCK;
        let damaged = damaged.iter().map(|block| ByteRange::at(block * BLOCK, BLOCK)).collect();
        ReplicaState {
            exists: true,
            len,
            sum_end: len,
            sums: sums.into(),
            damaged,
            ..ReplicaState::default()
        }
    }

    fn found(here: ReplicaState, other: Option<ReplicaState>, member: ReplicaState) -> Vec<(u64, Source)> {
        let others = other.into_iter().map(|survey| (TargetId(3), survey)).collect();
        let surveys = Surveys { here, others, member };
        let all = sources(&surveys, ByteRange::new(0, 4 * BLOCK));
        all.into_iter().map(|(range, source)| (range.end / BLOCK, source)).collect()
    }

    #[test]
    fn a_damaged_block_comes_from_a_proven_source() {
        let here = || copy(&[1, 2, 3, 4], &[1, 2]);
        let (old, same) = (copy(&[1, 7, 3, 4], &[]), copy(&[1, 2, 3, 4], &[2]));
        assert_eq!(
            found(here(), None, old.clone()),
            [(1, Source::Here), (2, Source::Lost), (3, Source::Member), (4, Source::Here)]
        );
        assert_eq!(
            found(here(), None, same.clone()),
            [(1, Source::Here), (2, Source::Member), (3, Source::Lost), (4, Source::Here)]
        );
        assert_eq!(
            found(here(), Some(same), old),
            [(1, Source::Here), (2, Source::Other(TargetId(3))), (3, Source::Member), (4, Source::Here)]
        );
    }

    #[test]
    fn without_checksums_the_member_is_no_source() {
        let here = copy(&[1, 0, 0, 4], &[1, 2]);
        let hole = copy(&[1, 0, 0, 4], &[]);
        assert_eq!(found(here, None, hole), [(1, Source::Here), (3, Source::Lost), (4, Source::Here)]);
    }
}
