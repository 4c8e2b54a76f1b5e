//! The disk of a storage node is unmounted while its service runs: its path shows the empty
//! directory below the mount point.

use super::super::disk::{Disk, DiskKind};
use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::faults::Fault;
use super::mirror::read_directly;
use super::{Cluster, Part, Shape};
use crate::process;
use std::fs;
use std::path::Path;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[TestCase {
    name: "mirrored_disk_unmounted_and_drained",
    scope: Scope::Own,
    minutes: 5,
    run: unmounted_and_drained,
}];

/// Number of storage nodes, and the one whose disk is unmounted.
const STORAGE: u8 = 3;
const GONE: usize = 0;
const DISK_BYTES: u64 = 1 << 30;
/// Number of files, so that each pair of nodes has some, and their size: several chunks.
const FILES: usize = 24;
const FILE_BYTES: usize = 3 << 20;
const DEADLINE: Duration = Duration::from_secs(60);
/// Longest time until groups are in sync again.
const RESYNC_DEADLINE: Duration = Duration::from_secs(180);
/// Text of `weft health` for an offline target on a node that is up.
const OFFLINE: &str = "is offline though its node is up";

impl Cluster {
    fn says_health(&self, what: &str) -> TestResult<bool> {
        let node = self.node(Part::Management);
        let arguments = self.commands.health(&self.folder(node)?.join("state"));
        let asked = process::run(node.command(self.commands.weft()).args(&arguments), DEADLINE)?;
        Ok(asked.stdout.contains(what))
    }
}

/// A missing target is drained. It can't be a source, so all data is copied from others, and none
/// is missing when another node fails.
fn unmounted_and_drained(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let disk = |folder: &Path| Disk::new(folder, "target", DiskKind::Xfs, DISK_BYTES);
    let mut cluster = Cluster::build_with(stage, "unmounted", shape, Some(&disk), &[])?;
    cluster.mirror_everything(2)?;
    let folders = cluster.shared_folder("files")?;
    let contents: Vec<Vec<u8>> = (0..FILES).map(|file| Rng::new(file as u64 + 1).bytes(FILE_BYTES)).collect();
    for (file, content) in contents.iter().enumerate() {
        let path = folders[0].join(file.to_string());
        fs::write(&path, content).at(path.display())?;
    }
    cluster.ensure_replicas_are_equal()?;
    // A service that was just started has no open files.
    cluster.inject(Part::Storage(GONE), Fault::Killed)?;
    cluster.repair(Part::Storage(GONE), Fault::Killed)?;
    cluster.wait_until_in_sync()?;

    let (target, place) = cluster.target_of(GONE)?;
    cluster.disks[GONE].unmount_lazily()?;
    let ensure_all_there = |when: &str| -> TestResult {
        for (file, content) in contents.iter().enumerate() {
            let seen = read_directly(&folders[1].join(file.to_string()))?;
            ensure!(seen == *content, "file {file} isn't what was written, {when}");
        }
        Ok(())
    };
    ensure_all_there("while a disk is unmounted")?;
    let mut last = None;
    let is_known =
        process::eventually(DEADLINE, || matches!(last.insert(cluster.says_health(OFFLINE)), Ok(true)));
    ensure!(is_known, "weft health doesn't say that a target {OFFLINE}: {last:?}\n    {}", cluster.log());

    let node = cluster.node(Part::Storage(GONE));
    let folder = cluster.folder(node)?;
    cluster.run(node, &cluster.commands.add_target(&folder.join("state"), &folder.join("spare")))?;
    cluster.drain(target)?;
    cluster.wait_until_out_of_groups(target)?;
    cluster.ensure_replicas_are_equal()?;
    ensure_all_there("after the target whose disk is unmounted was drained")?;
    for missing in (0..usize::from(STORAGE)).filter(|node| *node != GONE) {
        cluster.inject(Part::Storage(missing), Fault::Killed)?;
        ensure_all_there(&format!("without node {missing}"))?;
        cluster.repair(Part::Storage(missing), Fault::Killed)?;
        let mut last = None;
        let are_whole =
            process::eventually(RESYNC_DEADLINE, || matches!(last.insert(cluster.degraded_groups()), Ok(0)));
        ensure!(are_whole, "degraded groups after node {missing} is back: {last:?}\n    {}", cluster.log());
    }

    // Nothing was written below the mount point, and the disk is served again without a restart.
    let left = fs::read_dir(&place).at(place.display())?.count();
    ensure_eq!(left, 0, "entries below the mount point");
    cluster.disks[GONE].mount_again()?;
    let mut last = None;
    let is_back =
        process::eventually(DEADLINE, || matches!(last.insert(cluster.says_health(OFFLINE)), Ok(false)));
    ensure!(is_back, "the target is offline yet: {last:?}\n    {}", cluster.log());
    cluster.stop()
}
