//! A world of one host.

use super::{Deadlock, HostId, World};
use std::fmt;
use std::future::Future;

/// A machine whose decisions all derive from a seed. Its disk survives [`Machine::crash`] and
/// [`Machine::kill`].
///
/// Tasks survive between two calls of [`Machine::run`]; only a crash, a kill or dropping the
/// machine ends them.
pub struct Machine {
    world: World,
    host: HostId,
}

impl Machine {
    /// A machine with an empty disk.
    pub fn new(seed: u64) -> Machine {
        let mut world = World::new(seed);
        let host = world.add_host_at("machine", 0);
        Machine { world, host }
    }

    /// Makes reads fail with `EIO`, `per_million` of a million.
    pub fn set_read_errors(&mut self, per_million: u32) {
        self.world.set_read_errors(self.host, per_million);
    }

    /// Limits the disk's capacity; writes beyond it fail with `ENOSPC`. `None`: unlimited.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.world.set_capacity(self.host, bytes);
    }

    /// Runs until `future` ends. Panics if the thread already runs a core or a machine.
    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Result<T, Deadlock> {
        self.world.run(self.host, future)
    }

    /// Runs until `future` ends or the scheduler has made `steps` more steps, whichever is first;
    /// returns `None` in the second case. Panics if the thread already runs a core or a machine.
    pub fn run_until<T: 'static>(
        &mut self,
        future: impl Future<Output = T> + 'static,
        steps: u64,
    ) -> Result<Option<T>, Deadlock> {
        self.world.run_until(self.host, future, steps)
    }

    /// Simulates a power failure. Tasks end; each unsynced write is retained, lost or torn, and
    /// each unsynced name change is retained or lost. The machine can run again on the remaining
    /// state.
    pub fn crash(&mut self) {
        self.world.crash(self.host);
    }

    /// Kills the process: tasks end, and written data stays. Each operation in flight has happened
    /// or not.
    pub fn kill(&mut self) {
        self.world.kill(self.host);
    }

    /// Nanoseconds of simulated time since the machine was made.
    pub fn clock_ns(&self) -> u64 {
        self.world.clock_ns()
    }

    /// Steps (polls of a task) that the scheduler has made.
    pub fn steps(&self) -> u64 {
        self.world.steps()
    }

    /// A digest of all decisions of the scheduler and the disk, and of all written bytes; equal for
    /// equal runs, in any process.
    pub fn fingerprint(&self) -> u64 {
        self.world.fingerprint()
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine({} steps, {} ns)", self.steps(), self.clock_ns())
    }
}
