//! Tests of management from the view of a cluster's members, and of its state directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod cluster_time;
mod damaged;
mod members;
mod state_directory_refusals;
mod support;
