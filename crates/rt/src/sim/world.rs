//! The scheduler and the clock of a simulated machine.

use super::Deadlock;
use super::disk::Disk;
use super::rng::Rng;
use crate::timer::Timers;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// What a poll costs in simulated time. More than nothing, so that a task that yields in a loop sees time pass.
const STEP_NS: (u64, u64) = (100, 2_000);
/// What an operation on cached data or names takes.
const QUICK_NS: (u64, u64) = (2_000, 500_000);
/// What a sync takes.
const SYNC_NS: (u64, u64) = (50_000, 5_000_000);

/// How long an operation of the disk takes.
#[derive(Clone, Copy)]
pub(super) enum Speed {
    Quick,
    Sync,
}

type LocalTask = Pin<Box<dyn Future<Output = ()>>>;
/// An operation's effect; gives whom to wake.
type Effect = Box<dyn FnOnce(&mut Disk, u64) -> Option<Waker>>;

struct SimTask {
    waker: Waker,
    header: Arc<SimHeader>,
    /// Out while it is being polled.
    future: Option<LocalTask>,
}

/// What wakers point to.
struct SimHeader {
    id: u64,
    queued: AtomicBool,
    woken: Arc<Mutex<Vec<u64>>>,
}

impl Wake for SimHeader {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.woken.lock().push(self.id);
        }
    }
}

/// A simulated machine as the code inside of it sees it.
pub(crate) struct World {
    state: RefCell<State>,
    /// Unique in the process: a file that was opened before a crash is recognised after it.
    boot: Cell<u64>,
    /// Files to be closed at the next step: destructors run anywhere, also while `state` is borrowed.
    closing: RefCell<Vec<u64>>,
}

struct State {
    rng: Rng,
    clock_ns: u64,
    steps: u64,
    fingerprint: u64,
    tasks: BTreeMap<u64, SimTask>,
    next_task: u64,
    ready: Vec<u64>,
    woken: Arc<Mutex<Vec<u64>>>,
    timers: Timers,
    disk: Disk,
    /// Operations under way by the time of their end.
    under_way: BTreeMap<(u64, u64), Effect>,
    next_operation: u64,
}

fn next_boot() -> u64 {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    BOOTS.fetch_add(1, Ordering::Relaxed)
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(Rng::new(rng.next()));
        World {
            state: RefCell::new(State {
                rng,
                clock_ns: 0,
                steps: 0,
                fingerprint: seed,
                tasks: BTreeMap::new(),
                next_task: 0,
                ready: Vec::new(),
                woken: Arc::default(),
                timers: Timers::default(),
                disk,
                under_way: BTreeMap::new(),
                next_operation: 0,
            }),
            boot: Cell::new(next_boot()),
            closing: RefCell::default(),
        }
    }

    pub(crate) fn clock_ns(&self) -> u64 {
        self.state.borrow().clock_ns
    }

    pub(crate) fn random(&self) -> u64 {
        self.state.borrow_mut().rng.next()
    }

    pub(super) fn steps(&self) -> u64 {
        self.state.borrow().steps
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.state.borrow().fingerprint
    }

    pub(super) fn boot(&self) -> u64 {
        self.boot.get()
    }

    pub(super) fn with_disk<R>(&self, f: impl FnOnce(&mut Disk) -> R) -> R {
        f(&mut self.state.borrow_mut().disk)
    }

    /// Closes a file at the next step.
    pub(super) fn close(&self, ino: u64) {
        self.closing.borrow_mut().push(ino);
    }

    /// Runs `f` on the timers.
    pub(crate) fn with_timers<R>(&self, f: impl FnOnce(&mut Timers) -> R) -> R {
        f(&mut self.state.borrow_mut().timers)
    }

    /// Adds a task.
    pub(crate) fn spawn(&self, future: LocalTask) {
        let mut state = self.state.borrow_mut();
        let id = state.next_task;
        state.next_task += 1;
        let header = Arc::new(SimHeader { id, queued: AtomicBool::new(true), woken: state.woken.clone() });
        let waker = Waker::from(header.clone());
        state.tasks.insert(id, SimTask { waker, header, future: Some(future) });
        state.ready.push(id);
    }

    /// Polls one task, chosen by seed, after letting time pass up to the next event if none is ready.
    pub(super) fn step(&self) -> Result<(), Deadlock> {
        loop {
            self.fire_due();
            if self.state.borrow_mut().collect_ready() {
                break;
            }
            self.state.borrow_mut().jump()?;
        }
        let Some((id, waker, mut future)) = self.state.borrow_mut().choose() else { return Ok(()) };
        let finished = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if finished {
            drop(future);
            let ended = self.state.borrow_mut().tasks.remove(&id);
            drop(ended);
        } else if let Some(task) = self.state.borrow_mut().tasks.get_mut(&id) {
            task.future = Some(future);
        }
        Ok(())
    }

    /// Ends the operations and timers whose time has come.
    fn fire_due(&self) {
        for ino in self.closing.take() {
            self.with_disk(|disk| disk.close(ino));
        }
        let woken = self.state.borrow_mut().take_due();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Starts an operation of the disk: `effect` happens when its time has passed, even if nobody waits for it any more.
    pub(super) fn submit<T: 'static>(
        &self,
        speed: Speed,
        effect: impl FnOnce(&mut Disk, u64) -> io::Result<T> + 'static,
    ) -> Submitted<T> {
        let slot = Rc::new(RefCell::new(Slot { result: None, waker: None }));
        let answer = slot.clone();
        let mut state = self.state.borrow_mut();
        let (low, high) = match speed {
            Speed::Quick => QUICK_NS,
            Speed::Sync => SYNC_NS,
        };
        let end = state.clock_ns + state.rng.between(low, high);
        let number = state.next_operation;
        state.next_operation += 1;
        let effect = Box::new(move |disk: &mut Disk, now_ns: u64| {
            let result = effect(disk, now_ns);
            let mut answer = answer.borrow_mut();
            answer.result = Some(result);
            answer.waker.take()
        });
        state.under_way.insert((end, number), effect);
        Submitted { slot }
    }

    /// Drops all tasks; what their destructors spawn as well.
    pub(super) fn end_tasks(&self) {
        loop {
            let tasks = {
                let mut state = self.state.borrow_mut();
                state.ready.clear();
                std::mem::take(&mut state.tasks)
            };
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        let mut state = self.state.borrow_mut();
        // Wakers that outlive their tasks push to a queue that nobody reads.
        state.woken = Arc::default();
        let timers = std::mem::take(&mut state.timers);
        drop(state);
        drop(timers);
        self.boot.set(next_boot());
        self.closing.borrow_mut().clear();
    }

    /// Lets each operation under way happen or not.
    pub(super) fn end_operations(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let now_ns = state.clock_ns;
        for effect in std::mem::take(&mut state.under_way).into_values() {
            if state.rng.coin() {
                effect(&mut state.disk, now_ns);
            }
        }
    }
}

impl State {
    /// Moves woken tasks to the ready ones; false if there are none.
    fn collect_ready(&mut self) -> bool {
        let woken = std::mem::take(&mut *self.woken.lock());
        self.ready.extend(woken);
        self.ready.retain(|id| self.tasks.contains_key(id));
        !self.ready.is_empty()
    }

    /// Takes one of the ready tasks out to be polled.
    fn choose(&mut self) -> Option<(u64, Waker, LocalTask)> {
        let choice = self.rng.below(self.ready.len() as u64) as usize;
        let id = self.ready.swap_remove(choice);
        self.steps += 1;
        self.clock_ns += self.rng.between(STEP_NS.0, STEP_NS.1);
        self.note(id);
        let task = self.tasks.get_mut(&id)?;
        task.header.queued.store(false, Ordering::Release);
        Some((id, task.waker.clone(), task.future.take()?))
    }

    /// Lets time pass up to the next event.
    fn jump(&mut self) -> Result<(), Deadlock> {
        let operation = self.under_way.first_key_value().map(|(key, _)| key.0);
        let next = [operation, self.timers.next_deadline()].into_iter().flatten().min();
        let deadlock = Deadlock { tasks: self.tasks.len(), clock_ns: self.clock_ns };
        self.clock_ns = self.clock_ns.max(next.ok_or(deadlock)?);
        Ok(())
    }

    fn take_due(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.under_way.first_entry() {
            let (end, number) = *first.key();
            if end > self.clock_ns {
                break;
            }
            let effect = first.remove();
            woken.extend(effect(&mut self.disk, end));
            self.note(number);
        }
        self.timers.take_due(self.clock_ns, &mut woken);
        woken
    }

    /// Adds a decision to the digest.
    fn note(&mut self, what: u64) {
        let mut mixed = self.fingerprint ^ what.rotate_left(17) ^ self.clock_ns;
        self.fingerprint = crate::clock::split_mix(&mut mixed);
    }
}

struct Slot<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// An operation under way.
pub(super) struct Submitted<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

impl<T> Future for Submitted<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut slot = self.slot.borrow_mut();
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
