//! A mount from start to end.

use crate::abi::{self, InHeader, InitIn, OutHeader, bytes_of};
use crate::caller_privileges;
use crate::caller_syscalls::CallerSyscalls;
use crate::dispatch::OpenFile;
use crate::handles::Handles;
use crate::init::{Handshake, HandshakeOptions, NegotiatedFeatures, negotiate};
use crate::locks::{Interrupts, LockOwners};
use crate::mount::{Mount, MountParams, errno};
use crate::notify::{self, Notifier};
use crate::request::OneWay;
use crate::stats::Stats;
use crate::sys;
use crate::transport::{self, DEFAULT_DEPTH, Transport};
use client::{Client, Invalidate, SessionFailover, UserPrivileges};
use parking_lot::{Condvar, Mutex};
use rt::LogRateLimit;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use types::{ByteRange, Credentials, Errno, Error, InodeId, Result};

/// Time that an unmount waits for users of a busy mount and for running requests before it aborts
/// the connection.
const UNMOUNT_GRACE: Duration = Duration::from_secs(10);
/// Time that it waits after that. Threads that haven't ended by then are stuck outside of this
/// crate and are left behind.
const ABORT_GRACE: Duration = Duration::from_secs(5);
/// Interval in which at most one failed request is logged.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which the kernel invalidates unless a page is being read or written. A request that
/// waits longer mustn't keep other requests from being received.
const PROMPT_INVALIDATION: Duration = Duration::from_millis(20);
/// Buffer for INIT, in bytes: the kernel refuses smaller reads of the device.
const INIT_BUFFER: usize = 64 * 1024;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// An empty directory.
    pub mountpoint: PathBuf,
    /// What is mounted, as `mount` and `df` show it.
    pub source: String,
    /// How requests arrive from the kernel.
    pub transport: Transport,
    /// Mounts read-only.
    pub read_only: bool,
    /// Lets users other than the one that mounts use the mount; the kernel checks permissions
    /// either way.
    pub allow_other: bool,
    /// Allows idmapped mounts (`mount_setattr(2)`); then only the kernel checks permissions.
    pub idmap: bool,
    /// Requests in flight per processor; limited to what 512 MiB of buffers hold, and at least 4.
    pub depth: usize,
}

impl MountOptions {
    /// Returns the defaults for a mount at `mountpoint`.
    pub fn at(mountpoint: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            mountpoint: mountpoint.into(),
            source: "weft".to_string(),
            transport: Transport::Auto,
            read_only: false,
            allow_other: true,
            idmap: false,
            depth: DEFAULT_DEPTH,
        }
    }
}

/// A mounted file system. Unmounts when dropped.
pub struct Session {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The connection has ended, and the mount is removed from the tree.
    finished: AtomicBool,
}

/// State that all threads of a mount share.
pub(crate) struct Shared {
    pub(crate) client: Arc<SessionFailover>,
    pub(crate) mount: Mount,
    pub(crate) features: NegotiatedFeatures,
    pub(crate) handles: Handles<OpenFile>,
    pub(crate) interrupts: Interrupts,
    pub(crate) lock_owners: LockOwners,
    pub(crate) caller_syscalls: CallerSyscalls,
    pub(crate) stats: Stats,
    /// Limits log lines for requests that fail for reasons outside the application.
    pub(crate) failure_log_limit: LogRateLimit,
    /// There are other clients.
    pub(crate) is_shared: bool,
    notifier: Notifier,
    /// Cores that still serve.
    cores: AtomicUsize,
    /// Threads that still serve.
    live: Mutex<usize>,
    changed: Condvar,
    /// Why the connection ended, if not by unmounting.
    fault: Mutex<Option<Error>>,
}

impl Session {
    /// Mounts `client`'s file system. Returns when the mount is usable.
    pub fn mount(client: Arc<Client>, options: MountOptions) -> Result<Session> {
        Session::mount_with_failover(SessionFailover::single(client), options)
    }

    /// Like [`Session::mount`], for a client that may get successor sessions.
    pub fn mount_with_failover(client: Arc<SessionFailover>, options: MountOptions) -> Result<Session> {
        let wants_uring = options.transport != Transport::Dev && transport::has_ring_for_commands();
        if wants_uring {
            transport::enable_uring();
        }
        let params = MountParams {
            source: options.source,
            read_only: options.read_only,
            allow_other: options.allow_other,
        };
        let mount = Mount::new(&options.mountpoint, &params)?;
        // Other clients use the same file system: caches of the kernel are invalidated when they
        // change it.
        let is_shared = !client.current().is_only_session();
        let requested = HandshakeOptions { uring: wants_uring, is_shared, idmap: options.idmap };
        let features = match handshake(&mount, requested) {
            Ok(features) if options.transport == Transport::Uring && !features.uses_uring() => {
                Err(transport::uring_missing())
            }
            other => other,
        };
        let features = features.inspect_err(|_| discard_mount(&mount))?;
        let shared = Arc::new(Shared {
            client,
            mount,
            features,
            handles: Handles::default(),
            interrupts: Interrupts::default(),
            lock_owners: LockOwners::default(),
            caller_syscalls: CallerSyscalls::default(),
            stats: Stats::new(transport::cores(features.uses_uring())),
            failure_log_limit: LogRateLimit::one_per(FAILURE_LOG_INTERVAL),
            is_shared,
            notifier: Notifier::default(),
            cores: AtomicUsize::new(0),
            live: Mutex::new(0),
            changed: Condvar::new(),
            fault: Mutex::new(None),
        });
        let invalidator: Arc<dyn Invalidate> = shared.clone();
        shared.client.current().set_invalidator(Arc::downgrade(&invalidator));
        let threads = start_threads(&shared, options.depth).map_err(|e| {
            discard_mount(&shared.mount);
            Error::new(errno(&e), format!("starting the threads of the mount: {e}"))
        })?;
        shared.mount.set_read_ahead();
        Ok(Session { shared, threads: Mutex::new(threads), finished: AtomicBool::new(false) })
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        self.shared.mount.mountpoint()
    }

    /// Returns the transport in use: never `Auto`.
    pub fn transport(&self) -> Transport {
        if self.shared.features.uses_uring() { Transport::Uring } else { Transport::Dev }
    }

    /// Returns the counters of requests.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Waits until the mount ends, whichever process unmounts it. Returns an error if the mount
    /// ended by itself.
    pub fn wait(&self) -> Result<()> {
        let mut live = self.shared.live.lock();
        while *live > 0 {
            self.shared.changed.wait(&mut live);
        }
        drop(live);
        self.finish()
    }

    /// Returns the number of its connection with the kernel, for
    /// [`abort_connection`](crate::abort_connection); `None` if the mount was never found in the
    /// mount table.
    pub fn connection(&self) -> Option<u32> {
        self.shared.mount.connection()
    }

    /// Unmounts. The mount disappears at once; processes that still use it get a few seconds, then
    /// errors.
    pub fn unmount(&self) -> Result<()> {
        if self.shared.wait_for_end(Duration::ZERO) {
            return self.finish();
        }
        self.shared.mount.unmount().map_err(|e| {
            let path = self.mountpoint().display();
            Error::new(errno(&e), format!("unmounting {path}: {e}")).hint(format!("umount -l {path}"))
        })?;
        if !self.shared.wait_for_end(UNMOUNT_GRACE) {
            tracing::warn!(mountpoint = %self.mountpoint().display(), "still in use; aborting the connection");
            self.shared.mount.abort();
            if !self.shared.wait_for_end(ABORT_GRACE) {
                let path = self.mountpoint().display();
                return Err(Error::new(
                    Errno::ETIMEDOUT,
                    format!("requests of the mount at {path} do not end"),
                ));
            }
        }
        self.finish()
    }

    /// Joins the threads, which have ended.
    fn finish(&self) -> Result<()> {
        // Once, right at the end: later another mount may be at the same path with the same number.
        if !self.finished.swap(true, Ordering::AcqRel) {
            self.shared.mount.remove_dead_mount();
        }
        for thread in self.threads.lock().drain(..) {
            // A panic was reported when it happened and is recorded as the session's fault already.
            let _ = thread.join();
        }
        self.shared.fault.lock().clone().map_or(Ok(()), Err)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "unmounting failed");
        }
    }
}

impl Shared {
    /// Counts a thread until it leaves.
    pub(crate) fn register_thread(self: &Arc<Self>) -> ThreadGuard {
        *self.live.lock() += 1;
        ThreadGuard { shared: self.clone(), ended_normally: false }
    }

    /// Records that entries of a directory are about to be read. Returns true if the kernel may
    /// cache them as long as they are trusted.
    pub(crate) fn note_entries_read(&self, dir: InodeId) -> bool {
        if self.is_shared {
            self.notifier.note_cached_entries(dir);
        }
        !self.is_shared || self.features.supports_dentry_epochs()
    }

    /// Sets how many cores will serve.
    pub(crate) fn expect_cores(&self, count: usize) {
        self.cores.store(count, Ordering::Release);
    }

    /// Records that a core's workers have ended; returns true for the last core.
    pub(crate) fn core_ended(&self) -> bool {
        self.cores.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Handles a request without a reply.
    pub(crate) fn handle_one_way(&self, opcode: u32, request: OneWay) {
        self.stats.count(0, opcode);
        match request {
            OneWay::Forget(items) => items.iter().for_each(|&(ino, count)| self.client.forget(ino, count)),
            OneWay::Interrupt(unique) => self.interrupts.interrupt(unique),
        }
    }

    /// Ends the mount, since it can't be served any more.
    pub(crate) fn abort_with(&self, error: Error) {
        tracing::error!(mountpoint = %self.mount.mountpoint().display(), %error, "the mount ends");
        self.fault.lock().get_or_insert(error);
        self.mount.abort();
    }

    fn wait_for_end(&self, time_out: Duration) -> bool {
        let mut live = self.live.lock();
        self.changed.wait_while_for(&mut live, |live| *live > 0, time_out);
        *live == 0
    }
}

impl Invalidate for Shared {
    fn drop_cached(&self, ino: InodeId, except: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        let done = self.notifier.invalidate(ino, except);
        Box::pin(async move {
            if rt::timeout(PROMPT_INVALIDATION, done.wait()).await.is_none() {
                let _blocked = transport::announce_kernel_wait(self);
                done.wait().await;
            }
        })
    }

    fn locks_lost(&self) {
        self.lock_owners.clear();
    }

    fn updates_atime(&self) -> bool {
        self.mount.updates_atime()
    }

    fn has_mapped_ids(&self) -> bool {
        self.features.allows_idmap()
    }

    fn privileges(&self, credentials: Credentials) -> Option<UserPrivileges> {
        caller_privileges::of_caller(credentials)
    }
}

/// Counts a serving thread.
pub(crate) struct ThreadGuard {
    shared: Arc<Shared>,
    ended_normally: bool,
}

impl ThreadGuard {
    /// Marks the regular end of the thread.
    pub(crate) fn finish_normally(mut self) {
        self.ended_normally = true;
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if !self.ended_normally {
            // Without this thread some requests would wait forever.
            self.shared
                .abort_with(Error::new(Errno::EIO, "a thread of the mount panicked or could not start"));
        }
        let mut live = self.shared.live.lock();
        *live -= 1;
        if *live == 0 {
            self.shared.notifier.end();
            self.shared.interrupts.end();
            self.shared.changed.notify_all();
        }
    }
}

fn start_threads(shared: &Arc<Shared>, depth: usize) -> io::Result<Vec<JoinHandle<()>>> {
    // Counted while the others start, so that the notifier doesn't end with the first of them.
    let starting = shared.register_thread();
    let mut threads = transport::start(shared, depth)?;
    for number in 0..=notify::THREADS {
        let (device, notified) = (sys::duplicate(shared.mount.device())?, shared.clone());
        let notifier = std::thread::Builder::new().name(format!("fuse-notify-{number}"));
        let work = if number < notify::THREADS { Notifier::run } else { Notifier::run_supervisor };
        threads.push(notifier.spawn(move || work(&notified.notifier, &device))?);
    }
    starting.finish_normally();
    Ok(threads)
}

/// Removes a mount that no thread serves.
fn discard_mount(mount: &Mount) {
    mount.abort();
    mount.remove_dead_mount();
}

/// Answers INIT.
fn handshake(mount: &Mount, requested: HandshakeOptions) -> Result<NegotiatedFeatures> {
    let mut buf = vec![0; INIT_BUFFER];
    loop {
        let len = match sys::read(mount.device(), &mut buf) {
            Ok(len) => len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(handshake_error(&e)),
        };
        let header: InHeader = abi::read(&buf[..len])
            .filter(|h: &InHeader| h.opcode == abi::Opcode::Init as u32)
            .ok_or_else(|| Error::new(Errno::EPROTO, "the kernel's first request is not INIT"))?;
        // Kernels before 7.36 send a shorter struct; the missing fields read as zeros.
        buf[len..].fill(0);
        let init: InitIn =
            abi::read(&buf[size_of::<InHeader>()..]).expect("the buffer is longer than header and struct");
        let answer = negotiate(&init, requested)?;
        let body = match &answer {
            Handshake::RetryVersion(body) | Handshake::Done(_, body) => bytes_of(body),
        };
        let total = (size_of::<OutHeader>() + body.len()) as u32;
        let mut reply = bytes_of(&OutHeader { len: total, error: 0, unique: header.unique }).to_vec();
        reply.extend_from_slice(body);
        sys::write(mount.device(), &reply).map_err(|e| handshake_error(&e))?;
        if let Handshake::Done(features, _) = answer {
            tracing::info!(minor = features.minor, flags = format_args!("{:#x}", features.flags),
                uring = features.uses_uring(), mountpoint = %mount.mountpoint().display(), "mounted");
            return Ok(features);
        }
    }
}

fn handshake_error(e: &io::Error) -> Error {
    Error::new(errno(e), format!("the handshake with the kernel: {e}"))
}
