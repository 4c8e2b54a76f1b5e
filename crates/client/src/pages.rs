//! What the kernel's page cache forgets beside a write past it.
//!
//! Writes beside other sessions go past the page cache, and so do direct ones (`O_DIRECT`)
//! everywhere. The kernel drops the pages under such a write before it sends the write, but reads
//! may put them back before the write is done. Where this session has the file to itself, nothing
//! else changes: the other pages stay, and a program that has mapped the file goes on with them.
//! Without that lease the file may have changed elsewhere, and all pages go.

use crate::Client;
use crate::fill::{Fills, Pass};
use crate::inode::{Content, OpenInode};
use types::ByteRange;
use wire::LeaseMode;

/// All pages of a file.
pub(crate) const ALL_PAGES: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// Where a write lands.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// At these bytes.
    At(ByteRange),
    /// At the end of the file, wherever that is then.
    End,
}

/// Reads for the kernel's page cache wait while this exists.
pub(crate) struct HeldBack<'a> {
    fills: &'a Fills,
    /// How often some were let through before.
    pub(crate) passes: u64,
}

impl HeldBack<'_> {
    /// Some were let through since.
    pub(crate) fn is_out_of_date(&self) -> bool {
        self.passes != self.fills.passes()
    }
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.fills.open();
    }
}

impl Content {
    /// The bytes whose pages a write changes; `None` where others may have changed the file, too,
    /// or may do so before the write.
    ///
    /// A write that makes the file longer changes what lies behind the old end, and its last page,
    /// of which the kernel takes the rest for zeros.
    fn changed_by(&self, place: Place) -> Option<ByteRange> {
        if !self.is_known() || self.lease != LeaseMode::Write {
            return None;
        }
        Some(match place {
            Place::At(written) if written.end <= self.size => written,
            Place::At(written) => ByteRange::new(written.start.min(self.size), u64::MAX),
            Place::End => ByteRange::new(self.size, u64::MAX),
        })
    }
}

impl Client {
    /// Programs on this node could read from pages that the kernel keeps what was there before a
    /// write after others have seen what is written, or a size that is beyond them, and find zeros
    /// there. So the kernel forgets them before the write, and reads that would fill them again
    /// wait until it is done. Reads wait even where there are no pages yet: the file may be opened
    /// and read while the write waits for its lease.
    ///
    /// A lease that is lost after this was looked at takes all pages with it, and reads that are
    /// let through for that are counted.
    pub(crate) async fn hold_back_pages<'a>(
        &self,
        inode: &'a OpenInode,
        place: Place,
    ) -> Option<HeldBack<'a>> {
        if self.leases.is_alone() {
            return None;
        }
        inode.fills.close();
        let mut held_back = HeldBack { fills: &inode.fills, passes: inode.fills.passes() };
        if inode.fills.is_filled() {
            let changed = inode.content.lock().changed_by(place);
            let range = changed.filter(|_| inode.fills.are_others_of_use()).unwrap_or(ALL_PAGES);
            held_back.passes = self.uncache_pages(inode, range, Pass::UnderLease).await;
        }
        Some(held_back)
    }

    /// After a write: what reads have put back meanwhile is forgotten, too, since some were let
    /// through for the sake of a recall.
    pub(crate) async fn renew_pages(&self, inode: &OpenInode, held_back: Option<HeldBack<'_>>) {
        let Some(held_back) = held_back else { return };
        if held_back.is_out_of_date() {
            self.uncache_pages(inode, ALL_PAGES, Pass::UnderLease).await;
        }
    }

    /// After a write past the kernel's cache where no door is closed before reads: it has forgotten
    /// these pages before it sent the write, and reads may have put them back before that was done.
    pub(crate) async fn renew_range(&self, inode: &OpenInode, range: ByteRange) {
        if inode.fills.is_filled() {
            let range = if inode.fills.are_others_of_use() { range } else { ALL_PAGES };
            self.uncache_pages(inode, range, Pass::Once).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_changes_its_own_pages_under_the_lease_that_shuts_others_out() {
        let mut content =
            Content { loaded: true, lease: LeaseMode::Write, size: 10_000, ..Content::default() };
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
        (content.lease, content.doubted) = (LeaseMode::Write, true);
        assert_eq!(content.changed_by(at(100, 200)), None);
    }
}
