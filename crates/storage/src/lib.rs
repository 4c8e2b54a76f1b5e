//! The storage service: answers storage requests from the chunk stores of a node's targets.
//!
//! A thin shell: it finds the store, translates requests and errors, and counts. It doesn't know what a file is, and nothing here waits
//! for anything but the store, except a fence for the requests of the session that it ends.
//!
//! Invariant: a failing target fails its own requests only.

#![warn(missing_docs)]

mod alarm;
mod convert;
mod ended;
mod epochs;
mod fences;
mod lease;
mod once;
mod permit;
mod service;
mod watches;

pub use lease::ServingLease;
pub use service::{Counters, MAX_TARGETS, StorageService};
