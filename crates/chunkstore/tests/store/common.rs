//! Helpers of the tests of the chunk store.
use chunkstore::{Identity, IoPath, Options, RecoveryReport, Store};
use rt::IoBuf;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{ChunkFileId, TargetId};

/// Length of each intent log file, bytes: small, so that it is rewritten often.
pub const LOG_BYTES: u64 = 64 << 10;
pub const INO: ChunkFileId = ChunkFileId(0x1_0000_0001);

pub fn identity() -> Identity {
    Identity { cluster: "00000000-0000-4000-8000-000000000001".to_string(), target: TargetId(3) }
}

/// How many of its seeds a slow test runs: half of them, and all with `WEFT_TEST_FULL=1`.
pub fn usual(seeds: u64) -> u64 {
    let is_full = std::env::var("WEFT_TEST_FULL").is_ok_and(|value| value == "1");
    if is_full { seeds } else { seeds / 2 }
}

/// Runs a test on a core of its own.
pub fn run<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    rt::block_on(test).expect("a core starts")
}

/// Runs a test with a formatted target in a directory that is removed afterwards.
pub fn with_target<T: 'static, F: Future<Output = T> + 'static>(
    test: impl FnOnce(PathBuf) -> F + 'static,
) -> T {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("target");
    let inner = path.clone();
    let outcome = run(async move {
        Store::format_with_log(&inner, &identity(), LOG_BYTES).await.expect("format");
        test(inner).await
    });
    drop(dir);
    outcome
}

pub async fn open(dir: &Path) -> (Arc<Store>, RecoveryReport) {
    open_with(dir, Options::default()).await
}

pub async fn open_with(dir: &Path, options: Options) -> (Arc<Store>, RecoveryReport) {
    Store::open(dir, &identity(), options).await.expect("open")
}

pub fn buf(data: &[u8]) -> IoBuf {
    let buf = IoBuf::alloc(data.len());
    buf.copy_from(0, data);
    buf
}

pub async fn read(
    store: &Store,
    ino: ChunkFileId,
    offset: u64,
    len: usize,
    path: IoPath,
) -> chunkstore::Result<Vec<u8>> {
    let buf = IoBuf::alloc(len);
    // So that a byte that isn't filled shows.
    buf.copy_from(0, &vec![0xee; len]);
    store.read(ino, offset, &buf, path).await?;
    Ok(buf.as_slice().to_vec())
}

/// Returns the chunk files under a target, without checksum files.
pub fn chunk_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.join("chunks")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_none() => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    found
}
