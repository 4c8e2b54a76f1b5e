//! What a session does that hears nothing of the metadata service any more.
//!
//! The service ends a session that it hasn't heard of for 15 s when somebody needs its leases. The session can't be told, so it has to
//! stop by itself before: after a shorter silence nothing that it holds counts any more, the kernel forgets everything, and what is asked of
//! the session waits until the service is heard of again, or for the patience of a request.
//!
//! The silence is counted from when the last question was *sent* that got an answer: the service can't have heard of it earlier. Clocks
//! of the two need not agree, only run at about the same speed.

use crate::Client;
use crate::recall::within;
use rt::sync::Event;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Silence after which nothing is relied on: the service waits for 15 s, and the kernel needs a moment to forget.
const LIMIT: Duration = Duration::from_secs(12);
/// How often the silence is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a request waits for the end of a silence that has lasted for longer than a request may wait: the service may just be back.
const LAST_CHANCE: Duration = Duration::from_secs(2);
/// Inodes that the kernel forgets side by side, and how long each may take: one whose page waits for the service is passed over, since
/// nobody can read that page.
const AT_ONCE: usize = 64;
const FORGET_LIMIT: Duration = Duration::from_millis(500);

/// When the service was heard of.
#[derive(Default)]
pub(crate) struct Silence {
    heard_ns: AtomicU64,
    ended: Event,
}

impl Client {
    /// The service has answered a question that was sent then, and the answer has been acted upon.
    pub(crate) fn heard(&self, sent_ns: u64) {
        self.silence.heard_ns.fetch_max(sent_ns, Ordering::AcqRel);
        if self.leases.set_suspended(false) {
            tracing::info!("the metadata service is heard of again");
            self.silence.ended.set();
            self.silence.ended.clear();
            self.leases.wake();
        }
    }

    fn is_silent(&self) -> bool {
        let heard_ns = self.silence.heard_ns.load(Ordering::Acquire);
        rt::monotonic_ns().saturating_sub(heard_ns) > LIMIT.as_nanos() as u64
    }

    /// Watches the silence for as long as the session lives.
    pub(crate) async fn watch_silence(self: Arc<Self>) {
        while self.over().is_none() {
            rt::sleep(LOOK_INTERVAL).await;
            if self.is_silent() && !self.leases.set_suspended(true) {
                tracing::warn!(
                    "the metadata service hasn't been heard of for {LIMIT:?}: nothing is served from memory"
                );
                self.forget_everything().await;
            }
        }
    }

    async fn forget_everything(&self) {
        let mut inodes: Vec<InodeId> = self.leases.all();
        inodes.extend(self.inodes.open_inodes().iter().map(|inode| inode.ino));
        for some in inodes.chunks(AT_ONCE) {
            let forgetting = some.iter().map(|&ino| async move {
                let inode = self.inodes.open(ino);
                within(FORGET_LIMIT, pin!(self.uncache(ino, inode.as_deref()))).await
            });
            rt::join_all(forgetting.collect()).await;
        }
    }

    /// Lets nothing pass while the service is silent.
    ///
    /// Errors: `ETIMEDOUT` when it has been so for as long as a request may wait; the session's when that has ended.
    pub(crate) async fn while_silent(&self) -> Result<()> {
        if !self.leases.is_suspended() {
            return Ok(());
        }
        let (heard_ns, patience) = (self.silence.heard_ns.load(Ordering::Acquire), self.patience.get());
        let last_chance_ns = rt::monotonic_ns() + LAST_CHANCE.as_nanos() as u64;
        let until_ns = heard_ns.saturating_add(patience.as_nanos() as u64).max(last_chance_ns);
        while self.leases.is_suspended() {
            if let Some(error) = self.over() {
                return Err(error);
            }
            if rt::monotonic_ns() > until_ns {
                let message = format!("the metadata service hasn't been heard of for {patience:?}");
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("check that it runs, and the way to it: weft health on the management node"));
            }
            within(LOOK_INTERVAL, pin!(self.silence.ended.wait())).await;
        }
        Ok(())
    }
}
