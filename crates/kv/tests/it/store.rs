//! The asynchronous store over an engine in this process.

use crate::support::{block_on, put};
use kv::{Batch, Blocking, Durability, Embedded, Engine, KvError, Memory, Outcome, Pages, Store, Writer};
use std::sync::Arc;

fn over(engine: Arc<dyn Engine>) -> Arc<dyn Store> {
    Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline))
}

fn numbered(range: std::ops::Range<u32>) -> Batch {
    Batch { writes: range.map(|n| (n.to_be_bytes().to_vec(), Some("v".into()))).collect(), guards: vec![] }
}

#[test]
fn a_snapshot_of_a_store_doesn_t_change() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(Embedded::open(dir.path()).unwrap());
    let run = async move {
        let store = over(engine);
        assert_eq!(store.commit(put("a", "1")).await.unwrap(), Outcome::Applied);
        let before = store.snapshot().await.unwrap();
        store.commit(put("a", "2")).await.unwrap();
        store.commit(put("b", "2")).await.unwrap();
        assert_eq!(before.get(b"a").await.unwrap().unwrap(), "1");
        assert_eq!(before.scan(b"a", b"z", 9).await.unwrap().len(), 1);
        assert_eq!(store.get(b"a").await.unwrap().unwrap(), "2");
        assert_eq!(store.get_many(&[b"b".to_vec(), b"c".to_vec()]).await.unwrap(), [Some("2".into()), None]);
    };
    block_on(run);
}

#[test]
fn an_engine_without_snapshots_is_named() {
    let store = over(Arc::new(Memory::new()));
    let error = block_on(store.snapshot()).err().unwrap();
    assert!(matches!(&error, KvError::NoSnapshot { path, .. } if path == "memory"), "{error}");
}

#[test]
fn pages_have_every_pair_of_the_range_once_and_in_order() {
    for (count, page_pairs) in [(0, 4), (3, 4), (4, 4), (9, 4), (9, 1)] {
        let store = over(Arc::new(Memory::new()));
        let run = async move {
            store.commit(numbered(0..count + 2)).await.unwrap();
            let mut pages = Pages::new(&*store, &1u32.to_be_bytes(), &(count + 1).to_be_bytes(), page_pairs);
            let mut keys = Vec::new();
            while let Some(page) = pages.next().await.unwrap() {
                assert!((1..=page_pairs).contains(&page.len()));
                keys.extend(page.into_iter().map(|(key, _)| key.to_vec()));
            }
            let expected: Vec<Vec<u8>> = (1..=count).map(|n| n.to_be_bytes().to_vec()).collect();
            assert_eq!(keys, expected);
        };
        block_on(run);
    }
}
