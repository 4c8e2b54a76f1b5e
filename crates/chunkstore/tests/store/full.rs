//! A disk that fills up: some of it stays free, and operations that free space always work.

use crate::common::{INO, LOG_BYTES, buf, identity, read, with_target};
use chunkstore::{Allocate, Durability, IoPath, Kind, Options, Store};
use rt::sim::Machine;
use std::path::Path;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId};

const DIR: &str = "/target";
const CAPACITY: u64 = 16 << 20;
/// An eighth of the disk.
const RESERVE: u64 = CAPACITY / 8;
const PIECE: u64 = 256 << 10;
/// More pieces than can fit.
const TOO_MANY: u64 = CAPACITY / PIECE;
/// How space is reserved.
const HOW: [Allocate; 2] = [Allocate::Reserve, Allocate::Zero];

fn on_small_disk<F: Future<Output = ()> + 'static>(test: impl FnOnce(Arc<Store>) -> F + 'static) {
    on_disk(CAPACITY, test);
}

fn on_disk<F: Future<Output = ()> + 'static>(capacity: u64, test: impl FnOnce(Arc<Store>) -> F + 'static) {
    let mut machine = Machine::new(7);
    machine.set_capacity(Some(capacity));
    let whole = async move {
        Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
        let (store, _) = Store::open(Path::new(DIR), &identity(), Options::default()).await.unwrap();
        test(store.clone()).await;
        store.close().await.unwrap();
    };
    machine.run(whole).unwrap();
}

async fn write(store: &Store, ino: ChunkFileId, piece: u64, byte: u8) -> chunkstore::Result<()> {
    let data = buf(&vec![byte; PIECE as usize]);
    store.write(ino, piece * PIECE, &data, IoPath::Cached, Durability::Later).await
}

/// Writes one file until the store refuses, and returns how many pieces it holds.
async fn fill(store: &Store, ino: ChunkFileId) -> u64 {
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
        for (ino, how) in [INO, ChunkFileId(9)].into_iter().flat_map(|ino| HOW.map(|how| (ino, how))) {
            let error = store.allocate(ino, beyond, how).await.unwrap_err();
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        }
        assert!(!store.has_chunk_file(ChunkFileId(9)).await.unwrap(), "what is refused makes no chunk file");
        assert_eq!(fill(&store, ChunkFileId(9)).await, 0);
        let last = read(&store, INO, (pieces - 1) * PIECE, PIECE as usize, IoPath::Cached).await.unwrap();
        assert!(last.iter().all(|byte| *byte == 1));
    });
}

/// Each takes its space in several parts, so that both have begun when the disk is full.
#[test]
fn reservations_of_targets_that_share_a_disk_leave_the_reserve() {
    const DISK: u64 = 512 << 20;
    const KEPT: u64 = DISK / 8;
    // Space of the disk that checksums take.
    const SLACK: u64 = 2 << 20;
    for how in HOW {
        on_disk(DISK, move |store| async move {
            let dir = Path::new("/other");
            Store::format_with_log(dir, &identity(), LOG_BYTES).await.unwrap();
            let (other, _) = Store::open(dir, &identity(), Options::default()).await.unwrap();
            // Both together fit on the disk, but not beside the reserve; each fits alone.
            let before = store.space().await.unwrap().free;
            let half = (before - KEPT / 2) / 2;
            let range = ByteRange::new(0, half / PIECE * PIECE);
            let asked = [store.allocate(INO, range, how), other.allocate(INO, range, how)];
            let outcomes = rt::join_all(asked.into()).await;
            let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
            assert_eq!(refused.len(), 1, "{how:?}: {refused:?}");
            assert_eq!(refused[0].kind(), Kind::NoSpace, "{how:?}: {}", refused[0]);
            let free = store.space().await.unwrap().free;
            assert!(free >= KEPT, "{how:?}: {free} bytes are free");
            assert!(free + range.len() + SLACK >= before, "{how:?}: what is refused has taken space");
            // The allocated part of the claim isn't claimed any more.
            let rest = ByteRange::new(0, (free - KEPT) / PIECE * PIECE / 2);
            other.allocate(ChunkFileId(9), rest, how).await.unwrap();
            other.close().await.unwrap();
        });
    }
}

#[test]
fn what_a_reservation_needs_is_told_before_it_is_made() {
    on_small_disk(|store| async move {
        let range = ByteRange::new(0, 4 * PIECE);
        let room = store.space_needed(INO, range, 8).await.unwrap();
        assert_eq!((room.needed, room.gaps), (4 * PIECE, vec![range]));
        write(&store, INO, 1, 1).await.unwrap();
        store.allocate(INO, ByteRange::at(3 * PIECE, PIECE), Allocate::Reserve).await.unwrap();
        let room = store.space_needed(INO, range, 8).await.unwrap();
        assert_eq!(room.gaps, [ByteRange::at(0, PIECE), ByteRange::at(2 * PIECE, PIECE)]);
        assert_eq!(room.needed, 2 * PIECE);
        let free = store.space().await.unwrap().free;
        assert_eq!(room.free, free - RESERVE);
    });
}

/// On a real file system, of whatever kind.
#[test]
fn a_punched_reservation_frees_only_its_own_space() {
    with_target(|dir| async move {
        let (store, _) = Store::open(&dir, &identity(), Options::default()).await.unwrap();
        let reserve = async |ino, from: u64, to: u64| {
            let range = ByteRange::new(from * PIECE, to * PIECE);
            let before = store.space_needed(ino, range, 8).await.unwrap();
            store.allocate(ino, range, Allocate::Reserve).await.unwrap();
            before
        };
        let wanted = async |ino| {
            let range = ByteRange::new(0, 16 * PIECE);
            store.space_needed(ino, range, 8).await.unwrap().needed / PIECE
        };
        write(&store, INO, 0, 1).await.unwrap();
        store.sync_all().await.unwrap();
        let room = reserve(INO, 0, 4).await;
        if room.gaps.is_empty() {
            println!("skipped: extents are not listed here");
            return;
        }
        assert_eq!(wanted(INO).await, 12);
        for gap in room.gaps {
            store.allocate(INO, gap, Allocate::Punch).await.unwrap();
        }
        assert_eq!(wanted(INO).await, 15, "the data and nothing else is left");
        let data = read(&store, INO, 0, PIECE as usize, IoPath::Cached).await.unwrap();
        assert!(data.iter().all(|byte| *byte == 1));

        let other = ChunkFileId(9);
        reserve(other, 8, 10).await;
        for gap in reserve(other, 0, 4).await.gaps {
            store.allocate(other, gap, Allocate::Punch).await.unwrap();
        }
        let first = store.space_needed(other, ByteRange::new(8 * PIECE, 10 * PIECE), 8).await.unwrap();
        assert_eq!(first.needed, 0, "an earlier reservation stays");
        store.close().await.unwrap();
    });
}

#[test]
fn allocated_ranges_can_be_overwritten_on_a_full_disk() {
    on_small_disk(|store| async move {
        let sparse = ChunkFileId(9);
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
fn freeing_space_works_on_a_full_disk() {
    on_small_disk(|store| async move {
        let pieces = fill(&store, INO).await;
        store.allocate(INO, ByteRange::at(0, 2 * PIECE), Allocate::Punch).await.unwrap();
        write(&store, ChunkFileId(9), 0, 2).await.unwrap();
        store.truncate(INO, (pieces - 4) * PIECE).await.unwrap();
        write(&store, ChunkFileId(9), 1, 2).await.unwrap();
        store.delete(INO).await.unwrap();
        store.sync_all().await.unwrap();
        assert!(fill(&store, ChunkFileId(10)).await + 4 >= pieces);
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
