//! Reports of a file's end whose answers don't come.

use crate::cluster::{CHUNK, Cluster, with_cluster};
use types::InodeId;
use wire::{MetaOp, MetaRequest};

fn ends_writing(request: &MetaRequest) -> bool {
    matches!(request.op, MetaOp::EndWrite { done: true, .. })
}

/// What the services know by themselves.
async fn size_on_record(cluster: &Cluster, ino: InodeId) -> usize {
    cluster.stranger().getattr(ino).await.unwrap().size as usize
}

/// Where the service had ended it, what is written next would be nobody's business: its report would make the file no longer.
#[test]
fn what_is_written_after_a_close_whose_report_was_done_and_not_answered_is_kept() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        cluster.names.lose_next_answer(ends_writing);
        cluster.client.release(file).await;
        assert!(cluster.names.has_refused_all());
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

/// The session is on record as changing the file before it changes anything again: should it die now, the service finds out what it wrote.
#[test]
fn who_can_not_know_whether_its_writing_has_been_ended_begins_it_again() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        cluster.names.lose_next_answer(ends_writing);
        cluster.client.release(file).await;

        let begun = |cluster: &Cluster| {
            cluster.names.succeeded(|request| matches!(request.op, MetaOp::BeginWrite { .. }))
        };
        let before = begun(&cluster);
        let file = cluster.open(ino).await;
        // A report that ends nothing tells nothing of the one before.
        cluster.client.fsync(&file, false).await.unwrap();
        cluster.fill(&file, 0, CHUNK, b'b').await.unwrap();
        assert_eq!(begun(&cluster) - before, 1);
        cluster.fill(&file, CHUNK, CHUNK, b'c').await.unwrap();
        assert_eq!(begun(&cluster) - before, 1, "once is enough");
        cluster.client.fsync(&file, false).await.unwrap();
        assert_eq!(size_on_record(&cluster, ino).await, 2 * CHUNK);
    });
}

/// The same report, sent twice; the second is told by the size that the service answers with.
#[test]
fn a_report_that_comes_after_its_writing_was_ended_is_made_again() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
        // As if an older report of this session, which it doesn't wait for any more, had been late.
        let late =
            MetaOp::EndWrite { ino, size: 0, blocks: 0, mtime: None, done: true, kill_suid_sgid: false };
        cluster.ask_late(late).await;
        cluster.client.release(file).await;
        assert_eq!(size_on_record(&cluster, ino).await, CHUNK);
        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, [(b'a', CHUNK)]);
    });
}
