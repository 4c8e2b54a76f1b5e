//! Plans the repair of one chunk file's replicas: a pure function of their state.
//!
//! Bytes that match their checksums are intact. If several replicas are intact and differ, the
//! majority wins. With equal votes the first one in the group wins, which is its primary's: nothing
//! else distinguishes them. A replica that has lost its end is shorter than another one, so the
//! longest that is not longer than the file is the source.

use std::collections::BTreeMap;
use types::{ByteRange, TargetId};

/// Bytes covered by one checksum.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// State of a replica of a chunk file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReplicaState {
    /// 0 if it doesn't exist.
    pub(crate) len: u64,
    /// Checksum of each [`PIECE_BYTES`]; `None` for a piece that can't be read.
    pub(crate) sums: Vec<Option<u32>>,
    /// Blocks that can't be read.
    pub(crate) damaged: Vec<ByteRange>,
}

/// One step of a repair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Copy this range, and the length, from the replica on `from` to the one on `to`.
    Copy { from: TargetId, to: TargetId, range: ByteRange },
    /// No replica has these bytes.
    GiveUp { range: ByteRange },
}

/// Bounds of the length of a chunk file, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    /// At most.
    pub(crate) expected: u64,
    /// Exact length, because the file has no holes or by its known length. 0 if the chunk file may
    /// be absent.
    pub(crate) needed: u64,
    /// At least, by its known length.
    pub(crate) known: u64,
}

/// Returns the next steps; none when the replicas are intact. Call it again when they are done:
/// differences within pieces that no replica has as a whole appear only then.
pub(crate) fn steps(replicas: &[(TargetId, ReplicaState)], lengths: Lengths) -> Vec<Step> {
    let Lengths { expected, needed, known } = lengths;
    let Some((first, reference)) = replicas.first() else { return Vec::new() };
    let longest = replicas.iter().map(|(_, replica)| replica.len).filter(|len| *len <= expected).max();
    let len = longest.unwrap_or(reference.len);
    if len == 0 && replicas.iter().all(|(_, replica)| replica.len == 0) {
        return match needed {
            0 => Vec::new(),
            needed => vec![Step::GiveUp { range: ByteRange::new(0, needed) }],
        };
    }
    let source =
        replicas.iter().find(|(_, replica)| replica.len == len).map_or(*first, |(target, _)| *target);
    let others = replicas.iter().filter(|(_, replica)| replica.len != len);
    let block = types::BLOCK_SIZE as u64;
    let missing = |replica: &ReplicaState| ByteRange::new(replica.len.min(len) / block * block, len);
    let lengths: Vec<Step> =
        others.map(|(to, replica)| Step::Copy { from: source, to: *to, range: missing(replica) }).collect();
    if !lengths.is_empty() {
        return lengths;
    }
    let ends = replicas.iter().flat_map(|(_, replica)| replica.damaged.last()).map(|range| range.end);
    let end = ends.max().unwrap_or(0).max(len);
    let mut steps = Vec::new();
    let mut at = 0;
    while at < end {
        let piece = ByteRange::new(at, (at + PIECE_BYTES).min(end));
        at = piece.end;
        in_piece(replicas, piece, &mut steps);
    }
    // No replica has it, nor checksums that show it.
    if end < known {
        steps.push(Step::GiveUp { range: ByteRange::new(end, known) });
    }
    steps
}

fn in_piece(replicas: &[(TargetId, ReplicaState)], piece: ByteRange, steps: &mut Vec<Step>) {
    let sum =
        |replica: &ReplicaState| replica.sums.get((piece.start / PIECE_BYTES) as usize).copied().flatten();
    let mut votes: BTreeMap<u32, usize> = BTreeMap::new();
    replicas
        .iter()
        .filter_map(|(_, replica)| sum(replica))
        .for_each(|sum| *votes.entry(sum).or_default() += 1);
    let Some(most) = votes.values().max() else { return by_blocks(replicas, piece, steps) };
    let winner = replicas.iter().find(|(_, replica)| sum(replica).is_some_and(|sum| votes[&sum] == *most));
    let Some((from, winner)) = winner else { return };
    for (to, replica) in replicas.iter().filter(|(_, copy)| sum(copy) != sum(winner)) {
        match sum(replica) {
            Some(_) => steps.push(Step::Copy { from: *from, to: *to, range: piece }),
            None => {
                steps.extend(within(replica, piece).map(|range| Step::Copy { from: *from, to: *to, range }))
            }
        }
    }
}

/// Plans block by block: no replica has all of the piece.
fn by_blocks(replicas: &[(TargetId, ReplicaState)], piece: ByteRange, steps: &mut Vec<Step>) {
    let block_bytes = types::BLOCK_SIZE as u64;
    let mut at = piece.start;
    while at < piece.end {
        let block = ByteRange::new(at, (at + block_bytes).min(piece.end));
        at = block.end;
        let has = |replica: &ReplicaState| !replica.damaged.iter().any(|range| range.overlaps(block));
        let damaged = replicas.iter().filter(|(_, replica)| !has(replica)).map(|(target, _)| *target);
        match replicas.iter().find(|(_, replica)| has(replica)) {
            Some((from, _)) => {
                damaged.for_each(|to| add(steps, Step::Copy { from: *from, to, range: block }))
            }
            None => add(steps, Step::GiveUp { range: block }),
        }
    }
}

fn within(replica: &ReplicaState, piece: ByteRange) -> impl Iterator<Item = ByteRange> {
    replica.damaged.iter().map(move |range| range.intersect(piece)).filter(|range| !range.is_empty())
}

/// Adds a step, or extends the one before it.
fn add(steps: &mut Vec<Step>, step: Step) {
    let (last, range) = match (steps.last_mut(), &step) {
        (Some(Step::GiveUp { range: last }), Step::GiveUp { range }) => (last, range),
        (Some(Step::Copy { from: last_from, to: last_to, range: last }), Step::Copy { from, to, range })
            if (&*last_from, &*last_to) == (from, to) =>
        {
            (last, range)
        }
        _ => return steps.push(step),
    };
    match last.end == range.start {
        true => last.end = range.end,
        false => steps.push(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = types::BLOCK_SIZE as u64;

    /// Content of each block of a replica; `None`: it doesn't match its checksum.
    type Blocks = Vec<Option<u8>>;

    fn looked(blocks: &Blocks) -> ReplicaState {
        let per_piece = (PIECE_BYTES / BLOCK) as usize;
        let sum = |piece: &[Option<u8>]| {
            let bytes: Option<Vec<u8>> = piece.iter().copied().collect();
            bytes.map(|bytes| types::crc32c(&bytes))
        };
        let damaged = blocks.iter().enumerate().filter(|(_, block)| block.is_none());
        ReplicaState {
            len: blocks.len() as u64 * BLOCK,
            sums: blocks.chunks(per_piece).map(sum).collect(),
            damaged: damaged.map(|(at, _)| ByteRange::at(at as u64 * BLOCK, BLOCK)).collect(),
        }
    }

    /// Executes steps until only losses are left; returns the replicas and the losses.
    fn settle(mut replicas: Vec<Blocks>) -> (Vec<Blocks>, Vec<ByteRange>) {
        let expected = replicas.iter().map(Vec::len).max().unwrap_or(0) as u64 * BLOCK;
        for _ in 0..6 {
            let seen: Vec<(TargetId, ReplicaState)> =
                replicas.iter().enumerate().map(|(at, copy)| (TargetId(at as u32), looked(copy))).collect();
            let steps = steps(&seen, Lengths { expected, needed: expected, known: 0 });
            let mut lost = Vec::new();
            let mut has_changed = false;
            for step in steps {
                match step {
                    Step::GiveUp { range } => lost.push(range),
                    Step::Copy { from, to, range } => {
                        has_changed = true;
                        let from = replicas[from.0 as usize].clone();
                        let to = &mut replicas[to.0 as usize];
                        let had = to.len();
                        to.resize(from.len(), Some(0));
                        let blocks = |range: ByteRange| {
                            (range.start / BLOCK) as usize..range.end.div_ceil(BLOCK) as usize
                        };
                        for at in blocks(range).chain(had..from.len()).filter(|at| *at < from.len()) {
                            to[at] = from[at];
                        }
                    }
                }
            }
            if !has_changed {
                return (replicas, lost);
            }
        }
        panic!("it doesn't come to an end: {replicas:?}");
    }

    /// A few blocks at the borders of pieces; the others are all equal.
    fn spread(some: &[Option<u8>]) -> Blocks {
        let per_piece = (PIECE_BYTES / BLOCK) as usize;
        let mut blocks = vec![Some(1); per_piece + 3];
        for (at, block) in [0, 1, per_piece - 1, per_piece, per_piece + 1].iter().zip(some) {
            blocks[*at] = *block;
        }
        blocks
    }

    #[test]
    fn no_content_of_an_intact_replica_is_lost() {
        // Every combination of damage to two blocks in each of two pieces, on two and on three
        // replicas.
        for replicas in [2usize, 3] {
            for damage in 0..1u32 << (4 * replicas) {
                let copy = |n: usize| {
                    let is_damaged = |at: usize| damage >> (n * 4 + at) & 1 == 1;
                    let blocks: Vec<Option<u8>> =
                        (0..4).map(|at| (!is_damaged(at)).then_some(at as u8 + 10)).collect();
                    spread(&[blocks[0], blocks[1], Some(7), blocks[2], blocks[3]])
                };
                let before: Vec<Blocks> = (0..replicas).map(copy).collect();
                let (after, lost) = settle(before.clone());
                for at in 0..before[0].len() {
                    let range = ByteRange::at(at as u64 * BLOCK, BLOCK);
                    let is_lost = lost.iter().any(|lost| lost.overlaps(range));
                    let had = before.iter().find_map(|copy| copy[at]);
                    assert_eq!(is_lost, had.is_none(), "block {at} of {damage:b}");
                    for copy in &after {
                        assert_eq!(copy[at], had, "block {at} of {damage:b}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_truncated_or_missing_replica_is_restored() {
        for cut in [0, 1, 200, 257] {
            for which in [0, 1] {
                let mut replicas = vec![spread(&[Some(3)]), spread(&[Some(3)])];
                replicas[which].truncate(cut);
                let (after, lost) = settle(replicas);
                assert!(after.iter().all(|copy| *copy == spread(&[Some(3)])) && lost.is_empty(), "{cut}");
            }
        }
        assert_eq!(settle(vec![vec![], vec![]]).1, []);
    }

    #[test]
    fn the_majority_of_intact_replicas_wins_then_the_first() {
        let copy = |block| spread(&[Some(block)]);
        assert!(settle(vec![copy(1), copy(2)]).0.iter().all(|after| *after == copy(1)));
        assert!(settle(vec![copy(1), copy(2), copy(2)]).0.iter().all(|after| *after == copy(2)));
        assert!(settle(vec![copy(1), copy(2), copy(3)]).0.iter().all(|after| *after == copy(1)));
    }

    #[test]
    fn required_content_on_no_replica_is_lost() {
        let none = [(TargetId(1), ReplicaState::default())];
        let lengths = |expected, needed, known| Lengths { expected, needed, known };
        assert_eq!(steps(&none, lengths(9000, 9000, 0)), [Step::GiveUp { range: ByteRange::new(0, 9000) }]);
        assert_eq!(steps(&none, lengths(9000, 0, 0)), [], "it may be a hole");
        // A chunk file that was truncated outside weft: its checksums show that there was more.
        let cut = ReplicaState { len: 4096, sums: vec![Some(1)], damaged: vec![ByteRange::new(4096, 8192)] };
        let cut = ReplicaState { sums: vec![None], ..cut };
        assert_eq!(
            steps(&[(TargetId(1), cut.clone())], lengths(8192, 8192, 8192)),
            [Step::GiveUp { range: ByteRange::new(4096, 8192) }]
        );
        // Truncated with its checksums: only its known length shows it.
        let cut = ReplicaState { damaged: Vec::new(), sums: vec![Some(1)], ..cut };
        assert_eq!(
            steps(&[(TargetId(1), cut.clone())], lengths(9000, 7000, 7000)),
            [Step::GiveUp { range: ByteRange::new(4096, 7000) }]
        );
        assert_eq!(steps(&[(TargetId(1), cut)], lengths(9000, 4096, 4096)), []);
    }
}
