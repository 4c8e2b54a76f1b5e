//! Mirroring: each member of a group has a replica of all of its content. The primary sends changes
//! to the other members, and repairs and resyncs them from intact replicas.

mod block_digests;
mod compare;
mod directed_repair;
mod member;
pub(crate) mod member_resync;
mod primary;
mod reader;
mod repair;
mod repair_plan;
mod salvage;
