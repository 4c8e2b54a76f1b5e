//! Files that programs have before the metadata service has them.
//!
//! A kernel holds the lock of a directory until a file that is made in it is answered. Where that
//! takes a question to the service, programs that fill one directory wait for each other, and each
//! small file costs two commands: one makes it, one brings its content. A session that alone uses a
//! directory, which a `Write` lease on the directory says, needs no question. It knows that the
//! name is free and that its user may make it, it has a number for the file
//! ([`wire::MetaOp::Reserve`]), and nobody else can look. So it *promises*: the program gets its
//! file at once. The file goes to the service in one command ([`wire::MetaOp::Deliver`]) with what
//! is written first, if that fits beside the inode, or when it is closed, or before.
//!
//! # What a promise is worth
//!
//! - *Nobody sees less than there is.* Others who want to know names of the directory have its
//!   lease recalled, and every promise is delivered before the lease is given up. This session's
//!   own requests that could miss a promised file wait for its delivery ([`Promises::concerned`]).
//! - *Who has written to a file, or closed it, knows that the service has it*, or is told why not.
//!   What can be lost with this process is a file without content that is open.
//! - *A promise is no older than [`MAX_AGE`]* when it is sent, however long the file stays open.
//! - *A metadata service that is started anew, or another one that takes the directory over, makes
//!   what is promised before it lets others in*: registering tells it
//!   ([`Client::sealed_promises`]).
//! - *A session that the cluster ends loses what it has promised.* The program hears of it when it
//!   writes to the file or closes it. For that reason nothing is promised that must not exist yet
//!   (`O_EXCL`): programs take such a file for a lock.
//!
//! A promise is *held* as long as nothing is written, then *sealed*, sent with its content for
//! good, and at last *settled*.

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

/// The longest that a promise is held. After that the file outlives this process.
const MAX_AGE: Duration = Duration::from_millis(25);
/// Promises at a time: more than programs run at once, and few enough to be told to a service in
/// one message.
const MAX_PROMISES: usize = 256;
/// Their content together: half of what a message takes. Bytes.
const MAX_BYTES: usize = 512 * 1024;
/// Shards of the table; a power of two.
const SHARDS: usize = 16;
/// Directories that a shard knows something of. Beyond it those are forgotten in which nothing is
/// promised.
const MAX_DIRECTORIES: usize = 256;
/// Names of a directory that are known to be free. Beyond it all are forgotten: looking a name up
/// tells it anew.
const MAX_FREE: usize = 64;

/// Longer names are refused.
const MAX_NAME_BYTES: usize = 255;
/// `open(2)`: only for reading, where no close tells of a failure; not if the name exists; durable
/// at once.
const O_ACCMODE: u32 = 0o3;
const O_EXCL: u32 = 0o200;
const O_DSYNC: u32 = 0o10000;

/// A promised file.
pub(crate) struct Promised {
    credentials: Credentials,
    /// But for its content.
    file: PromisedFile,
    /// What its program was told of it.
    told: Attr,
    /// What may be inline.
    inline_limit: u32,
    /// When it was promised, on the monotonic clock.
    since_ns: u64,
    /// Its name may be there.
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
    /// This is its content from now on, which is sent; true if that is news.
    fn seal(&self, content: Bytes) -> bool {
        let mut state = self.state.lock();
        let is_held = matches!(*state, State::Held);
        if is_held {
            *state = State::Sealed(content);
        }
        is_held
    }

    /// The sealed file; nothing when it is settled.
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

/// What is known of a directory.
#[derive(Default)]
struct Directory {
    /// The session has it alone, if the lease of then is held.
    alone: Option<Alone>,
    promised: BTreeMap<InodeId, (Arc<Promised>, Arc<OpenInode>)>,
    /// Files that were made in it by asking the service.
    habit: Habit,
    /// The service is being asked for it.
    is_asked_for: bool,
    /// Not to be asked for before.
    rest: Rest,
}

impl Directory {
    /// What is known of it if it still is the session's alone.
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
    /// As if it had been asked for then: the lease was held.
    asked: Asked,
    /// Since when it is, on the monotonic clock.
    since_ns: u64,
    births: Births,
    /// Names of which the service has said that they are free.
    free: HashSet<Bytes>,
}

type Shard = HashMap<InodeId, Directory>;

/// All promises of a session.
#[derive(Default)]
pub(crate) struct Promises {
    shards: [Mutex<Shard>; SHARDS],
    /// The session has had a directory alone. Until then nothing is promised.
    is_used: AtomicBool,
    count: AtomicUsize,
    bytes: AtomicUsize,
    is_swept: AtomicBool,
}

impl Promises {
    fn shard(&self, dir: InodeId) -> MutexGuard<'_, Shard> {
        self.shards[dir.0 as usize % SHARDS].lock()
    }

    /// There have never been any, nor a directory for them.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_used.load(Ordering::Acquire)
    }

    /// Whether there are some in a directory.
    pub(crate) fn are_in(&self, dir: InodeId) -> bool {
        !self.is_idle() && self.shard(dir).get(&dir).is_some_and(|directory| !directory.promised.is_empty())
    }

    /// A file was made by asking the service; true when the directory is to be asked for.
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

    /// The service has been asked for a directory.
    fn asked(&self, leases: &Leases, dir: InodeId, granted: Option<(Asked, Births)>) {
        let mut shard = self.shard(dir);
        let directory = shard.entry(dir).or_default();
        directory.is_asked_for = false;
        // A store that has lost what wasn't synced may give the numbers of an earlier lease to
        // others.
        _ = directory.alone(leases, dir);
        let Some((asked, births)) = granted else {
            directory.alone = None;
            return directory.rest.begin();
        };
        self.begin_use();
        directory.alone = Some(match directory.alone.take() {
            // What was known under an earlier lease may be so no more.
            Some(before) => {
                Alone { asked, births: births.after(before.births), free: HashSet::default(), ..before }
            }
            None => Alone { asked, since_ns: rt::monotonic_ns(), births, free: HashSet::default() },
        });
    }

    /// Files may be promised from now on.
    pub(crate) fn begin_use(&self) {
        self.is_used.store(true, Ordering::Release);
    }

    /// The service says that a name is free, and the lease says that it stays so.
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

    /// A request is about to leave: what it adds isn't free any more, and whose nature it changes
    /// isn't known any more.
    pub(crate) fn sending(&self, op: &MetaOp) {
        if self.is_idle() {
            return;
        }
        if let Some((dir, name)) = added(op)
            && let Some(alone) = self.shard(dir).get_mut(&dir).and_then(|known| known.alone.as_mut())
        {
            alone.free.remove(name);
        }
        match op {
            MetaOp::Setattr { ino, .. }
            | MetaOp::SetXattr { ino, .. }
            | MetaOp::RemoveXattr { ino, .. }
            | MetaOp::SetPattern { dir: ino, .. } => {
                if let Some(directory) = self.shard(*ino).get_mut(ino) {
                    directory.alone = None;
                }
            }
            _ => {}
        }
    }

    /// What a request could miss, or do without.
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
            // Introducing a user may be a part of delivering.
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
            // A directory may be removed or replaced, of which only the name is known here.
            MetaOp::Rmdir { .. } | MetaOp::Rename { .. } | MetaOp::Sync => self.all(|_| true),
            op => {
                let Some(ino) = op.subject() else { return Vec::new() };
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

    /// A number for a file that may be promised, what may be inline in it, and the directory.
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

    /// Whether there may be more at the moment.
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

/// What a write changes of attributes, as the service says.
fn written(told: Attr, now: &Attr) -> Attr {
    Attr { size: now.size, blocks: now.blocks, mtime: now.mtime, ctime: now.ctime, ..told }
}

/// Whether a file that is made like this may be promised.
fn may_be_promised(bits: u32, flags: u32) -> bool {
    let is_plain = bits & mode::PERMISSIONS & !0o777 == 0 && bits & mode::S_IFMT & !mode::S_IFREG == 0;
    is_plain && flags & O_ACCMODE != 0 && flags & (O_EXCL | O_DSYNC) == 0
}

impl Client {
    /// Makes a file for a program without asking, if that is possible.
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
        // Who gives the lease up closes it before he looks for promises. One that he has found is
        // being delivered, and stands; of any other nobody has heard.
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
        // Nobody else knows it; what the service says otherwise is told when it has said so.
        Some((Known { attr, trusted: true, name_trusted }, handle))
    }

    /// A number for a file that may be promised, from what this session has to itself: the
    /// directory, or names like this one.
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

    /// A file was made by asking the service. Who makes many in one directory is to have it alone.
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
            // Before it is looked whether the lease is held: then it is held since.
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

    /// Writes into a file of which the service doesn't know yet, and has both brought there. False
    /// when nothing is written, and the file is delivered first.
    ///
    /// # Errors
    /// Why the service hasn't got it.
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

    /// The service has the file when this returns.
    ///
    /// # Errors
    /// Why it hasn't.
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

    /// All that was promised in a directory is there when this returns, or never will be.
    pub(crate) async fn keep_promises_in(&self, dir: InodeId) {
        if !self.promises.is_idle() {
            let _told_who_closes = self.deliver_all(self.promises.all_in(dir)).await;
        }
    }

    /// The same of everything.
    pub(crate) async fn keep_all_promises(&self) -> Result<()> {
        self.deliver_all(self.promises.all(|_| true)).await
    }

    /// Before a request leaves that could miss something promised.
    pub(crate) async fn keep_promises_before(&self, op: &MetaOp) {
        let of_inode = |ino| self.inodes.open(ino).and_then(|inode| inode.promise());
        let concerned = self.promises.concerned(op, of_inode);
        if !concerned.is_empty() {
            let _told_who_closes = self.deliver_all(concerned).await;
        }
    }

    /// What is promised in directories of which that is said, for a service that is to make it
    /// before it lets others in. It is sent by itself, too.
    pub(crate) fn sealed_promises(&self, concerned: impl Fn(InodeId) -> bool) -> Vec<Promise> {
        let promised = self.promises.all(|one| concerned(one.file.parent));
        promised.iter().filter(|one| one.seal(Bytes::new())).for_each(|one| self.send_sealed(one));
        let sealed = promised.iter().filter_map(|one| {
            let credentials = one.credentials;
            one.sealed().map(|file| Promise { credentials, file })
        });
        sealed.collect()
    }

    /// Has what is held for long sent.
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
                // One that came in between has found somebody who sweeps.
                if client.promises.count.load(Ordering::Acquire) == 0
                    || client.promises.is_swept.swap(true, Ordering::AcqRel)
                {
                    return;
                }
            }
        });
    }

    /// On a task of its own: a program that is killed while it waits doesn't end it.
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
        // A write makes the kernel ask for what it changes.
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
            // Whoever uses the file is told; its name goes with all others of the directory, which
            // are looked up again.
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
