//! A change that failed on one target leaves data beyond the end of a file, which must never be
//! readable.

use super::cluster::{CHUNK, TARGETS, with_cluster};
use types::{Errno, TargetId};
use wire::{MetaOp, StorageOp};

/// The target that fails.
const FAILING: TargetId = TargetId(3);
/// Size of a stripe over all targets, in bytes.
const STRIPE: usize = CHUNK * TARGETS as usize;

#[test]
fn a_write_after_a_partial_truncate_survives_a_restart_without_old_data() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, STRIPE, b'o').await.unwrap();
        cluster.storage.refuse_next(Errno::EIO, |request| {
            request.target == FAILING && matches!(request.op, StorageOp::Truncate { .. })
        });
        assert_eq!(cluster.set_size(ino, 1000).await.unwrap_err().errno, Errno::EIO);
        assert!(cluster.storage.has_refused_all());
        cluster.fill(&file, 4 * STRIPE, CHUNK, b'n').await.unwrap();
        let expected = [(b'o', 1000), (0, 4 * STRIPE - 1000), (b'n', CHUNK)];
        assert_eq!(cluster.runs(&file).await, expected);
        cluster.client.release(file).await;

        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, expected);
    });
}

#[test]
fn a_partial_truncate_is_completed_by_the_close() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, STRIPE, b'o').await.unwrap();
        cluster.storage.refuse_next(Errno::EIO, |request| {
            request.target == FAILING && matches!(request.op, StorageOp::Truncate { .. })
        });
        cluster.set_size(ino, 1000).await.unwrap_err();
        cluster.client.release(file).await;
        assert_eq!(cluster.meta.succeeded(|r| matches!(r.op, MetaOp::TruncateDone { .. })), 1);

        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, [(b'o', 1000)]);
        cluster.set_size(ino, STRIPE).await.unwrap();
        assert_eq!(cluster.runs(&file).await, [(b'o', 1000), (0, STRIPE - 1000)]);
    });
}

/// A service that sees no pending truncation doesn't measure the chunk files of a session that
/// dies: the blocks of the longer file would stay on record, and hide that the shorter one has
/// holes.
#[test]
fn the_blocks_of_a_shorter_file_are_on_record_before_its_truncation_counts_as_done() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, STRIPE, b'o').await.unwrap();
        cluster.client.fsync(&file, false).await.unwrap();
        assert_eq!(cluster.client.getattr(ino).await.unwrap().blocks, STRIPE as u64 / 512);
        cluster.meta.refuse_next(Errno::EIO, |request| matches!(request.op, MetaOp::TruncateDone { .. }));
        cluster.set_size(ino, CHUNK).await.unwrap_err();
        assert!(cluster.meta.has_refused_all());
        let recorded = cluster.recorded_attr(ino).await;
        assert_eq!((recorded.size, recorded.blocks), (CHUNK as u64, CHUNK as u64 / 512));
        cluster.client.release(file).await;
    });
}

/// Extends a file, by a write or a truncation, after a write beyond its end failed on one target,
/// and checks that the failed write isn't readable.
fn check_failed_extension(grow_by_write: bool) {
    with_cluster(move |cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'o').await.unwrap();
        let before = cluster.storage.succeeded(|request| matches!(request.op, StorageOp::Write { .. }));
        cluster.storage.refuse_next(Errno::ENOSPC, |request| {
            request.target == FAILING && matches!(request.op, StorageOp::Write { .. })
        });
        let failed = cluster.fill(&file, CHUNK, STRIPE, b'x').await;
        assert_eq!(failed.unwrap_err().errno, Errno::ENOSPC);
        let taken =
            cluster.storage.succeeded(|request| matches!(request.op, StorageOp::Write { .. })) - before;
        assert_eq!(taken, TARGETS as usize - 1, "the other targets took their part");
        assert_eq!(cluster.runs(&file).await, [(b'o', CHUNK)]);

        let mut expected = vec![(b'o', CHUNK), (0, 3 * STRIPE - CHUNK)];
        if grow_by_write {
            cluster.fill(&file, 3 * STRIPE, CHUNK, b'n').await.unwrap();
            expected.push((b'n', CHUNK));
        } else {
            cluster.set_size(ino, 3 * STRIPE).await.unwrap();
        }
        assert_eq!(cluster.runs(&file).await, expected);
        cluster.client.release(file).await;

        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, expected);
    });
}

#[test]
fn an_extension_that_failed_on_one_target_stays_hidden_when_a_write_makes_the_file_longer() {
    check_failed_extension(true);
}

#[test]
fn an_extension_that_failed_on_one_target_stays_hidden_when_a_truncate_makes_the_file_longer() {
    check_failed_extension(false);
}

#[test]
fn an_extension_that_failed_on_one_target_stays_hidden_after_a_restart() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'o').await.unwrap();
        cluster.storage.refuse_next(Errno::ENOSPC, |request| {
            request.target == FAILING && matches!(request.op, StorageOp::Write { .. })
        });
        cluster.fill(&file, CHUNK, STRIPE, b'x').await.unwrap_err();
        cluster.client.release(file).await;

        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, [(b'o', CHUNK)]);
        cluster.set_size(ino, 2 * STRIPE).await.unwrap();
        assert_eq!(cluster.runs(&file).await, [(b'o', CHUNK), (0, 2 * STRIPE - CHUNK)]);
    });
}
