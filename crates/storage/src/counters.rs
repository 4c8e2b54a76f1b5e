//! Counters of a target.

use crate::admin_alarm::Alarm;
use crate::convert;
use crate::target_check::TargetStatus;
use chunkstore::{Kind, Store, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use types::Error;
use wire::RepairResult;

/// Requests and failures of one target, since the service was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub requests: u64,
    /// Requests that failed for lack of space.
    pub no_space: u64,
    /// Requests that failed because of damage or errors of the local file system.
    pub io_errors: u64,
}

/// The counters of a target, including those of all its groups.
#[derive(Default)]
pub(crate) struct TargetCounters {
    alarm: Alarm,
    pub(crate) status: TargetStatus,
    requests: AtomicU64,
    no_space: AtomicU64,
    io_errors: AtomicU64,
    /// Damage that requests have met, and how much of it was repaired.
    damaged: AtomicU64,
    repaired: AtomicU64,
}

impl TargetCounters {
    /// Counts damage that a request has met.
    pub(crate) fn count_repair(&self, result: &RepairResult) {
        self.damaged.fetch_add(result.damaged, Ordering::Relaxed);
        self.repaired.fetch_add(result.repaired, Ordering::Relaxed);
    }

    /// Resets the counters when a scrub begins, because the scrub finds the remaining damage again.
    pub(crate) fn reset_repairs(&self) {
        self.damaged.store(0, Ordering::Relaxed);
        self.repaired.store(0, Ordering::Relaxed);
    }

    /// Returns the damage that requests have met and how much of it was repaired, since the last
    /// scrub began.
    pub(crate) fn repairs(&self) -> (u64, u64) {
        (self.damaged.load(Ordering::Relaxed), self.repaired.load(Ordering::Relaxed))
    }

    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure of one of the target's stores, logs it and returns the error for the
    /// client. A vanished store takes the target offline, unless the store was closed: then its
    /// folder is about to be removed.
    pub(crate) fn failed(&self, store: &Store, error: &StoreError) -> Error {
        match error.kind() {
            Kind::NoSpace => self.no_space.fetch_add(1, Ordering::Relaxed),
            Kind::Io | Kind::Corrupt { .. } | Kind::Vanished => {
                self.io_errors.fetch_add(1, Ordering::Relaxed)
            }
            _ => 0,
        };
        self.alarm.raise(store.target(), error, rt::monotonic_ns());
        let client_error = convert::error(error);
        if error.kind() == Kind::Vanished && !store.is_closed() {
            self.status.take_offline(store.target(), client_error.clone());
        }
        client_error
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            requests: self.requests.load(Ordering::Relaxed),
            no_space: self.no_space.load(Ordering::Relaxed),
            io_errors: self.io_errors.load(Ordering::Relaxed),
        }
    }
}
