//! Ordered transactional key-value interface, its engines, and the batching writers in front of
//! them.
//!
//! Users of a store depend on the asynchronous [`Store`], wherever its engine is; a [`Writer`] is
//! the store over an [`Engine`] of this process, a [`RemoteWriter`] that over a [`RemoteEngine`].
//!
//! The interface contains what all engines support: point reads, ordered scans without phantom
//! protection, and a write batch that is applied only if a set of guarded keys still has the values
//! that the writer expects. Knows nothing of inodes.
//!
//! Invariants:
//! - A batch is applied atomically, and batches are applied in the order in which they were
//!   enqueued.
//! - A batch reported as applied survives the death of the process; after [`Writer::sync`] that of
//!   the machine.
//! - Once an engine fails to write, its [`Writer`] writes nothing more: the engine's content is
//!   known only after it is opened again.
//! - As long as [`Engine::verifier`] is the same, everything reported as applied exists.
//! - An engine on disk checks everything against a checksum when it reads it. An engine in which
//!   damage was found returns only that error.
//!
//! ```
//! # use std::sync::Arc;
//! use kv::{Batch, Engine, Memory};
//! let engine = Memory::new();
//! let batch = Batch { guards: vec![], writes: vec![(b"key".to_vec(), Some("value".into()))] };
//! assert_eq!(engine.apply(&[batch]).unwrap(), [kv::Outcome::Applied]);
//! assert_eq!(engine.get(b"key").unwrap().unwrap(), "value");
//! ```

pub mod at_rest;
mod embedded;
mod engine;
mod free_space;
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod merge;
mod pages;
mod remote;
mod snapshot;
mod store;
mod verifier;
mod writer;

pub use embedded::{Embedded, VERIFY_AT_START_BYTES};
pub use engine::{Batch, Engine, Guard, KvError, Outcome, Pair, Space};
pub use memory::Memory;
pub use pages::Pages;
pub use remote::{LocalFuture, RemoteEngine, RemoteWriter};
pub use store::{Readable, Store};
pub use writer::{Blocking, Commit, Durability, Ticket, Writer, WriterStats};
