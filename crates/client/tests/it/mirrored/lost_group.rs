//! A group whose content is lost: its part of files fails, and everything else continues.

use super::cluster::{Application, CHUNK, Cluster, GROUPS, RDONLY, RDWR, ROOT, pair, with_cluster};
use client::{Client, Handle, ReadOptions};
use rt::IoBuf;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, GroupId, InodeId, Result, SetAttr};

const LOST: u32 = 11;

fn lose(cluster: &Cluster) {
    cluster.change(|map| {
        let since = types::Epoch(map.epoch.0 + 1);
        for group in map.groups.iter_mut().filter(|group| group.id == GroupId(LOST)) {
            group.mark_lost();
            group.since = since;
        }
    });
}

/// Reads each of the first chunks of a file; returns the results and the total time.
async fn chunks(client: &Arc<Client>, file: &Arc<Handle>) -> (Vec<Result<usize>>, Duration) {
    let (mut read, began_ns) = (Vec::new(), rt::monotonic_ns());
    for at in 0..GROUPS.len() {
        let buf = IoBuf::alloc(CHUNK);
        read.push(client.read(file, (at * CHUNK) as u64, buf, ReadOptions::default()).await);
    }
    (read, Duration::from_nanos(rt::monotonic_ns() - began_ns))
}

/// Returns the number of the chunk that can't be read, and checks that the others can.
fn lost_chunk(read: &[Result<usize>]) -> usize {
    let failed: Vec<usize> = (0..read.len()).filter(|at| read[*at].is_err()).collect();
    assert_eq!(failed.len(), 1, "{read:?}");
    assert!(read.iter().flatten().all(|len| *len == CHUNK), "{read:?}");
    assert_eq!(read[failed[0]].as_ref().unwrap_err().errno, Errno::EIO);
    failed[0]
}

#[test]
fn a_lost_group_fails_at_once_and_files_there_can_be_deleted() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        let ino = file.ino();
        client.release(file).await;
        lose(&cluster);
        let file = client.open_named("a", RDWR).await;
        let (read, took) = chunks(&client, &file).await;
        let lost = lost_chunk(&read);
        assert!(took < Duration::from_secs(1), "it took {took:?}");
        let written = client.try_fill(&file, lost * CHUNK, 10, 2).await;
        assert_eq!(written.unwrap_err().errno, Errno::EIO);
        // The failure there affects nothing elsewhere.
        let (read, _) = chunks(&client, &file).await;
        assert_eq!(lost_chunk(&read), lost);
        let cut = client.setattr(ROOT, ino, SetAttr::default(), Some(0)).await;
        assert_eq!(cut.unwrap_err().errno, Errno::EIO);
        assert_eq!(client.size(ino).await, 3 * CHUNK as u64, "a refused cut changes nothing");

        client.unlink(ROOT, InodeId::ROOT, b"a").await.unwrap();
        client.release(file).await;
        client.forget(ino, 2);
        client.shutdown().await.unwrap();
        let before = cluster.meta().stats().reaped;
        for _ in 0..60 {
            rt::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(cluster.meta().stats().reaped.max(before), 1, "nothing is to be deleted any more");
        for group in GROUPS.into_iter().filter(|group| *group != LOST) {
            for target in pair(group) {
                assert_eq!(cluster.chunk_files(target.0, group).await, []);
            }
        }
    });
}

/// Size recovery for a file of a dead client uses the remaining chunk files.
#[test]
fn size_recovery_works_without_a_lost_group() {
    with_cluster(async |cluster| {
        let (dead, client) = (cluster.client().await, cluster.client().await);
        let file = dead.create_file("a").await;
        dead.fill(&file, 0, 3 * CHUNK, 1).await;
        lose(&cluster);
        cluster.meta().evict_session(types::SessionId(2)).unwrap();
        let same = client.open_named("a", RDONLY).await;
        let (read, _) = chunks(&client, &same).await;
        let failed = read.iter().filter(|outcome| outcome.is_err()).count();
        assert!(failed <= 1 && read.iter().flatten().any(|len| *len == CHUNK), "{read:?}");
    });
}

/// A writer's changes of the remaining parts are reported to the metadata service.
#[test]
fn a_file_that_is_open_for_writing_is_reported_without_a_lost_group() {
    with_cluster(async |cluster| {
        let (client, other) = (cluster.client().await, cluster.client().await);
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        let ino = file.ino();
        lose(&cluster);
        let (read, _) = chunks(&client, &file).await;
        let lost = lost_chunk(&read);
        // Beyond the end, so that what other targets may have stored of it must be truncated.
        let beyond = client.try_fill(&file, (GROUPS.len() + lost) * CHUNK, 10, 2).await;
        assert_eq!(beyond.unwrap_err().errno, Errno::EIO);
        client.fill(&file, (lost + 1) % GROUPS.len() * CHUNK, 10, 2).await;
        client.shutdown().await.unwrap();
        assert_eq!(other.size(ino).await, 3 * CHUNK as u64);
    });
}
