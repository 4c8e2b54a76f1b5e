//! Finds the service that a request goes to, by the cluster map.
//!
//! [`StorageChannels`] has a channel to the service of each target, [`MetaChannels`] one to the
//! owner of each partition. Both follow the map: a node that joins or gets another address is found
//! at once.
//!
//! A request to a mirrored group goes to its primary ([`StorageChannels::call_group`]). While the
//! primary is being replaced, the request waits for another map. A client's read goes to the nearest
//! and least busy member that is in sync.
//!
//! This crate knows which service a request is for, but doesn't execute it. Connections and
//! retransmission are the transport's (`net`).
//!
//! Invariants:
//! - a request to a group carries the version of the group by which its member was chosen;
//! - nothing accesses a caller's buffer after its call has ended, also when a member was abandoned;
//! - every wait is bounded: by the caller's time-out, or by `limits.rs`.

#![warn(missing_docs)]

mod group_requests;
mod limits;
mod meta_channels;
mod node_channels;
mod own_rack;
mod replica_reads;
mod storage_channels;
mod target_load;

pub use group_requests::GroupDestination;
pub use meta_channels::{MetaChannel, MetaChannels};
pub use node_channels::Connect;
pub use own_rack::{IsLocalNode, OwnRack};
pub use storage_channels::{StorageChannel, StorageChannels, WhenOffline};
