//! Capabilities that sessions get for storage services, and the check of which client a session
//! belongs to.

use crate::lease::table::Leases;
use crate::session::table::{Session, Sessions};
use identity::{CapabilityRing, Grant, Rights};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use types::{Errno, Error, InodeId, Result, SessionId};
use wire::{Capability, LeaseMode, MetaOp, MetaReply};

/// Issues capabilities.
pub(crate) struct Capabilities {
    /// The keys that sign capabilities; empty if the service issues none.
    ring: OnceLock<Arc<CapabilityRing>>,
    leases: Arc<Leases>,
}

impl Capabilities {
    pub fn new(leases: Arc<Leases>) -> Capabilities {
        Capabilities { ring: OnceLock::new(), leases }
    }

    /// Issues capabilities from now on, signed with these keys. Only the first call has an effect.
    pub fn sign_with(&self, ring: Arc<CapabilityRing>) {
        self.ring.get_or_init(|| ring);
    }

    /// The capability that comes with an answer and gives a session of another process access to a
    /// file's chunk files.
    pub fn capability_for(
        &self,
        session: &Session,
        op: &MetaOp,
        reply: &MetaReply,
        is_read_only: bool,
    ) -> Option<Capability> {
        let ring = self.ring.get().filter(|_| session.is_remote())?;
        let (inode, writes) = subject(op, reply)?;
        // A writer that renews its capability asks for no lease: it has one.
        let writes = !is_read_only && (writes || self.leases.is_written_by(session.id, inode.into()));
        let rights = if writes { Rights::READ_WRITE } else { Rights::READ };
        let holder = session.holder.load(Relaxed);
        let epoch = match reply {
            MetaReply::File(info) => info.epoch,
            MetaReply::Created { begun: Some(begun), .. } => begun.epoch,
            _ => 0,
        };
        let grant = Grant { session: session.id, inode, rights, holder, epoch, valid_s: 0, expires: 0 };
        let signed = ring.sign(grant, ring.cluster_time_s(rt::monotonic_ns()))?;
        Some(Capability(*signed.as_bytes()))
    }
}

impl Session {
    /// Refuses a client that is not the one that registered the session, by its proven identity.
    /// `holder`: see [`net::Caller::holder`].
    pub fn check_holder(&self, holder: u64) -> Result<()> {
        if !self.is_remote() || self.holder.load(Relaxed) == holder {
            return Ok(());
        }
        let error = Error::new(Errno::EACCES, format!("session {} belongs to another client", self.id));
        Err(error.hint("each client registers a session of its own: mount again"))
    }
}

impl Sessions {
    /// The same before a session returns: only a registered session has a holder.
    pub fn check_holder_if_known(&self, id: SessionId, holder: Option<u64>) -> Result<()> {
        let known = self.find(id);
        known.iter().zip(holder).try_for_each(|(session, holder)| session.check_holder(holder))
    }
}

/// The file whose chunk files an answer is about, and whether the session may change them.
fn subject(op: &MetaOp, reply: &MetaReply) -> Option<(InodeId, bool)> {
    match (op, reply) {
        (MetaOp::Open { ino, requested_lease: wish }, MetaReply::File(_)) => {
            Some((*ino, wish.is_some_and(|wish| wish != LeaseMode::Read)))
        }
        (MetaOp::Reopen { ino, .. }, MetaReply::File(_)) => Some((*ino, false)),
        (MetaOp::BeginWrite { .. } | MetaOp::Truncate { .. }, MetaReply::File(info)) => {
            Some((info.attr.ino, true))
        }
        // Not for a file that existed before: the client opens it, and its permissions are checked
        // then.
        (
            MetaOp::Create { .. } | MetaOp::CommitCreate { .. } | MetaOp::Tmpfile { .. },
            MetaReply::Created { attr, .. },
        ) => Some((attr.ino, true)),
        _ => None,
    }
}
