//! Directories of state and targets.

use crate::facts::FileSystem;
use crate::{Code, Finding, State, TargetDir};
use std::path::Path;

/// File systems that weft's tests run on.
const TESTED: [&str; 2] = ["xfs", "ext4"];
/// File systems without a disk.
const VOLATILE: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems of containers: files in them are removed with the container.
const OF_CONTAINERS: [&str; 2] = ["overlay", "aufs"];
/// File systems of other machines, and those that can't be written to.
const UNSUITABLE: [&str; 7] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "squashfs"];
/// Share of free space below which a target is nearly full.
const LITTLE_FREE: f64 = 0.05;

pub(super) fn directory(dir: &TargetDir) -> Vec<Finding> {
    let path = dir.path.display();
    let file_system = match &dir.file_system {
        Ok(file_system) => file_system,
        Err(cause) => {
            let hint = format!("mount the disk, or create the directory: mkdir -p {path}");
            return vec![Finding::error(Code::DirectoryUnusable, format!("{path}: {cause}"), hint)];
        }
    };
    let mut findings = vec![kind(&dir.path, file_system)];
    findings.extend(space(&dir.path, file_system));
    if file_system.has_direct_io == Some(false) {
        let what = format!("{path}: its file system doesn't support O_DIRECT; data is cached twice");
        findings.push(Finding::warning(Code::DirectIoMissing, what, "use xfs or ext4 on a local disk"));
    }
    // One good finding is enough for a directory with a problem.
    if findings.len() > 1 {
        findings.retain(|finding| finding.state != State::Good);
    }
    findings
}

fn kind(path: &Path, file_system: &FileSystem) -> Finding {
    let (kind, at, path) = (&file_system.kind, file_system.mount_point.display(), path.display());
    let what = format!("{path}: {kind} at {at}");
    let is_one_of = |kinds: &[&str]| kinds.contains(&kind.as_str());
    if is_one_of(&UNSUITABLE) || kind.starts_with("fuse") {
        let what = format!("{what}, which can't store targets: it isn't a local disk file system");
        return Finding::error(Code::FileSystemUnsuitable, what, "use a directory on xfs or ext4");
    }
    if is_one_of(&VOLATILE) {
        let what = format!("{what}: its data is lost when the machine stops");
        return Finding::warning(
            Code::FileSystemVolatile,
            what,
            "use a directory on xfs or ext4, except for tests",
        );
    }
    if is_one_of(&OF_CONTAINERS) {
        let what = format!("{what}: its data is removed with the container");
        return Finding::warning(
            Code::FileSystemOfContainer,
            what,
            "mount a volume on xfs or ext4 into the container",
        );
    }
    if !is_one_of(&TESTED) {
        let what = format!("{what}: weft is tested on {}", TESTED.join(" and "));
        return Finding::warning(Code::FileSystemUntested, what, "use xfs or ext4");
    }
    let gib = |bytes: u64| bytes >> 30;
    Finding::good("disk", format!("{what}, {} of {} GiB free", gib(file_system.free), gib(file_system.size)))
}

fn space(path: &Path, file_system: &FileSystem) -> Vec<Finding> {
    let (path, mut findings) = (path.display(), Vec::new());
    let (inodes, free_inodes) = file_system.inodes;
    if file_system.is_read_only {
        let what = format!("{path}: its file system is mounted read-only");
        let hint = format!(
            "dmesg shows errors of the disk; mount -o remount,rw {}",
            file_system.mount_point.display()
        );
        findings.push(Finding::error(Code::DiskReadOnly, what, hint));
    }
    if file_system.free == 0 || inodes > 0 && free_inodes == 0 {
        let lacking = if file_system.free == 0 {
            "its file system is full"
        } else {
            "its file system has no free inodes"
        };
        findings.push(Finding::error(
            Code::DiskFull,
            format!("{path}: {lacking}"),
            "free space, or use another disk",
        ));
    } else if (file_system.free as f64) < file_system.size as f64 * LITTLE_FREE {
        let share = 100.0 * file_system.free as f64 / file_system.size as f64;
        let what = format!("{path}: {share:.0} % of its file system is free");
        findings.push(Finding::warning(Code::DiskNearlyFull, what, "free space, or use another disk"));
    }
    findings
}
