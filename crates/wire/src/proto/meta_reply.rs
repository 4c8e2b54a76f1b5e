//! Answers of a metadata service.

use super::common::{AttrFields, LayoutFields, List, MAX_ENTRIES, MAX_LIST_ITEMS, NameFields, PatternFields};
use super::common::{Numbered, name, partitions, pool, required};
use super::error::ErrorFields;
use super::meta_args::LockRangeFields;
use crate::{
    BegunWrite, DirEntry, EntryDescription, FileInfo, LeaseMode, LockKind, Malformed, MetaReply,
    MetadataUsage, Migration, Recall, StoreSpace,
};
use bytes::Bytes;
use types::{InodeId, Scheme};

/// The answer's kind by its field number.
#[derive(Clone, PartialEq, prost::Oneof)]
#[allow(clippy::large_enum_variant)] // It lives for one call and is moved once.
pub(crate) enum ReplyFields {
    #[prost(message, tag = "10")]
    Unit(()),
    #[prost(message, tag = "11")]
    Entry(AttrFields),
    #[prost(message, tag = "12")]
    Created(CreatedFields),
    #[prost(message, tag = "13")]
    Attr(AttrFields),
    #[prost(message, tag = "14")]
    Renamed(RenamedFields),
    #[prost(bytes = "bytes", tag = "15")]
    Bytes(Bytes),
    #[prost(message, tag = "16")]
    Names(List<NameFields, MAX_LIST_ITEMS>),
    #[prost(message, tag = "17")]
    Directory(DirectoryFields),
    #[prost(message, tag = "18")]
    File(FileFields),
    #[prost(message, tag = "19")]
    Lock(LockFields),
    #[prost(message, tag = "20")]
    Recalls(List<RecallFields, MAX_LIST_ITEMS>),
    #[prost(message, tag = "21")]
    Description(DescriptionFields),
    #[prost(message, tag = "22")]
    Elsewhere(RedirectFields),
    #[prost(message, tag = "25")]
    Adopted(TakenOverFields),
    #[prost(message, tag = "26")]
    Migration(MigrationFields),
    #[prost(message, tag = "27")]
    Reserved(ReservedFields),
    #[prost(message, tag = "28")]
    Usage(UsageFields),
    #[prost(uint64, tag = "29")]
    Process(u64),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct UsageFields {
    #[prost(uint64, tag = "1")]
    inodes: u64,
    #[prost(message, optional, tag = "2")]
    store: Option<StoreFields>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct StoreFields {
    #[prost(uint64, tag = "1")]
    used: u64,
    #[prost(uint64, tag = "2")]
    free: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReservedFields {
    #[prost(uint64, tag = "1")]
    first: u64,
    #[prost(uint32, tag = "2")]
    count: u32,
    #[prost(message, optional, tag = "3")]
    attr: Option<AttrFields>,
    #[prost(uint32, tag = "4")]
    inline_limit: u32,
    #[prost(uint64, optional, tag = "5")]
    range: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreatedFields {
    #[prost(message, optional, tag = "1")]
    attr: Option<AttrFields>,
    #[prost(uint32, tag = "2")]
    inline_limit: u32,
    #[prost(bool, tag = "3")]
    bare: bool,
    #[prost(message, optional, tag = "4")]
    layout: Option<LayoutFields>,
    #[prost(fixed64, tag = "5")]
    epoch: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RenamedFields {
    #[prost(message, optional, tag = "1")]
    moved: Option<AttrFields>,
    #[prost(message, optional, tag = "2")]
    other: Option<AttrFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DirectoryFields {
    #[prost(message, optional, tag = "1")]
    entries: Option<List<EntryFields, MAX_ENTRIES>>,
    #[prost(bool, tag = "2")]
    end: bool,
    #[prost(uint64, tag = "3")]
    parent: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EntryFields {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(uint64, tag = "2")]
    ino: u64,
    #[prost(uint32, tag = "3")]
    mode: u32,
    #[prost(fixed64, tag = "4")]
    cookie: u64,
    #[prost(message, optional, tag = "5")]
    attr: Option<AttrFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FileFields {
    #[prost(message, optional, tag = "1")]
    attr: Option<AttrFields>,
    #[prost(message, optional, tag = "2")]
    layout: Option<LayoutFields>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    inline: Option<Bytes>,
    #[prost(uint32, tag = "4")]
    inline_limit: u32,
    #[prost(fixed64, tag = "5")]
    epoch: u64,
    #[prost(bool, tag = "6")]
    uncut: bool,
    #[prost(uint64, repeated, tag = "7")]
    known: Vec<u64>,
    #[prost(bool, tag = "8")]
    is_reported: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LockFields {
    #[prost(message, optional, tag = "1")]
    held: Option<HeldLockFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeldLockFields {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(message, optional, tag = "2")]
    range: Option<LockRangeFields>,
    #[prost(uint32, tag = "3")]
    pid: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RecallFields {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(uint64, tag = "2")]
    ino: u64,
    #[prost(uint32, optional, tag = "3")]
    keep: Option<u32>,
    // `keep` is `Permissions`: peers that don't know that mode retain nothing.
    #[prost(bool, tag = "4")]
    keep_permissions: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DescriptionFields {
    #[prost(message, optional, tag = "1")]
    attr: Option<AttrFields>,
    #[prost(message, optional, tag = "2")]
    pattern: Option<PatternFields>,
    #[prost(string, tag = "3")]
    pool: String,
    #[prost(message, optional, tag = "4")]
    layout: Option<LayoutFields>,
    #[prost(uint64, optional, tag = "5")]
    inline: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MigrationFields {
    #[prost(message, optional, tag = "1")]
    moving: Option<MovingFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MovingFields {
    #[prost(uint32, tag = "1")]
    pool: u32,
    #[prost(uint32, tag = "2")]
    scheme: u32,
    #[prost(uint64, tag = "3")]
    bytes: u64,
    #[prost(uint64, tag = "4")]
    bytes_moved: u64,
    #[prost(message, optional, tag = "5")]
    error: Option<ErrorFields>,
    #[prost(bool, tag = "6")]
    given_up: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RedirectFields {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(uint32, tag = "2")]
    mode: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TakenOverFields {
    #[prost(uint32, repeated, tag = "1")]
    partitions: Vec<u32>,
}

impl From<&MetaReply> for ReplyFields {
    fn from(reply: &MetaReply) -> ReplyFields {
        match reply {
            MetaReply::Unit => ReplyFields::Unit(()),
            MetaReply::Entry(attr) => ReplyFields::Entry(attr.into()),
            MetaReply::Created { attr, inline_limit, has_no_xattrs: bare, begun } => {
                let attr = Some(attr.into());
                let layout = begun.as_ref().map(|begun| (&begun.layout).into());
                let epoch = begun.as_ref().map_or(0, |begun| begun.epoch);
                let (inline_limit, bare) = (*inline_limit, *bare);
                ReplyFields::Created(CreatedFields { attr, inline_limit, bare, layout, epoch })
            }
            MetaReply::Attr(attr) => ReplyFields::Attr(attr.into()),
            MetaReply::Renamed { moved, other } => {
                let (moved, other) = (Some(moved.into()), other.as_ref().map(AttrFields::from));
                ReplyFields::Renamed(RenamedFields { moved, other })
            }
            MetaReply::Bytes(bytes) => ReplyFields::Bytes(bytes.clone()),
            MetaReply::Names(names) => {
                let fields = |name: &Bytes| NameFields { name: name.clone() };
                ReplyFields::Names(List::of(names, fields).unwrap_or_default())
            }
            MetaReply::Directory { entries, end, parent } => {
                let entries = List::of(entries, EntryFields::from);
                ReplyFields::Directory(DirectoryFields { entries, end: *end, parent: parent.0 })
            }
            MetaReply::File(file) => ReplyFields::File(file.into()),
            MetaReply::Lock(held) => {
                let fields = |(kind, range, pid): (LockKind, crate::LockRange, u32)| HeldLockFields {
                    kind: kind.number(),
                    range: Some(range.into()),
                    pid,
                };
                ReplyFields::Lock(LockFields { held: held.map(fields) })
            }
            MetaReply::Recalls(recalls) => {
                ReplyFields::Recalls(List::of(recalls, RecallFields::from).unwrap_or_default())
            }
            MetaReply::Description(description) => ReplyFields::Description((&**description).into()),
            MetaReply::Migration(moving) => {
                ReplyFields::Migration(MigrationFields { moving: moving.as_deref().map(Into::into) })
            }
            MetaReply::Redirect { ino, mode } => {
                ReplyFields::Elsewhere(RedirectFields { ino: ino.0, mode: *mode })
            }
            MetaReply::Preallocated { first, count, attr, inline_limit, prefix_lease: range } => {
                let (first, count, attr, inline_limit) = (first.0, *count, Some(attr.into()), *inline_limit);
                let range = range.map(|ino| ino.0);
                ReplyFields::Reserved(ReservedFields { first, count, attr, inline_limit, range })
            }
            &MetaReply::Process(number) => ReplyFields::Process(number),
            &MetaReply::Usage(MetadataUsage { inodes, store }) => {
                let store = store.map(|StoreSpace { used, free }| StoreFields { used, free });
                ReplyFields::Usage(UsageFields { inodes, store })
            }
            MetaReply::PartitionsTakenOver { partitions } => {
                let partitions = partitions.iter().map(|partition| u32::from(partition.0)).collect();
                ReplyFields::Adopted(TakenOverFields { partitions })
            }
        }
    }
}

impl TryFrom<ReplyFields> for MetaReply {
    type Error = Malformed;

    fn try_from(fields: ReplyFields) -> Result<MetaReply, Malformed> {
        Ok(match fields {
            ReplyFields::Unit(()) => MetaReply::Unit,
            ReplyFields::Entry(attr) => MetaReply::Entry(attr.try_into()?),
            ReplyFields::Created(f) => {
                let attr = required(f.attr, "attributes")?.try_into()?;
                let begun = match f.layout {
                    Some(layout) => Some(Box::new(BegunWrite { layout: layout.try_into()?, epoch: f.epoch })),
                    None => None,
                };
                MetaReply::Created { attr, inline_limit: f.inline_limit, has_no_xattrs: f.bare, begun }
            }
            ReplyFields::Attr(attr) => MetaReply::Attr(attr.try_into()?),
            ReplyFields::Renamed(f) => MetaReply::Renamed {
                moved: required(f.moved, "attributes of the renamed inode")?.try_into()?,
                other: f.other.map(TryInto::try_into).transpose()?,
            },
            ReplyFields::Bytes(bytes) => MetaReply::Bytes(bytes),
            ReplyFields::Names(list) => MetaReply::Names(List::take(Some(list), |f| name(f.name))?),
            ReplyFields::Directory(f) => MetaReply::Directory {
                entries: List::take(f.entries, DirEntry::try_from)?,
                end: f.end,
                parent: InodeId(f.parent),
            },
            ReplyFields::File(f) => MetaReply::File(f.try_into()?),
            ReplyFields::Lock(LockFields { held: None }) => MetaReply::Lock(None),
            ReplyFields::Lock(LockFields { held: Some(f) }) => {
                let range = required(f.range, "range of a lock")?.try_into()?;
                MetaReply::Lock(Some((LockKind::take(f.kind)?, range, f.pid)))
            }
            ReplyFields::Recalls(list) => MetaReply::Recalls(List::take(Some(list), Recall::try_from)?),
            ReplyFields::Description(f) => MetaReply::Description(Box::new(f.try_into()?)),
            ReplyFields::Migration(f) => {
                let moving = f.moving.map(Migration::try_from).transpose()?;
                MetaReply::Migration(moving.map(Box::new))
            }
            ReplyFields::Elsewhere(f) => MetaReply::Redirect { ino: InodeId(f.ino), mode: f.mode },
            ReplyFields::Reserved(f) => MetaReply::Preallocated {
                first: InodeId(f.first),
                count: f.count,
                attr: required(f.attr, "attributes")?.try_into()?,
                inline_limit: f.inline_limit,
                prefix_lease: f.range.map(InodeId),
            },
            ReplyFields::Process(number) => MetaReply::Process(number),
            ReplyFields::Usage(UsageFields { inodes, store }) => {
                let store = store.map(|StoreFields { used, free }| StoreSpace { used, free });
                MetaReply::Usage(MetadataUsage { inodes, store })
            }
            ReplyFields::Adopted(f) => {
                MetaReply::PartitionsTakenOver { partitions: partitions(f.partitions)? }
            }
        })
    }
}

impl From<&Migration> for MovingFields {
    fn from(migration: &Migration) -> MovingFields {
        MovingFields {
            pool: migration.pool.0.into(),
            scheme: migration.scheme.number(),
            bytes: migration.bytes,
            bytes_moved: migration.bytes_moved,
            error: migration.error.as_ref().map(ErrorFields::from),
            given_up: migration.given_up,
        }
    }
}

impl TryFrom<MovingFields> for Migration {
    type Error = Malformed;

    fn try_from(f: MovingFields) -> Result<Migration, Malformed> {
        Ok(Migration {
            pool: pool(f.pool)?,
            scheme: Scheme::take(f.scheme)?,
            bytes: f.bytes,
            bytes_moved: f.bytes_moved,
            error: f.error.map(TryInto::try_into).transpose()?,
            given_up: f.given_up,
        })
    }
}

impl From<&DirEntry> for EntryFields {
    fn from(entry: &DirEntry) -> EntryFields {
        EntryFields {
            name: entry.name.clone(),
            ino: entry.ino.0,
            mode: entry.mode,
            cookie: entry.cookie,
            attr: entry.attr.as_ref().map(AttrFields::from),
        }
    }
}

impl TryFrom<EntryFields> for DirEntry {
    type Error = Malformed;

    fn try_from(f: EntryFields) -> Result<DirEntry, Malformed> {
        let attr = f.attr.map(TryInto::try_into).transpose()?;
        Ok(DirEntry { name: name(f.name)?, ino: InodeId(f.ino), mode: f.mode, cookie: f.cookie, attr })
    }
}

impl From<&FileInfo> for FileFields {
    fn from(file: &FileInfo) -> FileFields {
        FileFields {
            attr: Some((&file.attr).into()),
            layout: file.layout.as_ref().map(LayoutFields::from),
            inline: file.inline.clone(),
            inline_limit: file.inline_limit,
            epoch: file.epoch,
            uncut: file.truncate_pending,
            known: file.length_bounds.clone(),
            is_reported: file.is_reported,
        }
    }
}

impl TryFrom<FileFields> for FileInfo {
    type Error = Malformed;

    fn try_from(f: FileFields) -> Result<FileInfo, Malformed> {
        let layout = f.layout.map(TryInto::try_into).transpose()?;
        let attr = required(f.attr, "attributes")?.try_into()?;
        let FileFields { inline, inline_limit, epoch, uncut, known, is_reported, .. } = f;
        Ok(FileInfo {
            attr,
            layout,
            length_bounds: known,
            inline,
            inline_limit,
            epoch,
            truncate_pending: uncut,
            is_reported,
        })
    }
}

impl From<&Recall> for RecallFields {
    fn from(recall: &Recall) -> RecallFields {
        let &Recall { number, ino, retain: keep } = recall;
        let keep_permissions = keep == Some(LeaseMode::Permissions);
        let keep = keep.filter(|_| !keep_permissions).map(Numbered::number);
        RecallFields { number, ino: ino.0, keep, keep_permissions }
    }
}

impl TryFrom<RecallFields> for Recall {
    type Error = Malformed;

    fn try_from(f: RecallFields) -> Result<Recall, Malformed> {
        let keep = match f.keep {
            Some(mode) => Some(LeaseMode::take(mode)?),
            None => f.keep_permissions.then_some(LeaseMode::Permissions),
        };
        Ok(Recall { number: f.number, ino: InodeId(f.ino), retain: keep })
    }
}

impl From<&EntryDescription> for DescriptionFields {
    fn from(description: &EntryDescription) -> DescriptionFields {
        DescriptionFields {
            attr: Some((&description.attr).into()),
            pattern: Some((&description.pattern).into()),
            pool: description.pool.clone(),
            layout: description.layout.as_ref().map(LayoutFields::from),
            inline: description.inline,
        }
    }
}

impl TryFrom<DescriptionFields> for EntryDescription {
    type Error = Malformed;

    fn try_from(f: DescriptionFields) -> Result<EntryDescription, Malformed> {
        Ok(EntryDescription {
            attr: required(f.attr, "attributes")?.try_into()?,
            pattern: required(f.pattern, "pattern")?.try_into()?,
            pool: name(f.pool)?,
            layout: f.layout.map(TryInto::try_into).transpose()?,
            inline: f.inline,
        })
    }
}
