//! The metadata service: a shell around the state machine in `namespace` that gives it a store,
//! locks and a clock.
//!
//! Each partition of the inode space has an executor: a mutex, and an overlay of writes that are
//! not committed yet. The core that receives a request executes it. It locks the executors that the
//! request needs, and runs the command on the stored state with the overlay on top. It enqueues the
//! writes at the [`kv::Writer`], unlocks, and answers when they are committed. So a lone request
//! needs no hand-over between threads, and concurrent requests share group commits.
//!
//! Sessions of other processes get leases on the metadata that they read, and rely on them until
//! the service recalls them. A command that conflicts with another session's lease is abandoned,
//! waits for the recall acknowledgement, and runs again. The service evicts a session that doesn't
//! acknowledge, and fences it at the storage targets before any conflicting command proceeds.
//!
//! The service is not on the data path. It accesses chunk files only to recover sizes after a
//! client died, and to delete those of unlinked files.
//!
//! The metadata services of a cluster share the partitions: each executes those that the cluster
//! map assigns to it (`partition::ownership`), and locks those of other services for a
//! cross-partition transaction (`partition::cross_partition`, `partition::lock`).
//!
//! Folders: `session` (who may do what, and until when), `lease` (what sessions cache and what a
//! command recalls), `partition` (executors, owners, transactions), `store` (what is read from the
//! metadata store), `data` (chunk files), `drain` (moving chunk files), `service` (the path of a
//! request, and tasks in the background). [`MetaService`] passes a request to the part that owns
//! the state. A part reaches only the parts that it is given; `service::assembly` shows which.
//!
//! Invariants:
//! - An answer reports committed state only: the service sends it once the command's own writes,
//!   and uncommitted writes that the command read, survive a crash of the process.
//! - Every commit is guarded by the owner record of all partitions that it read from or writes to.
//!   A service that was replaced changes nothing.
//! - Executors are locked in ascending order, and no task waits for anything while it holds one of
//!   their mutexes.
//! - A lease is granted while the executor of its inode is locked, and a command that changes an
//!   inode locks that executor, too. So no change falls between an answer and the lease that comes
//!   with it.
//! - A transaction that waits while it holds partition locks has taken them in ascending order,
//!   across all services, and waits for no session.
//! - No command runs on top of a cross-partition commit before that is durable: if one of its
//!   partitions is lost, its writes must not lie under later ones of the other partition.

mod data;
mod drain;
mod lease;
mod limits;
mod partition;
mod service;
mod session;
mod store;

pub use data::group_creation::GroupCreator;
pub use data::size_recovery::Recovery;
pub use drain::{DrainStatus, LocalMount};
pub use limits::SYNC_INTERVAL;
pub use partition::peers::{PartitionsChannel, PeerContext};
pub use routing::StorageChannel;
pub use service::stats::MetaStats;
pub use service::{MetaOptions, MetaService};
pub use session::status::SessionStatus;
pub use session::table::SessionKind;
pub use store::restore_records::{RestoreRewriter, release_partitions};
