//! Session failover: the consecutive sessions of a mount.
//!
//! The cluster ends a session that it hasn't heard from for too long, or at the request of an
//! administrator. The mount continues with another one:
//!
//! 1. The old session's requests fail, and its leases have ended. The kernel drops everything that
//!    it cached under it. That includes dirty pages of mappings: the kernel sends them through
//!    files of the old session, which refuse them.
//! 2. The mount starts a successor session, with its own id, capabilities, slots, leases and locks.
//!    The handover consists of the kernel's references to inodes, which are numbers: working
//!    directories remain valid.
//! 3. Requests about inodes and names go to the successor. Requests that waited or were in flight
//!    are repeated if they surely had no effect. A change that was sent and not answered has an
//!    uncertain outcome, and fails with `EIO`.
//!
//! Open files stay with the old session, and each operation on them fails with `EIO` until they are
//! closed: their locks are lost, and other sessions may have written them. Linux returns `EIO` to
//! applications in this case: NFS version 4 when the server has revoked an open file's state,
//! CephFS on files with locks of a blocklisted session, Lustre for requests in flight at an
//! eviction. `ESTALE` would mean that the file is gone, and makes the kernel look paths up again.

mod file;
mod operations;

pub use file::File;

use crate::Client;
use crate::session::services::is_refusal;
use parking_lot::{Mutex, RwLock};
use rt::sync::Event;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{Errno, Error, InodeId, Result, SessionId, Timestamp};

/// First pause before the mount tries again to start a session; it doubles up to `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// Longest such pause: a client that is admitted again doesn't wait for long, and thousands of
/// refused clients cause no load.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Minimum time that a request waits for a session, if there has been none for longer than the
/// time-out of a request: the cluster may just be back.
const MIN_WAIT: Duration = Duration::from_secs(2);

/// Starts a session: returns a client that is registered.
pub type StartSession = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Arc<Client>>>>> + Send + Sync>;

/// The current session of a mount, which is replaced by a successor when the cluster ends it.
pub struct SessionFailover {
    /// The only session, if it has no successors.
    only: Option<Arc<Client>>,
    current: RwLock<Arc<Client>>,
    start_session: Option<StartSession>,
    state: Mutex<State>,
    /// Set when a successor exists, or when starting one has failed.
    changed: Event,
    closing: AtomicBool,
    closed: Event,
    /// There are open files of sessions that have ended.
    has_ended_with_files: AtomicBool,
}

#[derive(Default)]
struct State {
    replacements: u64,
    last: Option<EndedSession>,
    /// Ended sessions with open files.
    ended_with_files: Vec<Weak<Client>>,
    /// Since when there is no session, on the monotonic clock.
    missing_since_ns: Option<u64>,
    /// Why the last attempt to start one failed.
    failure: Option<Error>,
}

/// A session that the cluster has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedSession {
    /// Its id.
    pub session: SessionId,
    /// When its successor started.
    pub at: Timestamp,
    /// Why it was ended.
    pub cause: String,
    /// Number of files that were open then.
    pub files: u64,
}

/// The current session of a mount and its failovers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionHistory {
    /// The current session, or the last one that was ended.
    pub session: SessionId,
    /// Why there is no session at the moment, if so.
    pub missing: Option<String>,
    /// Number of failovers.
    pub replacements: u64,
    /// The last failover.
    pub last: Option<EndedSession>,
    /// Number of files of ended sessions that applications have yet to close.
    pub files_of_ended_sessions: u64,
}

impl SessionFailover {
    /// Creates one without failover, for a single session.
    pub fn single(client: Arc<Client>) -> Arc<SessionFailover> {
        Arc::new(SessionFailover { only: Some(client.clone()), ..SessionFailover::with(client, None) })
    }

    /// Creates one that starts a successor whenever the cluster has ended the session.
    /// [`SessionFailover::run`] does that.
    pub fn new(first: Arc<Client>, start_session: StartSession) -> Arc<SessionFailover> {
        Arc::new(SessionFailover::with(first, Some(start_session)))
    }

    fn with(first: Arc<Client>, start_session: Option<StartSession>) -> SessionFailover {
        SessionFailover {
            only: None,
            current: RwLock::new(first),
            start_session,
            state: Mutex::default(),
            changed: Event::new(),
            closing: AtomicBool::new(false),
            closed: Event::new(),
            has_ended_with_files: AtomicBool::new(false),
        }
    }

    /// Returns the current session, or the last one that was ended.
    pub fn current(&self) -> Arc<Client> {
        self.current.read().clone()
    }

    /// Returns the current session and its failovers.
    pub fn history(&self) -> SessionHistory {
        let current = self.current();
        let state = self.state.lock();
        let missing = current.session.end_cause().map(|ended| match &state.failure {
            Some(failure) => format!("{}; no successor session: {}", ended.message, failure.message),
            None => ended.message.to_string(),
        });
        let ended = state.ended_with_files.iter().filter_map(Weak::upgrade);
        SessionHistory {
            session: current.session.id,
            files_of_ended_sessions: ended.map(|client| client.inodes.use_count()).sum(),
            missing,
            replacements: state.replacements,
            last: state.last.clone(),
        }
    }

    /// Whether the inode has an open file of an ended session.
    pub fn is_open_in_ended_session(&self, ino: InodeId) -> bool {
        if !self.has_ended_with_files.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        state.ended_with_files.retain(|client| client.strong_count() > 0);
        self.has_ended_with_files.store(!state.ended_with_files.is_empty(), Ordering::Release);
        state
            .ended_with_files
            .iter()
            .filter_map(Weak::upgrade)
            .any(|client| client.inodes.open(ino).is_some())
    }

    /// Runs the background tasks of the sessions, and starts a successor whenever the cluster has
    /// ended one. Runs until shutdown.
    pub async fn run(self: Arc<Self>) {
        loop {
            let current = self.current();
            rt::spawn(current.clone().background());
            if self.start_session.is_none() {
                return;
            }
            let cause = current.session.wait_for_end().await;
            if !self.fail_over(&current, &cause).await {
                return;
            }
        }
    }

    /// Replaces a session that the cluster has ended. Returns false at shutdown.
    async fn fail_over(&self, old: &Arc<Client>, cause: &Error) -> bool {
        let files = old.inodes.use_count();
        tracing::warn!(
            session = old.session.id.0,
            files,
            hint = "open files fail with EIO until they are closed and opened again",
            "the cluster has ended the session of this mount, which starts a successor session: {}",
            cause.message
        );
        self.state.lock().missing_since_ns = Some(rt::monotonic_ns());
        let Some(next) = self.start_successor(old).await else { return false };
        if let Some(invalidator) = old.kernel.invalidator() {
            invalidator.locks_lost();
        }
        old.inodes.hand_over(&next.inodes);
        old.names.changes.hand_over(&next.names.changes);
        *self.current.write() = next.clone();
        {
            let mut state = self.state.lock();
            state.ended_with_files.retain(|client| client.strong_count() > 0);
            if files > 0 {
                state.ended_with_files.push(Arc::downgrade(old));
            }
            self.has_ended_with_files.store(!state.ended_with_files.is_empty(), Ordering::Release);
            state.replacements += 1;
            (state.missing_since_ns, state.failure) = (None, None);
            let cause = cause.message.to_string();
            state.last = Some(EndedSession { session: old.session.id, at: rt::now(), cause, files });
        }
        tracing::warn!(
            session = next.session.id.0,
            replaced = old.session.id.0,
            files,
            "the mount continues with a successor session"
        );
        self.notify();
        true
    }

    async fn start_successor(&self, old: &Client) -> Option<Arc<Client>> {
        let start_session = self.start_session.as_ref()?;
        let mut pause = MIN_PAUSE;
        while !self.closing.load(Ordering::Acquire) {
            match start_session().await {
                Ok(next) if self.closing.load(Ordering::Acquire) => {
                    if let Err(error) = next.shutdown().await {
                        tracing::debug!(%error, "an unneeded successor session could not be shut down");
                    }
                    return None;
                }
                Ok(next) => {
                    next.set_request_timeout(old.session.request_timeout.get());
                    next.kernel.take_invalidator_of(&old.kernel);
                    return Some(next);
                }
                Err(error) => self.note_failure(error),
            }
            rt::timeout(pause, self.closed.wait()).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        None
    }

    fn note_failure(&self, error: Error) {
        let last = self.state.lock().failure.replace(error.clone());
        // A persistent refusal is logged once.
        if last.is_none_or(|last| last.message != error.message) {
            tracing::error!(
                hint = &*error.hint,
                "the mount can't start a successor session, and keeps trying: {error}"
            );
        }
        self.notify();
    }

    fn notify(&self) {
        self.changed.set();
        self.changed.clear();
    }

    /// Returns a session that hasn't ended, as far as is known.
    ///
    /// # Errors
    /// The cluster's refusal of this client; `ETIMEDOUT` if there has been no session for the
    /// time-out of a request.
    async fn live_session(&self) -> Result<Arc<Client>> {
        let min_wait_until_ns = rt::monotonic_ns() + MIN_WAIT.as_nanos() as u64;
        loop {
            let mut changed = pin!(self.changed.wait());
            let client = self.current();
            let Some(ended) = client.session.end_cause() else { return Ok(client) };
            if self.closing.load(Ordering::Acquire) {
                return Err(ended);
            }
            let (since_ns, failure) = {
                let state = self.state.lock();
                (state.missing_since_ns, state.failure.clone())
            };
            if let Some(refusal) = failure.clone().filter(is_refusal) {
                return Err(refusal);
            }
            let time_out = client.session.request_timeout.get();
            let since_ns = since_ns.unwrap_or_else(rt::monotonic_ns);
            let until_ns = since_ns.saturating_add(time_out.as_nanos() as u64).max(min_wait_until_ns);
            let left_ns = until_ns.saturating_sub(rt::monotonic_ns());
            if left_ns == 0 {
                let why = failure
                    .map_or_else(|| "the kernel still caches state of the last one".into(), |e| e.message);
                let message = format!("the mount has had no session for {time_out:?}: {why}");
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("weft health on the management node shows what doesn't answer"));
            }
            rt::timeout(Duration::from_nanos(left_ns).min(MIN_WAIT), changed.as_mut()).await;
        }
    }

    /// [`Client::finish_asynchronous_changes`] of the current session. Those of ended sessions have
    /// failed.
    pub async fn finish_asynchronous_changes(&self) -> Result<()> {
        self.current().finish_asynchronous_changes().await
    }

    /// Ends the last session cleanly.
    pub async fn shutdown(&self) -> Result<()> {
        self.closing.store(true, Ordering::Release);
        self.closed.set();
        self.notify();
        let last = self.current();
        if self.start_session.is_some() && last.has_ended() {
            return Ok(());
        }
        last.shutdown().await
    }
}

/// Whether an error means that the session of a request has ended.
fn is_session_end(client: &Client, error: &Error) -> bool {
    client.has_ended() && matches!(error.errno, Errno::ESTALE | Errno::ESHUTDOWN)
}
