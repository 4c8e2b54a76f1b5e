//! Engines and the batching writer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod damaged;
mod differential;
mod store;
mod support;
mod writer;
