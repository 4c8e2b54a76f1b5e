//! The ring of one core and the operations in flight on it.

use crate::buf::Borrowed;
use crate::core_ring::{CoreRing, Form};
use io_uring::opcode;
use io_uring::squeue::{Entry, Entry128};
use io_uring::types::Fd;
use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Operations in flight on one core; above that new ones fail with `EAGAIN`.
const MAX_OPERATIONS: usize = 1 << 16;
/// Longest time that an ending core waits for operations that can't be cancelled before it leaks
/// their buffers.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Token of the read on the core's eventfd.
const WAKE_TOKEN: u64 = u64::MAX;
/// Token of cancellations, whose results are ignored.
const CANCEL_TOKEN: u64 = u64::MAX - 1;

/// Memory and descriptors that the kernel uses during an operation, kept alive until its completion
/// even if its future is dropped.
#[derive(Default)]
#[expect(dead_code, reason = "the fields are there to be dropped late, not to be read")]
pub(crate) struct KeepAlive {
    /// Memory that is read or written.
    pub(crate) bufs: [Option<Borrowed>; 2],
    /// Paths.
    pub(crate) paths: [Option<CString>; 2],
    /// The descriptor: an entry that is queued but not yet submitted names it by number, and a
    /// number can be reused.
    pub(crate) fd: Option<Arc<OwnedFd>>,
    /// Addresses, and vectors of buffers.
    pub(crate) other: Option<Box<dyn Any>>,
}

impl KeepAlive {
    /// Keeps another value alive as well.
    pub(crate) fn with<T: Any>(self, other: Box<T>) -> KeepAlive {
        KeepAlive { other: Some(other), ..self }
    }
}

/// How an operation behaves when its future is dropped, and when its core ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// It runs to completion.
    Finish,
    /// It runs to completion, and the descriptor that it returns is closed.
    Close,
    /// It is cancelled: otherwise it might never complete.
    Cancel,
    /// It is cancelled, and a descriptor that it has already returned is closed.
    CancelAndClose,
    /// It stays in flight. It completes when the other side (the kernel's file protocol) goes away,
    /// and accesses only memory that is never freed.
    Abandon,
}

enum State {
    Free { next: usize },
    Waiting { waker: Option<Waker>, keep: KeepAlive, on_drop: OnDrop },
    Orphaned { keep: KeepAlive, on_drop: OnDrop },
    Done { result: i32, on_drop: OnDrop },
}

struct Slot {
    /// Distinguishes an operation from earlier ones in the same slot.
    generation: u32,
    state: State,
}

/// Identifies an operation in flight.
#[derive(Clone, Copy)]
pub(crate) struct OpId {
    index: u32,
    generation: u32,
}

impl OpId {
    fn token(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    fn from_token(token: u64) -> OpId {
        OpId { index: token as u32, generation: (token >> 32) as u32 }
    }
}

/// End of the free list.
const NONE: usize = usize::MAX;

/// The ring and the slots of its operations.
pub(crate) struct Driver {
    ring: CoreRing,
    /// Whether driver commands, which need 128-byte entries, are possible.
    has_large_entries: bool,
    slots: Vec<Slot>,
    free: usize,
    in_flight: usize,
    /// Entries that didn't fit into the submission queue while the kernel accepted no more.
    backlog: VecDeque<Entry128>,
    eventfd: Arc<OwnedFd>,
    /// Receives the eventfd's counter.
    wake_counter: Box<UnsafeCell<u64>>,
    wake_armed: bool,
}

impl Driver {
    pub(crate) fn new(eventfd: Arc<OwnedFd>) -> io::Result<Driver> {
        let (ring, form) = set_up_ring()?;
        Ok(Driver {
            ring,
            has_large_entries: form != Form::Plain,
            slots: Vec::new(),
            free: NONE,
            in_flight: 0,
            backlog: VecDeque::new(),
            eventfd,
            wake_counter: Box::new(UnsafeCell::new(0)),
            wake_armed: false,
        })
    }

    /// Whether driver commands are possible.
    pub(crate) fn has_large_entries(&self) -> bool {
        self.has_large_entries
    }

    /// Queues an operation. It is submitted with the next batch.
    ///
    /// # Safety
    /// Everything that `entry` points to is owned by `keep` or lives until the completion by other
    /// means.
    pub(crate) unsafe fn start(
        &mut self,
        mut entry: Entry128,
        keep: KeepAlive,
        on_drop: OnDrop,
    ) -> io::Result<OpId> {
        let id = self.claim(State::Waiting { waker: None, keep, on_drop })?;
        entry.set_user_data(id.token());
        // SAFETY: passed on to the caller.
        unsafe { self.push(entry) };
        Ok(id)
    }

    /// The operation's result, or registers the waker for it.
    pub(crate) fn poll(&mut self, id: OpId, cx: &mut Context<'_>) -> Poll<i32> {
        let slot = &mut self.slots[id.index as usize];
        debug_assert_eq!(slot.generation, id.generation, "an operation is polled after its end");
        match &mut slot.state {
            State::Done { result, .. } => {
                let result = *result;
                self.release(id.index as usize);
                Poll::Ready(result)
            }
            State::Waiting { waker, .. } => {
                match waker {
                    Some(known) => known.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Free { .. } | State::Orphaned { .. } => {
                unreachable!("only a live future polls its operation")
            }
        }
    }

    /// Notes that the operation's future was dropped.
    pub(crate) fn abandon(&mut self, id: OpId) {
        let index = id.index as usize;
        match std::mem::replace(&mut self.slots[index].state, State::Free { next: NONE }) {
            State::Waiting { keep, on_drop, .. } => {
                self.slots[index].state = State::Orphaned { keep, on_drop };
                if matches!(on_drop, OnDrop::Cancel | OnDrop::CancelAndClose) {
                    self.cancel(id);
                }
            }
            State::Done { result, on_drop } => {
                discard(result, on_drop);
                self.release(index);
            }
            state => self.slots[index].state = state,
        }
    }

    fn cancel(&mut self, id: OpId) {
        let entry = opcode::AsyncCancel::new(id.token()).build().user_data(CANCEL_TOKEN);
        // SAFETY: a cancellation points to nothing.
        unsafe { self.push(entry.into()) };
    }

    /// Keeps a read on the eventfd in flight, so that a wake by another core ends a wait.
    pub(crate) fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        self.wake_armed = true;
        let word = self.wake_counter.get().cast::<u8>();
        let entry = opcode::Read::new(Fd(self.eventfd.as_raw_fd()), word, 8).build().user_data(WAKE_TOKEN);
        // SAFETY: `wake_counter` is boxed and freed only after the read has ended (see `drain`).
        unsafe { self.push(entry.into()) };
    }

    /// Submits queued entries and lets the kernel post completions, without waiting. Makes a system
    /// call only if there is something to do.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.refill();
        if self.ring.needs_kernel() { ignore_early_end(self.ring.submit()) } else { Ok(()) }
    }

    /// Submits queued entries and waits for a completion, at most for `timeout`.
    pub(crate) fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.refill();
        if !self.backlog.is_empty() || self.ring.has_completions() {
            return self.submit();
        }
        ignore_early_end(self.ring.submit_and_wait(timeout))
    }

    /// Takes completions off the ring. Their wakers go to `woken`, to be woken when the driver is
    /// no longer borrowed. The values that the operations kept alive go to `kept`, for the same
    /// reason.
    pub(crate) fn reap(&mut self, woken: &mut Vec<Waker>, released: &mut Vec<KeepAlive>) {
        loop {
            let Some(completion) = self.ring.next_completion() else { return };
            match completion.user_data() {
                CANCEL_TOKEN => {}
                WAKE_TOKEN => self.wake_armed = false,
                token => self.complete(OpId::from_token(token), completion.result(), woken, released),
            }
        }
    }

    fn complete(&mut self, id: OpId, result: i32, woken: &mut Vec<Waker>, released: &mut Vec<KeepAlive>) {
        let index = id.index as usize;
        assert_eq!(self.slots[index].generation, id.generation, "the kernel completes an operation once");
        match std::mem::replace(&mut self.slots[index].state, State::Free { next: NONE }) {
            State::Waiting { waker, keep, on_drop } => {
                self.slots[index].state = State::Done { result, on_drop };
                woken.extend(waker);
                released.push(keep);
            }
            State::Orphaned { keep, on_drop } => {
                discard(result, on_drop);
                released.push(keep);
                self.release(index);
            }
            State::Free { .. } | State::Done { .. } => {
                unreachable!("the generation matched a live operation")
            }
        }
    }

    fn claim(&mut self, state: State) -> io::Result<OpId> {
        if self.in_flight >= MAX_OPERATIONS {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        self.in_flight += 1;
        if self.free == NONE {
            self.slots.push(Slot { generation: 0, state });
            return Ok(OpId { index: (self.slots.len() - 1) as u32, generation: 0 });
        }
        let index = self.free;
        let slot = &mut self.slots[index];
        if let State::Free { next } = slot.state {
            self.free = next;
        }
        slot.state = state;
        Ok(OpId { index: index as u32, generation: slot.generation })
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        // The top bit stays clear, so that no operation's token equals a reserved one.
        slot.generation = (slot.generation + 1) & (u32::MAX >> 1);
        slot.state = State::Free { next: self.free };
        self.free = index;
        self.in_flight -= 1;
    }

    /// # Safety
    /// As for [`Driver::start`].
    unsafe fn push(&mut self, entry: Entry128) {
        self.refill();
        // SAFETY: the caller vouches for what the entry points to.
        if !self.backlog.is_empty() || unsafe { self.ring.push(&entry) }.is_err() {
            self.backlog.push_back(entry);
            self.refill();
        }
    }

    /// Moves the backlog to the submission queue, submitting when that is full. Entries that the
    /// kernel doesn't accept now stay.
    fn refill(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the code that queued the entry vouched for what it points to.
            if unsafe { self.ring.push(entry) }.is_ok() {
                self.backlog.pop_front();
            } else if self.ring.submit().is_err() || self.ring.is_submission_full() {
                return;
            }
        }
    }

    /// Cancels all operations in flight and waits for them, since the kernel may still write to the
    /// buffers. If one doesn't end in time (a dead disk), its memory is leaked.
    pub(crate) fn drain(mut self) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if let State::Waiting { on_drop, .. } | State::Orphaned { on_drop, .. } = &slot.state
                && *on_drop != OnDrop::Abandon
            {
                self.cancel(OpId { index: index as u32, generation: slot.generation });
            }
        }
        if self.wake_armed {
            let entry = opcode::AsyncCancel::new(WAKE_TOKEN).build().user_data(CANCEL_TOKEN);
            // SAFETY: a cancellation points to nothing.
            unsafe { self.push(entry.into()) };
        }
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while self.holds_memory() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.submit_and_wait(Some(left)).is_err() {
                std::mem::forget(self);
                return;
            }
            self.reap(&mut Vec::new(), &mut Vec::new());
        }
    }

    fn holds_memory(&self) -> bool {
        let busy = |slot: &Slot| match &slot.state {
            State::Waiting { on_drop, .. } | State::Orphaned { on_drop, .. } => *on_drop != OnDrop::Abandon,
            State::Free { .. } | State::Done { .. } => false,
        };
        self.wake_armed || self.slots.iter().any(busy)
    }
}

fn set_up_ring() -> io::Result<(CoreRing, Form)> {
    let (ring, form) = CoreRing::set_up()?;
    if let Some(cpus) = crate::numa::worker_cpus() {
        // Blocking operations of a ring run on kernel threads, which don't inherit the CPUs of the
        // ring's thread. On other CPUs they are slower.
        let _ = ring.bind_kernel_threads(&crate::thread::cpu_set(cpus));
    }
    Ok((ring, form))
}

/// Disposes of the result of an operation whose future was dropped.
fn discard(result: i32, on_drop: OnDrop) {
    if matches!(on_drop, OnDrop::Close | OnDrop::CancelAndClose) && result >= 0 {
        // SAFETY: the operation has opened the descriptor, and its future, its only owner, is gone.
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
}

/// Ignores the error of a wait that ends early (a signal, the timeout, completions to reap first).
fn ignore_early_end(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(e) => match e.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(e),
        },
    }
}

/// Converts a plain entry for a ring of large ones.
pub(crate) fn large(entry: Entry) -> Entry128 {
    Entry128::from(entry)
}

/// Converts a completion's result to that of a system call.
pub(crate) fn to_result(result: i32) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}
