//! Migration of files to another scheme or pool while they are in use.

use super::cluster::{
    Application, CHUNK, Cluster, GROUPS, RDWR, ROOT, TARGETS, later, pair, run_lengths, with_cluster,
};
use super::group::{Behaviour, copy};
use chunkstore::Store;
use client::{Client, Handle, ReadOptions, WriteOptions};
use rt::{Fallocate, File, IoBuf, OpenOptions};
use serde_json::Value;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::map::update;
use types::{Credentials, Errno, GroupId, InodeId, Pool, PoolId, Result, SessionId, TargetId, Timestamp};
use wire::{StorageOp, StorageRequest, XattrMode};

/// Size of a file with several chunks in every group, the last of them partial, in bytes.
const LONG: usize = 40 * CHUNK + 1234;

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at / CHUNK * 31 + salt) as u8).collect()
}

async fn fill(client: &Arc<Client>, file: &Arc<Handle>, data: &[u8]) {
    client.write(file, 0, IoBuf::from_slice(data), WriteOptions::default()).await.unwrap();
}

async fn bytes(client: &Arc<Client>, file: &Arc<Handle>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let buf = IoBuf::alloc(256 * 1024);
        let got = client.read(file, all.len() as u64, buf.clone(), ReadOptions::default()).await.unwrap();
        if got == 0 {
            return all;
        }
        all.extend_from_slice(&buf.as_slice()[..got]);
    }
}

async fn ask_as(who: Credentials, client: &Arc<Client>, ino: InodeId, wish: &str) -> Result<()> {
    client.setxattr(who, ino, b"weft.migrate", wish.as_bytes(), XattrMode::Any, false).await
}

async fn migration(client: &Arc<Client>, ino: InodeId) -> Value {
    serde_json::from_slice(&client.getxattr(ROOT, ino, b"weft.migration").await.unwrap()).unwrap()
}

async fn entry(client: &Arc<Client>, ino: InodeId) -> Value {
    serde_json::from_slice(&client.getxattr(ROOT, ino, b"weft.entry").await.unwrap()).unwrap()
}

/// Waits until a file's migration has ended; returns its last state.
async fn ended(client: &Arc<Client>, ino: InodeId) -> Value {
    for _ in 0..3000 {
        let state = migration(client, ino).await;
        if state.is_null() || state["given_up"] == true {
            return state;
        }
        rt::sleep(Duration::from_millis(100)).await;
    }
    panic!("{}", migration(client, ino).await);
}

async fn migrate(client: &Arc<Client>, ino: InodeId, scheme: &str) {
    ask_as(ROOT, client, ino, &format!("{{\"scheme\":\"{scheme}\"}}")).await.unwrap();
    assert_eq!(ended(client, ino).await, Value::Null);
    assert!(is_all(client, ino, scheme).await, "{}", entry(client, ino).await);
}

async fn is_all(client: &Arc<Client>, ino: InodeId, scheme: &str) -> bool {
    let entry = entry(client, ino).await;
    let groups = entry["layout"]["groups"].as_array().unwrap();
    entry["pattern"]["scheme"] == scheme && groups.iter().all(|group| group["scheme"] == scheme)
}

impl Cluster {
    /// Numbers of chunk files: on targets themselves, and in replicas of groups.
    async fn counts(&self) -> (usize, usize) {
        let (mut single, mut copies) = (0, 0);
        for target in 1..=TARGETS {
            single += self.store(TargetId(target)).list().await.unwrap().len();
        }
        for group in GROUPS {
            for target in pair(group) {
                copies += self.chunk_files(target.0, group).await.len();
            }
        }
        (single, copies)
    }

    /// The mtime of each chunk file.
    async fn times(&self) -> Vec<Timestamp> {
        let mut times = Vec::new();
        let copies =
            GROUPS.into_iter().flat_map(|group| pair(group).map(|target| copy(target, GroupId(group))));
        for place in (1..=TARGETS).map(TargetId).chain(copies) {
            let store = self.store(place);
            for ino in store.list().await.unwrap() {
                times.push(store.stat(ino).await.unwrap().mtime);
            }
        }
        times
    }

    async fn counts_become(&self, expected: (usize, usize)) {
        for _ in 0..600 {
            if self.counts().await == expected {
                return;
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.counts().await, expected);
    }
}

#[test]
fn migrating_back_and_forth_preserves_content() {
    with_cluster(async |cluster| {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let file = one.create_file("f").await;
        let mut expected = pattern(LONG, 0);
        fill(&one, &file, &expected).await;
        let other = two.open_named("f", RDWR).await;
        assert_eq!(cluster.counts().await, (0, 6));
        for (round, scheme) in ["single", "mirror:2", "single", "mirror:2"].into_iter().enumerate() {
            migrate(&two, file.ino(), scheme).await;
            assert!(bytes(&two, &other).await == expected, "{scheme}");
            let (at, byte) = (3 * CHUNK + 5 + round, b'a' + round as u8);
            one.fill(&file, at, 2 * CHUNK, byte).await;
            expected[at..at + 2 * CHUNK].fill(byte);
            assert!(bytes(&two, &other).await == expected, "{scheme}, written");
            cluster.counts_become(if scheme == "single" { (3, 0) } else { (0, 6) }).await;
        }
        // It is there already: nothing happens.
        migrate(&one, file.ino(), "mirror:2").await;
        let ino = file.ino();
        one.unlink(ROOT, InodeId::ROOT, b"f").await.unwrap();
        one.release(file).await;
        two.release(other).await;
        one.forget(ino, 1);
        two.forget(ino, 1);
        cluster.counts_become((0, 0)).await;
    });
}

/// Applications see the times of chunk files if no session has a lease, and size recovery takes
/// them for the file's when a writer has died.
#[test]
fn migration_preserves_the_mtime() {
    with_cluster(async |cluster| {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let file = one.create_file("f").await;
        fill(&one, &file, &pattern(LONG, 0)).await;
        let other = two.open_named("f", RDWR).await;
        assert_eq!(bytes(&two, &other).await.len(), LONG);
        let before = rt::now();
        rt::sleep(Duration::from_millis(100)).await;
        for scheme in ["single", "mirror:2"] {
            migrate(&two, file.ino(), scheme).await;
            cluster.counts_become(if scheme == "single" { (3, 0) } else { (0, 6) }).await;
            for time in cluster.times().await {
                assert!(time < before, "{scheme}: {time:?} is later than {before:?}");
            }
        }
        one.release(file).await;
        two.release(other).await;
    });
}

#[test]
fn holes_sizes_and_files_without_chunks_keep_what_they_are() {
    with_cluster(async |cluster| {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let sparse = one.create_file("sparse").await;
        one.fill(&sparse, 7 * CHUNK, 100, b's').await;
        one.setattr(ROOT, sparse.ino(), types::SetAttr::default(), Some(30 * CHUNK as u64 + 1))
            .await
            .unwrap();
        let empty = one.create_file("empty").await;
        migrate(&two, sparse.ino(), "single").await;
        ask_as(ROOT, &one, empty.ino(), "{\"scheme\":\"single\"}").await.unwrap();
        assert_eq!(ended(&one, empty.ino()).await, Value::Null);
        let copy = two.open_named("sparse", RDWR).await;
        assert_eq!(
            run_lengths(&two.read_all(&copy).await),
            [(0, 7 * CHUNK), (b's', 100), (0, 23 * CHUNK - 99)]
        );
        // A file without chunks gets them in the new location.
        one.fill(&empty, 0, 3 * CHUNK, b'e').await;
        assert!(is_all(&one, empty.ino(), "single").await);
        // Where the sparse file has only a hole, it has no chunk file.
        cluster.counts_become((4, 0)).await;
    });
}

#[test]
fn a_file_moves_while_two_clients_write_it_all_the_time() {
    with_cluster(async |cluster| {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let file = one.create_file("f").await;
        fill(&one, &file, &pattern(LONG, 0)).await;
        let other = two.open_named("f", RDWR).await;
        // Each writes every second piece.
        const PIECE: usize = 5000;
        let done = Rc::new(Cell::new(0));
        let last: Rc<[Cell<u8>]> = (0..LONG / PIECE).map(|_| Cell::new(0)).collect();
        let all = pattern(LONG, 0);
        for (writer, (client, file)) in
            [(one.clone(), file.clone()), (two.clone(), other)].into_iter().enumerate()
        {
            let (done, last) = (done.clone(), last.clone());
            rt::spawn(async move {
                for step in 0..300_usize {
                    let piece = (step * 7919 % (LONG / PIECE / 2)) * 2 + writer;
                    let byte = (step % 250) as u8 + 1;
                    client.fill(&file, piece * PIECE, PIECE, byte).await;
                    last[piece].set(byte);
                    rt::sleep(Duration::from_millis(10)).await;
                }
                done.set(done.get() + 1);
            });
        }
        let mut rounds = 0;
        while done.get() < 2 || rounds == 0 {
            for scheme in ["single", "mirror:2"] {
                migrate(&one, file.ino(), scheme).await;
                rounds += 1;
            }
        }
        assert!(rounds > 2, "moved while it was written");
        let reader = cluster.client().await;
        let again = reader.open_named("f", RDWR).await;
        let mut expected = all;
        for (piece, byte) in last.iter().enumerate().filter(|(_, byte)| byte.get() != 0) {
            expected[piece * PIECE..(piece + 1) * PIECE].fill(byte.get());
        }
        assert!(bytes(&reader, &again).await == expected);
        cluster.counts_become((0, 6)).await;
    });
}

/// Whether a request is for a chunk file of an inode: all their names are the same except for the
/// slot.
fn is_of(ino: InodeId, request: &StorageRequest) -> bool {
    request.ino.0 << 8 == ino.0 << 8
}

/// The task that deletes doomed chunk files lists them, and is then delayed. A migration that
/// begins meanwhile dooms its new chunk files until they are complete.
#[test]
fn new_chunk_files_survive_a_concurrent_deletion_of_doomed_ones() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let (first, file) = (client.create_file("a").await, client.create_file("b").await);
        let (gone, ino) = (first.ino(), file.ino());
        assert!(gone < ino, "the first is deleted first");
        let data = pattern(LONG, 0);
        fill(&client, &first, &data).await;
        fill(&client, &file, &data).await;
        let deletes = |request: &StorageRequest| request.op == StorageOp::Delete && request.group.is_some();
        // The file's chunk files in groups are doomed, and not deleted yet.
        cluster.groups.hold(deletes);
        migrate(&client, ino, "single").await;
        client.unlink(ROOT, InodeId::ROOT, b"a").await.unwrap();
        client.release(first).await;
        client.forget(gone, 1);
        cluster.groups.requests();
        cluster.groups.wait_for_request(|request| is_of(gone, request) && deletes(request)).await;
        // The deleting task is busy with the first, and has listed the doomed ones of the other.
        let fills = move |request: &StorageRequest| {
            is_of(ino, request)
                && request.group.is_some()
                && request.session == SessionId(0)
                && matches!(request.op, StorageOp::Write { .. })
        };
        cluster.groups.hold(move |request| fills(request) || is_of(gone, request) && deletes(request));
        ask_as(ROOT, &client, ino, "{\"scheme\":\"mirror:2\"}").await.unwrap();
        let filled = cluster.groups.wait_for_request(fills).await;
        let deletes_it = move |request: &StorageRequest| {
            (request.ino, request.group, &request.op) == (filled.ino, filled.group, &StorageOp::Delete)
        };
        let both = deletes_it;
        cluster.groups.hold(move |request| fills(request) || both(request));
        rt::sleep(Duration::from_secs(2)).await;
        // A deletion request arrives late.
        cluster.groups.hold(deletes_it);
        assert_eq!(ended(&client, ino).await, Value::Null);
        cluster.groups.hold(|_| false);
        rt::sleep(Duration::from_secs(1)).await;
        assert!(is_all(&client, ino, "mirror:2").await);
        let reader = cluster.client().await;
        let again = reader.open_named("b", RDWR).await;
        assert!(bytes(&reader, &again).await == data);
        cluster.counts_become((0, 6)).await;
    });
}

/// The migration has copied everything, and the truncation is recorded; a write far beyond the new
/// end turns the old data into a hole.
#[test]
fn truncated_data_does_not_reappear_after_migration() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("f").await;
        let ino = file.ino();
        let (mut expected, end, far) = (pattern(24 << 20, 0), CHUNK + 77, 20 << 20);
        fill(&client, &file, &expected).await;
        migrate(&client, ino, "single").await;
        let of_mover = move |request: &StorageRequest| {
            is_of(ino, request) && request.group.is_some() && request.session == SessionId(0)
        };
        let fills = move |request: &StorageRequest| {
            of_mover(request) && matches!(request.op, StorageOp::Write { .. })
        };
        let syncs = move |request: &StorageRequest| of_mover(request) && request.op == StorageOp::Sync;
        cluster.groups.hold(fills);
        ask_as(ROOT, &client, ino, "{\"scheme\":\"mirror:2\"}").await.unwrap();
        cluster.groups.wait_for_request(fills).await;
        client.setattr(ROOT, ino, types::SetAttr::default(), Some(end as u64)).await.unwrap();
        cluster.groups.hold(syncs);
        cluster.groups.wait_for_request(syncs).await;
        // Data in every stripe.
        client.fill(&file, far, 16 * CHUNK, b'f').await;
        cluster.groups.hold(|_| false);
        assert_eq!(ended(&client, ino).await, Value::Null);
        expected[end..far].fill(0);
        expected[far..far + 16 * CHUNK].fill(b'f');
        expected.truncate(far + 16 * CHUNK);
        let reader = cluster.client().await;
        let again = reader.open_named("f", RDWR).await;
        assert!(bytes(&reader, &again).await == expected, "what was cut off is there again");
    });
}

/// The groups of a scheme are created on demand, and not all clients learn of them at once.
#[test]
fn a_client_waits_for_the_map_that_has_the_groups_of_a_file() {
    with_cluster(async |cluster| {
        let map = cluster.map_of_now();
        update(&map, |map| map.groups.retain(|group| group.scheme.spans_targets()));
        let (one, behind) = (cluster.client().await, cluster.client_by(map.clone()).await);
        let file = one.create_file("f").await;
        let mut expected = pattern(LONG, 0);
        fill(&one, &file, &expected).await;
        migrate(&one, file.ino(), "single").await;
        let other = behind.open_named("f", RDWR).await;
        let now = cluster.map.load();
        later(3000, move || map.store(now));
        assert!(bytes(&behind, &other).await == expected);
        behind.fill(&other, 5, CHUNK, b'z').await;
        expected[5..5 + CHUNK].fill(b'z');
        assert!(bytes(&one, &file).await == expected);
    });
}

/// Number of files, each with data in every group: more than migrate at a time.
const FILES: usize = 30;

#[test]
fn the_next_metadata_service_completes_migrations() {
    with_cluster(async |cluster| {
        let one = cluster.client().await;
        let (mut expected, mut inodes) = (Vec::new(), Vec::new());
        for number in 0..FILES {
            let file = one.create_file(&format!("f{number}")).await;
            let data = pattern(6 * CHUNK + number, number);
            fill(&one, &file, &data).await;
            inodes.push(file.ino());
            one.release(file).await;
            expected.push(data);
        }
        for &ino in &inodes {
            ask_as(ROOT, &one, ino, "{\"scheme\":\"single\"}").await.unwrap();
        }
        let mut moving = 0;
        for _ in 0..4 {
            // Until one is half-way, if that state is observed.
            let mut under_way = Vec::new();
            for _ in 0..2000 {
                for &ino in &inodes {
                    let groups = entry(&one, ino).await["layout"]["groups"].as_array().unwrap().clone();
                    let there = groups.iter().filter(|group| group["scheme"] == "single").count();
                    if there > 0 && there < groups.len() {
                        under_way.push(ino);
                        break;
                    }
                }
                if !under_way.is_empty() {
                    break;
                }
                rt::sleep(Duration::from_micros(50)).await;
            }
            moving += under_way.len();
            cluster.restart_names().await;
            // Migrations that have begun are completed without another request.
            for ino in under_way {
                assert_eq!(ended(&one, ino).await, Value::Null);
                assert!(is_all(&one, ino, "single").await);
            }
            for &ino in &inodes {
                ask_as(ROOT, &one, ino, "{\"scheme\":\"single\"}").await.unwrap();
            }
        }
        assert!(moving > 0, "in the middle");
        for &ino in &inodes {
            assert_eq!(ended(&one, ino).await, Value::Null);
        }
        cluster.counts_become((3 * FILES, 0)).await;
        for (number, data) in expected.iter().enumerate() {
            let file = one.open_named(&format!("f{number}"), RDWR).await;
            assert!(bytes(&one, &file).await == *data, "f{number}");
        }
    });
}

#[test]
fn a_failover_during_migration_only_delays_it() {
    with_cluster(async |cluster| {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let file = one.create_file("f").await;
        let data = pattern(LONG, 0);
        fill(&one, &file, &data).await;
        let gone = cluster.clone();
        // While the copying is in progress.
        ask_as(ROOT, &two, file.ino(), "{\"scheme\":\"single\"}").await.unwrap();
        later(1, move || {
            gone.groups.set_behaviour(1, Behaviour::Hangs);
            gone.change(|map| map.targets[0].state = types::TargetState::ProbablyOffline);
        });
        let held = cluster.clone();
        later(4000, move || held.take_out(1));
        let back = cluster.clone();
        later(20_000, move || {
            back.groups.set_behaviour(1, Behaviour::Answers);
            back.change(|map| map.targets[0].state = types::TargetState::Online);
        });
        assert_eq!(ended(&two, file.ino()).await, Value::Null);
        assert!(is_all(&two, file.ino(), "single").await);
        let other = two.open_named("f", RDWR).await;
        assert!(bytes(&two, &other).await == data);
    });
}

#[test]
fn impossible_migrations_are_refused_with_their_cause() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("f").await;
        fill(&client, &file, &pattern(LONG, 0)).await;
        let ino = file.ino();
        let refused = async |wish: &str| {
            let error = ask_as(ROOT, &client, ino, wish).await.err();
            let state = ended(&client, ino).await;
            (error.map(|error| error.errno), state["error"]["message"].as_str().unwrap_or("").to_string())
        };
        let (errno, message) = refused("{\"scheme\":\"mirror:3\"}").await;
        assert_eq!(errno, Some(Errno::ENODEV));
        assert!(message.contains("no groups of scheme mirror:3"), "{message}");
        let (errno, message) = refused("{\"pool\":\"tape\"}").await;
        assert_eq!(errno, Some(Errno::EINVAL));
        assert!(message.contains("no pool tape"), "{message}");
        assert_eq!(refused("{\"scheme\":\"raid\"}").await.0, Some(Errno::EINVAL));
        // Targets with too little space: the error reports how much is lacking, before anything
        // begins.
        cluster.change(|map| {
            map.targets.iter_mut().for_each(|target| target.free = (target.capacity / 100) + 4096)
        });
        let (errno, message) = refused("{\"scheme\":\"single\"}").await;
        assert_eq!(errno, None);
        assert!(message.contains("bytes are missing"), "{message}");
        // A pool without targets.
        cluster.change(|map| map.pools.push(Pool { id: PoolId(2), name: "cold".into(), spare: 0 }));
        let (_, message) = refused("{\"pool\":\"cold\",\"scheme\":\"single\"}").await;
        assert!(message.contains("pool cold has no targets"), "{message}");
        assert!(is_all(&client, ino, "mirror:2").await);
        let stranger = Credentials { uid: 7, gid: 7, pid: 1 };
        let error = ask_as(stranger, &client, ino, "{\"scheme\":\"single\"}").await.unwrap_err();
        assert_eq!(error.errno, Errno::EPERM);
        let dir = client.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        assert!(ask_as(ROOT, &client, dir, "{\"scheme\":\"single\"}").await.is_err(), "a directory");
        assert_eq!(cluster.counts().await, (0, 6));
    });
}

#[test]
fn migration_to_another_pool() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("f").await;
        let data = pattern(LONG, 0);
        fill(&client, &file, &data).await;
        // Target 3 belongs to another pool from now on, with the chunk files that are only there.
        cluster.change(|map| {
            map.pools.push(Pool { id: PoolId(2), name: "cold".into(), spare: 0 });
            map.targets[2].pool = PoolId(2);
            map.groups
                .iter_mut()
                .filter(|group| group.members == [TargetId(3)])
                .for_each(|group| group.pool = PoolId(2));
        });
        ask_as(ROOT, &client, file.ino(), "{\"pool\":\"cold\",\"scheme\":\"single\"}").await.unwrap();
        assert_eq!(ended(&client, file.ino()).await, Value::Null);
        // All three stripes are in one group, in separate chunk files.
        cluster.counts_become((3, 0)).await;
        assert_eq!(cluster.store(TargetId(3)).list().await.unwrap().len(), 3);
        assert!(bytes(&client, &file).await == data);
        assert_eq!(entry(&client, file.ino()).await["pattern"]["pool"], "cold");
        ask_as(ROOT, &client, file.ino(), "{\"pool\":\"default\",\"scheme\":\"mirror:2\"}").await.unwrap();
        assert_eq!(ended(&client, file.ino()).await, Value::Null);
        cluster.counts_become((0, 6)).await;
        assert!(bytes(&client, &file).await == data);
    });
}

/// A hole that was punched into a chunk file on disk is damage, which its checksums show. A copy
/// would contain zeros with valid checksums.
#[test]
fn a_hole_punched_on_disk_is_damage_to_migration() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("f").await;
        let data = pattern(LONG, 0);
        fill(&client, &file, &data).await;
        let store = cluster.store(copy(TargetId(1), GroupId(11)));
        let path = Store::chunk_file_path(store.dir(), store.list().await.unwrap()[0]);
        let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
        let punched = File::open(&path, options).await.unwrap();
        punched.allocate(Fallocate::Punch, CHUNK as u64, 2 * CHUNK as u64).await.unwrap();
        ask_as(ROOT, &client, file.ino(), "{\"scheme\":\"single\"}").await.unwrap();
        // No other replica is asked here.
        for _ in 0..600 {
            if !migration(&client, file.ino()).await["error"].is_null() {
                break;
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        assert!(!is_all(&client, file.ino(), "single").await, "what is damaged doesn't go anywhere");
        for target in pair(11) {
            assert_eq!(cluster.chunk_files(target.0, 11).await.len(), 1, "what copies have is kept");
        }
        // After it is written again, it is intact.
        fill(&client, &file, &data).await;
        assert_eq!(ended(&client, file.ino()).await, Value::Null);
        assert!(is_all(&client, file.ino(), "single").await);
        assert!(bytes(&client, &file).await == data);
    });
}
