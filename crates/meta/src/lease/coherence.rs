//! Leases of a command: which ones conflict with it, and which ones come with its answer.
//!
//! This runs while the executors of all inodes that the command reads or changes are locked, so
//! that its answer and the leases that come with it are consistent.

use crate::lease::table::Leases;
use crate::partition::executor::Abort;
use crate::session::exports::is_unrestricted;
use crate::session::table::{Session, Sessions};
use crate::store::transaction_view::View;
use bytes::Bytes;
use namespace::keys::{self, Key};
use namespace::leases::{InodeAccess, LeaseKey, LeaseRequest, NamePrefixId, PendingRecall, Requester};
use namespace::record::{self, Inode};
use namespace::{Applied, Writes};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{Attr, Errno, Error, FileKind, InodeId, PartitionId};
use wire::spec::{Entry, LeaseConflict};
use wire::{DirEntry, DirectoryState, LeaseGrant, LeaseMode, MetaOp, MetaReply, RenameMode};

/// Leases that come with an answer.
#[derive(Default)]
pub(crate) struct Granted {
    pub grants: Vec<LeaseGrant>,
    /// Number of the session's last recall when they were granted.
    pub last_recall: u64,
    /// Changed directories on which the session has a lease.
    pub directories: Vec<DirectoryState>,
}

/// Inodes of other services without conflicting leases, by the word of those services.
#[derive(Default)]
pub(crate) struct ConflictFree {
    /// No lease conflicts on these inodes.
    pub inodes: BTreeSet<InodeId>,
    /// No lease conflicts in these partitions.
    pub partitions: BTreeSet<PartitionId>,
}

impl ConflictFree {
    fn has(&self, ino: InodeId) -> bool {
        self.partitions.contains(&ino.partition()) || self.inodes.contains(&ino)
    }
}

/// What commands recall and what they grant.
pub(crate) struct Coherence {
    sessions: Arc<Sessions>,
    leases: Arc<Leases>,
}

impl Coherence {
    pub fn new(sessions: Arc<Sessions>, leases: Arc<Leases>) -> Coherence {
        Coherence { sessions, leases }
    }

    /// Checks that no lease of another session conflicts with what was applied, and grants the
    /// leases that come with the answer.
    ///
    /// # Errors
    /// [`Abort::Leases`] if recalls must be acknowledged first, [`Abort::RemoteLeases`] if other
    /// services must be asked.
    pub fn reconcile(
        &self,
        op: &MetaOp,
        session: &Session,
        (view, conflict_free): (&View<'_>, &ConflictFree),
        applied: &mut Applied,
    ) -> Result<Granted, Abort> {
        if let MetaOp::PreallocateInodes { dir, prefix, .. } = op {
            return self.grant_delegation((*dir, prefix), session, &mut applied.reply);
        }
        // Fast path of a service with local sessions only.
        if self.leases.is_empty() && !session.is_remote() && !view.locked.has_remote_partitions() {
            return Ok(Granted::default());
        }
        let requester = session.lease_requester();
        // An open that asks for a lease recalls conflicting ones itself.
        if !(session.is_remote() && matches!(op, MetaOp::Open { requested_lease: Some(_), .. })) {
            self.recall_conflicting(op, requester, (view, conflict_free), applied)?;
        }
        let mut granted = Granted { last_recall: requester.last_recall, ..Granted::default() };
        if session.is_remote() {
            self.grant_requested(op, &applied.reply, requester, &mut granted)?;
            let offers = LeaseOffers { coherence: self, requester, view, granted: &mut granted };
            offers.make(op, &applied.reply);
            self.add_directories(op, &applied.writes, &mut granted)?;
            self.add_epoch(op, &mut applied.reply);
            self.check_not_ended(session)?;
        }
        Ok(granted)
    }

    /// Recalls directory and name-prefix delegations of other sessions on the directories in which
    /// a command looks up names. At a recall, the holder completes its asynchronous creates. Call
    /// it before the command reads.
    ///
    /// # Errors
    /// As [`Coherence::reconcile`].
    pub fn recall_for_names(
        &self,
        op: &MetaOp,
        session: &Session,
        (view, conflict_free): (&View<'_>, &ConflictFree),
    ) -> Result<(), Abort> {
        if self.leases.is_empty() && !view.locked.has_remote_partitions() {
            return Ok(());
        }
        let requester = session.lease_requester();
        let mut due = Vec::new();
        for Entry { dir, names, .. } in op.spec().entries.into_iter().flatten() {
            if !view.locked.is_remote_partition(dir.partition()) {
                let access = (dir.into(), InodeAccess::Read);
                self.leases.recall_conflicting_on(&self.sessions, requester, access, &mut due);
                self.leases.recall_name_delegations(&self.sessions, requester, (dir, names), &mut due);
            } else if !conflict_free.has(dir)
                && matches!(op, MetaOp::Rename { mode: RenameMode::Exchange, .. })
            {
                // Any other rename finds out when it has changed something there. A check that
                // passes covers the change, too.
                return Err(Abort::RemoteLeases(vec![(dir, InodeAccess::Write)]));
            }
        }
        require_acknowledged(due)
    }

    /// Grants a session a delegation on a directory, or on its names with a prefix. Recalls
    /// conflicting leases of other sessions, unless the delegation was recalled from one just now.
    fn grant_delegation(
        &self,
        (dir, prefix): (InodeId, &Bytes),
        session: &Session,
        reply: &mut MetaReply,
    ) -> Result<Granted, Abort> {
        // A session with restricted access or mapped users can't predict the attributes of its
        // files.
        let may = session.is_remote() && is_unrestricted(&session.export());
        let requester = session.lease_requester();
        let mut due = Vec::new();
        let granted = match reply {
            MetaReply::Preallocated { prefix_lease: Some(number), .. } if may => {
                let key = self.leases.acquire_name_delegation(
                    &self.sessions,
                    requester,
                    (dir, prefix),
                    NamePrefixId::new(*number),
                    &mut due,
                );
                key.inspect(|key| *number = key.number())
            }
            MetaReply::Preallocated { prefix_lease: None, .. }
                if may && !self.leases.others_have_name_delegations(session.id, dir) =>
            {
                let key = LeaseKey::Inode(dir);
                self.leases.acquire_exclusive(&self.sessions, requester, key, &mut due).map(|_| key)
            }
            _ => None,
        };
        require_acknowledged(due)?;
        let Some(key) = granted else {
            let message = match prefix.is_empty() {
                true => {
                    format!(
                        "other sessions use directory {dir}, or session {} may not hold a delegation on it",
                        session.id
                    )
                }
                false => format!(
                    "other sessions use names in directory {dir} that begin with {:?}, or session {} may not hold a delegation on them",
                    String::from_utf8_lossy(prefix),
                    session.id
                ),
            };
            let hint = "create files there synchronously, and request the delegation again later";
            return Err(Abort::Refused(Error::new(Errno::EBUSY, message).hint(hint)));
        };
        self.check_not_ended(session)?;
        let grants = vec![LeaseGrant { ino: key.number(), mode: LeaseMode::Write }];
        Ok(Granted { grants, last_recall: requester.last_recall, directories: Vec::new() })
    }

    /// Refuses a session that has ended while its command ran.
    fn check_not_ended(&self, session: &Session) -> Result<(), Abort> {
        session.check().map_err(|ended| {
            self.revoke_late_grants(session);
            Abort::Refused(ended)
        })
    }

    /// Revokes leases that a command of an ended session still got, if the end of its leases has
    /// already passed those inodes. If it is still to come, the leases stay. They block other
    /// sessions until size recovery, since the files' sizes are unknown.
    pub fn revoke_late_grants(&self, session: &Session) {
        if session.has_completed_end() {
            self.leases.end_session(session.id);
        }
    }

    /// Drops a session's use of the inodes that writes delete. Returns those that other sessions use.
    pub fn reclaim(&self, session: &Session, writes: &Writes) -> Vec<InodeId> {
        let deleted = writes.iter().filter_map(|(key, value)| match (keys::decode_key(key), value) {
            (Some(keys::Key::Inode(ino)), None) => Some(ino),
            _ => None,
        });
        deleted.filter(|ino| !self.leases.reclaim(session.id, *ino)).collect()
    }

    fn recall_conflicting(
        &self,
        op: &MetaOp,
        requester: Requester,
        (view, conflict_free): (&View<'_>, &ConflictFree),
        applied: &mut Applied,
    ) -> Result<(), Abort> {
        let mut accesses: Vec<(InodeId, InodeAccess)> = Vec::new();
        if applied.writes.is_empty() {
            match &mut applied.reply {
                MetaReply::Directory { entries, .. } => self.omit_written_attributes(requester, entries),
                reply => accesses.extend(attr_of_reply(reply).map(|attr| (attr.ino, InodeAccess::Read))),
            }
        } else {
            let access = access_of(op);
            accesses.extend(changed_inodes(&applied.writes).into_iter().map(|ino| (ino, access)));
        }
        let mut due = Vec::new();
        let mut remote = Vec::new();
        let is_change = !applied.writes.is_empty();
        for (ino, access) in accesses {
            let is_remote = view.locked.is_remote_partition(ino.partition());
            if !is_remote && is_change && changes_entries_of(op, ino) {
                self.leases.recall_for_name_change(&self.sessions, requester, ino, &mut due);
            } else if !is_remote {
                self.leases.recall_conflicting(&self.sessions, requester, (ino, access), &mut due);
            } else if !conflict_free.has(ino) && created_directory(op, &applied.reply) != Some(ino) {
                remote.push((ino, access));
            }
        }
        require_acknowledged(due)?;
        if !remote.is_empty() {
            return Err(Abort::RemoteLeases(remote));
        }
        if matches!(op, MetaOp::Lookup { .. }) {
            self.omit_size_of_written(requester, &mut applied.reply);
        }
        Ok(())
    }

    /// While other sessions write a file, only its chunk files know its size. So a lookup answers
    /// without attributes, and the client asks for them. The kernel would trust any size that it
    /// gets, and truncate its pages to it.
    fn omit_size_of_written(&self, requester: Requester, reply: &mut MetaReply) {
        if let MetaReply::Entry(attr) = reply
            && self.leases.is_written_elsewhere(requester.session, attr.ino)
        {
            *reply = MetaReply::Redirect { ino: attr.ino, mode: attr.mode & types::mode::S_IFMT };
        }
    }

    /// Omits attributes from a listing that only another session knows.
    fn omit_written_attributes(&self, requester: Requester, entries: &mut [DirEntry]) {
        for entry in entries.iter_mut().filter(|entry| entry.attr.is_some()) {
            if self.leases.is_written_elsewhere(requester.session, entry.ino) {
                entry.attr = None;
            }
        }
    }

    /// Grants the lease that a command asks for, and marks a file as in use that is opened without
    /// one.
    fn grant_requested(
        &self,
        op: &MetaOp,
        reply: &MetaReply,
        requester: Requester,
        granted: &mut Granted,
    ) -> Result<(), Abort> {
        let Some((ino, wish)) = requested_lease(op, reply) else { return Ok(()) };
        let mut due = Vec::new();
        let mode =
            wish.and_then(|wish| self.leases.acquire(&self.sessions, requester, (ino, wish), &mut due));
        require_acknowledged(due)?;
        match mode {
            Some(mode) => granted.grants.push(LeaseGrant { ino, mode }),
            None if matches!(op, MetaOp::Open { .. } | MetaOp::Reopen { .. })
                && !self.leases.mark_in_use(&self.sessions, requester, ino) =>
            {
                let message = format!("session {} has too many files open", requester.session);
                return Err(Abort::Refused(Error::new(Errno::ENFILE, message).hint("close some files")));
            }
            None => {}
        }
        Ok(())
    }

    /// Adds the lease epoch of a file with chunks, which clients send to its targets.
    fn add_epoch(&self, op: &MetaOp, reply: &mut MetaReply) {
        if let MetaOp::Reopen { ino, above_epoch: past } = *op {
            self.leases.end_epoch(ino, past);
        }
        match reply {
            MetaReply::File(info) if info.layout.is_some() => {
                info.epoch = self.leases.epoch(info.attr.ino);
            }
            MetaReply::Created { attr, begun: Some(begun), .. } => {
                begun.epoch = self.leases.epoch(attr.ino);
            }
            _ => {}
        }
    }

    /// Adds the new attributes of directories that the session changed and has a lease on: its
    /// kernel asks for them next.
    fn add_directories(&self, op: &MetaOp, writes: &Writes, granted: &mut Granted) -> Result<(), Abort> {
        for (key, value) in writes {
            let Some(Key::Inode(ino)) = keys::decode_key(key) else { continue };
            if !changes_entries_of(op, ino) || !granted.grants.iter().any(|grant| grant.ino == ino) {
                continue;
            }
            if let Some(value) = value {
                let attr = record::decode::<Inode>(key, value.clone())?.attr(ino);
                let state_number = self.leases.next_state_number();
                granted.directories.push(DirectoryState { attr, state_number });
            }
        }
        Ok(())
    }
}

/// Whether a command adds or removes entries of this directory, and leaves its permissions as they
/// are.
fn changes_entries_of(op: &MetaOp, ino: InodeId) -> bool {
    op.spec().changed_directories().contains(&Some(ino))
}

/// Leases that are granted without a request.
struct LeaseOffers<'a> {
    coherence: &'a Coherence,
    requester: Requester,
    view: &'a View<'a>,
    granted: &'a mut Granted,
}

impl LeaseOffers<'_> {
    fn make(mut self, op: &MetaOp, reply: &MetaReply) {
        match op {
            MetaOp::Lookup { parent, .. }
            | MetaOp::Mkdir { parent, .. }
            | MetaOp::Symlink { parent, .. }
            | MetaOp::Unlink { parent, .. }
            | MetaOp::Rmdir { parent, .. }
            | MetaOp::Link { parent, .. } => {
                self.directory(*parent);
                self.reported_attr(reply);
            }
            MetaOp::Create { parent, requested_lease: wish, .. } => {
                self.directory(*parent);
                self.created(*wish, reply);
            }
            MetaOp::CommitCreate { file } => {
                self.directory(file.parent);
                self.created(Some(LeaseMode::Write), reply);
            }
            MetaOp::Tmpfile { .. } => self.created(None, reply),
            MetaOp::Rename { parent, new_parent, .. } => {
                self.directory(*parent);
                if new_parent != parent {
                    self.directory(*new_parent);
                }
                self.reported_attr(reply);
            }
            MetaOp::Readdir { dir, .. } => {
                self.directory(*dir);
                self.entries(reply);
            }
            MetaOp::Getattr { .. } | MetaOp::Setattr { .. } => self.reported_attr(reply),
            MetaOp::SetXattr { ino, .. }
            | MetaOp::RemoveXattr { ino, .. }
            | MetaOp::GetXattr { ino, .. }
            | MetaOp::ListXattr { ino }
            | MetaOp::Readlink { ino } => self.inode(*ino),
            _ => {}
        }
    }

    fn inode(&mut self, ino: InodeId) {
        self.offer(ino, Leases::offer);
    }

    fn directory(&mut self, ino: InodeId) {
        self.offer(ino, Leases::offer_directory);
    }

    fn attr(&mut self, attr: &Attr) {
        match attr.kind() {
            FileKind::Directory => self.directory(attr.ino),
            _ => self.inode(attr.ino),
        }
    }

    fn offer(
        &mut self,
        ino: InodeId,
        how: impl Fn(&Leases, &Sessions, Requester, InodeId) -> Option<LeaseMode>,
    ) {
        let Coherence { leases, sessions } = self.coherence;
        if self.view.locked.overlay(ino.partition()).is_some()
            && let Some(mode) = how(leases, sessions, self.requester, ino)
        {
            self.granted.grants.push(LeaseGrant { ino, mode });
        }
    }

    fn requested(&mut self, mode: LeaseMode, ino: InodeId) {
        let Coherence { leases, sessions } = self.coherence;
        if let Some(mode) =
            leases.acquire(sessions, self.requester, (ino, LeaseRequest::Mode(mode)), &mut Vec::new())
        {
            self.granted.grants.push(LeaseGrant { ino, mode });
        }
    }

    /// Offers leases on the inodes whose attributes the answer contains. An inode without a name
    /// can't be looked up again.
    fn reported_attr(&mut self, reply: &MetaReply) {
        if let Some(attr) = attr_of_reply(reply).filter(|attr| attr.nlink > 0) {
            self.attr(attr);
        }
        if let MetaReply::Renamed { other: Some(attr), .. } = reply
            && attr.nlink > 0
        {
            self.attr(attr);
        }
    }

    /// Grants the lease on a new file that the session has open.
    fn created(&mut self, wish: Option<LeaseMode>, reply: &MetaReply) {
        let Some(attr) = attr_of_reply(reply) else { return };
        let before = self.granted.grants.len();
        match wish {
            // No other session knows the file yet, so no lease conflicts.
            Some(mode) if matches!(reply, MetaReply::Created { .. }) => self.requested(mode, attr.ino),
            _ => self.inode(attr.ino),
        }
        if self.granted.grants.len() == before {
            // At the limit its use isn't marked. Then another session may delete the file while
            // this one has it open.
            let Coherence { leases, sessions } = self.coherence;
            leases.mark_in_use(sessions, self.requester, attr.ino);
        }
    }

    fn entries(&mut self, reply: &MetaReply) {
        let MetaReply::Directory { entries, .. } = reply else { return };
        for attr in entries.iter().filter_map(|entry| entry.attr.as_ref()) {
            self.attr(attr);
        }
    }
}

fn require_acknowledged(due: Vec<PendingRecall>) -> Result<(), Abort> {
    if due.is_empty() { Ok(()) } else { Err(Abort::Leases(due)) }
}

/// The attributes in an answer.
fn attr_of_reply(reply: &MetaReply) -> Option<&Attr> {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Attr(attr) | MetaReply::Created { attr, .. } => Some(attr),
        MetaReply::Renamed { moved, .. } => Some(moved),
        MetaReply::File(info) => Some(&info.attr),
        MetaReply::Description(description) => Some(&description.attr),
        _ => None,
    }
}

/// The directory that the command created: no session knows it yet.
fn created_directory(op: &MetaOp, reply: &MetaReply) -> Option<InodeId> {
    match (op, reply) {
        (MetaOp::Mkdir { .. }, MetaReply::Entry(attr)) => Some(attr.ino),
        _ => None,
    }
}

/// The file that a command uses, and the lease that it asks for.
fn requested_lease(op: &MetaOp, reply: &MetaReply) -> Option<(InodeId, Option<LeaseRequest>)> {
    match *op {
        MetaOp::Open { ino, requested_lease: wish } => {
            // Only a session with the exclusive lease may write inline content, or move it to
            // chunks.
            let is_inline = matches!(reply, MetaReply::File(info) if info.inline.is_some());
            let wish = wish.map(|mode| match mode {
                LeaseMode::Write | LeaseMode::Shared if is_inline => LeaseRequest::Exclusive,
                mode => LeaseRequest::Mode(mode),
            });
            Some((ino, wish))
        }
        MetaOp::Reopen { ino, .. } => Some((ino, None)),
        // Other sessions have just given up all their leases. While chunks are cut or filled, no
        // other session may write there.
        MetaOp::Truncate { ino, .. } | MetaOp::DropInline { ino, .. } => {
            Some((ino, Some(LeaseRequest::Exclusive)))
        }
        _ => None,
    }
}

/// How a changing command conflicts with leases of other sessions.
fn access_of(op: &MetaOp) -> InodeAccess {
    match op.spec().conflict {
        LeaseConflict::Share => InodeAccess::SharedWrite,
        LeaseConflict::Recall => InodeAccess::Write,
    }
}

/// The inodes that writes change.
fn changed_inodes(writes: &Writes) -> Vec<InodeId> {
    let mut touched: Vec<InodeId> = writes.iter().filter_map(|(key, _)| keys::inode_of_key(key)).collect();
    touched.sort_unstable();
    touched.dedup();
    touched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{MetaOptions, MetaService};
    use crate::session::table::SessionKind;
    use kv::{Durability, Memory, Writer};
    use types::{HashMap, MapHandle, NodeId, SessionId};

    /// A command may run on one core while another core ends its session.
    #[test]
    fn a_command_of_an_ended_session_frees_nothing_before_its_files_are_settled() {
        const ENDED: SessionId = SessionId(1);
        let run = async {
            let writer = Arc::new(Writer::new(Arc::new(Memory::new()), Durability::Process));
            let options = MetaOptions {
                node: NodeId(1),
                hash_key: (1, 2),
                partitions: 1,
                root_pattern: types::StripePattern::default(),
            };
            let map = MapHandle::default();
            let meta = MetaService::open(writer, options, map, HashMap::default()).await.unwrap();
            meta.register_session(ENDED, SessionKind::Remote).await.unwrap();
            let session = meta.sessions.find(ENDED).unwrap();
            let grant = |number| {
                let wish = (InodeId(number), LeaseRequest::Exclusive);
                meta.leases.acquire(&meta.sessions, session.lease_requester(), wish, &mut Vec::new())
            };
            let holds = |number| meta.leases.is_written_by(ENDED, InodeId(number).into());
            grant(10).unwrap();
            session.end();
            let coherence = Coherence::new(meta.sessions.clone(), meta.leases.clone());
            coherence.revoke_late_grants(&session);
            assert!(holds(10), "others get at a file whose size nobody knows");
            meta.eviction.cleanup.clean_up_session(ENDED).await.unwrap();
            assert!(!holds(10));
            // A command that began before the end of the session.
            grant(11).unwrap();
            coherence.revoke_late_grants(&session);
            assert!(!holds(11), "nobody would give it up");
        };
        rt::block_on(run).unwrap();
    }
}
