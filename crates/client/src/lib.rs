//! The client core: a mounted file system's semantics without its kernel protocol.
//!
//! A [`Client`] is one session. A mount uses a [`SessionFailover`], which starts a successor
//! session when the cluster has ended the current one. A client tracks the inodes that its user
//! refers to and the files that are open. It computes where each byte is stored and moves data
//! directly between the caller's buffer and the storage targets. It queries the metadata service
//! for names and attributes. FUSE is one front end; programming interfaces and gateways are others.
//!
//! [`Client`] is a facade. The work is done by parts that own their state, and that know only the
//! parts before them: the session (`session::Session`), requests for chunk files
//! (`file::chunk_files::ChunkFiles`), files in use (`file::Files`), names and delegations
//! (`cache::names::Names`, `cache::Delegations`), and attributes
//! (`metadata::attributes::Attributes`). The session informs the others of the ends of leases by an
//! interface (`session::lease_holder`), which `ended_leases` implements.
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
mod ended_leases;
mod file;
mod kernel;
mod metadata;
mod session;

pub use file::handle::{Caching, Handle, ReadOptions, WriteOptions};
pub use kernel::invalidation::{Invalidate, UserPrivileges};
pub use metadata::attributes::CachedAttr;
pub use metadata::operations::Found;
pub use metadata::readdir::Listing;
pub use metadata::statfs::StatFs;
pub use session::cancel::Cancel;
pub use session::failover::{EndedSession, File, SessionFailover, SessionHistory, StartSession};

use cache::Delegations;
use cache::names::Names;
use file::inode::InodeTable;
use file::{Files, FilesOptions};
use kernel::estale;
use kernel::invalidation::KernelCaches;
use metadata::attributes::Attributes;
use metadata::describe::Descriptions;
use metadata::squash::AccessChecks;
use metadata::statfs::Space;
use routing::StorageChannels;
use session::{Session, SessionOptions};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{Attr, Errno, Error, InodeId, MapHandle, Result, SessionId};
use wire::{FileInfo, MAX_RECLAIMED, MetaOp, MetaReply};

pub use routing::{MetaChannel, MetaChannels};

/// How long orphans are collected before they are reclaimed together.
const RECLAIM_DELAY: Duration = Duration::from_millis(5);

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
    /// Creates are synchronous: the service has a new file before the application gets it.
    pub wsync: bool,
    /// No other session exists, now or later: the client caches everything without leases.
    pub only_session: bool,
}

/// One session with a cluster, and what it uses. Shared by all cores.
pub struct Client {
    /// The session, which sends requests to metadata services.
    session: Arc<Session>,
    /// Inodes that the kernel refers to, and open files.
    inodes: Arc<InodeTable>,
    /// Reads and writes of the files in use.
    files: Arc<Files>,
    /// What the session knows of names.
    names: Arc<Names>,
    /// Delegations of directories and name prefixes, and creates under them.
    delegations: Arc<Delegations>,
    recent_estale: estale::RecentEstale,
    attributes: Attributes,
    access_checks: AccessChecks,
    descriptions: Descriptions,
    space: Space,
    /// The caches of the kernel that uses the session.
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
            let inodes = Arc::new(match only_session {
                true => InodeTable::for_only_session(),
                false => InodeTable::with_changes(names.changes.clone()),
            });
            let files = Files::new(FilesOptions {
                session: session.clone(),
                inodes: inodes.clone(),
                kernel: kernel.clone(),
                storage: options.storage,
                map: options.map.clone(),
                server_cache: options.server_cache,
                write_behind: options.write_behind && !only_session,
            });
            let parts = (session.clone(), inodes.clone());
            Client {
                files: files.clone(),
                delegations: Delegations::new(
                    parts,
                    names.clone(),
                    (myself.clone(), myself.clone()),
                    options.wsync || only_session,
                ),
                recent_estale: estale::RecentEstale::default(),
                attributes: Attributes {
                    session: session.clone(),
                    inodes: inodes.clone(),
                    names: names.clone(),
                    files: files.clone(),
                },
                access_checks: AccessChecks { session: session.clone(), map: options.map.clone() },
                descriptions: Descriptions {
                    session: session.clone(),
                    map: options.map.clone(),
                    inodes: inodes.clone(),
                    files,
                },
                space: Space::new(session.clone(), options.map),
                session,
                inodes,
                names,
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

    /// Runs the background tasks for as long as the session lives: handles recalls, and gives back
    /// unused leases and orphans.
    pub async fn background(self: Arc<Self>) {
        if !self.session.leases.is_only_session() {
            self.session.start_recalls();
            rt::spawn(self.clone().release_leases());
            rt::spawn(self.clone().watch_lease_expiry());
            self.files.start_flushes();
        }
        self.files.start_reports();
        loop {
            self.inodes.wait_for_reclaimable().await;
            // More follow when an application empties a directory.
            rt::sleep(RECLAIM_DELAY).await;
            if self.session.has_ended() {
                return;
            }
            self.reclaim(self.inodes.take_reclaimable()).await;
        }
    }

    /// Waits until all asynchronous creates and changes are executed. A thread that has begun some
    /// calls this before it ends, since their tasks end with it.
    ///
    /// # Errors
    /// Why the service has refused a file.
    pub async fn finish_asynchronous_changes(&self) -> Result<()> {
        let committed = self.names.async_creates.commit_all().await;
        self.names.changes.wait_for_all().await;
        committed
    }

    /// Ends the session cleanly: reports open files, reclaims orphans, and syncs all of it.
    pub async fn shutdown(&self) -> Result<()> {
        let outcome = self.finish_asynchronous_changes().await;
        let outcome = outcome.and(self.files.flush_all().await);
        let outcome = outcome.and(self.files.report_all(true).await);
        self.files.report_accesses_now().await;
        self.reclaim(self.inodes.take_reclaimable()).await;
        let outcome = outcome.and(self.session.sync_all_metadata().await);
        if self.session.leases.is_only_session() {
            return outcome;
        }
        outcome.and(self.session.shut_down().await)
    }

    async fn reclaim(&self, mut orphans: Vec<InodeId>) {
        orphans.sort_unstable_by_key(|ino| (ino.partition(), *ino));
        for of_partition in orphans.chunk_by(|a, b| a.partition() == b.partition()) {
            for batch in of_partition.chunks(MAX_RECLAIMED) {
                let Some((&ino, others)) = batch.split_first() else { continue };
                let reclaim = MetaOp::Reclaim { ino, others: others.to_vec() };
                if let Err(error) = self.files.change_as_client(reclaim).await {
                    let others = others.len();
                    tracing::warn!(%ino, others, %error, "orphans could not be reclaimed, and stay until the session ends");
                }
            }
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
