//! Mirrored files while disks of storage nodes are full, return only errors, or lose power:
//! applications continue, no written data is lost, and the replicas get in sync again without
//! intervention.

use super::super::disk::{Disk, DiskKind};
use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, suites};
use super::load::{ensure_no_errors, fsx_pieces, plan, under_load, work_under_faults};
use super::mirror::{FSX_OPERATIONS, ensure_in_sync};
use super::two_mounts::differences;
use super::{Cluster, Part, Shape};
use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "mirrored_history_while_disks_fail", scope: Scope::Own, minutes: 10, run: history },
    TestCase { name: "mirrored_fio_while_disks_fail", scope: Scope::Own, minutes: 10, run: fio },
    TestCase { name: "mirrored_fsx_while_disks_fail", scope: Scope::Own, minutes: 10, run: fsx },
    TestCase { name: "mirrored_all_nodes_lose_power", scope: Scope::Own, minutes: 6, run: all_lose_power },
];

/// Number of storage nodes: more than a group has members.
pub(super) const STORAGE: u8 = 4;
/// Size of each disk: several times what the tests write.
const DISK_BYTES: u64 = 1 << 30;
/// Duration of a disk fault. Its node stays reachable, so its members are ejected at once.
const FAULT: Duration = Duration::from_secs(5);
/// Time of load before and after a fault.
const AROUND: Duration = Duration::from_secs(3);
/// Threads per mount.
const THREADS: u32 = 2;
/// Rounds of all kinds of faults in the short and the long form.
const ROUNDS: (u64, u64) = (1, 30);
/// The same for power failures of all nodes.
const ALL_POWER_ROUNDS: (u64, u64) = (3, 30);
/// Bytes of each file written meanwhile, several chunks, and bytes per write.
const UNDER_LOAD_BYTES: usize = 3 << 20;
const WRITE_BYTES: usize = 256 << 10;

/// Minimum number of completed files before the power failure, and longest time to wait for them.
const MIN_COMPLETED: usize = 5;
const COMPLETED_DEADLINE: Duration = Duration::from_secs(60);

/// A fault of a storage node's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// The disk is full.
    Full,
    /// All I/O suddenly fails with EIO, while the service keeps running. Repaired by a restart on a
    /// working disk.
    Broken,
    /// The node loses power: unsynced data is lost.
    WithoutPower,
}

impl DiskFault {
    const ALL: [DiskFault; 3] = [DiskFault::Full, DiskFault::Broken, DiskFault::WithoutPower];
}

/// Starts a cluster with mirrored files and a disk per storage node.
fn start(stage: &Stage, name: &str) -> TestResult<Cluster> {
    let cluster = start_plain(stage, name)?;
    cluster.mirror_everything(2)?;
    Ok(cluster)
}

/// The same with unmirrored files.
pub(super) fn start_plain(stage: &Stage, name: &str) -> TestResult<Cluster> {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let disk = |folder: &std::path::Path| Disk::new(folder, "target", DiskKind::Xfs, DISK_BYTES);
    Cluster::build_with(stage, name, shape, Some(&disk), &[])
}

impl Cluster {
    pub(super) fn fail_disk(&mut self, node: usize, fault: DiskFault) -> TestResult {
        match fault {
            DiskFault::Full => self.disks[node].fill(),
            DiskFault::Broken => self.disks[node].shut_down(),
            DiskFault::WithoutPower => {
                // As on a machine without power, the process must neither write anything more nor
                // report the failed disk.
                self.freeze_storage(node)?;
                self.disks[node].shut_down()?;
                self.kill_storage(node);
                Ok(())
            }
        }
    }

    pub(super) fn repair_disk(&mut self, node: usize, fault: DiskFault) -> TestResult {
        match fault {
            DiskFault::Full => self.disks[node].free_space(),
            DiskFault::Broken | DiskFault::WithoutPower => {
                self.kill_storage(node);
                self.disks[node].remount()?;
                self.restart(Part::Storage(node))
            }
        }
    }
}

/// Applications on two mounts see one file system while the disks of one node after the other fail.
fn history(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "disk-history")?;
    for round in stage.rounds(ROUNDS) {
        for (index, fault) in DiskFault::ALL.into_iter().enumerate() {
            let node = (round as usize + index) % usize::from(STORAGE);
            let name = format!("round-{round}-{fault:?}");
            let plan = plan(THREADS, 0, round);
            let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
                thread::sleep(AROUND);
                cluster.fail_disk(node, fault)?;
                thread::sleep(FAULT);
                if fault == DiskFault::Broken {
                    ensure!(cluster.degraded_groups()? > 0, "a disk that is broken still counts as good");
                }
                cluster.repair_disk(node, fault)?;
                thread::sleep(AROUND);
                Ok(())
            })?;
            ensure_no_errors(&outcome, &format!("although only one disk was {fault:?}, {name}"), &cluster)?;
            ensure_in_sync(&cluster, &name)?;
        }
    }
    cluster.stop()
}

/// Applies each kind of fault to the disk of another node, one after the other, while other work
/// runs.
fn beside_faults(
    cluster: &mut Cluster,
    first: usize,
    work: impl FnMut(u64) -> TestResult + Send,
) -> TestResult<u64> {
    work_under_faults(cluster, work, |cluster| {
        for (index, fault) in DiskFault::ALL.into_iter().enumerate() {
            let node = (first + index) % usize::from(STORAGE);
            thread::sleep(AROUND);
            cluster.fail_disk(node, fault)?;
            thread::sleep(FAULT);
            cluster.repair_disk(node, fault)?;
            // Two missing members of one group would be too many.
            cluster.wait_until_in_sync()?;
        }
        Ok(())
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
        let work = |_| suites::fio_write_and_verify(stage, &folders[0], &folders[1]);
        let times = beside_faults(&mut cluster, round as usize, work)?;
        ensure_in_sync(&cluster, &format!("round {round} of fio, {times} times"))?;
        fs::remove_dir_all(&folders[0]).at(folders[0].display())?;
    }
    cluster.stop()
}

fn fsx(stage: &Stage) -> TestResult {
    only_in_full(stage)?;
    let mut cluster = start(stage, "disk-fsx")?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("fsx-{round}"))?;
        let work = fsx_pieces(stage, &folders, round, FSX_OPERATIONS);
        let times = beside_faults(&mut cluster, round as usize, work)?;
        ensure_in_sync(&cluster, &format!("round {round} of fsx, {times} times"))?;
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        ensure_eq!(different, Vec::<String>::new(), "what two mounts show of fsx's files");
        fs::remove_dir_all(&folders[0]).at(folders[0].display())?;
    }
    cluster.stop()
}

/// Files that an application has written and synced successfully.
struct SyncedFile {
    path: PathBuf,
    seed: u64,
}

/// The load during the power failure.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Number of completed files.
    completed: AtomicUsize,
}

/// Writes files on one mount until it is stopped. `durably`: each write is synced, and complete
/// files are guaranteed. Otherwise nothing is synced, so that an arbitrary part is on disk when the
/// power fails.
fn write_files(folder: &Path, writer: u64, durably: bool, load: &Load) -> TestResult<Vec<SyncedFile>> {
    let flags = if durably { libc::O_DSYNC } else { 0 };
    let mut written = Vec::new();
    for number in 0.. {
        if load.stop.load(Ordering::Relaxed) {
            break;
        }
        let path = folder.join(format!("{writer}-{number}"));
        let seed = writer << 32 | number;
        let options = File::options().write(true).create_new(true).custom_flags(flags).open(&path);
        let file = options.at(path.display())?;
        let content = Rng::new(seed).bytes(UNDER_LOAD_BYTES);
        for (index, piece) in content.chunks(WRITE_BYTES).enumerate() {
            file.write_all_at(piece, (index * WRITE_BYTES) as u64).at(path.display())?;
        }
        if durably {
            file.sync_all().at(path.display())?;
            written.push(SyncedFile { path, seed });
            load.completed.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(written)
}

/// All storage nodes lose power at once under load. Applications continue, replicas become
/// identical, synced data is present, and data without a guarantee isn't reported as damage.
fn all_lose_power(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "disk-power")?;
    for round in stage.rounds(ALL_POWER_ROUNDS) {
        let folders = cluster.shared_folder(&format!("synced-{round}"))?;
        let load = Load::default();
        let written = thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer: u64| {
                    let (folder, load) = (&folders[writer as usize % 2], &load);
                    scope.spawn(move || {
                        sys::unshare_files().at("the writer's files")?;
                        write_files(folder, round << 8 | writer, writer < 2, load)
                    })
                })
                .collect();
            let power_cut = cut_power(&mut cluster, round, &load);
            load.stop.store(true, Ordering::Relaxed);
            let ended = writers.into_iter().map(|writer| {
                writer.join().unwrap_or_else(|_| Err(Failure::Failed("a writer panicked".into())))
            });
            let written: TestResult<Vec<_>> = ended.collect();
            power_cut.and(written)
        })?;
        let synced: Vec<SyncedFile> = written.into_iter().flatten().collect();
        ensure!(synced.len() >= MIN_COMPLETED, "only {} files were synced", synced.len());
        ensure_in_sync(&cluster, &format!("round {round}, {} synced files", synced.len()))?;
        for SyncedFile { path, seed } in &synced {
            // Read through the other mount.
            let name = path.file_name().unwrap_or_default();
            let elsewhere = folders.iter().find(|folder| !path.starts_with(folder)).unwrap_or(&folders[0]);
            let path = elsewhere.join(name);
            let seen = fs::read(&path).at(path.display())?;
            ensure!(
                seen == Rng::new(*seed).bytes(UNDER_LOAD_BYTES),
                "{} isn't what was synced",
                path.display()
            );
        }
        ensure_readable(&folders)?;
        fs::remove_dir_all(&folders[0]).at(folders[0].display())?;
    }
    cluster.stop()
}

/// Checks that all existing files are readable through every mount; unsynced data may be missing.
fn ensure_readable(folders: &[PathBuf]) -> TestResult {
    for folder in folders {
        for entry in fs::read_dir(folder).at(folder.display())? {
            let path = entry.at(folder.display())?.path();
            fs::read(&path).at(path.display())?;
        }
    }
    Ok(())
}

/// Cuts the power of all storage nodes after some load, and restores it. The load then ends: until
/// the replicas are in sync it would fill the disks.
fn cut_power(cluster: &mut Cluster, round: u64, load: &Load) -> TestResult {
    // At a different time in each round: background syncs run every half second.
    thread::sleep(Duration::from_millis(1500 + round * 370 % 1000));
    // On a slow machine, wait until there are files to check afterwards.
    let until = Instant::now() + COMPLETED_DEADLINE;
    while load.completed.load(Ordering::Relaxed) < MIN_COMPLETED && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
    }
    for node in 0..usize::from(STORAGE) {
        cluster.fail_disk(node, DiskFault::WithoutPower)?;
    }
    for node in 0..usize::from(STORAGE) {
        cluster.repair_disk(node, DiskFault::WithoutPower)?;
    }
    load.stop.store(true, Ordering::Relaxed);
    cluster.wait_until_in_sync()?;
    thread::sleep(Duration::from_secs(1));
    Ok(())
}
