//! A store in another process: the service in front of it, and its engine on the client's side.
//!
//! A thin layer on both sides. [`KvService`] serves the engine and the writer of its process;
//! [`RemoteStore`] is a [`kv::RemoteEngine`] over a [`net::Channel`]. Knows no inode.
//!
//! A repeated apply is not executed twice: a client numbers its applies, and the service caches the
//! outcome of the last apply of each client. A restart of the service loses that cache. A
//! repetition after a restart is applied again, which changes nothing as long as its guards hold,
//! because no other client writes the guarded keys. If they don't hold, the first attempt may have
//! been applied or not, and the outcome is [`kv::Outcome::Uncertain`].
//!
//! A restart of the store's *machine* may lose applied batches that were not on disk. A client that
//! had applied such a batch is notified ([`RemoteStore::data_loss`]) and gets only errors from then
//! on: its memory doesn't match the store.
//!
//! Invariants:
//! - A late copy of an apply is refused once a later one has begun.
//! - No answer is larger than a message; a client requests the rest separately.

mod service;
mod store;

pub use service::KvService;
pub use store::{KvChannel, RemoteStore};
