//! Chunk files that another program has changed on one member: weft finds the damage, never serves
//! it, and repairs it from another member.

use super::cluster::{Cluster, GROUP, INO, LinkState, MIB, files_of, with_members_on_disk};
use chunkstore::Store;
use rt::IoBuf;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use types::{ByteRange, ChunkFileId, Errno, Refusal, SessionId, TargetId};
use wire::{
    DataPath as Way, GroupContext, GroupRole, RepairResult, SeekTarget, StorageOp, StorageReply,
    StorageRequest,
};

fn chunk_file(dir: &Path, target: u32, ino: ChunkFileId) -> PathBuf {
    Store::chunk_file_path(&Store::group_dir(&dir.join(target.to_string()), GROUP), ino)
}

fn sum_file(data: &Path) -> PathBuf {
    data.with_extension("sum")
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

fn content(ino: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 / 4096 + at as u64 * ino) as u8 | 1).collect()
}

async fn repair(cluster: &Cluster, ino: ChunkFileId) -> RepairResult {
    let op = StorageOp::Repair { range: ByteRange::new(0, u64::MAX) };
    match cluster.ask_file(ino, (0, None), op, None).await.unwrap() {
        StorageReply::Repaired(healed) => healed,
        other => panic!("{other:?}"),
    }
}

async fn until_repaired(cluster: &Cluster) {
    let dir = cluster.dir.clone();
    let copies = cluster.links.len() as u32;
    let are_equal = async || {
        let first = files_of(&dir, 1).await;
        for target in 2..=copies {
            if files_of(&dir, target).await != first {
                return false;
            }
        }
        true
    };
    cluster.until_found("the copies are equal", are_equal).await;
}

#[test]
fn damage_found_by_a_read_is_read_elsewhere_and_repaired() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(1, 3 * MIB as usize + 777);
        cluster.write(INO, 3, 0, &data).await;
        let path = chunk_file(&cluster.dir, 1, INO);
        flip(&path, MIB + 5);
        flip(&path, data.len() as u64 - 1);
        assert_eq!(cluster.read(INO, data.len()).await, data, "what is damaged here is good there");
        until_repaired(&cluster).await;
        assert_eq!(cluster.on_disk(1).await[&INO], data);
        assert!(!cluster.management.group().is_degraded(), "nobody had to be taken out");
        assert_eq!(repair(&cluster, INO).await, RepairResult::default(), "nothing is left to do");
    });
}

#[test]
fn damage_on_another_member_is_made_right_from_the_primary() {
    with_members_on_disk(3, |cluster| async move {
        let data = content(2, MIB as usize);
        cluster.write(INO, 3, 0, &data).await;
        flip(&chunk_file(&cluster.dir, 3, INO), 4096);
        flip(&chunk_file(&cluster.dir, 2, INO), 8192);
        flip(&chunk_file(&cluster.dir, 1, INO), 0);
        assert_eq!(repair(&cluster, INO).await, RepairResult { damaged: 3, repaired: 3, unclear: 0 });
        cluster.require_equal().await;
        assert_eq!(cluster.on_disk(2).await[&INO], data);
    });
}

#[test]
fn a_block_that_is_damaged_on_all_members_is_refused_and_told_as_lost() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(2, 3 * 4096);
        cluster.write(INO, 3, 0, &data).await;
        flip(&chunk_file(&cluster.dir, 1, INO), 4096);
        flip(&chunk_file(&cluster.dir, 2, INO), 4097);
        assert_eq!(repair(&cluster, INO).await, RepairResult { damaged: 1, repaired: 0, unclear: 0 });
        let buf = rt::IoBuf::alloc(data.len());
        let op = StorageOp::Read { offset: 0, path: wire::DataPath::Cached };
        assert!(cluster.ask_file(INO, (3, None), op, Some(buf)).await.is_err());
        assert!(!cluster.management.group().is_degraded(), "who is as damaged as the others stays");
    });
}

#[test]
fn a_cut_chunk_file_gets_back_what_was_cut_off() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(3, 2 * MIB as usize + 100);
        cluster.write(INO, 3, 0, &data).await;
        for (target, len) in [(1, MIB + 50), (2, 0), (1, data.len() as u64 - 1)] {
            File::options()
                .write(true)
                .open(chunk_file(&cluster.dir, target, INO))
                .unwrap()
                .set_len(len)
                .unwrap();
            assert_eq!(cluster.read(INO, data.len()).await, data);
            let healed = repair(&cluster, INO).await;
            assert_eq!(healed.unclear, 0);
            cluster.require_equal().await;
            assert_eq!(cluster.on_disk(target).await[&INO], data, "target {target} cut to {len}");
        }
    });
}

#[test]
fn a_chunk_file_that_was_removed_while_it_was_open_comes_back() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(4, MIB as usize + 5);
        for target in [1, 2] {
            cluster.write(INO, 3, 0, &data).await;
            fs::remove_file(chunk_file(&cluster.dir, target, INO)).unwrap();
            assert_eq!(repair(&cluster, INO).await, RepairResult { damaged: 1, repaired: 1, unclear: 0 });
            cluster.require_equal().await;
            assert_eq!(cluster.on_disk(target).await[&INO], data);
            assert_eq!(cluster.read(INO, data.len()).await, data);
        }
    });
}

/// Stops all nodes, changes files, and starts again: no file is open then.
pub async fn while_stopped(cluster: &Cluster, change: impl FnOnce(&Path)) {
    while_stopped_async(cluster, async |dir| change(dir)).await;
}

/// The same for changes that a simulated machine supports, too.
pub async fn while_stopped_async(cluster: &Cluster, change: impl AsyncFnOnce(&Path)) {
    let since = cluster.management.group().since.0;
    for target in cluster.links.keys() {
        // The members learn that all replicas are equal; otherwise the next start would resync the
        // others.
        let part = GroupRole::Member { sequence: 0, committed: u64::MAX };
        cluster.ask_one(target.0, (since, part), (0, None), StorageOp::Committed, None).await.unwrap();
        cluster.stop(target.0).await;
    }
    change(&cluster.dir).await;
    for target in cluster.links.keys() {
        cluster.restart(target.0).await;
    }
}

#[test]
fn a_chunk_file_that_is_gone_is_not_read_as_zeros() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(5, 100_000);
        for (target, is_sum_gone) in [(1, false), (1, true), (2, false), (2, true)] {
            cluster.write(INO, 3, 0, &data).await;
            while_stopped(&cluster, |dir| {
                let path = chunk_file(dir, target, INO);
                fs::remove_file(&path).unwrap();
                if is_sum_gone {
                    fs::remove_file(sum_file(&path)).unwrap();
                }
            })
            .await;
            assert_eq!(cluster.read(INO, data.len()).await, data);
            repair(&cluster, INO).await;
            until_repaired(&cluster).await;
            assert_eq!(cluster.on_disk(target).await[&INO], data);
        }
    });
}

/// Returns the content of a chunk file that target 1 has lost, with its checksums.
async fn lost_by_the_primary(cluster: &Cluster) -> Vec<u8> {
    let data = content(5, 100_000);
    cluster.write(INO, 3, 0, &data).await;
    while_stopped(cluster, |dir| {
        let path = chunk_file(dir, 1, INO);
        fs::remove_file(&path).unwrap();
        fs::remove_file(sum_file(&path)).unwrap();
    })
    .await;
    data
}

#[test]
fn a_chunk_file_that_is_gone_is_not_read_as_zeros_while_the_other_member_is_slow() {
    with_members_on_disk(2, |cluster| async move {
        let data = lost_by_the_primary(&cluster).await;
        cluster.set_link(2, LinkState::Late);
        let found = Arc::new(Mutex::new(None));
        let (asked, told) = (cluster.clone(), found.clone());
        rt::spawn(async move {
            let read = asked.read(INO, 100_000).await;
            *told.lock().unwrap() = Some(read);
        });
        // Longer than a check of a node's reachability waits.
        rt::sleep(Duration::from_millis(1500)).await;
        cluster.set_link(2, LinkState::Open);
        cluster.link(2).late.set();
        cluster.until("the read is answered", || found.lock().unwrap().is_some()).await;
        assert!(found.lock().unwrap().take() == Some(data), "it was read from the other member");
    });
}

#[test]
fn a_chunk_file_that_is_gone_is_not_read_as_zeros_when_the_other_member_can_not_tell() {
    with_members_on_disk(2, |cluster| async move {
        let data = lost_by_the_primary(&cluster).await;
        cluster.set_link(2, LinkState::Closed);
        let since = cluster.management.group().since.0;
        assert_eq!(cluster.read_at(1, since, 0, 100_000).await, Err(Refusal::GroupVersionMismatch.into()));
        // An unreachable node may be gone for long.
        cluster.management.set_online(2, false);
        assert_eq!(cluster.read_at(1, since, 0, 100_000).await, Ok(vec![0; 100_000]));
        cluster.management.set_online(2, true);
        cluster.set_link(2, LinkState::Open);
        assert_eq!(cluster.read_at(1, since, 0, 100_000).await, Ok(data));
    });
}

async fn read_known(cluster: &Cluster, known: u64, len: usize) -> types::Result<Vec<u8>> {
    let buf = IoBuf::alloc(len);
    let op = StorageOp::Read { offset: 0, path: Way::Cached };
    cluster.ask_known((INO, known), op, buf.clone()).await.map(|_| buf.as_slice().to_vec())
}

/// Removes a chunk file, or truncates it to whole blocks, with its checksums.
fn damage_file(path: &Path, left: u64) {
    if left == 0 {
        fs::remove_file(path).unwrap();
        return fs::remove_file(sum_file(path)).unwrap();
    }
    File::options().write(true).open(path).unwrap().set_len(left).unwrap();
    File::options().write(true).open(sum_file(path)).unwrap().set_len(left / 1024).unwrap();
}

#[test]
fn what_one_member_lacks_of_a_known_length_is_read_from_another_and_made_again() {
    with_members_on_disk(3, |cluster| async move {
        let data = content(5, 100_000);
        for (target, left) in [(1, 0), (1, 8192), (2, 0), (2, 8192)] {
            cluster.write(INO, 3, 0, &data).await;
            while_stopped(&cluster, |dir| damage_file(&chunk_file(dir, target, INO), left)).await;
            for _ in 0..3 {
                assert!(read_known(&cluster, 100_000, data.len()).await.unwrap() == data, "{target} {left}");
            }
            repair(&cluster, INO).await;
            until_repaired(&cluster).await;
        }
    });
}

/// It has chosen the member, which may be the one that lacks something.
#[test]
fn a_client_that_reads_from_a_member_without_a_known_length_is_sent_to_the_primary() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(5, 100_000);
        cluster.write(INO, 3, 0, &data).await;
        while_stopped(&cluster, |dir| damage_file(&chunk_file(dir, 2, INO), 8192)).await;
        let read = async |known, len| {
            let buf = IoBuf::alloc(len);
            let part = GroupRole::Primary;
            let group =
                Some(GroupContext { group: GROUP, version: cluster.management.group().since, role: part });
            let op = StorageOp::Read { offset: 0, path: Way::Cached };
            let request = StorageRequest::new(SessionId(3), TargetId(2), INO, op);
            let asked = cluster
                .call(StorageRequest { group, length_bound: known, ..request }, Some(buf.clone()))
                .await;
            asked.map(|_| buf.as_slice().to_vec()).map_err(|error| error.errno)
        };
        assert_eq!(read(8192, 8192).await, Ok(data[..8192].to_vec()), "it reads from that one");
        assert_eq!(read(100_000, 100_000).await, Err(Refusal::RedirectToPrimary.into()));
        assert!(read_known(&cluster, 100_000, data.len()).await.unwrap() == data);
    });
}

#[test]
fn missing_content_of_known_length_is_refused() {
    with_members_on_disk(2, |cluster| async move {
        for left in [0, 8192] {
            cluster.write(INO, 3, 0, &content(5, 100_000)).await;
            while_stopped(&cluster, |dir| {
                [1, 2].iter().for_each(|t| damage_file(&chunk_file(dir, *t, INO), left))
            })
            .await;
            let error = read_known(&cluster, 100_000, 100_000).await.unwrap_err();
            assert_eq!(error.errno, Errno::EIO, "{error}");
            assert_eq!(read_known(&cluster, left, 100_000).await.unwrap().len(), 100_000, "a hole");
            let op = StorageOp::Truncate { len: 0 };
            cluster.ask_file(INO, (3, None), op, None).await.unwrap();
        }
    });
}

/// A write to an absent replica would turn the rest of the file into holes.
#[test]
fn a_member_that_is_written_to_while_it_lacks_the_file_gets_all_of_it() {
    with_members_on_disk(2, |cluster| async move {
        let mut data = content(5, 5 * MIB as usize);
        for target in [2, 1] {
            cluster.write(INO, 3, 0, &data).await;
            while_stopped(&cluster, |dir| damage_file(&chunk_file(dir, target, INO), 0)).await;
            cluster.enable_resync();
            let at = 3 * MIB as usize;
            data[at..at + 4096].fill(target as u8);
            let op = StorageOp::Write { offset: at as u64, path: Way::Cached, durable: false };
            let known = (INO, data.len() as u64);
            cluster.ask_known(known, op, IoBuf::from_slice(&[target as u8; 4096])).await.unwrap();
            cluster.until_in_sync().await;
            until_repaired(&cluster).await;
            assert!(cluster.on_disk(target).await[&INO] == data, "target {target}");
        }
    });
}

/// A migration copies what is reported as data, up to the end of the file.
#[test]
fn punched_or_truncated_content_is_no_hole_for_a_migration() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(6, 2 * MIB as usize + 777);
        let end = data.len() as u64;
        cluster.write(INO, 3, 0, &data).await;
        let ask = async |op| cluster.ask_file(INO, (0, None), op, None).await;
        let seek = async |from, what| match ask(StorageOp::Seek { from, what }).await {
            Ok(StorageReply::Offset(offset)) => offset,
            other => panic!("{other:?}"),
        };
        let len = async || match ask(StorageOp::Stat).await {
            Ok(StorageReply::Stat { len, .. }) => Ok(len),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.errno),
        };
        let path = chunk_file(&cluster.dir, 1, INO);
        let punch = std::process::Command::new("fallocate")
            .args(["--punch-hole", "--offset", "4096", "--length", "1000000"])
            .arg(&path)
            .status();
        assert!(punch.unwrap().success());
        assert_eq!(seek(8192, SeekTarget::Data).await, Some(8192));
        assert_eq!(seek(0, SeekTarget::Hole).await, Some(end));
        let cut = |to| File::options().write(true).open(&path).unwrap().set_len(to).unwrap();
        cut(MIB + 50);
        assert!(seek(0, SeekTarget::Hole).await >= Some(end));
        assert_eq!(seek(MIB + 100, SeekTarget::Data).await, Some(MIB + 100));
        cluster.set_link(2, LinkState::Closed);
        assert_eq!(len().await, Err(Errno::EIO), "nobody is there who could tell");
        cluster.set_link(2, LinkState::Open);
        assert_eq!(len().await, Ok(end));
        repair(&cluster, INO).await;
        cluster.require_equal().await;
        cut(end - 10);
        assert_eq!(len().await, Ok(end), "the block in which it ends doesn't match");
        until_repaired(&cluster).await;
        assert_eq!(cluster.on_disk(1).await[&INO], data);
        assert!(!cluster.management.group().is_degraded());
    });
}

/// Restores the former content, as a backup program does: with its modification time.
fn restore_backup(saved: &[(PathBuf, Vec<u8>, SystemTime)]) {
    for (path, bytes, modified) in saved {
        fs::write(path, bytes).unwrap();
        File::options().write(true).open(path).unwrap().set_modified(*modified).unwrap();
    }
}

fn save(data: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let old = SystemTime::now() - Duration::from_secs(3600);
    [data.to_path_buf(), sum_file(data)].map(|path| (path.clone(), fs::read(&path).unwrap(), old)).into()
}

#[test]
fn an_older_copy_that_was_put_back_is_overwritten_with_what_is_newer() {
    with_members_on_disk(2, |cluster| async move {
        for target in [1, 2] {
            cluster.write(INO, 3, 0, &content(6, 50_000)).await;
            let mut saved = Vec::new();
            while_stopped(&cluster, |dir| saved = save(&chunk_file(dir, target, INO))).await;
            let data = content(7, 60_000);
            cluster.write(INO, 3, 0, &data).await;
            while_stopped(&cluster, |_| restore_backup(&saved)).await;
            let healed = repair(&cluster, INO).await;
            assert!(healed.repaired > 0 && healed.unclear == 0, "{healed:?}");
            cluster.require_equal().await;
            assert_eq!(cluster.on_disk(target).await[&INO], data);
        }
    });
}

#[test]
fn unclear_differences_change_nothing() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &content(8, 8192)).await;
        let mut saved = BTreeMap::new();
        while_stopped(&cluster, |dir| {
            let path = chunk_file(dir, 2, INO);
            for path in [path.clone(), sum_file(&path)] {
                saved.insert(path.clone(), fs::read(&path).unwrap());
            }
        })
        .await;
        let data = content(9, 8192);
        cluster.write(INO, 3, 0, &data).await;
        // A plain copy: it looks like a change that only this replica has.
        while_stopped(&cluster, |_| saved.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap()))
            .await;
        assert_eq!(repair(&cluster, INO).await, RepairResult { damaged: 1, repaired: 0, unclear: 1 });
        assert_eq!(
            (cluster.on_disk(1).await[&INO].clone(), cluster.on_disk(2).await[&INO].clone()),
            (data, content(8, 8192))
        );
    });
}

/// Something that may happen to chunk files on disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Injection {
    Flipped,
    Cut,
    Deleted,
    DeletedWithSums,
    /// Exchanged with another file's.
    Swapped,
    SwappedWithSums,
    Stale,
    StaleWithSums,
    LostSums,
}

const INJECTIONS: [Injection; 9] = [
    Injection::Flipped,
    Injection::Cut,
    Injection::Deleted,
    Injection::DeletedWithSums,
    Injection::Swapped,
    Injection::SwappedWithSums,
    Injection::Stale,
    Injection::StaleWithSums,
    Injection::LostSums,
];

/// Total number of injections, unless `WEFT_INJECTIONS` is set.
fn injections() -> u64 {
    std::env::var("WEFT_INJECTIONS").map_or(1000, |number| number.parse().unwrap())
}

fn swap(one: &Path, other: &Path) {
    let between = one.with_extension("swap");
    fs::rename(one, &between).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&between, other).unwrap();
}

fn inject(dir: &Path, at: u64, what: Injection, saved: &[(PathBuf, Vec<u8>, SystemTime)]) {
    let (target, ino) = (at as u32 % 2 + 1, ChunkFileId(100 + at));
    let path = chunk_file(dir, target, ino);
    let other = chunk_file(dir, target, ChunkFileId(100_000 + at));
    match what {
        Injection::Flipped => flip(&path, at * 37 % 9000),
        Injection::Cut => {
            File::options().write(true).open(&path).unwrap().set_len(at * 31 % 9000).unwrap();
        }
        Injection::Deleted => fs::remove_file(&path).unwrap(),
        Injection::DeletedWithSums => {
            fs::remove_file(&path).unwrap();
            fs::remove_file(sum_file(&path)).unwrap();
        }
        Injection::Swapped => swap(&path, &other),
        Injection::SwappedWithSums => {
            swap(&path, &other);
            swap(&sum_file(&path), &sum_file(&other));
        }
        Injection::Stale => restore_backup(&saved[..1]),
        Injection::StaleWithSums => restore_backup(saved),
        Injection::LostSums => fs::remove_file(sum_file(&path)).unwrap(),
    }
}

/// Scrubs all targets once.
async fn scrub(cluster: &Cluster) {
    cluster.management.edit(|map| map.settings.scrub.asked += 1);
    let asked = cluster.management.scrub_requests();
    let has_ended = || {
        cluster.links.values().all(|link| {
            let service = link.service.lock().unwrap().clone().unwrap();
            service.scrubs().iter().all(|progress| progress.asked == asked && !progress.is_running)
                && !service.scrubs().is_empty()
        })
    };
    cluster.until("all targets are searched", has_ended).await;
}

#[test]
fn scrubs_repair_all_injected_damage_and_no_client_reads_it() {
    with_members_on_disk(2, |cluster| async move {
        cluster.management.edit(|map| map.settings.scrub.rate = Some(1 << 30));
        let old = |ino: ChunkFileId| content(ino.0 + 7, 9000 + ino.0 as usize % 500);
        let new = |ino: ChunkFileId| content(ino.0, 9500 + ino.0 as usize % 5000);
        let what = |at: u64| INJECTIONS[at as usize / 2 % INJECTIONS.len()];
        let files: Vec<ChunkFileId> =
            (0..injections()).flat_map(|at| [ChunkFileId(100 + at), ChunkFileId(100_000 + at)]).collect();
        for ino in &files {
            cluster.write(*ino, 3, 0, &old(*ino)).await;
        }
        let mut saved = Vec::new();
        while_stopped(&cluster, |dir| {
            saved.extend(
                (0..injections()).map(|at| save(&chunk_file(dir, at as u32 % 2 + 1, ChunkFileId(100 + at)))),
            );
        })
        .await;
        for ino in &files {
            cluster.write(*ino, 3, 0, &new(*ino)).await;
        }
        // A rename only shows in the times if it doesn't follow the write immediately.
        rt::sleep(Duration::from_millis(2500)).await;
        let good = files_of(&cluster.dir, 1).await;
        while_stopped(&cluster, |dir| {
            (0..injections()).for_each(|at| inject(dir, at, what(at), &saved[at as usize]));
        })
        .await;
        // Wrong content with matching checksums shows when replicas are compared; all other damage
        // isn't served before, either.
        let holds = |at: u64| matches!(what(at), Injection::SwappedWithSums | Injection::StaleWithSums);
        for at in (0..injections()).filter(|at| !holds(*at)).step_by(3) {
            let ino = ChunkFileId(100 + at);
            assert_eq!(cluster.read(ino, new(ino).len()).await, new(ino), "{:?} of inode {ino}", what(at));
        }
        cluster.enable_scrubs();
        scrub(&cluster).await;
        for ino in &files {
            assert_eq!(cluster.read(*ino, new(*ino).len()).await, new(*ino), "inode {ino}");
        }
        assert_eq!(files_of(&cluster.dir, 1).await, good);
        cluster.require_equal().await;
        assert!(!cluster.management.group().is_degraded(), "nobody had to be taken out");
        let found = |cluster: &Cluster| -> (u64, u64) {
            let services = cluster.links.values().map(|link| link.service.lock().unwrap().clone().unwrap());
            let scrubs: Vec<_> = services.flat_map(|service| service.scrubs()).collect();
            (scrubs.iter().map(|s| s.damaged).sum(), scrubs.iter().map(|s| s.mended).sum())
        };
        let (damaged, mended) = found(&cluster);
        assert!(damaged == mended && damaged >= injections(), "{damaged} found, {mended} mended");
    });
}
