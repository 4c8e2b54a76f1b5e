//! Times that an application sets while the client has unreported ones.

use super::cluster::{CHUNK, Cluster, with_cluster_of_seed};
use net::LocalFuture;
use std::time::Duration;
use types::{Credentials, InodeId, SetAttr, SetTime, Timestamp};
use wire::StorageOp;

/// The time that the application sets.
const SET: Timestamp = Timestamp::new(1_000_000_000, 5);
/// How long the close takes to query the targets for its report.
const CLOSE_TIME: Duration = Duration::from_millis(4);
/// Latest start of the change, in milliseconds after the close, which has ended by then.
const LAST_START_MS: u64 = 8;

async fn set_mtime(cluster: &Cluster, ino: InodeId) {
    let set = SetAttr { mtime: Some(SetTime::At(SET)), ..SetAttr::default() };
    let attr = cluster.client.setattr(Credentials::default(), ino, set, None).await.unwrap();
    assert_eq!(attr.mtime, SET);
}

#[test]
fn an_mtime_set_after_a_write_stays_whenever_the_file_is_closed() {
    for start_ms in 0..=LAST_START_MS {
        with_cluster_of_seed(start_ms, move |cluster| async move {
            let (ino, file) = cluster.create("f").await;
            cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
            cluster.storage.delay(CLOSE_TIME, |request| matches!(request.op, StorageOp::Stat));
            let close: LocalFuture<'_, ()> = Box::pin(cluster.client.release(file));
            let change: LocalFuture<'_, ()> = Box::pin(async {
                rt::sleep(Duration::from_millis(start_ms)).await;
                set_mtime(&cluster, ino).await;
            });
            rt::join_all(vec![close, change]).await;
            assert_eq!(cluster.client.getattr(ino).await.unwrap().mtime, SET, "set {start_ms} ms after");
            let cluster = cluster.restart().await;
            assert_eq!(cluster.client.getattr(ino).await.unwrap().mtime, SET, "set {start_ms} ms after");
        });
    }
}
