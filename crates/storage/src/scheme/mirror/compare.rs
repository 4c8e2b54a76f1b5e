//! Compares replicas without reading their content: existence, lengths, and checksums of their
//! files.

use super::repair::repair;
use crate::group::member_calls::{others_in_sync, read_context, unexpected_reply};
use crate::group::range_locks::{LockMode, WHOLE_FILE};
use crate::group::replica::Replica;
use crate::group::{GroupService, version_fence};
use crate::service::execute;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, Result};
use wire::{RepairResult, ReplicaState, StorageOp, StorageReply};

/// Bytes that one sum covers; where sums differ, blocks are compared one by one.
const UNIT_BYTES: u64 = 1 << 20;

/// Bytes that are compared at a time. The file is locked against changes for one round trip.
const PIECE_BYTES: u64 = 256 << 20;

/// Compares a file on all in-sync members and repairs differences. Also returns whether one of them
/// lacked the file.
pub(super) async fn compare(
    groups: &Arc<GroupService>,
    replica: &Arc<Replica>,
    ino: ChunkFileId,
) -> Result<(RepairResult, bool)> {
    let (mut result, mut is_missing, mut at, mut end) = (RepairResult::default(), false, 0, 1);
    while at < end {
        let piece = ByteRange::at(at, PIECE_BYTES);
        let surveys = surveys(groups, replica, ino, piece).await?;
        end = surveys.iter().map(|survey| survey.len.max(survey.sum_end)).max().unwrap_or(0);
        at = piece.end;
        if is_equal(&surveys) {
            continue;
        }
        if end > 0 && surveys.iter().any(|survey| !survey.exists) {
            is_missing = true;
            // This repairs all of it.
            result += repair(groups, replica.clone(), ino, ByteRange::new(0, 1)).await?;
            continue;
        }
        for range in differences(&surveys, piece) {
            result += repair(groups, replica.clone(), ino, range).await?;
        }
    }
    Ok((result, is_missing))
}

/// Surveys all replicas while the file is locked against changes.
async fn surveys(
    groups: &Arc<GroupService>,
    replica: &Replica,
    ino: ChunkFileId,
    piece: ByteRange,
) -> Result<Vec<ReplicaState>> {
    let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Shared).await;
    let view = groups.primary_view(replica)?;
    let group = view.group()?;
    if replica.is_stepping_down(group.since) {
        return Err(version_fence::version_mismatch(replica.group));
    }
    let op = StorageOp::Survey { range: piece, unit: UNIT_BYTES, read: false };
    let own = execute(&replica.store, ino, op.clone(), None).await;
    let ask = |target| groups.call_member(target, (ino, op.clone()), read_context(group), None);
    let asked = rt::join_all(others_in_sync(group, replica.target).map(ask).collect()).await;
    let mut surveys = Vec::new();
    for reply in std::iter::once(own.map_err(|error| replica.failed(&error))).chain(asked) {
        match reply? {
            StorageReply::Survey(survey) => surveys.push(survey),
            other => return Err(unexpected_reply(&other)),
        }
    }
    Ok(surveys)
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
