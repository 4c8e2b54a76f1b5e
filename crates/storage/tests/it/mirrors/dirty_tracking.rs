//! A service that copies a file of a group elsewhere learns of all changes, or that it has to begin
//! again.

use super::cluster::{Cluster, INO, MIB, with_members};
use types::{ChunkFileId, Errno, MemberState, Result};
use wire::{StorageOp, StorageReply};

const TOKEN: u64 = 5;

async fn ask(cluster: &Cluster, ino: ChunkFileId, op: StorageOp) -> Result<StorageReply> {
    cluster.ask_file(ino, (0, None), op, None).await
}

/// Returns the regions that changed in the previous round.
async fn changed(cluster: &Cluster, round: u64) -> Result<Vec<u64>> {
    ask(cluster, INO, StorageOp::TrackDirty { token: TOKEN, round }).await?;
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        match ask(cluster, INO, StorageOp::NextDirty { token: TOKEN, round, from }).await? {
            StorageReply::Offset(Some(at)) => {
                found.push(at / MIB);
                from = at + 1;
            }
            _ => return Ok(found),
        }
    }
}

#[test]
fn only_the_primary_tracks_changes() {
    with_members(2, async |cluster| {
        cluster.enable_resync();
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        ask(&cluster, INO, StorageOp::TrackDirty { token: TOKEN, round: 0 }).await.unwrap();
        cluster.write(INO, 3, 3 * MIB, &[2; 4096]).await;
        cluster.write(ChunkFileId(INO.0 + 1), 3, 5 * MIB, &[2; 4096]).await;
        assert_eq!(changed(&cluster, 1).await.unwrap(), [3]);
        cluster.write(INO, 3, 0, &[3; 8192]).await;
        // The second member leaves and comes back: all changes went through the same primary.
        cluster.management.set(2, MemberState::NeedsResync);
        cluster.write(INO, 3, 7 * MIB, &[4; 4096]).await;
        assert_eq!(changed(&cluster, 2).await.unwrap(), [0, 7]);
        cluster.until_in_sync().await;
        // The primary leaves, comes back, and is the primary again. It received the changes in
        // between like any other member.
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.write(INO, 3, 9 * MIB, &[5; 4096]).await;
        assert_eq!(changed(&cluster, 3).await.unwrap_err().errno, Errno::ESTALE, "another primary");
        cluster.until_in_sync().await;
        cluster.management.set(2, MemberState::NeedsResync);
        assert_eq!(cluster.management.group().primary(), Some(types::TargetId(1)));
        assert_eq!(changed(&cluster, 3).await.unwrap_err().errno, Errno::ESTALE, "it wasn't all the time");
        ask(&cluster, INO, StorageOp::TrackDirty { token: TOKEN + 1, round: 0 }).await.unwrap();
        ask(&cluster, INO, StorageOp::EndDirtyTracking { token: TOKEN + 1 }).await.unwrap();
    });
}
