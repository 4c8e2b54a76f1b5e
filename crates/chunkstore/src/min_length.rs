//! Chunk files that are shorter than the metadata knows, or missing with their checksums.
//!
//! A request may state the known minimum length of the chunk file. Missing content below that
//! length was written once: it must neither be read as a hole nor become one. There is one
//! exception: if the file was being changed when the store was last left without a shutdown, the
//! missing content may never have been on disk.

use crate::chunk_file::ChunkFile;
use crate::error::{Result, StoreError};
use crate::intent::Span;
use crate::paths;
use crate::store::Store;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{ByteRange, ChunkFileId};

/// A position in a chunk file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The name of the chunk file.
    pub ino: ChunkFileId,
    /// Offset in it, bytes.
    pub offset: u64,
    /// Known minimum length of the chunk file, bytes; 0: unknown.
    pub min_len: u64,
}

/// Limit of chunk files that are recorded as incomplete.
const MAX_INCOMPLETE: usize = 4096;

/// Chunk files that requests have found incomplete.
#[derive(Default)]
pub(crate) struct IncompleteFiles(Mutex<BTreeSet<ChunkFileId>>);

impl IncompleteFiles {
    fn record(&self, ino: ChunkFileId) {
        let mut incomplete = self.0.lock();
        if incomplete.len() < MAX_INCOMPLETE {
            incomplete.insert(ino);
        }
    }

    /// Removes a chunk file that is complete again, or should be empty.
    pub(crate) fn forget(&self, ino: ChunkFileId) {
        self.0.lock().remove(&ino);
    }
}

/// Files that were being changed when the store was last left without a shutdown.
#[derive(Default)]
pub(crate) struct ChangingAtCrash(Mutex<ChangingFiles>);

#[derive(Default)]
struct ChangingFiles {
    files: BTreeSet<ChunkFileId>,
    /// Ranges of inodes whose chunk files were being created; the second number is exclusive.
    created: Vec<(ChunkFileId, ChunkFileId)>,
}

impl ChangingAtCrash {
    pub(crate) fn add_file(&self, ino: ChunkFileId) {
        self.0.lock().files.insert(ino);
    }

    pub(crate) fn add_spans(&self, spans: &[Span]) {
        self.0.lock().created.extend(spans.iter().map(|span| (span.first, span.end)));
    }

    fn covers(&self, ino: ChunkFileId) -> bool {
        let changing = self.0.lock();
        let is_within = |(first, end): &(ChunkFileId, ChunkFileId)| *first <= ino && ino < *end;
        changing.files.contains(&ino) || changing.created.iter().any(is_within)
    }

    /// Records that a chunk file has its full length: missing content has no excuse any more.
    fn mark_complete(&self, ino: ChunkFileId) {
        let mut changing = self.0.lock();
        if !changing.files.is_empty() {
            changing.files.remove(&ino);
        }
    }
}

impl Store {
    /// Returns the chunk file for a change that begins at or beyond its byte `needed`; creates it
    /// if absent and `needed` is 0.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when it lacks bytes below `needed`.
    pub(crate) async fn find_with_len(&self, ino: ChunkFileId, needed: u64) -> Result<Arc<ChunkFile>> {
        let Some(file) = self.find(ino).await? else {
            if needed > 0 {
                self.require_explained_absence(ino, needed)?;
            }
            return self.find_or_create(ino).await;
        };
        if needed > file.min_len.load(Ordering::Relaxed) {
            Box::pin(self.require_len(&file, needed)).await?;
        }
        Ok(file)
    }

    /// Fails if a chunk file ends before `needed`.
    pub(crate) async fn require_len(&self, file: &Arc<ChunkFile>, needed: u64) -> Result<()> {
        let len = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len;
        file.min_len.store(len, Ordering::Relaxed);
        if len >= needed {
            self.at_crash.mark_complete(file.ino);
            self.incomplete.forget(file.ino);
            return Ok(());
        }
        // A file that is open after its deletion reads as an empty one.
        if file.deleted.load(Ordering::Acquire) || self.at_crash.covers(file.ino) {
            return Ok(());
        }
        Err(self.report_incomplete(file.ino, Some(len), needed))
    }

    /// Fails for an absent chunk file that is known to have bytes, unless a crash explains it.
    pub(crate) fn require_explained_absence(&self, ino: ChunkFileId, known: u64) -> Result<()> {
        if self.at_crash.covers(ino) { Ok(()) } else { Err(self.report_incomplete(ino, None, known)) }
    }

    /// Whether a chunk file was being changed when the store was last left without a shutdown: a
    /// part of it may never have been on disk.
    pub fn was_changing(&self, ino: ChunkFileId) -> bool {
        self.at_crash.covers(ino)
    }

    /// Number of chunk files that requests have found missing, or shorter than known, and that
    /// haven't been found complete since. At most [`MAX_INCOMPLETE`].
    pub fn incomplete_count(&self) -> u64 {
        self.incomplete.0.lock().len() as u64
    }

    #[cold]
    fn report_incomplete(&self, ino: ChunkFileId, len: Option<u64>, known: u64) -> StoreError {
        self.incomplete.record(ino);
        let path = paths::chunk_file(&self.dir, ino);
        let error = StoreError::incomplete((self.target(), ino), &path, len, known);
        self.report(ino, ByteRange::new(len.unwrap_or(0), known), error)
    }
}
