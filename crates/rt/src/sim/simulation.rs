//! The scheduler of a simulated world, with the interface for the code inside of it.

use super::disk::Disk;
use super::event_queue::{DurationRange, Event, EventQueue};
use super::host::{Clock, Host};
use super::network::Network;
use super::rng::{Rng, mix};
use super::{Deadlock, HostId};
use crate::local::Locals;
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
use types::Timestamp;

/// Simulated time that a poll takes. More than 0, so that a task that yields in a loop sees time
/// pass.
const STEP_NS: DurationRange = (100, 2_000);
/// Time that an operation on cached data or names takes.
const QUICK_NS: DurationRange = (2_000, 500_000);
/// Time that a sync takes.
const SYNC_NS: DurationRange = (50_000, 5_000_000);

/// Duration class of a disk operation.
#[derive(Clone, Copy)]
pub(super) enum Speed {
    Quick,
    Sync,
}

type LocalTask = Pin<Box<dyn Future<Output = ()>>>;

struct SimTask {
    host: HostId,
    waker: Waker,
    header: Arc<SimHeader>,
    /// `None` while it is being polled.
    future: Option<LocalTask>,
}

/// The part of a task to which wakers point.
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

/// An object that its owner has dropped.
pub(super) enum DroppedObject {
    File { boot: u64, ino: u64 },
    Socket(super::stream::EndId),
    Listener { boot: u64, port: u16 },
}

/// All hosts, their tasks and the network between them.
pub(crate) struct Simulation {
    state: RefCell<State>,
    /// The host whose task is running.
    current: Cell<HostId>,
    /// Each host's boot. Unique in the process, so that a file or socket of an earlier boot is
    /// detected.
    boots: RefCell<Vec<u64>>,
    /// Objects to close at the next step: destructors run anywhere, also while `state` is borrowed.
    closing: RefCell<Vec<DroppedObject>>,
}

pub(super) struct State {
    pub(super) event_queue: EventQueue,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    steps: u64,
    fingerprint: u64,
    tasks: BTreeMap<u64, SimTask>,
    next_task: u64,
    ready: Vec<u64>,
    woken: Arc<Mutex<Vec<u64>>>,
}

fn next_boot() -> u64 {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    BOOTS.fetch_add(1, Ordering::Relaxed)
}

impl Simulation {
    /// A world without hosts.
    pub(super) fn new(seed: u64) -> Simulation {
        let state = State {
            event_queue: EventQueue::new(Rng::new(seed)),
            hosts: Vec::new(),
            network: Network::default(),
            steps: 0,
            fingerprint: seed,
            tasks: BTreeMap::new(),
            next_task: 0,
            ready: Vec::new(),
            woken: Arc::default(),
        };
        Simulation {
            state: RefCell::new(state),
            current: Cell::new(HostId(0)),
            boots: RefCell::default(),
            closing: RefCell::default(),
        }
    }

    /// Adds a host whose monotonic clock begins at `zero_ns`.
    pub(super) fn add_host(&self, name: &str, zero_ns: u64) -> HostId {
        let mut state = self.state.borrow_mut();
        let disk = Disk::new(Rng::new(state.event_queue.rng.next()));
        let clock = Clock::new(state.event_queue.clock_ns, zero_ns);
        state.hosts.push(Host::new(name, disk, clock));
        state.network.add_host();
        self.boots.borrow_mut().push(next_boot());
        HostId(state.hosts.len() - 1)
    }

    pub(super) fn with_state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.borrow_mut())
    }

    /// Changes the network, and then wakes the tasks affected.
    pub(super) fn with_network<R>(&self, f: impl FnOnce(&mut Network, &mut EventQueue) -> R) -> R {
        let (result, woken) = self.with_state(|state| {
            let result = f(&mut state.network, &mut state.event_queue);
            (result, state.network.take_woken())
        });
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// The host whose code is running.
    pub(super) fn current(&self) -> HostId {
        self.current.get()
    }

    /// The name of the host whose code is running.
    pub(super) fn name_of_current(&self) -> String {
        self.state.borrow().hosts[self.current().0].name.clone()
    }

    /// The running host's monotonic clock.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        let state = self.state.borrow();
        state.hosts[self.current().0].clock.monotonic_ns(state.event_queue.clock_ns)
    }

    /// The running host's time of day.
    pub(crate) fn time_of_day(&self) -> Timestamp {
        let state = self.state.borrow();
        let clock = state.hosts[self.current().0].clock;
        Timestamp::from_nanos(clock.time_of_day_ns(state.event_queue.clock_ns) as i64)
    }

    pub(crate) fn random(&self) -> u64 {
        self.state.borrow_mut().event_queue.rng.next()
    }

    /// Nanoseconds since the world began.
    pub(super) fn clock_ns(&self) -> u64 {
        self.state.borrow().event_queue.clock_ns
    }

    pub(super) fn steps(&self) -> u64 {
        self.state.borrow().steps
    }

    /// A digest of all decisions, of the bytes that hosts sent and of those that they wrote to
    /// disk.
    pub(super) fn fingerprint(&self) -> u64 {
        let state = self.state.borrow();
        let mut fingerprint = state.fingerprint;
        mix(&mut fingerprint, state.event_queue.rng.position());
        mix(&mut fingerprint, state.network.sent_digest());
        state.hosts.iter().for_each(|host| mix(&mut fingerprint, host.disk.written_digest()));
        fingerprint
    }

    /// The running host's boot.
    pub(super) fn boot(&self) -> u64 {
        self.boots.borrow()[self.current().0]
    }

    /// Runs `f` on a host's disk.
    pub(super) fn with_disk_of<R>(&self, host: HostId, f: impl FnOnce(&mut Disk) -> R) -> R {
        f(&mut self.state.borrow_mut().hosts[host.0].disk)
    }

    /// Runs `f` on the running host's disk.
    pub(super) fn with_disk<R>(&self, f: impl FnOnce(&mut Disk) -> R) -> R {
        self.with_disk_of(self.current(), f)
    }

    /// Closes an object at the next step.
    pub(super) fn close(&self, what: DroppedObject) {
        self.closing.borrow_mut().push(what);
    }

    /// Runs `f` on the running host's timers.
    pub(crate) fn with_timers<R>(&self, f: impl FnOnce(&mut Timers) -> R) -> R {
        f(&mut self.state.borrow_mut().hosts[self.current().0].timers)
    }

    /// Runs `f` on the values of the running host.
    pub(crate) fn with_locals<R>(&self, f: impl FnOnce(&mut Locals) -> R) -> R {
        f(&mut self.state.borrow_mut().hosts[self.current().0].locals)
    }

    /// Adds a task to the running host.
    pub(crate) fn spawn(&self, future: LocalTask) {
        self.spawn_on(self.current(), future);
    }

    pub(super) fn spawn_on(&self, host: HostId, future: LocalTask) {
        let mut state = self.state.borrow_mut();
        let id = state.next_task;
        state.next_task += 1;
        let header = Arc::new(SimHeader { id, queued: AtomicBool::new(true), woken: state.woken.clone() });
        let waker = Waker::from(header.clone());
        state.tasks.insert(id, SimTask { host, waker, header, future: Some(future) });
        state.make_ready(id);
    }

    /// Polls one task, chosen by the seed. If none is ready, lets time pass up to the next event
    /// first.
    pub(super) fn step(&self) -> Result<(), Deadlock> {
        while !self.step_until(u64::MAX)? {}
        Ok(())
    }

    /// As [`Simulation::step`], but time passes up to `end_ns` at most. False if no task was ready.
    pub(super) fn step_until(&self, end_ns: u64) -> Result<bool, Deadlock> {
        self.fire_due();
        if !self.with_state(State::collect_ready) {
            self.with_state(|state| state.advance_clock(end_ns))?;
            return Ok(false);
        }
        let Some((id, host, waker, mut future)) = self.with_state(State::choose) else { return Ok(true) };
        self.current.set(host);
        let finished = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if finished {
            drop(future);
            let ended = self.with_state(|state| state.tasks.remove(&id));
            drop(ended);
        } else if let Some(task) = self.state.borrow_mut().tasks.get_mut(&id) {
            task.future = Some(future);
        }
        Ok(true)
    }

    /// Closes dropped objects, and executes due events.
    fn fire_due(&self) {
        for what in self.closing.take() {
            self.close_now(what);
        }
        let woken = self.with_state(State::take_due);
        woken.into_iter().for_each(Waker::wake);
    }

    fn close_now(&self, what: DroppedObject) {
        let host_of = |boot| self.boots.borrow().iter().position(|known| *known == boot).map(HostId);
        match what {
            DroppedObject::File { boot, ino } => {
                if let Some(host) = host_of(boot) {
                    self.with_disk_of(host, |disk| disk.close(ino));
                }
            }
            DroppedObject::Socket(end) => self.with_network(|network, events| network.close(events, end)),
            DroppedObject::Listener { boot, port } => {
                if let Some(host) = host_of(boot) {
                    self.with_network(|network, events| network.close_listener(events, host, port));
                }
            }
        }
    }

    /// Starts an operation of the running host's disk. `effect` is executed when its time has
    /// passed, even if its future was dropped.
    pub(super) fn submit<T: 'static>(
        &self,
        speed: Speed,
        effect: impl FnOnce(&mut Disk, u64) -> io::Result<T> + 'static,
    ) -> Submitted<T> {
        let slot = Rc::new(RefCell::new(Slot { result: None, waker: None }));
        let answer = slot.clone();
        let span = match speed {
            Speed::Quick => QUICK_NS,
            Speed::Sync => SYNC_NS,
        };
        let effect = Box::new(move |disk: &mut Disk, now_ns: u64| {
            let result = effect(disk, now_ns);
            let mut answer = answer.borrow_mut();
            answer.result = Some(result);
            answer.waker.take()
        });
        let host = self.current();
        self.state.borrow_mut().event_queue.after(span, Event::Disk(host, effect));
        Submitted { slot }
    }

    /// Drops a host's tasks, and those that their destructors spawn. Destructors run as the host's
    /// code.
    pub(super) fn end_tasks(&self, host: HostId) {
        self.current.set(host);
        loop {
            let (tasks, locals) = self.with_state(|state| state.take_tasks(host));
            if tasks.is_empty() && locals.is_empty() {
                break;
            }
            drop(tasks);
            drop(locals);
        }
        let timers = self.with_timers(std::mem::take);
        drop(timers);
        // Objects dropped by the destructors belong to a boot that is over, so they aren't closed a
        // second time.
        self.boots.borrow_mut()[host.0] = next_boot();
    }

    /// Executes or discards each disk operation in flight of a host, at random.
    pub(super) fn end_operations(&self, host: HostId) {
        let effects = self.with_state(|state| {
            let now_ns = state.hosts[host.0].clock.time_of_day_ns(state.event_queue.clock_ns);
            let operations = state.event_queue.take_disk_operations(host);
            let mut left = Vec::new();
            for effect in operations {
                if state.event_queue.rng.coin() {
                    effect(&mut state.hosts[host.0].disk, now_ns);
                } else {
                    left.push(effect);
                }
            }
            left
        });
        drop(effects);
    }

    /// Stops or resumes a host's processes.
    pub(super) fn set_running(&self, host: HostId, runs: bool) {
        self.with_state(|state| state.set_running(host, runs));
    }
}

impl State {
    /// Queues a task to be polled, as soon as its host runs.
    fn make_ready(&mut self, id: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let host = &mut self.hosts[task.host.0];
        if host.is_running {
            self.ready.push(id);
        } else {
            host.stopped_tasks.push(id);
        }
    }

    fn set_running(&mut self, host: HostId, runs: bool) {
        self.hosts[host.0].is_running = runs;
        let stopped = std::mem::take(&mut self.hosts[host.0].stopped_tasks);
        let ready = std::mem::take(&mut self.ready);
        ready.into_iter().chain(stopped).for_each(|id| self.make_ready(id));
    }

    /// Moves woken tasks to the ready queue; false if there are none.
    fn collect_ready(&mut self) -> bool {
        let woken = std::mem::take(&mut *self.woken.lock());
        woken.into_iter().for_each(|id| self.make_ready(id));
        self.ready.retain(|id| self.tasks.contains_key(id));
        !self.ready.is_empty()
    }

    /// Takes one of the ready tasks out to be polled.
    fn choose(&mut self) -> Option<(u64, HostId, Waker, LocalTask)> {
        let choice = self.event_queue.rng.below(self.ready.len() as u64) as usize;
        let id = self.ready.swap_remove(choice);
        self.steps += 1;
        self.event_queue.clock_ns += self.event_queue.rng.between(STEP_NS.0, STEP_NS.1);
        self.note(id);
        let task = self.tasks.get_mut(&id)?;
        task.header.queued.store(false, Ordering::Release);
        Some((id, task.host, task.waker.clone(), task.future.take()?))
    }

    /// Lets time pass up to the next event, or to `end_ns` if that is earlier.
    fn advance_clock(&mut self, end_ns: u64) -> Result<(), Deadlock> {
        let timer = |host: &Host| host.timers.next_deadline().map(|deadline| host.clock.world_ns(deadline));
        let timers = self.hosts.iter().filter_map(timer).min();
        let next = [self.event_queue.next_due(), timers].into_iter().flatten().min().unwrap_or(u64::MAX);
        let next = next.min(end_ns);
        if next == u64::MAX {
            return Err(Deadlock { tasks: self.tasks.len(), clock_ns: self.event_queue.clock_ns });
        }
        self.event_queue.clock_ns = self.event_queue.clock_ns.max(next);
        Ok(())
    }

    fn take_due(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some((at, number, event)) = self.event_queue.take_due() {
            match event {
                Event::Disk(host, effect) => {
                    let host = &mut self.hosts[host.0];
                    woken.extend(effect(&mut host.disk, host.clock.time_of_day_ns(at)));
                }
                Event::Packet(packet) => self.network.deliver(&mut self.event_queue, packet),
                Event::Stall(end) => self.network.check_stall(&mut self.event_queue, end),
            }
            self.note(number);
        }
        woken.extend(self.network.take_woken());
        for host in &mut self.hosts {
            host.timers.take_due(host.clock.monotonic_ns(self.event_queue.clock_ns), &mut woken);
        }
        woken
    }

    fn take_tasks(&mut self, host: HostId) -> (Vec<SimTask>, Locals) {
        let (of_host, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.tasks).into_iter().partition(|(_, task)| task.host == host);
        self.tasks = others;
        self.ready.retain(|id| self.tasks.contains_key(id));
        self.hosts[host.0].stopped_tasks.clear();
        (of_host.into_values().collect(), std::mem::take(&mut self.hosts[host.0].locals))
    }

    /// Adds a decision to the digest.
    fn note(&mut self, what: u64) {
        mix(&mut self.fingerprint, what);
        mix(&mut self.fingerprint, self.event_queue.clock_ns);
    }
}

struct Slot<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// A disk operation in flight.
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
