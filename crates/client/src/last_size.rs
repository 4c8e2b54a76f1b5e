//! The size of a file whose `Write` lease has ended with the service that granted it.
//!
//! The next service settles the file from its chunk files. These may reach beyond the end of the
//! file: a write past the end that was in flight has reached some targets, or all of them. This
//! client repeats that write, and an append would begin behind its torn first copy. So the service
//! is told the size before this session counts as back ([`wire::MetaOp::ReclaimSizes`]), and cuts
//! what lies beyond before it lets anybody in.
//!
//! - Only the holder of `Write` knows the size. Appends are sent under no other lease.
//! - A write that storage answers when the lease has ended already, and the size is not told yet,
//!   is part of the file: the size covers it. Once the size is told, what lies beyond it is cut,
//!   and the write is repeated.
//! - The size is told whenever this session becomes known to a service again, until the content is
//!   loaded: a service that dies before it has settled the file leaves that to the next one. One
//!   that finds no note of this session on the file has settled it, and ignores the size.

use crate::inode::Content;
use crate::services::Service;
use crate::{Client, unexpected};
use types::{Errno, InodeId, Result};
use wire::{KnownSize, LeaseMode, MetaOp, MetaReply};

/// Sizes of one request: 40 KiB or so.
const SIZES_PER_REQUEST: usize = 4096;

/// Where a file ended when its lease did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastSize {
    /// The era of the lease.
    era: u64,
    size: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No service has been told.
    Fresh,
    Told,
    /// The file is settled: its content has been loaded since.
    Used,
}

/// Whether a write is part of the file that storage has answered when its lease had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LateWrite {
    /// It is.
    Kept,
    /// What lies beyond the size that was told is cut.
    Cut,
    /// This client did not know the size under that lease.
    Unknown,
}

impl Content {
    /// The lease is about to end with its service: notes the size that the next one is told, if it
    /// is known here.
    pub(crate) fn note_last_size(&mut self) {
        let is_in_chunks = self.layout.is_some() && self.inline.is_none();
        // A note that is in doubt may be one of before, on a file that others have changed since.
        let is_ours = self.is_known() && self.lease == LeaseMode::Write && self.is_on_record();
        if is_ours && is_in_chunks {
            self.last_size = Some(LastSize { era: self.era, size: self.size, stage: Stage::Fresh });
        }
    }

    /// A service is told the size, if there is one to tell.
    fn tell_last_size(&mut self) -> Option<u64> {
        let last = self.last_size.as_mut().filter(|last| last.stage != Stage::Used)?;
        last.stage = Stage::Told;
        Some(last.size)
    }

    /// What is loaded now is of after the file was settled.
    pub(crate) fn end_last_size(&mut self) {
        if let Some(last) = &mut self.last_size {
            last.stage = Stage::Used;
        }
    }

    /// Storage has answered a write up to `end` that was sent under the lease of an era, which has
    /// ended.
    pub(crate) fn late_write(&mut self, era: u64, end: u64) -> LateWrite {
        match self.last_size.as_mut().filter(|last| last.era == era) {
            None => LateWrite::Unknown,
            Some(last) if end <= last.size => LateWrite::Kept,
            Some(last) if last.stage == Stage::Fresh => {
                last.size = end;
                LateWrite::Kept
            }
            Some(_) => LateWrite::Cut,
        }
    }

    /// What was to make the file longer than this could not be stored, and the lease has ended.
    pub(crate) fn lower_last_size(&mut self, era: u64, size: u64) {
        if let Some(last) = self.last_size.as_mut().filter(|last| last.era == era) {
            last.size = last.size.min(size);
        }
    }
}

impl Client {
    /// Tells a service, to which the session is about to become known, how long files were that it
    /// was changing alone. Returns the number of the service's process, for the request by which
    /// the session registers or follows: the transport sends a request again when the service was
    /// started anew, and the next process knows nothing of what the one before was told. So this is
    /// to be done before anything else is told.
    ///
    /// # Errors
    /// The transport's, and `ESTALE` when the session has been ended; `EAGAIN` when the service was
    /// started anew meanwhile.
    pub(crate) async fn reclaim_sizes(&self, service: &Service) -> Result<u64> {
        let known = |ino: InodeId, size: Option<u64>| size.map(|size| KnownSize { ino, size });
        let mut told = self.tell_sizes(service, Vec::new()).await?;
        let open = self.inodes.open_inodes();
        // Of all files: the map may not say yet which partitions have come to the service, which
        // passes over the others.
        let sizes = open.iter().filter_map(|inode| known(inode.ino, inode.content.lock().tell_last_size()));
        for some in sizes.collect::<Vec<_>>().chunks(SIZES_PER_REQUEST) {
            let process = self.tell_sizes(service, some.to_vec()).await?;
            if std::mem::replace(&mut told, process) != process {
                return Err(Errno::EAGAIN.into());
            }
        }
        Ok(told)
    }

    async fn tell_sizes(&self, service: &Service, sizes: Vec<KnownSize>) -> Result<u64> {
        match self.ask_at(service, MetaOp::ReclaimSizes { sizes }).await?.reply {
            MetaReply::Process(number) => Ok(number),
            other => Err(unexpected(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use types::{GroupId, Layout, PoolId, Scheme};

    fn written_to(size: u64, lease: LeaseMode) -> Content {
        let groups = vec![GroupId(1)];
        let layout =
            Layout { chunk_size: 65_536, pool: PoolId(1), scheme: Scheme::Single, groups, slots: vec![] };
        let mut content = Content { loaded: true, size, lease, writing: true, ..Content::default() };
        content.layout = Some(Arc::new(layout));
        content
    }

    #[test]
    fn a_write_counts_that_was_answered_before_the_size_was_told() {
        let mut content = written_to(100, LeaseMode::Write);
        content.note_last_size();
        content.unload();
        assert_eq!(content.late_write(0, 120), LateWrite::Kept);
        assert_eq!(content.tell_last_size(), Some(120));
        assert_eq!([120, 121].map(|end| content.late_write(0, end)), [LateWrite::Kept, LateWrite::Cut]);
        assert_eq!(content.tell_last_size(), Some(120), "the service may have died before it was of use");
        content.unload();
        content.end_last_size();
        assert_eq!(content.tell_last_size(), None);
        assert_eq!(content.late_write(0, 121), LateWrite::Cut);
        assert_eq!(content.late_write(1, 1), LateWrite::Unknown);
    }

    #[test]
    fn what_could_not_be_stored_does_not_count() {
        let mut content = written_to(100, LeaseMode::Write);
        content.note_last_size();
        content.lower_last_size(0, 70);
        content.lower_last_size(1, 10);
        assert_eq!(content.tell_last_size(), Some(70));
    }

    #[test]
    fn who_is_not_alone_with_a_file_tells_no_size() {
        let mut shared = written_to(100, LeaseMode::Shared);
        let mut doubted = Content { doubted: true, ..written_to(100, LeaseMode::Write) };
        let mut in_doubt = Content { end_in_doubt: true, ..written_to(100, LeaseMode::Write) };
        let mut inline = Content { inline: Some(bytes::Bytes::new()), ..written_to(100, LeaseMode::Write) };
        for content in [&mut shared, &mut doubted, &mut in_doubt, &mut inline] {
            content.note_last_size();
            assert_eq!(content.tell_last_size(), None);
        }
    }
}
