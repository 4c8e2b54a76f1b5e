//! Results of `statfs(2)`.

use super::cluster::{Application, with_cluster};
use std::time::Duration;

#[test]
fn statfs_returns_the_last_count_while_metadata_is_down() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_with_cuttable_meta().await;
        let file = one.create_file("f").await;
        let before = one.statfs().await.unwrap();
        assert!(before.files > before.files_free);
        way.cut();
        // The last values are cached for a second.
        rt::sleep(Duration::from_secs(2)).await;
        let after = rt::timeout(Duration::from_secs(10), one.statfs()).await;
        let after = after.expect("it doesn't wait for the service").unwrap();
        assert_eq!((after.files, after.files_free), (before.files, before.files_free));
        way.restore();
        one.release(file).await;
    });
}
