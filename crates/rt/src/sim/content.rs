//! A sparse file's bytes. Copies share pages, so that storing a durable and a visible version is
//! cheap.

use crate::disk::{Fallocate, UnallocatedRanges};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Unit of space allocation, bytes.
pub(super) const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// The content of a file.
#[derive(Clone, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Rc<Page>>,
    /// Pages with space but without data; they read as zeros and count as holes.
    reserved: BTreeSet<u64>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Number of allocated pages.
    pub(super) fn allocated(&self) -> u64 {
        (self.pages.len() + self.reserved.len()) as u64
    }

    /// Number of unallocated pages of a range.
    pub(super) fn missing(&self, range: &Range<u64>) -> u64 {
        pages_of(range).filter(|page| !self.pages.contains_key(page) && !self.reserved.contains(page)).count()
            as u64
    }

    /// The unallocated parts of a range.
    pub(super) fn unallocated_ranges(&self, range: Range<u64>, most: usize) -> UnallocatedRanges {
        let pages = pages_of(&range);
        let mut gaps = UnallocatedRanges::of(range, most);
        let with_data = self.pages.range(pages.clone()).map(|(page, _)| *page);
        let taken: BTreeSet<u64> = with_data.chain(self.reserved.range(pages).copied()).collect();
        taken.into_iter().for_each(|page| gaps.skip(page * PAGE..(page + 1) * PAGE));
        gaps.finish()
    }

    /// Copies bytes to `into` and returns their number.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let end = self.len.min(offset.saturating_add(into.len() as u64));
        if end <= offset {
            return 0;
        }
        for_each_part(&(offset..end), |page, within, at| {
            let target = &mut into[at..at + within.len()];
            match self.pages.get(&page) {
                Some(data) => target.copy_from_slice(&data[within]),
                None => target.fill(0),
            }
        });
        (end - offset) as usize
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        for_each_part(&range, |page, within, at| {
            let len = within.len();
            self.page_mut(page)[within].copy_from_slice(&data[at..at + len]);
        });
        self.len = self.len.max(range.end);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let kept = len.div_ceil(PAGE);
            self.clear_partial(&(len..kept * PAGE));
            self.pages.split_off(&kept);
            self.reserved.split_off(&kept);
        }
        self.len = len;
    }

    pub(super) fn allocate(&mut self, how: Fallocate, range: &Range<u64>) {
        match how {
            Fallocate::Reserve => self.reserve(range),
            Fallocate::Punch => self.punch(range),
            Fallocate::Zero => {
                self.punch(range);
                self.reserve(range);
                self.len = self.len.max(range.end);
            }
        }
    }

    pub(super) fn seek_data(&self, from: u64) -> Option<u64> {
        let (page, _) = self.pages.range(from / PAGE..).next()?;
        let at = from.max(page * PAGE);
        (at < self.len).then_some(at)
    }

    /// The first hole; `None` beyond the end.
    pub(super) fn seek_hole(&self, from: u64) -> Option<u64> {
        if from >= self.len {
            return None;
        }
        let mut page = from / PAGE;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        Some(from.max(page * PAGE).min(self.len))
    }

    fn reserve(&mut self, range: &Range<u64>) {
        let missing = pages_of(range).filter(|page| !self.pages.contains_key(page));
        self.reserved.extend(missing.collect::<Vec<_>>());
    }

    fn punch(&mut self, range: &Range<u64>) {
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        for page in whole.clone() {
            self.pages.remove(&page);
            self.reserved.remove(&page);
        }
        if whole.start > whole.end {
            self.clear_partial(range);
        } else {
            self.clear_partial(&(range.start..whole.start * PAGE));
            self.clear_partial(&(whole.end * PAGE..range.end));
        }
    }

    /// Zeroes a range within one page, if it has data.
    fn clear_partial(&mut self, range: &Range<u64>) {
        for_each_part(range, |page, within, _| {
            if let Some(data) = self.pages.get_mut(&page) {
                Rc::make_mut(data)[within].fill(0);
            }
        });
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        self.reserved.remove(&page);
        Rc::make_mut(self.pages.entry(page).or_insert_with(|| Rc::new([0; PAGE as usize])))
    }
}

fn pages_of(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / PAGE..range.end.div_ceil(PAGE) }
}

/// Calls `f` with each page of a range, the part within the page and where that part begins in the
/// range.
fn for_each_part(range: &Range<u64>, mut f: impl FnMut(u64, Range<usize>, usize)) {
    for page in pages_of(range) {
        let base = page * PAGE;
        let (start, end) = (range.start.max(base), range.end.min(base + PAGE));
        f(page, (start - base) as usize..(end - base) as usize, (start - range.start) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies the same changes to a plain vector.
    #[test]
    fn agrees_with_a_vector() {
        let mut rng = crate::sim::rng::Rng::new(3);
        let mut content = Content::default();
        let mut model: Vec<u8> = Vec::new();
        for round in 0..3000u64 {
            let offset = rng.below(5 * PAGE);
            let len = rng.below(2 * PAGE) + 1;
            let (start, end) = (offset as usize, (offset + len) as usize);
            let grown = model.len().max(end);
            match rng.below(5) {
                0 | 1 => {
                    content.write(offset, &vec![round as u8 | 1; len as usize]);
                    model.resize(grown, 0);
                    model[start..end].fill(round as u8 | 1);
                }
                2 => {
                    content.set_len(offset);
                    model.resize(start, 0);
                }
                3 => {
                    content.allocate(Fallocate::Punch, &(offset..offset + len));
                    let end = end.min(model.len());
                    model[start.min(end)..end].fill(0);
                }
                _ => {
                    content.allocate(Fallocate::Zero, &(offset..offset + len));
                    model.resize(grown, 0);
                    model[start..end].fill(0);
                }
            }
            let mut got = vec![9; model.len() + 10];
            assert_eq!(content.read(0, &mut got), model.len());
            assert_eq!(&got[..model.len()], &model[..], "round {round}");
        }
    }

    #[test]
    fn reserved_space_is_a_hole_that_counts() {
        let mut content = Content::default();
        content.write(0, &[1; 10]);
        content.allocate(Fallocate::Reserve, &(0..3 * PAGE));
        assert_eq!((content.len(), content.allocated()), (10, 3));
        assert_eq!(content.missing(&(0..4 * PAGE)), 1);
        content.set_len(3 * PAGE);
        assert_eq!(content.seek_hole(0), Some(PAGE));
        assert_eq!(content.seek_data(PAGE), None);
        content.write(2 * PAGE, &[1]);
        assert_eq!(content.seek_data(10), Some(10));
        assert_eq!(content.seek_data(PAGE), Some(2 * PAGE));
        assert_eq!(content.seek_hole(2 * PAGE), Some(3 * PAGE));
        assert_eq!(content.seek_hole(3 * PAGE), None);
    }
}
