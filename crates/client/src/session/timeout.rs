//! Time-out of an application's request when services don't answer.
//!
//! The transport bounds each call. This module bounds the other waits: for a file's I/O lock, for
//! the end of a recall, for the registration, for a service to answer again. Each ends with
//! `ETIMEDOUT` after the time-out of a call.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Default, if the mount sets no other; also the transport's default.
const DEFAULT: Duration = Duration::from_secs(60);

/// The longest time that a request waits.
pub(crate) struct RequestTimeout(AtomicU64);

impl Default for RequestTimeout {
    fn default() -> RequestTimeout {
        RequestTimeout(AtomicU64::new(DEFAULT.as_nanos() as u64))
    }
}

impl RequestTimeout {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
    pub(crate) fn set(&self, time_out: Duration) {
        self.0.store(time_out.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Waits for an event about a file, with the time-out of a request. `what` names the event in
    /// the error.
    pub(crate) async fn bound<T>(
        &self,
        (ino, what): (InodeId, &str),
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let time_out = self.get();
        rt::timeout(time_out, work).await.ok_or_else(|| blocked(ino, what, time_out))
    }
}

fn blocked(ino: InodeId, what: &str, waited: Duration) -> Error {
    let message = format!("inode {ino} is blocked by an earlier request: {what} took more than {waited:?}");
    Error::new(Errno::ETIMEDOUT, message)
        .hint("a service doesn't answer: weft health on the management node shows which")
}
