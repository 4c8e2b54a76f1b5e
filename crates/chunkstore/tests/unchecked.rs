//! Checksums switched off and on again. A process of its own, since the switch belongs to the
//! process.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use chunkstore::{Durability, Identity, IoPath, Kind, Options, Store};
use rt::IoBuf;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, TargetId, set_checksums_enabled};

const SUMMED: ChunkFileId = ChunkFileId(5);
const UNSUMMED: ChunkFileId = ChunkFileId(6);
const BLOCK: usize = 4096;

async fn open(dir: &Path) -> Arc<Store> {
    let identity = Identity { cluster: "test".to_string(), target: TargetId(1) };
    if !dir.join("target.toml").exists() {
        Store::format(dir, &identity).await.unwrap();
    }
    Store::open(dir, &identity, Options::default()).await.unwrap().0
}

async fn write(store: &Store, ino: ChunkFileId, offset: usize, data: &[u8]) {
    let buf = IoBuf::from_slice(data);
    store.write(ino, offset as u64, &buf, IoPath::Cached, Durability::Later).await.unwrap();
}

async fn read(store: &Store, ino: ChunkFileId, offset: usize, len: usize) -> Result<Vec<u8>, Kind> {
    let buf = IoBuf::alloc(len);
    let read = store.read(ino, offset as u64, &buf, IoPath::Cached).await;
    read.map(|()| buf.as_slice().to_vec()).map_err(|error| error.kind())
}

fn damage(dir: &Path, ino: ChunkFileId, at: usize) {
    let file = File::options().write(true).open(Store::chunk_file_path(dir, ino)).unwrap();
    file.write_all_at(b"damage", at as u64).unwrap();
}

#[test]
fn what_is_written_without_checksums_is_read_with_them_and_the_other_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_path_buf();
    rt::block_on(async move {
        let store = open(&dir).await;
        write(&store, SUMMED, 0, &[1; 4 * BLOCK]).await;
        assert!(set_checksums_enabled(false) && !set_checksums_enabled(false), "it tells of a change");
        write(&store, UNSUMMED, 0, &[2; 4 * BLOCK + 77]).await;
        write(&store, SUMMED, 2 * BLOCK, &[3; BLOCK]).await;
        assert_eq!(read(&store, SUMMED, 100, 3 * BLOCK).await.unwrap()[..BLOCK], [1; BLOCK]);
        // While they are off nothing is verified.
        damage(&dir, SUMMED, 100);
        assert!(read(&store, SUMMED, 0, 4 * BLOCK).await.is_ok());
        store.close().await.unwrap();

        let store = open(&dir).await;
        set_checksums_enabled(true);
        let first = ByteRange::new(0, BLOCK as u64);
        assert_eq!(read(&store, SUMMED, 0, BLOCK).await, Err(Kind::Corrupt { ino: SUMMED, range: first }));
        assert_eq!(store.verify(SUMMED).await.unwrap(), [first], "what has a checksum is checked");
        assert_eq!(read(&store, SUMMED, 2 * BLOCK, BLOCK).await.unwrap(), [3; BLOCK]);
        assert_eq!(read(&store, UNSUMMED, 0, 4 * BLOCK + 77).await.unwrap(), [2; 4 * BLOCK + 77]);
        // Replicas are compared by their content, and a partial write of an unchecked block doesn't
        // validate it.
        write(&store, UNSUMMED, 10, &[4; 10]).await;
        let range = ByteRange::new(0, 5 * BLOCK as u64);
        let before = store.survey(UNSUMMED, range, BLOCK as u64, false).await.unwrap().sums;
        damage(&dir, UNSUMMED, BLOCK + 5);
        damage(&dir, UNSUMMED, 20);
        let after = store.survey(UNSUMMED, range, BLOCK as u64, true).await.unwrap();
        assert_eq!(after.damaged, [], "nobody knows what there was");
        let differ: Vec<usize> = (0..5).filter(|at| before[*at] != after.sums[*at]).collect();
        assert_eq!(differ, [0, 1]);
        // A block that is written as a whole has a checksum from now on.
        write(&store, UNSUMMED, BLOCK, &[5; BLOCK]).await;
        damage(&dir, UNSUMMED, BLOCK + 5);
        assert!(read(&store, UNSUMMED, BLOCK, BLOCK).await.is_err());
        store.close().await.unwrap();
    })
    .unwrap();
}
