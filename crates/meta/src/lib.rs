//! The metadata service: a shell around the state machine in `namespace` that gives it a store,
//! locks and a clock.
//!
//! Each partition of the inode space has an executor: a lock, and the writes that are on their way
//! to the store. The core that takes a request runs it itself. It locks the partitions that the
//! request needs, runs it on what the store holds with the writes on their way laid over it, puts
//! its writes into the queue of the [`kv::Writer`], unlocks, and answers when they are committed.
//! So a lone request costs no hand-over, and a storm of them fills each other's commits.
//!
//! Sessions of other processes get leases on what they are told, and rely on it until the service
//! recalls it. A command that turns out to be in the way of another session's lease is given up,
//! waits for the answer to the recall, and is run again; a session that doesn't answer is ended,
//! and fenced at the storage targets before anybody goes on.
//!
//! It isn't on the way of data, and sees chunks only to settle what a dead client left and to
//! delete what was unlinked.
//!
//! Services of a cluster share the partitions: each executes those that the map gives it
//! (`ownership`), and borrows those of others for a command that needs them (`errand`, `lending`).
//!
//! Invariants:
//! - An answer tells only what is committed: not what its own writes do, and not what it has seen
//!   of others', before a crash of the process can't take it back any more.
//! - Every commit carries the owner of all partitions that it read from or writes to. A service
//!   that was replaced changes nothing.
//! - Locks of partitions are taken in ascending order, and nobody waits for anything while holding
//!   one.
//! - A lease is granted while the partition of its inode is held, and what changes an inode holds
//!   that partition, too: nothing slips in between an answer and the lease that comes with it.
//! - Whoever has partitions to itself while it waits has taken them in ascending order, over all
//!   services, and waits for no session.
//! - Nothing is run on top of a commit across partitions before it is in: losing one of them must
//!   not leave its writes under later ones of the other.

mod accessed;
mod administer;
mod cache;
mod callers;
mod capable;
mod chunks;
mod coherence;
mod cuts;
mod drain;
mod errand;
mod eviction;
mod executor;
mod exports;
mod fetch;
mod follow;
mod grace;
mod groups;
mod hollow;
mod leases;
mod lending;
mod limits;
mod locks;
mod neighbours;
mod ownership;
mod promises;
mod ranges;
mod reaper;
mod record;
mod replies;
mod rewind;
mod service;
mod sessions;
mod settle;
mod shut;
mod sizes;
mod stats;
mod tombstones;
mod usage;
mod view;

pub use administer::SessionStatus;
pub use drain::{DrainStatus, LocalMount};
pub use groups::GroupMaker;
pub use limits::SYNC_INTERVAL;
pub use neighbours::{Company, PartitionsChannel};
pub use net::StorageChannel;
pub use rewind::{Rewind, release_partitions};
pub use service::{MetaOptions, MetaService};
pub use sessions::SessionKind;
pub use settle::Recovery;
pub use stats::MetaStats;
