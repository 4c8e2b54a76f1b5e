//! The storage role of a node: background work of its targets, crash reconciliation, shutdown.

use crate::Membership;
use chunkstore::{Kind, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use types::{Errno, Error, Result};
use wire::MgmtRequest;
use wire::mgmt::{IoCounters, ReconcileFiles};

/// Pause before a request is sent again that management refused for now.
const RETRY: Duration = Duration::from_secs(1);

impl Membership {
    /// Starts the background work of the storage service and its targets on the calling core. Each
    /// target is opened to clients once it is reconciled.
    pub fn spawn_storage(self: &Arc<Self>) {
        rt::spawn(StorageService::run_target_checks(self.service.clone()));
        rt::spawn(StorageService::run_group_resyncs(self.service.clone()));
        rt::spawn(StorageService::run_scrubs(self.service.clone(), self.map.handle()));
        for store in self.service.stores() {
            rt::spawn(self.clone().reconcile_and_open(store.clone()));
        }
    }

    /// Has the metadata service reconcile a target after a crash, and then opens the target to
    /// clients. Runs the target's background work from then on.
    pub async fn reconcile_and_open(self: Arc<Self>, store: Arc<Store>) {
        let target = store.target();
        let left =
            ReconcileFiles { files: store.take_changing_at_crash(), new: store.take_created_at_crash() };
        for touched in left.split() {
            let request = MgmtRequest::Reconcile { target, touched };
            while let Err(error) = self.management.call(request.clone(), None).await {
                tracing::warn!(target_id = target.0, %error, "target {target} is not reconciled yet");
                rt::sleep(RETRY).await;
            }
        }
        store.mark_reconciled();
        self.service.open_to_clients(target);
        tracing::info!(target_id = target.0, reconciled = left.files.len(), "target {target} is served");
        // Only now: notes of changes at the time of the crash must not be retired before they have
        // been acted upon.
        store.background().await;
    }

    /// Closes the stores and signs off from management. Tries everything, and returns the first
    /// failure.
    ///
    /// # Errors
    /// A store that could not record a clean shutdown: its next start recovers as after a crash.
    pub async fn close(&self) -> Result<()> {
        let mut outcome = self.service.close_groups().await;
        for store in self.service.stores() {
            outcome = outcome.and(store.close().await.map_err(store_error));
        }
        self.sign_off().await;
        outcome
    }
}

/// Converts a target's error to the error of the service boundary.
pub fn store_error(error: StoreError) -> Error {
    let errno = match error.kind() {
        Kind::NoSpace => Errno::ENOSPC,
        Kind::NotATarget => Errno::ENOENT,
        Kind::NotEmpty => Errno::ENOTEMPTY,
        Kind::WrongIdentity | Kind::NewerVersion => Errno::EINVAL,
        _ => Errno::EIO,
    };
    Error::new(errno, error.message().to_string()).hint(error.hint().to_string())
}

/// Returns the work of a target since it was opened.
pub fn target_work(store: &Store) -> IoCounters {
    let counts = store.statistics();
    IoCounters {
        reads: counts.reads.get(),
        read_bytes: counts.read_bytes.get(),
        writes: counts.writes.get(),
        written_bytes: counts.written_bytes.get(),
    }
}
