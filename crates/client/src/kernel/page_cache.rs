//! Invalidation of the kernel's page cache around uncached writes.
//!
//! Writes to files of several sessions bypass the page cache, as do all direct writes (`O_DIRECT`).
//! The kernel drops the pages under such a write before it sends the write, but reads may fill them
//! again before the write is done. Under the exclusive lease, nothing else changes: the other pages
//! stay, and an application that has mapped the file continues to use them. Without that lease,
//! another session may have changed the file, and all pages are dropped.

use crate::file::content::Content;
use crate::file::inode::OpenInode;
use crate::kernel::invalidation::KernelCaches;
use crate::kernel::page_fill::{Bypass, PageFillGate};
use types::ByteRange;
use wire::LeaseMode;

/// All pages of a file.
pub(crate) const ALL_PAGES: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// Where a write goes.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// At these bytes.
    At(ByteRange),
    /// At the end of the file at that time.
    End,
}

/// Fill barrier: reads for the kernel's page cache wait while this exists.
pub(crate) struct FillBarrier<'a> {
    gate: &'a PageFillGate,
    /// Number of bypasses before.
    pub(crate) bypasses: u64,
}

impl FillBarrier<'_> {
    /// Whether reads have bypassed it since.
    pub(crate) fn was_bypassed(&self) -> bool {
        self.bypasses != self.gate.bypass_count()
    }
}

impl Drop for FillBarrier<'_> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

impl Content {
    /// Returns the bytes whose pages a write changes. `None` if another session may have changed
    /// the file, or may do so before the write.
    ///
    /// A write that extends the file changes everything beyond the old end, and the last page,
    /// whose rest the kernel takes for zeros.
    fn changed_by(&self, place: Place) -> Option<ByteRange> {
        if !self.is_certain() || self.lease != LeaseMode::Write {
            return None;
        }
        Some(match place {
            Place::At(written) if written.end <= self.size => written,
            Place::At(written) => ByteRange::new(written.start.min(self.size), u64::MAX),
            Place::End => ByteRange::new(self.size, u64::MAX),
        })
    }
}

impl KernelCaches {
    /// Has the kernel drop the pages that a write makes outdated, and holds back reads that would
    /// fill them again until the write is done.
    ///
    /// Otherwise applications on this node could read old data from cached pages after others have
    /// read the written data. They could also see the new size and read zeros. Reads wait even if
    /// no pages are cached yet: the file may be opened and read while the write waits for its
    /// lease.
    ///
    /// If the lease is lost afterwards, all pages are dropped with it, and reads that bypass the
    /// gate for that are counted.
    pub(crate) async fn block_page_fills<'a>(&self, inode: &'a OpenInode, place: Place) -> FillBarrier<'a> {
        inode.page_gate.close();
        let mut fill_barrier =
            FillBarrier { gate: &inode.page_gate, bypasses: inode.page_gate.bypass_count() };
        if inode.page_gate.may_have_pages() {
            let changed = inode.content.lock().changed_by(place);
            let range = changed.filter(|_| inode.page_gate.count_partial_drop()).unwrap_or(ALL_PAGES);
            fill_barrier.bypasses = self.drop_cached_pages(inode, range, Bypass::UnderLease).await;
        }
        fill_barrier
    }

    /// Drops the pages that bypassing reads have filled during a write; a recall may have let them
    /// bypass.
    pub(crate) async fn drop_refilled_pages(&self, inode: &OpenInode, fill_barrier: Option<FillBarrier<'_>>) {
        let Some(fill_barrier) = fill_barrier else { return };
        if fill_barrier.was_bypassed() {
            self.drop_cached_pages(inode, ALL_PAGES, Bypass::UnderLease).await;
        }
    }

    /// Drops pages after an uncached write without a fill barrier. The kernel has dropped these
    /// pages before it sent the write, and reads may have filled them again before the write was
    /// done.
    pub(crate) async fn drop_refilled_range(&self, inode: &OpenInode, range: ByteRange) {
        if inode.page_gate.may_have_pages() {
            let range = if inode.page_gate.count_partial_drop() { range } else { ALL_PAGES };
            self.drop_cached_pages(inode, range, Bypass::Once).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::content::phase::Event;

    #[test]
    fn under_the_exclusive_lease_a_write_drops_only_its_pages() {
        let mut content = Content { lease: LeaseMode::Write, size: 10_000, ..Content::default() };
        content.on(Event::Loaded { truncation_pending: false });
        let at = |start, end| Place::At(ByteRange::new(start, end));
        let range = |start, end| Some(ByteRange::new(start, end));
        assert_eq!(content.changed_by(at(100, 10_000)), range(100, 10_000));
        assert_eq!(content.changed_by(at(9_000, 10_001)), range(9_000, u64::MAX));
        assert_eq!(
            content.changed_by(at(50_000, 60_000)),
            range(10_000, u64::MAX),
            "the old end's page, too"
        );
        assert_eq!(content.changed_by(Place::End), range(10_000, u64::MAX));
        for lease in [LeaseMode::Read, LeaseMode::Shared] {
            content.lease = lease;
            assert_eq!(content.changed_by(at(100, 200)), None);
        }
        content.lease = LeaseMode::Write;
        content.on(Event::ChangeUnanswered { in_chunks: false });
        assert_eq!(content.changed_by(at(100, 200)), None);
    }
}
