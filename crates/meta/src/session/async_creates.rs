//! Asynchronous creates and removals of a session that returns: files that applications have, or
//! have removed, already, and the service may not.
//!
//! A session with a directory delegation lets applications continue before the service has created
//! their files. If its leases end without a recall, since the service restarted or the partition
//! moved, the session reports these files. The service creates them before other sessions get
//! access: for those, the files have existed all the time.

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
use wire::{AsyncCreate, AsyncRemoval, MetaOp, MetaReply, MetaRequest};

/// Changes that applications of a session rely on, and that the service may not have executed.
#[derive(Clone, Copy)]
pub struct Unsent<'a> {
    /// Files that applications have.
    pub creates: &'a [AsyncCreate],
    /// Files that applications have removed.
    pub removals: &'a [AsyncRemoval],
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
    /// Executes a session's asynchronous creates and removals in the directories that `concerned`
    /// selects, as far as this service owns their partitions. Call it before other sessions get
    /// access. If one fails, the session gets the error when it sends that again.
    pub async fn replay_unsent(
        &self,
        session: &Session,
        unsent: Unsent<'_>,
        concerned: impl Fn(InodeId) -> bool,
    ) {
        if !is_unrestricted(&session.export()) {
            return;
        }
        let is_here = |dir: InodeId| self.executors.is_owned(dir.partition()) && concerned(dir);
        // Removals first: a name may have been given to another file since.
        let removals: Vec<_> = unsent.removals.iter().filter(|removal| is_here(removal.parent)).collect();
        for batch in removals.chunks(CREATES_AT_ONCE) {
            let replies = batch.iter().map(|removal| self.replay_removal(session, removal)).collect();
            for (removal, removed) in batch.iter().zip(rt::join_all(replies).await) {
                match removed {
                    // The service has executed it before.
                    Err(error) if error.errno != Errno::ENOENT => {
                        let (ino, parent) = (removal.ino.0, removal.parent.0);
                        tracing::warn!(session = session.id.0, ino, parent, %error, "an asynchronous removal of a file failed after the session returned");
                    }
                    _ => {}
                }
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

    async fn replay_removal(&self, session: &Session, removal: &AsyncRemoval) -> Result<MetaReply> {
        let AsyncRemoval { credentials, parent, ref name, ino } = *removal;
        self.replay(session, credentials, MetaOp::Unlink { parent, name: name.clone(), ino: Some(ino) }).await
    }

    async fn replay_create(&self, session: &Session, create: &AsyncCreate) -> Result<MetaReply> {
        let op = MetaOp::CommitCreate { file: Box::new(create.file.clone()) };
        self.replay(session, create.credentials, op).await
    }

    /// Runs as a command of the service: it grants no lease, and the client has checked the
    /// permissions. This service may not know the user's groups that the client has reported
    /// before.
    async fn replay(&self, session: &Session, credentials: Credentials, op: MetaOp) -> Result<MetaReply> {
        let partition = op.spec().home.unwrap_or(InodeId::ROOT).partition();
        let request =
            MetaRequest { session: session.id, slot_sequence: None, credentials, privileged: false, op };
        let map = self.commands.map.load();
        let (local_session, conflict_free) =
            (Session::new(session.id, SessionKind::Local), ConflictFree::default());
        let command = |view: &View<'_>| {
            session.check()?;
            let asked = (&request, LookupScope::WithInode);
            let CommandOutput { answer, writes } =
                self.commands.apply(asked, &local_session, &map, (view, &conflict_free))?;
            Ok(CommandOutput { answer: answer.reply, writes })
        };
        match self
            .executors
            .transact((CommandOrigin::Background, &Deadline::NEVER), &[partition], command, |_, _| ())
            .await?
        {
            TransactOutcome::Answered(reply) => Ok(reply),
            TransactOutcome::Leases(_) | TransactOutcome::CrossPartition(_) => {
                Err(Error::new(Errno::EAGAIN, "other sessions have leases on its directory"))
            }
        }
    }
}
