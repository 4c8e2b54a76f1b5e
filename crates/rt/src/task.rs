//! A task's shared header, to which its wakers point.

use crate::context;
use parking_lot::Mutex;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// The part of a task that other threads use: the core and slot in which it lives. One allocation
/// per task; wakers share it.
pub(crate) struct TaskHeader {
    pub(crate) core: Arc<CoreShared>,
    pub(crate) index: usize,
    /// Set while the task waits to run, so that it is queued once however often it is woken.
    pub(crate) queued: AtomicBool,
}

impl Wake for TaskHeader {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Err(task) = context::push_local(self)
        {
            let core = task.core.clone();
            core.push(task);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.load(Ordering::Acquire) {
            self.clone().wake();
        }
    }
}

/// The part of a core that other threads use.
pub(crate) struct CoreShared {
    inbox: Mutex<Inbox>,
    pub(crate) eventfd: Arc<OwnedFd>,
}

/// Tasks woken by other threads. Holds a task at most once, so the number of tasks bounds it.
#[derive(Default)]
struct Inbox {
    tasks: Vec<Arc<TaskHeader>>,
    /// The core waits in the kernel, or is about to: it needs the eventfd to notice anything.
    asleep: bool,
    /// The core has ended.
    closed: bool,
}

impl CoreShared {
    pub(crate) fn new(eventfd: OwnedFd) -> CoreShared {
        CoreShared { inbox: Mutex::new(Inbox::default()), eventfd: Arc::new(eventfd) }
    }

    /// Queues a task from another thread, and wakes the core if it sleeps.
    fn push(&self, task: Arc<TaskHeader>) {
        let was_asleep = {
            let mut inbox = self.inbox.lock();
            if inbox.closed {
                return;
            }
            inbox.tasks.push(task);
            std::mem::replace(&mut inbox.asleep, false)
        };
        if was_asleep {
            self.signal_eventfd();
        }
    }

    /// Takes the tasks that other threads have queued.
    pub(crate) fn take(&self, into: &mut Vec<Arc<TaskHeader>>) {
        let mut inbox = self.inbox.lock();
        inbox.asleep = false;
        into.append(&mut inbox.tasks);
    }

    /// Announces that the core is about to wait; false if tasks have been queued.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.asleep = inbox.tasks.is_empty();
        inbox.asleep
    }

    /// Stops accepting tasks.
    pub(crate) fn close(&self) {
        let left = {
            let mut inbox = self.inbox.lock();
            inbox.closed = true;
            std::mem::take(&mut inbox.tasks)
        };
        drop(left);
    }

    fn signal_eventfd(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer has the eight bytes that an eventfd takes, and the descriptor is open.
        unsafe { libc::write(self.eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}
