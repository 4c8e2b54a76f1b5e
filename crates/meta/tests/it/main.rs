//! The integration tests of the metadata service, in one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod advisory_locks;
mod async_creates;
mod capabilities;
mod commits_of_other_cores;
mod concurrency;
mod crash_reconciliation;
mod crashes;
mod expired_requests;
mod exports;
mod fencing;
mod full_store;
mod lease_room;
mod lease_storm;
mod leases;
mod leases_on_cores;
mod lookups;
mod name_delegations;
mod paused_host;
mod pending_truncations;
mod permissions;
mod quarantine;
mod recovery;
mod remote_store;
mod reported_sizes;
mod retries;
mod returning_sessions;
mod shared_partitions;
mod support;
mod usage;
