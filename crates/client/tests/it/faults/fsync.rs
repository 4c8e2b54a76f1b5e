//! `fsync` of several at once.

use super::cluster::{CHUNK, TARGETS, with_cluster};
use net::LocalFuture;
use std::time::Duration;
use types::{Errno, TargetId};
use wire::{MetaOp, MetaResponse, StorageOp, StorageReply};

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

/// A target loses its power with what a program has written, and is emptied before the program
/// syncs: the file isn't there any more, and what was lost is.
#[test]
fn an_fsync_tells_of_what_was_lost_where_the_file_was_before_it_moved() {
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

/// The metadata store loses its power with what it had been told of a file, and its service tells
/// so when it is asked to sync.
#[test]
fn an_fsync_tells_of_what_went_with_the_metadata_store() {
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
        cluster.names.change_answers(later);
        let told = cluster.client.fsync(&file, false).await;
        assert_eq!(told.map_err(|error| error.errno), Err(Errno::EIO));
        cluster.client.fsync(&file, false).await.unwrap();
        // What was synced before isn't concerned, nor what is written over in place.
        cluster.client.fsync(&synced, false).await.unwrap();
        cluster.fill(&file, 0, CHUNK, b'c').await.unwrap();
        cluster.client.fsync(&file, false).await.unwrap();
    });
}
