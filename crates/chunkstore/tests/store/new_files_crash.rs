//! New files on a simulated machine that loses power: files that only a span in the intent log
//! covers don't look damaged afterwards.

use crate::common::{LOG_BYTES, buf, identity, open_with};
use chunkstore::{Durability, IoPath, Kind, Options, Store};
use rt::sim::Machine;
use rt::{File, IoBuf, OpenOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use types::{ChunkFileId, InodeId, PartitionId, block_sum};

const DIR: &str = "/target";
const SEEDS: u64 = 20;
const ROUNDS: u64 = 4;
const WORKERS: usize = 3;
const PARTITIONS: u64 = 2;
const MAX_LEN: u64 = 40_000;

/// The model of a file.
#[derive(Clone, Copy)]
struct Known {
    /// Every byte is this, or zero where it wasn't written or was lost.
    fill: u8,
    len: u64,
    /// All of it survives a crash.
    is_promised: bool,
}

#[derive(Default)]
struct World {
    next: u64,
    files: BTreeMap<ChunkFileId, Known>,
}

type Shared = Rc<RefCell<World>>;

fn random(below: u64) -> u64 {
    rt::random_u64() % below
}

fn next_ino(world: &Shared) -> ChunkFileId {
    let mut world = world.borrow_mut();
    world.next += 1;
    InodeId::new(PartitionId((world.next % PARTITIONS) as u16), 1 + world.next / PARTITIONS)
        .first_chunk_file()
}

/// Creates files forever, as `tar` does, and sometimes changes one of them.
async fn worker(store: Arc<Store>, world: Shared) {
    let mut mine = Vec::new();
    loop {
        let ino = next_ino(&world);
        write_new(&store, &world, ino).await;
        mine.push(ino);
        let old = mine[random(mine.len() as u64) as usize];
        match random(8) {
            0 => {
                store.sync(old).await.unwrap();
                world.borrow_mut().files.entry(old).and_modify(|file| file.is_promised = true);
            }
            1 => {
                world.borrow_mut().files.insert(old, Known { fill: 0, len: 0, is_promised: false });
                store.delete(old).await.unwrap();
                mine.retain(|ino| *ino != old);
            }
            2 => rewrite(&store, &world, old).await,
            _ => {}
        }
    }
}

async fn write_new(store: &Store, world: &Shared, ino: ChunkFileId) {
    let (fill, len) = (1 + random(255) as u8, 1 + random(MAX_LEN));
    world.borrow_mut().files.insert(ino, Known { fill, len, is_promised: false });
    let path = if random(2) == 0 { IoPath::Direct } else { IoPath::Cached };
    let durability = if random(6) == 0 { Durability::Now } else { Durability::Later };
    let mut at = 0;
    while at < len {
        let n = (len - at).min(4096 * (1 + random(6)));
        store.write(ino, at, &buf(&vec![fill; n as usize]), path, durability).await.unwrap();
        at += n;
    }
    let is_promised = durability == Durability::Now;
    world.borrow_mut().files.entry(ino).and_modify(|file| file.is_promised = is_promised);
}

/// Writes the same bytes again, so that synced content stays the same; their checksums are computed
/// again.
async fn rewrite(store: &Store, world: &Shared, ino: ChunkFileId) {
    let Known { fill, len, .. } = world.borrow().files[&ino];
    let n = len.min(5000);
    store.write(ino, 0, &buf(&vec![fill; n as usize]), IoPath::Cached, Durability::Later).await.unwrap();
}

async fn work(world: Shared) {
    let (store, _) = open_with(Path::new(DIR), Options::default()).await;
    for _ in 0..WORKERS {
        rt::spawn(worker(store.clone(), world.clone()));
    }
    loop {
        rt::sleep(std::time::Duration::from_micros(random(6000))).await;
        store.maintain(random(4)).await.unwrap();
    }
}

/// Opens the store after a crash; returns the first damage that it finds in one of the files.
async fn examine(world: Shared) -> Result<(), Kind> {
    let (store, _) = open_with(Path::new(DIR), Options::default()).await;
    let touched = store.take_changing_at_crash();
    assert!(touched.is_sorted_by(|a, b| a < b), "each file is told once");
    let files: Vec<(ChunkFileId, Known)> =
        world.borrow().files.iter().map(|(ino, file)| (*ino, *file)).collect();
    for (ino, known) in files {
        let content = IoBuf::alloc(MAX_LEN as usize);
        store.read(ino, 0, &content, IoPath::Cached).await.map_err(|e| e.kind())?;
        if let Some(range) = store.verify(ino).await.map_err(|e| e.kind())?.first() {
            return Err(Kind::Corrupt { ino, range: *range });
        }
        let written = &content.as_slice()[..known.len as usize];
        let may_be = |byte: &u8| *byte == known.fill || (*byte == 0 && !known.is_promised);
        // Crash reconciliation removes deleted files that a crash restores.
        assert!(known.fill == 0 || written.iter().all(may_be), "{ino:?} lost what was promised");
    }
    Ok(())
}

/// Removes the spans from the log, and nothing else: their blocks become empty ones.
async fn forget_spans() {
    for name in ["intent.0", "intent.1"] {
        let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
        let file = File::open(&Path::new(DIR).join(name), options).await.unwrap();
        let block = IoBuf::alloc(4096);
        for at in (0..LOG_BYTES).step_by(4096) {
            file.read_at(block.clone(), at).await.unwrap();
            if block.as_slice().starts_with(b"weftspan") {
                // The checksum, the count, and the records.
                block.zero(8..16);
                block.zero(32..4096);
                let sum = block_sum(block.as_slice());
                block.copy_from(8, &sum.0.to_le_bytes());
                file.write_at_durable(block.clone(), at).await.unwrap();
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spans {
    Kept,
    Forgotten,
}

/// Lets the machine work and fail a few times; returns the damage that it finds, if any.
fn survive(seed: u64, spans: Spans) -> Result<(), Kind> {
    let mut machine = Machine::new(seed);
    machine
        .run(async { Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap() })
        .unwrap();
    let world = Shared::default();
    for round in 0..ROUNDS {
        let steps = 50 + (seed * 7919 + round * 104_729) % 4000;
        machine.run_until(work(world.clone()), steps).unwrap();
        let is_kill = (seed + round).is_multiple_of(4);
        if is_kill {
            machine.kill()
        } else {
            machine.crash()
        }
        if spans == Spans::Forgotten {
            machine.run(forget_spans()).unwrap();
        }
        // An interrupted recovery comes first in some rounds.
        if (seed + round).is_multiple_of(3) {
            machine.run_until(examine(world.clone()), steps / 10).unwrap().transpose()?;
            machine.crash();
        }
        machine.run(examine(world.clone())).unwrap()?;
        machine.kill();
    }
    Ok(())
}

#[test]
fn new_files_survive_and_nothing_looks_damaged() {
    for seed in 0..SEEDS {
        assert_eq!(survive(seed, Spans::Kept), Ok(()), "seed {seed}");
    }
}

/// The negative control.
#[test]
fn without_the_spans_new_files_look_damaged() {
    let found = (0..SEEDS).filter(|seed| survive(*seed, Spans::Forgotten).is_err()).count();
    assert!(found > SEEDS as usize / 2, "only {found} of {SEEDS} seeds notice that spans are ignored");
}

fn first_files() -> impl Iterator<Item = ChunkFileId> {
    (1..=5).map(|sequence| InodeId::new(PartitionId(1), sequence).first_chunk_file())
}

async fn open() -> Arc<Store> {
    open_with(Path::new(DIR), Options::default()).await.0
}

/// Returns a machine whose process died after it wrote a few files, of which the last is deleted.
fn killed_after_a_deletion(seed: u64) -> Machine {
    let mut machine = Machine::new(seed);
    let before = async {
        Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
        let store = open().await;
        for ino in first_files() {
            store.write(ino, 0, &buf(&[7; 9000]), IoPath::Cached, Durability::Later).await.unwrap();
        }
        store.sync_all().await.unwrap();
        store.delete(first_files().last().unwrap()).await.unwrap();
        assert_eq!(store.statistics().intent_writes.get(), 1);
    };
    machine.run(before).unwrap();
    machine.kill();
    machine
}

#[test]
fn a_deletion_is_durable_before_its_span_is_dropped() {
    for seed in 0..SEEDS {
        let mut machine = killed_after_a_deletion(seed);
        machine
            .run(async {
                let store = open().await;
                // The span is dropped, although its files aren't known any more.
                store.maintain(0).await.unwrap();
            })
            .unwrap();
        machine.crash();
        let (left, touched) = machine
            .run(async {
                let store = open().await;
                (store.list().await.unwrap(), store.take_changing_at_crash())
            })
            .unwrap();
        assert_eq!(left, first_files().take(4).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(touched, []);
    }
}

#[test]
fn what_was_rebuilt_without_a_log_is_on_disk() {
    for seed in 0..SEEDS {
        let mut machine = killed_after_a_deletion(seed);
        machine
            .run(async {
                rt::remove_file(&Path::new(DIR).join("intent.0")).await.unwrap();
                drop(open().await);
            })
            .unwrap();
        machine.crash();
        machine
            .run(async {
                let store = open().await;
                for ino in first_files().take(4) {
                    assert_eq!(store.verify(ino).await.unwrap(), []);
                    let content = IoBuf::alloc(9000);
                    store.read(ino, 0, &content, IoPath::Cached).await.unwrap();
                    assert_eq!(content.as_slice(), [7; 9000]);
                }
            })
            .unwrap();
    }
}
