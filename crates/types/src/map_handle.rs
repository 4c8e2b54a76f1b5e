//! The cluster map that a process uses now, and the tasks that wait for another one.

use crate::{ClusterMap, Epoch};
use arc_swap::ArcSwap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The current map, shared by the services of a process. Its owner (the management service, or the
/// task that follows it) replaces the map; a reader never waits for that.
///
/// Clones share the map.
#[derive(Clone, Debug)]
pub struct MapHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    map: ArcSwap<ClusterMap>,
    waiters: Mutex<Waiters>,
}

/// The tasks that wait for another map. They bound the list.
#[derive(Default, Debug)]
struct Waiters {
    next_id: u64,
    waiting: Vec<(u64, Waker)>,
}

impl Default for MapHandle {
    fn default() -> MapHandle {
        MapHandle::new(ClusterMap::default())
    }
}

impl MapHandle {
    /// Makes a handle to a map.
    pub fn new(map: impl Into<Arc<ClusterMap>>) -> MapHandle {
        let shared = Shared { map: ArcSwap::new(map.into()), waiters: Mutex::default() };
        MapHandle { shared: Arc::new(shared) }
    }

    /// The current map.
    pub fn load(&self) -> Arc<ClusterMap> {
        self.shared.map.load_full()
    }

    /// The epoch of the current map.
    pub fn epoch(&self) -> Epoch {
        self.shared.map.load().epoch
    }

    /// Replaces the map, then wakes the tasks that wait for another one.
    pub fn store(&self, map: Arc<ClusterMap>) {
        self.shared.map.store(map);
        let waiting = std::mem::take(&mut self.shared.lock_waiters().waiting);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Waits until the current map has another epoch than `epoch`, and returns that map. Returns at
    /// once if it has now.
    ///
    /// Each waiting task takes a lock of the whole process: it is for waits that are rare, not for
    /// every request.
    pub fn changed_since(&self, epoch: Epoch) -> MapSinceEpoch<'_> {
        MapSinceEpoch { handle: self, epoch, id: None }
    }
}

impl Shared {
    fn lock_waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for a map of another epoch, see [`MapHandle::changed_since`].
#[derive(Debug)]
pub struct MapSinceEpoch<'a> {
    handle: &'a MapHandle,
    epoch: Epoch,
    /// Its number among the waiting tasks, once it is one.
    id: Option<u64>,
}

impl Future for MapSinceEpoch<'_> {
    type Output = Arc<ClusterMap>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Arc<ClusterMap>> {
        let mut waiters = self.handle.shared.lock_waiters();
        // Read under the lock: a map that is stored after this finds the waker.
        let map = self.handle.load();
        if map.epoch != self.epoch {
            return Poll::Ready(map);
        }
        let known = self.id.and_then(|id| waiters.waiting.iter_mut().find(|waiter| waiter.0 == id));
        if let Some((_, waker)) = known {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let id = waiters.next_id;
        waiters.next_id += 1;
        waiters.waiting.push((id, cx.waker().clone()));
        drop(waiters);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for MapSinceEpoch<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.handle.shared.lock_waiters().waiting.retain(|waiter| waiter.0 != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn map(epoch: u64) -> Arc<ClusterMap> {
        Arc::new(ClusterMap { epoch: Epoch(epoch), ..ClusterMap::default() })
    }

    #[test]
    fn a_wait_ends_with_the_first_map_of_another_epoch() {
        let handle = MapHandle::new(map(1));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut wait = pin!(handle.changed_since(Epoch(1)));
        assert!(wait.as_mut().poll(&mut cx).is_pending() && wait.as_mut().poll(&mut cx).is_pending());
        handle.store(map(1));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "a task is woken once for each map");
        assert!(wait.as_mut().poll(&mut cx).is_pending(), "the epoch is the same");
        handle.clone().store(map(2));
        assert_eq!((wakes.0.load(Ordering::Relaxed), handle.epoch()), (2, Epoch(2)));
        assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(map) if map.epoch == Epoch(2)));
        assert!(pin!(handle.changed_since(Epoch(1))).poll(&mut cx).is_ready());
    }

    #[test]
    fn a_wait_that_is_dropped_leaves_nothing_behind() {
        let handle = MapHandle::default();
        {
            let mut wait = pin!(handle.changed_since(Epoch(0)));
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(handle.shared.lock_waiters().waiting.len(), 1);
        }
        assert!(handle.shared.lock_waiters().waiting.is_empty());
    }

    #[test]
    fn a_map_that_another_thread_stores_is_never_missed() {
        const MAPS: u64 = if cfg!(miri) { 10 } else { 200 };
        let handle = MapHandle::default();
        let writer = handle.clone();
        let stores = std::thread::spawn(move || (1..=MAPS).for_each(|epoch| writer.store(map(epoch))));
        let (thread, mut epoch) = (std::thread::current(), Epoch(0));
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(thread)));
        while epoch < Epoch(MAPS) {
            let mut wait = pin!(handle.changed_since(epoch));
            epoch = loop {
                match wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(map) => break map.epoch,
                    Poll::Pending => std::thread::park(),
                }
            };
        }
        stores.join().unwrap();
    }
}
