//! Results of `statfs(2)`.

use super::cluster::{Program, with_cluster};
use std::time::Duration;

#[test]
fn what_was_counted_last_is_told_while_the_metadata_service_is_away() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_to_cut().await;
        let file = one.make("f").await;
        let before = one.statfs().await.unwrap();
        assert!(before.files > before.files_free);
        way.cut();
        // The last values are cached for a second.
        rt::sleep(Duration::from_secs(2)).await;
        let after = rt::timeout(Duration::from_secs(10), one.statfs()).await;
        let after = after.expect("it doesn't wait for the service").unwrap();
        assert_eq!((after.files, after.files_free), (before.files, before.files_free));
        way.mend();
        one.release(file).await;
    });
}
