//! The metadata services that the session knows, and the routing of requests to the owner of a
//! partition.
//!
//! If the map names several services, the session registers with each of them. Each service has its
//! own leases and recall numbers, and its own view of whether the session is alive. A request goes
//! to the owner of the partition of its inode, by the map. A service that doesn't own the partition
//! (any more, or yet) answers `PartitionNotServed`. The request then waits for another map, and is
//! sent again with the same slot and sequence id. So a change that was executed before the
//! partition moved gets its recorded answer.

use crate::session::Session;
use crate::session::leases::Answer;
use crate::session::privileges::RequestUser;
use parking_lot::{Mutex, RwLock};
use routing::MetaChannels;
use rt::sync::Event;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, Error, InodeId, NodeId, PartitionId, Refusal, Result};
use wire::{MetaOp, MetaRequest, MetaResponse, SlotSequence};

/// How often the map is checked for services and partitions that have moved. Waiting requests are
/// then sent again.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// First pause before a request is repeated that a service refused although the map names it as the
/// owner; it doubles up to `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Longest such pause: a partition moves in less, unless a session must be waited for.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// State of the session at one metadata service.
pub(crate) struct Service {
    pub(crate) node: NodeId,
    /// Number of the last recall from this service.
    pub(crate) recalls_seen: AtomicU64,
    /// When the last request that it answered was sent, on the monotonic clock.
    pub(crate) answered_ns: AtomicU64,
    /// How often the session was registered there.
    registrations: AtomicU64,
    registered: Event,
    /// A task receives its recalls.
    has_recall_task: AtomicBool,
    /// It has left the cluster.
    gone: AtomicBool,
    /// Why it refuses this client, if it has done so since it last answered.
    refusal: Mutex<Option<Error>>,
}

impl Service {
    fn new(node: NodeId) -> Service {
        Service {
            node,
            recalls_seen: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
            registrations: AtomicU64::new(0),
            registered: Event::new(),
            has_recall_task: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            refusal: Mutex::default(),
        }
    }

    /// Whether the session was registered there.
    pub(crate) fn is_registered(&self) -> bool {
        self.registrations.load(Ordering::Acquire) > 0
    }

    /// Records a registration.
    pub(crate) fn note_registration(&self) {
        self.registrations.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns why it refuses this client. An answer ends the refusal.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.refusal.lock().clone()
    }

    /// Records that the service answers again.
    pub(crate) fn end_refusal(&self) {
        self.refusal.lock().take();
    }

    /// Wakes the tasks that wait for a registration, so that they check again.
    fn wake(&self) {
        self.registered.set();
        self.registered.clear();
    }
}

/// All services that the session knows.
pub(crate) struct Services {
    pub(crate) channels: MetaChannels,
    /// A handful of services.
    known: RwLock<Vec<Arc<Service>>>,
    /// Set when an owner or a service changes.
    changed: Event,
    /// The session has ended: no request waits any more.
    ended: AtomicBool,
}

impl Services {
    pub(crate) fn new(channels: MetaChannels) -> Services {
        Services { channels, known: RwLock::default(), changed: Event::new(), ended: AtomicBool::new(false) }
    }

    /// Every service that the session has used.
    pub(crate) fn all(&self) -> Vec<Arc<Service>> {
        self.known.read().clone()
    }

    fn get(&self, node: NodeId) -> Arc<Service> {
        if let Some(known) = self.known.read().iter().find(|service| service.node == node) {
            return known.clone();
        }
        let mut known = self.known.write();
        if let Some(known) = known.iter().find(|service| service.node == node) {
            return known.clone();
        }
        known.push(Arc::new(Service::new(node)));
        known.last().expect("it was just put there").clone()
    }

    /// Returns the owner of a partition.
    pub(crate) fn owner_of(&self, partition: PartitionId) -> Result<Arc<Service>> {
        let owner = self.channels.owner(partition);
        owner
            .map(|node| self.get(node))
            .ok_or_else(|| Error::new(Refusal::PartitionNotServed, "no metadata service owns the partition"))
    }

    /// Whether a service owns the partition of an inode, by the map.
    pub(crate) fn owns(&self, service: &Service, ino: InodeId) -> bool {
        self.channels.owner(ino.partition()) == Some(service.node)
    }

    /// Wakes the tasks that wait for a service, so that they check again.
    pub(crate) fn wake(&self) {
        self.changed.set();
        self.changed.clear();
        self.known.read().iter().for_each(|service| service.wake());
    }

    /// Ends all waits, since the session has ended.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns the result of `work`, or `None` if the map assigns the partition to another service
    /// first, or the session ends.
    pub(crate) async fn unless_moved<T>(
        &self,
        partition: PartitionId,
        service: &Service,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        if !self.channels.follows_map() {
            return Some(work.await);
        }
        let mut work = pin!(work);
        loop {
            let mut changed = pin!(self.changed.wait());
            let is_over = self.ended.load(Ordering::Acquire);
            if is_over || self.channels.owner(partition) != Some(service.node) {
                return None;
            }
            if let Some(output) = rt::select(work.as_mut(), changed.as_mut()).await.first() {
                return Some(output);
            }
        }
    }
}

/// Whether the cluster has refused this client, as opposed to being unreachable.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error.errno, Errno::EACCES | Errno::EPERM)
}

/// Error for a change that was not sent because the session had ended: it was surely not executed.
fn not_sent(error: Error) -> Error {
    Error { errno: Errno::ESHUTDOWN, ..error }
}

/// The wait for an owner of a partition.
struct OwnerWait {
    began_ns: u64,
    pause: Duration,
}

impl OwnerWait {
    fn begin() -> OwnerWait {
        OwnerWait { began_ns: rt::monotonic_ns(), pause: MIN_PAUSE }
    }

    /// Waits until another request may succeed.
    ///
    /// Errors: `ETIMEDOUT` after the time-out of a request.
    async fn wait(&mut self, services: &Services, partition: PartitionId, time_out: Duration) -> Result<()> {
        if rt::monotonic_ns() - self.began_ns > time_out.as_nanos() as u64 {
            let message = format!("partition {partition} has had no metadata service for {time_out:?}");
            return Err(Error::new(Errno::ETIMEDOUT, message)
                .hint("weft node list shows which metadata services are running"));
        }
        rt::timeout(self.pause, services.changed.wait()).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }
}

impl Session {
    fn request(&self, number: Option<SlotSequence>, user: RequestUser, op: MetaOp) -> MetaRequest {
        let RequestUser { credentials, privileged } = user;
        MetaRequest { session: self.id, slot_sequence: number, credentials, privileged, op }
    }

    /// Sends a request to the owner of a partition, and records the leases that the answer grants.
    pub(crate) async fn send_for(
        &self,
        partition: PartitionId,
        number: Option<SlotSequence>,
        user: RequestUser,
        op: MetaOp,
    ) -> Result<Answer> {
        if self.observer.prepare_request(&op)
            && let Some(holder) = self.holder.upgrade()
        {
            holder.finish_before(&op, number).await;
        }
        let possible_name =
            if self.leases.is_only_session() { None } else { self.observer.record_possible(&op) };
        let request = self.request(number, user, op);
        let sent = Cell::new(false);
        let answer = self.send_to_owner(partition, &request, &sent).await;
        if let Some(possible_name) = possible_name {
            self.observer.record_outcome(&possible_name, &answer);
        }
        let is_change = number.is_some();
        answer.map_err(|error| match is_change && !sent.get() && self.has_ended() {
            true => not_sent(error),
            false => error,
        })
    }

    /// `sent`: whether the request may have arrived anywhere.
    async fn send_to_owner(
        &self,
        partition: PartitionId,
        request: &MetaRequest,
        sent: &Cell<bool>,
    ) -> Result<Answer> {
        let mut owner_wait = OwnerWait::begin();
        loop {
            let answer = match self.services.owner_of(partition) {
                Ok(service) => {
                    // Boxed, so that the futures around it stay small: they are copied on their way
                    // to the executor.
                    let sending = Box::pin(self.send_to(&service, request, sent));
                    self.services.unless_moved(partition, &service, sending).await
                }
                Err(error) => Some(Err(error)),
            };
            match answer {
                Some(Err(error)) if error.errno == Refusal::PartitionNotServed => {
                    let waited = owner_wait.wait(&self.services, partition, self.request_timeout.get()).await;
                    // The previous owner may have executed it.
                    waited.inspect_err(|_| self.observer.drop_uncertain(&self.leases, &request.op))?;
                }
                Some(answer) => return answer,
                // Otherwise the new owner finds the old one's answer in its duplicate request
                // cache.
                None => self.end_cause().map_or(Ok(()), Err)?,
            }
        }
    }

    /// Handles a failed registration or request for recalls. If the service refuses this client,
    /// requests no longer wait for it: a refusal doesn't end by itself.
    pub(super) fn note_failure(&self, service: &Service, error: &Error) {
        if !is_refusal(error) {
            return;
        }
        if service.refusal.lock().replace(error.clone()).is_none() {
            tracing::error!(node = %service.node, hint = &*error.hint, "the metadata service refuses this client: {}", error.message);
        }
        self.wake_suspended();
        service.wake();
    }

    /// Whether a service still refuses this client. A request for recalls wouldn't be answered
    /// before there are some.
    pub(super) async fn recheck_refusal(&self, service: &Service) -> bool {
        if service.refusal().is_none() {
            return false;
        }
        let refused = match self.ping(service).await {
            Err(error) if is_refusal(&error) => Some(error),
            _ => None,
        };
        *service.refusal.lock() = refused.clone();
        refused.is_some()
    }

    /// Sends an empty request, to learn whether a service answers this session.
    async fn ping(&self, service: &Service) -> Result<()> {
        let empty_release = MetaOp::Release { inodes: Vec::new(), seen: 0 };
        self.services
            .channels
            .call(service.node, self.request(None, RequestUser::default(), empty_release))
            .await
            .map(drop)
    }

    /// Sends one service a request about the session itself.
    pub(super) async fn query_service(&self, service: &Service, op: MetaOp) -> Result<Answer> {
        let request = self.request(None, RequestUser::default(), op);
        self.send_to(service, &request, &Cell::new(false)).await
    }

    async fn send_to(&self, service: &Service, request: &MetaRequest, sent: &Cell<bool>) -> Result<Answer> {
        if self.leases.is_only_session() {
            let stamp = self.leases.stamp_request();
            let response = self.services.channels.call(service.node, request.clone()).await?;
            self.verifiers.record_metadata(response.verifier);
            return Ok(Answer { reply: response.reply, stamp });
        }
        loop {
            if let Some(error) = self.end_cause() {
                return Err(error);
            }
            let registration = service.registrations.load(Ordering::Acquire);
            // Where there is one service, it serves who isn't registered as well, without leases.
            if registration == 0 && self.services.channels.follows_map() && !request.op.spec().finds_session {
                let unknown = || Error::new(Errno::ETIMEDOUT, "the session could not be registered in time");
                self.wait_for_registration(service, registration, unknown).await?;
                continue;
            }
            self.observer.record_request(&self.leases, &request.op);
            let stamp = self.leases.stamp_request();
            sent.set(true);
            let answer = self.services.channels.call(service.node, request.clone()).await;
            if let Ok(response) = &answer {
                self.verifiers.record_metadata(response.verifier);
                self.leases.take_grants(stamp, service.node, response);
            }
            self.observer.record_answer(&self.leases, stamp, &request.op, &answer);
            match answer {
                Ok(MetaResponse { reply, capability, .. }) => {
                    if let Some(capability) = capability {
                        self.capabilities.store(&request.op, &reply, capability);
                    }
                    return Ok(Answer { reply, stamp });
                }
                // The service has restarted. What it has not answered it has not executed, or finds
                // in its records.
                Err(error) if error.errno == Errno::ENOTCONN && !request.op.spec().finds_session => {
                    self.wait_for_registration(service, registration, || error).await?;
                }
                Err(error) if error.errno == Errno::ESTALE && !request.op.spec().finds_session => {
                    self.check_session(service).await;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks whether the session has ended. A missing inode and an ended session have the same
    /// error; a request about the session alone can only mean the latter.
    async fn check_session(&self, service: &Service) {
        if self.has_ended() {
            return;
        }
        match self.ping(service).await {
            Err(error) if error.errno == Errno::ESTALE => self.handle_fencing(&error),
            _ => {}
        }
    }

    /// Waits until the session is registered again. Returns `error` after the time-out.
    async fn wait_for_registration(
        &self,
        service: &Service,
        before: u64,
        error: impl FnOnce() -> Error,
    ) -> Result<()> {
        let began_ns = rt::monotonic_ns();
        loop {
            let mut registered = pin!(service.registered.wait());
            if service.registrations.load(Ordering::Acquire) != before || self.has_ended() {
                return Ok(());
            }
            service.refusal().map_or(Ok(()), Err)?;
            if rt::monotonic_ns() - began_ns > self.request_timeout.get().as_nanos() as u64 {
                let message = error().message;
                return Err(
                    Error::new(Errno::ETIMEDOUT, message).hint("the client's log shows what it waits for")
                );
            }
            rt::timeout(MAX_PAUSE, registered.as_mut()).await;
        }
    }

    /// Returns the partitions and their owners.
    pub(crate) fn owners(&self) -> Vec<(PartitionId, NodeId)> {
        self.services.channels.owners()
    }

    /// Syncs everything that the owner of a partition has answered.
    pub(crate) async fn sync_metadata(&self, partition: PartitionId) -> Result<()> {
        self.send_for(partition, None, RequestUser::default(), MetaOp::Sync).await.map(drop)
    }

    /// Like `sync_metadata`, for all partitions.
    pub(crate) async fn sync_all_metadata(&self) -> Result<()> {
        let owners = self.owners().into_iter();
        let synced = rt::join_all(owners.map(|(partition, _)| self.sync_metadata(partition)).collect()).await;
        synced.into_iter().collect()
    }

    /// Starts the handling of recalls for every service, for as long as the session lives, and
    /// redirects requests of partitions that move.
    pub(super) async fn handle_services(self: Arc<Self>) {
        let mut owners = self.services.channels.owners();
        while self.end_cause().is_none() {
            let current = self.services.channels.services();
            current.iter().for_each(|&node| _ = self.services.get(node));
            for service in self.services.all() {
                if !current.contains(&service.node) {
                    self.remove_service(&service).await;
                } else if !service.has_recall_task.swap(true, Ordering::AcqRel) {
                    rt::spawn(self.clone().receive_recalls(service));
                }
            }
            if !self.services.channels.follows_map() {
                return;
            }
            rt::sleep(CHECK_INTERVAL).await;
            let now = self.services.channels.owners();
            if now != owners {
                owners = now;
                self.services.wake();
            }
        }
    }

    /// Removes a service that has left the cluster: other services own its partitions, and its
    /// leases have ended.
    async fn remove_service(&self, service: &Arc<Service>) {
        tracing::info!(node = %service.node, "a metadata service has left the cluster");
        service.gone.store(true, Ordering::Release);
        self.services.known.write().retain(|known| !Arc::ptr_eq(known, service));
        service.wake();
    }
}
