//! Striping arithmetic: file offsets to offsets in chunk files and back.
//!
//! A *stripe* is the index of a group within a layout; *local* is an offset in that group's chunk
//! files. Invariant: the bytes of one stripe in a contiguous file range are contiguous in its chunk
//! files, because the chunks of a stripe follow each other without a gap.

use types::{ByteRange, GroupId, Layout};

/// Parameters of a layout for the arithmetic.
#[derive(Clone, Copy)]
struct Geometry {
    chunk_size: u64,
    count: u64,
}

impl Geometry {
    fn of(layout: &Layout) -> Geometry {
        assert!(layout.chunk_size > 0 && !layout.groups.is_empty(), "a layout has groups and a chunk size");
        Geometry { chunk_size: layout.chunk_size as u64, count: layout.groups.len() as u64 }
    }

    fn locate(self, offset: u64) -> (usize, u64) {
        let chunk = offset / self.chunk_size;
        ((chunk % self.count) as usize, chunk / self.count * self.chunk_size + offset % self.chunk_size)
    }

    /// Number of bytes of `0..offset` that are on `stripe`: also the local offset of the stripe's
    /// first byte at or after `offset`.
    fn bytes_before(self, stripe: usize, offset: u64) -> u64 {
        debug_assert!((stripe as u64) < self.count);
        let chunk = offset / self.chunk_size;
        let (row, column) = (chunk / self.count, chunk % self.count);
        let within_row = match column.cmp(&(stripe as u64)) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => offset % self.chunk_size,
            std::cmp::Ordering::Greater => self.chunk_size,
        };
        row * self.chunk_size + within_row
    }

    fn file_offset(self, stripe: usize, local: u64) -> u64 {
        debug_assert!((stripe as u64) < self.count);
        let chunk = (local / self.chunk_size).saturating_mul(self.count).saturating_add(stripe as u64);
        chunk.saturating_mul(self.chunk_size).saturating_add(local % self.chunk_size)
    }
}

/// The stripe that holds the byte at `offset` of the file, and its offset in the chunk file.
pub fn locate(layout: &Layout, offset: u64) -> (usize, u64) {
    Geometry::of(layout).locate(offset)
}

/// The file offset of a byte of a chunk file, the inverse of [`locate`]; cut at `u64::MAX`.
pub fn file_offset(layout: &Layout, stripe: usize, local: u64) -> u64 {
    Geometry::of(layout).file_offset(stripe, local)
}

/// The part of `stripe`'s chunk file that has its bytes of `range`. If it has none, the result is
/// empty and starts at its first byte after the range.
pub fn local_range(layout: &Layout, stripe: usize, range: ByteRange) -> ByteRange {
    let geometry = Geometry::of(layout);
    ByteRange::new(geometry.bytes_before(stripe, range.start), geometry.bytes_before(stripe, range.end))
}

/// Length of `stripe`'s chunk file when the file is `file_size` bytes long without holes.
pub fn local_len(layout: &Layout, stripe: usize, file_size: u64) -> u64 {
    Geometry::of(layout).bytes_before(stripe, file_size)
}

/// The file size that follows from chunk file lengths: one past the last byte in any of them; cut
/// at `u64::MAX`. `lens` is in stripe order. A hole at the end of a file isn't in any chunk file,
/// so the true size may be larger.
pub fn file_end(layout: &Layout, lens: &[u64]) -> u64 {
    debug_assert_eq!(lens.len(), layout.groups.len());
    let geometry = Geometry::of(layout);
    let last_byte =
        |(stripe, &len): (usize, &u64)| len.checked_sub(1).map(|last| geometry.file_offset(stripe, last));
    lens.iter().enumerate().filter_map(last_byte).max().map_or(0, |last| last.saturating_add(1))
}

/// A part of a file range that is contiguous in one chunk file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Index of the group in the layout.
    pub stripe: usize,
    /// The group.
    pub group: GroupId,
    /// Offset in the chunk file.
    pub local: u64,
    /// The bytes of the file; never empty.
    pub file: ByteRange,
}

/// The pieces of a file range, in file order. A piece never crosses a chunk boundary, except that a
/// range of a file on one group is one piece: there adjacent bytes of the chunk file are adjacent
/// in the file too.
pub fn pieces(layout: &Layout, range: ByteRange) -> impl Iterator<Item = Piece> + '_ {
    let geometry = Geometry::of(layout);
    let mut rest = range;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (stripe, local) = geometry.locate(rest.start);
        let end = if geometry.count == 1 {
            rest.end
        } else {
            let to_border = geometry.chunk_size - rest.start % geometry.chunk_size;
            rest.start.saturating_add(to_border).min(rest.end)
        };
        let file = ByteRange::new(rest.start, end);
        rest.start = end;
        Some(Piece { stripe, group: layout.groups[stripe], local, file })
    })
}

#[cfg(test)]
mod tests;
