//! The integration tests of the client, in one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod mirrored;
mod shared;
