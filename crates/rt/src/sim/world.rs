//! Several hosts and their network, with the interface for the code that controls them.

use super::network::Network;
use super::simulation::Simulation;
use super::{Deadlock, HostId, NetworkOptions};
use crate::context::{self, Runtime};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

/// Upper bound of the initial values of hosts' monotonic clocks: their zeros are arbitrary, as on
/// real machines.
const MAX_CLOCK_ZERO_NS: u64 = 1 << 50;

/// Several hosts with a network between them, in one thread, whose decisions all derive from a
/// seed.
///
/// Each host has a process. Its tasks are started by [`World::spawn`], by [`World::run`] and by
/// other tasks; a kill or a crash ends them. Disks survive.
pub struct World {
    simulation: Rc<Simulation>,
}

impl World {
    /// A world without hosts.
    pub fn new(seed: u64) -> World {
        World { simulation: Rc::new(Simulation::new(seed)) }
    }

    /// Adds a host with an empty disk and a correct clock.
    pub fn add_host(&mut self, name: &str) -> HostId {
        let zero_ns = self.random() % MAX_CLOCK_ZERO_NS;
        self.add_host_at(name, zero_ns)
    }

    pub(super) fn add_host_at(&mut self, name: &str, clock_zero_ns: u64) -> HostId {
        self.simulation.add_host(name, clock_zero_ns)
    }

    /// The name of a host.
    pub fn name(&self, host: HostId) -> String {
        self.simulation.with_state(|state| state.hosts[host.0].name.clone())
    }

    /// A host's address in the network.
    pub fn ip(&self, host: HostId) -> Ipv4Addr {
        Network::ip(host)
    }

    /// Sets the behaviour of the network from now on.
    pub fn set_network(&mut self, options: NetworkOptions) {
        self.simulation.with_network(|network, _| network.options = options);
    }

    /// Makes reads of a host's disk fail with `EIO`, `per_million` of a million.
    pub fn set_read_errors(&mut self, host: HostId, per_million: u32) {
        self.simulation.with_disk_of(host, |disk| disk.faults.read_errors_per_million = per_million);
    }

    /// Limits a host's disk capacity; writes beyond it fail with `ENOSPC`. `None`: unlimited.
    pub fn set_capacity(&mut self, host: HostId, bytes: Option<u64>) {
        self.simulation.with_disk_of(host, |disk| disk.faults.capacity_bytes = bytes);
    }

    /// Sets a host's time of day ahead of the correct time (behind, if negative), and makes both
    /// its clocks run `drift_ppm` millionths too fast (too slow, if negative) from now on. The
    /// monotonic clock doesn't jump.
    pub fn set_clock(&mut self, host: HostId, ahead_ns: i64, drift_ppm: i32) {
        self.simulation.with_state(|state| {
            let now_ns = state.event_queue.clock_ns;
            state.hosts[host.0].clock.set(now_ns, ahead_ns, drift_ppm);
        });
    }

    /// A random number from the seed, for decisions outside of the hosts.
    pub fn random(&mut self) -> u64 {
        self.simulation.random()
    }

    /// Starts a task on a host and powers the host on.
    pub fn spawn(&mut self, host: HostId, future: impl Future<Output = ()> + 'static) {
        self.simulation.with_network(|network, events| network.power_on(events, host));
        self.simulation.spawn_on(host, Box::pin(future));
    }

    /// Runs all hosts until `future`, a task of `host`, ends. Panics if the thread already runs a
    /// core or a world.
    pub fn run<T: 'static>(
        &mut self,
        host: HostId,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Deadlock> {
        let output = self.run_until(host, future, u64::MAX)?;
        Ok(output.expect("no run lasts for u64::MAX steps"))
    }

    /// Runs all hosts until `future`, a task of `host`, ends or the scheduler has made `steps` more
    /// steps; returns `None` in the second case. Panics if the thread already runs a core or a
    /// world.
    pub fn run_until<T: 'static>(
        &mut self,
        host: HostId,
        future: impl Future<Output = T> + 'static,
        steps: u64,
    ) -> Result<Option<T>, Deadlock> {
        let output = Rc::new(RefCell::new(None));
        let result = output.clone();
        self.spawn(host, async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        });
        let _entered = self.enter().expect("a world runs on a thread without another runtime");
        let end = self.simulation.steps().saturating_add(steps);
        while output.borrow().is_none() && self.simulation.steps() < end {
            self.simulation.step()?;
        }
        let value = output.borrow_mut().take();
        Ok(value)
    }

    /// Runs all hosts for a time of the world's clock; time passes even if no event is pending.
    /// Panics if the thread already runs a core or a world.
    pub fn advance(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.clock_ns().saturating_add(nanos).min(u64::MAX - 1);
        let _entered = self.enter().expect("a world runs on a thread without another runtime");
        while self.clock_ns() < end_ns {
            self.simulation.step_until(end_ns).expect("the end of the time is always due");
        }
    }

    /// Kills a host's process: its tasks end, and written data stays. Each disk operation in flight
    /// has happened or not. The kernel keeps running: it closes or resets the connections.
    pub fn kill(&mut self, host: HostId) {
        self.end_tasks(host);
        self.simulation.end_operations(host);
        self.simulation.with_disk_of(host, |disk| disk.close_all());
        self.simulation.with_network(|network, events| network.kill(events, host));
    }

    /// Simulates a power failure of a host. Its tasks end; each unsynced write is retained, lost or
    /// torn, and each unsynced name change is retained or lost. Other hosts get no answer until the
    /// host runs again ([`World::spawn`]); then they learn that it doesn't know their connections.
    pub fn crash(&mut self, host: HostId) {
        self.end_tasks(host);
        self.simulation.end_operations(host);
        self.simulation.with_disk_of(host, |disk| disk.crash());
        self.simulation.with_network(|network, events| network.crash(events, host));
    }

    /// Stops a host's process (SIGSTOP): its tasks don't run, its kernel and its clocks do.
    pub fn stop(&mut self, host: HostId) {
        self.simulation.set_running(host, false);
    }

    /// Resumes a stopped process.
    pub fn resume(&mut self, host: HostId) {
        self.simulation.set_running(host, true);
    }

    /// Cuts the path from one host to another: packets on their way and later ones are held.
    pub fn cut_one_way(&mut self, from: HostId, to: HostId) {
        self.simulation.with_network(|network, _| network.cut(from, to));
    }

    /// Cuts the path between two hosts in both directions.
    pub fn cut(&mut self, a: HostId, b: HostId) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Restores the paths between two hosts. Held packets arrive, or their connections break.
    pub fn heal(&mut self, a: HostId, b: HostId) {
        self.simulation.with_network(|network, events| {
            network.heal(events, a, b);
            network.heal(events, b, a);
        });
    }

    /// Breaks all connections between two hosts.
    pub fn reset_connections(&mut self, a: HostId, b: HostId) {
        self.simulation.with_network(|network, _| network.reset_between(a, b));
    }

    /// Nanoseconds of simulated time since the world was made.
    pub fn clock_ns(&self) -> u64 {
        self.simulation.clock_ns()
    }

    /// Steps (polls of a task) that the scheduler has made.
    pub fn steps(&self) -> u64 {
        self.simulation.steps()
    }

    /// A digest of all decisions of the scheduler, the disks and the network, and of all bytes that
    /// hosts have sent to each other or written to disk. Equal for equal runs, in any process.
    pub fn fingerprint(&self) -> u64 {
        self.simulation.fingerprint()
    }

    fn enter(&self) -> std::io::Result<context::Entered> {
        context::enter(Runtime::Sim(self.simulation.clone()))
    }

    /// Ends a host's tasks. Their destructors run inside of the world, if the thread has no other
    /// runtime.
    fn end_tasks(&mut self, host: HostId) {
        let _entered = self.enter().ok();
        self.simulation.end_tasks(host);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let hosts = self.simulation.with_state(|state| state.hosts.len());
        (0..hosts).for_each(|host| self.end_tasks(HostId(host)));
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({} steps, {} ns)", self.steps(), self.clock_ns())
    }
}
