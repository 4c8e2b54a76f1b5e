//! Modification times of copies.

use crate::common::{INO, buf, chunk_files, open, with_target};
use chunkstore::{Durability, IoPath, Store, Survey};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use types::{ByteRange, ChunkFileId, Timestamp};

const LONG_AGO: Timestamp = Timestamp::new(1_500_000_000, 123_456_000);

async fn write(store: &Store, ino: ChunkFileId) {
    store.write(ino, 0, &buf(&[7; 9000]), IoPath::Cached, Durability::Later).await.unwrap();
}

async fn survey(store: &Store, ino: ChunkFileId) -> Survey {
    store.survey(ino, ByteRange::new(0, 9000), 4096, false).await.unwrap()
}

/// Returns the seconds by which ctime exceeds mtime.
async fn is_touched_s(store: &Store, ino: ChunkFileId) -> i64 {
    let survey = survey(store, ino).await;
    survey.ctime.secs - survey.mtime.secs
}

fn touch(dir: &Path) {
    for file in chunk_files(dir) {
        fs::set_permissions(file, fs::Permissions::from_mode(0o640)).unwrap();
    }
}

#[test]
fn a_copy_keeps_mtime_and_looks_unmodified() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        write(&store, INO).await;
        store.set_time(INO, LONG_AGO).await.unwrap();
        assert_eq!(store.stat(INO).await.unwrap().mtime, LONG_AGO);
        assert_eq!(is_touched_s(&store, INO).await, 0);
        // It may be given another time, and content of its own.
        let later = Timestamp::new(LONG_AGO.secs + 5, 0);
        store.set_time(INO, later).await.unwrap();
        assert_eq!(store.stat(INO).await.unwrap().mtime, later);
        assert_eq!(is_touched_s(&store, INO).await, 0);
        store.close().await.unwrap();
        let (store, _) = open(&dir).await;
        assert_eq!(store.stat(INO).await.unwrap().mtime, later, "after a start");
        assert_eq!(is_touched_s(&store, INO).await, 0, "after a start");
        write(&store, INO).await;
        assert!(store.stat(INO).await.unwrap().mtime.secs > later.secs + 1000);
        store.set_time(ChunkFileId(99), LONG_AGO).await.unwrap();
        assert_eq!(store.stat(ChunkFileId(99)).await.unwrap().len, 0, "an absent one stays absent");
    });
}

#[test]
fn an_external_modification_is_detected_permanently() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        write(&store, INO).await;
        store.set_time(INO, LONG_AGO).await.unwrap();
        rt::sleep(Duration::from_millis(1100)).await;
        touch(&dir);
        assert!(is_touched_s(&store, INO).await > 1000);
        store.set_time(INO, Timestamp::new(LONG_AGO.secs + 9, 0)).await.unwrap();
        assert!(is_touched_s(&store, INO).await > 1000, "it would be hidden");
        write(&store, INO).await;
        assert_eq!(is_touched_s(&store, INO).await, 0);
        // Restored with its old times.
        let path = chunk_files(&dir).remove(0);
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(LONG_AGO.secs as u64);
        let file = File::options().write(true).open(path).unwrap();
        file.set_times(FileTimes::new().set_modified(old)).unwrap();
        assert!(is_touched_s(&store, INO).await > 1000);
    });
}
