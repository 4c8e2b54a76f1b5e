//! The lanes of a core, and what they run.

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

/// Requests of one core that may wait for a lock at a time; beyond it locking fails with `ENOLCK`. Each holds a lane, so this
/// many spare lanes may have to be made.
const MAX_LOCK_WAITS: usize = 256;
/// Lanes that may wait at a time, for locks and for the kernel: more than it sends requests that no program waits for (`MAX_BACKGROUND`).
const MAX_WAITS: usize = 512;
/// When all lanes are taken for so long and no request ends meanwhile, there are more: what waits for one server keeps nobody from the others.
const STUCK: Duration = Duration::from_millis(100);

thread_local! {
    /// The cores that this thread runs: one for each mount.
    static CORES: RefCell<Vec<Weak<Core>>> = const { RefCell::new(Vec::new()) };
}

/// What a request comes to: the length of the reply's body, or an error number.
pub(crate) type Outcome = std::result::Result<usize, Errno>;

/// One lane.
pub(crate) trait Lane: 'static {
    /// Hands in the reply to the last request, if there was one, and waits for the next. `None`: the connection has ended.
    async fn exchange(&mut self, reply: Option<Outcome>) -> Option<Request>;
}

/// Makes one more lane on this core.
type AddLane = Box<dyn Fn() -> io::Result<()>>;

/// A core that serves a mount.
pub(crate) struct Core {
    /// The mount.
    pub(crate) shared: Arc<Shared>,
    /// Number of the core among those of the mount.
    pub(crate) index: usize,
    live: Cell<usize>,
    blocked: Cell<usize>,
    spare: Cell<usize>,
    /// Lanes that handle a request, and requests that were handled.
    busy: Cell<usize>,
    handled: Cell<u64>,
    /// Somebody looks whether all lanes are stuck.
    is_watched: Cell<bool>,
    add_lane: OnceCell<AddLane>,
    ended: RefCell<Option<Waker>>,
}

impl Core {
    /// A core without lanes.
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Rc<Core> {
        let core = Rc::new(Core {
            shared,
            index,
            live: Cell::new(0),
            blocked: Cell::new(0),
            spare: Cell::new(0),
            busy: Cell::new(0),
            handled: Cell::new(0),
            is_watched: Cell::new(false),
            add_lane: OnceCell::new(),
            ended: RefCell::new(None),
        });
        CORES.with_borrow_mut(|cores| {
            cores.retain(|core| core.strong_count() > 0);
            cores.push(Rc::downgrade(&core));
        });
        core
    }

    /// The core of a mount that this thread runs.
    fn here(shared: &Shared) -> Option<Rc<Core>> {
        let is_it = |core: &Rc<Core>| std::ptr::eq(&raw const *core.shared, shared);
        CORES.with_borrow(|cores| cores.iter().filter_map(Weak::upgrade).find(is_it))
    }

    /// Says how lanes are added when requests block theirs.
    pub(crate) fn set_add_lane(&self, add: impl Fn() -> io::Result<()> + 'static) {
        assert!(self.add_lane.set(Box::new(add)).is_ok(), "a core is set up once");
    }

    /// Runs a lane until the connection ends.
    pub(crate) fn run_lane(self: &Rc<Self>, mut lane: impl Lane) {
        self.live.set(self.live.get() + 1);
        let core = self.clone();
        rt::spawn(async move {
            let mut reply = None;
            while let Some(request) = lane.exchange(reply.take()).await {
                core.shared.stats.count(core.index, request.header.opcode);
                core.begin();
                reply = Some(dispatch::handle(&core, &request).await);
                core.busy.set(core.busy.get() - 1);
                core.handled.set(core.handled.get() + 1);
            }
            // Whoever waits for a lock would wait for ever, since nobody is left to interrupt it.
            core.shared.interrupts.end();
            core.lane_ended();
        });
    }

    /// A lane has a request.
    fn begin(self: &Rc<Self>) {
        self.busy.set(self.busy.get() + 1);
        if self.busy.get() == self.live.get() && !self.is_watched.replace(true) {
            rt::spawn(self.clone().watch());
        }
    }

    /// Adds lanes as long as all are stuck: twice as many each time, since what they are given first is mostly what the others have.
    async fn watch(self: Rc<Self>) {
        let mut more = 1;
        while self.busy.get() == self.live.get() && self.live.get() > 0 {
            let handled = self.handled.get();
            rt::sleep(STUCK).await;
            if self.handled.get() > handled {
                more = 1;
                continue;
            }
            let room = MAX_WAITS.saturating_sub(self.spare.get());
            tracing::debug!(lanes = self.live.get(), more, "all requests of a processor wait");
            if room == 0 || (0..more.min(room)).any(|_| self.add_spare().is_err()) {
                break;
            }
            more *= 2;
        }
        self.is_watched.set(false);
    }

    fn add_spare(&self) -> Result<()> {
        let add = self.add_lane.get().expect("it is set before the first lane runs");
        add().map_err(|e| Error::new(Errno::ENOLCK, format!("no memory for one more request: {e}")))?;
        self.spare.set(self.spare.get() + 1);
        Ok(())
    }

    fn lane_ended(&self) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0
            && let Some(waker) = self.ended.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Waits until all lanes have ended; the last core to get here releases what the kernel left open.
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
            // Side by side, so that servers that are gone are waited for once.
            let files = self.shared.handles.drain();
            let released = files.iter().map(|open| open.file.release());
            rt::join_all(released.collect()).await;
        }
    }

    /// Announces that the running request may wait for long: the core gets a spare lane, so that other requests don't wait with it.
    /// Call the end of the wait by dropping the guard.
    pub(crate) fn block_lane(self: &Rc<Self>) -> Result<Blocked> {
        self.block(MAX_LOCK_WAITS)
    }

    fn block(self: &Rc<Self>, most: usize) -> Result<Blocked> {
        if self.blocked.get() >= self.spare.get() {
            if self.spare.get() >= most {
                let message = format!("{most} requests of one processor wait already");
                return Err(Error::new(Errno::ENOLCK, message));
            }
            self.add_spare()?;
        }
        self.blocked.set(self.blocked.get() + 1);
        Ok(Blocked { core: self.clone() })
    }
}

/// Announces that something on this thread, mostly a request of the mount, waits for the kernel to let go of pages. The kernel may be waiting for a page that it
/// wants to have read, and the request for that be behind others, for which all lanes wait in turn.
pub(crate) fn wait_for_kernel(shared: &Shared) -> Option<Blocked> {
    let blocked = Core::here(shared)?.block(MAX_WAITS);
    blocked
        .inspect_err(|error| tracing::warn!(%error, "the kernel is waited for without a further lane"))
        .ok()
}

/// A lane that waits for long.
pub(crate) struct Blocked {
    core: Rc<Core>,
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.core.blocked.set(self.core.blocked.get() - 1);
    }
}
