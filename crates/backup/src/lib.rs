//! Copies of the metadata store in files: written while the store is used, verified as a whole
//! before anything is made of them.
//!
//! A **copy** is the store at one moment. A *full* one holds every key; an *incremental* one holds
//! what has changed since another copy, its *base*. A copy with its base, and the base of that,
//! down to a full one is a [`Chain`]; merging it gives every key in order.
//!
//! The format ([`format`]) is blocks, each with its number and a CRC32C, then a footer with counts
//! and a sum over all keys and values of the moment. A file that was cut, changed, or put together
//! from two is refused, and so is a chain that doesn't give the keys that its last copy counted.
//!
//! Knows no inode: what has to change in records when the store goes back in time is the caller's
//! ([`restore`]).
//!
//! Invariants:
//! - A file gets its name when it is complete and on disk, so that whatever has one is a whole
//!   copy.
//! - Nothing is restored from a chain that was not verified to its end, nor over an engine that is
//!   in use; the engine of before stays beside.
//! - Copies are for their owner only (mode 0600): they hold everybody's names and small files, and
//!   the keys of the cluster.

mod chain;
mod copy;
mod error;
mod folder;
pub mod format;
#[doc(hidden)]
pub mod fuzzing;
mod reader;
mod restore;
mod state;
mod writer;

pub use chain::{Chain, Merged};
pub use copy::{Plan, Progress, copy};
pub use error::{Error, Result};
pub use folder::{Entry, file_name, list, newest_first, prune};
pub use format::{Attached, Foot, Head, SUFFIX};
pub use reader::{Reader, verify};
pub use restore::{Restored, Rewrite, restore};
pub use state::StateSum;
