//! The management service: a cluster's state directory, and the cluster map.
//!
//! A **state directory** is the directory of `weft up --dir D`. It contains the superblock
//! (`weft.toml`: the cluster's identity and its constants), `targets.toml` (directories of its
//! targets), a lock that one process holds while it serves, the metadata store, by default the
//! targets, `newest-version.toml` (the newest version that has opened it), and the run-time files
//! (control socket, pid, log). [`StateDir`] opens or creates one; a directory that it refuses is
//! left unchanged.
//!
//! **The map** ([`Management`]) is stored in the metadata store under one key. Management is its
//! only writer. It registers nodes and targets, tracks their reachability and space by heartbeats,
//! and publishes every change in the [`types::MapHandle`] that the other services of the process
//! share, and to all watchers.
//!
//! As a service it answers [`wire::MgmtRequest`]. Permitted changes are a pure function of the map
//! (`roster`); reachability is a function of given times (`liveness`).
//!
//! Invariants:
//! - Nothing is written below a directory before it is known to be empty or weft's own.
//! - The epoch grows whenever a field changes that placement depends on, and such a change is in
//!   the store before it is published. Free bytes change all the time and never move the epoch by
//!   themselves.
//! - Services can rely on a version of a mirrored group: it is on disk before it is published
//!   (`member_states` has its state machine).
//! - Numbers of nodes, targets, pools and groups are never reused.
//! - A refused request changes nothing.
//! - Management knows nothing of inodes and chunks; it delegates such requests to the metadata
//!   service ([`Metadata`]).

mod authority;
mod ceilings;
mod checked_file;
mod clients;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod inventory;
pub mod limits;
mod liveness;
mod lost_groups;
mod management;
mod map_changes;
mod member_states;
mod members;
mod newest_version;
mod partition_assignment;
mod rates;
mod reachability;
mod recover;
mod refusal;
mod removal;
mod replacement;
mod restore;
mod resyncs;
mod service;
mod space;
mod start_reserve;
mod state_dir;
mod state_lock;
mod superblock;
mod target_list;
mod target_measurement;

pub use authority::{MembershipAuthority, RenewedCertificate};
pub use error::{Error, Result};
pub use inventory::InventoryRecord;
pub use management::{
    BackupsSource, DEFAULT_POOL, FIRST_NODE, FirstNode, Management, Metadata, OwnUsage, TargetCheck,
};
pub use map_changes::{
    check_address, check_name, check_rack, default_node_name, require_claimable, require_known,
};
pub use reachability::{DueProbe, ProbeOutcome};
pub use restore::{LIVE_RECORDS, restored_record, was_restored_between};
pub use space::{Space, space_of};
pub use start_reserve::keep_start_reserve;
pub use state_dir::{MIN_FREE_BYTES, StateDir, StatePaths, require_vacant};
pub use state_lock::{StateLock, lock_target};
pub use superblock::{FORMAT_VERSION, Superblock};
pub use target_list::{TargetList, require_target_or_vacant};
