//! A store in another process: over real connections, on simulated hosts, and when it is killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod faults;
mod kill;
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../kv/tests/it/support.rs"]
mod support;
