//! Migration of files that the only session, which has no leases, is using.

use super::cluster::{CHUNK, Cluster, targets, with_cluster, with_cluster_of_seed};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::TargetId;
use wire::MetaOp;

/// Delay of answers: many passes of the migrator.
const LATE: Duration = Duration::from_secs(30);
/// Size of a file with several chunks on every target, in bytes.
const LONG: usize = 20 * CHUNK;

/// Writes parts of a file until stopped; returns the expected content.
async fn keep_writing(
    cluster: Rc<Cluster>,
    file: Arc<client::Handle>,
    seed: usize,
    content: Rc<RefCell<Vec<u8>>>,
) {
    for step in 1..=300_usize {
        let (at, byte) = (((step + seed * 1000) * 7919 * 61) % (LONG - 5000), step as u8);
        cluster.fill(&file, at, 5000, byte).await.unwrap();
        content.borrow_mut()[at..at + 5000].fill(byte);
        rt::sleep(Duration::from_millis(3)).await;
    }
}

#[test]
fn a_file_migrates_while_the_only_session_writes_it() {
    for seed in 1..=8 {
        with_cluster_of_seed(seed, move |cluster| async move {
            cluster.start_moving();
            let (ino, file) = cluster.create("f").await;
            cluster.fill(&file, 0, LONG, b'a').await.unwrap();
            let cluster = Rc::new(cluster);
            let content = Rc::new(RefCell::new(vec![b'a'; LONG]));
            let is_done = Rc::new(Cell::new(false));
            let (writing, end) = (
                keep_writing(cluster.clone(), file.clone(), seed as usize, content.clone()),
                is_done.clone(),
            );
            rt::spawn(async move {
                writing.await;
                end.set(true);
            });
            let mut rounds = 0;
            while !is_done.get() || rounds < 2 {
                for target in targets() {
                    assert!(cluster.empty(target).await, "target {target}, seed {seed}");
                    assert_eq!(cluster.chunk_files(target).await, 0);
                }
                rounds += 1;
            }
            let buf = IoBuf::alloc(LONG);
            let read =
                cluster.client.read(&file, 0, buf.clone(), client::ReadOptions::default()).await.unwrap();
            assert!(read == LONG && buf.as_slice() == &content.borrow()[..], "seed {seed}");
            let copy = cluster.open(ino).await;
            cluster.client.release(file).await;
            assert!(cluster.runs(&copy).await.len() > 1);
        });
    }
}

#[test]
fn state_from_before_a_migration_is_not_used_after_it() {
    with_cluster(|cluster| async move {
        cluster.start_moving();
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, LONG, b'a').await.unwrap();
        cluster.client.release(file).await;
        // An open requests the layout, and gets the answer when the file has migrated.
        let late = cluster.open(ino).await;
        cluster.meta.delay_answers(LATE, |request| matches!(request.op, MetaOp::Open { .. }));
        let cluster = Rc::new(cluster);
        let (reader, file) = (cluster.clone(), late.clone());
        let seen = Rc::new(RefCell::new(None));
        let result = seen.clone();
        rt::spawn(async move {
            let runs = reader.runs(&file).await;
            result.replace(Some(runs));
        });
        assert!(cluster.empty(TargetId(1)).await);
        assert!(seen.borrow().is_none(), "it waits for its answer");
        rt::sleep(3 * LATE).await;
        assert_eq!(seen.borrow_mut().take(), Some(vec![(b'a', LONG)]));
        assert_eq!(cluster.chunk_files(TargetId(1)).await, 0);
        // Writes go to the file's new location.
        cluster.fill(&late, CHUNK, CHUNK, b'b').await.unwrap();
        assert_eq!(cluster.chunk_files(TargetId(1)).await, 0);
    });
}
