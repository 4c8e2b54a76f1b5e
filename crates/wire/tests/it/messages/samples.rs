//! One fixed message of each kind, with the name of its golden file.

use super::round_trip::encoded;
use bytes::Bytes;
use types::*;
use wire::frame::{FrameKind, Header, Hello, LocalEndpoint, Welcome};
use wire::mgmt::{DrainProgress, ReconcileFiles};
use wire::*;

/// A sample message.
pub struct Sample {
    /// Name of its file, without extension.
    pub name: String,
    pub bytes: Vec<u8>,
    /// Checks that bytes decode to this message.
    pub is: Reader,
}

type Reader = Box<dyn Fn(&[u8]) -> bool>;

pub fn samples() -> Vec<Sample> {
    let mut samples = vec![header()];
    samples.extend(handshakes());
    samples.extend(meta_ops().into_iter().map(|op| {
        let name = format!("meta_request-{}", kind(&op));
        let credentials = Credentials { uid: 1000, gid: 100, pid: 4711 };
        let number = Some(SlotSequence { slot: 0, sequence: 300 });
        sample(
            name,
            MetaRequest { session: SessionId(7), slot_sequence: number, credentials, privileged: false, op },
        )
    }));
    samples.extend(meta_replies().into_iter().map(|reply| {
        let grants = vec![grant(1, LeaseMode::Read), grant(2, LeaseMode::Shared), grant(3, LeaseMode::Write)];
        let name = format!("meta_response-{}", kind(&reply));
        sample(name, MetaResponse { grants, recalls: 5, ..reply.into() })
    }));
    let directories = vec![DirectoryState { attr: attr(), state_number: 77 }];
    let changed = MetaResponse { directories, ..MetaResponse::from(MetaReply::Unit) };
    samples.push(sample("meta_response-directories".to_string(), changed));
    let change = PatternChange { scheme: Some("mirror:2".to_string()), ..PatternChange::default() };
    let credentials = Credentials { uid: 1000, gid: 100, pid: 4711 };
    let op = MetaOp::SetPattern { dir: DIR, change };
    let number = Some(SlotSequence { slot: 0, sequence: 300 });
    let mirrored =
        MetaRequest { session: SessionId(7), slot_sequence: number, credentials, privileged: false, op };
    samples.push(sample("meta_request-set_scheme".to_string(), mirrored));
    let pending_creates = vec![AsyncCreate { credentials, file: pending_file() }];
    let op = MetaOp::Register {
        in_use: vec![INO],
        pending_creates,
        pending_changes: vec![],
        reporting_process: 0,
    };
    let returns = MetaRequest {
        session: SessionId(7),
        slot_sequence: None,
        credentials: Credentials::default(),
        privileged: false,
        op,
    };
    samples.push(sample("meta_request-register".to_string(), returns));
    let op = MetaOp::MayOpen { ino: INO, wanted: 6 };
    let vouched =
        MetaRequest { session: SessionId(7), slot_sequence: None, credentials, privileged: true, op };
    samples.push(sample("meta_request-privileged".to_string(), vouched));
    samples.extend(flags());
    samples.push(changed_create());
    samples.extend(begun_writes());
    samples.extend(async_changes());
    samples.extend(ranges());
    let grants = vec![grant(1, LeaseMode::Read), grant(2, LeaseMode::Permissions)];
    let permissions = MetaResponse { grants, ..MetaResponse::from(MetaReply::Unit) };
    samples.push(sample("meta_response-permissions".to_string(), permissions));
    let retained = Recall { number: 3, ino: DIR, retain: Some(LeaseMode::Permissions) };
    let retained = MetaResponse::from(MetaReply::Recalls(vec![retained]));
    samples.push(sample("meta_response-kept".to_string(), retained));
    let least = MetaResponse::from(MetaReply::Lock(None));
    samples.push(sample("meta_response-least".to_string(), least));
    let vouched = MetaResponse { verifier: 0x0102_0304_0506_0708, ..MetaResponse::from(MetaReply::Unit) };
    samples.push(sample("meta_response-verifier".to_string(), vouched));
    samples.extend(storage_ops().into_iter().map(|op| {
        let name = format!("storage_request-{}", kind(&op));
        sample(name, StorageRequest::new(SessionId(7), TargetId(12), FILE, op))
    }));
    let op = StorageOp::Write { offset: 4096, path: DataPath::Cached, durable: false };
    let (number, capability) = (Some(SlotSequence { slot: 3, sequence: 258 }), Some(capability()));
    let least = StorageRequest::new(SessionId(7), TargetId(12), FILE, op.clone());
    let full = StorageRequest { slot_sequence: number, capability, ..least };
    samples.push(sample("storage_request-full".to_string(), full.clone()));
    let capability = Some(Capability(std::array::from_fn(|at| at as u8 + 1)));
    let fenced = StorageRequest { epoch: 3 << 44 | 258, capability, ..full.clone() };
    samples.push(sample("storage_request-fenced".to_string(), fenced));
    for (name, part) in [
        ("primary", GroupRole::Primary),
        ("member", GroupRole::Member { sequence: 1 << 33, committed: 258 }),
        ("resync", GroupRole::Resync),
    ] {
        let group = Some(GroupContext { group: GroupId(300), version: Epoch(70_000), role: part });
        let request =
            StorageRequest { group, ..StorageRequest::new(SessionId(7), TargetId(12), FILE, op.clone()) };
        samples.push(sample(format!("storage_request-in_group-{name}"), request));
    }
    let op = StorageOp::Read { offset: 1 << 40, path: DataPath::Cached };
    let known =
        StorageRequest { length_bound: 1 << 33, ..StorageRequest::new(SessionId(7), TargetId(12), FILE, op) };
    samples.push(sample("storage_request-known".to_string(), known));
    let op = MetaOp::EndWrite {
        ino: INO,
        size: 1 << 33,
        blocks: 24,
        lens: vec![300, 0, 1 << 32],
        mtime: Some(TIME),
        done: false,
        kill_suid_sgid: false,
    };
    let credentials = Credentials::default();
    let measured =
        MetaRequest { session: SessionId(7), slot_sequence: None, credentials, privileged: false, op };
    samples.push(sample("meta_request-measured".to_string(), measured));
    let file = FileInfo {
        attr: attr(),
        layout: None,
        length_bounds: Vec::new(),
        inline: None,
        inline_limit: 0,
        epoch: 0,
        truncate_pending: true,
        is_reported: false,
    };
    let known = FileInfo { length_bounds: vec![300, 0, 1 << 32], truncate_pending: false, ..file.clone() };
    samples.push(sample("meta_response-known".to_string(), MetaResponse::from(MetaReply::File(known))));
    let fenced = FileInfo { epoch: 3 << 44 | 258, truncate_pending: false, ..file.clone() };
    samples.push(sample("meta_response-epoch".to_string(), MetaResponse::from(MetaReply::File(fenced))));
    let reported = FileInfo { is_reported: true, truncate_pending: false, ..file.clone() };
    samples.push(sample("meta_response-reported".to_string(), MetaResponse::from(MetaReply::File(reported))));
    samples.push(sample("meta_response-uncut".to_string(), MetaResponse::from(MetaReply::File(file))));
    let capability = full.capability;
    let capable = MetaResponse { capability, ..MetaReply::Unit.into() };
    samples.push(sample("meta_response-capability".to_string(), capable));
    let replies = storage_replies().into_iter();
    samples.extend(replies.map(|reply| sample(format!("storage_reply-{}", kind(&reply)), reply)));
    samples.extend(
        partitions_requests()
            .into_iter()
            .map(|ask| sample(format!("partitions_request-{}", kind(&ask)), ask)),
    );
    let replies = partitions_replies().into_iter();
    samples.extend(replies.map(|reply| sample(format!("partitions_reply-{}", kind(&reply)), reply)));
    let requests = kv_requests().into_iter();
    samples.extend(requests.map(|request| sample(format!("kv_request-{}", kind(&request)), request)));
    let verified = KvRequest::Apply { writer: 7, number: 300, verifier: 17, batches: vec![] };
    samples.push(sample("kv_request-apply-verifier".into(), verified));
    samples.extend(kv_answers().into_iter().map(|answer| {
        let name = format!("kv_reply-{}", kind(&answer));
        sample(name, KvReply { instance: 1 << 60, verifier: 5, has_space: false, answer })
    }));
    let error = Error::new(Errno::EROFS, "target 12 is read-only: no free space").hint("add a target");
    samples.push(sample("error-full".to_string(), error));
    samples.push(sample("error-plain".to_string(), Error::from(Errno::ENOENT)));
    samples
}

fn sample<M: Message + PartialEq + 'static>(name: String, message: M) -> Sample {
    let bytes = encoded(&message);
    Sample { name, bytes, is: Box::new(move |bytes| M::decode(bytes).as_ref() == Ok(&message)) }
}

fn capability() -> Capability {
    Capability(std::array::from_fn(|at| if at < 56 { at as u8 + 1 } else { 0 }))
}

/// The first word of a value's debug form.
fn kind(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").split([' ', '(']).next().expect("a word").to_lowercase()
}

fn header() -> Sample {
    let mut header =
        Header::new(FrameKind::Request, 0x1112_1314_1516_1718).with_body(b"body").with_payload(b"data");
    (header.service, header.reply_payload_bytes, header.deadline_ms) = (Service::Storage as u8, 4096, 60_000);
    header.epoch = Epoch(17);
    let is = move |bytes: &[u8]| bytes.try_into().is_ok_and(|bytes| Header::decode(bytes) == Ok(header));
    Sample { name: "header".to_string(), bytes: header.encode().to_vec(), is: Box::new(is) }
}

fn handshakes() -> [Sample; 3] {
    let hello = Hello {
        protocol: 1,
        cluster: "0f0e0d0c-0b0a-4908-8706-050403020100".to_string(),
        name: "client-3".to_string(),
        client: 0x0123_4567_89ab_cdef,
        core: 2,
        cores: 8,
        incarnation: 3,
    };
    let welcome = Welcome { protocol: 1, name: "node-1".to_string(), credits: 256, cores: 4, on_host: None };
    let on_host =
        LocalEndpoint { host: "boot-4026531840".to_string(), socket: "weft-17".to_string(), user: 997 };
    let with_host = Welcome { on_host: Some(on_host), ..welcome.clone() };
    [
        sample("hello".to_string(), hello),
        sample("welcome".to_string(), welcome),
        sample("welcome_on_host".to_string(), with_host),
    ]
}

/// An inode of partition 3.
const INO: InodeId = InodeId(3 << 40 | 77);
const DIR: InodeId = InodeId::ROOT;
/// Names of their chunk files.
const FILE: ChunkFileId = INO.first_chunk_file();
const OTHER_FILE: ChunkFileId = DIR.first_chunk_file();
const TIME: Timestamp = Timestamp::new(1_760_000_000, 123_456_789);
const RANGE: LockRange = LockRange { start: 10, last: u64::MAX };
const OWNER: LockOwner = LockOwner(0xfeed_beef);

fn grant(ino: u64, mode: LeaseMode) -> LeaseGrant {
    LeaseGrant { ino: InodeId(ino), mode }
}

/// Messages of name-prefix delegations.
fn ranges() -> Vec<Sample> {
    let prefix = Bytes::from_static(b"rank3.");
    let request = |op| MetaRequest {
        session: SessionId(7),
        slot_sequence: None,
        credentials: Credentials::default(),
        privileged: false,
        op,
    };
    let list =
        MetaOp::Readdir { dir: DIR, cookie: 7, limit: 2048, attributes: false, prefix: prefix.clone() };
    let reserve = MetaOp::PreallocateInodes { dir: DIR, count: 63, prefix };
    let range = Some(InodeId(INO.0 - 1));
    let reserved = MetaReply::Preallocated {
        first: INO,
        count: 63,
        attr: attr(),
        inline_limit: 4096,
        prefix_lease: range,
    };
    vec![
        sample("meta_request-readdir_range".to_string(), request(list)),
        sample("meta_request-reserve_range".to_string(), request(reserve)),
        sample("meta_response-reserved_range".to_string(), MetaResponse::from(reserved)),
    ]
}

fn name() -> Bytes {
    Bytes::from_static(b"name")
}

fn pending_file() -> PendingFile {
    let (name, content) = (name(), Bytes::from_static(b"content"));
    let (written, set) = (None, SetAttr::default());
    PendingFile {
        ino: INO,
        parent: DIR,
        name,
        mode: 0o640,
        umask: 0o22,
        created: TIME,
        content,
        begins_write: false,
        written,
        set,
    }
}

/// Asynchronous changes, as they are sent and as a returning session reports them.
fn async_changes() -> [Sample; 2] {
    let credentials = Credentials { uid: 1000, gid: 100, pid: 4711 };
    let slot_sequence = SlotSequence { slot: 0, sequence: 300 };
    let request = |op| MetaRequest {
        session: SessionId(7),
        slot_sequence: Some(slot_sequence),
        credentials,
        privileged: true,
        op,
    };
    let removal = MetaOp::Unlink { parent: DIR, name: name(), ino: Some(INO) };
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let rename = MetaOp::Rename {
        parent: DIR,
        name: name(),
        new_parent: DIR,
        new_name: "new".into(),
        mode: RenameMode::Replace,
    };
    let changes = [removal.clone(), MetaOp::Setattr { ino: INO, set }, rename];
    let pending_changes = changes.map(|op| AsyncChange { credentials, slot_sequence, op }).to_vec();
    let register =
        MetaOp::Register { in_use: vec![], pending_creates: vec![], pending_changes, reporting_process: 0 };
    [
        sample("meta_request-remove_inode".to_string(), request(removal)),
        sample("meta_request-register_with_changes".to_string(), request(register)),
    ]
}

/// An asynchronous create with attributes that were set before it was sent.
fn changed_create() -> Sample {
    let file = PendingFile { written: Some(TIME), set: set(), ..pending_file() };
    let request = MetaRequest {
        session: SessionId(7),
        slot_sequence: Some(SlotSequence { slot: 0, sequence: 300 }),
        credentials: Credentials { uid: 1000, gid: 100, pid: 4711 },
        privileged: true,
        op: MetaOp::CommitCreate { file: Box::new(file) },
    };
    sample("meta_request-commit_changed_create".to_string(), request)
}

/// An asynchronous create that begins a write of chunks, and its answer.
fn begun_writes() -> [Sample; 2] {
    let file = PendingFile { content: Bytes::new(), begins_write: true, ..pending_file() };
    let request = MetaRequest {
        session: SessionId(7),
        slot_sequence: Some(SlotSequence { slot: 0, sequence: 301 }),
        credentials: Credentials { uid: 1000, gid: 100, pid: 4711 },
        privileged: false,
        op: MetaOp::CommitCreate { file: Box::new(file) },
    };
    let layout = Layout {
        chunk_size: 1 << 20,
        pool: PoolId(1),
        scheme: Scheme::Single,
        groups: vec![GroupId(3), GroupId(5)],
        slots: Vec::new(),
    };
    let begun = Some(Box::new(BegunWrite { layout, epoch: 70_000 }));
    let reply = MetaReply::Created { attr: attr(), inline_limit: 4096, has_no_xattrs: true, begun };
    let response = MetaResponse::from(reply);
    [
        sample("meta_request-commit_create_in_chunks".to_string(), request),
        sample("meta_response-created_in_chunks".to_string(), response),
    ]
}

/// Flags and projects of inodes.
fn flags() -> [Sample; 2] {
    let (flags, project) = (InodeFlags::APPEND | InodeFlags::NODUMP, ProjectId(70_000));
    let set = SetAttr { flags: Some(flags), project: Some(project), ..SetAttr::default() };
    let request = MetaRequest {
        session: SessionId(7),
        slot_sequence: Some(SlotSequence { slot: 0, sequence: 300 }),
        credentials: Credentials { uid: 1000, gid: 100, pid: 4711 },
        privileged: true,
        op: MetaOp::Setattr { ino: INO, set },
    };
    let answer = MetaResponse::from(MetaReply::Attr(Attr { flags, project, ..attr() }));
    [sample("meta_request-flags".to_string(), request), sample("meta_response-flags".to_string(), answer)]
}

fn set() -> SetAttr {
    SetAttr {
        mode: Some(0o640),
        uid: Some(0),
        gid: None,
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(TIME)),
        ctime: Some(Timestamp::new(-1, 5)),
        kill_suid_sgid: true,
        flags: None,
        project: None,
    }
}

pub fn meta_ops() -> Vec<MetaOp> {
    let (ino, parent, dir, name) = (INO, DIR, DIR, name());
    let to = Bytes::from_static(b"target");
    let value = Bytes::from_static(b"value");
    let yields = vec![
        RecallAck { number: 1, ino, in_use: true },
        RecallAck { number: 2, ino: InodeId(9), in_use: false },
    ];
    let change = PatternChange {
        pool: Some("fast".to_string()),
        chunk_size: Some(1 << 20),
        stripe_count: Some(4),
        inline_limit: Some(0),
        chooser: Some(Chooser::CapacityWeighted),
        scheme: None,
    };
    let (family, owner, kind, range) = (LockFamily::Flock, OWNER, LockKind::Exclusive, RANGE);
    vec![
        MetaOp::Lookup { parent, name: name.clone() },
        MetaOp::Getattr { ino },
        MetaOp::Setattr { ino, set: set() },
        MetaOp::Create {
            parent,
            name: name.clone(),
            mode: 0o100644,
            umask: 0o22,
            rdev: 0x103,
            exclusive: true,
            requested_lease: None,
        },
        MetaOp::Mkdir { parent, name: name.clone(), mode: 0o755, umask: 0o22 },
        MetaOp::Symlink { parent, name: name.clone(), target: to.clone() },
        MetaOp::Tmpfile { parent, mode: 0o600, umask: 0o77 },
        MetaOp::Link { ino, parent, name: name.clone() },
        MetaOp::Unlink { parent, name: name.clone(), ino: None },
        MetaOp::Rmdir { parent, name: name.clone() },
        MetaOp::Rename {
            parent,
            name: name.clone(),
            new_parent: ino,
            new_name: to,
            mode: RenameMode::Exchange,
        },
        MetaOp::Readlink { ino },
        MetaOp::Readdir { dir, cookie: 1 << 62, limit: 100, attributes: true, prefix: Bytes::new() },
        MetaOp::GetXattr { ino, name: name.clone() },
        MetaOp::SetXattr {
            ino,
            name: name.clone(),
            value: value.clone(),
            mode: XattrMode::Create,
            kill_sgid: true,
        },
        MetaOp::ListXattr { ino },
        MetaOp::RemoveXattr { ino, name },
        MetaOp::Open { ino, requested_lease: Some(LeaseMode::Write) },
        MetaOp::WriteInline { ino, offset: 512, data: value, kill_suid_sgid: true, at_end: false },
        MetaOp::BeginWrite { ino },
        MetaOp::DropInline { ino, size: 4097, mtime: TIME },
        MetaOp::EndWrite {
            ino,
            size: 1 << 33,
            blocks: 24,
            lens: Vec::new(),
            mtime: Some(TIME),
            done: true,
            kill_suid_sgid: true,
        },
        MetaOp::Truncate { ino, size: 5, kill_suid_sgid: true },
        MetaOp::TruncateDone { ino },
        MetaOp::Reclaim { ino, others: Vec::new() },
        MetaOp::Lock { ino, family, owner, pid: 4711, kind, range, wait: true },
        MetaOp::Unlock { ino, family: LockFamily::Posix, owner, range },
        MetaOp::TestLock { ino, owner, kind: LockKind::Shared, range },
        MetaOp::NextRecalls { after: 41 },
        MetaOp::AckRecalls { acks: yields },
        MetaOp::Release { inodes: vec![ino, InodeId(9)], seen: 41 },
        MetaOp::EndSession,
        MetaOp::Describe { ino },
        MetaOp::SetPattern { dir, change },
        MetaOp::NoteAccess {
            accesses: vec![AccessTime { ino, at: TIME }, AccessTime { ino: InodeId(9), at: TIME }],
        },
        MetaOp::Usage,
        MetaOp::Sync,
        MetaOp::ReclaimLocks { locks: vec![HeldLock { ino, family, owner, pid: 4711, kind, range }] },
        MetaOp::RecallsInProgress { seen: 41 },
        MetaOp::Follow {
            partitions: vec![PartitionId(0), PartitionId(63)],
            in_use: vec![ino, InodeId(9)],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        },
        MetaOp::MayOpen { ino, wanted: 6 },
        MetaOp::Reopen { ino, above_epoch: 3 << 44 | 257 },
        MetaOp::SupplyGroups { ino, groups: vec![100, 27] },
        MetaOp::Migrate { ino, pool: Some("nvme".into()), scheme: Some("mirror:2".into()) },
        MetaOp::MigrationOf { ino },
        MetaOp::PreallocateInodes { dir, count: 1024, prefix: Bytes::new() },
        MetaOp::CommitCreate { file: Box::new(pending_file()) },
        MetaOp::ReclaimOpens { inodes: vec![ino, InodeId(9)] },
        MetaOp::ReclaimSizes {
            sizes: vec![ReportedSize { ino, size: 5_000_000_000 }, ReportedSize { ino: InodeId(9), size: 0 }],
        },
    ]
}

fn attr() -> Attr {
    Attr {
        ino: INO,
        mode: mode::S_IFREG | 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 5_000_000_000,
        blocks: 9_765_632,
        atime: TIME,
        mtime: Timestamp::new(1_760_000_001, 0),
        ctime: Timestamp::new(5_000_000_000, 999_999_999),
        btime: Timestamp::new(-1, 1),
        flags: InodeFlags::NONE,
        project: ProjectId(0),
        has_no_xattrs: false,
    }
}

fn meta_replies() -> Vec<MetaReply> {
    let layout = Layout {
        chunk_size: 1 << 20,
        pool: PoolId(1),
        scheme: Scheme::Single,
        groups: vec![GroupId(3), GroupId(300)],
        slots: vec![],
    };
    let entry = DirEntry { name: name(), ino: INO, mode: mode::S_IFREG, cookie: 1 << 62, attr: Some(attr()) };
    let bare = DirEntry { name: Bytes::from_static(b"d"), mode: mode::S_IFDIR, attr: None, ..entry.clone() };
    let recall = |number, keep| Recall { number, ino: INO, retain: keep };
    let description = EntryDescription {
        attr: attr(),
        pattern: StripePattern::default(),
        pool: "default".to_string(),
        layout: Some(layout.clone()),
        inline: Some(0),
    };
    let migration = Migration {
        pool: PoolId(2),
        scheme: Scheme::Mirror(2),
        bytes: 1 << 33,
        bytes_moved: 1 << 20,
        error: Some(Error::new(Errno::ENOSPC, "full").hint("make room")),
        given_up: true,
    };
    vec![
        MetaReply::Unit,
        MetaReply::Entry(attr()),
        MetaReply::Created { attr: attr(), inline_limit: 4096, has_no_xattrs: true, begun: None },
        MetaReply::Attr(attr()),
        MetaReply::Renamed { moved: attr(), other: Some(attr()) },
        MetaReply::Bytes(Bytes::from_static(b"value")),
        MetaReply::Names(vec![name(), Bytes::from_static(b"user.other")]),
        MetaReply::Directory { entries: vec![entry, bare], end: true, parent: DIR },
        MetaReply::File(FileInfo {
            attr: attr(),
            layout: Some(layout),
            length_bounds: Vec::new(),
            inline: Some(Bytes::new()),
            inline_limit: 4096,
            epoch: 0,
            truncate_pending: false,
            is_reported: false,
        }),
        MetaReply::Lock(Some((LockKind::Exclusive, RANGE, 4711))),
        MetaReply::Recalls(vec![recall(1, None), recall(2, Some(LeaseMode::Shared))]),
        MetaReply::Description(Box::new(description)),
        MetaReply::Redirect { ino: INO, mode: mode::S_IFDIR },
        MetaReply::Migration(Some(Box::new(migration))),
        MetaReply::Process(0x5ca1_ab1e),
        MetaReply::Usage(MetadataUsage {
            inodes: 5_000_000_000,
            store: Some(StoreSpace { used: 1 << 33, free: 1 << 40 }),
        }),
        MetaReply::PartitionsTakenOver { partitions: vec![PartitionId(0), PartitionId(63)] },
        MetaReply::Preallocated {
            first: INO,
            count: 1024,
            attr: attr(),
            inline_limit: 4096,
            prefix_lease: None,
        },
    ]
}

pub fn storage_ops() -> Vec<StorageOp> {
    vec![
        StorageOp::Read { offset: 1 << 40, path: DataPath::Cached },
        StorageOp::Write { offset: 4096, path: DataPath::Direct, durable: true },
        StorageOp::Truncate { len: 5 },
        StorageOp::Allocate { range: ByteRange::new(1, 1 << 20), how: AllocateMode::Zero },
        StorageOp::Delete,
        StorageOp::SetAside,
        StorageOp::Sync,
        StorageOp::SyncTarget,
        StorageOp::Stat,
        StorageOp::Seek { from: 8192, what: SeekTarget::Hole },
        StorageOp::Space,
        StorageOp::Fence { session: SessionId(8) },
        StorageOp::TrackDirty { token: 1 << 60, round: 2 },
        StorageOp::NextDirty { token: 1 << 60, round: 2, from: 1 << 20 },
        StorageOp::EndDirtyTracking { token: 1 << 60 },
        StorageOp::Committed,
        StorageOp::Regions { from: FILE, which: RegionSelection::Dirty },
        StorageOp::Survey { range: ByteRange::new(0, 1 << 24), unit: 4096, read: true },
        StorageOp::Repair { range: ByteRange::new(4096, 8192) },
        StorageOp::CopyReplica { from: TargetId(3), to: TargetId(4), range: ByteRange::new(4096, 1 << 20) },
        StorageOp::DiscardLost { range: ByteRange::new(0, 8192) },
        StorageOp::MarkLost { range: ByteRange::new(4096, 12_288) },
        StorageOp::SetTime { time: TIME },
        StorageOp::Digests { range: ByteRange::new(4096, 1 << 20) },
        StorageOp::AdoptVerifier { verifier: 0x0102_0304_0506_0708, instead_of: 1 },
        StorageOp::Measure { what: wire::Measure::Drive { size: 1 << 30 }, milliseconds: 2000 },
        StorageOp::Traffic,
        StorageOp::Rewrite { range: ByteRange::new(4096, 12_288), len: Some(10_000) },
        StorageOp::ExpectChecksums { first: 4096, len: 1 << 25 },
        StorageOp::SpaceNeeded { range: ByteRange::new(4096, 1 << 30) },
    ]
}

pub fn kv_requests() -> Vec<KvRequest> {
    let bytes = Bytes::from_static;
    let first = KvBatch {
        guards: vec![(bytes(b"owner"), Some(bytes(b"me"))), (bytes(b"gone"), None)],
        writes: vec![(bytes(b"key"), Some(bytes(b"value"))), (bytes(b"old"), None)],
    };
    let second = KvBatch { guards: vec![], writes: vec![(bytes(b"key"), Some(bytes(b"")))] };
    vec![
        KvRequest::Get { keys: vec![bytes(b"a"), bytes(b"")] },
        KvRequest::Scan { from: bytes(b"a"), to: bytes(b"b"), limit: 1000 },
        KvRequest::Apply { writer: 7, number: 300, verifier: 0, batches: vec![first, second] },
        KvRequest::Persist,
    ]
}

fn kv_answers() -> Vec<KvAnswer> {
    let bytes = Bytes::from_static;
    vec![
        KvAnswer::Values(vec![Some(bytes(b"value")), None]),
        KvAnswer::Pairs { pairs: vec![(bytes(b"key"), bytes(b"value"))], more: true },
        KvAnswer::Outcomes(vec![KvOutcome::Applied, KvOutcome::GuardFailed, KvOutcome::Unknown]),
        KvAnswer::Done,
    ]
}

fn storage_replies() -> Vec<StorageReply> {
    vec![
        StorageReply::Unit,
        StorageReply::Stat { len: 100, blocks: 8, mtime: TIME, is_lost: false },
        StorageReply::Offset(Some(0)),
        StorageReply::Space { capacity: 1 << 40, free: 1 << 39 },
        StorageReply::Regions {
            regions: vec![(FILE, ByteRange::new(0, 1 << 20)), (OTHER_FILE, ByteRange::new(1 << 20, 3 << 20))],
            next: Some(OTHER_FILE),
        },
        StorageReply::Survey(wire::ReplicaState {
            exists: true,
            len: 5000,
            sum_end: 8192,
            mtime: TIME,
            ctime: TIME,
            sums: vec![7, 0, 1 << 31],
            damaged: vec![ByteRange::new(4096, 8192)],
        }),
        StorageReply::Repaired(wire::RepairResult { damaged: 3, repaired: 2, unclear: 1 }),
        StorageReply::SpaceNeeded(wire::ReservationSpace {
            disk: 0x801,
            free: 1 << 39,
            unallocated: 8192,
            gaps: vec![ByteRange::new(4096, 8192), ByteRange::new(1 << 20, (1 << 20) + 4096)],
            others: vec![wire::MemberSpace { target: TargetId(7), disk: 0x802, free: 1 << 38, wanted: 4096 }],
        }),
        StorageReply::Rates(vec![
            wire::MeasuredRate { of: wire::RateQuantity::Write, rate: 1 << 33, streams: 16 },
            wire::MeasuredRate { of: wire::RateQuantity::Checksum, rate: 1, streams: 1 },
        ]),
        StorageReply::Done { verifier: 0x0102_0304_0506_0708 },
    ]
}

pub fn partitions_requests() -> Vec<PartitionsRequest> {
    let (partition, token, session) = (PartitionId(3), 0x0102_0304_0506_0708, SessionId(7));
    let target = TargetId(12);
    vec![
        PartitionsRequest::LockPartition { partition, token },
        PartitionsRequest::UnlockPartition { partition, token, written: vec![Bytes::from_static(b"key")] },
        PartitionsRequest::RecallConflicting {
            session,
            accesses: vec![(INO, InodeAccess::Write), (DIR, InodeAccess::Read)],
            wait: true,
        },
        PartitionsRequest::Ended { session },
        PartitionsRequest::Reconcile { target, touched: ReconcileFiles::of([FILE, OTHER_FILE]) },
        PartitionsRequest::ReconcileGroup {
            group: types::GroupId(9),
            touched: ReconcileFiles::of([FILE, OTHER_FILE]),
        },
        PartitionsRequest::FileOn { target, partition },
        PartitionsRequest::FindPoolReference { pool: types::PoolId(3), partition },
        PartitionsRequest::Sessions,
        PartitionsRequest::Evict { session },
        PartitionsRequest::Executed,
        PartitionsRequest::Drains,
    ]
}

fn partitions_replies() -> Vec<PartitionsReply> {
    vec![
        PartitionsReply::Done,
        PartitionsReply::Locked { owner: Bytes::from_static(b"owner"), no_leases: true },
        PartitionsReply::Clear(true),
        PartitionsReply::File(Some(INO)),
        PartitionsReply::Sessions(vec![]),
        PartitionsReply::Executed(vec![PartitionId(3), PartitionId(63)]),
        PartitionsReply::Drains(vec![(
            TargetId(12),
            DrainProgress { files_left: Some(2), ..Default::default() },
        )]),
    ]
}
