//! The current capability keys of a process, and the time by which capabilities expire.
//!
//! This is the cluster's time: management's clock, which each node gets with its heartbeats and
//! extrapolates by its own monotonic clock. So the clock of a node can be wrong, or be set, without
//! capabilities expiring early or late there.

use crate::{Capability, CapabilityKeys, CapabilityRefusal, Grant, VerifiedCache};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

const NS_PER_S: i64 = 1_000_000_000;

/// Keys that management distributes and rotates, shared by the services of a process.
pub struct CapabilityRing {
    keys: RwLock<Option<Arc<CapabilityKeys>>>,
    /// Changes with the keys, and is unique in the process, so that cores detect that their caches
    /// are stale.
    generation: AtomicU64,
    /// Difference of the cluster's time and this process's monotonic clock, nanoseconds.
    ahead_ns: AtomicI64,
    valid_s: u16,
}

/// One core's cache of a ring. Verification involves no other core unless the keys have changed.
#[derive(Default)]
pub struct CoreCapabilityCache {
    generation: u64,
    keys: Option<Arc<CapabilityKeys>>,
    verified: VerifiedCache,
}

impl CapabilityRing {
    /// Makes a ring without keys. Signed capabilities are valid for `valid_s` seconds.
    pub fn new(valid_s: u16) -> CapabilityRing {
        CapabilityRing {
            keys: RwLock::new(None),
            generation: AtomicU64::new(new_generation()),
            ahead_ns: AtomicI64::new(0),
            valid_s,
        }
    }

    /// Sets the cluster's time, Unix seconds, as of a moment of this process's monotonic clock. A
    /// process does so before it sets keys.
    pub fn set_cluster_time(&self, time_s: i64, monotonic_ns: u64) {
        let ahead_ns = time_s.saturating_mul(NS_PER_S).saturating_sub_unsigned(monotonic_ns);
        self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
    }

    /// The cluster's time at a moment of this process's monotonic clock, Unix seconds.
    pub fn cluster_time_s(&self, monotonic_ns: u64) -> u64 {
        let time_ns = self.ahead_ns.load(Ordering::Relaxed).saturating_add_unsigned(monotonic_ns);
        u64::try_from(time_ns / NS_PER_S).unwrap_or(0)
    }

    /// Replaces the keys; does nothing if they are the same.
    pub fn set(&self, keys: CapabilityKeys) {
        let mut current = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|known| known.render() == keys.render()) {
            return;
        }
        *current = Some(Arc::new(keys));
        self.generation.store(new_generation(), Ordering::Release);
    }

    /// Whether there are keys.
    pub fn has_keys(&self) -> bool {
        self.current().is_some()
    }

    /// Signs a grant that expires after the ring's validity; `None` without keys. `now`: the
    /// cluster's time.
    pub fn sign(&self, grant: Grant, now: u64) -> Option<Capability> {
        let keys = self.current()?;
        let valid_s = self.valid_s;
        Some(keys.sign(&Grant { expires: now + u64::from(valid_s), valid_s, ..grant }))
    }

    /// Verifies a capability, including its expiry, and returns its grant. `core`: the calling
    /// core's cache; `now`: the cluster's time.
    pub fn verify(
        &self,
        core: &mut CoreCapabilityCache,
        capability: &Capability,
        now: u64,
    ) -> Result<Grant, CapabilityRefusal> {
        let generation = self.generation.load(Ordering::Acquire);
        if core.generation != generation {
            *core =
                CoreCapabilityCache { generation, keys: self.current(), verified: VerifiedCache::default() };
        }
        let Some(keys) = &core.keys else { return Err(CapabilityRefusal::UnknownKey(capability.key_id())) };
        core.verified.verify(keys, capability, now)
    }

    fn current(&self) -> Option<Arc<CapabilityKeys>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn new_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
