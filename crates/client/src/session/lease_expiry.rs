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
use crate::kernel::page_fill::Bypass;
use crate::session::services::Service;
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
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time that a request waits for a service that has not answered for longer than the
/// time-out of a request: it may just be back.
const MIN_WAIT: Duration = Duration::from_secs(2);
/// Inodes that the kernel drops concurrently.
const MAX_CONCURRENT_DROPS: usize = 64;
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
            rt::sleep(CHECK_INTERVAL).await;
            // The leases of all of them are suspended before the first inode is dropped.
            let mut expired = self.services.all();
            expired.retain(|service| has_expired(service) && !self.leases.set_suspended(service.node, true));
            for service in &expired {
                tracing::warn!(
                    node = %service.node,
                    "the metadata service hasn't answered for {EXPIRY_AFTER:?}: nothing of it is served from memory"
                );
            }
            let mut inodes: Vec<InodeId> =
                expired.iter().flat_map(|service| self.inodes_of(service)).collect();
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
            self.kernel.drop_cached(ino, inode.as_deref(), Bypass::Once).await;
        };
        let (next, slow) = (RefCell::new(inodes.iter()), RefCell::new(Vec::new()));
        let drop_next = async || {
            loop {
                let Some(&ino) = next.borrow_mut().next() else { return };
                let mut invalidation = Box::pin(forget(ino));
                if rt::timeout(SLOW_AFTER, invalidation.as_mut()).await.is_none() {
                    slow.borrow_mut().push(invalidation);
                }
            }
        };
        rt::join_all((0..MAX_CONCURRENT_DROPS.min(inodes.len())).map(|_| drop_next()).collect()).await;
        let slow = pin!(rt::join_all(slow.take()));
        match limit {
            Some(limit) => _ = rt::timeout(limit, slow).await,
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
        let owner = self.services.owner_of(ino.partition());
        let owner = owner.ok();
        let answered_ns = owner.as_ref().map(|service| service.answered_ns.load(Ordering::Acquire));
        let answered_ns = answered_ns.unwrap_or_else(rt::monotonic_ns);
        let time_out = self.request_timeout.get();
        let min_wait_until_ns = rt::monotonic_ns() + MIN_WAIT.as_nanos() as u64;
        let until_ns = answered_ns.saturating_add(time_out.as_nanos() as u64).max(min_wait_until_ns);
        while self.leases.is_suspended(ino) {
            if let Some(error) = self.end_cause() {
                return Err(error);
            }
            owner.as_ref().and_then(|service| service.refusal()).map_or(Ok(()), Err)?;
            if rt::monotonic_ns() > until_ns {
                let message = format!("the metadata service hasn't answered for {time_out:?}");
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("check that it is running and reachable: weft health on the management node"));
            }
            rt::timeout(CHECK_INTERVAL, self.lease_expiry.resumed.wait()).await;
        }
        Ok(())
    }
}

fn has_expired(service: &Service) -> bool {
    let answered_ns = service.answered_ns.load(Ordering::Acquire);
    service.is_registered() && rt::monotonic_ns().saturating_sub(answered_ns) > EXPIRY_AFTER.as_nanos() as u64
}
