//! Reservations of space that a target refuses although it had space when the client asked.

use super::cluster::{CHUNK, TARGETS, with_cluster};
use std::path::Path;
use types::{ByteRange, Errno, TargetId};
use wire::{AllocateMode, StorageOp, StorageRequest};

const MIB: u64 = 1 << 20;
/// Space that metadata and checksums take meanwhile, in bytes.
const SLACK: u64 = MIB;

fn reserves(request: &StorageRequest) -> bool {
    matches!(request.op, StorageOp::Allocate { how: AllocateMode::Reserve, .. })
}

async fn free() -> u64 {
    rt::file_system_space(Path::new("/")).await.unwrap().1
}

/// Another program fills the disk of one target between the client's query and its request.
#[test]
fn space_reserved_on_other_targets_is_freed() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 0, 4 * CHUNK, b'x').await.unwrap();
        let reserve = async |end: u64| cluster.client.fallocate(&file, 0, ByteRange::new(0, end)).await;
        reserve(MIB).await.unwrap();
        let before = free().await;
        for (turn, refusal) in [Errno::ENOSPC, Errno::EIO].into_iter().enumerate() {
            let is_second = |request: &StorageRequest| request.target == TargetId(2) && reserves(request);
            cluster.storage.refuse_next(refusal, is_second);
            let earlier = cluster.storage.succeeded(reserves);
            let error = reserve(64 * MIB).await.unwrap_err();
            assert_eq!(error.errno, refusal, "{error}");
            let reserved = cluster.storage.succeeded(reserves) - earlier;
            assert_eq!(reserved, TARGETS as usize - 1, "all other targets have room, turn {turn}");
            let now = free().await;
            assert!(now + SLACK >= before, "{before} bytes were free, {now} are left");
        }
        assert_eq!(cluster.client.getattr(ino).await.unwrap().size, MIB);
        let data = 4 * CHUNK;
        assert_eq!(cluster.runs(&file).await, [(b'x', data), (0, MIB as usize - data)]);
        reserve(64 * MIB).await.unwrap();
        assert_eq!(cluster.client.getattr(ino).await.unwrap().size, 64 * MIB);
    });
}
