//! Conversions between the types of the wire and those of the chunk store.

use chunkstore::{Durability, IoPath, Kind, StoreError};
use types::{Errno, Error};

pub(crate) fn path(path: wire::DataPath) -> IoPath {
    match path {
        wire::DataPath::Direct => IoPath::Direct,
        wire::DataPath::Cached => IoPath::Cached,
    }
}

pub(crate) fn durability(durable: bool) -> Durability {
    if durable { Durability::Now } else { Durability::Later }
}

pub(crate) fn space_needed(room: chunkstore::SpaceNeed) -> wire::ReservationSpace {
    let chunkstore::SpaceNeed { disk, free, needed, gaps } = room;
    wire::ReservationSpace { disk, free, unallocated: needed, gaps, others: Vec::new() }
}

pub(crate) fn allocate(how: wire::AllocateMode) -> chunkstore::Allocate {
    match how {
        wire::AllocateMode::Reserve => chunkstore::Allocate::Reserve,
        wire::AllocateMode::Punch => chunkstore::Allocate::Punch,
        wire::AllocateMode::Zero => chunkstore::Allocate::Zero,
    }
}

pub(crate) fn seek(what: wire::SeekTarget) -> chunkstore::Seek {
    match what {
        wire::SeekTarget::Data => chunkstore::Seek::Data,
        wire::SeekTarget::Hole => chunkstore::Seek::Hole,
    }
}

pub(crate) fn survey(survey: chunkstore::Survey) -> wire::ReplicaState {
    let chunkstore::Survey { exists: is_there, len, sum_end, mtime, ctime, sums, damaged } = survey;
    wire::ReplicaState { exists: is_there, len, sum_end, mtime, ctime, sums, damaged }
}

/// Checksums as the wire carries them: four bytes each.
pub(crate) fn sums(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect()
}

/// The error that an application gets for a store's error.
pub(crate) fn error(error: &StoreError) -> Error {
    let errno = match error.kind() {
        Kind::NoSpace => Errno::ENOSPC,
        Kind::TooLarge => Errno::EFBIG,
        Kind::Closed => Errno::ENODEV,
        Kind::Unsupported => Errno::EOPNOTSUPP,
        Kind::Io
        | Kind::Corrupt { .. }
        | Kind::NotATarget
        | Kind::NotEmpty
        | Kind::WrongIdentity
        | Kind::NewerVersion
        | Kind::Damaged
        | Kind::Vanished => Errno::EIO,
    };
    Error::new(errno, error.message().to_string()).hint(error.hint().to_string())
}
