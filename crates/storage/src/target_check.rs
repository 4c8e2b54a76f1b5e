//! Checks that targets are still the directories that were opened, and takes those offline that
//! aren't.
//!
//! A store rejects each lookup that ended in a directory other than its own (`chunkstore`). That
//! alone would leave a target with a failed disk half usable: files that are open can still be read
//! and written. So the service verifies each target once a second. A target that fails is
//! *offline*: the service refuses requests for it, it is no source for other replicas, and
//! management learns that this node doesn't have it. The next successful check brings it online
//! again: it is then the store that was opened, with everything that was written to it.

use crate::counters::TargetCounters;
use crate::service::{Served, StorageService};
use chunkstore::Store;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use types::{Error, Result, TargetId};
use wire::{GroupRole, StorageOp, StorageRequest};

/// How often each target is verified: management learns of a missing one within a heartbeat or two.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Result of the last verification of a target, or of the last request that met another directory
/// in its place.
#[derive(Default)]
pub(crate) struct TargetStatus {
    /// Every request reads this, without a lock.
    is_offline: AtomicBool,
    offline_reason: RwLock<Option<Error>>,
}

impl TargetStatus {
    pub(crate) fn is_offline(&self) -> bool {
        self.is_offline.load(Ordering::Acquire)
    }

    /// # Errors
    /// The reason why the target is offline, if it is.
    pub(crate) fn require_online(&self) -> Result<()> {
        if !self.is_offline() {
            return Ok(());
        }
        self.offline_reason.read().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// Takes the target offline.
    pub(crate) fn take_offline(&self, target: TargetId, why: Error) {
        let mut known = self.offline_reason.write().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            tracing::error!(target_id = %target, hint = &*why.hint, "{}", why.message);
        }
        *known = Some(why);
        self.is_offline.store(true, Ordering::Release);
    }

    fn bring_online(&self, target: TargetId) {
        if self.is_offline() {
            let mut known = self.offline_reason.write().unwrap_or_else(PoisonError::into_inner);
            self.is_offline.store(false, Ordering::Release);
            *known = None;
            tracing::info!(target_id = %target, "target {target} is back in its directory, and online");
        }
    }
}

/// Whether a store has passed the check. A store that was closed meanwhile passes: its folder is
/// about to be removed.
fn has_passed(counters: &TargetCounters, store: &Store, result: chunkstore::Result<()>) -> bool {
    match result {
        Err(error) if !store.is_closed() => {
            counters.failed(store, &error);
            false
        }
        _ => true,
    }
}

impl StorageService {
    /// Whether this node serves the target, the target is online, and its directory is the one that
    /// was opened. Cheap enough for every heartbeat.
    pub fn is_available(&self, target: TargetId) -> bool {
        self.find(target).is_some_and(|served| {
            has_passed(&served.counters, &served.store, served.store.check_dir()) && !served.is_offline()
        })
    }

    /// Verifies a target: its own store, and those of its groups. The latter are in its directory,
    /// so a check of their folders is enough.
    pub async fn check_target(&self, target: TargetId) {
        let Some(served) = self.find(target) else { return };
        let result = served.store.verify_dir().await;
        if !has_passed(&served.counters, &served.store, result) {
            return;
        }
        let replicas = self.replicas().into_iter().filter(|replica| replica.target == target);
        for store in replicas.map(|replica| replica.store.clone()).filter(|store| !store.is_closed()) {
            let result = store.check_dir();
            if !has_passed(&served.counters, &store, result) {
                return;
            }
        }
        served.counters.status.bring_online(target);
    }

    /// Verifies all targets periodically until the service is gone. Runs beside requests, on one
    /// core.
    pub async fn run_target_checks(service: Arc<StorageService>) {
        let service = Arc::downgrade(&service);
        let mut known = BTreeSet::new();
        loop {
            let Some(serving) = service.upgrade() else { return };
            let targets: Vec<TargetId> = serving.stores().map(|store| store.target()).collect();
            drop(serving);
            for target in targets.into_iter().filter(|target| known.insert(*target)) {
                // Each in a task of its own: a disk that hangs doesn't delay the others.
                rt::spawn(run_target_checks_of(service.clone(), target));
            }
            rt::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns the error that refuses a request to an offline target; `None` if the request can
    /// still be answered. A fence applies to all targets, and a client's read of a mirrored group
    /// is answered by another replica.
    #[cold]
    pub(crate) async fn offline_error(&self, served: &Served, request: &StorageRequest) -> Option<Error> {
        let error = served.counters.status.require_online().err()?;
        match (request.group, self.groups.get()) {
            _ if matches!(request.op, StorageOp::Fence { .. }) => None,
            (Some(context), _) if context.role == GroupRole::Primary && request.op.spec().is_read_only() => {
                None
            }
            (Some(context), Some(groups)) if context.role == GroupRole::Primary => {
                Some(groups.step_down_without_replica(served.store.target(), &context, error).await)
            }
            _ => Some(error),
        }
    }
}

async fn run_target_checks_of(service: Weak<StorageService>, target: TargetId) {
    while let Some(service) = service.upgrade() {
        service.check_target(target).await;
        drop(service);
        rt::sleep(CHECK_INTERVAL).await;
    }
}

impl Served {
    pub(crate) fn is_offline(&self) -> bool {
        self.counters.status.is_offline()
    }
}
