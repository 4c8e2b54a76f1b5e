//! How long a program is kept waiting for services that don't answer.
//!
//! The transport bounds each call. Here are the other waits: for one's turn at a file, for the end
//! of a recall, for the registration, for the end of a silence. Each ends with `ETIMEDOUT` when it
//! has lasted as long as a call may.

use crate::Client;
use crate::inode::OpenInode;
use rt::sync::{ReadGuard, WriteGuard};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Unless the mount says otherwise; the transport's default, too.
const DEFAULT: Duration = Duration::from_secs(60);

/// How long a wait may be.
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
    /// Says how long a request may wait where services don't answer: as long as the calls to them
    /// may take.
    pub fn set_patience(&self, patience: Duration) {
        self.patience.0.store(patience.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Shared use of a file, as soon as whoever changes its shape lets go of it. Nothing is kept of
    /// it (see `behind`).
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

    /// Use of a file by nobody else. Nothing is kept of it.
    pub(crate) async fn alone<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        let guard = self.alone_as_it_is(inode).await?;
        if self.behind.is_some() {
            self.write_back(inode).await;
        }
        Ok(guard)
    }

    /// The same, and what is kept of it stays so.
    pub(crate) async fn alone_as_it_is<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        self.delivered(inode).await?;
        self.patiently((inode.ino, "those who use its content"), inode.gate.write()).await
    }

    /// The service has the file, which may have been promised only.
    async fn delivered(&self, inode: &OpenInode) -> Result<()> {
        // Apart, since it is rare.
        if inode.promise().is_some() { Box::pin(self.keep_promise(inode)).await } else { Ok(()) }
    }

    /// Waits for something about a file that others are to bring about: `what` says in an error
    /// what was waited for.
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

/// What a future comes to within a time. The clock is looked at only when there is something to
/// wait for.
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
