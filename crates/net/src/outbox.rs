//! Sending frames into a stream.
//!
//! One send is in progress at a time. Frames queued meanwhile leave with the next one. Headers,
//! bodies and small payloads are gathered in a staging buffer; large payloads are sent in place.

use crate::budget::Permit;
use crate::fault::Fault;
use crate::limits::{COPIED_PAYLOAD_BYTES, MAX_QUEUED_NON_PAYLOAD_BYTES, SEND_STAGE_BYTES};
use crate::signal::Signal;
use crate::stream::Stream;
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use types::{checksums_enabled, combine_block_crcs, crc32c};
use wire::frame::{HEADER_BYTES, Header};

/// The frames that wait to be sent. The requests in flight bound the payloads. A server also stops
/// reading from a client while too many other bytes are queued for it, since a client that doesn't
/// read could make that queue grow.
pub(crate) struct Outbox {
    queue: RefCell<Queue>,
    changed: Signal,
    /// Frames queued and frames sent since the connection began.
    queued: Cell<u64>,
    sent: Cell<u64>,
    sent_bytes: Cell<u64>,
    checksum_payloads: bool,
}

#[derive(Default)]
struct Queue {
    /// Staging buffer, filled up to `end`; the bytes before `start` already belong to pieces.
    stage: Option<IoBuf>,
    start: usize,
    end: usize,
    pieces: Vec<IoBuf>,
    bytes: u64,
    /// Queued bytes that aren't payload.
    non_payload_bytes: usize,
    /// Released when the queued frames have been sent.
    permits: Vec<Permit>,
    /// No more frames are accepted.
    closed: bool,
    /// Queued frames need not be sent either.
    aborted: bool,
}

impl Outbox {
    pub(crate) fn new(checksum_payloads: bool) -> Outbox {
        Outbox {
            queue: RefCell::default(),
            changed: Signal::default(),
            queued: Cell::new(0),
            sent: Cell::new(0),
            sent_bytes: Cell::new(0),
            checksum_payloads,
        }
    }

    /// Queues a frame; fills in the lengths and checksums of `header`. Returns the frame's number,
    /// see [`Outbox::has_sent`].
    ///
    /// The payload's bytes must not change until the frame is sent. `permit` is released then.
    pub(crate) fn push(
        &self,
        header: Header,
        body: &[u8],
        payload: Option<&IoBuf>,
        permit: Option<Permit>,
    ) -> u64 {
        let header = self.complete(header, body, payload);
        self.enqueue(&header, body, payload, permit)
    }

    /// The same for a payload that is already in shared memory, at the header's place. `payload` is
    /// its source.
    pub(crate) fn push_placed(
        &self,
        header: Header,
        body: &[u8],
        payload: &IoBuf,
        permit: Option<Permit>,
    ) -> u64 {
        let header = self.complete(header, body, Some(payload));
        self.enqueue(&header, body, None, permit)
    }

    fn complete(&self, header: Header, body: &[u8], payload: Option<&IoBuf>) -> Header {
        let mut header = header.with_body(body);
        if let Some(payload) = payload {
            header.payload_bytes = payload.len() as u32;
            if self.checksums_payloads() {
                let stored = payload.with_stored_checksums(combine_block_crcs);
                header.unchecked = stored.is_some();
                let sum = stored.or_else(|| payload.with_checksums(combine_block_crcs));
                header.payload_sum = Some(sum.unwrap_or_else(|| crc32c(payload.as_slice())));
            }
        }
        header
    }

    /// Whether payloads get a checksum.
    pub(crate) fn checksums_payloads(&self) -> bool {
        self.checksum_payloads && checksums_enabled()
    }

    fn enqueue(&self, header: &Header, body: &[u8], payload: Option<&IoBuf>, permit: Option<Permit>) -> u64 {
        let mut queue = self.queue.borrow_mut();
        if queue.closed {
            return u64::MAX;
        }
        queue.append(&header.encode());
        queue.append(body);
        queue.non_payload_bytes += HEADER_BYTES + body.len();
        match payload {
            Some(payload) if payload.len() > COPIED_PAYLOAD_BYTES => queue.append_shared(payload.clone()),
            Some(payload) => queue.append(payload.as_slice()),
            None => {}
        }
        queue.permits.extend(permit);
        drop(queue);
        self.queued.set(self.queued.get() + 1);
        self.changed.notify();
        self.queued.get()
    }

    /// Whether the frame with this number has been sent, so that its payload's memory is free.
    pub(crate) fn has_sent(&self, number: u64) -> bool {
        self.sent.get() >= number
    }

    /// Whether frames are queued or being sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.sent.get() < self.queued.get()
    }

    /// Whether more bytes are queued than may be while the connection is read.
    pub(crate) fn is_congested(&self) -> bool {
        let queue = self.queue.borrow();
        queue.non_payload_bytes > MAX_QUEUED_NON_PAYLOAD_BYTES && !queue.closed
    }

    /// Waits until the outbox isn't congested.
    pub(crate) async fn wait_until_uncongested(&self) {
        self.changed.wait_until(|| !self.is_congested()).await;
    }

    /// Bytes sent so far.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Sends the queued frames, then no more.
    pub(crate) fn close(&self) {
        self.queue.borrow_mut().closed = true;
        self.changed.notify();
    }

    /// Stops sending at once.
    pub(crate) fn abort(&self) {
        {
            let mut queue = self.queue.borrow_mut();
            queue.closed = true;
            queue.aborted = true;
        }
        self.changed.notify();
    }

    /// Sends until the outbox is closed. Fails if a send takes longer than `stall_limit`, for
    /// sockets whose kernel has no such limit.
    pub(crate) async fn run(&self, stream: &Stream, stall_limit: Option<Duration>) -> Result<(), Fault> {
        loop {
            let has_work = || {
                let queue = self.queue.borrow();
                queue.closed || !queue.is_empty()
            };
            self.changed.wait_until(has_work).await;
            let was_congested = self.is_congested();
            let (pieces, permits, bytes, upto) = {
                let mut queue = self.queue.borrow_mut();
                if queue.aborted || queue.is_empty() {
                    return Ok(());
                }
                let bytes = std::mem::take(&mut queue.bytes);
                queue.non_payload_bytes = 0;
                (queue.take(), std::mem::take(&mut queue.permits), bytes, self.queued.get())
            };
            if was_congested {
                self.changed.notify();
            }
            match stall_limit {
                None => stream.send(pieces).await?,
                Some(limit) => rt::timeout(limit, stream.send(pieces)).await.ok_or(Fault::Silent)??,
            }
            drop(permits);
            self.sent.set(upto);
            self.sent_bytes.set(self.sent_bytes.get() + bytes);
        }
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.start == self.end
    }

    fn append(&mut self, bytes: &[u8]) {
        if bytes.len() > SEND_STAGE_BYTES {
            return self.append_shared(IoBuf::from_slice(bytes));
        }
        if self.stage.is_none() || self.end + bytes.len() > SEND_STAGE_BYTES {
            self.flush_stage();
            self.stage = None;
            (self.start, self.end) = (0, 0);
        }
        let stage = self.stage.get_or_insert_with(|| IoBuf::alloc(SEND_STAGE_BYTES));
        stage.copy_from(self.end, bytes);
        self.end += bytes.len();
        self.bytes += bytes.len() as u64;
    }

    fn append_shared(&mut self, payload: IoBuf) {
        self.flush_stage();
        self.bytes += payload.len() as u64;
        self.pieces.push(payload);
    }

    /// Turns the staged bytes into a piece.
    fn flush_stage(&mut self) {
        if let Some(stage) = &self.stage
            && self.start < self.end
        {
            self.pieces.push(stage.slice(self.start..self.end));
            self.start = self.end;
        }
    }

    /// Takes everything queued, including the staging buffer; an idle connection holds none.
    fn take(&mut self) -> Vec<IoBuf> {
        self.flush_stage();
        self.stage = None;
        (self.start, self.end) = (0, 0);
        std::mem::take(&mut self.pieces)
    }
}
