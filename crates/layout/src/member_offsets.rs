//! Where the content of a group is on its members.
//!
//! A client stripes a file over groups: the offset that [`crate::locate`] returns is an offset in
//! the chunk file of the *group*. The scheme of the group spreads that content over *parts*, each
//! of which has its own bytes; [`Scheme::data_width`] is their number. A member has the chunk file
//! of one part, so an offset on a target is a *member offset*.
//!
//! With one part, both offsets are equal: on a single target, and on all members of a mirrored
//! group.

use types::{ByteRange, Scheme};

/// A range of a group's chunk file that is contiguous in the chunk file of one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberPiece {
    /// Number of the part, below [`Scheme::data_width`].
    pub part: usize,
    /// Offset in the chunk file of the members that have this part.
    pub offset: u64,
    /// The bytes of the group's chunk file; never empty.
    pub group: ByteRange,
}

/// The pieces of a range of a group's chunk file, in order.
pub fn member_pieces(scheme: Scheme, range: ByteRange) -> impl Iterator<Item = MemberPiece> {
    match scheme {
        Scheme::Single | Scheme::Mirror(_) => {
            let piece = MemberPiece { part: 0, offset: range.start, group: range };
            (!range.is_empty()).then_some(piece).into_iter()
        }
    }
}

/// The range of a part's chunk file that has its bytes of a range of the group's chunk file. If it
/// has none, the result is empty and starts at its first byte after the range.
pub fn member_range(scheme: Scheme, part: usize, range: ByteRange) -> ByteRange {
    debug_assert!(part < scheme.data_width(), "part {part} of {scheme}");
    match scheme {
        Scheme::Single | Scheme::Mirror(_) => range,
    }
}

/// Length of a part's chunk file when the group's chunk file is `group_len` bytes long without
/// holes.
pub fn member_len(scheme: Scheme, part: usize, group_len: u64) -> u64 {
    member_range(scheme, part, ByteRange::new(0, group_len)).end
}

/// The offset in the group's chunk file of a byte of a part's chunk file, the inverse of
/// [`member_pieces`].
pub fn group_offset(scheme: Scheme, part: usize, offset: u64) -> u64 {
    debug_assert!(part < scheme.data_width(), "part {part} of {scheme}");
    match scheme {
        Scheme::Single | Scheme::Mirror(_) => offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schemes() -> impl Strategy<Value = Scheme> {
        proptest::sample::select(Scheme::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn pieces_cover_a_range_once(scheme in schemes(), start in 0u64..1 << 40, len in 0u64..1 << 22) {
            let range = ByteRange::at(start, len);
            let mut at = range.start;
            for piece in member_pieces(scheme, range) {
                prop_assert!(piece.part < scheme.data_width() && !piece.group.is_empty());
                prop_assert_eq!(piece.group.start, at);
                prop_assert_eq!(group_offset(scheme, piece.part, piece.offset), at);
                let there = member_range(scheme, piece.part, range);
                prop_assert!(there.start <= piece.offset && piece.offset + piece.group.len() <= there.end);
                at = piece.group.end;
            }
            prop_assert_eq!(at, range.end);
        }

        #[test]
        fn parts_have_all_bytes_together(scheme in schemes(), len in 0u64..1 << 40) {
            let total: u64 = (0..scheme.data_width()).map(|part| member_len(scheme, part, len)).sum();
            prop_assert_eq!(total, len);
        }
    }

    #[test]
    fn a_replica_has_the_offsets_of_its_group() {
        let range = ByteRange::new(70_000, 90_000);
        for scheme in Scheme::ALL {
            let piece = MemberPiece { part: 0, offset: 70_000, group: range };
            assert_eq!(member_pieces(scheme, range).collect::<Vec<_>>(), [piece]);
            assert_eq!((member_range(scheme, 0, range), member_len(scheme, 0, 5)), (range, 5));
        }
    }
}
