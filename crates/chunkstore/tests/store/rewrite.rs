//! A damaged chunk file is repaired while a simulated machine loses power or its processes: each
//! block that is read afterwards is right or refused.

use crate::common::{INO, LOG_BYTES, buf, identity, open};
use chunkstore::{Durability, IoPath, Store};
use rt::sim::Machine;
use rt::{Fallocate, File, IoBuf, OpenOptions};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use types::{BLOCK_SIZE, BlockSum, ByteRange, block_sum};

const DIR: &str = "/target";
const LEN: usize = 20 * BLOCK_SIZE + 1234;
/// Blocks that are repaired at a time.
const PIECE: usize = 4 * BLOCK_SIZE;
const SEEDS: u64 = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Damage {
    Removed,
    RemovedWithSums,
    Cut,
    Flipped,
    Punched,
    TooLong,
    /// Other content, with matching checksums.
    Other,
}

const DAMAGES: [Damage; 7] = [
    Damage::Removed,
    Damage::RemovedWithSums,
    Damage::Cut,
    Damage::Flipped,
    Damage::Punched,
    Damage::TooLong,
    Damage::Other,
];

/// With a hole in it.
fn content() -> Vec<u8> {
    let byte = |at: usize| if (5..7).contains(&(at / BLOCK_SIZE)) { 0 } else { (at / 100) as u8 | 1 };
    (0..LEN).map(byte).collect()
}

async fn damage(what: Damage) {
    let path = Store::chunk_file_path(Path::new(DIR), INO);
    let sums = path.with_extension("sum");
    if matches!(what, Damage::Removed | Damage::RemovedWithSums) {
        rt::remove_file(&path).await.unwrap();
        if what == Damage::RemovedWithSums {
            rt::remove_file(&sums).await.unwrap();
        }
        rt::sync_dir(path.parent().unwrap()).await.unwrap();
        return;
    }
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let file = File::open(&path, options).await.unwrap();
    match what {
        Damage::Cut => file.set_len(3 * BLOCK_SIZE as u64 + 7).await.unwrap(),
        Damage::Punched => file.allocate(Fallocate::Punch, 4096, 50_000).await.unwrap(),
        Damage::TooLong => file.set_len(LEN as u64 + 30_000).await.unwrap(),
        _ => {
            for at in [5, 9 * BLOCK_SIZE, LEN - 1] {
                file.write_at(buf(&[77]), at as u64).await.unwrap();
            }
        }
    }
    file.sync_data().await.unwrap();
}

/// Creates the chunk file, and damages it while it isn't open.
async fn prepare(what: Damage) {
    Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
    let (store, _) = open(Path::new(DIR)).await;
    let data = if what == Damage::Other { vec![99; LEN] } else { content() };
    store.write(INO, 0, &buf(&data), IoPath::Cached, Durability::Now).await.unwrap();
    store.close().await.unwrap();
    if what != Damage::Other {
        damage(what).await;
    }
}

/// Repairs it, and reports the progress.
async fn repair(what: Damage, done: Rc<Cell<usize>>) {
    let (store, _) = open(Path::new(DIR)).await;
    let data = content();
    if matches!(what, Damage::Removed | Damage::RemovedWithSums) {
        let sum = |block: &[u8]| {
            let mut whole = [0; BLOCK_SIZE];
            whole[..block.len()].copy_from_slice(block);
            if whole == [0; BLOCK_SIZE] { BlockSum::HOLE.0 } else { block_sum(&whole).0 }
        };
        let sums: Vec<u32> = data.chunks(BLOCK_SIZE).map(sum).collect();
        let (first, second) = sums.split_at(8);
        store.expect_sums(INO, 0, first, LEN as u64).await.unwrap();
        store.expect_sums(INO, 8, second, LEN as u64).await.unwrap();
    }
    done.set(1);
    for (at, piece) in data.chunks(PIECE).enumerate() {
        let start = (at * PIECE) as u64;
        let is_last = start as usize + PIECE >= LEN;
        let right = piece.iter().any(|byte| *byte != 0).then(|| buf(piece));
        let range = ByteRange::at(start, PIECE as u64);
        store.rewrite(INO, range, right.as_ref(), is_last.then_some(LEN as u64)).await.unwrap();
        done.set((start as usize + PIECE).min(LEN));
    }
    done.set(usize::MAX);
    loop {
        rt::sleep(Duration::from_millis(1)).await;
    }
}

/// Checks the result: each block is right, refused, or unchanged where it was valid before.
async fn examine(what: Damage, done: usize, context: String) {
    let (store, _) = open(Path::new(DIR)).await;
    let data = content();
    for (at, block) in data.chunks(BLOCK_SIZE).enumerate() {
        let found = IoBuf::alloc(block.len());
        let start = at * BLOCK_SIZE;
        if store.read(INO, start as u64, &found, IoPath::Cached).await.is_err() {
            assert!(start >= done || done == 1, "{context}: block {at} was done and is refused");
            continue;
        }
        let is_as_before = match what {
            Damage::Other => found.as_slice() == vec![99; block.len()],
            Damage::RemovedWithSums => done == 0 && found.as_slice() == vec![0; block.len()],
            _ => false,
        };
        let may_be_as_before = is_as_before && start >= done.saturating_sub(1);
        assert!(found.as_slice() == block || may_be_as_before, "{context}: block {at} is wrong");
    }
    if done == usize::MAX {
        assert_eq!(store.stat(INO).await.unwrap().len, LEN as u64, "{context}");
        assert_eq!(store.verify(INO).await.unwrap(), [], "{context}");
    }
}

#[test]
fn at_every_moment_a_block_is_right_or_refused() {
    let (mut in_between, mut whole) = (0, 0);
    for seed in 0..SEEDS {
        for what in DAMAGES {
            let mut machine = Machine::new(seed);
            machine.run(prepare(what)).unwrap();
            let done = Rc::new(Cell::new(0));
            let steps = 1 + (seed * 7919) % 400;
            machine.run_until(repair(what, done.clone()), steps).unwrap();
            let is_kill = seed % 3 == 0;
            if is_kill {
                machine.kill()
            } else {
                machine.crash()
            }
            let done = done.get();
            in_between += u32::from((2..LEN).contains(&done));
            whole += u32::from(done == usize::MAX);
            let context = format!("seed {seed}, {what:?}, after {steps} steps, kill {is_kill}");
            machine.run(examine(what, done, context)).unwrap();
        }
    }
    assert!(in_between > 20 && whole > 20, "{in_between} ended in between, {whole} after the end");
}
