//! Asynchronous creates: files that an application gets before the metadata service has them.
//!
//! A kernel holds a directory's lock until the create of a file in it is answered. If each create
//! waits for the service, applications that fill one directory wait for each other, and each small
//! file costs two commands: one for the create, one for its content. A session with a directory
//! delegation (a `Write` lease on the directory) needn't wait. It knows that the name is free and
//! that its user may create it, it has a preallocated inode number ([`wire::MetaOp::Reserve`]), and
//! no other session can look. So it creates the file *asynchronously*: the application gets its
//! file at once. The client sends the file to the service in one command
//! ([`wire::MetaOp::Deliver`]), together with the first write if that fits inline, else on close,
//! or earlier.
//!
//! # Guarantees
//!
//! - *No session misses a file.* When other sessions want to know names of the directory, the
//!   service recalls its lease. The client sends every pending create before it gives the lease
//!   back. Requests of this session that could miss a pending file wait until the file is committed
//!   ([`Promises::concerned`]).
//! - *An application whose write or close has succeeded knows that the service has the file*;
//!   otherwise it gets the error. The death of this process can lose only open files without
//!   content.
//! - *A pending create is sent after [`MAX_AGE`] at the latest*, however long the file stays open.
//! - *After a restart or a change of owner, the metadata service executes pending creates before it
//!   serves other sessions*: registration transmits them ([`Client::sealed_promises`]).
//! - *A session that the cluster ends loses its pending creates.* The application gets the error
//!   when it writes to the file or closes it. So creates with `O_EXCL` are never asynchronous:
//!   applications use such files as locks.
//!
//! An asynchronous create is *pending* until its content is fixed, then *sealed* and sent, and at
//! last *finished*: committed or failed.

use crate::births::{Births, FEW_NUMBERS, MANY_NUMBERS, Numbered, newborn};
use crate::complete::{CompleteDirectories, added};
use crate::file::{Fresh, Handle};
use crate::fill::Pass;
use crate::habit::{Habit, Rest};
use crate::inode::OpenInode;
use crate::lease::{Asked, Leases};
use crate::names::Known;
use crate::ranges::Adding;
use crate::{Client, entry};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rt::IoBuf;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use types::{Attr, Credentials, Errno, Error, HashMap, HashSet, InodeId, Result, mode};
use wire::{LeaseMode, MetaOp, Promise, PromisedFile};

/// Longest time that a create stays pending. After that, the file survives the death of this
/// process.
const MAX_AGE: Duration = Duration::from_millis(25);
/// Maximum number of asynchronous creates: more than applications run at once, and few enough for
/// one message to a service.
const MAX_PROMISES: usize = 256;
/// Maximum size of their content together, in bytes: half of what a message can carry.
const MAX_BYTES: usize = 512 * 1024;
/// Shards of the table; a power of two.
const SHARDS: usize = 16;
/// Maximum number of directories that a shard tracks. Beyond it, the shard drops those without
/// pending creates.
const MAX_DIRECTORIES: usize = 256;
/// Names of a directory that are known to be free. Beyond it, all are dropped: a lookup reports
/// them again.
const MAX_FREE: usize = 64;

/// The service refuses longer names.
const MAX_NAME_BYTES: usize = 255;
/// `open(2)` flags for which a create is not asynchronous: read-only, where no close reports a
/// failure; fail if the name exists; durable at once.
const O_ACCMODE: u32 = 0o3;
const O_EXCL: u32 = 0o200;
const O_DSYNC: u32 = 0o10000;

/// An asynchronous create.
pub(crate) struct Promised {
    credentials: Credentials,
    /// The file without its content.
    file: PromisedFile,
    /// The attributes that the application got.
    told: Attr,
    /// Maximum size of inline content, in bytes.
    inline_limit: u32,
    /// When it was created, on the monotonic clock.
    since_ns: u64,
    /// Marks its name as possibly present.
    adding: Adding,
    state: Mutex<State>,
    settled: Event,
}

enum State {
    Held,
    Sealed(Bytes),
    Settled(Result<()>),
}

impl Promised {
    /// Fixes the content, which is to be sent. Returns false if it was fixed already.
    fn seal(&self, content: Bytes) -> bool {
        let mut state = self.state.lock();
        let is_held = matches!(*state, State::Held);
        if is_held {
            *state = State::Sealed(content);
        }
        is_held
    }

    /// Returns the sealed file; `None` if it is pending or finished.
    fn sealed(&self) -> Option<PromisedFile> {
        match &*self.state.lock() {
            State::Sealed(content) => Some(PromisedFile { content: content.clone(), ..self.file.clone() }),
            State::Held | State::Settled(_) => None,
        }
    }

    fn settle(&self, outcome: Result<()>) {
        *self.state.lock() = State::Settled(outcome);
        self.settled.set();
    }

    fn outcome(&self) -> Result<()> {
        match &*self.state.lock() {
            State::Settled(outcome) => outcome.clone(),
            State::Held | State::Sealed(_) => Ok(()),
        }
    }

    fn is_older_than(&self, age: Duration) -> bool {
        rt::monotonic_ns().saturating_sub(self.since_ns) >= age.as_nanos() as u64
    }
}

/// State of a directory.
#[derive(Default)]
struct Directory {
    /// The directory delegation, if the session still holds its lease.
    alone: Option<Alone>,
    promised: BTreeMap<InodeId, (Arc<Promised>, Arc<OpenInode>)>,
    /// Frequency of synchronous creates in this directory.
    habit: Habit,
    /// A request for the delegation is in flight.
    is_asked_for: bool,
    /// Delays the next request for the delegation.
    rest: Rest,
}

impl Directory {
    /// Returns the directory delegation if the session still holds it.
    fn alone(&mut self, leases: &Leases, dir: InodeId) -> Option<&mut Alone> {
        let alone = self.alone.as_ref()?;
        if leases.vouches(alone.asked, dir) != Some(LeaseMode::Write) {
            self.rest.begin_after(alone.since_ns);
            self.alone = None;
        }
        self.alone.as_mut()
    }
}

struct Alone {
    /// Stamp of a time at which the lease was held.
    asked: Asked,
    /// Since when it is held, on the monotonic clock.
    since_ns: u64,
    births: Births,
    /// Names that the service has reported as free.
    free: HashSet<Bytes>,
}

type Shard = HashMap<InodeId, Directory>;

/// All asynchronous creates of a session.
#[derive(Default)]
pub(crate) struct Promises {
    shards: [Mutex<Shard>; SHARDS],
    /// The session has had a delegation. Until then, no create is asynchronous.
    is_used: AtomicBool,
    count: AtomicUsize,
    bytes: AtomicUsize,
    is_swept: AtomicBool,
}

impl Promises {
    fn shard(&self, dir: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[dir.0 as usize % SHARDS].lock()
    }

    /// Whether the session has never had a delegation, and so no asynchronous create.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_used.load(Ordering::Acquire)
    }

    /// Whether a directory has asynchronous creates that aren't finished.
    pub(crate) fn are_in(&self, dir: InodeId) -> bool {
        !self.is_idle() && self.shard(dir).get(&dir).is_some_and(|directory| !directory.promised.is_empty())
    }

    /// Counts a synchronous create. Returns true if the client is to request the directory
    /// delegation.
    fn note_made(&self, dir: InodeId) -> bool {
        let now_ns = rt::monotonic_ns();
        let mut shard = self.shard(dir);
        if shard.len() >= MAX_DIRECTORIES && !shard.contains_key(&dir) {
            shard.retain(|_, directory| !directory.promised.is_empty() || directory.is_asked_for);
        }
        let directory = shard.entry(dir).or_default();
        let wanted =
            directory.habit.note(now_ns) && !directory.is_asked_for && directory.rest.is_over(now_ns);
        directory.is_asked_for |= wanted;
        wanted
    }

    /// Records the answer to a request for a directory delegation.
    fn asked(&self, leases: &Leases, dir: InodeId, granted: Option<(Asked, Births)>) {
        let mut shard = self.shard(dir);
        let directory = shard.entry(dir).or_default();
        directory.is_asked_for = false;
        // After a loss of unsynced metadata, the service may assign the inode numbers of an earlier
        // lease to others.
        _ = directory.alone(leases, dir);
        let Some((asked, births)) = granted else {
            directory.alone = None;
            return directory.rest.begin();
        };
        self.begin_use();
        directory.alone = Some(match directory.alone.take() {
            // What was known under an earlier lease may be outdated.
            Some(before) => {
                Alone { asked, births: births.after(before.births), free: HashSet::default(), ..before }
            }
            None => Alone { asked, since_ns: rt::monotonic_ns(), births, free: HashSet::default() },
        });
    }

    /// Permits asynchronous creates from now on.
    pub(crate) fn begin_use(&self) {
        self.is_used.store(true, Ordering::Release);
    }

    /// Records that the service has reported a name as free, which stays true under the lease.
    pub(crate) fn note_free(&self, leases: &Leases, dir: InodeId, name: &[u8]) {
        if self.is_idle() {
            return;
        }
        let mut shard = self.shard(dir);
        let Some(alone) = shard.get_mut(&dir).and_then(|directory| directory.alone(leases, dir)) else {
            return;
        };
        if alone.free.len() >= MAX_FREE {
            alone.free.clear();
        }
        alone.free.insert(Bytes::copy_from_slice(name));
    }

    /// Prepares for a request that is about to be sent: drops the free names that it uses, and the
    /// delegation of a directory whose attributes it changes.
    pub(crate) fn sending(&self, op: &MetaOp) {
        if self.is_idle() {
            return;
        }
        if let Some((dir, name)) = added(op)
            && let Some(alone) = self.shard(dir).get_mut(&dir).and_then(|known| known.alone.as_mut())
        {
            alone.free.remove(name);
        }
        if let Some(ino) = op.spec().attributes_of
            && let Some(directory) = self.shard(ino).get_mut(&ino)
        {
            directory.alone = None;
        }
    }

    /// Returns the asynchronous creates that a request could miss or depends on.
    fn concerned(
        &self,
        op: &MetaOp,
        of_inode: impl Fn(InodeId) -> Option<Arc<Promised>>,
    ) -> Vec<Arc<Promised>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let named = |dir: &InodeId, name: &Bytes| -> Vec<Arc<Promised>> {
            let shard = self.shard(*dir);
            let there = shard.get(dir).into_iter().flat_map(|directory| directory.promised.values());
            there.map(|(promised, _)| promised).filter(|one| one.file.name == *name).cloned().collect()
        };
        match op {
            // Sending an asynchronous create may include the introduction of a user.
            MetaOp::Deliver { .. } | MetaOp::Reserve { .. } | MetaOp::Introduce { .. } => Vec::new(),
            MetaOp::Lookup { parent, name }
            | MetaOp::Unlink { parent, name }
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

    fn all_in(&self, dir: InodeId) -> Vec<Arc<Promised>> {
        let shard = self.shard(dir);
        let there = shard.get(&dir).into_iter().flat_map(|directory| directory.promised.values());
        there.map(|(promised, _)| promised.clone()).collect()
    }

    fn all(&self, wanted: impl Fn(&Promised) -> bool) -> Vec<Arc<Promised>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let there = shard.values().flat_map(|directory| directory.promised.values());
            all.extend(there.map(|(promised, _)| promised).filter(|one| wanted(one)).cloned());
        }
        all
    }

    /// Takes a preallocated inode number for an asynchronous create, with the inline limit and the
    /// directory's attributes.
    fn number_for(
        &self,
        (leases, complete): (&Leases, &CompleteDirectories),
        (dir, name): (InodeId, &[u8]),
        who: Credentials,
    ) -> Option<Numbered> {
        let mut shard = self.shard(dir);
        let directory = shard.get_mut(&dir)?;
        let alone = directory.alone(leases, dir)?;
        let is_free = alone.free.remove(name) || complete.lacks(leases, dir, name).is_some();
        if !is_free || !alone.births.lets(who) {
            return None;
        }
        let numbered = alone.births.take_number(dir, alone.asked)?;
        let refill = numbered.are_few && !directory.is_asked_for;
        directory.is_asked_for |= refill;
        Some(Numbered { are_few: refill, ..numbered })
    }

    /// Whether the limits allow another asynchronous create.
    fn have_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < MAX_PROMISES && self.bytes.load(Ordering::Acquire) < MAX_BYTES
    }

    fn add(&self, promised: Arc<Promised>, inode: Arc<OpenInode>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let dir = promised.file.parent;
        let mut shard = self.shard(dir);
        shard.entry(dir).or_default().promised.insert(promised.file.ino, (promised, inode));
    }

    fn remove(&self, promised: &Promised) -> Option<Arc<OpenInode>> {
        let dir = promised.file.parent;
        let mut shard = self.shard(dir);
        let (_, inode) = shard.get_mut(&dir)?.promised.remove(&promised.file.ino)?;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(inode)
    }
}

/// Applies to `told` the attributes that a write changes, as the service reports them.
fn written(told: Attr, now: &Attr) -> Attr {
    Attr { size: now.size, blocks: now.blocks, mtime: now.mtime, ctime: now.ctime, ..told }
}

/// Whether a create with this mode and these open flags may be asynchronous.
fn may_be_promised(bits: u32, flags: u32) -> bool {
    let is_plain = bits & mode::PERMISSIONS & !0o777 == 0 && bits & mode::S_IFMT & !mode::S_IFREG == 0;
    is_plain && flags & O_ACCMODE != 0 && flags & (O_EXCL | O_DSYNC) == 0
}

impl Client {
    /// Creates a file asynchronously, if that is possible.
    pub(crate) fn promise(
        &self,
        credentials: Credentials,
        (parent, name): (InodeId, &[u8]),
        (bits, umask): (u32, u32),
        flags: u32,
    ) -> Option<(Known, Arc<Handle>)> {
        let may = may_be_promised(bits, flags) && name.len() <= MAX_NAME_BYTES;
        if self.promises.is_idle() || !may || !self.promises.have_room() || self.is_over() {
            return None;
        }
        let Numbered { ino, asked, lease, attr, inline_limit, .. } =
            self.number_for(credentials, parent, name)?;
        let name = Bytes::copy_from_slice(name);
        let attr = newborn(ino, &attr, credentials, bits & 0o777 & !umask);
        let file =
            PromisedFile { ino, parent, name, mode: bits, umask, made: attr.btime, content: Bytes::new() };
        self.complete.noting(&self.leases, parent, &file.name);
        let adding = self.ranges.adding(parent, &file.name);
        let promised = Arc::new(Promised {
            credentials,
            file,
            told: attr,
            inline_limit,
            since_ns: rt::monotonic_ns(),
            adding,
            state: Mutex::new(State::Held),
            settled: Event::new(),
        });
        let inode = self.inodes.acquire(ino);
        inode.content.lock().bare = true;
        inode.set_promise(Some(promised.clone()));
        self.promises.add(promised.clone(), inode.clone());
        // A recall marks the lease as closing before it searches for pending creates. If it has
        // found this one, the file is being sent and the create stands. Otherwise no other task
        // knows of it, and it is withdrawn.
        if self.leases.vouches(asked, lease) != Some(LeaseMode::Write) && promised.seal(Bytes::new()) {
            promised.settle(Ok(()));
            self.ranges.added(&promised.adding, &promised.outcome());
            self.promises.remove(&promised);
            inode.set_promise(None);
            self.inodes.release(ino);
            return None;
        }
        self.inodes.remember(&attr);
        self.note_flags(asked, &attr);
        let handle = Handle::new(self.inodes.acquire(ino), flags);
        self.sweep();
        let name_trusted = self.leases.may_be_kept(asked, parent);
        // No other session knows the file. If the service reports other attributes later, the
        // kernel's cache is invalidated then.
        Some((Known { attr, trusted: true, name_trusted }, handle))
    }

    /// Takes a preallocated inode number, under the directory delegation or a name-prefix
    /// delegation.
    fn number_for(&self, who: Credentials, dir: InodeId, name: &[u8]) -> Option<Numbered> {
        let known = (&self.leases, &self.complete);
        if let Some(numbered) = self.promises.number_for(known, (dir, name), who) {
            if numbered.are_few {
                self.ask_for_directory(who, dir, MANY_NUMBERS);
            }
            return Some(numbered);
        }
        let (numbered, prefix) = self.ranges.number_for(&self.leases, (dir, name), who)?;
        if numbered.are_few {
            self.ask_for_range(who, dir, prefix, MANY_NUMBERS);
        }
        Some(numbered)
    }

    /// Counts a synchronous create. A client that creates many files in one directory requests the
    /// directory delegation.
    pub(crate) fn note_made(&self, credentials: Credentials, parent: InodeId, (bits, flags): (u32, u32)) {
        let asked = self.leases.asking();
        let may =
            !self.leases.is_alone() && may_be_promised(bits, flags) && self.leases.may_be_kept(asked, parent);
        if may && self.promises.note_made(parent) {
            self.ask_for_directory(credentials, parent, FEW_NUMBERS);
        }
    }

    fn ask_for_directory(&self, credentials: Credentials, dir: InodeId, count: u32) {
        let Some(client) = self.myself.upgrade() else { return };
        rt::spawn(async move {
            let answer =
                client.ask_for(credentials, MetaOp::Reserve { dir, count, prefix: Bytes::new() }).await;
            // Stamped before the check that the lease is held, so the lease is held since this
            // time.
            let now = client.leases.asking();
            let granted = match answer {
                Ok(answer) => match answer.reply {
                    reply if client.leases.vouches(answer.asked, dir) == Some(LeaseMode::Write) => {
                        Births::of(&reply).map(|births| (now, births))
                    }
                    _ => None,
                },
                Err(error) => {
                    tracing::trace!(ino = %dir, %error, "others use a directory in which this client makes files");
                    None
                }
            };
            client.promises.asked(&client.leases, dir, granted);
        });
    }

    /// Writes into a pending file, and sends file and content to the service. Returns false without
    /// a write if the create must be sent first.
    ///
    /// # Errors
    /// Why the service has refused the file.
    pub(crate) async fn write_promised(&self, inode: &OpenInode, offset: u64, buf: &IoBuf) -> Result<bool> {
        let Some(promised) = inode.promise() else { return Ok(false) };
        let end = usize::try_from(offset).ok().and_then(|at| at.checked_add(buf.len()));
        let Some(end) = end.filter(|end| *end <= promised.inline_limit as usize) else { return Ok(false) };
        if self.promises.bytes.load(Ordering::Acquire) + end > MAX_BYTES {
            return Ok(false);
        }
        let mut content = vec![0; end];
        content[end - buf.len()..].copy_from_slice(buf.as_slice());
        if !promised.seal(content.into()) {
            return Ok(false);
        }
        self.promises.bytes.fetch_add(end, Ordering::AcqRel);
        self.send_sealed(&promised);
        promised.settled.wait().await;
        promised.outcome().map(|()| true)
    }

    /// Waits until the service has the file.
    ///
    /// # Errors
    /// Why it has refused the file.
    pub(crate) async fn keep_promise(&self, inode: &OpenInode) -> Result<()> {
        match inode.promise() {
            Some(promised) => self.deliver(&promised).await,
            None => Ok(()),
        }
    }

    async fn deliver(&self, promised: &Arc<Promised>) -> Result<()> {
        if promised.seal(Bytes::new()) {
            self.send_sealed(promised);
        }
        promised.settled.wait().await;
        promised.outcome()
    }

    async fn deliver_all(&self, promised: Vec<Arc<Promised>>) -> Result<()> {
        promised.iter().filter(|one| one.seal(Bytes::new())).for_each(|one| self.send_sealed(one));
        let mut outcome = Ok(());
        for one in promised {
            one.settled.wait().await;
            outcome = outcome.and(one.outcome());
        }
        outcome
    }

    /// Waits until all asynchronous creates in a directory are finished.
    pub(crate) async fn keep_promises_in(&self, dir: InodeId) {
        if !self.promises.is_idle() {
            let _told_who_closes = self.deliver_all(self.promises.all_in(dir)).await;
        }
    }

    /// Waits until all asynchronous creates of the session are finished.
    pub(crate) async fn keep_all_promises(&self) -> Result<()> {
        self.deliver_all(self.promises.all(|_| true)).await
    }

    /// Finishes the asynchronous creates that a request could miss, before the request is sent.
    pub(crate) async fn keep_promises_before(&self, op: &MetaOp) {
        let of_inode = |ino| self.inodes.open(ino).and_then(|inode| inode.promise());
        let concerned = self.promises.concerned(op, of_inode);
        if !concerned.is_empty() {
            let _told_who_closes = self.deliver_all(concerned).await;
        }
    }

    /// Seals the pending creates in the directories that `concerned` selects, and returns them for
    /// a service that must execute them before it serves other sessions. The client also sends each
    /// of them itself.
    pub(crate) fn sealed_promises(&self, concerned: impl Fn(InodeId) -> bool) -> Vec<Promise> {
        let promised = self.promises.all(|one| concerned(one.file.parent));
        promised.iter().filter(|one| one.seal(Bytes::new())).for_each(|one| self.send_sealed(one));
        let sealed = promised.iter().filter_map(|one| {
            let credentials = one.credentials;
            one.sealed().map(|file| Promise { credentials, file })
        });
        sealed.collect()
    }

    /// Starts the task that sends creates that have been pending for [`MAX_AGE`].
    fn sweep(&self) {
        let Some(client) = self.myself.upgrade() else { return };
        if self.promises.is_swept.swap(true, Ordering::AcqRel) {
            return;
        }
        rt::spawn(async move {
            loop {
                rt::sleep(MAX_AGE).await;
                let old = client.promises.all(|one| one.is_older_than(MAX_AGE));
                old.iter().filter(|one| one.seal(Bytes::new())).for_each(|one| client.send_sealed(one));
                if client.promises.count.load(Ordering::Acquire) > 0 {
                    continue;
                }
                client.promises.is_swept.store(false, Ordering::Release);
                // A create that was added meanwhile relied on this task.
                if client.promises.count.load(Ordering::Acquire) == 0
                    || client.promises.is_swept.swap(true, Ordering::AcqRel)
                {
                    return;
                }
            }
        });
    }

    /// Runs as a separate task: it continues if the waiting application is killed.
    fn send_sealed(&self, promised: &Arc<Promised>) {
        let Some(client) = self.myself.upgrade() else { return };
        let promised = promised.clone();
        rt::spawn(async move {
            let outcome = client.carry_out_promise(&promised).await;
            client.settle_promise(&promised, outcome).await;
        });
    }

    async fn carry_out_promise(&self, promised: &Promised) -> Result<()> {
        let Some(file) = promised.sealed() else { return Ok(()) };
        let (ino, parent, content) = (file.ino, file.parent, file.content.clone());
        let _made = self.making.begin(parent, |ino| self.inodes.let_go(ino));
        let losses = self.verifiers.losses();
        let answer = self.change(promised.credentials, MetaOp::Deliver { file: Box::new(file) }).await?;
        let fresh = Fresh::of(&answer.reply);
        let attr = entry(answer.reply)?;
        if attr.ino != ino {
            return Err(Error::new(Errno::EPROTO, format!("inode {} was made for inode {ino}", attr.ino)));
        }
        let Some(inode) = self.inodes.open(ino) else { return Ok(()) };
        let lease = self.leases.vouches(answer.asked, ino);
        {
            let mut known = inode.content.lock();
            known.unsynced_names.made(losses);
            if let (Some(fresh), Some(lease)) = (fresh, lease) {
                known.begin_with(&attr, fresh, lease, content.clone());
            }
        }
        // After a write, the kernel itself asks for the attributes that the write changes.
        let told = if content.is_empty() { promised.told } else { written(promised.told, &attr) };
        if told != attr || lease.is_none() {
            self.uncache(ino, Some(&inode), Pass::Once).await;
        }
        Ok(())
    }

    async fn settle_promise(&self, promised: &Promised, outcome: Result<()>) {
        let bytes = promised.sealed().map_or(0, |file| file.content.len());
        let failure = outcome.as_ref().err().cloned();
        self.ranges.added(&promised.adding, &outcome);
        promised.settle(outcome);
        self.promises.bytes.fetch_sub(bytes, Ordering::AcqRel);
        let Some(inode) = self.promises.remove(promised) else { return };
        match failure {
            // Applications that use the file get the error. All names of the directory are dropped
            // from the kernel's cache, so that they are looked up again.
            Some(error) => {
                let name = String::from_utf8_lossy(&promised.file.name).into_owned();
                tracing::error!(
                    ino = %promised.file.ino,
                    directory = %promised.file.parent,
                    name,
                    hint = "its program is told when it closes the file",
                    "a new file is lost that couldn't be delivered: {error}"
                );
                self.uncache(promised.file.parent, None, Pass::Once).await;
            }
            None => inode.set_promise(None),
        }
        self.end_use(&inode).await;
    }
}
