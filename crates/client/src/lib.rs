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
use routing::{GroupDestination, StorageChannels};
use rt::IoBuf;
use session::{Session, SessionOptions, capabilities, slots};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{
    Attr, ChunkFileId, Credentials, Errno, Error, InodeId, MapHandle, Refusal, Result, SessionId, TargetId,
};
use wire::{FileInfo, MetaOp, MetaReply, StorageOp, StorageReply, StorageRequest};

/// Files whose size and times are reported concurrently: a fraction of the requests that one
/// connection carries at a time.
const REPORTS_AT_ONCE: usize = 64;

pub use routing::{MetaChannel, MetaChannels};

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

/// One session with a cluster, and what it uses. Shared by all cores.
pub struct Client {
    /// The session, which sends requests to metadata services.
    session: Arc<Session>,
    /// This client, for tasks that outlive a request.
    weak_self: Weak<Client>,
    /// Targets without replicas whose data this session may have changed.
    unreplicated: sync::UnreplicatedTargets,
    /// Session slots for writes to files that other sessions may also write.
    data_slots: slots::SlotTable,
    storage: StorageChannels,
    map: MapHandle,
    server_cache: bool,
    write_behind: Option<write_behind::WriteBehind>,
    inodes: Arc<InodeTable>,
    names: Arc<Names>,
    recent_estale: estale::RecentEstale,
    usage: statfs::CachedUsage,
    kernel: Arc<KernelCaches>,
}

impl Client {
    /// Creates a client of the given services.
    pub fn new(options: ClientOptions) -> Arc<Client> {
        let only_session = options.only_session;
        Arc::new_cyclic(|myself: &Weak<Client>| {
            let (names, kernel) = (Arc::new(Names::default()), Arc::new(KernelCaches::default()));
            let session = Session::new(SessionOptions {
                id: options.session,
                channels: options.meta,
                only_session,
                holder: myself.clone(),
                observer: names.clone(),
                kernel: kernel.clone(),
            });
            Client {
                session,
                weak_self: myself.clone(),
                unreplicated: sync::UnreplicatedTargets::default(),
                data_slots: slots::SlotTable::default(),
                storage: options.storage,
                map: options.map,
                server_cache: options.server_cache,
                write_behind: (options.write_behind && !only_session)
                    .then(write_behind::WriteBehind::default),
                inodes: Arc::new(if only_session {
                    InodeTable::for_only_session()
                } else {
                    InodeTable::default()
                }),
                names,
                recent_estale: estale::RecentEstale::default(),
                usage: statfs::CachedUsage::default(),
                kernel,
            }
        })
    }

    /// Registers the session with the cluster. Before that it gets no leases. Background tasks
    /// register it with services that aren't needed to find the root directory.
    pub async fn register(&self) -> Result<()> {
        self.session.register().await
    }

    /// Sets the time-out of a request, which is also that of the calls to services.
    pub fn set_request_timeout(&self, time_out: Duration) {
        self.session.request_timeout.set(time_out);
    }

    /// Whether this is the only session of the cluster, so that nothing changes without its
    /// knowledge. If it isn't, [`Client::background`] must run.
    pub fn is_only_session(&self) -> bool {
        self.session.leases.is_only_session()
    }

    /// Whether the service has ended the session, so that every request fails.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// Sends a change on behalf of the client itself.
    async fn change_as_client(&self, op: MetaOp) -> Result<MetaReply> {
        let _unsynced_change = self.note_change(&op);
        self.session.change_as(Credentials::default(), op).await.map(|answer| answer.reply)
    }

    /// Sends a request for a chunk file. `under` names the file and the lease.
    async fn send_storage(
        &self,
        under: LeaseContext,
        (location, name): (ChunkLocation, ChunkFileId),
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
        (location, name): (ChunkLocation, ChunkFileId),
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
    fn storage_request(&self, location: ChunkLocation, name: ChunkFileId, op: StorageOp) -> StorageRequest {
        let target = if let ChunkLocation::Target(target) = location { target } else { TargetId(0) };
        StorageRequest::new(self.session.id, target, name, op)
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
            if let Some(error) = self.session.end_cause() {
                return Err(error);
            }
            request.capability = self.session.capability(request.ino, &request.op).await?;
            let sent_ns = rt::monotonic_ns();
            let answer = match location {
                ChunkLocation::Target(_) => self.storage.call(request.clone(), payload.clone()).await,
                ChunkLocation::Group(group) => {
                    let to = GroupDestination {
                        map: &self.map,
                        group,
                        time_out: self.session.request_timeout.get(),
                    };
                    // Boxed, so that the futures of requests to single targets don't contain its
                    // state.
                    Box::pin(self.storage.call_group(to, request.clone(), payload.clone())).await
                }
            };
            match answer {
                Err(error) if self.session.capabilities.drop_if_stale(request.ino, &error) => {
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
                    self.session.handle_fencing(&error);
                    return Err(error);
                }
                Ok(StorageReply::Done { verifier }) => {
                    self.session.verifiers.record(location, verifier, !request.op.spec().is_sync());
                    return Ok(StorageReply::Done { verifier });
                }
                answer => return answer,
            }
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
        if !self.session.leases.is_only_session() {
            self.session.start_recalls();
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
            if self.session.has_ended() {
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
        if self.session.leases.is_only_session() {
            return outcome;
        }
        outcome.and(self.session.shut_down().await)
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
