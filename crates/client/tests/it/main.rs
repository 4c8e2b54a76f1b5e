//! The client's integration tests, in one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod mirrored;
mod shared;
