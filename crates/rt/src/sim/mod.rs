//! A simulated machine: clock, scheduler, randomness and disk, all decided by one seed.
//!
//! Code that runs inside uses the same functions as on a real core ([`crate::spawn`], [`crate::File`], [`crate::now`], ...);
//! nothing outside of this crate knows which of the two it runs on. The same seed gives the same run, step by step.
//!
//! What it doesn't simulate: several machines at once, sockets, the ring's raw operations, wakes from other threads.
//!
//! ```
//! use rt::{File, IoBuf, OpenOptions, sim::Machine};
//! use std::path::Path;
//!
//! let mut machine = Machine::new(7);
//! let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
//! machine.run(async move {
//!     let file = File::open(Path::new("/f"), options).await.unwrap();
//!     file.write_at(IoBuf::from_slice(b"safe"), 0).await.unwrap();
//!     file.sync_data().await.unwrap();
//! }).unwrap();
//! machine.crash();
//! let len = machine.run(async move { File::open(Path::new("/f"), options).await.unwrap().stat().await.unwrap().len });
//! assert_eq!(len.unwrap(), 4);
//! ```

mod content;
mod disk;
mod file;
mod inode;
mod names;
mod rng;
mod world;

pub(crate) use file::{
    SimFile, create_dir_all, read_dir, remove_file, rename, space, sync_dir, sync_filesystem,
};
pub(crate) use world::World;

use crate::context::{self, Runtime};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

/// Nothing can ever happen any more: every task waits for something that nobody will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// Tasks that wait.
    pub tasks: usize,
    /// Nanoseconds of simulated time at which it was noticed.
    pub clock_ns: u64,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "deadlock after {} ns of simulated time: {} tasks wait and nothing is due",
            self.clock_ns, self.tasks
        )
    }
}

impl std::error::Error for Deadlock {}

/// A machine whose every decision comes from a seed. Its disk survives [`Machine::crash`] and [`Machine::kill`].
///
/// Tasks live on between two calls of [`Machine::run`]; only a crash, a kill or dropping the machine ends them.
pub struct Machine {
    world: Rc<World>,
}

impl Machine {
    /// A machine with an empty disk.
    pub fn new(seed: u64) -> Machine {
        Machine { world: Rc::new(World::new(seed)) }
    }

    /// Makes reads fail with `EIO`, so many in a million.
    pub fn set_read_errors(&mut self, per_million: u32) {
        self.world.with_disk(|disk| disk.faults.read_errors_per_million = per_million);
    }

    /// Limits the disk; writes beyond it fail with `ENOSPC`. `None`: unlimited.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.world.with_disk(|disk| disk.faults.capacity_bytes = bytes);
    }

    /// Runs until `future` ends. Panics if the thread already runs a core or a machine.
    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Result<T, Deadlock> {
        let output = self.run_until(future, u64::MAX)?;
        Ok(output.expect("no run lasts for u64::MAX steps"))
    }

    /// Runs until `future` ends or the scheduler has made `steps` more steps, whichever is first; `None` if it was the steps.
    /// Panics if the thread already runs a core or a machine.
    pub fn run_until<T: 'static>(
        &mut self,
        future: impl Future<Output = T> + 'static,
        steps: u64,
    ) -> Result<Option<T>, Deadlock> {
        let _entered = self.enter().expect("a machine runs on a thread without another runtime");
        let output = Rc::new(RefCell::new(None));
        let result = output.clone();
        self.world.spawn(Box::pin(async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        }));
        let end = self.world.steps().saturating_add(steps);
        while output.borrow().is_none() && self.world.steps() < end {
            self.world.step()?;
        }
        let value = output.borrow_mut().take();
        Ok(value)
    }

    /// The power fails: tasks end, and of what wasn't synced each write is kept, lost or torn, and each name change kept or
    /// lost. The machine can run again on what is left.
    pub fn crash(&mut self) {
        self.end_tasks();
        self.world.end_operations();
        self.world.with_disk(|disk| disk.crash());
    }

    /// The process dies: tasks end, and what had been written stays. Of the operations under way each has happened or not.
    pub fn kill(&mut self) {
        self.end_tasks();
        self.world.end_operations();
        self.world.with_disk(|disk| disk.close_all());
    }

    /// Nanoseconds of simulated time since the machine was made.
    pub fn clock_ns(&self) -> u64 {
        self.world.clock_ns()
    }

    /// Steps that the scheduler has made: polls of a task.
    pub fn steps(&self) -> u64 {
        self.world.steps()
    }

    /// A digest of everything that the scheduler and the disk have decided; equal for equal runs.
    pub fn fingerprint(&self) -> u64 {
        self.world.fingerprint()
    }

    fn enter(&self) -> std::io::Result<context::Entered> {
        context::enter(Runtime::Sim(self.world.clone()))
    }

    /// Destructors of tasks run inside of the machine, if the thread is free for it.
    fn end_tasks(&mut self) {
        let _entered = self.enter().ok();
        self.world.end_tasks();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine({} steps, {} ns)", self.steps(), self.clock_ns())
    }
}
