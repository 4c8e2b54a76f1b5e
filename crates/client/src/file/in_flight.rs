//! In-flight writes to the chunk files of one file.
//!
//! A request is retransmitted when its connection breaks, and its first copy may have been
//! executed. So a write that overlaps another one of this client waits for its end. Otherwise the
//! other's second copy could overwrite what was written after the first copy had been read. Writes
//! to files that other clients may write as well also carry a session slot and sequence id
//! ([`wire::SlotSequence`]), since those clients don't wait here.

use parking_lot::Mutex;
use rt::sync::Event;
use types::ByteRange;

/// The in-flight writes of a file.
#[derive(Default)]
pub(crate) struct InFlightWrites {
    state: Mutex<State>,
    ended: Event,
}

#[derive(Default)]
struct State {
    running: Vec<(u64, ByteRange)>,
    /// Number of the next one.
    next: u64,
    /// How many of them applications already consider complete.
    delayed: usize,
    /// A task waits for the end of one.
    has_waiter: bool,
}

/// An in-flight write, until it is dropped.
pub(crate) struct InFlightWrite<'a> {
    writes: &'a InFlightWrites,
    number: u64,
    is_delayed: bool,
}

impl InFlightWrites {
    /// Begins a change of a range, once no overlapping one is in flight.
    pub(crate) async fn begin(&self, range: ByteRange) -> InFlightWrite<'_> {
        loop {
            let ended = {
                let mut state = self.state.lock();
                if state.running.iter().all(|(_, other)| other.intersect(range).is_empty()) {
                    return self.add(&mut state, range, false);
                }
                state.has_waiter = true;
                self.ended.wait()
            };
            ended.await;
        }
    }

    /// Begins a delayed write, which its application already considers complete, and which overlaps
    /// none in flight.
    pub(crate) fn begin_delayed(&self, range: ByteRange) -> InFlightWrite<'_> {
        let mut state = self.state.lock();
        state.delayed += 1;
        self.add(&mut state, range, true)
    }

    fn add(&self, state: &mut State, range: ByteRange, is_delayed: bool) -> InFlightWrite<'_> {
        let number = state.next;
        state.next += 1;
        state.running.push((number, range));
        InFlightWrite { writes: self, number, is_delayed }
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn wait_for_all(&self) {
        self.wait_until(|state| state.running.is_empty()).await;
    }

    /// Waits until no delayed write is in flight.
    pub(crate) async fn wait_for_delayed(&self) {
        self.wait_until(|state| state.delayed == 0).await;
    }

    async fn wait_until(&self, is_over: impl Fn(&State) -> bool) {
        loop {
            let ended = {
                let mut state = self.state.lock();
                if is_over(&state) {
                    return;
                }
                state.has_waiter = true;
                self.ended.wait()
            };
            ended.await;
        }
    }
}

impl Drop for InFlightWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.writes.state.lock();
        state.running.retain(|(number, _)| *number != self.number);
        state.delayed -= usize::from(self.is_delayed);
        let had_waiter = std::mem::take(&mut state.has_waiter);
        drop(state);
        if had_waiter {
            self.writes.ended.set();
            self.writes.ended.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_overlapping_writes_wait() {
        let writes = InFlightWrites::default();
        let first = poll(pin!(writes.begin(ByteRange::new(0, 10)))).expect("nothing is under way");
        let beside = poll(pin!(writes.begin(ByteRange::new(10, 20)))).expect("they don't overlap");
        let (mut over, mut end) = (pin!(writes.begin(ByteRange::new(5, 15))), pin!(writes.wait_for_all()));
        assert!(poll(over.as_mut()).is_none() && poll(end.as_mut()).is_none());
        drop(first);
        assert!(poll(over.as_mut()).is_none(), "the second is still under way");
        drop(beside);
        let over = poll(over.as_mut()).expect("both have ended");
        assert!(poll(end.as_mut()).is_none());
        drop(over);
        assert!(poll(end.as_mut()).is_some());
    }

    #[test]
    fn delayed_writes_are_waited_for_separately() {
        let writes = InFlightWrites::default();
        let _other = poll(pin!(writes.begin(ByteRange::new(0, 10)))).expect("nothing is under way");
        let told = writes.begin_delayed(ByteRange::new(10, 20));
        let mut end = pin!(writes.wait_for_delayed());
        assert!(poll(end.as_mut()).is_none());
        drop(told);
        assert!(poll(end.as_mut()).is_some());
    }
}
