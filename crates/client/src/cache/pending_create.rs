//! One asynchronous create: what the application has made of the file so far, and its way to the
//! metadata service.
//!
//! Until it is sealed, the client keeps what the application writes to the file and which
//! attributes it sets. All of that leaves in one command ([`super::commit_create`]).

use crate::session::lease_holder::{LocalFuture, PossibleName};
use bytes::Bytes;
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{Attr, Credentials, InodeId, Result, SetAttr, SetTime, Timestamp, mode};
use wire::PendingFile;

/// Maximum size of the content of all pending creates together, in bytes: half of what a message
/// can carry.
pub(super) const MAX_BYTES: usize = 512 * 1024;

/// Unit of `st_blocks`, in bytes.
const BLOCK_UNIT: u64 = 512;

/// An asynchronous create.
pub(crate) struct PendingCreate {
    pub(super) credentials: Credentials,
    /// The file as it was created: empty.
    pub(super) file: PendingFile,
    /// Maximum size of inline content, in bytes.
    inline_limit: u32,
    /// When it was created, on the monotonic clock.
    since_ns: u64,
    /// Marks its name as possibly present.
    pub(super) possible_name: PossibleName,
    state: Mutex<State>,
    /// The commit has stored the first write, too.
    has_first_write: AtomicBool,
    finished: Event,
    committer: Weak<dyn CommitCreate>,
    /// Size of the content of all asynchronous creates together, in bytes.
    all_bytes: Arc<AtomicUsize>,
}

/// Executes asynchronous creates.
pub(crate) trait CommitCreate: Send + Sync {
    /// Sends a sealed create to the service, and finishes it with the outcome.
    fn commit_create<'a>(&'a self, create: &'a PendingCreate) -> LocalFuture<'a, ()>;
}

enum State {
    Pending(Unsent),
    Sealed(Sealed),
    Finished(Result<()>),
}

/// What the application has made of the file.
struct Unsent {
    /// The attributes that the application sees.
    attr: Attr,
    content: Vec<u8>,
    written: Option<Timestamp>,
    set: SetAttr,
}

/// What the service gets.
#[derive(Clone)]
pub(super) struct Sealed {
    pub(super) file: PendingFile,
    /// The attributes that the application has seen.
    pub(super) attr: Attr,
    /// The first write to the file, if that is too large for inline content.
    pub(super) first_write: Option<FirstWrite>,
}

/// A write that waits for the commit, which stores it in chunks if it can.
#[derive(Clone)]
pub(crate) struct FirstWrite {
    pub(crate) buf: IoBuf,
    /// Bypasses every cache (`O_DIRECT`).
    pub(crate) direct: bool,
}

impl Unsent {
    fn write(&mut self, start: usize, data: &[u8]) {
        let end = start + data.len();
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[start..end].copy_from_slice(data);
        let now = rt::now();
        let size = self.content.len() as u64;
        let blocks = size.div_ceil(BLOCK_UNIT);
        self.attr = Attr { size, blocks, mtime: now, ctime: now, ..self.attr };
        self.written = Some(now);
        self.set.mtime = None;
    }

    fn set(&mut self, set: &SetAttr) {
        let now = rt::now();
        let resolve = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let (atime, mtime) = (set.atime.map(resolve), set.mtime.map(resolve));
        let was = self.attr;
        self.attr = Attr {
            mode: set.mode.map_or(was.mode, |bits| was.mode & mode::S_IFMT | bits),
            uid: set.uid.unwrap_or(was.uid),
            gid: set.gid.unwrap_or(was.gid),
            atime: atime.unwrap_or(was.atime),
            mtime: mtime.unwrap_or(was.mtime),
            ctime: now,
            ..was
        };
        self.set = SetAttr {
            mode: set.mode.or(self.set.mode),
            uid: set.uid.or(self.set.uid),
            gid: set.gid.or(self.set.gid),
            atime: atime.map(SetTime::At).or(self.set.atime),
            mtime: mtime.map(SetTime::At).or(self.set.mtime),
            ctime: Some(now),
            ..self.set
        };
    }

    fn seal(self, file: &PendingFile, first_write: Option<FirstWrite>) -> Sealed {
        let Unsent { attr, content, written, set } = self;
        // A write may have followed.
        let set = SetAttr { ctime: set.ctime.map(|_| attr.ctime), ..set };
        let file = PendingFile { content: content.into(), written, set, ..file.clone() };
        Sealed { file, attr, first_write }
    }
}

impl PendingCreate {
    pub(super) fn new(
        credentials: Credentials,
        (file, attr): (PendingFile, Attr),
        inline_limit: u32,
        possible_name: PossibleName,
        (committer, all_bytes): (Weak<dyn CommitCreate>, Arc<AtomicUsize>),
    ) -> Arc<PendingCreate> {
        let unsent = Unsent { attr, content: Vec::new(), written: None, set: SetAttr::default() };
        Arc::new(PendingCreate {
            credentials,
            file,
            inline_limit,
            since_ns: rt::monotonic_ns(),
            possible_name,
            state: Mutex::new(State::Pending(unsent)),
            has_first_write: AtomicBool::new(false),
            finished: Event::new(),
            committer,
            all_bytes,
        })
    }

    /// Writes into the pending file, at its end without an `offset`. Returns false without a write
    /// if the create must be sent first.
    pub(crate) fn write(&self, offset: Option<u64>, buf: &IoBuf) -> bool {
        let mut state = self.state.lock();
        let State::Pending(unsent) = &mut *state else { return false };
        let len = unsent.content.len();
        let start = offset.map_or(Some(len), |offset| usize::try_from(offset).ok());
        let end = start.and_then(|start| start.checked_add(buf.len()));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= self.inline_limit as usize)) else {
            return false;
        };
        let grown = end.saturating_sub(len);
        if self.all_bytes.fetch_add(grown, Ordering::AcqRel) + grown > MAX_BYTES {
            self.all_bytes.fetch_sub(grown, Ordering::AcqRel);
            return false;
        }
        unsent.write(start, buf.as_slice());
        true
    }

    /// Sets attributes of the pending file, and returns all of them; `None` if the service has to
    /// decide. Here its rules are certain: the user who has created the file sets ordinary
    /// permissions and times, and only root gives the file away.
    pub(crate) fn set(&self, who: Credentials, set: &SetAttr) -> Option<Attr> {
        let mut state = self.state.lock();
        let State::Pending(unsent) = &mut *state else { return None };
        let is_creator = (who.uid, who.gid) == (self.credentials.uid, self.credentials.gid);
        let is_plain = set.mode.is_none_or(|bits| bits & !0o777 == 0)
            && set.ctime.is_none()
            && set.flags.is_none()
            && set.project.is_none();
        let keeps_owner = set.uid.is_none_or(|uid| uid == unsent.attr.uid)
            && set.gid.is_none_or(|gid| gid == unsent.attr.gid);
        if !is_creator || !is_plain || !(who.uid == 0 || keeps_owner) {
            return None;
        }
        unsent.set(set);
        Some(unsent.attr)
    }

    /// The attributes of the pending file; `None` once it is being sent.
    pub(crate) fn attr(&self) -> Option<Attr> {
        match &*self.state.lock() {
            State::Pending(unsent) => Some(unsent.attr),
            State::Sealed(_) | State::Finished(_) => None,
        }
    }

    /// Waits until the service has the file.
    ///
    /// # Errors
    /// Why it has refused the file.
    pub(crate) async fn commit(self: &Arc<Self>) -> Result<()> {
        self.begin_commit();
        self.finished.wait().await;
        self.outcome()
    }

    /// Sends the file to the service, unless that has begun. Runs as a separate task: it continues
    /// if the waiting application is killed.
    pub(super) fn begin_commit(self: &Arc<Self>) {
        if self.seal() {
            self.send();
        }
    }

    fn send(self: &Arc<Self>) {
        let Some(committer) = self.committer.upgrade() else { return };
        let create = self.clone();
        rt::spawn(async move { committer.commit_create(&create).await });
    }

    /// Commits the file together with its first write, if that is too large for inline content; at
    /// the end of the file without an `offset`. Returns whether the write is executed.
    ///
    /// # Errors
    /// Why the service has refused the file.
    pub(crate) async fn commit_with(
        self: &Arc<Self>,
        offset: Option<u64>,
        first_write: FirstWrite,
    ) -> Result<bool> {
        let len = first_write.buf.len();
        let is_at_start = |unsent: &Unsent| unsent.content.is_empty() && offset.is_none_or(|at| at == 0);
        if len <= self.inline_limit as usize || !self.seal_with(is_at_start, Some(first_write)) {
            return Ok(false);
        }
        self.send();
        self.finished.wait().await;
        self.outcome()?;
        Ok(self.has_first_write.load(Ordering::Acquire))
    }

    /// Fixes what is to be sent. Returns false if it was fixed already.
    pub(super) fn seal(&self) -> bool {
        self.seal_with(|_| true, None)
    }

    fn seal_with(&self, permits: impl FnOnce(&Unsent) -> bool, first_write: Option<FirstWrite>) -> bool {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Finished(Ok(()))) {
            State::Pending(unsent) if permits(&unsent) => {
                *state = State::Sealed(unsent.seal(&self.file, first_write));
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Records that the commit has stored the first write.
    pub(super) fn note_first_write(&self) {
        self.has_first_write.store(true, Ordering::Release);
    }

    /// Returns the sealed file; `None` if it is pending or finished.
    pub(super) fn sealed(&self) -> Option<Sealed> {
        match &*self.state.lock() {
            State::Sealed(sealed) => Some(sealed.clone()),
            State::Pending(_) | State::Finished(_) => None,
        }
    }

    pub(super) fn finish(&self, outcome: Result<()>) {
        let bytes = self.sealed().map_or(0, |sealed| sealed.file.content.len());
        *self.state.lock() = State::Finished(outcome);
        self.all_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.finished.set();
    }

    pub(super) fn outcome(&self) -> Result<()> {
        match &*self.state.lock() {
            State::Finished(outcome) => outcome.clone(),
            State::Pending(_) | State::Sealed(_) => Ok(()),
        }
    }

    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        rt::monotonic_ns().saturating_sub(self.since_ns) >= age.as_nanos() as u64
    }

    pub(super) fn ino(&self) -> InodeId {
        self.file.ino
    }

    pub(super) fn name(&self) -> &Bytes {
        &self.file.name
    }
}

/// Waits until these creates are finished.
pub(super) async fn commit_all(creates: Vec<Arc<PendingCreate>>) -> Result<()> {
    creates.iter().for_each(PendingCreate::begin_commit);
    let mut outcome = Ok(());
    for one in creates {
        one.finished.wait().await;
        outcome = outcome.and(one.outcome());
    }
    outcome
}
