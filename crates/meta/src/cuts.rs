//! Cuts that are still to be made: files that a session has shortened, and whose chunks it has yet
//! to cut.
//!
//! A session cuts the chunks itself, under the lease that comes with the answer. The answer may
//! come too late for the session to rely on it, or not at all. It learns of the cut when it uses
//! the file again ([`wire::FileInfo::uncut`]). If it gives the file up instead, the service makes
//! the cut before anybody else is let in: who made the file longer would find in it what was there
//! before.
//!
//! What an earlier service has noted is settled when its sessions come back or follow.

use crate::service::MetaService;
use namespace::leases::Due;
use namespace::record::{self, Writing};
use namespace::{Applied, Writes, keys};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use types::{InodeId, PartitionId, Result, SessionId};
use wire::{MetaOp, MetaReply, MetaRequest};

/// Files to be cut, and by whom. Bounded by the notes in the store.
#[derive(Default)]
pub(crate) struct Cuts {
    pending: Mutex<BTreeSet<(InodeId, SessionId)>>,
    /// How many they are: mostly none.
    count: AtomicUsize,
}

impl Cuts {
    /// Takes over what a command of a session notes. The partition of the file is held.
    pub fn note(&self, op: &MetaOp, session: SessionId, writes: &Writes) -> Result<()> {
        let (MetaOp::Truncate { ino, .. } | MetaOp::TruncateDone { ino }) = *op else { return Ok(()) };
        let own = keys::writing(ino, session);
        for (key, value) in writes.iter().filter(|(key, _)| *key == own) {
            let note = value.clone().map(|value| record::decode::<Writing>(key, value)).transpose()?;
            let is_pending = note.is_some_and(|note| note.truncate_to.is_some());
            self.change(|pending| match is_pending {
                true => _ = pending.insert((ino, session)),
                false => _ = pending.remove(&(ino, session)),
            });
        }
        Ok(())
    }

    /// Whether a session has still to cut a file.
    pub fn is_pending(&self, ino: InodeId, session: SessionId) -> bool {
        self.count.load(Relaxed) > 0 && self.pending.lock().contains(&(ino, session))
    }

    /// A session has ended, and what it left is settled.
    pub fn forget_session(&self, session: SessionId) {
        self.change(|pending| pending.retain(|(_, whose)| *whose != session));
    }

    /// A partition is another service's.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.change(|pending| pending.retain(|(ino, _)| ino.partition() != partition));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<(InodeId, SessionId)>)) {
        let mut pending = self.pending.lock();
        change(&mut pending);
        self.count.store(pending.len(), Relaxed);
    }
}

impl MetaService {
    /// Notes what a command begins or ends, and tells the session of what it has still to cut.
    pub(crate) fn note_cut(&self, request: &MetaRequest, applied: &mut Applied) -> Result<()> {
        self.cuts.note(&request.op, request.session, &applied.writes)?;
        if let MetaReply::File(info) = &mut applied.reply {
            info.uncut = self.cuts.is_pending(info.attr.ino, request.session);
        }
        Ok(())
    }

    /// Makes the cut that a session owes which answers a recall. One that answers an older recall
    /// goes on using the file.
    pub(crate) async fn cut_before_yield(&self, due: Due) {
        if self.cuts.is_pending(due.ino, due.session) && self.leases.is_due(&due) {
            self.cut_for(due.ino, due.session).await;
        }
    }

    /// Makes the cut that a session owes which doesn't use the file any more.
    pub(crate) async fn cut_before_release(&self, ino: InodeId, session: SessionId) {
        if self.cuts.is_pending(ino, session) {
            self.cut_for(ino, session).await;
        }
    }

    async fn cut_for(&self, ino: InodeId, session: SessionId) {
        if let Err(error) = self.settle_note(ino, session).await {
            tracing::warn!(ino = ino.0, %error, "a file can't be cut for now: nobody gets at it until it can");
        }
    }
}
