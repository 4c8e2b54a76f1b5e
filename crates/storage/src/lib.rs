//! The storage service: answers storage requests from the chunk stores of a node's targets.
//!
//! A thin shell: it finds the store, translates requests and errors, and counts. It doesn't know what a file is, and nothing here waits
//! for anything but the store.
//!
//! Invariant: a failing target fails its own requests only.

#![warn(missing_docs)]

mod alarm;
mod convert;
mod lease;
mod service;

pub use lease::ServingLease;
pub use service::{Counters, MAX_TARGETS, StorageService};
