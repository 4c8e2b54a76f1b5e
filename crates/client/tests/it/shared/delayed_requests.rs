//! Requests to storage of which a copy is held up in the network, and arrives when another session
//! has the lease.

use super::cluster::{Application, CHUNK, Cluster, RDWR, ROOT, run_lengths, with_cluster};
use super::partitioned_cluster::{FIRST, SECOND, with_partitioned_cluster};
use client::{Client, WriteOptions};
use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, InodeId, Refusal, Result, TargetId};
use wire::{StorageOp, StorageReply, StorageRequest};

/// Longer than a client retries a request whose lease has ended, and than it waits for the end of
/// that.
const LONG: Duration = Duration::from_secs(9);

/// How changes are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changes {
    Pass,
    /// They get no answer until the network passes them again; then they are retransmitted, and a
    /// copy is kept.
    HoldUp,
    /// Like `HoldUp`, and the sender gets a time-out at once.
    TimeOut,
}

/// A network that holds changes up.
pub(crate) struct HoldingNetwork {
    service: Arc<dyn Handler<StorageRequest, StorageReply>>,
    changes: Mutex<Changes>,
    pass: Event,
    held: Mutex<Vec<(StorageRequest, Option<IoBuf>)>>,
}

impl HoldingNetwork {
    pub(crate) fn new(service: Arc<dyn Handler<StorageRequest, StorageReply>>) -> Arc<HoldingNetwork> {
        Arc::new(HoldingNetwork {
            service,
            changes: Mutex::new(Changes::Pass),
            pass: Event::new(),
            held: Mutex::default(),
        })
    }

    fn be(&self, changes: Changes) {
        *self.changes.lock() = changes;
        if changes == Changes::Pass { self.pass.set() } else { self.pass.clear() }
    }

    /// Delivers the held requests; returns their results.
    async fn deliver(&self) -> Vec<Result<()>> {
        let held = std::mem::take(&mut *self.held.lock());
        let mut done = Vec::new();
        for (request, payload) in held {
            done.push(self.service.handle(request, payload).await.map(drop));
        }
        done
    }
}

impl Handler<StorageRequest, StorageReply> for HoldingNetwork {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(async move {
            let is_change = matches!(request.op, StorageOp::Write { .. } | StorageOp::Truncate { .. });
            let changes = *self.changes.lock();
            if !is_change || changes == Changes::Pass {
                return self.service.handle(request, payload).await;
            }
            // The sender may reuse its memory.
            let copy = payload.as_ref().map(|payload| IoBuf::from_slice(payload.as_slice()));
            self.held.lock().push((request.clone(), copy));
            if changes == Changes::TimeOut {
                return Err(Errno::ETIMEDOUT.into());
            }
            self.pass.wait().await;
            self.service.handle(request, payload).await
        })
    }
}

/// Whether all of them were refused.
fn refused(delivered: &[Result<()>]) -> bool {
    !delivered.is_empty()
        && delivered
            .iter()
            .all(|done| done.as_ref().is_err_and(|error| error.errno == Refusal::RevokedLeaseEpoch))
}

async fn two_clients(cluster: &Cluster) -> (Arc<Client>, Arc<Client>, Arc<HoldingNetwork>) {
    let one = cluster.client().await;
    let (two, way) = cluster.client_over_a_holding_network().await;
    (one, two, way)
}

/// The client retries by itself when the metadata service is back; earlier copies must not
/// overwrite later writes.
#[test]
fn a_write_from_before_a_restart_does_not_overwrite_later_ones() {
    with_cluster(|cluster| async move {
        let (one, two, way) = two_clients(&cluster).await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, 4 * CHUNK, b'x').await;
        way.be(Changes::HoldUp);
        let written = Arc::new(Event::new());
        let (client, handle, done) = (two.clone(), file.clone(), written.clone());
        rt::spawn(async move {
            client.fill(&handle, 0, 4 * CHUNK, b'y').await;
            done.set();
        });
        rt::sleep(Duration::from_millis(100)).await;
        let of_before = way.held.lock().len();
        cluster.restart_metadata().await;
        rt::sleep(LONG).await;
        assert!(!written.is_set());
        way.be(Changes::Pass);
        written.wait().await;
        // The retransmissions since then finally arrived over newer connections, which end the
        // older ones with their contents.
        way.held.lock().truncate(of_before);
        let theirs = one.open_named("f", RDWR).await;
        assert_eq!(run_lengths(&one.read_all(&theirs).await), [(b'y', 4 * CHUNK)]);
        one.fill(&theirs, 0, CHUNK, b'z').await;
        assert!(refused(&way.deliver().await));
        let expected = [(b'z', CHUNK), (b'y', 3 * CHUNK)];
        assert_eq!(run_lengths(&one.read_all(&theirs).await), expected);
        assert_eq!(run_lengths(&two.read_all(&file).await), expected);
    });
}

/// Only a reader has used the file since.
#[test]
fn a_late_write_does_not_change_what_was_read_under_a_lease() {
    with_cluster(|cluster| async move {
        let (one, two, way) = two_clients(&cluster).await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, 2 * CHUNK, b'x').await;
        way.be(Changes::TimeOut);
        let late = IoBuf::from_slice(&[b'y'; CHUNK]);
        let failed = two.write(&file, 0, late, WriteOptions::default()).await;
        assert_eq!(failed.unwrap_err().errno, Errno::ETIMEDOUT);
        way.be(Changes::Pass);
        let theirs = one.open_named("f", RDWR).await;
        assert_eq!(run_lengths(&one.read_all(&theirs).await), [(b'x', 2 * CHUNK)]);
        assert!(refused(&way.deliver().await));
        assert_eq!(run_lengths(&one.read_all(&theirs).await), [(b'x', 2 * CHUNK)]);
    });
}

/// The application got an error for its write, and wrote again.
#[test]
fn a_failed_write_does_not_overwrite_a_later_one() {
    with_cluster(|cluster| async move {
        let (_, two, way) = two_clients(&cluster).await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, 2 * CHUNK, b'x').await;
        way.be(Changes::TimeOut);
        let late = IoBuf::from_slice(&[b'y'; CHUNK]);
        assert!(two.write(&file, 0, late, WriteOptions::default()).await.is_err());
        way.be(Changes::Pass);
        let before = cluster.requests();
        two.fill(&file, 0, CHUNK, b'z').await;
        assert_eq!(cluster.requests() - before, 1, "another epoch");
        assert!(refused(&way.deliver().await));
        two.fill(&file, CHUNK, CHUNK, b'z').await;
        assert_eq!(cluster.requests() - before, 1, "and no more than that");
        assert_eq!(run_lengths(&two.read_all(&file).await), [(b'z', 2 * CHUNK)]);
    });
}

/// Data that a failed write may have left beyond the end is truncated before another session gets
/// the file, and doesn't return.
#[test]
fn a_truncated_failed_write_does_not_reappear() {
    with_cluster(|cluster| async move {
        let (one, two, way) = two_clients(&cluster).await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        way.be(Changes::TimeOut);
        let late = IoBuf::from_slice(&[b'y'; 2 * CHUNK]);
        assert!(two.write(&file, CHUNK as u64, late, WriteOptions::default()).await.is_err());
        way.be(Changes::Pass);
        let theirs = one.open_named("f", RDWR).await;
        assert_eq!(one.size(file.ino()).await, CHUNK as u64);
        assert!(refused(&way.deliver().await));
        one.set_size(file.ino(), 3 * CHUNK).await;
        assert_eq!(run_lengths(&one.read_all(&theirs).await), [(b'x', CHUNK), (0, 2 * CHUNK)]);
    });
}

/// Sessions that share a file learn that their epoch has ended when a target refuses them, and
/// continue.
#[test]
fn sharing_writers_continue_in_the_new_epoch() {
    with_cluster(|cluster| async move {
        let (one, two, way) = two_clients(&cluster).await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, 8 * CHUNK, b'x').await;
        let theirs = one.open_named("f", RDWR).await;
        one.fill(&theirs, 4 * CHUNK, CHUNK, b'1').await;
        two.fill(&file, 0, CHUNK, b'2').await;
        let before = cluster.requests();
        for _ in 0..5 {
            one.fill(&theirs, 4 * CHUNK, CHUNK, b'1').await;
            two.fill(&file, 0, CHUNK, b'2').await;
        }
        assert_eq!(cluster.requests(), before, "nobody is asked");
        way.be(Changes::TimeOut);
        let late = IoBuf::from_slice(&[b'y'; 8 * CHUNK]);
        assert!(two.write(&file, 0, late, WriteOptions::default()).await.is_err());
        way.be(Changes::Pass);
        two.fill(&file, 0, 3 * CHUNK, b'3').await;
        assert!(refused(&way.deliver().await));
        one.fill(&theirs, CHUNK, CHUNK, b'4').await;
        assert_eq!(cluster.requests() - before, 2, "each of them asks once");
        let expected =
            [(b'3', CHUNK), (b'4', CHUNK), (b'3', CHUNK), (b'x', CHUNK), (b'1', CHUNK), (b'x', 3 * CHUNK)];
        assert_eq!(run_lengths(&one.read_all(&theirs).await), expected);
        assert_eq!(run_lengths(&two.read_all(&file).await), expected);
    });
}

/// A service was migrating a file off a target when another service took over its partition, which
/// migrates the file now.
#[test]
fn requests_of_a_deposed_migrator_are_fenced() {
    with_partitioned_cluster(|cluster| async move {
        let one = cluster.client().await;
        let is_moved = |partition| partition != InodeId::ROOT.partition();
        let dir = cluster.directory_in(&one, is_moved).await;
        let file = one.create(ROOT, dir, b"f", 0o100_644, 0, RDWR).await.unwrap().1;
        let len = one.write(&file, 0, IoBuf::from_slice(&vec![b'x'; 4 << 20]), WriteOptions::default()).await;
        let (len, partition) = (len.unwrap(), file.ino().partition());
        one.fsync(&file, false).await.unwrap();
        let way = cluster.storage_connection(FIRST);
        way.be(Changes::HoldUp);
        cluster.change_map(|map| map.targets[0].drain = true);
        while way.held.lock().is_empty() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        cluster.assign([partition], SECOND);
        cluster.wait_for_owners().await;
        let target = TargetId(1);
        let moved = || async {
            let left = cluster.chunk_files(target).await;
            !left.iter().any(|name| name.owner() == file.ino())
        };
        while !moved().await {
            rt::sleep(Duration::from_millis(100)).await;
        }
        one.fill(&file, 0, len, b'z').await;
        let before = cluster.all_chunk_files().await;
        assert!(refused(&way.deliver().await));
        assert_eq!(cluster.all_chunk_files().await, before, "nothing is made again");
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'z', len)]);
    });
}
