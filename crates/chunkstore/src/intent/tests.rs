mod model;
mod spans;

use super::*;
use std::io::Write;
use std::os::unix::fs::FileExt;

const TARGET: TargetId = TargetId(1);

fn run<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    rt::block_on(test).expect("a core starts")
}

fn range(first: u64, end: u64) -> ByteRange {
    ByteRange::new(first * REGION_BYTES, end * REGION_BYTES)
}

async fn fresh_log(dir: &Path) -> IntentLog {
    IntentLog::format(TARGET, dir, MIN_LOG_BYTES).await.unwrap();
    let found = IntentLog::open(TARGET, dir).await.unwrap().unwrap();
    assert!(matches!(found.shutdown, ShutdownState::Clean));
    found.log.resume(&RetainedRecords::default()).await.unwrap();
    found.log
}

async fn on_disk(dir: &Path) -> Records {
    match IntentLog::open(TARGET, dir).await.unwrap().unwrap().shutdown {
        ShutdownState::InUse(records) => records,
        _ => panic!("the log is in use"),
    }
}

async fn notes_on_disk(dir: &Path) -> Vec<DirtyRegions> {
    let Records { entries: notes, spans } = on_disk(dir).await;
    assert_eq!(spans, []);
    notes
}

/// Retires entries that were idle for `idle_passes`, as a maintenance pass does.
async fn pass(log: &IntentLog, idle_passes: u64, statistics: &Statistics) {
    for ino in log.begin_retiring(idle_passes).keys() {
        log.retire(*ino);
    }
    log.compact(statistics).await.unwrap();
}

#[test]
fn notes_are_on_disk_when_they_are_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run(async move {
        let log = fresh_log(&path).await;
        let statistics = Statistics::default();
        log.mark_dirty(ChunkFileId(5), range(100, 102), &statistics).await.unwrap();
        log.mark_dirty(ChunkFileId(6), ByteRange::new(7 * REGION_BYTES, u64::MAX), &statistics)
            .await
            .unwrap();
        log.mark_dirty(ChunkFileId(5), range(101, 102), &statistics).await.unwrap();
        assert_eq!(statistics.intent_writes.get(), 2);
        let expected = [
            DirtyRegions { ino: ChunkFileId(5), first: 100, end: 102 },
            DirtyRegions { ino: ChunkFileId(6), first: 7, end: u64::MAX },
        ];
        assert_eq!(notes_on_disk(&path).await, expected);
    });
}

#[test]
fn concurrent_notes_share_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run(async move {
        let log = fresh_log(&path).await;
        let statistics = Statistics::default();
        let all = (0..100).map(|i| log.mark_dirty(ChunkFileId(i), range(1, 2), &statistics)).collect();
        rt::join_all(all).await.into_iter().for_each(|noted| noted.unwrap());
        // The first is written alone; the rest, which arrived meanwhile, together.
        assert!(statistics.intent_writes.get() <= 2, "{} writes", statistics.intent_writes.get());
        assert_eq!(notes_on_disk(&path).await.len(), 100);
    });
}

#[test]
fn a_full_log_is_rewritten_without_what_has_retired() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run(async move {
        let log = fresh_log(&path).await;
        let statistics = Statistics::default();
        log.mark_dirty(ChunkFileId(1), range(9, 10), &statistics).await.unwrap();
        for i in 0..100 {
            log.mark_dirty(ChunkFileId(2), range(1000 + 2 * i, 1001 + 2 * i), &statistics).await.unwrap();
            // Changes rely on the entry of inode 1 again and again; the others retire.
            log.mark_dirty(ChunkFileId(1), range(9, 10), &statistics).await.unwrap();
            for ino in log.begin_retiring(1).keys() {
                assert_eq!(*ino, ChunkFileId(2));
                log.retire(*ino);
            }
        }
        assert!(statistics.intent_compactions.get() >= 4);
        let notes = notes_on_disk(&path).await;
        assert!(notes.contains(&DirtyRegions { ino: ChunkFileId(1), first: 9, end: 10 }));
        assert!(notes.contains(&DirtyRegions { ino: ChunkFileId(2), first: 1198, end: 1199 }));
        assert!(notes.len() < 30, "{notes:?}");
    });
}

#[test]
fn a_torn_last_block_spoils_nothing_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let (before, torn) = run({
        let path = path.clone();
        async move {
            let log = fresh_log(&path).await;
            let statistics = Statistics::default();
            for i in 0..5 {
                log.mark_dirty(ChunkFileId(i), range(3, 4), &statistics).await.unwrap();
            }
            let notes = notes_on_disk(&path).await;
            let tail = log.tail.lock();
            (notes, (paths(&path)[tail.current].clone(), tail.next_block - 1))
        }
    });
    assert_eq!(before.len(), 5);
    let file = std::fs::OpenOptions::new().write(true).open(torn.0).unwrap();
    file.write_all_at(&[0; 512], torn.1 * BLOCK_SIZE as u64).unwrap();
    let after = run(async move { notes_on_disk(&path).await });
    assert_eq!(after, before[..4]);
}

#[test]
fn a_damaged_header_falls_back_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run({
        let path = path.clone();
        async move { drop(fresh_log(&path).await) }
    });
    for name in INTENT_FILES {
        let mut file = std::fs::OpenOptions::new().write(true).open(path.join(name)).unwrap();
        file.write_all(b"spoilt").unwrap();
    }
    run(async move {
        let refused = IntentLog::open(TARGET, &path).await.err().expect("no header is left");
        assert_eq!(refused.kind(), Kind::Damaged);
        assert!(refused.hint().contains("intent.0"), "{refused}");
    });
}
