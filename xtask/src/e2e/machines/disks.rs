//! Mirrored files while disks of storage nodes are full, give nothing but errors, or lose their power: programs go on, nothing that was written is lost,
//! and the copies come back in step by themselves.

use super::super::disk::{Disk, DiskKind};
use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, suites};
use super::load::{ensure_no_errors, plan, under_load};
use super::mirror::ensure_in_step;
use super::twice::differences;
use super::{Cluster, Part, Shape};
use crate::process;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "mirrored_history_while_disks_fail", scope: Scope::Own, minutes: 10, run: history },
    TestCase { name: "mirrored_fio_while_disks_fail", scope: Scope::Own, minutes: 10, run: fio },
    TestCase { name: "mirrored_fsx_while_disks_fail", scope: Scope::Own, minutes: 10, run: fsx },
    TestCase { name: "mirrored_all_lose_power", scope: Scope::Own, minutes: 6, run: all_lose_power },
];

/// Storage nodes: more than a group has members.
const STORAGE: u8 = 4;
/// Room of each disk: several times what the tests write.
const DISK_BYTES: u64 = 1 << 30;
/// How long a disk is out of order. Its node is heard of meanwhile, so its copies are taken out at once.
const FAULT: Duration = Duration::from_secs(5);
/// Load before a fault and after it, seconds.
const AROUND_SECS: u64 = 3;
/// Threads on each mount.
const THREADS: u32 = 2;
/// Rounds of all kinds of faults in the short and in the long form.
const ROUNDS: (u64, u64) = (1, 10);
/// Files that are synced before the power of all nodes goes, and bytes of each: several chunks.
const FILES: usize = 12;
const FILE_BYTES: usize = 3 << 20;
const DEADLINE: Duration = Duration::from_secs(600);

/// What befalls the disk of a storage node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskFault {
    /// It has no room.
    Full,
    /// It answers everything with EIO from one moment to the next, while its service goes on. Mended by a start on a disk that works.
    Broken,
    /// The power of the node goes: what isn't on disk is lost.
    WithoutPower,
}

impl DiskFault {
    const ALL: [DiskFault; 3] = [DiskFault::Full, DiskFault::Broken, DiskFault::WithoutPower];
}

/// A cluster whose storage nodes have a disk each.
fn start(stage: &Stage, name: &str) -> TestResult<Cluster> {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let disk = |folder: &std::path::Path| Disk::new(folder, "target", DiskKind::Xfs, DISK_BYTES);
    let cluster = Cluster::build_with(stage, name, shape, Some(&disk))?;
    cluster.mirror_everything(2)?;
    Ok(cluster)
}

impl Cluster {
    fn strike_disk(&mut self, node: usize, fault: DiskFault) -> TestResult {
        match fault {
            DiskFault::Full => self.disks[node].fill(),
            DiskFault::Broken => self.disks[node].shut_down(),
            DiskFault::WithoutPower => {
                // First, so that the process writes nothing more before it is gone.
                self.disks[node].shut_down()?;
                self.kill_storage(node);
                Ok(())
            }
        }
    }

    fn mend_disk(&mut self, node: usize, fault: DiskFault) -> TestResult {
        match fault {
            DiskFault::Full => self.disks[node].relieve(),
            DiskFault::Broken | DiskFault::WithoutPower => {
                self.kill_storage(node);
                self.disks[node].remount()?;
                self.restart(Part::Storage(node))
            }
        }
    }
}

/// Programs on two mounts see one file system while the disks of one node after the other fail.
fn history(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "disk-history")?;
    for round in stage.rounds(ROUNDS) {
        for (index, fault) in DiskFault::ALL.into_iter().enumerate() {
            let node = (round as usize + index) % usize::from(STORAGE);
            let name = format!("round-{round}-{fault:?}");
            let plan = plan(THREADS, FAULT.as_secs() + 2 * AROUND_SECS, round);
            let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
                thread::sleep(Duration::from_secs(AROUND_SECS));
                cluster.strike_disk(node, fault)?;
                thread::sleep(FAULT);
                if fault == DiskFault::Broken {
                    ensure!(cluster.degraded_groups()? > 0, "a disk that is broken still counts as good");
                }
                cluster.mend_disk(node, fault)
            })?;
            ensure_no_errors(&outcome, &format!("although only one disk was {fault:?}, {name}"), &cluster)?;
            ensure_in_step(&cluster, &name)?;
        }
    }
    cluster.stop()
}

/// Lets each kind of fault befall the disk of another node, one after the other, while something else goes on.
fn beside_faults<T: Send>(
    cluster: &mut Cluster,
    first: usize,
    work: impl FnOnce() -> TestResult<T> + Send,
) -> TestResult<T> {
    thread::scope(|scope| {
        let working = scope.spawn(work);
        let befall = |cluster: &mut Cluster| {
            for (index, fault) in DiskFault::ALL.into_iter().enumerate() {
                let node = (first + index) % usize::from(STORAGE);
                thread::sleep(Duration::from_secs(AROUND_SECS));
                cluster.strike_disk(node, fault)?;
                thread::sleep(FAULT);
                cluster.mend_disk(node, fault)?;
                // Two missing members of one group would be one too many.
                cluster.wait_until_copies_are_good()?;
            }
            TestResult::Ok(())
        };
        let befallen = befall(cluster);
        let worked = working.join().map_err(|_| Failure::Failed("the work's thread panicked".into()))?;
        befallen.and(worked)
    })
}

fn only_in_full(stage: &Stage) -> TestResult {
    if stage.full {
        Ok(())
    } else {
        skip("--full only: mirrored_history_while_disks_fail has the same faults")
    }
}

fn fio(stage: &Stage) -> TestResult {
    only_in_full(stage)?;
    let mut cluster = start(stage, "disk-fio")?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("fio-{round}"))?;
        let work = || suites::fio_write_and_verify(stage, &folders[0], &folders[1]);
        beside_faults(&mut cluster, round as usize, work)?;
        ensure_in_step(&cluster, &format!("round {round} of fio"))?;
        fs::remove_dir_all(&folders[0]).at(folders[0].display())?;
    }
    cluster.stop()
}

fn fsx(stage: &Stage) -> TestResult {
    only_in_full(stage)?;
    let operations = 50_000;
    let mut cluster = start(stage, "disk-fsx")?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("fsx-{round}"))?;
        let seed = suites::FSX_SEEDS[round as usize % suites::FSX_SEEDS.len()];
        let mut command = suites::fsx_command(stage, &folders[0].join("file"), seed, operations)?;
        let work = || Ok(process::run_ok(&mut command, DEADLINE)?);
        let done = beside_faults(&mut cluster, round as usize, work)?;
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains("A-OK"), "fsx doesn't say that all is well: {}", done.tail());
        ensure_in_step(&cluster, &format!("round {round} of fsx"))?;
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        ensure_eq!(different, Vec::<String>::new(), "what two mounts show of fsx's file");
    }
    cluster.stop()
}

/// All storage nodes lose their power at once while something is written: copies come to agree, and what was synced is there.
fn all_lose_power(stage: &Stage) -> TestResult {
    if !stage.full {
        return skip(
            "--full only: weft fsck takes content for damage that was never synced and went with the power",
        );
    }
    let mut cluster = start(stage, "disk-power")?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("synced-{round}"))?;
        let content = |file: usize| Rng::new(round << 32 | file as u64).bytes(FILE_BYTES);
        let path = |mount: usize, file: usize| folders[mount].join(file.to_string());
        for file in 0..FILES {
            let path = path(file % 2, file);
            let made = File::create(&path).at(path.display())?;
            made.write_all_at(&content(file), 0).and_then(|()| made.sync_all()).at(path.display())?;
        }
        // These are being changed when it happens, and nobody syncs them.
        let unsynced: Vec<_> = (0..2).map(|mount| folders[mount].join(format!("unsynced-{mount}"))).collect();
        for (index, path) in unsynced.iter().enumerate() {
            fs::write(path, Rng::new(index as u64 + 1).bytes(FILE_BYTES)).at(path.display())?;
        }
        for node in 0..usize::from(STORAGE) {
            cluster.strike_disk(node, DiskFault::WithoutPower)?;
        }
        for node in 0..usize::from(STORAGE) {
            cluster.mend_disk(node, DiskFault::WithoutPower)?;
        }
        ensure_in_step(&cluster, &format!("round {round}"))?;
        for file in 0..FILES {
            let path = path(1 - file % 2, file);
            let seen = fs::read(&path).at(path.display())?;
            ensure!(seen == content(file), "file {file} isn't what was synced");
        }
    }
    cluster.stop()
}
