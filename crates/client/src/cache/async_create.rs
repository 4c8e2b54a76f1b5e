//! Asynchronous creates: files that an application gets before the metadata service has them.
//!
//! A kernel holds a directory's lock until the create of a file in it is answered. If each create
//! waits for the service, applications that fill one directory wait for each other, and each small
//! file costs two commands: one for the create, one for its content. A session with a directory
//! delegation (a `Write` lease on the directory) needn't wait. It knows that the name is free and
//! that its user may create it, it has a preallocated inode number
//! ([`wire::MetaOp::PreallocateInodes`]), and no other session can look. So it creates the file
//! *asynchronously*: the application gets its file at once. The client keeps what is written to the
//! file, as long as that fits inline, and the permissions, owner and times that the application
//! sets. It sends the file with all of that in one command ([`wire::MetaOp::CommitCreate`]) on
//! close, or earlier ([`super::commit_create`]).
//!
//! # Guarantees
//!
//! - *No session misses a file.* When other sessions want to know names of the directory, the
//!   service recalls its lease. The client sends every pending create before it gives the lease
//!   back. Requests of this session that could miss a pending file wait until the file is committed
//!   ([`AsyncCreates::pending_for`]).
//! - *An application whose close or sync has succeeded knows that the service has the file*;
//!   otherwise it gets the error. The death of this process can lose only files that are open and
//!   younger than [`MAX_AGE`].
//! - *A pending create is sent after [`MAX_AGE`] at the latest*, however long the file stays open.
//! - *After a restart or a change of owner, the metadata service executes pending creates before it
//!   serves other sessions*: registration transmits them ([`AsyncCreates::seal_in`]).
//! - *A session that the cluster ends loses its pending creates.* The application gets the error
//!   when it writes to the file or closes it. That includes creates with `O_EXCL`, for [`MAX_AGE`]:
//!   another client may then get the name. A mount with `wsync` creates nothing asynchronously.
//!
//! An asynchronous create is *pending* until its content is fixed, then *sealed* and sent, and at
//! last *finished*: committed or failed ([`super::pending_create`]).

use crate::cache::Delegations;
use crate::cache::complete_directories::{CompleteDirectories, added_name};
use crate::cache::heuristic::{Backoff, UseFrequency};
use crate::cache::pending_create::{CommitCreate, MAX_BYTES, PendingCreate, commit_all};
use crate::cache::preallocation::{FIRST_INODES, InodePreallocation, MORE_INODES, NewInode, new_file_attr};
use crate::file::handle::Handle;
use crate::file::inode::{InodeTable, OpenInode};
use crate::metadata::attributes::CachedAttr;
use crate::session::lease_holder::Concerned;
use crate::session::leases::{Leases, RequestStamp};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use types::{Credentials, HashMap, HashSet, InodeId, Result, SetAttr, mode};
use wire::{AsyncCreate, LeaseMode, MetaOp, PendingFile};

/// Longest time that a create stays pending. After that, the file survives the death of this
/// process.
const MAX_AGE: Duration = Duration::from_millis(25);
/// Maximum number of asynchronous creates: more than applications run at once, and few enough for
/// one message to a service.
const MAX_ASYNC_CREATES: usize = 256;
/// Shards of the table; a power of two.
const SHARDS: usize = 16;
/// Maximum number of directories that a shard tracks. Beyond it, the shard drops those without
/// pending creates.
const MAX_DIRECTORIES: usize = 256;
/// Names of a directory that are known to be free. Beyond it, all are dropped: a lookup reports
/// them again.
const MAX_FREE_NAMES: usize = 64;

/// The service refuses longer names.
const MAX_NAME_BYTES: usize = 255;
/// `open(2)` flags for which a create is not asynchronous: read-only, where no close reports a
/// failure; durable at once.
const O_ACCMODE: u32 = 0o3;
const O_DSYNC: u32 = 0o10000;

/// State of a directory.
#[derive(Default)]
struct Directory {
    /// The directory delegation, if the session still holds its lease.
    delegation: Option<DirectoryDelegation>,
    creates: BTreeMap<InodeId, (Arc<PendingCreate>, Arc<OpenInode>)>,
    /// Frequency of synchronous creates and removals in this directory.
    frequency: UseFrequency,
    /// A request for the delegation is in flight.
    is_requested: bool,
    /// Delays the next request for the delegation.
    backoff: Backoff,
}

impl Directory {
    /// Returns the directory delegation if the session still holds it.
    fn held_delegation(&mut self, leases: &Leases, dir: InodeId) -> Option<&mut DirectoryDelegation> {
        let delegation = self.delegation.as_ref()?;
        if leases.lease_covering(delegation.stamp, dir) != Some(LeaseMode::Write) {
            self.backoff.begin_after(delegation.since_ns);
            self.delegation = None;
        }
        self.delegation.as_mut()
    }
}

struct DirectoryDelegation {
    /// Stamp of a time at which the lease was held.
    stamp: RequestStamp,
    /// Since when it is held, on the monotonic clock.
    since_ns: u64,
    preallocation: InodePreallocation,
    /// Names that the service has reported as free.
    free: HashSet<Bytes>,
}

type Shard = HashMap<InodeId, Directory>;

/// All asynchronous creates of a session.
#[derive(Default)]
pub(crate) struct AsyncCreates {
    shards: [Mutex<Shard>; SHARDS],
    /// The session has had a delegation. Until then, no create is asynchronous.
    has_been_granted: AtomicBool,
    count: AtomicUsize,
    /// Size of their content together, in bytes.
    pub(super) bytes: Arc<AtomicUsize>,
    has_sweeper: AtomicBool,
}

impl AsyncCreates {
    fn shard(&self, dir: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[dir.0 as usize % SHARDS].lock()
    }

    /// Whether the session has never had a delegation, and so no asynchronous create.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_been_granted.load(Ordering::Acquire)
    }

    /// Whether a directory has asynchronous creates that aren't finished.
    pub(crate) fn has_pending_in(&self, dir: InodeId) -> bool {
        !self.is_idle() && self.shard(dir).get(&dir).is_some_and(|directory| !directory.creates.is_empty())
    }

    /// Counts a synchronous create or removal. Returns true if the client is to request the directory
    /// delegation.
    fn count_create(&self, dir: InodeId) -> bool {
        let now_ns = rt::monotonic_ns();
        let mut shard = self.shard(dir);
        if shard.len() >= MAX_DIRECTORIES && !shard.contains_key(&dir) {
            shard.retain(|_, directory| !directory.creates.is_empty() || directory.is_requested);
        }
        let directory = shard.entry(dir).or_default();
        let wanted =
            directory.frequency.note(now_ns) && !directory.is_requested && directory.backoff.is_over(now_ns);
        directory.is_requested |= wanted;
        wanted
    }

    /// Returns true if the client is to request the delegation of a directory now.
    fn begin_request(&self, leases: &Leases, dir: InodeId) -> bool {
        let mut shard = self.shard(dir);
        let directory = shard.entry(dir).or_default();
        let wanted = !directory.is_requested
            && directory.held_delegation(leases, dir).is_none()
            && directory.backoff.is_over(rt::monotonic_ns());
        directory.is_requested |= wanted;
        wanted
    }

    /// Records the answer to a request for a directory delegation.
    fn record_delegation(
        &self,
        leases: &Leases,
        dir: InodeId,
        granted: Option<(RequestStamp, InodePreallocation)>,
    ) {
        let mut shard = self.shard(dir);
        let directory = shard.entry(dir).or_default();
        directory.is_requested = false;
        // After a loss of unsynced metadata, the service may assign the inode numbers of an earlier
        // lease to others.
        _ = directory.held_delegation(leases, dir);
        let Some((stamp, preallocation)) = granted else {
            directory.delegation = None;
            return directory.backoff.begin();
        };
        self.begin_use();
        directory.delegation = Some(match directory.delegation.take() {
            // What was known under an earlier lease may be outdated.
            Some(before) => DirectoryDelegation {
                stamp,
                preallocation: preallocation.append_to(before.preallocation),
                free: HashSet::default(),
                ..before
            },
            None => DirectoryDelegation {
                stamp,
                since_ns: rt::monotonic_ns(),
                preallocation,
                free: HashSet::default(),
            },
        });
    }

    /// Stops relying on the delegation of a directory for a while: the service has refused what it
    /// permits.
    pub(super) fn end_delegation(&self, dir: InodeId) {
        if let Some(directory) = self.shard(dir).get_mut(&dir) {
            directory.delegation = None;
            directory.backoff.begin();
        }
    }

    /// Permits asynchronous creates from now on.
    pub(crate) fn begin_use(&self) {
        self.has_been_granted.store(true, Ordering::Release);
    }

    /// Records that the service has reported a name as free, which stays true under the lease.
    pub(crate) fn note_free(&self, leases: &Leases, dir: InodeId, name: &[u8]) {
        if self.is_idle() {
            return;
        }
        let mut shard = self.shard(dir);
        let Some(delegation) =
            shard.get_mut(&dir).and_then(|directory| directory.held_delegation(leases, dir))
        else {
            return;
        };
        if delegation.free.len() >= MAX_FREE_NAMES {
            delegation.free.clear();
        }
        delegation.free.insert(Bytes::copy_from_slice(name));
    }

    /// Prepares for a request that is about to be sent: drops the free names that it uses, and the
    /// delegation of a directory whose attributes it changes.
    pub(crate) fn prepare_request(&self, op: &MetaOp) {
        if self.is_idle() {
            return;
        }
        if let Some((dir, name)) = added_name(op)
            && let Some(delegation) =
                self.shard(dir).get_mut(&dir).and_then(|known| known.delegation.as_mut())
        {
            delegation.free.remove(name);
        }
        if let Some(ino) = op.spec().attributes_of
            && let Some(directory) = self.shard(ino).get_mut(&ino)
        {
            directory.delegation = None;
        }
    }

    /// Returns the asynchronous creates that a request could miss or depends on.
    fn pending_for(
        &self,
        op: &MetaOp,
        of_inode: impl Fn(InodeId) -> Option<Arc<PendingCreate>>,
    ) -> Vec<Arc<PendingCreate>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let named = |dir: &InodeId, name: &Bytes| -> Vec<Arc<PendingCreate>> {
            let shard = self.shard(*dir);
            let creates = shard.get(dir).into_iter().flat_map(|directory| directory.creates.values());
            creates.map(|(create, _)| create).filter(|one| one.name() == name).cloned().collect()
        };
        match op {
            // Sending an asynchronous create may include the introduction of a user, and a write to
            // its chunks under another epoch.
            MetaOp::CommitCreate { .. }
            | MetaOp::PreallocateInodes { .. }
            | MetaOp::SupplyGroups { .. }
            | MetaOp::Reopen { .. } => Vec::new(),
            MetaOp::Lookup { parent, name }
            | MetaOp::Unlink { parent, name, .. }
            | MetaOp::Create { parent, name, .. }
            | MetaOp::Mkdir { parent, name, .. }
            | MetaOp::Symlink { parent, name, .. } => named(parent, name),
            MetaOp::Tmpfile { .. } => Vec::new(),
            MetaOp::Link { ino, parent, name } => {
                let mut concerned = named(parent, name);
                concerned.extend(of_inode(*ino));
                concerned
            }
            // The request may remove or replace a directory of which the client knows only the
            // name.
            MetaOp::Rmdir { .. } | MetaOp::Rename { .. } | MetaOp::Sync => self.all(|_| true),
            op => {
                let Some(ino) = op.spec().home else { return Vec::new() };
                let mut concerned = self.all_in(ino);
                concerned.extend(of_inode(ino));
                concerned
            }
        }
    }

    fn all_in(&self, dir: InodeId) -> Vec<Arc<PendingCreate>> {
        let shard = self.shard(dir);
        let creates = shard.get(&dir).into_iter().flat_map(|directory| directory.creates.values());
        creates.map(|(create, _)| create.clone()).collect()
    }

    fn all(&self, wanted: impl Fn(&PendingCreate) -> bool) -> Vec<Arc<PendingCreate>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let creates = shard.values().flat_map(|directory| directory.creates.values());
            all.extend(creates.map(|(create, _)| create).filter(|one| wanted(one)).cloned());
        }
        all
    }

    /// Takes a preallocated inode number for an asynchronous create, with the inline limit and the
    /// directory's attributes.
    fn take_inode(
        &self,
        (leases, complete): (&Leases, &CompleteDirectories),
        (dir, name): (InodeId, &[u8]),
        who: Credentials,
    ) -> Option<NewInode> {
        let mut shard = self.shard(dir);
        let directory = shard.get_mut(&dir)?;
        let delegation = directory.held_delegation(leases, dir)?;
        let is_free = delegation.free.remove(name) || complete.absent_since(leases, dir, name).is_some();
        if !is_free || !delegation.preallocation.permits(who) {
            return None;
        }
        let new_inode = delegation.preallocation.take_inode(dir, delegation.stamp)?;
        let refill = new_inode.needs_refill && !directory.is_requested;
        directory.is_requested |= refill;
        Some(NewInode { needs_refill: refill, ..new_inode })
    }

    /// Returns the stamp of a directory delegation, if the user may surely change names there.
    pub(super) fn permits_changes(
        &self,
        leases: &Leases,
        dir: InodeId,
        who: Credentials,
    ) -> Option<RequestStamp> {
        let mut shard = self.shard(dir);
        let delegation = shard.get_mut(&dir)?.held_delegation(leases, dir)?;
        delegation.preallocation.permits(who).then_some(delegation.stamp)
    }

    /// Takes a name that the service has reported as free. Returns false if it hasn't.
    pub(super) fn take_free(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> bool {
        let mut shard = self.shard(dir);
        let delegation = shard.get_mut(&dir).and_then(|directory| directory.held_delegation(leases, dir));
        delegation.is_some_and(|delegation| delegation.free.remove(name))
    }

    /// Whether the limits allow another asynchronous create.
    fn is_below_limits(&self) -> bool {
        self.count.load(Ordering::Acquire) < MAX_ASYNC_CREATES
            && self.bytes.load(Ordering::Acquire) < MAX_BYTES
    }

    fn add(&self, create: Arc<PendingCreate>, inode: Arc<OpenInode>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let dir = create.file.parent;
        let mut shard = self.shard(dir);
        shard.entry(dir).or_default().creates.insert(create.ino(), (create, inode));
    }

    pub(super) fn remove(&self, create: &PendingCreate) -> Option<Arc<OpenInode>> {
        let dir = create.file.parent;
        let mut shard = self.shard(dir);
        let (_, inode) = shard.get_mut(&dir)?.creates.remove(&create.ino())?;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(inode)
    }

    /// Waits until all asynchronous creates in a directory are finished.
    pub(crate) async fn commit_in(&self, dir: InodeId) {
        if !self.is_idle() {
            let _reported_at_close = commit_all(self.all_in(dir)).await;
        }
    }

    /// Waits until all asynchronous creates of the session are finished.
    pub(crate) async fn commit_all(&self) -> Result<()> {
        commit_all(self.all(|_| true)).await
    }

    /// Finishes the asynchronous creates that a request could miss, before the request is sent.
    pub(crate) async fn commit_before(&self, op: &MetaOp, inodes: &InodeTable) {
        let of_inode = |ino| inodes.open(ino).and_then(|inode| inode.async_create());
        let concerned = self.pending_for(op, of_inode);
        if !concerned.is_empty() {
            let _reported_at_close = commit_all(concerned).await;
        }
    }

    /// Seals the pending creates in the directories that `concerned` selects, and returns them for
    /// a service that must execute them before it serves other sessions. The client also sends each
    /// of them itself.
    pub(crate) fn seal_in(&self, concerned: Concerned<'_>) -> Vec<AsyncCreate> {
        let creates = self.all(|one| concerned(one.file.parent));
        creates.iter().for_each(PendingCreate::begin_commit);
        let sealed = creates.iter().filter_map(|one| {
            let credentials = one.credentials;
            one.sealed().map(|sealed| AsyncCreate { credentials, file: sealed.file })
        });
        sealed.collect()
    }

    /// Starts the task that sends creates that have been pending for [`MAX_AGE`]. It holds the
    /// `committer` as long as there are any.
    fn start_sweeper(self: &Arc<Self>, committer: Arc<dyn CommitCreate>) {
        if self.has_sweeper.swap(true, Ordering::AcqRel) {
            return;
        }
        let creates = self.clone();
        rt::spawn(async move {
            let _committer = committer;
            loop {
                rt::sleep(MAX_AGE).await;
                creates.all(|one| one.is_older_than(MAX_AGE)).iter().for_each(PendingCreate::begin_commit);
                if creates.count.load(Ordering::Acquire) > 0 {
                    continue;
                }
                creates.has_sweeper.store(false, Ordering::Release);
                // A create that was added meanwhile relied on this task.
                if creates.count.load(Ordering::Acquire) == 0
                    || creates.has_sweeper.swap(true, Ordering::AcqRel)
                {
                    return;
                }
            }
        });
    }
}

/// Whether a create with this mode and these open flags may be asynchronous.
fn may_create_async(bits: u32, flags: u32) -> bool {
    let is_plain = bits & mode::PERMISSIONS & !0o777 == 0 && bits & mode::S_IFMT & !mode::S_IFREG == 0;
    is_plain && flags & O_ACCMODE != 0 && flags & O_DSYNC == 0
}

impl Delegations {
    /// Creates a file asynchronously, if that is possible.
    pub(crate) fn create_async(
        self: &Arc<Self>,
        credentials: Credentials,
        (parent, name): (InodeId, &[u8]),
        (bits, umask): (u32, u32),
        flags: u32,
    ) -> Option<(CachedAttr, Arc<Handle>)> {
        let is_allowed = may_create_async(bits, flags) && name.len() <= MAX_NAME_BYTES;
        if self.creates_synchronously
            || self.names.async_creates.is_idle()
            || !is_allowed
            || !self.names.async_creates.is_below_limits()
            || self.session.has_ended()
        {
            return None;
        }
        let NewInode { ino, stamp, lease, attr, inline_limit, .. } =
            self.take_preallocated_inode(credentials, parent, name)?;
        let name = Bytes::copy_from_slice(name);
        let attr = new_file_attr(ino, &attr, credentials, bits & 0o777 & !umask);
        let file = PendingFile {
            ino,
            parent,
            name,
            mode: bits,
            umask,
            created: attr.btime,
            content: Bytes::new(),
            begins_write: false,
            written: None,
            set: SetAttr::default(),
        };
        self.names.complete.record_name(&self.session.leases, parent, &file.name);
        let possible_name = self.names.prefixes.record_possible(parent, &file.name);
        let sending = (self.committer.clone(), self.names.async_creates.bytes.clone());
        let create = PendingCreate::new(credentials, (file, attr), inline_limit, possible_name, sending);
        let inode = self.inodes.acquire(ino);
        inode.content.lock().has_no_xattrs = true;
        inode.set_async_create(Some(create.clone()));
        self.names.async_creates.add(create.clone(), inode.clone());
        // A recall marks the lease as closing before it searches for pending creates. If it has
        // found this one, the file is being sent and the create stands. Otherwise no other task
        // knows of it, and it is withdrawn.
        if self.session.leases.lease_covering(stamp, lease) != Some(LeaseMode::Write) && create.seal() {
            create.finish(Ok(()));
            self.names.prefixes.record_outcome(&create.possible_name, &create.outcome());
            self.names.async_creates.remove(&create);
            inode.set_async_create(None);
            self.inodes.release(ino);
            return None;
        }
        self.inodes.remember(&attr);
        self.inodes.note_flags(ino, stamp, Some(&attr));
        let handle = Handle::new(self.inodes.acquire(ino), flags);
        if let Some(committer) = self.committer.upgrade() {
            self.names.async_creates.start_sweeper(committer);
        }
        let name_cacheable = self.session.leases.is_cacheable(stamp, parent);
        // No other session knows the file. If the service reports other attributes later, the
        // kernel's cache is invalidated then.
        Some((CachedAttr { attr, cacheable: true, name_cacheable }, handle))
    }

    /// Takes a preallocated inode number, under the directory delegation or a name-prefix
    /// delegation.
    fn take_preallocated_inode(
        self: &Arc<Self>,
        who: Credentials,
        dir: InodeId,
        name: &[u8],
    ) -> Option<NewInode> {
        let known = (&self.session.leases, &self.names.complete);
        if let Some(new_inode) = self.names.async_creates.take_inode(known, (dir, name), who) {
            if new_inode.needs_refill {
                self.request_delegation(who, dir, MORE_INODES);
            }
            return Some(new_inode);
        }
        let (new_inode, prefix) = self.names.prefixes.take_inode(&self.session.leases, (dir, name), who)?;
        if new_inode.needs_refill {
            self.request_prefix(who, dir, prefix, MORE_INODES);
        }
        Some(new_inode)
    }

    /// Counts a synchronous create. A client that creates many files in one directory requests the
    /// directory delegation.
    pub(crate) fn count_sync_create(
        self: &Arc<Self>,
        credentials: Credentials,
        parent: InodeId,
        (bits, flags): (u32, u32),
    ) {
        let stamp = self.session.leases.stamp_request();
        let is_allowed = !self.creates_synchronously
            && may_create_async(bits, flags)
            && self.session.leases.is_cacheable(stamp, parent);
        if is_allowed && self.names.async_creates.count_create(parent) {
            self.request_delegation(credentials, parent, FIRST_INODES);
        }
    }

    /// Gets the delegation of a directory that this session has made, before the first file is
    /// created there: more will follow. Returns false if there is no point in another try.
    pub(crate) async fn obtain_for_new_directory(
        self: &Arc<Self>,
        credentials: Credentials,
        dir: InodeId,
        (bits, flags): (u32, u32),
    ) -> bool {
        if self.creates_synchronously
            || !may_create_async(bits, flags)
            || !self.names.complete.is_complete(dir)
            || !self.names.async_creates.begin_request(&self.session.leases, dir)
        {
            return false;
        }
        self.obtain_delegation(credentials, dir, FIRST_INODES).await;
        true
    }

    /// Counts a synchronous removal. A client that removes many files of one directory requests the
    /// directory delegation.
    pub(crate) fn count_sync_removal(self: &Arc<Self>, credentials: Credentials, parent: InodeId) {
        let stamp = self.session.leases.stamp_request();
        let is_allowed = !self.creates_synchronously && self.session.leases.is_cacheable(stamp, parent);
        if is_allowed && self.names.async_creates.count_create(parent) {
            self.request_delegation(credentials, parent, FIRST_INODES);
        }
    }

    fn request_delegation(self: &Arc<Self>, credentials: Credentials, dir: InodeId, count: u32) {
        let delegations = self.clone();
        rt::spawn(async move { delegations.obtain_delegation(credentials, dir, count).await });
    }

    async fn obtain_delegation(&self, credentials: Credentials, dir: InodeId, count: u32) {
        let answer = self
            .session
            .query_as(credentials, MetaOp::PreallocateInodes { dir, count, prefix: Bytes::new() })
            .await;
        // Stamped before the check that the lease is held, so the lease is held since this
        // time.
        let now = self.session.leases.stamp_request();
        let granted = match answer {
            Ok(answer) => match answer.reply {
                reply if self.session.leases.lease_covering(answer.stamp, dir) == Some(LeaseMode::Write) => {
                    InodePreallocation::of(&reply).map(|preallocation| (now, preallocation))
                }
                _ => None,
            },
            Err(error) => {
                tracing::trace!(ino = %dir, %error, "no directory delegation: other clients use the directory");
                None
            }
        };
        self.names.async_creates.record_delegation(&self.session.leases, dir, granted);
    }
}
