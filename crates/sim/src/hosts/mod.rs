//! The whole cluster on several simulated hosts: metadata, storage and clients talk over the simulated network by the real transport.
//!
//! Programs on all clients use the same files and names while processes die and stop, ways are cut and connections break. What they saw
//! must be explained by one operation happening after the other ([`history`]); each call must end in time; and when everything works
//! again, programs must get on.
//!
//! Power isn't cut here: what survives that is the business of the other scenario ([`crate::run_seed`]).

mod company;
mod load;
mod process;
mod run;

pub use run::{HostsOptions, HostsSummary, HostsViolation, run_hosts_seed};
