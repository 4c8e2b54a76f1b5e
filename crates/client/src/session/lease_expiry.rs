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

use crate::session::Session;
use crate::session::services::Service;
use rt::sync::Event;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};

/// Time without an answer after which leases are suspended: the service waits for 15 s, and the
/// kernel needs a moment to drop its caches.
const EXPIRY_AFTER: Duration = Duration::from_secs(12);
/// How often that time is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time that a request waits for a service that has not answered for longer than the
/// time-out of a request: it may just be back.
const MIN_WAIT: Duration = Duration::from_secs(2);
/// Set when a service answers again.
#[derive(Default)]
pub(crate) struct LeaseExpiry {
    resumed: Event,
}

impl Session {
    /// Records that a service has answered a request that was sent at `sent_ns`, and that the
    /// answer has been processed. The leases are suspended until the answer to a request that was
    /// sent recently: an old one, which a process finds when it runs again after it was stopped,
    /// doesn't show that the service still knows the session.
    pub(super) fn note_answer(&self, service: &Service, sent_ns: u64) {
        service.answered_ns.fetch_max(sent_ns, Ordering::AcqRel);
        service.end_refusal();
        if !is_outdated(sent_ns) && self.leases.set_suspended(service.node, false) {
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

    /// Suspends the leases of services that haven't answered for too long. Returns the inodes that
    /// this session caches under them; `open`: the inodes of its open files.
    pub(crate) fn suspend_expired(&self, open: impl Fn() -> Vec<InodeId>) -> Vec<InodeId> {
        // The leases of all of them are suspended before the first inode is dropped.
        let mut expired = self.services.all();
        expired.retain(|service| has_expired(service) && !self.leases.set_suspended(service.node, true));
        let mut inodes = Vec::new();
        for service in &expired {
            tracing::warn!(
                node = %service.node,
                "the metadata service hasn't answered for {EXPIRY_AFTER:?}: nothing of it is served from memory"
            );
            inodes.extend(self.leases.inodes_leased_by(service.node));
            inodes.extend(open().into_iter().filter(|&ino| self.services.owns(service, ino)));
        }
        inodes.sort_unstable();
        inodes.dedup();
        inodes
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
    service.is_registered() && is_outdated(service.answered_ns.load(Ordering::Acquire))
}

/// Whether leases have expired if the last answered request was sent then.
fn is_outdated(sent_ns: u64) -> bool {
    rt::monotonic_ns().saturating_sub(sent_ns) > EXPIRY_AFTER.as_nanos() as u64
}
