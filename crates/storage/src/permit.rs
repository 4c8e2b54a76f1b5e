//! Who may do what: capabilities are demanded of clients, and checked.
//!
//! A check costs a look into what the core remembers; the code of a capability is computed when the
//! core sees it for the first time.

use crate::mirror;
use identity::{Capability, CapabilityRing, CoreRing, Refusal, Rights};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, Result, SessionId};
use wire::{StorageOp, StorageRequest};

/// How long a request with a key that isn't known here waits for it: management tells the nodes of
/// a new one before it signs, but this one may just have been started or cut off.
const KEY_PATIENCE: Duration = Duration::from_secs(5);

/// How often such a request looks again.
const KEY_POLL: Duration = Duration::from_millis(50);

/// No more than one line about refused requests in this time.
const QUIET_NS: u64 = 1_000_000_000;

/// Demands capabilities.
pub(crate) struct Permit {
    ring: Arc<CapabilityRing>,
    /// When a refusal was logged last.
    logged_ns: AtomicU64,
}

/// What a core remembers.
#[derive(Default)]
struct Remembered(RefCell<CoreRing>);

impl Permit {
    pub(crate) fn new(ring: Arc<CapabilityRing>) -> Permit {
        Permit { ring, logged_ns: AtomicU64::new(0) }
    }

    /// Refuses what its capability doesn't allow. Services need none: the transport admits them by
    /// their roles (`wire::authorization`).
    pub(crate) async fn check(&self, name: &str, holder: u64, request: &StorageRequest) -> Result<()> {
        let Some(wanted) = wanted(&request.op) else { return Ok(()) };
        // The primary has looked at what it sends on; only nodes with a member of the group send
        // it.
        if request.session == SessionId(0) || mirror::is_between_members(request) {
            return Ok(());
        }
        match self.look(holder, request, wanted) {
            Ok(()) => Ok(()),
            Err(Some(Refusal::UnknownKey(_))) => self.wait_for_key(name, holder, request, wanted).await,
            Err(refusal) => Err(self.refuse(name, request, refusal)),
        }
    }

    fn look(&self, holder: u64, request: &StorageRequest, wanted: Rights) -> Result<(), Option<Refusal>> {
        let capability = request.capability.ok_or(None)?;
        let capability = Capability::from_bytes(&capability.0)?;
        let now = self.ring.time_s(rt::monotonic_ns());
        let remembered = rt::local::<Remembered>();
        let grant = self.ring.verify(&mut remembered.0.borrow_mut(), &capability, now)?;
        grant.check(request.session, holder, request.ino.of_chunk_file(), wanted)?;
        if request.epoch > grant.epoch { Err(Some(Refusal::EarlierEpoch)) } else { Ok(()) }
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
            let is_over = rt::monotonic_ns() - began_ns > KEY_PATIENCE.as_nanos() as u64;
            match self.look(holder, request, wanted) {
                Ok(()) => return Ok(()),
                Err(Some(Refusal::UnknownKey(_))) if !is_over => {}
                Err(refusal) => return Err(self.refuse(name, request, refusal)),
            }
        }
    }

    #[cold]
    fn refuse(&self, name: &str, request: &StorageRequest, refusal: Option<Refusal>) -> Error {
        let (now_ns, last_ns) = (rt::monotonic_ns(), self.logged_ns.load(Ordering::Relaxed));
        let cause = refusal.map_or("there is no capability".into(), |refusal| refusal.to_string());
        // One that has only run out is everyday: the client gets another.
        let is_everyday = refusal.is_some_and(Refusal::is_stale);
        if !is_everyday && (last_ns == 0 || now_ns.saturating_sub(last_ns) > QUIET_NS) {
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

/// What a request needs the right to; `None` for what is no file's.
fn wanted(op: &StorageOp) -> Option<Rights> {
    match op {
        StorageOp::Read { .. } | StorageOp::Sync | StorageOp::Stat | StorageOp::Seek { .. } => {
            Some(Rights::READ)
        }
        StorageOp::Write { .. }
        | StorageOp::Truncate { .. }
        | StorageOp::Allocate { .. }
        | StorageOp::Room { .. }
        | StorageOp::Delete
        // Only services copy files, and they need none.
        | StorageOp::Watch { .. }
        | StorageOp::Changed { .. }
        | StorageOp::Unwatch { .. } => Some(Rights::WRITE),
        StorageOp::SyncTarget
        | StorageOp::Space
        | StorageOp::Fence { .. }
        // Asked by nodes, between themselves.
        | StorageOp::Settled
        | StorageOp::Regions { .. }
        | StorageOp::Survey { .. }
        | StorageOp::Heal { .. }
        | StorageOp::Mend { .. }
        | StorageOp::Forget { .. }
        | StorageOp::SetAside
        | StorageOp::MarkLost { .. }
        | StorageOp::SetTime { .. }
        | StorageOp::Digests { .. }
        | StorageOp::Adopt { .. }
        | StorageOp::Measure { .. }
        | StorageOp::Traffic
        | StorageOp::Rewrite { .. }
        | StorageOp::Expect { .. } => None,
    }
}
