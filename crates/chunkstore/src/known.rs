//! Chunk files that are shorter than the metadata knows, or gone with their checksums.
//!
//! Whoever asks may say how long the chunk file is known to be at least. What is missing below that
//! length was written once: it must neither be read as a hole nor become one. One thing excuses it:
//! the file was being changed when the store was last left without a shutdown, so that what is
//! missing had never been on disk.

use crate::chunk_file::ChunkFile;
use crate::error::{Result, StoreError};
use crate::intent::Span;
use crate::place;
use crate::store::Store;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{ByteRange, InodeId};

/// A place in a chunk file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The name of the chunk file.
    pub ino: InodeId,
    /// Offset in it, bytes.
    pub offset: u64,
    /// Bytes that the chunk file is known to have at least; 0: nothing is known.
    pub known: u64,
}

/// Chunk files that are remembered as lacking something.
const MAX_LACKING: usize = 4096;

/// Chunk files that requests have found to lack something.
#[derive(Default)]
pub(crate) struct Lacking(Mutex<BTreeSet<InodeId>>);

impl Lacking {
    fn note(&self, ino: InodeId) {
        let mut lacking = self.0.lock();
        if lacking.len() < MAX_LACKING {
            lacking.insert(ino);
        }
    }

    /// It lacks nothing any more, or is to have nothing.
    pub(crate) fn forget(&self, ino: InodeId) {
        self.0.lock().remove(&ino);
    }
}

/// What was being changed when the store was last left without a shutdown.
#[derive(Default)]
pub(crate) struct AtCrash(Mutex<Changing>);

#[derive(Default)]
struct Changing {
    files: BTreeSet<InodeId>,
    /// From the first of two numbers up to the second: chunk files were being made there.
    made: Vec<(InodeId, InodeId)>,
}

impl AtCrash {
    pub(crate) fn note_file(&self, ino: InodeId) {
        self.0.lock().files.insert(ino);
    }

    pub(crate) fn note_spans(&self, spans: &[Span]) {
        self.0.lock().made.extend(spans.iter().map(|span| (span.first, span.end)));
    }

    fn covers(&self, ino: InodeId) -> bool {
        let changing = self.0.lock();
        let is_within = |(first, end): &(InodeId, InodeId)| *first <= ino && ino < *end;
        changing.files.contains(&ino) || changing.made.iter().any(is_within)
    }

    /// A chunk file is as long as it should be: nothing has to be excused any more.
    fn is_whole(&self, ino: InodeId) {
        let mut changing = self.0.lock();
        if !changing.files.is_empty() {
            changing.files.remove(&ino);
        }
    }
}

impl Store {
    /// The chunk file for a change that begins at or beyond its byte `needed`, made if there is
    /// none and it needs none.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when it lacks bytes below `needed`.
    pub(crate) async fn find_to_lengthen(&self, ino: InodeId, needed: u64) -> Result<Arc<ChunkFile>> {
        let Some(file) = self.find(ino).await? else {
            if needed > 0 {
                self.require_gone(ino, needed)?;
            }
            return self.find_or_create(ino).await;
        };
        if needed > file.reaches.load(Ordering::Relaxed) {
            Box::pin(self.require_len(&file, needed)).await?;
        }
        Ok(file)
    }

    /// Refuses a chunk file that ends before `needed`.
    pub(crate) async fn require_len(&self, file: &Arc<ChunkFile>, needed: u64) -> Result<()> {
        let len = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len;
        file.reaches.store(len, Ordering::Relaxed);
        if len >= needed {
            self.at_crash.is_whole(file.ino);
            self.lacking.forget(file.ino);
            return Ok(());
        }
        // What is open after its deletion reads as an empty file.
        if file.deleted.load(Ordering::Acquire) || self.at_crash.covers(file.ino) {
            return Ok(());
        }
        Err(self.report_lacking(file.ino, Some(len), needed))
    }

    /// Refuses a chunk file that isn't there although it is known to have bytes, unless a crash
    /// explains it.
    pub(crate) fn require_gone(&self, ino: InodeId, known: u64) -> Result<()> {
        if self.at_crash.covers(ino) { Ok(()) } else { Err(self.report_lacking(ino, None, known)) }
    }

    /// Whether a chunk file was being changed when the store was last left without a shutdown: a
    /// part of it may never have been on disk.
    pub fn was_changing(&self, ino: InodeId) -> bool {
        self.at_crash.covers(ino)
    }

    /// How many chunk files requests have found to be gone, or shorter than is known, and that are
    /// so still as far as is known here. At most [`MAX_LACKING`].
    pub fn lacking_count(&self) -> u64 {
        self.lacking.0.lock().len() as u64
    }

    #[cold]
    fn report_lacking(&self, ino: InodeId, len: Option<u64>, known: u64) -> StoreError {
        self.lacking.note(ino);
        let path = place::chunk_file(&self.dir, ino);
        let error = StoreError::lacking((self.target(), ino), &path, len, known);
        self.report(ino, ByteRange::new(len.unwrap_or(0), known), error)
    }
}
