//! Pending truncations: files that a session has shortened, but whose chunk files it has not cut
//! yet.
//!
//! A session cuts the chunk files itself, under the lease that comes with the answer. The answer
//! may come too late for the session to rely on the lease, or be lost. The session learns of the
//! pending truncation when it uses the file again ([`wire::FileInfo::truncate_pending`]). If it
//! gives the file up instead, the service cuts the chunk files before another session gets access.
//! Otherwise a client that extends the file would find the old content.
//!
//! For truncations that an earlier service has recorded, size recovery does that when their
//! sessions return or reclaim the partition.

use crate::data::size_recovery::SizeRecovery;
use crate::session::table::Session;
use namespace::leases::{LeaseKey, PendingRecall};
use namespace::record::{self, Writing};
use namespace::{Applied, Writes, keys};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use types::{InodeId, PartitionId, Result, SessionId};
use wire::{MetaOp, MetaReply, MetaRequest, RecallAck};

/// Pending truncations, with their sessions. Bounded by the records in the store.
#[derive(Default)]
pub(crate) struct PendingTruncations {
    pending: Mutex<BTreeSet<(InodeId, SessionId)>>,
    /// Their number: usually 0.
    count: AtomicUsize,
}

impl PendingTruncations {
    /// Tracks what a command of a session records. The executor of the file's partition is locked.
    fn track(&self, op: &MetaOp, session: SessionId, writes: &Writes) -> Result<()> {
        let (MetaOp::Truncate { ino, .. } | MetaOp::TruncateDone { ino }) = *op else { return Ok(()) };
        let own = keys::writing(ino, session);
        for (key, value) in writes.iter().filter(|(key, _)| *key == own) {
            let record = value.clone().map(|value| record::decode::<Writing>(key, value)).transpose()?;
            let is_pending = record.is_some_and(|record| record.truncate_to.is_some());
            self.change(|pending| match is_pending {
                true => _ = pending.insert((ino, session)),
                false => _ = pending.remove(&(ino, session)),
            });
        }
        Ok(())
    }

    /// Tracks truncations that a command begins or ends, and reports a pending one to the session.
    pub fn track_command(&self, request: &MetaRequest, applied: &mut Applied) -> Result<()> {
        self.track(&request.op, request.session, &applied.writes)?;
        if let MetaReply::File(info) = &mut applied.reply {
            info.truncate_pending = self.is_pending(info.attr.ino, request.session);
        }
        Ok(())
    }

    /// Whether a session still has to cut a file.
    pub fn is_pending(&self, ino: InodeId, session: SessionId) -> bool {
        self.count.load(Relaxed) > 0 && self.pending.lock().contains(&(ino, session))
    }

    /// Drops the truncations of a session that has ended, after its size recovery.
    pub fn forget_session(&self, session: SessionId) {
        self.change(|pending| pending.retain(|(_, other)| *other != session));
    }

    /// Drops the truncations in a partition that another service owns now.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.change(|pending| pending.retain(|(ino, _)| ino.partition() != partition));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<(InodeId, SessionId)>)) {
        let mut pending = self.pending.lock();
        change(&mut pending);
        self.count.store(pending.len(), Relaxed);
    }
}

impl SizeRecovery {
    /// Handles recall acknowledgements.
    pub async fn handle_acknowledgements(
        &self,
        session: &Session,
        acknowledgements: &[RecallAck],
    ) -> MetaReply {
        for answer in acknowledgements {
            let due = PendingRecall {
                key: self.leases.key_of(answer.ino),
                session: session.id,
                number: answer.number,
            };
            self.truncate_before_acknowledgement(due).await;
            self.leases.acknowledged(session.id, *answer);
        }
        MetaReply::Unit
    }

    /// Handles leases and uses that a session has given up without a recall.
    pub async fn handle_releases(&self, session: &Session, released: &[InodeId], seen: u64) -> MetaReply {
        for &number in released {
            let key = self.leases.key_of(number);
            self.truncate_before_release(key, session.id).await;
            self.leases.release(session.id, key, seen);
        }
        MetaReply::Unit
    }

    /// Executes the pending truncation of a session that acknowledges a recall. With the
    /// acknowledgement of an older recall, it may go on using the file.
    async fn truncate_before_acknowledgement(&self, due: PendingRecall) {
        if let LeaseKey::Inode(ino) = due.key
            && self.truncations.is_pending(ino, due.session)
            && self.leases.is_pending(&due)
        {
            self.complete_truncation(ino, due.session).await;
        }
    }

    /// Executes the pending truncation of a session that doesn't use the file any more.
    async fn truncate_before_release(&self, key: LeaseKey, session: SessionId) {
        if let LeaseKey::Inode(ino) = key
            && self.truncations.is_pending(ino, session)
        {
            self.complete_truncation(ino, session).await;
        }
    }

    async fn complete_truncation(&self, ino: InodeId, session: SessionId) {
        if let Err(error) = self.recover_file_size(ino, session).await {
            tracing::warn!(ino = ino.0, %error, "a truncation of a file can't be completed now: the file is in quarantine until it can");
        }
    }
}
