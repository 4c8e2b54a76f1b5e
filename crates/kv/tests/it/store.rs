//! The asynchronous store over an engine in this process.

use crate::support::{block_on, put};
use bytes::Bytes;
use kv::{
    Batch, Blocking, Durability, Embedded, Engine, KvError, LocalFuture, Memory, Outcome, Pages, Pair,
    RemoteEngine, RemoteWriter, Store, Writer,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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

/// An engine that applies batches, but doesn't tell the outcome of the first ones.
struct Forgetful {
    memory: Memory,
    to_forget: AtomicUsize,
}

impl RemoteEngine for Forgetful {
    fn get<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>> {
        Box::pin(async move { keys.iter().map(|key| self.memory.get(key)).collect() })
    }

    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>> {
        Box::pin(async move { self.memory.scan(from, to, limit) })
    }

    fn apply<'a>(&'a self, _: u64, batches: &'a [Batch]) -> LocalFuture<'a, Result<Vec<Outcome>, KvError>> {
        Box::pin(async move {
            let outcomes = self.memory.apply(batches)?;
            let left = self.to_forget.load(Relaxed);
            self.to_forget.store(left.saturating_sub(1), Relaxed);
            Ok(if left > 0 { vec![Outcome::Uncertain; outcomes.len()] } else { outcomes })
        })
    }

    fn persist(&self) -> LocalFuture<'_, Result<(), KvError>> {
        Box::pin(async { self.memory.persist() })
    }

    fn verifier(&self) -> u64 {
        self.memory.verifier()
    }

    fn has_room(&self) -> bool {
        true
    }

    fn location(&self) -> String {
        "far away".into()
    }
}

async fn put_one(to_forget: usize) -> Result<(), KvError> {
    let engine = Forgetful { memory: Memory::new(), to_forget: AtomicUsize::new(to_forget) };
    let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(Arc::new(engine)));
    store.put(vec![(b"a".to_vec(), Some("1".into()))]).await?;
    assert_eq!(store.get(b"a").await?.unwrap(), "1");
    Ok(())
}

#[test]
fn writes_without_guards_are_repeated_until_their_outcome_is_known() {
    let put = |to_forget| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let body = move || async move { sender.send(put_one(to_forget).await).unwrap() };
        let config = rt::CoreConfig { name: "test".into(), cpu: None, batch: false };
        rt::start_core(config, body).unwrap().join().unwrap();
        receiver.recv().unwrap()
    };
    put(0).unwrap();
    put(3).unwrap();
    let error = put(usize::MAX).unwrap_err();
    assert!(error.to_string().contains("the outcome of a commit is uncertain"), "{error}");
}
