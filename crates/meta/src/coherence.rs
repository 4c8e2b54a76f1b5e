//! Leases of a command: which ones conflict with it, and which ones come with its answer.
//!
//! This runs while the executors of all inodes that the command reads or changes are locked, so
//! that its answer and the leases that come with it are consistent.

use crate::executor::Stop;
use crate::exports::is_plain;
use crate::leases::Leases;
use crate::service::MetaService;
use crate::sessions::{Session, Sessions};
use crate::view::View;
use bytes::Bytes;
use namespace::keys::{self, Key};
use namespace::leases::{Access, Asker, Due, Wish};
use namespace::record::{self, Inode};
use namespace::{Applied, Writes};
use std::collections::BTreeSet;
use types::{Attr, Errno, Error, FileKind, InodeId, PartitionId};
use wire::spec::{Entry, LeaseConflict};
use wire::{DirEntry, DirectoryState, Grant, LeaseMode, MetaOp, MetaReply, RenameMode};

/// Leases that come with an answer.
#[derive(Default)]
pub(crate) struct Granted {
    pub grants: Vec<Grant>,
    /// Number of the session's last recall when they were granted.
    pub recalls: u64,
    /// Changed directories on which the session has a lease.
    pub directories: Vec<DirectoryState>,
}

/// Inodes of other services without conflicting leases, by the word of those services.
#[derive(Default)]
pub(crate) struct Cleared {
    /// No lease conflicts on these inodes.
    pub inodes: BTreeSet<InodeId>,
    /// No lease conflicts in these partitions.
    pub partitions: BTreeSet<PartitionId>,
}

impl Cleared {
    fn has(&self, ino: InodeId) -> bool {
        self.partitions.contains(&ino.partition()) || self.inodes.contains(&ino)
    }
}

impl MetaService {
    /// Checks that no lease of another session conflicts with what was applied, and grants the
    /// leases that come with the answer.
    ///
    /// # Errors
    /// [`Stop::Leases`] if recalls must be acknowledged first, [`Stop::Elsewhere`] if other
    /// services must be asked.
    pub(crate) fn reconcile(
        &self,
        op: &MetaOp,
        session: &Session,
        (view, cleared): (&View<'_>, &Cleared),
        applied: &mut Applied,
    ) -> Result<Granted, Stop> {
        if let MetaOp::Reserve { dir, prefix, .. } = op {
            return self.let_alone((*dir, prefix), session, &mut applied.reply);
        }
        // Fast path of a service with local sessions only.
        if self.leases.is_empty() && !session.is_remote() && !view.held.has_guests() {
            return Ok(Granted::default());
        }
        let asker = session.asker();
        self.keep_while_used(op, session, applied);
        // An open that asks for a lease recalls conflicting ones itself.
        if !(session.is_remote() && matches!(op, MetaOp::Open { wish: Some(_), .. })) {
            self.make_way(op, asker, (view, cleared), applied)?;
        }
        let mut granted = Granted { recalls: asker.recalls, ..Granted::default() };
        if session.is_remote() {
            self.grant_wish(op, &applied.reply, asker, &mut granted)?;
            let offers = Offers { service: self, asker, view, granted: &mut granted };
            offers.make(op, &applied.reply);
            self.tell_directories(op, &applied.writes, &mut granted)?;
            self.tell_epoch(op, &mut applied.reply);
            self.check_still(session)?;
        }
        Ok(granted)
    }

    /// Recalls directory and name-prefix delegations of other sessions on the directories in which
    /// a command looks up names. At a recall, the holder completes its asynchronous creates. Call
    /// it before the command reads.
    ///
    /// # Errors
    /// As [`MetaService::reconcile`].
    pub(crate) fn make_way_to_names(
        &self,
        op: &MetaOp,
        session: &Session,
        (view, cleared): (&View<'_>, &Cleared),
    ) -> Result<(), Stop> {
        if self.leases.is_empty() && !view.held.has_guests() {
            return Ok(());
        }
        let asker = session.asker();
        let mut due = Vec::new();
        for Entry { dir, names, .. } in op.spec().entries.into_iter().flatten() {
            if !view.held.is_guest(dir.partition()) {
                self.leases.make_way_on(&self.sessions, asker, (dir, Access::Look), &mut due);
                self.leases.make_way_in_ranges(&self.sessions, asker, (dir, names), &mut due);
            } else if !cleared.has(dir) && matches!(op, MetaOp::Rename { mode: RenameMode::Exchange, .. }) {
                // Any other rename finds out when it has changed something there. A check that
                // passes covers the change, too.
                return Err(Stop::Elsewhere(vec![(dir, Access::Change)]));
            }
        }
        all_answered(due)
    }

    /// Grants a session a delegation on a directory, or on its names with a prefix. Recalls
    /// conflicting leases of other sessions, unless the delegation was recalled from one just now.
    fn let_alone(
        &self,
        (dir, prefix): (InodeId, &Bytes),
        session: &Session,
        reply: &mut MetaReply,
    ) -> Result<Granted, Stop> {
        // A session with restricted access or mapped users can't predict the attributes of its
        // files.
        let may = session.is_remote() && is_plain(&session.export());
        let asker = session.asker();
        let mut due = Vec::new();
        let alone = match reply {
            MetaReply::Reserved { range: Some(range), .. } if may => {
                let taken = self.leases.take_range(&self.sessions, asker, (dir, prefix), *range, &mut due);
                taken.inspect(|taken| *range = *taken)
            }
            MetaReply::Reserved { range: None, .. }
                if may && !self.leases.has_ranges_of_others(session.id, dir) =>
            {
                self.leases.take_alone(&self.sessions, asker, dir, &mut due).map(|_| dir)
            }
            _ => None,
        };
        all_answered(due)?;
        let Some(ino) = alone else {
            let message = match prefix.is_empty() {
                true => {
                    format!("others use directory {dir}, or session {} may not have it alone", session.id)
                }
                false => format!(
                    "others use names in directory {dir} that begin with {:?}, or session {} may not have them alone",
                    String::from_utf8_lossy(prefix),
                    session.id
                ),
            };
            let hint = "make files there one by one, and ask again later";
            return Err(Stop::Refused(Error::new(Errno::EBUSY, message).hint(hint)));
        };
        self.check_still(session)?;
        let grants = vec![Grant { ino, mode: LeaseMode::Write }];
        Ok(Granted { grants, recalls: asker.recalls, directories: Vec::new() })
    }

    /// Refuses a session that has ended while its command ran.
    fn check_still(&self, session: &Session) -> Result<(), Stop> {
        session.check().map_err(|ended| {
            self.take_back(session);
            Stop::Refused(ended)
        })
    }

    /// Revokes leases that a command of an ended session still got, if the end of its leases has
    /// already passed those inodes. If it is still to come, the leases stay. They block other
    /// sessions until size recovery, since the files' sizes are unknown.
    pub(crate) fn take_back(&self, session: &Session) {
        if session.is_wound_up() {
            self.leases.end_session(session.id);
        }
    }

    /// Keeps an inode without a name while other sessions use it.
    fn keep_while_used(&self, op: &MetaOp, session: &Session, applied: &mut Applied) {
        if let MetaOp::Reclaim { ino } = *op
            && !applied.writes.is_empty()
            && !self.leases.reclaim(session.id, ino)
        {
            applied.writes = Writes::new();
        }
    }

    fn make_way(
        &self,
        op: &MetaOp,
        asker: Asker,
        (view, cleared): (&View<'_>, &Cleared),
        applied: &mut Applied,
    ) -> Result<(), Stop> {
        let mut accesses: Vec<(InodeId, Access)> = Vec::new();
        if applied.writes.is_empty() {
            match &mut applied.reply {
                MetaReply::Directory { entries, .. } => self.hide_unknown(asker, entries),
                reply => accesses.extend(shown(reply).map(|attr| (attr.ino, Access::Look))),
            }
        } else {
            let access = access_of(op);
            accesses.extend(touched(&applied.writes).into_iter().map(|ino| (ino, access)));
        }
        let mut due = Vec::new();
        let mut elsewhere = Vec::new();
        let is_change = !applied.writes.is_empty();
        for (ino, access) in accesses {
            let is_guest = view.held.is_guest(ino.partition());
            if !is_guest && is_change && changes_entries_of(op, ino) {
                self.leases.make_way_for_names(&self.sessions, asker, ino, &mut due);
            } else if !is_guest {
                self.leases.make_way(&self.sessions, asker, (ino, access), &mut due);
            } else if !cleared.has(ino) && born(op, &applied.reply) != Some(ino) {
                elsewhere.push((ino, access));
            }
        }
        all_answered(due)?;
        if !elsewhere.is_empty() {
            return Err(Stop::Elsewhere(elsewhere));
        }
        if matches!(op, MetaOp::Lookup { .. }) {
            self.leave_size_to_chunks(asker, &mut applied.reply);
        }
        Ok(())
    }

    /// While other sessions write a file, only its chunk files know its size. So a lookup answers
    /// without attributes, and the client asks for them. The kernel would trust any size that it
    /// gets, and truncate its pages to it.
    fn leave_size_to_chunks(&self, asker: Asker, reply: &mut MetaReply) {
        if let MetaReply::Entry(attr) = reply
            && self.leases.is_written_elsewhere(asker.session, attr.ino)
        {
            *reply = MetaReply::Elsewhere { ino: attr.ino, mode: attr.mode & types::mode::S_IFMT };
        }
    }

    /// Omits attributes from a listing that only another session knows.
    fn hide_unknown(&self, asker: Asker, entries: &mut [DirEntry]) {
        for entry in entries.iter_mut().filter(|entry| entry.attr.is_some()) {
            if self.leases.is_written_elsewhere(asker.session, entry.ino) {
                entry.attr = None;
            }
        }
    }

    /// Grants the lease that a command asks for, and marks a file as in use that is opened without
    /// one.
    fn grant_wish(
        &self,
        op: &MetaOp,
        reply: &MetaReply,
        asker: Asker,
        granted: &mut Granted,
    ) -> Result<(), Stop> {
        let Some((ino, wish)) = wish_of(op, reply) else { return Ok(()) };
        let mut due = Vec::new();
        let mode = wish.and_then(|wish| self.leases.acquire(&self.sessions, asker, (ino, wish), &mut due));
        all_answered(due)?;
        match mode {
            Some(mode) => granted.grants.push(Grant { ino, mode }),
            None if matches!(op, MetaOp::Open { .. } | MetaOp::Reopen { .. })
                && !self.leases.mark_in_use(&self.sessions, asker, ino) =>
            {
                let message = format!("session {} has too many files open", asker.session);
                return Err(Stop::Refused(Error::new(Errno::ENFILE, message).hint("close some")));
            }
            None => {}
        }
        Ok(())
    }

    /// Adds the lease epoch of a file with chunks, which clients send to its targets.
    fn tell_epoch(&self, op: &MetaOp, reply: &mut MetaReply) {
        if let MetaOp::Reopen { ino, past } = *op {
            self.leases.outdate(ino, past);
        }
        if let MetaReply::File(info) = reply
            && info.layout.is_some()
        {
            info.epoch = self.leases.epoch(info.attr.ino);
        }
    }

    /// Adds the new attributes of directories that the session changed and has a lease on: its
    /// kernel asks for them next.
    fn tell_directories(&self, op: &MetaOp, writes: &Writes, granted: &mut Granted) -> Result<(), Stop> {
        for (key, value) in writes {
            let Some(Key::Inode(ino)) = keys::decode_key(key) else { continue };
            if !changes_entries_of(op, ino) || !granted.grants.iter().any(|grant| grant.ino == ino) {
                continue;
            }
            if let Some(value) = value {
                let attr = record::decode::<Inode>(key, value.clone())?.attr(ino);
                let order = self.leases.next_order();
                granted.directories.push(DirectoryState { attr, order });
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
struct Offers<'a> {
    service: &'a MetaService,
    asker: Asker,
    view: &'a View<'a>,
    granted: &'a mut Granted,
}

impl Offers<'_> {
    fn make(mut self, op: &MetaOp, reply: &MetaReply) {
        match op {
            MetaOp::Lookup { parent, .. }
            | MetaOp::Mkdir { parent, .. }
            | MetaOp::Symlink { parent, .. }
            | MetaOp::Unlink { parent, .. }
            | MetaOp::Rmdir { parent, .. }
            | MetaOp::Link { parent, .. } => {
                self.directory(*parent);
                self.shown(reply);
            }
            MetaOp::Create { parent, wish, .. } => {
                self.directory(*parent);
                self.made(*wish, reply);
            }
            MetaOp::Deliver { file } => {
                self.directory(file.parent);
                self.made(Some(LeaseMode::Write), reply);
            }
            MetaOp::Tmpfile { .. } => self.made(None, reply),
            MetaOp::Rename { parent, new_parent, .. } => {
                self.directory(*parent);
                if new_parent != parent {
                    self.directory(*new_parent);
                }
                self.shown(reply);
            }
            MetaOp::Readdir { dir, .. } => {
                self.directory(*dir);
                self.entries(reply);
            }
            MetaOp::Getattr { .. } | MetaOp::Setattr { .. } => self.shown(reply),
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

    fn known(&mut self, attr: &Attr) {
        match attr.kind() {
            FileKind::Directory => self.directory(attr.ino),
            _ => self.inode(attr.ino),
        }
    }

    fn offer(&mut self, ino: InodeId, how: impl Fn(&Leases, &Sessions, Asker, InodeId) -> Option<LeaseMode>) {
        let MetaService { leases, sessions, .. } = self.service;
        if self.view.held.overlay(ino.partition()).is_some()
            && let Some(mode) = how(leases, sessions, self.asker, ino)
        {
            self.granted.grants.push(Grant { ino, mode });
        }
    }

    fn wished(&mut self, mode: LeaseMode, ino: InodeId) {
        let MetaService { leases, sessions, .. } = self.service;
        if let Some(mode) = leases.acquire(sessions, self.asker, (ino, Wish::Mode(mode)), &mut Vec::new()) {
            self.granted.grants.push(Grant { ino, mode });
        }
    }

    /// Offers leases on the inodes whose attributes the answer contains. An inode without a name
    /// can't be looked up again.
    fn shown(&mut self, reply: &MetaReply) {
        if let Some(attr) = shown(reply).filter(|attr| attr.nlink > 0) {
            self.known(attr);
        }
        if let MetaReply::Renamed { other: Some(attr), .. } = reply
            && attr.nlink > 0
        {
            self.known(attr);
        }
    }

    /// Grants the lease on a new file that the session has open.
    fn made(&mut self, wish: Option<LeaseMode>, reply: &MetaReply) {
        let Some(attr) = shown(reply) else { return };
        let before = self.granted.grants.len();
        match wish {
            // No other session knows the file yet, so no lease conflicts.
            Some(mode) if matches!(reply, MetaReply::Created { .. }) => self.wished(mode, attr.ino),
            _ => self.inode(attr.ino),
        }
        if self.granted.grants.len() == before {
            // At the limit its use isn't marked. Then another session may delete the file while
            // this one has it open.
            self.service.leases.mark_in_use(&self.service.sessions, self.asker, attr.ino);
        }
    }

    fn entries(&mut self, reply: &MetaReply) {
        let MetaReply::Directory { entries, .. } = reply else { return };
        for attr in entries.iter().filter_map(|entry| entry.attr.as_ref()) {
            self.known(attr);
        }
    }
}

fn all_answered(due: Vec<Due>) -> Result<(), Stop> {
    if due.is_empty() { Ok(()) } else { Err(Stop::Leases(due)) }
}

/// The attributes in an answer.
fn shown(reply: &MetaReply) -> Option<&Attr> {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Attr(attr) | MetaReply::Created { attr, .. } => Some(attr),
        MetaReply::Renamed { moved, .. } => Some(moved),
        MetaReply::File(info) => Some(&info.attr),
        MetaReply::Description(description) => Some(&description.attr),
        _ => None,
    }
}

/// The directory that the command created: no session knows it yet.
fn born(op: &MetaOp, reply: &MetaReply) -> Option<InodeId> {
    match (op, reply) {
        (MetaOp::Mkdir { .. }, MetaReply::Entry(attr)) => Some(attr.ino),
        _ => None,
    }
}

/// The file that a command uses, and the lease that it asks for.
fn wish_of(op: &MetaOp, reply: &MetaReply) -> Option<(InodeId, Option<Wish>)> {
    match *op {
        MetaOp::Open { ino, wish } => {
            // Only a session with the exclusive lease may write inline content, or move it to
            // chunks.
            let is_inline = matches!(reply, MetaReply::File(info) if info.inline.is_some());
            let wish = wish.map(|mode| match mode {
                LeaseMode::Write | LeaseMode::Shared if is_inline => Wish::Alone,
                mode => Wish::Mode(mode),
            });
            Some((ino, wish))
        }
        MetaOp::Reopen { ino, .. } => Some((ino, None)),
        // Other sessions have just given up all their leases. While chunks are cut or filled, no
        // other session may write there.
        MetaOp::Truncate { ino, .. } | MetaOp::DropInline { ino, .. } => Some((ino, Some(Wish::Alone))),
        _ => None,
    }
}

/// How a changing command conflicts with leases of other sessions.
fn access_of(op: &MetaOp) -> Access {
    match op.spec().conflict {
        LeaseConflict::Share => Access::Share,
        LeaseConflict::Recall => Access::Change,
    }
}

/// The inodes that writes change.
fn touched(writes: &Writes) -> Vec<InodeId> {
    let mut touched: Vec<InodeId> = writes.iter().filter_map(|(key, _)| keys::inode_of_key(key)).collect();
    touched.sort_unstable();
    touched.dedup();
    touched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::MetaOptions;
    use crate::sessions::SessionKind;
    use kv::{Durability, Memory, Writer};
    use std::sync::{Arc, RwLock};
    use types::{ClusterMap, HashMap, NodeId, SessionId};

    /// A command may run on one core while another core ends its session.
    #[test]
    fn a_command_of_an_ended_session_frees_nothing_before_its_files_are_settled() {
        const ENDED: SessionId = SessionId(1);
        let run = async {
            let writer = Arc::new(Writer::new(Arc::new(Memory::new()), Durability::Process));
            let options = MetaOptions { node: NodeId(1), hash_key: (1, 2), partitions: 1 };
            let map = Arc::new(RwLock::new(Arc::new(ClusterMap::default())));
            let meta = MetaService::open(writer, options, map, HashMap::default()).await.unwrap();
            meta.register_session(ENDED, SessionKind::Remote).await.unwrap();
            let session = meta.sessions.find(ENDED).unwrap();
            let grant = |number| {
                let wish = (InodeId(number), Wish::Alone);
                meta.leases.acquire(&meta.sessions, session.asker(), wish, &mut Vec::new())
            };
            let holds = |number| meta.leases.is_written_by(ENDED, InodeId(number));
            grant(10).unwrap();
            session.end();
            meta.take_back(&session);
            assert!(holds(10), "others get at a file whose size nobody knows");
            meta.wind_up(ENDED).await.unwrap();
            assert!(!holds(10));
            // A command that began before the end of the session.
            grant(11).unwrap();
            meta.take_back(&session);
            assert!(!holds(11), "nobody would give it up");
        };
        rt::block_on(run).unwrap();
    }
}
