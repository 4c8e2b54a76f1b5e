//! Ordered transactional key-value interface, its engines, and the batching writer in front of them.
//!
//! The interface is what all engines can do: point reads, ordered scans without phantom protection, and a write
//! batch that is applied only if a set of guarded keys still holds what the writer expects. Knows nothing of inodes.

mod engine;
pub use engine::{Batch, Engine, Guard, KvError, Outcome, Pair};
