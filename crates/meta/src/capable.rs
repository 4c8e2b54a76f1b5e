//! Capabilities: what is handed out to sessions for storage services, and to whom a session
//! belongs.

use crate::service::MetaService;
use crate::sessions::Session;
use identity::{CapabilityRing, Grant, Rights};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use types::{Errno, Error, InodeId, Result, SessionId};
use wire::{Capability, LeaseMode, MetaOp, MetaReply};

impl MetaService {
    /// Hands capabilities out from now on, signed with these keys.
    pub fn sign_with(&self, ring: Arc<CapabilityRing>) {
        // The first keeps it.
        self.capabilities.get_or_init(|| ring);
    }

    /// What comes with an answer that lets a session of another process at the chunks of a file.
    pub(crate) fn capability_for(
        &self,
        session: &Session,
        op: &MetaOp,
        reply: &MetaReply,
        reads_only: bool,
    ) -> Option<Capability> {
        let ring = self.capabilities.get().filter(|_| session.is_remote())?;
        let (inode, writes) = subject(op, reply)?;
        // Who asks again for a file that it is writing, since its capability runs out, wishes no
        // lease: it has one.
        let writes = !reads_only && (writes || self.leases.is_written_by(session.id, inode));
        let rights = if writes { Rights::READ_WRITE } else { Rights::READ };
        let holder = session.holder.load(Relaxed);
        let epoch = if let MetaReply::File(info) = reply { info.epoch } else { 0 };
        let grant = Grant { session: session.id, inode, rights, holder, epoch, valid_s: 0, expires: 0 };
        let signed = ring.sign(grant, ring.time_s(rt::monotonic_ns()))?;
        Some(Capability(*signed.as_bytes()))
    }

    /// Refuses who has proved to be somebody else than the one who registered the session.
    /// `holder`: see [`net::Caller::holder`].
    pub(crate) fn check_holder(&self, session: &Session, holder: u64) -> Result<()> {
        if !session.is_remote() || session.holder.load(Relaxed) == holder {
            return Ok(());
        }
        let error = Error::new(Errno::EACCES, format!("session {} belongs to somebody else", session.id));
        Err(error.hint("each client registers a session of its own: mount again"))
    }

    /// The same before a session comes back: only one that is registered already has a holder.
    pub(crate) fn check_holder_if_known(&self, id: SessionId, holder: Option<u64>) -> Result<()> {
        let known = self.sessions.find(id);
        known.iter().zip(holder).try_for_each(|(session, holder)| self.check_holder(session, holder))
    }
}

/// The file whose chunks an answer is about, and whether they may be changed.
fn subject(op: &MetaOp, reply: &MetaReply) -> Option<(InodeId, bool)> {
    match (op, reply) {
        (MetaOp::Open { ino, wish }, MetaReply::File(_)) => {
            Some((*ino, wish.is_some_and(|wish| wish != LeaseMode::Read)))
        }
        (MetaOp::Reopen { ino, .. }, MetaReply::File(_)) => Some((*ino, false)),
        (MetaOp::BeginWrite { .. } | MetaOp::Truncate { .. }, MetaReply::File(info)) => {
            Some((info.attr.ino, true))
        }
        // Not of a file that was there already: who finds one opens it as everybody does, and is
        // looked at then.
        (
            MetaOp::Create { .. } | MetaOp::Deliver { .. } | MetaOp::Tmpfile { .. },
            MetaReply::Created { attr, .. },
        ) => Some((attr.ino, true)),
        _ => None,
    }
}
