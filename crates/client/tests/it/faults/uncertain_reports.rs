//! Requests to the metadata service whose answers are lost, so that their outcome is uncertain.

use super::cluster::{CHUNK, Cluster, with_cluster};
use std::time::Duration;
use types::{Errno, InodeId};
use wire::{MetaOp, MetaRequest};

fn ends_writing(request: &MetaRequest) -> bool {
    matches!(request.op, MetaOp::EndWrite { done: true, .. })
}

/// The size that the services have on record.
async fn size_on_record(cluster: &Cluster, ino: InodeId) -> usize {
    cluster.other_client().getattr(ino).await.unwrap().size as usize
}

/// Until it is reported, the file counts as open and would keep its space when it is deleted.
#[test]
fn a_close_that_could_not_be_reported_is_reported_later() {
    with_cluster(|cluster| async move {
        rt::spawn(cluster.client.clone().background());
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        for _ in 0..2 {
            cluster.meta.refuse_next(Errno::ETIMEDOUT, ends_writing);
        }
        cluster.client.release(file).await;
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.meta.succeeded(ends_writing), 0);
        rt::sleep(Duration::from_secs(20)).await;
        assert!(cluster.meta.has_refused_all());
        assert_eq!(cluster.meta.succeeded(ends_writing), 1);
        assert_eq!(size_on_record(&cluster, ino).await, CHUNK);
    });
}

/// If the service has executed the `EndWrite`, it would not accept the report of later writes as an
/// extension of the file.
#[test]
fn writes_after_an_unanswered_end_write_are_recorded() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        cluster.meta.lose_next_answer(ends_writing);
        cluster.client.release(file).await;
        assert!(cluster.meta.has_refused_all());
        assert_eq!(size_on_record(&cluster, ino).await, CHUNK);

        let file = cluster.open(ino).await;
        cluster.fill(&file, CHUNK, CHUNK, b'b').await.unwrap();
        cluster.client.release(file).await;
        assert_eq!(size_on_record(&cluster, ino).await, 2 * CHUNK);
        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, [(b'a', CHUNK), (b'b', CHUNK)]);
    });
}

/// The session is on record as a writer of the file before it changes anything again: if it dies
/// now, the service recovers what it wrote.
#[test]
fn an_uncertain_end_write_is_followed_by_begin_write() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        cluster.meta.lose_next_answer(ends_writing);
        cluster.client.release(file).await;

        let begun = |cluster: &Cluster| {
            cluster.meta.succeeded(|request| matches!(request.op, MetaOp::BeginWrite { .. }))
        };
        let before = begun(&cluster);
        let file = cluster.open(ino).await;
        // A report that ends nothing doesn't resolve the outcome of the one before.
        cluster.client.fsync(&file, false).await.unwrap();
        cluster.fill(&file, 0, CHUNK, b'b').await.unwrap();
        assert_eq!(begun(&cluster) - before, 1);
        cluster.fill(&file, CHUNK, CHUNK, b'c').await.unwrap();
        assert_eq!(begun(&cluster) - before, 1, "once is enough");
        cluster.client.fsync(&file, false).await.unwrap();
        assert_eq!(size_on_record(&cluster, ino).await, 2 * CHUNK);
    });
}

/// A report that is sent twice: the size in the second answer shows that it must be repeated.
#[test]
fn a_report_after_end_write_is_repeated() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        // An older report of this session, which no longer waits for it, arrives late.
        let late = MetaOp::EndWrite {
            ino,
            size: 0,
            blocks: 0,
            lens: Vec::new(),
            mtime: None,
            done: true,
            kill_suid_sgid: false,
        };
        cluster.deliver_late(late).await;
        cluster.client.release(file).await;
        assert_eq!(size_on_record(&cluster, ino).await, CHUNK);
        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, [(b'a', CHUNK)]);
    });
}

/// The client learns whether the file was truncated before it does anything else to it. Otherwise
/// the service would truncate later writes.
#[test]
fn writes_after_an_unanswered_truncate_survive() {
    for is_made in [false, true] {
        with_cluster(move |cluster| async move {
            let (ino, file) = cluster.create("f").await;
            cluster.fill(&file, 0, 4 * CHUNK, b'a').await.unwrap();
            let cuts = |request: &MetaRequest| matches!(request.op, MetaOp::Truncate { .. });
            match is_made {
                true => cluster.meta.lose_next_answer(cuts),
                false => cluster.meta.refuse_next(Errno::ETIMEDOUT, cuts),
            }
            assert_eq!(cluster.set_size(ino, CHUNK).await.unwrap_err().errno, Errno::ETIMEDOUT);
            let kept = if is_made { vec![(b'a', CHUNK)] } else { vec![(b'a', 4 * CHUNK)] };
            assert_eq!(cluster.runs(&file).await, kept);

            cluster.fill(&file, 2 * CHUNK, CHUNK, b'b').await.unwrap();
            let expected = match is_made {
                true => vec![(b'a', CHUNK), (0, CHUNK), (b'b', CHUNK)],
                false => vec![(b'a', 2 * CHUNK), (b'b', CHUNK), (b'a', CHUNK)],
            };
            assert_eq!(cluster.runs(&file).await, expected);
            cluster.client.release(file).await;
            let cluster = cluster.restart().await;
            let file = cluster.open(ino).await;
            assert_eq!(cluster.runs(&file).await, expected);
        });
    }
}

/// An append states the file's size: a client with an outdated one would be refused for ever.
#[test]
fn small_appends_continue_after_an_unanswered_one() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.append(&file, 10, b'a').await.unwrap();
        cluster.meta.lose_next_answer(|request| matches!(request.op, MetaOp::WriteInline { .. }));
        assert_eq!(cluster.append(&file, 10, b'b').await.unwrap_err().errno, Errno::ETIMEDOUT);
        assert_eq!(cluster.runs(&file).await, [(b'a', 10), (b'b', 10)]);
        cluster.append(&file, 10, b'c').await.unwrap();
        assert_eq!(cluster.runs(&file).await, [(b'a', 10), (b'b', 10), (b'c', 10)]);
        cluster.client.release(file).await;
        assert_eq!(size_on_record(&cluster, ino).await, 30);
    });
}
