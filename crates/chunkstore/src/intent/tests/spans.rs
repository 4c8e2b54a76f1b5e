//! Spans in the log: when one exists, which files rely on it, and when it is dropped.

use super::*;
use rt::sim::Machine;
use std::cell::RefCell;
use std::rc::Rc;
use types::{ChunkFileId, InodeId, PartitionId};

fn ino(sequence: u64) -> ChunkFileId {
    InodeId::new(PartitionId(2), sequence).first_chunk_file()
}

fn span(first: u64) -> Span {
    Span { first: ino(first), end: ino(first + SPAN_INODES) }
}

/// Runs a test with a log in a directory that is removed afterwards.
fn with_log<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(PathBuf, IntentLog, Statistics) -> F + 'static,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run(async move {
        let log = fresh_log(&path).await;
        test(path, log, Statistics::default()).await;
    });
}

#[test]
fn new_files_in_order_share_one_durable_write() {
    with_log(|dir, log, statistics| async move {
        for sequence in 10..10 + SPAN_INODES {
            log.mark_new_file(ino(sequence), &statistics).await.unwrap();
            log.mark_dirty(ino(sequence), ByteRange::new(0, REGION_BYTES), &statistics).await.unwrap();
        }
        assert_eq!((statistics.intent_writes.get(), statistics.intents.get()), (1, 1));
        assert_eq!((log.entry_count(), log.logged_count()), (SPAN_INODES as usize, 0));
        assert_eq!(on_disk(&dir).await, Records { entries: vec![], spans: vec![span(10)] });
        log.mark_new_file(ino(10 + SPAN_INODES), &statistics).await.unwrap();
        assert_eq!(statistics.intent_writes.get(), 2);
        assert_eq!(on_disk(&dir).await.spans, [span(10), span(10 + SPAN_INODES)]);
    });
}

#[test]
fn new_files_at_the_same_time_share_one_span() {
    with_log(|dir, log, statistics| async move {
        let all = (10..200).map(|sequence| log.mark_new_file(ino(sequence), &statistics)).collect();
        rt::join_all(all).await.into_iter().for_each(|noted| noted.unwrap());
        assert_eq!(statistics.intent_writes.get(), 1);
        assert_eq!(on_disk(&dir).await, Records { entries: vec![], spans: vec![span(10)] });
        assert_eq!(log.entry_count(), 190);
    });
}

type Noted = Rc<RefCell<Vec<ChunkFileId>>>;

/// Makes entries for some new files concurrently, on a machine that may fail meanwhile.
async fn note_at_the_same_time(noted: Noted) {
    let log = fresh_log(Path::new("/log")).await;
    let statistics = Statistics::default();
    let note = async |sequence| {
        log.mark_new_file(ino(sequence), &statistics).await.unwrap();
        noted.borrow_mut().push(ino(sequence));
    };
    rt::join_all((10..16).map(note).collect()).await;
}

#[test]
fn a_file_waits_for_the_write_of_its_span() {
    let mut outcomes = [0; 2];
    for seed in 0..400 {
        let mut machine = Machine::new(seed);
        machine.run(async { rt::create_dir_all(Path::new("/log")).await.unwrap() }).unwrap();
        let noted = Noted::default();
        machine.run_until(note_at_the_same_time(noted.clone()), seed % 100).unwrap();
        machine.crash();
        let noted = noted.take();
        outcomes[usize::from(noted.is_empty())] += 1;
        if !noted.is_empty() {
            let Records { spans, .. } = machine.run(async { on_disk(Path::new("/log")).await }).unwrap();
            assert_eq!(spans, [span(10)], "seed {seed}: {noted:?} rely on it");
        }
    }
    assert!(outcomes.iter().all(|count| *count > 50), "{outcomes:?}");
}

#[test]
fn only_the_first_region_is_in_the_span() {
    with_log(|dir, log, statistics| async move {
        log.mark_new_file(ino(10), &statistics).await.unwrap();
        log.mark_dirty(ino(10), range(0, 2), &statistics).await.unwrap();
        // Ahead, since the file is written sequentially.
        let second = DirtyRegions { ino: ino(10), first: 1, end: 65 };
        assert_eq!(on_disk(&dir).await, Records { entries: vec![second], spans: vec![span(10)] });
        log.mark_dirty(ino(11), range(500, 501), &statistics).await.unwrap();
        assert_eq!(statistics.intent_writes.get(), 3);
        assert_eq!(on_disk(&dir).await.entries[1], DirtyRegions { ino: ino(11), first: 500, end: 501 });
    });
}

#[test]
fn files_that_are_not_new_begin_no_span() {
    with_log(|dir, log, statistics| async move {
        log.observe(ino(20));
        log.mark_dirty(ino(30), range(0, 1), &statistics).await.unwrap();
        log.mark_new_file(ino(19), &statistics).await.unwrap();
        assert_eq!(on_disk(&dir).await.spans, []);
        assert_eq!((log.entry_count(), log.logged_count()), (2, 2));
    });
}

#[test]
fn a_retired_file_of_an_open_span_is_noted_again_without_a_write() {
    with_log(|dir, log, statistics| async move {
        log.mark_new_file(ino(10), &statistics).await.unwrap();
        pass(&log, 1, &statistics).await;
        log.mark_new_file(ino(11), &statistics).await.unwrap();
        pass(&log, 1, &statistics).await;
        assert_eq!(log.entry_count(), 1);
        log.mark_dirty(ino(10), range(0, 1), &statistics).await.unwrap();
        assert_eq!((log.entry_count(), statistics.intent_writes.get()), (2, 1));
        assert_eq!(on_disk(&dir).await.spans, [span(10)]);
    });
}

#[test]
fn a_closed_span_is_dropped_with_its_last_file() {
    with_log(|dir, log, statistics| async move {
        log.mark_new_file(ino(10), &statistics).await.unwrap();
        log.mark_new_file(ino(11), &statistics).await.unwrap();
        // The file is changed while its entry retires, and the span with it.
        assert_eq!(log.begin_retiring(0).len(), 2);
        log.mark_dirty(ino(11), range(0, 1), &statistics).await.unwrap();
        log.retire(ino(10));
        log.compact(&statistics).await.unwrap();
        let own = DirtyRegions { ino: ino(11), first: 0, end: 64 };
        assert_eq!(on_disk(&dir).await, Records { entries: vec![own], spans: vec![span(10)] });
        log.reactivate(ino(11));
        log.compact(&statistics).await.unwrap();
        assert_eq!(on_disk(&dir).await.entries, [own]);
        assert_eq!(log.span_count(), 0);
        pass(&log, 0, &statistics).await;
        assert_eq!(on_disk(&dir).await, Records::default());
        assert_eq!((log.entry_count(), log.logged_count()), (0, 0));
    });
}

#[test]
fn a_failed_retirement_keeps_the_span() {
    with_log(|dir, log, statistics| async move {
        log.mark_new_file(ino(10), &statistics).await.unwrap();
        log.begin_retiring(0);
        log.reactivate(ino(10));
        log.compact(&statistics).await.unwrap();
        assert_eq!((log.entry_count(), log.logged_count(), log.span_count()), (1, 0, 1));
        assert_eq!(on_disk(&dir).await.spans, [span(10)]);
        pass(&log, 0, &statistics).await;
        assert_eq!((log.entry_count(), log.span_count()), (0, 0));
        assert_eq!(on_disk(&dir).await, Records::default());
    });
}

#[test]
fn a_file_that_changes_all_the_time_does_not_keep_a_span_in_force() {
    with_log(|dir, log, statistics| async move {
        for sequence in 10..20 {
            log.mark_new_file(ino(sequence), &statistics).await.unwrap();
        }
        for _ in 0..4 {
            log.mark_dirty(ino(15), range(0, 1), &statistics).await.unwrap();
            pass(&log, 1, &statistics).await;
        }
        assert_eq!((log.entry_count(), log.span_count()), (1, 0));
        log.mark_dirty(ino(15), range(0, 1), &statistics).await.unwrap();
        assert_eq!(statistics.intent_writes.get(), 2, "one of the span, one of the file");
        assert!(on_disk(&dir).await.entries.contains(&DirtyRegions { ino: ino(15), first: 0, end: 64 }));
    });
}

#[test]
fn retired_spans_are_compacted() {
    with_log(|dir, log, statistics| async move {
        for i in 0..200 {
            log.mark_new_file(ino(10 + i * SPAN_INODES), &statistics).await.unwrap();
            pass(&log, 1, &statistics).await;
            assert!(log.span_count() <= 3);
            assert!(on_disk(&dir).await.spans.len() <= 8);
        }
    });
}

#[test]
fn beyond_the_span_limit_files_get_entries() {
    with_log(|dir, log, statistics| async move {
        for partition in 0..MAX_SPANS as u16 + 50 {
            log.mark_new_file(InodeId::new(PartitionId(partition), 1).first_chunk_file(), &statistics)
                .await
                .unwrap();
        }
        assert_eq!((log.span_count(), log.logged_count()), (MAX_SPANS, 50));
        let Records { entries: notes, spans } = on_disk(&dir).await;
        assert_eq!((notes.len(), spans.len()), (50, MAX_SPANS));
        assert!(statistics.intent_compactions.get() > 0, "they outlast a rewrite of the log");
    });
}

#[test]
fn spans_are_inherited() {
    with_log(|dir, log, statistics| async move {
        log.mark_new_file(ino(10), &statistics).await.unwrap();
        log.mark_dirty(ino(12), range(3, 4), &statistics).await.unwrap();
        drop(log);
        let found = IntentLog::open(TARGET, &dir).await.unwrap().unwrap();
        let ShutdownState::InUse(records) = found.shutdown else { panic!("the log is in use") };
        let inherited = RetainedRecords { records, in_spans: vec![ino(10), ino(12)] };
        found.log.resume(&inherited).await.unwrap();
        assert_eq!(on_disk(&dir).await, inherited.records);
        assert_eq!((found.log.entry_count(), found.log.logged_count(), found.log.span_count()), (3, 1, 1));
        // The store has seen the file, which is in the span all the same.
        found.log.mark_new_file(ino(11), &statistics).await.unwrap();
        assert_eq!((found.log.entry_count(), found.log.logged_count()), (4, 1));
        pass(&found.log, 0, &statistics).await;
        assert_eq!(on_disk(&dir).await, Records::default());
    });
}

#[test]
fn a_log_of_a_version_without_spans_is_read() {
    with_log(|dir, log, _| async move {
        let current = log.tail.lock().current;
        let sequence = log.tail.lock().sequence;
        drop(log);
        // As such a version wrote it: header and entries only.
        assert_eq!(sequence, 3);
        let mut block = [0; BLOCK_SIZE];
        block[..12].copy_from_slice(b"weftnote\x29\x6d\xec\xf9");
        block[12..32].copy_from_slice(b"\x01\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        block[32..56].copy_from_slice(b"\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0");
        let file = std::fs::OpenOptions::new().write(true).open(&paths(&dir)[current]).unwrap();
        file.write_all_at(&block, BLOCK_SIZE as u64).unwrap();
        let expected =
            Records { entries: vec![DirtyRegions { ino: ChunkFileId(7), first: 0, end: 64 }], spans: vec![] };
        assert_eq!(on_disk(&dir).await, expected);
    });
}
