//! Decides which replica of a chunk file is right. Pure.
//!
//! Rules, in this order:
//! 1. A block that doesn't match its checksum, or can't be read, is wrong.
//! 2. An existing chunk file is right where another replica has none: a wrongly deleted file is
//!    lost for good, a wrongly kept one isn't. (`weft fsck` finds chunk files that belong to no
//!    file, because it asks the metadata.)
//! 3. Where replicas match their checksums but differ, the content of a majority is right.
//! 4. Otherwise a replica that another program has modified is wrong. weft's own changes set mtime
//!    and ctime together; a program that restores an older file, moves it or sets its time leaves
//!    ctime later than mtime.
//! 5. Otherwise the outcome is unclear, and nothing is changed. `weft fsck` names the file, and an
//!    administrator decides.

use types::{BLOCK_SIZE, ByteRange, TargetId};
use wire::ReplicaState;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// By how much ctime may exceed mtime without another program's involvement, nanoseconds.
const EXTERNAL_CHANGE_NS: i128 = 2_000_000_000;

/// A replica, as its member surveys it: sums are of single blocks.
#[derive(Clone, Debug)]
pub(crate) struct SurveyedReplica {
    pub(crate) target: TargetId,
    pub(crate) survey: ReplicaState,
}

/// The repairs of a piece of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RepairPlan {
    /// Members, by index, that have no file where others have one.
    pub(crate) missing: Vec<usize>,
    /// Ranges of whole blocks: the member to repair, and its source.
    pub(crate) fixes: Vec<BlockRepair>,
    /// The right length, and the members with another one.
    pub(crate) len: Option<u64>,
    pub(crate) resized: Vec<usize>,
    /// Ranges of which no intact replica is left.
    pub(crate) lost: Vec<ByteRange>,
    /// Ranges whose right content is unclear. A length counts as one.
    pub(crate) unclear: Vec<ByteRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRepair {
    pub(crate) member: usize,
    pub(crate) range: ByteRange,
    pub(crate) from: usize,
    /// Both match their checksums.
    pub(crate) differs: bool,
}

impl RepairPlan {
    /// Whether a member's replica changes.
    pub(crate) fn changes(&self, member: usize) -> bool {
        self.missing.contains(&member)
            || self.resized.contains(&member)
            || self.fixes.iter().any(|fix| fix.member == member)
    }

    /// Whether there is nothing to repair or report.
    pub(crate) fn is_empty(&self) -> bool {
        *self == RepairPlan { len: self.len, ..RepairPlan::default() }
    }
}

impl SurveyedReplica {
    fn is_damaged(&self, block: ByteRange) -> bool {
        self.survey.damaged.iter().any(|range| range.overlaps(block))
    }

    fn sum(&self, index: usize) -> u32 {
        self.survey.sums.get(index).copied().unwrap_or(0)
    }

    /// Whether another program has modified it.
    fn is_externally_modified(&self) -> bool {
        let ns = |time: types::Timestamp| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
        ns(self.survey.ctime) - ns(self.survey.mtime) > EXTERNAL_CHANGE_NS
    }

    /// Whether nothing indicates a wrong length.
    fn has_plausible_len(&self) -> bool {
        let survey = &self.survey;
        let last = ByteRange::new(survey.len.saturating_sub(1) / BLOCK * BLOCK, survey.len);
        survey.sum_end <= survey.len.next_multiple_of(BLOCK) && !(survey.len > 0 && self.is_damaged(last))
    }
}

/// Compares replicas in a piece of whole blocks.
pub(crate) fn plan(replicas: &[SurveyedReplica], piece: ByteRange) -> RepairPlan {
    let mut plan = RepairPlan::default();
    let existing: Vec<usize> = (0..replicas.len()).filter(|at| replicas[*at].survey.exists).collect();
    if existing.is_empty() {
        return plan;
    }
    // An empty file equals an absent one.
    if existing.iter().any(|at| replicas[*at].survey.len > 0) {
        plan.missing = (0..replicas.len()).filter(|at| !existing.contains(at)).collect();
    }
    // The end of the shortest replica shows whether something was cut off.
    let shortest = existing.iter().map(|at| replicas[*at].survey.len).min().unwrap_or(0);
    if piece.overlaps(ByteRange::at(shortest.saturating_sub(1), 1)) {
        lengths(replicas, &existing, &mut plan);
    }
    let longest = existing.iter().map(|at| replicas[*at].survey.len.max(replicas[*at].survey.sum_end)).max();
    let end = piece.end.min(longest.unwrap_or(0).next_multiple_of(BLOCK));
    let blocks = (piece.start..end).step_by(BLOCK_SIZE).enumerate();
    for (index, at) in blocks {
        block(replicas, &existing, (index, ByteRange::at(at, BLOCK)), &mut plan);
    }
    plan
}

fn lengths(replicas: &[SurveyedReplica], existing: &[usize], plan: &mut RepairPlan) {
    let plausible: Vec<usize> =
        existing.iter().copied().filter(|at| replicas[*at].has_plausible_len()).collect();
    let len = |at: &usize| replicas[*at].survey.len;
    let source = match plausible.split_first() {
        // The blocks are reported as lost; their remains stay.
        None => existing.iter().copied().max_by_key(len),
        Some((first, rest)) if rest.iter().all(|at| len(at) == len(first)) => Some(*first),
        Some(_) => choose(replicas, &plausible, |at| len(&at)),
    };
    let Some(source) = source else {
        let shortest = plausible.iter().map(len).min().unwrap_or(0);
        let longest = plausible.iter().map(len).max().unwrap_or(0);
        plan.unclear.push(ByteRange::new(shortest, longest));
        return;
    };
    plan.len = Some(len(&source));
    plan.resized = existing.iter().copied().filter(|at| len(at) != len(&source)).collect();
}

fn block(
    replicas: &[SurveyedReplica],
    existing: &[usize],
    (index, range): (usize, ByteRange),
    plan: &mut RepairPlan,
) {
    let intact: Vec<usize> = existing.iter().copied().filter(|at| !replicas[*at].is_damaged(range)).collect();
    let sum = |at: usize| replicas[at].sum(index);
    let Some((first, rest)) = intact.split_first() else {
        return join(&mut plan.lost, range);
    };
    let source = match rest.iter().all(|at| sum(*at) == sum(*first)) {
        true => Some(*first),
        false => choose(replicas, &intact, sum),
    };
    let Some(source) = source else { return join(&mut plan.unclear, range) };
    for &member in existing.iter().filter(|at| **at != source) {
        let is_intact = intact.contains(&member);
        if is_intact && sum(member) == sum(source) {
            continue;
        }
        let last = plan.fixes.iter_mut().rev().find(|fix| fix.member == member);
        match last {
            Some(fix) if (fix.range.end, fix.from, fix.differs) == (range.start, source, is_intact) => {
                fix.range.end = range.end;
            }
            _ => plan.fixes.push(BlockRepair { member, range, from: source, differs: is_intact }),
        }
    }
}

/// Returns the right one of replicas that match their checksums but differ.
fn choose<V: PartialEq>(
    replicas: &[SurveyedReplica],
    plausible: &[usize],
    value: impl Fn(usize) -> V,
) -> Option<usize> {
    let votes = |at: usize| plausible.iter().filter(|other| value(**other) == value(at)).count();
    if let Some(most) = plausible.iter().find(|at| 2 * votes(**at) > replicas.len()) {
        return Some(*most);
    }
    let untouched: Vec<usize> =
        plausible.iter().copied().filter(|at| !replicas[*at].is_externally_modified()).collect();
    let (first, rest) = untouched.split_first()?;
    rest.iter().all(|at| value(*at) == value(*first)).then_some(*first)
}

/// Adds a range, merged with the last one if adjacent.
fn join(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Timestamp;

    const WHOLE: ByteRange = ByteRange::new(0, 1 << 20);

    fn copy(target: u32, sums: &[u32]) -> SurveyedReplica {
        let len = sums.len() as u64 * BLOCK;
        let (mtime, ctime) = (Timestamp::new(100, 0), Timestamp::new(100, 0));
        let survey = ReplicaState {
            exists: true,
            len,
            sum_end: len,
            mtime,
            ctime,
            sums: sums.into(),
            damaged: vec![],
        };
        SurveyedReplica { target: TargetId(target), survey }
    }

    fn damaged(mut copy: SurveyedReplica, blocks: &[u64]) -> SurveyedReplica {
        copy.survey.damaged = blocks.iter().map(|block| ByteRange::at(block * BLOCK, BLOCK)).collect();
        copy
    }

    fn touched(mut copy: SurveyedReplica) -> SurveyedReplica {
        copy.survey.ctime.secs += 10;
        copy
    }

    fn absent(target: u32) -> SurveyedReplica {
        SurveyedReplica { target: TargetId(target), survey: ReplicaState::default() }
    }

    fn fix(member: usize, from: usize, blocks: std::ops::Range<u64>, differs: bool) -> BlockRepair {
        BlockRepair { member, from, range: ByteRange::new(blocks.start * BLOCK, blocks.end * BLOCK), differs }
    }

    #[test]
    fn equal_copies_need_nothing() {
        assert!(plan(&[copy(1, &[1, 2]), copy(2, &[1, 2])], WHOLE).is_empty());
        assert!(plan(&[absent(1), absent(2)], WHOLE).is_empty());
    }

    #[test]
    fn each_damaged_block_comes_from_a_replica_that_has_it() {
        let replicas = [damaged(copy(1, &[1, 2, 3, 4]), &[1, 2]), damaged(copy(2, &[1, 2, 3, 4]), &[3])];
        let plan = plan(&replicas, WHOLE);
        assert_eq!(plan.fixes, [fix(0, 1, 1..3, false), fix(1, 0, 3..4, false)]);
        assert!(plan.lost.is_empty() && plan.unclear.is_empty() && plan.resized.is_empty());
    }

    #[test]
    fn a_block_that_is_damaged_on_all_replicas_is_lost() {
        let replicas = [damaged(copy(1, &[1, 2]), &[0]), damaged(copy(2, &[1, 2]), &[0])];
        let plan = plan(&replicas, WHOLE);
        assert_eq!((plan.lost, plan.fixes.len()), (vec![ByteRange::new(0, BLOCK)], 0));
    }

    #[test]
    fn an_existing_replica_wins_over_a_missing_one() {
        let plan = plan(&[absent(1), copy(2, &[1])], WHOLE);
        assert_eq!((plan.missing, plan.len), (vec![0], Some(BLOCK)));
    }

    #[test]
    fn a_copy_that_was_cut_is_shorter_than_its_checksums_say() {
        let mut cut = damaged(copy(1, &[1, 2, 3]), &[1, 2]);
        cut.survey.len = BLOCK;
        let plan = plan(&[cut, copy(2, &[1, 2, 3])], WHOLE);
        assert_eq!((plan.len, plan.resized), (Some(3 * BLOCK), vec![0]));
        assert_eq!(plan.fixes, [fix(0, 1, 1..3, false)]);
    }

    #[test]
    fn of_valid_differing_replicas_the_majority_or_the_unmodified_is_right() {
        let (new, old) = (copy(1, &[5, 6]), copy(2, &[5, 7]));
        let undecided = plan(&[new.clone(), old.clone()], WHOLE);
        assert_eq!(undecided.unclear, [ByteRange::new(BLOCK, 2 * BLOCK)]);
        assert!(undecided.fixes.is_empty());
        for places in [[touched(old.clone()), new.clone()], [new.clone(), touched(old.clone())]] {
            let plan = plan(&places, WHOLE);
            let wrong = places.iter().position(|copy| copy.target == TargetId(2)).unwrap();
            assert_eq!(plan.fixes, [fix(wrong, 1 - wrong, 1..2, true)]);
        }
        assert!(!plan(&[touched(new.clone()), touched(old.clone())], WHOLE).unclear.is_empty());
        let three = plan(&[old, new, copy(3, &[5, 6])], WHOLE);
        assert_eq!(three.fixes, [fix(0, 1, 1..2, true)]);
    }

    #[test]
    fn lengths_are_compared_where_the_shortest_ends() {
        let mut cut = damaged(copy(1, &[1, 2, 3]), &[2]);
        cut.survey.len -= 1;
        let replicas = [cut, copy(2, &[1, 2, 3])];
        assert!(plan(&replicas, ByteRange::new(0, BLOCK),).unclear.is_empty());
        assert_eq!(plan(&replicas, WHOLE).resized, [0]);
    }

    #[test]
    fn a_length_without_evidence_is_unclear() {
        let mut longer = copy(2, &[1]);
        longer.survey.len = 3 * BLOCK;
        let undecided = plan(&[copy(1, &[1]), longer.clone()], WHOLE);
        assert_eq!((undecided.len, undecided.unclear.len()), (None, 1));
        let decided = plan(&[copy(1, &[1]), touched(longer)], WHOLE);
        assert_eq!((decided.len, decided.resized), (Some(BLOCK), vec![1]));
    }
}
