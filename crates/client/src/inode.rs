//! What this session refers to: kernel references and open files, by inode.
//!
//! An inode has a node here while the kernel knows it or a file of it is open. Its [`OpenInode`]
//! exists while somebody uses its content; it holds what reads and writes need, so that they ask
//! nobody.

use crate::accessed::Accesses;
use crate::behind::{Failures, Kept};
use crate::epoch::Under;
use crate::fill::Fills;
use crate::flags::KnownFlags;
use crate::landing::Landing;
use crate::last_size::LastSize;
use crate::lease::Asked;
use crate::promise::Promised;
use crate::verifiers::Unsynced;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::{Attr, FileKind, HashMap, InodeFlags, InodeId, Layout, Timestamp};
use wire::LeaseMode;

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;

/// How long after a recall others count as busy with a file: readers then share it with its writers
/// instead of taking it from them.
const CONTENDED_NS: u64 = 1_000_000_000;

/// How long after a change the next one is counted on. Short, so that what one program has made and
/// the next one reads is kept as a rule.
const CHANGED_NS: u64 = 200_000_000;
/// The longest file of which that is so, bytes: without a kernel that reads ahead, small reads of
/// long ones would take too long.
const MAX_CHANGED: u64 = 1 << 20;

/// How long after a close the kernel may take to tell that nothing more is written, and how often
/// that is looked at.
const CLOSING_NS: u64 = 5_000_000;
const CLOSING_STEP: Duration = Duration::from_micros(200);

/// The content of one inode in use.
pub(crate) struct OpenInode {
    pub(crate) ino: InodeId,
    /// Shared by reads and writes; exclusive for changes of shape.
    pub(crate) gate: rt::sync::RwLock,
    pub(crate) content: Mutex<Content>,
    /// Changes on their way to its chunk files.
    pub(crate) landing: Landing,
    /// Reads for the kernel's page cache, which a recall holds back.
    pub(crate) fills: Fills,
    /// It is promised: the service doesn't have it yet, or never will.
    promise: Mutex<Option<Arc<Promised>>>,
    is_promised: AtomicBool,
    /// Recalls that are under way and have yet to unload what is known. Counted down under the lock
    /// of the content.
    pub(crate) yielding: AtomicUsize,
    /// Handles that were opened for writing.
    pub(crate) writers: AtomicUsize,
    /// When a lease on it was last recalled, on the monotonic clock; 0 for never.
    pub(crate) recalled_ns: AtomicU64,
    /// When it was last known to have been changed just before, here or elsewhere, on the monotonic
    /// clock; 0 for never.
    changed_ns: AtomicU64,
    /// When a descriptor for writing was closed last, which need not be the last of its file, on
    /// the monotonic clock; 0 for never.
    flushed_ns: AtomicU64,
    /// Until when no read of it shows in its access time, on the monotonic clock.
    pub(crate) quiet_until_ns: AtomicU64,
}

impl OpenInode {
    fn new(ino: InodeId, node: &Node) -> OpenInode {
        OpenInode {
            ino,
            gate: rt::sync::RwLock::new(),
            content: Mutex::new(Content {
                unsynced: Unsynced::after(node.unsynced),
                unsynced_in: node.unsynced_in.clone(),
                unsynced_names: Unsynced::after(node.unsynced_names),
                ..Content::default()
            }),
            landing: Landing::default(),
            fills: Fills::new(node.filled),
            promise: Mutex::default(),
            is_promised: AtomicBool::new(false),
            yielding: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            recalled_ns: AtomicU64::new(node.recalled_ns),
            changed_ns: AtomicU64::new(node.changed_ns),
            flushed_ns: AtomicU64::new(0),
            quiet_until_ns: AtomicU64::new(0),
        }
    }

    /// The promise that there will be such a file, unless it has been kept.
    pub(crate) fn promise(&self) -> Option<Arc<Promised>> {
        if self.is_promised.load(Ordering::Acquire) { self.promise.lock().clone() } else { None }
    }

    pub(crate) fn set_promise(&self, promise: Option<Arc<Promised>>) {
        let mut held = self.promise.lock();
        self.is_promised.store(promise.is_some(), Ordering::Release);
        *held = promise;
    }

    /// Whether others have wanted to change it, or to know what is changed here, a moment ago.
    pub(crate) fn is_contended(&self) -> bool {
        is_within(CONTENDED_NS, &self.recalled_ns)
    }

    /// Whether somebody changes its content, as far as is known here: it is open for writing, was a
    /// moment ago, or others want it.
    pub(crate) fn is_being_changed(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
            || self.is_contended()
            || is_within(CHANGED_NS, &self.changed_ns)
    }

    /// A descriptor for writing is closed.
    pub(crate) fn note_flush(&self) {
        self.flushed_ns.store(rt::monotonic_ns().max(1), Ordering::Relaxed);
    }

    /// A program has closed a long file, and another one opens it: the kernel tells of the end of
    /// the first, and of the other one's beginning, at once and on several processors. Waits a
    /// moment until the first has come.
    pub(crate) async fn wait_while_closing(&self) {
        if self.content.lock().size <= MAX_CHANGED {
            return;
        }
        // No longer than after one close: other descriptors may be closed all the time.
        let until_ns = rt::monotonic_ns().saturating_add(CLOSING_NS);
        while self.writers.load(Ordering::Relaxed) > 0
            && is_within(CLOSING_NS, &self.flushed_ns)
            && rt::monotonic_ns() < until_ns
        {
            rt::sleep(CLOSING_STEP).await;
        }
    }

    /// Its content has been changed here, and is so long now.
    pub(crate) fn note_change(&self, size: u64) {
        if size <= MAX_CHANGED {
            self.changed_ns.store(rt::monotonic_ns().max(1), Ordering::Relaxed);
        }
    }

    /// What the service says of it, whoever changed it.
    pub(crate) fn note_changes(&self, attr: &Attr) {
        if rt::now().as_nanos().abs_diff(attr.mtime.as_nanos()) < CHANGED_NS {
            self.note_change(attr.size);
        }
    }
}

/// Whether something was noted so lately, on the monotonic clock; 0 stands for never.
fn is_within(nanos: u64, noted_ns: &AtomicU64) -> bool {
    let noted = noted_ns.load(Ordering::Relaxed);
    noted > 0 && rt::monotonic_ns().saturating_sub(noted) < nanos
}

/// Lower bounds of the lengths of a file's chunk files, in stripe order; `None` when nothing is
/// known.
pub(crate) type KnownLens = Option<Arc<Vec<u64>>>;

/// What is known of a file's content. Held only for a moment, never across a wait.
pub(crate) struct Content {
    /// Everything below is valid, as long as the lease is held.
    pub(crate) loaded: bool,
    /// How often it was forgotten. What began before has nothing to say about what is known since.
    pub(crate) era: u64,
    /// The lease under which it is.
    pub(crate) lease: LeaseMode,
    /// The lease's epoch, which goes with every request for chunks; 0: none is needed.
    pub(crate) epoch: u64,
    /// The last epoch in which a change was given up that may still be on its way to a target.
    pub(crate) spent: u64,
    /// The end of the file; under a shared lease, what is known of it.
    pub(crate) size: u64,
    /// The last change of content, while the metadata service hasn't been told.
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) layout: Option<Arc<Layout>>,
    /// What is known of the lengths of its chunk files.
    pub(crate) known: KnownLens,
    pub(crate) inline: Option<bytes::Bytes>,
    pub(crate) inline_limit: u32,
    /// It surely has no extended attributes: it was made while open here, and got none since.
    pub(crate) bare: bool,
    /// Chunks may reach beyond `size`, because cutting them or a write failed half-way, or an
    /// answer came too late. They are cut before anything is written again.
    pub(crate) cut_pending: bool,
    /// It has setuid or setgid, which a write may have to clear.
    pub(crate) privileged: bool,
    /// When it was last read, as far as that shows.
    pub(crate) atime: Timestamp,
    /// When content or inode were last changed, but for changes that aren't reported yet.
    pub(crate) changed: Timestamp,
    /// A change of size or inline content was sent to the service and not answered: what is known
    /// is asked for again before it is used.
    pub(crate) doubted: bool,
    /// `BeginWrite` was granted and `EndWrite` has yet to end it.
    pub(crate) writing: bool,
    /// An `EndWrite` that was to end it wasn't answered: the service may not count on changes by
    /// this session any more.
    pub(crate) end_in_doubt: bool,
    /// Size or mtime differ from what the metadata service knows.
    pub(crate) unreported: bool,
    /// What was written and is kept for a moment, beyond what the storage services have.
    pub(crate) kept: Option<Kept>,
    /// Where the file ended when a lease ended with its service. Outlives what is forgotten with
    /// it.
    pub(crate) last_size: Option<LastSize>,
    /// Where the last write ended.
    pub(crate) next: Option<u64>,
    /// Writes that could not be stored after they had been kept. Outlives what is forgotten with a
    /// lease.
    pub(crate) failures: Failures,
    /// Changes of chunks that may not be on disk. Outlives what is forgotten with a lease.
    pub(crate) unsynced: Unsynced,
    /// The layouts under which they were made: a file may move from where they were lost. Outlives
    /// it, too.
    pub(crate) unsynced_in: Vec<Arc<Layout>>,
    /// Changes of size, place and inline content that may not be on the metadata store's disk.
    /// Outlives it, too.
    pub(crate) unsynced_names: Unsynced,
}

impl Default for Content {
    fn default() -> Content {
        Content {
            loaded: false,
            era: 0,
            lease: LeaseMode::Read,
            epoch: 0,
            spent: 0,
            size: 0,
            mtime: None,
            layout: None,
            known: None,
            inline: None,
            inline_limit: 0,
            bare: false,
            cut_pending: false,
            privileged: false,
            atime: Timestamp::default(),
            changed: Timestamp::default(),
            doubted: false,
            writing: false,
            end_in_doubt: false,
            unreported: false,
            kept: None,
            last_size: None,
            next: None,
            failures: Failures::default(),
            unsynced: Unsynced::default(),
            unsynced_in: Vec::new(),
            unsynced_names: Unsynced::default(),
        }
    }
}

impl Content {
    /// Nothing more is to be asked in its epoch: what is still on its way could come over it.
    pub(crate) fn is_spent(&self) -> bool {
        self.epoch > 0 && self.spent >= self.epoch
    }

    /// As what its chunks are asked for.
    pub(crate) fn under(&self, ino: InodeId) -> Under {
        Under { ino, era: self.era, epoch: self.epoch, known: 0 }
    }

    /// The service has been told of these lengths of the chunk files, and of this size.
    pub(crate) fn note_lens(&mut self, lens: &[u64], size: u64) {
        let Some(layout) = self.layout.as_ref().filter(|_| self.inline.is_none()) else { return };
        let before = self.known.as_ref().map_or(&[][..], |known| known.as_slice());
        let known = layout::known::grown(layout, before, lens, size);
        self.known = (!known.is_empty()).then(|| Arc::new(known));
    }

    /// How often a sync has found something lost.
    pub(crate) fn losses_found(&self) -> u64 {
        self.unsynced.found() + self.unsynced_names.found()
    }

    /// A change of its chunks is sent, after so many losses.
    pub(crate) fn begin_change(&mut self, losses: u64) {
        self.unsynced.begin(losses);
        self.note_layout();
    }

    /// There are or will be changes under its layout that aren't synced.
    pub(crate) fn note_layout(&mut self) {
        let Some(layout) = &self.layout else { return };
        if !self.unsynced_in.iter().any(|known| Arc::ptr_eq(known, layout) || known == layout) {
            self.unsynced_in.push(layout.clone());
        }
    }

    /// A sync has covered so many changes, of all layouts under which there were some.
    pub(crate) fn synced(&mut self, changes: u64) {
        self.unsynced.synced(changes);
        if self.unsynced.is_all_synced() {
            self.unsynced_in.clear();
        }
    }

    /// Something of it must not be forgotten.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.writing || self.cut_pending || self.is_spent()
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
    /// The kernel's references are to a directory, whose attributes an answer told last.
    directory: Option<Box<Attr>>,
    /// Its flags, as far as they were told.
    flags: Option<KnownFlags>,
    /// The kernel may have pages from when it was open. They outlive the files that they were read
    /// through, and go with the references.
    filled: bool,
    /// When a lease on it was last recalled, on the monotonic clock; 0 for never.
    recalled_ns: u64,
    /// When it was last known to have been changed just before; 0 for never.
    changed_ns: u64,
    /// Losses of storage services before its first change that wasn't synced when it was open.
    unsynced: Option<u64>,
    /// The same of what the metadata store was told.
    unsynced_names: Option<u64>,
    /// The layouts under which it had such changes.
    unsynced_in: Vec<Arc<Layout>>,
    open: Option<Arc<OpenInode>>,
}

impl Node {
    /// Lets the content go when nobody uses it and nothing of it is left to be reported. What isn't
    /// synced is remembered.
    fn end_unless_used(&mut self) {
        if self.users > 0 {
            return;
        }
        if let Some(open) = self.open.take_if(|open| !open.content.lock().is_unfinished()) {
            self.filled = open.fills.is_filled();
            self.changed_ns = open.changed_ns.load(Ordering::Relaxed);
            let mut content = open.content.lock();
            self.unsynced = content.unsynced.left();
            self.unsynced_names = content.unsynced_names.left();
            self.unsynced_in = std::mem::take(&mut content.unsynced_in);
        }
    }
}

/// How an inode is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Usage {
    /// Not at all.
    None,
    /// The kernel knows it.
    Known,
    /// It is open, or a call on it is running.
    Open,
}

/// All nodes of a session.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<HashMap<InodeId, Node>>>,
    abandoned: Mutex<Vec<InodeId>>,
    some_abandoned: rt::sync::Event,
    /// The session has no leases to let go.
    is_alone: bool,
    /// Files that were read.
    pub(crate) accesses: Accesses,
    /// Inodes that nobody here may have a use of any more.
    idle: Mutex<Vec<InodeId>>,
    some_idle: rt::sync::Event,
    /// Inodes whose last use has ended, and couldn't be reported.
    unreported: Mutex<BTreeSet<InodeId>>,
    some_unreported: rt::sync::Event,
    /// Reports of size and times so far, by shard.
    reports: [AtomicU64; SHARDS],
    /// Of a session that has ended: the table of the next one, which has the kernel's references of
    /// a shard from then on. Set under the shard's lock.
    heirs: [OnceLock<Arc<InodeTable>>; SHARDS],
}

impl Default for InodeTable {
    fn default() -> InodeTable {
        InodeTable {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            abandoned: Mutex::default(),
            some_abandoned: rt::sync::Event::default(),
            is_alone: false,
            accesses: Accesses::default(),
            idle: Mutex::default(),
            some_idle: rt::sync::Event::default(),
            unreported: Mutex::default(),
            some_unreported: rt::sync::Event::default(),
            reports: std::array::from_fn(|_| AtomicU64::new(0)),
            heirs: std::array::from_fn(|_| OnceLock::new()),
        }
    }
}

impl InodeTable {
    /// That of the only session there is.
    pub(crate) fn alone() -> InodeTable {
        InodeTable { is_alone: true, ..InodeTable::default() }
    }

    fn shard(&self, ino: InodeId) -> MutexGuard<'_, HashMap<InodeId, Node>> {
        // Inode numbers are sequential within a partition, so the low bits spread well.
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// The kernel got a reference.
    pub(crate) fn remember(&self, attr: &Attr) {
        let ino = attr.ino;
        let mut shard = self.shard(ino);
        if let Some(heir) = self.heir_of(ino) {
            return heir.remember(attr);
        }
        let node = shard.entry(ino).or_default();
        node.references += 1;
        node.directory = (attr.kind() == FileKind::Directory).then(|| Box::new(*attr));
    }

    /// The attributes of a directory that the kernel knows, as an answer told them last.
    pub(crate) fn directory(&self, ino: InodeId) -> Option<Attr> {
        self.shard(ino).get(&ino)?.directory.as_deref().copied()
    }

    /// An answer told attributes. They are noted if they are those of a directory that the kernel
    /// knows.
    pub(crate) fn note_directory(&self, attr: &Attr) {
        if attr.kind() != FileKind::Directory {
            return;
        }
        if let Some(node) = self.shard(attr.ino).get_mut(&attr.ino)
            && let Some(directory) = &mut node.directory
        {
            **directory = *attr;
        }
    }

    /// An answer told the flags of an inode; `None`: they have changed. Those of inodes that nobody
    /// here refers to are forgotten.
    pub(crate) fn note_flags(&self, ino: InodeId, asked: Asked, flags: Option<InodeFlags>) {
        if let Some(node) = self.shard(ino).get_mut(&ino) {
            node.flags = KnownFlags::newer(node.flags, asked, flags);
        }
    }

    /// What was told last.
    pub(crate) fn flags(&self, ino: InodeId) -> Option<KnownFlags> {
        self.shard(ino).get(&ino)?.flags
    }

    fn heir_of(&self, ino: InodeId) -> Option<&Arc<InodeTable>> {
        self.heirs[ino.0 as usize % SHARDS].get()
    }

    /// Hands the kernel's references on to the table of the next session: those that there are, and
    /// those that are still to come or go.
    pub(crate) fn bequeath(&self, heir: &Arc<InodeTable>) {
        for (shard, bequeathed) in self.shards.iter().zip(&self.heirs) {
            let mut shard = shard.lock();
            bequeathed.get_or_init(|| heir.clone());
            for (&ino, node) in shard.iter_mut().filter(|(_, node)| node.references > 0) {
                let mut shard = heir.shard(ino);
                let inherited = shard.entry(ino).or_default();
                inherited.references += std::mem::take(&mut node.references);
                inherited.directory = node.directory.take();
            }
            shard.retain(|_, node| node.users > 0 || node.open.is_some());
        }
    }

    /// How many uses there are: open files, and calls that run.
    pub(crate) fn uses(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().values().map(|node| node.users).sum::<u64>()).sum()
    }

    /// Lets those look again who wait for inodes that are of no use any more.
    pub(crate) fn wake(&self) {
        self.some_abandoned.set();
        self.some_idle.set();
        self.some_unreported.set();
        self.accesses.wake();
    }

    /// The kernel dropped references.
    pub(crate) fn forget(&self, ino: InodeId, count: u64) {
        let mut shard = self.shard(ino);
        if let Some(heir) = self.heir_of(ino) {
            return heir.forget(ino, count);
        }
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
        if node.open.is_none() {
            node.open = Some(Arc::new(OpenInode::new(ino, node)));
        }
        node.open.clone().expect("it is there now")
    }

    /// Both for an inode that was made just now: the kernel gets a reference, and a use of the
    /// content starts. True when nobody else refers to it, so that it surely is as it was made.
    pub(crate) fn remember_and_acquire(&self, attr: &Attr) -> (Arc<OpenInode>, bool) {
        let ino = attr.ino;
        self.remember(attr);
        let open = self.acquire(ino);
        let alone = self.shard(ino).get(&ino).is_some_and(|node| node.references == 1 && node.users == 1);
        (open, alone)
    }

    /// True when the caller's use is the only one left and the file should be reported before it
    /// ends. Orphans that nobody can reach any more need no report.
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
            node.end_unless_used();
            if node.users == 0 {
                self.let_go(ino);
            }
        }
        self.settle(shard, ino);
    }

    /// What a use has left that couldn't be reported when it ended has been seen to by somebody
    /// else.
    pub(crate) fn finished(&self, ino: InodeId) {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.get_mut(&ino) {
            node.end_unless_used();
        }
        self.settle(shard, ino);
    }

    /// Lets the background look whether the inode's lease is still of use.
    pub(crate) fn let_go(&self, ino: InodeId) {
        if self.is_alone {
            return;
        }
        self.idle.lock().push(ino);
        self.some_idle.set();
    }

    /// Inodes that may be of no use any more.
    pub(crate) fn take_idle(&self) -> Vec<InodeId> {
        self.some_idle.clear();
        let mut idle = std::mem::take(&mut *self.idle.lock());
        idle.sort_unstable();
        idle.dedup();
        idle
    }

    /// Waits until there is one.
    pub(crate) async fn wait_for_idle(&self) {
        self.some_idle.wait().await;
    }

    /// How the inode is used here.
    pub(crate) fn usage(&self, ino: InodeId) -> Usage {
        self.with_usage(ino, |usage| usage)
    }

    /// Does something with that, while nobody begins to use it.
    pub(crate) fn with_usage<T>(&self, ino: InodeId, act: impl FnOnce(Usage) -> T) -> T {
        let shard = self.shard(ino);
        act(match shard.get(&ino) {
            None => Usage::None,
            Some(node) if node.users == 0 && node.open.is_none() => Usage::Known,
            Some(_) => Usage::Open,
        })
    }

    /// A use has ended that couldn't be reported: what is left of it is to be seen to later.
    pub(crate) fn note_unreported(&self, ino: InodeId) {
        self.unreported.lock().insert(ino);
        self.some_unreported.set();
    }

    /// Waits until there is one.
    pub(crate) async fn wait_for_unreported(&self) {
        self.some_unreported.wait().await;
    }

    /// Such inodes, unless they are used again.
    pub(crate) fn take_unreported(&self) -> Vec<InodeId> {
        self.some_unreported.clear();
        let unreported = std::mem::take(&mut *self.unreported.lock());
        let is_left = |ino: &InodeId| {
            self.shard(*ino).get(ino).is_some_and(|node| node.users == 0 && node.open.is_some())
        };
        unreported.into_iter().filter(is_left).collect()
    }

    /// A lease on it is recalled; returns its open content, if any.
    pub(crate) fn recalled(&self, ino: InodeId) -> Option<Arc<OpenInode>> {
        let mut shard = self.shard(ino);
        let node = shard.get_mut(&ino)?;
        node.recalled_ns = rt::monotonic_ns().max(1);
        let open = node.open.clone()?;
        open.recalled_ns.store(node.recalled_ns, Ordering::Relaxed);
        Some(open)
    }

    /// Inodes that are open.
    pub(crate) fn in_use(&self) -> Vec<InodeId> {
        let open = |shard: &Mutex<HashMap<InodeId, Node>>| {
            let shard = shard.lock();
            let open = shard.iter().filter(|(_, node)| node.users > 0);
            open.map(|(ino, _)| *ino).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(open).collect()
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
            drop(shard);
            self.let_go(ino);
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

    /// The metadata service was told size and times of a file; they are about to vanish from the
    /// overlay.
    pub(crate) fn reported(&self, ino: InodeId) {
        self.reports[ino.0 as usize % SHARDS].fetch_add(1, Ordering::AcqRel);
    }

    /// Reports so far. Attributes that were asked for before the last report of their file, and
    /// laid over after it, may have missed it on both sides: the caller compares this number before
    /// and after.
    pub(crate) fn reports(&self, ino: InodeId) -> u64 {
        self.reports[ino.0 as usize % SHARDS].load(Ordering::Acquire)
    }

    /// Reports of all files so far.
    pub(crate) fn all_reports(&self) -> u64 {
        self.reports.iter().map(|shard| shard.load(Ordering::Acquire)).sum()
    }

    /// Where the chunks of a file are that this session has changed since it last told the service
    /// how much they take of their disks. The chunk files alone know it meanwhile.
    pub(crate) fn unreported_chunks(&self, ino: InodeId) -> Option<Arc<Layout>> {
        let open = self.open(ino)?;
        let content = open.content.lock();
        content.layout.clone().filter(|_| content.loaded && content.writing && content.unreported)
    }

    /// Lays what only this session knows yet over attributes from the metadata service, except for
    /// [allocated blocks](InodeTable::unreported_chunks).
    pub(crate) fn overlay(&self, mut attr: Attr) -> Attr {
        attr.atime = self.accesses.latest(attr.ino, attr.atime);
        if let Some(open) = self.open(attr.ino) {
            let content = open.content.lock();
            if content.loaded && content.writing && content.unreported {
                // What is known of a shared file may be less than others know.
                let shared = content.lease == LeaseMode::Shared;
                attr.size = if shared { attr.size.max(content.size) } else { content.size };
                if let Some(mtime) = content.mtime {
                    attr.mtime = if shared { attr.mtime.max(mtime) } else { mtime };
                    attr.ctime = attr.ctime.max(mtime);
                }
            }
        }
        attr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_leases_notes_what_is_of_no_use_any_more() {
        for (table, noted) in [(InodeTable::default(), vec![InodeId(7)]), (InodeTable::alone(), vec![])] {
            for _ in 0..3 {
                table.acquire(InodeId(7));
                table.release(InodeId(7));
            }
            assert_eq!(table.take_idle(), noted);
        }
    }
}
