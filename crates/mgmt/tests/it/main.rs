//! Management as the members of a cluster meet it, and its state directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod cluster_time;
mod damaged;
mod members;
mod state_directory_refusals;
mod support;
