//! The integration tests of the check, in one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod check;
