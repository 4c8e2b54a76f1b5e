//! Compares replicas without reading their content: existence, lengths, and checksums of their
//! files.

use super::primary::WHOLE_FILE;
use crate::group::range_locks::LockMode;
use crate::group::replica::Replica;
use crate::group::{GroupService, version_fence};
use crate::service::execute;
use chunkstore::Store;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ByteRange, Errno, Error, Group, InodeId, MemberState, Result, TargetId};
use wire::{
    GroupContext, GroupRole, MAX_REGIONS, RegionSelection, RepairResult, ReplicaState, StorageOp,
    StorageReply,
};

/// Bytes that one sum covers; where sums differ, blocks are compared one by one.
const UNIT_BYTES: u64 = 1 << 20;

/// Bytes that are compared at a time. The file is locked against changes for one round trip.
const PIECE_BYTES: u64 = 256 << 20;

/// One page of a file listing.
pub(crate) struct FilePage {
    pub(crate) files: Vec<InodeId>,
    /// Where the next page begins.
    pub(crate) next: Option<InodeId>,
}

impl GroupService {
    /// Whether a replica is the primary's, by the current map, and may act as such.
    pub(crate) fn is_primary(&self, replica: &Replica) -> bool {
        self.lease.is_valid(rt::monotonic_ns()) && !replica.is_unclean() && self.primary_view(replica).is_ok()
    }

    /// Returns the files that any in-sync member has, from `from` on and in the order of stores.
    /// Fails if a member doesn't answer.
    pub(crate) async fn files_of_all(self: &Arc<Self>, replica: &Replica, from: InodeId) -> Result<FilePage> {
        let failed = |error| replica.failed(&error);
        let (own, next) = replica.store.files(from, MAX_REGIONS).await.map_err(failed)?;
        let mut files: BTreeSet<InodeId> = own.into_iter().collect();
        let mut ends: Vec<InodeId> = next.into_iter().collect();
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        for target in others(group, replica.target) {
            let op = StorageOp::Regions { from, which: RegionSelection::All };
            match self.call_member(target, (InodeId(0), op), member_request(group), None).await? {
                StorageReply::Regions { regions, next } => {
                    files.extend(regions.into_iter().map(|(ino, _)| ino));
                    ends.extend(next);
                }
                other => return Err(unexpected_reply(&other)),
            }
        }
        // Beyond the end of the shortest page, the others may have more.
        let next = ends.into_iter().min_by_key(|ino| Store::list_order(*ino));
        let is_before =
            |ino: &InodeId| next.is_none_or(|next| Store::list_order(*ino) < Store::list_order(next));
        let mut files: Vec<InodeId> = files.into_iter().filter(is_before).collect();
        files.sort_by_key(|ino| Store::list_order(*ino));
        Ok(FilePage { files, next })
    }

    /// Compares a file on all in-sync members and repairs differences. Also returns whether one of
    /// them lacked the file.
    pub(crate) async fn compare(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        ino: InodeId,
    ) -> Result<(RepairResult, bool)> {
        let (mut result, mut is_missing, mut at, mut end) = (RepairResult::default(), false, 0, 1);
        while at < end {
            let piece = ByteRange::at(at, PIECE_BYTES);
            let surveys = self.surveys(replica, ino, piece).await?;
            end = surveys.iter().map(|survey| survey.len.max(survey.sum_end)).max().unwrap_or(0);
            at = piece.end;
            if is_equal(&surveys) {
                continue;
            }
            if end > 0 && surveys.iter().any(|survey| !survey.exists) {
                is_missing = true;
                // This repairs all of it.
                result += self.repair(replica.clone(), ino, ByteRange::new(0, 1)).await?;
                continue;
            }
            for range in differences(&surveys, piece) {
                result += self.repair(replica.clone(), ino, range).await?;
            }
        }
        Ok((result, is_missing))
    }

    /// Surveys all replicas while the file is locked against changes.
    async fn surveys(
        self: &Arc<Self>,
        replica: &Replica,
        ino: InodeId,
        piece: ByteRange,
    ) -> Result<Vec<ReplicaState>> {
        let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Shared).await;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        if replica.is_stepping_down(group.since) {
            return Err(version_fence::version_mismatch(replica.group));
        }
        let op = StorageOp::Survey { range: piece, unit: UNIT_BYTES, read: false };
        let own = execute(&replica.store, ino, op.clone(), None).await;
        let ask = |target| self.call_member(target, (ino, op.clone()), member_request(group), None);
        let asked = rt::join_all(others(group, replica.target).map(ask).collect()).await;
        let mut surveys = Vec::new();
        for reply in std::iter::once(own.map_err(|error| replica.failed(&error))).chain(asked) {
            match reply? {
                StorageReply::Survey(survey) => surveys.push(survey),
                other => return Err(unexpected_reply(&other)),
            }
        }
        Ok(surveys)
    }
}

fn others(group: &Group, own: TargetId) -> impl Iterator<Item = TargetId> {
    let good = group
        .members_with_states()
        .filter(move |(target, state)| *target != own && *state == MemberState::InSync);
    good.map(|(target, _)| target)
}

fn member_request(group: &Group) -> GroupContext {
    let part = GroupRole::Member { sequence: 0, committed: 0 };
    GroupContext { group: group.id, version: group.since, role: part }
}

fn unexpected_reply(reply: &StorageReply) -> Error {
    Error::new(Errno::EPROTO, format!("unexpected reply type from a member: {reply:?}"))
        .hint("install the same version of weft on all machines")
}

/// Whether replicas are equal.
fn is_equal(surveys: &[ReplicaState]) -> bool {
    let Some((first, rest)) = surveys.split_first() else { return true };
    let has_expected_len =
        |survey: &ReplicaState| survey.sum_end <= survey.len.next_multiple_of(types::BLOCK_SIZE as u64);
    // An absent file equals an empty one.
    has_expected_len(first)
        && rest
            .iter()
            .all(|survey| has_expected_len(survey) && (first.len, &first.sums) == (survey.len, &survey.sums))
}

/// Returns the units in which replicas differ; where only the lengths differ, the unit in which the
/// shortest ends.
fn differences(surveys: &[ReplicaState], piece: ByteRange) -> Vec<ByteRange> {
    let sum = |survey: &ReplicaState, at: usize| survey.sums.get(at).copied().unwrap_or(0);
    let units = surveys.iter().map(|survey| survey.sums.len()).max().unwrap_or(0);
    let differs = |at: &usize| surveys.windows(2).any(|pair| sum(&pair[0], *at) != sum(&pair[1], *at));
    let mut starts: BTreeSet<u64> =
        (0..units).filter(differs).map(|at| piece.start + at as u64 * UNIT_BYTES).collect();
    let shortest = surveys.iter().map(|survey| survey.len).min().unwrap_or(0);
    let is_cut = surveys.iter().any(|survey| {
        survey.len != shortest || survey.sum_end > survey.len.next_multiple_of(types::BLOCK_SIZE as u64)
    });
    if is_cut && piece.start <= shortest && shortest <= piece.end {
        starts.insert(shortest.saturating_sub(1) / UNIT_BYTES * UNIT_BYTES);
        starts.insert(shortest / UNIT_BYTES * UNIT_BYTES);
    }
    starts.into_iter().map(|start| ByteRange::at(start, UNIT_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(len: u64, sums: &[u32]) -> ReplicaState {
        ReplicaState { exists: true, len, sum_end: len, sums: sums.into(), ..ReplicaState::default() }
    }

    #[test]
    fn differences_are_listed_by_units() {
        let mib = UNIT_BYTES;
        let (one, two) = (survey(3 * mib, &[1, 2, 3]), survey(3 * mib, &[1, 9, 3]));
        assert!(is_equal(&[one.clone(), one.clone()]));
        assert!(!is_equal(&[one.clone(), two.clone()]));
        let piece = ByteRange::new(0, PIECE_BYTES);
        assert_eq!(differences(&[one.clone(), two], piece), [ByteRange::at(mib, mib)]);
        let short = survey(mib, &[1]);
        assert_eq!(
            differences(&[one, short], piece),
            [ByteRange::at(0, mib), ByteRange::at(mib, mib), ByteRange::at(2 * mib, mib)]
        );
        assert!(is_equal(&[ReplicaState::default(), survey(0, &[])]), "none is as good as an empty one");
    }
}
