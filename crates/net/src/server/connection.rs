//! One connection of a client, on its core.

use super::accept::refuse;
use super::authorization::AuthorizationOutcome;
use super::core::{ClientCore, IncomingConnection, ServerCore};
use super::requests::{Requests, RunningRequest};
use super::router::PreparedRequest;
use crate::budget::Permit;
use crate::fault::Fault;
use crate::inbound::{Inbound, ReceiveStats, check_payload};
use crate::limits::{DIRECT_RECEIVE_BYTES, MAX_WAITING_REQUESTS, WAIT_PING_INTERVAL};
use crate::outbox::Outbox;
use crate::signal::Signal;
use crate::stream::Stream;
use crate::{Caller, Deadline, LocalFuture, Proof};
use rt::sync::Event;
use rt::{Either, IoBuf, SharedMemory};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result};
use wire::frame::{FrameKind, Header, MAX_ANSWER_BYTES, MAX_BODY_BYTES, SHARED_PAGE_BYTES, VERSION, Welcome};
use wire::{AnswerKind, Message, Service};

/// A request being executed.
struct StartedRequest {
    answer: AnswerKind,
    work: LocalFuture<'static, Result<Vec<u8>>>,
    payload: Option<IoBuf>,
    permit: Permit,
}

/// One connection of a client.
pub(super) struct Connection {
    core: Rc<ServerCore>,
    stream: Rc<Stream>,
    /// Memory that a client on this machine shares. The client may change it at any time, so only
    /// copies of its content are trusted.
    memory: Option<Arc<SharedMemory>>,
    caller: Rc<Caller>,
    incarnation: u64,
    outbox: Outbox,
    requests: Rc<Requests>,
    /// No more requests begin.
    ending: Cell<bool>,
    /// Nothing more is read.
    reading_stopped: Cell<bool>,
    /// The connection isn't read from until there is a permit for the last request.
    reads_paused: Cell<bool>,
    /// When reading resumed last, by the monotonic clock.
    reads_resumed_ns: Cell<u64>,
    /// No request runs on earlier connections of this client core, at least none that may be
    /// retransmitted.
    predecessor_ended: Cell<bool>,
    /// No request runs on this connection any more.
    ended: Cell<bool>,
    /// Set when nothing is received or answered any more.
    end_event: Arc<Event>,
    changed: Signal,
    /// The version of the revocation list by which the client was last found not to be revoked.
    not_revoked_version: Cell<u64>,
}

impl Connection {
    /// Serves a connection until it ends.
    pub(super) async fn serve(core: Rc<ServerCore>, arrival: IncomingConnection) {
        let IncomingConnection { stream, memory, mut caller, incarnation, slot } = arrival;
        if memory.is_some() {
            // This connection replaces the one over TCP on which the client learned the socket's
            // name, and takes over its address.
            let predecessor = core.newest(&ClientCore::of(&caller)).filter(|prior| !prior.ending.get());
            let Some(predecessor) = predecessor else {
                let error = Error::new(Errno::ESTALE, "there is no TCP connection that this one replaces");
                let _ = refuse(&stream.attach(), &error).await; // The client may have disconnected already.
                return drop(slot);
            };
            caller.address = predecessor.caller.address.clone();
        }
        let checksum_payloads = core.shared.options.checksum_payloads;
        let connection = Rc::new(Connection {
            core,
            stream: Rc::new(stream.attach()),
            memory,
            caller: Rc::new(caller),
            incarnation,
            outbox: Outbox::new(checksum_payloads),
            requests: Rc::default(),
            ending: Cell::new(false),
            reading_stopped: Cell::new(false),
            reads_paused: Cell::new(false),
            reads_resumed_ns: Cell::new(0),
            predecessor_ended: Cell::new(false),
            ended: Cell::new(false),
            end_event: Arc::default(),
            changed: Signal::default(),
            not_revoked_version: Cell::new(0),
        });
        match connection.core.register(&connection) {
            Ok(predecessor) => connection.run(predecessor).await,
            Err(_) => {
                let error = Error::new(Errno::ESTALE, "there is a newer connection of this client core");
                let _ = refuse(&connection.stream, &error).await; // The client may have disconnected already.
            }
        }
        drop(slot);
    }

    /// The client core that the connection serves.
    pub(super) fn key(&self) -> ClientCore {
        ClientCore::of(&self.caller)
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    async fn run(self: &Rc<Self>, predecessor: Option<Rc<Connection>>) {
        let sender = self.clone();
        rt::spawn(async move {
            // The limit of TCP itself is set when a connection is accepted.
            let limit = sender.core.shared.options.limits.liveness.dead_after;
            let limit = sender.memory.as_ref().map(|_| limit);
            let result = sender.outbox.run(&sender.stream, limit).await;
            sender.end(result.err().as_ref());
        });
        if let Some(predecessor) = predecessor {
            predecessor.end(None);
            self.wait_for_predecessor(&predecessor).await;
        }
        self.predecessor_ended.set(true);
        if !self.ending.get() {
            self.welcome();
            let inbound = Inbound::new(self.stream.clone());
            rt::spawn(self.clone().watch(inbound.receive_stats()));
            let result = self.receive(inbound).await;
            self.end(result.err().as_ref());
        }
        self.requests.all_ended().await;
        self.ended.set(true);
        self.changed.notify();
        self.core.unregister(self);
    }

    /// Waits for the requests of the previous connection, as long as their client may retransmit
    /// them. A request that hangs longer, on a disk that doesn't answer for example, doesn't block
    /// the client's other requests.
    async fn wait_for_predecessor(&self, predecessor: &Connection) {
        loop {
            let ended = predecessor.changed.wait_until(|| predecessor.ended.get());
            if rt::timeout(WAIT_PING_INTERVAL, ended).await.is_some() {
                return;
            }
            if predecessor.predecessor_ended.get() && predecessor.requests.are_abandoned() {
                let Caller { name, address, .. } = &*self.caller;
                let running = predecessor.requests.running();
                tracing::warn!(client = name, %address, running, "requests still run after their client's time-out");
                return;
            }
            // The client sees that the server is alive.
            self.outbox.push(Header::new(FrameKind::Ping, 0), &[], None, None);
        }
    }

    fn welcome(&self) {
        let options = &self.core.shared.options;
        let welcome = Welcome {
            protocol: VERSION.into(),
            name: options.name.clone(),
            credits: options.limits.requests_per_connection as u32,
            cores: self.core.shared.cores() as u32,
            on_host: self.core.shared.on_host.clone(),
        };
        let mut body = Vec::new();
        welcome.encode(&mut body);
        self.outbox.push(Header::new(FrameKind::Welcome, 0), &body, None, None);
    }

    /// Ends the connection at once. Requests that may wait are cancelled; the others run to their
    /// end.
    pub(super) fn end(&self, fault: Option<&Fault>) {
        self.reading_stopped.set(true);
        if self.ending.replace(true) {
            self.stream.shutdown();
            self.end_event.set();
            self.changed.notify();
            return;
        }
        let Caller { name, address, .. } = &*self.caller;
        match fault {
            Some(Fault::Malformed(malformed)) => {
                tracing::warn!(client = name, %address, "a connection was ended: {malformed}");
            }
            Some(fault) => tracing::debug!(client = name, %address, "a connection has ended: {fault}"),
            None => tracing::debug!(client = name, %address, "a connection was ended"),
        }
        self.outbox.abort();
        self.stream.shutdown();
        self.end_event.set();
        self.requests.cancel_all();
        self.changed.notify();
    }

    /// Ends the connection in good order: sends a goodbye, and lets running requests be answered.
    pub(super) fn drain(self: &Rc<Self>) {
        if self.ending.replace(true) {
            return;
        }
        self.outbox.push(Header::new(FrameKind::Close, 0), &[], None, None);
        self.requests.cancel_all();
        self.changed.notify();
        let connection = self.clone();
        rt::spawn(async move {
            connection.requests.all_ended().await;
            // The sender ends the connection when everything has been sent.
            connection.outbox.close();
        });
    }

    async fn receive(self: &Rc<Self>, mut inbound: Inbound) -> Result<(), Fault> {
        loop {
            if self.outbox.is_congested() {
                self.pause_reads(self.outbox.wait_until_uncongested()).await.ok_or(Fault::Closed)?;
            }
            let Some(header) = inbound.header().await? else { return Ok(()) };
            inbound.expect_bulk(header.inline_bytes() > DIRECT_RECEIVE_BYTES);
            match header.kind {
                FrameKind::Request => self.receive_request(header, &mut inbound).await?,
                kind => {
                    inbound.body(&header).await?;
                    inbound.skip(header.inline_bytes()).await?;
                    match kind {
                        FrameKind::Cancel => self.requests.cancel(header.id),
                        FrameKind::Ping => {
                            self.outbox.push(Header::new(FrameKind::Pong, 0), &[], None, None);
                        }
                        FrameKind::Pong => {}
                        FrameKind::Close => return Ok(()),
                        kind => {
                            return Err(Fault::unexpected(format!("a client sent a frame of kind {kind:?}")));
                        }
                    }
                }
            }
        }
    }

    async fn receive_request(self: &Rc<Self>, header: Header, inbound: &mut Inbound) -> Result<(), Fault> {
        let deadline = Deadline::after(inbound.receive_stats().last_receive_ns.get(), header.deadline_ms)
            .of_connection(self.end_event.clone());
        self.check_payload_place(&header)?;
        let parts = [header.body_bytes, header.payload_bytes, header.reply_payload_bytes];
        let amount = parts.iter().map(|bytes| *bytes as usize).sum();
        let Some(permit) = self.admit(amount).await else { return Err(Fault::Closed) };
        let body = inbound.body(&header).await?;
        let job = self.decode(&header, body.as_slice());
        if job.as_ref().is_ok_and(|job| !self.has_slot_for(job.answer)) {
            return Err(Fault::unexpected("more requests are in flight than allowed"));
        }
        if self.requests.is_waiting(header.id) {
            return Err(Fault::unexpected(format!("request {} is in flight already", header.id)));
        }
        let payload = match (&job, header.payload_bytes as usize) {
            (_, 0) => None,
            (Err(_), _) => {
                inbound.skip(header.inline_bytes()).await?;
                None
            }
            (Ok(_), len) if header.payload_place != 0 => Some(self.copy_from_shared(&header, len)?),
            (Ok(_), len) => {
                let payload = IoBuf::alloc(len);
                inbound.payload(&header, &payload).await?;
                Some(payload)
            }
        };
        // A stopping server begins no requests; the client retries elsewhere, or later.
        if self.ending.get() {
            return Ok(());
        }
        match job {
            Ok(_) if deadline.has_passed() => self.answer_error(header.id, &deadline.error()),
            Ok(job) => self.begin(&header, job, deadline, payload, permit),
            Err(error) => self.answer_error(header.id, &error),
        }
        Ok(())
    }

    /// Whether the client may have one more such request in flight.
    fn has_slot_for(&self, answer: AnswerKind) -> bool {
        let most = self.core.shared.options.limits.requests_per_connection;
        match answer {
            AnswerKind::Unbounded => self.requests.waiting() < MAX_WAITING_REQUESTS,
            AnswerKind::NoPayload | AnswerKind::FillsPayload => self.requests.non_waiting() < most,
        }
    }

    /// Waits for a permit for a request; `None` when the connection has ended meanwhile.
    async fn admit(&self, amount: usize) -> Option<Permit> {
        let (budget, caller) = (&self.core.memory_budget, &self.caller);
        if let Some(permit) = budget.try_acquire(caller, amount) {
            return Some(permit);
        }
        self.pause_reads(budget.take(caller, amount)).await?
    }

    /// Stops reading until `wait` completes; `None` when the connection has ended meanwhile. The
    /// client doesn't count as silent in that time, and gets pings from the server.
    async fn pause_reads<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.reads_paused.set(true);
        let mut wait = pin!(wait);
        let outcome = loop {
            let stopped = self.changed.wait_until(|| self.reading_stopped.get());
            match rt::select(stopped, rt::timeout(WAIT_PING_INTERVAL, wait.as_mut())).await {
                Either::First(()) => break None,
                Either::Second(Some(outcome)) => break Some(outcome),
                Either::Second(None) => {
                    self.outbox.push(Header::new(FrameKind::Ping, 0), &[], None, None);
                }
            }
        };
        self.reads_resumed_ns.set(rt::monotonic_ns());
        self.reads_paused.set(false);
        outcome
    }

    /// Checks that the place that a request names lies inside the shared memory, for all bytes to
    /// be read or written there.
    fn check_payload_place(&self, header: &Header) -> Result<(), Fault> {
        if header.payload_place == 0 {
            return Ok(());
        }
        let len = header.payload_bytes.max(header.reply_payload_bytes) as usize;
        let inside = self.memory.as_ref().is_some_and(|memory| memory.contains(offset_of(header), len));
        match inside && len > 0 {
            true => Ok(()),
            false => {
                let page = header.payload_place - 1;
                Err(Fault::unexpected(format!("{len} bytes at page {page} are not in the shared memory")))
            }
        }
    }

    /// Copies the payload of a request out of shared memory, and verifies the copy. Later changes
    /// by the client have no effect.
    fn copy_from_shared(&self, header: &Header, len: usize) -> Result<IoBuf, Fault> {
        let payload = IoBuf::alloc(len);
        let memory = self.memory.as_ref().expect("the place was checked");
        memory.copy_out(offset_of(header), &payload);
        check_payload(header, &payload)?;
        Ok(payload)
    }

    fn decode(&self, header: &Header, body: &[u8]) -> Result<PreparedRequest> {
        if self.caller.proof == Proof::Unauthenticated && header.service != Service::Management as u8 {
            let message = format!("{} has no certificate", self.caller.name);
            return Err(Error::new(Errno::EACCES, message).hint("let it join: weft node join TOKEN"));
        }
        if self.is_revoked() {
            return Err(self.core.shared.authorizer.revoked(&self.caller));
        }
        let Some(route) = self.core.shared.router.route(header.service) else {
            let name = &self.core.shared.options.name;
            let message = format!("{name} has no service {}", header.service);
            return Err(Error::new(Errno::EOPNOTSUPP, message));
        };
        let job = route.decode(body)?;
        let authorizer = &self.core.shared.authorizer;
        match authorizer.authorize(&self.caller, (header.service, &job.rule), header.epoch) {
            AuthorizationOutcome::Admitted => Ok(job),
            AuthorizationOutcome::Refused(error) => Err(error),
            AuthorizationOutcome::NeedsNewerMap => Ok(self.authorized_later(header, job)),
        }
    }

    /// Whether the client's certificate was revoked, possibly after the connection was made.
    fn is_revoked(&self) -> bool {
        let Some(revocations) = self.core.shared.options.security.revocations() else { return false };
        let version = revocations.version();
        if version == 0 || version == self.not_revoked_version.get() {
            return false;
        }
        let is_revoked = revocations.is_proof_revoked(&self.caller.proof);
        if !is_revoked {
            self.not_revoked_version.set(version);
        }
        is_revoked
    }

    /// Whether the certificate shown in this connection's handshake has expired. A renewed
    /// certificate is shown in a new handshake.
    fn has_expired(&self) -> bool {
        matches!(&self.caller.proof, Proof::Member(identity) if identity.expires <= rt::now().secs)
    }

    /// A job that first waits for the map that its caller has.
    #[cold]
    fn authorized_later(&self, header: &Header, job: PreparedRequest) -> PreparedRequest {
        let (shared, service, epoch) = (self.core.shared.clone(), header.service, header.epoch);
        let PreparedRequest { answer, rule, run } = job;
        let run = move |caller: Rc<Caller>, deadline, payload| -> LocalFuture<'static, Result<Vec<u8>>> {
            Box::pin(async move {
                shared.authorizer.authorize_with_newer_map(&caller, (service, &rule), epoch).await?;
                run(caller, deadline, payload).await
            })
        };
        PreparedRequest { answer, rule, run: Box::new(run) }
    }

    fn begin(
        self: &Rc<Self>,
        header: &Header,
        job: PreparedRequest,
        deadline: Deadline,
        payload: Option<IoBuf>,
        permit: Permit,
    ) {
        let running = self.requests.begin(header.id, job.answer == AnswerKind::Unbounded, &deadline);
        let payload = match job.answer {
            AnswerKind::FillsPayload => Some(self.answer_buffer(header)),
            AnswerKind::NoPayload | AnswerKind::Unbounded => payload,
        };
        let (connection, header) = (self.clone(), *header);
        let work = (job.run)(self.caller.clone(), deadline, payload.clone());
        let job = StartedRequest { answer: job.answer, work, payload, permit };
        rt::spawn(async move { connection.execute(running, header, job).await });
    }

    /// Memory for the payload of an answer.
    fn answer_buffer(&self, header: &Header) -> IoBuf {
        let buffer = IoBuf::alloc(header.reply_payload_bytes as usize);
        if header.unchecked && self.outbox.checksums_payloads() {
            buffer.defer_verification();
        }
        buffer
    }

    async fn execute(&self, running: RunningRequest, request: Header, job: StartedRequest) {
        let StartedRequest { answer, work, payload, permit } = job;
        let id = request.id;
        // Its retransmission may be on the next connection already.
        if self.ending.get() {
            return;
        }
        let result = match &running.cancel {
            None => work.await,
            Some(cancel) => match rt::select(work, cancel.cancelled()).await {
                Either::First(result) => result,
                // The end of the connection isn't an answer: the client sends the request again.
                Either::Second(()) if self.ending.get() => return,
                Either::Second(()) => Err(Errno::ECANCELED.into()),
            },
        };
        match result {
            Ok(body) if body.len() <= MAX_ANSWER_BYTES => {
                let body = self.send_parts(id, &body);
                let filled = payload.filter(|_| answer == AnswerKind::FillsPayload);
                let header = Header::new(FrameKind::Reply, id);
                match (&self.memory, filled) {
                    (Some(memory), Some(filled)) if request.payload_place != 0 => {
                        memory.copy_in(offset_of(&request), &filled);
                        let header = Header { payload_place: request.payload_place, ..header };
                        self.outbox.push_placed(header, body, &filled, Some(permit));
                    }
                    (_, filled) => {
                        self.outbox.push(header, body, filled.as_ref(), Some(permit));
                    }
                }
            }
            Ok(body) => self.answer_error(id, &oversized(body.len())),
            Err(error) => self.answer_error(id, &error),
        }
        drop(running);
    }

    /// Sends all pieces of an answer's body except the last, which is returned. A body that fits
    /// into one frame is its own last piece.
    fn send_parts<'a>(&self, id: u64, mut body: &'a [u8]) -> &'a [u8] {
        while let Some((part, rest)) = body.split_at_checked(MAX_BODY_BYTES as usize)
            && !rest.is_empty()
        {
            self.outbox.push(Header::new(FrameKind::Part, id), part, None, None);
            body = rest;
        }
        body
    }

    fn answer_error(&self, id: u64, error: &Error) {
        let mut body = Vec::new();
        error.encode(&mut body);
        self.outbox.push(Header::new(FrameKind::Error, id), &body, None, None);
    }

    /// Sends pings to a silent client and ends the connection if it stays silent. Does the same for
    /// a client that sends requests and reads no answers. Ends the connection when its certificate
    /// expires.
    async fn watch(self: Rc<Self>, receive_stats: Rc<ReceiveStats>) {
        let liveness = self.core.shared.options.limits.liveness;
        let mut stall = Stall::default();
        loop {
            let ending = self.changed.wait_until(|| self.ending.get());
            if let Either::First(()) = rt::select(ending, rt::sleep(liveness.ping_after / 2)).await {
                return;
            }
            if self.has_expired() {
                let Caller { name, address, .. } = &*self.caller;
                tracing::info!(client = name, %address, "a connection is ended: its certificate has expired");
                return self.drain();
            }
            if stall.duration(&self.outbox, &self.stream) > liveness.dead_after {
                return self.end(Some(&Fault::ReceiverStalled));
            }
            if self.reads_paused.get() {
                continue;
            }
            let latest_ns = receive_stats.last_receive_ns.get().max(self.reads_resumed_ns.get());
            let silence = Duration::from_nanos(rt::monotonic_ns().saturating_sub(latest_ns));
            if silence > liveness.dead_after {
                return self.end(Some(&Fault::Silent));
            }
            if silence > liveness.ping_after {
                self.outbox.push(Header::new(FrameKind::Ping, 0), &[], None, None);
            }
        }
    }
}

/// How long the peer has read nothing of what is being sent, by repeated checks. The kernel's own
/// limit doesn't cover a peer that keeps sending, see [`Stream::acknowledged_bytes`].
#[derive(Default)]
struct Stall {
    acknowledged: Option<u64>,
    since_ns: u64,
}

impl Stall {
    fn duration(&mut self, outbox: &Outbox, stream: &Stream) -> Duration {
        let now_ns = rt::monotonic_ns();
        let acknowledged = stream.acknowledged_bytes();
        if acknowledged.is_none() || acknowledged != self.acknowledged || !outbox.has_unsent() {
            *self = Stall { acknowledged, since_ns: now_ns };
        }
        Duration::from_nanos(now_ns - self.since_ns)
    }
}

/// Offset in the shared memory of a header's place, bytes.
fn offset_of(header: &Header) -> usize {
    (header.payload_place as usize - 1) * SHARED_PAGE_BYTES
}

fn oversized(len: usize) -> Error {
    Error::new(Errno::E2BIG, format!("an answer has {len} bytes, at most {MAX_ANSWER_BYTES} are allowed"))
        .hint("this is a bug in weft: report it with the log of the process that answers")
}
