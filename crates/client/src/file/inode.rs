//! Inodes that this session refers to: kernel references and open files.
//!
//! An inode has a node here while the kernel knows it or a file of it is open. Its [`OpenInode`]
//! exists while its content is in use, and holds what reads and writes need without a request to
//! the metadata service.

use crate::cache::pending_changes::AsyncChanges;
use crate::cache::pending_create::PendingCreate;
use crate::file::access_time::Accesses;
use crate::file::content::Content;
use crate::file::content::lock::ContentLock;
use crate::file::flags::KnownFlags;
use crate::file::in_flight::InFlightWrites;
use crate::kernel::page_fill::PageFillGate;
use crate::session::leases::RequestStamp;
use crate::session::verifiers::Unsynced;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::{Attr, FileKind, HashMap, InodeId, Layout};
use wire::{LeaseMode, MetaOp};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;

/// How long after a recall other sessions count as contending for a file: readers then share it
/// with its writers instead of taking the lease from them.
const CONTENDED_NS: u64 = 1_000_000_000;

/// How long after a change of content the next one is expected. Short, so that content which one
/// application writes and the next one reads is cached as a rule.
const RECENT_CHANGE_NS: u64 = 200_000_000;
/// Maximum file size for that, in bytes: without the kernel's readahead, small reads of larger
/// files would take too long.
const MAX_RECENT_CHANGE_SIZE: u64 = 1 << 20;

/// How long after a close the kernel may take to send the release of a writable file, and how often
/// the client checks that.
const RELEASE_WAIT_NS: u64 = 5_000_000;
const RELEASE_WAIT_STEP: Duration = Duration::from_micros(200);

/// The content of an inode in use.
pub(crate) struct OpenInode {
    pub(crate) ino: InodeId,
    /// The I/O lock: shared for reads and writes, exclusive for changes of size and layout.
    pub(crate) io_lock: rt::sync::RwLock,
    pub(crate) content: ContentLock,
    /// In-flight changes of its chunk files.
    pub(crate) in_flight: InFlightWrites,
    /// The page-fill gate.
    pub(crate) page_gate: PageFillGate,
    /// The asynchronous create of this file, if it isn't committed.
    pending_create: Mutex<Option<Arc<PendingCreate>>>,
    is_async_create: AtomicBool,
    /// Recalls in progress that have yet to unload the content. Decremented under the lock of
    /// `content`.
    pub(crate) pending_recalls: AtomicUsize,
    /// Handles that are open for writing.
    pub(crate) writers: AtomicUsize,
    /// When a lease on it was last recalled, on the monotonic clock; 0 for never.
    pub(crate) recalled_ns: AtomicU64,
    /// When its content was last known to have just changed, by any session, on the monotonic
    /// clock; 0 for never.
    changed_ns: AtomicU64,
    /// When a descriptor for writing was last closed, which need not be the last one of its file,
    /// on the monotonic clock; 0 for never.
    writer_closed_ns: AtomicU64,
    /// Until when a read doesn't update its access time, on the monotonic clock.
    pub(crate) atime_quiet_until_ns: AtomicU64,
}

impl OpenInode {
    fn new(ino: InodeId, node: &InodeNode) -> OpenInode {
        OpenInode {
            ino,
            io_lock: rt::sync::RwLock::new(),
            content: ContentLock::new(Content {
                unsynced: Unsynced::after(node.unsynced),
                unsynced_layouts: node.unsynced_layouts.clone(),
                unsynced_metadata: Unsynced::after(node.unsynced_metadata),
                ..Content::default()
            }),
            in_flight: InFlightWrites::default(),
            page_gate: PageFillGate::new(node.may_have_pages),
            pending_create: Mutex::default(),
            is_async_create: AtomicBool::new(false),
            pending_recalls: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            recalled_ns: AtomicU64::new(node.recalled_ns),
            changed_ns: AtomicU64::new(node.changed_ns),
            writer_closed_ns: AtomicU64::new(0),
            atime_quiet_until_ns: AtomicU64::new(0),
        }
    }

    /// The asynchronous create of this file, unless it is committed.
    pub(crate) fn async_create(&self) -> Option<Arc<PendingCreate>> {
        if self.is_async_create.load(Ordering::Acquire) { self.pending_create.lock().clone() } else { None }
    }

    pub(crate) fn set_async_create(&self, create: Option<Arc<PendingCreate>>) {
        let mut pending_create = self.pending_create.lock();
        self.is_async_create.store(create.is_some(), Ordering::Release);
        *pending_create = create;
    }

    /// Whether other sessions recently requested a conflicting lease.
    pub(crate) fn is_contended(&self) -> bool {
        is_within(CONTENDED_NS, &self.recalled_ns)
    }

    /// Whether its content is being changed, as far as this client knows: it is open for writing,
    /// was changed recently, or other sessions contend for it.
    pub(crate) fn is_recently_changed(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
            || self.is_contended()
            || is_within(RECENT_CHANGE_NS, &self.changed_ns)
    }

    /// Records that a descriptor for writing is closed.
    pub(crate) fn note_writer_close(&self) {
        self.writer_closed_ns.store(rt::monotonic_ns().max(1), Ordering::Relaxed);
    }

    /// Waits a moment for the release of a large file that another application opens. When one
    /// application closes it and the next one opens it, the kernel sends both messages at once,
    /// from several processors.
    pub(crate) async fn wait_for_writer_release(&self) {
        if self.content.lock().size <= MAX_RECENT_CHANGE_SIZE {
            return;
        }
        // No longer than after one close: other descriptors may be closed all the time.
        let until_ns = rt::monotonic_ns().saturating_add(RELEASE_WAIT_NS);
        while self.writers.load(Ordering::Relaxed) > 0
            && is_within(RELEASE_WAIT_NS, &self.writer_closed_ns)
            && rt::monotonic_ns() < until_ns
        {
            rt::sleep(RELEASE_WAIT_STEP).await;
        }
    }

    /// Records that this session has changed its content, which has this size now.
    pub(crate) fn note_change(&self, size: u64) {
        if size <= MAX_RECENT_CHANGE_SIZE {
            self.changed_ns.store(rt::monotonic_ns().max(1), Ordering::Relaxed);
        }
    }

    /// Records attributes that an application has set.
    pub(crate) fn note_attributes_set(&self, attr: &Attr) {
        let mut content = self.content.lock();
        content.note_mode(attr.mode);
        content.note_times(attr);
        self.atime_quiet_until_ns.store(0, Ordering::Relaxed);
    }

    /// Records a recent change that the service's attributes show, by any session.
    pub(crate) fn note_changes(&self, attr: &Attr) {
        if rt::now().as_nanos().abs_diff(attr.mtime.as_nanos()) < RECENT_CHANGE_NS {
            self.note_change(attr.size);
        }
    }
}

/// Whether an event was recorded within the last `nanos`, on the monotonic clock; 0 stands for
/// never.
fn is_within(nanos: u64, noted_ns: &AtomicU64) -> bool {
    let recorded_ns = noted_ns.load(Ordering::Relaxed);
    recorded_ns > 0 && rt::monotonic_ns().saturating_sub(recorded_ns) < nanos
}

struct DirectoryNode {
    /// Its last known attributes.
    attr: Attr,
    /// The cookie of the last entry, according to the latest page of a listing; `None` if more
    /// entries follow that page.
    end: Option<(RequestStamp, Option<u64>)>,
}

#[derive(Default)]
struct InodeNode {
    /// References that the kernel holds (its `nlookup`).
    references: u64,
    /// Number of open files and running calls.
    users: u64,
    /// It has no name any more.
    unlinked: bool,
    /// A directory that the kernel refers to.
    directory: Option<Box<DirectoryNode>>,
    /// Its flags, as far as they are known.
    flags: Option<KnownFlags>,
    /// The kernel may have pages from when it was open. They outlive the files through which they
    /// were read, and are dropped with the references.
    may_have_pages: bool,
    /// Attributes of a file that this session has created, and the stamp of the answer that showed
    /// them, until a request may change them.
    created_attr: Option<Box<(RequestStamp, Attr)>>,
    /// When a lease on it was last recalled, on the monotonic clock; 0 for never.
    recalled_ns: u64,
    /// When its content was last known to have just changed; 0 for never.
    changed_ns: u64,
    /// Number of losses of storage services before its first unsynced change, when it was open.
    unsynced: Option<u64>,
    /// The same for the metadata store.
    unsynced_metadata: Option<u64>,
    /// The layouts of its unsynced changes.
    unsynced_layouts: Vec<Arc<Layout>>,
    open: Option<Arc<OpenInode>>,
}

impl InodeNode {
    /// Session failover: files that were being changed a moment ago are still being changed.
    fn note_recent_changes_of(&mut self, old: &InodeNode) {
        let open_ns = |stamp: fn(&OpenInode) -> &AtomicU64| {
            old.open.as_deref().map_or(0, |open| stamp(open).load(Ordering::Relaxed))
        };
        self.recalled_ns = old.recalled_ns.max(open_ns(|open| &open.recalled_ns));
        self.changed_ns = old.changed_ns.max(open_ns(|open| &open.changed_ns));
    }

    /// Drops the content if it is unused and nothing of it is left to report. Unsynced changes are
    /// remembered.
    fn drop_unless_used(&mut self) {
        if self.users > 0 {
            return;
        }
        if let Some(open) = self.open.take_if(|open| !open.content.lock().has_unreported_state()) {
            self.may_have_pages = open.page_gate.may_have_pages();
            self.changed_ns = open.changed_ns.load(Ordering::Relaxed);
            let mut content = open.content.lock();
            self.unsynced = content.unsynced.unsynced_since();
            self.unsynced_metadata = content.unsynced_metadata.unsynced_since();
            self.unsynced_layouts = std::mem::take(&mut content.unsynced_layouts);
        }
    }
}

/// How an inode is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InodeUse {
    /// Unused and unknown.
    None,
    /// The kernel has a reference.
    Known,
    /// It is open, or a call on it is running.
    Open,
}

/// Numbers of reports of all inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReportCounts {
    pub(crate) files: u64,
    pub(crate) directories: u64,
}

/// All nodes of a session.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<HashMap<InodeId, InodeNode>>>,
    reclaimable: Mutex<Vec<InodeId>>,
    has_reclaimable: rt::sync::Event,
    /// The session has no leases to give back.
    is_only_session: bool,
    /// Recorded reads, for access times.
    pub(crate) accesses: Accesses,
    /// Changes of attributes that the service has yet to execute.
    changes: Arc<AsyncChanges>,
    /// Inodes that may be unused.
    idle: Mutex<Vec<InodeId>>,
    has_idle: rt::sync::Event,
    /// Inodes whose last use has ended without a successful report.
    unreported: Mutex<BTreeSet<InodeId>>,
    has_unreported: rt::sync::Event,
    /// Number of reports of size and times, by shard.
    reports: [AtomicU64; SHARDS],
    /// Number of asynchronous changes of names that have ended.
    directory_changes: AtomicU64,
    /// Session failover: the successor session's table, which has the kernel's references of a
    /// shard from then on. Set under the shard's lock.
    successors: [OnceLock<Arc<InodeTable>>; SHARDS],
}

impl Default for InodeTable {
    fn default() -> InodeTable {
        InodeTable {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            reclaimable: Mutex::default(),
            has_reclaimable: rt::sync::Event::default(),
            is_only_session: false,
            accesses: Accesses::default(),
            changes: Arc::default(),
            idle: Mutex::default(),
            has_idle: rt::sync::Event::default(),
            unreported: Mutex::default(),
            has_unreported: rt::sync::Event::default(),
            directory_changes: AtomicU64::new(0),
            reports: std::array::from_fn(|_| AtomicU64::new(0)),
            successors: std::array::from_fn(|_| OnceLock::new()),
        }
    }
}

impl InodeTable {
    /// Creates the table of a session with these asynchronous changes.
    pub(crate) fn with_changes(changes: Arc<AsyncChanges>) -> InodeTable {
        InodeTable { changes, ..InodeTable::default() }
    }

    /// Creates the table of the only session.
    pub(crate) fn for_only_session() -> InodeTable {
        InodeTable { is_only_session: true, ..InodeTable::default() }
    }

    fn shard(&self, ino: InodeId) -> MutexGuard<'_, HashMap<InodeId, InodeNode>> {
        // Inode numbers are sequential within a partition, so the low bits spread well.
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// Adds a kernel reference.
    pub(crate) fn remember(&self, attr: &Attr) {
        let ino = attr.ino;
        let mut shard = self.shard(ino);
        if let Some(successor) = self.successor_of(ino) {
            return successor.remember(attr);
        }
        let node = shard.entry(ino).or_default();
        node.references += 1;
        if attr.kind() == FileKind::Directory {
            match &mut node.directory {
                Some(directory) => directory.attr = *attr,
                None => node.directory = Some(Box::new(DirectoryNode { attr: *attr, end: None })),
            }
        }
    }

    /// Last known attributes of a directory that the kernel refers to.
    pub(crate) fn directory(&self, ino: InodeId) -> Option<Attr> {
        self.shard(ino).get(&ino)?.directory.as_ref().map(|directory| directory.attr)
    }

    /// Records where a listing of a directory ended, or that its last page has more behind it. The
    /// answer to the latest request counts.
    pub(crate) fn note_listing_end(&self, dir: InodeId, stamp: RequestStamp, cookie: Option<u64>) {
        if let Some(node) = self.shard(dir).get_mut(&dir)
            && let Some(directory) = &mut node.directory
            && directory.end.is_none_or(|(earlier, _)| !earlier.is_after(stamp))
        {
            directory.end = Some((stamp, cookie));
        }
    }

    /// The cookie of the last entry of a directory, and when it was requested.
    pub(crate) fn listing_end(&self, dir: InodeId) -> Option<(RequestStamp, u64)> {
        let (stamp, cookie) = self.shard(dir).get(&dir)?.directory.as_ref()?.end?;
        Some((stamp, cookie?))
    }

    /// Records attributes from an answer, if they are of a directory that the kernel refers to.
    pub(crate) fn note_directory(&self, attr: &Attr) {
        if attr.kind() != FileKind::Directory {
            return;
        }
        if let Some(node) = self.shard(attr.ino).get_mut(&attr.ino)
            && let Some(directory) = &mut node.directory
        {
            directory.attr = *attr;
        }
    }

    /// Records the flags of an inode from an answer; `None`: they have changed. Flags of inodes
    /// without a node are ignored.
    pub(crate) fn note_flags(&self, ino: InodeId, stamp: RequestStamp, attr: Option<&Attr>) {
        if let Some(node) = self.shard(ino).get_mut(&ino) {
            node.flags = KnownFlags::newer(node.flags, stamp, attr);
        }
    }

    /// The last known flags.
    pub(crate) fn flags(&self, ino: InodeId) -> Option<KnownFlags> {
        self.shard(ino).get(&ino)?.flags
    }

    /// Records the attributes of a file that this session has just created. They stay true under the
    /// session's lease until a request changes them.
    pub(crate) fn note_created_attr(&self, stamp: RequestStamp, attr: &Attr) {
        if let Some(node) = self.shard(attr.ino).get_mut(&attr.ino) {
            node.created_attr = Some(Box::new((stamp, *attr)));
        }
    }

    /// Attributes of a file that this session has created, and the stamp since which they are true
    /// as long as it has the `Write` lease.
    pub(crate) fn created_attr(&self, ino: InodeId) -> Option<(RequestStamp, Attr)> {
        self.shard(ino).get(&ino)?.created_attr.as_deref().copied()
    }

    /// Replaces these attributes; returns false if they aren't known any more.
    pub(crate) fn replace_created_attr(&self, ino: InodeId, attr: Attr) -> bool {
        let mut shard = self.shard(ino);
        let known = shard.get_mut(&ino).and_then(|node| node.created_attr.as_deref_mut());
        known.map(|known| known.1 = attr).is_some()
    }

    /// Drops these attributes.
    pub(crate) fn forget_created_attr(&self, ino: InodeId) {
        if let Some(node) = self.shard(ino).get_mut(&ino) {
            node.created_attr = None;
        }
    }

    /// Drops the attributes that a request may change; to be called before it is sent.
    pub(crate) fn forget_created_attrs(&self, op: &MetaOp) {
        match op {
            MetaOp::Getattr { .. }
            | MetaOp::GetXattr { .. }
            | MetaOp::ListXattr { .. }
            | MetaOp::MayOpen { .. }
            | MetaOp::Describe { .. } => {}
            MetaOp::NoteAccess { accesses } => {
                accesses.iter().for_each(|access| self.forget_created_attr(access.ino));
            }
            // Requests about a directory have its number.
            op => {
                let spec = op.spec();
                spec.home.iter().chain(&spec.other).for_each(|ino| self.forget_created_attr(*ino));
            }
        }
    }

    fn successor_of(&self, ino: InodeId) -> Option<&Arc<InodeTable>> {
        self.successors[ino.0 as usize % SHARDS].get()
    }

    /// Hands the kernel's references over to the successor session's table: present ones, and later
    /// additions and removals.
    pub(crate) fn hand_over(&self, successor: &Arc<InodeTable>) {
        for (shard, successor_slot) in self.shards.iter().zip(&self.successors) {
            let mut shard = shard.lock();
            successor_slot.get_or_init(|| successor.clone());
            for (&ino, node) in shard.iter_mut().filter(|(_, node)| node.references > 0) {
                let mut shard = successor.shard(ino);
                let successor_node = shard.entry(ino).or_default();
                successor_node.references += std::mem::take(&mut node.references);
                successor_node.directory = node.directory.take();
                successor_node.note_recent_changes_of(node);
            }
            shard.retain(|_, node| node.users > 0 || node.open.is_some());
        }
    }

    /// Number of uses: open files and running calls.
    pub(crate) fn use_count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().values().map(|node| node.users).sum::<u64>()).sum()
    }

    /// Wakes the tasks that wait for unused inodes, so that they check again.
    pub(crate) fn wake(&self) {
        self.has_reclaimable.set();
        self.has_idle.set();
        self.has_unreported.set();
        self.accesses.wake();
    }

    /// Removes kernel references.
    pub(crate) fn forget(&self, ino: InodeId, count: u64) {
        let mut shard = self.shard(ino);
        if let Some(successor) = self.successor_of(ino) {
            return successor.forget(ino, count);
        }
        if let Some(node) = shard.get_mut(&ino) {
            node.references = node.references.saturating_sub(count);
        }
        self.drop_unreferenced(shard, ino);
    }

    /// Records that the inode lost its last name.
    pub(crate) fn unlinked(&self, ino: InodeId) {
        let mut shard = self.shard(ino);
        let node = shard.entry(ino).or_default();
        (node.unlinked, node.created_attr) = (true, None);
        self.drop_unreferenced(shard, ino);
    }

    /// Records the number of links that an answer shows after a removal.
    pub(crate) fn note_links(&self, attr: &Attr) {
        if attr.nlink == 0 {
            self.unlinked(attr.ino);
        }
    }

    /// Records that the inode has a name (again).
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

    /// Does both for an inode that was just created: adds a kernel reference and starts a use of
    /// the content. True if there is no other reference or use, so that the inode is surely
    /// unchanged since its creation.
    pub(crate) fn remember_and_acquire(&self, attr: &Attr) -> (Arc<OpenInode>, bool) {
        let ino = attr.ino;
        self.remember(attr);
        let open = self.acquire(ino);
        let is_sole_use =
            self.shard(ino).get(&ino).is_some_and(|node| node.references == 1 && node.users == 1);
        (open, is_sole_use)
    }

    /// Whether the caller's use is the only one left, so that the file must be reported before it
    /// ends. Unreachable orphans need no report.
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
            node.drop_unless_used();
            if node.users == 0 {
                self.note_unused(ino);
            }
        }
        self.drop_unreferenced(shard, ino);
    }

    /// Drops the content of a use that had ended without a report, after another task has completed
    /// that report.
    pub(crate) fn drop_reported(&self, ino: InodeId) {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.get_mut(&ino) {
            node.drop_unless_used();
        }
        self.drop_unreferenced(shard, ino);
    }

    /// Has a background task check whether the inode's lease is still needed.
    pub(crate) fn note_unused(&self, ino: InodeId) {
        if self.is_only_session {
            return;
        }
        self.idle.lock().push(ino);
        self.has_idle.set();
    }

    /// Returns the inodes that may be unused.
    pub(crate) fn take_idle(&self) -> Vec<InodeId> {
        self.has_idle.clear();
        let mut idle = std::mem::take(&mut *self.idle.lock());
        idle.sort_unstable();
        idle.dedup();
        idle
    }

    /// Waits until an inode may be unused.
    pub(crate) async fn wait_for_idle(&self) {
        self.has_idle.wait().await;
    }

    /// How the inode is used here.
    pub(crate) fn inode_use(&self, ino: InodeId) -> InodeUse {
        self.with_inode_use(ino, |usage| usage)
    }

    /// Calls `act` with the inode's usage, while no new use can begin.
    pub(crate) fn with_inode_use<T>(&self, ino: InodeId, act: impl FnOnce(InodeUse) -> T) -> T {
        let shard = self.shard(ino);
        act(match shard.get(&ino) {
            None => InodeUse::None,
            Some(node) if node.users == 0 && node.open.is_none() => InodeUse::Known,
            Some(_) => InodeUse::Open,
        })
    }

    /// Records a use that ended without a successful report, which is to be repeated later.
    pub(crate) fn note_unreported(&self, ino: InodeId) {
        self.unreported.lock().insert(ino);
        self.has_unreported.set();
    }

    /// Waits until there is an unreported inode.
    pub(crate) async fn wait_for_unreported(&self) {
        self.has_unreported.wait().await;
    }

    /// Returns the unreported inodes that aren't in use again.
    pub(crate) fn take_unreported(&self) -> Vec<InodeId> {
        self.has_unreported.clear();
        let unreported = std::mem::take(&mut *self.unreported.lock());
        let is_left = |ino: &InodeId| {
            self.shard(*ino).get(ino).is_some_and(|node| node.users == 0 && node.open.is_some())
        };
        unreported.into_iter().filter(is_left).collect()
    }

    /// Records a recall of its lease; returns its open content, if any.
    pub(crate) fn note_recall(&self, ino: InodeId) -> Option<Arc<OpenInode>> {
        let mut shard = self.shard(ino);
        let node = shard.get_mut(&ino)?;
        node.recalled_ns = rt::monotonic_ns().max(1);
        let open = node.open.clone()?;
        open.recalled_ns.store(node.recalled_ns, Ordering::Relaxed);
        Some(open)
    }

    /// Returns the inodes in use.
    pub(crate) fn in_use(&self) -> Vec<InodeId> {
        let open = |shard: &Mutex<HashMap<InodeId, InodeNode>>| {
            let shard = shard.lock();
            let open = shard.iter().filter(|(_, node)| node.users > 0);
            open.map(|(ino, _)| *ino).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(open).collect()
    }

    /// Drops a node without references; passes an orphan to the task that reclaims it.
    fn drop_unreferenced(&self, mut shard: MutexGuard<'_, HashMap<InodeId, InodeNode>>, ino: InodeId) {
        let Some(node) = shard.get(&ino) else { return };
        if node.references > 0 || node.users > 0 {
            return;
        }
        if node.unlinked {
            shard.remove(&ino);
            drop(shard);
            self.reclaimable.lock().push(ino);
            self.has_reclaimable.set();
        } else if node.open.is_none() {
            shard.remove(&ino);
            drop(shard);
            self.note_unused(ino);
        }
    }

    /// The open content of an inode, if any.
    pub(crate) fn open(&self, ino: InodeId) -> Option<Arc<OpenInode>> {
        self.shard(ino).get(&ino).and_then(|node| node.open.clone())
    }

    /// Whether an open file surely has no extended attributes.
    pub(crate) fn has_no_xattrs(&self, ino: InodeId) -> bool {
        self.open(ino).is_some_and(|open| open.content.lock().has_no_xattrs)
    }

    /// Returns the content of all open inodes.
    pub(crate) fn open_inodes(&self) -> Vec<Arc<OpenInode>> {
        let mut open = Vec::new();
        for shard in &self.shards {
            open.extend(shard.lock().values().filter_map(|node| node.open.clone()));
        }
        open
    }

    /// Returns the orphans that this session no longer uses.
    pub(crate) fn take_reclaimable(&self) -> Vec<InodeId> {
        self.has_reclaimable.clear();
        std::mem::take(&mut *self.reclaimable.lock())
    }

    /// Waits until there is such an orphan.
    pub(crate) async fn wait_for_reclaimable(&self) {
        self.has_reclaimable.wait().await;
    }

    /// Records that the metadata service has got size and times of a file; they are about to vanish
    /// from the overlay.
    pub(crate) fn note_report(&self, ino: InodeId) {
        self.reports[ino.0 as usize % SHARDS].fetch_add(1, Ordering::AcqRel);
    }

    /// Number of reports so far. Attributes that were requested before the last report of their
    /// file, and overlaid after it, may lack it on both sides: the caller compares this number
    /// before and after.
    pub(crate) fn reports(&self, ino: InodeId) -> u64 {
        self.reports[ino.0 as usize % SHARDS].load(Ordering::Acquire)
    }

    /// Number of reports of all files so far.
    pub(crate) fn all_reports(&self) -> ReportCounts {
        ReportCounts {
            files: self.reports.iter().map(|shard| shard.load(Ordering::Acquire)).sum(),
            directories: self.directory_changes.load(Ordering::Acquire),
        }
    }

    /// Records that an asynchronous change of names in a directory has ended: attributes of the
    /// directory that were requested before are outdated.
    pub(crate) fn note_directory_change(&self) {
        self.directory_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The layout of a file whose chunks this session has changed since its last report of
    /// allocated blocks. Until the next report, only the chunk files show the blocks.
    pub(crate) fn unreported_chunks(&self, ino: InodeId) -> Option<Arc<Layout>> {
        let open = self.open(ino)?;
        let content = open.content.lock();
        content.layout.clone().filter(|_| content.phase.needs_report())
    }

    /// Overlays state that only this session knows on attributes from the metadata service, except
    /// for [allocated blocks](InodeTable::unreported_chunks).
    pub(crate) fn overlay(&self, attr: Attr) -> Attr {
        let mut attr = self.changes.overlay(attr);
        attr.atime = self.accesses.latest(attr.ino, attr.atime);
        if let Some(open) = self.open(attr.ino) {
            let content = open.content.lock();
            if content.phase.needs_report() {
                // Other sessions may have extended a shared file further.
                let shared = content.lease == LeaseMode::Shared;
                attr.size = if shared { attr.size.max(content.size) } else { content.size };
                if let Some(mtime) = content.phase.unreported_change() {
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
    fn only_sessions_with_leases_track_unused_inodes() {
        for (table, noted) in
            [(InodeTable::default(), vec![InodeId(7)]), (InodeTable::for_only_session(), vec![])]
        {
            for _ in 0..3 {
                table.acquire(InodeId(7));
                table.release(InodeId(7));
            }
            assert_eq!(table.take_idle(), noted);
        }
    }
}
