//! Where a copy may differ from others.
//!
//! The notes of the intent log tell that, if they stay longer than the log itself needs them: until
//! the noted change is known to be on all copies. Who knows that holds them. What is noted covers
//! every difference:
//! - of bytes, in the noted ranges of a file;
//! - of a file's length, and of whether there is one, in that anything of the file is noted.

use crate::error::Result;
use crate::intent::NoteHold;
use crate::place::{self, CHUNKS, inode_of};
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{ByteRange, InodeId};

/// Folders of a level of the hash.
const FOLDERS: usize = 256;

impl Store {
    /// Notes that are relied on from now on don't retire while this lives: to be taken before a
    /// change, and let go when all copies have it. Cheap enough for every change.
    pub fn hold_notes(self: &Arc<Store>) -> NoteHold {
        self.intents.as_ref().map_or_else(NoteHold::of_nothing, |log| log.holds().hold())
    }

    /// No note retires while this is set. A group's store that was left without a shutdown, or with
    /// notes, has it set from the start, until somebody knows that the copies are equal.
    pub fn keep_all_notes(&self, keep: bool) {
        if let Some(log) = &self.intents {
            log.holds().keep_everything(keep);
        }
    }

    /// More was noted than the log takes, or the log was lost: all of this copy may differ. Stays
    /// so, also over restarts, until [`Store::forget_overflow`].
    pub fn notes_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::SeqCst) || self.intents.is_none()
    }

    /// Ranges that may differ from other copies, by file and start, also of files that are gone: of
    /// whole files from `from` on, about `max` ranges, and where to go on.
    ///
    /// When [`Store::notes_overflowed`], it lists all files as [`Store::files`] does, which says
    /// nothing of files that only another copy has; who has asked for several parts asks for that
    /// at the end.
    pub async fn noted(
        &self,
        from: InodeId,
        max: usize,
    ) -> Result<(Vec<(InodeId, ByteRange)>, Option<InodeId>)> {
        match &self.intents {
            Some(_) if !self.options.tells_differences => Ok((Vec::new(), None)),
            Some(log) if !self.notes_overflowed() => {
                let (notes, next) = log.noted(from, max);
                Ok((notes.iter().map(|note| (note.ino, note.bytes())).collect(), next))
            }
            _ => {
                let (files, next) = self.files(from, max).await?;
                let whole = |ino| (ino, ByteRange::new(0, u64::MAX));
                Ok((files.into_iter().map(whole).collect(), next))
            }
        }
    }

    /// The inodes that have a chunk file: about `max`, and where to go on. From [`InodeId`] 0 on it
    /// is all of them, in an order of the store's own, which is the same for all stores.
    ///
    /// Files that are made or removed meanwhile may be missing or not.
    pub async fn files(&self, from: InodeId, max: usize) -> Result<(Vec<InodeId>, Option<InodeId>)> {
        let (outer, inner) = place::folders(from);
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
                let not_before = if place == first { from } else { InodeId(0) };
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

    /// What sorts inodes in the order of [`Store::files`].
    pub fn place_in_order(ino: InodeId) -> (u8, u8, InodeId) {
        let (outer, inner) = place::folders(ino);
        (outer, inner, ino)
    }

    /// The inodes of the chunk files of a folder, in order.
    pub(crate) async fn inodes_in(&self, folder: &std::path::Path) -> Result<Vec<InodeId>> {
        let names = self.names(folder).await?;
        // A name that is in another folder than its own is a stranger's: nobody would ever look for
        // it there.
        let at_home = |ino: &InodeId| place::folder(&self.dir, *ino) == folder;
        let mut inodes: Vec<InodeId> =
            names.iter().filter_map(|name| inode_of(name)).filter(at_home).collect();
        inodes.sort_unstable();
        Ok(inodes)
    }
}
