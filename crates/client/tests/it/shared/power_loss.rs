//! Power loss of the metadata store while applications continue.

use super::cluster::{Application, CHUNK, RDWR, run_lengths, with_cluster};
use std::time::Duration;
use types::Errno;

/// Longer than it takes until changes are on disk without a sync.
const SETTLED: Duration = Duration::from_secs(2);

#[test]
fn fsync_reports_a_size_lost_by_the_metadata_store() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let (file, other) = (one.create_file("f").await, one.create_file("other").await);
        one.fsync(&file, false).await.unwrap();
        one.fill(&other, 0, CHUNK, b'o').await;
        one.fsync(&other, false).await.unwrap();
        rt::sleep(SETTLED).await;
        one.fill(&file, 0, 2 * CHUNK, b'x').await;
        cluster.cut_power_of_metadata().await;
        let told = one.fsync(&file, false).await;
        assert_eq!(told.map_err(|error| error.errno), Err(Errno::EIO));
        one.fsync(&file, false).await.unwrap();
        one.fsync(&other, false).await.unwrap();
        one.fill(&file, 0, 2 * CHUNK, b'y').await;
        one.fsync(&file, false).await.unwrap();
        cluster.cut_power_of_metadata().await;
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'y', 2 * CHUNK)]);
        assert_eq!(run_lengths(&one.read_all(&other).await), [(b'o', CHUNK)]);
    });
}

#[test]
fn fsync_reports_it_for_a_reopened_file() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let file = one.create_file("f").await;
        one.fsync(&file, false).await.unwrap();
        rt::sleep(SETTLED).await;
        one.fill(&file, 0, 100, b'x').await;
        one.release(file).await;
        cluster.cut_power_of_metadata().await;
        let file = one.open_named("f", RDWR).await;
        assert_eq!(one.fsync(&file, false).await.map_err(|error| error.errno), Err(Errno::EIO));
        one.fsync(&file, false).await.unwrap();
    });
}

#[test]
fn fsyncdir_reports_a_loss_of_the_metadata_store() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        one.create_file("f").await;
        let root = types::InodeId::ROOT;
        one.fsyncdir(root).await.unwrap();
        cluster.cut_power_of_metadata().await;
        assert_eq!(one.fsyncdir(root).await.map_err(|error| error.errno), Err(Errno::EIO));
        one.fsyncdir(root).await.unwrap();
        assert!(one.lookup(types::Credentials::default(), root, b"f").await.is_ok());
    });
}
