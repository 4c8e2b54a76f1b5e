//! What a session does that hears nothing of a metadata service any more.
//!
//! The service ends a session that it hasn't heard of for 15 s when somebody needs its leases. The
//! session can't be told, so it has to stop by itself before: after a shorter silence nothing that
//! it holds of that service counts any more, the kernel forgets all of it, and what is asked of the
//! session about it waits until the service is heard of again, or for the patience of a request.
//! When the partitions of a dead service are given to another, the session follows them there, and
//! nothing waits any more.
//!
//! The silence is counted from when the last question was *sent* that got an answer: the service
//! can't have heard of it earlier. Clocks of the two need not agree, only run at about the same
//! speed.

use crate::Client;
use crate::fill::Pass;
use crate::recall::within;
use crate::services::Service;
use rt::sync::Event;
use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Silence after which nothing is relied on: the service waits for 15 s, and the kernel needs a
/// moment to forget.
const LIMIT: Duration = Duration::from_secs(12);
/// How often the silence is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a request waits for the end of a silence that has lasted for longer than a request may
/// wait: the service may just be back.
const LAST_CHANCE: Duration = Duration::from_secs(2);
/// Inodes that the kernel forgets side by side.
const AT_ONCE: usize = 64;
/// How long one keeps others waiting: a page of it that waits for the service keeps it from being
/// forgotten, and there may be many such.
const PROMPT: Duration = Duration::from_millis(20);
/// How long those are waited for in the end, all together. They are passed over then, since nobody
/// can read those pages.
const FORGET_LIMIT: Duration = Duration::from_millis(500);

/// Waiting for its end.
#[derive(Default)]
pub(crate) struct Silence {
    ended: Event,
}

impl Client {
    /// A service has answered a question that was sent then, and the answer has been acted upon.
    pub(crate) fn heard(&self, service: &Service, sent_ns: u64) {
        service.heard_ns.fetch_max(sent_ns, Ordering::AcqRel);
        service.end_refusal();
        if self.leases.set_suspended(service.node, false) {
            tracing::info!(node = %service.node, "the metadata service is heard of again");
            self.look_again();
        }
    }

    /// Lets those look again who wait for the end of a silence.
    pub(crate) fn look_again(&self) {
        self.silence.ended.set();
        self.silence.ended.clear();
        self.leases.wake();
    }

    /// Watches the silence for as long as the session lives.
    pub(crate) async fn watch_silence(self: Arc<Self>) {
        while self.over().is_none() {
            rt::sleep(LOOK_INTERVAL).await;
            // Nothing of any of them is relied on before the first is forgotten.
            let mut silent = self.services.all();
            silent.retain(|service| is_silent(service) && !self.leases.set_suspended(service.node, true));
            for service in &silent {
                tracing::warn!(
                    node = %service.node,
                    "the metadata service hasn't been heard of for {LIMIT:?}: nothing of it is served from memory"
                );
            }
            let mut inodes: Vec<InodeId> =
                silent.iter().flat_map(|service| self.inodes_of(service)).collect();
            inodes.sort_unstable();
            inodes.dedup();
            self.forget_inodes(&inodes, Some(FORGET_LIMIT)).await;
        }
    }

    /// What is known here of a service's inodes.
    fn inodes_of(&self, service: &Service) -> Vec<InodeId> {
        let mut inodes = self.leases.of(service.node);
        let open = self.inodes.open_inodes();
        inodes.extend(open.iter().map(|inode| inode.ino).filter(|&ino| self.services.executes(service, ino)));
        inodes
    }

    /// Has the kernel forget inodes. One that takes its time keeps no other from being forgotten;
    /// if there is a limit, such are waited for for so long.
    pub(crate) async fn forget_inodes(&self, inodes: &[InodeId], limit: Option<Duration>) {
        let forget = async |ino| {
            let inode = self.inodes.open(ino);
            self.uncache(ino, inode.as_deref(), Pass::Once).await;
        };
        let (next, slow) = (RefCell::new(inodes.iter()), RefCell::new(Vec::new()));
        let in_turn = async || {
            loop {
                let Some(&ino) = next.borrow_mut().next() else { return };
                let mut forgetting = Box::pin(forget(ino));
                if within(PROMPT, forgetting.as_mut()).await.is_none() {
                    slow.borrow_mut().push(forgetting);
                }
            }
        };
        rt::join_all((0..AT_ONCE.min(inodes.len())).map(|_| in_turn()).collect()).await;
        let slow = pin!(rt::join_all(slow.take()));
        match limit {
            Some(limit) => _ = within(limit, slow).await,
            None => _ = slow.await,
        }
    }

    /// Lets nothing pass of an inode while the service is silent that granted the lease on it.
    ///
    /// Errors: `ETIMEDOUT` when it has been so for as long as a request may wait; the service's
    /// refusal, when it is silent only to this client; the session's when that has ended.
    pub(crate) async fn while_silent(&self, ino: InodeId) -> Result<()> {
        if !self.leases.is_suspended(ino) {
            return Ok(());
        }
        let executing = self.services.executing(ino.partition());
        let executing = executing.ok();
        let heard_ns = executing.as_ref().map(|service| service.heard_ns.load(Ordering::Acquire));
        let heard_ns = heard_ns.unwrap_or_else(rt::monotonic_ns);
        let patience = self.patience.get();
        let last_chance_ns = rt::monotonic_ns() + LAST_CHANCE.as_nanos() as u64;
        let until_ns = heard_ns.saturating_add(patience.as_nanos() as u64).max(last_chance_ns);
        while self.leases.is_suspended(ino) {
            if let Some(error) = self.over() {
                return Err(error);
            }
            executing.as_ref().and_then(|service| service.refusal()).map_or(Ok(()), Err)?;
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

fn is_silent(service: &Service) -> bool {
    let heard_ns = service.heard_ns.load(Ordering::Acquire);
    service.is_registered() && rt::monotonic_ns().saturating_sub(heard_ns) > LIMIT.as_nanos() as u64
}
