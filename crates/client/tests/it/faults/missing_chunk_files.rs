//! Chunk files that are removed or truncated, with their checksums, without the store's knowledge:
//! missing data is damage, and holes stay holes.

use super::cluster::{CHUNK, Cluster, TARGETS, with_cluster};
use client::{Handle, ReadOptions};
use rt::{IoBuf, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use types::{ByteRange, Errno, InodeId, Result, TargetId};
use wire::StorageOp;

/// Size of a stripe over all targets, in bytes.
const STRIPE: usize = CHUNK * TARGETS as usize;
/// The target that loses data.
const LOSING: TargetId = TargetId(3);
/// Bytes of data for each byte of a checksum file, which has 4 for each block of 4 KiB.
const BYTES_PER_SUM_BYTE: u64 = 1024;
/// Modes of `fallocate(2)`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// `whence` of `lseek(2)`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

async fn remove(path: &Path) {
    rt::remove_file(path).await.unwrap();
    rt::remove_file(&path.with_extension("sum")).await.unwrap();
}

/// Truncates a chunk file and its checksums to whole blocks.
async fn cut(path: &Path, len: u64) {
    let write = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    rt::File::open(path, write).await.unwrap().set_len(len).await.unwrap();
    let sums = path.with_extension("sum");
    rt::File::open(&sums, write).await.unwrap().set_len(len / BYTES_PER_SUM_BYTE).await.unwrap();
}

async fn read(cluster: &Cluster, file: &Arc<Handle>, offset: usize, len: usize) -> Result<Vec<u8>> {
    let buf = IoBuf::alloc(len);
    let got = cluster.client.read(file, offset as u64, buf.clone(), ReadOptions::default()).await?;
    Ok(buf.as_slice()[..got].to_vec())
}

/// Returns the unreadable chunks of a file, and checks that all others contain `byte`.
async fn unreadable(cluster: &Cluster, file: &Arc<Handle>, chunks: usize, byte: u8) -> Vec<usize> {
    let mut unreadable = Vec::new();
    for chunk in 0..chunks {
        match read(cluster, file, chunk * CHUNK, CHUNK).await {
            Ok(bytes) => assert!(bytes.iter().all(|found| *found == byte), "chunk {chunk}"),
            Err(error) => {
                assert_eq!(error.errno, Errno::EIO, "{error}");
                unreadable.push(chunk);
            }
        }
    }
    unreadable
}

/// A closed file of two full stripes, after a restart of the cluster.
async fn full_file(cluster: Cluster) -> (Cluster, InodeId) {
    let (ino, file) = cluster.create("f").await;
    cluster.fill(&file, 0, 2 * STRIPE, b'd').await.unwrap();
    cluster.client.release(file).await;
    (cluster.restart().await, ino)
}

#[test]
fn a_missing_chunk_file_is_damage_not_a_hole() {
    with_cluster(|cluster| async move {
        let (cluster, ino) = full_file(cluster).await;
        let path = cluster.chunk_file(LOSING, ino);
        remove(&path).await;
        let file = cluster.open(ino).await;
        let lost = unreadable(&cluster, &file, 2 * TARGETS as usize, b'd').await;
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert_eq!(lost[1], lost[0] + TARGETS as usize);
        let error = read(&cluster, &file, lost[0] * CHUNK, 100).await.unwrap_err();
        for part in [format!("target {LOSING}"), format!("inode {ino}"), path.display().to_string()] {
            assert!(error.message.contains(&part), "{error} lacks {part}");
        }
        assert!(cluster.damage_counted() > 0);
        assert_eq!(cluster.missing_data(LOSING), 1);

        let at = (lost[0] * CHUNK) as u64;
        for whence in [SEEK_DATA, SEEK_HOLE] {
            let error = cluster.client.lseek(&file, at, whence).await.unwrap_err();
            assert_eq!(error.errno, Errno::EIO, "what copies by holes must not lose it");
        }
        // A change after the missing part would turn it into a hole.
        let error = cluster.fill(&file, lost[1] * CHUNK, CHUNK, b'n').await.unwrap_err();
        assert_eq!(error.errno, Errno::EIO, "{error}");
        let range = ByteRange::at((lost[1] * CHUNK) as u64, CHUNK as u64);
        let zeroed = cluster.client.fallocate(&file, ZERO_RANGE, range).await;
        assert_eq!(zeroed.unwrap_err().errno, Errno::EIO);
        cluster.client.release(file).await;

        let cluster = cluster.restart().await;
        let file = cluster.open(ino).await;
        assert_eq!(unreadable(&cluster, &file, 2 * TARGETS as usize, b'd').await, lost);
        // A truncation to 0 ends the damage.
        cluster.set_size(ino, 0).await.unwrap();
        cluster.fill(&file, STRIPE, STRIPE, b'n').await.unwrap();
        assert_eq!(cluster.runs(&file).await, [(0, STRIPE), (b'n', STRIPE)]);
        assert_eq!(cluster.missing_data(LOSING), 0);
    });
}

#[test]
fn a_truncated_chunk_file_is_damaged_beyond_its_end() {
    with_cluster(|cluster| async move {
        let (cluster, ino) = full_file(cluster).await;
        let left = CHUNK + CHUNK / 2;
        cut(&cluster.chunk_file(LOSING, ino), left as u64).await;
        let file = cluster.open(ino).await;
        let lost = unreadable(&cluster, &file, 2 * TARGETS as usize, b'd').await;
        assert_eq!(lost.len(), 1, "{lost:?}");
        let start = lost[0] * CHUNK;
        assert_eq!(read(&cluster, &file, start, CHUNK / 2).await.unwrap(), vec![b'd'; CHUNK / 2]);
        assert_eq!(read(&cluster, &file, start + CHUNK / 2, 1).await.unwrap_err().errno, Errno::EIO);
        // Missing data that is written again is readable.
        cluster.fill(&file, start + CHUNK / 2, CHUNK / 2, b'n').await.unwrap();
        assert_eq!(read(&cluster, &file, start + CHUNK / 2, CHUNK / 2).await.unwrap(), vec![b'n'; CHUNK / 2]);
    });
}

/// The lengths are part of reports that are sent anyway.
#[test]
fn known_lengths_cost_no_request() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, STRIPE, b'd').await.unwrap();
        let counts = || {
            let asked = cluster.storage.succeeded(|request| matches!(request.op, StorageOp::Stat));
            (cluster.meta.succeeded(|_| true), asked)
        };
        let (names, stats) = counts();
        cluster.client.fsync(&file, false).await.unwrap();
        assert_eq!(counts(), (names + 2, stats + TARGETS as usize), "a report, and a sync of the metadata");
        cluster.client.release(file).await;
        assert_eq!(counts(), (names + 3, stats + 2 * TARGETS as usize), "another report");
        let file = cluster.open(ino).await;
        let asked = cluster.storage.succeeded(|_| true);
        assert_eq!(cluster.runs(&file).await, [(b'd', STRIPE)]);
        assert_eq!(cluster.storage.succeeded(|_| true), asked + TARGETS as usize);
    });
}

#[test]
fn holes_stay_holes() {
    with_cluster(|cluster| async move {
        // Chunk files that were never created, after and before an existing one.
        let (sparse, file) = cluster.create("sparse").await;
        cluster.fill(&file, CHUNK, CHUNK, b'd').await.unwrap();
        cluster.set_size(sparse, 2 * STRIPE).await.unwrap();
        cluster.client.release(file).await;
        // Whole chunks of content that were punched out.
        let (punched, file) = cluster.create("punched").await;
        cluster.fill(&file, 0, 2 * STRIPE, b'd').await.unwrap();
        let range = ByteRange::new(0, (2 * STRIPE) as u64);
        cluster.client.fallocate(&file, PUNCH_HOLE | KEEP_SIZE, range).await.unwrap();
        cluster.client.release(file).await;
        // Content that was truncated, in a file that is extended again.
        let (cut, file) = cluster.create("cut").await;
        cluster.fill(&file, 0, 2 * STRIPE, b'd').await.unwrap();
        cluster.client.fsync(&file, false).await.unwrap();
        cluster.set_size(cut, CHUNK + 5).await.unwrap();
        cluster.set_size(cut, 2 * STRIPE).await.unwrap();
        cluster.client.release(file).await;
        // Content that was truncated, in a file that is written beyond it.
        let (behind, file) = cluster.create("behind").await;
        cluster.fill(&file, 0, 2 * STRIPE, b'd').await.unwrap();
        cluster.client.fsync(&file, false).await.unwrap();
        cluster.set_size(behind, CHUNK + 5).await.unwrap();
        cluster.fill(&file, 2 * STRIPE - CHUNK, CHUNK, b'n').await.unwrap();
        cluster.client.release(file).await;
        let (emptied, file) = cluster.create("emptied").await;
        cluster.fill(&file, 0, STRIPE, b'd').await.unwrap();
        cluster.client.release(file).await;
        cluster.set_size(emptied, 0).await.unwrap();
        cluster.set_size(emptied, STRIPE).await.unwrap();
        let mut cluster = cluster;
        for _ in 0..2 {
            let content = async |ino| {
                let file = cluster.open(ino).await;
                let runs = cluster.runs(&file).await;
                cluster.client.release(file).await;
                runs
            };
            assert_eq!(content(sparse).await, [(0, CHUNK), (b'd', CHUNK), (0, 2 * STRIPE - 2 * CHUNK)]);
            assert_eq!(content(punched).await, [(0, 2 * STRIPE)]);
            assert_eq!(content(cut).await, [(b'd', CHUNK + 5), (0, 2 * STRIPE - CHUNK - 5)]);
            let hole = (0, 2 * STRIPE - 2 * CHUNK - 5);
            assert_eq!(content(behind).await, [(b'd', CHUNK + 5), hole, (b'n', CHUNK)]);
            assert_eq!(content(emptied).await, [(0, STRIPE)]);
            assert_eq!(cluster.damage_counted(), 0);
            cluster = cluster.restart().await;
        }
    });
}

/// Migration preserves the length of a chunk file that ends with a hole.
#[test]
fn migration_preserves_chunk_file_lengths() {
    with_cluster(|cluster| async move {
        cluster.start_moving();
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, 2 * STRIPE, b'd').await.unwrap();
        let range = ByteRange::new((STRIPE / 2) as u64, (2 * STRIPE) as u64);
        cluster.client.fallocate(&file, PUNCH_HOLE | KEEP_SIZE, range).await.unwrap();
        cluster.client.release(file).await;
        assert!(cluster.empty(LOSING).await);
        let file = cluster.open(ino).await;
        assert_eq!(cluster.runs(&file).await, [(b'd', STRIPE / 2), (0, 2 * STRIPE - STRIPE / 2)]);
        assert_eq!(cluster.damage_counted(), 0);
    });
}

/// Migration would turn missing data into a hole, and leave no location for data that is found
/// again.
#[test]
fn a_file_with_a_missing_chunk_file_does_not_migrate() {
    with_cluster(|cluster| async move {
        let (cluster, ino) = full_file(cluster).await;
        let path = cluster.chunk_file(LOSING, ino);
        let (sums, lost) = (path.with_extension("sum"), path.with_extension("lost"));
        let lost_sums = path.with_extension("lost-sum");
        rt::rename(&path, &lost).await.unwrap();
        rt::rename(&sums, &lost_sums).await.unwrap();
        cluster.start_moving();
        assert!(!cluster.empty(LOSING).await, "what is missing is no hole");
        rt::rename(&lost_sums, &sums).await.unwrap();
        rt::rename(&lost, &path).await.unwrap();
        assert!(cluster.empty(LOSING).await);
        let file = cluster.open(ino).await;
        assert_eq!(unreadable(&cluster, &file, 2 * TARGETS as usize, b'd').await, Vec::<usize>::new());
    });
}
