//! Identifiers. Each has its own type, so that a target can't be passed where a group is expected.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

id!(
    /// Inode number. Never reused; carries its partition in bits 40..52, so that every inode number
    /// fits in 52 bits (readers that store numbers as doubles, such as JSON, keep them exact).
    InodeId(u64)
);
id!(
    /// A share of the name space, executed by one metadata service at a time.
    PartitionId(u16)
);
id!(
    /// A directory on a local file system that one storage service owns.
    TargetId(u32)
);
id!(
    /// A redundancy group: the unit that files are striped over.
    GroupId(u32)
);
id!(
    /// A machine or process that runs services.
    NodeId(u32)
);
id!(
    /// A named set of targets.
    PoolId(u16)
);
id!(
    /// A project: space of files is accounted by project. 0: no project.
    ProjectId(u32)
);
id!(
    /// Session of a client. 0 stands for the services themselves.
    SessionId(u64)
);
id!(
    /// Version number of the cluster map.
    Epoch(u64)
);
id!(
    /// Number of a chunk within its file, from 0.
    ChunkIndex(u64)
);
id!(
    /// Number among the chunk files of one inode on one target. A slot other than 0 arises when data
    /// moves to a target that already holds a chunk file of the inode (see [`crate::Layout::slots`]).
    ChunkSlot(u8)
);
id!(
    /// Name of a chunk file, the same on every target of its group: the number of its inode, with
    /// the slot in the top byte. In slot 0, it is the number of the inode. Part of stored and sent
    /// formats.
    ChunkFileId(u64)
);

impl InodeId {
    /// Bits below the partition number.
    pub const SEQUENCE_BITS: u32 = 40;
    /// The root directory: partition 0, sequence 1. FUSE fixes the number 1.
    pub const ROOT: InodeId = InodeId(1);

    /// Makes an inode number from a partition and a sequence number (`1..2^40`).
    pub fn new(partition: PartitionId, sequence: u64) -> InodeId {
        debug_assert!(sequence > 0 && sequence < 1 << Self::SEQUENCE_BITS);
        InodeId((partition.0 as u64) << Self::SEQUENCE_BITS | sequence)
    }

    /// The partition that holds this inode.
    pub fn partition(self) -> PartitionId {
        PartitionId((self.0 >> Self::SEQUENCE_BITS) as u16)
    }

    /// The number of the inode within its partition.
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << Self::SEQUENCE_BITS) - 1)
    }

    /// The name of the inode's chunk file with this slot.
    pub const fn chunk_file(self, slot: ChunkSlot) -> ChunkFileId {
        ChunkFileId((slot.0 as u64) << ChunkFileId::SLOT_SHIFT | self.0)
    }

    /// The name of the inode's chunk file in slot 0: usually it has no other on a target.
    pub const fn first_chunk_file(self) -> ChunkFileId {
        self.chunk_file(ChunkSlot(0))
    }
}

impl ChunkFileId {
    /// First bit of the slot; the bits of the inode's partition are below it.
    pub const SLOT_SHIFT: u32 = 56;

    /// The slot.
    pub fn slot(self) -> ChunkSlot {
        ChunkSlot((self.0 >> Self::SLOT_SHIFT) as u8)
    }

    /// The inode that the chunk file belongs to.
    pub fn owner(self) -> InodeId {
        InodeId(self.0 & ((1 << Self::SLOT_SHIFT) - 1))
    }

    /// The partition that holds that inode.
    pub fn partition(self) -> PartitionId {
        self.owner().partition()
    }
}

impl SessionId {
    /// Bits of a drawn id. JSON readers that store numbers as doubles (jq, JavaScript) round values
    /// above 2^53; an id that a script reads from `--json` would then match no session. Older
    /// clients have ids of up to 64 bits, which remain valid.
    pub const RANDOM_ID_BITS: u32 = 53;

    /// Makes an id from 64 random bits.
    pub fn from_random(random: u64) -> SessionId {
        SessionId((random >> (u64::BITS - Self::RANDOM_ID_BITS)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_session_ids_fit_in_doubles() {
        for random in [u64::MAX, u64::MAX - 1, 1 << 63 | 1 << 11, 0x0123_4567_89ab_cdef, 1, 0] {
            let SessionId(id) = SessionId::from_random(random);
            assert_eq!(id as f64 as u64, id, "of {random:#x}");
            assert_ne!(id, 0, "of {random:#x}: the services' own");
        }
        assert_eq!(SessionId::from_random(u64::MAX).0, (1 << 53) - 1);
        assert_ne!(SessionId::from_random(u64::MAX), SessionId::from_random(u64::MAX - (1 << 11)));
    }

    #[test]
    fn chunk_files_are_named_by_inode_and_slot() {
        let ino = InodeId::new(PartitionId(4095), 7);
        for slot in [0, 1, 255].map(ChunkSlot) {
            let name = ino.chunk_file(slot);
            assert_eq!((name.owner(), name.slot(), name.partition()), (ino, slot, PartitionId(4095)));
        }
        assert_eq!(ino.first_chunk_file(), ChunkFileId(ino.0));
        assert_eq!(InodeId(5).chunk_file(ChunkSlot(2)), ChunkFileId(0x0200_0000_0000_0005));
    }

    #[test]
    fn inode_numbers_fit_in_doubles() {
        let last = InodeId::new(PartitionId(4095), (1 << InodeId::SEQUENCE_BITS) - 1);
        assert_eq!(last.0 as f64 as u64, last.0);
    }
}
