//! The store detects all changes that the disk makes, and reports nothing else.

use crate::common::{INO, buf, chunk_files, open, read, with_target};
use chunkstore::{Allocate, Durability, IoPath, Kind, Seek, Store};
use rt::IoBuf;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use types::{ByteRange, ChunkFileId};

const LEN: usize = 40 * 4096 + 100;

/// Writes a file, shuts down, lets `spoil` change the chunk file, and opens again.
async fn opened_after(dir: &Path, spoil: impl FnOnce(&std::fs::File)) -> std::sync::Arc<Store> {
    let (store, _) = open(dir).await;
    let data: Vec<u8> = (0..LEN).map(|i| (i * 7 + 1) as u8).collect();
    store.write(INO, 0, &buf(&data), IoPath::Cached, Durability::Later).await.unwrap();
    store.close().await.unwrap();
    let path = chunk_files(dir).pop().unwrap();
    spoil(&OpenOptions::new().write(true).read(true).open(path).unwrap());
    let (store, report) = open(dir).await;
    assert!(!report.was_needed);
    store
}

#[test]
fn a_flipped_byte_is_found_by_read_and_verify() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, 5 * 4096 + 17).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], 5 * 4096 + 17).unwrap();
        })
        .await;
        let bad = ByteRange::new(5 * 4096, 6 * 4096);
        for path in [IoPath::Direct, IoPath::Cached] {
            let error = read(&store, INO, 0, 16 * 4096, path).await.expect_err("damage");
            assert_eq!(error.kind(), Kind::Corrupt { ino: INO, range: bad });
            assert!(
                error.message().contains("target 3") && error.message().contains("20480..24576"),
                "{error}"
            );
            // Everything else is intact, up to the block's edges.
            read(&store, INO, 0, 5 * 4096, path).await.unwrap();
            read(&store, INO, 6 * 4096, LEN - 6 * 4096, path).await.unwrap();
        }
        read(&store, INO, 5 * 4096 + 100, 1, IoPath::Cached)
            .await
            .expect_err("the block is damaged as a whole");
        assert_eq!(store.verify(INO).await.unwrap(), [bad]);
        assert_eq!(store.statistics().corrupt_ranges.get(), 1, "logged once");
    });
}

/// The checksum of data is computed once on the way in, and once on the way out.
#[test]
fn checksums_travel_with_buffers() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let data: Vec<u8> = (0..4 * 4096).map(|i| (i * 7 / 5) as u8).collect();
        let write = async |at: u64, buf: &IoBuf| {
            store.write(INO, at, buf, IoPath::Cached, Durability::Later).await.unwrap();
        };
        write(4 * 4096, &buf(&data)).await;
        let found = IoBuf::alloc(8 * 4096);
        store.read(INO, 0, &found, IoPath::Cached).await.unwrap();
        let sums = types::block_crcs(&[&[0; 4 * 4096][..], &data].concat());
        assert_eq!(found.with_checksums(<[u32]>::to_vec), Some(sums), "half of it is a hole");
        // Data with other checksums than it arrived with was damaged since.
        let damaged = buf(&data);
        let mut sums = types::block_crcs(&data);
        sums[2] ^= 1;
        damaged.note_checksums(sums);
        write(0, &damaged).await;
        let error = read(&store, INO, 0, 4 * 4096, IoPath::Cached).await.expect_err("damage");
        assert_eq!(error.kind(), Kind::Corrupt { ino: INO, range: ByteRange::new(2 * 4096, 3 * 4096) });
        // The checksums of partially written blocks are unknown.
        write(100, &damaged).await;
        assert_eq!(read(&store, INO, 100, data.len(), IoPath::Cached).await.unwrap(), data);
        assert!(found.with_checksums(|_| ()).is_some());
        store.read(INO, 50, &found, IoPath::Cached).await.unwrap();
        assert!(found.with_checksums(|_| ()).is_none());
    });
}

/// A receiver that verifies its data gets the expected checksums; one that doesn't never gets
/// damaged data.
#[test]
fn stored_checksums_are_attached_for_verifying_receivers() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.write_all_at(b"y", 5 * 4096 + 17).unwrap()).await;
        let comparing = |blocks: usize| {
            let buf = IoBuf::alloc(blocks * 4096);
            buf.defer_verification();
            buf
        };
        let data: Vec<u8> = (0..LEN).map(|i| (i * 7 + 1) as u8).collect();
        let found = comparing(8);
        for path in [IoPath::Direct, IoPath::Cached] {
            store.read(INO, 0, &found, path).await.unwrap();
            let right = types::block_crcs(&data[..8 * 4096]);
            assert_eq!(found.with_stored_checksums(<[u32]>::to_vec), Some(right), "{path:?}");
            assert!(found.with_checksums(|_| ()).is_none());
        }
        assert_ne!(found.as_slice()[5 * 4096 + 17], data[5 * 4096 + 17]);
        store.read(INO, 0, &IoBuf::alloc(8 * 4096), IoPath::Cached).await.expect_err("nobody compares");
        // Holes are zeros.
        let holes = comparing(2);
        store.read(INO, 60 * 4096, &holes, IoPath::Cached).await.unwrap();
        let zeros = types::block_crcs(&[0; 2 * 4096]);
        assert_eq!(holes.with_stored_checksums(<[u32]>::to_vec), Some(zeros));
        // Parts of blocks have no checksums.
        store.read(INO, 5 * 4096 + 1, &comparing(1), IoPath::Cached).await.expect_err("damage");
        let part = comparing(1);
        store.read(INO, 7 * 4096 + 1, &part, IoPath::Cached).await.unwrap();
        assert!(part.with_stored_checksums(|_| ()).is_none());
        assert_eq!(part.as_slice(), &data[7 * 4096 + 1..8 * 4096 + 1]);
    });
}

#[test]
fn a_lost_tail_is_found_by_read_and_verify() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.set_len(30 * 4096).unwrap()).await;
        read(&store, INO, 0, 30 * 4096, IoPath::Cached).await.unwrap();
        read(&store, INO, 30 * 4096, 4096, IoPath::Cached).await.expect_err("these were data");
        assert_eq!(store.verify(INO).await.unwrap(), [ByteRange::new(30 * 4096, 41 * 4096)]);
        // Nothing is missing beyond the former end.
        read(&store, INO, 41 * 4096, 4096, IoPath::Cached).await.unwrap();
    });
}

fn punch(path: &Path, offset: usize, len: usize) {
    let (offset, len) = (offset.to_string(), len.to_string());
    let punch = std::process::Command::new("fallocate")
        .args(["--punch-hole", "--offset", &offset, "--length", &len])
        .arg(path)
        .status();
    assert!(punch.unwrap().success());
}

/// A copier that reads what is reported as data meets the damage, instead of taking it for zeros.
#[test]
fn what_was_punched_or_cut_is_no_hole() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.set_len(30 * 4096 + 50).unwrap()).await;
        punch(&chunk_files(&dir).pop().unwrap(), 5 * 4096, 15 * 4096);
        let seek = async |from, what| store.seek(INO, from, what).await.unwrap();
        assert_eq!(seek(0, Seek::Hole).await, Some(41 * 4096), "with all that was cut off");
        for from in [0, 5 * 4096, 7 * 4096 + 9, 20 * 4096, 30 * 4096 + 60, 31 * 4096, 40 * 4096 + 1] {
            assert_eq!(seek(from, Seek::Data).await, Some(from));
            assert_eq!(seek(from, Seek::Hole).await, Some(41 * 4096));
        }
        assert_eq!(seek(41 * 4096, Seek::Data).await, None);
        assert_eq!(seek(41 * 4096 + 9, Seek::Hole).await, Some(41 * 4096 + 9));
        let error = store.require_not_truncated(INO).await.expect_err("it was cut");
        assert_eq!(error.kind(), Kind::Corrupt { ino: INO, range: ByteRange::new(31 * 4096, 32 * 4096) });
    });
}

/// A hole that an application has made has no checksums; the search for them doesn't scan a large
/// hole.
#[test]
fn holes_are_reported_and_found_quickly() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let write = async |at: u64, data: &[u8]| {
            store.write(INO, at, &buf(data), IoPath::Cached, Durability::Later).await.unwrap();
        };
        let far = 1 << 40;
        write(0, &[7; 3 * 4096]).await;
        write(far, &[7; 100]).await;
        store.allocate(INO, ByteRange::new(4096, 2 * 4096), Allocate::Punch).await.unwrap();
        store.close().await.unwrap();
        let (store, _) = open(&dir).await;
        let seek = async |from, what| store.seek(INO, from, what).await.unwrap();
        assert_eq!(seek(0, Seek::Hole).await, Some(4096));
        assert_eq!(seek(4096 + 5, Seek::Data).await, Some(2 * 4096));
        assert_eq!(seek(2 * 4096, Seek::Hole).await, Some(3 * 4096));
        assert_eq!(seek(3 * 4096, Seek::Data).await, Some(far));
        assert_eq!(seek(far, Seek::Hole).await, Some(far + 100));
        assert_eq!(seek(far + 100, Seek::Data).await, None);
        assert_eq!(seek(far + 100, Seek::Hole).await, Some(far + 100));
        store.require_not_truncated(INO).await.unwrap();
        let loads = store.statistics().sum_page_loads.get();
        assert!(loads <= 2, "{loads} pages of checksums were read");
        store.truncate(INO, 4096 + 50).await.unwrap();
        assert_eq!(store.seek(INO, 4096, Seek::Data).await.unwrap(), None);
        store.require_not_truncated(INO).await.unwrap();
    });
}

#[test]
fn data_in_a_hole_is_found() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.write_all_at(b"x", 100 * 4096).unwrap()).await;
        read(&store, INO, 100 * 4096, 4096, IoPath::Cached).await.expect_err("nobody wrote this");
        assert_eq!(store.verify(INO).await.unwrap(), [ByteRange::new(100 * 4096, 101 * 4096)]);
    });
}

#[test]
fn a_partial_write_does_not_whitewash_damage() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.write_all_at(b"damage", 8192).unwrap()).await;
        let part = buf(b"part");
        let written = store.write(INO, 8192 + 50, &part, IoPath::Cached, Durability::Later).await;
        assert!(matches!(written.expect_err("the rest is damaged").kind(), Kind::Corrupt { .. }));
        store
            .allocate(INO, ByteRange::new(8200, 8300), Allocate::Punch)
            .await
            .expect_err("the rest is damaged");
        store.truncate(INO, 8200).await.expect_err("the rest is damaged");
        assert_eq!(store.verify(INO).await.unwrap(), [ByteRange::new(8192, 12288)]);
        // A whole block replaces it.
        store.write(INO, 8192, &buf(&[1; 4096]), IoPath::Cached, Durability::Later).await.unwrap();
        assert_eq!(store.verify(INO).await.unwrap(), []);
    });
}

#[test]
fn damage_of_one_file_leaves_others_alone() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.write_all_at(b"damage", 0).unwrap()).await;
        let other = ChunkFileId(99);
        store.write(other, 0, &buf(b"fine"), IoPath::Cached, Durability::Now).await.unwrap();
        read(&store, INO, 0, 10, IoPath::Cached).await.expect_err("damage");
        assert_eq!(read(&store, other, 0, 6, IoPath::Cached).await.unwrap(), b"fine\0\0");
        store.sync_all().await.unwrap();
        assert_eq!(store.list().await.unwrap(), [other, INO]);
    });
}

#[test]
fn a_damaged_last_block_is_repaired_by_writing_its_content() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| file.write_all_at(b"damage", 40 * 4096 + 10).unwrap()).await;
        let part = store.write(INO, 40 * 4096, &buf(&[7; 99]), IoPath::Cached, Durability::Later).await;
        part.expect_err("the last byte would stay");
        let whole: Vec<u8> = (40 * 4096..LEN).map(|i| (i * 7 + 1) as u8).collect();
        store.write(INO, 40 * 4096, &buf(&whole), IoPath::Cached, Durability::Later).await.unwrap();
        assert_eq!(store.verify(INO).await.unwrap(), []);
        assert_eq!(read(&store, INO, 40 * 4096, 100, IoPath::Cached).await.unwrap(), whole);
        assert_eq!(store.stat(INO).await.unwrap().len, LEN as u64);
    });
}

#[test]
fn given_up_content_reads_as_zeros_and_the_rest_stays() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |file| {
            file.write_all_at(b"damage", 8192 + 10).unwrap();
            file.set_len(39 * 4096).unwrap();
        })
        .await;
        let lost = [ByteRange::new(8192, 3 * 4096), ByteRange::new(39 * 4096, 41 * 4096)];
        assert_eq!(store.give_up(INO, ByteRange::new(0, LEN as u64)).await.unwrap(), lost);
        assert_eq!(store.give_up(INO, ByteRange::new(0, LEN as u64)).await.unwrap(), [], "once");
        store.close().await.unwrap();
        let (store, _) = open(&dir).await;
        assert_eq!(store.verify(INO).await.unwrap(), []);
        let found = read(&store, INO, 0, LEN, IoPath::Cached).await.unwrap();
        let expected: Vec<u8> = (0..LEN)
            .map(|at| {
                if lost.iter().any(|l| (l.start..l.end).contains(&(at as u64))) {
                    0
                } else {
                    (at * 7 + 1) as u8
                }
            })
            .collect();
        assert!(found == expected);
    });
}

#[test]
fn a_chunk_file_that_is_gone_is_forgotten_as_a_hole() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let range = ByteRange::new(0, 10_000);
        assert_eq!(store.give_up(INO, range).await.unwrap(), [range]);
        assert_eq!(store.stat(INO).await.unwrap().len, 10_000);
        assert_eq!(read(&store, INO, 0, 10_000, IoPath::Cached).await.unwrap(), [0; 10_000]);
        assert_eq!(store.give_up(INO, range).await.unwrap(), []);
    });
}

/// A file is restored from a backup while its former content is given up: acknowledged writes stay,
/// wherever they are.
#[test]
fn what_is_written_while_a_chunk_file_is_forgotten_stays() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let range = ByteRange::new(0, 10_000);
        for (at, ino) in (0..300).map(|i| (i, ChunkFileId(INO.0 + 1 + i))) {
            let rests = at % 20;
            let forget = async {
                store.give_up(ino, range).await.unwrap();
            };
            let write = async {
                for _ in 0..rests {
                    rt::yield_now().await;
                }
                // A part of what is given up, and one behind that.
                for at in [5000, 20_000] {
                    store.write(ino, at, &buf(&[9; 100]), IoPath::Cached, Durability::Later).await.unwrap();
                }
            };
            let both: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> =
                vec![Box::pin(forget), Box::pin(write)];
            rt::join_all(both).await;
            let written = [vec![0; 5000], vec![9; 100], vec![0; 14_900], vec![9; 100]].concat();
            assert!(read(&store, ino, 0, 20_100, IoPath::Cached).await.unwrap() == written, "{ino}");
            assert_eq!(store.stat(ino).await.unwrap().len, 20_100, "{ino}");
        }
    });
}

#[test]
fn a_chunk_file_that_somebody_removed_is_not_read_as_zeros() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |_| ()).await;
        let (path, len) = (chunk_files(&dir).pop().unwrap(), LEN);
        read(&store, INO, 0, len, IoPath::Cached).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        // The open file can still be read, and is gone when it is closed.
        read(&store, INO, 0, len, IoPath::Cached).await.unwrap();
        assert!(
            store.is_replaced(INO).await.unwrap()
                && !store.survey(INO, WHOLE, 4096, true).await.unwrap().exists
        );
        assert_eq!(store.missing().await.unwrap(), [INO]);
        store.close().await.unwrap();
        let (store, _) = open(&dir).await;
        let error = read(&store, INO, 4096, 100, IoPath::Cached).await.expect_err("it was there");
        assert!(matches!(error.kind(), Kind::Corrupt { ino: INO, .. }));
        store.seek(INO, 0, Seek::Data).await.expect_err("nor is it a hole");
        assert_eq!(store.missing().await.unwrap(), [INO]);
        // Once it is deleted, its absence isn't damage.
        store.delete(INO).await.unwrap();
        assert_eq!(read(&store, INO, 0, 4096, IoPath::Cached).await.unwrap(), [0; 4096]);
        assert_eq!(store.missing().await.unwrap(), []);
    });
}

/// Otherwise the parts that aren't written would silently read as zeros from then on.
#[test]
fn a_removed_chunk_file_is_not_partially_rewritten() {
    with_target(|dir| async move {
        let store = opened_after(&dir, |_| ()).await;
        std::fs::remove_file(chunk_files(&dir).pop().unwrap()).unwrap();
        let write = async || store.write(INO, 4096, &buf(&[9; 100]), IoPath::Cached, Durability::Later).await;
        let zero = async || store.allocate(INO, ByteRange::new(0, 4096), Allocate::Zero).await;
        for refused in [write().await, zero().await, store.set_len(INO, 5000).await] {
            let error = refused.expect_err("the rest of it is lost");
            assert!(matches!(error.kind(), Kind::Corrupt { ino: INO, .. }), "{error}");
            assert!(
                error.message().contains("target 3") && error.message().contains(&INO.to_string()),
                "{error}"
            );
        }
        store.truncate(INO, 100).await.unwrap();
        read(&store, INO, 0, 100, IoPath::Cached).await.expect_err("some of it was to stay");
        // After a truncation to nothing it is intact, and may be written; the same when it was
        // given up.
        store.truncate(INO, 0).await.unwrap();
        write().await.unwrap();
        let expected = [vec![0; 4096], vec![9; 100]].concat();
        assert_eq!(read(&store, INO, 0, 4196, IoPath::Cached).await.unwrap(), expected);
        store.close().await.unwrap();
        std::fs::remove_file(chunk_files(&dir).pop().unwrap()).unwrap();
        let (store, _) = open(&dir).await;
        let range = ByteRange::new(0, 4196);
        assert_eq!(store.give_up(INO, range).await.unwrap(), [range]);
        store.write(INO, 0, &buf(&[9; 100]), IoPath::Cached, Durability::Later).await.unwrap();
    });
}

/// Recovery finishes a deletion that a crash has interrupted, and no loss is reported.
#[test]
fn a_deletion_that_was_cut_short_is_no_damage() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(INO, 0, &buf(&[1; 10_000]), IoPath::Cached, Durability::Later).await.unwrap();
        store.maintain(0).await.unwrap();
        store.maintain(0).await.unwrap();
        let path = chunk_files(&dir).pop().unwrap();
        let sums = std::fs::read(path.with_extension("sum")).unwrap();
        store.delete(INO).await.unwrap();
        drop(store);
        std::fs::write(path.with_extension("sum"), sums).unwrap();
        let (store, report) = open(&dir).await;
        assert!(report.was_needed);
        assert_eq!(read(&store, INO, 0, 4096, IoPath::Cached).await.unwrap(), [0; 4096]);
        assert_eq!(store.missing().await.unwrap(), []);
    });
}

const WHOLE: ByteRange = ByteRange::new(0, 1 << 30);

#[test]
fn a_survey_is_the_same_of_equal_files_however_they_came_about() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let (one, two) = (ChunkFileId(1), ChunkFileId(2));
        let data: Vec<u8> = (0..3 << 20).map(|i| (i / 4096 % 5) as u8).collect();
        store.write(one, 0, &buf(&data), IoPath::Cached, Durability::Later).await.unwrap();
        store.write(two, 0, &buf(&[9; 5 << 20]), IoPath::Cached, Durability::Later).await.unwrap();
        store.truncate(two, 3 << 20).await.unwrap();
        store.allocate(two, WHOLE, Allocate::Punch).await.unwrap();
        for (at, block) in data.chunks(4096).enumerate().filter(|(_, block)| block[0] != 0) {
            store.write(two, at as u64 * 4096, &buf(block), IoPath::Direct, Durability::Later).await.unwrap();
        }
        for unit in [4096, 1 << 20] {
            let survey = async |ino| store.survey(ino, WHOLE, unit, true).await.unwrap();
            let (first, second) = (survey(one).await, survey(two).await);
            assert_eq!((first.len, &first.sums), (second.len, &second.sums));
            assert!(first.exists && first.damaged.is_empty() && first.sum_end == 3 << 20);
        }
        store.write(two, 1 << 20, &buf(b"other"), IoPath::Cached, Durability::Later).await.unwrap();
        let (first, second) = (
            store.survey(one, WHOLE, 1 << 20, false).await.unwrap(),
            store.survey(two, WHOLE, 1 << 20, false).await.unwrap(),
        );
        let differing: Vec<usize> = (0..3).filter(|at| first.sums[*at] != second.sums[*at]).collect();
        assert_eq!(differing, [1]);
    });
}
