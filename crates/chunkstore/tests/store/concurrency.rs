//! Several cores on one chunk file at the same time.

use crate::common::{INO, buf, open, read, with_target};
use chunkstore::{Allocate, Durability, IoPath, Store};
use rt::{CoreConfig, start_core};
use std::sync::Arc;
use types::{ByteRange, ChunkFileId};

const FILE_BYTES: u64 = 600 << 10;
const ROUNDS: usize = 150;

fn random(below: u64) -> u64 {
    rt::random_u64() % below
}

fn random_path() -> IoPath {
    if random(2) == 0 { IoPath::Direct } else { IoPath::Cached }
}

/// Returns a random range for an operation; half of them are whole blocks.
fn random_place() -> (u64, usize) {
    let (offset, len) = (random(FILE_BYTES), 1 + random(60_000));
    if random(2) == 0 {
        (offset, len as usize)
    } else {
        (offset / 4096 * 4096, len.next_multiple_of(4096) as usize)
    }
}

async fn writer(store: Arc<Store>, fill: u8) {
    for round in 0..ROUNDS {
        let (offset, len) = random_place();
        match round % 25 {
            7 => store.allocate(INO, ByteRange::at(offset, len as u64), Allocate::Punch).await.unwrap(),
            13 => store.truncate(INO, offset).await.unwrap(),
            19 => store.allocate(INO, ByteRange::at(offset, len as u64), Allocate::Zero).await.unwrap(),
            _ => {
                let data = buf(&vec![fill; len]);
                store.write(INO, offset, &data, random_path(), Durability::Later).await.unwrap();
            }
        }
    }
}

async fn reader(store: Arc<Store>) {
    for _ in 0..ROUNDS {
        let (offset, len) = random_place();
        read(&store, INO, offset, len, random_path()).await.expect("racing writes are no damage");
    }
}

async fn maintainer(store: Arc<Store>) {
    for round in 0..ROUNDS as u64 / 3 {
        match round % 3 {
            0 => store.sync(INO).await.unwrap(),
            1 => store.maintain(round % 2).await.unwrap(),
            _ => assert_eq!(store.verify(INO).await.unwrap(), []),
        }
    }
}

/// Runs `work` on two cores, each with a number of its own.
fn on_two_cores<F: Future<Output = ()> + 'static>(store: &Arc<Store>, work: fn(Arc<Store>, u8) -> F) {
    let cores: Vec<_> = (0..2)
        .map(|core| {
            let store = store.clone();
            let config = CoreConfig { name: format!("core{core}"), cpu: None, batch: false };
            start_core(config, move || work(store, core)).expect("a core starts")
        })
        .collect();
    cores.into_iter().for_each(|core| core.join().expect("no assertion failed on the core"));
}

async fn read_and_write_concurrently(store: Arc<Store>, core: u8) {
    let (a, b) = (writer(store.clone(), 2 * core + 1), writer(store.clone(), 2 * core + 2));
    let everybody: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = vec![
        Box::pin(a),
        Box::pin(b),
        Box::pin(reader(store.clone())),
        Box::pin(reader(store.clone())),
        Box::pin(maintainer(store)),
    ];
    rt::join_all(everybody).await;
}

#[test]
fn overlapping_writes_and_reads_are_never_damage() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        on_two_cores(&store, read_and_write_concurrently);
        assert_eq!(store.verify(INO).await.unwrap(), []);
        store.close().await.unwrap();
        drop(store);
        let (store, report) = open(&dir).await;
        assert!(!report.was_needed);
        assert_eq!(store.verify(INO).await.unwrap(), []);
    });
}

async fn write_own_blocks(store: Arc<Store>, core: u8) {
    let blocks = (0..100u64).map(|i| {
        let store = store.clone();
        async move {
            let offset = (2 * i + u64::from(core)) * 4096;
            store
                .write(INO, offset, &buf(&[core + 1; 4096]), random_path(), Durability::Later)
                .await
                .unwrap();
        }
    });
    rt::join_all(blocks.collect()).await;
}

#[test]
fn interleaved_blocks_all_arrive() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        on_two_cores(&store, write_own_blocks);
        let all = read(&store, INO, 0, 200 * 4096, IoPath::Direct).await.unwrap();
        assert!(all.chunks(4096).enumerate().all(|(i, block)| block == [i as u8 % 2 + 1; 4096]));
    });
}

async fn make_and_remove(store: Arc<Store>, core: u8) {
    for round in 0..100u64 {
        // The cores share some of the files.
        let ino = ChunkFileId(round / (1 + u64::from(core)));
        store.write(ino, 0, &buf(&[7; 6000]), random_path(), Durability::Later).await.unwrap();
        let found = read(&store, ino, 0, 6000, random_path()).await.expect("a removal is no damage");
        assert!(found.iter().all(|byte| [0, 7].contains(byte)));
        if round % 3 == 0 {
            store.delete(ino).await.unwrap();
        }
    }
}

#[test]
fn files_come_and_go_on_two_cores() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        on_two_cores(&store, make_and_remove);
        for ino in store.list().await.unwrap() {
            assert_eq!(store.verify(ino).await.unwrap(), []);
        }
    });
}
