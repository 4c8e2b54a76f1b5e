//! Time-out of an application's request when services don't answer.
//!
//! The transport bounds each call. This module bounds the other waits: for a file's I/O lock, for
//! the end of a recall, for the registration, for a service to answer again. Each ends with
//! `ETIMEDOUT` after the time-out of a call.

use crate::Client;
use crate::inode::OpenInode;
use rt::sync::{ReadGuard, WriteGuard};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Default, if the mount sets no other; also the transport's default.
const DEFAULT: Duration = Duration::from_secs(60);

/// The longest time that a request waits.
pub(crate) struct Patience(AtomicU64);

impl Default for Patience {
    fn default() -> Patience {
        Patience(AtomicU64::new(DEFAULT.as_nanos() as u64))
    }
}

impl Patience {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Client {
    /// Sets the time-out of a request, which is also that of the calls to services.
    pub fn set_patience(&self, patience: Duration) {
        self.patience.0.store(patience.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Takes a file's I/O lock shared, without a dirty extent (see `behind`).
    pub(crate) async fn share<'a>(&self, inode: &'a OpenInode) -> Result<ReadGuard<'a>> {
        loop {
            self.delivered(inode).await?;
            let guard = self.patiently((inode.ino, "whoever changes its shape"), inode.gate.read()).await?;
            if self.behind.is_none() || inode.content.lock().kept.is_none() {
                return Ok(guard);
            }
            drop(guard);
            drop(Box::pin(self.alone(inode)).await?);
        }
    }

    /// Takes a file's I/O lock exclusively, without a dirty extent.
    pub(crate) async fn alone<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        let guard = self.alone_as_it_is(inode).await?;
        if self.behind.is_some() {
            self.write_back(inode).await;
        }
        Ok(guard)
    }

    /// Takes a file's I/O lock exclusively, and leaves a dirty extent as it is.
    pub(crate) async fn alone_as_it_is<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        self.delivered(inode).await?;
        self.patiently((inode.ino, "those who use its content"), inode.gate.write()).await
    }

    /// Waits until an asynchronous create of the file is committed.
    async fn delivered(&self, inode: &OpenInode) -> Result<()> {
        // Boxed, since it is rare.
        if inode.promise().is_some() { Box::pin(self.keep_promise(inode)).await } else { Ok(()) }
    }

    /// Waits for an event about a file, with the time-out of a request. `what` names the event in
    /// the error.
    pub(crate) async fn patiently<T>(
        &self,
        (ino, what): (InodeId, &str),
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let patience = self.patience.get();
        patiently(patience, work).await.ok_or_else(|| held_up(ino, what, patience))
    }
}

fn held_up(ino: InodeId, what: &str, waited: Duration) -> Error {
    let message = format!("inode {ino} is held up by an earlier request: {what} took more than {waited:?}");
    Error::new(Errno::ETIMEDOUT, message)
        .hint("a service doesn't answer: weft health on the management node tells which")
}

/// Returns the result of `work`, or `None` after the time-out. Starts a timer only if `work` isn't
/// ready at once.
async fn patiently<T>(patience: Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut timeout: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            let timeout = timeout.get_or_insert_with(|| Box::pin(rt::sleep(patience)));
            timeout.as_mut().poll(context).map(|()| None)
        }
    })
    .await
}
