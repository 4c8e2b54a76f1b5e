//! The measured systems: weft in two forms, the file system below it, and peers.

use super::Options;
use crate::bench::node::{DEADLINE, Running, free_address, log_of};
use crate::e2e::is_mounted;
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system below the targets.
pub(super) const CEILING: &str = "XFS below";
/// All of weft in one process.
pub(super) const ONE: &str = "weft, 1 process";
/// A node, and a mount.
pub(super) const TWO: &str = "weft, 2 processes";

/// Targets per cluster.
const TARGETS: usize = 4;

/// A directory to measure on.
pub(super) struct System {
    pub(super) name: String,
    /// A separate directory, removed when this is dropped.
    pub(super) dir: PathBuf,
    /// The processes that serve it; the mount is dropped first.
    _processes: Vec<Running>,
}

impl Drop for System {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.dir));
    }
}

/// Starts all systems; `disk` is the folder of the targets.
pub(super) fn start(weft: &Path, base: &Path, disk: &Path, options: &Options) -> Result<Vec<System>, String> {
    let mut systems = vec![System::on(CEILING, disk, Vec::new())?];
    let one = one_process(weft, base, disk)?;
    systems.push(System::on(ONE, &base.join("one-mount"), vec![one])?);
    let two = two_processes(weft, base, disk, &options.protection)?;
    systems.push(System::on(TWO, &base.join("two-mount"), two)?);
    for (name, dir) in &options.peer {
        systems.push(System::on(name, dir, Vec::new())?);
    }
    Ok(systems)
}

impl System {
    fn on(name: &str, place: &Path, processes: Vec<Running>) -> Result<System, String> {
        let dir = place.join(format!("weft-bench-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{name}: {}: {error}", dir.display()))?;
        Ok(System { name: name.into(), dir, _processes: processes })
    }
}

fn targets(disk: &Path, name: &str) -> Vec<PathBuf> {
    (1..=TARGETS).map(|number| disk.join(format!("{name}-{number}"))).collect()
}

fn mounted(command: &mut Command, base: &Path, name: &str) -> Result<Running, String> {
    let (mount, log) = (base.join(format!("{name}-mount")), base.join(format!("{name}-mount.log")));
    let child = Running::start(command, &log)?;
    let running = Running::of(child, Some(mount.clone()));
    match process::eventually(DEADLINE, || is_mounted(&mount)) {
        true => Ok(running),
        false => Err(format!("no mount at {}: {}", mount.display(), log_of(&log))),
    }
}

fn one_process(weft: &Path, base: &Path, disk: &Path) -> Result<Running, String> {
    let mount = base.join("one-mount");
    fs::create_dir(&mount).map_err(|error| format!("{}: {error}", mount.display()))?;
    let mut command = Command::new(weft);
    command.arg("up").arg("--dir").arg(disk.join("one")).arg("--mount").arg(&mount);
    for target in targets(disk, "one") {
        command.arg("--target-dir").arg(target);
    }
    mounted(&mut command, base, "one")
}

fn two_processes(weft: &Path, base: &Path, disk: &Path, protection: &str) -> Result<Vec<Running>, String> {
    let (dir, mount) = (disk.join("two"), base.join("two-mount"));
    fs::create_dir(&mount).map_err(|error| format!("{}: {error}", mount.display()))?;
    let command = |words: &[&str]| {
        let mut command = Command::new(weft);
        command.args(words).arg("--dir").arg(&dir);
        command
    };
    let done = |words: &[&str]| process::run_ok(&mut command(words), DEADLINE).map(drop);
    let address = free_address()?;
    done(&["cluster", "init", "--name", "bench", "--listen", &address, "--protection", protection])?;
    for target in targets(disk, "two") {
        done(&["target", "add", &target.to_string_lossy()])?;
    }
    let log = base.join("two-node.log");
    let node = Running::of(Running::start(&mut command(&["serve"]), &log)?, None);
    if !process::eventually(DEADLINE, || done(&["status"]).is_ok()) {
        return Err(format!("the node doesn't start: {}", log_of(&log)));
    }
    let mut mount_it = Command::new(weft);
    mount_it.args(["mount", "--foreground", "--no-shared-memory"]).arg(dir.join("client.toml")).arg(&mount);
    Ok(vec![mounted(&mut mount_it, base, "two")?, node])
}
