//! The I/O path of small reads: past the page cache the first time, through it from the second time
//! on.

use crate::common::{buf, open, read, with_target};
use chunkstore::{Durability, IoPath, Store};
use std::ops::Range;
use std::path::Path;
use types::{ChunkFileId, InodeId, PartitionId};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 128;

fn ino() -> ChunkFileId {
    InodeId::new(PartitionId(1), 7).first_chunk_file()
}

fn content() -> Vec<u8> {
    (0..BLOCKS * BLOCK).map(|at| (at / BLOCK * 31 + at % 251) as u8).collect()
}

/// Reads blocks one by one, compares them, and returns how many bypassed the page cache.
async fn read_each(store: &Store, blocks: Range<u64>) -> u64 {
    let before = store.statistics().direct_reads.get();
    let content = content();
    for block in blocks {
        let at = block * BLOCK;
        let found = read(store, ino(), at, BLOCK as usize, IoPath::Cached).await.unwrap();
        assert_eq!(found, content[at as usize..][..BLOCK as usize], "block {block}");
    }
    store.statistics().direct_reads.get() - before
}

/// Whether the kernel reports what is cached, and the local file system has direct I/O.
async fn can_tell(dir: &Path) -> bool {
    let path = dir.join("probe");
    let made = rt::OpenOptions { read: true, write: true, create: true, ..Default::default() };
    let file = rt::File::open(&path, made).await.unwrap();
    let direct = rt::File::open(&path, rt::OpenOptions { direct: true, ..made }).await;
    rt::remove_file(&path).await.unwrap();
    direct.is_ok() && !file.may_be_cached(0, BLOCK)
}

#[test]
fn only_repeated_reads_enter_the_page_cache() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(ino(), 0, &buf(&content()), IoPath::Direct, Durability::Now).await.unwrap();
        // Opened again, so that nothing of the write counts.
        store.close().await.unwrap();
        drop(store);
        let (store, _) = open(&dir).await;
        if !can_tell(&dir).await {
            return eprintln!("skipped: this kernel or file system can't tell what is cached");
        }
        assert_eq!(
            read_each(&store, 0..16).await,
            0,
            "a second descriptor isn't worth while for a few reads"
        );
        assert_eq!(read_each(&store, 16..100).await, 84);
        assert_eq!(read_each(&store, 16..100).await, 0, "the second time they come into the page cache");
        assert_eq!(read_each(&store, 0..100).await, 0);

        let block = &content()[110 * BLOCK as usize..][..BLOCK as usize];
        store.write(ino(), 110 * BLOCK, &buf(block), IoPath::Cached, Durability::Later).await.unwrap();
        assert_eq!(read_each(&store, 110..111).await, 0, "what was written is there already");
        let before = store.statistics().direct_reads.get();
        let several = read(&store, ino(), 112 * BLOCK, 8192, IoPath::Cached).await.unwrap();
        assert_eq!(several, content()[112 * BLOCK as usize..][..8192]);
        assert_eq!(store.statistics().direct_reads.get() - before, 1);
        assert_eq!(read_each(&store, 112..115).await, 1, "of three, two were read together");
    });
}
