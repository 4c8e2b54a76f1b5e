//! All processes die in the middle of the repair of a replica, and only that replica is left: its
//! content is right or refused, and it is repaired once the other one is back.

use super::cluster::{Cluster, GROUP, INO, LinkState, MIB, Management};
use super::damage::while_stopped_async;
use chunkstore::Store;
use rt::sim::Machine;
use rt::{Fallocate, File, IoBuf, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::targets;
use types::{ByteRange, MemberState, TargetId, Timestamp};
use wire::{DataPath as Way, StorageOp};

const BLOCK: usize = 4096;

/// More requests than any of these repairs takes.
const MOST_REQUESTS: u64 = 64;

/// The damage of the replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Damage {
    Removed,
    RemovedWithSums,
    CutToNothing,
    Cut,
    Flipped,
    Punched,
    TooLong,
}

/// What triggers the repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mended {
    /// A scrub, or a request that has met the damage.
    BySearch,
    /// A file system check, which says which replica is right.
    ByCheck,
}

fn content() -> Vec<u8> {
    (0..3 * MIB as usize + 777).map(|at| (at / 700) as u8 | 1).collect()
}

fn chunk_file(dir: &Path, target: u32) -> PathBuf {
    Store::chunk_file_path(&Store::group_dir(&dir.join(target.to_string()), GROUP), INO)
}

async fn damage(path: &Path, what: Damage) {
    let open = || File::open(path, OpenOptions { read: true, write: true, ..OpenOptions::default() });
    let len = content().len() as u64;
    match what {
        Damage::Removed => rt::remove_file(path).await.unwrap(),
        Damage::RemovedWithSums => {
            rt::remove_file(path).await.unwrap();
            rt::remove_file(&path.with_extension("sum")).await.unwrap();
        }
        Damage::CutToNothing => open().await.unwrap().set_len(0).await.unwrap(),
        Damage::Cut => open().await.unwrap().set_len(MIB + 5000).await.unwrap(),
        Damage::Flipped => {
            let file = open().await.unwrap();
            for at in [5000, MIB - 1, 2 * MIB + 9000, 3 * MIB + 1, len - 1] {
                let byte = IoBuf::alloc(1);
                assert_eq!(file.read_at(byte.clone(), at).await.unwrap(), 1);
                let flipped = IoBuf::from_slice(&[byte.as_slice()[0] ^ 0x40]);
                assert_eq!(file.write_at(flipped, at).await.unwrap(), 1);
            }
        }
        Damage::Punched => {
            open().await.unwrap().allocate(Fallocate::Punch, BLOCK as u64, 2_500_000).await.unwrap();
        }
        Damage::TooLong => {
            let file = open().await.unwrap();
            file.set_len(len + 2 * MIB).await.unwrap();
            // The scrub concludes from this time that another program has modified it.
            let now = rt::now();
            file.set_time(Timestamp::new(now.secs - 3600, now.nanos)).await.unwrap();
        }
    }
}

async fn start(management: Arc<Management>) -> Arc<Cluster> {
    Cluster::start(Path::new(targets::SIMULATED_DIR), management).await
}

/// Damages the second member's replica and has it repaired. All processes die when the second
/// member would get its next request after `after` ones. Returns whether it came to that.
fn end_in_the_middle(
    machine: &mut Machine,
    management: &Arc<Management>,
    how: (Damage, Mended),
    after: u64,
) -> bool {
    let management = management.clone();
    let run = async move {
        let cluster = start(management).await;
        cluster.write(INO, 3, 0, &content()).await;
        while_stopped_async(&cluster, async |dir| damage(&chunk_file(dir, 2), how.0).await).await;
        *cluster.link(2).changes_left.lock().unwrap() = Some(after);
        let (asked, is_done) = (cluster.clone(), Arc::new(AtomicBool::new(false)));
        let told = is_done.clone();
        rt::spawn(async move {
            mend(&asked, how.1).await;
            told.store(true, Ordering::SeqCst);
        });
        let link = cluster.link(2);
        let has_ended = || is_done.load(Ordering::SeqCst) || link.is_at_end.load(Ordering::SeqCst);
        cluster.until("it is mended, or has ended in the middle", has_ended).await;
        link.is_at_end.load(Ordering::SeqCst)
    };
    let is_cut_short = machine.run(run).unwrap();
    machine.kill();
    is_cut_short
}

async fn mend(cluster: &Cluster, how: Mended) {
    let len = content().len() as u64;
    let op = match how {
        Mended::BySearch => StorageOp::Repair { range: ByteRange::new(0, u64::MAX) },
        Mended::ByCheck => {
            StorageOp::CopyReplica { from: TargetId(1), to: TargetId(2), range: ByteRange::new(0, len) }
        }
    };
    cluster.ask_file(INO, (0, None), op, None).await.unwrap();
}

/// Returns the number of blocks that are served, all of them right; the others are refused.
async fn read_blocks(cluster: &Cluster, context: &str) -> usize {
    let data = content();
    let mut given = 0;
    for (at, block) in data.chunks(BLOCK).enumerate() {
        let buf = IoBuf::alloc(block.len());
        let op = StorageOp::Read { offset: (at * BLOCK) as u64, path: Way::Cached };
        if cluster.ask_file(INO, (3, None), op, Some(buf.clone())).await.is_ok() {
            assert!(buf.as_slice() == block, "{context}: block {at} is wrong, and nobody says so");
            given += 1;
        }
    }
    given
}

/// The second member is alone at first, then the other one comes back.
fn go_on(machine: &mut Machine, management: &Arc<Management>, context: &str) {
    let (management, context) = (management.clone(), context.to_string());
    let run = async move {
        management.set(1, MemberState::NeedsResync);
        let cluster = start(management.clone()).await;
        cluster.set_link(1, LinkState::Closed);
        read_blocks(&cluster, &context).await;
        cluster.set_link(1, LinkState::Open);
        cluster.enable_resync();
        cluster.until(&context, || !management.group().is_degraded()).await;
        let heal = StorageOp::Repair { range: ByteRange::new(0, u64::MAX) };
        let healed = cluster.ask_file(INO, (0, None), heal, None).await.unwrap();
        let context = format!("{context}, {healed:?}");
        assert!(cluster.read(INO, content().len()).await == content(), "{context}: it isn't what it was");
        for target in [1, 2] {
            assert!(cluster.on_disk(target).await[&INO] == content(), "{context}: member {target}");
        }
    };
    machine.run(run).unwrap();
}

/// Returns how many crash points were tried.
fn try_all(what: Damage, by: Mended) -> u64 {
    for after in 0..MOST_REQUESTS {
        let (mut machine, management) = (Machine::new(after), Management::new(2));
        management.files.lock().unwrap().insert(INO, content().len() as u64);
        let is_cut_short = end_in_the_middle(&mut machine, &management, (what, by), after);
        // A removed replica without checksums isn't noticed before the first access.
        let is_known = after > 0 || what != Damage::RemovedWithSums;
        if is_known {
            go_on(
                &mut machine,
                &management,
                &format!("{what:?}, mended {by:?}, ended after {after} requests"),
            );
        }
        if !is_cut_short {
            return after;
        }
    }
    panic!("{what:?}: no end after {MOST_REQUESTS} requests");
}

#[test]
fn a_removed_copy_is_whole_or_refused() {
    for by in [Mended::BySearch, Mended::ByCheck] {
        for what in [Damage::Removed, Damage::RemovedWithSums] {
            assert!(try_all(what, by) > 4);
        }
    }
}

#[test]
fn a_cut_copy_is_whole_or_refused() {
    for by in [Mended::BySearch, Mended::ByCheck] {
        for what in [Damage::CutToNothing, Damage::Cut] {
            assert!(try_all(what, by) > 2);
        }
    }
}

#[test]
fn a_copy_with_damaged_blocks_is_whole_or_refused() {
    for by in [Mended::BySearch, Mended::ByCheck] {
        for what in [Damage::Flipped, Damage::Punched] {
            assert!(try_all(what, by) > 2);
        }
    }
}

#[test]
fn a_copy_that_is_too_long_keeps_what_is_right() {
    for by in [Mended::BySearch, Mended::ByCheck] {
        try_all(Damage::TooLong, by);
    }
}
