//! What an inode is marked with beside its mode.

use crate::{FileKind, ProjectId};
use std::ops::BitOr;

/// Flags of an inode, as chattr(1) sets them. The bits are weft's own; stored and sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// None.
    pub const NONE: InodeFlags = InodeFlags(0);
    /// Nothing of it changes, and it keeps its names.
    pub const IMMUTABLE: InodeFlags = InodeFlags(1);
    /// A file only grows at its end, a directory only gets further names, and it keeps its own
    /// names.
    pub const APPEND: InodeFlags = InodeFlags(1 << 1);
    /// Programs that make backups are asked to leave it out.
    pub const NODUMP: InodeFlags = InodeFlags(1 << 2);
    /// What is made in this directory belongs to its project.
    pub const PROJECT_INHERIT: InodeFlags = InodeFlags(1 << 3);
    /// Both flags that forbid changes.
    pub const RESTRICTING: InodeFlags = InodeFlags(Self::IMMUTABLE.0 | Self::APPEND.0);
    /// All flags that this version knows.
    pub const ALL: InodeFlags = InodeFlags(0xf);

    /// Whether it has one of these.
    pub fn has(self, any: InodeFlags) -> bool {
        self.0 & any.0 != 0
    }

    /// Those that are among these, too.
    pub fn only(self, these: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & these.0)
    }

    /// Those that a new inode of this kind gets from a directory that has these (as XFS has it).
    pub fn inherited(self, kind: FileKind) -> InodeFlags {
        match kind {
            FileKind::Directory => self.only(InodeFlags::NODUMP | InodeFlags::PROJECT_INHERIT),
            FileKind::Regular => self.only(InodeFlags::NODUMP),
            _ => InodeFlags::NONE,
        }
    }

    /// The project of what is made in a directory of this project that has these.
    pub fn project_inside(self, project: ProjectId) -> ProjectId {
        if self.has(InodeFlags::PROJECT_INHERIT) { project } else { ProjectId(0) }
    }

    /// Without these.
    pub fn without(self, these: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & !these.0)
    }
}

impl BitOr for InodeFlags {
    type Output = InodeFlags;

    fn bitor(self, other: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 | other.0)
    }
}
