//! Mirrored files while disks of storage nodes are full, give nothing but errors, or lose their
//! power: programs go on, nothing that was written is lost, and the copies come back in step by
//! themselves.

use super::super::disk::{Disk, DiskKind};
use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, suites};
use super::load::{ensure_no_errors, fsx_pieces, plan, under_load, work_beside};
use super::mirror::{FSX_OPERATIONS, ensure_in_step};
use super::twice::differences;
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
    TestCase { name: "mirrored_all_lose_power", scope: Scope::Own, minutes: 6, run: all_lose_power },
];

/// Storage nodes: more than a group has members.
pub(super) const STORAGE: u8 = 4;
/// Room of each disk: several times what the tests write.
const DISK_BYTES: u64 = 1 << 30;
/// How long a disk is out of order. Its node is heard of meanwhile, so its copies are taken out at
/// once.
const FAULT: Duration = Duration::from_secs(5);
/// Load before a fault and after it.
const AROUND: Duration = Duration::from_secs(3);
/// Threads on each mount.
const THREADS: u32 = 2;
/// Rounds of all kinds of faults in the short and in the long form.
const ROUNDS: (u64, u64) = (1, 30);
/// The same of those in which all nodes lose their power.
const ALL_POWER_ROUNDS: (u64, u64) = (3, 30);
/// Bytes of each file that is written then, several chunks, and of each write.
const UNDER_LOAD_BYTES: usize = 3 << 20;
const WRITE_BYTES: usize = 256 << 10;

/// Files that are promised at least before the power goes, and how long they are waited for.
const PROMISED: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// What befalls the disk of a storage node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// It has no room.
    Full,
    /// It answers everything with EIO from one moment to the next, while its service goes on.
    /// Mended by a start on a disk that works.
    Broken,
    /// The power of the node goes: what isn't on disk is lost.
    WithoutPower,
}

impl DiskFault {
    const ALL: [DiskFault; 3] = [DiskFault::Full, DiskFault::Broken, DiskFault::WithoutPower];
}

/// A cluster of mirrored files whose storage nodes have a disk each.
fn start(stage: &Stage, name: &str) -> TestResult<Cluster> {
    let cluster = start_plain(stage, name)?;
    cluster.mirror_everything(2)?;
    Ok(cluster)
}

/// The same of files of one copy.
pub(super) fn start_plain(stage: &Stage, name: &str) -> TestResult<Cluster> {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let disk = |folder: &std::path::Path| Disk::new(folder, "target", DiskKind::Xfs, DISK_BYTES);
    Cluster::build_with(stage, name, shape, Some(&disk), &[])
}

impl Cluster {
    pub(super) fn strike_disk(&mut self, node: usize, fault: DiskFault) -> TestResult {
        match fault {
            DiskFault::Full => self.disks[node].fill(),
            DiskFault::Broken => self.disks[node].shut_down(),
            DiskFault::WithoutPower => {
                // The process neither writes anything more nor tells anybody of a disk that has
                // failed: a machine without power doesn't.
                self.freeze_storage(node)?;
                self.disks[node].shut_down()?;
                self.kill_storage(node);
                Ok(())
            }
        }
    }

    pub(super) fn mend_disk(&mut self, node: usize, fault: DiskFault) -> TestResult {
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
            let plan = plan(THREADS, 0, round);
            let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
                thread::sleep(AROUND);
                cluster.strike_disk(node, fault)?;
                thread::sleep(FAULT);
                if fault == DiskFault::Broken {
                    ensure!(cluster.degraded_groups()? > 0, "a disk that is broken still counts as good");
                }
                cluster.mend_disk(node, fault)?;
                thread::sleep(AROUND);
                Ok(())
            })?;
            ensure_no_errors(&outcome, &format!("although only one disk was {fault:?}, {name}"), &cluster)?;
            ensure_in_step(&cluster, &name)?;
        }
    }
    cluster.stop()
}

/// Lets each kind of fault befall the disk of another node, one after the other, while something
/// else goes on.
fn beside_faults(
    cluster: &mut Cluster,
    first: usize,
    work: impl FnMut(u64) -> TestResult + Send,
) -> TestResult<u64> {
    work_beside(cluster, work, |cluster| {
        for (index, fault) in DiskFault::ALL.into_iter().enumerate() {
            let node = (first + index) % usize::from(STORAGE);
            thread::sleep(AROUND);
            cluster.strike_disk(node, fault)?;
            thread::sleep(FAULT);
            cluster.mend_disk(node, fault)?;
            // Two missing members of one group would be one too many.
            cluster.wait_until_copies_are_good()?;
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
        ensure_in_step(&cluster, &format!("round {round} of fio, {times} times"))?;
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
        ensure_in_step(&cluster, &format!("round {round} of fsx, {times} times"))?;
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        ensure_eq!(different, Vec::<String>::new(), "what two mounts show of fsx's files");
        fs::remove_dir_all(&folders[0]).at(folders[0].display())?;
    }
    cluster.stop()
}

/// What a program has written through to the disks, as it was told.
struct Promised {
    path: PathBuf,
    seed: u64,
}

/// The load under which the power goes.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Files that have been promised.
    promised: AtomicUsize,
}

/// Writes files until it is told to stop, on one mount: durably, each write of them, and so that
/// they are promised when they are whole; or without asking for anything, so that some of it is on
/// disk when the power goes, and some isn't.
fn write_files(folder: &Path, writer: u64, durably: bool, load: &Load) -> TestResult<Vec<Promised>> {
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
            written.push(Promised { path, seed });
            load.promised.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(written)
}

/// All storage nodes lose their power at once under load: programs go on, copies come to agree,
/// what was synced is there, and nobody takes for damage what had never been promised.
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
                        sys::keep_files_to_oneself().at("the writer's files")?;
                        write_files(folder, round << 8 | writer, writer < 2, load)
                    })
                })
                .collect();
            let befallen = power_goes(&mut cluster, round, &load);
            load.stop.store(true, Ordering::Relaxed);
            let ended = writers.into_iter().map(|writer| {
                writer.join().unwrap_or_else(|_| Err(Failure::Failed("a writer panicked".into())))
            });
            let written: TestResult<Vec<_>> = ended.collect();
            befallen.and(written)
        })?;
        let promised: Vec<Promised> = written.into_iter().flatten().collect();
        ensure!(promised.len() >= PROMISED, "only {} files were promised", promised.len());
        ensure_in_step(&cluster, &format!("round {round}, {} promised files", promised.len()))?;
        for Promised { path, seed } in &promised {
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

/// What nobody had synced may be gone, but whatever is there can be read, through every mount.
fn ensure_readable(folders: &[PathBuf]) -> TestResult {
    for folder in folders {
        for entry in fs::read_dir(folder).at(folder.display())? {
            let path = entry.at(folder.display())?.path();
            fs::read(&path).at(path.display())?;
        }
    }
    Ok(())
}

/// The power of all storage nodes goes, after some load, and comes back. The load ends then: as
/// long as copies come back in step it would fill the disks.
fn power_goes(cluster: &mut Cluster, round: u64, load: &Load) -> TestResult {
    // Not at the same time in each round: syncs in the background come every half second.
    thread::sleep(Duration::from_millis(1500 + round * 370 % 1000));
    // Where little works at a time, it is waited for something to look at afterwards.
    let until = Instant::now() + PATIENCE;
    while load.promised.load(Ordering::Relaxed) < PROMISED && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
    }
    for node in 0..usize::from(STORAGE) {
        cluster.strike_disk(node, DiskFault::WithoutPower)?;
    }
    for node in 0..usize::from(STORAGE) {
        cluster.mend_disk(node, DiskFault::WithoutPower)?;
    }
    load.stop.store(true, Ordering::Relaxed);
    cluster.wait_until_copies_are_good()?;
    thread::sleep(Duration::from_secs(1));
    Ok(())
}
