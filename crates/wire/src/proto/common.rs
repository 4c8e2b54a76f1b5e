//! Encodings that several messages share.

use crate::SlotSequence;
use crate::{LeaseMode, LockFamily, LockKind, Malformed, RenameMode, XattrMode};
use bytes::Bytes;
use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, message, skip_field};
use types::{
    Attr, ByteRange, Chooser, ChunkSlot, Credentials, FileKind, GroupId, InodeFlags, InodeId, Layout,
    PartitionId, PoolId, ProjectId, Scheme, StripePattern, Timestamp,
};

/// Longest name in bytes. Services refuse names above 255 with `ENAMETOOLONG`; this only bounds
/// their work.
pub const MAX_NAME_BYTES: usize = 4096;

/// Largest number of entries in one directory listing; several times what a service returns.
pub const MAX_ENTRIES: usize = 16 * 1024;

/// Largest number of items in any other list of a message (leases, recalls, inodes, names of
/// attributes, groups of a layout).
pub const MAX_LIST_ITEMS: usize = 64 * 1024;

/// Returns a part of a message, or an error if it is missing.
pub(crate) fn required<T>(part: Option<T>, what: &str) -> Result<T, Malformed> {
    part.ok_or_else(|| Malformed::new(format!("no {what}")))
}

/// Checks the length of a name of any kind (file, attribute, symlink target, pool).
pub(crate) fn name<N: AsRef<[u8]>>(name: N) -> Result<N, Malformed> {
    match name.as_ref().len() {
        0..=MAX_NAME_BYTES => Ok(name),
        length => {
            Err(Malformed::new(format!("a name of {length} bytes, at most {MAX_NAME_BYTES} are allowed")))
        }
    }
}

/// Checks the length of a list of numbers; its memory is proportional to its encoding.
pub(crate) fn bounded<T>(list: Vec<T>, what: &str) -> Result<Vec<T>, Malformed> {
    match list.len() {
        0..=MAX_LIST_ITEMS => Ok(list),
        length => Err(Malformed::new(format!("{length} {what}, at most {MAX_LIST_ITEMS} are allowed"))),
    }
}

/// Packs slot and sequence id; sequence ids begin with 1, so the result is never 0.
pub(crate) fn packed(number: SlotSequence) -> u64 {
    u64::from(number.slot) << 32 | u64::from(number.sequence)
}

pub(crate) fn unpacked(packed: u64) -> Option<SlotSequence> {
    let number = SlotSequence { slot: (packed >> 32) as u32, sequence: packed as u32 };
    (packed != 0).then_some(number)
}

/// Converts numbers of partitions.
pub(crate) fn partitions(numbers: Vec<u32>) -> Result<Vec<PartitionId>, Malformed> {
    let partition = |number: u32| {
        let number = u16::try_from(number);
        number.map(PartitionId).map_err(|_| Malformed::new("the number of a partition is too large"))
    };
    bounded(numbers, "partitions")?.into_iter().map(partition).collect()
}

/// An enum that is encoded as a number from 1.
pub(crate) trait Numbered: Copy + Sized + 'static {
    /// Name of the enum, and its values with their numbers.
    const TABLE: (&'static str, &'static [(Self, u32)]);

    fn number(self) -> u32;

    fn take(number: u32) -> Result<Self, Malformed> {
        let (what, table) = Self::TABLE;
        let found = table.iter().find(|(_, known)| *known == number);
        found.map(|(value, _)| *value).ok_or_else(|| Malformed::new(format!("unknown {what} {number}")))
    }
}

macro_rules! numbered {
    ($($enum:ident, $what:literal: $($value:ident = $number:literal),+;)+) => {
        $(impl Numbered for $enum {
            const TABLE: (&'static str, &'static [(Self, u32)]) = ($what, &[$(($enum::$value, $number)),+]);

            fn number(self) -> u32 {
                match self {
                    $($enum::$value => $number,)+
                }
            }
        })+
    };
}
pub(crate) use numbered;

// Without `Permissions`, which has its own fields.
impl Numbered for LeaseMode {
    const TABLE: (&'static str, &'static [(Self, u32)]) =
        ("mode of a lease", &[(LeaseMode::Read, 1), (LeaseMode::Shared, 2), (LeaseMode::Write, 3)]);

    fn number(self) -> u32 {
        let known = Self::TABLE.1.iter().find(|(mode, _)| *mode == self);
        known.map_or(0, |(_, number)| *number)
    }
}

// Numbers never change.
numbered! {
    LockKind, "kind of lock": Shared = 1, Exclusive = 2;
    LockFamily, "family of locks": Posix = 1, Flock = 2;
    RenameMode, "mode of renaming": Replace = 1, NoReplace = 2, Exchange = 3, Whiteout = 4;
    XattrMode, "mode of setting an attribute": Any = 1, Create = 2, Replace = 3;
    Chooser, "chooser": RoundRobin = 1, Random = 2, CapacityWeighted = 3;
}

impl Numbered for Scheme {
    const TABLE: (&'static str, &'static [(Self, u32)]) = ("redundancy scheme", &Scheme::MESSAGE_NUMBERS);

    fn number(self) -> u32 {
        self.message_number()
    }
}

/// Items in field 1, at most `MAX` of them. Further items are counted but not stored, so that a few
/// bytes each can't claim the memory of a large item each.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct List<M, const MAX: usize> {
    items: Vec<M>,
    beyond: usize,
}

impl<M, const MAX: usize> Default for List<M, MAX> {
    fn default() -> Self {
        List { items: Vec::new(), beyond: 0 }
    }
}

impl<M, const MAX: usize> List<M, MAX> {
    /// Returns the fields of a list; `None` for an empty one, which takes no bytes.
    pub fn of<'a, T>(items: &'a [T], fields: impl Fn(&'a T) -> M) -> Option<Self> {
        let filled = || List { items: items.iter().map(fields).collect(), beyond: 0 };
        (!items.is_empty()).then(filled)
    }

    /// Returns the list.
    pub fn take<T>(
        list: Option<Self>,
        item: impl Fn(M) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let List { items, beyond } = list.unwrap_or_default();
        match beyond {
            0 => items.into_iter().map(item).collect(),
            _ => Err(Malformed::new(format!("a list of {} items, at most {MAX} are allowed", MAX + beyond))),
        }
    }
}

/// As prost derives it for a repeated field, plus the limit.
impl<M: Message + Default, const MAX: usize> Message for List<M, MAX> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        message::encode_repeated(1, &self.items, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        match tag {
            1 if self.items.len() < MAX => message::merge_repeated(wire_type, &mut self.items, buf, ctx),
            1 => {
                self.beyond += 1;
                skip_field(wire_type, tag, buf, ctx)
            }
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        message::encoded_len_repeated(1, &self.items)
    }

    fn clear(&mut self) {
        *self = List::default();
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TimeFields {
    #[prost(sint64, tag = "1")]
    secs: i64,
    #[prost(fixed32, tag = "2")]
    nanos: u32,
}

impl From<Timestamp> for TimeFields {
    fn from(time: Timestamp) -> TimeFields {
        TimeFields { secs: time.secs, nanos: time.nanos }
    }
}

impl TryFrom<TimeFields> for Timestamp {
    type Error = Malformed;

    fn try_from(fields: TimeFields) -> Result<Timestamp, Malformed> {
        point(fields.secs, fields.nanos)
    }
}

fn point(secs: i64, nanos: u32) -> Result<Timestamp, Malformed> {
    match nanos {
        0..1_000_000_000 => Ok(Timestamp::new(secs, nanos)),
        _ => Err(Malformed::new(format!("a time with {nanos} nanoseconds in a second"))),
    }
}

/// Returns a time of a message, or an error if it is missing.
pub(crate) fn time(fields: Option<TimeFields>, what: &str) -> Result<Timestamp, Malformed> {
    required(fields, what)?.try_into()
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RangeFields {
    #[prost(uint64, tag = "1")]
    start: u64,
    #[prost(uint64, tag = "2")]
    end: u64,
}

impl From<ByteRange> for RangeFields {
    fn from(range: ByteRange) -> RangeFields {
        RangeFields { start: range.start, end: range.end }
    }
}

impl TryFrom<RangeFields> for ByteRange {
    type Error = Malformed;

    fn try_from(RangeFields { start, end }: RangeFields) -> Result<ByteRange, Malformed> {
        match start <= end {
            true => Ok(ByteRange { start, end }),
            false => Err(Malformed::new(format!("the range {start}..{end} is inverted"))),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CredentialsFields {
    #[prost(uint32, tag = "1")]
    uid: u32,
    #[prost(uint32, tag = "2")]
    gid: u32,
    #[prost(uint32, tag = "3")]
    pid: u32,
}

impl From<Credentials> for CredentialsFields {
    fn from(Credentials { uid, gid, pid }: Credentials) -> CredentialsFields {
        CredentialsFields { uid, gid, pid }
    }
}

impl From<CredentialsFields> for Credentials {
    fn from(CredentialsFields { uid, gid, pid }: CredentialsFields) -> Credentials {
        Credentials { uid, gid, pid }
    }
}

/// The most frequent nested message: times are not messages of their own, and rare fields have the
/// longest keys.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct AttrFields {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(uint32, tag = "2")]
    mode: u32,
    #[prost(uint32, tag = "3")]
    nlink: u32,
    #[prost(uint32, tag = "4")]
    uid: u32,
    #[prost(uint32, tag = "5")]
    gid: u32,
    #[prost(uint64, tag = "6")]
    size: u64,
    #[prost(uint64, tag = "7")]
    blocks: u64,
    #[prost(sint64, tag = "8")]
    atime_secs: i64,
    #[prost(fixed32, tag = "9")]
    atime_nanos: u32,
    #[prost(sint64, tag = "10")]
    mtime_secs: i64,
    #[prost(fixed32, tag = "11")]
    mtime_nanos: u32,
    #[prost(sint64, tag = "12")]
    ctime_secs: i64,
    #[prost(fixed32, tag = "13")]
    ctime_nanos: u32,
    #[prost(sint64, tag = "14")]
    btime_secs: i64,
    #[prost(fixed32, tag = "15")]
    btime_nanos: u32,
    #[prost(uint32, tag = "16")]
    rdev: u32,
    #[prost(uint32, tag = "17")]
    flags: u32,
    #[prost(uint32, tag = "18")]
    project: u32,
    #[prost(bool, tag = "19")]
    has_no_xattrs: bool,
}

impl From<&Attr> for AttrFields {
    fn from(attr: &Attr) -> AttrFields {
        AttrFields {
            ino: attr.ino.0,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            blocks: attr.blocks,
            atime_secs: attr.atime.secs,
            atime_nanos: attr.atime.nanos,
            mtime_secs: attr.mtime.secs,
            mtime_nanos: attr.mtime.nanos,
            ctime_secs: attr.ctime.secs,
            ctime_nanos: attr.ctime.nanos,
            btime_secs: attr.btime.secs,
            btime_nanos: attr.btime.nanos,
            rdev: attr.rdev,
            flags: attr.flags.0,
            project: attr.project.0,
            has_no_xattrs: attr.has_no_xattrs,
        }
    }
}

impl TryFrom<AttrFields> for Attr {
    type Error = Malformed;

    fn try_from(f: AttrFields) -> Result<Attr, Malformed> {
        if FileKind::from_mode(f.mode).is_none() {
            return Err(Malformed::new(format!("attributes of unknown file type {:o}", f.mode)));
        }
        Ok(Attr {
            ino: InodeId(f.ino),
            mode: f.mode,
            nlink: f.nlink,
            uid: f.uid,
            gid: f.gid,
            rdev: f.rdev,
            size: f.size,
            blocks: f.blocks,
            atime: point(f.atime_secs, f.atime_nanos)?,
            mtime: point(f.mtime_secs, f.mtime_nanos)?,
            ctime: point(f.ctime_secs, f.ctime_nanos)?,
            btime: point(f.btime_secs, f.btime_nanos)?,
            flags: InodeFlags(f.flags),
            project: ProjectId(f.project),
            has_no_xattrs: f.has_no_xattrs,
        })
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LayoutFields {
    #[prost(uint32, tag = "1")]
    chunk_size: u32,
    #[prost(uint32, tag = "2")]
    pool: u32,
    #[prost(uint32, tag = "3")]
    scheme: u32,
    #[prost(uint32, repeated, tag = "4")]
    groups: Vec<u32>,
    #[prost(bytes = "vec", tag = "5")]
    slots: Vec<u8>,
}

impl From<&Layout> for LayoutFields {
    fn from(layout: &Layout) -> LayoutFields {
        LayoutFields {
            chunk_size: layout.chunk_size,
            pool: layout.pool.0.into(),
            scheme: layout.scheme.number(),
            groups: layout.groups.iter().map(|group| group.0).collect(),
            slots: layout.slots.iter().map(|slot| slot.0).collect(),
        }
    }
}

impl TryFrom<LayoutFields> for Layout {
    type Error = Malformed;

    fn try_from(fields: LayoutFields) -> Result<Layout, Malformed> {
        if fields.groups.is_empty() {
            return Err(Malformed::new("a layout without groups"));
        }
        if fields.slots.len() > fields.groups.len() {
            return Err(Malformed::new("a layout with more slots than groups"));
        }
        Ok(Layout {
            chunk_size: chunk_size(fields.chunk_size)?,
            pool: pool(fields.pool)?,
            scheme: Scheme::take(fields.scheme)?,
            groups: bounded(fields.groups, "groups")?.into_iter().map(GroupId).collect(),
            slots: fields.slots.into_iter().map(ChunkSlot).collect(),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct PatternFields {
    #[prost(uint32, tag = "1")]
    pool: u32,
    #[prost(uint32, tag = "2")]
    scheme: u32,
    #[prost(uint32, tag = "3")]
    chunk_size: u32,
    #[prost(uint32, tag = "4")]
    stripe_count: u32,
    #[prost(uint32, tag = "5")]
    inline_limit: u32,
    #[prost(uint32, tag = "6")]
    chooser: u32,
}

impl From<&StripePattern> for PatternFields {
    fn from(pattern: &StripePattern) -> PatternFields {
        PatternFields {
            pool: pattern.pool.0.into(),
            scheme: pattern.scheme.number(),
            chunk_size: pattern.chunk_size,
            stripe_count: pattern.stripe_count.into(),
            inline_limit: pattern.inline_limit,
            chooser: pattern.chooser.number(),
        }
    }
}

impl TryFrom<PatternFields> for StripePattern {
    type Error = Malformed;

    fn try_from(fields: PatternFields) -> Result<StripePattern, Malformed> {
        let stripes = u16::try_from(fields.stripe_count).ok().filter(|count| *count > 0);
        let impossible = || Malformed::new(format!("a pattern of {} stripes", fields.stripe_count));
        Ok(StripePattern {
            pool: pool(fields.pool)?,
            scheme: Scheme::take(fields.scheme)?,
            chunk_size: chunk_size(fields.chunk_size)?,
            stripe_count: stripes.ok_or_else(impossible)?,
            inline_limit: fields.inline_limit,
            chooser: Chooser::take(fields.chooser)?,
        })
    }
}

pub(crate) fn pool(number: u32) -> Result<PoolId, Malformed> {
    u16::try_from(number).map(PoolId).map_err(|_| Malformed::new(format!("impossible pool {number}")))
}

/// Checks a chunk size, which is used as a divisor.
fn chunk_size(bytes: u32) -> Result<u32, Malformed> {
    let possible = StripePattern::MIN_CHUNK_SIZE..=StripePattern::MAX_CHUNK_SIZE;
    match bytes.is_power_of_two() && possible.contains(&bytes) {
        true => Ok(bytes),
        false => Err(Malformed::new(format!("a chunk size of {bytes} bytes"))),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NameFields {
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
}
