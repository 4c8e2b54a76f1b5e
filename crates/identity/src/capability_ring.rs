//! The keys of capabilities as a process knows them now.

use crate::{Capability, CapabilityKeys, Grant, Refusal, VerifiedCache};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Keys that management hands out and changes now and then, shared by the services of a process.
pub struct CapabilityRing {
    keys: RwLock<Option<Arc<CapabilityKeys>>>,
    /// Changes with the keys, and no two rings of a process have the same: cores see by it that what they remember is out of date.
    generation: AtomicU64,
    valid_s: u64,
}

/// What one core remembers of a ring: who uses it has nothing to do with other cores unless the keys have changed.
#[derive(Default)]
pub struct CoreRing {
    generation: u64,
    keys: Option<Arc<CapabilityKeys>>,
    verified: VerifiedCache,
}

impl CapabilityRing {
    /// Without keys yet. What is signed is valid for so many seconds.
    pub fn new(valid_s: u64) -> CapabilityRing {
        CapabilityRing { keys: RwLock::new(None), generation: AtomicU64::new(new_generation()), valid_s }
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

    /// Signs a grant that ends after the ring's time; `None` without keys.
    pub fn sign(&self, grant: Grant, now: u64) -> Option<Capability> {
        let keys = self.current()?;
        Some(keys.sign(&Grant { expires: now + self.valid_s, ..grant }))
    }

    /// What a genuine capability that hasn't expired says. `core`: what the calling core remembers.
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
