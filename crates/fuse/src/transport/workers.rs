//! The workers of a core, and the requests that they run.

use crate::dispatch;
use crate::request::Request;
use crate::session::Shared;
use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use types::{Errno, Error, Result};

/// Requests of one core that may wait for a lock at a time. Beyond it locking fails with `ENOLCK`,
/// as it does at the lock table's limit of 32 Ki waits for one file. Each wait occupies a worker,
/// so up to this many spare workers may be created; one takes some KiB until it carries data. This
/// is half of what a connection carries (`net`, `MAX_WAITING_REQUESTS`), so that the mount's own
/// waits have room.
const MAX_LOCK_WAITS: usize = 16 << 10;

/// Hint when too many requests wait for locks.
const LOCK_WAIT_HINT: &str = "reduce the number of processes on this machine that wait for locks";
/// Workers that may wait at a time besides those that wait for locks: more than the background
/// requests that the kernel sends (`MAX_BACKGROUND`).
const MAX_BLOCKED_WORKERS: usize = 512;
/// When all workers are busy for this long and no request ends, more are added: requests that wait
/// for one server don't block those for other servers.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);

thread_local! {
    /// The cores that this thread runs, one for each mount.
    static CORES: RefCell<Vec<Weak<Core>>> = const { RefCell::new(Vec::new()) };
}

/// Outcome of a request: the length of the reply's body, or an error number.
pub(crate) type Outcome = std::result::Result<usize, Errno>;

/// A worker: carries one request at a time.
pub(crate) trait Worker: 'static {
    /// Sends the reply to the last request, if there was one, and waits for the next. `None`: the
    /// connection has ended.
    async fn next_request(&mut self, reply: Option<Outcome>) -> Option<Request>;
}

/// Adds one more worker to this core.
type AddWorker = Box<dyn Fn() -> io::Result<()>>;

/// A core that serves a mount.
pub(crate) struct Core {
    /// The mount.
    pub(crate) shared: Arc<Shared>,
    /// Index of the core among those of the mount.
    pub(crate) index: usize,
    live: Cell<usize>,
    /// Workers that wait, and those of them that wait for locks.
    blocked: Cell<usize>,
    lock_waits: Cell<usize>,
    spare: Cell<usize>,
    /// Workers that handle a request, and requests that were handled.
    busy: Cell<usize>,
    handled: Cell<u64>,
    /// A task checks whether all workers are stuck.
    is_watched: Cell<bool>,
    add_worker: OnceCell<AddWorker>,
    ended: RefCell<Option<Waker>>,
}

impl Core {
    /// Creates a core without workers.
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Rc<Core> {
        let core = Rc::new(Core {
            shared,
            index,
            live: Cell::new(0),
            blocked: Cell::new(0),
            lock_waits: Cell::new(0),
            spare: Cell::new(0),
            busy: Cell::new(0),
            handled: Cell::new(0),
            is_watched: Cell::new(false),
            add_worker: OnceCell::new(),
            ended: RefCell::new(None),
        });
        CORES.with_borrow_mut(|cores| {
            cores.retain(|core| core.strong_count() > 0);
            cores.push(Rc::downgrade(&core));
        });
        core
    }

    /// Returns the core of a mount that this thread runs.
    fn of_this_thread(shared: &Shared) -> Option<Rc<Core>> {
        let is_it = |core: &Rc<Core>| std::ptr::eq(&raw const *core.shared, shared);
        CORES.with_borrow(|cores| cores.iter().filter_map(Weak::upgrade).find(is_it))
    }

    /// Sets how workers are added when requests block the existing ones.
    pub(crate) fn set_add_worker(&self, add: impl Fn() -> io::Result<()> + 'static) {
        assert!(self.add_worker.set(Box::new(add)).is_ok(), "a core is set up once");
    }

    /// Runs a worker until the connection ends.
    pub(crate) fn run_worker(self: &Rc<Self>, mut worker: impl Worker) {
        self.live.set(self.live.get() + 1);
        let core = self.clone();
        rt::spawn(async move {
            let mut reply = None;
            while let Some(request) = worker.next_request(reply.take()).await {
                core.shared.stats.count(core.index, request.header.opcode);
                core.request_started();
                reply = Some(dispatch::handle(&core, &request).await);
                core.busy.set(core.busy.get() - 1);
                core.handled.set(core.handled.get() + 1);
            }
            // A request that waits for a lock would wait forever, since no INTERRUPT can arrive any
            // more.
            core.shared.interrupts.end();
            core.worker_ended();
        });
    }

    /// Records that a worker has a request.
    fn request_started(self: &Rc<Self>) {
        self.busy.set(self.busy.get() + 1);
        if self.busy.get() == self.live.get() && !self.is_watched.replace(true) {
            rt::spawn(self.clone().watch());
        }
    }

    /// Adds workers as long as all are stuck: twice as many each time, since new workers mostly
    /// receive the same kind of requests first.
    async fn watch(self: Rc<Self>) {
        let mut more = 1;
        while self.busy.get() == self.live.get() && self.live.get() > 0 {
            let handled = self.handled.get();
            rt::sleep(STALL_TIMEOUT).await;
            if self.handled.get() > handled {
                more = 1;
                continue;
            }
            let spare_left = self.max_spare().saturating_sub(self.spare.get());
            tracing::debug!(lanes = self.live.get(), more, "all workers of a processor are busy");
            if spare_left == 0 || (0..more.min(spare_left)).any(|_| self.add_spare().is_err()) {
                break;
            }
            more *= 2;
        }
        self.is_watched.set(false);
    }

    fn add_spare(&self) -> Result<()> {
        let add = self.add_worker.get().expect("it is set before the first lane runs");
        add().map_err(|e| Error::new(Errno::ENOLCK, format!("no memory for one more request: {e}")))?;
        self.spare.set(self.spare.get() + 1);
        Ok(())
    }

    fn worker_ended(&self) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0
            && let Some(waker) = self.ended.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Waits until all workers have ended. The last core to get here releases the files that the
    /// kernel left open.
    pub(crate) async fn finish(self: Rc<Self>) {
        poll_fn(|context| {
            if self.live.get() == 0 {
                return Poll::Ready(());
            }
            *self.ended.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        if self.shared.core_ended() {
            // In parallel, so that time-outs of unreachable servers overlap.
            let files = self.shared.handles.drain();
            let released = files.iter().map(|open| open.file.release());
            rt::join_all(released.collect()).await;
        }
        // The tasks of this thread that execute them would end with it, and others wait for them.
        if let Err(error) = self.shared.client.finish_asynchronous_changes().await {
            tracing::debug!(%error, "an asynchronous create failed when the mount ended");
        }
    }

    /// Returns the number of requests that wait for locks.
    pub(crate) fn lock_waits(&self) -> u32 {
        self.lock_waits.get() as u32
    }

    /// Returns the highest number of spare workers allowed now.
    fn max_spare(&self) -> usize {
        MAX_BLOCKED_WORKERS + self.lock_waits.get()
    }

    /// Announces that the running request waits for a lock, possibly for long: the core gets a
    /// spare worker, so that other requests don't wait too. Drop the guard when the wait ends.
    pub(crate) fn block_worker_for_lock(self: &Rc<Self>) -> Result<BlockedWorker> {
        if self.lock_waits.get() >= MAX_LOCK_WAITS {
            let message =
                format!("{MAX_LOCK_WAITS} requests of one processor of the mount wait for locks already");
            return Err(Error::new(Errno::ENOLCK, message).hint(LOCK_WAIT_HINT));
        }
        // First: it raises the limit of spare workers for its own.
        self.lock_waits.set(self.lock_waits.get() + 1);
        let ends = LockWaitCount(self.clone());
        self.block().map(|blocked| BlockedWorker { _lock_wait: Some(ends), ..blocked })
    }

    fn block(self: &Rc<Self>) -> Result<BlockedWorker> {
        if self.blocked.get() >= self.spare.get() {
            if self.spare.get() >= self.max_spare() {
                let message =
                    format!("{} requests of one processor of the mount wait already", self.spare.get());
                return Err(Error::new(Errno::ENOLCK, message).hint(LOCK_WAIT_HINT));
            }
            self.add_spare()?;
        }
        self.blocked.set(self.blocked.get() + 1);
        Ok(BlockedWorker { _wait: BlockedCount(self.clone()), _lock_wait: None })
    }
}

/// Announces that a task on this thread, mostly a request of the mount, waits for the kernel to
/// release pages. The kernel may be waiting for the read of such a page. That read may be queued
/// behind requests that occupy all workers and wait for the release.
pub(crate) fn announce_kernel_wait(shared: &Shared) -> Option<BlockedWorker> {
    let blocked = Core::of_this_thread(shared)?.block();
    blocked
        .inspect_err(|error| tracing::warn!(%error, "no additional worker could be started while waiting for the kernel"))
        .ok()
}

/// Guard of a worker that waits for long.
pub(crate) struct BlockedWorker {
    _wait: BlockedCount,
    _lock_wait: Option<LockWaitCount>,
}

/// Counts a worker that waits.
struct BlockedCount(Rc<Core>);

impl Drop for BlockedCount {
    fn drop(&mut self) {
        self.0.blocked.set(self.0.blocked.get() - 1);
    }
}

/// Counts a worker that waits for a lock.
struct LockWaitCount(Rc<Core>);

impl Drop for LockWaitCount {
    fn drop(&mut self) {
        self.0.lock_waits.set(self.0.lock_waits.get() - 1);
    }
}
