//! Cached attributes of directories that this session has changed.
//!
//! A kernel requests the attributes of a directory after every name that it adds or removes there.
//! The answer to such a change contains them. The client caches them as long as it holds the lease
//! on the directory, and so answers the kernel itself.
//!
//! # Why cached attributes are current
//!
//! - While the lease is held, no other session changes the directory: attributes stay valid except
//!   for changes of this session.
//! - Every change of the entries of a directory returns its state, with a number that orders the
//!   states of one directory ([`wire::DirectoryState::state_number`]). Answers arrive on many cores
//!   and in any order; of two states the later one is cached. So when a change has been answered,
//!   the cached state is at least as new.
//! - A change without a valid state (of mode or times, one that failed half-way, one that was
//!   repeated) drops the directory, and states from requests that were sent before its end are
//!   ignored.
//! - A state is valid only while the lease covers the answer that contained it
//!   ([`Leases::covers_permissions`]).
//!
//! Under `Permissions` other sessions add and remove names: then only mode, owner and group are
//! current. A kernel needs these before it permits an application to change names, and callers that
//! need only these get them.

use crate::session::leases::{Leases, RequestStamp};
use parking_lot::{Mutex, MutexGuard};
use types::{Attr, FileKind, HashMap, InodeId, Result};
use wire::{DirectoryState, MetaOp, MetaReply, MetaResponse};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 16;
/// Maximum number of directories in a shard. Beyond it, the shard drops all: each is cached again
/// with its next change.
const MAX_DIRECTORIES: usize = 256;

#[derive(Clone, Copy)]
struct CachedState {
    state: DirectoryState,
    /// Stamp of a time at which the lease was held.
    stamp: RequestStamp,
}

#[derive(Default)]
struct Shard {
    known: HashMap<InodeId, CachedState>,
    /// Answers to requests before this event are ignored.
    floor: u64,
}

impl Shard {
    /// Drops a directory, and ignores answers that are still in flight.
    fn forget(&mut self, leases: &Leases, ino: InodeId) {
        self.known.remove(&ino);
        self.floor = leases.advance_clock();
    }
}

/// Cached states of directories.
#[derive(Default)]
pub(crate) struct DirectoryAttributes {
    shards: [Mutex<Shard>; SHARDS],
}

impl DirectoryAttributes {
    fn shard(&self, ino: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// Returns the current attributes of a directory, and the stamp for their lease.
    pub(crate) fn get(&self, leases: &Leases, ino: InodeId) -> Option<(RequestStamp, Attr)> {
        let CachedState { state, stamp } = *self.shard(ino).known.get(&ino)?;
        leases.is_cacheable(stamp, ino).then_some((stamp, state.attr))
    }

    /// Returns attributes of a directory of which mode, owner and group are current, and the others
    /// may not be.
    pub(crate) fn permissions(&self, leases: &Leases, ino: InodeId) -> Option<Attr> {
        let CachedState { state, stamp } = *self.shard(ino).known.get(&ino)?;
        let known = leases.covers_permissions(stamp, ino) && !leases.is_cacheable(stamp, ino);
        known.then_some(state.attr)
    }

    /// Processes the outcome of a request, after its leases have been recorded.
    pub(crate) fn process_outcome(
        &self,
        leases: &Leases,
        stamp: RequestStamp,
        op: &MetaOp,
        answer: &Result<MetaResponse>,
    ) {
        let Some(changed) = changed_directories(op) else { return };
        let states = answer.as_ref().map_or(&[][..], |response| &response.directories);
        for state in states {
            self.put(leases, stamp, *state);
        }
        let is_returned = |ino: InodeId| states.iter().any(|state| state.attr.ino == ino);
        changed
            .into_iter()
            .flatten()
            .filter(|ino| !is_returned(*ino))
            .for_each(|ino| self.forget(leases, ino));
        match answer {
            Ok(response) => returned_attrs(&response.reply)
                .into_iter()
                .flatten()
                .filter(|attr| attr.kind() == FileKind::Directory && !is_returned(attr.ino))
                .for_each(|attr| self.forget(leases, attr.ino)),
            Err(_) => self.drop_uncertain(leases, op),
        }
    }

    /// Handles the uncertain outcome of a failed request, which may have been executed, also on
    /// directories that only the service knows.
    pub(crate) fn drop_uncertain(&self, leases: &Leases, op: &MetaOp) {
        changed_directories(op).into_iter().flatten().flatten().for_each(|ino| self.forget(leases, ino));
        match op {
            MetaOp::Rename { .. } | MetaOp::Rmdir { .. } => self.forget_all(leases),
            op => op.spec().attributes_of.into_iter().for_each(|ino| self.forget(leases, ino)),
        }
    }

    fn put(&self, leases: &Leases, stamp: RequestStamp, state: DirectoryState) {
        let ino = state.attr.ino;
        let mut shard = self.shard(ino);
        let now = leases.stamp_request();
        if stamp.clock() < shard.floor || !leases.covers_permissions(stamp, ino) {
            // The cached state may be older than this one, which has been answered now.
            return shard.forget(leases, ino);
        }
        if shard.known.len() >= MAX_DIRECTORIES && !shard.known.contains_key(&ino) {
            *shard = Shard { known: HashMap::default(), floor: leases.advance_clock() };
            return;
        }
        match shard.known.get(&ino) {
            Some(kept)
                if kept.state.state_number > state.state_number
                    && leases.covers_permissions(kept.stamp, ino) => {}
            // Order numbers from before the lease are void.
            Some(cached) if cached.state.state_number > state.state_number => shard.forget(leases, ino),
            _ => drop(shard.known.insert(ino, CachedState { state, stamp: now })),
        }
    }

    fn forget(&self, leases: &Leases, ino: InodeId) {
        self.shard(ino).forget(leases, ino);
    }

    fn forget_all(&self, leases: &Leases) {
        for shard in &self.shards {
            *shard.lock() = Shard { known: HashMap::default(), floor: leases.advance_clock() };
        }
    }
}

/// The directories given in a request that changes directories, or may; `None` for other requests.
fn changed_directories(op: &MetaOp) -> Option<[Option<InodeId>; 2]> {
    let spec = op.spec();
    let directories = spec.changed_directories();
    match op {
        _ if directories != [None, None] => Some(directories),
        MetaOp::SetPattern { dir, .. } => Some([Some(*dir), None]),
        // Mostly of files, whose attributes are in the answer.
        _ => spec.attributes_of.map(|_| [None, None]),
    }
}

/// The attributes that an answer contains.
fn returned_attrs(reply: &MetaReply) -> [Option<Attr>; 2] {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Attr(attr) => [Some(*attr), None],
        MetaReply::Renamed { moved, other } => [Some(*moved), *other],
        _ => [None, None],
    }
}
