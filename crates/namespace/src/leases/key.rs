//! What a lease is on.
//!
//! Messages name every lease by a number. Those of inodes are inode numbers; those of name prefixes
//! come from the same sequence, so that no number stands for two leases. Only
//! [`LeaseKey::number`] and [`NamePrefixId::new`] convert between keys and these numbers.

use std::fmt;
use types::{InodeId, PartitionId};

/// What a lease is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaseKey {
    /// An inode.
    Inode(InodeId),
    /// The names of a directory that begin with a prefix.
    NamePrefix(NamePrefixId),
}

/// Identifies a name-prefix delegation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NamePrefixId(InodeId);

impl NamePrefixId {
    /// The delegation with this number in messages. The number was taken from the inode numbers of
    /// the directory's partition, and no file has it.
    pub fn new(number: InodeId) -> NamePrefixId {
        NamePrefixId(number)
    }
}

impl LeaseKey {
    /// The number of the lease in messages.
    pub fn number(self) -> InodeId {
        match self {
            LeaseKey::Inode(number) | LeaseKey::NamePrefix(NamePrefixId(number)) => number,
        }
    }

    /// The inode that the lease is on; `None` for names.
    pub fn inode(self) -> Option<InodeId> {
        match self {
            LeaseKey::Inode(ino) => Some(ino),
            LeaseKey::NamePrefix(_) => None,
        }
    }

    /// The partition of the inode or of the directory.
    pub fn partition(self) -> PartitionId {
        self.number().partition()
    }
}

impl From<InodeId> for LeaseKey {
    fn from(ino: InodeId) -> LeaseKey {
        LeaseKey::Inode(ino)
    }
}

impl From<NamePrefixId> for LeaseKey {
    fn from(names: NamePrefixId) -> LeaseKey {
        LeaseKey::NamePrefix(names)
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseKey::Inode(ino) => write!(f, "inode {ino}"),
            LeaseKey::NamePrefix(NamePrefixId(number)) => write!(f, "names of a directory (lease {number})"),
        }
    }
}
