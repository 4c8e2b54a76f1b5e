//! Choice of a new group for one stripe of a file.

use crate::choose::{Candidate, Candidates, WeightedCandidates};
use crate::random::{SplitMix64, mix};
use types::{
    ChunkSlot, ClusterMap, Errno, Error, GroupId, InodeId, Layout, PoolId, Result, Scheme, StripePattern,
};

/// Largest number of chunk files of one inode on a target. More are needed only if most targets of
/// a pool have been drained one after another.
pub const MAX_SLOTS: u8 = 16;

/// Chooses another group for a stripe, and the slot of its chunk file there. The group has this
/// pool and scheme, is a candidate for new files, and has no stripe of the file yet; it is drawn in
/// proportion to free space. If there is none, a group with the fewest stripes of the file is
/// drawn.
///
/// `is_taken`: chunk files that exist for another reason.
///
/// # Errors
/// As [`crate::choose`]; `ENOSPC` if all slots of all groups are taken.
pub fn choose_for_stripe(
    map: &ClusterMap,
    layout: &Layout,
    (stripe, kind): (usize, (PoolId, Scheme)),
    is_taken: impl Fn(GroupId, ChunkSlot) -> bool,
    (ino, seed): (InodeId, u64),
) -> Result<(GroupId, ChunkSlot)> {
    let pattern = StripePattern { pool: kind.0, scheme: kind.1, ..StripePattern::default() };
    let mut candidates = Candidates::find(map, &pattern);
    let stripes_in = |group: GroupId| layout.groups.iter().filter(|&&other| other == group).count();
    let free_slot = |group: GroupId| {
        (0..MAX_SLOTS)
            .map(ChunkSlot)
            .find(|&slot| layout.stripe_of_slot(group, slot).is_none() && !is_taken(group, slot))
    };
    let usable =
        |candidate: &Candidate| candidate.id != layout.groups[stripe] && free_slot(candidate.id).is_some();
    candidates.normal.retain(usable);
    candidates.low.retain(usable);
    if candidates.normal.is_empty() && candidates.low.is_empty() {
        return Err(no_group_left(&candidates, map, &pattern));
    }
    let better = if candidates.normal.is_empty() { candidates.low } else { candidates.normal };
    let fewest = better.iter().map(|candidate| stripes_in(candidate.id)).min().unwrap_or(0);
    let best: Vec<Candidate> =
        better.into_iter().filter(|candidate| stripes_in(candidate.id) == fewest).collect();
    let mut random = SplitMix64::new(seed ^ mix(ino.0));
    let chosen = WeightedCandidates::new(best).weighted(1, &mut random);
    let place = chosen.first().and_then(|&group| Some((group, free_slot(group)?)));
    place.ok_or_else(|| no_group_left(&Candidates::default(), map, &pattern))
}

/// The error if a stripe can't move.
fn no_group_left(left: &Candidates, map: &ClusterMap, pattern: &StripePattern) -> Error {
    let of_new_files = Candidates::find(map, pattern);
    if of_new_files.normal.is_empty() && of_new_files.low.is_empty() {
        return left.refusal(map, pattern);
    }
    Error::new(Errno::ENOSPC, "no other group of the pool can take another stripe of this file")
        .hint("add a target to the pool (weft target add PATH --pool NAME)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::tests::map;
    use types::{CapacityClass, TargetState};

    fn layout(groups: &[u32]) -> Layout {
        let groups = groups.iter().map(|&id| GroupId(id)).collect();
        Layout { chunk_size: 65536, pool: PoolId(1), scheme: Scheme::Single, groups, slots: vec![] }
    }

    fn place(map: &ClusterMap, layout: &Layout, stripe: usize, seed: u64) -> Result<(GroupId, ChunkSlot)> {
        choose_for_stripe(
            map,
            layout,
            (stripe, (PoolId(1), Scheme::Single)),
            |_, _| false,
            (InodeId(9), seed),
        )
    }

    #[test]
    fn a_group_that_the_file_is_not_on_comes_first() {
        let mut map = map(5);
        let on = layout(&[map.groups[0].id.0, map.groups[1].id.0, map.groups[2].id.0]);
        map.targets[1].drain = true;
        for seed in 0..50 {
            let (group, slot) = place(&map, &on, 1, seed).unwrap();
            assert!(map.groups[3..].iter().any(|g| g.id == group) && slot == ChunkSlot(0));
        }
        // A target that is low on space is used only if there is no other.
        map.targets[3].class = CapacityClass::Low;
        assert!((0..50).all(|seed| place(&map, &on, 1, seed).unwrap().0 == map.groups[4].id));
        map.targets[4].state = TargetState::Offline;
        let (group, slot) = place(&map, &on, 1, 1).unwrap();
        assert!(
            [0, 2].iter().any(|&i| map.groups[i].id == group) && slot == ChunkSlot(1),
            "a second chunk file there"
        );
    }

    #[test]
    fn slots_are_unique_and_limited() {
        let mut map = map(2);
        map.targets[0].drain = true;
        let mut moved = layout(&[map.groups[0].id.0]);
        moved.groups = vec![map.groups[0].id; 20];
        moved.slots = (0..20).map(ChunkSlot).collect();
        for stripe in 0..MAX_SLOTS as usize {
            let (group, slot) = place(&map, &moved, stripe, 1).unwrap();
            assert_eq!((group, slot), (map.groups[1].id, ChunkSlot(stripe as u8)));
            moved = moved.with_moved_stripe(stripe, group, slot);
        }
        let refused = place(&map, &moved, 19, 1).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOSPC);
        let doomed = |group, slot| group == map.groups[1].id && slot == ChunkSlot(0);
        let first = choose_for_stripe(
            &map,
            &layout(&[map.groups[0].id.0]),
            (0, (PoolId(1), Scheme::Single)),
            doomed,
            (InodeId(9), 1),
        )
        .unwrap();
        assert_eq!(first, (map.groups[1].id, ChunkSlot(1)));
    }

    #[test]
    fn without_any_target_for_new_files_the_reason_is_that_of_new_files() {
        let mut map = map(2);
        map.targets.iter_mut().for_each(|t| t.drain = true);
        assert_eq!(place(&map, &layout(&[map.groups[0].id.0]), 0, 1).unwrap_err().errno, Errno::ENODEV);
    }
}
