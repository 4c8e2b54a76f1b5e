//! The client core: a mounted file system's semantics without its kernel protocol.
//!
//! A [`Client`] is one session. A mount uses a [`SessionFailover`], which starts a successor
//! session when the cluster has ended the current one. A client tracks the inodes that its user
//! refers to and the files that are open. It computes where each byte is stored and moves data
//! directly between the caller's buffer and the storage targets. It queries the metadata service
//! for names and attributes. FUSE is one front end; programming interfaces and gateways are others.
//!
//! Invariants:
//! - The client buffers no data unless the mount enables write-behind (`file::write_behind`). When
//!   a write returns, the services have its bytes, so the death of this process loses none. Only a
//!   file that is open and empty may exist in this process alone, for some milliseconds
//!   (`cache::async_create`).
//! - While a file is open for writing, this client knows its size and mtime first. `BeginWrite`
//!   leaves a durable record, by which the metadata service recovers them if this session dies.
//! - Reads and writes of one file run concurrently. Truncate, fallocate and the conversion from
//!   inline data to chunks run exclusively.
//! - An orphan is reclaimed once no kernel reference and no open file of this session holds it. The
//!   service waits for other sessions.
//! - The client caches the service's answers only under a lease, until it has acknowledged the
//!   recall of that lease (see `session::leases`).

mod cache;
mod file;
mod kernel;
mod metadata;
mod session;

pub use file::handle::{Caching, Handle, ReadOptions, WriteOptions};
pub use kernel::invalidation::{Invalidate, UserPrivileges};
pub use metadata::names::{CachedAttr, Found};
pub use metadata::readdir::Listing;
pub use metadata::statfs::StatFs;
pub use session::cancel::Cancel;
pub use session::failover::{EndedSession, File, SessionFailover, SessionHistory, StartSession};

use cache::names::Names;
use file::inode::InodeTable;
use file::lease_epoch::{LeaseContext, MAX_RENEWALS};
use file::striping::ChunkLocation;
use file::{access, sync, write_behind};
use kernel::estale;
use kernel::invalidation::KernelCaches;
use metadata::statfs;
use net::{GroupDestination, StorageChannels};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use session::leases::{Answer, Leases};
use session::privileges::RequestUser;
use session::recall::Recalls;
use session::services::Services;
use session::timeout::RequestTimeout;
use session::{capabilities, held_locks, lease_expiry, locks, services, slots, verifiers};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{Attr, Credentials, Errno, Error, InodeId, MapHandle, Refusal, Result, SessionId, TargetId};
use wire::{FileInfo, MetaOp, MetaReply, SlotSequence, StorageOp, StorageReply, StorageRequest};

/// Time-out of the unmount notice to a metadata service that owns no partition.
const UNMOUNT_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

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
    pub only_session: bool,
}

/// One session with a cluster. Shared by all cores.
pub struct Client {
    session: SessionId,
    /// Session slots for changes of the name space.
    metadata_slots: slots::SlotTable,
    services: Services,
    /// Capabilities that this session presents to storage services.
    capabilities: capabilities::Capabilities,
    /// This client, for tasks that outlive a request.
    weak_self: Weak<Client>,
    /// Targets without replicas whose data this session may have changed.
    unreplicated: sync::UnreplicatedTargets,
    verifiers: verifiers::Verifiers,
    /// Session slots for writes to files that other sessions may also write.
    data_slots: slots::SlotTable,
    storage: StorageChannels,
    map: MapHandle,
    server_cache: bool,
    write_behind: Option<write_behind::WriteBehind>,
    request_timeout: RequestTimeout,
    inodes: Arc<InodeTable>,
    leases: Leases,
    names: Names,
    recent_estale: estale::RecentEstale,
    recalls: Recalls,
    held_locks: held_locks::HeldLocks,
    pending_releases: locks::PendingReleases,
    usage: statfs::CachedUsage,
    lease_expiry: lease_expiry::LeaseExpiry,
    kernel: KernelCaches,
    /// Why the session has ended.
    ended: Mutex<Option<Error>>,
    has_ended: AtomicBool,
    /// The cluster has ended the session, and neither the client nor the kernel caches anything of
    /// it.
    caches_dropped: Event,
    /// The session is being shut down: the service ends it at the client's own request.
    is_shutting_down: AtomicBool,
}

impl Client {
    /// Creates a client of the given services.
    pub fn new(options: ClientOptions) -> Arc<Client> {
        Arc::new_cyclic(|myself| Client {
            capabilities: capabilities::Capabilities::default(),
            weak_self: myself.clone(),
            session: options.session,
            metadata_slots: slots::SlotTable::default(),
            services: Services::new(options.meta),
            unreplicated: sync::UnreplicatedTargets::default(),
            verifiers: verifiers::Verifiers::default(),
            data_slots: slots::SlotTable::default(),
            storage: options.storage,
            map: options.map,
            server_cache: options.server_cache,
            write_behind: (options.write_behind && !options.only_session)
                .then(write_behind::WriteBehind::default),
            request_timeout: RequestTimeout::default(),
            inodes: Arc::new(if options.only_session {
                InodeTable::for_only_session()
            } else {
                InodeTable::default()
            }),
            leases: Leases::new(options.only_session),
            names: Names::default(),
            recent_estale: estale::RecentEstale::default(),
            recalls: Recalls::default(),
            held_locks: held_locks::HeldLocks::default(),
            pending_releases: locks::PendingReleases::default(),
            usage: statfs::CachedUsage::default(),
            lease_expiry: lease_expiry::LeaseExpiry::default(),
            kernel: KernelCaches::default(),
            ended: Mutex::new(None),
            has_ended: AtomicBool::new(false),
            caches_dropped: Event::new(),
            is_shutting_down: AtomicBool::new(false),
        })
    }

    /// Returns why the session has ended, if it has.
    fn end_cause(&self) -> Option<Error> {
        if self.has_ended.load(Ordering::Acquire) { self.ended.lock().clone() } else { None }
    }

    /// Marks the session as ended: every later request fails. Returns false if it was marked
    /// already.
    fn end(&self, cause: Error) -> bool {
        let error = Error::new(Errno::ESTALE, format!("this client's session has ended: {}", cause.message))
            .hint("repeat the operation: the mount starts another session as soon as the cluster permits");
        self.ended.lock().get_or_insert(error);
        let is_first = !self.has_ended.swap(true, Ordering::AcqRel);
        self.leases.wake();
        self.services.end();
        self.inodes.wake();
        is_first
    }

    /// Sends a request about an inode or a name, and records the leases that the answer grants.
    async fn send(
        &self,
        slot_sequence: Option<SlotSequence>,
        user: RequestUser,
        op: MetaOp,
    ) -> Result<Answer> {
        let ino = op.spec().home.unwrap_or(InodeId::ROOT);
        self.send_for(ino.partition(), slot_sequence, user, op).await
    }

    /// Whether this is the only session of the cluster, so that nothing changes without its
    /// knowledge. If it isn't, [`Client::background`] must run.
    pub fn is_only_session(&self) -> bool {
        self.leases.is_only_session()
    }

    /// Whether the service has ended the session, so that every request fails.
    pub fn has_ended(&self) -> bool {
        self.end_cause().is_some()
    }

    /// Sends a read-only request.
    async fn query(&self, op: MetaOp) -> Result<Answer> {
        self.send(None, RequestUser::default(), op).await
    }

    /// Sends a read-only request on behalf of a user.
    async fn query_as(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        self.send(None, credentials.into(), op).await
    }

    /// Sends a change on behalf of a user.
    async fn change_as(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        let slot = self.metadata_slots.next();
        let answer = self.change_in_slot(slot.slot_sequence, credentials, op).await;
        slot.complete(&answer);
        answer
    }

    /// Sends a change on behalf of the client itself.
    async fn change_as_client(&self, op: MetaOp) -> Result<MetaReply> {
        let _unsynced_change = self.note_change(&op);
        self.change_as(Credentials::default(), op).await.map(|answer| answer.reply)
    }

    /// Sends a request for a chunk file. `under` names the file and the lease.
    async fn send_storage(
        &self,
        under: LeaseContext,
        (location, name): (ChunkLocation, InodeId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        self.send_to_storage(under, location, self.storage_request(location, name, op), payload).await
    }

    /// Like `send_storage`, for a write that other sessions may read and overwrite as soon as it is
    /// done. The storage service must not execute it twice.
    async fn send_storage_once(
        &self,
        under: LeaseContext,
        (location, name): (ChunkLocation, InodeId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let slot = self.data_slots.next();
        let slot_sequence = Some(slot.slot_sequence);
        let request = StorageRequest { slot_sequence, ..self.storage_request(location, name, op) };
        let answer = self.send_to_storage(under, location, request, payload).await;
        slot.complete(&answer);
        answer
    }

    /// Builds a request. One to a group gets its target when it is sent.
    fn storage_request(&self, location: ChunkLocation, name: InodeId, op: StorageOp) -> StorageRequest {
        let target = if let ChunkLocation::Target(target) = location { target } else { TargetId(0) };
        StorageRequest::new(self.session, target, name, op)
    }

    async fn send_to_storage(
        &self,
        under: LeaseContext,
        location: ChunkLocation,
        mut request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let (mut expired_retries, mut renewals) = (capabilities::ExpiredRetries::default(), 0);
        (request.epoch, request.length_bound) = (under.epoch, under.known_len);
        loop {
            if let Some(error) = self.end_cause() {
                return Err(error);
            }
            request.capability = self.capability(request.ino, &request.op).await?;
            let sent_ns = rt::monotonic_ns();
            let answer = match location {
                ChunkLocation::Target(_) => self.storage.call(request.clone(), payload.clone()).await,
                ChunkLocation::Group(group) => {
                    let to = GroupDestination { map: &self.map, group, time_out: self.request_timeout.get() };
                    // Boxed, so that the futures of requests to single targets don't contain its
                    // state.
                    Box::pin(self.storage.call_group(to, request.clone(), payload.clone())).await
                }
            };
            match answer {
                Err(error) if self.drop_if_stale(request.ino, &error) => {
                    if !expired_retries.may_repeat(sent_ns).await {
                        return Err(error);
                    }
                }
                Err(error) if error.errno == Refusal::RevokedLeaseEpoch => {
                    renewals += 1;
                    if renewals > MAX_RENEWALS {
                        return Err(access::ended_lease(under.ino));
                    }
                    // If a change with this slot and sequence id was executed, the retransmission
                    // gets the first answer.
                    request.epoch = Box::pin(self.renew_epoch(under, request.epoch)).await?;
                }
                Err(error) if error.errno == Errno::ESTALE => {
                    self.handle_fencing(&error);
                    return Err(error);
                }
                Ok(StorageReply::Done { verifier }) => {
                    self.verifiers.record(location, verifier, !request.op.spec().is_sync());
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
    fn handle_fencing(&self, error: &Error) {
        if self.is_shutting_down.load(Ordering::Acquire) || self.has_ended() {
            return;
        }
        if let (Some(client), true) = (self.weak_self.upgrade(), self.end(error.clone())) {
            rt::spawn(async move { client.drop_everything().await });
        }
    }

    /// Reports every open file, and returns the first failure after it has tried all. Files are
    /// reported concurrently, so that an unreachable service costs one time-out instead of one for
    /// each file.
    pub(crate) async fn report_all(&self, done: bool) -> Result<()> {
        let mut outcome = Ok(());
        for batch in self.inodes.open_inodes().chunks(REPORTS_AT_ONCE) {
            let reports = batch.iter().map(|inode| async move {
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
        if !self.leases.is_only_session() {
            rt::spawn(self.clone().handle_services());
            rt::spawn(self.clone().report_slow_recalls());
            rt::spawn(self.clone().release_leases());
            rt::spawn(self.clone().watch_lease_expiry());
            if self.write_behind.is_some() {
                rt::spawn(self.clone().flush_aged());
            }
        }
        rt::spawn(self.clone().report_closed());
        rt::spawn(self.clone().report_accesses());
        loop {
            self.inodes.wait_for_reclaimable().await;
            if self.has_ended() {
                return;
            }
            for ino in self.inodes.take_reclaimable() {
                self.reclaim(ino).await;
            }
        }
    }

    /// Ends the session cleanly: reports open files, reclaims orphans, and syncs all of it.
    pub async fn shutdown(&self) -> Result<()> {
        let outcome = self.commit_all_creates().await;
        let outcome = outcome.and(self.flush_all().await);
        let outcome = outcome.and(self.report_all(true).await);
        self.report_accesses_now().await;
        for ino in self.inodes.take_reclaimable() {
            self.reclaim(ino).await;
        }
        let outcome = outcome.and(self.sync_all_metadata().await);
        if self.leases.is_only_session() {
            return outcome;
        }
        self.is_shutting_down.store(true, Ordering::Release);
        let ended = self.send_unmount_notices().await;
        self.end(Error::new(Errno::ESTALE, "the client was shut down"));
        self.caches_dropped.set();
        outcome.and(ended)
    }

    /// Ends the session at every service. When one service has ended it, the others may have
    /// learned of that already.
    async fn send_unmount_notices(&self) -> Result<()> {
        let mut outcome = Ok(());
        let owners = self.services.channels.owners();
        let owns_partition =
            |service: &Arc<services::Service>| owners.iter().any(|(_, node)| *node == service.node);
        let registered = self.services.all().into_iter().filter(|service| service.is_registered());
        let (needed, spare): (Vec<_>, Vec<_>) = registered.partition(owns_partition);
        // Services without partitions may be down for good. If they are up, the other services
        // inform them.
        let notices = spare.iter().map(|service| async move {
            rt::timeout(UNMOUNT_NOTICE_TIMEOUT, self.query_service(service, MetaOp::EndSession))
                .await
                .map(drop)
        });
        rt::join_all(notices.collect()).await;
        for (index, service) in needed.into_iter().enumerate() {
            match self.query_service(&service, MetaOp::EndSession).await {
                Err(error)
                    if (index > 0 || !spare.is_empty())
                        && matches!(error.errno, Errno::ESTALE | Errno::ENOTCONN) => {}
                ended => outcome = outcome.and(ended.map(drop)),
            }
        }
        outcome
    }

    async fn reclaim(&self, ino: InodeId) {
        if let Err(error) = self.change_as_client(MetaOp::Reclaim { ino }).await {
            tracing::warn!(%ino, %error, "an orphan could not be reclaimed, and stays until the session ends");
        }
    }
}

/// A reply of a kind that doesn't belong to its request.
fn unexpected(reply: MetaReply) -> Error {
    Error::new(Errno::EPROTO, format!("unexpected reply type from the metadata service: {reply:?}"))
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
