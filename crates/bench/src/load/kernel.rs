//! Files by ordinary system calls: a mount, or any other directory.

use super::backend::{Backend, BackendFile, with_bytes};
use super::directory::io_error;
use crate::experiment::{Caching, Through};
use rt::IoBuf;
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use types::{Errno, Result};

/// The system call backend: each call blocks until it is done.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Backend for Kernel {
    type File = File;

    const ACCESS_PATH: Through = Through::Mount;

    fn start<F: Future<Output = ()> + 'static>(
        &self,
        _number: u32,
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Result<()> {
        thread::Builder::new().spawn(move || drive(body())).map_err(io_error)?;
        Ok(())
    }

    async fn open(&self, path: &Path, is_write: bool, caching: Caching) -> Result<File> {
        let is_direct = caching == Caching::Direct;
        let flags = if is_direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let opened = OpenOptions::new()
            .read(true)
            .write(is_write)
            .create(is_write)
            .truncate(false)
            .custom_flags(flags)
            .open(path);
        opened.map_err(io_error).map_err(|error| match is_direct && error.errno == Errno::EINVAL {
            true => error.hint("this file system has no direct transfers: use --buffered"),
            false => error,
        })
    }

    async fn drop_cache(&self, path: &Path) -> Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error)?;
        file.sync_all().map_err(io_error)?;
        // A file system without this call has a cache that can't be dropped here; the notes on
        // caches depend on drop_caches.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        Ok(())
    }

    async fn make_directory(&self, path: &Path) -> Result<()> {
        fs::create_dir(path).map_err(io_error)
    }

    async fn create(&self, path: &Path, content: &IoBuf) -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(io_error)?;
        file.write_all(content.as_slice()).map_err(io_error)
    }

    async fn stat(&self, path: &Path) -> Result<u64> {
        Ok(fs::symlink_metadata(path).map_err(io_error)?.len())
    }

    async fn read_file(&self, path: &Path, buffer: &mut IoBuf) -> Result<u64> {
        let mut file = File::open(path).map_err(io_error)?;
        with_bytes(buffer, |bytes| {
            let mut done = 0;
            loop {
                match file.read(&mut bytes[done..]).map_err(io_error)? {
                    0 => return Ok(done as u64),
                    count => done += count,
                }
            }
        })
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(io_error)
    }
}

impl BackendFile for File {
    async fn transfer(&self, buffer: &mut IoBuf, offset: u64, is_write: bool) -> Result<()> {
        let done = match is_write {
            true => self.write_all_at(buffer.as_slice(), offset),
            false => with_bytes(buffer, |bytes| self.read_exact_at(bytes, offset)),
        };
        done.map_err(io_error)
    }

    async fn sync(&self) -> Result<()> {
        self.sync_all().map_err(io_error)
    }

    /// Dropping the file closes it.
    async fn close(&self) {}

    fn kernel_file(&self) -> Option<&File> {
        Some(self)
    }
}

/// Runs a future on this thread, which sleeps while it waits.
pub(super) fn drive<F: Future>(future: F) -> F::Output {
    struct Sleeper(thread::Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
