//! The storage service: answers storage requests from the chunk stores of a node's targets.
//!
//! It finds the store, translates requests and errors, and counts them. It doesn't know what a file
//! is. It waits only for the store, with two exceptions: a fence waits for the requests of the
//! session that it ends, and requests to mirrored groups wait for the other members. Groups admit
//! requests under the group versions of the cluster map (`group`). The redundancy scheme of a group
//! executes them, and keeps the replicas equal (`scheme`).
//!
//! Invariants:
//! - a failing target fails only its own requests;
//! - a target whose directory isn't the one that was opened answers nothing, and is no source for
//!   other replicas (`target_check`).

#![warn(missing_docs)]

mod admin_alarm;
mod capability_check;
mod convert;
mod counters;
mod dirty_tracking;
mod drc;
mod evicted_sessions;
mod group;
mod group_requests;
mod lease_epochs;
mod measure;
mod scheme;
mod scrub;
mod service;
mod serving_lease;
mod session_fences;
mod target_check;

pub use counters::Counters;
pub use group::{GroupManagement, GroupPeers, MemberChange};
pub use measure::Connect;
pub use service::{MAX_TARGETS, StorageService};
pub use serving_lease::ServingLease;
