//! Whether targets are still what they were when they were opened, and what becomes of one that
//! isn't.
//!
//! A store answers no lookup that ended in another directory than its own (`chunkstore`). That
//! alone leaves a target whose disk has gone half alive: what is open can be read and written. So
//! each target is proven once a second, and one that isn't proven is *offline*: its service refuses
//! what it is asked, it is no source for other copies, and management is told that there is no such
//! target here. It is online again with the next proof that succeeds: then it is the store that was
//! opened, with everything that was written to it.

use crate::mirror::is_look;
use crate::service::{Served, StorageService};
use crate::tally::Tally;
use chunkstore::Store;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use types::{Error, Result, TargetId};
use wire::{Part, StorageOp, StorageRequest};

/// How often each target is proven: within a heartbeat or two management knows of one that is gone.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the last proof of a target said, or the last request that met another directory in its
/// place.
#[derive(Default)]
pub(crate) struct Standing {
    /// Every request looks at this, which takes no lock.
    is_offline: AtomicBool,
    why: RwLock<Option<Error>>,
}

impl Standing {
    pub(crate) fn is_offline(&self) -> bool {
        self.is_offline.load(Ordering::Acquire)
    }

    /// # Errors
    /// Why the target is offline, if it is.
    pub(crate) fn require_online(&self) -> Result<()> {
        if !self.is_offline() {
            return Ok(());
        }
        self.why.read().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// Takes the target offline.
    pub(crate) fn fall(&self, target: TargetId, why: Error) {
        let mut known = self.why.write().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            tracing::error!(target_id = %target, hint = &*why.hint, "{}", why.message);
        }
        *known = Some(why);
        self.is_offline.store(true, Ordering::Release);
    }

    fn rise(&self, target: TargetId) {
        if self.is_offline() {
            let mut known = self.why.write().unwrap_or_else(PoisonError::into_inner);
            self.is_offline.store(false, Ordering::Release);
            *known = None;
            tracing::info!(target_id = %target, "target {target} is where it was again, and online");
        }
    }
}

/// Whether a store has proven itself. One that was closed meanwhile has nothing to prove: its
/// folder is about to go.
fn has_passed(tally: &Tally, store: &Store, proof: chunkstore::Result<()>) -> bool {
    match proof {
        Err(error) if !store.is_closed() => {
            tally.failed(store, &error);
            false
        }
        _ => true,
    }
}

impl StorageService {
    /// Whether a target is served here and is online, and its directory is the one that was opened.
    /// Quick enough for every heartbeat.
    pub fn is_proven(&self, target: TargetId) -> bool {
        self.find(target).is_some_and(|served| {
            has_passed(&served.tally, &served.store, served.store.check_home()) && !served.is_offline()
        })
    }

    /// Proves a target: its own store, and those of the groups that it is a member of. These are in
    /// its directory, so that a look at their folders is enough.
    pub async fn prove(&self, target: TargetId) {
        let Some(served) = self.find(target) else { return };
        let proof = served.store.prove_home().await;
        if !has_passed(&served.tally, &served.store, proof) {
            return;
        }
        let replicas = self.replicas().into_iter().filter(|replica| replica.target == target);
        for store in replicas.map(|replica| replica.store.clone()).filter(|store| !store.is_closed()) {
            let proof = store.check_home();
            if !has_passed(&served.tally, &store, proof) {
                return;
            }
        }
        served.tally.standing.rise(target);
    }

    /// Proves all targets, time and again, until the service is gone. Runs beside requests, on one
    /// core.
    pub async fn keep_proving(service: Arc<StorageService>) {
        let service = Arc::downgrade(&service);
        let mut known = BTreeSet::new();
        loop {
            let Some(serving) = service.upgrade() else { return };
            let targets: Vec<TargetId> = serving.stores().map(|store| store.target()).collect();
            drop(serving);
            for target in targets.into_iter().filter(|target| known.insert(*target)) {
                // Each in a task of its own: a disk that hangs keeps no other one waiting.
                rt::spawn(keep_proving_one(service.clone(), target));
            }
            rt::sleep(INTERVAL).await;
        }
    }

    /// What a request to an offline target is answered; `None` for one that is answered as ever.
    /// That a session ends is for all targets, and looks of clients at a mirrored group find their
    /// answer at another copy.
    #[cold]
    pub(crate) async fn refusal_offline(&self, served: &Served, request: &StorageRequest) -> Option<Error> {
        let error = served.tally.standing.require_online().err()?;
        match (request.group, self.mirrors.get()) {
            _ if matches!(request.op, StorageOp::Fence { .. }) => None,
            (Some(asked), _) if asked.part == Part::Primary && is_look(&request.op) => None,
            (Some(asked), Some(mirrors)) if asked.part == Part::Primary => {
                Some(mirrors.without_replica(served.store.target(), &asked, error).await)
            }
            _ => Some(error),
        }
    }
}

async fn keep_proving_one(service: Weak<StorageService>, target: TargetId) {
    while let Some(service) = service.upgrade() {
        service.prove(target).await;
        drop(service);
        rt::sleep(INTERVAL).await;
    }
}

impl Served {
    pub(crate) fn is_offline(&self) -> bool {
        self.tally.standing.is_offline()
    }
}
