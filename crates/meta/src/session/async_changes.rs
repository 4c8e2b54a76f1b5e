//! Asynchronous changes of a session that returns: what applications rely on, and the service may
//! not have executed.
//!
//! A session with a directory delegation, or with the lease on a file, lets applications continue
//! before the service has executed their changes. If its leases end without a recall, since the
//! service restarted or the partition moved, the session reports these changes. The service
//! executes them before other sessions get access: for those, they have always been in effect.

use crate::lease::coherence::ConflictFree;
use crate::limits::{CREATES_AT_ONCE, MAX_REPLAYED_CREATES};
use crate::partition::executor::{CommandOrigin, CommandOutput, TransactOutcome};
use crate::service::command::LookupScope;
use crate::session::exports::is_unrestricted;
use crate::session::registration::Registration;
use crate::session::table::{Session, SessionKind};
use crate::store::transaction_view::View;
use net::Deadline;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{Attr, Credentials, Errno, Error, InodeId, Result};
use wire::{AsyncChange, AsyncCreate, MetaOp, MetaReply, MetaRequest, SlotSequence};

/// Changes that applications of a session rely on, and that the service may not have executed.
#[derive(Clone, Copy)]
pub struct Unsent<'a> {
    /// Files that applications have.
    pub creates: &'a [AsyncCreate],
    /// Other changes, in their order.
    pub changes: &'a [AsyncChange],
}

/// The files that were created so for a session. The session sends each of them again to learn the
/// outcome. Another session may have removed the file by then, and it must not be created again.
#[derive(Default)]
pub(crate) struct ReplayedCreates {
    files: Mutex<BTreeMap<InodeId, Attr>>,
}

impl ReplayedCreates {
    fn note(&self, attr: Attr) {
        let mut files = self.files.lock();
        files.insert(attr.ino, attr);
        if files.len() > MAX_REPLAYED_CREATES {
            files.pop_first();
        }
    }

    /// The answer to a command that was executed when the session returned.
    pub fn reply_to(&self, op: &MetaOp) -> Option<MetaReply> {
        let MetaOp::CommitCreate { file } = op else { return None };
        self.files.lock().get(&file.ino).copied().map(MetaReply::Entry)
    }

    fn has(&self, ino: InodeId) -> bool {
        self.files.lock().contains_key(&ino)
    }
}

impl Registration {
    /// Executes a session's asynchronous changes of the inodes that `concerned` selects, as far as
    /// this service owns their partitions. Call it before other sessions get access. If one fails,
    /// the session gets the error when it sends that again.
    pub async fn replay_unsent(
        &self,
        session: &Session,
        unsent: Unsent<'_>,
        concerned: impl Fn(InodeId) -> bool,
    ) {
        if !is_unrestricted(&session.export()) {
            return;
        }
        let is_here = |ino: InodeId| self.executors.is_owned(ino.partition()) && concerned(ino);
        // Before the creates: a name may have been freed for another file.
        for change in unsent.changes.iter().filter(|change| change.op.spec().home.is_some_and(is_here)) {
            if let Err(error) = self.replay_change(session, change).await {
                let ino = change.op.spec().home.map(|ino| ino.0);
                tracing::warn!(session = session.id.0, ino, %error, "an asynchronous change failed after the session returned");
            }
        }
        let here: Vec<&AsyncCreate> = unsent
            .creates
            .iter()
            .filter(|create| is_here(create.file.parent) && !session.replayed_creates.has(create.file.ino))
            .collect();
        for batch in here.chunks(CREATES_AT_ONCE) {
            let replies = batch.iter().map(|create| self.replay_create(session, create)).collect();
            for (create, made) in batch.iter().zip(rt::join_all(replies).await) {
                match made {
                    Ok(MetaReply::Created { attr, .. } | MetaReply::Entry(attr)) => {
                        session.replayed_creates.note(attr)
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let (ino, parent) = (create.file.ino.0, create.file.parent.0);
                        tracing::warn!(session = session.id.0, ino, parent, %error, "an asynchronous create of a file failed after the session returned");
                    }
                }
            }
        }
    }

    /// Executes a change unless it has been executed: its number is that of the session's own
    /// request, which gets the same answer.
    async fn replay_change(&self, session: &Session, change: &AsyncChange) -> Result<MetaReply> {
        let AsyncChange { credentials, slot_sequence, ref op } = *change;
        self.replay(session, credentials, Some(slot_sequence), op.clone()).await
    }

    async fn replay_create(&self, session: &Session, create: &AsyncCreate) -> Result<MetaReply> {
        let op = MetaOp::CommitCreate { file: Box::new(create.file.clone()) };
        self.replay(session, create.credentials, None, op).await
    }

    /// Runs as a command of the service: it grants no lease, and the client has checked the
    /// permissions. This service may not know the user's groups that the client has reported
    /// before.
    async fn replay(
        &self,
        session: &Session,
        credentials: Credentials,
        slot_sequence: Option<SlotSequence>,
        op: MetaOp,
    ) -> Result<MetaReply> {
        let partition = op.spec().home.unwrap_or(InodeId::ROOT).partition();
        let request = MetaRequest { session: session.id, slot_sequence, credentials, privileged: false, op };
        let map = self.commands.map.load();
        let (local_session, conflict_free) =
            (Session::new(session.id, SessionKind::Local), ConflictFree::default());
        let command = |view: &View<'_>| {
            session.check()?;
            if let Some(recorded) = session.cached_reply(slot_sequence)? {
                recorded.ticket.iter().for_each(|ticket| view.depend_on(ticket));
                return Ok(CommandOutput { answer: recorded.reply, writes: Vec::new() });
            }
            let asked = (&request, LookupScope::WithInode);
            let CommandOutput { answer, mut writes } =
                self.commands.apply(asked, &local_session, &map, (view, &conflict_free))?;
            session.store_reply(&request, &answer.reply, &mut writes);
            Ok(CommandOutput { answer: answer.reply, writes })
        };
        let enqueued =
            |ticket: &kv::Ticket, reply: &MetaReply| session.cache_reply(slot_sequence, reply, ticket);
        let origin = (CommandOrigin::Background, &Deadline::NEVER);
        match self.executors.transact(origin, &[partition], command, enqueued).await? {
            TransactOutcome::Answered(reply) => Ok(reply),
            TransactOutcome::Leases(_) | TransactOutcome::CrossPartition(_) => {
                Err(Error::new(Errno::EAGAIN, "other sessions have leases on its directory"))
            }
        }
    }
}
