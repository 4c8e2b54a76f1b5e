//! The client core: a mounted file system's semantics without its kernel protocol.
//!
//! A [`Client`] is one session. A mount uses a [`Succession`], which starts a successor session
//! when the cluster has ended the current one. A client tracks the inodes that its user refers to
//! and the files that are open. It computes where each byte is stored and moves data directly
//! between the caller's buffer and the storage targets. It queries the metadata service for names
//! and attributes. FUSE is one front end; programming interfaces and gateways are others.
//!
//! Invariants:
//! - The client buffers no data unless the mount enables write-behind (`behind`). When a write
//!   returns, the services have its bytes, so the death of this process loses none. Only a file
//!   that is open and empty may exist in this process alone, for some milliseconds (`promise`).
//! - While a file is open for writing, this client knows its size and mtime first. `BeginWrite`
//!   leaves a durable record, by which the metadata service recovers them if this session dies.
//! - Reads and writes of one file run concurrently. Truncate, fallocate and the conversion from
//!   inline data to chunks run exclusively.
//! - An orphan is reclaimed once no kernel reference and no open file of this session holds it. The
//!   service waits for other sessions.
//! - The client caches the service's answers only under a lease, until it has acknowledged the
//!   recall of that lease (see `lease`).

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

/// Time-out of the unmount notice to a metadata service that owns no partition.
const SPARE_PATIENCE: Duration = Duration::from_secs(2);

/// Files whose size and times are reported concurrently: a fraction of the requests that one
/// connection carries at a time.
const REPORTS_AT_ONCE: usize = 64;

pub use net::{MetaChannel, MetaChannels};

/// The cluster that a client uses, and the options of its mount.
pub struct ClientOptions {
    /// The session of this client.
    pub session: SessionId,
    /// Channels to the metadata services.
    pub meta: MetaChannels,
    /// Channels to all targets.
    pub storage: StorageChannels,
    /// The cluster map, kept current by management.
    pub map: MapHandle,
    /// Small transfers use the storage servers' page cache even if the application opened the file
    /// with `O_DIRECT`. `O_DIRECT` then only bypasses caches of the client. Off: `O_DIRECT` reaches
    /// the device.
    pub server_cache: bool,
    /// Write-behind: the client delays small sequential writes by at most a second and sends them
    /// together. Needs [`Client::background`] to run.
    pub write_behind: bool,
    /// No other session exists, now or later: the client caches everything without leases.
    pub alone: bool,
}

/// One session with a cluster. Shared by all cores.
pub struct Client {
    session: SessionId,
    /// Session slots for changes of the name space.
    changes: numbers::Numbers,
    services: Services,
    /// Capabilities that this session presents to storage services.
    capabilities: capabilities::Capabilities,
    /// This client, for tasks that outlive a request.
    myself: Weak<Client>,
    /// Targets without replicas whose data this session may have changed.
    singles: sync::Singles,
    verifiers: verifiers::Verifiers,
    /// Session slots for writes to files that other sessions may also write.
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
    /// The cluster has ended the session, and neither the client nor the kernel caches anything of
    /// it.
    forgotten: Event,
    /// The session is being shut down: the service ends it at the client's own request.
    leaves: AtomicBool,
}

impl Client {
    /// Creates a client of the given services.
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

    /// Returns why the session has ended, if it has.
    fn over(&self) -> Option<Error> {
        if self.has_ended.load(Ordering::Acquire) { self.ended.lock().clone() } else { None }
    }

    /// Marks the session as ended: every later request fails. Returns false if it was marked
    /// already.
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

    /// Sends a request about an inode or a name, and records the leases that the answer grants.
    async fn send(&self, number: Option<Number>, user: User, op: MetaOp) -> Result<Answer> {
        let about = op.spec().home.unwrap_or(InodeId::ROOT);
        self.send_for(about.partition(), number, user, op).await
    }

    /// Whether this is the only session of the cluster, so that nothing changes without its
    /// knowledge. If it isn't, [`Client::background`] must run.
    pub fn is_alone(&self) -> bool {
        self.leases.is_alone()
    }

    /// Whether the service has ended the session, so that every request fails.
    pub fn is_over(&self) -> bool {
        self.over().is_some()
    }

    /// Sends a read-only request.
    async fn ask(&self, op: MetaOp) -> Result<Answer> {
        self.send(None, User::default(), op).await
    }

    /// Sends a read-only request on behalf of a user.
    async fn ask_for(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        self.send(None, credentials.into(), op).await
    }

    /// Sends a change on behalf of a user.
    async fn change(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        let numbered = self.changes.next();
        let answer = self.change_numbered(numbered.number, credentials, op).await;
        numbered.ended(&answer);
        answer
    }

    /// Sends a change on behalf of the client itself.
    async fn report(&self, op: MetaOp) -> Result<MetaReply> {
        let _noted = self.note_change(&op);
        self.change(Credentials::default(), op).await.map(|answer| answer.reply)
    }

    /// Sends a request for a chunk file. `under` names the file and the lease.
    async fn store(
        &self,
        under: Under,
        (keeper, name): (Keeper, InodeId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        self.send_to_storage(under, keeper, self.storage_request(keeper, name, op), payload).await
    }

    /// Like `store`, for a write that other sessions may read and overwrite as soon as it is done.
    /// The storage service must not execute it twice.
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

    /// Builds a request. One to a group gets its target when it is sent.
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
                    // Boxed, so that the futures of requests to single targets don't contain its
                    // state.
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
                    // If a change with this slot and sequence id was executed, the retransmission
                    // gets the first answer.
                    request.epoch = Box::pin(self.renew_epoch(under, request.epoch)).await?;
                }
                Err(error) if error.errno == Errno::ESTALE => {
                    self.is_fenced(&error);
                    return Err(error);
                }
                Ok(StorageReply::Done { verifier }) => {
                    self.verifiers.heard(keeper, verifier, !request.op.spec().is_sync());
                    return Ok(StorageReply::Done { verifier });
                }
                answer => return answer,
            }
        }
    }

    /// Handles a target's refusal of the session. A metadata service has ended the session, and may
    /// have died before it could report that to others. This client can no longer report what it
    /// has written, and size recovery must run before another session gets the leases. So the
    /// client gives no lease back, and the services end the session when its leases expire.
    fn is_fenced(&self, error: &Error) {
        if self.leaves.load(Ordering::Acquire) || self.is_over() {
            return;
        }
        if let (Some(myself), true) = (self.myself.upgrade(), self.end(error.clone())) {
            rt::spawn(async move { myself.forget_everything().await });
        }
    }

    /// Reports every open file, and returns the first failure after it has tried all. Files are
    /// reported concurrently, so that an unreachable service costs one time-out instead of one for
    /// each file.
    pub(crate) async fn report_all(&self, done: bool) -> Result<()> {
        let mut outcome = Ok(());
        for some in self.inodes.open_inodes().chunks(REPORTS_AT_ONCE) {
            let reports = some.iter().map(|inode| async move {
                let reported = self.report_progress(inode, done).await;
                // A file that was closed, deleted and reclaimed meanwhile needs no report.
                if self.inodes.open(inode.ino).is_some() { reported } else { Ok(()) }
            });
            outcome = rt::join_all(reports.collect()).await.into_iter().fold(outcome, Result::and);
        }
        outcome
    }

    /// Runs the background tasks for as long as the session lives: handles recalls, and gives back
    /// unused leases and orphans.
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

    /// Ends the session cleanly: reports open files, reclaims orphans, and syncs all of it.
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

    /// Ends the session at every service. When one service has ended it, the others may have
    /// learned of that already.
    async fn take_leave(&self) -> Result<()> {
        let mut outcome = Ok(());
        let owners = self.services.ways.owners();
        let executes =
            |service: &Arc<services::Service>| owners.iter().any(|(_, node)| *node == service.node);
        let registered = self.services.all().into_iter().filter(|service| service.is_registered());
        let (needed, spare): (Vec<_>, Vec<_>) = registered.partition(executes);
        // Services without partitions may be down for good. If they are up, the other services
        // inform them.
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
