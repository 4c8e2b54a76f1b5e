//! Requests to a storage service. Offsets are offsets in the chunk file, not in the file.

use types::{ByteRange, ChunkFileId, Epoch, GroupId, NodeId, SessionId, TargetId, Timestamp};

/// A request with the fields of every request. A read's or write's data is the payload beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageRequest {
    /// Session of the client; 0 for services.
    pub session: SessionId,
    /// The target that serves it.
    pub target: TargetId,
    /// The file that the chunk file belongs to.
    pub ino: ChunkFileId,
    /// Slot and sequence id of a change that must be executed once, however often it is sent: see
    /// [`SlotSequence`].
    pub slot_sequence: Option<SlotSequence>,
    /// The metadata service's proof that the session may access the chunk file.
    pub capability: Option<Capability>,
    /// The file's lease epoch of this request ([`crate::FileInfo::epoch`]); 0: none. A target that
    /// has seen a higher one refuses the request with `RevokedLeaseEpoch`, and never executes it.
    pub epoch: u64,
    /// The mirrored group concerned; `None` for chunk files on one target only, and for requests
    /// about the target as a whole.
    pub group: Option<GroupContext>,
    /// For [`StorageOp::Read`], `Write`, `Seek` and `Allocate`: a lower bound of the chunk file's
    /// length ([`crate::FileInfo::length_bounds`]). An absent or shorter chunk file is damage, not
    /// a hole: `EIO`. 0: unknown.
    pub length_bound: u64,
    /// The operation.
    pub op: StorageOp,
}

/// A mirrored group as the sender of a request knows it. A receiver with another version refuses
/// with `GroupVersionMismatch`: the sender then refreshes its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupContext {
    /// The group.
    pub group: GroupId,
    /// Its version ([`types::Group::since`]).
    pub version: Epoch,
    /// Role in which the receiver is addressed.
    pub role: GroupRole,
}

/// Role in which a member of a mirrored group is addressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupRole {
    /// As the primary, which has all members execute the request; sent by clients and services that
    /// use the file. A request that changes nothing may go to any member in sync.
    Primary,
    /// As a member, by the primary, which executes the same change itself. Changes are numbered by
    /// `sequence`, from 1 in each version of the group; all below `committed` are on all replicas.
    Member { sequence: u64, committed: u64 },
    /// As a member that is being resynced, by the primary, which blocks changes of the range
    /// meanwhile.
    Resync,
}

impl StorageRequest {
    /// A request that may safely be repeated and that needs no capability.
    pub fn new(session: SessionId, target: TargetId, ino: ChunkFileId, op: StorageOp) -> StorageRequest {
        StorageRequest {
            session,
            target,
            ino,
            slot_sequence: None,
            capability: None,
            epoch: 0,
            group: None,
            length_bound: 0,
            op,
        }
    }
}

/// Slot and sequence id of a change of a session. A service executes a numbered change once, and
/// answers retransmissions from its duplicate request cache (RFC 8881 slot table).
///
/// A session sends its numbered changes in session slots, one at a time in each: the next change of
/// a slot follows when the one before was answered. So a service has to remember one change for
/// each slot. A slot whose last change was never answered isn't used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct SlotSequence {
    pub slot: u32,
    /// Sequence id: grows by one with every change of the slot, from 1.
    pub sequence: u32,
}

/// Length of a capability in bytes.
pub const CAPABILITY_BYTES: usize = 64;

/// A signed capability in its encoded form. Services make and verify it (`identity::capability` has
/// the format); its holder may read its content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capability(pub [u8; CAPABILITY_BYTES]);

impl Capability {
    /// Whether it permits changes of data.
    pub fn may_write(&self) -> bool {
        self.0[1] & 2 != 0
    }

    /// Highest lease epoch that it permits in a request.
    pub fn epoch(&self) -> u64 {
        u64::from_le_bytes(self.0[56..64].try_into().expect("eight bytes"))
    }

    /// Its validity from the time of its signature, in seconds.
    pub fn valid_s(&self) -> u64 {
        u16::from_le_bytes([self.0[2], self.0[3]]).into()
    }
}

impl std::fmt::Debug for Capability {
    /// Omits the content: a capability that can be read from a log could be used.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capability")
    }
}

/// Path of data between buffer and disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPath {
    /// Bypasses the page cache where offset and length allow it (whole 4 KiB blocks); uses it
    /// elsewhere.
    Direct,
    /// Uses the server's page cache.
    Cached,
}

/// How to change the allocation of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Reserves space; content is unchanged, holes read as zeros. The length of the chunk file
    /// doesn't change.
    Reserve,
    /// Frees the space; the range reads as zeros.
    Punch,
    /// Writes zeros, with space reserved.
    Zero,
}

/// What to seek from an offset on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SeekTarget {
    Data,
    Hole,
}

/// Operation of a storage service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorageOp {
    /// Fills the payload from `offset`, with zeros beyond the chunk file's end and in holes:
    /// `Unit`.
    Read { offset: u64, path: DataPath },
    /// Writes the payload at `offset`: `Done`. `durable`: on disk before the answer.
    Write { offset: u64, path: DataPath, durable: bool },
    /// Cuts the chunk file to `len`; a shorter or absent one is unchanged: `Done`.
    Truncate { len: u64 },
    /// `Done`.
    Allocate { range: ByteRange, how: AllocateMode },
    /// Removes the chunk file; an absent one is no error: `Done`.
    Delete,
    /// Sent by the file system check: the chunk file belongs to no file. Sets it aside with its
    /// checksums, so that it is no chunk file any more: `Done`.
    SetAside,
    /// Makes everything acknowledged of this chunk file durable: `Done`.
    Sync,
    /// Makes everything acknowledged of the target durable; for a mirrored group, everything of the
    /// group, on all its members in sync: `Done`.
    SyncTarget,
    /// `Stat`; all zeros for an absent chunk file.
    Stat,
    /// `Offset`: the first data or hole at or after `from`; `None` if there is no more data. The
    /// end is a hole.
    Seek { from: u64, what: SeekTarget },
    /// `Space` of the target.
    Space,
    /// The session has been ended: refuses its requests from now on, and waits for those in
    /// progress: `Unit`.
    Fence { session: SessionId },
    /// Starts or continues dirty tracking of the chunk file, in rounds: round 0 begins; each
    /// further one starts a new list of changed regions and makes the previous round's list
    /// readable. Identified by `token`; lost with the process. Waits until clients may use the
    /// target: `Unit`.
    TrackDirty { token: u64, round: u64 },
    /// `Offset`: the first region of [`DIRTY_REGION_BYTES`] bytes at or after `from` that changed
    /// in the previous round. `ESTALE` if dirty tracking doesn't run under this token and in this
    /// round: any region may have changed then.
    NextDirty { token: u64, round: u64, from: u64 },
    /// Ends dirty tracking: `Unit`.
    EndDirtyTracking { token: u64 },
    /// Informs a member of a mirrored group which changes are on all replicas, by
    /// [`GroupRole::Member`]: `Unit`.
    Committed,
    /// `Regions` of the group's chunk files on this target, from the file `from` on and in their
    /// order; at most [`MAX_REGIONS`], and whole files only. For a target without a group, only
    /// `All` is used.
    Regions { from: ChunkFileId, which: RegionSelection },
    /// `Survey` of a range of the chunk file on this target, in whole blocks and at most
    /// [`MAX_SURVEYED`] units of `unit` bytes; `read` verifies the blocks against their checksums.
    /// The primary requests single blocks of a member that is being resynced: `sums` then has two
    /// values for each block, the halves of a digest of its content, and nothing else is set.
    Survey { range: ByteRange, unit: u64, read: bool },
    /// Sent to a group's primary: reads the chunk file on all members in sync, compares the
    /// replicas, and repairs damaged, missing or different content in this range from an intact
    /// replica: `Repaired`.
    Repair { range: ByteRange },
    /// Sent by services to the primary of a mirrored group: makes the replica of member `to` equal
    /// to that of member `from`, in a range of whole blocks, and in its length if the range reaches
    /// the end of that. Changes are blocked meanwhile: `Unit`.
    CopyReplica { from: TargetId, to: TargetId, range: ByteRange },
    /// Sent by services: content of a range that is on no replica in sync becomes a hole; so does a
    /// chunk file that is on none, up to its end. Returns the lost parts as `Regions`.
    DiscardLost { range: ByteRange },
    /// Sent to a member that is being resynced: no replica of these whole blocks is intact, so this
    /// one refuses them from now on, too: `Unit`.
    MarkLost { range: ByteRange },
    /// Sent by services, for a complete copy: sets its time to that of the source, instead of the
    /// time of copying; an absent chunk file is ignored: `Unit`.
    SetTime { time: Timestamp },
    /// Sent to a member that is being resynced: digests of its content in a range that begins on a
    /// block, or in the first part of that range: `Survey`, with the two halves of each block's
    /// digest as sums.
    Digests { range: ByteRange },
    /// Gives a resynced member the verifier of the group's replicas, if its own is still the one
    /// under which it was resynced: `Unit`.
    AdoptVerifier { verifier: u64, instead_of: u64 },
    /// Sent by services: measures the hardware without the file system: `Rates`. A drive is that of
    /// the target; networks and processors are those of the receiving node, whichever target is
    /// named. Stops, and cleans up, when the caller no longer waits for it.
    Measure { what: Measure, milliseconds: u64 },
    /// Takes the payload and discards it, to measure a network: `Unit`.
    Traffic,
    /// Sent to a member in sync whose replica is being repaired. Replaces the whole blocks of this
    /// range, whatever their state, by the payload from the range's start on, and by zeros after
    /// it; by zeros without a payload. With `len`, sets the chunk file's length. At every moment,
    /// also after a crash, each block is either correct or refused. On disk before the answer:
    /// `Unit`.
    Rewrite { range: ByteRange, len: Option<u64> },
    /// The same for a member whose chunk file is missing or is another one. Sends the checksums of
    /// the blocks of a chunk file of `len` bytes, from block `first` on, in order, as the payload
    /// with four bytes each. The last ones create the chunk file; its blocks other than zeros are
    /// refused until a [`StorageOp::Rewrite`] brings them: `Unit`.
    ExpectChecksums { first: u64, len: u64 },
    /// Space that is needed to reserve a range of the chunk file, requested before anything is
    /// reserved: `SpaceNeeded`.
    SpaceNeeded { range: ByteRange },
}

/// What to measure, each for the duration in [`StorageOp::Measure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The target's drive, in a file of this size in bytes.
    Drive { size: u64 },
    /// The connection to another node over this many streams, and the round-trip time of a message.
    Network { to: NodeId, streams: u32 },
    /// Memory and processor.
    Cpu,
}

/// Quantity of a rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RateQuantity {
    /// Sequential writes, bytes a second.
    Write,
    /// Sequential reads, bytes a second.
    Read,
    /// Random 4 KiB writes, operations a second.
    RandomWrite,
    /// Random 4 KiB reads, operations a second.
    RandomRead,
    /// Transfer to another node, bytes a second.
    Network,
    /// Sequential round trips of messages a second.
    RoundTrips,
    /// Copies in memory, bytes a second.
    MemoryCopy,
    /// Checksums, bytes a second.
    Checksum,
    /// Stripes of Reed-Solomon 8+2 encoded, bytes of content a second.
    Encoding,
}

/// A measured rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasuredRate {
    /// Quantity.
    pub of: RateQuantity,
    /// Bytes or operations a second.
    pub rate: u64,
    /// Number of streams, transfers in flight or threads that achieved it.
    pub streams: u32,
}

/// Largest number of items in one [`StorageReply::Rates`].
pub const MAX_RATES: usize = 64;

/// Selection of a mirrored group's chunk files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionSelection {
    /// Regions that may differ from the other replicas: dirty regions, also of removed files.
    Dirty,
    /// All files, each from its first byte to its last.
    All,
}

/// Largest number of items in one [`StorageReply::Regions`], unless the first file has more.
pub const MAX_REGIONS: usize = 4096;

/// Largest number of units in one [`StorageReply::Survey`].
pub const MAX_SURVEYED: usize = 4096;

/// Granularity of [`StorageOp::NextDirty`] in bytes.
pub const DIRTY_REGION_BYTES: u64 = 1 << 20;

/// Answers; [`StorageOp`] names the answer of each operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StorageReply {
    Unit,
    /// The same, for a change or a sync from a client. While `verifier` is unchanged, no
    /// acknowledged content was lost: a sync covers what was acknowledged before under its
    /// verifier, and nothing under another one (RFC 1813, section 3.3.21). Never 0.
    Done {
        verifier: u64,
    },
    /// Length in bytes, allocated 512-byte units, time of the last change. `is_lost`: there is no
    /// chunk file, although one was on disk before the last crash.
    Stat {
        len: u64,
        blocks: u64,
        mtime: Timestamp,
        is_lost: bool,
    },
    Offset(Option<u64>),
    /// Capacity and free space in bytes.
    Space {
        capacity: u64,
        free: u64,
    },
    /// Sorted by file and start; `next`: where to continue, `None` at the end.
    Regions {
        regions: Vec<(ChunkFileId, ByteRange)>,
        next: Option<ChunkFileId>,
    },
    Survey(ReplicaState),
    Repaired(RepairResult),
    /// At most [`MAX_RATES`].
    Rates(Vec<MeasuredRate>),
    SpaceNeeded(ReservationSpace),
}

/// Space that a range of a chunk file needs to be fully allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationSpace {
    /// Identifies the disk, unique on its node's machine: targets that share a disk get its free
    /// space counted once.
    pub disk: u64,
    /// Bytes that chunk files may still allocate on it.
    pub free: u64,
    /// Unallocated bytes of the range.
    pub unallocated: u64,
    /// The first unallocated parts of the range, at most [`MAX_GAPS`]: a failed reservation frees
    /// them again.
    pub gaps: Vec<ByteRange>,
    /// The same for the other members of a mirrored group, which get every reservation, too.
    pub others: Vec<MemberSpace>,
}

/// Space that a range of another member's replica needs to be fully allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberSpace {
    /// The member.
    pub target: TargetId,
    /// Its disk, unique on its node's machine.
    pub disk: u64,
    /// Bytes that chunk files may still allocate on it.
    pub free: u64,
    /// Unallocated bytes of the range.
    pub wanted: u64,
}

/// Largest number of items in [`ReservationSpace::gaps`].
pub const MAX_GAPS: usize = 1024;

/// State of a replica of a chunk file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// The file exists, and is the one that its service has open.
    pub exists: bool,
    /// Length in bytes.
    pub len: u64,
    /// End of the last block that has a checksum of data: if it is beyond the length, data was cut
    /// off.
    pub sum_end: u64,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of anything, except by [`StorageOp::SetTime`]; nothing else can set
    /// it.
    pub ctime: Timestamp,
    /// A checksum of the checksums of each unit; 0 for a unit of zeros and for units that are
    /// omitted.
    pub sums: Vec<u32>,
    /// Blocks that don't match their checksums, or can't be read.
    pub damaged: Vec<ByteRange>,
}

/// Result of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairResult {
    /// Ranges that were damaged, missing, or different on a member.
    pub damaged: u64,
    /// Ranges that now equal an intact replica.
    pub repaired: u64,
    /// Ranges without evidence of which replica is correct.
    pub unclear: u64,
}

impl std::ops::AddAssign for RepairResult {
    fn add_assign(&mut self, more: RepairResult) {
        self.damaged += more.damaged;
        self.repaired += more.repaired;
        self.unclear += more.unclear;
    }
}
