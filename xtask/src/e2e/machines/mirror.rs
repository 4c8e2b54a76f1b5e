//! Mirrored files while storage nodes crash, stall and are cut off: applications continue, no
//! written data is lost, and the replicas get in sync again without intervention and are identical
//! on disk.

use super::super::disk::{Disk, DiskKind};
use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, suites};
use super::faults::{Fault, FaultDuration};
use super::load::{ensure_no_errors, fsx_pieces, plan, under_load, work_under_faults};
use super::two_mounts::differences;
use super::{Cluster, Part, Shape};
use crate::process;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "mirrored_copies_on_disk", scope: Scope::Own, minutes: 5, run: copies_on_disk },
    TestCase {
        name: "mirrored_history_under_faults",
        scope: Scope::Own,
        minutes: 10,
        run: history_under_faults,
    },
    TestCase {
        name: "mirrored_history_two_nodes_in_turn",
        scope: Scope::Own,
        minutes: 10,
        run: two_nodes_in_turn,
    },
    TestCase {
        name: "mirrored_fio_while_a_node_is_missing",
        scope: Scope::Own,
        minutes: 10,
        run: fio_under_faults,
    },
    TestCase {
        name: "mirrored_fsx_while_a_node_is_missing",
        scope: Scope::Own,
        minutes: 10,
        run: fsx_under_faults,
    },
    TestCase { name: "mirrored_file_while_its_node_is_down", scope: Scope::Own, minutes: 10, run: node_down },
    TestCase { name: "mirrored_holes_while_a_node_is_missing", scope: Scope::Own, minutes: 6, run: holes },
    TestCase { name: "mirrored_node_lost_for_good", scope: Scope::Own, minutes: 6, run: node_lost },
    TestCase {
        name: "mirrored_node_lost_on_full_disks",
        scope: Scope::Own,
        minutes: 6,
        run: lost_on_full_disks,
    },
    TestCase { name: "mirrored_both_members_killed", scope: Scope::Own, minutes: 6, run: all_killed },
];

/// Number of storage nodes: more than a group has members, so that each node is primary of some
/// groups and secondary of others.
const STORAGE: u8 = 4;
/// Faults of nodes.
const FAULTS: [Fault; 5] = Fault::ALL;
/// Disks shared with other data: its percentage, and the disks' size. The files that occupy the
/// space are never written.
const OCCUPIED_PERCENT: u64 = 94;
const LARGE_DISK_BYTES: u64 = 40 << 30;
/// Time that all nodes are down at once.
const ALL_DOWN: Duration = Duration::from_secs(2);
/// Time of load before and after a fault.
const AROUND: Duration = Duration::from_secs(3);
/// Threads per mount.
const THREADS: u32 = 2;
/// Rounds in the short and the long form.
const ROUNDS: (u64, u64) = (1, 30);
/// Operations per piece of fsx work.
pub(super) const FSX_OPERATIONS: u32 = 3000;
/// Size of files that tests write themselves: several chunks.
const FILE_BYTES: usize = 6 << 20;
/// Number of files with data in only one stripe, and its size. They are enough that each node is
/// the secondary of groups whose primary has no chunk file.
const SPARSE_FILES: usize = 24;
const SHORT_BYTES: usize = 64 << 10;
const DEADLINE: Duration = Duration::from_secs(600);

fn start(stage: &Stage, name: &str) -> TestResult<Cluster> {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let cluster = Cluster::build(stage, name, shape)?;
    cluster.mirror_everything(2)?;
    Ok(cluster)
}

/// Returns node, fault and duration of a round: kinds, durations and nodes in turn.
fn fault_of_round(round: u64) -> (usize, Fault, FaultDuration) {
    let number = round as usize - 1;
    let lasting = [FaultDuration::UntilDegraded, FaultDuration::Short, FaultDuration::UntilOffline]
        [number / FAULTS.len() % 3];
    (number % usize::from(STORAGE), FAULTS[number % FAULTS.len()], lasting)
}

/// Returns the faults of one node after the other in a round.
fn faults_of_round(round: u64) -> [(usize, Fault); 2] {
    let number = round as usize;
    // In some round, each of the other nodes follows each node.
    let distance = 1 + number / usize::from(STORAGE) % usize::from(STORAGE - 1);
    [(number, number), (number + distance, number + number / FAULTS.len() + 1)]
        .map(|(node, fault)| (node % usize::from(STORAGE), FAULTS[fault % FAULTS.len()]))
}

/// Checks that the replicas get in sync without intervention and are identical.
pub(super) fn ensure_in_sync(cluster: &Cluster, when: &str) -> TestResult {
    let with_log = |failure| match failure {
        Failure::Failed(message) => Failure::Failed(format!("{when}: {message}")),
        skipped => skipped,
    };
    cluster.wait_until_in_sync().map_err(with_log)?;
    let compared = cluster.ensure_replicas_are_equal().map_err(with_log)?;
    println!(
        "{when}: {} chunk files with {} bytes are identical on all members",
        compared.files, compared.bytes
    );
    cluster.ensure_clean()
}

fn copies_on_disk(stage: &Stage) -> TestResult {
    let cluster = start(stage, "copies")?;
    let folders = cluster.shared_folder("fio")?;
    suites::fio_write_and_verify(stage, &folders[0], &folders[1])?;
    ensure_eq!(cluster.degraded_groups()?, 0, "degraded groups although nothing happened");
    ensure_in_sync(&cluster, "after fio")?;
    // Deletions and new lengths also reach all replicas.
    for entry in fs::read_dir(&folders[1]).at("the folder")?.flatten() {
        let path = entry.path();
        let len = entry.metadata().at(path.display())?.len();
        let open = File::options().write(true).open(&path).at(path.display())?;
        open.set_len(len / 2 + 1).at(path.display())?;
    }
    let gone = fs::read_dir(&folders[0]).at("the folder")?.flatten().next();
    let gone = gone.ok_or_else(|| "fio has left no files".to_string())?;
    fs::remove_file(gone.path()).at("a file")?;
    ensure_in_sync(&cluster, "after files were cut and deleted")?;
    cluster.stop()
}

fn history_under_faults(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-history")?;
    for round in stage.rounds(ROUNDS) {
        let (node, fault, lasting) = fault_of_round(round);
        let name = format!("round-{round}");
        let plan = plan(THREADS, 0, round);
        let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
            thread::sleep(AROUND);
            cluster.apply_fault(node, fault, lasting)?;
            thread::sleep(AROUND);
            Ok(())
        })?;
        let when = format!("although only node {node} was {fault:?} ({lasting:?}), {name}");
        ensure_no_errors(&outcome, &when, &cluster)?;
        ensure_in_sync(&cluster, &name)?;
    }
    cluster.stop()
}

/// Two nodes fail one after the other. The first one receives what it missed before the second one
/// fails. In every other round the second one fails as soon as the first is back: requests that
/// need data only it has wait for it.
fn two_nodes_in_turn(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-turn")?;
    for round in stage.rounds(ROUNDS) {
        let [first, second] = faults_of_round(round);
        let name = format!("round-{round}");
        let plan = plan(THREADS, 0, round);
        let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
            thread::sleep(AROUND);
            cluster.apply_fault(first.0, first.1, FaultDuration::UntilDegraded)?;
            if round % 2 == 0 {
                cluster.wait_until_in_sync()?;
            }
            cluster.apply_fault(second.0, second.1, FaultDuration::UntilDegraded)?;
            thread::sleep(AROUND);
            Ok(())
        })?;
        let when = format!("although both came back in time: {first:?}, then {second:?}, {name}");
        ensure_no_errors(&outcome, &when, &cluster)?;
        ensure_in_sync(&cluster, &name)?;
    }
    cluster.stop()
}

/// Two nodes fail one after the other, while other work runs.
fn with_faults(
    cluster: &mut Cluster,
    round: u64,
    work: impl FnMut(u64) -> TestResult + Send,
) -> TestResult<u64> {
    work_under_faults(cluster, work, |cluster| {
        for (node, fault) in faults_of_round(round) {
            thread::sleep(AROUND);
            cluster.apply_fault(node, fault, FaultDuration::UntilDegraded)?;
            // Two missing members of one group would be too many.
            cluster.wait_until_in_sync()?;
        }
        Ok(())
    })
}

fn fio_under_faults(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-fio")?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("fio-{round}"))?;
        let work = |_| suites::fio_write_and_verify(stage, &folders[0], &folders[1]);
        let times = with_faults(&mut cluster, round, work)?;
        ensure_in_sync(&cluster, &format!("round {round} of fio, {times} times"))?;
        fs::remove_dir_all(&folders[0]).at(folders[0].display())?;
    }
    cluster.stop()
}

fn fsx_under_faults(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-fsx")?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("fsx-{round}"))?;
        let work = fsx_pieces(stage, &folders, round, FSX_OPERATIONS);
        let times = with_faults(&mut cluster, round, work)?;
        ensure_in_sync(&cluster, &format!("round {round} of fsx, {times} times"))?;
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        ensure_eq!(different, Vec::<String>::new(), "what two mounts show of fsx's files");
    }
    cluster.stop()
}

/// While a node is down, files are read and changed as if it were up; after its return it is
/// resynced.
fn node_down(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-gone")?;
    let folders = cluster.shared_folder("files")?;
    let path = |mount: usize, file: usize| folders[mount].join(file.to_string());
    let write = |mount: usize, file: usize, at: u64, bytes: &[u8]| {
        let path = path(mount, file);
        let open = File::options().create(true).truncate(false).write(true).open(&path).at(path.display())?;
        open.write_all_at(bytes, at).and_then(|()| open.sync_all()).at(path.display())
    };
    // Enough that each node is primary of some groups and secondary of others.
    let files = 4 * usize::from(STORAGE);
    let mut expected: Vec<Vec<u8>> =
        (0..files).map(|file| Rng::new(file as u64 + 1).bytes(FILE_BYTES)).collect();
    for (file, content) in expected.iter().enumerate() {
        write(0, file, 0, content)?;
    }
    cluster.inject(Part::Storage(0), Fault::Killed)?;
    for (file, content) in expected.iter_mut().enumerate() {
        let path = path(1, file);
        ensure!(fs::read(&path).at(path.display())? == *content, "file {file} isn't what was written");
        let changed = Rng::new(1000 + file as u64).bytes(100_000);
        let at = 70_001 * (file + 1);
        content[at..at + changed.len()].copy_from_slice(&changed);
        write(1, file, at as u64, &changed)?;
    }
    ensure!(cluster.degraded_groups()? > 0, "no group has noticed that a node is gone");
    fs::remove_file(path(0, 0)).at("a file")?;
    cluster.repair(Part::Storage(0), Fault::Killed)?;
    ensure_in_sync(&cluster, "after the node is back")?;
    // Now any single node may remain.
    for missing in 0..usize::from(STORAGE) {
        cluster.inject(Part::Storage(missing), Fault::Killed)?;
        for (file, content) in expected.iter().enumerate().skip(1) {
            // Reopened with direct I/O, so that no page cache answers.
            let seen = read_directly(&path(missing % 2, file))?;
            ensure!(
                seen == *content,
                "file {file} isn't what was written, without {:?}",
                Part::Storage(missing)
            );
        }
        cluster.repair(Part::Storage(missing), Fault::Killed)?;
        cluster.wait_until_in_sync()?;
    }
    cluster.stop()
}

/// For files with holes, some members have no chunk file, so another member must be asked. If that
/// one has just failed, applications wait until the failure is detected, as for changes, although
/// no application changes anything.
fn holes(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-holes")?;
    // One that the transport detects as dead, and one that it treats as slow.
    for (node, fault) in [Fault::Killed, Fault::NoReceive].into_iter().enumerate() {
        let folders = cluster.shared_folder(&format!("without-{node}"))?;
        let open = |file: usize| {
            let path = folders[0].join(file.to_string());
            let open = File::options().create_new(true).write(true).open(&path).at(path.display())?;
            // Only in the first stripe.
            open.write_all_at(&[7; SHORT_BYTES], 0).at(path.display())?;
            Ok(open)
        };
        let files = (0..SPARSE_FILES).map(open).collect::<TestResult<Vec<File>>>()?;
        cluster.inject(Part::Storage(node), fault)?;
        for (number, file) in files.iter().enumerate() {
            // The client examines all stripes.
            let longer = file.set_len(SHORT_BYTES as u64 + 1).and_then(|()| file.sync_all());
            longer.at(format!("file {number} although only node {node} was {fault:?}"))?;
        }
        cluster.repair(Part::Storage(node), fault)?;
        ensure_in_sync(&cluster, &format!("after node {node} was {fault:?}"))?;
    }
    cluster.stop()
}

/// Returns the content of a file, read by a program that bypasses the page cache.
pub(super) fn read_directly(path: &std::path::Path) -> TestResult<Vec<u8>> {
    let mut drop_pages = std::process::Command::new("dd");
    drop_pages.arg(format!("of={}", path.display())).args([
        "oflag=nocache",
        "conv=notrunc,fdatasync",
        "count=0",
    ]);
    process::run_ok(&mut drop_pages, DEADLINE)?;
    fs::read(path).at(path.display())
}

/// All storage nodes are killed at once under load and restarted: no member of a group has missed
/// less than the others, and no synced data is lost.
fn all_killed(stage: &Stage) -> TestResult {
    let mut cluster = start(stage, "mirror-all")?;
    for round in stage.rounds(ROUNDS) {
        let name = format!("round-{round}");
        let plan = plan(THREADS, 0, round);
        let storage: Vec<Part> = (0..usize::from(STORAGE)).map(Part::Storage).collect();
        let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
            thread::sleep(AROUND);
            storage.iter().try_for_each(|part| cluster.inject(*part, Fault::Killed))?;
            thread::sleep(ALL_DOWN);
            storage.iter().try_for_each(|part| cluster.repair(*part, Fault::Killed))?;
            thread::sleep(AROUND);
            Ok(())
        })?;
        ensure_no_errors(&outcome, &format!("although all came back, {name}"), &cluster)?;
        ensure_in_sync(&cluster, &name)?;
    }
    cluster.stop()
}

/// A node fails permanently: others replace it while applications continue, and no data is missing.
/// When it returns after all, its data is removed. Then another node's target is drained and
/// removed.
fn node_lost(stage: &Stage) -> TestResult {
    fail_permanently(stage, start(stage, "mirror-lost")?)
}

/// The same on disks that other data almost fills: the lost data is small, and there is space for
/// it.
fn lost_on_full_disks(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let disk = |folder: &Path| {
        let disk = Disk::new(folder, "disk", DiskKind::Xfs, LARGE_DISK_BYTES)?;
        disk.take(LARGE_DISK_BYTES / 100 * OCCUPIED_PERCENT)?;
        // In a subfolder, as on a disk that is shared.
        let own = disk.path().join("weft");
        fs::create_dir(&own).and_then(|()| symlink(&own, folder.join("target"))).at(own.display())?;
        Ok(disk)
    };
    let cluster = Cluster::build_with(stage, "mirror-lost-full", shape, Some(&disk), &[])?;
    cluster.mirror_everything(2)?;
    fail_permanently(stage, cluster)
}

fn fail_permanently(stage: &Stage, mut cluster: Cluster) -> TestResult {
    cluster.replace_after("5s")?;
    let folders = cluster.shared_folder("files")?;
    let path = |mount: usize, file: usize| folders[mount].join(file.to_string());
    let expected: Vec<Vec<u8>> =
        (0..4 * usize::from(STORAGE)).map(|file| Rng::new(file as u64 + 1).bytes(FILE_BYTES)).collect();
    for (file, content) in expected.iter().enumerate() {
        fs::write(path(0, file), content).at(path(0, file).display())?;
    }
    let ensure_all_there = |when: &str| -> TestResult {
        for (file, content) in expected.iter().enumerate() {
            ensure!(read_directly(&path(1, file))? == *content, "file {file} isn't what was written, {when}");
        }
        Ok(())
    };
    let (lost, folder) = cluster.target_of(0)?;
    let outcome = under_load(stage, &mut cluster, "lost", plan(THREADS, 45, 7), |cluster| {
        cluster.inject(Part::Storage(0), Fault::Killed)?;
        cluster.wait_until_out_of_groups(lost)
    })?;
    ensure_no_errors(&outcome, "although others have taken the place of a lost node", &cluster)?;
    let compared = cluster.ensure_replicas_are_equal()?;
    println!("without the lost node: {} files with {} bytes are the same", compared.files, compared.bytes);
    ensure_all_there("without the lost node")?;

    cluster.repair(Part::Storage(0), Fault::Killed)?;
    let left = || fs::read_dir(folder.join("groups")).map(|found| found.count());
    let swept = process::eventually(DEADLINE, || matches!(left(), Ok(0)));
    ensure!(swept, "what the lost node had is there yet: {:?}", left());
    ensure_in_sync(&cluster, "after the lost node is back")?;

    let (emptied, _) = cluster.target_of(1)?;
    let outcome = under_load(stage, &mut cluster, "drained", plan(THREADS, 30, 8), |cluster| {
        cluster.drain(emptied)?;
        cluster.wait_until_out_of_groups(emptied)
    })?;
    ensure_no_errors(&outcome, "although a target was emptied", &cluster)?;
    ensure_in_sync(&cluster, "after a target was emptied")?;
    ensure_all_there("after a target was emptied")?;
    let mut last = None;
    let removed = process::eventually(DEADLINE, || last.insert(cluster.remove_target(emptied)).is_ok());
    ensure!(removed, "the emptied target can't be removed: {last:?}");
    cluster.stop()
}
