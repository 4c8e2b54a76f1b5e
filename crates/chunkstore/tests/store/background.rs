//! When the background writes content back to disk.

use crate::common::{LOG_BYTES, buf, identity, open, read};
use chunkstore::{Durability, IoPath, Store};
use rt::sim::Machine;
use std::path::Path;
use std::time::Duration;
use types::ChunkFileId;

const DIR: &str = "/target";
const IDLE: ChunkFileId = ChunkFileId(1);
const BUSY: ChunkFileId = ChunkFileId(2);
const BLOCK: usize = 4096;
/// Blocks that are written to the file that changes all the time, and the time between two.
const BLOCKS: usize = 80;
const PAUSE: Duration = Duration::from_millis(100);
/// Longest time until content of it is on disk, in blocks: five seconds, and what two passes and a
/// sync take.
const LATEST: usize = 60;

fn byte(block: usize) -> u8 {
    block as u8 + 1
}

async fn write_all_the_time() {
    Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
    let (store, _) = open(Path::new(DIR)).await;
    rt::spawn(store.clone().background());
    let write = async |ino, block: usize| {
        let data = buf(&[byte(block); BLOCK]);
        let offset = (block * BLOCK) as u64;
        store.write(ino, offset, &data, IoPath::Cached, Durability::Later).await.unwrap();
    };
    write(BUSY, 0).await;
    for block in 1..BLOCKS {
        // It isn't changed for a second and a half at the end.
        if block <= BLOCKS - 15 {
            write(IDLE, 0).await;
        }
        write(BUSY, block).await;
        rt::sleep(PAUSE).await;
    }
}

/// Returns which blocks of the file that changes all the time are lost.
async fn lost() -> Vec<usize> {
    let (store, _) = open(Path::new(DIR)).await;
    assert_eq!(read(&store, IDLE, 0, BLOCK, IoPath::Cached).await.unwrap(), [byte(0); BLOCK]);
    let found = read(&store, BUSY, 0, BLOCKS * BLOCK, IoPath::Cached).await.unwrap();
    (0..BLOCKS).filter(|block| found[block * BLOCK..][..BLOCK] != [byte(*block); BLOCK]).collect()
}

#[test]
fn idle_files_are_written_back_soon_and_busy_ones_after_seconds() {
    let mut latest_lost = Vec::new();
    for seed in 0..20 {
        let mut machine = Machine::new(seed);
        machine.run(write_all_the_time()).unwrap();
        machine.crash();
        let lost = machine.run(lost()).unwrap();
        assert!(lost.iter().all(|block| *block > BLOCKS - LATEST), "seed {seed}: {lost:?}");
        latest_lost.extend(lost);
    }
    // A file that changes all the time isn't written back in each pass.
    assert!(latest_lost.iter().any(|block| *block < BLOCKS - 15), "{latest_lost:?}");
}
