//! Recalls that can't be acknowledged at once.

use super::cluster::{CHUNK, Program, RDWR, runs, with_cluster};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use types::TargetState;

/// Much longer than a session without any message may take to acknowledge.
const LONG: Duration = Duration::from_secs(40);

#[test]
fn a_client_that_waits_for_a_storage_service_keeps_its_session() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_to_cut_from_storage().await;
        let two = cluster.client().await;
        let file = one.make("f").await;
        one.put(&file, 0, 2 * CHUNK, b'x').await;
        way.cut();
        let (writer, written) = (one.clone(), file.clone());
        rt::spawn(async move { writer.put(&written, 2 * CHUNK, CHUNK, b'y').await });
        let done = Rc::new(Cell::new(false));
        let (reader, told) = (two.clone(), done.clone());
        rt::spawn(async move {
            let open = reader.open_named("f", RDWR).await;
            assert_eq!(runs(&reader.bytes(&open).await), [(b'x', 2 * CHUNK), (b'y', CHUNK)]);
            told.set(true);
        });
        rt::sleep(LONG).await;
        assert!(!done.get() && !one.is_over());
        way.mend();
        rt::sleep(Duration::from_secs(3)).await;
        assert!(done.get());
        one.put(&file, 0, 10, b'z').await;
        let open = two.open_named("f", RDWR).await;
        assert_eq!(runs(&two.bytes(&open).await)[0], (b'z', 10));
    });
}

#[test]
fn the_size_of_a_file_is_told_though_its_targets_are_down() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_to_cut_from_storage().await;
        let two = cluster.client().await;
        let file = one.make("f").await;
        one.put(&file, 0, 4 * CHUNK, b'x').await;
        way.cut();
        cluster.targets_are(TargetState::Offline);
        let before = rt::monotonic_ns();
        let attr = two.getattr(file.ino()).await.unwrap();
        assert!(rt::monotonic_ns() - before < 1_000_000_000);
        assert_eq!((attr.size, attr.blocks), (4 * CHUNK as u64, 4 * CHUNK as u64 / 512));
        way.mend();
        cluster.targets_are(TargetState::Online);
        one.put(&file, 4 * CHUNK, 10, b'y').await;
        assert_eq!(two.size(file.ino()).await, 4 * CHUNK as u64 + 10);
    });
}
