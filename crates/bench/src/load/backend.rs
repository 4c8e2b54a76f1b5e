//! The backend of a load: file operations, and the start of the load's threads.

use rt::IoBuf;
use std::future::Future;
use std::path::Path;
use std::sync::mpsc;
use types::{Errno, Error, Result};

use crate::experiment::{Caching, Through};

/// A way to access the files of a directory. Clones are equivalent.
///
/// Errors of its methods don't name the file: the caller adds it.
pub trait Backend: Clone + Send + Sync + 'static {
    /// An open file.
    type File: BackendFile + 'static;

    /// Access path, recorded with the results.
    const ACCESS_PATH: Through;

    /// Starts a thread of the load. For concurrent transfers (a file without
    /// [`BackendFile::kernel_file`] and a queue depth above one) it must be a task of a core of
    /// `rt`.
    fn start<F: Future<Output = ()> + 'static>(
        &self,
        number: u32,
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Result<()>;

    /// Opens a file for reading, and for writing if `is_write`, which creates it if it doesn't
    /// exist.
    fn open(&self, path: &Path, is_write: bool, caching: Caching)
    -> impl Future<Output = Result<Self::File>>;

    /// Drops the client's cache of a file that is not being written.
    fn drop_cache(&self, path: &Path) -> impl Future<Output = Result<()>>;

    /// Creates a directory.
    fn make_directory(&self, path: &Path) -> impl Future<Output = Result<()>>;

    /// Creates a file with this content.
    fn create(&self, path: &Path, content: &IoBuf) -> impl Future<Output = Result<()>>;

    /// Returns the length of a file in bytes.
    fn stat(&self, path: &Path) -> impl Future<Output = Result<u64>>;

    /// Opens, reads and closes a file; returns its length in bytes. The buffer is larger than the
    /// file.
    fn read_file(&self, path: &Path, buffer: &mut IoBuf) -> impl Future<Output = Result<u64>>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> impl Future<Output = Result<()>>;
}

/// An open file.
pub trait BackendFile {
    /// Writes all of a buffer at an offset, or fills it from there.
    fn transfer(&self, buffer: &mut IoBuf, offset: u64, is_write: bool) -> impl Future<Output = Result<()>>;

    /// Syncs everything that was written to disk.
    fn sync(&self) -> impl Future<Output = Result<()>>;

    /// Closes the file; every file must be closed.
    fn close(&self) -> impl Future<Output = ()>;

    /// Returns the kernel's file, if it is one: concurrent transfers use a ring then.
    fn kernel_file(&self) -> Option<&std::fs::File> {
        None
    }
}

/// Calls `what` with the bytes of a buffer that no call uses any more.
pub(super) fn with_bytes<T>(buffer: &mut IoBuf, what: impl FnOnce(&mut [u8]) -> T) -> T {
    match buffer.exclusive() {
        Some(bytes) => what(bytes),
        None => {
            // There is another handle to the buffer: leave it the old memory.
            *buffer = IoBuf::from_slice(buffer.as_slice());
            what(buffer.exclusive().expect("a fresh buffer has one handle"))
        }
    }
}

/// Runs a task in a place and waits for it.
///
/// # Errors
/// If no thread can be started there; errors of the task are in its result.
pub(super) fn wait_for<P: Backend, T: Send + 'static>(
    place: &P,
    what: impl AsyncFnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, done) = mpsc::channel();
    let body = move || async move {
        // The receiver waits for exactly this.
        let _ = sender.send(what().await);
    };
    place.start(0, body)?;
    done.recv().map_err(|_| Error::new(Errno::ECANCELED, "a thread ended because of a bug in weft"))
}
