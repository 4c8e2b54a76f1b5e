//! First writes of asynchronously created files that are too large for inline content.

use super::async_creates::{close, create_is_async, open};
use super::cluster::{
    Application, Cluster, RDONLY, RDWR, ROOT, run_lengths, with_cluster, with_cluster_of_seed,
};
use client::{Client, Handle, WriteOptions};
use rt::IoBuf;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result, SetAttr, SetTime, Timestamp};

/// More than inline content, in bytes.
const LARGE: usize = 100_000;
/// Sizes of what was written before: nothing, which makes it a first write, little, and as much as
/// is inline.
const HEADS: [usize; 3] = [0, 1000, 4096];

/// Creates a directory in which the client creates files asynchronously.
async fn own_directory(client: &Arc<Client>, name: &str) -> InodeId {
    let dir = client.mkdir(ROOT, InodeId::ROOT, name.as_bytes(), 0o755, 0).await.unwrap().ino;
    let (_, first) = client.create(ROOT, dir, b"first", 0o100_644, 0, RDWR).await.unwrap();
    close(client, first).await.unwrap();
    dir
}

/// Creates a file with `head` bytes of `a`, of which the service doesn't know yet.
async fn pending(client: &Arc<Client>, dir: InodeId, head: usize) -> Arc<Handle> {
    let (is_async, file) = create_is_async(client, dir, "f").await;
    assert!(is_async);
    client.fill(&file, 0, head, b'a').await;
    file
}

async fn write_rest(client: &Arc<Client>, file: &Arc<Handle>, head: usize) -> Result<usize> {
    let rest = IoBuf::from_slice(&vec![b'b'; LARGE - head]);
    client.write(file, head as u64, rest, WriteOptions::default()).await
}

/// Writes the rest while something else happens.
async fn write_rest_during(
    (client, file): (&Arc<Client>, &Arc<Handle>),
    head: usize,
    meanwhile: impl Future<Output = ()>,
) {
    let mut written = None;
    let write = async { written = Some(write_rest(client, file, head).await) };
    let both: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![Box::pin(write), Box::pin(meanwhile)];
    rt::join_all(both).await;
    assert_eq!(written.unwrap().unwrap(), LARGE - head);
}

fn content(head: usize) -> Vec<(u8, usize)> {
    [(b'a', head), (b'b', LARGE - head)].into_iter().filter(|(_, len)| *len > 0).collect()
}

async fn check(client: &Arc<Client>, dir: InodeId, head: usize) {
    let file = open(client, dir, "f", RDONLY).await.unwrap();
    assert_eq!(run_lengths(&client.read_all(&file).await), content(head));
    let attr = client.getattr(file.ino()).await.unwrap().attr;
    assert_eq!(attr.size, LARGE as u64);
    assert!((LARGE as u64..2 * LARGE as u64).contains(&(attr.blocks * 512)), "{attr:?}");
    close(client, file).await.unwrap();
}

#[test]
fn the_first_chunks_cost_one_command() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one, "d").await;
        let (commands, transfers) = (cluster.requests(), cluster.storage_requests());
        let file = pending(&one, dir, 0).await;
        assert_eq!(cluster.requests(), commands);
        assert_eq!(write_rest(&one, &file, 0).await.unwrap(), LARGE);
        assert_eq!(cluster.requests(), commands + 1, "the create");
        assert_eq!(cluster.storage_requests(), transfers + 2, "two chunks");
        assert_eq!(run_lengths(&one.read_all(&file).await), content(0));
        assert_eq!(cluster.requests(), commands + 1);
        let transfers = cluster.storage_requests();
        close(&one, file).await.unwrap();
        assert_eq!(cluster.requests(), commands + 2, "the report of its size");
        assert_eq!(cluster.storage_requests(), transfers + 2, "the blocks of two chunks");
        check(&two, dir, 0).await;
        one.shutdown().await.unwrap();
    });
}

/// A session that shares a file knows only its own chunks.
#[test]
fn blocks_of_a_file_that_others_extended_are_complete() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one, "d").await;
        let file = pending(&one, dir, 0).await;
        write_rest(&one, &file, 0).await.unwrap();
        let other = open(&two, dir, "f", RDWR).await.unwrap();
        two.fill(&other, 1_000_000, 100_000, b'c').await;
        one.fill(&file, 0, 10, b'd').await;
        close(&two, other).await.unwrap();
        close(&one, file).await.unwrap();
        for client in [&one, &two] {
            let found = client.lookup(ROOT, dir, b"f").await.unwrap();
            let attr = client.getattr(found.ino).await.unwrap().attr;
            assert_eq!(attr.size, 1_100_000);
            assert!(attr.blocks * 512 >= 200_000, "{attr:?}");
        }
    });
}

/// Small writes stay inline, however many files are pending.
#[test]
fn a_small_first_write_stays_inline() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let dir = own_directory(&one, "d").await;
        // The client gets more inode numbers at a time.
        for n in 0..100 {
            close(&one, create_is_async(&one, dir, &format!("early{n}")).await.1).await.unwrap();
        }
        let mut files = Vec::new();
        for n in 0..200 {
            let (is_async, file) = create_is_async(&one, dir, &format!("f{n}")).await;
            assert!(is_async);
            files.push(file);
        }
        for file in &files {
            one.fill(file, 0, 4096, b'a').await;
        }
        for file in files {
            close(&one, file).await.unwrap();
        }
        assert_eq!(cluster.storage_requests(), 0);
    });
}

/// The clocks of targets don't matter when the service has all sizes and times.
#[test]
fn attributes_of_a_closed_file_cost_no_request_to_targets() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one, "d").await;
        let file = pending(&one, dir, 1000).await;
        write_rest(&one, &file, 1000).await.unwrap();
        let ino = file.ino();
        let transfers = cluster.storage_requests();
        assert_eq!(two.size(ino).await, LARGE as u64);
        assert!(cluster.storage_requests() > transfers, "only the chunks show the size");
        close(&one, file).await.unwrap();
        let mtime = Timestamp::new(1_000_000_000, 5);
        let set = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
        one.setattr(ROOT, ino, set, None).await.unwrap();
        let transfers = cluster.storage_requests();
        let attr = two.getattr(ino).await.unwrap().attr;
        assert_eq!((attr.size, attr.mtime), (LARGE as u64, mtime));
        assert_eq!(cluster.storage_requests(), transfers);
    });
}

/// Another client never sees less than what the application was told.
#[test]
fn others_wait_for_the_first_chunks() {
    for seed in 0..40 {
        with_cluster_of_seed(seed, |cluster| async move {
            let [one, two] = cluster.clients().await;
            for head in HEADS {
                let dir = own_directory(&one, &format!("d{head}")).await;
                let file = pending(&one, dir, head).await;
                let reading = async {
                    rt::sleep(Duration::from_micros(rt::random_u64() % 2_000)).await;
                    let other = open(&two, dir, "f", RDONLY).await.unwrap();
                    let seen = two.read_all(&other).await.len();
                    assert!(seen == head || seen == LARGE, "{seen} of {head}");
                    close(&two, other).await.unwrap();
                };
                write_rest_during((&one, &file), head, reading).await;
                close(&one, file).await.unwrap();
                check(&two, dir, head).await;
            }
        });
    }
}

async fn write_during_a_restart(cluster: Rc<Cluster>, then: impl AsyncFn(&Arc<Client>, InodeId)) {
    let [one, two] = cluster.clients().await;
    let dir = own_directory(&one, "d").await;
    let head = HEADS[rt::random_u64() as usize % HEADS.len()];
    let file = pending(&one, dir, head).await;
    let restart = async {
        rt::sleep(Duration::from_micros(rt::random_u64() % 2_000)).await;
        cluster.restart_metadata().await;
        then(&two, dir).await;
    };
    write_rest_during((&one, &file), head, restart).await;
    close(&one, file).await.unwrap();
    check(&one, dir, head).await;
    check(&two, dir, head).await;
    one.shutdown().await.unwrap();
}

#[test]
fn a_restarted_service_loses_no_first_write() {
    for seed in 0..60 {
        with_cluster_of_seed(seed, |cluster| write_during_a_restart(cluster, async |_, _| {}));
    }
}

/// What the application was told before the restart is there for the first client that looks.
#[test]
fn others_see_content_that_was_kept_during_a_restart() {
    for seed in 0..60 {
        with_cluster_of_seed(seed, |cluster| {
            write_during_a_restart(cluster, async |two, dir| {
                // If the create was never sent, this client may be first.
                let Ok(other) = open(two, dir, "f", RDONLY).await else { return };
                let seen = two.read_all(&other).await;
                assert!(HEADS.contains(&seen.len()) || seen.len() == LARGE, "{}", seen.len());
                assert!(seen.is_empty() || run_lengths(&seen).iter().all(|(byte, _)| *byte != 0));
                close(two, other).await.unwrap();
            })
        });
    }
}

#[test]
fn a_refused_first_write_keeps_what_was_written_before() {
    with_cluster(|cluster| async move {
        let (one, storage) = cluster.client_with_cuttable_storage().await;
        let two = cluster.client().await;
        for head in HEADS {
            let dir = own_directory(&one, &format!("d{head}")).await;
            let file = pending(&one, dir, head).await;
            storage.refuse(Some(Error::new(Errno::ENOSPC, "full")));
            assert_eq!(write_rest(&one, &file, head).await.unwrap_err().errno, Errno::ENOSPC);
            storage.refuse(None);
            assert_eq!(one.size(file.ino()).await, head as u64);
            let other = open(&two, dir, "f", RDONLY).await.unwrap();
            assert_eq!(two.read_all(&other).await, vec![b'a'; head]);
            close(&two, other).await.unwrap();
            assert_eq!(write_rest(&one, &file, head).await.unwrap(), LARGE - head);
            close(&one, file).await.unwrap();
            check(&two, dir, head).await;
        }
    });
}

/// A target that doesn't answer delays other clients in the directory for a moment only.
#[test]
fn an_unanswered_first_write_does_not_block_the_directory() {
    with_cluster(|cluster| async move {
        let (one, storage) = cluster.client_with_cuttable_storage().await;
        let two = cluster.client().await;
        let dir = own_directory(&one, "d").await;
        let file = pending(&one, dir, 0).await;
        storage.cut();
        let looking = async {
            rt::sleep(Duration::from_millis(1)).await;
            let begun_ns = rt::monotonic_ns();
            two.lookup(ROOT, dir, b"first").await.unwrap();
            assert!(rt::monotonic_ns() - begun_ns < 2_000_000_000);
            storage.restore();
        };
        write_rest_during((&one, &file), 0, looking).await;
        close(&one, file).await.unwrap();
        check(&two, dir, 0).await;
    });
}

/// Writes elsewhere than at the end are executed after the create.
#[test]
fn a_first_write_may_leave_a_hole() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one, "d").await;
        let file = pending(&one, dir, 1000).await;
        one.fill(&file, 200_000, 10, b'c').await;
        one.fill(&file, 500, 10, b'd').await;
        let expected = [(b'a', 500), (b'd', 10), (b'a', 490), (0, 199_000), (b'c', 10)];
        assert_eq!(run_lengths(&one.read_all(&file).await), expected);
        close(&one, file).await.unwrap();
        let other = open(&two, dir, "f", RDONLY).await.unwrap();
        assert_eq!(run_lengths(&two.read_all(&other).await), expected);
    });
}
