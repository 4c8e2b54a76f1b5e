//! The client core: a mounted file system's semantics without its kernel protocol.
//!
//! A [`Client`] is one session; a [`Succession`] is what a mount uses, which begins another session
//! when the cluster has ended one. A client knows which inodes its user refers to, holds what is
//! open, computes where a byte lives and moves data straight between the caller's buffer and the
//! storage targets; names and attributes it asks of the metadata service. FUSE is one face of it,
//! programming interfaces and gateways are others.
//!
//! Invariants:
//! - Nothing is buffered here unless the mount asks for it (`behind`): when a write returns, its
//!   bytes are with the services, so the death of the process loses none. A new file may be known
//!   here only as long as it is open and empty, for some milliseconds (`promise`).
//! - While a file is open for writing its size and mtime are known here first. The durable note
//!   made by `BeginWrite` lets the metadata service find them again if this session dies.
//! - Reads and writes of one file run side by side; what changes its shape (truncate, fallocate,
//!   the move from inline to chunks) runs alone.
//! - An orphan is reclaimed once no kernel reference and no open file of this session holds it; the
//!   service waits for other sessions.
//! - What is kept of the service's answers is kept under a lease, until its recall has been
//!   answered (see `lease`).

mod access;
mod accessed;
mod anonymous;
mod aside;
mod behind;
mod births;
mod cancel;
mod capabilities;
mod closing;
mod complete;
mod data;
mod describe;
mod dir;
mod directories;
mod doubt;
mod epoch;
mod file;
mod fill;
mod flags;
mod follow;
mod habit;
mod held;
mod inode;
mod introduction;
mod landing;
mod last_size;
mod lease;
mod lock;
mod making;
mod missed;
mod names;
mod numbers;
mod pages;
mod patience;
mod promise;
mod ranges;
mod recall;
mod reserve;
mod services;
mod shape;
mod silence;
mod succession;
mod sync;
mod usage;
mod verifiers;
mod xattr;

pub use cancel::Cancel;
pub use dir::Listing;
pub use file::{Caching, Handle, ReadHow, WriteHow};
pub use names::{Found, Known};
pub use recall::{Invalidate, Standing};
pub use succession::{Begin, File, Lineage, Replaced, Succession};
pub use usage::StatFs;

use complete::CompleteDirectories;
use data::Keeper;
use directories::Directories;
use epoch::{MAX_RENEWALS, Under};
use inode::InodeTable;
use introduction::User;
use lease::{Answer, Leases};
use net::{StorageChannels, ToGroup};
use parking_lot::Mutex;
use patience::Patience;
use recall::{Recalls, within};
use rt::IoBuf;
use rt::sync::Event;
use services::Services;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{Attr, Credentials, Errno, Error, InodeId, MapHandle, Result, SessionId, TargetId};
use wire::{FileInfo, MetaOp, MetaReply, Number, StorageOp, StorageReply, StorageRequest};

/// How long a service that executes no partition has to say goodbye.
const SPARE_PATIENCE: Duration = Duration::from_secs(2);

/// Files whose size and times are reported side by side: a fraction of what a connection carries at
/// a time.
const REPORTS_AT_ONCE: usize = 64;

pub use net::{MetaChannel, MetaChannels};

/// What a client needs to know of its cluster.
pub struct ClientOptions {
    /// The session that this client is.
    pub session: SessionId,
    /// The ways to the metadata services.
    pub meta: MetaChannels,
    /// The ways to all targets.
    pub storage: StorageChannels,
    /// The cluster map, kept current by management.
    pub map: MapHandle,
    /// Small transfers use the storage servers' page cache even if the program asked for
    /// `O_DIRECT`, which then means that no cache on the client's side is used. Off: `O_DIRECT`
    /// reaches the device.
    pub server_cache: bool,
    /// Small writes that follow each other may be kept for a moment, at most a second, and sent
    /// together. Needs the background work to run.
    pub write_behind: bool,
    /// There is no other session, now or later: everything is cached without asking for leases.
    pub alone: bool,
}

/// One session with a cluster. Shared by all cores.
pub struct Client {
    session: SessionId,
    /// Changes of the namespace.
    changes: numbers::Numbers,
    services: Services,
    /// What storage services are shown.
    capabilities: capabilities::Capabilities,
    /// Itself, for work beside a request.
    myself: Weak<Client>,
    /// Targets whose own data it may have changed.
    singles: sync::Singles,
    verifiers: verifiers::Verifiers,
    /// Writes beside other sessions.
    numbers: numbers::Numbers,
    storage: StorageChannels,
    map: MapHandle,
    server_cache: bool,
    behind: Option<behind::WriteBehind>,
    patience: Patience,
    inodes: Arc<InodeTable>,
    leases: Leases,
    directories: Directories,
    complete: CompleteDirectories,
    making: making::Making,
    promises: promise::Promises,
    ranges: ranges::Ranges,
    missed: missed::Missed,
    recalls: Recalls,
    held_locks: held::HeldLocks,
    undos: lock::Undos,
    usage: usage::KnownUsage,
    silence: silence::Silence,
    face: Mutex<Option<Weak<dyn Invalidate>>>,
    /// Why the session has ended.
    ended: Mutex<Option<Error>>,
    has_ended: AtomicBool,
    /// The cluster has ended it, and nothing of it is left here or in the kernel.
    forgotten: Event,
    /// It is being shut down: that the service ends it is what was asked for.
    leaves: AtomicBool,
}

impl Client {
    /// A client of the given services.
    pub fn new(options: ClientOptions) -> Arc<Client> {
        Arc::new_cyclic(|myself| Client {
            capabilities: capabilities::Capabilities::default(),
            myself: myself.clone(),
            session: options.session,
            changes: numbers::Numbers::default(),
            services: Services::new(options.meta),
            singles: sync::Singles::default(),
            verifiers: verifiers::Verifiers::default(),
            numbers: numbers::Numbers::default(),
            storage: options.storage,
            map: options.map,
            server_cache: options.server_cache,
            behind: (options.write_behind && !options.alone).then(behind::WriteBehind::default),
            patience: Patience::default(),
            inodes: Arc::new(if options.alone { InodeTable::alone() } else { InodeTable::default() }),
            leases: Leases::new(options.alone),
            directories: Directories::default(),
            complete: CompleteDirectories::default(),
            making: making::Making::default(),
            promises: promise::Promises::default(),
            ranges: ranges::Ranges::default(),
            missed: missed::Missed::default(),
            recalls: Recalls::default(),
            held_locks: held::HeldLocks::default(),
            undos: lock::Undos::default(),
            usage: usage::KnownUsage::default(),
            silence: silence::Silence::default(),
            face: Mutex::new(None),
            ended: Mutex::new(None),
            has_ended: AtomicBool::new(false),
            forgotten: Event::new(),
            leaves: AtomicBool::new(false),
        })
    }

    /// Why the session has ended, if it has.
    fn over(&self) -> Option<Error> {
        if self.has_ended.load(Ordering::Acquire) { self.ended.lock().clone() } else { None }
    }

    /// The session has ended: every later request fails. False if that was known.
    fn end(&self, cause: Error) -> bool {
        let error = Error::new(Errno::ESTALE, format!("this client's session has ended: {}", cause.message))
            .hint("repeat the operation: a mount gets another session as soon as the cluster lets it");
        self.ended.lock().get_or_insert(error);
        let is_first = !self.has_ended.swap(true, Ordering::AcqRel);
        self.leases.wake();
        self.services.end();
        self.inodes.wake();
        is_first
    }

    /// Sends a request about an inode or a name, and takes the leases that come with the answer.
    async fn send(&self, number: Option<Number>, user: User, op: MetaOp) -> Result<Answer> {
        let about = op.subject().unwrap_or(InodeId::ROOT);
        self.send_for(about.partition(), number, user, op).await
    }

    /// Whether this is the only session there is: nothing changes behind its back. One that isn't
    /// alone needs its background work to run.
    pub fn is_alone(&self) -> bool {
        self.leases.is_alone()
    }

    /// Whether the service has ended the session: nothing works any more.
    pub fn is_over(&self) -> bool {
        self.over().is_some()
    }

    /// Asks something that changes nothing.
    async fn ask(&self, op: MetaOp) -> Result<Answer> {
        self.send(None, User::default(), op).await
    }

    /// Asks something for a user that changes nothing.
    async fn ask_for(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        self.send(None, credentials.into(), op).await
    }

    /// Asks for a change.
    async fn change(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        let numbered = self.changes.next();
        let answer = self.change_numbered(numbered.number, credentials, op).await;
        numbered.ended(&answer);
        answer
    }

    /// Asks for a change on the client's own account.
    async fn report(&self, op: MetaOp) -> Result<MetaReply> {
        let _noted = self.note_change(&op);
        self.change(Credentials::default(), op).await.map(|answer| answer.reply)
    }

    /// Sends a request for a chunk file; what it is about, and under which lease, is the first.
    async fn store(
        &self,
        under: Under,
        (keeper, name): (Keeper, InodeId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        self.send_to_storage(under, keeper, self.storage_request(keeper, name, op), payload).await
    }

    /// The same for a write that others may see and overwrite as soon as it is done: it must not be
    /// done twice.
    async fn store_once(
        &self,
        under: Under,
        (keeper, name): (Keeper, InodeId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let numbered = self.numbers.next();
        let number = Some(numbered.number);
        let request = StorageRequest { number, ..self.storage_request(keeper, name, op) };
        let answer = self.send_to_storage(under, keeper, request, payload).await;
        numbered.ended(&answer);
        answer
    }

    /// To a group, the request is addressed when it is sent.
    fn storage_request(&self, keeper: Keeper, name: InodeId, op: StorageOp) -> StorageRequest {
        let target = if let Keeper::Target(target) = keeper { target } else { TargetId(0) };
        StorageRequest::new(self.session, target, name, op)
    }

    async fn send_to_storage(
        &self,
        under: Under,
        keeper: Keeper,
        mut request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let (mut stale, mut renewals) = (capabilities::Stale::default(), 0);
        (request.epoch, request.known) = (under.epoch, under.known);
        loop {
            if let Some(error) = self.over() {
                return Err(error);
            }
            request.capability = self.capability(request.ino, &request.op).await?;
            let sent_ns = rt::monotonic_ns();
            let answer = match keeper {
                Keeper::Target(_) => self.storage.call(request.clone(), payload.clone()).await,
                Keeper::Mirror(group) => {
                    let to = ToGroup { map: &self.map, group, patience: self.patience.get() };
                    // Apart, so that requests to single targets don't carry its state along.
                    Box::pin(self.storage.call_group(to, request.clone(), payload.clone())).await
                }
            };
            match answer {
                Err(error) if self.is_stale_capability(request.ino, &error) => {
                    if !stale.may_repeat(sent_ns).await {
                        return Err(error);
                    }
                }
                Err(error) if error.errno == Errno::EKEYREVOKED => {
                    renewals += 1;
                    if renewals > MAX_RENEWALS {
                        return Err(access::ended_lease(under.ino));
                    }
                    // A numbered change that has been made is answered so when it is sent again.
                    request.epoch = Box::pin(self.renew_epoch(under, request.epoch)).await?;
                }
                Err(error) if error.errno == Errno::ESTALE => {
                    self.is_fenced(&error);
                    return Err(error);
                }
                Ok(StorageReply::Done { verifier }) => {
                    let is_sync = matches!(request.op, StorageOp::Sync | StorageOp::SyncTarget);
                    self.verifiers.heard(keeper, verifier, !is_sync);
                    return Ok(StorageReply::Done { verifier });
                }
                answer => return answer,
            }
        }
    }

    /// A target refuses the session: a metadata service has ended it, and may have died before it
    /// could say so to anybody else. What was written can't be reported any more, and must be
    /// settled before the leases are somebody else's: so none is given up, and the services end the
    /// session for its silence.
    fn is_fenced(&self, error: &Error) {
        if self.leaves.load(Ordering::Acquire) || self.is_over() {
            return;
        }
        if let (Some(myself), true) = (self.myself.upgrade(), self.end(error.clone())) {
            rt::spawn(async move { myself.forget_everything().await });
        }
    }

    /// Reports every open file; the first failure is told after all were tried. Side by side, so
    /// that a service that is gone is waited for once and not once for each file.
    pub(crate) async fn report_all(&self, done: bool) -> Result<()> {
        let mut outcome = Ok(());
        for some in self.inodes.open_inodes().chunks(REPORTS_AT_ONCE) {
            let reports = some.iter().map(|inode| async move {
                let reported = self.report_progress(inode, done).await;
                // A file that was closed, deleted and reclaimed meanwhile has nothing to report any
                // more.
                if self.inodes.open(inode.ino).is_some() { reported } else { Ok(()) }
            });
            outcome = rt::join_all(reports.collect()).await.into_iter().fold(outcome, Result::and);
        }
        outcome
    }

    /// Hears of recalls, and gives back what is of no use any more: orphans and leases. Runs as
    /// long as the session.
    pub async fn background(self: Arc<Self>) {
        if !self.leases.is_alone() {
            rt::spawn(self.clone().attend_services());
            rt::spawn(self.clone().account_for_recalls());
            rt::spawn(self.clone().release_leases());
            rt::spawn(self.clone().watch_silence());
            if self.behind.is_some() {
                rt::spawn(self.clone().write_back_in_time());
            }
        }
        rt::spawn(self.clone().report_closed());
        rt::spawn(self.clone().report_accesses());
        loop {
            self.inodes.wait_for_abandoned().await;
            if self.is_over() {
                return;
            }
            for ino in self.inodes.take_abandoned() {
                self.reclaim(ino).await;
            }
        }
    }

    /// Ends the session in good order: reports what is open, reclaims what is abandoned, makes all
    /// of it durable.
    pub async fn shutdown(&self) -> Result<()> {
        let outcome = self.keep_all_promises().await;
        let outcome = outcome.and(self.write_all_back().await);
        let outcome = outcome.and(self.report_all(true).await);
        self.report_accesses_now().await;
        for ino in self.inodes.take_abandoned() {
            self.reclaim(ino).await;
        }
        let outcome = outcome.and(self.sync_all_names().await);
        if self.leases.is_alone() {
            return outcome;
        }
        self.leaves.store(true, Ordering::Release);
        let ended = self.take_leave().await;
        self.end(Error::new(Errno::ESTALE, "it was shut down"));
        self.forgotten.set();
        outcome.and(ended)
    }

    /// Ends the session at every service. When one has ended it, the others may know already.
    async fn take_leave(&self) -> Result<()> {
        let mut outcome = Ok(());
        let owners = self.services.ways.owners();
        let executes =
            |service: &Arc<services::Service>| owners.iter().any(|(_, node)| *node == service.node);
        let registered = self.services.all().into_iter().filter(|service| service.is_registered());
        let (needed, spare): (Vec<_>, Vec<_>) = registered.partition(executes);
        // Those that execute nothing may be down for good, and hear of it from the others if they
        // aren't.
        let farewells = spare.iter().map(|service| async move {
            within(SPARE_PATIENCE, pin!(self.ask_at(service, MetaOp::EndSession))).await.map(drop)
        });
        rt::join_all(farewells.collect()).await;
        for (index, service) in needed.into_iter().enumerate() {
            match self.ask_at(&service, MetaOp::EndSession).await {
                Err(error)
                    if (index > 0 || !spare.is_empty())
                        && matches!(error.errno, Errno::ESTALE | Errno::ENOTCONN) => {}
                ended => outcome = outcome.and(ended.map(drop)),
            }
        }
        outcome
    }

    async fn reclaim(&self, ino: InodeId) {
        if let Err(error) = self.report(MetaOp::Reclaim { ino }).await {
            tracing::warn!(%ino, %error, "an orphan stays until the session ends");
        }
    }
}

/// Requests by which a session finds out that it isn't known, and becomes so.
fn registers(op: &MetaOp) -> bool {
    matches!(
        op,
        MetaOp::Register { .. }
            | MetaOp::Follow { .. }
            | MetaOp::ReclaimLocks { .. }
            | MetaOp::ReclaimOpens { .. }
            | MetaOp::ReclaimSizes { .. }
            | MetaOp::NextRecalls { .. }
            | MetaOp::EndSession
    )
}

/// The inode whose service checks who may do this.
fn subject(op: &MetaOp) -> InodeId {
    match *op {
        MetaOp::Create { parent, .. }
        | MetaOp::Mkdir { parent, .. }
        | MetaOp::Symlink { parent, .. }
        | MetaOp::Tmpfile { parent, .. }
        | MetaOp::Link { parent, .. }
        | MetaOp::Unlink { parent, .. }
        | MetaOp::Rmdir { parent, .. }
        | MetaOp::Rename { parent, .. } => parent,
        MetaOp::Deliver { ref file } => file.parent,
        MetaOp::Reserve { dir, .. } => dir,
        MetaOp::Setattr { ino, .. } | MetaOp::SetXattr { ino, .. } | MetaOp::RemoveXattr { ino, .. } => ino,
        MetaOp::SetPattern { dir: ino, .. } | MetaOp::Migrate { ino, .. } => ino,
        _ => InodeId::ROOT,
    }
}

/// A reply of a kind that doesn't belong to its request.
fn unexpected(reply: MetaReply) -> Error {
    Error::new(Errno::EPROTO, format!("the metadata service answered out of turn: {reply:?}"))
}

fn entry(reply: MetaReply) -> Result<Attr> {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Created { attr, .. } | MetaReply::Attr(attr) => Ok(attr),
        other => Err(unexpected(other)),
    }
}

fn file_info(reply: MetaReply) -> Result<FileInfo> {
    match reply {
        MetaReply::File(info) => Ok(info),
        other => Err(unexpected(other)),
    }
}
