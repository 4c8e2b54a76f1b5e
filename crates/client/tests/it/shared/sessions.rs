//! Sessions that end, cleanly or not.

use super::cluster::{Application, CHUNK, RDONLY, RDWR, ROOT, run_lengths, with_cluster};
use client::{Cancel, Client};
use net::{Handler, LocalFuture};
use rt::IoBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::channel::MetaHandler;
use types::{Errno, InodeId, Result};
use wire::{LockFamily, LockKind, LockOwner, LockRange, MetaOp, MetaRequest, MetaResponse};

/// Counts the open inodes that a client reports when it registers again.
struct CountingHandler {
    service: MetaHandler,
    all: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Handler<MetaRequest, MetaResponse> for CountingHandler {
    fn handle(&self, request: MetaRequest, payload: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
        if let MetaOp::Register { in_use: told, .. } | MetaOp::ReclaimOpens { inodes: told } = &request.op {
            self.all.fetch_add(told.len(), Relaxed);
            self.most_at_once.fetch_max(told.len(), Relaxed);
        }
        self.service.handle(request, payload)
    }
}

#[test]
fn an_unreachable_session_is_evicted_and_fails() {
    with_cluster(|cluster| async move {
        let deaf = cluster.unregistered();
        deaf.register().await.unwrap();
        let file = deaf.create_file("f").await;
        deaf.fill(&file, 0, CHUNK, b'x').await;
        let live = cluster.client().await;
        let other = live.open_named("f", RDWR).await;
        assert_eq!(run_lengths(&live.read_all(&other).await), [(b'x', CHUNK)]);
        live.fill(&other, 0, 10, b'y').await;
        // It learns of its end when it receives messages again.
        rt::spawn(deaf.clone().background());
        rt::sleep(Duration::from_secs(1)).await;
        let failed = deaf.try_read_all(&file).await.unwrap_err();
        assert_eq!(failed.errno, Errno::ESTALE);
        assert!(failed.message.contains("session"), "{failed}");
        assert_eq!(deaf.getattr(file.ino()).await.unwrap_err().errno, Errno::ESTALE);
        deaf.release(file).await;
        assert_eq!(run_lengths(&live.read_all(&other).await), [(b'y', 10), (b'x', CHUNK - 10)]);
    });
}

#[test]
fn a_clean_shutdown_reports_sizes_and_returns_leases() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 2 * CHUNK, b'x').await;
        one.shutdown().await.unwrap();
        let before = rt::monotonic_ns();
        two.unlink(ROOT, InodeId::ROOT, b"nothing").await.unwrap_err();
        let open = two.open_named("f", RDONLY).await;
        assert_eq!(two.read_all(&open).await.len(), 2 * CHUNK);
        assert!(rt::monotonic_ns() - before < 1_000_000_000, "nobody was waited for");
        assert_eq!(one.getattr(file.ino()).await.unwrap_err().errno, Errno::ESTALE);
    });
}

#[test]
fn unused_leases_are_released() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        let ino = file.ino();
        one.release(file).await;
        one.forget(ino, 1);
        rt::sleep(Duration::from_secs(2)).await;
        // No recall is needed: the other client may cache the answer.
        assert!(two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap().cacheable);
        let again = one.open_named("f", RDONLY).await;
        assert!(one.read_all(&again).await.is_empty());
    });
}

#[test]
fn sessions_survive_a_metadata_restart() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 2 * CHUNK, b'x').await;
        let deleted = one.create_file("deleted").await;
        one.fill(&deleted, 0, CHUNK, b'd').await;
        two.unlink(ROOT, InodeId::ROOT, b"deleted").await.unwrap();
        cluster.restart_metadata().await;
        // Nothing fails, and what had not been reported is known.
        let writer = two.open_named("f", RDWR).await;
        assert_eq!(run_lengths(&two.read_all(&writer).await), [(b'x', 2 * CHUNK)]);
        two.fill(&writer, 2 * CHUNK, 10, b'y').await;
        one.fill(&file, 0, 10, b'z').await;
        let expected = [(b'z', 10), (b'x', 2 * CHUNK - 10), (b'y', 10)];
        assert_eq!(run_lengths(&one.read_all(&file).await), expected);
        assert_eq!(run_lengths(&two.read_all(&writer).await), expected);
        assert_eq!(run_lengths(&one.read_all(&deleted).await), [(b'd', CHUNK)]);
        one.release(file).await;
        two.release(writer.clone()).await;
        assert_eq!(two.size(writer.ino()).await, 2 * CHUNK as u64 + 10);
    });
}

/// A list in a message is bounded, the number of open files of a session isn't.
#[test]
fn many_open_files_are_reclaimed_in_several_requests() {
    const OPEN: usize = 4500;
    const PIECE: usize = 4096;
    with_cluster(|cluster| async move {
        let told = Arc::new(CountingHandler {
            service: cluster.metadata.handler(),
            all: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        });
        let one = cluster.client_through(told.clone()).await;
        let two = cluster.client().await;
        let mut files = Vec::new();
        for n in 0..OPEN {
            files.push(one.create_file(&format!("f{n}")).await);
        }
        let deleted: Vec<InodeId> = files.iter().step_by(90).map(|file| file.ino()).collect();
        for n in (0..OPEN).step_by(90) {
            two.unlink(ROOT, InodeId::ROOT, format!("f{n}").as_bytes()).await.unwrap();
        }
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_secs(5)).await;
        assert_eq!(told.all.load(Relaxed), OPEN);
        assert!(told.most_at_once.load(Relaxed) <= PIECE);
        for &ino in &deleted {
            assert_eq!(one.getattr(ino).await.unwrap().nlink, 0, "{ino} is open, and gone");
        }
    });
}

/// Reports locks on one file as held by another session.
struct Lost {
    service: MetaHandler,
    file: Mutex<Option<InodeId>>,
}

impl Handler<MetaRequest, MetaResponse> for Lost {
    fn handle(&self, request: MetaRequest, payload: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
        let lost = *self.file.lock().unwrap();
        match &request.op {
            MetaOp::ReclaimLocks { locks } if locks.iter().any(|lock| Some(lock.ino) == lost) => {
                Box::pin(async { Err(Errno::EAGAIN.into()) })
            }
            _ => self.service.handle(request, payload),
        }
    }
}

#[test]
fn a_session_that_has_lost_one_lock_keeps_the_others() {
    const WHOLE: LockRange = LockRange { start: 0, last: u64::MAX };
    with_cluster(|cluster| async move {
        let way = Arc::new(Lost { service: cluster.metadata.handler(), file: Mutex::default() });
        let one = cluster.client_through(way.clone()).await;
        let two = cluster.client().await;
        let lock = async |client: &Arc<Client>, ino, owner| {
            let (space, kind, cancel) = (LockFamily::Posix, LockKind::Exclusive, Cancel::default());
            client.lock(ino, space, LockOwner(owner), 1, kind, WHOLE, false, &cancel).await
        };
        let inodes = [
            one.create_file("a").await.ino(),
            one.create_file("b").await.ino(),
            one.create_file("c").await.ino(),
        ];
        for ino in inodes {
            lock(&one, ino, 1).await.unwrap();
        }
        *way.file.lock().unwrap() = Some(inodes[1]);
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_secs(5)).await;
        lock(&two, inodes[1], 2).await.unwrap();
        for ino in [inodes[0], inodes[2]] {
            assert_eq!(lock(&two, ino, 2).await.unwrap_err().errno, Errno::EAGAIN);
        }
    });
}
