//! The session: its registration with the metadata services, what it holds of them (leases, locks,
//! capabilities, slots), and what happens when one of them fails or the cluster ends the session.
//!
//! A [`Session`] sends requests to metadata services, stores what they grant, and notices when that
//! ends. Files and caches are behind an interface ([`lease_holder`]).

pub(crate) mod cancel;
pub(crate) mod capabilities;
pub(crate) mod failover;
pub(crate) mod held_locks;
pub(crate) mod lease_expiry;
pub(crate) mod lease_holder;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod privileges;
pub(crate) mod recall;
pub(crate) mod registration;
pub(crate) mod services;
pub(crate) mod slots;
pub(crate) mod timeout;
pub(crate) mod verifiers;

use crate::kernel::invalidation::KernelCaches;
use capabilities::Capabilities;
use held_locks::HeldLocks;
use lease_expiry::LeaseExpiry;
use lease_holder::{LeaseHolder, RequestObserver};
use leases::{Answer, Leases};
use locks::PendingReleases;
use parking_lot::Mutex;
use privileges::RequestUser;
use recall::Recalls;
use routing::MetaChannels;
use rt::sync::Event;
use services::{Service, Services};
use slots::{SlotInUse, SlotTable};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use timeout::RequestTimeout;
use types::{Credentials, Errno, Error, InodeId, Result, SessionId};
use verifiers::Verifiers;
use wire::{MetaOp, SlotSequence};

/// Time-out of the unmount notice to a metadata service that owns no partition.
const UNMOUNT_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a session needs to begin.
pub(crate) struct SessionOptions {
    pub(crate) id: SessionId,
    pub(crate) channels: MetaChannels,
    /// No other session exists, now or later: everything may be cached without leases.
    pub(crate) only_session: bool,
    pub(crate) holder: Weak<dyn LeaseHolder>,
    pub(crate) observer: Arc<dyn RequestObserver>,
    pub(crate) kernel: Arc<KernelCaches>,
}

/// One session with a cluster, as its metadata services know it.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// This session, for tasks that outlive a request.
    weak_self: Weak<Session>,
    holder: Weak<dyn LeaseHolder>,
    observer: Arc<dyn RequestObserver>,
    /// Knows the privileges of users.
    kernel: Arc<KernelCaches>,
    services: Services,
    /// Session slots for changes of the name space.
    slots: Arc<SlotTable>,
    pub(crate) leases: Leases,
    /// Capabilities that this session presents to storage services.
    pub(crate) capabilities: Capabilities,
    pub(crate) verifiers: Verifiers,
    pub(crate) request_timeout: RequestTimeout,
    recalls: Recalls,
    held_locks: HeldLocks,
    pending_releases: PendingReleases,
    lease_expiry: LeaseExpiry,
    /// Why the session has ended.
    end_cause: Mutex<Option<Error>>,
    has_ended: AtomicBool,
    /// The cluster has ended the session, and neither the client nor the kernel caches anything of
    /// it.
    caches_dropped: Event,
    /// The session is being shut down: the service ends it at the client's own request.
    is_shutting_down: AtomicBool,
}

impl Session {
    pub(crate) fn new(options: SessionOptions) -> Arc<Session> {
        Arc::new_cyclic(|myself| Session {
            id: options.id,
            weak_self: myself.clone(),
            holder: options.holder,
            observer: options.observer,
            kernel: options.kernel,
            services: Services::new(options.channels),
            slots: Arc::default(),
            leases: Leases::new(options.only_session),
            capabilities: Capabilities::default(),
            verifiers: Verifiers::default(),
            request_timeout: RequestTimeout::default(),
            recalls: Recalls::default(),
            held_locks: HeldLocks::default(),
            pending_releases: PendingReleases::default(),
            lease_expiry: LeaseExpiry::default(),
            end_cause: Mutex::new(None),
            has_ended: AtomicBool::new(false),
            caches_dropped: Event::new(),
            is_shutting_down: AtomicBool::new(false),
        })
    }

    /// Starts the tasks that handle the services' recalls, for as long as the session lives.
    pub(crate) fn start_recalls(self: &Arc<Session>) {
        rt::spawn(self.clone().handle_services());
        rt::spawn(self.clone().report_slow_recalls());
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

    /// Sends a read-only request.
    pub(crate) async fn query(&self, op: MetaOp) -> Result<Answer> {
        self.send(None, RequestUser::default(), op).await
    }

    /// Sends a read-only request on behalf of a user.
    pub(crate) async fn query_as(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        self.send(None, credentials.into(), op).await
    }

    /// Sends a change on behalf of a user.
    pub(crate) async fn change_as(&self, credentials: Credentials, op: MetaOp) -> Result<Answer> {
        self.change_in(self.begin_change(), credentials, op).await
    }

    /// Takes a slot for a change.
    pub(crate) fn begin_change(&self) -> SlotInUse {
        self.slots.next()
    }

    /// Sends a change in its slot.
    pub(crate) async fn change_in(
        &self,
        slot: SlotInUse,
        credentials: Credentials,
        op: MetaOp,
    ) -> Result<Answer> {
        let answer = self.change_in_slot(slot.slot_sequence, credentials, op).await;
        slot.complete(&answer);
        answer
    }

    /// Returns why the session has ended, if it has.
    pub(crate) fn end_cause(&self) -> Option<Error> {
        if self.has_ended.load(Ordering::Acquire) { self.end_cause.lock().clone() } else { None }
    }

    /// Whether the session has ended, so that every request fails.
    pub(crate) fn has_ended(&self) -> bool {
        self.end_cause().is_some()
    }

    /// Marks the session as ended: every later request fails. Returns false if it was marked
    /// already.
    fn end(&self, cause: Error) -> bool {
        let error = Error::new(Errno::ESTALE, format!("this client's session has ended: {}", cause.message))
            .hint("repeat the operation: the mount starts another session as soon as the cluster permits");
        self.end_cause.lock().get_or_insert(error);
        let is_first = !self.has_ended.swap(true, Ordering::AcqRel);
        self.leases.wake();
        self.services.end();
        if let Some(holder) = self.holder.upgrade() {
            holder.wake();
        }
        is_first
    }

    /// Ends the session, as the cluster has: every request fails and every wait ends.
    pub(crate) async fn end_session(&self, error: Error) {
        if self.end(error) {
            self.drop_everything().await;
        }
    }

    /// Handles a target's refusal of the session. A metadata service has ended the session, and may
    /// have died before it could report that to others. This client can no longer report what it
    /// has written, and size recovery must run before another session gets the leases. So the
    /// client gives no lease back, and the services end the session when its leases expire.
    pub(crate) fn handle_fencing(&self, error: &Error) {
        if self.is_shutting_down.load(Ordering::Acquire) || self.has_ended() {
            return;
        }
        if let (Some(session), true) = (self.weak_self.upgrade(), self.end(error.clone())) {
            rt::spawn(async move { session.drop_everything().await });
        }
    }

    /// Has everything dropped that the ended session cached.
    async fn drop_everything(&self) {
        let leased = self.leases.end_all();
        if let Some(holder) = self.holder.upgrade() {
            holder.drop_everything(leased).await;
        }
        self.caches_dropped.set();
    }

    /// Waits until the cluster has ended the session and neither the client nor the kernel caches
    /// anything of it; returns why it has ended.
    pub(crate) async fn wait_for_end(&self) -> Error {
        self.caches_dropped.wait().await;
        self.end_cause().unwrap_or_else(|| Errno::ESTALE.into())
    }

    /// Ends the session at its own request.
    pub(crate) async fn shut_down(&self) -> Result<()> {
        self.is_shutting_down.store(true, Ordering::Release);
        let ended = self.send_unmount_notices().await;
        self.end(Error::new(Errno::ESTALE, "the client was shut down"));
        self.caches_dropped.set();
        ended
    }

    /// Ends the session at every service. When one service has ended it, the others may have
    /// learned of that already.
    async fn send_unmount_notices(&self) -> Result<()> {
        let mut outcome = Ok(());
        let owners = self.services.channels.owners();
        let owns_partition = |service: &Arc<Service>| owners.iter().any(|(_, node)| *node == service.node);
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
}
