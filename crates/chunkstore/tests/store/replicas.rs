//! Two replicas of a group on two simulated machines that fail: the dirty regions of the two cover
//! all differences, and a resync of just these makes the replicas equal.

use crate::common::{LOG_BYTES, buf, identity, open_with};
use chunkstore::{Allocate, Durability, EntryHold, IfAbsent, IoPath, Options, Seek, Store};
use rt::sim::World;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, GroupId, InodeId, PartitionId};

const DIR: &str = "/target";
const GROUP: GroupId = GroupId(7);
const SEEDS: u64 = 20;
const ROUNDS: u64 = 4;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Offsets of changes: a few regions.
const REACH: u64 = 5 * MIB;
const PARTITIONS: u64 = 2;

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Left,
    Right,
}
use Side::{Left, Right};

impl Side {
    fn other(self) -> Side {
        if self == Left { Right } else { Left }
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Write { ino: ChunkFileId, offset: u64, len: usize, fill: u8, durability: Durability },
    Truncate(ChunkFileId, u64),
    Zero(ChunkFileId, ByteRange, Allocate),
    Delete(ChunkFileId),
    SetLen(ChunkFileId, u64),
}

async fn make(store: Arc<Store>, change: Change) {
    match change {
        Change::Write { ino, offset, len, fill, durability } => {
            store.write(ino, offset, &buf(&vec![fill; len]), IoPath::Cached, durability).await.unwrap();
        }
        Change::Truncate(ino, len) => store.truncate(ino, len).await.unwrap(),
        Change::Zero(ino, range, how) => store.allocate(ino, range, how).await.unwrap(),
        Change::Delete(ino) => store.delete(ino).await.unwrap(),
        Change::SetLen(ino, len) => store.set_len(ino, len).await.unwrap(),
    }
}

/// Content of a file: its length, and its blocks that aren't zeros.
#[derive(PartialEq, Eq, Debug)]
struct Content {
    len: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

type Contents = BTreeMap<ChunkFileId, Content>;

async fn content_of(store: &Store, ino: ChunkFileId) -> Content {
    assert_eq!(store.verify(ino).await.unwrap(), [], "{ino:?} looks damaged");
    let len = store.stat(ino).await.unwrap().len;
    let mut blocks = BTreeMap::new();
    let mut at = 0;
    while let Some(data) = store.seek(ino, at, Seek::Data).await.unwrap() {
        at = store.seek(ino, data, Seek::Hole).await.unwrap().unwrap().next_multiple_of(BLOCK);
        for block in data / BLOCK..at / BLOCK {
            let content = rt::IoBuf::alloc(BLOCK as usize);
            store.read(ino, block * BLOCK, &content, IoPath::Cached).await.unwrap();
            if content.as_slice().iter().any(|byte| *byte != 0) {
                blocks.insert(block, content.as_slice().to_vec());
            }
        }
    }
    Content { len, blocks }
}

async fn contents_of(store: Arc<Store>) -> Contents {
    let mut contents = Contents::new();
    let (files, next) = store.files(ChunkFileId(0), usize::MAX).await.unwrap();
    assert_eq!(next, None);
    for ino in files {
        contents.insert(ino, content_of(&store, ino).await);
    }
    contents
}

/// Returns all dirty regions of a store, fetched in parts; `None` if everything is dirty.
async fn dirty_ranges_of(store: Arc<Store>) -> Option<Vec<(ChunkFileId, ByteRange)>> {
    let (mut dirty, mut from) = (Vec::new(), Some(ChunkFileId(0)));
    while let Some(at) = from {
        let (part, next) = store.dirty_ranges(at, 50).await.unwrap();
        assert!(part.iter().all(|(ino, _)| *ino >= at) && next.is_none_or(|next| next > at));
        dirty.extend(part);
        from = next;
    }
    (!store.has_overflowed()).then_some(dirty)
}

/// Makes dirty ranges of `to` equal to `from`, including the length and existence of files.
async fn resync(to: Arc<Store>, from: Contents, dirty: Vec<(ChunkFileId, ByteRange)>) {
    for (ino, range) in dirty {
        let Some(file) = from.get(&ino) else {
            to.delete(ino).await.unwrap();
            continue;
        };
        to.set_len(ino, file.len).await.unwrap();
        // What lies beyond was removed with the length.
        let range = range.intersect(ByteRange::new(0, file.len));
        to.allocate(ino, range, Allocate::Punch).await.unwrap();
        for (block, content) in file.blocks.range(range.start / BLOCK..range.end.div_ceil(BLOCK)) {
            let len = (file.len - block * BLOCK).min(BLOCK) as usize;
            to.write(ino, block * BLOCK, &buf(&content[..len]), IoPath::Cached, Durability::Later)
                .await
                .unwrap();
        }
    }
}

struct ReplicaPair {
    world: World,
    hosts: [rt::sim::HostId; 2],
    stores: [Option<Arc<Store>>; 2],
    files: Vec<ChunkFileId>,
    next: u64,
    overflows: u64,
}

impl ReplicaPair {
    fn new(seed: u64) -> ReplicaPair {
        let mut world = World::new(seed);
        let hosts = [world.add_host("left"), world.add_host("right")];
        let mut replicas =
            ReplicaPair { world, hosts, stores: [None, None], files: Vec::new(), next: 0, overflows: 0 };
        for side in [Left, Right] {
            let format =
                async { Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap() };
            replicas.run(side, format);
            replicas.open(side);
        }
        replicas
    }

    fn run<T: 'static>(&mut self, side: Side, future: impl Future<Output = T> + 'static) -> T {
        self.world.run(self.hosts[side as usize], future).unwrap()
    }

    fn store(&self, side: Side) -> Arc<Store> {
        self.stores[side as usize].clone().expect("it is open")
    }

    fn random(&mut self, below: u64) -> u64 {
        self.world.random() % below
    }

    fn open(&mut self, side: Side) {
        let store = self.run(side, async {
            let options = Options { group_log_bytes: LOG_BYTES, ..Options::default() };
            let (target, _) = open_with(Path::new(DIR), options).await;
            Store::open_group(&target, GROUP, IfAbsent::Create).await.unwrap().unwrap().0
        });
        self.stores[side as usize] = Some(store);
    }

    /// The machine loses power, or its process dies, perhaps in the middle of a change; then it
    /// restarts.
    fn fail(&mut self, side: Side, during: Option<Change>) {
        if let Some(change) = during {
            let (store, steps) = (self.store(side), 1 + self.random(40));
            self.world.run_until(self.hosts[side as usize], make(store, change), steps).unwrap();
        }
        self.stores[side as usize] = None;
        match self.random(3) {
            0 => self.world.kill(self.hosts[side as usize]),
            _ => self.world.crash(self.hosts[side as usize]),
        }
        if self.random(3) == 0 {
            // An interrupted recovery comes first.
            let steps = 1 + self.random(200);
            let opening = async {
                let (target, _) = open_with(Path::new(DIR), Options::default()).await;
                Store::open_group(&target, GROUP, IfAbsent::Create).await.unwrap();
            };
            self.world.run_until(self.hosts[side as usize], opening, steps).unwrap();
            self.world.crash(self.hosts[side as usize]);
        }
        self.open(side);
    }

    fn close(&mut self, side: Side) {
        let store = self.stores[side as usize].take().expect("it is open");
        self.run(side, async move { store.close().await.unwrap() });
        self.world.kill(self.hosts[side as usize]);
        self.open(side);
    }

    /// Retires every entry that may retire.
    fn retire_entries(&mut self, side: Side) {
        let store = self.store(side);
        self.run(side, async move {
            for _ in 0..3 {
                store.maintain(0).await.unwrap();
            }
        });
    }

    fn maintain(&mut self, side: Side) {
        let (store, idle) = (self.store(side), self.random(3));
        self.run(side, async move { store.maintain(idle).await.unwrap() });
    }

    fn any_change(&mut self) -> Change {
        if self.files.is_empty() || self.random(4) == 0 {
            self.next += 1 + self.random(3);
            let partition = PartitionId((self.next % PARTITIONS) as u16);
            self.files.push(InodeId::new(partition, 1 + self.next / PARTITIONS).first_chunk_file());
        }
        // Mostly the same few, so that a file is deleted and created again while a replica is
        // missing.
        let back = if self.random(4) == 0 { self.random(50) } else { self.random(4) } as usize;
        let ino = self.files[self.files.len().saturating_sub(1 + back)];
        let offset = match self.random(3) {
            0 => self.random(20_000),
            1 => self.random(REACH / BLOCK) * BLOCK,
            _ => self.random(REACH),
        };
        let len = 1 + self.random(9000);
        match self.random(16) {
            0 | 1 => Change::Truncate(ino, offset),
            2 => Change::Zero(ino, ByteRange::at(offset, len * 40), Allocate::Punch),
            3 => Change::Zero(ino, ByteRange::at(offset, len * 10), Allocate::Zero),
            4 | 5 => Change::Delete(ino),
            6 => Change::SetLen(ino, offset),
            _ => {
                let durability = if self.random(6) == 0 { Durability::Now } else { Durability::Later };
                let fill = 1 + self.random(255) as u8;
                Change::Write { ino, offset, len: len as usize, fill, durability }
            }
        }
    }

    fn change(&mut self, side: Side, change: Change) -> EntryHold {
        let store = self.store(side);
        let hold = store.hold_entries();
        self.run(side, make(store, change));
        hold
    }

    /// Both are available: each change is held until both have it.
    fn work_together(&mut self) {
        for _ in 0..self.random(30) {
            let change = self.any_change();
            let _left = self.change(Left, change);
            if self.random(4) == 0 {
                self.maintain(Left);
            }
            let _right = self.change(Right, change);
            if self.random(4) == 0 {
                self.maintain(Right);
            }
        }
    }

    /// The other one is missing.
    fn work_alone(&mut self, side: Side) {
        self.store(side).retain_all_entries(true);
        let many = if self.random(10) == 0 { 300 } else { 20 };
        for _ in 0..self.random(many) {
            let change = self.any_change();
            drop(self.change(side, change));
            if self.random(4) == 0 {
                self.maintain(side);
            }
        }
    }

    /// Injects a failure; returns the side that has everything acknowledged afterwards.
    fn inject_failure(&mut self) -> Side {
        let side = if self.random(2) == 0 { Left } else { Right };
        // Changes that one side has and the other doesn't when it happens.
        let begun: Vec<Change> = (0..self.random(4)).map(|_| self.any_change()).collect();
        let mut holds: Vec<EntryHold> = begun.iter().map(|change| self.change(side, *change)).collect();
        let during = (self.random(2) == 0).then(|| self.any_change());
        match self.random(6) {
            0 => self.fail(side, during),
            1 => self.fail(side.other(), during),
            2 => {
                self.fail(side, during);
                self.fail(side.other(), None);
            }
            3 => self.close(side),
            4 => self.close(side.other()),
            _ => {}
        }
        for side in [Left, Right] {
            if self.random(2) == 0 {
                self.retire_entries(side);
            }
            if self.random(6) == 0 {
                self.close(side);
            }
        }
        let survivor = if self.random(2) == 0 { Left } else { Right };
        self.work_alone(survivor);
        if self.random(3) == 0 {
            self.fail(survivor, during);
            self.work_alone(survivor);
        }
        if self.random(3) == 0 {
            self.maintain(survivor.other());
        }
        holds.clear();
        survivor
    }

    /// Returns the dirty regions of both, after checking that they cover every difference.
    fn differences(&mut self, from: Side, label: &str) -> (Contents, Vec<(ChunkFileId, ByteRange)>) {
        let mut dirty = Some(Vec::new());
        let mut contents = Vec::new();
        for side in [from, from.other()] {
            let store = self.store(side);
            let more = self.run(side, dirty_ranges_of(store.clone()));
            dirty = dirty.zip(more).map(|(dirty, more)| [dirty, more].concat());
            contents.push(self.run(side, contents_of(store)));
        }
        let (theirs, ours) = (contents.pop().unwrap(), contents.pop().unwrap());
        let all: BTreeSet<ChunkFileId> = ours.keys().chain(theirs.keys()).copied().collect();
        let Some(dirty) = dirty else {
            self.overflows += 1;
            return (ours, all.into_iter().map(|ino| (ino, ByteRange::new(0, u64::MAX))).collect());
        };
        for ino in all {
            check_covered(ino, ours.get(&ino), theirs.get(&ino), &dirty, label);
        }
        (ours, dirty)
    }

    fn play_round(&mut self, label: &str) {
        self.work_together();
        let from = self.inject_failure();
        let (contents, dirty) = self.differences(from, label);
        let to = self.store(from.other());
        self.run(from.other(), resync(to, contents, dirty));
        let [left, right] = [Left, Right].map(|side| {
            let store = self.store(side);
            self.run(side, contents_of(store))
        });
        assert!(left == right, "{label}: the copies differ");
        for side in [Left, Right] {
            let store = self.store(side);
            self.run(side, async move {
                store.sync_all().await.unwrap();
                store.retain_all_entries(false);
                store.clear_overflow().await.unwrap();
                assert!(!store.has_overflowed());
            });
        }
    }
}

fn check_covered(
    ino: ChunkFileId,
    ours: Option<&Content>,
    theirs: Option<&Content>,
    dirty: &[(ChunkFileId, ByteRange)],
    label: &str,
) {
    let of_file: Vec<ByteRange> = dirty.iter().filter(|note| note.0 == ino).map(|note| note.1).collect();
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        assert!(!of_file.is_empty(), "{label}: only one has {ino:?}, and nobody has noted it");
        return;
    };
    assert!(ours.len == theirs.len || !of_file.is_empty(), "{label}: lengths of {ino:?} differ");
    for block in ours.blocks.keys().chain(theirs.blocks.keys()) {
        // What lies beyond the right end is removed with the length.
        if ours.blocks.get(block) != theirs.blocks.get(block) && block * BLOCK < ours.len {
            let at = block * BLOCK;
            let covered = of_file.iter().any(|range| range.start <= at && at < range.end);
            assert!(covered, "{label}: block {block} of {ino:?} differs; noted are {of_file:?}");
        }
    }
}

#[test]
fn dirty_regions_cover_every_difference() {
    let mut overflows = 0;
    for seed in 0..SEEDS {
        let mut replicas = ReplicaPair::new(seed);
        for round in 0..ROUNDS {
            replicas.play_round(&format!("seed {seed}, round {round}"));
        }
        overflows += replicas.overflows;
    }
    assert!(overflows < SEEDS * ROUNDS / 2, "mostly the notes are what tells: {overflows} overflows");
}
