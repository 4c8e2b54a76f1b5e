//! Requests to a metadata service.

use crate::{
    Capability, Grant, HeldLock, KnownSize, LeaseMode, LockKind, LockOwner, LockRange, LockSpace, Number,
    Recall, Yield,
};
use bytes::Bytes;
use types::{
    Attr, Chooser, Credentials, Error, InodeId, Layout, PartitionId, PoolId, Scheme, SessionId, SetAttr,
    StripePattern, Timestamp,
};

/// A request with what every request carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaRequest {
    /// The client that asks.
    pub session: SessionId,
    /// Of a change that must not be made twice. Metadata services have lanes of their own.
    pub number: Option<Number>,
    /// Who asks, on the client.
    pub credentials: Credentials,
    /// The client vouches, for this request alone, that the requesting thread has capabilities that
    /// override what its ids allow, in the user namespace of the mount.
    pub privileged: bool,
    /// What is asked.
    pub op: MetaOp,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
    /// As `Replace`, and leaves a whiteout at the old place: a character device 0:0, by which
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

/// Parts of a stripe pattern to change; `None` leaves one alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct PatternChange {
    /// Name of the pool.
    pub pool: Option<String>,
    pub chunk_size: Option<u64>,
    pub stripe_count: Option<u64>,
    pub inline_limit: Option<u64>,
    pub chooser: Option<Chooser>,
    /// In words, so that those of later versions are refused with their name.
    pub scheme: Option<String>,
}

/// A regular file that a program has made in a directory whose names only its session changes, and
/// has written perhaps, before the service has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromisedFile {
    /// Its number, one of those that the session has got ([`MetaOp::Reserve`]).
    pub ino: InodeId,
    /// Its directory.
    pub parent: InodeId,
    /// Its name there.
    pub name: Bytes,
    /// Permission bits that were asked for.
    pub mode: u32,
    /// What is taken off them.
    pub umask: u32,
    /// When the program has made it. The service takes that for the file's time if it is of the
    /// last moment.
    pub made: Timestamp,
    /// All of its content, which is inline.
    pub content: Bytes,
}

/// Such a file, and who has made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promise {
    /// The user.
    pub credentials: Credentials,
    /// The file.
    pub file: PromisedFile,
}

/// What is asked of a metadata service. Names are single path components without `/` or NUL.
///
/// `umask` is applied by the service, unless the parent has a default ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetaOp {
    /// Name to inode: `Entry`, or `Elsewhere`. `.` and `..` are answered too (file handles decoded
    /// after a restart).
    Lookup { parent: InodeId, name: Bytes },
    /// `Attr`.
    Getattr { ino: InodeId },
    /// `Attr` after the change. A change of mode updates the mask of an access ACL; ctime is set by
    /// the service.
    Setattr { ino: InodeId, set: SetAttr },
    /// Makes a regular file (`Created`), fifo, socket or device node (`Entry`). When the name
    /// exists: `EEXIST` if `exclusive`, else the existing one's `Entry`. `wish`: the lease that is
    /// asked for on what is made; without one, `Read` may come with it.
    Create {
        parent: InodeId,
        name: Bytes,
        mode: u32,
        umask: u32,
        rdev: u32,
        exclusive: bool,
        wish: Option<LeaseMode>,
    },
    /// Numbers for files that the session is going to make in a directory, and `Write` on that:
    /// `Reserved`, with as many as `count` at most. What others keep of the directory they give up
    /// first. `EBUSY` where something of it was recalled a moment ago and others are there, where a
    /// default ACL decides what its files are, and to sessions whose users are squashed or may only
    /// read.
    ///
    /// With a `prefix`, of at most 255 bytes, it is `Write` on the names that begin so, and no
    /// others: a lease on an inode number that no file gets and that stands for them
    /// ([`MetaReply::Reserved::range`]). Others go on using the directory, with `Permissions` on
    /// it. `EBUSY` also where others have names that overlap with these, or the directory as a
    /// whole, and where there are too many such ranges.
    Reserve { dir: InodeId, count: u32, prefix: Bytes },
    /// Makes a file that programs have already: `Created`, or its `Entry` when it has been made by
    /// then, and `EEXIST` when the name is another file's.
    Deliver { file: Box<PromisedFile> },
    /// `Entry`.
    Mkdir { parent: InodeId, name: Bytes, mode: u32, umask: u32 },
    /// `Entry`.
    Symlink { parent: InodeId, name: Bytes, target: Bytes },
    /// A regular file without a name (an orphan from birth, until it is linked): `Created`.
    Tmpfile { parent: InodeId, mode: u32, umask: u32 },
    /// `Entry` of the inode with its new link count.
    Link { ino: InodeId, parent: InodeId, name: Bytes },
    /// `Entry` of the inode as it is after the removal; `nlink == 0`: it is an orphan until
    /// reclaimed.
    Unlink { parent: InodeId, name: Bytes },
    /// As `Unlink`, for an empty directory.
    Rmdir { parent: InodeId, name: Bytes },
    /// `Renamed`.
    Rename { parent: InodeId, name: Bytes, new_parent: InodeId, new_name: Bytes, mode: RenameMode },
    /// `Bytes`: the target of a symlink.
    Readlink { ino: InodeId },
    /// `Directory`: entries after `cookie` (0 from the start), at most `limit`, without `.` and
    /// `..`; `attributes` adds each entry's attributes. With a `prefix`, of those entries only the
    /// ones whose names begin so, and the last one, whose cookie is needed to go on.
    Readdir { dir: InodeId, cookie: u64, limit: u32, attributes: bool, prefix: Bytes },
    /// `Bytes`.
    GetXattr { ino: InodeId, name: Bytes },
    /// `Attr`. `kill_sgid`: clear setgid as a change of the access ACL by an outsider must.
    SetXattr { ino: InodeId, name: Bytes, value: Bytes, mode: XattrMode, kill_sgid: bool },
    /// `Names`.
    ListXattr { ino: InodeId },
    /// `Attr`.
    RemoveXattr { ino: InodeId, name: Bytes },

    /// `File`: attributes with layout or inline content. `wish`: the lease that is asked for; what
    /// is granted may be weaker (`Shared` for `Write` while others write the file), or nothing
    /// while the session has a recall of it to answer. A session that has `Shared` and asks for
    /// `Write` needs to be alone, and others lose theirs; of inline content there is no `Shared`.
    /// `None` asks for no lease. Until its `Release` the service knows that the session has the
    /// file open.
    Open { ino: InodeId, wish: Option<LeaseMode> },
    /// As an `Open` without a wish, by who has the file open and needs an epoch above `past` for
    /// it: something that was sent under that one may still be on its way to a target, or a target
    /// has refused it: `File`.
    Reopen { ino: InodeId, past: u64 },
    /// Whether who asks may open the file like this (`4`: to read, `2`: to write, `1`: to run it;
    /// `8`: its owner may in any case): `Unit`, or `EACCES`. A client asks it where users are
    /// squashed, whom its kernel takes for somebody else than the service does.
    MayOpen { ino: InodeId, wanted: u32 },
    /// Writes into inline content: `Attr`. `ERANGE` when the file is not inline or would not be any
    /// more: the client then moves it to chunks (`BeginWrite`, write the content to its chunks,
    /// `DropInline`). Truncated inline files are changed by `Truncate`. `at_end`: only if the file
    /// ends at `offset`, as it did under the lease of who asks; else `EKEYEXPIRED`, since that
    /// lease has ended and others have written there.
    WriteInline { ino: InodeId, offset: u64, data: Bytes, kill_suid_sgid: bool, at_end: bool },
    /// Durably notes that this session changes the file's chunks, choosing its layout when it has
    /// none yet: `File`. Until the matching `EndWrite`, size and mtime are the client's to know; if
    /// the session dies they are settled from the chunk files.
    BeginWrite { ino: InodeId },
    /// The content is in the chunks now; the inline copy goes: `Attr`, with a `Write` lease.
    /// `EKEYEXPIRED` when the session isn't changing the chunks any more: what it had written there
    /// was settled meanwhile, in favour of the inline copy.
    DropInline { ino: InodeId, size: u64, mtime: Timestamp },
    /// Reports size, allocated 512-byte units and mtime; `done` ends what `BeginWrite` began:
    /// `Attr`. Never shrinks a file by itself: the caller knows the exact size. `lens`: lengths of
    /// the chunk files in stripe order, 0 for those that the client couldn't ask; or none. The
    /// service notes them as [`FileInfo::known`].
    EndWrite {
        ino: InodeId,
        size: u64,
        blocks: u64,
        lens: Vec<u64>,
        mtime: Option<Timestamp>,
        done: bool,
        kill_suid_sgid: bool,
    },
    /// Sets the size: `File`, with a `Write` lease. Inline content is cut or padded in place. A
    /// chunked file gets a durable note that its chunks must be cut to `size`; the client cuts them
    /// and then says `TruncateDone`. `time`: set mtime as well.
    Truncate { ino: InodeId, size: u64, kill_suid_sgid: bool },
    /// The chunks are cut: `Unit`.
    TruncateDone { ino: InodeId },
    /// This session has no use of an orphan any more: `Unit`. With the last session's use its inode
    /// goes at once, its chunks soon.
    Reclaim { ino: InodeId },

    /// `Unit`, or `EAGAIN` when the lock is held and `wait` is false; with `wait` the reply comes
    /// when the lock is granted.
    Lock {
        ino: InodeId,
        space: LockSpace,
        owner: LockOwner,
        pid: u32,
        kind: LockKind,
        range: LockRange,
        wait: bool,
    },
    /// `Unit`.
    Unlock { ino: InodeId, space: LockSpace, owner: LockOwner, range: LockRange },
    /// `Lock`: the first lock in the way, if any.
    TestLock { ino: InodeId, owner: LockOwner, kind: LockKind, range: LockRange },
    /// A session that is about to register with a service that was started anew says which locks it
    /// holds; in as many requests as it takes, the last of them answered before `Register`: `Unit`.
    /// Until every session of before is back or ended, nobody is granted a lock. `EAGAIN` when one
    /// of them is held by somebody else: that one is lost.
    ReclaimLocks { locks: Vec<HeldLock> },
    /// A session that is about to register, or to follow partitions, says of which inodes it has
    /// files open; in as many requests as it takes, the last of them answered before `Register` or
    /// `Follow`, which brings the rest of them: `Unit`. Nobody else is let in before that one.
    ReclaimOpens { inodes: Vec<InodeId> },
    /// A session that is about to register, or to follow, tells the size of files whose chunks it
    /// was changing under `Write` when that lease ended with the service that had granted it; in as
    /// many requests as it takes, the last of them answered before `Register` or `Follow`: `Unit`.
    /// When the service settles such a file, it cuts chunks that reach beyond that size: they hold
    /// parts of writes that no application has been told of, and that the client repeats. Sizes
    /// that come when the session is back already are ignored. The answer is `Process`: by that
    /// number the session says to whom it has told what it has, and asks for it before it tells
    /// anything (without sizes, if it has none).
    ReclaimSizes { sizes: Vec<KnownSize> },

    /// Makes the session known, or known again when the service says that it isn't (`ENOTCONN`):
    /// `Unit`. It has no lease then, and caches nothing; `in_use` are the inodes of which it has
    /// files open, as far as `ReclaimOpens` hasn't said so. Its recalls are asked for from 0 on.
    /// Sessions that didn't register get no leases. Of partitions that came to the service from
    /// another one the session has to say the same by `Follow`. The service makes the `promised`
    /// files before it lets others in: programs have them. `told`: the process of the service that
    /// was told what the session has (`Process`), 0 when none was. Another one, which has been
    /// started since, refuses (`EAGAIN`): it would take locks, open files and sizes of which it has
    /// not heard for none.
    Register { in_use: Vec<InodeId>, promised: Vec<Promise>, told: u64 },
    /// The session follows partitions that another service executed before to this one, which asked
    /// for it (`Adopted`): `Unit`. It has dropped everything that it cached of their inodes and has
    /// no lease on any, nor any recall to answer; `in_use` as with `Register`. The service forgets
    /// what leases and uses it knew of the session there, settles what the session wrote and didn't
    /// report, and looks again for answers that the other service gave it, so that a change which
    /// is sent again isn't made twice. `EREMOTE` when one of them isn't the service's (any more).
    /// `promised` and `told`: as with `Register`.
    Follow { partitions: Vec<PartitionId>, in_use: Vec<InodeId>, promised: Vec<Promise>, told: u64 },
    /// Waits for recalls with numbers above `after`, for some seconds at most: `Recalls`, maybe
    /// none, or at once `Adopted` as long as there are partitions to which the session has yet to
    /// follow. Being asked again and again, it also tells that the session lives.
    NextRecalls { after: u64 },
    /// Says more of who asks by the request's credentials: `Unit`. A kernel's request has one group
    /// only, so a client says it when the service refused what its kernel had allowed (`EACCES`,
    /// `EPERM`), and then asks again. `ino`: what that was about.
    Introduce { ino: InodeId, groups: Vec<u32> },
    /// Answers recalls: `Unit`.
    Yield { yields: Vec<Yield> },
    /// The recalls with numbers up to `seen` that are not answered yet are being worked on (what is
    /// written has to reach a storage service that doesn't answer): `Unit`. To be said again while
    /// it lasts.
    StillYielding { seen: u64 },
    /// The session has no lease on these inodes and no open file of them any more: `Unit`. `seen`:
    /// recalls that it had seen when it let go; of a grant made after later ones the service knows
    /// better.
    Release { inodes: Vec<InodeId>, seen: u64 },
    /// Ends the session in good order: its locks, leases and open files go: `Unit`.
    EndSession,

    /// `Description`.
    Describe { ino: InodeId },
    /// Changes what a directory hands to new files: `Description`.
    SetPattern { dir: InodeId, change: PatternChange },
    /// Moves a file to groups of another pool or scheme, in the background; `None` leaves one as it
    /// is: `Migration`.
    Migrate { ino: InodeId, pool: Option<String>, scheme: Option<String> },
    /// How far that is: `Migration`.
    MigrationOf { ino: InodeId },
    /// Files have been read: `Unit`. Their access times follow, where nothing else has been done to
    /// them since, and without a word to others who keep their attributes. Of files that aren't
    /// there, or aren't executed by this service, nothing is noted.
    NoteAccess { accesses: Vec<AccessTime> },
    /// How many inodes there are in the partitions that the service executes: `Usage`.
    Usage,
    /// Everything acknowledged before is on disk when this answers: `Unit`.
    Sync,
}

impl MetaOp {
    /// Whether the service alone checks the user's permission. The client's kernel checks the other
    /// changes before it sends them. It takes these for something else: for a created file that
    /// needs no check, and for an extended attribute that needs write permission only.
    pub fn is_unchecked_by_kernel(&self) -> bool {
        matches!(self, MetaOp::MayOpen { .. } | MetaOp::SetPattern { .. } | MetaOp::Migrate { .. })
    }

    /// The inode that is asked about or changed, of a name the directory that it is in: the service
    /// that executes its partition is to be asked. `None` for what concerns a session or a service
    /// as a whole.
    pub fn subject(&self) -> Option<InodeId> {
        match self {
            MetaOp::Lookup { parent, .. }
            | MetaOp::Create { parent, .. }
            | MetaOp::Reserve { dir: parent, .. }
            | MetaOp::Mkdir { parent, .. }
            | MetaOp::Symlink { parent, .. }
            | MetaOp::Tmpfile { parent, .. }
            | MetaOp::Unlink { parent, .. }
            | MetaOp::Rmdir { parent, .. }
            | MetaOp::Rename { parent, .. }
            | MetaOp::Link { parent, .. } => Some(*parent),
            MetaOp::Deliver { file } => Some(file.parent),
            MetaOp::Readdir { dir, .. } | MetaOp::SetPattern { dir, .. } => Some(*dir),
            MetaOp::Getattr { ino }
            | MetaOp::Setattr { ino, .. }
            | MetaOp::Readlink { ino }
            | MetaOp::GetXattr { ino, .. }
            | MetaOp::SetXattr { ino, .. }
            | MetaOp::ListXattr { ino }
            | MetaOp::RemoveXattr { ino, .. }
            | MetaOp::Open { ino, .. }
            | MetaOp::Reopen { ino, .. }
            | MetaOp::MayOpen { ino, .. }
            | MetaOp::WriteInline { ino, .. }
            | MetaOp::BeginWrite { ino }
            | MetaOp::DropInline { ino, .. }
            | MetaOp::EndWrite { ino, .. }
            | MetaOp::Truncate { ino, .. }
            | MetaOp::TruncateDone { ino }
            | MetaOp::Reclaim { ino }
            | MetaOp::Lock { ino, .. }
            | MetaOp::Unlock { ino, .. }
            | MetaOp::TestLock { ino, .. }
            | MetaOp::Introduce { ino, .. }
            | MetaOp::Migrate { ino, .. }
            | MetaOp::MigrationOf { ino }
            | MetaOp::Describe { ino } => Some(*ino),
            MetaOp::ReclaimLocks { .. }
            | MetaOp::ReclaimOpens { .. }
            | MetaOp::ReclaimSizes { .. }
            | MetaOp::StillYielding { .. }
            | MetaOp::Register { .. }
            | MetaOp::Follow { .. }
            | MetaOp::NextRecalls { .. }
            | MetaOp::Yield { .. }
            | MetaOp::Release { .. }
            | MetaOp::EndSession
            | MetaOp::NoteAccess { .. }
            | MetaOp::Usage
            | MetaOp::Sync => None,
        }
    }
}

/// A file's content as the metadata service knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Attributes.
    pub attr: Attr,
    /// Where its chunks are; `None` while it has none.
    pub layout: Option<Layout>,
    /// Lower bounds of the lengths of its chunk files, in stripe order; empty when nothing is
    /// known.
    pub known: Vec<u64>,
    /// Inline content; shorter than `attr.size` where the rest is a hole. `None` for a chunked
    /// file.
    pub inline: Option<Bytes>,
    /// The most bytes that may live inline.
    pub inline_limit: u32,
    /// The lease epoch of a file in chunks, to be sent with every request for them: it grows
    /// whenever the right to change them passes on. 0 for who needs none, since there are no
    /// leases, or no chunks.
    pub epoch: u64,
    /// The session has shortened the file, and hasn't said yet that its chunks are cut
    /// ([`MetaOp::TruncateDone`]).
    pub uncut: bool,
}

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Bytes,
    /// What it names.
    pub ino: InodeId,
    /// Type bits of its mode.
    pub mode: u32,
    /// Where to go on after this entry.
    pub cookie: u64,
    /// When they were asked for.
    pub attr: Option<Attr>,
}

/// Everything that `weft entry info` shows.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Description {
    pub attr: Attr,
    /// A directory's pattern for new files, or a file's own.
    pub pattern: StripePattern,
    /// Name of the pattern's pool.
    pub pool: String,
    pub layout: Option<Layout>,
    /// Length of the inline content.
    pub inline: Option<u64>,
}

/// A file that moves to other groups, or has been given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Where it goes.
    pub pool: PoolId,
    /// How its groups keep data there.
    pub scheme: Scheme,
    /// What there was to copy.
    pub bytes: u64,
    /// How much of that has been copied.
    pub bytes_moved: u64,
    /// What keeps it for now, or what it was given up for.
    pub error: Option<Error>,
    /// It is not tried any more.
    pub given_up: bool,
}

/// A durable note on a file whose chunks may differ from what its inode says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRecord {
    /// The file.
    pub ino: InodeId,
    /// Who writes.
    pub session: SessionId,
    /// The chunks must be cut to this size.
    pub truncate_to: Option<u64>,
}

/// Answers; which one belongs to which request is said there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum MetaReply {
    Unit,
    Entry(Attr),
    /// A regular file that was made just now: empty, without chunks.
    Created {
        attr: Attr,
        /// The most bytes that may live inline.
        inline_limit: u32,
        /// It has no extended attributes, ACLs included.
        bare: bool,
    },
    Attr(Attr),
    /// The inode that moved, and the one that was replaced (or exchanged), as they are afterwards.
    Renamed {
        moved: Attr,
        other: Option<Attr>,
    },
    Bytes(Bytes),
    Names(Vec<Bytes>),
    /// `parent` answers `..`.
    Directory {
        entries: Vec<DirEntry>,
        end: bool,
        parent: InodeId,
    },
    File(FileInfo),
    Lock(Option<(LockKind, LockRange, u32)>),
    Recalls(Vec<Recall>),
    Description(Box<Description>),
    /// `None`: the file doesn't move.
    Migration(Option<Box<Migration>>),
    /// Instead of `Entry`: what the name names is of a partition that another service executes,
    /// which knows its attributes and grants the lease on it; or others are writing it, and who
    /// asks for its attributes asks its chunk files for its size, too.
    Elsewhere {
        ino: InodeId,
        /// Type bits of its mode.
        mode: u32,
    },
    /// Numbers that no other file has or will have, up from `first`. Files made with them in the
    /// directory have no more than the permissions that are asked for.
    Reserved {
        first: InodeId,
        count: u32,
        /// The directory.
        attr: Attr,
        /// The most bytes that may live inline in its files.
        inline_limit: u32,
        /// The number on which the lease is, where it is one on names with a prefix.
        range: Option<InodeId>,
    },
    Usage(Usage),
    /// A number of the service's process: another one each time that it is started.
    Process(u64),
    /// These partitions have come to the service from another one, and nothing there is read or
    /// changed until the session follows (`Follow`), or is ended.
    Adopted {
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
pub struct Usage {
    /// Those that there are in its partitions, orphans too.
    pub inodes: u64,
    /// The store of all services together; `None` where it is another process's.
    pub store: Option<StoreSpace>,
}

/// What the store of metadata takes of its disk, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreSpace {
    /// In the store.
    pub used: u64,
    /// What it may still grow by.
    pub free: u64,
}

/// A reply with what every reply carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaResponse {
    /// The answer.
    pub reply: MetaReply,
    /// Leases that come with it.
    pub grants: Vec<Grant>,
    /// Recalls of this session that had been made when they were granted: a client that has seen a
    /// later one can't tell whether it was for these, and doesn't rely on them.
    pub recalls: u64,
    /// What the session may do with the chunks of the file that the answer is about, to be shown to
    /// storage services.
    pub capability: Option<Capability>,
    /// Directories that the request has changed and on which the session holds a lease, as they are
    /// now.
    pub directories: Vec<DirectoryState>,
    /// What the store of metadata has acknowledged is there, in memory or on disk, as long as this
    /// is the same. Told in the answers to `Register`, `Follow` and `Sync`; 0: not told.
    pub verifier: u64,
}

/// A directory at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryState {
    /// Its attributes.
    pub attr: Attr,
    /// Of two states of one directory under one lease, the one with the larger number is the later
    /// one.
    pub order: u64,
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
