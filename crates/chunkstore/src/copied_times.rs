//! Modification times of copied content.
//!
//! Writes make a copy, so the local file system gives it their time. Applications see the mtime of
//! a chunk file as that of the file, so a complete copy gets the mtime of its source. That leaves
//! its ctime later than its mtime, as on a file that another program has restored. So an attribute
//! of the file records when weft did this.

use crate::chunk_file::ChunkFile;
use crate::error::Result;
use crate::range_lock::WritePath;
use crate::store::Store;
use rt::FileStat;
use std::ffi::CStr;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, Errno, Timestamp};

/// The extended attribute of the record.
const ATTRIBUTE: &CStr = c"user.weft.copied";
/// Its length: two times of twelve bytes each, the mtime and the ctime after it was set.
const RECORD_BYTES: usize = 24;
/// By how much ctime may exceed the recorded one, nanoseconds: writing the record changes ctime as
/// well.
const RECORD_DELAY_NS: i64 = 1_000_000_000;

/// Record of an mtime that was set, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MtimeRecord {
    time: Timestamp,
    set_at: Timestamp,
}

impl MtimeRecord {
    fn encode(self) -> Vec<u8> {
        let put = |time: Timestamp| [&time.secs.to_le_bytes()[..], &time.nanos.to_le_bytes()].concat();
        [put(self.time), put(self.set_at)].concat()
    }

    fn decode(bytes: &[u8]) -> Option<MtimeRecord> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let take = |at: usize| {
            let secs = i64::from_le_bytes(bytes[at..at + 8].try_into().ok()?);
            let nanos = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().ok()?);
            (nanos < 1_000_000_000).then_some(Timestamp::new(secs, nanos))
        };
        Some(MtimeRecord { time: take(0)?, set_at: take(12)? })
    }

    /// Whether the record describes the last change of the file.
    fn explains(self, stat: &FileStat) -> bool {
        let later = stat.ctime.as_nanos().saturating_sub(self.set_at.as_nanos());
        self.time == stat.mtime && (0..RECORD_DELAY_NS).contains(&later)
    }
}

fn is_later(time: Timestamp, than: Timestamp) -> bool {
    time.as_nanos().saturating_sub(than.as_nanos()) >= RECORD_DELAY_NS
}

impl Store {
    /// Sets the mtime of a chunk file; an absent one is left alone. The caller ensures that the
    /// content is complete.
    ///
    /// A file that another program has modified keeps its mtime, and so does every file where the
    /// local file system doesn't support attributes.
    pub async fn set_time(&self, ino: ChunkFileId, time: Timestamp) -> Result<()> {
        let _in_progress = self.begin_change()?;
        let Some(file) = self.find(ino).await? else { return Ok(()) };
        let _held = file.ranges.acquire(ByteRange::new(0, u64::MAX), WritePath::Cached).await;
        let failed = |e| self.failed("set the time of", &file.path, e);
        let before = file.cached.stat().await.map_err(failed)?;
        // A modification by another program has to stay visible until the content is overwritten.
        let is_externally_modified = is_later(self.effective_ctime(&file, &before).await?, before.mtime);
        if before.mtime == time || is_externally_modified {
            return Ok(());
        }
        self.mark_unsynced(&file);
        file.cached.set_time(time).await.map_err(failed)?;
        let now = file.cached.stat().await.map_err(failed)?;
        // As the local file system has rounded it.
        let record = MtimeRecord { time: now.mtime, set_at: now.ctime };
        let written = file.cached.set_attribute(ATTRIBUTE, record.encode()).await;
        self.mark_unsynced(&file);
        let Err(e) = written else { return Ok(()) };
        // Without the record, the file would look as if another program had modified it.
        file.cached.set_time(now.ctime).await.map_err(failed)?;
        match e.raw_os_error() {
            Some(code) if code == Errno::EOPNOTSUPP.number() || code == Errno::ENOSPC.number() => Ok(()),
            _ => Err(failed(e)),
        }
    }

    /// Returns the ctime of a file, except if its last change was [`Store::set_time`]: then its
    /// mtime.
    pub(crate) async fn effective_ctime(&self, file: &Arc<ChunkFile>, stat: &FileStat) -> Result<Timestamp> {
        if !is_later(stat.ctime, stat.mtime) {
            return Ok(stat.ctime);
        }
        let attribute = file.cached.attribute(ATTRIBUTE).await;
        let attribute = attribute.map_err(|e| self.failed("read an attribute of", &file.path, e))?;
        let record = attribute.and_then(|bytes| MtimeRecord::decode(&bytes));
        Ok(if record.is_some_and(|record| record.explains(stat)) { stat.mtime } else { stat.ctime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_explains_one_change_only() {
        let record = MtimeRecord { time: Timestamp::new(-5, 7), set_at: Timestamp::new(2000, 999_999_999) };
        assert_eq!(MtimeRecord::decode(&record.encode()), Some(record));
        assert_eq!(MtimeRecord::decode(&record.encode()[1..]), None);
        let stat = |mtime, ctime| FileStat { len: 0, blocks: 0, mtime, ctime, inode: 1 };
        assert!(record.explains(&stat(record.time, Timestamp::new(2001, 0))));
        assert!(!record.explains(&stat(record.time, Timestamp::new(2002, 0))), "changed since");
        assert!(
            !record.explains(&stat(record.time, Timestamp::new(2000, 0))),
            "put back with an older clock"
        );
        assert!(
            !record.explains(&stat(Timestamp::new(-5, 8), Timestamp::new(2001, 0))),
            "of another content"
        );
    }
}
