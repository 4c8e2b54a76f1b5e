//! Ordered transactional key-value interface, its engines, and the batching writer in front of
//! them.
//!
//! The interface is what all engines can do: point reads, ordered scans without phantom protection,
//! and a write batch that is applied only if a set of guarded keys still holds what the writer
//! expects. Knows nothing of inodes.
//!
//! Invariants:
//! - A batch is applied whole or not at all, and batches are applied in the order in which they
//!   were enqueued.
//! - A batch that was reported as won survives the death of the process; after [`Writer::sync`]
//!   that of the machine.
//! - Once an engine fails to write, its [`Writer`] writes nothing more: what the engine holds is
//!   known only after it was opened again.
//! - As long as [`Engine::verifier`] is the same, everything that was reported as won is there.
//! - What an engine on disk answers was checked against a sum when it was read from there. One in
//!   which damage was met answers nothing any more.
//!
//! ```
//! # use std::sync::Arc;
//! use kv::{Batch, Engine, Memory};
//! let engine = Memory::new();
//! let batch = Batch { guards: vec![], writes: vec![(b"key".to_vec(), Some("value".into()))] };
//! assert_eq!(engine.apply(&[batch]).unwrap(), [kv::Outcome::Won]);
//! assert_eq!(engine.get(b"key").unwrap().unwrap(), "value");
//! ```

pub mod at_rest;
mod embedded;
mod engine;
mod frozen;
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod merge;
mod remote;
mod room;
mod store;
mod verifier;
mod writer;

pub use embedded::{Embedded, READ_AT_START_BYTES};
pub use engine::{Batch, Engine, Guard, KvError, Outcome, Pair, Space};
pub use memory::Memory;
pub use remote::{LocalFuture, RemoteEngine, RemoteWriter};
pub use store::Store;
pub use writer::{Blocking, Commit, Durability, Ticket, Writer, WriterStats};
