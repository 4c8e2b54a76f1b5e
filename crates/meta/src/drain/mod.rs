//! Migration of files while they are in use, one stripe at a time: off a draining target, or to
//! groups of another scheme or pool (`migrate`).
//!
//! Steps of a move:
//!
//! 1. Another group is chosen, and the new chunk file is recorded as doomed: if the move is given
//!    up, or this process dies, it is deleted like any other orphaned chunk file.
//! 2. The chunk file is copied while clients go on. Dirty tracking at the storage service of the
//!    source records what changes meanwhile; that is copied again, round by round, until little is
//!    left.
//! 3. The migrator takes the `Write` lease, so that every client has completed its requests,
//!    reported size and times, and dropped the layout. The rest is copied, and the new chunk file
//!    is synced.
//! 4. One commit changes the layout, dooms the old chunk file and removes the doomed record of the
//!    new one. The lease is released, and clients fetch the new layout.
//!
//! Draining needs no other state. The cluster map says which targets are draining, so a service
//! that restarts, or that adopts a partition, continues by itself. A target that stops draining
//! keeps what it still has.
//!
//! Invariants:
//! - A chunk file that is being filled is *claimed*: no task deletes it, and no other move fills
//!   it.
//! - The layout changes only if both storage processes have been running all the time, as primaries
//!   where they keep mirrored groups, if the source took no change since the last round, and if no
//!   session has a write record for the file.
//! - Clients never wait for long: under the lease at most [`MAX_FINAL_REGIONS`] regions are copied.
//!   Only for a file that changes faster than it is copied, up to [`MAX_FINAL_REGIONS_BUSY`].
//!
//! [`MAX_FINAL_REGIONS`]: crate::limits::MAX_FINAL_REGIONS
//! [`MAX_FINAL_REGIONS_BUSY`]: crate::limits::MAX_FINAL_REGIONS_BUSY

mod claims;
mod drainer;
mod exclusive;
mod migrate;
mod migrations;
mod status;
mod stripe_move;
mod transfer;

pub(crate) use claims::{Claim, Claims, ReconcileClaim};
pub(crate) use drainer::Drainer;
pub(crate) use exclusive::ExclusiveAccess;
pub use exclusive::LocalMount;
pub(crate) use migrate::Migrator;
pub(crate) use migrations::Migrations;
pub use status::DrainStatus;
pub(crate) use status::Drains;
pub(crate) use stripe_move::StripeMover;
