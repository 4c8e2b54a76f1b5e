//! Attributes of directories that this session has changed.
//!
//! A kernel asks for the attributes of a directory again after every name that it adds or removes
//! there. The answer to such a change brings them, and they are kept as long as the lease on the
//! directory is held, so that the question is answered here.
//!
//! # Why what is told is what is
//!
//! - While the lease is held, nobody else changes the directory: what an answer told stays true but
//!   for changes of this session.
//! - Every change of the entries of a directory brings its state, with a number that orders the
//!   states of one directory ([`wire::DirectoryState::order`]). Answers come in on many cores and
//!   in any order; of two states the later one is kept. So when a change has been answered, what is
//!   kept is at least as new.
//! - A change that brings no state that counts (one of mode or times, one that failed half-way, one
//!   that was repeated) makes the directory forgotten, and states that were asked for before its
//!   end are not taken any more.
//! - A state counts only while the lease vouches for the answer that brought it
//!   ([`Leases::vouches`]).
//!
//! Under `Permissions` others add and remove names: then mode, owner and group alone are what was
//! told. That is what a kernel needs to know before it lets a program change names, and it is told
//! to who asks for just that.

use crate::lease::{Asked, Leases};
use parking_lot::{Mutex, MutexGuard};
use types::{Attr, FileKind, HashMap, InodeId, Result};
use wire::{DirectoryState, MetaOp, MetaReply, MetaResponse};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 16;
/// Directories that a shard knows. Beyond it, the shard begins anew: they are known again with
/// their next change.
const MAX_DIRECTORIES: usize = 256;

#[derive(Clone, Copy)]
struct Kept {
    state: DirectoryState,
    /// As if it had been asked for then: the lease was held.
    asked: Asked,
}

#[derive(Default)]
struct Shard {
    known: HashMap<InodeId, Kept>,
    /// Answers to what was asked before are not taken.
    floor: u64,
}

impl Shard {
    /// Knows a directory no more, whatever is still on its way.
    fn forget(&mut self, leases: &Leases, ino: InodeId) {
        self.known.remove(&ino);
        self.floor = leases.now();
    }
}

/// What is known of directories.
#[derive(Default)]
pub(crate) struct Directories {
    shards: [Mutex<Shard>; SHARDS],
}

impl Directories {
    fn shard(&self, ino: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// The attributes of a directory as they are now, and the answer that told them.
    pub(crate) fn get(&self, leases: &Leases, ino: InodeId) -> Option<(Asked, Attr)> {
        let Kept { state, asked } = *self.shard(ino).known.get(&ino)?;
        leases.may_be_kept(asked, ino).then_some((asked, state.attr))
    }

    /// Attributes of a directory of which mode, owner and group are as they are now, and the rest
    /// may not be.
    pub(crate) fn permissions(&self, leases: &Leases, ino: InodeId) -> Option<Attr> {
        let Kept { state, asked } = *self.shard(ino).known.get(&ino)?;
        let known = leases.vouches_for_permissions(asked, ino) && !leases.may_be_kept(asked, ino);
        known.then_some(state.attr)
    }

    /// Takes what came of a request, whose leases have been taken already.
    pub(crate) fn take(&self, leases: &Leases, asked: Asked, op: &MetaOp, answer: &Result<MetaResponse>) {
        let Some(changed) = changed(op) else { return };
        let states = answer.as_ref().map_or(&[][..], |response| &response.directories);
        for state in states {
            self.put(leases, asked, *state);
        }
        let brought = |ino: InodeId| states.iter().any(|state| state.attr.ino == ino);
        changed.into_iter().flatten().filter(|ino| !brought(*ino)).for_each(|ino| self.forget(leases, ino));
        match answer {
            Ok(response) => shown(&response.reply)
                .into_iter()
                .flatten()
                .filter(|attr| attr.kind() == FileKind::Directory && !brought(attr.ino))
                .for_each(|attr| self.forget(leases, attr.ino)),
            Err(_) => self.doubt(leases, op),
        }
    }

    /// A request failed, but may have been carried out all the same, also to directories that only
    /// the service knows.
    pub(crate) fn doubt(&self, leases: &Leases, op: &MetaOp) {
        changed(op).into_iter().flatten().flatten().for_each(|ino| self.forget(leases, ino));
        match *op {
            MetaOp::Rename { .. } | MetaOp::Rmdir { .. } => self.forget_all(leases),
            MetaOp::Setattr { ino, .. } | MetaOp::SetXattr { ino, .. } | MetaOp::RemoveXattr { ino, .. } => {
                self.forget(leases, ino);
            }
            _ => {}
        }
    }

    fn put(&self, leases: &Leases, asked: Asked, state: DirectoryState) {
        let ino = state.attr.ino;
        let mut shard = self.shard(ino);
        let now = leases.asking();
        if asked.clock() < shard.floor || !leases.vouches_for_permissions(asked, ino) {
            // What is kept may be older than this, which has been answered now.
            return shard.forget(leases, ino);
        }
        if shard.known.len() >= MAX_DIRECTORIES && !shard.known.contains_key(&ino) {
            *shard = Shard { known: HashMap::default(), floor: leases.now() };
            return;
        }
        match shard.known.get(&ino) {
            Some(kept)
                if kept.state.order > state.order && leases.vouches_for_permissions(kept.asked, ino) => {}
            // Numbers of the time before the lease mean nothing.
            Some(kept) if kept.state.order > state.order => shard.forget(leases, ino),
            _ => drop(shard.known.insert(ino, Kept { state, asked: now })),
        }
    }

    fn forget(&self, leases: &Leases, ino: InodeId) {
        self.shard(ino).forget(leases, ino);
    }

    fn forget_all(&self, leases: &Leases) {
        for shard in &self.shards {
            *shard.lock() = Shard { known: HashMap::default(), floor: leases.now() };
        }
    }
}

/// The inodes given with a request that changes directories, or may; `None` for others.
fn changed(op: &MetaOp) -> Option<[Option<InodeId>; 2]> {
    Some(match *op {
        MetaOp::Create { parent, .. }
        | MetaOp::Mkdir { parent, .. }
        | MetaOp::Symlink { parent, .. }
        | MetaOp::Unlink { parent, .. }
        | MetaOp::Rmdir { parent, .. }
        | MetaOp::Link { parent, .. } => [Some(parent), None],
        MetaOp::Deliver { ref file } => [Some(file.parent), None],
        MetaOp::Rename { parent, new_parent, .. } => [Some(parent), Some(new_parent)],
        MetaOp::SetPattern { dir, .. } => [Some(dir), None],
        // Mostly of files, which the answer tells.
        MetaOp::Setattr { .. } | MetaOp::SetXattr { .. } | MetaOp::RemoveXattr { .. } => [None, None],
        _ => return None,
    })
}

/// The inodes whose attributes an answer tells.
fn shown(reply: &MetaReply) -> [Option<Attr>; 2] {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Attr(attr) => [Some(*attr), None],
        MetaReply::Renamed { moved, other } => [Some(*moved), *other],
        _ => [None, None],
    }
}
