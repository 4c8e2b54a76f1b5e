//! A metadata service on a real store, and requests of tests.

pub mod caching_client;
pub mod cluster;
pub mod remote_store;
pub mod world;

use bytes::Bytes;
use kv::{Durability, Embedded, Engine, Memory, Writer};
use meta::{MetaOptions, MetaService, StorageChannel};
use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use testkit::map::MapBuilder;
use types::{
    Attr, ChunkFileId, Credentials, Errno, Error, HashMap, InodeId, MapHandle, NodeId, PartitionId, Result,
    SessionId, TargetId, Timestamp,
};
use wire::{
    AllocateMode, LeaseMode, MetaOp, MetaReply, MetaRequest, MetaResponse, RenameMode, SlotSequence,
    StorageOp, StorageReply, StorageRequest,
};

pub const PARTITIONS: u16 = 8;
pub const TARGETS: u32 = 3;

/// A store in a temporary directory.
pub struct Store {
    pub dir: tempfile::TempDir,
}

impl Store {
    pub fn new() -> Store {
        Store { dir: tempfile::tempdir().unwrap() }
    }

    pub fn writer(&self) -> Arc<Writer> {
        let engine: Arc<dyn Engine> = Arc::new(Embedded::open(self.dir.path()).unwrap());
        Arc::new(Writer::new(engine, Durability::Process))
    }
}

pub fn memory_writer(memory: &Arc<Memory>, durability: Durability) -> Arc<Writer> {
    Arc::new(Writer::new(memory.clone(), durability))
}

/// A service without storage.
pub async fn open(writer: Arc<Writer>) -> Arc<MetaService> {
    open_with(writer, HashMap::default()).await
}

pub async fn open_with(writer: Arc<Writer>, storage: HashMap<TargetId, StorageChannel>) -> Arc<MetaService> {
    open_mapped(writer, storage, map()).await
}

pub async fn open_mapped(
    writer: Arc<Writer>,
    storage: HashMap<TargetId, StorageChannel>,
    map: MapHandle,
) -> Arc<MetaService> {
    let options = MetaOptions {
        node: NodeId(1),
        hash_key: (1, 2),
        partitions: PARTITIONS,
        root_pattern: types::StripePattern::default(),
    };
    MetaService::open(writer, options, map, storage).await.unwrap()
}

/// Three targets with a group each.
pub fn map() -> MapHandle {
    MapBuilder::new(TARGETS).single_groups().share()
}

/// Runs the same function on several cores and waits for all.
pub fn on_cores<F, Fut>(cores: usize, run: F)
where
    F: Fn(usize) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let start = |core| {
        let run = run.clone();
        let config = rt::CoreConfig { name: format!("test-{core}"), cpu: None, batch: false };
        rt::start_core(config, move || run(core)).unwrap()
    };
    let threads: Vec<_> = (0..cores).map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// One client.
#[derive(Clone)]
pub struct Client {
    pub meta: Arc<MetaService>,
    pub session: SessionId,
}

impl Client {
    pub fn new(meta: &Arc<MetaService>, session: u64) -> Client {
        Client { meta: meta.clone(), session: SessionId(session) }
    }

    /// Sends change `sequence` of a session slot.
    pub async fn call_in_lane(&self, lane: u32, sequence: u32, op: MetaOp) -> Result<MetaReply> {
        let credentials = Credentials { uid: 0, gid: 0, pid: 1 };
        let number = Some(SlotSequence { slot: lane, sequence });
        let request =
            MetaRequest { session: self.session, slot_sequence: number, credentials, privileged: false, op };
        self.meta.handle(request, None).await.map(|response| response.reply)
    }

    pub async fn call(&self, op: MetaOp) -> Result<MetaReply> {
        self.call_numbered(0, op).await
    }

    pub async fn call_numbered(&self, sequence: u64, op: MetaOp) -> Result<MetaReply> {
        self.respond(sequence, op).await.map(|response| response.reply)
    }

    /// The whole answer.
    pub async fn respond(&self, sequence: u64, op: MetaOp) -> Result<MetaResponse> {
        self.respond_to(Credentials { uid: 0, gid: 0, pid: 1 }, sequence, op).await
    }

    /// The whole answer to a user.
    pub async fn respond_to(
        &self,
        credentials: Credentials,
        sequence: u64,
        op: MetaOp,
    ) -> Result<MetaResponse> {
        let request = MetaRequest {
            session: self.session,
            slot_sequence: numbered(sequence),
            credentials,
            privileged: false,
            op,
        };
        self.meta.handle(request, None).await
    }

    /// The same to a user for whose Linux capabilities the client vouches.
    pub async fn respond_privileged(&self, credentials: Credentials, op: MetaOp) -> Result<MetaResponse> {
        let session = self.session;
        let request = MetaRequest { session, slot_sequence: None, credentials, privileged: true, op };
        self.meta.handle(request, None).await
    }

    /// The leases that come with an answer, by inode.
    pub async fn grants(&self, op: MetaOp) -> Vec<(InodeId, LeaseMode)> {
        let response = self.respond(0, op).await.unwrap();
        let mut grants: Vec<_> = response.grants.iter().map(|grant| (grant.ino, grant.mode)).collect();
        grants.sort_unstable();
        grants
    }

    pub async fn create(&self, parent: InodeId, name: &str) -> Result<Attr> {
        entry(self.call(create(parent, name)).await)
    }

    pub async fn mkdir(&self, parent: InodeId, name: &str) -> Result<Attr> {
        let op = MetaOp::Mkdir { parent, name: bytes(name), mode: 0o755, umask: 0 };
        entry(self.call(op).await)
    }

    pub async fn lookup(&self, parent: InodeId, name: &str) -> Result<Attr> {
        entry(self.call(MetaOp::Lookup { parent, name: bytes(name) }).await)
    }

    /// The inode of a name, also while a session writes it.
    pub async fn find(&self, parent: InodeId, name: &str) -> Result<InodeId> {
        match self.call(MetaOp::Lookup { parent, name: bytes(name) }).await {
            Ok(MetaReply::Redirect { ino, .. }) => Ok(ino),
            reply => entry(reply).map(|attr| attr.ino),
        }
    }

    pub async fn unlink(&self, parent: InodeId, name: &str) -> Result<Attr> {
        entry(self.call(MetaOp::Unlink { parent, name: bytes(name), ino: None }).await)
    }

    pub async fn getattr(&self, ino: InodeId) -> Result<Attr> {
        match self.call(MetaOp::Getattr { ino }).await? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub async fn rename(
        &self,
        parent: InodeId,
        name: &str,
        new_parent: InodeId,
        new_name: &str,
    ) -> Result<()> {
        let (name, new_name) = (bytes(name), bytes(new_name));
        let op = MetaOp::Rename { parent, name, new_parent, new_name, mode: RenameMode::Replace };
        self.call(op).await.map(|_| ())
    }

    /// Names of all entries.
    pub async fn list(&self, dir: InodeId) -> Vec<String> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let op = MetaOp::Readdir { dir, cookie, limit: 50, attributes: false, prefix: Bytes::new() };
            let MetaReply::Directory { entries, end, .. } = self.call(op).await.unwrap() else { panic!() };
            names.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
            cookie = entries.last().map_or(cookie, |entry| entry.cookie);
            if end {
                names.sort();
                return names;
            }
        }
    }

    /// A directory below `parent` in another partition.
    pub async fn mkdir_elsewhere(&self, parent: InodeId, others: &[PartitionId]) -> InodeId {
        for number in 0.. {
            let ino = self.mkdir(parent, &format!("d{number}")).await.unwrap().ino;
            if ino.partition() != parent.partition() && !others.contains(&ino.partition()) {
                return ino;
            }
        }
        unreachable!()
    }
}

/// Number of a change in a slot of its own, so that none is later. 0: none.
pub fn numbered(sequence: u64) -> Option<SlotSequence> {
    (sequence != 0).then_some(SlotSequence { slot: sequence as u32, sequence: 1 })
}

pub fn create(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Create {
        parent,
        name: bytes(name),
        mode: 0o100644,
        umask: 0,
        rdev: 0,
        exclusive: true,
        requested_lease: None,
    }
}

pub fn entry(reply: Result<MetaReply>) -> Result<Attr> {
    match reply? {
        MetaReply::Entry(attr) | MetaReply::Created { attr, .. } => Ok(attr),
        other => panic!("{other:?}"),
    }
}

pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.unwrap_err().errno
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Chunk files in memory: their lengths.
#[derive(Default)]
pub struct Chunks {
    pub lens: Mutex<BTreeMap<(TargetId, ChunkFileId), u64>>,
    /// Chunk files that had been on disk and were lost in a crash.
    pub lost: Mutex<Vec<(TargetId, ChunkFileId)>>,
    /// Targets that don't answer.
    pub down: Mutex<Vec<TargetId>>,
    /// Deletions of chunk files wait until this is set.
    pub held: Mutex<Option<Arc<rt::sync::Event>>>,
    /// The same for these targets only, which also delay syncs.
    pub slow: Mutex<Vec<(TargetId, Arc<rt::sync::Event>)>>,
    /// How often a power loss took what a target had not synced.
    pub power_cuts: Mutex<BTreeMap<TargetId, u64>>,
    /// How long targets take to report the length of a chunk file.
    pub stat_time: Mutex<Duration>,
    /// Fence requests for ended sessions.
    pub fenced: Mutex<Vec<(TargetId, SessionId)>>,
}

pub const CHUNK_MTIME: Timestamp = Timestamp::new(5_000_000_000, 7);

impl Chunks {
    pub fn channels(self: &Arc<Self>) -> HashMap<TargetId, StorageChannel> {
        (1..=TARGETS).map(|id| (TargetId(id), StorageChannel::in_process(self.clone()))).collect()
    }
}

impl Handler<StorageRequest, StorageReply> for Chunks {
    fn handle(&self, request: StorageRequest, _: Option<IoBuf>) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(async move {
            if matches!(request.op, StorageOp::Stat) {
                let time = *self.stat_time.lock();
                rt::sleep(time).await;
            }
            if self.down.lock().contains(&request.target) {
                return Err(Error::new(Errno::ETIMEDOUT, "target is down"));
            }
            let slow = self.slow.lock().iter().find(|(target, _)| *target == request.target).cloned();
            let held = self.held.lock().clone().filter(|_| matches!(request.op, StorageOp::Delete));
            let slow = slow.filter(|_| matches!(request.op, StorageOp::Delete | StorageOp::Sync));
            for held in [held, slow.map(|(_, event)| event)].into_iter().flatten() {
                held.wait().await;
            }
            let mut lens = self.lens.lock();
            let key = (request.target, request.ino);
            match request.op {
                StorageOp::Sync | StorageOp::SyncTarget => {}
                StorageOp::Delete => {
                    lens.remove(&key);
                }
                StorageOp::Allocate { range, how: AllocateMode::Zero } => {
                    let len = lens.entry(key).or_default();
                    *len = range.end.max(*len);
                }
                StorageOp::Truncate { len } => {
                    lens.entry(key).and_modify(|old| *old = len.min(*old));
                }
                StorageOp::Stat => {
                    let len = lens.get(&key).copied();
                    let mtime = if len.is_some() { CHUNK_MTIME } else { Timestamp::default() };
                    let len = len.unwrap_or(0);
                    return Ok(StorageReply::Stat {
                        len,
                        blocks: len.div_ceil(512),
                        mtime,
                        is_lost: self.lost.lock().contains(&key),
                    });
                }
                // Nothing changes during dirty tracking, and everything is a hole.
                StorageOp::TrackDirty { .. } | StorageOp::EndDirtyTracking { .. } => {}
                StorageOp::Seek { .. } | StorageOp::NextDirty { .. } => {
                    return Ok(StorageReply::Offset(None));
                }
                StorageOp::Fence { session } => self.fenced.lock().push((request.target, session)),
                other => panic!("the metadata service asks for {other:?}"),
            }
            let verifier = 1 + self.power_cuts.lock().get(&request.target).copied().unwrap_or(0);
            Ok(StorageReply::Done { verifier })
        })
    }
}
