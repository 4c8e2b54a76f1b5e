//! Simulated hosts: clocks, scheduler, randomness, disks and network, all determined by one seed. A
//! [`Machine`] is one host, a [`World`] is several.
//!
//! Code on a simulated host uses the same functions as on a real core ([`crate::spawn`],
//! [`crate::File`], [`crate::now`], ...); no code outside of this crate knows which of the two it
//! runs on. The same seed gives the same run, step by step.
//!
//! Not simulated: several cores of a host, Unix sockets, the ring's raw operations, wakes from
//! other threads.
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
mod event_queue;
mod file;
mod host;
mod inode;
mod machine;
mod names;
mod network;
mod rng;
mod simulation;
mod socket;
mod stream;
mod world;

pub use machine::Machine;
pub use network::NetworkOptions;
pub use world::World;

pub(crate) use file::{
    SimFile, SimPathGuard, create_dir_all, read_dir, remove_file, rename, space, sync_dir, sync_filesystem,
    unsynced_data_verifier,
};
pub(crate) use simulation::Simulation;
pub(crate) use socket::{SimListener, SimSocket};

use std::fmt;

/// Where and when the calling code runs: the name of its host, and nanoseconds since its world was
/// made. `None` outside of a world.
pub fn current_host_and_time() -> Option<(String, u64)> {
    crate::context::with_sim(|world| (world.name_of_current(), world.clock_ns()))
}

/// A host of a [`World`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(usize);

/// No progress is possible: every task waits and no event is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// Number of waiting tasks.
    pub tasks: usize,
    /// Nanoseconds of simulated time at which it was detected.
    pub clock_ns: u64,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "deadlock after {} ns of simulated time: {} tasks wait and no event is pending",
            self.clock_ns, self.tasks
        )
    }
}

impl std::error::Error for Deadlock {}
