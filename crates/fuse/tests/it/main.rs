//! The integration tests of mounts, in one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod two_mounts;
