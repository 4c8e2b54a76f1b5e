//! Session fencing: ended sessions, and the running requests of the others.
//!
//! Each thread counts its requests in a place of its own, under a lock that only the fencing of a
//! session contends for.

use parking_lot::Mutex;
use rt::sync::Event;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{Errno, Error, Result, SessionId};

/// Places to count in; threads beyond that number share them.
const SHARDS: usize = 64;

/// Which sessions are fenced.
pub(crate) struct Fences {
    shards: Vec<FenceShard>,
}

/// Aligned so that no two threads write to one cache line.
#[repr(align(128))]
#[derive(Default)]
struct FenceShard {
    state: Mutex<State>,
    /// Set when the last request of a fenced session has ended here.
    drained: Event,
}

#[derive(Default)]
struct State {
    fenced: BTreeSet<SessionId>,
    /// Running requests, by session; bounded by the requests of a thread.
    running: Vec<(SessionId, usize)>,
}

impl Default for Fences {
    fn default() -> Fences {
        Fences { shards: (0..SHARDS).map(|_| FenceShard::default()).collect() }
    }
}

impl Fences {
    /// Begins a request.
    ///
    /// # Errors
    /// `ESTALE` if the session has ended.
    pub(crate) fn enter(&self, session: SessionId) -> Result<RunningRequest<'_>> {
        let place = &self.shards[own_shard()];
        let mut state = place.state.lock();
        if !state.fenced.is_empty() && state.fenced.contains(&session) {
            let message = format!("session {session} has ended");
            return Err(Error::new(Errno::ESTALE, message)
                .hint("no action is needed: its client registers a new session by itself"));
        }
        state.begin(session);
        Ok(RunningRequest { shard: place, session })
    }

    /// Begins a request that another member has admitted: a fence waits for it, and doesn't refuse
    /// it.
    pub(crate) fn enter_admitted(&self, session: SessionId) -> RunningRequest<'_> {
        let place = &self.shards[own_shard()];
        place.state.lock().begin(session);
        RunningRequest { shard: place, session }
    }

    /// Refuses all further requests of a session.
    pub(crate) fn refuse(&self, session: SessionId) {
        for place in &self.shards {
            place.state.lock().fenced.insert(session);
        }
    }

    /// Lifts the fence of a session that ended so long ago that none of its requests can arrive any
    /// more.
    pub(crate) fn lift(&self, session: SessionId) {
        for place in &self.shards {
            place.state.lock().fenced.remove(&session);
        }
    }

    /// Whether a session is fenced.
    pub(crate) fn is_fenced(&self, session: SessionId) -> bool {
        self.shards[own_shard()].state.lock().fenced.contains(&session)
    }

    /// Refuses all further requests of a session, and waits for those that run.
    pub(crate) async fn fence(&self, session: SessionId) {
        self.refuse(session);
        for place in &self.shards {
            loop {
                let drained = {
                    let state = place.state.lock();
                    if !state.runs(session) {
                        break;
                    }
                    place.drained.clear();
                    place.drained.wait()
                };
                drained.await;
            }
        }
    }
}

impl State {
    fn begin(&mut self, session: SessionId) {
        match self.running.iter_mut().find(|(other, _)| *other == session) {
            Some((_, count)) => *count += 1,
            None => self.running.push((session, 1)),
        }
    }

    fn runs(&self, session: SessionId) -> bool {
        self.running.iter().any(|(other, _)| *other == session)
    }
}

/// A running request, until it is dropped.
pub(crate) struct RunningRequest<'a> {
    shard: &'a FenceShard,
    session: SessionId,
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.shard.state.lock();
        let Some(at) = state.running.iter().position(|(other, _)| *other == self.session) else { return };
        state.running[at].1 -= 1;
        if state.running[at].1 > 0 {
            return;
        }
        state.running.swap_remove(at);
        if state.fenced.contains(&self.session) {
            self.shard.drained.set();
        }
    }
}

/// The place of this thread.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        let place = own.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        own.set(Some(place));
        place
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    const ENDED: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    #[test]
    fn a_fence_waits_for_running_requests_and_refuses_new_ones() {
        let fences = Fences::default();
        let running = [ENDED, ENDED, OTHER].map(|session| fences.enter(session).unwrap());
        let elsewhere =
            std::thread::scope(|scope| scope.spawn(|| fences.enter(ENDED).unwrap()).join().unwrap());
        let mut fence = pin!(fences.fence(ENDED));
        let mut context = Context::from_waker(Waker::noop());
        assert!(fence.as_mut().poll(&mut context).is_pending());
        assert_eq!(fences.enter(ENDED).err().unwrap().errno, Errno::ESTALE);
        let [first, second, other] = running;
        drop(first);
        assert!(fence.as_mut().poll(&mut context).is_pending());
        drop(elsewhere);
        assert!(fence.as_mut().poll(&mut context).is_pending());
        drop(second);
        assert!(fence.as_mut().poll(&mut context).is_ready());
        drop(other);
        drop(fences.enter(OTHER).unwrap());
        assert!(fences.shards.iter().all(|place| place.state.lock().running.is_empty()));
    }
}
