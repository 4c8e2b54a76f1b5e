//! A client with write-behind, as other clients see it.

use super::cluster::{Application, Cluster, RDONLY, RDWR, run_lengths, with_cluster, with_cluster_of_seed};
use client::{Client, Handle, WriteOptions};
use rt::IoBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error};

const PAGE: usize = 4096;
/// Longer than any write is delayed.
const KEPT: Duration = Duration::from_millis(1_300);
/// Longer than a client retries a flush after the lease has ended.
const LONG: Duration = Duration::from_secs(9);

/// A file in chunks with this many pages, whose next sequential page will be delayed.
async fn delayed_file(client: &Arc<Client>) -> (Arc<Handle>, usize) {
    let file = client.create_file("f").await;
    client.fill(&file, 0, 2 * PAGE, b'a').await;
    (file, 2)
}

/// Appends pages one after the other.
async fn append_pages(client: &Arc<Client>, file: &Arc<Handle>, pages: std::ops::Range<usize>, byte: u8) {
    for page in pages {
        client.fill(file, page * PAGE, PAGE, byte).await;
    }
}

/// Appends pages, and checks that none of them is sent.
async fn keep(
    cluster: &Cluster,
    client: &Arc<Client>,
    file: &Arc<Handle>,
    pages: std::ops::Range<usize>,
    byte: u8,
) {
    let before = cluster.storage_requests();
    append_pages(client, file, pages, byte).await;
    assert_eq!(cluster.storage_requests(), before, "kept");
}

async fn try_page(client: &Arc<Client>, file: &Arc<Handle>, page: usize) -> types::Result<usize> {
    let buf = IoBuf::from_slice(&[b'z'; PAGE]);
    client.write(file, (page * PAGE) as u64, buf, WriteOptions::default()).await
}

#[test]
fn sequential_writes_are_merged_and_visible_to_all() {
    with_cluster(|cluster| async move {
        let (one, _) = cluster.client_with_write_behind().await;
        let two = cluster.client().await;
        let (file, first) = delayed_file(&one).await;
        keep(&cluster, &one, &file, first..first + 8, b'b').await;
        assert_eq!(one.size(file.ino()).await, 10 * PAGE as u64);
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'a', 2 * PAGE), (b'b', 8 * PAGE)]);
        append_pages(&one, &file, 10..14, b'c').await;
        let seen = two.open_named("f", RDONLY).await;
        let expected = [(b'a', 2 * PAGE), (b'b', 8 * PAGE), (b'c', 4 * PAGE)];
        assert_eq!(two.size(file.ino()).await, 14 * PAGE as u64);
        assert_eq!(run_lengths(&two.read_all(&seen).await), expected);
    });
}

#[test]
fn delayed_writes_are_flushed_by_age_close_and_sync() {
    with_cluster(|cluster| async move {
        let (one, _) = cluster.client_with_write_behind().await;
        let (file, mut page) = delayed_file(&one).await;
        let mut keep_two = async || {
            let before = cluster.storage_requests();
            append_pages(&one, &file, page..page + 2, b'b').await;
            page += 2;
            assert_eq!(cluster.storage_requests(), before, "kept");
            before
        };
        let before = keep_two().await;
        rt::sleep(KEPT).await;
        assert_eq!(cluster.storage_requests(), before + 1, "in time");
        let before = keep_two().await;
        one.flush(&file).await.unwrap();
        assert_eq!(cluster.storage_requests(), before + 1, "at the close");
        let before = keep_two().await;
        one.fsync(&file, false).await.unwrap();
        assert!(cluster.storage_requests() > before + 1, "at the sync");
        let before = keep_two().await;
        one.syncfs().await.unwrap();
        assert!(cluster.storage_requests() > before + 1, "at the sync of everything");
        // Without a close, as at a lazy unmount.
        keep_two().await;
        one.shutdown().await.unwrap();
        let two = cluster.client().await;
        assert_eq!(two.read_all(&two.open_named("f", RDONLY).await).await.len(), page * PAGE);
    });
}

#[test]
fn large_random_or_durable_writes_are_not_delayed() {
    with_cluster(|cluster| async move {
        let (one, _) = cluster.client_with_write_behind().await;
        let (file, _) = delayed_file(&one).await;
        let plain = WriteOptions::default();
        for (offset, len, how) in [
            (2 * PAGE, 64 * 1024, plain),
            (PAGE, PAGE, plain),
            (64 * PAGE, PAGE, plain),
            (65 * PAGE, PAGE, WriteOptions { durable: true, ..plain }),
            (66 * PAGE, PAGE, WriteOptions { direct: true, ..plain }),
        ] {
            let before = cluster.storage_requests();
            one.write(&file, offset as u64, IoBuf::from_slice(&vec![b'x'; len]), how).await.unwrap();
            assert!(cluster.storage_requests() > before, "{offset} {len} {how:?}");
        }
    });
}

/// Storage is full, or unavailable, during the flush.
#[test]
fn a_flush_failure_is_reported_once_per_descriptor() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_with_write_behind().await;
        let two = cluster.client().await;
        let (file, first) = delayed_file(&one).await;
        let (other, reader) = (one.open_named("f", RDWR).await, one.open_named("f", RDONLY).await);
        append_pages(&one, &file, first..first + 3, b'b').await;
        way.refuse(Some(Error::new(Errno::ENOSPC, "full")));
        assert_eq!(one.flush(&file).await.unwrap_err().errno, Errno::ENOSPC);
        way.refuse(None);
        one.flush(&file).await.unwrap();
        one.flush(&reader).await.unwrap();
        assert_eq!(try_page(&one, &other, 0).await.unwrap_err().errno, Errno::ENOSPC);
        try_page(&one, &other, 0).await.unwrap();
        let later = one.open_named("f", RDWR).await;
        one.fsync(&later, false).await.unwrap();
        let expected = [(b'z', PAGE), (b'a', PAGE)];
        assert_eq!(run_lengths(&one.read_all(&file).await), expected);
        assert_eq!(run_lengths(&two.read_all(&two.open_named("f", RDONLY).await).await), expected);
    });
}

/// The service grants nothing to other sessions before the flush.
#[test]
fn delayed_writes_survive_a_metadata_restart() {
    with_cluster(|cluster| async move {
        let (one, _) = cluster.client_with_write_behind().await;
        let two = cluster.client().await;
        let (file, first) = delayed_file(&one).await;
        keep(&cluster, &one, &file, first..first + 3, b'b').await;
        cluster.restart_metadata().await;
        let theirs = two.open_named("f", RDWR).await;
        two.append(&theirs, b"over").await;
        one.flush(&file).await.unwrap();
        let seen = run_lengths(&two.read_all(&theirs).await);
        let expected = [(b'a', 2 * PAGE), (b'b', 3 * PAGE), (b'o', 1), (b'v', 1), (b'e', 1), (b'r', 1)];
        assert_eq!(seen, expected);
    });
}

/// Storage doesn't answer until the service has granted leases to others: the flush must not
/// overwrite their writes, and the application must get an error.
#[test]
fn a_late_flush_is_never_executed() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_with_write_behind().await;
        let two = cluster.client().await;
        let (file, first) = delayed_file(&one).await;
        keep(&cluster, &one, &file, first..first + 3, b'b').await;
        way.cut();
        cluster.restart_metadata().await;
        let theirs = two.open_named("f", RDWR).await;
        two.append(&theirs, b"beside").await;
        rt::sleep(LONG).await;
        way.restore();
        assert_eq!(one.flush(&file).await.unwrap_err().errno, Errno::EIO);
        one.flush(&file).await.unwrap();
        let seen = two.read_all(&theirs).await;
        assert_eq!(seen.len(), 2 * PAGE + 6);
        assert_eq!(&seen[2 * PAGE..], b"beside");
        assert_eq!(one.read_all(&file).await, seen);
    });
}

/// A flush is in progress, because of the extent's age or a restart of the metadata service.
#[test]
fn a_close_waits_for_the_flush() {
    for restarts in [false, true] {
        a_close_waits(restarts);
    }
}

fn a_close_waits(restarts: bool) {
    with_cluster(move |cluster| async move {
        let (one, way) = cluster.client_with_write_behind().await;
        let (file, first) = delayed_file(&one).await;
        append_pages(&one, &file, first..first + 3, b'b').await;
        way.cut();
        match restarts {
            true => {
                cluster.restart_metadata().await;
                rt::sleep(Duration::from_millis(300)).await;
            }
            false => rt::sleep(KEPT).await,
        }
        let closing = async {
            let began_ns = rt::monotonic_ns();
            one.flush(&file).await.unwrap();
            rt::monotonic_ns() - began_ns
        };
        let mending = async {
            rt::sleep(Duration::from_secs(1)).await;
            way.restore();
            0
        };
        let both: Vec<std::pin::Pin<Box<dyn Future<Output = u64>>>> =
            vec![Box::pin(closing), Box::pin(mending)];
        let waited_ns = rt::join_all(both).await[0];
        assert!(waited_ns >= 1_000_000_000, "{waited_ns}");
    });
}

/// Expected content of a file.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[offset..end].copy_from_slice(data);
    }
}

/// Two clients with write-behind and one without use a file in turn, in all ways.
async fn in_turn(cluster: &Rc<Cluster>) {
    let below = |limit: u64| (rt::random_u64() % limit) as usize;
    let clients = [
        cluster.client_with_write_behind().await.0,
        cluster.client_with_write_behind().await.0,
        cluster.client().await,
    ];
    let made = clients[0].create_file("f").await;
    let mut files = vec![made];
    for client in &clients[1..] {
        files.push(client.open_named("f", RDWR).await);
    }
    let (mut model, mut who, mut at) = (Model::default(), 0, 0);
    for step in 0..400 {
        if below(12) == 0 {
            who = below(3);
        }
        let (client, file) = (&clients[who], &files[who]);
        match below(40) {
            0..28 => {
                if below(10) == 0 {
                    at = below(model.0.len() as u64 + 5_000);
                }
                let data = vec![1 + below(250) as u8; 1 + below(if below(4) == 0 { 60_000 } else { 3_000 })];
                let append = below(4) == 0;
                at = if append { model.0.len() } else { at };
                let how = WriteOptions { append, durable: below(30) == 0, ..WriteOptions::default() };
                let written = client.write(file, at as u64, IoBuf::from_slice(&data), how).await.unwrap();
                assert_eq!(written, data.len());
                model.write(at, &data);
                at += data.len();
            }
            28..32 => assert!(client.read_all(file).await == model.0, "step {step}"),
            32..34 => assert_eq!(client.size(file.ino()).await, model.0.len() as u64, "step {step}"),
            34 => {
                let size = below(model.0.len() as u64 + 3_000);
                client.set_size(file.ino(), size).await;
                model.0.resize(size, 0);
            }
            35 => client.fsync(file, false).await.unwrap(),
            36 => client.flush(file).await.unwrap(),
            37 => rt::sleep(Duration::from_millis(below(1_500) as u64)).await,
            38 if below(4) == 0 => cluster.restart_metadata().await,
            _ => client.syncfs().await.unwrap(),
        }
    }
    for (client, file) in clients.iter().zip(&files) {
        client.flush(file).await.unwrap();
        assert!(client.read_all(file).await == model.0);
    }
}

#[test]
fn a_file_equals_a_byte_array() {
    for seed in 0..24 {
        with_cluster_of_seed(seed, |cluster| async move { in_turn(&cluster).await });
    }
}
