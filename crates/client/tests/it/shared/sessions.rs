//! Sessions that end, in good order or not.

use super::cluster::{CHUNK, Program, RDONLY, RDWR, ROOT, runs, with_cluster};
use std::time::Duration;
use types::{Errno, InodeId};

#[test]
fn a_session_that_is_not_heard_of_stands_in_nobodys_way_for_long_and_fails_for_good() {
    with_cluster(|cluster| async move {
        let deaf = cluster.unregistered();
        deaf.register().await.unwrap();
        let file = deaf.make("f").await;
        deaf.put(&file, 0, CHUNK, b'x').await;
        let live = cluster.client().await;
        let other = live.open_named("f", RDWR).await;
        assert_eq!(runs(&live.bytes(&other).await), [(b'x', CHUNK)]);
        live.put(&other, 0, 10, b'y').await;
        // It hears of its end when it listens again.
        rt::spawn(deaf.clone().background());
        rt::sleep(Duration::from_secs(1)).await;
        let failed = deaf.try_bytes(&file).await.unwrap_err();
        assert_eq!(failed.errno, Errno::ESTALE);
        assert!(failed.message.contains("session"), "{failed}");
        assert_eq!(deaf.getattr(file.ino()).await.unwrap_err().errno, Errno::ESTALE);
        deaf.release(file).await;
        assert_eq!(runs(&live.bytes(&other).await), [(b'y', 10), (b'x', CHUNK - 10)]);
    });
}

#[test]
fn a_session_that_ends_in_good_order_leaves_sizes_and_no_leases() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.make("f").await;
        one.put(&file, 0, 2 * CHUNK, b'x').await;
        one.shutdown().await.unwrap();
        let before = rt::monotonic_ns();
        two.unlink(ROOT, InodeId::ROOT, b"nothing").await.unwrap_err();
        let open = two.open_named("f", RDONLY).await;
        assert_eq!(two.bytes(&open).await.len(), 2 * CHUNK);
        assert!(rt::monotonic_ns() - before < 1_000_000_000, "nobody was waited for");
        assert_eq!(one.getattr(file.ino()).await.unwrap_err().errno, Errno::ESTALE);
    });
}

#[test]
fn leases_that_nobody_needs_are_given_back() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.make("f").await;
        let ino = file.ino();
        one.release(file).await;
        one.forget(ino, 1);
        rt::sleep(Duration::from_secs(2)).await;
        // Nobody has to be asked: what the other gets, it may keep.
        assert!(two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap().trusted);
        let again = one.open_named("f", RDONLY).await;
        assert!(one.bytes(&again).await.is_empty());
    });
}

#[test]
fn sessions_go_on_after_the_metadata_service_was_started_anew() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.make("f").await;
        one.put(&file, 0, 2 * CHUNK, b'x').await;
        let deleted = one.make("deleted").await;
        one.put(&deleted, 0, CHUNK, b'd').await;
        two.unlink(ROOT, InodeId::ROOT, b"deleted").await.unwrap();
        cluster.restart_names().await;
        // Nothing fails, and what had not been reported is known.
        let writer = two.open_named("f", RDWR).await;
        assert_eq!(runs(&two.bytes(&writer).await), [(b'x', 2 * CHUNK)]);
        two.put(&writer, 2 * CHUNK, 10, b'y').await;
        one.put(&file, 0, 10, b'z').await;
        let expected = [(b'z', 10), (b'x', 2 * CHUNK - 10), (b'y', 10)];
        assert_eq!(runs(&one.bytes(&file).await), expected);
        assert_eq!(runs(&two.bytes(&writer).await), expected);
        assert_eq!(runs(&one.bytes(&deleted).await), [(b'd', CHUNK)]);
        one.release(file).await;
        two.release(writer.clone()).await;
        assert_eq!(two.size(writer.ino()).await, 2 * CHUNK as u64 + 10);
    });
}
