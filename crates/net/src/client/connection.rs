//! One connection to a peer: its calls, and the tasks that send, receive and watch.

use super::PeerOptions;
use super::calls::{Call, CallOutcome, CallPermits, CallState, Calls};
use super::status::LinkCounters;
use crate::Liveness;
use crate::budget::Budget;
use crate::fault::Fault;
use crate::inbound::{Inbound, ReceiveStats, matches_or_fault};
use crate::limits::{
    COPIED_PAYLOAD_BYTES, DIRECT_RECEIVE_BYTES, IDLE_CONNECTION_LIMIT, MAX_BYTES_IN_FLIGHT,
    MAX_WAITING_REQUESTS, WATCH_INTERVAL,
};
use crate::outbox::Outbox;
use crate::shared_arena::{Arena, Piece};
use crate::signal::Signal;
use crate::stream::{Stream, Transport};
use rt::Either;
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Epoch, Error};
use wire::frame::{FrameKind, Header, MAX_ANSWER_BYTES};
use wire::{AnswerKind, Message, Service};

/// A request as a connection sends it.
pub(super) struct OutgoingRequest {
    pub(super) service: Service,
    pub(super) answer: AnswerKind,
    pub(super) epoch: Epoch,
    pub(super) payload: Option<IoBuf>,
    /// The server may leave it to this end to verify the checksum of the answer's payload.
    pub(super) verifies_checksum: bool,
    /// When it times out, by the monotonic clock; `u64::MAX`: never.
    pub(super) deadline_ns: u64,
}

impl OutgoingRequest {
    /// Time left until the request times out.
    pub(super) fn left(&self) -> Duration {
        if self.deadline_ns == u64::MAX {
            return Duration::MAX;
        }
        Duration::from_nanos(self.deadline_ns.saturating_sub(rt::monotonic_ns()))
    }
}

/// A connection that has been welcomed.
pub(super) struct Connection {
    stream: Rc<Stream>,
    outbox: Outbox,
    /// Memory shared with a server on this machine.
    arena: Option<Rc<Arena>>,
    calls: RefCell<Calls>,
    /// Requests in flight, except those that may wait for other clients.
    requests: Rc<Budget>,
    /// Requests in flight that may wait for other clients, see [`AnswerKind::Unbounded`].
    waits: Rc<Budget>,
    bytes: Rc<Budget>,
    receive_stats: Rc<ReceiveStats>,
    liveness: Liveness,
    counters: Arc<LinkCounters>,
    /// Bytes sent and received that are already included in the counters.
    accounted: Cell<(u64, u64)>,
    /// The connection accepts no more calls.
    ending: Cell<bool>,
    /// The first reason for its end.
    fault: RefCell<Option<Fault>>,
    /// Number of running tasks that use the stream.
    stream_tasks: Cell<u8>,
    /// When the unanswered ping was sent; 0: there is none.
    pinged_at_ns: Cell<u64>,
    changed: Signal,
    /// Whether the watch task is awake, and the signal that wakes it.
    is_watching: Cell<bool>,
    watch_wakeup: Signal,
}

impl Connection {
    /// Starts the tasks of a connection.
    pub(super) fn start(
        stream: Rc<Stream>,
        inbound: Inbound,
        arena: Option<Rc<Arena>>,
        credits: usize,
        options: &PeerOptions,
        counters: Arc<LinkCounters>,
    ) -> Rc<Connection> {
        let connection = Rc::new(Connection {
            stream,
            outbox: Outbox::new(options.checksum_payloads),
            arena,
            liveness: options.liveness,
            calls: RefCell::default(),
            requests: Budget::new(credits),
            waits: Budget::new(MAX_WAITING_REQUESTS),
            bytes: Budget::new(MAX_BYTES_IN_FLIGHT),
            receive_stats: inbound.receive_stats(),
            counters,
            accounted: Cell::default(),
            ending: Cell::new(false),
            fault: RefCell::new(None),
            stream_tasks: Cell::new(2),
            pinged_at_ns: Cell::new(0),
            changed: Signal::default(),
            is_watching: Cell::new(false),
            watch_wakeup: Signal::default(),
        });
        let sender = connection.clone();
        rt::spawn(async move {
            let result = sender.outbox.run(&sender.stream, None).await;
            sender.stream_task_ended(result.err());
        });
        let receiver = connection.clone();
        rt::spawn(async move {
            let fault = receiver.receive(inbound).await;
            receiver.stream_task_ended(Some(fault.err().unwrap_or(Fault::Closed)));
        });
        rt::spawn(connection.clone().watch());
        connection
    }

    /// Whether the connection accepts calls.
    pub(super) fn is_usable(&self) -> bool {
        !self.ending.get()
    }

    /// Waits until the connection accepts no more calls.
    pub(super) async fn wait_until_ending(&self) {
        self.changed.wait_until(|| self.ending.get()).await;
    }

    /// Waits until the connection is closed, and returns the reason. Until then it may access the
    /// buffers of its calls.
    pub(super) async fn wait_until_closed(&self) -> String {
        self.changed.wait_until(|| self.stream_tasks.get() == 0).await;
        self.fault.borrow().as_ref().map_or_else(|| "it was closed".into(), |fault| fault.to_string())
    }

    /// Waits until the connection no longer uses the buffer of a call whose future was dropped.
    pub(super) async fn wait_until_released(&self) {
        if self.fault.borrow().is_some() {
            self.changed.wait_until(|| self.stream_tasks.get() == 0).await;
        }
    }

    /// Whether the connection ended with a fault that the network path may have caused.
    pub(super) fn has_path_failure(&self) -> bool {
        self.stream.transport() != Transport::SharedMemory
            && self.fault.borrow().as_ref().is_some_and(Fault::may_be_path_failure)
    }

    /// Whether this side ended it without a fault.
    pub(super) fn was_abandoned(&self) -> bool {
        matches!(&*self.fault.borrow(), Some(Fault::Abandoned))
    }

    /// Ends the connection in good order: running calls may still be answered.
    pub(super) fn close_gracefully(&self) {
        if !self.ending.replace(true) {
            self.outbox.push(Header::new(FrameKind::Close, 0), &[], None, None);
            self.outbox.close();
            self.notify_all();
        }
    }

    /// Ends the connection at once because the peer has another address now. Its calls are
    /// retransmitted on the next connection.
    pub(super) fn close_for_address_change(&self) {
        self.abort(Some(Fault::AddressChanged));
    }

    /// Ends the connection at once.
    fn abort(&self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.fault.borrow_mut().get_or_insert(fault);
        }
        self.ending.set(true);
        self.outbox.abort();
        self.stream.shutdown();
        self.close_request_budgets();
        self.bytes.close();
        self.notify_all();
    }

    /// Makes all requests for credits fail.
    fn close_request_budgets(&self) {
        self.requests.close();
        self.waits.close();
    }

    /// Wakes all tasks to check the connection's state.
    fn notify_all(&self) {
        self.changed.notify();
        self.watch_wakeup.notify();
    }

    /// Notes that a task that uses the stream has ended; with the last one the calls are lost.
    fn stream_task_ended(&self, fault: Option<Fault>) {
        self.abort(fault);
        self.stream_tasks.set(self.stream_tasks.get() - 1);
        if self.stream_tasks.get() == 0 {
            self.account();
            let ids = self.calls.borrow().ids();
            ids.into_iter().for_each(|id| self.calls.borrow_mut().finish(id, CallOutcome::Lost));
            self.changed.notify();
        }
    }

    /// Sends a request and waits for its answer. `body` is the encoded request.
    pub(super) async fn exchange(self: &Rc<Self>, request: &OutgoingRequest, body: Vec<u8>) -> CallOutcome {
        let amount = request.payload.as_ref().map_or(0, IoBuf::len);
        let permits = match self.acquire_permits(amount, request).await {
            Ok(held) => held,
            Err(outcome) => return outcome,
        };
        // The time spent waiting so far isn't available to the server.
        let left = request.left();
        if left.is_zero() {
            return CallOutcome::TimedOut;
        }
        let fills = request.answer == AnswerKind::FillsPayload;
        let arena = self.arena.as_ref().filter(|_| amount > COPIED_PAYLOAD_BYTES);
        // Without a free piece the payload goes over the socket, as it would without shared memory.
        let piece = arena.and_then(|arena| arena.take(amount));
        let header = Header {
            service: request.service as u8,
            reply_payload_bytes: if fills { amount as u32 } else { 0 },
            deadline_ms: if left == Duration::MAX { 0 } else { (left.as_millis() as u32).max(1) },
            epoch: request.epoch,
            payload_place: piece.as_ref().map_or(0, Piece::place),
            unchecked: fills && request.verifies_checksum,
            ..Header::new(FrameKind::Request, self.calls.borrow().next_id())
        };
        let sent_payload = request.payload.as_ref().filter(|_| !fills);
        let frame = match (&piece, sent_payload) {
            (Some(piece), Some(payload)) => {
                piece.copy_in(payload);
                self.outbox.push_placed(header, &body, payload, None)
            }
            _ => self.outbox.push(header, &body, sent_payload, None),
        };
        let id = self.calls.borrow_mut().insert(Call {
            deadline_ns: request.deadline_ns,
            frame,
            buffer: request.payload.clone().filter(|_| fills),
            verifies_checksum: fills && request.verifies_checksum,
            sends_payload: sent_payload.is_some() && piece.is_none(),
            receiving: false,
            bulk: fills && amount > DIRECT_RECEIVE_BYTES && piece.is_none(),
            piece,
            permits,
            state: CallState::Waiting(None),
            body,
            parts: Vec::new(),
        });
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if !self.is_watching.replace(true) {
            self.watch_wakeup.notify();
        }
        let guard = CallGuard { connection: self, id, waits: request.answer == AnswerKind::Unbounded };
        poll_fn(|cx| guard.connection.calls.borrow_mut().poll(guard.id, cx)).await
    }

    /// Waits for permits for a request with `amount` bytes of payload.
    ///
    /// A request that may wait for other clients uses a separate budget. What it waits for may be a
    /// request on this very connection, such as the unlock of a file that others wait to lock.
    async fn acquire_permits(
        &self,
        amount: usize,
        request: &OutgoingRequest,
    ) -> Result<CallPermits, CallOutcome> {
        let requests = match request.answer {
            AnswerKind::Unbounded => &self.waits,
            AnswerKind::NoPayload | AnswerKind::FillsPayload => &self.requests,
        };
        let both = async { Some((requests.acquire(1).await?, self.bytes.acquire(amount).await?)) };
        let permits = match requests.try_acquire(1).zip(self.bytes.try_acquire(amount)) {
            Some(both) => Some(both),
            None => rt::timeout(request.left(), both).await.ok_or(CallOutcome::TimedOut)?,
        };
        let (credit, bytes) = permits.filter(|_| self.is_usable()).ok_or(CallOutcome::Lost)?;
        Ok(CallPermits { _credit: credit, bytes: Some(bytes) })
    }

    async fn receive(&self, mut inbound: Inbound) -> Result<(), Fault> {
        loop {
            inbound.expect_bulk(self.calls.borrow().expects_bulk());
            let Some(header) = inbound.header().await? else { return Ok(()) };
            match header.kind {
                FrameKind::Reply => self.receive_reply(&header, &mut inbound).await?,
                FrameKind::Part => self.receive_part(&header, &mut inbound).await?,
                FrameKind::Error => self.receive_error(&header, &mut inbound).await?,
                kind => {
                    inbound.body(&header).await?;
                    inbound.skip(header.inline_bytes()).await?;
                    self.handle_control_frame(kind)?;
                }
            }
            self.account();
        }
    }

    fn handle_control_frame(&self, kind: FrameKind) -> Result<(), Fault> {
        match kind {
            FrameKind::Ping => {
                self.outbox.push(Header::new(FrameKind::Pong, 0), &[], None, None);
            }
            FrameKind::Pong => {
                let since = rt::monotonic_ns().saturating_sub(self.pinged_at_ns.take());
                self.counters.round_trip_ns.store(since, Ordering::Relaxed);
            }
            FrameKind::Close => {
                self.ending.set(true);
                self.close_request_budgets();
                self.notify_all();
            }
            kind => return Err(Fault::unexpected(format!("a server sent a frame of kind {kind:?}"))),
        }
        Ok(())
    }

    /// Receives a piece of an answer that is longer than one frame.
    async fn receive_part(&self, header: &Header, inbound: &mut Inbound) -> Result<(), Fault> {
        let body = inbound.body(header).await?;
        {
            let mut calls = self.calls.borrow_mut();
            let call = calls.get(header.id).ok_or_else(|| unknown_request(header.id))?;
            if call.parts.len() + body.len() > MAX_ANSWER_BYTES {
                let message = format!("an answer has more than {MAX_ANSWER_BYTES} bytes");
                return Err(Fault::unexpected(message));
            }
            // Pieces of an abandoned call are discarded.
            if matches!(call.state, CallState::Waiting(_)) {
                call.parts.extend_from_slice(body.as_slice());
            }
        }
        inbound.skip(header.inline_bytes()).await
    }

    async fn receive_reply(&self, header: &Header, inbound: &mut Inbound) -> Result<(), Fault> {
        let body = inbound.body(header).await?;
        let payload_bytes = header.payload_bytes as usize;
        let (buffer, verifies_checksum) = {
            let mut calls = self.calls.borrow_mut();
            let call = calls.get(header.id).ok_or_else(|| unknown_request(header.id))?;
            match call.parts.is_empty() {
                true => call.body.clear(),
                false => call.body = std::mem::take(&mut call.parts),
            }
            call.body.extend_from_slice(body.as_slice());
            let wanted = matches!(call.state, CallState::Waiting(_));
            call.receiving = wanted && call.buffer.is_some();
            (call.buffer.clone().filter(|_| wanted), call.verifies_checksum)
        };
        if header.unchecked && (!verifies_checksum || header.payload_sum.is_none()) {
            let what = if verifies_checksum { "without a checksum" } else { "which wasn't asked for" };
            return Err(Fault::unexpected(format!("a payload is unverified, {what}")));
        }
        let matches = match buffer {
            Some(buffer) if buffer.len() == payload_bytes && header.payload_place != 0 => {
                self.copy_from_shared(header, &buffer)?
            }
            Some(buffer) if buffer.len() == payload_bytes => {
                inbound.unchecked_payload(header, &buffer).await?
            }
            Some(buffer) => {
                let message =
                    format!("a reply brings {payload_bytes} bytes, {} were asked for", buffer.len());
                return Err(Fault::unexpected(message));
            }
            None => {
                inbound.skip(header.inline_bytes()).await?;
                true
            }
        };
        self.complete(header.id, |body| match matches {
            true => CallOutcome::Reply(std::mem::take(body)),
            false => CallOutcome::ChecksumMismatch,
        });
        Ok(())
    }

    /// Copies a payload out of the shared memory, and verifies the copy. False: it doesn't match a
    /// checksum that the server hasn't verified.
    fn copy_from_shared(&self, header: &Header, buffer: &IoBuf) -> Result<bool, Fault> {
        let mut calls = self.calls.borrow_mut();
        let piece = calls.get(header.id).and_then(|call| call.piece.as_ref());
        let Some(piece) = piece.filter(|piece| piece.place() == header.payload_place) else {
            return Err(Fault::unexpected(format!(
                "a reply is at page {} of the memory, which no request named",
                header.payload_place - 1
            )));
        };
        piece.copy_out(buffer);
        matches_or_fault(header, buffer)
    }

    async fn receive_error(&self, header: &Header, inbound: &mut Inbound) -> Result<(), Fault> {
        let body = inbound.body(header).await?;
        let error = Error::decode(body.as_slice())?;
        inbound.skip(header.inline_bytes()).await?;
        self.complete(header.id, |_| CallOutcome::Failed(error));
        Ok(())
    }

    /// Completes a call with the server's answer.
    fn complete(&self, id: u64, outcome: impl FnOnce(&mut Vec<u8>) -> CallOutcome) {
        let mut calls = self.calls.borrow_mut();
        let Some(call) = calls.get(id) else { return };
        call.receiving = false;
        let outcome = outcome(&mut call.body);
        match call.state {
            // The call was abandoned in the meantime; its permits are released now.
            CallState::Abandoned => drop(calls.remove(id)),
            _ => calls.finish(id, outcome),
        }
        if self.ending.get() && calls.len() == 0 {
            drop(calls);
            self.abort(None);
        }
    }

    /// Handles calls that time out, and a silent peer, while there are calls. Ends a connection
    /// that has been idle for long.
    async fn watch(self: Rc<Self>) {
        while self.stream_tasks.get() > 0 {
            if self.calls.borrow().len() == 0 {
                if self.ending.get() {
                    return self.abort(None);
                }
                self.is_watching.set(false);
                let busy = self.watch_wakeup.wait_until(|| self.is_watching.get() || self.ending.get());
                if rt::timeout(IDLE_CONNECTION_LIMIT, busy).await.is_none() {
                    // The server can give its place to another connection. The next call makes a
                    // new one.
                    self.close_gracefully();
                }
                self.receive_stats.last_receive_ns.set(rt::monotonic_ns());
                self.pinged_at_ns.set(0);
            }
            let closed = self.changed.wait_until(|| self.stream_tasks.get() == 0);
            if let Either::First(()) = rt::select(closed, rt::sleep(WATCH_INTERVAL)).await {
                return;
            }
            self.check_calls();
        }
    }

    /// Adds the bytes transferred since the last time to the counters.
    fn account(&self) {
        let now = (self.outbox.sent_bytes(), self.receive_stats.bytes.get());
        let before = self.accounted.replace(now);
        self.counters.bytes_sent.fetch_add(now.0 - before.0, Ordering::Relaxed);
        self.counters.bytes_received.fetch_add(now.1 - before.1, Ordering::Relaxed);
    }

    fn check_calls(&self) {
        self.account();
        let now = rt::monotonic_ns();
        let silence = Duration::from_nanos(now.saturating_sub(self.receive_stats.last_receive_ns.get()));
        if silence > self.liveness.dead_after {
            return self.abort(Some(Fault::Silent));
        }
        if silence > self.liveness.ping_after && self.pinged_at_ns.get() == 0 {
            self.pinged_at_ns.set(now);
            self.outbox.push(Header::new(FrameKind::Ping, 0), &[], None, None);
        }
        let mut calls = self.calls.borrow_mut();
        for id in calls.ids() {
            let Some(call) = calls.get(id) else { continue };
            let waiting = matches!(call.state, CallState::Waiting(_));
            if !waiting || call.deadline_ns > now {
                continue;
            }
            if call.receiving || call.sends_payload && !self.outbox.has_sent(call.frame) {
                // Its buffer is in use until the connection is closed.
                return self.abort(Some(Fault::TransferTimedOut));
            }
            calls.finish(id, CallOutcome::TimedOut);
        }
    }
}

/// The fault of a server that answers a request that it wasn't sent.
fn unknown_request(id: u64) -> Fault {
    Fault::unexpected(format!("an answer to request {id}, which was not sent"))
}

/// Abandons a call when its future is dropped; cancels it at the server if it may wait.
struct CallGuard<'a> {
    connection: &'a Rc<Connection>,
    id: u64,
    waits: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let connection = self.connection;
        let busy = {
            let mut calls = connection.calls.borrow_mut();
            let Some(call) = calls.get(self.id) else { return };
            let unsent = call.sends_payload && !connection.outbox.has_sent(call.frame);
            let busy = unsent || call.receiving;
            match call.state {
                // It isn't answered yet.
                CallState::Waiting(_) | CallState::Done(CallOutcome::TimedOut) => call.abandon(),
                CallState::Done(_) => drop(calls.remove(self.id)),
                CallState::Abandoned => return,
            }
            busy
        };
        if busy {
            // The caller may reuse the buffer at once. The other calls are retransmitted on the
            // next connection.
            connection.abort(Some(Fault::Abandoned));
        } else if self.waits {
            connection.outbox.push(Header::new(FrameKind::Cancel, self.id), &[], None, None);
        }
    }
}
