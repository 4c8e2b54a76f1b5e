//! The whole cluster on a simulated machine, against a naive model.
//!
//! A run is decided by its seed: the operations, the order in which tasks run, how long the disk
//! takes, when the process dies or the power fails, and what a power cut leaves of what wasn't
//! synced. The services, the client core and the stores are the real ones; only threads, clock and
//! disk are simulated ([`rt::sim`]), and the metadata engine is the one in memory with a crash
//! model ([`kv::Memory`]).
//!
//! What is checked:
//! - every operation returns what the [`model`] says;
//! - after the death of the process, everything acknowledged is there, and the operation under way
//!   is done, not done, or (for content) done in part;
//! - after a power cut, everything synced is there; names are in a state that they had since the
//!   last sync, and each byte of a file is one that its place held since the file's last sync;
//! - after each restart the file system check finds nothing wrong.
//!
//! It isn't a test of concurrency between programs: one program runs, against all the background
//! work there is.

#![warn(missing_docs)]

mod cluster;
pub mod command;
mod driver;
pub mod hosts;
pub mod model;
mod operation;
mod run;
mod world;

pub use run::{RunOptions, Summary, Violation, run_seed};
