//! A store of another process: the service in front of it, and its engine as a client has it.
//!
//! A thin shell on both sides. [`KvService`] answers from the engine and the writer of its process;
//! [`RemoteStore`] is a [`kv::RemoteEngine`] over a [`net::Channel`]. Knows no inode.
//!
//! What is repeated is not done twice: a client numbers what it applies, and the service keeps the
//! outcome of the last apply of each client. That is forgotten with the service's process. A
//! repetition over such a restart is applied again, which changes nothing as long as its guards
//! hold, because nobody else writes what they guard; if they don't, nobody knows whether they did
//! the first time, and the outcome is [`kv::Outcome::Unknown`].
//!
//! A start of the store's *machine* may take back what was applied and not yet put on disk. A
//! client that had applied such a thing is told ([`RemoteStore::lost`]) and gets nothing more: what
//! it has in memory isn't what the store holds.
//!
//! Invariants:
//! - A late copy of an apply is refused once a later one has begun.
//! - No answer is larger than a message; who asks for more asks again.

mod service;
mod store;

pub use service::KvService;
pub use store::{KvChannel, RemoteStore};
