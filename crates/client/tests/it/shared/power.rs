//! Power loss of the metadata store while applications continue.

use super::cluster::{CHUNK, Program, RDWR, runs, with_cluster};
use std::time::Duration;
use types::Errno;

/// Longer than it takes until changes are on disk without a sync.
const SETTLED: Duration = Duration::from_secs(2);

#[test]
fn an_fsync_tells_of_a_size_that_went_with_the_metadata_store() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let (file, other) = (one.make("f").await, one.make("other").await);
        one.fsync(&file, false).await.unwrap();
        one.put(&other, 0, CHUNK, b'o').await;
        one.fsync(&other, false).await.unwrap();
        rt::sleep(SETTLED).await;
        one.put(&file, 0, 2 * CHUNK, b'x').await;
        cluster.lose_power_of_names().await;
        let told = one.fsync(&file, false).await;
        assert_eq!(told.map_err(|error| error.errno), Err(Errno::EIO));
        one.fsync(&file, false).await.unwrap();
        one.fsync(&other, false).await.unwrap();
        one.put(&file, 0, 2 * CHUNK, b'y').await;
        one.fsync(&file, false).await.unwrap();
        cluster.lose_power_of_names().await;
        assert_eq!(runs(&one.bytes(&file).await), [(b'y', 2 * CHUNK)]);
        assert_eq!(runs(&one.bytes(&other).await), [(b'o', CHUNK)]);
    });
}

#[test]
fn an_fsync_tells_so_also_of_a_file_that_was_closed_meanwhile() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let file = one.make("f").await;
        one.fsync(&file, false).await.unwrap();
        rt::sleep(SETTLED).await;
        one.put(&file, 0, 100, b'x').await;
        one.release(file).await;
        cluster.lose_power_of_names().await;
        let file = one.open_named("f", RDWR).await;
        assert_eq!(one.fsync(&file, false).await.map_err(|error| error.errno), Err(Errno::EIO));
        one.fsync(&file, false).await.unwrap();
    });
}

#[test]
fn a_sync_of_a_directory_tells_of_names_that_may_have_gone_with_the_metadata_store() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        one.make("f").await;
        let root = types::InodeId::ROOT;
        one.fsyncdir(root).await.unwrap();
        cluster.lose_power_of_names().await;
        assert_eq!(one.fsyncdir(root).await.map_err(|error| error.errno), Err(Errno::EIO));
        one.fsyncdir(root).await.unwrap();
        assert!(one.lookup(types::Credentials::default(), root, b"f").await.is_ok());
    });
}
