//! Lease expiry and self-fencing: the session stops when a metadata service doesn't answer.
//!
//! When other sessions need its leases, the service ends a session that hasn't contacted it for 15
//! s. It can't inform the session, so the session must stop by itself before. After a shorter time
//! without an answer, the leases of that service are suspended, and the kernel drops everything
//! cached under them. Requests that need them wait until the service answers again, or for the
//! time-out of a request. When the partitions of a dead service are given to another, the session
//! follows them there, and the waits end.
//!
//! The time counts from when the last answered request was *sent*: the service can't have received
//! it earlier. The two clocks need not agree, only run at about the same speed.

use crate::Client;
use crate::page_fill::Bypass;
use crate::recall::with_deadline;
use crate::services::Service;
use rt::sync::Event;
use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Time without an answer after which leases are suspended: the service waits for 15 s, and the
/// kernel needs a moment to drop its caches.
const EXPIRY_AFTER: Duration = Duration::from_secs(12);
/// How often that time is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time that a request waits for a service that has not answered for longer than the
/// time-out of a request: it may just be back.
const MIN_WAIT: Duration = Duration::from_secs(2);
/// Inodes that the kernel drops concurrently.
const AT_ONCE: usize = 64;
/// How long one inode may delay others: a page that waits for the service keeps its inode from
/// being dropped, and there may be many such.
const SLOW_AFTER: Duration = Duration::from_millis(20);
/// How long the client waits for these in the end, all together. Then it skips them, since no
/// application can read those pages.
const SLOW_DROPS_TIMEOUT: Duration = Duration::from_millis(500);

/// Set when a service answers again.
#[derive(Default)]
pub(crate) struct LeaseExpiry {
    resumed: Event,
}

impl Client {
    /// Records that a service has answered a request that was sent at `sent_ns`, and that the
    /// answer has been processed.
    pub(crate) fn note_answer(&self, service: &Service, sent_ns: u64) {
        service.answered_ns.fetch_max(sent_ns, Ordering::AcqRel);
        service.end_refusal();
        if self.leases.set_suspended(service.node, false) {
            tracing::info!(node = %service.node, "the metadata service is reachable again");
            self.wake_suspended();
        }
    }

    /// Wakes the tasks that wait for a service to answer again, so that they check again.
    pub(crate) fn wake_suspended(&self) {
        self.lease_expiry.resumed.set();
        self.lease_expiry.resumed.clear();
        self.leases.wake();
    }

    /// Suspends leases that expire, for as long as the session lives.
    pub(crate) async fn watch_lease_expiry(self: Arc<Self>) {
        while self.end_cause().is_none() {
            rt::sleep(LOOK_INTERVAL).await;
            // The leases of all of them are suspended before the first inode is dropped.
            let mut silent = self.services.all();
            silent.retain(|service| is_silent(service) && !self.leases.set_suspended(service.node, true));
            for service in &silent {
                tracing::warn!(
                    node = %service.node,
                    "the metadata service hasn't answered for {EXPIRY_AFTER:?}: nothing of it is served from memory"
                );
            }
            let mut inodes: Vec<InodeId> =
                silent.iter().flat_map(|service| self.inodes_of(service)).collect();
            inodes.sort_unstable();
            inodes.dedup();
            self.drop_inodes(&inodes, Some(SLOW_DROPS_TIMEOUT)).await;
        }
    }

    /// Returns the inodes of a service that this session caches.
    fn inodes_of(&self, service: &Service) -> Vec<InodeId> {
        let mut inodes = self.leases.inodes_leased_by(service.node);
        let open = self.inodes.open_inodes();
        inodes.extend(open.iter().map(|inode| inode.ino).filter(|&ino| self.services.owns(service, ino)));
        inodes
    }

    /// Has the kernel drop inodes. A slow one delays no other; with a `limit`, slow ones are waited
    /// for that long in total.
    pub(crate) async fn drop_inodes(&self, inodes: &[InodeId], limit: Option<Duration>) {
        let forget = async |ino| {
            let inode = self.inodes.open(ino);
            self.drop_cached(ino, inode.as_deref(), Bypass::Once).await;
        };
        let (next, slow) = (RefCell::new(inodes.iter()), RefCell::new(Vec::new()));
        let in_turn = async || {
            loop {
                let Some(&ino) = next.borrow_mut().next() else { return };
                let mut forgetting = Box::pin(forget(ino));
                if with_deadline(SLOW_AFTER, forgetting.as_mut()).await.is_none() {
                    slow.borrow_mut().push(forgetting);
                }
            }
        };
        rt::join_all((0..AT_ONCE.min(inodes.len())).map(|_| in_turn()).collect()).await;
        let slow = pin!(rt::join_all(slow.take()));
        match limit {
            Some(limit) => _ = with_deadline(limit, slow).await,
            None => _ = slow.await,
        }
    }

    /// Waits while the lease on an inode is suspended because its service doesn't answer.
    ///
    /// Errors: `ETIMEDOUT` after the time-out of a request; the service's refusal, if it refuses
    /// only this client; the session's error when it has ended.
    pub(crate) async fn wait_while_suspended(&self, ino: InodeId) -> Result<()> {
        if !self.leases.is_suspended(ino) {
            return Ok(());
        }
        let executing = self.services.owner_of(ino.partition());
        let executing = executing.ok();
        let heard_ns = executing.as_ref().map(|service| service.answered_ns.load(Ordering::Acquire));
        let heard_ns = heard_ns.unwrap_or_else(rt::monotonic_ns);
        let patience = self.request_timeout.get();
        let last_chance_ns = rt::monotonic_ns() + MIN_WAIT.as_nanos() as u64;
        let until_ns = heard_ns.saturating_add(patience.as_nanos() as u64).max(last_chance_ns);
        while self.leases.is_suspended(ino) {
            if let Some(error) = self.end_cause() {
                return Err(error);
            }
            executing.as_ref().and_then(|service| service.refusal()).map_or(Ok(()), Err)?;
            if rt::monotonic_ns() > until_ns {
                let message = format!("the metadata service hasn't answered for {patience:?}");
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("check that it is running and reachable: weft health on the management node"));
            }
            with_deadline(LOOK_INTERVAL, pin!(self.lease_expiry.resumed.wait())).await;
        }
        Ok(())
    }
}

fn is_silent(service: &Service) -> bool {
    let heard_ns = service.answered_ns.load(Ordering::Acquire);
    service.is_registered() && rt::monotonic_ns().saturating_sub(heard_ns) > EXPIRY_AFTER.as_nanos() as u64
}
