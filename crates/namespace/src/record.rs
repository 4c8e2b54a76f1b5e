//! The stored values: protobuf, so that fields can be added.
//!
//! No record ever encodes to nothing, because engines refuse empty values: where every field could
//! be zero, one of them is `optional`, which is encoded even then.

use bytes::Bytes;
use prost::Message;
use types::{
    Attr, Chooser, ChunkSlot, Errno, Error, FileKind, GroupId, InodeFlags, InodeId, PoolId, ProjectId,
    Scheme, SessionId, StripePattern, Timestamp, mode,
};

/// Reported size of a directory, in bytes. Constant, so that it never depends on how entries are
/// stored.
pub const DIRECTORY_SIZE: u64 = 4096;
/// Reported allocation of a directory, in units of 512 bytes.
pub const DIRECTORY_BLOCKS: u64 = 8;

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct Time {
    #[prost(sint64, tag = "1")]
    pub secs: i64,
    #[prost(uint32, tag = "2")]
    pub nanos: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        Time { secs: time.secs, nanos: time.nanos }
    }
}

fn timestamp(time: &Option<Time>) -> Timestamp {
    time.map_or(Timestamp::default(), |time| Timestamp::new(time.secs, time.nanos))
}

/// An inode.
#[derive(Clone, PartialEq, Message)]
pub struct Inode {
    /// Type and permissions, as `st_mode`.
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    /// Number of names; for a directory, 2 plus its subdirectories. 0: an orphan.
    #[prost(uint32, tag = "2")]
    pub nlink: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group of the owner.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// Device number of a device node.
    #[prost(uint32, tag = "5")]
    pub rdev: u32,
    /// Size of a regular file in bytes.
    #[prost(uint64, tag = "6")]
    pub size: u64,
    /// Allocation of a regular file, in units of 512 bytes.
    #[prost(uint64, tag = "7")]
    pub blocks: u64,
    /// Last access.
    #[prost(message, optional, tag = "8")]
    pub atime: Option<Time>,
    /// Last change of content.
    #[prost(message, optional, tag = "9")]
    pub mtime: Option<Time>,
    /// Last change of the inode.
    #[prost(message, optional, tag = "10")]
    pub ctime: Option<Time>,
    /// Creation.
    #[prost(message, optional, tag = "11")]
    pub btime: Option<Time>,
    /// Parent of a directory: the target of `..`. 0 for all other inodes.
    #[prost(uint64, tag = "12")]
    pub parent: u64,
    /// Target of a symlink.
    #[prost(bytes = "bytes", tag = "13")]
    pub target: Bytes,
    /// Pattern that a directory gives to new files, or a regular file's own; absent for all other
    /// inodes.
    #[prost(message, optional, tag = "14")]
    pub pattern: Option<Pattern>,
    /// Location of a regular file's chunk files; absent while it has none.
    #[prost(message, optional, tag = "15")]
    pub layout: Option<Layout>,
    /// A regular file whose content is its inline record (absent: every byte is zero).
    #[prost(bool, tag = "16")]
    pub inline: bool,
    /// It has an access ACL that isn't equivalent to its mode.
    #[prost(bool, tag = "17")]
    pub access_acl: bool,
    /// A directory with a default ACL.
    #[prost(bool, tag = "18")]
    pub default_acl: bool,
    /// Bytes of the names of its extended attributes, as `listxattr` counts them. 0: it has none.
    #[prost(uint32, tag = "19")]
    pub xattr_names: u32,
    /// Bytes of the values of its extended attributes.
    #[prost(uint32, tag = "20")]
    pub xattr_values: u32,
    /// An orphan that was created without a name, and may get one.
    #[prost(bool, tag = "21")]
    pub tmpfile: bool,
    /// Every chunk file is known to have its part of the first `known_end` bytes of the file. 0:
    /// see [`Inode::known_lens`].
    #[prost(uint64, tag = "22")]
    pub known_end: u64,
    /// Lower bounds of the lengths of its chunk files, in stripe order, if they don't correspond to
    /// one file size ([`layout::length_bounds`]). Records of earlier versions have neither: then
    /// nothing is known.
    #[prost(uint64, repeated, tag = "23")]
    pub known_lens: Vec<u64>,
    /// Its flags ([`InodeFlags`]).
    #[prost(uint32, tag = "24")]
    pub flags: u32,
    /// The project that it belongs to; 0: none.
    #[prost(uint32, tag = "25")]
    pub project: u32,
}

impl Inode {
    /// Lower bounds of the lengths of its chunk files, in stripe order; empty if unknown.
    pub fn length_bounds(&self, layout: &types::Layout) -> Vec<u64> {
        match self.known_end {
            _ if self.inline => Vec::new(),
            0 => layout::length_bounds::truncated(layout, &self.known_lens, self.size),
            end => layout::length_bounds::dense_bounds(layout, end.min(self.size)),
        }
    }

    /// Sets the lower bounds of the lengths of its chunk files.
    pub(crate) fn set_length_bounds(&mut self, layout: &types::Layout, known: Vec<u64>) {
        let end = layout::length_bounds::dense_size(layout, &known);
        (self.known_end, self.known_lens) = end.map_or((0, known), |end| (end, Vec::new()));
    }

    /// Its file type; `None` for a mode that no inode is created with.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Its flags.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags(self.flags)
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & mode::S_IFMT == mode::S_IFDIR
    }

    /// True for a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & mode::S_IFMT == mode::S_IFREG
    }

    /// The parent of this directory.
    pub fn parent_id(&self) -> InodeId {
        InodeId(self.parent)
    }

    /// Its attributes, as `stat` returns them.
    pub fn attr(&self, ino: InodeId) -> Attr {
        let (size, blocks) = match self.mode & mode::S_IFMT {
            mode::S_IFDIR => (DIRECTORY_SIZE, DIRECTORY_BLOCKS),
            mode::S_IFLNK => (self.target.len() as u64, 0),
            _ => (self.size, self.blocks),
        };
        Attr {
            ino,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks,
            atime: timestamp(&self.atime),
            mtime: timestamp(&self.mtime),
            ctime: timestamp(&self.ctime),
            btime: timestamp(&self.btime),
            flags: self.flags(),
            project: ProjectId(self.project),
            has_no_xattrs: self.xattr_names == 0,
        }
    }

    /// Sets ctime after a change of the inode.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        self.ctime = Some(now.into());
    }

    /// Sets mtime and ctime after a change of the content: bytes of a file, entries of a directory.
    pub(crate) fn modify(&mut self, now: Timestamp) {
        self.mtime = Some(now.into());
        self.ctime = Some(now.into());
    }

    /// Drops setuid, and setgid if the group may execute.
    pub(crate) fn kill_suid_sgid(&mut self) {
        self.mode &= !mode::S_ISUID;
        if self.mode & mode::S_IXGRP != 0 {
            self.mode &= !mode::S_ISGID;
        }
    }
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Entry {
    /// The inode that it names.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Type bits of its mode.
    #[prost(uint32, tag = "2")]
    pub kind: u32,
}

impl Entry {
    /// An entry that names an inode of this mode.
    pub fn new(ino: InodeId, mode: u32) -> Entry {
        Entry { ino: ino.0, kind: mode & mode::S_IFMT }
    }

    /// The inode that it names.
    pub fn id(&self) -> InodeId {
        InodeId(self.ino)
    }
}

/// The value of an extended attribute. `optional`, since it may be empty.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct Xattr {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub value: Option<Bytes>,
}

/// Inline content: a prefix of the file, the rest up to its size is zeros. Never stored when empty.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct Inline {
    #[prost(bytes = "bytes", tag = "1")]
    pub content: Bytes,
}

/// An inode without a name.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Orphan {
    /// The session that removed the last name or created the inode without one.
    #[prost(uint64, optional, tag = "1")]
    pub session: Option<u64>,
}

/// A session's write record of a file whose chunk files may differ from the inode. Never stored
/// with neither field set.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Writing {
    /// The session changes the chunk files.
    #[prost(bool, tag = "1")]
    pub writing: bool,
    /// The chunk files must be cut to this size.
    #[prost(uint64, optional, tag = "2")]
    pub truncate_to: Option<u64>,
}

/// The next inode number of a partition, and the number of its inodes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct PartitionCounters {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Inodes of the partition, without the root; updated in the commits that create and delete
    /// them. Absent in records of earlier versions.
    #[prost(uint64, optional, tag = "2")]
    pub inodes: Option<u64>,
}

/// A stripe pattern.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct Pattern {
    #[prost(uint32, tag = "1")]
    pub pool: u32,
    #[prost(uint32, tag = "2")]
    pub scheme: u32,
    #[prost(uint32, tag = "3")]
    pub chunk_size: u32,
    #[prost(uint32, tag = "4")]
    pub stripe_count: u32,
    #[prost(uint32, tag = "5")]
    pub inline_limit: u32,
    #[prost(uint32, tag = "6")]
    pub chooser: u32,
}

/// Location of chunk files.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct Layout {
    #[prost(uint32, tag = "1")]
    pub chunk_size: u32,
    #[prost(uint32, tag = "2")]
    pub pool: u32,
    #[prost(uint32, tag = "3")]
    pub scheme: u32,
    #[prost(uint32, repeated, tag = "4")]
    pub groups: Vec<u32>,
    /// As [`types::Layout::slots`].
    #[prost(bytes = "vec", tag = "5")]
    pub slots: Vec<u8>,
}

/// Goal of a file that is migrating to other groups.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[allow(missing_docs)]
pub struct Migrating {
    #[prost(uint32, tag = "1")]
    pub pool: u32,
    #[prost(uint32, optional, tag = "2")]
    pub scheme: Option<u32>,
}

impl From<crate::Goal> for Migrating {
    fn from(goal: crate::Goal) -> Migrating {
        Migrating { pool: goal.pool.0 as u32, scheme: Some(goal.scheme.record_number()) }
    }
}

impl TryFrom<Migrating> for crate::Goal {
    type Error = Error;

    fn try_from(stored: Migrating) -> Result<crate::Goal, Error> {
        Ok(crate::Goal { pool: pool_of(stored.pool)?, scheme: scheme_of(stored.scheme.unwrap_or(0))? })
    }
}

fn scheme_of(number: u32) -> Result<Scheme, Error> {
    Scheme::from_record_number(number).ok_or_else(|| unknown("redundancy scheme", number))
}

fn chooser_number(chooser: Chooser) -> u32 {
    match chooser {
        Chooser::RoundRobin => 0,
        Chooser::Random => 1,
        Chooser::CapacityWeighted => 2,
    }
}

fn chooser_of(number: u32) -> Result<Chooser, Error> {
    match number {
        0 => Ok(Chooser::RoundRobin),
        1 => Ok(Chooser::Random),
        2 => Ok(Chooser::CapacityWeighted),
        _ => Err(unknown("chooser", number)),
    }
}

fn pool_of(number: u32) -> Result<PoolId, Error> {
    u16::try_from(number).map(PoolId).map_err(|_| unknown("pool", number))
}

fn unknown(what: &str, number: u32) -> Error {
    Error::new(Errno::EIO, format!("stored {what} {number} is unknown to this version"))
        .hint("the metadata was written by a newer version: upgrade this service")
}

/// Error for values that this code never writes. File offsets are divided by chunk sizes and group
/// counts, so such values must be refused.
fn invalid_record(what: &str) -> Error {
    Error::new(Errno::EIO, format!("a stored record is damaged: {what}"))
        .hint("weft fsck shows further damage; weft meta restore restores a backup")
}

fn chunk_size_of(bytes: u32) -> Result<u32, Error> {
    layout::pattern::chunk_size(bytes.into())
        .map_err(|_| invalid_record(&format!("a chunk size of {bytes} bytes")))
}

impl From<&StripePattern> for Pattern {
    fn from(pattern: &StripePattern) -> Pattern {
        Pattern {
            pool: pattern.pool.0 as u32,
            scheme: pattern.scheme.record_number(),
            chunk_size: pattern.chunk_size,
            stripe_count: pattern.stripe_count as u32,
            inline_limit: pattern.inline_limit,
            chooser: chooser_number(pattern.chooser),
        }
    }
}

impl TryFrom<&Pattern> for StripePattern {
    type Error = Error;

    fn try_from(stored: &Pattern) -> Result<StripePattern, Error> {
        Ok(StripePattern {
            pool: pool_of(stored.pool)?,
            scheme: scheme_of(stored.scheme)?,
            chunk_size: chunk_size_of(stored.chunk_size)?,
            stripe_count: layout::pattern::stripe_count(stored.stripe_count.into())
                .map_err(|_| invalid_record(&format!("a pattern of {} stripes", stored.stripe_count)))?,
            inline_limit: stored.inline_limit,
            chooser: chooser_of(stored.chooser)?,
        })
    }
}

impl From<&types::Layout> for Layout {
    fn from(layout: &types::Layout) -> Layout {
        Layout {
            chunk_size: layout.chunk_size,
            pool: layout.pool.0 as u32,
            scheme: layout.scheme.record_number(),
            groups: layout.groups.iter().map(|group| group.0).collect(),
            slots: layout.slots.iter().map(|slot| slot.0).collect(),
        }
    }
}

impl TryFrom<&Layout> for types::Layout {
    type Error = Error;

    fn try_from(stored: &Layout) -> Result<types::Layout, Error> {
        if stored.groups.is_empty() || stored.slots.len() > stored.groups.len() {
            let (groups, slots) = (stored.groups.len(), stored.slots.len());
            return Err(invalid_record(&format!("a layout of {groups} groups and {slots} slots")));
        }
        Ok(types::Layout {
            chunk_size: chunk_size_of(stored.chunk_size)?,
            pool: pool_of(stored.pool)?,
            scheme: scheme_of(stored.scheme)?,
            groups: stored.groups.iter().map(|&group| GroupId(group)).collect(),
            slots: stored.slots.iter().copied().map(ChunkSlot).collect(),
        })
    }
}

impl Orphan {
    /// The session that removed the last name or created the inode without one.
    pub fn session_id(&self) -> SessionId {
        SessionId(self.session.unwrap_or_default())
    }
}

/// Decodes a stored record; for a damaged one, returns an `EIO` that names the key.
pub fn decode<M: Message + Default>(key: &[u8], value: Bytes) -> Result<M, Error> {
    M::decode(value).map_err(|cause| {
        let key = match crate::keys::decode_key(key) {
            Some(key) => format!("{key:?}"),
            None => format!("{key:02x?}"),
        };
        Error::new(Errno::EIO, format!("metadata record {key} is damaged: {cause}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inode with every field set, each to its own value.
    fn full_inode() -> Inode {
        let time = |secs| Some(Time { secs, nanos: 7 });
        Inode {
            mode: 0o100644,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            size: 6,
            blocks: 7,
            atime: time(-8),
            mtime: time(9),
            ctime: time(10),
            btime: time(11),
            parent: 12,
            target: Bytes::from_static(b"to"),
            pattern: Some(Pattern::from(&StripePattern::default())),
            layout: Some(Layout {
                chunk_size: 65536,
                pool: 1,
                scheme: 0,
                groups: vec![1, 300],
                slots: vec![],
            }),
            inline: true,
            access_acl: true,
            default_acl: true,
            xattr_names: 19,
            xattr_values: 20,
            tmpfile: true,
            known_end: 0,
            known_lens: Vec::new(),
            flags: 0,
            project: 0,
        }
    }

    fn hex(record: &impl Message) -> String {
        record.encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn encodings_are_frozen() {
        let inode = "08a483021002180320042805300638074204080f10074a04081210075204081410075a0408161007600c6a02746f720b\
                     08011880804020042880207a0b088080041001220301ac02800101880101900101980113a00114a80101";
        assert_eq!(hex(&full_inode()), inode);
        assert_eq!(hex(&Entry { ino: 300, kind: 0o040000 }), "08ac0210808001");
        assert_eq!(hex(&Xattr { value: Some(Bytes::from_static(b"v")) }), "0a0176");
        assert_eq!(hex(&Inline { content: Bytes::from_static(b"data") }), "0a0464617461");
        assert_eq!(hex(&Orphan { session: Some(5) }), "0805");
        assert_eq!(hex(&Writing { writing: true, truncate_to: Some(0) }), "08011000");
        assert_eq!(hex(&PartitionCounters { sequence: 2, inodes: None }), "0802");
        assert_eq!(hex(&PartitionCounters { sequence: 2, inodes: Some(300) }), "080210ac02");
    }

    #[test]
    fn what_is_known_of_chunk_files_is_appended() {
        let (whole, some) =
            (Inode { known_end: 300, ..full_inode() }, Inode { known_lens: vec![300, 0], ..full_inode() });
        assert_eq!(hex(&whole), hex(&full_inode()) + "b001ac02");
        assert_eq!(hex(&some), hex(&full_inode()) + "ba0103ac0200");
    }

    #[test]
    fn flags_and_project_are_appended() {
        let marked = Inode { flags: 5, project: 300, ..full_inode() };
        assert_eq!(hex(&marked), hex(&full_inode()) + "c00105c801ac02");
        let attr = marked.attr(InodeId(7));
        assert_eq!((attr.flags, attr.project), (InodeFlags::IMMUTABLE | InodeFlags::NODUMP, ProjectId(300)));
    }

    #[test]
    fn what_is_known_of_chunk_files_is_no_more_than_the_file_has() {
        let stored = full_inode().layout.expect("it has one");
        let layout = types::Layout::try_from(&stored).expect("it is one");
        let mut inode = Inode { inline: false, size: 200_000, ..full_inode() };
        assert_eq!(inode.length_bounds(&layout), Vec::<u64>::new(), "a record of an earlier version");
        for (known, stored) in [
            (vec![131_072, 68_928], (200_000, vec![])),
            (vec![65_536, 0], (65_536, vec![])),
            (vec![65_535, 4], (0, vec![65_535, 4])),
            (vec![0, 9], (0, vec![0, 9])),
            (vec![], (0, vec![])),
        ] {
            inode.set_length_bounds(&layout, known.clone());
            assert_eq!((inode.known_end, inode.known_lens.clone()), stored);
            assert_eq!(inode.length_bounds(&layout), known);
            let cut = Inode { size: 5, ..inode.clone() };
            assert!(cut.length_bounds(&layout).iter().sum::<u64>() <= 5, "{known:?}");
            assert_eq!(Inode { inline: true, ..inode.clone() }.length_bounds(&layout), Vec::<u64>::new());
        }
        let other = Inode { known_lens: vec![1, 2, 3], known_end: 0, ..inode };
        assert_eq!(other.length_bounds(&layout), Vec::<u64>::new(), "of another number of stripes");
    }

    #[test]
    fn records_decode_to_what_was_encoded() {
        let full = full_inode();
        for inode in [
            Inode { known_end: 7, ..full.clone() },
            Inode { known_lens: vec![3, 4], flags: 15, ..full.clone() },
            full,
        ] {
            let decoded: Inode = decode(b"key", inode.encode_to_vec().into()).unwrap();
            assert_eq!(decoded, inode);
        }
    }

    #[test]
    fn a_record_that_says_nothing_is_still_written() {
        assert!(!Xattr { value: Some(Bytes::new()) }.encode_to_vec().is_empty());
        assert!(!Orphan { session: Some(0) }.encode_to_vec().is_empty());
    }

    #[test]
    fn damage_is_an_error_that_names_the_key() {
        let key = crate::keys::inode(InodeId(7));
        let error = decode::<Inode>(&key, Bytes::from_static(b"\xff\xff")).unwrap_err();
        assert_eq!(error.errno, Errno::EIO);
        assert!(error.message.contains("Inode(InodeId(7))"), "{error}");
    }

    #[test]
    fn patterns_and_layouts_survive_storage_and_unknown_numbers_are_refused() {
        for chooser in [Chooser::RoundRobin, Chooser::Random, Chooser::CapacityWeighted] {
            let pattern = StripePattern { chooser, stripe_count: 9, ..StripePattern::default() };
            assert_eq!(StripePattern::try_from(&Pattern::from(&pattern)), Ok(pattern));
        }
        let layout = types::Layout {
            chunk_size: 65536,
            pool: PoolId(2),
            scheme: Scheme::Single,
            groups: vec![GroupId(4), GroupId(1)],
            slots: vec![ChunkSlot(0), ChunkSlot(2)],
        };
        assert_eq!(types::Layout::try_from(&Layout::from(&layout)), Ok(layout));
        let groups = |groups: &[u32], slots: &[u8]| Layout {
            chunk_size: 65536,
            groups: groups.to_vec(),
            slots: slots.to_vec(),
            ..Layout::default()
        };
        let odd = [groups(&[], &[]), groups(&[1], &[0, 0]), Layout { chunk_size: 0, ..groups(&[1], &[]) }];
        for layout in odd {
            assert_eq!(types::Layout::try_from(&layout).unwrap_err().errno, Errno::EIO, "{layout:?}");
        }
        let pattern = Pattern::from(&StripePattern::default());
        for odd in [Pattern { chunk_size: 65537, ..pattern }, Pattern { stripe_count: 0, ..pattern }] {
            assert_eq!(StripePattern::try_from(&odd).unwrap_err().errno, Errno::EIO, "{odd:?}");
        }
        let newer = Pattern { scheme: 99, ..Pattern::from(&StripePattern::default()) };
        assert_eq!(StripePattern::try_from(&newer).unwrap_err().errno, Errno::EIO);
    }
}
