//! Requests to a storage service and their answers. The types here allocate no memory of their own.

use super::common::{List, Numbered, RangeFields, TimeFields, numbered, packed, required, time, unpacked};
use super::fields;
use super::space::ReservationSpaceFields;
use crate::authorization::{self, AuthorizationRule};
use crate::spec::Payload;
use crate::{
    AllocateMode, AnswerKind, CAPABILITY_BYTES, Capability, DataPath, GroupContext, GroupRole,
    MAX_LIST_ITEMS, MAX_RATES, MAX_SURVEYED, Malformed, Measure, MeasuredRate, Message, RateQuantity,
    RegionSelection, RepairResult, ReplicaState, Request, SeekTarget, Service,
};
use crate::{StorageOp, StorageReply, StorageRequest};
use prost::Message as _;
use types::{ByteRange, ChunkFileId, Epoch, GroupId, NodeId, SessionId, TargetId};

// Numbers never change.
numbered! {
    DataPath, "data path": Direct = 1, Cached = 2;
    AllocateMode, "kind of allocation": Reserve = 1, Punch = 2, Zero = 3;
    SeekTarget, "kind of seek": Data = 1, Hole = 2;
    RegionSelection, "kind of regions": Dirty = 1, All = 2;
    RateQuantity, "kind of rate": Write = 1, Read = 2, RandomWrite = 3, RandomRead = 4, Network = 5, RoundTrips = 6, MemoryCopy = 7, Checksum = 8, Encoding = 9;
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestFields {
    #[prost(uint64, tag = "1")]
    session: u64,
    #[prost(uint32, tag = "2")]
    target: u32,
    #[prost(uint64, tag = "3")]
    ino: u64,
    /// Session slot in the upper half, sequence id in the lower; 0: none.
    #[prost(fixed64, tag = "4")]
    slot_sequence: u64,
    #[prost(message, optional, tag = "5")]
    capability: Option<CapabilityFields>,
    #[prost(fixed64, tag = "6")]
    epoch: u64,
    #[prost(message, optional, tag = "7")]
    group: Option<GroupFields>,
    #[prost(uint64, tag = "8")]
    length_bound: u64,
    #[prost(
        oneof = "OpFields",
        tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41"
    )]
    op: Option<OpFields>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OpFields {
    #[prost(message, tag = "10")]
    Read(ReadFields),
    #[prost(message, tag = "11")]
    Write(WriteFields),
    #[prost(message, tag = "12")]
    Truncate(TruncateFields),
    #[prost(message, tag = "13")]
    Allocate(AllocateFields),
    #[prost(message, tag = "14")]
    Delete(()),
    #[prost(message, tag = "15")]
    Sync(()),
    #[prost(message, tag = "16")]
    SyncTarget(()),
    #[prost(message, tag = "17")]
    Stat(()),
    #[prost(message, tag = "18")]
    Seek(SeekFields),
    #[prost(message, tag = "19")]
    Space(()),
    #[prost(message, tag = "20")]
    Fence(FenceFields),
    #[prost(message, tag = "21")]
    TrackDirty(TrackDirtyFields),
    #[prost(message, tag = "22")]
    NextDirty(NextDirtyFields),
    #[prost(message, tag = "23")]
    EndDirtyTracking(EndDirtyTrackingFields),
    #[prost(message, tag = "24")]
    Committed(()),
    #[prost(message, tag = "25")]
    Regions(RegionsFields),
    #[prost(message, tag = "26")]
    Survey(SurveyFields),
    #[prost(message, tag = "27")]
    Repair(RepairFields),
    #[prost(message, tag = "30")]
    CopyReplica(CopyReplicaFields),
    #[prost(message, tag = "31")]
    DiscardLost(DiscardLostFields),
    #[prost(message, tag = "32")]
    MarkLost(MarkLostFields),
    #[prost(message, tag = "33")]
    Digests(DigestFields),
    #[prost(message, tag = "34")]
    AdoptVerifier(AdoptVerifierFields),
    #[prost(message, tag = "35")]
    SetTime(SetTimeOfFields),
    #[prost(message, tag = "36")]
    Measure(MeasureFields),
    #[prost(message, tag = "37")]
    Traffic(()),
    #[prost(message, tag = "38")]
    Rewrite(RewriteFields),
    #[prost(message, tag = "39")]
    ExpectChecksums(ExpectChecksumsFields),
    #[prost(message, tag = "40")]
    SetAside(()),
    #[prost(message, tag = "41")]
    SpaceNeeded(SpaceNeededFields),
}

#[derive(Clone, PartialEq, prost::Message)]
struct SpaceNeededFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
}

/// A number distinguishes the kinds, since one of them has no fields.
#[derive(Clone, PartialEq, prost::Message)]
struct MeasureFields {
    #[prost(uint32, tag = "1")]
    what: u32,
    #[prost(uint64, tag = "2")]
    milliseconds: u64,
    #[prost(uint64, tag = "3")]
    size: u64,
    #[prost(uint32, tag = "4")]
    to: u32,
    #[prost(uint32, tag = "5")]
    streams: u32,
}

impl MeasureFields {
    fn of(what: Measure, milliseconds: u64) -> MeasureFields {
        let (what, size, to, streams) = match what {
            Measure::Drive { size } => (1, size, 0, 0),
            Measure::Network { to, streams } => (2, 0, to.0, streams),
            Measure::Cpu => (3, 0, 0, 0),
        };
        MeasureFields { what, milliseconds, size, to, streams }
    }

    fn measure(&self) -> Result<Measure, Malformed> {
        match self.what {
            1 => Ok(Measure::Drive { size: self.size }),
            2 => Ok(Measure::Network { to: NodeId(self.to), streams: self.streams }),
            3 => Ok(Measure::Cpu),
            other => Err(Malformed::new(format!("unknown kind of measurement {other}"))),
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct AdoptVerifierFields {
    #[prost(fixed64, tag = "1")]
    verifier: u64,
    #[prost(fixed64, tag = "2")]
    instead_of: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CopyReplicaFields {
    #[prost(uint32, tag = "1")]
    from: u32,
    #[prost(uint32, tag = "2")]
    to: u32,
    #[prost(message, optional, tag = "3")]
    range: Option<RangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DiscardLostFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MarkLostFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RewriteFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
    #[prost(uint64, optional, tag = "2")]
    len: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExpectChecksumsFields {
    #[prost(uint64, tag = "1")]
    first: u64,
    #[prost(uint64, tag = "2")]
    len: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SetTimeOfFields {
    #[prost(message, optional, tag = "1")]
    time: Option<TimeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DigestFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
}

/// A number distinguishes the roles, since two of them have no fields.
#[derive(Clone, PartialEq, prost::Message)]
struct GroupFields {
    #[prost(uint32, tag = "1")]
    group: u32,
    #[prost(uint64, tag = "2")]
    version: u64,
    #[prost(uint32, tag = "3")]
    role: u32,
    #[prost(uint64, tag = "4")]
    sequence: u64,
    #[prost(uint64, tag = "5")]
    committed: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RegionsFields {
    #[prost(uint64, tag = "1")]
    from: u64,
    #[prost(uint32, tag = "2")]
    which: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SurveyFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
    #[prost(uint64, tag = "2")]
    unit: u64,
    #[prost(bool, tag = "3")]
    read: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RepairFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReadFields {
    #[prost(uint64, tag = "1")]
    offset: u64,
    #[prost(uint32, tag = "2")]
    path: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WriteFields {
    #[prost(uint64, tag = "1")]
    offset: u64,
    #[prost(uint32, tag = "2")]
    path: u32,
    #[prost(bool, tag = "3")]
    durable: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TruncateFields {
    #[prost(uint64, tag = "1")]
    len: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateFields {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeFields>,
    #[prost(uint32, tag = "2")]
    how: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SeekFields {
    #[prost(uint64, tag = "1")]
    from: u64,
    #[prost(uint32, tag = "2")]
    what: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FenceFields {
    #[prost(uint64, tag = "1")]
    session: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrackDirtyFields {
    #[prost(uint64, tag = "1")]
    token: u64,
    #[prost(uint64, tag = "2")]
    round: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NextDirtyFields {
    #[prost(uint64, tag = "1")]
    token: u64,
    #[prost(uint64, tag = "2")]
    round: u64,
    #[prost(uint64, tag = "3")]
    from: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EndDirtyTrackingFields {
    #[prost(uint64, tag = "1")]
    token: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReplyFields {
    /// Beside `Unit`, for peers that know it.
    #[prost(fixed64, tag = "1")]
    verifier: u64,
    #[prost(oneof = "AnswerFields", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18")]
    answer: Option<AnswerFields>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnswerFields {
    #[prost(message, tag = "10")]
    Unit(()),
    #[prost(message, tag = "11")]
    Stat(StatFields),
    #[prost(message, tag = "12")]
    Offset(OffsetFields),
    #[prost(message, tag = "13")]
    Space(SpaceFields),
    #[prost(message, tag = "14")]
    Regions(FoundFields),
    #[prost(message, tag = "15")]
    Survey(SurveyedFields),
    #[prost(message, tag = "16")]
    Repaired(RepairResultFields),
    #[prost(message, tag = "17")]
    Rates(RatesFields),
    #[prost(message, tag = "18")]
    SpaceNeeded(ReservationSpaceFields),
}

#[derive(Clone, PartialEq, prost::Message)]
struct RatesFields {
    #[prost(message, optional, tag = "1")]
    rates: Option<List<RateFields, MAX_RATES>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RateFields {
    #[prost(uint32, tag = "1")]
    of: u32,
    #[prost(uint64, tag = "2")]
    rate: u64,
    #[prost(uint32, tag = "3")]
    streams: u32,
}

impl From<&MeasuredRate> for RateFields {
    fn from(rate: &MeasuredRate) -> RateFields {
        RateFields { of: rate.of.number(), rate: rate.rate, streams: rate.streams }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct SurveyedFields {
    #[prost(bool, tag = "1")]
    exists: bool,
    #[prost(uint64, tag = "2")]
    len: u64,
    #[prost(uint64, tag = "3")]
    sum_end: u64,
    #[prost(message, optional, tag = "4")]
    mtime: Option<TimeFields>,
    #[prost(message, optional, tag = "5")]
    ctime: Option<TimeFields>,
    /// Four bytes each, little-endian.
    #[prost(bytes = "vec", tag = "6")]
    sums: Vec<u8>,
    #[prost(message, optional, tag = "7")]
    damaged: Option<List<RangeFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RepairResultFields {
    #[prost(uint64, tag = "1")]
    damaged: u64,
    #[prost(uint64, tag = "2")]
    repaired: u64,
    #[prost(uint64, tag = "3")]
    unclear: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FoundFields {
    #[prost(message, optional, tag = "1")]
    regions: Option<List<FoundRegion, MAX_LIST_ITEMS>>,
    #[prost(uint64, optional, tag = "2")]
    next: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FoundRegion {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(message, optional, tag = "2")]
    range: Option<RangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatFields {
    #[prost(uint64, tag = "1")]
    len: u64,
    #[prost(uint64, tag = "2")]
    blocks: u64,
    #[prost(message, optional, tag = "3")]
    mtime: Option<TimeFields>,
    #[prost(bool, tag = "4")]
    is_lost: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OffsetFields {
    #[prost(uint64, optional, tag = "1")]
    offset: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SpaceFields {
    #[prost(uint64, tag = "1")]
    capacity: u64,
    #[prost(uint64, tag = "2")]
    free: u64,
}

/// Words instead of bytes: every request has it, and it needs no allocation this way.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CapabilityFields {
    #[prost(fixed64, tag = "1")]
    a: u64,
    #[prost(fixed64, tag = "2")]
    b: u64,
    #[prost(fixed64, tag = "3")]
    c: u64,
    #[prost(fixed64, tag = "4")]
    d: u64,
    #[prost(fixed64, tag = "5")]
    e: u64,
    #[prost(fixed64, tag = "6")]
    f: u64,
    #[prost(fixed64, tag = "7")]
    g: u64,
    #[prost(fixed64, tag = "8")]
    h: u64,
}

impl From<&Capability> for CapabilityFields {
    fn from(Capability(bytes): &Capability) -> CapabilityFields {
        let word = |at: usize| {
            let bytes = bytes[8 * at..8 * at + 8].try_into();
            u64::from_le_bytes(bytes.expect("eight words make a capability"))
        };
        let [a, b, c, d, e, f, g, h] = [0, 1, 2, 3, 4, 5, 6, 7].map(word);
        CapabilityFields { a, b, c, d, e, f, g, h }
    }
}

impl From<&CapabilityFields> for Capability {
    fn from(fields: &CapabilityFields) -> Capability {
        let CapabilityFields { a, b, c, d, e, f, g, h } = *fields;
        let mut bytes = [0; CAPABILITY_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([a, b, c, d, e, f, g, h]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Capability(bytes)
    }
}

impl From<&StorageOp> for OpFields {
    fn from(op: &StorageOp) -> OpFields {
        match *op {
            StorageOp::Read { offset, path } => OpFields::Read(ReadFields { offset, path: path.number() }),
            StorageOp::Write { offset, path, durable } => {
                OpFields::Write(WriteFields { offset, path: path.number(), durable })
            }
            StorageOp::Truncate { len } => OpFields::Truncate(TruncateFields { len }),
            StorageOp::Allocate { range, how } => {
                OpFields::Allocate(AllocateFields { range: Some(range.into()), how: how.number() })
            }
            StorageOp::Delete => OpFields::Delete(()),
            StorageOp::Sync => OpFields::Sync(()),
            StorageOp::SyncTarget => OpFields::SyncTarget(()),
            StorageOp::Stat => OpFields::Stat(()),
            StorageOp::Seek { from, what } => OpFields::Seek(SeekFields { from, what: what.number() }),
            StorageOp::Space => OpFields::Space(()),
            StorageOp::SpaceNeeded { range } => {
                OpFields::SpaceNeeded(SpaceNeededFields { range: Some(range.into()) })
            }
            StorageOp::Fence { session } => OpFields::Fence(FenceFields { session: session.0 }),
            StorageOp::TrackDirty { token, round } => OpFields::TrackDirty(TrackDirtyFields { token, round }),
            StorageOp::NextDirty { token, round, from } => {
                OpFields::NextDirty(NextDirtyFields { token, round, from })
            }
            StorageOp::EndDirtyTracking { token } => {
                OpFields::EndDirtyTracking(EndDirtyTrackingFields { token })
            }
            StorageOp::Committed => OpFields::Committed(()),
            StorageOp::Regions { from, which } => {
                OpFields::Regions(RegionsFields { from: from.0, which: which.number() })
            }
            StorageOp::Survey { range, unit, read } => {
                OpFields::Survey(SurveyFields { range: Some(range.into()), unit, read })
            }
            StorageOp::Repair { range } => OpFields::Repair(RepairFields { range: Some(range.into()) }),
            StorageOp::CopyReplica { from, to, range } => {
                OpFields::CopyReplica(CopyReplicaFields { from: from.0, to: to.0, range: Some(range.into()) })
            }
            StorageOp::DiscardLost { range } => {
                OpFields::DiscardLost(DiscardLostFields { range: Some(range.into()) })
            }
            StorageOp::AdoptVerifier { verifier, instead_of } => {
                OpFields::AdoptVerifier(AdoptVerifierFields { verifier, instead_of })
            }
            StorageOp::MarkLost { range } => OpFields::MarkLost(MarkLostFields { range: Some(range.into()) }),
            StorageOp::SetTime { time } => OpFields::SetTime(SetTimeOfFields { time: Some(time.into()) }),
            StorageOp::Digests { range } => OpFields::Digests(DigestFields { range: Some(range.into()) }),
            StorageOp::Measure { what, milliseconds } => {
                OpFields::Measure(MeasureFields::of(what, milliseconds))
            }
            StorageOp::Traffic => OpFields::Traffic(()),
            StorageOp::Rewrite { range, len } => {
                OpFields::Rewrite(RewriteFields { range: Some(range.into()), len })
            }
            StorageOp::ExpectChecksums { first, len } => {
                OpFields::ExpectChecksums(ExpectChecksumsFields { first, len })
            }
            StorageOp::SetAside => OpFields::SetAside(()),
        }
    }
}

impl TryFrom<OpFields> for StorageOp {
    type Error = Malformed;

    fn try_from(op: OpFields) -> Result<StorageOp, Malformed> {
        Ok(match op {
            OpFields::Read(f) => StorageOp::Read { offset: f.offset, path: DataPath::take(f.path)? },
            OpFields::Write(f) => {
                StorageOp::Write { offset: f.offset, path: DataPath::take(f.path)?, durable: f.durable }
            }
            OpFields::Truncate(f) => StorageOp::Truncate { len: f.len },
            OpFields::Allocate(f) => {
                let range = required(f.range, "range to allocate")?.try_into()?;
                StorageOp::Allocate { range, how: AllocateMode::take(f.how)? }
            }
            OpFields::Delete(()) => StorageOp::Delete,
            OpFields::Sync(()) => StorageOp::Sync,
            OpFields::SyncTarget(()) => StorageOp::SyncTarget,
            OpFields::Stat(()) => StorageOp::Stat,
            OpFields::Seek(f) => StorageOp::Seek { from: f.from, what: SeekTarget::take(f.what)? },
            OpFields::Space(()) => StorageOp::Space,
            OpFields::SpaceNeeded(f) => {
                StorageOp::SpaceNeeded { range: required(f.range, "range to reserve")?.try_into()? }
            }
            OpFields::Fence(f) => StorageOp::Fence { session: SessionId(f.session) },
            OpFields::TrackDirty(f) => StorageOp::TrackDirty { token: f.token, round: f.round },
            OpFields::NextDirty(f) => StorageOp::NextDirty { token: f.token, round: f.round, from: f.from },
            OpFields::EndDirtyTracking(f) => StorageOp::EndDirtyTracking { token: f.token },
            OpFields::Committed(()) => StorageOp::Committed,
            OpFields::Regions(f) => {
                StorageOp::Regions { from: ChunkFileId(f.from), which: RegionSelection::take(f.which)? }
            }
            OpFields::Survey(f) => {
                let range = required(f.range, "range to survey")?.try_into()?;
                StorageOp::Survey { range, unit: f.unit, read: f.read }
            }
            OpFields::Repair(f) => {
                StorageOp::Repair { range: required(f.range, "range to repair")?.try_into()? }
            }
            OpFields::CopyReplica(f) => {
                let range = required(f.range, "range to repair")?.try_into()?;
                StorageOp::CopyReplica { from: TargetId(f.from), to: TargetId(f.to), range }
            }
            OpFields::DiscardLost(f) => {
                StorageOp::DiscardLost { range: required(f.range, "range to discard")?.try_into()? }
            }
            OpFields::AdoptVerifier(f) => {
                StorageOp::AdoptVerifier { verifier: f.verifier, instead_of: f.instead_of }
            }
            OpFields::MarkLost(f) => {
                StorageOp::MarkLost { range: required(f.range, "range that is lost")?.try_into()? }
            }
            OpFields::Measure(f) => StorageOp::Measure { what: f.measure()?, milliseconds: f.milliseconds },
            OpFields::Traffic(()) => StorageOp::Traffic,
            OpFields::Rewrite(f) => {
                StorageOp::Rewrite { range: required(f.range, "range to rewrite")?.try_into()?, len: f.len }
            }
            OpFields::ExpectChecksums(f) => StorageOp::ExpectChecksums { first: f.first, len: f.len },
            OpFields::SetAside(()) => StorageOp::SetAside,
            OpFields::SetTime(f) => StorageOp::SetTime { time: time(f.time, "time of a copy")? },
            OpFields::Digests(f) => {
                StorageOp::Digests { range: required(f.range, "range of digests")?.try_into()? }
            }
        })
    }
}

impl From<GroupContext> for GroupFields {
    fn from(GroupContext { group, version, role }: GroupContext) -> GroupFields {
        let (role, sequence, committed) = match role {
            GroupRole::Primary => (1, 0, 0),
            GroupRole::Member { sequence, committed } => (2, sequence, committed),
            GroupRole::Resync => (3, 0, 0),
        };
        GroupFields { group: group.0, version: version.0, role, sequence, committed }
    }
}

impl TryFrom<GroupFields> for GroupContext {
    type Error = Malformed;

    fn try_from(fields: GroupFields) -> Result<GroupContext, Malformed> {
        let GroupFields { group, version, role, sequence, committed } = fields;
        let role = match role {
            1 => GroupRole::Primary,
            2 => GroupRole::Member { sequence, committed },
            3 => GroupRole::Resync,
            other => return Err(Malformed::new(format!("unknown role of a member {other}"))),
        };
        Ok(GroupContext { group: GroupId(group), version: Epoch(version), role })
    }
}

impl Message for StorageRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        let StorageRequest {
            session,
            target,
            ino,
            slot_sequence,
            capability,
            epoch,
            group,
            length_bound,
            op,
        } = self;
        let (slot_sequence, op) = (slot_sequence.map_or(0, packed), Some(op.into()));
        let group = group.map(GroupFields::from);
        let capability = capability.as_ref().map(CapabilityFields::from);
        let (session, target, ino, epoch, length_bound) = (session.0, target.0, ino.0, *epoch, *length_bound);
        RequestFields { session, target, ino, slot_sequence, capability, epoch, group, length_bound, op }
            .encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<StorageRequest, Malformed> {
        let RequestFields { session, target, ino, slot_sequence, capability, epoch, group, length_bound, op } =
            fields(bytes)?;
        Ok(StorageRequest {
            session: SessionId(session),
            target: TargetId(target),
            ino: ChunkFileId(ino),
            slot_sequence: unpacked(slot_sequence),
            capability: capability.as_ref().map(Capability::from),
            epoch,
            group: group.map(GroupContext::try_from).transpose()?,
            length_bound,
            op: required(op, "known storage operation")?.try_into()?,
        })
    }
}

impl Request for StorageRequest {
    const SERVICE: Service = Service::Storage;

    fn answer_kind(&self) -> AnswerKind {
        let spec = self.op.spec();
        match spec.payload {
            Payload::Returned => AnswerKind::FillsPayload,
            _ if spec.has_no_deadline => AnswerKind::Unbounded,
            _ => AnswerKind::NoPayload,
        }
    }

    fn rule(&self) -> AuthorizationRule {
        authorization::storage(self)
    }
}

fn surveyed(survey: &ReplicaState) -> SurveyedFields {
    SurveyedFields {
        exists: survey.exists,
        len: survey.len,
        sum_end: survey.sum_end,
        mtime: Some(survey.mtime.into()),
        ctime: Some(survey.ctime.into()),
        sums: survey.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect(),
        damaged: List::of(&survey.damaged, |range| (*range).into()),
    }
}

impl TryFrom<SurveyedFields> for ReplicaState {
    type Error = Malformed;

    fn try_from(f: SurveyedFields) -> Result<ReplicaState, Malformed> {
        let (sums, rest) = f.sums.as_chunks::<4>();
        if !rest.is_empty() || sums.len() > MAX_SURVEYED {
            return Err(Malformed::new(format!("a survey with {} bytes of sums", f.sums.len())));
        }
        Ok(ReplicaState {
            exists: f.exists,
            len: f.len,
            sum_end: f.sum_end,
            mtime: time(f.mtime, "mtime")?,
            ctime: time(f.ctime, "ctime")?,
            sums: sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect(),
            damaged: List::take(f.damaged, |range: RangeFields| range.try_into())?,
        })
    }
}

impl Message for StorageReply {
    fn encode(&self, out: &mut Vec<u8>) {
        let answer = match self {
            StorageReply::Unit | StorageReply::Done { .. } => AnswerFields::Unit(()),
            &StorageReply::Stat { len, blocks, mtime, is_lost } => {
                AnswerFields::Stat(StatFields { len, blocks, mtime: Some(mtime.into()), is_lost })
            }
            &StorageReply::Offset(offset) => AnswerFields::Offset(OffsetFields { offset }),
            &StorageReply::Space { capacity, free } => AnswerFields::Space(SpaceFields { capacity, free }),
            StorageReply::Regions { regions, next } => {
                let region = |(ino, range): &(ChunkFileId, ByteRange)| FoundRegion {
                    ino: ino.0,
                    range: Some((*range).into()),
                };
                AnswerFields::Regions(FoundFields {
                    regions: List::of(regions, region),
                    next: next.map(|next| next.0),
                })
            }
            StorageReply::Survey(survey) => AnswerFields::Survey(surveyed(survey)),
            &StorageReply::Repaired(RepairResult { damaged, repaired, unclear }) => {
                AnswerFields::Repaired(RepairResultFields { damaged, repaired, unclear })
            }
            StorageReply::SpaceNeeded(space) => AnswerFields::SpaceNeeded(space.into()),
            StorageReply::Rates(rates) => {
                AnswerFields::Rates(RatesFields { rates: List::of(rates, RateFields::from) })
            }
        };
        let verifier = if let StorageReply::Done { verifier } = self { *verifier } else { 0 };
        ReplyFields { verifier, answer: Some(answer) }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<StorageReply, Malformed> {
        let ReplyFields { verifier, answer } = fields(bytes)?;
        Ok(match required(answer, "known storage answer")? {
            AnswerFields::Unit(()) if verifier != 0 => StorageReply::Done { verifier },
            AnswerFields::Unit(()) => StorageReply::Unit,
            AnswerFields::Stat(f) => StorageReply::Stat {
                len: f.len,
                blocks: f.blocks,
                mtime: time(f.mtime, "mtime")?,
                is_lost: f.is_lost,
            },
            AnswerFields::Offset(f) => StorageReply::Offset(f.offset),
            AnswerFields::Space(f) => StorageReply::Space { capacity: f.capacity, free: f.free },
            AnswerFields::Regions(f) => {
                let region =
                    |f: FoundRegion| Ok((ChunkFileId(f.ino), required(f.range, "region")?.try_into()?));
                StorageReply::Regions {
                    regions: List::take(f.regions, region)?,
                    next: f.next.map(ChunkFileId),
                }
            }
            AnswerFields::Survey(f) => StorageReply::Survey(f.try_into()?),
            AnswerFields::Repaired(RepairResultFields { damaged, repaired, unclear }) => {
                StorageReply::Repaired(RepairResult { damaged, repaired, unclear })
            }
            AnswerFields::SpaceNeeded(f) => StorageReply::SpaceNeeded(f.try_into()?),
            AnswerFields::Rates(f) => {
                let rate = |f: RateFields| {
                    Ok(MeasuredRate { of: RateQuantity::take(f.of)?, rate: f.rate, streams: f.streams })
                };
                StorageReply::Rates(List::take(f.rates, rate)?)
            }
        })
    }
}
