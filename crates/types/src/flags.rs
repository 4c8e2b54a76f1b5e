//! Flags of inodes beside their mode.

use crate::{FileKind, ProjectId};
use std::ops::BitOr;

/// Flags of an inode, as chattr(1) sets them. The bit values are weft's own; they are stored and
/// sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// No flags.
    pub const NONE: InodeFlags = InodeFlags(0);
    /// The inode can't be changed, renamed or removed.
    pub const IMMUTABLE: InodeFlags = InodeFlags(1);
    /// A file can only be appended to, a directory only gains entries; neither can be renamed or
    /// removed.
    pub const APPEND: InodeFlags = InodeFlags(1 << 1);
    /// Asks backup programs to skip the inode.
    pub const NODUMP: InodeFlags = InodeFlags(1 << 2);
    /// New inodes in this directory get its project.
    pub const PROJECT_INHERIT: InodeFlags = InodeFlags(1 << 3);
    /// Both flags that forbid changes.
    pub const READ_ONLY_FLAGS: InodeFlags = InodeFlags(Self::IMMUTABLE.0 | Self::APPEND.0);
    /// All flags that this version knows.
    pub const ALL: InodeFlags = InodeFlags(0xf);

    /// Whether at least one of these flags is set.
    pub fn intersects(self, any: InodeFlags) -> bool {
        self.0 & any.0 != 0
    }

    /// The flags that are in both sets.
    pub fn intersection(self, these: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & these.0)
    }

    /// The flags that a new inode of this kind inherits from a directory with these flags (same
    /// rule as XFS).
    pub fn inherited_flags(self, kind: FileKind) -> InodeFlags {
        match kind {
            FileKind::Directory => self.intersection(InodeFlags::NODUMP | InodeFlags::PROJECT_INHERIT),
            FileKind::Regular => self.intersection(InodeFlags::NODUMP),
            _ => InodeFlags::NONE,
        }
    }

    /// The project of new inodes in a directory with this project and these flags.
    pub fn inherited_project(self, project: ProjectId) -> ProjectId {
        if self.intersects(InodeFlags::PROJECT_INHERIT) { project } else { ProjectId(0) }
    }

    /// The set without these flags.
    pub fn difference(self, these: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & !these.0)
    }
}

impl BitOr for InodeFlags {
    type Output = InodeFlags;

    fn bitor(self, other: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 | other.0)
    }
}
