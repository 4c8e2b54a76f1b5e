//! `fsync` of several at once.

use crate::cluster::{CHUNK, TARGETS, with_cluster};
use net::LocalFuture;
use std::time::Duration;
use wire::StorageOp;

/// How long a target takes for a sync.
const SYNC_TIME: Duration = Duration::from_millis(100);
/// When the second program calls: the targets are busy with the first one's sync.
const LATER: Duration = Duration::from_millis(10);

#[test]
fn an_fsync_beside_another_waits_for_the_disks_too() {
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
