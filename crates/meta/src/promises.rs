//! Files that programs of a session have already when it comes back, and the service may not.
//!
//! A session that is alone in a directory lets its programs go on before it has the service make
//! their files. When its leases end without a recall, since the service was started anew or the
//! partition has moved, the session says which these are, and they are made before anybody else is
//! let in: to the others they have been there all the time.

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

/// The files that were made so for a session. It has each of them delivered once more, to hear what
/// became of it; by then somebody may have removed it, and it must not be made again.
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

    /// What a command is answered that was carried out when the session came back.
    pub fn answer_to(&self, op: &MetaOp) -> Option<MetaReply> {
        let MetaOp::Deliver { file } = op else { return None };
        self.files.lock().get(&file.ino).copied().map(MetaReply::Entry)
    }

    fn has(&self, ino: InodeId) -> bool {
        self.files.lock().contains_key(&ino)
    }
}

impl MetaService {
    /// Makes the files that a session has promised its programs, as far as their directories are
    /// this service's. To be called before anybody else is let in. One that can't be made is left
    /// to the session, which will be told why.
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

    /// As the service itself does it: no lease comes with it, and the client has looked whether the
    /// user may. Of groups that it had introduced this service may not know.
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
