//! The calls in flight on a connection.

use crate::budget::Permit;
use crate::shared_arena::Piece;
use rt::IoBuf;
use std::task::{Context, Poll, Waker};
use types::Error;

/// How a call on one connection ended.
pub(super) enum CallOutcome {
    /// The reply's body; a payload is in the call's buffer.
    Reply(Vec<u8>),
    /// The service's error.
    Failed(Error),
    /// The reply's payload doesn't match its checksum, which the server hadn't verified: the
    /// request must be sent again.
    ChecksumMismatch,
    /// The connection ended; the outcome of the request is uncertain.
    Lost,
    /// The time-out has passed.
    TimedOut,
}

/// Permits that a call holds on its connection, released when the answer arrives.
pub(super) struct CallPermits {
    pub(super) _credit: Permit,
    /// Released as soon as the caller stops waiting: a payload that arrives later is discarded.
    pub(super) bytes: Option<Permit>,
}

/// A call as the connection tracks it.
pub(super) struct Call {
    /// When it times out, by the monotonic clock.
    pub(super) deadline_ns: u64,
    /// The number of its frame in the outbox.
    pub(super) frame: u64,
    /// Destination of a reply's payload.
    pub(super) buffer: Option<IoBuf>,
    /// This end verifies the payload's checksum if the server hasn't.
    pub(super) verifies_checksum: bool,
    /// The request has a payload, which is in use until the frame has been sent.
    pub(super) sends_payload: bool,
    /// A payload is being received into `buffer`.
    pub(super) receiving: bool,
    /// Whether `buffer` or the request's payload is large.
    pub(super) bulk: bool,
    /// Where its payload is in shared memory. The server may use it until it has answered, even
    /// after the caller has left.
    pub(super) piece: Option<Piece>,
    pub(super) permits: CallPermits,
    pub(super) state: CallState,
    /// The encoded request, and later the reply's bytes.
    pub(super) body: Vec<u8>,
    /// The pieces of the reply's body that came before the last one.
    pub(super) parts: Vec<u8>,
}

impl Call {
    /// Marks the call as abandoned: the caller has stopped waiting. No transfer from or into the
    /// caller's buffer may be in progress, unless the connection is over.
    ///
    /// The server may execute the request without a time limit, so its id stays in use until it is
    /// answered. It holds no memory of this end except its piece of the shared memory.
    pub(super) fn abandon(&mut self) {
        self.state = CallState::Abandoned;
        self.buffer = None;
        self.parts = Vec::new();
        self.permits.bytes = None;
    }
}

/// Whether a caller waits for the call.
pub(super) enum CallState {
    Waiting(Option<Waker>),
    Done(CallOutcome),
    /// No caller waits: the answer is discarded.
    Abandoned,
}

struct Slot {
    generation: u32,
    call: Option<Call>,
}

/// Calls by id. Bounded by the requests in flight.
#[derive(Default)]
pub(super) struct Calls {
    slots: Vec<Slot>,
    free: Vec<usize>,
    bulk: usize,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether large payloads are expected.
    pub(super) fn expects_bulk(&self) -> bool {
        self.bulk > 0
    }

    /// The id that the next call gets.
    pub(super) fn next_id(&self) -> u64 {
        match self.free.last() {
            Some(&index) => id_of(index, self.slots[index].generation),
            None => id_of(self.slots.len(), 0),
        }
    }

    pub(super) fn insert(&mut self, call: Call) -> u64 {
        let id = self.next_id();
        self.bulk += usize::from(call.bulk);
        match self.free.pop() {
            Some(index) => self.slots[index].call = Some(call),
            None => self.slots.push(Slot { generation: 0, call: Some(call) }),
        }
        id
    }

    pub(super) fn get(&mut self, id: u64) -> Option<&mut Call> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        if slot.generation == (id >> 32) as u32 { slot.call.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Call> {
        self.get(id)?;
        let index = id as u32 as usize;
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        let call = slot.call.take()?;
        self.free.push(index);
        self.bulk -= usize::from(call.bulk);
        Some(call)
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        let busy = self.slots.iter().enumerate().filter(|(_, slot)| slot.call.is_some());
        busy.map(|(index, slot)| id_of(index, slot.generation)).collect()
    }

    /// Completes a call and wakes its caller.
    pub(super) fn finish(&mut self, id: u64, outcome: CallOutcome) {
        let Some(call) = self.get(id) else { return };
        match std::mem::replace(&mut call.state, CallState::Done(outcome)) {
            CallState::Waiting(waker) => waker.into_iter().for_each(Waker::wake),
            CallState::Abandoned => drop(self.remove(id)),
            done @ CallState::Done(_) => call.state = done,
        }
    }

    /// Polls for the outcome of a call.
    pub(super) fn poll(&mut self, id: u64, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let call = self.get(id).expect("a call stays until its end is taken");
        match &mut call.state {
            CallState::Waiting(waker) => {
                match waker {
                    Some(known) => known.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            CallState::Abandoned => unreachable!("an abandoned call isn't polled"),
            CallState::Done(CallOutcome::TimedOut) => {
                // The server still executes the request: its slot is freed when the answer arrives.
                call.abandon();
                Poll::Ready(CallOutcome::TimedOut)
            }
            CallState::Done(_) => match self.remove(id).map(|call| call.state) {
                Some(CallState::Done(outcome)) => Poll::Ready(outcome),
                _ => unreachable!("it was just checked"),
            },
        }
    }
}

fn id_of(index: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | index as u64
}
