//! The metadata services that the session knows, and the way of a request to the one that executes
//! its partition.
//!
//! Where the map names several services, the session is registered with each of them: each has
//! leases, recalls with numbers of its own, and its own view of whether the session lives. A
//! request goes to the service that executes the partition of what it is about, by the map. A
//! service that doesn't (any more, or not yet) says `EREMOTE`; the request then waits for another
//! map, and is sent again with the same number, so that a change that was carried out before the
//! partition moved is answered from its record.

use crate::introduction::User;
use crate::lease::Answer;
use crate::recall::within;
use crate::{Client, registers};
use net::MetaChannels;
use parking_lot::{Mutex, RwLock};
use rt::sync::Event;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, NodeId, PartitionId, Result};
use wire::{MetaOp, MetaRequest, MetaResponse, Number};

/// How often the map is looked at for services and partitions that have moved. Requests that wait
/// for it are sent again then.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Rest before a service is asked again that didn't execute a partition although the map said so,
/// at first; it doubles up to `MAX_REST`.
const MIN_REST: Duration = Duration::from_millis(10);
/// The longest such rest: a partition moves within less, if nobody has to be waited for.
const MAX_REST: Duration = Duration::from_millis(500);
/// What the session has at one metadata service.
pub(crate) struct Service {
    pub(crate) node: NodeId,
    /// Number of the last recall that came from it.
    pub(crate) recalls_seen: AtomicU64,
    /// When the last question was sent that it answered.
    pub(crate) heard_ns: AtomicU64,
    /// How often the session was registered there.
    registrations: AtomicU64,
    registered: Event,
    /// Its recalls are being heard of.
    attended: AtomicBool,
    /// It doesn't belong to the cluster any more.
    gone: AtomicBool,
    /// Why it answers nothing to this client, if it has said so since it was last heard of.
    refusal: Mutex<Option<Error>>,
}

impl Service {
    fn new(node: NodeId) -> Service {
        Service {
            node,
            recalls_seen: AtomicU64::new(0),
            heard_ns: AtomicU64::new(0),
            registrations: AtomicU64::new(0),
            registered: Event::new(),
            attended: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            refusal: Mutex::default(),
        }
    }

    /// Whether the session was registered there.
    pub(crate) fn is_registered(&self) -> bool {
        self.registrations.load(Ordering::Acquire) > 0
    }

    /// The session has been registered.
    pub(crate) fn note_registration(&self) {
        self.registrations.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Why it answers nothing to this client. It does again when it is heard of.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.refusal.lock().clone()
    }

    /// The service is heard of.
    pub(crate) fn end_refusal(&self) {
        self.refusal.lock().take();
    }

    /// Lets those look again who wait for a registration.
    fn wake(&self) {
        self.registered.set();
        self.registered.clear();
    }
}

/// All services that the session knows.
pub(crate) struct Services {
    pub(crate) ways: MetaChannels,
    /// A handful.
    known: RwLock<Vec<Arc<Service>>>,
    /// Some partition, or service, is not where it was.
    moved: Event,
    /// The session has ended: nothing is waited for.
    ended: AtomicBool,
}

impl Services {
    pub(crate) fn new(ways: MetaChannels) -> Services {
        Services { ways, known: RwLock::default(), moved: Event::new(), ended: AtomicBool::new(false) }
    }

    /// Every service that the session had to do with.
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

    /// The service that executes a partition.
    pub(crate) fn executing(&self, partition: PartitionId) -> Result<Arc<Service>> {
        let owner = self.ways.owner(partition);
        owner.map(|node| self.get(node)).ok_or_else(|| Error::new(Errno::EREMOTE, "nobody executes it"))
    }

    /// Whether a service executes the partition of an inode, as far as the map tells.
    pub(crate) fn executes(&self, service: &Service, ino: InodeId) -> bool {
        self.ways.owner(ino.partition()) == Some(service.node)
    }

    /// Lets those look again who wait for a service.
    pub(crate) fn wake(&self) {
        self.moved.set();
        self.moved.clear();
        self.known.read().iter().for_each(|service| service.wake());
    }

    /// The session has ended: nobody waits for an answer any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// What `work` comes to, or nothing when the map gives the partition to another service before,
    /// or the session ends.
    pub(crate) async fn unless_moved<T>(
        &self,
        partition: PartitionId,
        service: &Service,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        if !self.ways.follow_the_map() {
            return Some(work.await);
        }
        let mut work = pin!(work);
        loop {
            let mut moved = pin!(self.moved.wait());
            let is_over = self.ended.load(Ordering::Acquire);
            if is_over || self.ways.owner(partition) != Some(service.node) {
                return None;
            }
            let done = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => moved.as_mut().poll(context).map(|()| None),
            });
            if let Some(output) = done.await {
                return Some(output);
            }
        }
    }
}

/// Whether the cluster has said that it wants nothing to do with this client, other than that it
/// can't be reached.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error.errno, Errno::EACCES | Errno::EPERM)
}

/// The session ended before a change was sent: it surely wasn't made.
fn unsent(error: Error) -> Error {
    Error { errno: Errno::ESHUTDOWN, ..error }
}

/// Waiting for a service that executes a partition.
struct Search {
    began_ns: u64,
    rest: Duration,
}

impl Search {
    fn begin() -> Search {
        Search { began_ns: rt::monotonic_ns(), rest: MIN_REST }
    }

    /// Rests until another question may be of use.
    ///
    /// Errors: `ETIMEDOUT` after the time that a request may take.
    async fn rest(&mut self, services: &Services, partition: PartitionId, patience: Duration) -> Result<()> {
        if rt::monotonic_ns() - self.began_ns > patience.as_nanos() as u64 {
            let message = format!("no metadata service has executed partition {partition} for {patience:?}");
            return Err(Error::new(Errno::ETIMEDOUT, message)
                .hint("weft node list shows which metadata services run, and which don't"));
        }
        within(self.rest, pin!(services.moved.wait())).await;
        self.rest = (self.rest * 2).min(MAX_REST);
        Ok(())
    }
}

impl Client {
    fn request(&self, number: Option<Number>, user: User, op: MetaOp) -> MetaRequest {
        let User { credentials, privileged } = user;
        MetaRequest { session: self.session, number, credentials, privileged, op }
    }

    /// Sends a request to the service that executes a partition, and takes the leases that come
    /// with the answer.
    pub(crate) async fn send_for(
        &self,
        partition: PartitionId,
        number: Option<Number>,
        user: User,
        op: MetaOp,
    ) -> Result<Answer> {
        if !self.promises.is_idle() {
            self.promises.sending(&op);
            Box::pin(self.keep_promises_before(&op)).await;
        }
        let adding = if self.leases.is_alone() { None } else { self.ranges.sending(&op) };
        let request = self.request(number, user, op);
        let sent = Cell::new(false);
        let answer = self.send_after_the_map(partition, &request, &sent).await;
        if let Some(adding) = adding {
            self.ranges.added(&adding, &answer);
        }
        let is_change = number.is_some();
        answer.map_err(|error| match is_change && !sent.get() && self.is_over() {
            true => unsent(error),
            false => error,
        })
    }

    /// `sent`: whether it may have arrived anywhere.
    async fn send_after_the_map(
        &self,
        partition: PartitionId,
        request: &MetaRequest,
        sent: &Cell<bool>,
    ) -> Result<Answer> {
        let mut search = Search::begin();
        loop {
            let answer = match self.services.executing(partition) {
                Ok(service) => {
                    // Apart, so that the futures around it stay small: they are copied on their way
                    // to who polls them.
                    let sending = Box::pin(self.send_to(&service, request, sent));
                    self.services.unless_moved(partition, &service, sending).await
                }
                Err(error) => Some(Err(error)),
            };
            match answer {
                Some(Err(error)) if error.errno == Errno::EREMOTE => {
                    let rested = search.rest(&self.services, partition, self.patience.get()).await;
                    // It may have been done by the service that had the partition before.
                    rested.inspect_err(|_| self.directories.doubt(&self.leases, &request.op))?;
                }
                Some(answer) => return answer,
                // Else the new owner finds in its records what the old one has done.
                None => self.over().map_or(Ok(()), Err)?,
            }
        }
    }

    /// The session can't be kept up at a service. Where that is because the service wants nothing
    /// to do with this client, nobody waits for it: it won't go away by itself.
    pub(crate) fn note_trouble(&self, service: &Service, error: &Error) {
        if !is_refusal(error) {
            return;
        }
        if service.refusal.lock().replace(error.clone()).is_none() {
            tracing::error!(node = %service.node, hint = &*error.hint, "this client is refused: {}", error.message);
        }
        self.look_again();
        service.wake();
    }

    /// Whether a service that has refused this client does so still. The question for recalls would
    /// wait for some before it is answered.
    pub(crate) async fn is_still_refused(&self, service: &Service) -> bool {
        if service.refusal().is_none() {
            return false;
        }
        let refused = match self.ask_nothing(service).await {
            Err(error) if is_refusal(&error) => Some(error),
            _ => None,
        };
        *service.refusal.lock() = refused.clone();
        refused.is_some()
    }

    /// Asks a service for nothing, only whether it answers this session.
    async fn ask_nothing(&self, service: &Service) -> Result<()> {
        let nothing = MetaOp::Release { inodes: Vec::new(), seen: 0 };
        self.services.ways.call(service.node, self.request(None, User::default(), nothing)).await.map(drop)
    }

    /// Asks one service about the session itself.
    pub(crate) async fn ask_at(&self, service: &Service, op: MetaOp) -> Result<Answer> {
        let request = self.request(None, User::default(), op);
        self.send_to(service, &request, &Cell::new(false)).await
    }

    async fn send_to(&self, service: &Service, request: &MetaRequest, sent: &Cell<bool>) -> Result<Answer> {
        if self.leases.is_alone() {
            let asked = self.leases.asking();
            let response = self.services.ways.call(service.node, request.clone()).await?;
            self.verifiers.heard_of_names(response.verifier);
            return Ok(Answer { reply: response.reply, asked });
        }
        loop {
            if let Some(error) = self.over() {
                return Err(error);
            }
            let registration = service.registrations.load(Ordering::Acquire);
            // Where there is one service, it serves who isn't registered as well, without leases.
            if registration == 0 && self.services.ways.follow_the_map() && !registers(&request.op) {
                let unknown = || Error::new(Errno::ETIMEDOUT, "the session could not be registered in time");
                self.wait_for_registration(service, registration, unknown).await?;
                continue;
            }
            self.complete.adding(&self.leases, &request.op);
            let asked = self.leases.asking();
            sent.set(true);
            let answer = self.services.ways.call(service.node, request.clone()).await;
            if let Ok(response) = &answer {
                self.verifiers.heard_of_names(response.verifier);
                self.leases.take_grants(asked, service.node, response);
                self.complete.take(&self.leases, asked, &request.op, response);
            }
            self.directories.take(&self.leases, asked, &request.op, &answer);
            match answer {
                Ok(MetaResponse { reply, capability, .. }) => {
                    if let Some(capability) = capability {
                        self.capabilities.keep(&request.op, &reply, capability);
                    }
                    return Ok(Answer { reply, asked });
                }
                // The service was started anew. What it has not answered it has not done, or finds
                // in its records.
                Err(error) if error.errno == Errno::ENOTCONN && !registers(&request.op) => {
                    self.wait_for_registration(service, registration, || error).await?;
                }
                Err(error) if error.errno == Errno::ESTALE && !registers(&request.op) => {
                    self.look_whether_it_ended(service).await;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// An inode that is gone and a session that has ended are refused in the same way. What
    /// concerns the session alone can mean only the latter.
    async fn look_whether_it_ended(&self, service: &Service) {
        if self.is_over() {
            return;
        }
        match self.ask_nothing(service).await {
            Err(error) if error.errno == Errno::ESTALE => self.is_fenced(&error),
            _ => {}
        }
    }

    /// Waits until the session is known again, or `error` is the answer.
    async fn wait_for_registration(
        &self,
        service: &Service,
        before: u64,
        error: impl FnOnce() -> Error,
    ) -> Result<()> {
        let began_ns = rt::monotonic_ns();
        loop {
            let mut registered = pin!(service.registered.wait());
            if service.registrations.load(Ordering::Acquire) != before || self.is_over() {
                return Ok(());
            }
            service.refusal().map_or(Ok(()), Err)?;
            if rt::monotonic_ns() - began_ns > self.patience.get().as_nanos() as u64 {
                let message = error().message;
                return Err(Error::new(Errno::ETIMEDOUT, message).hint("its log says what it waits for"));
            }
            within(MAX_REST, registered.as_mut()).await;
        }
    }

    /// Has the recalls of every service heard of, for as long as the session lives, and lets
    /// requests go after partitions that move.
    pub(crate) async fn attend_services(self: Arc<Self>) {
        let mut owners = self.services.ways.owners();
        while self.over().is_none() {
            let current = self.services.ways.services();
            current.iter().for_each(|&node| _ = self.services.get(node));
            for service in self.services.all() {
                if !current.contains(&service.node) {
                    self.dismiss(&service).await;
                } else if !service.attended.swap(true, Ordering::AcqRel) {
                    rt::spawn(self.clone().answer_recalls(service));
                }
            }
            if !self.services.ways.follow_the_map() {
                return;
            }
            rt::sleep(LOOK_INTERVAL).await;
            let now = self.services.ways.owners();
            if now != owners {
                owners = now;
                self.services.wake();
            }
        }
    }

    /// A service has left the cluster: its partitions are others', and what it granted has ended.
    async fn dismiss(&self, service: &Arc<Service>) {
        tracing::info!(node = %service.node, "a metadata service has left the cluster");
        service.gone.store(true, Ordering::Release);
        self.services.known.write().retain(|known| !Arc::ptr_eq(known, service));
        service.wake();
    }
}
