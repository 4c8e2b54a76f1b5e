//! Complete directories: this session knows every name in them, because it created them.
//!
//! A kernel looks up a name before it creates it. In a directory that this session has created, and
//! that no other session has changed since, the client knows that the name is free. (Lustre and
//! CephFS know such directories as well; there they are called complete.)
//!
//! # Why a name that is absent here is absent
//!
//! - A new directory is empty. The answer to its create grants a lease that predates any other
//!   session's knowledge of it. The client recognises such an answer by that lease and by the new
//!   state of the parent, which a repeated answer lacks.
//! - While the lease is held, only this session adds names, and each is recorded before the request
//!   that may add it is sent. Names are never removed from the record. So the record covers all
//!   existing names, in whatever order requests and answers arrive. A lookup of a removed name
//!   costs a request to the service.
//! - Names are recorded as hashes. A collision only costs a request.
//! - A name may be added before the directory is known to be complete, by a task that found the
//!   directory before the answer to its create arrived. Such a name invalidates answers to earlier
//!   requests.

use crate::session::leases::{Leases, RequestStamp};
use parking_lot::{Mutex, MutexGuard};
use std::hash::{DefaultHasher, Hash, Hasher};
use types::{HashMap, HashSet, InodeId};
use wire::{MetaOp, MetaReply, MetaResponse};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 16;
/// Maximum number of names in the directories of a shard: about 1 MiB. Beyond it, the shard drops
/// everything.
const MAX_NAMES: usize = 1 << 16;
/// Maximum number of directories in a shard. Beyond it, the shard drops everything.
const MAX_DIRECTORIES: usize = 1 << 12;

struct CompleteDirectory {
    /// Stamp of a time at which the lease was held.
    stamp: RequestStamp,
    /// Hashes of all names that it has, and of others.
    names: HashSet<u64>,
}

#[derive(Default)]
struct Shard {
    directories: HashMap<InodeId, CompleteDirectory>,
    /// Number of names in all directories.
    names: usize,
    /// Answers to requests before this event make no directory complete.
    floor: u64,
}

impl Shard {
    fn forget(&mut self, dir: InodeId) {
        if let Some(complete) = self.directories.remove(&dir) {
            self.names -= complete.names.len();
        }
    }

    fn drop_if_full(&mut self) {
        if self.names >= MAX_NAMES || self.directories.len() >= MAX_DIRECTORIES {
            self.directories.clear();
            self.names = 0;
        }
    }
}

/// The complete directories of a session.
#[derive(Default)]
pub(crate) struct CompleteDirectories {
    shards: [Mutex<Shard>; SHARDS],
}

impl CompleteDirectories {
    fn shard(&self, dir: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[dir.0 as usize % SHARDS].lock()
    }

    /// Records a name that a request may add; to be called before the request is sent.
    pub(crate) fn record_request(&self, leases: &Leases, op: &MetaOp) {
        if let Some((dir, name)) = added_name(op) {
            self.record_name(leases, dir, name);
        }
    }

    /// Records a name of an asynchronous create.
    pub(crate) fn record_name(&self, leases: &Leases, dir: InodeId, name: &[u8]) {
        let mut shard = self.shard(dir);
        match shard.directories.get_mut(&dir) {
            Some(complete) => {
                let is_new = complete.names.insert(fingerprint(name));
                shard.names += usize::from(is_new);
                shard.drop_if_full();
            }
            None => shard.floor = leases.advance_clock(),
        }
    }

    /// Processes an answer after its leases have been recorded: the answer may be that of a new
    /// directory.
    pub(crate) fn process_answer(
        &self,
        leases: &Leases,
        stamp: RequestStamp,
        op: &MetaOp,
        response: &MetaResponse,
    ) {
        let (MetaOp::Mkdir { parent, .. }, MetaReply::Entry(attr)) = (op, &response.reply) else { return };
        let is_first = response.directories.iter().any(|state| state.attr.ino == *parent);
        let is_held = response.grants.iter().any(|grant| grant.ino == attr.ino);
        let mut shard = self.shard(attr.ino);
        let now = leases.stamp_request();
        if is_first
            && is_held
            && stamp.clock() >= shard.floor
            && leases.lease_covering(stamp, attr.ino).is_some()
        {
            shard.drop_if_full();
            shard.directories.insert(attr.ino, CompleteDirectory { stamp: now, names: HashSet::default() });
        }
    }

    /// Whether a directory is complete, provided that its lease is still held.
    pub(crate) fn is_complete(&self, dir: InodeId) -> bool {
        self.shard(dir).directories.contains_key(&dir)
    }

    /// Returns the stamp since which the directory has surely had no such name; `None` if it may
    /// have one.
    pub(crate) fn absent_since(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<RequestStamp> {
        let mut shard = self.shard(dir);
        let complete = shard.directories.get(&dir)?;
        if leases.lease_covering(complete.stamp, dir).is_none() {
            shard.forget(dir);
            return None;
        }
        let may_be_there = complete.names.contains(&fingerprint(name)) || matches!(name, b"." | b"..");
        (!may_be_there).then_some(complete.stamp)
    }
}

/// Returns the name that a request may add, and the directory.
pub(crate) fn added_name(op: &MetaOp) -> Option<(InodeId, &[u8])> {
    op.spec().added()
}

pub(crate) fn fingerprint(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use types::{Attr, NodeId, Timestamp};
    use wire::{DirectoryState, LeaseGrant, LeaseMode};

    const PARENT: InodeId = InodeId(1);
    const DIR: InodeId = InodeId(9);

    fn mkdir(parent: InodeId) -> MetaOp {
        MetaOp::Mkdir { parent, name: Bytes::from_static(b"x"), mode: 0o755, umask: 0 }
    }

    fn attr(ino: InodeId) -> Attr {
        let now = Timestamp::default();
        Attr {
            ino,
            mode: types::mode::S_IFDIR | 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: types::InodeFlags::NONE,
            project: types::ProjectId(0),
            has_no_xattrs: true,
        }
    }

    /// The answer of the service for a directory that it has just created.
    fn made() -> MetaResponse {
        MetaResponse {
            grants: vec![LeaseGrant { ino: DIR, mode: LeaseMode::Read }],
            directories: vec![DirectoryState { attr: attr(PARENT), state_number: 1 }],
            reply: MetaReply::Entry(attr(DIR)),
            recalls: 0,
            verifier: 0,
            capability: None,
        }
    }

    fn took(
        complete: &CompleteDirectories,
        leases: &Leases,
        stamp: RequestStamp,
        response: &MetaResponse,
    ) -> bool {
        leases.take_grants(stamp, NodeId(1), response);
        complete.process_answer(leases, stamp, &mkdir(PARENT), response);
        complete.absent_since(leases, DIR, b"y").is_some()
    }

    #[test]
    fn a_name_added_before_the_answer_invalidates_it() {
        let (complete, leases) = (CompleteDirectories::default(), Leases::new(false));
        let stamp = leases.stamp_request();
        // Another task has already found the directory.
        complete.record_request(&leases, &mkdir(DIR));
        assert!(!took(&complete, &leases, stamp, &made()));
        let (complete, leases) = (CompleteDirectories::default(), Leases::new(false));
        assert!(took(&complete, &leases, leases.stamp_request(), &made()));
        complete.record_request(&leases, &mkdir(DIR));
        assert!(complete.absent_since(&leases, DIR, b"x").is_none(), "it is noted before it is made");
        assert!(
            complete.absent_since(&leases, DIR, b"y").is_some()
                && complete.absent_since(&leases, DIR, b"..").is_none()
        );
    }

    #[test]
    fn a_possibly_repeated_answer_is_ignored() {
        let leases = Leases::new(false);
        for old in [MetaResponse { directories: vec![], ..made() }, MetaResponse { grants: vec![], ..made() }]
        {
            assert!(!took(&CompleteDirectories::default(), &leases, leases.stamp_request(), &old));
        }
    }

    #[test]
    fn complete_directories_are_bounded() {
        let (complete, leases) = (CompleteDirectories::default(), Leases::new(false));
        assert!(took(&complete, &leases, leases.stamp_request(), &made()));
        for number in 0..=MAX_NAMES {
            let name = Bytes::from(number.to_string());
            complete.record_request(&leases, &MetaOp::Symlink { parent: DIR, name, target: Bytes::new() });
            assert!(complete.shard(DIR).names < MAX_NAMES);
        }
        assert!(complete.absent_since(&leases, DIR, b"y").is_none());
    }
}
