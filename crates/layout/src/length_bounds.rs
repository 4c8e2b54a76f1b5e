//! Lower bounds of the lengths of chunk files.
//!
//! The metadata service records lower bounds of the lengths of a file's chunk files, in stripe
//! order. A chunk file that is absent, or shorter than its bound, is damage and not a hole. An
//! empty list means that no bounds are known.
//!
//! Invariants of a list: it is empty or has one entry for each stripe; at least one entry isn't 0;
//! no entry is larger than [`local_len`] of the file's size.

use crate::{file_end, local_len};
use types::Layout;

/// Raises the bounds to the found lengths, as far as the file's size allows. A list with another
/// number of stripes than the layout is ignored.
pub fn raised(layout: &Layout, known: &[u64], found: &[u64], size: u64) -> Vec<u64> {
    let count = layout.groups.len();
    let of = |lens: &[u64], stripe: usize| if lens.len() == count { lens[stripe] } else { 0 };
    let bound = |stripe| of(known, stripe).max(of(found, stripe)).min(local_len(layout, stripe, size));
    normalized((0..count).map(bound).collect())
}

/// The bounds after the file was cut to `size` bytes.
pub fn truncated(layout: &Layout, known: &[u64], size: u64) -> Vec<u64> {
    raised(layout, known, &[], size)
}

/// The bound of one stripe.
pub fn of_stripe(known: &[u64], stripe: usize) -> u64 {
    known.get(stripe).copied().unwrap_or(0)
}

/// The size of a file without absent chunk files that has exactly these bounds; `None` if there is
/// no such size.
pub fn dense_size(layout: &Layout, known: &[u64]) -> Option<u64> {
    if known.len() != layout.groups.len() {
        return None;
    }
    let end = file_end(layout, known);
    known.iter().enumerate().all(|(stripe, len)| *len == local_len(layout, stripe, end)).then_some(end)
}

/// The bounds of a file whose chunk files all have their part of the first `end` bytes.
pub fn dense_bounds(layout: &Layout, end: u64) -> Vec<u64> {
    normalized((0..layout.groups.len()).map(|stripe| local_len(layout, stripe, end)).collect())
}

fn normalized(known: Vec<u64>) -> Vec<u64> {
    if known.iter().all(|len| *len == 0) { Vec::new() } else { known }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::{GroupId, PoolId, Scheme};

    const CHUNK: u64 = 64 * 1024;
    /// Enough for four rows of the widest layout.
    const MAX_SIZE: u64 = 5 * 4 * CHUNK;

    fn layout(count: usize) -> Layout {
        let groups = (1..=count as u32).map(GroupId).collect();
        let (pool, scheme) = (PoolId(1), Scheme::Single);
        Layout { chunk_size: CHUNK as u32, pool, scheme, groups, slots: Vec::new() }
    }

    /// Changes of a file and its chunk files.
    #[derive(Clone, Debug)]
    enum Event {
        Write {
            offset: u64,
            len: u64,
        },
        Truncate {
            size: u64,
        },
        Punch,
        /// The lengths of some stripes' chunk files are recorded.
        Report {
            asked: u8,
        },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let write = (0..MAX_SIZE, 1..2 * CHUNK).prop_map(|(offset, len)| Event::Write { offset, len });
        let event = prop_oneof![
            4 => write,
            2 => (0..MAX_SIZE).prop_map(|size| Event::Truncate { size }),
            1 => Just(Event::Truncate { size: 0 }),
            1 => Just(Event::Punch),
            3 => any::<u8>().prop_map(|asked| Event::Report { asked }),
        ];
        proptest::collection::vec(event, 0..40)
    }

    proptest! {
        /// A bound that is too high would turn a hole into damage.
        #[test]
        fn a_bound_never_exceeds_its_chunk_file(count in 1usize..6, events in events()) {
            let layout = layout(count);
            let (mut size, mut lens, mut known) = (0u64, vec![0u64; count], Vec::new());
            for event in events {
                match event {
                    Event::Write { offset, len } => {
                        for piece in crate::pieces(&layout, types::ByteRange::at(offset, len)) {
                            let end = piece.local + piece.file.len();
                            lens[piece.stripe] = lens[piece.stripe].max(end);
                        }
                        size = size.max(offset + len);
                    }
                    Event::Truncate { size: to } => {
                        size = to;
                        known = truncated(&layout, &known, size);
                        let cut = |(stripe, len): (usize, &mut u64)| {
                            *len = (*len).min(local_len(&layout, stripe, size));
                        };
                        lens.iter_mut().enumerate().for_each(cut);
                    }
                    Event::Punch => {}
                    Event::Report { asked } => {
                        let found: Vec<u64> = lens.iter().enumerate()
                            .map(|(stripe, len)| if asked >> stripe & 1 == 1 { *len } else { 0 })
                            .collect();
                        known = raised(&layout, &known, &found, size);
                        for (stripe, len) in found.iter().enumerate() {
                            prop_assert!(of_stripe(&known, stripe) >= *len);
                        }
                    }
                }
                for (stripe, len) in lens.iter().enumerate() {
                    prop_assert!(of_stripe(&known, stripe) <= *len, "{known:?} of {lens:?}");
                }
                prop_assert!(known.is_empty() || known.len() == count && known.iter().any(|len| *len > 0));
            }
        }

        #[test]
        fn dense_bounds_determine_the_size(count in 1usize..6, end in 0..MAX_SIZE, holes in any::<u8>()) {
            let layout = layout(count);
            prop_assert_eq!(dense_size(&layout, &dense_bounds(&layout, end)), (end > 0).then_some(end));
            // For any bounds: if there is such an end, it determines all of them.
            let mut known = vec![0; count];
            for (stripe, len) in known.iter_mut().enumerate() {
                *len = if holes >> stripe & 1 == 1 { local_len(&layout, stripe, end) } else { 0 };
            }
            if let Some(found) = dense_size(&layout, &known) {
                prop_assert_eq!(dense_bounds(&layout, found), normalized(known));
            }
        }

        #[test]
        fn raising_and_truncating_bounds_commute(
            count in 1usize..6,
            one in proptest::collection::vec(0..MAX_SIZE, 5),
            two in proptest::collection::vec(0..MAX_SIZE, 5),
            size in 0..MAX_SIZE,
        ) {
            let (layout, one, two) = (layout(count), &one[..count], &two[..count]);
            let both = raised(&layout, &raised(&layout, &[], one, size), two, size);
            prop_assert_eq!(&both, &raised(&layout, &raised(&layout, &[], two, size), one, size));
            prop_assert_eq!(&both, &raised(&layout, &both, one, size));
            prop_assert_eq!(&both, &truncated(&layout, &both, size));
            prop_assert_eq!(truncated(&layout, &both, 0), Vec::<u64>::new());
        }
    }

    #[test]
    fn lengths_of_another_layout_are_ignored() {
        let layout = layout(2);
        assert_eq!(raised(&layout, &[], &[5], 100), Vec::<u64>::new());
        assert_eq!(raised(&layout, &[7, 0], &[9, 9, 9], 100), [7, 0]);
        assert_eq!(dense_size(&layout, &[]), None);
        assert_eq!(of_stripe(&[], 3), 0);
    }
}
