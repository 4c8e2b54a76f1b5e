//! A node of a cluster, as a library: `weft serve` runs it on a machine, and the simulator runs the
//! same code on simulated hosts.
//!
//! - [`Membership`] registers the process with management, sends heartbeats, and fences the node:
//!   the serving lease that the answers renew allows its services to act. It also runs the storage
//!   role: background work, crash reconciliation, shutdown.
//! - [`CurrentMap`] follows the cluster map.
//! - [`groups_of_node`] connects the storage service to the other members of mirrored groups.
//! - [`metadata_service`] assembles the metadata service, and [`run_metadata`] runs it.
//! - [`MetadataServices`] are the metadata services of the cluster, as management sees them.
//!
//! What differs between a machine and a simulated host is behind traits: [`Machine`] (disks, files,
//! the end of the process) and [`MapListener`] (connections that follow the map). Configuration
//! files, certificates, signals and the control socket are the caller's.
//!
//! # Invariants
//! - A map is installed before the lease that came with it: no request uses an older map under that
//!   lease.
//! - A lease counts from the time at which the request for it was sent.
//! - A process that management refuses has no lease any more, and sends no further heartbeat.
//! - The lease ends before a process registers, unless management can rely on what it registered
//!   earlier.

mod current_map;
mod group_links;
mod membership;
mod metadata_role;
mod metadata_services;
mod storage_role;

pub use self::current_map::{CurrentMap, MapListener, NoListener, fetch_map, unexpected_reply};
pub use self::group_links::{groups_of_node, groups_of_one_process};
pub use self::membership::{Machine, Membership, MembershipOptions};
pub use self::metadata_role::{
    ManagementGroupCreator, has_offline_targets, metadata_service, remote_store, run_metadata,
    storage_of_node,
};
pub use self::metadata_services::{LocalMetadata, MetadataServices};
pub use self::storage_role::{store_error, target_work};

use wire::{MgmtReply, MgmtRequest};

/// Channel to management.
pub type MgmtChannel = net::Channel<MgmtRequest, MgmtReply>;
