//! In-flight writes to the chunk files of one file.
//!
//! A request is retransmitted when its connection breaks, and its first copy may have been
//! executed. So a write that overlaps another one of this client waits for its end. Otherwise the
//! other's second copy could overwrite what was written after the first copy had been read. Writes
//! to files that other clients may write as well also carry a session slot and sequence id
//! ([`wire::Number`]), since those clients don't wait here.

use crate::Client;
use crate::epoch::Unanswered;
use crate::inode::OpenInode;
use crate::recall::within;
use parking_lot::Mutex;
use rt::sync::Event;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use types::{ByteRange, Result};

/// How often a slow change checks that its lease is still held.
const ERA_CHECK: Duration = Duration::from_millis(500);
/// How long a change is still retried after its lease has ended: together with [`ERA_CHECK`], less
/// than the session waits for it.
const LAST_TRIES: Duration = Duration::from_millis(3_500);

/// The in-flight writes of a file.
#[derive(Default)]
pub(crate) struct Landing {
    state: Mutex<State>,
    ended: Event,
}

#[derive(Default)]
struct State {
    running: Vec<(u64, ByteRange)>,
    /// Number of the next one.
    next: u64,
    /// How many of them applications already consider complete.
    told: usize,
    /// A task waits for the end of one.
    awaited: bool,
}

/// An in-flight write, until it is dropped.
pub(crate) struct Underway<'a> {
    landing: &'a Landing,
    number: u64,
    is_told: bool,
}

impl Landing {
    /// Begins a change of a range, once no overlapping one is in flight.
    pub(crate) async fn enter(&self, range: ByteRange) -> Underway<'_> {
        loop {
            let ended = {
                let mut state = self.state.lock();
                if state.running.iter().all(|(_, other)| other.intersect(range).is_empty()) {
                    return self.begin(&mut state, range, false);
                }
                state.awaited = true;
                self.ended.wait()
            };
            ended.await;
        }
    }

    /// Begins a delayed write, which its application already considers complete, and which overlaps
    /// none in flight.
    pub(crate) fn enter_told(&self, range: ByteRange) -> Underway<'_> {
        let mut state = self.state.lock();
        state.told += 1;
        self.begin(&mut state, range, true)
    }

    fn begin(&self, state: &mut State, range: ByteRange, is_told: bool) -> Underway<'_> {
        let number = state.next;
        state.next += 1;
        state.running.push((number, range));
        Underway { landing: self, number, is_told }
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn all_landed(&self) {
        self.landed(|state| state.running.is_empty()).await;
    }

    /// Waits until no delayed write is in flight.
    pub(crate) async fn all_told_landed(&self) {
        self.landed(|state| state.told == 0).await;
    }

    async fn landed(&self, is_over: impl Fn(&State) -> bool) {
        loop {
            let ended = {
                let mut state = self.state.lock();
                if is_over(&state) {
                    return;
                }
                state.awaited = true;
                self.ended.wait()
            };
            ended.await;
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let mut state = self.landing.state.lock();
        state.running.retain(|(number, _)| *number != self.number);
        state.told -= usize::from(self.is_told);
        let awaited = std::mem::take(&mut state.awaited);
        drop(state);
        if awaited {
            self.landing.ended.set();
            self.landing.ended.clear();
        }
    }
}

impl Client {
    /// Changes chunk files under the lease of a generation, which the caller has just checked. If
    /// the lease ends meanwhile, the change isn't retried for longer than the session waits before
    /// it permits other sessions: it could overwrite their changes. `is_durable`: the change is on
    /// disk when it is answered.
    ///
    /// # Errors
    /// `EKEYEXPIRED`: the generation has ended, and the outcome of the change is uncertain.
    pub(crate) async fn change_in_era<T>(
        &self,
        inode: &OpenInode,
        era: u64,
        is_durable: bool,
        mut change: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let unanswered = Unanswered::new(inode, era, self.verifiers.losses(), is_durable);
        let mut ended_ns = None;
        loop {
            if let Some(done) = within(ERA_CHECK, change.as_mut()).await {
                if done.is_ok() {
                    unanswered.end();
                }
                return done;
            }
            if let Err(ended) = inode.content.lock().still(inode.ino, era) {
                let since_ns = *ended_ns.get_or_insert_with(rt::monotonic_ns);
                if rt::monotonic_ns().saturating_sub(since_ns) > LAST_TRIES.as_nanos() as u64 {
                    return Err(ended);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_overlaps_takes_turns_and_nothing_else_does() {
        let landing = Landing::default();
        let first = poll(pin!(landing.enter(ByteRange::new(0, 10)))).expect("nothing is under way");
        let beside = poll(pin!(landing.enter(ByteRange::new(10, 20)))).expect("they don't overlap");
        let (mut over, mut end) = (pin!(landing.enter(ByteRange::new(5, 15))), pin!(landing.all_landed()));
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
    fn what_programs_know_of_is_waited_for_apart() {
        let landing = Landing::default();
        let _other = poll(pin!(landing.enter(ByteRange::new(0, 10)))).expect("nothing is under way");
        let told = landing.enter_told(ByteRange::new(10, 20));
        let mut end = pin!(landing.all_told_landed());
        assert!(poll(end.as_mut()).is_none());
        drop(told);
        assert!(poll(end.as_mut()).is_some());
    }
}
