//! The integration tests of the metadata service, in one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod advisory_locks;
mod capabilities;
mod company;
mod concurrency;
mod crashes;
mod cuts;
mod exports;
mod far_store;
mod fencing;
mod full_store;
mod given_up;
mod lease_room;
mod lease_storm;
mod leases;
mod leases_on_cores;
mod led_commits;
mod permissions;
mod promised_files;
mod ranges;
mod recovery;
mod retries;
mod returning_sessions;
mod searching;
mod shut_files;
mod sizes;
mod standstill;
mod support;
mod tidying;
mod usage;
