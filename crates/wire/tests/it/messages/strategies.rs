//! Strategies for messages: one for each kind of request and answer, so that none is missed by
//! chance.

use bytes::Bytes;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use types::*;
use wire::mgmt::{DrainProgress, ReconcileFiles};
use wire::*;

pub fn meta_requests() -> impl Strategy<Value = MetaRequest> {
    let head = (any::<u64>(), of(numbers()), any::<[u32; 3]>(), any::<bool>());
    (head, select(meta_ops()).prop_flat_map(|op| op)).prop_map(
        |((session, number, [uid, gid, pid], privileged), op)| {
            let credentials = Credentials { uid, gid, pid };
            MetaRequest { session: SessionId(session), slot_sequence: number, credentials, privileged, op }
        },
    )
}

pub fn meta_responses() -> impl Strategy<Value = MetaResponse> {
    let grants = vec_of((ino(), mode()).prop_map(|(ino, mode)| LeaseGrant { ino, mode }));
    // They are encoded after the others.
    let permissions = vec_of(ino().prop_map(|ino| LeaseGrant { ino, mode: LeaseMode::Permissions }));
    let grants = (grants, permissions).prop_map(|(grants, permissions)| [grants, permissions].concat());
    let directories =
        vec_of((attr(), any::<u64>()).prop_map(|(attr, order)| DirectoryState { attr, state_number: order }));
    let reply = select(meta_replies()).prop_flat_map(|reply| reply);
    (reply, grants, any::<[u64; 2]>(), of(capability()), directories).prop_map(
        |(reply, grants, [recalls, verifier], capability, directories)| MetaResponse {
            reply,
            grants,
            recalls,
            capability,
            directories,
            verifier,
        },
    )
}

pub fn storage_requests() -> impl Strategy<Value = StorageRequest> {
    let identity = (any::<u64>(), any::<u32>(), chunk_file(), of(numbers()), of(capability()));
    let head = (identity, any::<u64>(), of(in_group()), any::<u64>());
    (head, select(storage_ops()).prop_flat_map(|op| op)).prop_map(
        |(((session, target, ino, number, capability), epoch, group, known), op)| {
            let (session, target) = (SessionId(session), TargetId(target));
            StorageRequest {
                session,
                target,
                ino,
                slot_sequence: number,
                capability,
                epoch,
                group,
                length_bound: known,
                op,
            }
        },
    )
}

fn numbers() -> impl Strategy<Value = SlotSequence> {
    (any::<u32>(), 1..=u32::MAX).prop_map(|(slot, sequence)| SlotSequence { slot, sequence })
}

fn in_group() -> impl Strategy<Value = GroupContext> {
    let part = prop_oneof![
        Just(GroupRole::Primary),
        any::<(u64, u64)>()
            .prop_map(|(sequence, settled)| GroupRole::Member { sequence, committed: settled }),
        Just(GroupRole::Resync),
    ];
    (any::<u32>(), any::<u64>(), part).prop_map(|(group, since, part)| GroupContext {
        group: GroupId(group),
        version: Epoch(since),
        role: part,
    })
}

fn capability() -> impl Strategy<Value = Capability> {
    // In two halves, since array strategies support at most 32 elements.
    any::<([u8; 32], [u8; 32])>().prop_map(|(first, second)| {
        let mut bytes = [0; CAPABILITY_BYTES];
        bytes[..32].copy_from_slice(&first);
        bytes[32..].copy_from_slice(&second);
        Capability(bytes)
    })
}

pub fn storage_replies() -> impl Strategy<Value = StorageReply> {
    prop_oneof![
        Just(StorageReply::Unit),
        (1..=u64::MAX).prop_map(|verifier| StorageReply::Done { verifier }),
        (any::<u64>(), any::<u64>(), time(), any::<bool>())
            .prop_map(|(len, blocks, mtime, is_lost)| { StorageReply::Stat { len, blocks, mtime, is_lost } }),
        any::<Option<u64>>().prop_map(StorageReply::Offset),
        any::<(u64, u64)>().prop_map(|(capacity, free)| StorageReply::Space { capacity, free }),
        (vec_of((chunk_file(), range())), of(chunk_file()))
            .prop_map(|(regions, next)| StorageReply::Regions { regions, next }),
        (any::<(bool, u64, u64)>(), time(), time(), vec_of(any::<u32>()), vec_of(range())).prop_map(
            |((exists, len, sum_end), mtime, ctime, sums, damaged)| {
                StorageReply::Survey(wire::ReplicaState { exists, len, sum_end, mtime, ctime, sums, damaged })
            }
        ),
        any::<(u64, u64, u64)>().prop_map(|(damaged, repaired, unclear)| {
            StorageReply::Repaired(wire::RepairResult { damaged, repaired, unclear })
        }),
        prop::collection::vec(rate(), 0..5).prop_map(StorageReply::Rates),
        (any::<(u64, u64, u64)>(), vec_of(range()), prop::collection::vec(member_room(), 0..3)).prop_map(
            |((disk, free, unallocated), gaps, others)| {
                StorageReply::SpaceNeeded(wire::ReservationSpace { disk, free, unallocated, gaps, others })
            }
        ),
    ]
}

fn member_room() -> impl Strategy<Value = wire::MemberSpace> {
    any::<(u32, u64, u64, u64)>().prop_map(|(target, disk, free, wanted)| wire::MemberSpace {
        target: TargetId(target),
        disk,
        free,
        wanted,
    })
}

pub fn kv_requests() -> impl Strategy<Value = KvRequest> {
    select(kv_kinds()).prop_flat_map(|request| request)
}

pub fn kv_replies() -> impl Strategy<Value = KvReply> {
    let outcome = select(vec![KvOutcome::Applied, KvOutcome::GuardFailed, KvOutcome::Unknown]);
    let answer = prop_oneof![
        vec_of(of(name())).prop_map(KvAnswer::Values),
        (vec_of((name(), name())), any::<bool>()).prop_map(|(pairs, more)| KvAnswer::Pairs { pairs, more }),
        vec_of(outcome).prop_map(KvAnswer::Outcomes),
        Just(KvAnswer::Done),
    ];
    (any::<(u64, u64, bool)>(), answer).prop_map(|((instance, verifier, has_room), answer)| KvReply {
        instance,
        verifier,
        has_space: has_room,
        answer,
    })
}

pub fn errors() -> impl Strategy<Value = Error> {
    (1..=4095, ".{0,30}", ".{0,30}").prop_map(|(errno, message, hint): (i32, String, String)| {
        Error::new(Errno::Number(errno), message).hint(hint)
    })
}

/// One strategy for each kind; `name => fields` with a strategy for each field.
macro_rules! kinds {
    ($enum:ident: $($kind:ident $({ $($field:ident: $strategy:expr),* $(,)? })?,)*) => {
        vec![$(kinds!(@ $enum $kind $({ $($field: $strategy),* })?)),*]
    };
    (@ $enum:ident $kind:ident) => { Just($enum::$kind).boxed() };
    (@ $enum:ident $kind:ident { $($field:ident: $strategy:expr),* }) => {{
        // Nested pairs, since the length of tuple strategies is limited.
        let built = Just(());
        $(let built = (built, $strategy);)*
        built.prop_map(|kinds!(# () $($field)*)| $enum::$kind { $($field),* }).boxed()
    }};
    (# $pattern:tt) => { $pattern };
    (# $pattern:tt $field:ident $($rest:ident)*) => { kinds!(# ($pattern, $field) $($rest)*) };
}

pub fn meta_ops() -> Vec<BoxedStrategy<MetaOp>> {
    let (u32s, u64s, flag) = (any::<u32>, any::<u64>, any::<bool>);
    kinds![MetaOp:
        Lookup { parent: ino(), name: name() },
        Getattr { ino: ino() },
        NoteAccess { accesses: vec_of((ino(), time()).prop_map(|(ino, at)| AccessTime { ino, at })) },
        Setattr { ino: ino(), set: set_attr() },
        Create { parent: ino(), name: name(), mode: u32s(), umask: u32s(), rdev: u32s(), exclusive: flag(), requested_lease: of(mode()) },
        Mkdir { parent: ino(), name: name(), mode: u32s(), umask: u32s() },
        Symlink { parent: ino(), name: name(), target: name() },
        Tmpfile { parent: ino(), mode: u32s(), umask: u32s() },
        Link { ino: ino(), parent: ino(), name: name() },
        Unlink { parent: ino(), name: name(), ino: proptest::option::of(ino()) },
        Rmdir { parent: ino(), name: name() },
        Rename { parent: ino(), name: name(), new_parent: ino(), new_name: name(), mode: rename_mode() },
        Readlink { ino: ino() },
        Readdir { dir: ino(), cookie: u64s(), limit: u32s(), attributes: flag(), prefix: name() },
        GetXattr { ino: ino(), name: name() },
        SetXattr { ino: ino(), name: name(), value: name(), mode: xattr_mode(), kill_sgid: flag() },
        ListXattr { ino: ino() },
        RemoveXattr { ino: ino(), name: name() },
        Open { ino: ino(), requested_lease: of(mode()) },
        WriteInline { ino: ino(), offset: u64s(), data: name(), kill_suid_sgid: flag(), at_end: flag() },
        BeginWrite { ino: ino() },
        DropInline { ino: ino(), size: u64s(), mtime: time() },
        EndWrite {
            ino: ino(), size: u64s(), blocks: u64s(), lens: vec_of(u64s()), mtime: of(time()), done: flag(),
            kill_suid_sgid: flag(),
        },
        Truncate { ino: ino(), size: u64s(), kill_suid_sgid: flag() },
        TruncateDone { ino: ino() },
        Reclaim { ino: ino(), others: vec_of(ino()) },
        Lock {
            ino: ino(), family: family(), owner: owner(), pid: u32s(), kind: kind(), range: lock_range(), wait: flag(),
        },
        Unlock { ino: ino(), family: family(), owner: owner(), range: lock_range() },
        TestLock { ino: ino(), owner: owner(), kind: kind(), range: lock_range() },
        NextRecalls { after: u64s() },
        AckRecalls { acks: vec_of((u64s(), ino(), flag()).prop_map(|(number, ino, in_use)| RecallAck { number, ino, in_use })) },
        Release { inodes: vec_of(ino()), seen: u64s() },
        EndSession,
        Register { in_use: vec_of(ino()), pending_creates: vec_of(async_create()), pending_changes: vec_of(async_change()), reporting_process: u64s() },
        Follow { partitions: vec_of(partition()), in_use: vec_of(ino()), pending_creates: vec_of(async_create()), pending_changes: vec_of(async_change()), reporting_process: u64s() },
        Describe { ino: ino() },
        SetPattern { dir: ino(), change: pattern_change() },
        Sync,
        Usage,
        ReclaimLocks { locks: vec_of(held_lock()) },
        ReclaimOpens { inodes: vec_of(ino()) },
        ReclaimSizes { sizes: vec_of((ino(), u64s()).prop_map(|(ino, size)| ReportedSize { ino, size })) },
        RecallsInProgress { seen: u64s() },
        MayOpen { ino: ino(), wanted: u32s() },
        Reopen { ino: ino(), above_epoch: u64s() },
        SupplyGroups { ino: ino(), groups: vec_of(u32s()) },
        Migrate { ino: ino(), pool: of(".{0,20}"), scheme: of(".{0,20}") },
        MigrationOf { ino: ino() },
        PreallocateInodes { dir: ino(), count: u32s(), prefix: name() },
        CommitCreate { file: pending_file().prop_map(Box::new) },
    ]
}

fn pending_file() -> impl Strategy<Value = PendingFile> {
    let bits = (any::<u32>(), any::<u32>());
    let changes = (any::<bool>(), proptest::option::of(time()), set_attr());
    (ino(), ino(), name(), bits, time(), name(), changes).prop_map(
        |(ino, parent, name, (mode, umask), made, content, (begins_write, written, set))| PendingFile {
            ino,
            parent,
            name,
            mode,
            umask,
            created: made,
            content,
            begins_write,
            written,
            set,
        },
    )
}

fn async_change() -> impl Strategy<Value = AsyncChange> {
    let op = prop_oneof![
        (ino(), set_attr()).prop_map(|(ino, set)| MetaOp::Setattr { ino, set }),
        (ino(), name(), of(ino())).prop_map(|(parent, name, ino)| MetaOp::Unlink { parent, name, ino }),
        (ino(), name(), ino(), name(), rename_mode()).prop_map(
            |(parent, name, new_parent, new_name, mode)| {
                MetaOp::Rename { parent, name, new_parent, new_name, mode }
            }
        ),
    ];
    (any::<[u32; 3]>(), numbers(), op).prop_map(|([uid, gid, pid], slot_sequence, op)| AsyncChange {
        credentials: Credentials { uid, gid, pid },
        slot_sequence,
        op,
    })
}

fn async_create() -> impl Strategy<Value = AsyncCreate> {
    let credentials = (any::<u32>(), any::<u32>(), any::<u32>());
    (credentials, pending_file()).prop_map(|((uid, gid, pid), file)| {
        let credentials = Credentials { uid, gid, pid };
        AsyncCreate { credentials, file }
    })
}

pub fn meta_replies() -> Vec<BoxedStrategy<MetaReply>> {
    let held = (kind(), lock_range(), any::<u32>());
    let mut replies = kinds![MetaReply:
        Unit,
        Created {
            attr: attr(),
            inline_limit: any::<u32>(),
            has_no_xattrs: any::<bool>(),
            begun: of(begun_write().prop_map(Box::new)),
        },
        Renamed { moved: attr(), other: of(attr()) },
        Redirect { ino: ino(), mode: any::<u32>() },
        PartitionsTakenOver { partitions: vec_of(partition()) },
        Preallocated { first: ino(), count: any::<u32>(), attr: attr(), inline_limit: any::<u32>(), prefix_lease: of(ino()) },
        Directory { entries: vec_of(dir_entry()), end: any::<bool>(), parent: ino() },
    ];
    replies.extend([
        (any::<u64>(), of(any::<[u64; 2]>().prop_map(|[used, free]| StoreSpace { used, free })))
            .prop_map(|(inodes, store)| MetaReply::Usage(MetadataUsage { inodes, store }))
            .boxed(),
        any::<u64>().prop_map(MetaReply::Process).boxed(),
        attr().prop_map(MetaReply::Entry).boxed(),
        attr().prop_map(MetaReply::Attr).boxed(),
        name().prop_map(MetaReply::Bytes).boxed(),
        vec_of(name()).prop_map(MetaReply::Names).boxed(),
        file().prop_map(MetaReply::File).boxed(),
        of(held).prop_map(MetaReply::Lock).boxed(),
        vec_of(recall()).prop_map(MetaReply::Recalls).boxed(),
        of(migration()).prop_map(|moving| MetaReply::Migration(moving.map(Box::new))).boxed(),
        description().prop_map(|description| MetaReply::Description(Box::new(description))).boxed(),
    ]);
    replies
}

fn range() -> impl Strategy<Value = ByteRange> {
    any::<[u64; 2]>().prop_map(|[a, b]| ByteRange { start: a.min(b), end: a.max(b) })
}

pub fn storage_ops() -> Vec<BoxedStrategy<StorageOp>> {
    let path = || select(vec![DataPath::Direct, DataPath::Cached]);
    kinds![StorageOp:
        Read { offset: any::<u64>(), path: path() },
        Write { offset: any::<u64>(), path: path(), durable: any::<bool>() },
        Truncate { len: any::<u64>() },
        Allocate {
            range: range(),
            how: select(vec![AllocateMode::Reserve, AllocateMode::Punch, AllocateMode::Zero]),
        },
        Delete,
        SetAside,
        Sync,
        SyncTarget,
        Stat,
        Seek { from: any::<u64>(), what: select(vec![SeekTarget::Data, SeekTarget::Hole]) },
        Space,
        Fence { session: any::<u64>().prop_map(SessionId) },
        TrackDirty { token: any::<u64>(), round: any::<u64>() },
        NextDirty { token: any::<u64>(), round: any::<u64>(), from: any::<u64>() },
        EndDirtyTracking { token: any::<u64>() },
        Committed,
        Regions { from: chunk_file(), which: select(vec![RegionSelection::Dirty, RegionSelection::All]) },
        Survey { range: range(), unit: any::<u64>(), read: any::<bool>() },
        Repair { range: range() },
        CopyReplica {
            from: any::<u32>().prop_map(TargetId),
            to: any::<u32>().prop_map(TargetId),
            range: range(),
        },
        DiscardLost { range: range() },
        MarkLost { range: range() },
        SetTime { time: time() },
        Digests { range: range() },
        AdoptVerifier { verifier: any::<u64>(), instead_of: any::<u64>() },
        Measure { what: measure(), milliseconds: any::<u64>() },
        Traffic,
        Rewrite { range: range(), len: of(any::<u64>()) },
        ExpectChecksums { first: any::<u64>(), len: any::<u64>() },
        SpaceNeeded { range: range() },
    ]
}

fn measure() -> impl Strategy<Value = wire::Measure> {
    let network = any::<(u32, u32)>().prop_map(|(to, streams)| {
        let to = types::NodeId(to);
        wire::Measure::Network { to, streams }
    });
    let drive = any::<u64>().prop_map(|size| wire::Measure::Drive { size });
    prop_oneof![drive, network, Just(wire::Measure::Cpu)]
}

fn rate() -> impl Strategy<Value = wire::MeasuredRate> {
    use wire::RateQuantity::{
        Checksum, Encoding, MemoryCopy, Network, RandomRead, RandomWrite, Read, RoundTrips, Write,
    };
    let of = select(vec![
        Write,
        Read,
        RandomWrite,
        RandomRead,
        Network,
        RoundTrips,
        MemoryCopy,
        Checksum,
        Encoding,
    ]);
    (of, any::<u64>(), any::<u32>()).prop_map(|(of, rate, streams)| wire::MeasuredRate { of, rate, streams })
}

fn touched() -> impl Strategy<Value = ReconcileFiles> {
    (vec_of(chunk_file()), vec_of((chunk_file(), chunk_file())))
        .prop_map(|(files, new)| ReconcileFiles { files, new })
}

pub fn partitions_requests() -> Vec<BoxedStrategy<PartitionsRequest>> {
    let partition = || any::<u16>().prop_map(PartitionId);
    let session = || any::<u64>().prop_map(SessionId);
    let access = select(vec![InodeAccess::Read, InodeAccess::SharedWrite, InodeAccess::Write]);
    kinds![PartitionsRequest:
        LockPartition { partition: partition(), token: any::<u64>() },
        UnlockPartition {
            partition: partition(),
            token: any::<u64>(),
            written: vec_of(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)),
        },
        RecallConflicting { session: session(), accesses: vec_of((ino(), access)), wait: any::<bool>() },
        Ended { session: session() },
        Reconcile { target: any::<u32>().prop_map(TargetId), touched: touched() },
        ReconcileGroup { group: any::<u32>().prop_map(types::GroupId), touched: touched() },
        FindPoolReference { pool: any::<u16>().prop_map(types::PoolId), partition: partition() },
        FileOn { target: any::<u32>().prop_map(TargetId), partition: partition() },
        Sessions,
        Evict { session: session() },
        Executed,
        Drains,
    ]
}

fn drain_progress() -> impl Strategy<Value = DrainProgress> {
    let left = (any::<Option<u64>>(), any::<u64>(), any::<Option<u64>>());
    let done = (any::<bool>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<Option<u8>>());
    (left, done).prop_map(|(left, done)| DrainProgress {
        empty: done.0,
        files_left: left.0,
        bytes_left: left.1,
        files_moved: done.1,
        bytes_moved: done.2,
        rate: done.3,
        remaining_s: left.2,
        hindrance: done.4.map(|why| format!("reason {why}")),
        groups_left: done.2,
        stuck: done.4.map(|why| format!("stuck {why}")),
    })
}

pub fn partitions_replies() -> impl Strategy<Value = PartitionsReply> {
    let owner = prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
    prop_oneof![
        Just(PartitionsReply::Done),
        (owner, any::<bool>()).prop_map(|(owner, no_leases)| PartitionsReply::Locked { owner, no_leases }),
        any::<bool>().prop_map(PartitionsReply::Clear),
        any::<Option<u64>>().prop_map(|ino| PartitionsReply::File(ino.map(InodeId))),
        Just(PartitionsReply::Sessions(vec![])),
        vec_of(any::<u16>().prop_map(PartitionId)).prop_map(PartitionsReply::Executed),
        vec_of((any::<u32>().prop_map(TargetId), drain_progress())).prop_map(PartitionsReply::Drains),
    ]
}

pub fn kv_kinds() -> Vec<BoxedStrategy<KvRequest>> {
    let items = || vec_of((name(), of(name())));
    let batch = (items(), items()).prop_map(|(guards, writes)| KvBatch { guards, writes });
    kinds![KvRequest:
        Get { keys: vec_of(name()) },
        Scan { from: name(), to: name(), limit: any::<u64>() },
        Apply { writer: any::<u64>(), number: any::<u64>(), verifier: any::<u64>(), batches: vec_of(batch) },
        Persist,
    ]
}

fn vec_of<S: Strategy>(item: S) -> impl Strategy<Value = Vec<S::Value>> {
    prop::collection::vec(item, 0..5)
}

fn chunk_file() -> impl Strategy<Value = ChunkFileId> {
    any::<u64>().prop_map(ChunkFileId)
}

fn ino() -> impl Strategy<Value = InodeId> {
    any::<u64>().prop_map(InodeId)
}

fn partition() -> impl Strategy<Value = PartitionId> {
    any::<u16>().prop_map(PartitionId)
}

/// Names, and values of attributes; some are so long that their answer is shared memory.
fn name() -> impl Strategy<Value = Bytes> {
    let bytes = prop_oneof![9 => 0..20usize, 1 => 2000..4097usize];
    bytes.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length)).prop_map(Bytes::from)
}

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
}

fn retained_mode() -> impl Strategy<Value = LeaseMode> {
    prop_oneof![mode(), Just(LeaseMode::Permissions)]
}

fn mode() -> impl Strategy<Value = LeaseMode> {
    select(vec![LeaseMode::Read, LeaseMode::Shared, LeaseMode::Write])
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    select(vec![RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange, RenameMode::Whiteout])
}

fn xattr_mode() -> impl Strategy<Value = XattrMode> {
    select(vec![XattrMode::Any, XattrMode::Create, XattrMode::Replace])
}

fn family() -> impl Strategy<Value = LockFamily> {
    select(vec![LockFamily::Posix, LockFamily::Flock])
}

fn kind() -> impl Strategy<Value = LockKind> {
    select(vec![LockKind::Shared, LockKind::Exclusive])
}

fn owner() -> impl Strategy<Value = LockOwner> {
    any::<u64>().prop_map(LockOwner)
}

fn held_lock() -> impl Strategy<Value = HeldLock> {
    (ino(), family(), owner(), any::<u32>(), kind(), lock_range())
        .prop_map(|(ino, family, owner, pid, kind, range)| HeldLock { ino, family, owner, pid, kind, range })
}

fn lock_range() -> impl Strategy<Value = LockRange> {
    any::<[u64; 2]>().prop_map(|[a, b]| LockRange { start: a.min(b), last: a.max(b) })
}

fn chooser() -> impl Strategy<Value = Chooser> {
    select(vec![Chooser::RoundRobin, Chooser::Random, Chooser::CapacityWeighted])
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Now), time().prop_map(SetTime::At)]
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    let numbers = any::<[Option<u32>; 4]>();
    let flags = of((0..=InodeFlags::ALL.0).prop_map(InodeFlags));
    (numbers, flags, of(set_time()), of(set_time()), of(time()), any::<bool>()).prop_map(
        |([mode, uid, gid, project], flags, atime, mtime, ctime, kill_suid_sgid)| SetAttr {
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
            kill_suid_sgid,
            flags,
            project: project.map(ProjectId),
        },
    )
}

fn pattern_change() -> impl Strategy<Value = PatternChange> {
    (of(".{0,20}"), any::<[Option<u64>; 3]>(), of(chooser()), of(".{0,9}")).prop_map(
        |(pool, [chunk_size, stripe_count, inline_limit], chooser, scheme)| PatternChange {
            pool,
            chunk_size,
            stripe_count,
            inline_limit,
            chooser,
            scheme,
        },
    )
}

fn attr() -> impl Strategy<Value = Attr> {
    use FileKind::*;
    let kinds = select(vec![Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]);
    let mode = (kinds, any::<u32>()).prop_map(|(kind, bits)| kind.mode_bits() | bits & !mode::S_IFMT);
    let times = [time(), time(), time(), time()];
    (any::<[u64; 3]>(), mode, any::<[u32; 6]>(), times, any::<bool>()).prop_map(
        |(wide, mode, narrow, times, bare)| {
            let ([ino, size, blocks], [nlink, uid, gid, rdev, flags, project]) = (wide, narrow);
            let [atime, mtime, ctime, btime] = times;
            let (ino, flags, project) = (InodeId(ino), InodeFlags(flags), ProjectId(project));
            let has_no_xattrs = bare;
            Attr {
                ino,
                mode,
                nlink,
                uid,
                gid,
                rdev,
                size,
                blocks,
                atime,
                mtime,
                ctime,
                btime,
                flags,
                project,
                has_no_xattrs,
            }
        },
    )
}

fn chunk_size() -> impl Strategy<Value = u32> {
    (16..=26u32).prop_map(|bits| 1 << bits)
}

fn scheme() -> impl Strategy<Value = Scheme> {
    select(vec![Scheme::Single, Scheme::Mirror(2), Scheme::Mirror(3)])
}

fn begun_write() -> impl Strategy<Value = BegunWrite> {
    (layout(), any::<u64>()).prop_map(|(layout, epoch)| BegunWrite { layout, epoch })
}

fn layout() -> impl Strategy<Value = Layout> {
    let groups = prop::collection::vec(any::<u32>().prop_map(GroupId), 1..6);
    let slots = prop::collection::vec(any::<u8>().prop_map(types::ChunkSlot), 0..6);
    (chunk_size(), any::<u16>(), scheme(), groups, slots).prop_map(
        |(chunk_size, pool, scheme, groups, mut slots)| {
            slots.truncate(groups.len());
            Layout { chunk_size, pool: PoolId(pool), scheme, groups, slots }
        },
    )
}

fn pattern() -> impl Strategy<Value = StripePattern> {
    (any::<u16>(), scheme(), chunk_size(), 1..=u16::MAX, any::<u32>(), chooser()).prop_map(
        |(pool, scheme, chunk_size, stripe_count, inline_limit, chooser)| StripePattern {
            pool: PoolId(pool),
            scheme,
            chunk_size,
            stripe_count,
            inline_limit,
            chooser,
        },
    )
}

fn dir_entry() -> impl Strategy<Value = DirEntry> {
    (name(), ino(), any::<u32>(), any::<u64>(), of(attr()))
        .prop_map(|(name, ino, mode, cookie, attr)| DirEntry { name, ino, mode, cookie, attr })
}

fn file() -> impl Strategy<Value = FileInfo> {
    let known = vec_of(any::<u64>());
    let flags = (any::<bool>(), any::<bool>());
    (attr(), of(layout()), known, of(name()), any::<u32>(), any::<u64>(), flags).prop_map(
        |(attr, layout, known, inline, inline_limit, epoch, (uncut, is_reported))| FileInfo {
            attr,
            layout,
            length_bounds: known,
            inline,
            inline_limit,
            epoch,
            truncate_pending: uncut,
            is_reported,
        },
    )
}

fn recall() -> impl Strategy<Value = Recall> {
    (any::<u64>(), ino(), of(retained_mode())).prop_map(|(number, ino, keep)| Recall {
        number,
        ino,
        retain: keep,
    })
}

fn migration() -> impl Strategy<Value = Migration> {
    (pattern(), any::<(u64, u64, bool)>(), of(errors())).prop_map(
        |(pattern, (bytes, bytes_moved, given_up), error)| Migration {
            pool: pattern.pool,
            scheme: pattern.scheme,
            bytes,
            bytes_moved,
            error,
            given_up,
        },
    )
}

fn description() -> impl Strategy<Value = EntryDescription> {
    (attr(), pattern(), ".{0,20}", of(layout()), any::<Option<u64>>()).prop_map(
        |(attr, pattern, pool, layout, inline)| EntryDescription { attr, pattern, pool, layout, inline },
    )
}
