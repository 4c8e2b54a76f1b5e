//! Where load is made: what can be done to files there, and what makes the threads of a load.

use rt::IoBuf;
use std::future::Future;
use std::path::Path;
use std::sync::mpsc;
use types::{Errno, Error, Result};

use crate::experiment::{Caching, Through};

/// A way to the files of a directory. Its clones mean the same.
///
/// Errors of its calls say what is wrong, and not with which file: whoever calls knows that.
pub trait Place: Clone + Send + Sync + 'static {
    /// A file that is open.
    type File: Transfers + 'static;

    /// What it is, for the figures that come of it.
    const THROUGH: Through;

    /// Starts a thread of the load. If transfers are to be under way side by side there (a file
    /// without [`Transfers::kernel_file`] and more than one at once), it is a task of a core of
    /// `rt`.
    fn start<F: Future<Output = ()> + 'static>(
        &self,
        number: u32,
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Result<()>;

    /// Opens a file for reading, and for writing if `is_write`, which makes it if it isn't there.
    fn open(&self, path: &Path, is_write: bool, caching: Caching)
    -> impl Future<Output = Result<Self::File>>;

    /// Drops what the client's cache has of a file that nobody writes meanwhile.
    fn forget(&self, path: &Path) -> impl Future<Output = Result<()>>;

    /// Makes a directory.
    fn make_directory(&self, path: &Path) -> impl Future<Output = Result<()>>;

    /// Makes a file with this content.
    fn create(&self, path: &Path, content: &IoBuf) -> impl Future<Output = Result<()>>;

    /// The length of a file, bytes.
    fn stat(&self, path: &Path) -> impl Future<Output = Result<u64>>;

    /// Opens, reads and closes a file; its length, bytes. The buffer is larger than the file.
    fn read_file(&self, path: &Path, buffer: &mut IoBuf) -> impl Future<Output = Result<u64>>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> impl Future<Output = Result<()>>;
}

/// A file that is open.
pub trait Transfers {
    /// Writes all of a buffer to an offset, or fills it from there.
    fn transfer(&self, buffer: &mut IoBuf, offset: u64, is_write: bool) -> impl Future<Output = Result<()>>;

    /// Has everything that was written on disk when it returns.
    fn sync(&self) -> impl Future<Output = Result<()>>;

    /// Closes it: not being called is a mistake.
    fn close(&self) -> impl Future<Output = ()>;

    /// The kernel's file, where it is one: transfers are under way side by side there by a ring.
    fn kernel_file(&self) -> Option<&std::fs::File> {
        None
    }
}

/// Does something with the bytes of a buffer that no call has any more.
pub(super) fn with_bytes<T>(buffer: &mut IoBuf, what: impl FnOnce(&mut [u8]) -> T) -> T {
    match buffer.exclusive() {
        Some(bytes) => what(bytes),
        None => {
            // Somebody has kept a handle to it: that one may keep it.
            *buffer = IoBuf::from_slice(buffer.as_slice());
            what(buffer.exclusive().expect("a fresh buffer has one handle"))
        }
    }
}

/// Does one thing at a place, and waits for it.
///
/// # Errors
/// If no thread can be started there; the thing's own are in what it gives.
pub(super) fn wait_for<P: Place, T: Send + 'static>(
    place: &P,
    what: impl AsyncFnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, done) = mpsc::channel();
    let body = move || async move {
        // The receiver waits for exactly this.
        let _ = sender.send(what().await);
    };
    place.start(0, body)?;
    done.recv().map_err(|_| Error::new(Errno::ECANCELED, "a thread ended by a mistake in weft"))
}
