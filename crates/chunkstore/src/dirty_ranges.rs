//! Regions in which a replica may differ from others.
//!
//! The intent log knows them if it retains its entries longer than it needs them itself: until the
//! change is known to be on all replicas. The storage service knows that and holds the entries. The
//! dirty regions cover every difference:
//! - of bytes, in the dirty ranges of a file;
//! - of a file's length, and of its existence, in that any region of the file is dirty.

use crate::error::Result;
use crate::intent::EntryHold;
use crate::paths::{self, CHUNKS, inode_of};
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{ByteRange, ChunkFileId};

/// Folders of a level of the hash.
const FOLDERS: usize = 256;

impl Store {
    /// Retains entries that changes rely on from now on, until the result is dropped. Must be taken
    /// before a change, and dropped when all replicas have it. Cheap enough for every change.
    pub fn hold_entries(self: &Arc<Store>) -> EntryHold {
        self.intents.as_ref().map_or_else(EntryHold::empty, |log| log.holds().hold())
    }

    /// While this is set, no entry retires. A group's store that was left without a shutdown, or
    /// with entries, has it set from the start, until the replicas are known to be equal.
    pub fn retain_all_entries(&self, keep: bool) {
        if let Some(log) = &self.intents {
            log.holds().set_retain_all(keep);
        }
    }

    /// Whether the log couldn't retain all entries, or was lost: then the whole replica may differ.
    /// Stays so, also over restarts, until [`Store::clear_overflow`].
    pub fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::SeqCst) || self.intents.is_none()
    }

    /// Returns ranges that may differ from other replicas, by file and start, including deleted
    /// files: of whole files from `from` on, about `max` ranges, and where to continue.
    ///
    /// If [`Store::has_overflowed`], it lists all files as [`Store::files`] does, without files
    /// that only another replica has. A caller that fetches several parts must check for an
    /// overflow at the end.
    pub async fn dirty_ranges(
        &self,
        from: ChunkFileId,
        max: usize,
    ) -> Result<(Vec<(ChunkFileId, ByteRange)>, Option<ChunkFileId>)> {
        match &self.intents {
            Some(_) if !self.options.reports_differences => Ok((Vec::new(), None)),
            Some(log) if !self.has_overflowed() => {
                let (entries, next) = log.dirty_regions(from, max);
                Ok((entries.iter().map(|entry| (entry.ino, entry.bytes())).collect(), next))
            }
            _ => {
                let (files, next) = self.files(from, max).await?;
                let whole = |ino| (ino, ByteRange::new(0, u64::MAX));
                Ok((files.into_iter().map(whole).collect(), next))
            }
        }
    }

    /// Lists the inodes that have a chunk file: about `max`, and where to continue. From
    /// [`ChunkFileId`] 0 on it lists all of them, in an order that is the same for all stores.
    ///
    /// Files that are created or removed meanwhile may be missing or not.
    pub async fn files(
        &self,
        from: ChunkFileId,
        max: usize,
    ) -> Result<(Vec<ChunkFileId>, Option<ChunkFileId>)> {
        let (outer, inner) = paths::folders(from);
        let inner = format!("{inner:02x}");
        let first = (usize::from(outer), inner.as_str());
        let root = self.dir.join(CHUNKS);
        let mut found = Vec::new();
        for outer in first.0..FOLDERS {
            let dir = root.join(format!("{outer:02x}"));
            let mut inner: Vec<String> = self.names(&dir).await?;
            inner.sort_unstable();
            for name in inner {
                let place = (outer, name.as_str());
                if place < first {
                    continue;
                }
                let not_before = if place == first { from } else { ChunkFileId(0) };
                for ino in
                    self.inodes_in(&dir.join(&name)).await?.into_iter().filter(|ino| *ino >= not_before)
                {
                    if found.len() >= max.max(1) {
                        return Ok((found, Some(ino)));
                    }
                    found.push(ino);
                }
            }
        }
        Ok((found, None))
    }

    /// Sort key of inodes in the order of [`Store::files`].
    pub fn list_order(ino: ChunkFileId) -> (u8, u8, ChunkFileId) {
        let (outer, inner) = paths::folders(ino);
        (outer, inner, ino)
    }

    /// Lists the inodes of the chunk files of a folder, in order.
    pub(crate) async fn inodes_in(&self, folder: &std::path::Path) -> Result<Vec<ChunkFileId>> {
        let names = self.names(folder).await?;
        // A file in another folder than its own is foreign: no lookup would ever find it there.
        let at_home = |ino: &ChunkFileId| paths::folder(&self.dir, *ino) == folder;
        let mut inodes: Vec<ChunkFileId> =
            names.iter().filter_map(|name| inode_of(name)).filter(at_home).collect();
        inodes.sort_unstable();
        Ok(inodes)
    }
}
