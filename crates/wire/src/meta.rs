//! Requests to a metadata service.

use crate::{
    Capability, HeldLock, LeaseGrant, LeaseMode, LockFamily, LockKind, LockOwner, LockRange, Recall,
    RecallAck, ReportedSize, SlotSequence,
};
use bytes::Bytes;
use types::{
    Attr, Chooser, Credentials, Error, InodeId, Layout, PartitionId, PoolId, Scheme, SessionId, SetAttr,
    StripePattern, Timestamp,
};

/// A request with the fields of every request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaRequest {
    /// Session of the client.
    pub session: SessionId,
    /// Slot and sequence id of a change that must not be executed twice. Metadata services have
    /// session slots of their own.
    pub slot_sequence: Option<SlotSequence>,
    /// User on the client who issues the request.
    pub credentials: Credentials,
    /// The client asserts, for this request alone, that the requesting thread has capabilities that
    /// override the rights of its ids, in the user namespace of the mount.
    pub privileged: bool,
    /// The operation.
    pub op: MetaOp,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
    /// As `Replace`, and leaves a whiteout at the old name: a character device 0:0, by which
    /// overlay file systems mark removed names.
    Whiteout,
}

/// How an attribute is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum XattrMode {
    Any,
    /// Must not exist (`XATTR_CREATE`).
    Create,
    /// Must exist (`XATTR_REPLACE`).
    Replace,
}

/// Parts of a stripe pattern to change; `None` leaves a part unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct PatternChange {
    /// Name of the pool.
    pub pool: Option<String>,
    pub chunk_size: Option<u64>,
    pub stripe_count: Option<u64>,
    pub inline_limit: Option<u64>,
    pub chooser: Option<Chooser>,
    /// As text, so that a scheme of a later version is refused by its name.
    pub scheme: Option<String>,
}

/// An asynchronous create: a regular file that an application has created, and perhaps written,
/// before the service has it. Only this session may change the names concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingFile {
    /// Inode number, one of those preallocated for the session
    /// ([`MetaOp::PreallocateInodes`]).
    pub ino: InodeId,
    /// Parent directory.
    pub parent: InodeId,
    /// Name in the parent directory.
    pub name: Bytes,
    /// Requested permission bits.
    pub mode: u32,
    /// Mask of the permission bits to clear.
    pub umask: u32,
    /// When the application created it. The service takes that as the file's time if it is recent.
    pub created: Timestamp,
    /// Complete content, which is inline.
    pub content: Bytes,
    /// The session writes the content to chunks: the service chooses a layout, and records that this
    /// session changes them, as [`MetaOp::BeginWrite`] does. `content` is empty then.
    pub begins_write: bool,
    /// When the application wrote the content; `None` if the file is empty. The service takes that
    /// as the mtime if it is recent.
    pub written: Option<Timestamp>,
    /// Attributes that the application has set since. Its `ctime` is the time of the last change,
    /// and counts only if it is recent.
    pub set: SetAttr,
}

/// An asynchronous create and the user who made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsyncCreate {
    /// The user.
    pub credentials: Credentials,
    /// The file.
    pub file: PendingFile,
}

/// An asynchronous change: one that an application relies on before the service has executed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsyncChange {
    /// The user.
    pub credentials: Credentials,
    /// The same as in the session's own request with this change, so that it is executed once.
    pub slot_sequence: SlotSequence,
    /// `Setattr`, `Unlink` or `Rename`; messages can't contain others.
    pub op: MetaOp,
}

/// The most orphans of one [`MetaOp::Reclaim`].
pub const MAX_RECLAIMED: usize = 128;

/// Operation of a metadata service. Names are single path components without `/` or NUL.
///
/// The service applies `umask`, unless the parent has a default ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetaOp {
    /// Resolves a name to an inode: `Entry`, or `Elsewhere`. `.` and `..` are resolved too (file
    /// handles decoded after a restart).
    Lookup { parent: InodeId, name: Bytes },
    /// `Attr`.
    Getattr { ino: InodeId },
    /// Returns `Attr` after the change. A change of mode updates the mask of an access ACL; the
    /// service sets ctime.
    Setattr { ino: InodeId, set: SetAttr },
    /// Creates a regular file (`Created`), fifo, socket or device node (`Entry`). If the name
    /// exists: `EEXIST` with `exclusive`, else the existing inode's `Entry`. `requested_lease`: the
    /// requested lease on the new inode; without one the answer may grant `Read`.
    Create {
        parent: InodeId,
        name: Bytes,
        mode: u32,
        umask: u32,
        rdev: u32,
        exclusive: bool,
        requested_lease: Option<LeaseMode>,
    },
    /// Preallocates inode numbers for files that the session is going to create in a directory, and
    /// grants the directory delegation (`Write`): `Preallocated`, with at most `count` numbers. The
    /// service first recalls other sessions' leases on the directory. `EBUSY` if something of the
    /// directory was recalled a moment ago and other sessions use it, if it has a default ACL that
    /// decides the attributes of its files, and for sessions with squashed users or read-only
    /// access.
    ///
    /// With a `prefix`, of at most 255 bytes, it grants a name-prefix delegation: `Write` on the
    /// names that begin with the prefix, and no others. That is a lease on an inode number that
    /// stands for these names and that no file gets ([`MetaReply::Preallocated::range`]). Other
    /// sessions continue to use the directory, with `Permissions` on it. `EBUSY` also if other
    /// sessions have an overlapping prefix or the whole directory, and if there are too many
    /// prefixes.
    PreallocateInodes { dir: InodeId, count: u32, prefix: Bytes },
    /// Commits an asynchronous create: `Created`, or the `Entry` of the file if it exists by then,
    /// and `EEXIST` if the name belongs to another file.
    CommitCreate { file: Box<PendingFile> },
    /// `Entry`.
    Mkdir { parent: InodeId, name: Bytes, mode: u32, umask: u32 },
    /// `Entry`.
    Symlink { parent: InodeId, name: Bytes, target: Bytes },
    /// Creates a regular file without a name (an orphan until it is linked): `Created`.
    Tmpfile { parent: InodeId, mode: u32, umask: u32 },
    /// `Entry` of the inode with its new link count.
    Link { ino: InodeId, parent: InodeId, name: Bytes },
    /// `Entry` of the inode after the removal; `nlink == 0`: it is an orphan until reclaimed. With
    /// `ino`, `ENOENT` if the name belongs to another inode.
    Unlink { parent: InodeId, name: Bytes, ino: Option<InodeId> },
    /// As `Unlink`, for an empty directory.
    Rmdir { parent: InodeId, name: Bytes },
    /// `Renamed`.
    Rename { parent: InodeId, name: Bytes, new_parent: InodeId, new_name: Bytes, mode: RenameMode },
    /// `Bytes`: the target of a symlink.
    Readlink { ino: InodeId },
    /// `Directory`: entries after `cookie` (0 from the start), at most `limit`, without `.` and
    /// `..`; `attributes` adds each entry's attributes. With a `prefix`, only the entries whose
    /// names begin with it, and the last entry, whose cookie is needed to continue.
    Readdir { dir: InodeId, cookie: u64, limit: u32, attributes: bool, prefix: Bytes },
    /// `Bytes`.
    GetXattr { ino: InodeId, name: Bytes },
    /// `Attr`. `kill_sgid`: clear setgid, as a change of the access ACL by a user outside of the
    /// file's group must.
    SetXattr { ino: InodeId, name: Bytes, value: Bytes, mode: XattrMode, kill_sgid: bool },
    /// `Names`.
    ListXattr { ino: InodeId },
    /// `Attr`.
    RemoveXattr { ino: InodeId, name: Bytes },

    /// `File`: attributes with layout or inline content. `requested_lease`: the requested lease. A
    /// weaker one may be granted (`Shared` for `Write` while others write the file), or none while
    /// the session has an unanswered recall of it. A session that has `Shared` and requests `Write`
    /// needs exclusive access: other sessions' leases are recalled. `Shared` doesn't exist for
    /// inline content. `None` requests no lease. The service records that the session has the file
    /// open until its `Release`.
    Open { ino: InodeId, requested_lease: Option<LeaseMode> },
    /// As an `Open` without a requested lease, from a client that has the file open and needs an
    /// epoch above `past`: a request under `past` may still be in flight to a target, or a target
    /// has refused it: `File`.
    Reopen { ino: InodeId, above_epoch: u64 },
    /// Whether the user may open the file with this access (`4`: to read, `2`: to write, `1`: to
    /// execute it; `8`: its owner may in any case): `Unit`, or `EACCES`. A client sends it if users
    /// are squashed: its kernel checks another user than the service does.
    MayOpen { ino: InodeId, wanted: u32 },
    /// Writes into inline content: `Attr`. `ERANGE` if the file isn't inline or would outgrow the
    /// limit: the client then moves it to chunks (`BeginWrite`, write the content to its chunks,
    /// `DropInline`). `Truncate` changes the size of inline files. `at_end`: only if the file ends
    /// at `offset`, as it did under the client's lease; else `EndedLease`, since that lease has
    /// ended and others have written there.
    WriteInline { ino: InodeId, offset: u64, data: Bytes, kill_suid_sgid: bool, at_end: bool },
    /// Durably records that this session changes the file's chunks, and chooses the layout if the
    /// file has none: `File`. Until the matching `EndWrite`, the client determines size and mtime;
    /// if the session dies, size recovery finds them from the chunk files.
    BeginWrite { ino: InodeId },
    /// The content is in the chunks now; removes the inline copy: `Attr`, with a `Write` lease.
    /// `EndedLease` if the session no longer changes the chunks: size recovery meanwhile discarded
    /// what it had written there, in favour of the inline copy.
    DropInline { ino: InodeId, size: u64, mtime: Timestamp },
    /// Reports size, allocated 512-byte units and mtime; `done` ends what `BeginWrite` began:
    /// `Attr`. Never shrinks a file by itself: the caller knows the exact size. `lens`: lengths of
    /// the chunk files in stripe order, 0 for those that the client couldn't query; or empty. The
    /// service records them as [`FileInfo::length_bounds`].
    EndWrite {
        ino: InodeId,
        size: u64,
        blocks: u64,
        lens: Vec<u64>,
        mtime: Option<Timestamp>,
        done: bool,
        kill_suid_sgid: bool,
    },
    /// Sets the size: `File`, with a `Write` lease. Inline content is cut or padded in place. For a
    /// chunked file the service durably records that its chunks must be cut to `size`; the client
    /// cuts them and then sends `TruncateDone`.
    Truncate { ino: InodeId, size: u64, kill_suid_sgid: bool },
    /// The chunks are cut: `Unit`.
    TruncateDone { ino: InodeId },
    /// This session no longer uses these orphans, which are in one partition: `Unit`. The inodes
    /// that no session uses are removed at once, their chunks soon. `EINVAL` for more than
    /// [`MAX_RECLAIMED`], and for those of several partitions. Services of version 0.1.0 ignore
    /// `others`, which stay until the session ends.
    Reclaim { ino: InodeId, others: Vec<InodeId> },

    /// `Unit`, or `EAGAIN` if the lock is held and `wait` is false; with `wait` the reply is sent
    /// when the lock is granted.
    Lock {
        ino: InodeId,
        family: LockFamily,
        owner: LockOwner,
        pid: u32,
        kind: LockKind,
        range: LockRange,
        wait: bool,
    },
    /// `Unit`.
    Unlock { ino: InodeId, family: LockFamily, owner: LockOwner, range: LockRange },
    /// `Lock`: the first conflicting lock, if any.
    TestLock { ino: InodeId, owner: LockOwner, kind: LockKind, range: LockRange },
    /// Lock reclaim: a session that is about to register with a restarted service reports its
    /// locks, in as many requests as it takes, the last of them answered before `Register`: `Unit`.
    /// No lock is granted until every earlier session has returned or is ended. `EAGAIN` if another
    /// session holds one of them: that lock is lost.
    ReclaimLocks { locks: Vec<HeldLock> },
    /// A session that is about to register, or to follow partitions, reports the inodes of which it
    /// has files open, in as many requests as it takes. The last of them is answered before
    /// `Register` or `Follow`, which brings the rest: `Unit`. No other client is admitted before
    /// that one.
    ReclaimOpens { inodes: Vec<InodeId> },
    /// A session that is about to register, or to follow, reports the size of files whose chunks it
    /// was changing under `Write` when that lease ended with the service that had granted it. It
    /// takes as many requests as needed, the last of them answered before `Register` or `Follow`.
    /// Size recovery of such a file cuts chunks beyond that size: they hold parts of unacknowledged
    /// writes, which the client repeats. Sizes of a session that is already registered are ignored.
    /// The answer is `Process`: the session later names that number as the process it reported to,
    /// and requests it before any other report (without sizes, if it has none).
    ReclaimSizes { sizes: Vec<ReportedSize> },

    /// Registers the session, or registers it again when the service doesn't know it (`ENOTCONN`):
    /// `Unit`. The session has no lease then, and caches nothing. `in_use`: the inodes of which it
    /// has files open, as far as `ReclaimOpens` hasn't reported them. The session requests recalls
    /// from 0 on. Sessions that didn't register get no leases. For partitions that the service took
    /// over from another one the session must report the same by `Follow`. The service commits the
    /// `pending_creates` and `pending_changes` before it admits other clients: applications rely on
    /// these.
    /// `reporting_process`: the process of the service that received the session's reports
    /// (`Process`), 0 if none did. A process that was started since refuses (`EAGAIN`): it has no
    /// record of the reported locks, open files and sizes.
    Register {
        in_use: Vec<InodeId>,
        pending_creates: Vec<AsyncCreate>,
        pending_changes: Vec<AsyncChange>,
        reporting_process: u64,
    },
    /// The session follows partitions to this service from the former owner, as the service
    /// requested (`Adopted`): `Unit`. The session has dropped everything that it cached of their
    /// inodes and has no lease on any, nor any recall to answer; `in_use` as with `Register`. The
    /// service drops its record of the session's leases and uses there, and runs size recovery for
    /// what the session wrote and didn't report. It reads again the answers that the former owner
    /// gave the session, so that a retransmitted change isn't executed twice. `PartitionNotServed`
    /// if the service doesn't own one of them (any more). `pending_creates`, `pending_changes` and
    /// `reporting_process`: as with `Register`.
    Follow {
        partitions: Vec<PartitionId>,
        in_use: Vec<InodeId>,
        pending_creates: Vec<AsyncCreate>,
        pending_changes: Vec<AsyncChange>,
        reporting_process: u64,
    },
    /// Waits for recalls with numbers above `after`, for some seconds at most: `Recalls`, possibly
    /// empty, or at once `Adopted` while there are partitions that the session has yet to follow.
    /// This request also renews the session.
    NextRecalls { after: u64 },
    /// Supplies further group ids of the user in the request's credentials: `Unit`. A kernel's
    /// request has one group only. So a client sends them when the service refused what its kernel
    /// had allowed (`EACCES`, `EPERM`), and then repeats the request. `ino`: the inode of that
    /// request.
    SupplyGroups { ino: InodeId, groups: Vec<u32> },
    /// Acknowledges recalls: `Unit`.
    AckRecalls { acks: Vec<RecallAck> },
    /// The session is still working on unanswered recalls with numbers up to `seen` (dirty data
    /// must reach a storage service that doesn't answer): `Unit`. Repeated while that lasts.
    RecallsInProgress { seen: u64 },
    /// The session has no lease on these inodes and no open file of them any more: `Unit`. `seen`:
    /// the last recall that it had seen when it released them; a grant after later recalls stays in
    /// force.
    Release { inodes: Vec<InodeId>, seen: u64 },
    /// Ends the session in an orderly way, with its locks, leases and open files: `Unit`.
    EndSession,

    /// `Description`.
    Describe { ino: InodeId },
    /// Changes a directory's pattern for new files: `Description`.
    SetPattern { dir: InodeId, change: PatternChange },
    /// Migrates a file to groups of another pool or scheme, in the background; `None` leaves one
    /// unchanged: `Migration`.
    Migrate { ino: InodeId, pool: Option<String>, scheme: Option<String> },
    /// Progress of a migration: `Migration`.
    MigrationOf { ino: InodeId },
    /// Files have been read: `Unit`. Updates their access times, unless the file was changed since,
    /// and without recalling cached attributes of other sessions. Files that don't exist or that
    /// this service doesn't own are ignored.
    NoteAccess { accesses: Vec<AccessTime> },
    /// Number of inodes in the partitions that the service owns: `Usage`.
    Usage,
    /// Makes everything acknowledged before durable: `Unit`.
    Sync,
}

/// A write of a new file's chunks that the session may continue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BegunWrite {
    /// Layout of the chunks.
    pub layout: Layout,
    /// Lease epoch, as in [`FileInfo::epoch`].
    pub epoch: u64,
}

/// A file's content as the metadata service knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Attributes.
    pub attr: Attr,
    /// Layout of its chunks; `None` while it has none.
    pub layout: Option<Layout>,
    /// Lower bounds of the lengths of its chunk files, in stripe order; empty if unknown.
    pub length_bounds: Vec<u64>,
    /// Inline content; shorter than `attr.size` where the rest is a hole. `None` for a chunked
    /// file.
    pub inline: Option<Bytes>,
    /// Largest inline content in bytes.
    pub inline_limit: u32,
    /// Lease epoch of a chunked file, sent with every request for its chunks: it grows whenever the
    /// right to change them passes on. 0 where none is needed, without leases or without chunks.
    pub epoch: u64,
    /// The session has truncated the file, and hasn't reported yet that its chunks are cut
    /// ([`MetaOp::TruncateDone`]).
    pub truncate_pending: bool,
    /// No session has a write record of the file: all sizes and times are reported. Only in answers
    /// to an [`MetaOp::Open`] without a requested lease; services of version 0.1.0 never say so.
    pub is_reported: bool,
}

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Bytes,
    /// Inode of the entry.
    pub ino: InodeId,
    /// Type bits of its mode.
    pub mode: u32,
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Attributes, if requested.
    pub attr: Option<Attr>,
}

/// Everything that `weft entry info` shows.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct EntryDescription {
    pub attr: Attr,
    /// A directory's pattern for new files, or a file's own.
    pub pattern: StripePattern,
    /// Name of the pattern's pool.
    pub pool: String,
    pub layout: Option<Layout>,
    /// Length of the inline content.
    pub inline: Option<u64>,
}

/// A file that is being migrated, or whose migration was abandoned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Destination pool.
    pub pool: PoolId,
    /// Redundancy scheme of the destination groups.
    pub scheme: Scheme,
    /// Bytes to copy in total.
    pub bytes: u64,
    /// Bytes copied so far.
    pub bytes_moved: u64,
    /// What delays it, or why it was abandoned.
    pub error: Option<Error>,
    /// The migration was abandoned.
    pub given_up: bool,
}

/// A durable record of a file whose chunks may differ from its inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRecord {
    /// The file.
    pub ino: InodeId,
    /// Session that writes.
    pub session: SessionId,
    /// The chunks must be cut to this size.
    pub truncate_to: Option<u64>,
}

/// Answers; [`MetaOp`] names the answer of each operation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum MetaReply {
    Unit,
    Entry(Attr),
    /// A regular file that was just created.
    Created {
        attr: Attr,
        /// Largest inline content in bytes.
        inline_limit: u32,
        /// It has no extended attributes, ACLs included.
        has_no_xattrs: bool,
        /// The write that the command has begun; `None` for a file without chunks.
        begun: Option<Box<BegunWrite>>,
    },
    Attr(Attr),
    /// The renamed inode, and the one that was replaced (or exchanged), after the operation.
    Renamed {
        moved: Attr,
        other: Option<Attr>,
    },
    Bytes(Bytes),
    Names(Vec<Bytes>),
    /// `parent`: the inode of `..`.
    Directory {
        entries: Vec<DirEntry>,
        end: bool,
        parent: InodeId,
    },
    File(FileInfo),
    Lock(Option<(LockKind, LockRange, u32)>),
    Recalls(Vec<Recall>),
    Description(Box<EntryDescription>),
    /// `None`: the file isn't being migrated.
    Migration(Option<Box<Migration>>),
    /// Instead of `Entry`: another service owns the inode's partition; it has the attributes and
    /// grants the lease. Or other clients are writing the file, and its size must be queried from
    /// its chunk files, too.
    Redirect {
        ino: InodeId,
        /// Type bits of its mode.
        mode: u32,
    },
    /// Inode numbers from `first` up, which no other file has or will have. Files created with them
    /// in the directory get no more than the requested permissions.
    Preallocated {
        first: InodeId,
        count: u32,
        /// The directory.
        attr: Attr,
        /// Largest inline content of its files in bytes.
        inline_limit: u32,
        /// With a prefix: the inode number that carries the lease.
        prefix_lease: Option<InodeId>,
    },
    Usage(MetadataUsage),
    /// Number of the service's process; it changes with each start.
    Process(u64),
    /// The service took these partitions over from another one. The session can't read or change
    /// anything there until it follows (`Follow`), or is ended.
    PartitionsTakenOver {
        partitions: Vec<PartitionId>,
    },
}

/// When a file was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct AccessTime {
    pub ino: InodeId,
    pub at: Timestamp,
}

/// Inodes of a metadata service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MetadataUsage {
    /// Number of inodes in its partitions, orphans included.
    pub inodes: u64,
    /// Space of the store that all services share; `None` if another process has it.
    pub store: Option<StoreSpace>,
}

/// Disk space of the metadata store, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreSpace {
    /// Bytes in use.
    pub used: u64,
    /// Bytes by which the store may still grow.
    pub free: u64,
}

/// A reply with the fields of every reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaResponse {
    /// The answer.
    pub reply: MetaReply,
    /// Leases that it grants.
    pub grants: Vec<LeaseGrant>,
    /// Number of the session's last recall before the grants. A client that has seen a later recall
    /// can't tell whether it concerns these leases, and doesn't rely on them.
    pub recalls: u64,
    /// The session's rights on the chunks of the file in question, to be shown to storage services.
    pub capability: Option<Capability>,
    /// Directories that the request changed and on which the session holds a lease, in their
    /// current state.
    pub directories: Vec<DirectoryState>,
    /// Verifier of the metadata store: while it is unchanged, everything that the store
    /// acknowledged is in memory or on disk. Set in the answers to `Register`, `Follow` and `Sync`;
    /// else 0.
    pub verifier: u64,
}

/// State of a directory at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryState {
    /// Its attributes.
    pub attr: Attr,
    /// Order of states of one directory under one lease: the larger number is the later state.
    pub state_number: u64,
}

impl From<MetaReply> for MetaResponse {
    fn from(reply: MetaReply) -> MetaResponse {
        MetaResponse {
            reply,
            grants: Vec::new(),
            recalls: 0,
            capability: None,
            directories: Vec::new(),
            verifier: 0,
        }
    }
}
