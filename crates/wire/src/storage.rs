//! Requests to a storage service. Offsets are offsets in the chunk file, not in the file.

use types::{ByteRange, Epoch, GroupId, InodeId, NodeId, SessionId, TargetId, Timestamp};

/// A request with what every request carries. A read's or write's data is the payload beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageRequest {
    /// The client that asks; 0 for services.
    pub session: SessionId,
    /// The target it is for.
    pub target: TargetId,
    /// The file whose chunk file it is about.
    pub ino: InodeId,
    /// What makes a change one that is done once, however often it is sent: see [`Number`].
    pub number: Option<Number>,
    /// The metadata service's word that the session may do it.
    pub capability: Option<Capability>,
    /// The lease epoch of the file under which it is asked ([`crate::FileInfo::epoch`]); 0: none. A
    /// target that has seen a higher one refuses it with `EKEYREVOKED`, and doesn't do it any more.
    pub epoch: u64,
    /// The mirrored group that it is about; `None` for what lies on one target only, and for what
    /// is about the target as a whole.
    pub group: Option<InGroup>,
    /// For [`StorageOp::Read`], `Write`, `Seek` and `Allocate`: the chunk file is known to have at
    /// least this length ([`crate::FileInfo::known`]). One that is absent or shorter is damage, and
    /// no hole: `EIO`. 0: nothing is known.
    pub known: u64,
    /// What is asked.
    pub op: StorageOp,
}

/// A mirrored group as the sender of a request knows it. Who knows another version refuses with
/// `EREMCHG`: the sender looks at the map again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InGroup {
    /// The group.
    pub group: GroupId,
    /// Its version ([`types::Group::since`]).
    pub since: Epoch,
    /// As whom the receiver is asked.
    pub part: Part,
}

/// As whom a member of a mirrored group is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// As the primary, which sees to it that all members do it, by who uses the file. What changes
    /// nothing may be asked of any good member.
    Primary,
    /// As a member, by the primary, which does the same itself. Changes are numbered by `sequence`,
    /// from 1 in each version of the group; all below `settled` are on all copies.
    Member { sequence: u64, settled: u64 },
    /// As one whose copy is brought in step, by the primary, which lets nobody change the range
    /// meanwhile.
    Resync,
}

impl StorageRequest {
    /// A request that may be repeated without harm, by whom nobody asks for a capability.
    pub fn new(session: SessionId, target: TargetId, ino: InodeId, op: StorageOp) -> StorageRequest {
        StorageRequest {
            session,
            target,
            ino,
            number: None,
            capability: None,
            epoch: 0,
            group: None,
            known: 0,
            op,
        }
    }
}

/// Numbers a change among those of its session. A service does a change with a number once, and
/// answers repetitions as it answered the first.
///
/// A session sends its numbered changes in *lanes*: in each of them one after the other, the next
/// when the one before was answered. So a service has to remember one number a lane. A lane whose
/// last change was never answered isn't used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct Number {
    pub lane: u32,
    /// Grows by one with every change of the lane, from 1.
    pub sequence: u32,
}

/// Length of a capability, bytes.
pub const CAPABILITY_BYTES: usize = 64;

/// A signed permission as it travels. It is made and checked by the services
/// (`identity::capability` has the format); who was given it may look at what it says.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capability(pub [u8; CAPABILITY_BYTES]);

impl Capability {
    /// Whether it says that data may be changed.
    pub fn may_write(&self) -> bool {
        self.0[1] & 2 != 0
    }

    /// The highest lease epoch that it says a request may have.
    pub fn epoch(&self) -> u64 {
        u64::from_le_bytes(self.0[56..64].try_into().expect("eight bytes"))
    }

    /// How long it says that it is valid from when it was signed, seconds.
    pub fn valid_s(&self) -> u64 {
        u16::from_le_bytes([self.0[2], self.0[3]]).into()
    }
}

impl std::fmt::Debug for Capability {
    /// Without what it proves itself by: whoever can say that may use it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capability")
    }
}

/// How data takes its way between buffer and disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Past the page cache where offset and length allow it (whole 4 KiB blocks); through it
    /// elsewhere.
    Direct,
    /// Through the server's page cache.
    Cached,
}

/// What to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Reserve space; content stays, holes read as zeros. The chunk file does not grow in length.
    Reserve,
    /// Free the space; reads as zeros.
    Punch,
    /// Zeros with space reserved.
    Zero,
}

/// What to look for from an offset on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Seek {
    Data,
    Hole,
}

/// What is asked of a storage service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorageOp {
    /// Fills the payload from `offset`; beyond the chunk file's end and in holes with zeros:
    /// `Unit`.
    Read { offset: u64, path: Path },
    /// Writes the payload at `offset`: `Done`. `durable`: on disk before the answer.
    Write { offset: u64, path: Path, durable: bool },
    /// Cuts the chunk file to `len`; a shorter or absent one is left alone: `Done`.
    Truncate { len: u64 },
    /// `Done`.
    Allocate { range: ByteRange, how: Allocate },
    /// Removes the chunk file; an absent one is no error: `Done`.
    Delete,
    /// Asked by the check of a file system: the chunk file belongs to no file. It is kept aside
    /// with its checksums, and is no chunk file any more: `Done`.
    SetAside,
    /// Everything acknowledged of this chunk file is on disk when this answers: `Done`.
    Sync,
    /// Everything acknowledged of the target is on disk when this answers; asked of a mirrored
    /// group, everything of the group, on all its good members: `Done`.
    SyncTarget,
    /// `Stat`; an absent chunk file has zeros.
    Stat,
    /// `Offset`: the first data or hole at or after `from`; `None` when there is no more data. The
    /// end is a hole.
    Seek { from: u64, what: Seek },
    /// `Space` of the target.
    Space,
    /// This session has been ended: its requests are refused from now on, and none of them runs any
    /// more when this answers: `Unit`.
    Fence { session: SessionId },
    /// Notes from now on which regions of the chunk file change, in rounds: round 0 begins, each
    /// further one begins a new list and makes that of the round before it readable. Known by
    /// `token`, and gone with the process. Waits until clients may use the target: `Unit`.
    Watch { token: u64, round: u64 },
    /// `Offset`: the first region of [`WATCHED_REGION`] bytes at or after `from` that changed in
    /// the round before this one. `ESTALE` when nobody watches by this token and in this round: any
    /// part may have changed then.
    Changed { token: u64, round: u64, from: u64 },
    /// Ends a watch: `Unit`.
    Unwatch { token: u64 },
    /// Tells a member of a mirrored group which changes are on all copies, by [`Part::Member`]:
    /// `Unit`.
    Settled,
    /// `Regions` of the group's chunk files here, from the file `from` on and in their order; at
    /// most [`MAX_REGIONS`] of them, and whole files only. Of a target without a group it is asked
    /// for all files only.
    Regions { from: InodeId, which: Regions },
    /// `Survey` of a range of the chunk file here, whole blocks and at most [`MAX_SURVEYED`] units
    /// of `unit` bytes; with `read` its blocks are compared with their checksums. Of a member that
    /// is brought in step its primary asks for blocks: then `sums` has two for each, the halves of
    /// a digest of what is in it, and nothing else is told.
    Survey { range: ByteRange, unit: u64, read: bool },
    /// Asked of a group's primary: looks at the chunk file on all good members, compares them, and
    /// mends in this range what is damaged, missing or different from a copy that is right:
    /// `Healed`.
    Heal { range: ByteRange },
    /// Asked of the primary of a mirrored group by services: makes the copy of the member `to` what
    /// that of the member `from` is, in a range of whole blocks, and in its length where the range
    /// reaches the end of that; nobody changes it meanwhile: `Unit`.
    Mend { from: TargetId, to: TargetId, range: ByteRange },
    /// Asked by services: what of a range is on no good copy becomes a hole, and a chunk file that
    /// isn't on any one up to its end. Answers the lost parts as `Regions`.
    Forget { range: ByteRange },
    /// Asked of a member that is brought in step: no copy of these whole blocks is right, so they
    /// are refused there, too, from now on: `Unit`.
    MarkLost { range: ByteRange },
    /// Asked by services, of a copy that is whole: its content is as old as that of which it was
    /// made, and not as the copying; an absent chunk file is left alone: `Unit`.
    SetTime { time: Timestamp },
    /// Asked of a member that is brought in step: digests of what it has in a range that begins on
    /// a block, or in its first part: `Survey`, with the two halves of each block's digest as sums.
    Digests { range: ByteRange },
    /// Tells a member that has been brought in step the verifier of the group's copies, if its own
    /// still is the one under which that was done: `Unit`.
    Adopt { verifier: u64, instead_of: u64 },
    /// Asked by services: what the hardware gives without the file system: `Rates`. Of a drive that
    /// of the target; of networks and processors, the node that is asked, whichever target is
    /// named. Stops, and leaves nothing behind, when nobody waits for it any more.
    Measure { what: Measure, milliseconds: u64 },
    /// Takes the payload and forgets it, for who measures a network: `Unit`.
    Traffic,
    /// Asked of a good member whose copy is mended: makes the whole blocks of this range what the
    /// payload says, whatever they were, from the range's start on and zeros after it; zeros
    /// without one. With `len`, makes the chunk file that long. At every moment, also after a
    /// crash, each block is right or refused. On disk when this answers: `Unit`.
    Rewrite { range: ByteRange, len: Option<u64> },
    /// The same of one that has no chunk file, or another one: tells the checksums of the blocks of
    /// one of `len` bytes, from block `first` on and as the payload in four bytes each, of all of
    /// them in order. With the last ones the chunk file is made; what isn't zeros is refused until
    /// it is brought by
    /// [`StorageOp::Rewrite`]: `Unit`.
    Expect { first: u64, len: u64 },
    /// What it takes to reserve a range of the chunk file, asked before anything is reserved:
    /// `Room`.
    Room { range: ByteRange },
}

/// What is measured, each for so long as [`StorageOp::Measure`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The target's drive, in a file of so many bytes.
    Drive { size: u64 },
    /// The way to another node over so many connections, and how long a message takes there and
    /// back.
    Network { to: NodeId, streams: u32 },
    /// Memory and processor.
    Cpu,
}

/// What a rate is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RateOf {
    /// Sequential writes, bytes a second.
    Write,
    /// Sequential reads, bytes a second.
    Read,
    /// Random 4 KiB writes, operations a second.
    RandomWrite,
    /// Random 4 KiB reads, operations a second.
    RandomRead,
    /// Bytes a second to another node.
    Network,
    /// Messages there and back, one after the other, a second.
    RoundTrips,
    /// Copies in memory, bytes a second.
    MemoryCopy,
    /// Checksums, bytes a second.
    Checksum,
    /// Stripes of Reed-Solomon 8+2 encoded, bytes of content a second.
    Encoding,
}

/// What was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Of what.
    pub of: RateOf,
    /// Bytes or operations a second.
    pub rate: u64,
    /// Streams, transfers under way or threads that gave it.
    pub streams: u32,
}

/// Items of one [`StorageReply::Rates`].
pub const MAX_RATES: usize = 64;

/// What of a mirrored group's chunk files is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regions {
    /// What may differ from the other copies: what has been noted, of files that are gone, too.
    Noted,
    /// All files, each from its first byte to its last.
    All,
}

/// Items of one [`StorageReply::Regions`], unless the first file has more.
pub const MAX_REGIONS: usize = 4096;

/// Units of one [`StorageReply::Survey`].
pub const MAX_SURVEYED: usize = 4096;

/// Bytes of what [`StorageOp::Changed`] tells apart.
pub const WATCHED_REGION: u64 = 1 << 20;

/// Answers; which one belongs to which request is said there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StorageReply {
    Unit,
    /// The same, of a change or a sync that was asked for by a client. As long as `verifier` is the
    /// same, nothing that was acknowledged has gone with the power: a sync covers what was
    /// acknowledged before under its verifier, and nothing under another one (RFC 1813, section
    /// 3.3.21). Never 0.
    Done {
        verifier: u64,
    },
    /// Length in bytes, allocated 512-byte units, last change. `is_lost`: there is no chunk file,
    /// although there was one on disk before the last crash.
    Stat {
        len: u64,
        blocks: u64,
        mtime: Timestamp,
        is_lost: bool,
    },
    Offset(Option<u64>),
    /// Bytes in all and free.
    Space {
        capacity: u64,
        free: u64,
    },
    /// By file and start; `next`: where to go on asking, `None` at the end.
    Regions {
        regions: Vec<(InodeId, ByteRange)>,
        next: Option<InodeId>,
    },
    Survey(Survey),
    Healed(Healed),
    /// At most [`MAX_RATES`].
    Rates(Vec<Rate>),
    Room(Room),
}

/// What a range of a chunk file needs to have all of its space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The disk, of all of this node's machine: targets that share one are granted their room once.
    pub disk: u64,
    /// Bytes that chunk files may still take on it.
    pub free: u64,
    /// Bytes of the range without space.
    pub wanted: u64,
    /// The first parts of the range without space, at most [`MAX_GAPS`]: what a reservation that
    /// fails is to give back.
    pub gaps: Vec<ByteRange>,
    /// The same of the other members of a mirrored group, which get every reservation, too.
    pub others: Vec<MemberRoom>,
}

/// What a range of another member's copy needs to have all of its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRoom {
    /// The member.
    pub target: TargetId,
    /// Its disk, of all of its node's machine.
    pub disk: u64,
    /// Bytes that chunk files may still take on it.
    pub free: u64,
    /// Bytes of the range without space.
    pub wanted: u64,
}

/// Items of [`Room::gaps`].
pub const MAX_GAPS: usize = 1024;

/// What a copy of a chunk file looks like from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// There is a file, and it is the one that its service has open.
    pub is_there: bool,
    /// Bytes.
    pub len: u64,
    /// Where the last block ends that has a checksum of data: beyond the length, something was cut
    /// off.
    pub sum_end: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of anything but by [`StorageOp::SetTime`]; nobody else can set it.
    pub ctime: Timestamp,
    /// A sum of the checksums of each unit; 0 for one of zeros only, as are all that aren't told.
    pub sums: Vec<u32>,
    /// Blocks that don't match their checksums, or can't be read.
    pub damaged: Vec<ByteRange>,
}

/// What came of mending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Ranges that were damaged, missing, or different on a member.
    pub damaged: u64,
    /// Those that are equal to a copy that is right now.
    pub mended: u64,
    /// Those of which nothing tells which copy is right.
    pub unclear: u64,
}

impl std::ops::AddAssign for Healed {
    fn add_assign(&mut self, more: Healed) {
        self.damaged += more.damaged;
        self.mended += more.mended;
        self.unclear += more.unclear;
    }
}
