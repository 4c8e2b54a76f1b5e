//! Requests to a metadata service: conversion of the kinds to field numbers and back.
//!
//! Kinds with the same fields share one message; a kind that needs more gets its own message, which
//! keeps the numbers of the old fields.

use super::common::{List, MAX_LIST_ITEMS, Numbered, TimeFields, bounded, name, partitions, required, time};
use super::meta_args::*;
use crate::{
    AccessTime, AsyncChange, AsyncCreate, HeldLock, LeaseMode, LockFamily, LockKind, LockOwner, Malformed,
    MetaOp, RenameMode, XattrMode,
};
use types::InodeId;

/// The request's kind by its field number.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum OpFields {
    #[prost(message, tag = "10")]
    Lookup(NamedFields),
    #[prost(message, tag = "11")]
    Getattr(InodeFields),
    #[prost(message, tag = "12")]
    Setattr(SetattrFields),
    #[prost(message, tag = "13")]
    Create(CreateFields),
    #[prost(message, tag = "14")]
    Mkdir(MkdirFields),
    #[prost(message, tag = "15")]
    Symlink(SymlinkFields),
    #[prost(message, tag = "16")]
    Tmpfile(TmpfileFields),
    #[prost(message, tag = "17")]
    Link(LinkFields),
    #[prost(message, tag = "18")]
    Unlink(UnlinkFields),
    #[prost(message, tag = "19")]
    Rmdir(NamedFields),
    #[prost(message, tag = "20")]
    Rename(RenameFields),
    #[prost(message, tag = "21")]
    Readlink(InodeFields),
    #[prost(message, tag = "22")]
    Readdir(ReaddirFields),
    #[prost(message, tag = "23")]
    GetXattr(XattrFields),
    #[prost(message, tag = "24")]
    SetXattr(SetXattrFields),
    #[prost(message, tag = "25")]
    ListXattr(InodeFields),
    #[prost(message, tag = "26")]
    RemoveXattr(XattrFields),
    #[prost(message, tag = "27")]
    Open(OpenFields),
    #[prost(message, tag = "28")]
    WriteInline(WriteInlineFields),
    #[prost(message, tag = "29")]
    BeginWrite(InodeFields),
    #[prost(message, tag = "30")]
    DropInline(DropInlineFields),
    #[prost(message, tag = "31")]
    EndWrite(EndWriteFields),
    #[prost(message, tag = "32")]
    Truncate(TruncateFields),
    #[prost(message, tag = "33")]
    TruncateDone(InodeFields),
    #[prost(message, tag = "34")]
    Reclaim(ReclaimFields),
    #[prost(message, tag = "35")]
    Lock(LockFields),
    #[prost(message, tag = "36")]
    Unlock(UnlockFields),
    #[prost(message, tag = "37")]
    TestLock(TestLockFields),
    #[prost(message, tag = "38")]
    NextRecalls(NextRecallsFields),
    #[prost(message, tag = "39")]
    AckRecalls(List<RecallAckFields, MAX_LIST_ITEMS>),
    #[prost(message, tag = "40")]
    Release(ReleaseFields),
    #[prost(message, tag = "41")]
    EndSession(()),
    #[prost(message, tag = "42")]
    Describe(InodeFields),
    #[prost(message, tag = "43")]
    SetPattern(SetPatternFields),
    #[prost(message, tag = "44")]
    Sync(()),
    #[prost(message, tag = "45")]
    Register(RegisterFields),
    #[prost(message, tag = "50")]
    ReclaimLocks(List<LockFields, MAX_LIST_ITEMS>),
    #[prost(message, tag = "51")]
    RecallsInProgress(RecallsInProgressFields),
    #[prost(message, tag = "48")]
    Follow(FollowFields),
    #[prost(message, tag = "52")]
    SupplyGroups(SupplyGroupsFields),
    #[prost(message, tag = "53")]
    MayOpen(MayOpenFields),
    #[prost(message, tag = "54")]
    Reopen(ReopenFields),
    #[prost(message, tag = "55")]
    Migrate(MigrateFields),
    #[prost(message, tag = "56")]
    MigrationOf(InodeFields),
    #[prost(message, tag = "57")]
    PreallocateInodes(PreallocateInodesFields),
    #[prost(message, tag = "58")]
    CommitCreate(PendingFileFields),
    #[prost(message, tag = "59")]
    ReclaimOpens(InodesFields),
    #[prost(message, tag = "60")]
    ReclaimSizes(List<SizeFields, MAX_LIST_ITEMS>),
    #[prost(message, tag = "61")]
    Usage(()),
    #[prost(message, tag = "62")]
    NoteAccess(List<AccessFields, MAX_LIST_ITEMS>),
}

// One line or three for each kind, in the order of their numbers: the tables are long for this
// reason.

impl From<&MetaOp> for OpFields {
    fn from(op: &MetaOp) -> OpFields {
        match op {
            MetaOp::Lookup { parent, name } => OpFields::Lookup(NamedFields::of(parent, name)),
            MetaOp::Getattr { ino } => OpFields::Getattr(InodeFields::of(ino)),
            MetaOp::Setattr { ino, set } => OpFields::Setattr(SetattrFields::of(ino, set)),
            &MetaOp::Create { parent, ref name, mode, umask, rdev, exclusive, requested_lease } => {
                let (parent, name, requested_lease) =
                    (parent.0, name.clone(), requested_lease.map(Numbered::number));
                OpFields::Create(CreateFields { parent, name, mode, umask, rdev, exclusive, requested_lease })
            }
            &MetaOp::Mkdir { parent, ref name, mode, umask } => {
                OpFields::Mkdir(MkdirFields { parent: parent.0, name: name.clone(), mode, umask })
            }
            MetaOp::Symlink { parent, name, target } => {
                let (parent, name, target) = (parent.0, name.clone(), target.clone());
                OpFields::Symlink(SymlinkFields { parent, name, target })
            }
            &MetaOp::Tmpfile { parent, mode, umask } => {
                OpFields::Tmpfile(TmpfileFields { parent: parent.0, mode, umask })
            }
            MetaOp::Link { ino, parent, name } => {
                OpFields::Link(LinkFields { ino: ino.0, parent: parent.0, name: name.clone() })
            }
            MetaOp::Unlink { parent, name, ino } => OpFields::Unlink(UnlinkFields {
                parent: parent.0,
                name: name.clone(),
                ino: ino.map(|ino| ino.0),
            }),
            MetaOp::Rmdir { parent, name } => OpFields::Rmdir(NamedFields::of(parent, name)),
            MetaOp::Rename { parent, name, new_parent, new_name, mode } => {
                let (from, to) = (NamedFields::of(parent, name), NamedFields::of(new_parent, new_name));
                OpFields::Rename(RenameFields { from: Some(from), to: Some(to), mode: mode.number() })
            }
            MetaOp::Readlink { ino } => OpFields::Readlink(InodeFields::of(ino)),
            &MetaOp::Readdir { dir, cookie, limit, attributes, ref prefix } => {
                let prefix = prefix.clone();
                OpFields::Readdir(ReaddirFields { dir: dir.0, cookie, limit, attributes, prefix })
            }
            MetaOp::GetXattr { ino, name } => OpFields::GetXattr(XattrFields::of(ino, name)),
            &MetaOp::SetXattr { ino, ref name, ref value, mode, kill_sgid } => {
                let (name, value) = (name.clone(), value.clone());
                OpFields::SetXattr(SetXattrFields { ino: ino.0, name, value, mode: mode.number(), kill_sgid })
            }
            MetaOp::ListXattr { ino } => OpFields::ListXattr(InodeFields::of(ino)),
            MetaOp::RemoveXattr { ino, name } => OpFields::RemoveXattr(XattrFields::of(ino, name)),
            &MetaOp::Open { ino, requested_lease } => OpFields::Open(OpenFields {
                ino: ino.0,
                requested_lease: requested_lease.map(Numbered::number),
            }),
            &MetaOp::WriteInline { ino, offset, ref data, kill_suid_sgid, at_end } => {
                let (ino, data) = (ino.0, data.clone());
                OpFields::WriteInline(WriteInlineFields { ino, offset, data, kill_suid_sgid, at_end })
            }
            MetaOp::BeginWrite { ino } => OpFields::BeginWrite(InodeFields::of(ino)),
            &MetaOp::DropInline { ino, size, mtime } => {
                OpFields::DropInline(DropInlineFields { ino: ino.0, size, mtime: Some(mtime.into()) })
            }
            &MetaOp::EndWrite { ino, size, blocks, ref lens, mtime, done, kill_suid_sgid } => {
                let (ino, lens, mtime) = (ino.0, lens.clone(), mtime.map(TimeFields::from));
                OpFields::EndWrite(EndWriteFields { ino, size, blocks, mtime, done, kill_suid_sgid, lens })
            }
            &MetaOp::Truncate { ino, size, kill_suid_sgid } => {
                OpFields::Truncate(TruncateFields { ino: ino.0, size, kill_suid_sgid })
            }
            MetaOp::TruncateDone { ino } => OpFields::TruncateDone(InodeFields::of(ino)),
            MetaOp::Reclaim { ino, others } => OpFields::Reclaim(ReclaimFields {
                ino: ino.0,
                others: others.iter().map(|ino| ino.0).collect(),
            }),
            &MetaOp::Lock { ino, family, owner, pid, kind, range, wait } => OpFields::Lock(LockFields {
                ino: ino.0,
                family: family.number(),
                owner: owner.0,
                pid,
                kind: kind.number(),
                range: Some(range.into()),
                wait,
            }),
            &MetaOp::Unlock { ino, family, owner, range } => {
                let (family, range) = (family.number(), Some(range.into()));
                OpFields::Unlock(UnlockFields { ino: ino.0, family, owner: owner.0, range })
            }
            &MetaOp::TestLock { ino, owner, kind, range } => {
                let (kind, range) = (kind.number(), Some(range.into()));
                OpFields::TestLock(TestLockFields { ino: ino.0, owner: owner.0, kind, range })
            }
            &MetaOp::NextRecalls { after } => OpFields::NextRecalls(NextRecallsFields { after }),
            MetaOp::AckRecalls { acks } => {
                OpFields::AckRecalls(List::of(acks, RecallAckFields::from).unwrap_or_default())
            }
            MetaOp::Release { inodes, seen } => {
                let inodes = inodes.iter().map(|ino| ino.0).collect();
                OpFields::Release(ReleaseFields { inodes, seen: *seen })
            }
            MetaOp::EndSession => OpFields::EndSession(()),
            MetaOp::Describe { ino } => OpFields::Describe(InodeFields::of(ino)),
            MetaOp::SetPattern { dir, change } => OpFields::SetPattern(SetPatternFields::of(dir, change)),
            MetaOp::NoteAccess { accesses } => {
                OpFields::NoteAccess(List::of(accesses, AccessFields::from).unwrap_or_default())
            }
            MetaOp::Usage => OpFields::Usage(()),
            MetaOp::Sync => OpFields::Sync(()),
            MetaOp::Register { in_use, pending_creates, pending_changes, reporting_process } => {
                OpFields::Register(RegisterFields {
                    in_use: in_use.iter().map(|ino| ino.0).collect(),
                    pending_creates: List::of(pending_creates, AsyncCreateFields::from),
                    reporting_process: *reporting_process,
                    pending_changes: List::of(pending_changes, AsyncChangeFields::from),
                })
            }
            MetaOp::ReclaimLocks { locks } => {
                OpFields::ReclaimLocks(List::of(locks, LockFields::from).unwrap_or_default())
            }
            &MetaOp::Reopen { ino, above_epoch } => {
                OpFields::Reopen(ReopenFields { ino: ino.0, above_epoch })
            }
            MetaOp::Migrate { ino, pool, scheme } => {
                OpFields::Migrate(MigrateFields { ino: ino.0, pool: pool.clone(), scheme: scheme.clone() })
            }
            MetaOp::MigrationOf { ino } => OpFields::MigrationOf(InodeFields::of(ino)),
            &MetaOp::MayOpen { ino, wanted } => OpFields::MayOpen(MayOpenFields { ino: ino.0, wanted }),
            &MetaOp::SupplyGroups { ino, ref groups } => {
                OpFields::SupplyGroups(SupplyGroupsFields { ino: ino.0, groups: groups.clone() })
            }
            &MetaOp::RecallsInProgress { seen } => {
                OpFields::RecallsInProgress(RecallsInProgressFields { seen })
            }
            MetaOp::Follow { partitions, in_use, pending_creates, pending_changes, reporting_process } => {
                OpFields::Follow(FollowFields {
                    partitions: partitions.iter().map(|partition| u32::from(partition.0)).collect(),
                    in_use: in_use.iter().map(|ino| ino.0).collect(),
                    pending_creates: List::of(pending_creates, AsyncCreateFields::from),
                    reporting_process: *reporting_process,
                    pending_changes: List::of(pending_changes, AsyncChangeFields::from),
                })
            }
            &MetaOp::PreallocateInodes { dir, count, ref prefix } => {
                OpFields::PreallocateInodes(PreallocateInodesFields {
                    dir: dir.0,
                    count,
                    prefix: prefix.clone(),
                })
            }
            MetaOp::CommitCreate { file } => OpFields::CommitCreate((&**file).into()),
            MetaOp::ReclaimOpens { inodes } => {
                OpFields::ReclaimOpens(InodesFields { inodes: inodes.iter().map(|ino| ino.0).collect() })
            }
            MetaOp::ReclaimSizes { sizes } => {
                OpFields::ReclaimSizes(List::of(sizes, SizeFields::from).unwrap_or_default())
            }
        }
    }
}

impl TryFrom<OpFields> for MetaOp {
    type Error = Malformed;

    fn try_from(fields: OpFields) -> Result<MetaOp, Malformed> {
        Ok(match fields {
            OpFields::Lookup(f) => MetaOp::Lookup { parent: InodeId(f.parent), name: name(f.name)? },
            OpFields::Getattr(f) => MetaOp::Getattr { ino: InodeId(f.ino) },
            OpFields::Setattr(f) => f.try_into()?,
            OpFields::Create(f) => MetaOp::Create {
                parent: InodeId(f.parent),
                name: name(f.name)?,
                mode: f.mode,
                umask: f.umask,
                rdev: f.rdev,
                exclusive: f.exclusive,
                requested_lease: f.requested_lease.map(LeaseMode::take).transpose()?,
            },
            OpFields::Mkdir(f) => {
                let (parent, name) = (InodeId(f.parent), name(f.name)?);
                MetaOp::Mkdir { parent, name, mode: f.mode, umask: f.umask }
            }
            OpFields::Symlink(f) => {
                let (parent, target) = (InodeId(f.parent), name(f.target)?);
                MetaOp::Symlink { parent, name: name(f.name)?, target }
            }
            OpFields::Tmpfile(f) => {
                MetaOp::Tmpfile { parent: InodeId(f.parent), mode: f.mode, umask: f.umask }
            }
            OpFields::Link(f) => {
                MetaOp::Link { ino: InodeId(f.ino), parent: InodeId(f.parent), name: name(f.name)? }
            }
            OpFields::Unlink(f) => {
                MetaOp::Unlink { parent: InodeId(f.parent), name: name(f.name)?, ino: f.ino.map(InodeId) }
            }
            OpFields::Rmdir(f) => MetaOp::Rmdir { parent: InodeId(f.parent), name: name(f.name)? },
            OpFields::Rename(f) => {
                let (from, to) = (required(f.from, "name to rename")?, required(f.to, "name to rename to")?);
                MetaOp::Rename {
                    parent: InodeId(from.parent),
                    name: name(from.name)?,
                    new_parent: InodeId(to.parent),
                    new_name: name(to.name)?,
                    mode: RenameMode::take(f.mode)?,
                }
            }
            OpFields::Readlink(f) => MetaOp::Readlink { ino: InodeId(f.ino) },
            OpFields::Readdir(f) => {
                let (cookie, limit, attributes) = (f.cookie, f.limit, f.attributes);
                let prefix = name(f.prefix)?;
                MetaOp::Readdir { dir: InodeId(f.dir), cookie, limit, attributes, prefix }
            }
            OpFields::GetXattr(f) => MetaOp::GetXattr { ino: InodeId(f.ino), name: name(f.name)? },
            OpFields::SetXattr(f) => {
                let (name, mode) = (name(f.name)?, XattrMode::take(f.mode)?);
                MetaOp::SetXattr { ino: InodeId(f.ino), name, value: f.value, mode, kill_sgid: f.kill_sgid }
            }
            OpFields::ListXattr(f) => MetaOp::ListXattr { ino: InodeId(f.ino) },
            OpFields::RemoveXattr(f) => MetaOp::RemoveXattr { ino: InodeId(f.ino), name: name(f.name)? },
            OpFields::Open(f) => MetaOp::Open {
                ino: InodeId(f.ino),
                requested_lease: f.requested_lease.map(LeaseMode::take).transpose()?,
            },
            OpFields::WriteInline(f) => {
                let (offset, data, kill_suid_sgid, at_end) = (f.offset, f.data, f.kill_suid_sgid, f.at_end);
                MetaOp::WriteInline { ino: InodeId(f.ino), offset, data, kill_suid_sgid, at_end }
            }
            OpFields::BeginWrite(f) => MetaOp::BeginWrite { ino: InodeId(f.ino) },
            OpFields::DropInline(f) => {
                MetaOp::DropInline { ino: InodeId(f.ino), size: f.size, mtime: time(f.mtime, "mtime")? }
            }
            OpFields::EndWrite(f) => MetaOp::EndWrite {
                ino: InodeId(f.ino),
                size: f.size,
                blocks: f.blocks,
                lens: f.lens,
                mtime: f.mtime.map(TryInto::try_into).transpose()?,
                done: f.done,
                kill_suid_sgid: f.kill_suid_sgid,
            },
            OpFields::Truncate(f) => {
                MetaOp::Truncate { ino: InodeId(f.ino), size: f.size, kill_suid_sgid: f.kill_suid_sgid }
            }
            OpFields::TruncateDone(f) => MetaOp::TruncateDone { ino: InodeId(f.ino) },
            OpFields::Reclaim(f) => {
                MetaOp::Reclaim { ino: InodeId(f.ino), others: f.others.into_iter().map(InodeId).collect() }
            }
            OpFields::Lock(f) => MetaOp::Lock {
                ino: InodeId(f.ino),
                family: LockFamily::take(f.family)?,
                owner: LockOwner(f.owner),
                pid: f.pid,
                kind: LockKind::take(f.kind)?,
                range: required(f.range, "range of a lock")?.try_into()?,
                wait: f.wait,
            },
            OpFields::Unlock(f) => MetaOp::Unlock {
                ino: InodeId(f.ino),
                family: LockFamily::take(f.family)?,
                owner: LockOwner(f.owner),
                range: required(f.range, "range of a lock")?.try_into()?,
            },
            OpFields::TestLock(f) => MetaOp::TestLock {
                ino: InodeId(f.ino),
                owner: LockOwner(f.owner),
                kind: LockKind::take(f.kind)?,
                range: required(f.range, "range of a lock")?.try_into()?,
            },
            OpFields::NextRecalls(f) => MetaOp::NextRecalls { after: f.after },
            OpFields::AckRecalls(list) => {
                MetaOp::AckRecalls { acks: List::take(Some(list), |f| Ok(f.into()))? }
            }
            OpFields::Release(f) => {
                let inodes = bounded(f.inodes, "inodes")?.into_iter().map(InodeId).collect();
                MetaOp::Release { inodes, seen: f.seen }
            }
            OpFields::EndSession(()) => MetaOp::EndSession,
            OpFields::Describe(f) => MetaOp::Describe { ino: InodeId(f.ino) },
            OpFields::SetPattern(f) => f.try_into()?,
            OpFields::NoteAccess(list) => {
                MetaOp::NoteAccess { accesses: List::take(Some(list), AccessTime::try_from)? }
            }
            OpFields::Usage(()) => MetaOp::Usage,
            OpFields::Sync(()) => MetaOp::Sync,
            OpFields::Register(f) => MetaOp::Register {
                in_use: bounded(f.in_use, "inodes")?.into_iter().map(InodeId).collect(),
                pending_creates: List::take(f.pending_creates, AsyncCreate::try_from)?,
                pending_changes: List::take(f.pending_changes, AsyncChange::try_from)?,
                reporting_process: f.reporting_process,
            },
            OpFields::ReclaimLocks(list) => {
                MetaOp::ReclaimLocks { locks: List::take(Some(list), HeldLock::try_from)? }
            }
            OpFields::Reopen(f) => MetaOp::Reopen { ino: InodeId(f.ino), above_epoch: f.above_epoch },
            OpFields::Migrate(f) => MetaOp::Migrate {
                ino: InodeId(f.ino),
                pool: f.pool.map(name).transpose()?,
                scheme: f.scheme.map(name).transpose()?,
            },
            OpFields::MigrationOf(f) => MetaOp::MigrationOf { ino: InodeId(f.ino) },
            OpFields::MayOpen(f) => MetaOp::MayOpen { ino: InodeId(f.ino), wanted: f.wanted },
            OpFields::SupplyGroups(f) => {
                MetaOp::SupplyGroups { ino: InodeId(f.ino), groups: bounded(f.groups, "groups")? }
            }
            OpFields::RecallsInProgress(f) => MetaOp::RecallsInProgress { seen: f.seen },
            OpFields::Follow(f) => MetaOp::Follow {
                partitions: partitions(f.partitions)?,
                in_use: bounded(f.in_use, "inodes")?.into_iter().map(InodeId).collect(),
                pending_creates: List::take(f.pending_creates, AsyncCreate::try_from)?,
                pending_changes: List::take(f.pending_changes, AsyncChange::try_from)?,
                reporting_process: f.reporting_process,
            },
            OpFields::PreallocateInodes(f) => {
                MetaOp::PreallocateInodes { dir: InodeId(f.dir), count: f.count, prefix: name(f.prefix)? }
            }
            OpFields::CommitCreate(f) => MetaOp::CommitCreate { file: Box::new(f.try_into()?) },
            OpFields::ReclaimOpens(f) => {
                let inodes = bounded(f.inodes, "inodes")?.into_iter().map(InodeId).collect();
                MetaOp::ReclaimOpens { inodes }
            }
            OpFields::ReclaimSizes(list) => {
                MetaOp::ReclaimSizes { sizes: List::take(Some(list), |f| Ok(f.into()))? }
            }
        })
    }
}
