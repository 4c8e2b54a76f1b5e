//! Crash reconciliation of a group: after a crash of all members, the metadata service reconciles
//! the files before clients see the group.
//!
//! The crash may have preserved chunks while the metadata that explains them was lost, or have lost
//! a truncation. A replica knows which files were changing at the crash
//! ([`chunkstore::Store::take_changing_at_crash`]). If its group continues from it alone, since no
//! other member has more, these files are made to match the metadata. If others have more, they
//! resync the replica, and the list isn't needed.
//!
//! The same happens to all files of a replica that has missed something, if its group has to
//! continue from there ([`super::forced_recovery`]).

use super::GroupService;
use super::replica::Replica;
use parking_lot::Mutex;
use rt::sync::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{ChunkFileId, Errno, Error, Result};
use wire::mgmt::ReconcileFiles;

/// Pause before the next attempt when management or the metadata service has refused.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long a client's request waits: less than its usual time-out, so that it learns the reason.
const WAIT_TIMEOUT: Duration = Duration::from_secs(45);

/// How often it checks meanwhile whether this is still the primary.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Files of a replica that may not match the metadata, as those that were changing at a crash,
/// until they are reconciled.
pub(crate) struct UnreconciledFiles {
    listed: Mutex<Listed>,
    /// Every request reads this, without a lock.
    has_files: AtomicBool,
    /// A task runs the reconciliation.
    is_running: AtomicBool,
    drained: Event,
}

#[derive(Default)]
struct Listed {
    touched: ReconcileFiles,
    /// Grows with each addition: a run that began with a lower version hasn't covered all files.
    version: u64,
}

impl UnreconciledFiles {
    pub(crate) fn new(touched: ReconcileFiles) -> UnreconciledFiles {
        let are_there = AtomicBool::new(!touched.is_empty());
        UnreconciledFiles {
            listed: Mutex::new(Listed { touched, version: 0 }),
            has_files: are_there,
            is_running: AtomicBool::new(false),
            drained: Event::new(),
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.has_files.load(Ordering::Acquire)
    }

    /// Adds files.
    pub(crate) fn add(&self, files: Vec<ChunkFileId>) {
        if files.is_empty() {
            return;
        }
        let mut listed = self.listed.lock();
        listed.touched.files.extend(files);
        listed.version += 1;
        self.drained.clear();
        self.has_files.store(true, Ordering::Release);
    }

    /// Drops all.
    pub(crate) fn clear(&self) {
        if self.is_pending() {
            self.clear_listed(&mut self.listed.lock());
        }
    }

    /// Records that the files of this version are reconciled; false if others were added meanwhile.
    fn mark_done(&self, version: u64) -> bool {
        let mut listed = self.listed.lock();
        if listed.version != version {
            return false;
        }
        self.clear_listed(&mut listed);
        true
    }

    fn clear_listed(&self, listed: &mut Listed) {
        listed.touched = ReconcileFiles::default();
        self.has_files.store(false, Ordering::Release);
        self.drained.set();
    }
}

impl GroupService {
    /// Asks the metadata service to reconcile the files of this replica, which is the primary and
    /// the only member in sync. Continues in the background; needs only an occasional call.
    pub(crate) fn start_reconciliation(self: &Arc<Self>, replica: &Arc<Replica>) {
        let leftovers = &replica.unreconciled;
        if !leftovers.is_pending() || leftovers.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (groups, replica) = (self.clone(), replica.clone());
        rt::spawn(async move {
            groups.reconcile(&replica).await;
            replica.unreconciled.is_running.store(false, Ordering::Release);
        });
    }

    async fn reconcile(&self, replica: &Replica) {
        let (touched, version) = {
            let listed = replica.unreconciled.listed.lock();
            (listed.touched.clone(), listed.version)
        };
        for some in touched.split() {
            while let Err(error) = self.peers.management.reconcile_group(replica.group, some.clone()).await {
                tracing::warn!(
                    target_id = %replica.target, group = %replica.group, %error,
                    "files of a group are not reconciled with the metadata yet"
                );
                if self.primary_view(replica).is_err() {
                    return;
                }
                rt::sleep(RETRY_PAUSE).await;
            }
        }
        if !replica.unreconciled.mark_done(version) {
            // A waiting request starts the next run.
            return;
        }
        replica.store.mark_reconciled();
        tracing::info!(
            target_id = %replica.target, group = %replica.group, reconciled = touched.files.len(),
            "files of a group are reconciled with the metadata"
        );
    }

    /// Waits until clients may be admitted to the replica, which is the primary.
    #[cold]
    pub(crate) async fn wait_until_reconciled(self: &Arc<Self>, replica: &Arc<Replica>) -> Result<()> {
        let began_ns = rt::monotonic_ns();
        while replica.unreconciled.is_pending() {
            self.primary_view(replica)?;
            self.start_reconciliation(replica);
            rt::timeout(CHECK_INTERVAL, replica.unreconciled.drained.wait()).await;
            if rt::monotonic_ns() - began_ns > WAIT_TIMEOUT.as_nanos() as u64
                && replica.unreconciled.is_pending()
            {
                let message = format!("crash reconciliation of group {} hasn't finished", replica.group);
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("it needs the metadata service for that: check that it runs (weft health)"));
            }
        }
        Ok(())
    }
}
