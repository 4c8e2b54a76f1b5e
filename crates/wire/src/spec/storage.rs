//! The operations of the storage service.

use crate::authorization::Roles;
use crate::{RegionSelection, StorageOp};
use types::ByteRange;

/// Every byte of a chunk file.
const WHOLE: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// Which replica answers a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadSource {
    /// Any in-sync replica: all give the same answer.
    AnyReplica,
    /// The primary, which asks all replicas that get writes.
    AllReplicas,
    /// The replica that is named; the group as a whole isn't asked.
    OneReplica,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Returns content or attributes of a chunk file.
    Read(ReadSource),
    /// Changes a chunk file. In a mirrored group all replicas that get writes do it.
    Change,
    /// Makes acknowledged changes durable.
    Sync,
    /// Concerns a target, a group member or a session.
    Control,
}

/// What a client's capability has to allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// To read the file.
    Read,
    /// To read and write it.
    Write,
}

/// The data that travels beside a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// None, or data that the operation can do without.
    Optional,
    /// The answer fills a buffer, which the caller has to provide.
    Returned,
    /// The caller has to send data.
    Sent,
}

/// Where an operation can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// To a target, or to a group that spans several targets.
    AnyGroup,
    /// To members of groups that span several targets only.
    GroupWithMembers,
}

/// The entry of an operation in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorageSpec {
    /// Name in messages and documents.
    pub name: &'static str,
    /// Clients may send it in their sessions.
    pub by_clients: bool,
    /// Services with one of these roles may send it, to a target or to the primary of a group.
    pub by_services: Roles,
    /// A member of a mirrored group may send it to another member.
    pub by_members: bool,
    /// What it does.
    pub effect: Effect,
    /// What the capability of a client has to allow; `None`: no capability is needed.
    pub right: Option<Right>,
    /// The data beside it.
    pub payload: Payload,
    /// Where it can be sent.
    pub scope: Scope,
    /// It answers after a write to disk, which may take long.
    pub waits_for_disk: bool,
    /// A member of a mirrored group may send it to the primary.
    pub by_members_to_primary: bool,
    /// It takes as long as its caller says: no deadline applies.
    pub has_no_deadline: bool,
}

impl StorageSpec {
    const fn new(name: &'static str, effect: Effect) -> StorageSpec {
        StorageSpec {
            name,
            by_clients: false,
            by_services: Roles::NONE,
            by_members: false,
            effect,
            right: None,
            payload: Payload::Optional,
            scope: Scope::AnyGroup,
            waits_for_disk: matches!(effect, Effect::Sync),
            by_members_to_primary: false,
            has_no_deadline: false,
        }
    }

    /// Clients, metadata services and management may send it, and group members to each other.
    const fn by_all(self) -> StorageSpec {
        StorageSpec { by_clients: true, by_services: Roles::MGMT_AND_META, by_members: true, ..self }
    }

    const fn by(self, by_services: Roles) -> StorageSpec {
        StorageSpec { by_services, ..self }
    }

    const fn by_members(self) -> StorageSpec {
        StorageSpec { by_members: true, ..self }
    }

    const fn right(self, right: Right) -> StorageSpec {
        StorageSpec { right: Some(right), ..self }
    }

    const fn payload(self, payload: Payload) -> StorageSpec {
        StorageSpec { payload, ..self }
    }

    const fn in_groups_with_members(self) -> StorageSpec {
        StorageSpec { scope: Scope::GroupWithMembers, ..self }
    }

    const fn waits_for_disk(self, waits_for_disk: bool) -> StorageSpec {
        StorageSpec { waits_for_disk, ..self }
    }

    /// Whether it changes a chunk file.
    pub const fn is_change(&self) -> bool {
        matches!(self.effect, Effect::Change)
    }

    /// Whether it makes acknowledged changes durable.
    pub const fn is_sync(&self) -> bool {
        matches!(self.effect, Effect::Sync)
    }

    /// Whether it reads a chunk file and can be sent to a group as a whole.
    pub const fn is_read_only(&self) -> bool {
        matches!(self.effect, Effect::Read(ReadSource::AnyReplica | ReadSource::AllReplicas))
    }

    /// Whether any in-sync replica can answer it.
    pub const fn is_for_any_replica(&self) -> bool {
        matches!(self.effect, Effect::Read(ReadSource::AnyReplica))
    }
}

impl StorageOp {
    /// The entry of this operation in the table.
    pub const fn spec(&self) -> StorageSpec {
        use Effect::{Change, Control, Read, Sync};
        use ReadSource::{AllReplicas, AnyReplica, OneReplica};
        const fn op(name: &'static str, effect: Effect) -> StorageSpec {
            StorageSpec::new(name, effect)
        }
        match self {
            StorageOp::Read { .. } => {
                op("read", Read(AnyReplica)).by_all().right(Right::Read).payload(Payload::Returned)
            }
            StorageOp::Stat => op("stat", Read(AnyReplica)).by_all().right(Right::Read),
            StorageOp::Seek { .. } => op("seek", Read(AnyReplica)).by_all().right(Right::Read),
            StorageOp::SpaceNeeded { .. } => {
                op("space-needed", Read(AllReplicas)).by_all().right(Right::Write)
            }
            StorageOp::Survey { .. } => op("survey", Read(OneReplica)).by_members(),

            StorageOp::Write { durable, .. } => op("write", Change)
                .by_all()
                .right(Right::Write)
                .payload(Payload::Sent)
                .waits_for_disk(*durable),
            StorageOp::Truncate { .. } => op("truncate", Change).by_all().right(Right::Write),
            StorageOp::Allocate { .. } => op("allocate", Change).by_all().right(Right::Write),
            StorageOp::Delete => op("delete", Change).by_all().right(Right::Write),
            StorageOp::SetAside => op("set-aside", Change).by(Roles::MGMT).by_members(),
            StorageOp::SetTime { .. } => op("set-time", Change).by(Roles::META).by_members(),
            StorageOp::DiscardLost { .. } => op("discard-lost", Change).by(Roles::MGMT).by_members(),
            StorageOp::Rewrite { .. } => {
                op("rewrite", Change).by_members().in_groups_with_members().waits_for_disk(true)
            }
            StorageOp::ExpectChecksums { .. } => {
                op("expect-checksums", Change).by_members().in_groups_with_members().waits_for_disk(true)
            }

            StorageOp::Sync => op("sync", Sync).by_all().right(Right::Read),
            StorageOp::SyncTarget => op("sync-target", Sync).by_all(),

            StorageOp::Space => op("space", Control).by_all(),
            StorageOp::Fence { .. } => op("fence", Control).by(Roles::META),
            // Only services copy files, and they need no capability. In a cluster that doesn't
            // authenticate its connections a client could send these.
            StorageOp::TrackDirty { .. } => op("track-dirty", Control).by(Roles::META).right(Right::Write),
            StorageOp::NextDirty { .. } => op("next-dirty", Control).by(Roles::META).right(Right::Write),
            StorageOp::EndDirtyTracking { .. } => {
                op("end-dirty-tracking", Control).by(Roles::META).right(Right::Write)
            }
            StorageOp::Measure { .. } => {
                StorageSpec { has_no_deadline: true, ..op("measure", Control).by(Roles::MGMT) }
            }
            StorageOp::Traffic => op("traffic", Control).by(Roles::ALL),
            // A member that finds damage asks the primary to repair it.
            StorageOp::Repair { .. } => StorageSpec {
                by_members_to_primary: true,
                ..op("repair", Control).by(Roles::MGMT).in_groups_with_members()
            },
            StorageOp::CopyReplica { .. } => {
                op("copy-replica", Control).by(Roles::MGMT).in_groups_with_members()
            }
            StorageOp::Regions { which: RegionSelection::All, .. } => {
                op("regions", Control).by(Roles::MGMT).by_members()
            }
            StorageOp::Regions { which: RegionSelection::Dirty, .. } => {
                op("regions", Control).by(Roles::MGMT).by_members().in_groups_with_members()
            }
            StorageOp::Committed => op("committed", Control).by_members().in_groups_with_members(),
            StorageOp::MarkLost { .. } => op("mark-lost", Control).by_members().in_groups_with_members(),
            StorageOp::Digests { .. } => op("digests", Control).by_members().in_groups_with_members(),
            StorageOp::AdoptVerifier { .. } => {
                op("adopt-verifier", Control).by_members().in_groups_with_members()
            }
        }
    }

    /// The bytes of the chunk file that differ afterwards for its readers; `payload_len` is the
    /// length of the data beside the request. `None` for operations that change no content.
    pub const fn changed_content(&self, payload_len: u64) -> Option<ByteRange> {
        match *self {
            StorageOp::DiscardLost { range } => Some(range),
            // They restore what readers are meant to see, or change attributes only.
            StorageOp::Rewrite { .. } | StorageOp::ExpectChecksums { .. } | StorageOp::SetTime { .. } => None,
            _ => self.exclusive_range(payload_len),
        }
    }

    /// The bytes of the chunk file that nothing else may read or change on a replica meanwhile;
    /// `payload_len` is the length of the data beside the request. `None` for operations that need
    /// none, and for those that lock ranges piece by piece.
    pub const fn exclusive_range(&self, payload_len: u64) -> Option<ByteRange> {
        match *self {
            StorageOp::Write { offset, .. } => {
                Some(ByteRange { start: offset, end: offset.saturating_add(payload_len) })
            }
            StorageOp::Allocate { range, .. } | StorageOp::Rewrite { range, len: None } => Some(range),
            StorageOp::Truncate { len } => Some(ByteRange { start: len, end: u64::MAX }),
            StorageOp::Delete
            | StorageOp::SetAside
            | StorageOp::SetTime { .. }
            | StorageOp::Rewrite { .. }
            | StorageOp::ExpectChecksums { .. } => Some(WHOLE),
            StorageOp::Read { .. }
            | StorageOp::Stat
            | StorageOp::Seek { .. }
            | StorageOp::SpaceNeeded { .. }
            | StorageOp::Survey { .. }
            | StorageOp::DiscardLost { .. }
            | StorageOp::Sync
            | StorageOp::SyncTarget
            | StorageOp::Space
            | StorageOp::Fence { .. }
            | StorageOp::TrackDirty { .. }
            | StorageOp::NextDirty { .. }
            | StorageOp::EndDirtyTracking { .. }
            | StorageOp::Measure { .. }
            | StorageOp::Traffic
            | StorageOp::Repair { .. }
            | StorageOp::CopyReplica { .. }
            | StorageOp::Regions { .. }
            | StorageOp::Committed
            | StorageOp::MarkLost { .. }
            | StorageOp::Digests { .. }
            | StorageOp::AdoptVerifier { .. } => None,
        }
    }
}
