//! One simulated connection: two ends, and the bytes on their way between them.

use super::HostId;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::Waker;

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndId {
    /// Unique in the process, so that a socket of another world is detected.
    pub(super) connection: u64,
    pub(super) side: Side,
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// State of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndState {
    /// Nothing has arrived from the other end yet.
    Opening,
    Open,
    /// Its process has closed it; its kernel answers with a reset.
    Closed,
}

/// A part of the stream, delivered in order.
#[derive(Debug)]
pub(super) enum Segment {
    Bytes(Vec<u8>),
    /// The end of the stream.
    End,
}

/// An end in its host's kernel.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: HostId,
    pub(super) address: SocketAddr,
    pub(super) state: EndState,
    /// Bytes that have arrived but weren't received by the program yet.
    received: VecDeque<u8>,
    /// The other side has ended its stream.
    ended: bool,
    /// The connection broke.
    error: Option<i32>,
    /// This side has shut the connection down.
    pub(super) is_shut_down: bool,
    /// Segments sent by this end that haven't arrived.
    outgoing: VecDeque<Segment>,
    /// Bytes sent by this end that the other program hasn't received yet, as far as this end knows.
    unacknowledged: usize,
    /// The limit of `unacknowledged`.
    pub(super) window: usize,
    /// Longest time that sent data may make no progress.
    pub(super) stall_limit_ns: Option<u64>,
    /// Time of the last progress.
    progress_ns: u64,
    /// Whether a check for progress is scheduled.
    pub(super) stall_watched: bool,
    /// Whether a receive, and a send, is in progress.
    pub(super) receiving: bool,
    pub(super) sending: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

impl End {
    pub(super) fn new(host: HostId, address: SocketAddr, window: usize) -> End {
        End {
            host,
            address,
            state: EndState::Opening,
            received: VecDeque::new(),
            ended: false,
            error: None,
            is_shut_down: false,
            outgoing: VecDeque::new(),
            unacknowledged: 0,
            window,
            stall_limit_ns: None,
            progress_ns: 0,
            stall_watched: false,
            receiving: false,
            sending: false,
            receiver: None,
            sender: None,
        }
    }

    pub(super) fn wake(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.receiver.take());
        woken.extend(self.sender.take());
    }

    /// Also used by an end that is opening.
    pub(super) fn wait_to_receive(&mut self, waker: &Waker) {
        self.receiver = Some(waker.clone());
    }

    pub(super) fn wait_to_send(&mut self, waker: &Waker) {
        self.sender = Some(waker.clone());
    }

    pub(super) fn error(&self) -> Option<io::Error> {
        self.error.map(io::Error::from_raw_os_error)
    }

    /// Takes bytes that have arrived. Those from before a break can still be received. `None`:
    /// nothing yet.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let len = into.len().min(self.received.len());
        if len > 0 || into.is_empty() {
            into.iter_mut().zip(self.received.drain(..len)).for_each(|(to, from)| *to = from);
            return Ok(Some(len));
        }
        match self.error() {
            Some(error) => Err(error),
            None if self.ended || self.is_shut_down => Ok(Some(0)),
            None => Ok(None),
        }
    }

    /// Number of bytes that may be sent now.
    pub(super) fn send_window(&self) -> io::Result<usize> {
        match self.error() {
            Some(error) => Err(error),
            None if self.is_shut_down => Err(io::Error::from_raw_os_error(libc::EPIPE)),
            None => Ok(self.window.saturating_sub(self.unacknowledged)),
        }
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.received.is_empty()
    }

    pub(super) fn push(&mut self, segment: Segment, now_ns: u64) {
        if self.outgoing.is_empty() && self.unacknowledged < self.window {
            self.progress_ns = now_ns;
        }
        if let Segment::Bytes(bytes) = &segment {
            self.unacknowledged += bytes.len();
        }
        self.outgoing.push_back(segment);
    }

    pub(super) fn next_arrival(&mut self, now_ns: u64) -> Option<Segment> {
        self.progress_ns = now_ns;
        self.outgoing.pop_front()
    }

    /// Drops all segments on their way except the first `segments`.
    pub(super) fn drop_segments_after(&mut self, segments: usize) {
        self.outgoing.truncate(segments);
    }

    pub(super) fn segments_in_flight(&self) -> usize {
        self.outgoing.len()
    }

    pub(super) fn arrive(&mut self, segment: Segment, woken: &mut Vec<Waker>) {
        match segment {
            Segment::Bytes(bytes) => self.received.extend(bytes),
            Segment::End => self.ended = true,
        }
        woken.extend(self.receiver.take());
    }

    pub(super) fn acknowledge(&mut self, bytes: usize, now_ns: u64, woken: &mut Vec<Waker>) {
        self.progress_ns = now_ns;
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes);
        woken.extend(self.sender.take());
    }

    /// When the connection breaks if no more of the sent data is received; `None` if none is
    /// outstanding.
    pub(super) fn stalled_until_ns(&self) -> Option<u64> {
        let limit = self.stall_limit_ns?;
        let waits = !self.outgoing.is_empty() || self.unacknowledged >= self.window;
        (waits && self.error.is_none()).then(|| self.progress_ns.saturating_add(limit))
    }

    /// Breaks the connection at this end.
    pub(super) fn break_connection(&mut self, errno: i32, woken: &mut Vec<Waker>) {
        self.error.get_or_insert(errno);
        self.outgoing.clear();
        self.wake(woken);
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: End,
    server: End,
}

impl Connection {
    pub(super) fn new(client: End, server: End) -> Connection {
        Connection { client, server }
    }

    pub(super) fn end(&self, side: Side) -> &End {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub(super) fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Whether no program can observe the connection any more.
    pub(super) fn is_over(&self) -> bool {
        let gone = |end: &End| end.state == EndState::Closed;
        let never_began = self.server.state == EndState::Opening && self.client.segments_in_flight() == 0;
        gone(&self.client) && (gone(&self.server) || never_began)
    }
}
