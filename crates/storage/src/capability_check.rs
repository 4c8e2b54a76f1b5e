//! Access control: the service demands capabilities of clients and verifies them.
//!
//! A check costs a lookup in the cache of the core; a core computes the code of a capability when
//! it sees that capability for the first time.

use crate::group;
use identity::{Capability, CapabilityRefusal, CapabilityRing, CoreCapabilityCache, Rights};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, Result, SessionId};
use wire::StorageRequest;
use wire::spec::Right;

/// How long a request with an unknown key waits for that key. Management distributes a new key
/// before it signs with it, but this node may have just started or been cut off.
const KEY_TIMEOUT: Duration = Duration::from_secs(5);

/// How often such a request checks for the key.
const KEY_POLL: Duration = Duration::from_millis(50);

/// At most one log line about refused requests in this time.
const REFUSAL_LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// Demands and verifies capabilities.
pub(crate) struct CapabilityCheck {
    ring: Arc<CapabilityRing>,
    /// When a refusal was last logged.
    logged_ns: AtomicU64,
}

/// Capabilities that a core has verified.
#[derive(Default)]
struct CoreCache(RefCell<CoreCapabilityCache>);

impl CapabilityCheck {
    pub(crate) fn new(ring: Arc<CapabilityRing>) -> CapabilityCheck {
        CapabilityCheck { ring, logged_ns: AtomicU64::new(0) }
    }

    /// Refuses what the request's capability doesn't allow. Services need none: the transport
    /// admits them by their roles (`wire::authorization`).
    pub(crate) async fn check(&self, name: &str, holder: u64, request: &StorageRequest) -> Result<()> {
        let wanted = match request.op.spec().right {
            Some(Right::Read) => Rights::READ,
            Some(Right::Write) => Rights::WRITE,
            None => return Ok(()),
        };
        // The primary has looked at what it sends on; only nodes with a member of the group send
        // it.
        if request.session == SessionId(0) || group::is_from_primary(request) {
            return Ok(());
        }
        match self.verify(holder, request, wanted) {
            Ok(()) => Ok(()),
            Err(Some(CapabilityRefusal::UnknownKey(_))) => {
                self.wait_for_key(name, holder, request, wanted).await
            }
            Err(refusal) => Err(self.refuse(name, request, refusal)),
        }
    }

    fn verify(
        &self,
        holder: u64,
        request: &StorageRequest,
        wanted: Rights,
    ) -> Result<(), Option<CapabilityRefusal>> {
        let capability = request.capability.ok_or(None)?;
        let capability = Capability::from_bytes(&capability.0)?;
        let now = self.ring.cluster_time_s(rt::monotonic_ns());
        let cache = rt::local::<CoreCache>();
        let grant = self.ring.verify(&mut cache.0.borrow_mut(), &capability, now)?;
        grant.check(request.session, holder, request.ino.owner(), wanted)?;
        if request.epoch > grant.epoch { Err(Some(CapabilityRefusal::EarlierEpoch)) } else { Ok(()) }
    }

    #[cold]
    async fn wait_for_key(
        &self,
        name: &str,
        holder: u64,
        request: &StorageRequest,
        wanted: Rights,
    ) -> Result<()> {
        let began_ns = rt::monotonic_ns();
        loop {
            rt::sleep(KEY_POLL).await;
            let is_over = rt::monotonic_ns() - began_ns > KEY_TIMEOUT.as_nanos() as u64;
            match self.verify(holder, request, wanted) {
                Ok(()) => return Ok(()),
                Err(Some(CapabilityRefusal::UnknownKey(_))) if !is_over => {}
                Err(refusal) => return Err(self.refuse(name, request, refusal)),
            }
        }
    }

    #[cold]
    fn refuse(&self, name: &str, request: &StorageRequest, refusal: Option<CapabilityRefusal>) -> Error {
        let (now_ns, last_ns) = (rt::monotonic_ns(), self.logged_ns.load(Ordering::Relaxed));
        let cause = refusal.map_or("the request has no capability".into(), |refusal| refusal.to_string());
        // An expired one is normal: the client gets another.
        let is_routine = refusal.is_some_and(CapabilityRefusal::is_stale);
        if !is_routine && (last_ns == 0 || now_ns.saturating_sub(last_ns) > REFUSAL_LOG_INTERVAL_NS) {
            self.logged_ns.store(now_ns.max(1), Ordering::Relaxed);
            tracing::warn!(
                client = name, session = request.session.0, ino = %request.ino, target_id = %request.target,
                "a request was refused: {cause}"
            );
        }
        match refusal {
            Some(refusal) => refusal.into(),
            None => Error::new(Errno::EACCES, cause).hint("install the same version of weft on all machines"),
        }
    }
}
