//! A file system over a map in memory, for tests.

mod invariants;

use bytes::Bytes;
use namespace::{Applied, Env, Failure, ReadError, Reader, Writes, apply, format, home_partition};
use namespace::{keys, partition_of_key};
use std::collections::{BTreeMap, BTreeSet};
use types::{
    Attr, CapacityClass, ClusterMap, Credentials, Epoch, Errno, Group, GroupId, InodeId, NodeId, PartitionId,
    Pool, PoolId, SessionId, Target, TargetId, TargetState, Timestamp,
};
use wire::{DirEntry, FileInfo, MetaOp, MetaReply, RenameMode};

pub const HASH_KEY: (u64, u64) = (7, 11);
pub const PARTITIONS: u16 = 4;

/// How commands lock partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartitionLocking {
    /// All are locked.
    All,
    /// A command starts with its home partition and locks those that it asks for.
    OnDemand,
}

/// Content of the store.
#[derive(Clone, Default)]
pub struct State(pub BTreeMap<Vec<u8>, Bytes>);

impl State {
    pub fn write(&mut self, writes: Writes) {
        for (key, value) in writes {
            match value {
                Some(value) => {
                    assert!(!value.is_empty(), "engines refuse empty values");
                    self.0.insert(key, value);
                }
                None => {
                    self.0.remove(&key);
                }
            }
        }
    }
}

impl Reader for State {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let pairs = self.0.range(from.to_vec()..to.to_vec()).take(limit);
        Ok(pairs.map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())).collect())
    }
}

/// Shows the locked partitions only.
struct LockedState<'a> {
    state: &'a State,
    partitions: &'a BTreeSet<PartitionId>,
}

impl LockedState<'_> {
    fn check(&self, key: &[u8]) -> Result<(), ReadError> {
        let partition = partition_of_key(key);
        let held = self.partitions.contains(&partition);
        if held { Ok(()) } else { Err(ReadError::NeedPartition(partition)) }
    }
}

impl Reader for LockedState<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.check(key)?;
        self.state.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.check(from)?;
        self.state.scan(from, to, limit)
    }
}

/// A file system with a caller.
pub struct World {
    pub state: State,
    pub holding: PartitionLocking,
    pub credentials: Credentials,
    pub session: SessionId,
    pub map: ClusterMap,
    /// Seconds; one passes before every command.
    pub now: i64,
}

impl World {
    pub fn new(holding: PartitionLocking) -> World {
        let mut world = World {
            state: State::default(),
            holding,
            credentials: Credentials { uid: 1000, gid: 100, pid: 1 },
            session: SessionId(1),
            map: cluster_map(),
            now: 1,
        };
        let writes = format(&world.env(), &types::StripePattern::default());
        world.state.write(writes);
        world
    }

    pub fn env(&self) -> Env<'_> {
        Env {
            now: Timestamp::new(self.now, 0),
            session: self.session,
            credentials: self.credentials,
            hash_key: HASH_KEY,
            partitions: PARTITIONS,
            seed: 42,
            map: &self.map,
        }
    }

    /// Executes a command and applies its writes.
    pub fn run(&mut self, op: MetaOp) -> Result<MetaReply, Errno> {
        self.now += 1;
        let applied = self.attempt(&op)?;
        assert!(
            applied.writes.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "writes are in order, once a key"
        );
        self.state.write(applied.writes);
        Ok(applied.reply)
    }

    fn attempt(&self, op: &MetaOp) -> Result<Applied, Errno> {
        let env = self.env();
        let mut partitions: BTreeSet<PartitionId> = match self.holding {
            PartitionLocking::All => (0..PARTITIONS).map(PartitionId).collect(),
            PartitionLocking::OnDemand => [home_partition(op)].into(),
        };
        loop {
            match apply(&env, &LockedState { state: &self.state, partitions: &partitions }, op) {
                Ok(applied) => {
                    for (key, _) in &applied.writes {
                        assert!(
                            partitions.contains(&partition_of_key(key)),
                            "a write outside of what is held"
                        );
                    }
                    return Ok(applied);
                }
                Err(Failure::Refused(error)) => {
                    assert_ne!(error.errno, Errno::EIO, "{error}");
                    return Err(error.errno);
                }
                Err(Failure::NeedPartition(partition)) => {
                    assert!(partitions.insert(partition), "{partition} is asked for though it is held");
                }
                Err(Failure::NotFetched) => panic!("everything is here"),
            }
        }
    }

    /// The attributes in a command's answer.
    pub fn attr_of(&mut self, op: MetaOp) -> Result<Attr, Errno> {
        match self.run(op)? {
            MetaReply::Attr(attr) | MetaReply::Entry(attr) | MetaReply::Created { attr, .. } => Ok(attr),
            MetaReply::File(info) => Ok(info.attr),
            reply => panic!("no attributes: {reply:?}"),
        }
    }

    pub fn file(&mut self, op: MetaOp) -> Result<FileInfo, Errno> {
        match self.run(op)? {
            MetaReply::File(info) => Ok(info),
            reply => panic!("no file: {reply:?}"),
        }
    }

    pub fn getattr(&mut self, ino: InodeId) -> Result<Attr, Errno> {
        self.attr_of(MetaOp::Getattr { ino })
    }

    pub fn create(&mut self, parent: InodeId, name: &str) -> InodeId {
        let op = MetaOp::Create {
            parent,
            name: bytes(name),
            mode: 0o100644,
            umask: 0,
            rdev: 0,
            exclusive: true,
            requested_lease: None,
        };
        self.attr_of(op).unwrap().ino
    }

    pub fn mkdir(&mut self, parent: InodeId, name: &str) -> InodeId {
        self.attr_of(MetaOp::Mkdir { parent, name: bytes(name), mode: 0o755, umask: 0 }).unwrap().ino
    }

    pub fn lookup(&mut self, parent: InodeId, name: &str) -> Result<InodeId, Errno> {
        Ok(self.attr_of(MetaOp::Lookup { parent, name: bytes(name) })?.ino)
    }

    pub fn link(&mut self, ino: InodeId, parent: InodeId, name: &str) -> Result<Attr, Errno> {
        self.attr_of(MetaOp::Link { ino, parent, name: bytes(name) })
    }

    pub fn unlink(&mut self, parent: InodeId, name: &str) -> Result<Attr, Errno> {
        self.attr_of(MetaOp::Unlink { parent, name: bytes(name), ino: None })
    }

    pub fn rmdir(&mut self, parent: InodeId, name: &str) -> Result<Attr, Errno> {
        self.attr_of(MetaOp::Rmdir { parent, name: bytes(name) })
    }

    pub fn reclaim(&mut self, ino: InodeId) {
        self.run(MetaOp::Reclaim { ino, others: Vec::new() }).unwrap();
    }

    /// Renames; returns the inode that moved and the other one.
    pub fn rename(
        &mut self,
        (parent, name): (InodeId, &str),
        (new_parent, new_name): (InodeId, &str),
        mode: RenameMode,
    ) -> Result<(Attr, Option<Attr>), Errno> {
        let op = MetaOp::Rename { parent, name: bytes(name), new_parent, new_name: bytes(new_name), mode };
        match self.run(op)? {
            MetaReply::Renamed { moved, other } => Ok((moved, other)),
            reply => panic!("not renamed: {reply:?}"),
        }
    }

    /// One page of a directory: entries, whether it is the last, and the parent.
    pub fn page(
        &mut self,
        dir: InodeId,
        cookie: u64,
        limit: u32,
    ) -> Result<(Vec<DirEntry>, bool, InodeId), Errno> {
        match self.run(MetaOp::Readdir { dir, cookie, limit, attributes: true, prefix: Bytes::new() })? {
            MetaReply::Directory { entries, end, parent } => Ok((entries, end, parent)),
            reply => panic!("no directory: {reply:?}"),
        }
    }

    /// All entries of a directory, read in pages of `limit`.
    pub fn list(&mut self, dir: InodeId, limit: u32) -> Result<Vec<DirEntry>, Errno> {
        let mut all: Vec<DirEntry> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |entry| entry.cookie);
            let (entries, end, _) = self.page(dir, cookie, limit)?;
            all.extend(entries);
            if end {
                return Ok(all);
            }
        }
    }

    /// Panics unless the crate's invariants hold.
    pub fn check_invariants(&self) {
        invariants::check(&self.state);
    }

    /// Whether the store has this key.
    pub fn holds(&self, key: impl AsRef<[u8]>) -> bool {
        self.state.0.contains_key(key.as_ref())
    }

    /// Adds a name with a chosen hash, as if the names of a directory collided.
    pub fn plant_entry(&mut self, dir: InodeId, hash: u64, name: &str, ino: InodeId) {
        let record = namespace::record::Entry::new(ino, 0o100000);
        let value = prost::Message::encode_to_vec(&record);
        self.state.0.insert(keys::entry(dir, hash, name.as_bytes()), value.into());
    }
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// One pool of four targets, each a group of its own.
fn cluster_map() -> ClusterMap {
    let ids = 1..=4;
    let target = |id| Target {
        id: TargetId(id),
        node: NodeId(1),
        pool: PoolId(1),
        path: std::format!("/data/t{id}"),
        state: TargetState::Online,
        capacity: 1 << 40,
        free: 1 << 39,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let group = |id| Group::single(GroupId(id), PoolId(1), TargetId(id));
    ClusterMap {
        nodes: vec![],
        epoch: Epoch(1),
        targets: ids.clone().map(target).collect(),
        pools: vec![Pool { id: PoolId(1), name: "nvme".into(), spare: 0 }],
        groups: ids.map(group).collect(),
        partitions: Vec::new(),
        exports: Vec::new(),
        revoked: Vec::new(),
        settings: Default::default(),
    }
}
