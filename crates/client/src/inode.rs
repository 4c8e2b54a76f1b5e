//! What this session refers to: kernel references and open files, by inode.
//!
//! An inode has a node here while the kernel knows it or a file of it is open. Its [`OpenInode`] exists while somebody uses its
//! content; it holds what reads and writes need, so that they ask nobody.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{Attr, InodeId, Layout, Timestamp};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;

/// The content of one inode in use.
pub(crate) struct OpenInode {
    pub(crate) ino: InodeId,
    /// Shared by reads and writes; exclusive for changes of shape.
    pub(crate) gate: rt::sync::RwLock,
    pub(crate) content: Mutex<Content>,
}

/// What is known of a file's content. Held only for a moment, never across a wait.
#[derive(Default)]
pub(crate) struct Content {
    /// Everything below is valid.
    pub(crate) loaded: bool,
    pub(crate) size: u64,
    /// The last change of content, while the metadata service hasn't been told.
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) layout: Option<Arc<Layout>>,
    pub(crate) inline: Option<bytes::Bytes>,
    pub(crate) inline_limit: u32,
    /// It surely has no extended attributes: it was made while open here, and got none since.
    pub(crate) bare: bool,
    /// Chunks may reach beyond `size`, because cutting them or a write failed half-way. They are cut before anything is written again.
    pub(crate) cut_pending: bool,
    /// It has setuid or setgid, which a write may have to clear.
    pub(crate) privileged: bool,
    /// `BeginWrite` was granted and `EndWrite` has yet to end it.
    pub(crate) writing: bool,
    /// Size or mtime differ from what the metadata service knows.
    pub(crate) unreported: bool,
    /// Changes of chunks so far, and how many of them a sync is known to cover.
    pub(crate) changes: u64,
    pub(crate) synced: u64,
}

impl Content {
    /// Something of it must not be forgotten.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.writing || self.cut_pending
    }
}

#[derive(Default)]
struct Node {
    /// References that the kernel holds (its `nlookup`).
    references: u64,
    /// Open files and running calls.
    users: u64,
    /// No name is left.
    unlinked: bool,
    open: Option<Arc<OpenInode>>,
}

/// All nodes of a session.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<HashMap<InodeId, Node>>>,
    abandoned: Mutex<Vec<InodeId>>,
    some_abandoned: rt::sync::Event,
    /// Reports of size and times so far, by shard.
    reports: [AtomicU64; SHARDS],
}

impl Default for InodeTable {
    fn default() -> InodeTable {
        InodeTable {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            abandoned: Mutex::default(),
            some_abandoned: rt::sync::Event::default(),
            reports: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl InodeTable {
    fn shard(&self, ino: InodeId) -> MutexGuard<'_, HashMap<InodeId, Node>> {
        // Inode numbers are sequential within a partition, so the low bits spread well.
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// The kernel got a reference.
    pub(crate) fn remember(&self, ino: InodeId) {
        self.shard(ino).entry(ino).or_default().references += 1;
    }

    /// The kernel dropped references.
    pub(crate) fn forget(&self, ino: InodeId, count: u64) {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.get_mut(&ino) {
            node.references = node.references.saturating_sub(count);
        }
        self.settle(shard, ino);
    }

    /// The inode lost its last name.
    pub(crate) fn unlinked(&self, ino: InodeId) {
        let mut shard = self.shard(ino);
        shard.entry(ino).or_default().unlinked = true;
        self.settle(shard, ino);
    }

    /// The inode has a name (again).
    pub(crate) fn linked(&self, ino: InodeId) {
        if let Some(node) = self.shard(ino).get_mut(&ino) {
            node.unlinked = false;
        }
    }

    /// Starts a use of the inode's content.
    pub(crate) fn acquire(&self, ino: InodeId) -> Arc<OpenInode> {
        let mut shard = self.shard(ino);
        let node = shard.entry(ino).or_default();
        node.users += 1;
        node.open
            .get_or_insert_with(|| {
                Arc::new(OpenInode { ino, gate: rt::sync::RwLock::new(), content: Mutex::default() })
            })
            .clone()
    }

    /// Both for an inode that was made just now: the kernel gets a reference, and a use of the content starts. True when nobody else
    /// refers to it, so that it surely is as it was made.
    pub(crate) fn remember_and_acquire(&self, ino: InodeId) -> (Arc<OpenInode>, bool) {
        self.remember(ino);
        let open = self.acquire(ino);
        let alone = self.shard(ino).get(&ino).is_some_and(|node| node.references == 1 && node.users == 1);
        (open, alone)
    }

    /// True when the caller's use is the only one left and the file should be reported before it ends. Orphans that nobody can reach
    /// any more need no report.
    pub(crate) fn is_last_use(&self, ino: InodeId) -> bool {
        self.shard(ino)
            .get(&ino)
            .is_some_and(|node| node.users == 1 && !(node.unlinked && node.references == 0))
    }

    /// Ends a use.
    pub(crate) fn release(&self, ino: InodeId) {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.get_mut(&ino) {
            node.users = node.users.saturating_sub(1);
            if node.users == 0 && node.open.as_ref().is_some_and(|open| !open.content.lock().is_unfinished())
            {
                node.open = None;
            }
        }
        self.settle(shard, ino);
    }

    /// Drops a node that nobody refers to; an orphan is handed to the reclaimer.
    fn settle(&self, mut shard: MutexGuard<'_, HashMap<InodeId, Node>>, ino: InodeId) {
        let Some(node) = shard.get(&ino) else { return };
        if node.references > 0 || node.users > 0 {
            return;
        }
        if node.unlinked {
            shard.remove(&ino);
            drop(shard);
            self.abandoned.lock().push(ino);
            self.some_abandoned.set();
        } else if node.open.is_none() {
            shard.remove(&ino);
        }
    }

    /// The open content of an inode, if any.
    pub(crate) fn open(&self, ino: InodeId) -> Option<Arc<OpenInode>> {
        self.shard(ino).get(&ino).and_then(|node| node.open.clone())
    }

    /// Everything open.
    pub(crate) fn open_inodes(&self) -> Vec<Arc<OpenInode>> {
        let mut open = Vec::new();
        for shard in &self.shards {
            open.extend(shard.lock().values().filter_map(|node| node.open.clone()));
        }
        open
    }

    /// Orphans that nobody uses.
    pub(crate) fn take_abandoned(&self) -> Vec<InodeId> {
        self.some_abandoned.clear();
        std::mem::take(&mut *self.abandoned.lock())
    }

    /// Waits until there is one.
    pub(crate) async fn wait_for_abandoned(&self) {
        self.some_abandoned.wait().await;
    }

    /// The metadata service was told size and times of a file; they are about to vanish from the overlay.
    pub(crate) fn reported(&self, ino: InodeId) {
        self.reports[ino.0 as usize % SHARDS].fetch_add(1, Ordering::AcqRel);
    }

    /// Reports so far. Attributes that were asked for before the last report of their file, and laid over after it, may have missed it
    /// on both sides: the caller compares this number before and after.
    pub(crate) fn reports(&self, ino: InodeId) -> u64 {
        self.reports[ino.0 as usize % SHARDS].load(Ordering::Acquire)
    }

    /// Reports of all files so far.
    pub(crate) fn all_reports(&self) -> u64 {
        self.reports.iter().map(|shard| shard.load(Ordering::Acquire)).sum()
    }

    /// Lays what only this session knows yet over attributes from the metadata service.
    pub(crate) fn overlay(&self, mut attr: Attr) -> Attr {
        if let Some(open) = self.open(attr.ino) {
            let content = open.content.lock();
            if content.loaded && content.writing && content.unreported {
                attr.size = content.size;
                attr.blocks = attr.blocks.max(content.size.div_ceil(512));
                if let Some(mtime) = content.mtime {
                    attr.mtime = mtime;
                    attr.ctime = attr.ctime.max(mtime);
                }
            }
        }
        attr
    }
}
