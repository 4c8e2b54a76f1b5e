//! Simulation of the whole cluster on one simulated machine, checked against a naive model.
//!
//! A seed determines a run: the operations, the order in which tasks run, disk latencies, when the
//! process crashes or the power fails, and which unsynced data a power failure destroys. The
//! services, the client core and the stores are the real ones. Only threads, clock and disk are
//! simulated ([`rt::sim`]), and the metadata engine is the in-memory one with a crash model
//! ([`kv::Memory`]).
//!
//! Checks:
//! - Every operation returns what the [`model`] predicts.
//! - After a process crash, everything acknowledged is present. The operation that was in flight is
//!   complete, absent, or (for content) partial.
//! - After a power failure, everything synced is present. The names match a state since the last
//!   sync, and each byte of a file has a value that it had since the file's last sync.
//! - After each restart, the file system check finds no inconsistency.
//!
//! The simulation doesn't test concurrency between applications: one application runs, concurrently
//! with all background tasks of the cluster.

#![warn(missing_docs)]

mod cluster;
pub mod command;
mod driver;
pub mod hosts;
pub mod model;
mod operation;
mod oracle;
mod run;

pub use run::{RunOptions, Summary, Violation, run_seed};
