//! A metadata service with a remote store: fetched data may be outdated when it arrives.

use crate::support;
use crate::support::remote_store::RemoteStore;
use crate::support::world::Call;
use crate::support::{Client, PARTITIONS, bytes, errno, memory_writer};
use kv::{Durability, Engine, Memory};
use meta::{MetaOptions, MetaService, SessionKind};
use namespace::keys;
use rt::sim::Machine;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{Errno, HashMap, InodeId, NodeId, Refusal, SessionId, SetAttr};
use wire::{MetaOp, MetaReply};

const ROOT: InodeId = InodeId::ROOT;
const HASH_KEY: (u64, u64) = (1, 2);

async fn open(far: &Arc<RemoteStore>) -> Arc<MetaService> {
    let options = MetaOptions {
        node: NodeId(1),
        hash_key: HASH_KEY,
        partitions: PARTITIONS,
        root_pattern: types::StripePattern::default(),
    };
    MetaService::open(far.writer(), options, support::map(), HashMap::default()).await.unwrap()
}

/// Runs a test on a service with an empty cache, over a store that `made` filled.
fn with_remote_store<F: Future<Output = ()> + 'static, M: Future<Output = ()> + 'static>(
    made: impl FnOnce(Client) -> M + 'static,
    test: impl FnOnce(Client, Arc<RemoteStore>) -> F + 'static,
) {
    let run = async move {
        let memory = Arc::new(Memory::new());
        made(Client::new(&support::open(memory_writer(&memory, Durability::Process)).await, 1)).await;
        let far = RemoteStore::new(&memory, Duration::ZERO);
        let client = Client::new(&open(&far).await, 2);
        far.reads.lock().clear();
        test(client, far).await;
    };
    Machine::new(1).run(run).unwrap();
}

fn entry_key(dir: InodeId, name: &str) -> Vec<u8> {
    keys::entry(dir, keys::name_hash(HASH_KEY, name.as_bytes()), name.as_bytes())
}

/// Sets an attribute that is too large for the cache.
fn set_xattr(ino: InodeId, fill: u8) -> MetaOp {
    let value = vec![fill; 30_000].into();
    MetaOp::SetXattr { ino, name: bytes("user.large"), value, mode: wire::XattrMode::Any, kill_sgid: false }
}

async fn get_xattr(client: &Client, ino: InodeId) -> u8 {
    match client.call(MetaOp::GetXattr { ino, name: bytes("user.large") }).await.unwrap() {
        MetaReply::Bytes(value) => value[0],
        other => panic!("{other:?}"),
    }
}

#[test]
fn entries_created_before_are_found() {
    with_remote_store(
        |client| async move {
            let dir = client.mkdir_elsewhere(ROOT, &[]).await;
            for i in 0..300 {
                client.create(dir, &format!("file{i}")).await.unwrap();
            }
        },
        |client, far| async move {
            let names = client.list(ROOT).await;
            let dir = client.lookup(ROOT, names.last().unwrap()).await.unwrap().ino;
            assert_eq!(client.list(dir).await.len(), 300);
            assert_eq!(errno(client.lookup(dir, "nothing").await), Errno::ENOENT);
            let ino = client.lookup(dir, "file7").await.unwrap().ino;
            assert_eq!(client.getattr(ino).await.unwrap().ino, ino);
            far.reads.lock().clear();
            client.getattr(ino).await.unwrap();
            client.lookup(dir, "file7").await.unwrap();
            assert_eq!(*far.reads.lock(), Vec::<Vec<u8>>::new(), "it is in memory");
        },
    );
}

#[test]
fn a_listing_fetches_the_attributes_of_a_page_together() {
    with_remote_store(
        |client| async move {
            for i in 0..200 {
                client.create(ROOT, &format!("file{i}")).await.unwrap();
            }
        },
        |client, far| async move {
            let before = client.meta.stats().reruns;
            let op = MetaOp::Readdir {
                dir: ROOT,
                cookie: 0,
                limit: 1000,
                attributes: true,
                prefix: bytes::Bytes::new(),
            };
            let MetaReply::Directory { entries, .. } = client.call(op).await.unwrap() else { panic!() };
            assert!(entries.len() == 200 && entries.iter().all(|entry| entry.attr.is_some()));
            assert!(far.reads.lock().len() >= 200);
            assert_eq!(client.meta.stats().reruns - before, 3, "the directory, its entries, their inodes");
        },
    );
}

/// The value changes while a read is under way, the change is committed, and the cache doesn't keep
/// the new value.
#[test]
fn a_value_that_changes_during_a_fetch_is_not_stale() {
    with_remote_store(
        |client| async move {
            let ino = client.create(ROOT, "file").await.unwrap().ino;
            client.call(set_xattr(ino, b'a')).await.unwrap();
        },
        |client, far| async move {
            let ino = client.lookup(ROOT, "file").await.unwrap().ino;
            let key = keys::xattr(ino, b"user.large");
            let held = far.hold(&key);
            let read = {
                let client = client.clone();
                support::world::Started::new(async move { get_xattr(&client, ino).await })
            };
            rt::sleep(Duration::from_millis(1)).await;
            assert!(!read.is_done(), "it waits for what it fetches");
            far.held.lock().clear();
            for fill in [b'b', b'c'] {
                client.call(set_xattr(ino, fill)).await.unwrap();
            }
            // Retires the commits.
            client.getattr(ino).await.unwrap();
            assert_eq!(far.memory.get(&key).unwrap().unwrap().last(), Some(&b'c'));
            held.set();
            assert_eq!(read.wait().await, b'c');
            // The writes retained for the read are gone with it.
            client.getattr(ino).await.unwrap();
            far.reads.lock().clear();
            assert_eq!(get_xattr(&client, ino).await, b'c');
            assert!(far.reads.lock().contains(&key), "too large for the cache, and in no overlay any more");
        },
    );
}

/// Names are added and removed while a listing is under way.
#[test]
fn a_directory_that_changes_during_a_fetch_is_listed_correctly() {
    with_remote_store(
        |client| async move {
            for i in 0..200 {
                client.create(ROOT, &format!("file{i:03}")).await.unwrap();
            }
        },
        |client, far| async move {
            let held = far.hold(&keys::entries_after(ROOT, 0).from);
            let list = MetaOp::Readdir {
                dir: ROOT,
                cookie: 0,
                limit: 100,
                attributes: false,
                prefix: bytes::Bytes::new(),
            };
            let listing = Call::call(&client, list.clone()).await;
            assert!(!listing.is_done());
            far.held.lock().clear();
            // More are removed than a fetch has spare pairs.
            for i in 0..150 {
                client.unlink(ROOT, &format!("file{i:03}")).await.unwrap();
            }
            for i in 0..5 {
                client.create(ROOT, &format!("late{i}")).await.unwrap();
            }
            held.set();
            let MetaReply::Directory { entries, end, .. } = listing.wait().await.unwrap() else { panic!() };
            let mut names: Vec<String> =
                entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect();
            names.sort();
            let mut expected: Vec<String> = (150..200).map(|i| format!("file{i:03}")).collect();
            expected.extend((0..5).map(|i| format!("late{i}")));
            assert!(end);
            assert_eq!(names, expected);
        },
    );
}

/// The lookup either finds the name that is committed during its fetch, or doesn't: never half of
/// it.
#[test]
fn a_name_that_is_made_while_it_is_looked_up_is_found_or_not() {
    with_remote_store(
        |_| async {},
        |client, far| async move {
            let held = far.hold(&entry_key(ROOT, "file"));
            let lookup = Call::call(&client, MetaOp::Lookup { parent: ROOT, name: bytes("file") }).await;
            far.held.lock().clear();
            let ino = client.create(ROOT, "file").await.unwrap().ino;
            held.set();
            let found = support::entry(lookup.wait().await).unwrap();
            assert_eq!(found.ino, ino);
            let again =
                support::entry(client.call(MetaOp::Lookup { parent: ROOT, name: bytes("file") }).await);
            assert_eq!(again.unwrap().ino, ino);
        },
    );
}

#[test]
fn a_replaced_service_reports_that_and_changes_nothing() {
    with_remote_store(
        |client| async move {
            client.create(ROOT, "file").await.unwrap();
        },
        |client, far| async move {
            let ino = client.lookup(ROOT, "file").await.unwrap().ino;
            let next = open(&RemoteStore::new(&far.memory, Duration::ZERO)).await;
            let op = MetaOp::Setattr { ino, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } };
            assert_eq!(errno(client.call(op.clone()).await), Refusal::PartitionNotServed);
            assert_eq!(errno(client.getattr(ino).await), Refusal::PartitionNotServed);
            let next = Client::new(&next, 3);
            assert_eq!(next.getattr(ino).await.unwrap().mode & 0o777, 0o644);
            next.call(op).await.unwrap();
        },
    );
}

/// Periodic syncs continue after the store was unreachable for a while.
#[test]
fn the_periodic_sync_outlives_failures_of_the_store() {
    with_remote_store(
        |_| async {},
        |client, far| async move {
            rt::spawn(client.meta.clone().background());
            far.persist_fails.store(true, Relaxed);
            client.create(ROOT, "file").await.unwrap();
            rt::sleep(4 * meta::SYNC_INTERVAL).await;
            assert_eq!(errno(client.call(MetaOp::Sync).await), Errno::EIO);
            assert!(far.memory.unsynced() > 0);
            far.persist_fails.store(false, Relaxed);
            rt::sleep(4 * meta::SYNC_INTERVAL).await;
            assert_eq!(far.memory.unsynced(), 0);
            client.meta.stop();
        },
    );
}

/// Concurrent clients over a slow store and over one in memory end with the same names, whatever
/// the order of messages.
#[test]
fn a_storm_over_a_slow_store_ends_as_it_should() {
    for seed in 0..12 {
        let run = async move {
            let memory = Arc::new(Memory::new());
            let far = RemoteStore::new(&memory, Duration::from_millis(3));
            let meta = open(&far).await;
            meta.recover().await.unwrap();
            rt::spawn(meta.clone().background());
            let dir = Client::new(&meta, 1).mkdir_elsewhere(ROOT, &[]).await;
            let storms = (0..8).map(|number| storm(meta.clone(), dir, number)).collect();
            let mut expected = BTreeMap::new();
            for names in rt::join_all(storms).await {
                expected.extend(names);
            }
            let client = Client::new(&meta, 1);
            check(&client, dir, &expected).await;
            assert!(far.applies.lock().iter().any(|batches| *batches > 1), "commits are shared");
            // As a later service finds it, without what is in memory.
            meta.stop();
            let later = Client::new(&open(&RemoteStore::new(&memory, Duration::ZERO)).await, 1);
            check(&later, dir, &expected).await;
        };
        Machine::new(seed).run(run).unwrap();
    }
}

/// Creates, moves and removes names of its own in two shared directories. Returns the remaining
/// names, with the directory.
async fn storm(meta: Arc<MetaService>, dir: InodeId, number: u64) -> BTreeMap<String, (bool, InodeId)> {
    meta.register_session(SessionId(100 + number), SessionKind::Local).await.unwrap();
    let client = Client::new(&meta, 100 + number);
    let mut mine: BTreeMap<String, (bool, InodeId)> = BTreeMap::new();
    for step in 0..60 {
        let place = |in_dir: bool| if in_dir { dir } else { ROOT };
        let name = format!("{number}-{}", rt::random_u64() % 8);
        let to = (rt::random_u64().is_multiple_of(2), format!("{number}-{}", rt::random_u64() % 8));
        match (mine.get(&name).copied(), rt::random_u64() % 4) {
            (None, _) => {
                let ino = client.create(place(to.0), &name).await.unwrap().ino;
                mine.insert(name, (to.0, ino));
            }
            (Some((in_dir, _)), 0) => {
                client.unlink(place(in_dir), &name).await.unwrap();
                mine.remove(&name);
            }
            (Some((in_dir, ino)), 1) if !mine.contains_key(&to.1) => {
                client.rename(place(in_dir), &name, place(to.0), &to.1).await.unwrap();
                mine.remove(&name);
                mine.insert(to.1, (to.0, ino));
            }
            (Some((in_dir, ino)), 2) => {
                assert_eq!(client.lookup(place(in_dir), &name).await.unwrap().ino, ino, "step {step}");
            }
            (Some((_, ino)), _) => {
                let fill = (step % 250) as u8;
                client.call(set_xattr(ino, fill)).await.unwrap();
                assert_eq!(get_xattr(&client, ino).await, fill);
            }
        }
    }
    mine
}

async fn check(client: &Client, dir: InodeId, expected: &BTreeMap<String, (bool, InodeId)>) {
    for in_dir in [false, true] {
        let place = if in_dir { dir } else { ROOT };
        let names: Vec<String> = client.list(place).await.into_iter().filter(|n| n.contains('-')).collect();
        let mut wanted: Vec<String> =
            expected.iter().filter(|(_, at)| at.0 == in_dir).map(|(name, _)| name.clone()).collect();
        wanted.sort();
        assert_eq!(names, wanted);
    }
    for (name, (in_dir, ino)) in expected {
        let place = if *in_dir { dir } else { ROOT };
        assert_eq!(client.lookup(place, name).await.unwrap().ino, *ino);
    }
}

#[test]
fn sessions_get_a_new_verifier_after_a_power_loss_of_the_store() {
    with_remote_store(
        |_| async {},
        |client, far| async move {
            let verifier_after = async |op| client.respond(0, op).await.unwrap().verifier;
            let before = verifier_after(MetaOp::Sync).await;
            assert_ne!(before, 0);
            assert_eq!(
                verifier_after(MetaOp::Register {
                    in_use: vec![],
                    pending_creates: vec![],
                    pending_changes: vec![],
                    reporting_process: 0
                })
                .await,
                before
            );
            client.create(ROOT, "file").await.unwrap();
            assert_eq!(verifier_after(MetaOp::Sync).await, before, "nothing has gone");
            assert_eq!(verifier_after(MetaOp::Getattr { ino: ROOT }).await, 0, "it costs what is rare only");
            far.memory.crash(0);
            let after = verifier_after(MetaOp::Sync).await;
            assert_ne!(after, before);
            let (partitions, in_use) = (vec![], vec![]);
            assert_eq!(
                verifier_after(MetaOp::Follow {
                    partitions,
                    in_use,
                    pending_creates: vec![],
                    pending_changes: vec![],
                    reporting_process: 0
                })
                .await,
                after
            );
        },
    );
}
