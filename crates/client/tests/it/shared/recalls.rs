//! Recalls that can't be acknowledged at once.

use super::cluster::{Application, CHUNK, RDWR, run_lengths, with_cluster};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use types::TargetState;

/// Much longer than a session without any message may take to acknowledge.
const LONG: Duration = Duration::from_secs(40);

#[test]
fn a_client_that_waits_for_a_storage_service_keeps_its_session() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_with_cuttable_storage().await;
        let two = cluster.client().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 2 * CHUNK, b'x').await;
        way.cut();
        let (writer, written) = (one.clone(), file.clone());
        rt::spawn(async move { writer.fill(&written, 2 * CHUNK, CHUNK, b'y').await });
        let done = Rc::new(Cell::new(false));
        let (reader, told) = (two.clone(), done.clone());
        rt::spawn(async move {
            let open = reader.open_named("f", RDWR).await;
            assert_eq!(run_lengths(&reader.read_all(&open).await), [(b'x', 2 * CHUNK), (b'y', CHUNK)]);
            told.set(true);
        });
        rt::sleep(LONG).await;
        assert!(!done.get() && !one.has_ended());
        way.restore();
        rt::sleep(Duration::from_secs(3)).await;
        assert!(done.get());
        one.fill(&file, 0, 10, b'z').await;
        let open = two.open_named("f", RDWR).await;
        assert_eq!(run_lengths(&two.read_all(&open).await)[0], (b'z', 10));
    });
}

#[test]
fn a_size_is_reported_while_targets_are_down() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_with_cuttable_storage().await;
        let two = cluster.client().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 4 * CHUNK, b'x').await;
        way.cut();
        cluster.set_target_state(TargetState::Offline);
        let before = rt::monotonic_ns();
        let attr = two.getattr(file.ino()).await.unwrap();
        assert!(rt::monotonic_ns() - before < 1_000_000_000);
        assert_eq!((attr.size, attr.blocks), (4 * CHUNK as u64, 4 * CHUNK as u64 / 512));
        way.restore();
        cluster.set_target_state(TargetState::Online);
        one.fill(&file, 4 * CHUNK, 10, b'y').await;
        assert_eq!(two.size(file.ino()).await, 4 * CHUNK as u64 + 10);
    });
}
