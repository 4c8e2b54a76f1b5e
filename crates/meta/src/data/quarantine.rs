//! Quarantine: files whose size is unknown now, because their writer is gone or has lost its lease,
//! and a target could not be asked for its chunk files.
//!
//! The recorded size may be less than what was acknowledged: an append at that offset would
//! overwrite content. So no client may access such a file until size recovery. The service itself
//! takes the lease, with a session of its own, and tries again until the target answers. A service
//! that starts, or adopts the partition, finds the file's write record in the store, and does the
//! same.

use crate::data::size_recovery::SizeRecovery;
use crate::limits::{RETRY_PAUSE, SIZE_RECOVERY_LOCKS};
use crate::session::table::Session;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{InodeId, Result, SessionId};

pub(crate) struct Quarantine {
    /// The session that holds the leases, from the first file on.
    holder: Mutex<Option<Arc<Session>>>,
    /// Quarantined files, with the sessions whose write records are pending.
    pending: Mutex<BTreeSet<(InodeId, SessionId)>>,
    work_available: rt::sync::Event,
    /// Two tasks that recover the same file run one after the other: the second one's measurements
    /// must not be older than changes after the first one.
    recovery_locks: Vec<rt::sync::RwLock>,
}

impl Default for Quarantine {
    fn default() -> Quarantine {
        Quarantine {
            holder: Mutex::default(),
            pending: Mutex::default(),
            work_available: rt::sync::Event::new(),
            recovery_locks: (0..SIZE_RECOVERY_LOCKS).map(|_| rt::sync::RwLock::new()).collect(),
        }
    }
}

impl Quarantine {
    /// Lock for the size recovery of a file.
    pub fn recovery_lock(&self, ino: InodeId) -> &rt::sync::RwLock {
        &self.recovery_locks[ino.0 as usize % SIZE_RECOVERY_LOCKS]
    }

    /// The session that keeps a file in quarantine; `None` if it isn't.
    pub fn holder_of(&self, ino: InodeId) -> Option<Arc<Session>> {
        let is_quarantined = pending_of(&self.pending.lock(), ino).next().is_some();
        if is_quarantined { self.holder.lock().clone() } else { None }
    }

    /// Whether size recovery of a file is pending for a session.
    pub fn is_pending_for(&self, ino: InodeId, session: SessionId) -> bool {
        self.pending.lock().contains(&(ino, session))
    }

    /// Lets the background task end.
    pub fn stop(&self) {
        self.work_available.set();
    }
}

fn pending_of(
    pending: &BTreeSet<(InodeId, SessionId)>,
    ino: InodeId,
) -> impl Iterator<Item = &(InodeId, SessionId)> {
    pending.range((ino, SessionId(0))..=(ino, SessionId(u64::MAX)))
}

impl SizeRecovery {
    /// Puts a file into quarantine until a session's write record is resolved. The caller holds the
    /// file's lock.
    pub fn quarantine_file(&self, ino: InodeId, session: SessionId) -> Result<()> {
        let holder = {
            let mut holder = self.quarantine.holder.lock();
            match &*holder {
                Some(holder) => holder.clone(),
                None => holder
                    .insert(self.sessions.register_local(SessionId::from_random(rt::secret_u64()))?)
                    .clone(),
            }
        };
        if !self.leases.transfer(session, holder.lease_requester(), ino) {
            tracing::debug!(
                ino = ino.0,
                "other sessions hold leases on a file whose size is not recovered yet"
            );
        }
        self.quarantine.pending.lock().insert((ino, session));
        self.quarantine.work_available.set();
        Ok(())
    }

    /// Ends the quarantine for a session's write record: it is resolved, or another service owns
    /// the partition.
    pub fn end_quarantine(&self, ino: InodeId, session: SessionId) {
        self.reported_sizes.forget(ino, session);
        let mut pending = self.quarantine.pending.lock();
        if !pending.remove(&(ino, session)) || pending_of(&pending, ino).next().is_some() {
            return;
        }
        drop(pending);
        let Some(holder) = self.quarantine.holder.lock().clone() else { return };
        // Recalls from waiting sessions: the release acknowledges them.
        holder.recalls_after(u64::MAX);
        self.leases.release(holder.id, ino.into(), u64::MAX);
    }

    /// Retries size recovery of quarantined files, until the service stops.
    pub async fn retry_quarantined(self: Arc<Self>) {
        while !self.serving.is_stopping() {
            self.quarantine.work_available.wait().await;
            self.quarantine.work_available.clear();
            let pending: Vec<(InodeId, SessionId)> = self.quarantine.pending.lock().iter().copied().collect();
            if pending.is_empty() {
                continue;
            }
            rt::sleep(RETRY_PAUSE).await;
            for (ino, session) in pending {
                if self.serving.is_stopping() {
                    return;
                }
                if !self.executors.is_owned(ino.partition()) {
                    self.end_quarantine(ino, session);
                    continue;
                }
                if let Err(error) = self.recover_file_size(ino, session).await {
                    tracing::debug!(ino = ino.0, %error, "a file is still in quarantine");
                    self.quarantine.work_available.set();
                }
            }
        }
    }
}
