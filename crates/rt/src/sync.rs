//! Locks and events that make tasks wait instead of threads. They work across cores.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A first-in-first-out reader/writer lock. A reader waits behind a writer that came before it, so
/// there is no starvation.
///
/// It guards no data: it orders operations on something else. The waiting tasks bound its queue.
#[derive(Default, Debug)]
pub struct RwLock {
    state: Mutex<LockState>,
}

#[derive(Default, Debug)]
struct LockState {
    readers: usize,
    writer: bool,
    queue: VecDeque<Waiter>,
    /// Waiters that were granted the lock but haven't been polled since.
    granted: Vec<u64>,
    next_id: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    access: Access,
    waker: Waker,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
}

impl LockState {
    const fn new() -> LockState {
        LockState { readers: 0, writer: false, queue: VecDeque::new(), granted: Vec::new(), next_id: 0 }
    }

    fn is_free_for(&self, access: Access) -> bool {
        !self.writer && (access == Access::Read || self.readers == 0)
    }

    fn take(&mut self, access: Access) {
        match access {
            Access::Read => self.readers += 1,
            Access::Write => self.writer = true,
        }
    }

    fn release(&mut self, access: Access) {
        match access {
            Access::Read => self.readers -= 1,
            Access::Write => self.writer = false,
        }
    }

    /// Grants the lock to the waiters at the head of the queue that can have it.
    fn grant(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(head) = self.queue.front()
            && self.is_free_for(head.access)
            && let Some(head) = self.queue.pop_front()
        {
            self.take(head.access);
            self.granted.push(head.id);
            woken.push(head.waker);
        }
        woken
    }

    /// Takes the grant of `id`; false if there is none.
    fn take_grant(&mut self, id: u64) -> bool {
        let position = self.granted.iter().position(|granted| *granted == id);
        position.map(|position| self.granted.swap_remove(position)).is_some()
    }
}

impl RwLock {
    /// Makes a free lock.
    pub const fn new() -> RwLock {
        RwLock { state: Mutex::new(LockState::new()) }
    }

    /// Waits for shared access.
    pub async fn read(&self) -> ReadGuard<'_> {
        Acquire { lock: self, access: Access::Read, id: None }.await;
        ReadGuard { lock: self }
    }

    /// Waits for exclusive access.
    pub async fn write(&self) -> WriteGuard<'_> {
        Acquire { lock: self, access: Access::Write, id: None }.await;
        WriteGuard { lock: self }
    }

    fn release(&self, access: Access) {
        let woken = {
            let mut state = self.state.lock();
            state.release(access);
            state.grant()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Waits for a lock. When dropped while waiting, it leaves the queue, and releases a lock that it
/// was granted.
struct Acquire<'a> {
    lock: &'a RwLock,
    access: Access,
    /// Its number in the queue while it waits.
    id: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock.state.lock();
        let Some(id) = self.id else {
            if state.queue.is_empty() && state.is_free_for(self.access) {
                state.take(self.access);
                return Poll::Ready(());
            }
            let id = state.next_id;
            state.next_id += 1;
            state.queue.push_back(Waiter { id, access: self.access, waker: cx.waker().clone() });
            drop(state);
            self.id = Some(id);
            return Poll::Pending;
        };
        if state.take_grant(id) {
            drop(state);
            self.id = None;
            return Poll::Ready(());
        }
        if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.id == id) {
            waiter.waker.clone_from(cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let woken = {
            let mut state = self.lock.state.lock();
            if state.take_grant(id) {
                state.release(self.access);
            } else {
                state.queue.retain(|waiter| waiter.id != id);
            }
            // A writer that leaves the queue may have been the only obstacle for the readers behind
            // it.
            state.grant()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Shared access until it is dropped.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    lock: &'a RwLock,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(Access::Read);
    }
}

/// Exclusive access until it is dropped.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    lock: &'a RwLock,
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(Access::Write);
    }
}

/// A flag to wait for. Any thread may set it; setting it wakes all waiting tasks.
#[derive(Default, Debug)]
pub struct Event {
    state: Mutex<EventState>,
}

#[derive(Default, Debug)]
struct EventState {
    set: bool,
    /// Number of times that the event was set: waiting tasks are released even if it is cleared at
    /// once.
    generation: u64,
    next_id: u64,
    waiters: Vec<(u64, Waker)>,
}

impl Event {
    /// An event that isn't set.
    pub const fn new() -> Event {
        let state = EventState { set: false, generation: 0, next_id: 0, waiters: Vec::new() };
        Event { state: Mutex::new(state) }
    }

    /// Sets the event and wakes all waiting tasks.
    pub fn set(&self) {
        let waiters = {
            let mut state = self.state.lock();
            state.set = true;
            state.generation += 1;
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Clears the event. Tasks that were waiting when it was set are released anyway.
    pub fn clear(&self) {
        self.state.lock().set = false;
    }

    /// Whether the event is set.
    pub fn is_set(&self) -> bool {
        self.state.lock().set
    }

    /// Waits until the event is set; returns at once if it is.
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let generation = self.state.lock().generation;
        EventWait { event: self, generation, id: None }
    }
}

struct EventWait<'a> {
    event: &'a Event,
    generation: u64,
    id: Option<u64>,
}

impl Future for EventWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.event.state.lock();
        if state.set || state.generation != self.generation {
            drop(state);
            self.id = None;
            return Poll::Ready(());
        }
        let known = self.id.and_then(|id| state.waiters.iter_mut().find(|waiter| waiter.0 == id));
        if let Some((_, waker)) = known {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiters.push((id, cx.waker().clone()));
        drop(state);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for EventWait<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.event.state.lock().waiters.retain(|waiter| waiter.0 != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::thread;

    /// Rounds of each thread; few under Miri, which is slow and varies the order of threads itself.
    const ROUNDS: u32 = if cfg!(miri) { 10 } else { 1000 };

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Runs a future on this thread, without a runtime.
    fn wait<F: Future>(future: F) -> F::Output {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// A number that only the lock protects.
    #[derive(Default)]
    struct Guarded {
        lock: RwLock,
        number: UnsafeCell<u32>,
    }

    // SAFETY: threads access the number only while they hold the lock.
    unsafe impl Sync for Guarded {}

    impl Guarded {
        fn read(&self) -> impl Future<Output = ReadGuard<'_>> {
            self.lock.read()
        }

        fn write(&self) -> impl Future<Output = WriteGuard<'_>> {
            self.lock.write()
        }

        fn number(&self) -> *mut u32 {
            self.number.get()
        }
    }

    #[test]
    fn a_lock_orders_the_accesses_of_threads() {
        let guarded = Guarded::default();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let _held = wait(guarded.write());
                        // SAFETY: the lock is held exclusively.
                        unsafe { *guarded.number() += 1 };
                    }
                });
            }
            scope.spawn(|| {
                let mut last = 0;
                for _ in 0..ROUNDS {
                    let _held = wait(guarded.read());
                    // SAFETY: the lock is held shared, and only exclusive holders change the
                    // number.
                    let now = unsafe { *guarded.number() };
                    assert!(now >= last);
                    last = now;
                }
            });
        });
        assert_eq!(guarded.number.into_inner(), 3 * ROUNDS);
    }

    #[test]
    fn an_abandoned_wait_passes_its_grant_on() {
        let lock = RwLock::new();
        let held = wait(lock.write());
        let mut first = Box::pin(lock.write());
        let mut second = pin!(lock.read());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
        // The first waiter is granted the lock, and dropped before it is polled again.
        drop(held);
        drop(first);
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn an_event_publishes_what_was_written_before() {
        for _ in 0..ROUNDS.min(100) {
            let (event, number) = (Event::new(), AtomicU32::new(0));
            thread::scope(|scope| {
                scope.spawn(|| {
                    number.store(1, Ordering::Relaxed);
                    event.set();
                });
                wait(event.wait());
                assert_eq!(number.load(Ordering::Relaxed), 1);
            });
        }
    }
}
