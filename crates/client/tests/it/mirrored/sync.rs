//! Syncs while a member of mirrored groups is down.

use super::cluster::{Application, CHUNK, ROOT, with_cluster};
use super::group::Behaviour;
use types::{Errno, InodeId};
use wire::{StorageOp, XattrMode};

#[test]
fn syncfs_reaches_all_targets() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, CHUNK, 1).await;
        cluster.groups.requests();
        client.syncfs().await.unwrap();
        let asked = cluster.groups.requests();
        let mut targets: Vec<u32> = asked
            .iter()
            .filter(|request| matches!(request.op, StorageOp::SyncTarget) && request.group.is_none())
            .map(|request| request.target.0)
            .collect();
        targets.sort_unstable();
        assert_eq!(targets, [1, 2, 3], "once, where all answer");
    });
}

#[test]
fn syncfs_succeeds_without_a_dead_member() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        cluster.groups.set_behaviour(3, Behaviour::Hangs);
        // It is the primary of group 13, in which management replaces it; in group 12 the primary
        // detects its failure.
        let held = cluster.clone();
        super::cluster::later(1000, move || {
            super::group::eject(&held.map, types::GroupId(13), types::TargetId(3));
        });
        client.syncfs().await.unwrap();
        let map = cluster.map.load();
        for group in [12, 13] {
            let state = map.group(types::GroupId(group)).unwrap().state_of(types::TargetId(3));
            assert_eq!(
                state,
                Some(types::MemberState::NeedsResync),
                "else it would count on what isn't on disk"
            );
        }
        client.syncfs().await.unwrap();
    });
}

#[test]
fn syncfs_needs_the_only_replica() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let dir = client.mkdir(ROOT, InodeId::ROOT, b"single", 0o755, 0).await.unwrap().ino;
        let pattern = br#"{"scheme":"single","stripe_count":3}"#;
        client.setxattr(ROOT, dir, b"weft.pattern", pattern, XattrMode::Any, false).await.unwrap();
        let file = client.create(ROOT, dir, b"a", 0o100_644, 0, 2).await.unwrap().1;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        cluster.groups.set_behaviour(3, Behaviour::Hangs);
        cluster.take_out(3);
        assert_eq!(client.syncfs().await.unwrap_err().errno, Errno::ETIMEDOUT);
    });
}
