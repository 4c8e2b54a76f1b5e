//! The group changes during the repair of a replica: the member under repair isn't ejected for
//! that, and requests don't wait.

use super::cluster::{After, Cluster, GROUP, INO, LinkState, MIB, with_members_on_disk};
use super::damage::while_stopped;
use chunkstore::Store;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use types::{ByteRange, ChunkFileId, Errno, MemberState, TargetId};
use wire::{RepairResult, StorageOp, StorageReply, StorageRequest};

const OTHER: ChunkFileId = ChunkFileId(10);

fn content() -> Vec<u8> {
    (0..4 * MIB as usize + 777).map(|at| (at / 700) as u8 | 1).collect()
}

fn chunk_file(dir: &Path, target: u32) -> PathBuf {
    Store::chunk_file_path(&Store::group_dir(&dir.join(target.to_string()), GROUP), INO)
}

/// Returns a hook that calls `what` once, after a number of answers of a kind.
fn once_after(mut answers: u32, kind: fn(&StorageOp) -> bool, what: impl FnOnce() + Send + 'static) -> After {
    let mut what = Some(what);
    Box::new(move |request: &StorageRequest| {
        answers = answers.saturating_sub(u32::from(kind(&request.op)));
        if answers == 0
            && let Some(what) = what.take()
        {
            what();
        }
    })
}

async fn heal(cluster: &Cluster) -> Result<RepairResult, Errno> {
    let op = StorageOp::Repair { range: ByteRange::new(0, u64::MAX) };
    match cluster.ask_file(INO, (0, None), op, None).await {
        Ok(StorageReply::Repaired(healed)) => Ok(healed),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.errno),
    }
}

/// Fails unless the future ends in time.
async fn ends<T: Send + 'static>(
    cluster: &Arc<Cluster>,
    what: &str,
    done: impl Future<Output = T> + 'static,
) -> T {
    let outcome = Arc::new(Mutex::new(None));
    let told = outcome.clone();
    rt::spawn(async move {
        let done = done.await;
        *told.lock().unwrap() = Some(done);
    });
    cluster.until(what, || outcome.lock().unwrap().is_some()).await;
    outcome.lock().unwrap().take().unwrap()
}

async fn heal_ends(cluster: &Arc<Cluster>) -> Result<RepairResult, Errno> {
    let asked = cluster.clone();
    ends(cluster, "the attempt to mend it ends", async move { heal(&asked).await }).await
}

async fn write_ends(cluster: &Arc<Cluster>) {
    let asked = cluster.clone();
    ends(cluster, "a write ends", async move { asked.write(OTHER, 3, 0, &[5; 100]).await }).await;
    assert_eq!(cluster.read(OTHER, 100).await, [5; 100]);
}

#[test]
fn the_last_member_stays_when_its_repair_source_is_ejected() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &content()).await;
        while_stopped(&cluster, |dir| fs::remove_file(chunk_file(dir, 1)).unwrap()).await;
        let (link, management) = (cluster.links[&TargetId(2)].clone(), cluster.management.clone());
        let is_read = |op: &StorageOp| matches!(op, StorageOp::Read { .. });
        *cluster.link(2).after.lock().unwrap() = Some(once_after(2, is_read, move || {
            *link.state.lock().unwrap() = LinkState::Closed;
            management.set(2, MemberState::NeedsResync);
        }));
        assert_eq!(heal_ends(&cluster).await, Err(Errno::EAGAIN));
        assert_eq!(cluster.management.state(1), MemberState::InSync);
        write_ends(&cluster).await;
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        cluster.until("the group is in step", || !cluster.management.group().is_degraded()).await;
        heal(&cluster).await.unwrap();
        cluster.require_equal().await;
        assert!(cluster.read(INO, content().len()).await == content());
    });
}

#[test]
fn the_last_member_stays_when_its_disk_rejects_the_repair() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &content()).await;
        while_stopped(&cluster, |dir| fs::remove_file(chunk_file(dir, 1)).unwrap()).await;
        let (path, management) = (chunk_file(&cluster.dir, 1), cluster.management.clone());
        let is_of_sums = |op: &StorageOp| matches!(op, StorageOp::Survey { read: false, .. });
        *cluster.link(2).after.lock().unwrap() = Some(once_after(1, is_of_sums, move || {
            let folder = path.parent().unwrap();
            fs::remove_dir_all(folder).unwrap();
            fs::write(folder, b"in the way").unwrap();
            management.set(2, MemberState::NeedsResync);
        }));
        assert_eq!(heal_ends(&cluster).await, Err(Errno::EIO));
        assert_eq!(cluster.management.state(1), MemberState::InSync);
        write_ends(&cluster).await;
    });
}

#[test]
fn the_repaired_member_stays_when_a_third_one_is_ejected() {
    for is_removed in [true, false] {
        with_members_on_disk(3, move |cluster| async move {
            cluster.write(INO, 3, 0, &content()).await;
            while_stopped(&cluster, |dir| {
                let path = chunk_file(dir, 2);
                if is_removed {
                    return fs::remove_file(path).unwrap();
                }
                for at in [5000, 9 * 4096] {
                    File::options().write(true).open(&path).unwrap().write_all_at(b"damage", at).unwrap();
                }
            })
            .await;
            let management = cluster.management.clone();
            let is_mended =
                |op: &StorageOp| matches!(op, StorageOp::ExpectChecksums { .. } | StorageOp::Rewrite { .. });
            let gone = Arc::new(Mutex::new(false));
            let told = gone.clone();
            *cluster.link(2).after.lock().unwrap() = Some(once_after(1, is_mended, move || {
                *told.lock().unwrap() = true;
                management.set(3, MemberState::NeedsResync);
            }));
            let healed = heal_ends(&cluster).await.unwrap();
            assert!(healed.repaired > 0 && *gone.lock().unwrap(), "{healed:?}");
            let changes = cluster.management.changes.lock().unwrap().clone();
            assert!(changes.iter().all(|change| change.target != TargetId(2)), "{changes:?}");
            assert!(cluster.on_disk(2).await[&INO] == content());
            cluster.enable_resync();
            cluster.until_in_sync().await;
        });
    }
}
