//! Whether the metadata is older than the chunk files.
//!
//! A file's inode number is given out before its first chunk file is made. A chunk file whose
//! number the metadata hasn't given out yet belongs to a file that the metadata doesn't know any
//! more: its store went back in time, or lost its end. What looks like nobody's then is user data.

use crate::finding::Report;
use crate::tree::Tree;
use crate::{Orders, Progress, Subject, data};
use types::{Errno, Error, InodeId, Result};

/// What can be done about it.
pub(crate) const REMEDY: &str = "weft meta restore puts a newer copy of the metadata in its place; --accept-loss repairs all the same, and moves chunk files that no file has aside";

/// Whether the metadata has yet to give out the number of a chunk file's inode.
pub(crate) fn is_newer(tree: &Tree, name: InodeId) -> bool {
    let ino = name.of_chunk_file();
    let next = tree.next.get(&ino.partition()).map_or(0, |next| next.sequence);
    ino.sequence() >= next && tree.inode(ino).is_none()
}

/// Looks before the first repair whether the metadata is older than the chunk files.
///
/// # Errors
/// That it is, unless the orders accept what is lost.
pub(crate) async fn refuse(subject: &Subject<'_>, orders: &Orders<'_>, progress: Progress<'_>) -> Result<()> {
    if !orders.repair || orders.accept_loss {
        return Ok(());
    }
    let tree = Tree::read(subject, &mut Report::default(), progress)?;
    let (mut count, mut first) = (0, None);
    for (seat, store) in data::all_stores(subject) {
        let files = store.list().await.map_err(data::unreadable)?;
        for name in files.into_iter().filter(|name| is_newer(&tree, *name)) {
            count += 1;
            first.get_or_insert((seat, name));
        }
    }
    match first {
        None => Ok(()),
        Some((seat, name)) => {
            let message = format!(
                "the metadata looks older than the chunk files: {count} of them are of inodes that it has yet to make, as {:016x} on {seat} is",
                name.0
            );
            Err(Error::new(Errno::EIO, message).hint(REMEDY))
        }
    }
}
