//! A simulated machine that loses power or its processes in the middle of operations.

use crate::common::{LOG_BYTES, buf, identity, open_with, usual};
use chunkstore::{Allocate, Durability, IoPath, Kind, Options, Store};
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId};

const DIR: &str = "/target";
const FILE_BYTES: usize = 96 << 10;
const FILES: usize = 3;
const ROUNDS: usize = 4;
const SEEDS: u64 = 30;

/// The values that a byte may have after a crash.
#[derive(Clone, Copy)]
struct Allowed([u64; 4]);

impl Allowed {
    fn only(byte: u8) -> Allowed {
        let mut allowed = Allowed([0; 4]);
        allowed.add(byte);
        allowed
    }

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte) / 64] |= 1 << (byte % 64);
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte) / 64] & 1 << (byte % 64) != 0
    }
}

/// The model of one file.
struct Model {
    /// What a reader sees now.
    current: Vec<u8>,
    /// What a crash of the machine may leave.
    after_crash: Vec<Allowed>,
    /// The range that the operation in progress changes, and its new value.
    in_progress: Option<(ByteRange, u8)>,
}

impl Model {
    fn holding(content: Vec<u8>) -> Model {
        let after_crash = content.iter().map(|byte| Allowed::only(*byte)).collect();
        Model { current: content, after_crash, in_progress: None }
    }

    fn begin(&mut self, range: ByteRange, byte: u8) {
        self.in_progress = Some((range, byte));
        self.after_crash[indices(range)].iter_mut().for_each(|allowed| allowed.add(byte));
    }

    fn finish(&mut self, durability: Durability) {
        let (range, byte) = self.in_progress.take().expect("an operation has begun");
        self.current[indices(range)].fill(byte);
        if durability == Durability::Now {
            self.after_crash[indices(range)].fill(Allowed::only(byte));
        }
    }

    fn synced(&mut self) {
        *self = Model::holding(std::mem::take(&mut self.current));
    }

    fn permits(&self, at: usize, byte: u8, end: End) -> bool {
        match end {
            End::Crash => self.after_crash[at].has(byte),
            End::Kill => {
                let changing = self.in_progress.filter(|(range, _)| indices(*range).contains(&at));
                byte == self.current[at] || changing.is_some_and(|(_, to)| to == byte)
            }
        }
    }
}

fn indices(range: ByteRange) -> std::ops::Range<usize> {
    range.start as usize..range.end as usize
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Crash,
    Kill,
}

type Models = Rc<RefCell<Vec<Model>>>;

fn ino(file: usize) -> ChunkFileId {
    ChunkFileId(file as u64 + 1)
}

fn random(below: u64) -> u64 {
    rt::random_u64() % below
}

/// Changes one file forever, one operation after another.
async fn worker(store: Arc<Store>, models: Models, file: usize) {
    let ino = ino(file);
    loop {
        let offset = random(FILE_BYTES as u64);
        let range = ByteRange::at(offset, 1 + random(20_000)).intersect(ByteRange::new(0, FILE_BYTES as u64));
        let range = if random(2) == 0 {
            range
        } else {
            ByteRange::new(offset / 4096 * 4096, range.end.next_multiple_of(4096))
        };
        let fill = random(255) as u8 + 1;
        let begin = |range, byte| models.borrow_mut()[file].begin(range, byte);
        let finish = |durability| models.borrow_mut()[file].finish(durability);
        match random(12) {
            0 => {
                store.sync(ino).await.unwrap();
                models.borrow_mut()[file].synced();
            }
            1 => {
                let cut = ByteRange::new(range.start, FILE_BYTES as u64);
                begin(cut, 0);
                store.truncate(ino, cut.start).await.unwrap();
                finish(Durability::Later);
            }
            2 => {
                begin(range, 0);
                store.allocate(ino, range, Allocate::Punch).await.unwrap();
                finish(Durability::Later);
            }
            roll => {
                let durability = if roll == 3 { Durability::Now } else { Durability::Later };
                let path = if random(2) == 0 { IoPath::Direct } else { IoPath::Cached };
                begin(range, fill);
                store
                    .write(ino, range.start, &buf(&vec![fill; range.len() as usize]), path, durability)
                    .await
                    .unwrap();
                finish(durability);
            }
        }
    }
}

async fn work(models: Models, options: Options) {
    let (store, _) = open_with(Path::new(DIR), options).await;
    for file in 0..FILES {
        rt::spawn(worker(store.clone(), models.clone(), file));
    }
    loop {
        // The background's pass, more often.
        rt::sleep(std::time::Duration::from_micros(random(3000))).await;
        store.maintain(random(3)).await.unwrap();
    }
}

/// Returns the content of all files after a recovery, or the first damage.
async fn examine(options: Options) -> Result<Vec<Vec<u8>>, Kind> {
    let (store, _) = open_with(Path::new(DIR), options).await;
    let mut contents = Vec::new();
    for file in 0..FILES {
        let content = IoBuf::alloc(FILE_BYTES);
        store.read(ino(file), 0, &content, IoPath::Cached).await.map_err(|e| e.kind())?;
        let damaged = store.verify(ino(file)).await.map_err(|e| e.kind())?;
        if let Some(range) = damaged.first() {
            return Err(Kind::Corrupt { ino: ino(file), range: *range });
        }
        contents.push(content.as_slice().to_vec());
    }
    store.close().await.map_err(|e| e.kind())?;
    Ok(contents)
}

/// Lets the machine work and fail a few times; returns the damage that it finds, if any.
fn survive(seed: u64, options: &Options) -> Result<(), Kind> {
    let mut machine = Machine::new(seed);
    machine
        .run(async { Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap() })
        .unwrap();
    let mut contents = vec![vec![0; FILE_BYTES]; FILES];
    for round in 0..ROUNDS {
        let models: Models = Rc::new(RefCell::new(contents.into_iter().map(Model::holding).collect()));
        let steps = 50 + (seed * 7919 + round as u64 * 104_729) % 3000;
        machine.run_until(work(models.clone(), options.clone()), steps).unwrap();
        let end = if (seed + round as u64).is_multiple_of(3) { End::Kill } else { End::Crash };
        match end {
            End::Crash => machine.crash(),
            End::Kill => machine.kill(),
        }
        contents = machine.run(examine(options.clone())).unwrap()?;
        for (file, (content, model)) in contents.iter().zip(models.borrow().iter()).enumerate() {
            let wrong = (0..FILE_BYTES).find(|at| !model.permits(*at, content[*at], end));
            assert_eq!(wrong, None, "seed {seed}, round {round}, {end:?}, file {file}: this byte was lost");
        }
    }
    Ok(())
}

#[test]
fn what_was_synced_survives_and_nothing_looks_damaged() {
    for seed in 0..usual(SEEDS) {
        assert_eq!(survive(seed, &Options::default()), Ok(()), "seed {seed}");
    }
}

#[test]
fn without_the_intent_log_crashes_look_like_damage() {
    let options = Options { intent_log: false, ..Options::default() };
    let found = (0..usual(SEEDS)).filter(|seed| survive(*seed, &options).is_err()).count();
    assert!(found > 0, "the simulation can't tell a store with an intent log from one without");
}

/// A sync of everything waits for the disk, too, where another task is just syncing a file.
#[test]
fn a_sync_of_everything_covers_files_that_are_being_synced() {
    let content = vec![7; FILE_BYTES];
    for seed in 0..SEEDS {
        let mut machine = Machine::new(seed);
        let (written, store) = (content.clone(), Rc::new(RefCell::new(None)));
        let open = store.clone();
        let write = async move {
            Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
            let (store, _) = open_with(Path::new(DIR), Options::default()).await;
            store.write(ino(0), 0, &buf(&written), IoPath::Cached, Durability::Later).await.unwrap();
            *open.borrow_mut() = Some(store.clone());
            let other = store.clone();
            rt::spawn(async move { drop(other.sync(ino(0)).await) });
            // It has begun.
            rt::yield_now().await;
            store.sync_all().await.unwrap();
        };
        machine.run(write).unwrap();
        machine.crash();
        drop(store.take());
        let contents = machine.run(examine(Options::default())).unwrap().unwrap();
        assert!(contents[0] == content, "seed {seed}");
    }
}
