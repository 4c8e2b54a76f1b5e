//! Many new files, for which one durable write of the intent log is sufficient.

use crate::common::{LOG_BYTES, buf, identity, open, open_with, read, with_target};
use chunkstore::{Durability, IoPath, Options, Store};
use rt::sim::Machine;
use rt::{CoreConfig, start_core};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{ChunkFileId, InodeId, PartitionId};

const FILES: u64 = 500;

fn ino(sequence: u64) -> ChunkFileId {
    InodeId::new(PartitionId(1), sequence).first_chunk_file()
}

fn content(ino: ChunkFileId) -> Vec<u8> {
    vec![ino.0 as u8 | 1; 5000 + ino.0 as usize % 7000]
}

async fn write(store: &Store, ino: ChunkFileId) {
    store.write(ino, 0, &buf(&content(ino)), IoPath::Cached, Durability::Later).await.unwrap();
}

async fn check(store: &Store, ino: ChunkFileId) {
    let expected = content(ino);
    assert_eq!(read(store, ino, 0, expected.len(), IoPath::Cached).await.unwrap(), expected, "{ino:?}");
    assert_eq!(store.verify(ino).await.unwrap(), [], "{ino:?}");
}

#[test]
fn new_files_in_order_cost_few_durable_writes_and_survive_a_kill() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        for sequence in 1..=FILES {
            write(&store, ino(sequence)).await;
        }
        let writes = store.statistics().intent_writes.get();
        assert!(writes <= 2, "{writes} durable writes for {FILES} files");
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, FILES);
        assert!(report.blocks_changed >= 2 * FILES, "{report:?}");
        assert_eq!(store.take_changing_at_crash(), (1..=FILES).map(ino).collect::<Vec<_>>());
        for sequence in 1..=FILES {
            check(&store, ino(sequence)).await;
        }
        store.mark_reconciled();
        store.close().await.unwrap();
        drop(store);
        assert!(!open(&dir).await.1.was_needed);
    });
}

#[test]
fn a_kill_after_a_kill_finds_the_files_again() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        for sequence in 1..=20 {
            write(&store, ino(sequence)).await;
        }
        drop(store);
        let (store, _) = open(&dir).await;
        write(&store, ino(7)).await;
        write(&store, ino(21)).await;
        assert_eq!(store.statistics().intent_writes.get(), 0, "the span is still good for both");
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, 21);
        for sequence in 1..=21 {
            check(&store, ino(sequence)).await;
        }
    });
}

#[test]
fn only_files_changed_since_the_last_sync_are_examined() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        for sequence in 1..=30 {
            write(&store, ino(sequence)).await;
        }
        store.maintain(0).await.unwrap();
        // Without the span: entries of their own.
        write(&store, ino(5)).await;
        write(&store, ino(30)).await;
        assert_eq!(store.statistics().intent_writes.get(), 3);
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, 2);
        for sequence in 1..=30 {
            check(&store, ino(sequence)).await;
        }
    });
}

#[test]
fn deleted_and_truncated_files_of_a_span_leave_no_trace_for_recovery() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        for sequence in 1..=30 {
            write(&store, ino(sequence)).await;
        }
        for sequence in (1..=30).step_by(3) {
            store.delete(ino(sequence)).await.unwrap();
        }
        store.truncate(ino(2), 4100).await.unwrap();
        // A number whose file was deleted: not new, and still in the span.
        write(&store, ino(4)).await;
        assert_eq!(store.statistics().intent_writes.get(), 2, "one of the span, one of what was cut off");
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, 21);
        let left: Vec<ChunkFileId> = (1..=30).filter(|n| n % 3 != 1 || *n == 4).map(ino).collect();
        assert_eq!(store.list().await.unwrap(), left);
        let cut = read(&store, ino(2), 0, 8192, IoPath::Cached).await.unwrap();
        assert_eq!((&cut[..4100], &cut[4100..]), (&content(ino(2))[..4100], &[0; 4092][..]));
        for ino in left.into_iter().filter(|n| *n != ino(2)) {
            check(&store, ino).await;
        }
    });
}

#[test]
fn files_that_were_there_before_the_store_was_opened_are_in_no_span() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        write(&store, ino(50)).await;
        store.close().await.unwrap();
        drop(store);
        let (store, _) = open(&dir).await;
        read(&store, ino(50), 0, 100, IoPath::Cached).await.unwrap();
        write(&store, ino(20)).await;
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, 1);
        check(&store, ino(20)).await;
    });
}

async fn write_every_other(store: Arc<Store>, core: u8) {
    let files = (0..FILES / 2).map(|i| {
        let store = store.clone();
        async move { write(&store, ino(1 + 2 * i + u64::from(core))).await }
    });
    rt::join_all(files.collect()).await;
}

#[test]
fn new_files_on_two_cores_share_durable_writes_and_survive_a_kill() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let store = store.clone();
                let config = CoreConfig { name: format!("core{core}"), cpu: None, batch: false };
                start_core(config, move || write_every_other(store, core)).expect("a core starts")
            })
            .collect();
        cores.into_iter().for_each(|core| core.join().expect("no assertion failed on the core"));
        let writes = store.statistics().intent_writes.get();
        // How many depends on which core is ahead; without sharing it is one for each file.
        assert!(writes <= FILES / 20, "{writes} durable writes for {FILES} files");
        drop(store);
        let (store, report) = open(&dir).await;
        assert_eq!(report.files, FILES);
        for sequence in 1..=FILES {
            check(&store, ino(sequence)).await;
        }
    });
}

/// Returns the files examined at the next start if the process is killed `seconds` after new files
/// were written in `partitions` partitions.
fn files_examined_after(partitions: u16, seconds: u64) -> u64 {
    const DIR: &str = "/target";
    let mut machine = Machine::new(3);
    machine
        .run(async move {
            Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap();
            let (store, _) = open_with(Path::new(DIR), Options::default()).await;
            rt::spawn(store.clone().background());
            for partition in 0..partitions {
                write(&store, InodeId::new(PartitionId(partition), 1).first_chunk_file()).await;
            }
            assert!(store.statistics().intent_compactions.get() > 0 || partitions < 15);
            rt::sleep(Duration::from_secs(seconds)).await;
        })
        .unwrap();
    machine.kill();
    machine.run(async move { open_with(Path::new(DIR), Options::default()).await.1.files }).unwrap()
}

#[test]
fn many_spans_go_early() {
    assert_eq!(files_examined_after(10, 4), 10);
    assert_eq!(files_examined_after(10, 12), 0);
    // More than half of the limit: the oldest are dropped after two seconds.
    let left = files_examined_after(200, 4);
    assert!(left <= 128, "{left}");
}
