//! A store that was dropped instead of closed, as by a killed process.

use crate::common::{INO, buf, open, open_with, read, with_target};
use chunkstore::{Allocate, Durability, IoPath, Kind, Options};
use std::time::Duration;
use types::{ByteRange, ChunkFileId};

#[test]
fn everything_written_is_there_after_a_kill() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let other = ChunkFileId(7);
        store.write(INO, 0, &buf(&[1; 3 << 20]), IoPath::Direct, Durability::Later).await.unwrap();
        store.maintain(0).await.unwrap();
        // None of these checksums reaches the disk.
        store.write(INO, 4096, &buf(&[2; 8192]), IoPath::Direct, Durability::Later).await.unwrap();
        store.write(INO, (2 << 20) + 77, &buf(&[3; 100]), IoPath::Cached, Durability::Later).await.unwrap();
        store.write(other, 50 << 20, &buf(&[4; 5000]), IoPath::Cached, Durability::Later).await.unwrap();
        drop(store);

        let (mut store, report) = open(&dir).await;
        assert!(report.was_needed && !report.log_was_missing);
        assert_eq!((report.files, report.blocks_changed), (2, 2 + 1 + 2), "{report:?}");
        let mut expected = vec![1; 3 << 20];
        expected[4096..12288].fill(2);
        expected[(2 << 20) + 77..][..100].fill(3);
        assert_eq!(read(&store, INO, 0, 3 << 20, IoPath::Direct).await.unwrap(), expected);
        assert_eq!(read(&store, other, 50 << 20, 5000, IoPath::Cached).await.unwrap(), vec![4; 5000]);
        for ino in [other, INO] {
            assert_eq!(store.verify(ino).await.unwrap(), []);
        }
        // A shutdown before crash reconciliation of these files doesn't count as clean.
        for _ in 0..2 {
            assert_eq!(store.take_changing_at_crash(), [other, INO]);
            store.close().await.unwrap();
            drop(store);
            let opened = open(&dir).await;
            store = opened.0;
            assert!(opened.1.was_needed);
        }
        assert_eq!(store.take_changing_at_crash(), [other, INO]);
        store.mark_reconciled();
        store.close().await.unwrap();
        drop(store);
        let (_, report) = open(&dir).await;
        assert!(!report.was_needed);
    });
}

#[test]
fn without_the_intent_log_a_kill_leaves_false_alarms() {
    with_target(|dir| async move {
        let options = Options { intent_log: false, ..Options::default() };
        let (store, _) = open_with(&dir, options.clone()).await;
        store.write(INO, 0, &buf(&[1; 8192]), IoPath::Cached, Durability::Now).await.unwrap();
        drop(store);
        let (store, _) = open_with(&dir, options).await;
        read(&store, INO, 0, 8192, IoPath::Cached).await.expect_err("this is what the log is for");
    });
}

#[test]
fn cuts_and_holes_survive_a_kill() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(INO, 0, &buf(&[9; 6 << 20]), IoPath::Direct, Durability::Later).await.unwrap();
        store.maintain(0).await.unwrap();
        store.truncate(INO, (5 << 20) + 10).await.unwrap();
        store.allocate(INO, ByteRange::new(100, 1 << 20), Allocate::Punch).await.unwrap();
        store.allocate(INO, ByteRange::new(2 << 20, (3 << 20) + 5), Allocate::Zero).await.unwrap();
        drop(store);
        let (store, report) = open(&dir).await;
        assert!(report.blocks_changed > 0);
        let mut expected = vec![9; (5 << 20) + 10];
        expected[100..1 << 20].fill(0);
        expected[2 << 20..(3 << 20) + 5].fill(0);
        expected.resize(7 << 20, 0);
        assert_eq!(read(&store, INO, 0, 7 << 20, IoPath::Direct).await.unwrap(), expected);
        assert_eq!(store.verify(INO).await.unwrap(), []);
        assert_eq!(store.stat(INO).await.unwrap().len, (5 << 20) + 10);
    });
}

#[test]
fn only_noted_regions_are_examined() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(INO, 0, &buf(&[1; 8 << 20]), IoPath::Direct, Durability::Later).await.unwrap();
        store.maintain(0).await.unwrap();
        store.write(INO, 5 << 20, &buf(&[2; 4096]), IoPath::Direct, Durability::Later).await.unwrap();
        drop(store);
        let (_, report) = open(&dir).await;
        assert_eq!((report.bytes, report.blocks_changed), (1 << 20, 1));
    });
}

#[test]
fn a_lost_log_means_that_everything_is_examined() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(INO, 0, &buf(&[1; 10_000]), IoPath::Cached, Durability::Later).await.unwrap();
        drop(store);
        std::fs::remove_file(dir.join("intent.1")).unwrap();
        let (store, report) = open(&dir).await;
        assert!(report.was_needed && report.log_was_missing);
        assert_eq!(report.blocks_changed, 3);
        assert_eq!(store.verify(INO).await.unwrap(), []);
    });
}

#[test]
fn a_deleted_file_leaves_no_trace_for_recovery() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(INO, 0, &buf(&[1; 10_000]), IoPath::Cached, Durability::Later).await.unwrap();
        store.maintain(1).await.unwrap();
        store.delete(INO).await.unwrap();
        store.delete(INO).await.unwrap();
        assert_eq!(read(&store, INO, 0, 100, IoPath::Cached).await.unwrap(), [0; 100]);
        store.write(INO, 5, &buf(b"again"), IoPath::Cached, Durability::Later).await.unwrap();
        assert_eq!(store.verify(INO).await.unwrap(), []);
        store.delete(INO).await.unwrap();
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, 0);
        assert_eq!(store.list().await.unwrap(), []);
    });
}

#[test]
fn the_background_retires_entries_and_ends_with_the_store() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let ended = std::sync::Arc::new(rt::sync::Event::new());
        let (background, signal) = (store.clone(), ended.clone());
        rt::spawn(async move {
            background.background().await;
            signal.set();
        });
        for i in 0..40 {
            store
                .write(ChunkFileId(i), 0, &buf(&[1; 4096]), IoPath::Direct, Durability::Later)
                .await
                .unwrap();
        }
        rt::sleep(Duration::from_millis(10)).await;
        store.close().await.unwrap();
        let refused = store.write(INO, 0, &buf(b"late"), IoPath::Cached, Durability::Later).await;
        assert_eq!(refused.expect_err("the store is closed").kind(), Kind::Closed);
        ended.wait().await;
        drop(store);
        let (_, report) = open(&dir).await;
        assert!(!report.was_needed);
    });
}

#[test]
fn an_abandoned_write_is_no_damage() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        store.write(INO, 0, &buf(&vec![1; 1 << 20]), IoPath::Direct, Durability::Now).await.unwrap();
        for polls in 1..12 {
            let data = buf(&vec![polls as u8 + 1; 1 << 20]);
            let mut write = Box::pin(store.write(INO, 0, &data, IoPath::Direct, Durability::Now));
            let mut left = polls;
            std::future::poll_fn(|cx| {
                left -= 1;
                match write.as_mut().poll(cx) {
                    std::task::Poll::Pending if left > 0 => std::task::Poll::Pending,
                    _ => std::task::Poll::Ready(()),
                }
            })
            .await;
            drop(write);
            // The kernel may still be writing; this waits for it as well as for the disk.
            rt::sleep(Duration::from_millis(20)).await;
            read(&store, INO, 0, 1 << 20, IoPath::Direct).await.unwrap();
        }
        store.maintain(0).await.unwrap();
        assert_eq!(store.verify(INO).await.unwrap(), []);
    });
}
