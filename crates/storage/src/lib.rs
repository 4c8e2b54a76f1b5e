//! The storage service: answers storage requests from the chunk stores of a node's targets.
//!
//! It finds the store, translates requests and errors, and counts. It doesn't know what a file is,
//! and nothing here waits for anything but the store, except a fence for the requests of the
//! session that it ends, and what is about mirrored groups for the other members: those keep their
//! copies equal (`mirror`), under the versions of the cluster map.
//!
//! Invariants:
//! - a failing target fails its own requests only;
//! - a target whose directory isn't the one that was opened answers nothing, and is no source for
//!   other copies (`proof`).

#![warn(missing_docs)]

mod alarm;
mod convert;
mod ended;
mod epochs;
mod fences;
mod groups;
mod lease;
mod measure;
mod mirror;
mod once;
mod permit;
mod proof;
mod scrub;
mod service;
mod tally;
mod watches;

pub use lease::ServingLease;
pub use measure::Connect;
pub use mirror::{GroupLinks, Groups, MemberChange};
pub use service::{MAX_TARGETS, StorageService};
pub use tally::Counters;
