//! The conformance suite of engines, over a real connection.

#[path = "../../../kv/tests/it/conformance/suite.rs"]
mod suite;

use crate::support::{guarded, put};
use bytes::Bytes;
use kv::{
    Batch, Durability, Embedded, Engine, KvError, LocalFuture, Memory, Outcome, Pair, RemoteEngine,
    RemoteWriter, Store, Writer,
};
use kvnet::{KvService, RemoteStore};
use net::{
    Channel, ClientIdentity, Peer, PeerOptions, Router, Security, Server, ServerLimits, ServerOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::{KvReply, KvRequest};

/// An engine behind a server, with a channel to it.
struct Served {
    server: Arc<Server>,
    store: Arc<RemoteStore>,
    applies: AtomicU64,
}

impl Served {
    fn new(engine: Arc<dyn Engine>) -> Served {
        let writer = Arc::new(Writer::new(engine, Durability::Process));
        let options = ServerOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            cores: 1,
            name: "store".into(),
            cluster: String::new(),
            security: Security::Plain,
            map: types::MapHandle::default(),
            checksum_payloads: true,
            limits: ServerLimits::default(),
        };
        let service: Arc<dyn net::Handler<KvRequest, KvReply>> = Arc::new(KvService::new(writer));
        let server = Server::start(options, Router::new().with(service)).unwrap();
        let identity = ClientIdentity { cluster: String::new(), name: "test".into(), client: 1 };
        let addresses = server.addresses().to_vec();
        let open = async move {
            let channel = Channel::remote(Peer::new(PeerOptions::new("store", addresses, identity)));
            RemoteStore::open(channel, "the other process").await.unwrap()
        };
        Served { store: rt::block_on(open).unwrap(), server, applies: AtomicU64::new(0) }
    }

    /// Makes a request from a separate core, and so over a separate connection.
    fn ask<T: 'static>(&self, ask: impl FnOnce(&RemoteStore) -> LocalFuture<'_, T> + 'static) -> T {
        let store = self.store.clone();
        rt::block_on(async move { ask(&store).await }).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
    }
}

impl Engine for Served {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let keys = vec![key.to_vec()];
        let values = self.ask(move |store| Box::pin(async move { store.get(&keys).await }));
        Ok(values?.pop().unwrap())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.ask(move |store| Box::pin(async move { store.scan(&from, &to, limit).await }))
    }

    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        let number = self.applies.fetch_add(1, Relaxed) + 1;
        let batches = batches.to_vec();
        self.ask(move |store| Box::pin(async move { store.apply(number, &batches).await }))
    }

    fn persist(&self) -> Result<(), KvError> {
        self.ask(|store| store.persist())
    }
}

fn every_engine(test: impl Fn(&dyn Engine)) {
    test(&Served::new(Arc::new(Memory::new())));
    let dir = tempfile::tempdir().unwrap();
    test(&Served::new(Arc::new(Embedded::open(dir.path()).unwrap())));
}

/// More keys, pairs and bytes than one message holds.
#[test]
fn long_answers_come_in_pieces() {
    let served = Served::new(Arc::new(Memory::new()));
    let large = "x".repeat(60_000);
    for number in 0..40 {
        served.apply(&[put(&format!("large/{number:02}"), &large)]).unwrap();
    }
    let pairs = served.scan(b"large/", b"large0", usize::MAX).unwrap();
    assert_eq!(pairs.len(), 40);
    assert!(pairs.is_sorted() && pairs.iter().all(|(_, value)| value.len() == large.len()));
    assert_eq!(served.scan(b"large/", b"large0", 21).unwrap(), pairs[..21]);
    for first in [0, 1000, 2000, 3000, 4000] {
        let batches: Vec<Batch> = (first..first + 1000).map(|n| put(&format!("small/{n:04}"), "v")).collect();
        served.apply(&batches).unwrap();
    }
    assert_eq!(served.scan(b"small/", b"small0", usize::MAX).unwrap().len(), 5000);
    let keys: Vec<Vec<u8>> = pairs.iter().map(|(key, _)| key.to_vec()).collect();
    let mut asked = keys.clone();
    asked.extend((0..6000).map(|n| format!("small/{n:04}").into_bytes()));
    let values = served.ask(move |store| Box::pin(async move { store.get(&asked).await })).unwrap();
    assert!(values[..40].iter().all(|value| value.as_ref().is_some_and(|v| v.len() == large.len())));
    assert_eq!(values[40..].iter().filter(|value| value.is_some()).count(), 5000);
    assert_eq!(values.len(), 6040);
}

/// When a core ends, other cores take over its leadership.
#[test]
fn another_core_takes_over_leadership() {
    let served = Served::new(Arc::new(Memory::new()));
    let writer = Arc::new(RemoteWriter::new(served.store.clone()));
    let enqueuing = writer.clone();
    let tickets = rt::block_on(async move {
        (0..10).map(|n| enqueuing.enqueue(put(&format!("k{n}"), "v"))).collect::<Vec<_>>()
    });
    let tickets = tickets.unwrap();
    assert!(!tickets[9].is_complete());
    let waiting = writer.clone();
    let outcomes = rt::block_on(async move {
        rt::join_all(tickets.iter().map(|ticket| waiting.wait(ticket)).collect()).await
    });
    assert!(outcomes.unwrap().into_iter().all(|outcome| outcome.unwrap() == Outcome::Applied));
    assert_eq!(served.scan(b"k", b"l", 100).unwrap().len(), 10);
}

/// Commits of several cores, each over its own connection, share applies and keep their order.
#[test]
fn several_cores_use_one_writer() {
    const CORES: usize = 4;
    const COMMITS: usize = 300;
    let served = Served::new(Arc::new(Memory::new()));
    let writer = Arc::new(RemoteWriter::new(served.store.clone()));
    let commit = |core: usize| {
        let writer = writer.clone();
        std::thread::spawn(move || {
            let work = async move {
                let store: Arc<dyn Store> = writer;
                for n in 0..COMMITS {
                    let key = format!("core{core}");
                    let before = n.checked_sub(1).map(|before| before.to_string());
                    let batch = guarded(put(&key, &n.to_string()), &key, before.as_deref());
                    assert_eq!(store.commit(batch).await.unwrap(), Outcome::Applied);
                }
            };
            rt::block_on(work).unwrap();
        })
    };
    let threads: Vec<_> = (0..CORES).map(commit).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for core in 0..CORES {
        assert_eq!(suite::value(&served, &format!("core{core}")), Some((COMMITS - 1).to_string()));
    }
    assert_eq!(writer.stats().batches, (CORES * COMMITS) as u64);
}

#[test]
fn a_retransmitted_apply_is_not_applied_again() {
    let served = Served::new(Arc::new(Memory::new()));
    let apply = |number: u64, batch: Batch| {
        served.ask(move |store| Box::pin(async move { store.apply(number, &[batch]).await }))
    };
    assert_eq!(apply(1, guarded(put("a", "1"), "a", None)).unwrap(), [Outcome::Applied]);
    // Its guard doesn't hold any more, but it is the same apply.
    assert_eq!(apply(1, guarded(put("a", "1"), "a", None)).unwrap(), [Outcome::Applied]);
    assert_eq!(apply(2, guarded(put("a", "2"), "a", None)).unwrap(), [Outcome::GuardFailed]);
    served.apply(&[]).unwrap_err();
    assert_eq!(apply(3, guarded(put("a", "3"), "a", Some("1"))).unwrap(), [Outcome::Applied]);
    // A late copy of an earlier apply.
    apply(2, put("a", "4")).unwrap_err();
    assert_eq!(suite::value(&served, "a").as_deref(), Some("3"));
}

#[test]
fn a_store_in_another_process_has_no_snapshots() {
    let served = Served::new(Arc::new(Memory::new()));
    let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(served.store.clone()));
    let error = rt::block_on(async move { store.snapshot().await.err().unwrap() }).unwrap();
    let expected = "the metadata store at the other process can't be read while it is in use: its engine is in another process, and the protocol has no snapshots";
    assert_eq!(error.to_string(), expected);
}
