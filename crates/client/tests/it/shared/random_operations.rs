//! Clients execute random operations, and each operation sees every one that ended before it began.
//!
//! A file consists of a few registers: blocks that are written as a whole, each time with another
//! value. A read that begins after a write has ended returns that write or a later one.

use super::cluster::{Application, CHUNK, Cluster, RDWR, ROOT, TARGETS, with_cluster_of_seed};
use client::{Client, Handle, ReadOptions, WriteOptions};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{InodeId, SetAttr};

const CLIENTS: usize = 3;
const STEPS: usize = 60;
/// Size of a register, in bytes: some registers of a file are in its first chunk, some in others.
const REGISTER: usize = 8 * 1024;
/// Offsets of a file's registers.
const PLACES: [usize; 4] = [0, REGISTER, CHUNK, 3 * CHUNK + REGISTER];
/// Seeds for the order of events.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=25;

/// One register: its writes, with the times of their beginning and end, in steps of a counter.
#[derive(Default)]
struct Register {
    writes: Vec<Write>,
}

struct Write {
    value: u64,
    begun: u64,
    ended: Option<u64>,
}

#[derive(Default)]
struct Model {
    clock: u64,
    values: u64,
    registers: Vec<Register>,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether a read that ran from `begun` to now may return a value: that of a write which began
    /// before the read's end, unless another write lay wholly between the write's end and the
    /// read's beginning.
    fn allows(&self, register: usize, value: u64, begun: u64) -> bool {
        let writes = &self.registers[register].writes;
        let overwritten = |ended: u64| {
            writes.iter().any(|later| later.begun > ended && later.ended.is_some_and(|end| end < begun))
        };
        let at_first = value == 0 && !overwritten(0);
        let fits =
            |write: &Write| write.value == value && write.ended.is_none_or(|ended| !overwritten(ended));
        at_first || writes.iter().any(fits)
    }

    /// Records the beginning of a write to some registers; returns where to record its end.
    fn begin(&mut self, value: u64, registers: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
        let begun = self.tick();
        let mut begin = |register: usize| {
            let writes = &mut self.registers[register].writes;
            writes.push(Write { value, begun, ended: None });
            (register, writes.len() - 1)
        };
        registers.map(&mut begin).collect()
    }

    fn end(&mut self, writes: &[(usize, usize)]) {
        let ended = self.tick();
        for &(register, at) in writes {
            self.registers[register].writes[at].ended = Some(ended);
        }
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[test]
fn every_completed_write_is_visible_to_every_later_read() {
    run_random(Storm::default());
}

#[test]
fn every_completed_truncate_is_visible_to_every_later_read() {
    run_random(Storm { truncates: true, ..Storm::default() });
}

#[test]
fn every_completed_write_is_visible_while_files_move_from_target_to_target() {
    run_random(Storm { drains: true, ..Storm::default() });
}

#[test]
fn every_completed_truncate_is_visible_while_files_move_from_target_to_target() {
    run_random(Storm { truncates: true, drains: true });
}

/// Concurrent events.
#[derive(Clone, Copy, Default)]
struct Storm {
    truncates: bool,
    drains: bool,
}

/// Drains one target after the other until `done` is set, and counts the drained ones.
async fn drain_in_turn(cluster: Rc<Cluster>, done: Rc<Cell<bool>>, emptied: Arc<AtomicU64>) {
    for target in (1..=TARGETS).cycle() {
        cluster.drain(target, true);
        for _ in 0..60 {
            rt::sleep(Duration::from_millis(50)).await;
            if cluster.is_empty(target) {
                emptied.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        cluster.drain(target, false);
        if done.get() {
            return;
        }
    }
}

fn run_random(storm: Storm) {
    let emptied = Arc::new(AtomicU64::new(0));
    for seed in SEEDS {
        let emptied = emptied.clone();
        with_cluster_of_seed(seed, move |cluster| async move {
            let clients = cluster.clients::<CLIENTS>().await;
            drop(clients[0].create_file("f").await);
            let done = Rc::new(Cell::new(false));
            if storm.drains {
                rt::spawn(drain_in_turn(cluster.clone(), done.clone(), emptied));
            }
            let model = Rc::new(RefCell::new(Model::default()));
            model.borrow_mut().registers.resize_with(PLACES.len(), Register::default);
            let programs = clients.iter().enumerate().map(|(index, client)| {
                let dice = Dice(seed * 1000 + index as u64 + 1);
                program(client.clone(), dice, model.clone(), seed, storm)
            });
            rt::join_all(programs.collect()).await;
            done.set(true);
            let begun = model.borrow_mut().tick();
            let last = cluster.client().await;
            let file = last.open_named("f", RDWR).await;
            for register in 0..PLACES.len() {
                let value = read(&last, &file, register, false).await;
                assert!(model.borrow().allows(register, value, begun), "seed {seed}: {value} at the end");
            }
        });
    }
    assert!(
        !storm.drains || emptied.load(Ordering::Relaxed) > SEEDS.count() as u64,
        "targets are emptied meanwhile"
    );
}

async fn program(client: Arc<Client>, mut dice: Dice, model: Rc<RefCell<Model>>, seed: u64, storm: Storm) {
    let mut file = client.open_named("f", RDWR).await;
    let steps = if storm.drains { 4 * STEPS } else { STEPS };
    for _ in 0..steps {
        let register = dice.roll(PLACES.len() as u64) as usize;
        match dice.roll(12) {
            0..=3 => write(&client, &file, register, &model).await,
            4..=7 => {
                let begun = model.borrow_mut().tick();
                let value = read(&client, &file, register, dice.roll(2) == 0).await;
                assert!(model.borrow().allows(register, value, begun), "seed {seed}: {value} read");
            }
            8 if storm.truncates => {
                // Truncates to where a register begins, or extends to there.
                let size = PLACES[register];
                let cut = (0..PLACES.len()).filter(|&other| PLACES[other] >= size);
                let writes = model.borrow_mut().begin(0, cut);
                client.setattr(ROOT, file.ino(), SetAttr::default(), Some(size as u64)).await.unwrap();
                model.borrow_mut().end(&writes);
            }
            8 => {
                // The size never shrinks: no client truncates the file.
                let before = known_end(&model.borrow());
                let size = client.getattr(file.ino()).await.unwrap().size;
                assert!(size >= before, "seed {seed}: {size} of {before} bytes");
            }
            9 => {
                client.release(file).await;
                file = client.open_named("f", RDWR).await;
            }
            10 => {
                let set = SetAttr { mode: Some(0o600 + dice.roll(8) as u32), ..SetAttr::default() };
                let told = client.setattr(ROOT, file.ino(), set, None).await.unwrap();
                assert_eq!(told.mode & 0o770, 0o600, "mine or one that came after it");
            }
            _ => rt::sleep(Duration::from_millis(dice.roll(1500))).await,
        }
    }
    client.release(file).await;
}

fn known_end(model: &Model) -> u64 {
    let written = |register: &Register| register.writes.iter().any(|write| write.ended.is_some());
    let ends = model.registers.iter().zip(PLACES).filter(|(register, _)| written(register));
    ends.map(|(_, place)| (place + REGISTER) as u64).max().unwrap_or(0)
}

async fn write(client: &Arc<Client>, file: &Arc<Handle>, register: usize, model: &Rc<RefCell<Model>>) {
    let (value, writes) = {
        let mut model = model.borrow_mut();
        model.values += 1;
        let value = model.values;
        (value, model.begin(value, std::iter::once(register)))
    };
    let data: Vec<u8> = value.to_le_bytes().repeat(REGISTER / 8);
    let buf = IoBuf::from_slice(&data);
    client.write(file, PLACES[register] as u64, buf, WriteOptions::default()).await.unwrap();
    model.borrow_mut().end(&writes);
}

/// Returns the value of a register; 0 where nothing was written.
async fn read(client: &Arc<Client>, file: &Arc<Handle>, register: usize, kept: bool) -> u64 {
    let buf = IoBuf::alloc(REGISTER);
    let how = ReadOptions { cached: kept, ..ReadOptions::default() };
    let got = client.read(file, PLACES[register] as u64, buf.clone(), how).await.unwrap();
    let bytes = &buf.as_slice()[..got];
    let value = bytes.get(..8).map_or(0, |first| u64::from_le_bytes(first.try_into().unwrap()));
    // A concurrent write may be visible in part, block by block; the first block is as good as any.
    value
}

/// Exactly one client creates a name, and after its removal no client sees it.
#[test]
fn of_clients_that_make_and_remove_the_same_names_one_wins_each_time() {
    for seed in SEEDS {
        with_cluster_of_seed(seed, move |cluster| async move {
            let clients = cluster.clients::<CLIENTS>().await;
            let owners = Rc::new(RefCell::new([None; 3]));
            let programs = clients.iter().enumerate().map(|(index, client)| {
                let dice = Dice(seed * 77 + index as u64 + 1);
                name_program(index, client.clone(), dice, owners.clone())
            });
            rt::join_all(programs.collect()).await;
        });
    }
}

async fn name_program(
    index: usize,
    client: Arc<Client>,
    mut dice: Dice,
    owners: Rc<RefCell<[Option<usize>; 3]>>,
) {
    const EXCLUSIVE: u32 = 0o200 | RDWR;
    for _ in 0..STEPS {
        let slot = dice.roll(3) as usize;
        let name = format!("n{slot}");
        let name = name.as_bytes();
        let owner = owners.borrow()[slot];
        if owner == Some(index) {
            // No other client removes this client's file.
            assert_eq!(client.lookup(ROOT, InodeId::ROOT, name).await.unwrap().nlink, 1);
            owners.borrow_mut()[slot] = None;
            client.unlink(ROOT, InodeId::ROOT, name).await.unwrap();
        } else if let Ok((known, file)) =
            client.create(ROOT, InodeId::ROOT, name, 0o100_644, 0, EXCLUSIVE).await
        {
            assert_eq!(owners.borrow_mut()[slot].replace(index), None, "the name had an owner");
            client.release(file).await;
            client.forget(known.ino, 1);
        }
        rt::sleep(Duration::from_millis(dice.roll(400))).await;
    }
}
