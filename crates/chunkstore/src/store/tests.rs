use super::*;
use crate::Durability;

const FILES: u64 = 200;
const PAGES: u64 = 5;

fn places() -> impl Iterator<Item = (ChunkFileId, u64)> {
    (0..FILES).flat_map(|ino| (0..PAGES).map(move |page| (ChunkFileId(ino), page * (4 << 20))))
}

fn content(ino: ChunkFileId) -> Vec<u8> {
    vec![ino.0 as u8 + 1; 5000]
}

async fn use_small_caches(dir: PathBuf) -> Result<()> {
    let identity = Identity { cluster: "small".to_string(), target: TargetId(1) };
    Store::format_with_log(&dir, &identity, 0).await?;
    let options = Options { max_open_files: 1, sum_cache_bytes: 3 * PAGE_BYTES, ..Options::default() };
    let (store, _) = Store::open(&dir, &identity, options.clone()).await?;
    for (ino, offset) in places() {
        let data = IoBuf::alloc(5000);
        data.copy_from(0, &content(ino));
        store.write(ino, offset, &data, IoPath::Direct, Durability::Later).await?;
    }
    for (ino, offset) in places() {
        let data = IoBuf::alloc(5000);
        store.read(ino, offset, &data, IoPath::Direct).await?;
        assert_eq!(data.as_slice(), content(ino));
    }
    // One idle file per shard, and one more that was just opened.
    assert!(store.cache.len() <= 2 * 64, "{} files are open", store.cache.len());
    assert!(store.budget.resident() <= 4, "{} pages are in memory", store.budget.resident());
    store.close().await?;
    let (store, report) = Store::open(&dir, &identity, options).await?;
    assert_eq!(report, RecoveryReport::default());
    for ino in (0..FILES).map(ChunkFileId) {
        assert_eq!(store.verify(ino).await?, []);
    }
    Ok(())
}

#[test]
fn checksums_survive_small_caches_which_stay_small() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    rt::block_on(use_small_caches(path)).unwrap().unwrap();
}
