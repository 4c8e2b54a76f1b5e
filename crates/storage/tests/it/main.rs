//! The integration tests of the storage service, in one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod capabilities;
mod epochs;
mod measure;
mod mirrors;
mod restart;
mod service;
