//! What is counted of a target.

use crate::alarm::Alarm;
use crate::convert;
use chunkstore::{Kind, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use types::{Error, TargetId};
use wire::Healed;

/// Requests and failures of one target, since the service was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub requests: u64,
    /// Requests that failed for lack of space.
    pub no_space: u64,
    /// Requests that failed for damage or errors of the local file system.
    pub io_errors: u64,
}

/// The counters of a target, of all groups that it is a member of.
#[derive(Default)]
pub(crate) struct Tally {
    alarm: Alarm,
    requests: AtomicU64,
    no_space: AtomicU64,
    io_errors: AtomicU64,
    /// Damage that requests have met, and what of it was mended.
    damaged: AtomicU64,
    mended: AtomicU64,
}

impl Tally {
    /// Counts damage that somebody has met.
    pub(crate) fn heal(&self, healed: &Healed) {
        self.damaged.fetch_add(healed.damaged, Ordering::Relaxed);
        self.mended.fetch_add(healed.mended, Ordering::Relaxed);
    }

    /// A search begins, which meets anew what is left of it.
    pub(crate) fn forget_healed(&self) {
        self.damaged.store(0, Ordering::Relaxed);
        self.mended.store(0, Ordering::Relaxed);
    }

    /// Damage that requests have met, and what of it was mended, since the last search began.
    pub(crate) fn healed(&self) -> (u64, u64) {
        (self.damaged.load(Ordering::Relaxed), self.mended.load(Ordering::Relaxed))
    }

    pub(crate) fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure, raises the alarm and gives what the client is told.
    pub(crate) fn failed(&self, target: TargetId, error: &StoreError) -> Error {
        match error.kind() {
            Kind::NoSpace => self.no_space.fetch_add(1, Ordering::Relaxed),
            Kind::Io | Kind::Corrupt { .. } => self.io_errors.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.alarm.raise(target, error, rt::monotonic_ns());
        convert::error(error)
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            requests: self.requests.load(Ordering::Relaxed),
            no_space: self.no_space.load(Ordering::Relaxed),
            io_errors: self.io_errors.load(Ordering::Relaxed),
        }
    }
}
