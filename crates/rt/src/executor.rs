//! One core: the tasks, timers and ring of a thread, and the loop that drives them.

use crate::context::{self, Runtime};
use crate::driver::{Driver, KeepAlive, OnDrop, OpId};
use crate::local::Locals;
use crate::task::{CoreShared, TaskHeader};
use crate::timer::Timers;
use io_uring::squeue::Entry128;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Polls between two visits to the ring, so that tasks that keep waking each other don't starve
/// I/O.
const POLLS_PER_BATCH: usize = 128;

type LocalTask = Pin<Box<dyn Future<Output = ()>>>;

struct TaskSlot {
    header: Arc<TaskHeader>,
    waker: Waker,
    /// `None` while it is being polled.
    future: Option<LocalTask>,
}

/// The runtime of one thread. Only that thread accesses it, except for [`CoreShared`].
///
/// Borrows are short: no future, waker or foreign destructor runs while a cell is borrowed.
pub(crate) struct Core {
    shared: Arc<CoreShared>,
    tasks: RefCell<Vec<Option<TaskSlot>>>,
    vacant: RefCell<Vec<usize>>,
    ready: RefCell<VecDeque<Arc<TaskHeader>>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) locals: RefCell<Locals>,
    /// `None` once the core has ended.
    driver: RefCell<Option<Driver>>,
}

impl Core {
    fn new() -> io::Result<Core> {
        // SAFETY: a plain system call; a non-negative result is a descriptor without another owner.
        let eventfd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let shared = CoreShared::new(eventfd);
        let driver = Driver::new(shared.eventfd.clone())?;
        Ok(Core {
            shared: Arc::new(shared),
            tasks: RefCell::default(),
            vacant: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            locals: RefCell::default(),
            driver: RefCell::new(Some(driver)),
        })
    }

    pub(crate) fn shared(&self) -> &CoreShared {
        &self.shared
    }

    pub(crate) fn push_ready(&self, task: Arc<TaskHeader>) {
        self.ready.borrow_mut().push_back(task);
    }

    /// Adds a task and queues it to run.
    pub(crate) fn spawn(&self, future: LocalTask) {
        let index = self.vacant.borrow_mut().pop().unwrap_or_else(|| {
            let mut tasks = self.tasks.borrow_mut();
            tasks.push(None);
            tasks.len() - 1
        });
        let header = Arc::new(TaskHeader { core: self.shared.clone(), index, queued: AtomicBool::new(true) });
        let waker = Waker::from(header.clone());
        self.tasks.borrow_mut()[index] =
            Some(TaskSlot { header: header.clone(), waker, future: Some(future) });
        self.push_ready(header);
    }

    /// Queues an operation on the ring.
    ///
    /// # Safety
    /// As for [`Driver::start`].
    pub(crate) unsafe fn start_op(
        &self,
        entry: Entry128,
        keep: KeepAlive,
        on_drop: OnDrop,
    ) -> io::Result<OpId> {
        match &mut *self.driver.borrow_mut() {
            // SAFETY: passed on to the caller.
            Some(driver) => unsafe { driver.start(entry, keep, on_drop) },
            None => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }

    /// Whether driver commands are possible on this core's ring.
    pub(crate) fn has_large_entries(&self) -> bool {
        self.driver.borrow().as_ref().is_some_and(Driver::has_large_entries)
    }

    /// The result of an operation.
    pub(crate) fn poll_op(&self, id: OpId, cx: &mut Context<'_>) -> Poll<i32> {
        match &mut *self.driver.borrow_mut() {
            Some(driver) => driver.poll(id, cx),
            None => Poll::Ready(-libc::ECANCELED),
        }
    }

    /// Notes that an operation's future was dropped.
    pub(crate) fn abandon_op(&self, id: OpId) {
        if let Some(driver) = &mut *self.driver.borrow_mut() {
            driver.abandon(id);
        }
    }

    /// Runs tasks until `done`.
    fn run(&self, done: &Cell<bool>) -> io::Result<()> {
        let mut arrived = Vec::new();
        let mut woken = Vec::new();
        let mut released = Vec::new();
        while !done.get() {
            self.shared.take(&mut arrived);
            self.ready.borrow_mut().extend(arrived.drain(..));
            self.run_batch(done);
            if done.get() {
                break;
            }
            self.visit_ring()?;
            if let Some(driver) = &mut *self.driver.borrow_mut() {
                driver.reap(&mut woken, &mut released);
            }
            released.clear();
            woken.drain(..).for_each(Waker::wake);
            self.timers.borrow_mut().take_due(crate::monotonic_ns(), &mut woken);
            woken.drain(..).for_each(Waker::wake);
        }
        Ok(())
    }

    fn run_batch(&self, done: &Cell<bool>) {
        for _ in 0..POLLS_PER_BATCH {
            let next = self.ready.borrow_mut().pop_front();
            match next {
                Some(task) => self.poll_task(&task),
                None => return,
            }
            if done.get() {
                return;
            }
        }
    }

    fn poll_task(&self, header: &Arc<TaskHeader>) {
        let (waker, mut future) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(slot) = tasks[header.index].as_mut().filter(|slot| Arc::ptr_eq(&slot.header, header))
            else {
                return; // The task has ended.
            };
            let Some(future) = slot.future.take() else { return };
            (slot.waker.clone(), future)
        };
        // Cleared before the poll: a wake during it counts.
        header.queued.store(false, Ordering::Release);
        let finished = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if finished {
            drop(future);
            let ended = self.tasks.borrow_mut()[header.index].take();
            drop(ended);
            self.vacant.borrow_mut().push(header.index);
        } else if let Some(slot) = &mut self.tasks.borrow_mut()[header.index] {
            slot.future = Some(future);
        }
    }

    /// One visit to the kernel: submits all queued entries, and waits if no task is ready.
    fn visit_ring(&self) -> io::Result<()> {
        let idle = self.ready.borrow().is_empty();
        let mut driver = self.driver.borrow_mut();
        let driver = driver.as_mut().expect("the loop runs only while the core lives");
        driver.arm_wake();
        if !idle || !self.shared.prepare_to_sleep() {
            return driver.submit();
        }
        let now = crate::monotonic_ns();
        match self.timers.borrow().next_deadline() {
            None => driver.submit_and_wait(None),
            Some(deadline) if deadline > now => {
                driver.submit_and_wait(Some(Duration::from_nanos(deadline - now)))
            }
            Some(_) => driver.submit(),
        }
    }

    /// Drops the tasks and waits for the kernel to release their buffers.
    fn shut_down(&self) {
        self.shared.close();
        // A destructor may spawn tasks and use the core's local values; both are dropped as well.
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            let locals = std::mem::take(&mut *self.locals.borrow_mut());
            self.vacant.borrow_mut().clear();
            if tasks.is_empty() && locals.is_empty() {
                break;
            }
            drop(tasks);
            drop(locals);
        }
        let ready = std::mem::take(&mut *self.ready.borrow_mut());
        drop(ready);
        let driver = self.driver.borrow_mut().take();
        if let Some(driver) = driver {
            driver.drain();
        }
    }
}

/// Shuts the core down even when a task panics.
struct ShutDown<'a>(&'a Core);

impl Drop for ShutDown<'_> {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

/// Makes this thread a core, runs `future` to its end and returns its output. Other tasks are
/// dropped then.
///
/// Fails if the kernel has no io_uring or the thread already runs a core.
pub fn block_on<T: 'static>(future: impl Future<Output = T> + 'static) -> io::Result<T> {
    let core = Rc::new(Core::new()?);
    let _entered = context::enter(Runtime::Core(core.clone()))?;
    let _shut_down = ShutDown(&core);
    let done = Rc::new(Cell::new(false));
    let output = Rc::new(Cell::new(None));
    core.spawn({
        let (done, output) = (done.clone(), output.clone());
        Box::pin(async move {
            output.set(Some(future.await));
            done.set(true);
        })
    });
    core.run(&done)?;
    Ok(output.take().expect("the main task sets its output before it is done"))
}
