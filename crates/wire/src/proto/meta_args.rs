//! Fields of the requests to a metadata service. Numbers never change.

use super::common::{
    CredentialsFields, List, MAX_LIST_ITEMS, Numbered, TimeFields, name, packed, required, time, unpacked,
};
use super::meta_op::OpFields;
use crate::{
    AccessTime, HeldLock, LockFamily, LockKind, LockOwner, LockRange, Malformed, MetaOp, PatternChange,
    RecallAck, ReportedSize,
};
use crate::{AsyncChange, AsyncCreate, PendingFile};
use bytes::Bytes;
use types::{Chooser, InodeFlags, InodeId, ProjectId, SetAttr, SetTime};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InodeFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NamedFields {
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnlinkFields {
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    #[prost(uint64, optional, tag = "3")]
    pub ino: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AsyncChangeFields {
    #[prost(message, optional, tag = "1")]
    pub credentials: Option<CredentialsFields>,
    /// Session slot in the upper half, sequence id in the lower.
    #[prost(fixed64, tag = "2")]
    pub slot_sequence: u64,
    #[prost(oneof = "AsyncOpFields", tags = "3, 4, 5")]
    pub op: Option<AsyncOpFields>,
}

/// The changes that can be asynchronous.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum AsyncOpFields {
    #[prost(message, tag = "3")]
    Setattr(SetattrFields),
    #[prost(message, tag = "4")]
    Unlink(UnlinkFields),
    #[prost(message, tag = "5")]
    Rename(RenameFields),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SetattrFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(message, optional, tag = "2")]
    pub set: Option<SetFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SetFields {
    #[prost(uint32, optional, tag = "1")]
    pub mode: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub uid: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub gid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub atime: Option<SetTimeFields>,
    #[prost(message, optional, tag = "5")]
    pub mtime: Option<SetTimeFields>,
    #[prost(message, optional, tag = "6")]
    pub ctime: Option<TimeFields>,
    #[prost(bool, tag = "7")]
    pub kill_suid_sgid: bool,
    #[prost(uint32, optional, tag = "8")]
    pub flags: Option<u32>,
    #[prost(uint32, optional, tag = "9")]
    pub project: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SetTimeFields {
    #[prost(oneof = "SetTimeKind", tags = "1, 2")]
    pub kind: Option<SetTimeKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum SetTimeKind {
    #[prost(message, tag = "1")]
    Now(()),
    #[prost(message, tag = "2")]
    At(TimeFields),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateFields {
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    #[prost(uint32, tag = "4")]
    pub umask: u32,
    #[prost(uint32, tag = "5")]
    pub rdev: u32,
    #[prost(bool, tag = "6")]
    pub exclusive: bool,
    #[prost(uint32, optional, tag = "7")]
    pub requested_lease: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MkdirFields {
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    #[prost(uint32, tag = "4")]
    pub umask: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SymlinkFields {
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub target: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TmpfileFields {
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    #[prost(uint32, tag = "3")]
    pub umask: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinkFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RenameFields {
    #[prost(message, optional, tag = "1")]
    pub from: Option<NamedFields>,
    #[prost(message, optional, tag = "2")]
    pub to: Option<NamedFields>,
    #[prost(uint32, tag = "3")]
    pub mode: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReaddirFields {
    #[prost(uint64, tag = "1")]
    pub dir: u64,
    #[prost(fixed64, tag = "2")]
    pub cookie: u64,
    #[prost(uint32, tag = "3")]
    pub limit: u32,
    #[prost(bool, tag = "4")]
    pub attributes: bool,
    #[prost(bytes = "bytes", tag = "5")]
    pub prefix: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct XattrFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SetXattrFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub value: Bytes,
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    #[prost(bool, tag = "5")]
    pub kill_sgid: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OpenFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint32, optional, tag = "2")]
    pub requested_lease: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReopenFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(fixed64, tag = "2")]
    pub above_epoch: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MayOpenFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint32, tag = "2")]
    pub wanted: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MigrateFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(string, optional, tag = "2")]
    pub pool: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub scheme: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WriteInlineFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub data: Bytes,
    #[prost(bool, tag = "4")]
    pub kill_suid_sgid: bool,
    #[prost(bool, tag = "5")]
    pub at_end: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DropInlineFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    #[prost(message, optional, tag = "3")]
    pub mtime: Option<TimeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EndWriteFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    #[prost(uint64, tag = "3")]
    pub blocks: u64,
    #[prost(message, optional, tag = "4")]
    pub mtime: Option<TimeFields>,
    #[prost(bool, tag = "5")]
    pub done: bool,
    #[prost(bool, tag = "6")]
    pub kill_suid_sgid: bool,
    #[prost(uint64, repeated, tag = "7")]
    pub lens: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TruncateFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    #[prost(bool, tag = "3")]
    pub kill_suid_sgid: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LockRangeFields {
    #[prost(uint64, tag = "1")]
    pub start: u64,
    #[prost(uint64, tag = "2")]
    pub last: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LockFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint32, tag = "2")]
    pub family: u32,
    #[prost(fixed64, tag = "3")]
    pub owner: u64,
    #[prost(uint32, tag = "4")]
    pub pid: u32,
    #[prost(uint32, tag = "5")]
    pub kind: u32,
    #[prost(message, optional, tag = "6")]
    pub range: Option<LockRangeFields>,
    #[prost(bool, tag = "7")]
    pub wait: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnlockFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint32, tag = "2")]
    pub family: u32,
    #[prost(fixed64, tag = "3")]
    pub owner: u64,
    #[prost(message, optional, tag = "4")]
    pub range: Option<LockRangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TestLockFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(fixed64, tag = "2")]
    pub owner: u64,
    #[prost(uint32, tag = "3")]
    pub kind: u32,
    #[prost(message, optional, tag = "4")]
    pub range: Option<LockRangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NextRecallsFields {
    #[prost(uint64, tag = "1")]
    pub after: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RecallAckFields {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bool, tag = "3")]
    pub in_use: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RecallsInProgressFields {
    #[prost(uint64, tag = "1")]
    pub seen: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SupplyGroupsFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint32, repeated, tag = "2")]
    pub groups: Vec<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReleaseFields {
    #[prost(uint64, repeated, tag = "1")]
    pub inodes: Vec<u64>,
    #[prost(uint64, tag = "2")]
    pub seen: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReclaimFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, repeated, tag = "2")]
    pub others: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InodesFields {
    #[prost(uint64, repeated, tag = "1")]
    pub inodes: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegisterFields {
    #[prost(uint64, repeated, tag = "1")]
    pub in_use: Vec<u64>,
    #[prost(message, optional, tag = "2")]
    pub pending_creates: Option<List<AsyncCreateFields, MAX_LIST_ITEMS>>,
    #[prost(uint64, tag = "3")]
    pub reporting_process: u64,
    #[prost(message, optional, tag = "4")]
    pub pending_changes: Option<List<AsyncChangeFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AsyncCreateFields {
    #[prost(message, optional, tag = "1")]
    pub credentials: Option<CredentialsFields>,
    #[prost(message, optional, tag = "2")]
    pub file: Option<PendingFileFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PendingFileFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    #[prost(uint32, tag = "5")]
    pub umask: u32,
    #[prost(bytes = "bytes", tag = "6")]
    pub content: Bytes,
    #[prost(message, optional, tag = "7")]
    pub made: Option<TimeFields>,
    #[prost(message, optional, tag = "8")]
    pub written: Option<TimeFields>,
    #[prost(message, optional, tag = "9")]
    pub set: Option<SetFields>,
    #[prost(bool, tag = "10")]
    pub begins_write: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreallocateInodesFields {
    #[prost(uint64, tag = "1")]
    pub dir: u64,
    #[prost(uint32, tag = "2")]
    pub count: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub prefix: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FollowFields {
    #[prost(uint32, repeated, tag = "1")]
    pub partitions: Vec<u32>,
    #[prost(uint64, repeated, tag = "2")]
    pub in_use: Vec<u64>,
    #[prost(message, optional, tag = "3")]
    pub pending_creates: Option<List<AsyncCreateFields, MAX_LIST_ITEMS>>,
    #[prost(uint64, tag = "4")]
    pub reporting_process: u64,
    #[prost(message, optional, tag = "5")]
    pub pending_changes: Option<List<AsyncChangeFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SizeFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AccessFields {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(message, optional, tag = "2")]
    pub at: Option<TimeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SetPatternFields {
    #[prost(uint64, tag = "1")]
    pub dir: u64,
    #[prost(message, optional, tag = "2")]
    pub change: Option<ChangeFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ChangeFields {
    #[prost(string, optional, tag = "1")]
    pub pool: Option<String>,
    #[prost(uint64, optional, tag = "2")]
    pub chunk_size: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub stripe_count: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub inline_limit: Option<u64>,
    #[prost(uint32, optional, tag = "5")]
    pub chooser: Option<u32>,
    #[prost(string, optional, tag = "6")]
    pub scheme: Option<String>,
}

impl InodeFields {
    pub fn of(ino: &InodeId) -> InodeFields {
        InodeFields { ino: ino.0 }
    }
}

impl NamedFields {
    pub fn of(parent: &InodeId, name: &Bytes) -> NamedFields {
        NamedFields { parent: parent.0, name: name.clone() }
    }
}

impl XattrFields {
    pub fn of(ino: &InodeId, name: &Bytes) -> XattrFields {
        XattrFields { ino: ino.0, name: name.clone() }
    }
}

impl SetattrFields {
    pub fn of(ino: &InodeId, set: &SetAttr) -> SetattrFields {
        SetattrFields { ino: ino.0, set: Some(set.into()) }
    }
}

impl From<&SetAttr> for SetFields {
    fn from(set: &SetAttr) -> SetFields {
        let &SetAttr { mode, uid, gid, atime, mtime, ctime, kill_suid_sgid, flags, project } = set;
        let [atime, mtime] = [atime, mtime].map(|time| time.map(SetTimeFields::from));
        let ctime = ctime.map(TimeFields::from);
        let (flags, project) = (flags.map(|flags| flags.0), project.map(|project| project.0));
        SetFields { mode, uid, gid, atime, mtime, ctime, kill_suid_sgid, flags, project }
    }
}

impl TryFrom<SetattrFields> for MetaOp {
    type Error = Malformed;

    fn try_from(SetattrFields { ino, set }: SetattrFields) -> Result<MetaOp, Malformed> {
        let set = required(set, "attributes to set")?.try_into()?;
        Ok(MetaOp::Setattr { ino: InodeId(ino), set })
    }
}

impl TryFrom<SetFields> for SetAttr {
    type Error = Malformed;

    fn try_from(fields: SetFields) -> Result<SetAttr, Malformed> {
        let SetFields { mode, uid, gid, atime, mtime, ctime, kill_suid_sgid, flags, project } = fields;
        if let Some(unknown) = flags.filter(|flags| flags & !InodeFlags::ALL.0 != 0) {
            return Err(Malformed::new(format!("unknown flags of an inode: {unknown:#x}")));
        }
        Ok(SetAttr {
            mode,
            uid,
            gid,
            atime: atime.map(TryInto::try_into).transpose()?,
            mtime: mtime.map(TryInto::try_into).transpose()?,
            ctime: ctime.map(TryInto::try_into).transpose()?,
            kill_suid_sgid,
            flags: flags.map(InodeFlags),
            project: project.map(ProjectId),
        })
    }
}

impl From<SetTime> for SetTimeFields {
    fn from(time: SetTime) -> SetTimeFields {
        let kind = match time {
            SetTime::Now => SetTimeKind::Now(()),
            SetTime::At(time) => SetTimeKind::At(time.into()),
        };
        SetTimeFields { kind: Some(kind) }
    }
}

impl TryFrom<SetTimeFields> for SetTime {
    type Error = Malformed;

    fn try_from(fields: SetTimeFields) -> Result<SetTime, Malformed> {
        Ok(match required(fields.kind, "known time to set")? {
            SetTimeKind::Now(()) => SetTime::Now,
            SetTimeKind::At(time) => SetTime::At(time.try_into()?),
        })
    }
}

impl From<LockRange> for LockRangeFields {
    fn from(LockRange { start, last }: LockRange) -> LockRangeFields {
        LockRangeFields { start, last }
    }
}

impl TryFrom<LockRangeFields> for LockRange {
    type Error = Malformed;

    fn try_from(LockRangeFields { start, last }: LockRangeFields) -> Result<LockRange, Malformed> {
        match start <= last {
            true => Ok(LockRange { start, last }),
            false => Err(Malformed::new(format!("the range {start}..={last} is inverted"))),
        }
    }
}

impl From<&HeldLock> for LockFields {
    fn from(&HeldLock { ino, family, owner, pid, kind, range }: &HeldLock) -> LockFields {
        let (family, kind, range) = (family.number(), kind.number(), Some(range.into()));
        LockFields { ino: ino.0, family, owner: owner.0, pid, kind, range, wait: false }
    }
}

impl TryFrom<LockFields> for HeldLock {
    type Error = Malformed;

    fn try_from(f: LockFields) -> Result<HeldLock, Malformed> {
        Ok(HeldLock {
            ino: InodeId(f.ino),
            family: LockFamily::take(f.family)?,
            owner: LockOwner(f.owner),
            pid: f.pid,
            kind: LockKind::take(f.kind)?,
            range: required(f.range, "range of a lock")?.try_into()?,
        })
    }
}

impl From<&AccessTime> for AccessFields {
    fn from(&AccessTime { ino, at }: &AccessTime) -> AccessFields {
        AccessFields { ino: ino.0, at: Some(at.into()) }
    }
}

impl TryFrom<AccessFields> for AccessTime {
    type Error = Malformed;

    fn try_from(AccessFields { ino, at }: AccessFields) -> Result<AccessTime, Malformed> {
        Ok(AccessTime { ino: InodeId(ino), at: time(at, "time of an access")? })
    }
}

impl From<&ReportedSize> for SizeFields {
    fn from(&ReportedSize { ino, size }: &ReportedSize) -> SizeFields {
        SizeFields { ino: ino.0, size }
    }
}

impl From<SizeFields> for ReportedSize {
    fn from(SizeFields { ino, size }: SizeFields) -> ReportedSize {
        ReportedSize { ino: InodeId(ino), size }
    }
}

impl From<&RecallAck> for RecallAckFields {
    fn from(&RecallAck { number, ino, in_use }: &RecallAck) -> RecallAckFields {
        RecallAckFields { number, ino: ino.0, in_use }
    }
}

impl From<RecallAckFields> for RecallAck {
    fn from(RecallAckFields { number, ino, in_use }: RecallAckFields) -> RecallAck {
        RecallAck { number, ino: InodeId(ino), in_use }
    }
}

impl SetPatternFields {
    pub fn of(dir: &InodeId, change: &PatternChange) -> SetPatternFields {
        let PatternChange { pool, chunk_size, stripe_count, inline_limit, chooser, scheme } = change.clone();
        let chooser = chooser.map(Numbered::number);
        let change = ChangeFields { pool, chunk_size, stripe_count, inline_limit, chooser, scheme };
        SetPatternFields { dir: dir.0, change: Some(change) }
    }
}

impl TryFrom<SetPatternFields> for MetaOp {
    type Error = Malformed;

    fn try_from(SetPatternFields { dir, change }: SetPatternFields) -> Result<MetaOp, Malformed> {
        let ChangeFields { pool, chunk_size, stripe_count, inline_limit, chooser, scheme } =
            required(change, "change")?;
        let (pool, chooser) = (pool.map(name).transpose()?, chooser.map(Chooser::take).transpose()?);
        let scheme = scheme.map(name).transpose()?;
        let change = PatternChange { pool, chunk_size, stripe_count, inline_limit, chooser, scheme };
        Ok(MetaOp::SetPattern { dir: InodeId(dir), change })
    }
}

impl From<&PendingFile> for PendingFileFields {
    fn from(file: &PendingFile) -> PendingFileFields {
        let PendingFile { ino, parent, ref name, mode, umask, created: made, ref content, .. } = *file;
        let PendingFile { begins_write, written, ref set, .. } = *file;
        let (name, content) = (name.clone(), content.clone());
        PendingFileFields {
            ino: ino.0,
            parent: parent.0,
            name,
            mode,
            umask,
            content,
            made: Some(made.into()),
            written: written.map(TimeFields::from),
            set: (*set != SetAttr::default()).then(|| set.into()),
            begins_write,
        }
    }
}

impl TryFrom<PendingFileFields> for PendingFile {
    type Error = Malformed;

    fn try_from(f: PendingFileFields) -> Result<PendingFile, Malformed> {
        let (ino, parent, name) = (InodeId(f.ino), InodeId(f.parent), name(f.name)?);
        let made = time(f.made, "time of an asynchronous create")?;
        Ok(PendingFile {
            ino,
            parent,
            name,
            mode: f.mode,
            umask: f.umask,
            created: made,
            content: f.content,
            begins_write: f.begins_write,
            written: f.written.map(TryInto::try_into).transpose()?,
            set: f.set.map(TryInto::try_into).transpose()?.unwrap_or_default(),
        })
    }
}

impl From<&AsyncChange> for AsyncChangeFields {
    fn from(change: &AsyncChange) -> AsyncChangeFields {
        let op = match OpFields::from(&change.op) {
            OpFields::Setattr(op) => Some(AsyncOpFields::Setattr(op)),
            OpFields::Unlink(op) => Some(AsyncOpFields::Unlink(op)),
            OpFields::Rename(op) => Some(AsyncOpFields::Rename(op)),
            _ => None,
        };
        let slot_sequence = packed(change.slot_sequence);
        AsyncChangeFields { credentials: Some(change.credentials.into()), slot_sequence, op }
    }
}

impl TryFrom<AsyncChangeFields> for AsyncChange {
    type Error = Malformed;

    fn try_from(f: AsyncChangeFields) -> Result<AsyncChange, Malformed> {
        let credentials = required(f.credentials, "credentials")?.into();
        let slot_sequence = required(unpacked(f.slot_sequence), "session slot of an asynchronous change")?;
        let op = match required(f.op, "known asynchronous change")? {
            AsyncOpFields::Setattr(op) => OpFields::Setattr(op),
            AsyncOpFields::Unlink(op) => OpFields::Unlink(op),
            AsyncOpFields::Rename(op) => OpFields::Rename(op),
        };
        Ok(AsyncChange { credentials, slot_sequence, op: op.try_into()? })
    }
}

impl From<&AsyncCreate> for AsyncCreateFields {
    fn from(create: &AsyncCreate) -> AsyncCreateFields {
        AsyncCreateFields { credentials: Some(create.credentials.into()), file: Some((&create.file).into()) }
    }
}

impl TryFrom<AsyncCreateFields> for AsyncCreate {
    type Error = Malformed;

    fn try_from(f: AsyncCreateFields) -> Result<AsyncCreate, Malformed> {
        let credentials = required(f.credentials, "credentials")?.into();
        Ok(AsyncCreate { credentials, file: required(f.file, "created file")?.try_into()? })
    }
}
