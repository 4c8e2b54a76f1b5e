//! The keys of capabilities, and the time by which capabilities end, as a process knows them now.
//!
//! The time is the cluster's: management's clock, which each node hears of with its heartbeats and
//! counts on by its own monotonic clock. So the clock of a node can be wrong, or be set, without
//! capabilities ending early or late there.

use crate::{Capability, CapabilityKeys, Grant, Refusal, VerifiedCache};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

const NS_PER_S: i64 = 1_000_000_000;

/// Keys that management hands out and changes now and then, shared by the services of a process.
pub struct CapabilityRing {
    keys: RwLock<Option<Arc<CapabilityKeys>>>,
    /// Changes with the keys, and no two rings of a process have the same: cores see by it that
    /// what they remember is out of date.
    generation: AtomicU64,
    /// What the cluster's time is ahead of this process's monotonic clock, nanoseconds.
    ahead_ns: AtomicI64,
    valid_s: u16,
}

/// What one core remembers of a ring: who uses it has nothing to do with other cores unless the
/// keys have changed.
#[derive(Default)]
pub struct CoreRing {
    generation: u64,
    keys: Option<Arc<CapabilityKeys>>,
    verified: VerifiedCache,
}

impl CapabilityRing {
    /// Without keys yet. What is signed is valid for so many seconds.
    pub fn new(valid_s: u16) -> CapabilityRing {
        CapabilityRing {
            keys: RwLock::new(None),
            generation: AtomicU64::new(new_generation()),
            ahead_ns: AtomicI64::new(0),
            valid_s,
        }
    }

    /// Takes over the cluster's time, Unix seconds, as of a moment of this process's monotonic
    /// clock. A process does so before it sets keys.
    pub fn set_time(&self, time_s: i64, monotonic_ns: u64) {
        let ahead_ns = time_s.saturating_mul(NS_PER_S).saturating_sub_unsigned(monotonic_ns);
        self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
    }

    /// The cluster's time at a moment of this process's monotonic clock, Unix seconds.
    pub fn time_s(&self, monotonic_ns: u64) -> u64 {
        let time_ns = self.ahead_ns.load(Ordering::Relaxed).saturating_add_unsigned(monotonic_ns);
        u64::try_from(time_ns / NS_PER_S).unwrap_or(0)
    }

    /// Takes over other keys, or the same.
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

    /// Signs a grant that ends after the ring's time; `None` without keys. `now`: the cluster's
    /// time.
    pub fn sign(&self, grant: Grant, now: u64) -> Option<Capability> {
        let keys = self.current()?;
        let valid_s = self.valid_s;
        Some(keys.sign(&Grant { expires: now + u64::from(valid_s), valid_s, ..grant }))
    }

    /// What a genuine capability that hasn't expired says. `core`: what the calling core remembers;
    /// `now`: the cluster's time.
    pub fn verify(&self, core: &mut CoreRing, capability: &Capability, now: u64) -> Result<Grant, Refusal> {
        let generation = self.generation.load(Ordering::Acquire);
        if core.generation != generation {
            *core = CoreRing { generation, keys: self.current(), verified: VerifiedCache::default() };
        }
        let Some(keys) = &core.keys else { return Err(Refusal::UnknownKey(capability.key_id())) };
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
