//! A small file system on a real engine and real targets, created without services.

use bytes::Bytes;
use chunkstore::{Durability, IfAbsent, IoPath, Store};
use fsck::{CheckOptions, CheckOutcome, CheckReport, Finding, Kind, Replicas, Subject, UnopenedReplicas};
use kv::{Batch, Blocking, Embedded, Engine, Outcome, Readable, Writer};
use namespace::record::{Inode, PartitionCounters};
use namespace::{Env, ReadError, Reader, Writes, keys};
use prost::Message;
use rt::IoBuf;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use testkit::map::MapBuilder;
use testkit::targets;
use types::{
    ChunkFileId, ClusterMap, Credentials, GroupId, InodeId, Layout, PartitionId, SessionId, TargetId,
    Timestamp,
};
use wire::{MetaOp, MetaReply};

pub const HASH_KEY: (u64, u64) = (3, 5);
pub const PARTITIONS: u16 = 4;
/// Inode numbers of the first partition up to this one are allocated.
pub const FIRST_UNALLOCATED: u64 = 10_000;

/// A file system that no process serves.
pub struct Fs {
    engine: Arc<Embedded>,
    /// The store over the engine.
    pub metadata: Arc<Writer>,
    pub stores: BTreeMap<TargetId, Arc<Store>>,
    /// Replicas of the mirrored groups: 5 on targets 1 and 2, 6 on 3 and 4.
    pub copies: Replicas,
    /// Replicas of these groups that can't be opened.
    pub unopened: UnopenedReplicas,
    pub map: ClusterMap,
    dir: TempDir,
}

/// Runs a test on a core.
pub fn on_a_core(test: impl AsyncFnOnce(Fs) + 'static) {
    rt::block_on(async move { test(Fs::new().await).await }).unwrap();
}

struct EngineReader<'a>(&'a Embedded);

impl Reader for EngineReader<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.0.get(key).unwrap())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        Ok(self.0.scan(from, to, limit).unwrap())
    }
}

impl Fs {
    async fn new() -> Fs {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(Embedded::open(&dir.path().join("meta")).unwrap());
        let metadata =
            Arc::new(Writer::with_blocking(engine.clone(), kv::Durability::Process, Blocking::Inline));
        let map = cluster_map();
        let mut stores = BTreeMap::new();
        for target in map.targets.iter().map(|target| target.id) {
            let place = targets::directory(dir.path(), target);
            stores.insert(target, targets::create(&place, target, targets::LOG_BYTES).await);
        }
        for group in map.groups.iter().filter(|group| group.scheme.spans_targets()) {
            for target in &group.members {
                Store::open_group(&stores[target], group.id, IfAbsent::Create)
                    .await
                    .unwrap()
                    .unwrap()
                    .0
                    .close()
                    .await
                    .unwrap();
            }
        }
        let (copies, unopened) = fsck::open_replicas(&stores).await.unwrap();
        let fs = Fs { engine, metadata, stores, copies, unopened, map, dir };
        fs.put_all(namespace::format(&fs.env(), &types::StripePattern::default()));
        // Files existed before and were deleted: orphaned chunk files may have their numbers.
        fs.put(
            &keys::partition_counters(PartitionId(0)),
            &PartitionCounters { sequence: FIRST_UNALLOCATED, inodes: Some(0) },
        );
        fs
    }

    fn env(&self) -> Env<'_> {
        Env {
            now: Timestamp::new(1_700_000_000, 0),
            session: SessionId(1),
            credentials: Credentials::default(),
            hash_key: HASH_KEY,
            partitions: PARTITIONS,
            seed: 0,
            map: &self.map,
        }
    }

    /// Writes to the metadata directly.
    pub fn put_all(&self, writes: Writes) {
        let outcome = self.engine.apply(&[Batch { guards: Vec::new(), writes }]).unwrap();
        assert_eq!(outcome, [Outcome::Applied]);
    }

    pub fn put(&self, key: &[u8], value: &impl Message) {
        self.put_all(vec![(key.to_vec(), Some(value.encode_to_vec().into()))]);
    }

    pub fn delete(&self, key: &[u8]) {
        self.put_all(vec![(key.to_vec(), None)]);
    }

    pub fn engine_has(&self, key: &[u8]) -> bool {
        self.engine.get(key).unwrap().is_some()
    }

    pub fn get<M: Message + Default>(&self, key: &[u8]) -> M {
        namespace::record::decode(key, self.engine.get(key).unwrap().unwrap()).unwrap()
    }

    pub fn inode(&self, ino: InodeId) -> Inode {
        namespace::record::decode(&keys::inode(ino), self.engine.get(&keys::inode(ino)).unwrap().unwrap())
            .unwrap()
    }

    pub fn edit_inode(&self, ino: InodeId, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        self.put(&keys::inode(ino), &inode);
    }

    pub fn entry_key(&self, dir: InodeId, name: &str) -> Vec<u8> {
        keys::entry(dir, keys::name_hash(HASH_KEY, name.as_bytes()), name.as_bytes())
    }

    /// Returns a snapshot of the metadata.
    pub async fn snapshot(&self) -> Arc<dyn Readable> {
        kv::Store::snapshot(&*self.metadata).await.unwrap()
    }

    /// Executes a command as the metadata service does.
    pub fn run(&self, op: MetaOp) -> MetaReply {
        let applied = namespace::apply(&self.env(), &EngineReader(&self.engine), &op).unwrap();
        if !applied.writes.is_empty() {
            self.put_all(applied.writes);
        }
        applied.reply
    }

    pub fn mkdir(&self, parent: InodeId, name: &'static str) -> InodeId {
        self.made(MetaOp::Mkdir { parent, name: name.into(), mode: 0o755, umask: 0 })
    }

    pub fn create(&self, parent: InodeId, name: &'static str) -> InodeId {
        let op = MetaOp::Create {
            parent,
            name: name.into(),
            mode: 0o644,
            umask: 0,
            rdev: 0,
            exclusive: true,
            requested_lease: None,
        };
        self.made(op)
    }

    fn made(&self, op: MetaOp) -> InodeId {
        match self.run(op) {
            MetaReply::Entry(attr) | MetaReply::Created { attr, .. } => attr.ino,
            other => panic!("{other:?}"),
        }
    }

    /// Creates a file with this many bytes in chunks.
    pub async fn chunked(&self, parent: InodeId, name: &'static str, len: usize) -> InodeId {
        let ino = self.create(parent, name);
        self.run(MetaOp::BeginWrite { ino });
        self.run(MetaOp::DropInline { ino, size: 0, mtime: Timestamp::new(1_700_000_001, 0) });
        let layout = self.layout(ino);
        let data: Vec<u8> = (0..len).map(|at| (at / 1000) as u8 | 1).collect();
        for piece in layout::pieces(&layout, types::ByteRange::new(0, len as u64)) {
            let part = IoBuf::from_slice(&data[piece.file.start as usize..piece.file.end as usize]);
            for store in self.stores_of(&layout, piece.stripe) {
                store
                    .write(ino.first_chunk_file(), piece.local, &part, IoPath::Cached, Durability::Later)
                    .await
                    .unwrap();
            }
        }
        let blocks = len.div_ceil(512) as u64;
        let size = len as u64;
        self.run(MetaOp::EndWrite {
            ino,
            size,
            blocks,
            lens: Vec::new(),
            mtime: None,
            done: true,
            kill_suid_sgid: false,
        });
        ino
    }

    pub fn layout(&self, ino: InodeId) -> Layout {
        Layout::try_from(self.inode(ino).layout.as_ref().unwrap()).unwrap()
    }

    /// Returns the store that holds a stripe, or the first of them.
    pub fn store_of(&self, layout: &Layout, stripe: usize) -> &Arc<Store> {
        self.stores_of(layout, stripe)[0]
    }

    /// Returns all stores that hold a stripe.
    pub fn stores_of(&self, layout: &Layout, stripe: usize) -> Vec<&Arc<Store>> {
        let group = self.map.group(layout.groups[stripe]).unwrap();
        let store = |target: &TargetId| match group.scheme.spans_targets() {
            true => &self.copies[&(*target, group.id)],
            false => &self.stores[target],
        };
        group.members.iter().map(store).collect()
    }

    /// Closes all replicas orderly, so that no notes of differences remain, and opens them again.
    pub async fn settle(&mut self) {
        self.reopen_replicas(|_| ()).await;
        for store in self.copies.values() {
            assert_eq!(store.dirty_ranges(ChunkFileId(0), 100).await.unwrap(), (vec![], None));
        }
    }

    /// Closes all replicas, calls `change` with the targets, and opens what can be opened.
    pub async fn reopen_replicas(&mut self, change: impl FnOnce(&BTreeMap<TargetId, Arc<Store>>)) {
        for store in self.copies.values() {
            store.close().await.unwrap();
        }
        change(&self.stores);
        (self.copies, self.unopened) = fsck::open_replicas(&self.stores).await.unwrap();
    }

    /// Returns the path of a chunk file.
    pub fn chunk_file(&self, ino: InodeId, stripe: usize) -> PathBuf {
        let target = self.store_of(&self.layout(ino), stripe).target();
        Store::chunk_file_path(&targets::directory(self.dir.path(), target), ino.first_chunk_file())
    }

    pub fn subject(&self) -> Subject<'_> {
        Subject {
            metadata: &*self.metadata,
            partitions: PARTITIONS,
            hash_key: HASH_KEY,
            map: &self.map,
            stores: &self.stores,
            replicas: &self.copies,
            unopened: &self.unopened,
        }
    }

    pub async fn check(&self, repair: bool) -> CheckReport {
        self.check_with(&CheckOptions { repair, ..CheckOptions::default() }).await
    }

    pub async fn check_with(&self, orders: &CheckOptions<'_>) -> CheckReport {
        fsck::check(&self.subject(), orders, &|_, _, _| ()).await.unwrap()
    }

    /// Returns a file's content on the replicas of a stripe.
    pub async fn contents(&self, ino: InodeId, stripe: usize, len: usize) -> Vec<Vec<u8>> {
        let mut contents = Vec::new();
        for store in self.stores_of(&self.layout(ino), stripe) {
            let buf = IoBuf::alloc(len);
            store.read(ino.first_chunk_file(), 0, &buf, IoPath::Cached).await.unwrap();
            contents.push(buf.as_slice().to_vec());
        }
        contents
    }

    /// Asserts that a check without repair finds only this kind of fault, and that nothing is left
    /// after a repair.
    pub async fn finds_and_repairs(&self, kind: Kind) -> Vec<Finding> {
        let found = self.check(false).await;
        assert_eq!(found.outcome(), CheckOutcome::Damaged);
        assert!(found.findings.iter().any(|finding| finding.kind == kind), "{:?}", found.findings);
        assert_eq!(
            self.check(false).await.findings,
            found.findings,
            "a check without repair changes nothing"
        );
        let repaired = self.check(true).await;
        assert_eq!(repaired.outcome(), CheckOutcome::Repaired, "{:?}", repaired.findings);
        let after = self.check(false).await;
        assert_eq!(after.outcome(), CheckOutcome::Clean, "{:?}", after.findings);
        found.findings
    }

    /// Asserts that the check finds one fault of this kind, and that repair leaves it.
    pub async fn finds_and_leaves(&self, kind: Kind) -> Finding {
        let report = self.check(true).await;
        let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!((kinds, report.outcome()), (vec![kind], CheckOutcome::Damaged));
        assert_eq!(self.check(true).await.findings, report.findings);
        report.findings[0].clone()
    }
}

fn cluster_map() -> ClusterMap {
    let pair = |first| [TargetId(first), TargetId(first + 1)];
    MapBuilder::new(4).single_groups().mirror(GroupId(5), &pair(1)).mirror(GroupId(6), &pair(3)).build()
}
