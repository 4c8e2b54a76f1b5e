//! One connection of a client, on its core.

use super::accept::refuse;
use super::admission::Verdict;
use super::core::{Arrival, ClientCore, ServerCore};
use super::requests::{Requests, Running};
use super::router::Job;
use crate::budget::Permit;
use crate::either::{Either, either};
use crate::fault::Fault;
use crate::inbound::{Heard, Inbound, check_payload};
use crate::limits::{DIRECT_RECEIVE_BYTES, MAX_WAITS_IN_FLIGHT, WELCOME_PING_INTERVAL};
use crate::outbox::Outbox;
use crate::signal::Signal;
use crate::stream::Stream;
use crate::{Caller, Deadline, LocalFuture, Proof};
use rt::{IoBuf, SharedMemory};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result};
use wire::frame::{Header, Kind, MAX_ANSWER_BYTES, MAX_BODY_BYTES, SHARED_PAGE_BYTES, VERSION, Welcome};
use wire::{Answer, Message, Service};

/// A request being executed.
struct Begun {
    answer: Answer,
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
    cut: Cell<bool>,
    /// The connection isn't read from until there is a permit for the last request.
    held_back: Cell<bool>,
    /// When reading resumed last, by the monotonic clock.
    reads_since_ns: Cell<u64>,
    /// No request runs on earlier connections of this client core, at least none that may be
    /// retransmitted.
    outlived: Cell<bool>,
    /// No request runs on this connection any more.
    ended: Cell<bool>,
    changed: Signal,
    /// The version of the revocation list by which the client was last found not to be revoked.
    cleared: Cell<u64>,
}

impl Connection {
    /// Serves a connection until it ends.
    pub(super) async fn serve(core: Rc<ServerCore>, arrival: Arrival) {
        let Arrival { stream, memory, mut caller, incarnation, place } = arrival;
        if memory.is_some() {
            // This connection replaces the one over TCP on which the client learned the socket's
            // name, and takes over its address.
            let prior = core.newest(&ClientCore::of(&caller)).filter(|prior| !prior.ending.get());
            let Some(prior) = prior else {
                let error =
                    Error::new(Errno::ESTALE, "there is no connection over TCP that this one replaces");
                let _ = refuse(&stream.unpark(), &error).await; // It may be gone, which is as good.
                return drop(place);
            };
            caller.address = prior.caller.address.clone();
        }
        let sum_payloads = core.shared.options.sum_payloads;
        let connection = Rc::new(Connection {
            core,
            stream: Rc::new(stream.unpark()),
            memory,
            caller: Rc::new(caller),
            incarnation,
            outbox: Outbox::new(sum_payloads),
            requests: Rc::default(),
            ending: Cell::new(false),
            cut: Cell::new(false),
            held_back: Cell::new(false),
            reads_since_ns: Cell::new(0),
            outlived: Cell::new(false),
            ended: Cell::new(false),
            changed: Signal::default(),
            cleared: Cell::new(0),
        });
        match connection.core.register(&connection) {
            Ok(prior) => connection.run(prior).await,
            Err(_) => {
                let error = Error::new(Errno::ESTALE, "there is a newer connection of this client core");
                let _ = refuse(&connection.stream, &error).await; // It may be gone, which is as good.
            }
        }
        drop(place);
    }

    /// The client core that the connection serves.
    pub(super) fn key(&self) -> ClientCore {
        ClientCore::of(&self.caller)
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    async fn run(self: &Rc<Self>, prior: Option<Rc<Connection>>) {
        let sender = self.clone();
        rt::spawn(async move {
            // The limit of TCP itself is set when a connection is accepted.
            let limit = sender.core.shared.options.limits.liveness.give_up_after;
            let limit = sender.memory.as_ref().map(|_| limit);
            let result = sender.outbox.run(&sender.stream, limit).await;
            sender.end(result.err().as_ref());
        });
        if let Some(prior) = prior {
            prior.end(None);
            self.outlive(&prior).await;
        }
        self.outlived.set(true);
        if !self.ending.get() {
            self.welcome();
            let inbound = Inbound::new(self.stream.clone());
            rt::spawn(self.clone().watch(inbound.heard()));
            let result = self.receive(inbound).await;
            self.end(result.err().as_ref());
        }
        self.requests.ended().await;
        self.ended.set(true);
        self.changed.notify();
        self.core.forget(self);
    }

    /// Waits for the requests of the previous connection, as long as their client may retransmit
    /// them. A request that hangs longer, on a disk that doesn't answer for example, doesn't block
    /// the client's other requests.
    async fn outlive(&self, prior: &Connection) {
        loop {
            let ended = prior.changed.wait_until(|| prior.ended.get());
            if rt::timeout(WELCOME_PING_INTERVAL, ended).await.is_some() {
                return;
            }
            if prior.outlived.get() && prior.requests.are_given_up() {
                let Caller { name, address, .. } = &*self.caller;
                let running = prior.requests.running();
                tracing::warn!(client = name, %address, running, "requests that their client has given up still run");
                return;
            }
            // The client sees that the server is alive.
            self.outbox.push(Header::new(Kind::Ping, 0), &[], None, None);
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
        self.outbox.push(Header::new(Kind::Welcome, 0), &body, None, None);
    }

    /// Ends the connection at once. Requests that may wait are cancelled; the others run to their
    /// end.
    pub(super) fn end(&self, fault: Option<&Fault>) {
        self.cut.set(true);
        if self.ending.replace(true) {
            self.stream.shutdown();
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
        self.requests.cancel_all();
        self.changed.notify();
    }

    /// Ends the connection in good order: sends a goodbye, and lets running requests be answered.
    pub(super) fn drain(self: &Rc<Self>) {
        if self.ending.replace(true) {
            return;
        }
        self.outbox.push(Header::new(Kind::Goodbye, 0), &[], None, None);
        self.requests.cancel_all();
        self.changed.notify();
        let connection = self.clone();
        rt::spawn(async move {
            connection.requests.ended().await;
            // The sender ends the connection when everything has been sent.
            connection.outbox.close();
        });
    }

    async fn receive(self: &Rc<Self>, mut inbound: Inbound) -> Result<(), Fault> {
        loop {
            if self.outbox.is_crowded() {
                self.hold_back(self.outbox.room()).await.ok_or(Fault::Closed)?;
            }
            let Some(header) = inbound.header().await? else { return Ok(()) };
            inbound.expect_bulk(header.inline_bytes() > DIRECT_RECEIVE_BYTES);
            match header.kind {
                Kind::Request => self.receive_request(header, &mut inbound).await?,
                kind => {
                    inbound.body(&header).await?;
                    inbound.skip(header.inline_bytes()).await?;
                    match kind {
                        Kind::Cancel => self.requests.cancel(header.id),
                        Kind::Ping => {
                            self.outbox.push(Header::new(Kind::Pong, 0), &[], None, None);
                        }
                        Kind::Pong => {}
                        Kind::Goodbye => return Ok(()),
                        kind => {
                            return Err(Fault::unexpected(format!("a client sent a frame of kind {kind:?}")));
                        }
                    }
                }
            }
        }
    }

    async fn receive_request(self: &Rc<Self>, header: Header, inbound: &mut Inbound) -> Result<(), Fault> {
        let deadline = Deadline::after(inbound.heard().at_ns.get(), header.deadline_ms);
        self.check_place(&header)?;
        let parts = [header.body_bytes, header.payload_bytes, header.wanted_bytes];
        let amount = parts.iter().map(|bytes| *bytes as usize).sum();
        let Some(permit) = self.admit(amount).await else { return Err(Fault::Closed) };
        let body = inbound.body(&header).await?;
        let job = self.decode(&header, body.as_slice());
        if job.as_ref().is_ok_and(|job| !self.may_begin(job.answer)) {
            return Err(Fault::unexpected("more requests are in flight than were allowed"));
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
            (Ok(_), len) if header.place != 0 => Some(self.take_out(&header, len)?),
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
            Ok(_) if deadline.is_over() => self.answer_error(header.id, &deadline.error()),
            Ok(job) => self.begin(&header, job, deadline, payload, permit),
            Err(error) => self.answer_error(header.id, &error),
        }
        Ok(())
    }

    /// Whether the client may have one more such request in flight.
    fn may_begin(&self, answer: Answer) -> bool {
        let most = self.core.shared.options.limits.requests_per_connection;
        match answer {
            Answer::Waits => self.requests.waiting() < MAX_WAITS_IN_FLIGHT,
            Answer::Plain | Answer::Fills => self.requests.working() < most,
        }
    }

    /// Waits for a permit for a request; `None` when the connection has ended meanwhile.
    async fn admit(&self, amount: usize) -> Option<Permit> {
        let (room, caller) = (&self.core.room, &self.caller);
        if let Some(permit) = room.try_take(caller, amount) {
            return Some(permit);
        }
        self.hold_back(room.take(caller, amount)).await?
    }

    /// Stops reading until `wait` completes; `None` when the connection has ended meanwhile. The
    /// client doesn't count as silent in that time, and gets pings from the server.
    async fn hold_back<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.held_back.set(true);
        let mut wait = pin!(wait);
        let outcome = loop {
            let cut = self.changed.wait_until(|| self.cut.get());
            match either(cut, rt::timeout(WELCOME_PING_INTERVAL, wait.as_mut())).await {
                Either::First(()) => break None,
                Either::Second(Some(outcome)) => break Some(outcome),
                Either::Second(None) => {
                    self.outbox.push(Header::new(Kind::Ping, 0), &[], None, None);
                }
            }
        };
        self.reads_since_ns.set(rt::monotonic_ns());
        self.held_back.set(false);
        outcome
    }

    /// Checks that the place that a request names lies inside the shared memory, for all bytes to
    /// be read or written there.
    fn check_place(&self, header: &Header) -> Result<(), Fault> {
        if header.place == 0 {
            return Ok(());
        }
        let len = header.payload_bytes.max(header.wanted_bytes) as usize;
        let inside = self.memory.as_ref().is_some_and(|memory| memory.holds(offset_of(header), len));
        match inside && len > 0 {
            true => Ok(()),
            false => {
                let page = header.place - 1;
                Err(Fault::unexpected(format!("{len} bytes at page {page} are not in the shared memory")))
            }
        }
    }

    /// Copies the payload of a request out of shared memory, and verifies the copy. Later changes
    /// by the client have no effect.
    fn take_out(&self, header: &Header, len: usize) -> Result<IoBuf, Fault> {
        let payload = IoBuf::alloc(len);
        let memory = self.memory.as_ref().expect("the place was checked");
        memory.copy_out(offset_of(header), &payload);
        check_payload(header, &payload)?;
        Ok(payload)
    }

    fn decode(&self, header: &Header, body: &[u8]) -> Result<Job> {
        if self.caller.proof == Proof::Stranger && header.service != Service::Management as u8 {
            let message = format!("{} has no certificate", self.caller.name);
            return Err(Error::new(Errno::EACCES, message).hint("let it join: weft node join TOKEN"));
        }
        if self.is_revoked() {
            return Err(self.core.shared.admission.revoked(&self.caller));
        }
        let Some(route) = self.core.shared.router.route(header.service) else {
            let name = &self.core.shared.options.name;
            let message = format!("{name} has no service {}", header.service);
            return Err(Error::new(Errno::EOPNOTSUPP, message));
        };
        let job = route.decode(body)?;
        let admission = &self.core.shared.admission;
        match admission.judge(&self.caller, (header.service, &job.rule), header.epoch) {
            Verdict::Admitted => Ok(job),
            Verdict::Refused(error) => Err(error),
            Verdict::MapIsOlder => Ok(self.once_admitted(header, job)),
        }
    }

    /// Whether the client's certificate was revoked, possibly after the connection was made.
    fn is_revoked(&self) -> bool {
        let Some(revocations) = self.core.shared.options.security.revocations() else { return false };
        let version = revocations.version();
        if version == 0 || version == self.cleared.get() {
            return false;
        }
        let is_revoked = revocations.include_proof(&self.caller.proof);
        if !is_revoked {
            self.cleared.set(version);
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
    fn once_admitted(&self, header: &Header, job: Job) -> Job {
        let (shared, service, epoch) = (self.core.shared.clone(), header.service, header.epoch);
        let Job { answer, rule, run } = job;
        let run = move |caller: Rc<Caller>, deadline, payload| -> LocalFuture<'static, Result<Vec<u8>>> {
            Box::pin(async move {
                shared.admission.await_map(&caller, (service, &rule), epoch).await?;
                run(caller, deadline, payload).await
            })
        };
        Job { answer, rule, run: Box::new(run) }
    }

    fn begin(
        self: &Rc<Self>,
        header: &Header,
        job: Job,
        deadline: Deadline,
        payload: Option<IoBuf>,
        permit: Permit,
    ) {
        let running = self.requests.begin(header.id, job.answer == Answer::Waits, deadline);
        let payload = match job.answer {
            Answer::Fills => Some(self.answer_buffer(header)),
            Answer::Plain | Answer::Waits => payload,
        };
        let (connection, header) = (self.clone(), *header);
        let work = (job.run)(self.caller.clone(), deadline, payload.clone());
        let job = Begun { answer: job.answer, work, payload, permit };
        rt::spawn(async move { connection.perform(running, header, job).await });
    }

    /// Memory for the payload of an answer.
    fn answer_buffer(&self, header: &Header) -> IoBuf {
        let buffer = IoBuf::alloc(header.wanted_bytes as usize);
        if header.unchecked && self.outbox.sums_payloads() {
            buffer.leave_checking();
        }
        buffer
    }

    async fn perform(&self, running: Running, request: Header, job: Begun) {
        let Begun { answer, work, payload, permit } = job;
        let id = request.id;
        // Its retransmission may be on the next connection already.
        if self.ending.get() {
            return;
        }
        let result = match &running.cancel {
            None => work.await,
            Some(cancel) => match either(work, cancel.cancelled()).await {
                Either::First(result) => result,
                // The end of the connection isn't an answer: the client sends the request again.
                Either::Second(()) if self.ending.get() => return,
                Either::Second(()) => Err(Errno::ECANCELED.into()),
            },
        };
        match result {
            Ok(body) if body.len() <= MAX_ANSWER_BYTES => {
                let body = self.send_parts(id, &body);
                let filled = payload.filter(|_| answer == Answer::Fills);
                let header = Header::new(Kind::Reply, id);
                match (&self.memory, filled) {
                    (Some(memory), Some(filled)) if request.place != 0 => {
                        memory.copy_in(offset_of(&request), &filled);
                        let header = Header { place: request.place, ..header };
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
            self.outbox.push(Header::new(Kind::Part, id), part, None, None);
            body = rest;
        }
        body
    }

    fn answer_error(&self, id: u64, error: &Error) {
        let mut body = Vec::new();
        error.encode(&mut body);
        self.outbox.push(Header::new(Kind::Error, id), &body, None, None);
    }

    /// Sends pings to a silent client and ends the connection if it stays silent. Does the same for
    /// a client that sends requests and reads no answers. Ends the connection when its certificate
    /// expires.
    async fn watch(self: Rc<Self>, heard: Rc<Heard>) {
        let liveness = self.core.shared.options.limits.liveness;
        let mut stall = Stall::default();
        loop {
            let ending = self.changed.wait_until(|| self.ending.get());
            if let Either::First(()) = either(ending, rt::sleep(liveness.ask_after / 2)).await {
                return;
            }
            if self.has_expired() {
                let Caller { name, address, .. } = &*self.caller;
                tracing::info!(client = name, %address, "a connection outlives its certificate, and is ended");
                return self.drain();
            }
            if stall.lasts(&self.outbox, &self.stream) > liveness.give_up_after {
                return self.end(Some(&Fault::Unread));
            }
            if self.held_back.get() {
                continue;
            }
            let latest_ns = heard.at_ns.get().max(self.reads_since_ns.get());
            let silence = Duration::from_nanos(rt::monotonic_ns().saturating_sub(latest_ns));
            if silence > liveness.give_up_after {
                return self.end(Some(&Fault::Silent));
            }
            if silence > liveness.ask_after {
                self.outbox.push(Header::new(Kind::Ping, 0), &[], None, None);
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
    fn lasts(&mut self, outbox: &Outbox, stream: &Stream) -> Duration {
        let now_ns = rt::monotonic_ns();
        let acknowledged = stream.acknowledged_bytes();
        if acknowledged.is_none() || acknowledged != self.acknowledged || !outbox.has_work() {
            *self = Stall { acknowledged, since_ns: now_ns };
        }
        Duration::from_nanos(now_ns - self.since_ns)
    }
}

/// Offset in the shared memory of a header's place, bytes.
fn offset_of(header: &Header) -> usize {
    (header.place as usize - 1) * SHARED_PAGE_BYTES
}

fn oversized(len: usize) -> Error {
    Error::new(Errno::E2BIG, format!("an answer has {len} bytes, at most {MAX_ANSWER_BYTES} are allowed"))
        .hint("this is a fault of weft: report it with the log of the process that answers")
}
