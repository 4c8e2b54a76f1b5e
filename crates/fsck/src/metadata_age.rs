//! Detects metadata that is older than the chunk files.
//!
//! An inode number is allocated before the file's first chunk file is created. A chunk file with a
//! number that the metadata hasn't allocated yet belongs to a file that the metadata has lost: the
//! store was rolled back, or lost the end of its journal. Then chunk files that seem orphaned are
//! user data.

use crate::finding::CheckReport;
use crate::tree::Tree;
use crate::{CheckOptions, Progress, Subject, data};
use types::{ChunkFileId, Errno, Error, Result};

/// Remedy for older metadata.
pub(crate) const REMEDY: &str = "restore a newer backup of the metadata with weft meta restore; --accept-loss repairs anyway, and moves orphaned chunk files aside";

/// Returns whether the metadata hasn't yet allocated the inode number of a chunk file.
pub(crate) fn is_unallocated(tree: &Tree, name: ChunkFileId) -> bool {
    let ino = name.owner();
    let next = tree.counters.get(&ino.partition()).map_or(0, |next| next.sequence);
    ino.sequence() >= next && tree.inode(ino).is_none()
}

/// Checks before the first repair whether the metadata is older than the chunk files.
///
/// # Errors
/// If it is, unless the orders accept the loss.
pub(crate) async fn check_age(
    subject: &Subject<'_>,
    options: &CheckOptions<'_>,
    progress: Progress<'_>,
) -> Result<()> {
    if !options.repair || options.accept_loss {
        return Ok(());
    }
    let mut unused = CheckReport::default();
    let tree = Tree::read(subject.metadata, subject.partitions, &mut unused, progress).await?;
    let (mut count, mut first) = (0, None);
    for (location, store) in data::all_stores(subject) {
        let files = store.list().await.map_err(data::store_error)?;
        for name in files.into_iter().filter(|name| is_unallocated(&tree, *name)) {
            count += 1;
            first.get_or_insert((location, name));
        }
    }
    match first {
        None => Ok(()),
        Some((location, name)) => {
            let message = format!(
                "the metadata looks older than the chunk files: {count} of them belong to inodes that it hasn't allocated yet, such as {:016x} on {location}",
                name.0
            );
            Err(Error::new(Errno::EIO, message).hint(REMEDY))
        }
    }
}
