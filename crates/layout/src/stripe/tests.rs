use super::*;
use proptest::prelude::*;
use types::{PoolId, Scheme};

fn layout(chunk_size: u32, count: usize) -> Layout {
    Layout {
        chunk_size,
        pool: PoolId(1),
        scheme: Scheme::Single,
        groups: (0..count).map(|i| GroupId(100 + i as u32)).collect(),
        slots: vec![],
    }
}

/// Location of every byte of a file of `size` bytes, by distributing the bytes one after another.
fn reference_locations(layout: &Layout, size: u64) -> Vec<(usize, u64)> {
    let mut lens = vec![0; layout.groups.len()];
    let mut stripe = 0;
    let mut left_in_chunk = layout.chunk_size;
    (0..size)
        .map(|_| {
            if left_in_chunk == 0 {
                stripe = (stripe + 1) % layout.groups.len();
                left_in_chunk = layout.chunk_size;
            }
            left_in_chunk -= 1;
            lens[stripe] += 1;
            (stripe, lens[stripe] - 1)
        })
        .collect()
}

const SIZE: u64 = 200;

fn any_layout() -> impl Strategy<Value = Layout> {
    (1u32..20, 1usize..7).prop_map(|(chunk_size, count)| layout(chunk_size, count))
}

fn any_range() -> impl Strategy<Value = ByteRange> {
    (0..=SIZE, 0..=SIZE).prop_map(|(a, b)| ByteRange::new(a.min(b), a.max(b)))
}

proptest! {
    #[test]
    fn locate_and_its_inverse_match_the_reference(layout in any_layout()) {
        for (offset, &(stripe, local)) in reference_locations(&layout, SIZE).iter().enumerate() {
            prop_assert_eq!(locate(&layout, offset as u64), (stripe, local));
            prop_assert_eq!(file_offset(&layout, stripe, local), offset as u64);
        }
    }

    #[test]
    fn pieces_cover_the_range_in_order(layout in any_layout(), range in any_range()) {
        let bytes = reference_locations(&layout, SIZE);
        let mut next = range.start;
        for piece in pieces(&layout, range) {
            prop_assert_eq!(piece.file.start, next);
            prop_assert!(!piece.file.is_empty());
            prop_assert_eq!(piece.group, layout.groups[piece.stripe]);
            for (i, offset) in (piece.file.start..piece.file.end).enumerate() {
                prop_assert_eq!(bytes[offset as usize], (piece.stripe, piece.local + i as u64));
            }
            let chunk = |offset: u64| offset / layout.chunk_size as u64;
            prop_assert!(layout.groups.len() == 1 || chunk(piece.file.start) == chunk(piece.file.end - 1));
            next = piece.file.end;
        }
        prop_assert_eq!(next, range.end);
    }

    #[test]
    fn local_range_holds_what_the_stripe_has_of_the_range(layout in any_layout(), range in any_range()) {
        let bytes = &reference_locations(&layout, SIZE)[range.start as usize..range.end as usize];
        for stripe in 0..layout.groups.len() {
            let expected: Vec<u64> = bytes.iter().filter(|b| b.0 == stripe).map(|b| b.1).collect();
            let found = local_range(&layout, stripe, range);
            prop_assert_eq!((found.start..found.end).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn lengths_match_the_deal_and_imply_the_size(layout in any_layout(), size in 0..=SIZE) {
        let bytes = reference_locations(&layout, size);
        let lens: Vec<u64> = (0..layout.groups.len())
            .map(|stripe| bytes.iter().filter(|b| b.0 == stripe).count() as u64)
            .collect();
        for (stripe, &len) in lens.iter().enumerate() {
            prop_assert_eq!(local_len(&layout, stripe, size), len);
        }
        prop_assert_eq!(file_end(&layout, &lens), size);
    }

    #[test]
    fn the_end_of_a_sparse_file_is_its_last_byte(layout in any_layout(), ends in prop::collection::vec(0u64..60, 7)) {
        let lens = &ends[..layout.groups.len()];
        let mut end = 0;
        for (stripe, &len) in lens.iter().enumerate() {
            for local in 0..len {
                end = end.max(file_offset(&layout, stripe, local) + 1);
            }
        }
        prop_assert_eq!(file_end(&layout, lens), end);
    }

    #[test]
    fn large_offsets_round_trip(
        offset in 0..i64::MAX as u64,
        power in 16u32..=26,
        count in 1usize..100,
    ) {
        let layout = layout(1 << power, count);
        let (stripe, local) = locate(&layout, offset);
        prop_assert_eq!(file_offset(&layout, stripe, local), offset);
        prop_assert_eq!(local_len(&layout, stripe, offset), local);
        prop_assert_eq!(local_len(&layout, stripe, offset + 1), local + 1);
    }
}

#[test]
fn golden_pieces() {
    let layout = layout(65536, 3);
    let found: Vec<_> = pieces(&layout, ByteRange::new(60_000, 270_000))
        .map(|p| (p.stripe, p.group.0, p.local, p.file.start, p.file.end))
        .collect();
    assert_eq!(
        found,
        [
            (0, 100, 60_000, 60_000, 65_536),
            (1, 101, 0, 65_536, 131_072),
            (2, 102, 0, 131_072, 196_608),
            (0, 100, 65_536, 196_608, 262_144),
            (1, 101, 65_536, 262_144, 270_000),
        ]
    );
}

#[test]
fn golden_places() {
    let layout = layout(1 << 20, 4);
    assert_eq!(locate(&layout, 0), (0, 0));
    assert_eq!(locate(&layout, (5 << 20) + 17), (1, (1 << 20) + 17));
    assert_eq!(locate(&layout, (1 << 50) - 1), (3, (1 << 48) - 1));
    assert_eq!(file_offset(&layout, 2, 3 << 20), 14 << 20);
    assert_eq!(
        [0, 1, 2, 3].map(|s| local_len(&layout, s, (6 << 20) + 5)),
        [2 << 20, 2 << 20, (1 << 20) + 5, 1 << 20]
    );
    assert_eq!(file_end(&layout, &[0, 5, 0, 0]), (1 << 20) + 5);
    assert_eq!(file_end(&layout, &[0; 4]), 0);
}

#[test]
fn a_file_on_one_group_is_one_piece() {
    let layout = layout(65536, 1);
    let range = ByteRange::new(10, 10_000_000);
    let expected = Piece { stripe: 0, group: GroupId(100), local: 10, file: range };
    assert_eq!(pieces(&layout, range).collect::<Vec<_>>(), [expected]);
}

#[test]
fn an_empty_range_has_no_pieces() {
    assert_eq!(pieces(&layout(65536, 2), ByteRange::new(5, 5)).count(), 0);
}

#[test]
fn impossible_lengths_are_cut_not_wrapped() {
    let layout = layout(1 << 20, 4);
    assert_eq!(file_offset(&layout, 3, u64::MAX), u64::MAX);
    assert_eq!(file_end(&layout, &[0, u64::MAX, 0, 0]), u64::MAX);
    let last: Vec<_> = pieces(&layout, ByteRange::new(u64::MAX - 10, u64::MAX)).collect();
    assert_eq!(last.len(), 1);
}
