//! Size recovery for a file whose `Write` lease has ended with the service that granted it.
//!
//! The next service recovers the size from the chunk files. These may reach beyond the end of the
//! file: a write past the end that was in flight has reached some targets, or all of them. This
//! client repeats that write, and an append would begin after its torn first copy. So this session
//! reports the size to the service before it is registered again ([`wire::MetaOp::ReclaimSizes`]).
//! The service truncates what lies beyond before it serves other sessions.
//!
//! - Only the holder of `Write` knows the size. Appends are sent under no other lease.
//! - Storage may answer a write after the lease has ended but before the size is reported. Such a
//!   write is part of the file: the reported size covers it. Once the size is reported, what lies
//!   beyond it is truncated, and the write is repeated.
//! - The session reports the size whenever it registers with a service again, until the content is
//!   loaded: a service that dies before it has recovered the file leaves that to the next one. A
//!   service without a record of this session's writes to the file has recovered it already, and
//!   ignores the size.

use crate::file::content::Content;
use crate::file::inode::InodeTable;
use types::InodeId;
use wire::{LeaseMode, ReportedSize};

/// Size of a file when its lease ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastSize {
    /// The generation of the lease.
    generation: u64,
    size: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not reported to any service.
    Unreported,
    Reported,
    /// The file is recovered: its content has been loaded since.
    Recovered,
}

/// Whether a write is part of the file if storage answered it after its lease had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LateWrite {
    /// It is.
    Included,
    /// It lies beyond the reported size and is truncated.
    Truncated,
    /// This client did not know the size under that lease.
    Unknown,
}

impl Content {
    /// Records the size to report to the next service, if it is known. Called when the lease is
    /// about to end with its service.
    pub(crate) fn note_last_size(&mut self) {
        let is_in_chunks = self.is_in_chunks();
        // An `EndWrite` with an uncertain outcome may be an old one, and other sessions may have
        // changed the file since.
        let is_ours = self.is_certain() && self.lease == LeaseMode::Write && self.is_recorded_writer();
        if is_ours && is_in_chunks {
            self.last_size =
                Some(LastSize { generation: self.generation, size: self.size, stage: Stage::Unreported });
        }
    }

    /// Returns the size to report to a service, if there is one, and marks it as reported.
    fn take_size_to_report(&mut self) -> Option<u64> {
        let last = self.last_size.as_mut().filter(|last| last.stage != Stage::Recovered)?;
        last.stage = Stage::Reported;
        Some(last.size)
    }

    /// Records that the content was loaded after the file's recovery.
    pub(crate) fn end_last_size(&mut self) {
        if let Some(last) = &mut self.last_size {
            last.stage = Stage::Recovered;
        }
    }

    /// Classifies a write up to `end` that storage has answered, and whose lease of this generation
    /// has ended.
    pub(crate) fn late_write(&mut self, generation: u64, end: u64) -> LateWrite {
        match self.last_size.as_mut().filter(|last| last.generation == generation) {
            None => LateWrite::Unknown,
            Some(last) if end <= last.size => LateWrite::Included,
            Some(last) if last.stage == Stage::Unreported => {
                last.size = end;
                LateWrite::Included
            }
            Some(_) => LateWrite::Truncated,
        }
    }

    /// Lowers the size after a failed write beyond it, whose lease has ended.
    pub(crate) fn lower_last_size(&mut self, generation: u64, size: u64) {
        if let Some(last) = self.last_size.as_mut().filter(|last| last.generation == generation) {
            last.size = last.size.min(size);
        }
    }
}

impl InodeTable {
    /// Returns the sizes to report to a service of files that this session was writing exclusively,
    /// and marks them as reported.
    pub(crate) fn take_sizes_to_report(&self) -> Vec<ReportedSize> {
        let known = |ino: InodeId, size: Option<u64>| size.map(|size| ReportedSize { ino, size });
        let open = self.open_inodes();
        let sizes =
            open.iter().filter_map(|inode| known(inode.ino, inode.content.lock().take_size_to_report()));
        sizes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::content::phase::Event;
    use std::sync::Arc;
    use types::{GroupId, Layout, PoolId, Scheme};

    fn written_to(size: u64, lease: LeaseMode) -> Content {
        let groups = vec![GroupId(1)];
        let layout =
            Layout { chunk_size: 65_536, pool: PoolId(1), scheme: Scheme::Single, groups, slots: vec![] };
        let mut content = Content { size, lease, ..Content::default() };
        content.on(Event::Loaded { truncation_pending: false });
        content.on(Event::WriteBegun);
        content.layout = Some(Arc::new(layout));
        content
    }

    #[test]
    fn a_write_answered_before_the_size_report_is_included() {
        let mut content = written_to(100, LeaseMode::Write);
        content.note_last_size();
        content.unload();
        assert_eq!(content.late_write(0, 120), LateWrite::Included);
        assert_eq!(content.take_size_to_report(), Some(120));
        assert_eq!(
            [120, 121].map(|end| content.late_write(0, end)),
            [LateWrite::Included, LateWrite::Truncated]
        );
        assert_eq!(
            content.take_size_to_report(),
            Some(120),
            "the service may have died before it was of use"
        );
        content.unload();
        content.end_last_size();
        assert_eq!(content.take_size_to_report(), None);
        assert_eq!(content.late_write(0, 121), LateWrite::Truncated);
        assert_eq!(content.late_write(1, 1), LateWrite::Unknown);
    }

    #[test]
    fn a_failed_write_lowers_the_size() {
        let mut content = written_to(100, LeaseMode::Write);
        content.note_last_size();
        content.lower_last_size(0, 70);
        content.lower_last_size(1, 10);
        assert_eq!(content.take_size_to_report(), Some(70));
    }

    #[test]
    fn only_an_exclusive_writer_reports_a_size() {
        let mut shared = written_to(100, LeaseMode::Shared);
        let mut doubted = written_to(100, LeaseMode::Write);
        doubted.on(Event::ChangeUnanswered { in_chunks: true });
        let mut in_doubt = written_to(100, LeaseMode::Write);
        in_doubt.on(Event::EndUnanswered);
        let mut inline = Content { inline: Some(bytes::Bytes::new()), ..written_to(100, LeaseMode::Write) };
        for content in [&mut shared, &mut doubted, &mut in_doubt, &mut inline] {
            content.note_last_size();
            assert_eq!(content.take_size_to_report(), None);
        }
    }
}
