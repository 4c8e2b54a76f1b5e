//! The unallocated parts of a file.

use std::ops::Range;

/// The parts of a range of a file without space on disk: neither data nor a reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnallocatedRanges {
    /// Bytes of all gaps.
    pub bytes: u64,
    /// The first gaps, up to the requested number.
    pub first: Vec<Range<u64>>,
    most: usize,
    range: Range<u64>,
}

impl UnallocatedRanges {
    /// Begins a walk over the extents of a file.
    pub(crate) fn of(range: Range<u64>, most: usize) -> UnallocatedRanges {
        UnallocatedRanges { bytes: 0, first: Vec::new(), most, range }
    }

    /// The part of the range that hasn't been visited.
    pub(crate) fn rest(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Passes the next allocated extent, in ascending order.
    pub(crate) fn skip(&mut self, extent: Range<u64>) {
        let gap = self.range.start..extent.start.min(self.range.end);
        self.add(gap);
        self.range.start = self.range.start.max(extent.end).min(self.range.end);
    }

    /// Ends the walk: there are no more extents.
    pub(crate) fn finish(mut self) -> UnallocatedRanges {
        let gap = self.range.clone();
        self.add(gap);
        self.range.start = self.range.end;
        self
    }

    fn add(&mut self, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        self.bytes += gap.end - gap.start;
        if self.first.len() < self.most {
            self.first.push(gap);
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // One gap is a list of one range.
mod tests {
    use super::*;

    #[test]
    fn unallocated_ranges_lie_between_extents() {
        let found = |extents: &[Range<u64>]| {
            let mut gaps = UnallocatedRanges::of(10..100, 2);
            extents.iter().for_each(|extent| gaps.skip(extent.clone()));
            let gaps = gaps.finish();
            (gaps.bytes, gaps.first)
        };
        assert_eq!(found(&[]), (90, vec![10..100]));
        assert_eq!(found(&[0..200]), (0, vec![]));
        assert_eq!(found(&[0..20, 20..30, 90..100]), (60, vec![30..90]));
        assert_eq!(found(&[20..30, 40..50, 60..70]), (60, vec![10..20, 30..40]));
        assert_eq!(found(&[95..300]), (85, vec![10..95]));
        assert_eq!(found(&[200..300]), (90, vec![10..100]));
    }
}
