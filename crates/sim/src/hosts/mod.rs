//! The whole cluster on several simulated hosts: metadata, storage and clients talk over the
//! simulated network by the real transport.
//!
//! Programs on all clients use the same files and names while processes die and stop, ways are cut
//! and connections break. What they saw must be explained by one operation happening after the
//! other ([`history`]); each call must end in time; and when everything works again, programs must
//! get on.
//!
//! Where files are mirrored, storage hosts lose their power, too, several at once, with what wasn't
//! synced lost or torn: either programs sync everything that they write, or it happens to one host
//! at a time while the others have everything. In the end all groups must be in step by themselves,
//! and the copies on the disks the same byte for byte. Of single files what survives the power is
//! the business of the other scenario ([`crate::run_seed`]).

mod company;
mod copies;
mod faults;
mod load;
mod member;
mod process;
mod resyncs;
mod run;

pub use run::{HostsOptions, HostsSummary, HostsViolation, PowerCuts, run_hosts_seed};
