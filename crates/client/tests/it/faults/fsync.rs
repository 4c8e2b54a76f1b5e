//! Concurrent `fsync` calls, and `fsync` after losses.

use super::cluster::{CHUNK, TARGETS, with_cluster};
use net::LocalFuture;
use std::time::Duration;
use types::{Errno, TargetId};
use wire::{MetaOp, MetaResponse, StorageOp, StorageReply};

/// Duration of a sync on a target.
const SYNC_TIME: Duration = Duration::from_millis(100);
/// Delay of the second application's call: the targets are busy with the first sync.
const LATER: Duration = Duration::from_millis(10);

#[test]
fn a_concurrent_fsync_waits_for_the_disks() {
    with_cluster(|cluster| async move {
        let (_, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK * TARGETS as usize, b'a').await.unwrap();
        cluster.storage.delay(SYNC_TIME, |request| matches!(request.op, StorageOp::Sync));
        let synced = || cluster.storage.succeeded(|request| matches!(request.op, StorageOp::Sync));
        assert_eq!(synced(), 0);
        let fsync_after = |wait: Duration| -> LocalFuture<'_, usize> {
            let (cluster, file, synced) = (&cluster, &file, &synced);
            Box::pin(async move {
                rt::sleep(wait).await;
                cluster.client.fsync(file, false).await.unwrap();
                synced()
            })
        };
        let seen = rt::join_all(vec![fsync_after(Duration::ZERO), fsync_after(LATER)]).await;
        for synced in seen {
            assert!(synced >= TARGETS as usize, "an fsync returned after {synced} targets were on disk");
        }
    });
}

#[test]
fn an_fsync_that_failed_on_one_target_syncs_all_again_the_next_time() {
    with_cluster(|cluster| async move {
        let (_, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK * TARGETS as usize, b'a').await.unwrap();
        let refused = types::TargetId(2);
        cluster.storage.refuse_next(types::Errno::EIO, move |request| {
            request.target == refused && matches!(request.op, StorageOp::Sync)
        });
        cluster.client.fsync(&file, false).await.unwrap_err();
        cluster.client.fsync(&file, false).await.unwrap();
        let synced = cluster
            .storage
            .succeeded(|request| request.target == refused && matches!(request.op, StorageOp::Sync));
        assert_eq!(synced, 1);
    });
}

/// A target loses power and unsynced writes, and is drained before the application syncs: the file
/// isn't there any more, but the loss is.
#[test]
fn fsync_reports_a_loss_at_a_location_before_migration() {
    with_cluster(|cluster| async move {
        let (_, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK * TARGETS as usize, b'a').await.unwrap();
        let emptied = TargetId(2);
        cluster.storage.change_answers(move |request, reply| match reply {
            StorageReply::Done { verifier } if request.target == emptied => {
                StorageReply::Done { verifier: verifier.wrapping_add(1) }
            }
            reply => reply,
        });
        cluster.start_moving();
        assert!(cluster.empty(emptied).await);
        let told = cluster.client.fsync(&file, false).await;
        assert_eq!(told.map_err(|error| error.errno), Err(Errno::EIO));
        cluster.client.fsync(&file, false).await.unwrap();
        cluster.fill(&file, 0, CHUNK * TARGETS as usize, b'b').await.unwrap();
        cluster.client.fsync(&file, false).await.unwrap();
        assert_eq!(cluster.runs(&file).await, [(b'b', CHUNK * TARGETS as usize)]);
    });
}

/// The metadata store loses power and unsynced state of a file, and its service reports that when
/// it is asked to sync.
#[test]
fn fsync_reports_a_loss_of_the_metadata_store() {
    with_cluster(|cluster| async move {
        let (_, file) = cluster.create("f").await;
        let (_, synced) = cluster.create("synced").await;
        for file in [&file, &synced] {
            cluster.fill(file, 0, CHUNK, b'a').await.unwrap();
            cluster.client.fsync(file, false).await.unwrap();
        }
        cluster.fill(&file, CHUNK, CHUNK, b'b').await.unwrap();
        let later = |request: &wire::MetaRequest, response: MetaResponse| match request.op {
            MetaOp::Sync => MetaResponse { verifier: response.verifier + 1, ..response },
            _ => response,
        };
        cluster.meta.change_answers(later);
        let told = cluster.client.fsync(&file, false).await;
        assert_eq!(told.map_err(|error| error.errno), Err(Errno::EIO));
        cluster.client.fsync(&file, false).await.unwrap();
        // Changes that were synced before aren't concerned, nor overwrites in place.
        cluster.client.fsync(&synced, false).await.unwrap();
        cluster.fill(&file, 0, CHUNK, b'c').await.unwrap();
        cluster.client.fsync(&file, false).await.unwrap();
    });
}
