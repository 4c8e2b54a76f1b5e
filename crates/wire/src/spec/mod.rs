//! The tables of operations: for each kind of request, everything that the services and the client
//! need to know about it apart from how it is executed.
//!
//! Each table is a `match` without a wildcard, so an operation without an entry doesn't compile.
//! Guards, permissions, routing and caching derive from these entries. They match on an operation
//! themselves only to execute it.

mod management;
mod metadata;
mod storage;

pub use management::MgmtSpec;
pub use metadata::{Entry, EntryChange, EntryNames, LeaseConflict, MetaEffect, MetaSpec, Stage};
pub use storage::{Effect, Payload, ReadSource, Right, Scope, StorageSpec};
