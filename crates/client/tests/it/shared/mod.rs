//! Several clients of one cluster: each sees what another did.
//!
//! Services, stores and clients are the real ones, on a simulated machine.

mod access_times;
mod appends;
mod async_changes;
mod async_creates;
mod async_removals;
mod cluster;
mod delayed_requests;
mod directories;
mod draining;
mod evictions;
mod first_writes;
mod flags;
mod kernel_caches;
mod late_truncation;
mod lease_expiry;
mod listings;
mod locks;
mod mappings;
mod names;
mod opens_during_close;
mod partition_moves;
mod partitioned_cluster;
mod power_loss;
mod prefix_delegations;
mod privileges;
mod random_operations;
mod recalls;
mod reference_directory;
mod reservations;
mod retransmissions;
mod service_replacement;
mod sessions;
mod sizes;
mod statfs;
mod write_behind;
mod writers;
