//! What this process has under way at each target, and which of them didn't answer lately: by that
//! a member of a group is chosen to read from.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use types::{HashMap, TargetId};

use crate::limits::SILENCE_MEMORY;

/// The targets that were asked as members of groups.
#[derive(Default)]
pub(crate) struct Loads(RwLock<HashMap<TargetId, Arc<Load>>>);

/// One of them.
#[derive(Default)]
pub(crate) struct Load {
    under_way: AtomicU32,
    /// Until when others are asked before, by the monotonic clock.
    avoided_until_ns: AtomicU64,
}

/// A request that is under way.
pub(crate) struct UnderWay(Arc<Load>);

impl Loads {
    fn of(&self, target: TargetId) -> Arc<Load> {
        let known = self.0.read().get(&target).cloned();
        known.unwrap_or_else(|| self.0.write().entry(target).or_default().clone())
    }

    /// A request goes to a target; it is under way until what is given is dropped.
    pub(crate) fn begin(&self, target: TargetId) -> UnderWay {
        let load = self.of(target);
        load.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(load)
    }

    /// Requests under way.
    pub(crate) fn under_way(&self, target: TargetId) -> u32 {
        self.0.read().get(&target).map_or(0, |load| load.under_way.load(Ordering::Relaxed))
    }

    /// Whether a target didn't answer lately.
    pub(crate) fn is_avoided(&self, target: TargetId, now_ns: u64) -> bool {
        self.0.read().get(&target).is_some_and(|load| now_ns < load.avoided_until_ns.load(Ordering::Relaxed))
    }
}

impl UnderWay {
    /// It has taken too long.
    pub(crate) fn is_silent(&self) {
        let until_ns = rt::monotonic_ns() + SILENCE_MEMORY.as_nanos() as u64;
        self.0.avoided_until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// It was answered.
    pub(crate) fn has_answered(&self) {
        if self.0.avoided_until_ns.load(Ordering::Relaxed) != 0 {
            self.0.avoided_until_ns.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
