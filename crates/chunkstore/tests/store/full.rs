//! A disk that fills up: some of it stays free, and what frees space always works.

use crate::common::{INO, LOG_BYTES, buf, identity, read};
use chunkstore::{Allocate, Durability, IoPath, Kind, Options, Store};
use rt::sim::Machine;
use std::path::Path;
use std::sync::Arc;
use types::{ByteRange, InodeId};

const DIR: &str = "/target";
const CAPACITY: u64 = 16 << 20;
/// An eighth of the disk.
const RESERVE: u64 = CAPACITY / 8;
const PIECE: u64 = 256 << 10;
/// As many pieces as could not fit.
const TOO_MANY: u64 = CAPACITY / PIECE;

fn on_small_disk<F: Future<Output = ()> + 'static>(test: impl FnOnce(Arc<Store>) -> F + 'static) {
    let mut machine = Machine::new(7);
    machine.set_capacity(Some(CAPACITY));
    let whole = async move {
        Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
        let (store, _) = Store::open(Path::new(DIR), &identity(), Options::default()).await.unwrap();
        test(store.clone()).await;
        store.close().await.unwrap();
    };
    machine.run(whole).unwrap();
}

async fn write(store: &Store, ino: InodeId, piece: u64, byte: u8) -> chunkstore::Result<()> {
    let data = buf(&vec![byte; PIECE as usize]);
    store.write(ino, piece * PIECE, &data, IoPath::Cached, Durability::Later).await
}

/// Writes one file until the store refuses, and answers how many pieces it holds.
async fn fill(store: &Store, ino: InodeId) -> u64 {
    for piece in 0..TOO_MANY {
        if let Err(error) = write(store, ino, piece, 1).await {
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
            for word in ["target 3", DIR, "bytes of its disk are free"] {
                assert!(error.message().contains(word), "{word:?} is missing in: {error}");
            }
            assert!(error.hint().contains("delete files"));
            return piece;
        }
    }
    panic!("the disk is never full")
}

#[test]
fn writing_ends_before_the_disk_is_full() {
    on_small_disk(|store| async move {
        let pieces = fill(&store, INO).await;
        let free = store.space().await.unwrap().free;
        assert!(free >= RESERVE, "{free} bytes are free");
        assert!(free < RESERVE + 2 * PIECE, "{free} bytes are free");
        let beyond = ByteRange::at(pieces * PIECE, PIECE);
        for how in [Allocate::Reserve, Allocate::Zero] {
            let error = store.allocate(INO, beyond, how).await.unwrap_err();
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        }
        assert_eq!(fill(&store, InodeId(9)).await, 0);
        let last = read(&store, INO, (pieces - 1) * PIECE, PIECE as usize, IoPath::Cached).await.unwrap();
        assert!(last.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn what_is_there_can_be_overwritten_on_a_full_disk() {
    on_small_disk(|store| async move {
        let sparse = InodeId(9);
        write(&store, sparse, 3, 1).await.unwrap();
        fill(&store, INO).await;
        write(&store, INO, 2, 5).await.unwrap();
        write(&store, sparse, 3, 6).await.unwrap();
        assert_eq!(read(&store, sparse, 3 * PIECE, 1, IoPath::Cached).await.unwrap(), [6]);
        let error = write(&store, sparse, 2, 6).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace, "a hole is no space");
    });
}

#[test]
fn what_frees_space_works_on_a_full_disk_and_makes_room() {
    on_small_disk(|store| async move {
        let pieces = fill(&store, INO).await;
        store.allocate(INO, ByteRange::at(0, 2 * PIECE), Allocate::Punch).await.unwrap();
        write(&store, InodeId(9), 0, 2).await.unwrap();
        store.truncate(INO, (pieces - 4) * PIECE).await.unwrap();
        write(&store, InodeId(9), 1, 2).await.unwrap();
        store.delete(INO).await.unwrap();
        store.sync_all().await.unwrap();
        assert!(fill(&store, InodeId(10)).await + 4 >= pieces);
    });
}

#[test]
fn a_disk_without_a_limit_is_never_full() {
    let mut machine = Machine::new(8);
    let whole = async {
        Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
        let (store, _) = Store::open(Path::new(DIR), &identity(), Options::default()).await.unwrap();
        for piece in 0..TOO_MANY {
            write(&store, INO, piece, 1).await.unwrap();
        }
        store.close().await.unwrap();
    };
    machine.run(whole).unwrap();
}
