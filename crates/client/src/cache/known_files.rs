//! Files that this session can remove without asking: the name, the inode that it has, and that it
//! is the inode's only name.
//!
//! # Why a file that is known here is still there
//!
//! - The answer that showed the name and the attributes came under leases on the directory and on
//!   the inode, or the session has held both since before the request. Another session that changes
//!   the name, the number of links or the flags of the inode has these leases recalled first.
//! - This session forgets a file before it sends a request that may change one of these. Answers to
//!   earlier requests don't bring it back.
//! - Names are recorded as hashes. The kernel removes only names that it knows, and the service
//!   removes a name only if it has the expected inode.

use crate::cache::complete_directories::fingerprint;
use crate::session::leases::{Leases, RequestStamp};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{Attr, FileKind, HashMap, InodeFlags, InodeId};
use wire::{MetaOp, MetaReply, MetaResponse};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 16;
/// Maximum number of files in all shards together: about 12 MiB. Beyond it, a shard drops its own.
const MAX_FILES: usize = 1 << 18;

#[derive(Clone, Copy)]
struct KnownFile {
    ino: InodeId,
    /// Stamp of the request whose answer showed it.
    stamp: RequestStamp,
}

#[derive(Default)]
struct Shard {
    /// By directory, and by the hash of the name.
    directories: HashMap<InodeId, HashMap<u64, KnownFile>>,
    /// Answers to requests before this event are ignored.
    floor: u64,
}

impl Shard {
    fn ignore_earlier_answers(&mut self, leases: &Leases) {
        self.floor = leases.advance_clock();
    }
}

/// The known files of a session.
#[derive(Default)]
pub(crate) struct KnownFiles {
    shards: [Mutex<Shard>; SHARDS],
    count: AtomicUsize,
}

impl KnownFiles {
    fn shard(&self, dir: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[dir.0 as usize % SHARDS].lock()
    }

    /// Forgets what a request may change; to be called before the request is sent.
    pub(crate) fn prepare_request(&self, leases: &Leases, op: &MetaOp) {
        match op {
            MetaOp::Unlink { parent, name, .. } | MetaOp::Rmdir { parent, name } => {
                self.forget(leases, *parent, name);
            }
            MetaOp::Rename { parent, name, new_parent, new_name, .. } => {
                self.forget(leases, *parent, name);
                self.forget(leases, *new_parent, new_name);
            }
            // The inode may be known by a name in any directory.
            MetaOp::Link { .. } => self.forget_all(leases),
            MetaOp::Setattr { set, .. } if set.flags.is_some() => self.forget_all(leases),
            _ => {}
        }
    }

    fn forget(&self, leases: &Leases, dir: InodeId, name: &[u8]) {
        let mut shard = self.shard(dir);
        shard.ignore_earlier_answers(leases);
        let files = shard.directories.get_mut(&dir);
        let was_known = files.and_then(|files| files.remove(&fingerprint(name))).is_some();
        self.count.fetch_sub(usize::from(was_known), Ordering::Relaxed);
    }

    fn forget_all(&self, leases: &Leases) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.ignore_earlier_answers(leases);
            self.clear(&mut shard);
        }
    }

    fn clear(&self, shard: &mut Shard) {
        let files: usize = shard.directories.values().map(|files| files.len()).sum();
        shard.directories.clear();
        self.count.fetch_sub(files, Ordering::Relaxed);
    }

    /// Records the files that an answer shows.
    pub(crate) fn record_answer(&self, stamp: RequestStamp, op: &MetaOp, response: &MetaResponse) {
        match (op, &response.reply) {
            (MetaOp::Readdir { dir, .. }, MetaReply::Directory { entries, .. }) => {
                let mut shard = self.shard(*dir);
                for entry in entries {
                    if let Some(attr) = &entry.attr {
                        self.record(&mut shard, stamp, (*dir, &entry.name), attr);
                    }
                }
            }
            (MetaOp::Lookup { parent, name }, MetaReply::Entry(attr))
            | (MetaOp::Create { parent, name, .. }, MetaReply::Created { attr, .. })
            | (MetaOp::Symlink { parent, name, .. }, MetaReply::Entry(attr)) => {
                self.record(&mut self.shard(*parent), stamp, (*parent, name), attr);
            }
            (MetaOp::CommitCreate { file }, MetaReply::Created { attr, .. }) => {
                self.record(&mut self.shard(file.parent), stamp, (file.parent, &file.name), attr);
            }
            _ => {}
        }
    }

    fn record(&self, shard: &mut Shard, stamp: RequestStamp, (dir, name): (InodeId, &[u8]), attr: &Attr) {
        let is_removable = attr.nlink == 1
            && attr.kind() != FileKind::Directory
            && attr.ino.partition() == dir.partition()
            && !attr.flags.intersects(InodeFlags::READ_ONLY_FLAGS);
        if !is_removable || matches!(name, b"." | b"..") {
            return;
        }
        if stamp.clock() < shard.floor {
            return;
        }
        if self.count.load(Ordering::Relaxed) >= MAX_FILES {
            self.clear(shard);
            if self.count.load(Ordering::Relaxed) >= MAX_FILES {
                return;
            }
        }
        let known = KnownFile { ino: attr.ino, stamp };
        let before = shard.directories.entry(dir).or_default().insert(fingerprint(name), known);
        self.count.fetch_add(usize::from(before.is_none()), Ordering::Relaxed);
    }

    /// Takes the file with this name, if it surely is there and has no other name.
    pub(crate) fn take(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        let mut shard = self.shard(dir);
        let KnownFile { ino, stamp } = shard.directories.get_mut(&dir)?.remove(&fingerprint(name))?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        let is_covered = |ino| leases.lease_covering(stamp, ino).is_some();
        (is_covered(dir) && is_covered(ino)).then_some(ino)
    }
}
