//! The whole cluster on several simulated hosts: metadata, storage and clients communicate over the
//! simulated network through the real transport.
//!
//! Applications on all clients use the same files and names while processes crash and pause, links
//! are cut and connections break. The recorded history must be linearizable ([`history`]); each
//! call must return in time; and once all faults are repaired, applications must make progress.
//!
//! With mirrored files, storage hosts also lose power, several at once, and unsynced data is lost
//! or torn. Either applications sync everything that they write, or one host at a time fails while
//! the others are in sync. In the end all groups must get in sync without intervention, and the
//! replicas on disk must be identical byte for byte. The other scenario ([`crate::run_seed`])
//! checks which data of unmirrored files survives a power failure.

mod faults;
mod fixed_targets;
mod load;
mod management;
mod node_process;
mod process;
mod replicas;
mod resyncs;
mod run;

pub use run::{HostsOptions, HostsSummary, HostsViolation, PowerCuts, run_hosts_seed};
