//! Mirroring: each member of a group has a replica of all of its content. The primary sends changes
//! to the other members, and repairs and resyncs them from intact replicas.

pub(crate) mod block_digests;
pub(crate) mod change;
mod compare;
pub(crate) mod directed_repair;
mod member_read;
mod read;
mod repair;
mod repair_plan;
mod resync;
mod salvage;
