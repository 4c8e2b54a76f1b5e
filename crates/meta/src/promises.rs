//! Asynchronous creates of a session that returns: files that applications have already, and the
//! service may not.
//!
//! A session with a directory delegation lets applications continue before the service has created
//! their files. If its leases end without a recall, since the service restarted or the partition
//! moved, the session reports these files. The service creates them before other sessions get
//! access: for those, the files have existed all the time.

use crate::coherence::Cleared;
use crate::executor::{Change, Pass, Ran};
use crate::exports::is_plain;
use crate::limits::{KEPT_PROMISES, PROMISES_AT_ONCE};
use crate::service::{Found, MetaService};
use crate::sessions::{Session, SessionKind};
use crate::view::View;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use types::{Attr, Errno, Error, InodeId, Result};
use wire::{MetaOp, MetaReply, MetaRequest, Promise};

/// The files that were created so for a session. The session sends each of them again to learn the
/// outcome. Another session may have removed the file by then, and it must not be created again.
#[derive(Default)]
pub(crate) struct Kept {
    files: Mutex<BTreeMap<InodeId, Attr>>,
}

impl Kept {
    fn note(&self, attr: Attr) {
        let mut files = self.files.lock();
        files.insert(attr.ino, attr);
        if files.len() > KEPT_PROMISES {
            files.pop_first();
        }
    }

    /// The answer to a command that was executed when the session returned.
    pub fn answer_to(&self, op: &MetaOp) -> Option<MetaReply> {
        let MetaOp::Deliver { file } = op else { return None };
        self.files.lock().get(&file.ino).copied().map(MetaReply::Entry)
    }

    fn has(&self, ino: InodeId) -> bool {
        self.files.lock().contains_key(&ino)
    }
}

impl MetaService {
    /// Executes a session's asynchronous creates in directories of partitions that this service
    /// owns. Call it before other sessions get access. If one fails, the session gets the error
    /// when it sends that again.
    pub(crate) async fn keep_promises<'a>(
        &self,
        session: &Session,
        promised: impl Iterator<Item = &'a Promise>,
    ) {
        if !is_plain(&session.export()) {
            return;
        }
        let is_here = |promise: &&Promise| {
            self.is_owned(promise.file.parent.partition()) && !session.kept.has(promise.file.ino)
        };
        let here: Vec<&Promise> = promised.filter(is_here).collect();
        for some in here.chunks(PROMISES_AT_ONCE) {
            let made = some.iter().map(|promise| self.keep_promise(session, promise)).collect();
            for (promise, made) in some.iter().zip(rt::join_all(made).await) {
                match made {
                    Ok(MetaReply::Created { attr, .. } | MetaReply::Entry(attr)) => session.kept.note(attr),
                    Ok(_) => {}
                    Err(error) => {
                        let (ino, parent) = (promise.file.ino.0, promise.file.parent.0);
                        tracing::warn!(session = session.id.0, ino, parent, %error, "a file that a program has made could not be kept");
                    }
                }
            }
        }
    }

    /// Runs as a command of the service: it grants no lease, and the client has checked the
    /// permissions. This service may not know the user's groups that the client has reported
    /// before.
    async fn keep_promise(&self, session: &Session, promise: &Promise) -> Result<MetaReply> {
        let op = MetaOp::Deliver { file: Box::new(promise.file.clone()) };
        let request = MetaRequest {
            session: session.id,
            number: None,
            credentials: promise.credentials,
            privileged: false,
            op,
        };
        let map = self.chunks.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (maker, cleared) = (Session::new(session.id, SessionKind::Local), Cleared::default());
        let command = |view: &View<'_>| {
            session.check()?;
            let asked = (&request, Found::WithInode);
            let Change { answer, writes } = self.apply(asked, &maker, &map, (view, &cleared))?;
            Ok(Change { answer: answer.reply, writes })
        };
        let partition = promise.file.parent.partition();
        match self.executors.transact(Pass::Background, &[partition], command, |_, _| ()).await? {
            Ran::Answered(reply) => Ok(reply),
            Ran::Leases(_) | Ran::Across(_) => {
                Err(Error::new(Errno::EAGAIN, "others have been let into its directory"))
            }
        }
    }
}
