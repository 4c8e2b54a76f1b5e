//! What the session knows of directories under its leases: which names are free, the attributes of
//! directories, and files that it has created and the metadata service has yet to get.

pub(crate) mod async_change;
pub(crate) mod async_create;
pub(crate) mod commit_create;
pub(crate) mod complete_directories;
pub(crate) mod creates_in_flight;
pub(crate) mod directory_attributes;
pub(crate) mod heuristic;
pub(crate) mod known_files;
pub(crate) mod names;
pub(crate) mod pending_changes;
pub(crate) mod pending_create;
pub(crate) mod preallocation;
pub(crate) mod prefix_delegation;

use crate::file::inode::InodeTable;
use crate::session::Session;
use async_change::ExecuteChange;
use names::Names;
use pending_create::CommitCreate;
use std::sync::{Arc, Weak};

/// Requests delegations of directories and name prefixes from metadata services, and creates and
/// changes files under them.
pub(crate) struct Delegations {
    session: Arc<Session>,
    names: Arc<Names>,
    inodes: Arc<InodeTable>,
    /// Executes the creates.
    committer: Weak<dyn CommitCreate>,
    /// Executes the changes.
    executor: Weak<dyn ExecuteChange>,
    /// Nothing is asynchronous: no other session exists, so that requests cost little, or the
    /// mount asks for it.
    creates_synchronously: bool,
}

impl Delegations {
    pub(crate) fn new(
        (session, inodes): (Arc<Session>, Arc<InodeTable>),
        names: Arc<Names>,
        (committer, executor): (Weak<dyn CommitCreate>, Weak<dyn ExecuteChange>),
        creates_synchronously: bool,
    ) -> Arc<Delegations> {
        Arc::new(Delegations { session, names, inodes, committer, executor, creates_synchronously })
    }
}
