//! Chunk files that were removed or truncated with their checksums: a request that knows their
//! length doesn't get holes.

use crate::common::{INO, LOG_BYTES, buf, chunk_files, identity, open, open_with, with_target};
use chunkstore::{Allocate, At, Durability, IoPath, Kind, Options, Seek, Store, StoreError};
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::RefCell;
use std::fs::OpenOptions;
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use types::ChunkFileId;

const DIR: &str = "/target";
const LEN: u64 = 20_000;

fn at(offset: u64, known: u64) -> At {
    At { ino: INO, offset, min_len: known }
}

async fn read(store: &Store, at: At, len: usize) -> chunkstore::Result<Vec<u8>> {
    let buf = IoBuf::alloc(len);
    store.read_at(at, &buf, IoPath::Cached).await?;
    Ok(buf.as_slice().to_vec())
}

async fn write(store: &Store, at: At, len: usize) -> chunkstore::Result<()> {
    store.write_at(at, &buf(&vec![9; len]), IoPath::Cached, Durability::Later, ready(Ok(()))).await
}

async fn put(store: &Store, ino: ChunkFileId, len: u64) {
    let data = vec![7; len as usize];
    store.write(ino, 0, &buf(&data), IoPath::Cached, Durability::Later).await.unwrap();
}

fn is_damage(error: &StoreError) -> bool {
    matches!(error.kind(), Kind::Corrupt { .. }) && error.message().contains("target 3")
}

/// Plain reads, reads of parts of blocks and searches for data all fail, and no write changes it.
async fn refuses(store: &Store, offset: u64) {
    for (offset, len) in [(offset / 4096 * 4096, 4096), (offset, 1), (0, LEN as usize + 4096)] {
        let error = read(store, at(offset, LEN), len).await.expect_err("a part of it is missing");
        assert!(is_damage(&error), "{error}");
    }
    for what in [Seek::Data, Seek::Hole] {
        assert!(is_damage(&store.seek_at(at(offset, LEN), what).await.expect_err("it is no hole")));
    }
    assert!(is_damage(&write(store, at(LEN - 10, LEN), 100).await.expect_err("it would be a hole")));
    let zero = store.allocate_at(at(LEN - 10, LEN), 10, Allocate::Zero).await;
    assert!(is_damage(&zero.expect_err("it would be a hole")));
}

#[test]
fn missing_content_of_known_length_is_no_hole() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        put(&store, INO, LEN).await;
        assert_eq!(read(&store, at(0, LEN), LEN as usize).await.unwrap(), vec![7; LEN as usize]);
        store.close().await.unwrap();
        let path = chunk_files(&dir).pop().unwrap();
        let cut = |path: &Path, len| {
            OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
        };
        cut(&path, 8192);
        cut(&path.with_extension("sum"), 8);
        let (store, _) = open(&dir).await;
        refuses(&store, 8192).await;
        assert_eq!(read(&store, at(100, LEN), 5000).await.unwrap(), [7; 5000], "it has that");
        assert_eq!(read(&store, at(LEN, LEN), 5000).await.unwrap(), [0; 5000], "behind what is known");
        assert_eq!(read(&store, at(8192, 8192), 5000).await.unwrap(), [0; 5000]);
        assert_eq!(store.stat(INO).await.unwrap().len, 8192, "nothing was changed");
        // A write from its end on makes no hole.
        write(&store, at(8192, LEN), (LEN - 8192) as usize).await.unwrap();
        let expected = [vec![7; 8192], vec![9; (LEN - 8192) as usize]].concat();
        assert_eq!(read(&store, at(0, LEN), LEN as usize).await.unwrap(), expected);
        // Truncated while it is open here: the hole at its end has no checksums, so that only its
        // length shows it.
        store.extend(INO, 2 * LEN).await.unwrap();
        assert_eq!(read(&store, at(LEN, 2 * LEN), LEN as usize).await.unwrap(), vec![0; LEN as usize]);
        cut(&path, LEN);
        assert!(is_damage(&read(&store, at(LEN, 2 * LEN), 100).await.expect_err("it is cut")));
        cut(&path, 4096);
        assert!(is_damage(&read(&store, at(4096, LEN), 100).await.expect_err("it is cut")));
        store.close().await.unwrap();

        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(path.with_extension("sum")).unwrap();
        let (store, _) = open(&dir).await;
        refuses(&store, 0).await;
        assert_eq!(store.list().await.unwrap(), [], "nothing was made");
        assert_eq!(read(&store, at(0, 0), 100).await.unwrap(), [0; 100], "of this one nothing is known");
        assert!(store.statistics().corrupt_ranges.get() > 0);
        assert_eq!(store.incomplete_count(), 1);
        // Given up, it is a hole.
        let range = types::ByteRange::new(0, LEN);
        assert_eq!(store.give_up(INO, range).await.unwrap(), [range]);
        assert_eq!(store.incomplete_count(), 0);
        assert_eq!(read(&store, at(0, LEN), LEN as usize).await.unwrap(), vec![0; LEN as usize]);
        write(&store, at(LEN - 10, LEN), 100).await.unwrap();
    });
}

#[test]
fn the_missing_end_of_a_truncated_chunk_file_can_be_given_up() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        put(&store, INO, 5000).await;
        let range = types::ByteRange::new(5000, LEN);
        assert_eq!(store.give_up(INO, range).await.unwrap(), [range]);
        let expected = [vec![7; 5000], vec![0; LEN as usize - 5000]].concat();
        assert_eq!(read(&store, at(0, LEN), LEN as usize).await.unwrap(), expected);
        assert_eq!(store.verify(INO).await.unwrap(), []);
        // Existing content isn't given up.
        assert_eq!(store.give_up(INO, types::ByteRange::new(0, LEN)).await.unwrap(), []);
    });
}

#[test]
fn damage_before_the_given_up_range_stays() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        put(&store, INO, LEN).await;
        store.close().await.unwrap();
        let path = chunk_files(&dir).pop().unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let (store, _) = open(&dir).await;
        let range = types::ByteRange::new(12_288, 16_384);
        assert_eq!(store.give_up(INO, range).await.unwrap(), [range]);
        assert_eq!(read(&store, at(0, 0), 4096).await.unwrap(), [7; 4096]);
        assert_eq!(read(&store, at(12_288, 0), 4096).await.unwrap(), [0; 4096]);
        for offset in [4096, 8192, 16_384] {
            let error = read(&store, at(offset, 0), 4096).await.expect_err("it was not given up");
            assert!(is_damage(&error), "{error}");
        }
        let rest = types::ByteRange::new(4096, 12_288);
        assert_eq!(store.give_up(INO, rest).await.unwrap(), [rest]);
        assert_eq!(read(&store, at(4096, 0), 8192).await.unwrap(), [0; 8192]);
        store.close().await.unwrap();
    });
}

#[test]
fn truncation_and_growth_by_weft_are_never_refused() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        put(&store, INO, LEN).await;
        for known in [LEN, 5000, 4096, 100, 1] {
            store.truncate(INO, known).await.unwrap();
            read(&store, at(0, known), LEN as usize).await.unwrap();
            write(&store, at(2 * LEN, known), 10).await.unwrap();
            read(&store, at(0, 2 * LEN + 10), 3 * LEN as usize).await.unwrap();
            store.allocate(INO, types::ByteRange::new(0, 3 * LEN), Allocate::Punch).await.unwrap();
            read(&store, at(0, 2 * LEN + 10), 3 * LEN as usize).await.unwrap();
        }
        assert_eq!(store.statistics().corrupt_ranges.get(), 0);
    });
}

/// What a file lacks that was being changed when power failed had never been on disk.
#[test]
fn a_crash_explains_what_is_missing_until_it_is_whole_again() {
    // Each seed decides which part of the unsynced content survives.
    (0..8).for_each(crash_explains_what_is_missing);
}

fn crash_explains_what_is_missing(seed: u64) {
    let mut machine = Machine::new(seed);
    let (old, new) = (INO, ChunkFileId(INO.0 + 1));
    let store = Rc::new(RefCell::new(None));
    let kept = store.clone();
    machine
        .run(async move {
            let dir = Path::new(DIR);
            Store::format_with_log(dir, &identity(), LOG_BYTES).await.unwrap();
            let (store, _) = open_with(dir, Options::default()).await;
            put(&store, old, 4096).await;
            // After a shutdown the span of inodes in which it was created isn't active any more.
            store.close().await.unwrap();
            let (store, _) = open_with(dir, Options::default()).await;
            // Neither is synced when power fails.
            store.write(old, 4096, &buf(&[7; 8192]), IoPath::Cached, Durability::Later).await.unwrap();
            put(&store, new, LEN).await;
            *kept.borrow_mut() = Some(store);
        })
        .unwrap();
    machine.crash();
    drop(store.take());
    machine
        .run(async move {
            let dir = Path::new(DIR);
            let (store, _) = open_with(dir, Options::default()).await;
            for (ino, known) in [(old, 12_288), (new, LEN)] {
                let at = At { ino, offset: 0, min_len: known };
                assert!(store.was_changing(ino), "seed {seed}");
                read(&store, at, known as usize).await.unwrap();
                store.extend(ino, known).await.unwrap();
                read(&store, at, known as usize).await.unwrap();
            }
            // It is complete: nothing excuses missing content from here on.
            assert!(!store.was_changing(old), "seed {seed}");
            assert_eq!(store.statistics().corrupt_ranges.get(), 0);
            store.mark_reconciled();
            store.close().await.unwrap();
            let (store, _) = open_with(dir, Options::default()).await;
            for (ino, known) in [(old, 12_288), (new, LEN)] {
                let at = At { ino, offset: 0, min_len: known };
                read(&store, at, known as usize).await.unwrap();
                store.delete(ino).await.unwrap();
                assert!(!store.was_changing(ino));
                assert!(is_damage(&read(&store, at, 100).await.expect_err("nothing explains it")));
            }
        })
        .unwrap();
}
