//! The management service: a cluster's state directory, and the cluster map.
//!
//! A **state directory** is what `weft up --dir D` is given. It holds the superblock (`weft.toml`: who the
//! cluster is, and what was fixed for ever when it was made), `targets.toml` (where its targets are), a lock
//! that one process holds while it serves, the metadata store, by default the targets, and the run-time files
//! (control socket, pid, log). [`StateDir`] opens or makes one; a directory that it refuses is left exactly
//! as it was.
//!
//! **The map** ([`Management`]) lives in the metadata store under one key. Management is its only writer: it
//! registers the targets when the cluster is made, measures their space, and publishes every change in the
//! [`types::MapHandle`] that the other services of the process share.
//!
//! Invariants:
//! - Nothing is written below a directory before it is known to be empty or ours.
//! - The epoch grows whenever a field changes that placement depends on, and such a change is in the store
//!   before it is published. Bytes free change all the time and never move the epoch by themselves.
//! - Management knows nothing of inodes, chunks or requests.

mod error;
mod lock;
mod management;
mod sealed;
mod space;
mod state_dir;
mod superblock;
mod target_list;

pub use error::{Error, Result};
pub use lock::StateLock;
pub use management::{DEFAULT_POOL, Management, PoolUsage};
pub use space::{Space, space_of};
pub use state_dir::{MIN_FREE_BYTES, StateDir, StatePaths};
pub use superblock::{FORMAT_VERSION, Superblock};
pub use target_list::{TargetList, require_target_or_vacant};
