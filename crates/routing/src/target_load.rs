//! Requests that this process has under way at each target, and targets that didn't answer lately.
//! By these a process chooses the group member to read from.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use types::{HashMap, TargetId};

use crate::limits::UNRESPONSIVE_MEMORY;

/// Targets that this process has sent requests to as members of groups.
#[derive(Default)]
pub(crate) struct Loads(RwLock<HashMap<TargetId, Arc<Load>>>);

/// The load of one target.
#[derive(Default)]
pub(crate) struct Load {
    in_flight: AtomicU32,
    /// Other members are preferred until this time of the monotonic clock.
    avoid_until_ns: AtomicU64,
}

/// A request under way.
pub(crate) struct InFlightRequest(Arc<Load>);

impl Loads {
    fn of(&self, target: TargetId) -> Arc<Load> {
        let known = self.0.read().get(&target).cloned();
        known.unwrap_or_else(|| self.0.write().entry(target).or_default().clone())
    }

    /// Counts a request to a target until the returned value is dropped.
    pub(crate) fn begin(&self, target: TargetId) -> InFlightRequest {
        let load = self.of(target);
        load.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightRequest(load)
    }

    /// Requests under way at a target.
    pub(crate) fn in_flight(&self, target: TargetId) -> u32 {
        self.0.read().get(&target).map_or(0, |load| load.in_flight.load(Ordering::Relaxed))
    }

    /// Whether a target didn't answer in time recently.
    pub(crate) fn was_unresponsive(&self, target: TargetId, now_ns: u64) -> bool {
        self.0.read().get(&target).is_some_and(|load| now_ns < load.avoid_until_ns.load(Ordering::Relaxed))
    }
}

impl InFlightRequest {
    /// Notes that the request has taken too long.
    pub(crate) fn mark_unresponsive(&self) {
        let until_ns = rt::monotonic_ns() + UNRESPONSIVE_MEMORY.as_nanos() as u64;
        self.0.avoid_until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Notes that the request was answered.
    pub(crate) fn mark_responsive(&self) {
        if self.0.avoid_until_ns.load(Ordering::Relaxed) != 0 {
            self.0.avoid_until_ns.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
