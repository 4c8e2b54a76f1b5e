//! The commands of documents, run as a reader would: each series of fenced `sh` blocks is one shell
//! script, whose first failing command fails the test.
//!
//! The script runs in a folder of its own. Where a document says `/srv`, `/mnt`, `/etc` or `/var`,
//! the script uses that folder below its own. Builds are left out: a `cargo` that does nothing is
//! first in the path, and the binary under test is where a build would put it.

use super::cleanup::{self, Resource};
use super::mounts;
use super::outcome::{At, TestResult, ensure};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::{build, process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "readme_commands_work", scope: Scope::Own, minutes: 5, run: readme },
    TestCase { name: "getting_started_commands_work", scope: Scope::Own, minutes: 5, run: getting_started },
    TestCase { name: "cluster_guide_commands_work", scope: Scope::Own, minutes: 5, run: cluster_guide },
];

/// Deadline of one script.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(240);

/// Folders of the machine that a script finds below its own folder.
const MACHINE_FOLDERS: &[&str] = &["/srv", "/mnt", "/etc", "/var"];

/// State directories that the documents use, below the sandbox.
const STATE_DIRS: &[&str] = &["weft-data", "srv/weft", "var/lib/weft/main"];

/// Mount points that they use.
const MOUNT_POINTS: &[&str] = &["mnt", "mnt/weft"];

/// Where mounts log, and services whose state directory is on another disk.
const LOGS: &str = "/var/log/weft";

/// What the script does at the beginning: every failure ends it, and each command is printed.
const PREAMBLE: &str = "set -eu -o pipefail\nshopt -s expand_aliases\n";

/// A folder in which documents' commands run.
struct Sandbox {
    folder: PathBuf,
}

impl Sandbox {
    /// Makes the sandbox with these folders of a machine.
    fn new(stage: &Stage, name: &str, folders: &[&str]) -> TestResult<Sandbox> {
        let (weft, folder) = (stage.binary()?, stage.base(name)?);
        let (programs, release) = (folder.join("bin"), folder.join("target/release"));
        // From there, `make` links the program to `target/release`.
        let built = folder.join("target").join(build::static_target()).join("release");
        let made = [programs.clone(), release.clone(), built.clone()];
        for path in folders.iter().map(|name| folder.join(name)).chain(made) {
            fs::create_dir_all(&path).at(path.display())?;
        }
        for path in [programs, release, built].map(|folder| folder.join("weft")) {
            symlink(weft, &path).at(path.display())?;
        }
        // The programs are built already, and the disks are folders.
        for name in ["cargo", "mkfs.xfs"] {
            let path = folder.join("bin").join(name);
            fs::write(&path, "#!/bin/sh\nexit 0\n").at(path.display())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).at(path.display())?;
        }
        let makefile = folder.join("Makefile");
        symlink(build::root().join("Makefile"), &makefile).at(makefile.display())?;
        Ok(Sandbox { folder })
    }

    /// Runs blocks as one script.
    fn run(&self, blocks: &[Vec<String>]) -> TestResult<String> {
        let folder = self.folder.to_string_lossy();
        let lines = blocks.iter().flatten().map(|line| adapt(line, &folder));
        let script = PREAMBLE.to_string() + &lines.collect::<Vec<_>>().join("\n") + "\n";
        let file = self.folder.join("script");
        fs::write(&file, &script).at(file.display())?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.arg("-x").arg(&file).current_dir(&self.folder);
        command.env("PATH", format!("{}:{path}", self.folder.join("bin").display()));
        // The documents' paths of the build.
        command.env_remove("CARGO_TARGET_DIR").env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        Ok(process::run_ok(&mut command, SCRIPT_DEADLINE)?.stdout)
    }

    /// Registers the mount points that the script uses.
    fn register_mounts(&self) {
        self.mount_points().for_each(|path| cleanup::register(Resource::Mount(path)));
    }

    fn mount_points(&self) -> impl Iterator<Item = PathBuf> {
        MOUNT_POINTS.iter().map(|name| self.folder.join(name))
    }

    /// Returns whether nothing is mounted and no process serves.
    fn is_stopped(&self) -> bool {
        let mut states = STATE_DIRS.iter().map(|dir| self.folder.join(dir));
        let is_mounted = self.mount_points().any(|path| mounts::find(&path).is_some());
        !is_mounted && !states.any(|dir| dir.join("control.sock").exists())
    }

    /// Removes the logs outside of the sandbox. Their names begin with its path.
    fn remove_logs(&self) {
        let prefix = self.folder.to_string_lossy().trim_matches('/').replace('/', "-") + "-";
        for entry in fs::read_dir(LOGS).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for path in self.mount_points() {
            // Without its mount, a process that still serves it ends.
            if mounts::find(&path).is_some() {
                mounts::force_unmount(&path);
            }
            cleanup::unregister(&Resource::Mount(path));
        }
        for dir in STATE_DIRS.iter().map(|dir| self.folder.join(dir)) {
            if dir.join("control.sock").exists() {
                let mut down = Command::new(self.folder.join("bin/weft"));
                // After a crash, no process serves the directory.
                drop(process::run(down.arg("down").arg("--dir").arg(&dir), SCRIPT_DEADLINE));
            }
        }
        self.remove_logs();
    }
}

/// Moves paths of the machine into a folder. Mounting a disk becomes making a folder.
fn adapt(line: &str, folder: &str) -> String {
    let moved = MACHINE_FOLDERS
        .iter()
        .fold(line.to_string(), |line, top| line.replace(&format!(" {top}/"), &format!(" {folder}{top}/")));
    moved.replace("mount /dev/nvme1n1", "mkdir -p").replace("mount /dev/nvme2n1", "mkdir -p")
}

/// Returns the `sh` blocks below a heading of a document, in order.
fn blocks(document: &str, heading: &str) -> Vec<Vec<String>> {
    let (mut found, mut is_below) = (Vec::new(), false);
    let mut block: Option<Vec<String>> = None;
    for line in document.lines() {
        match (line, &mut block) {
            ("```", Some(_)) => found.extend(block.take().filter(|_| is_below)),
            (_, Some(lines)) => lines.push(line.to_string()),
            ("```sh", None) => block = Some(Vec::new()),
            (_, None) if line.starts_with("## ") => is_below = line[3..] == *heading,
            (_, None) => {}
        }
    }
    found
}

/// Returns the blocks below several headings; each must have one.
fn series(document: &str, headings: &[&str]) -> TestResult<Vec<Vec<String>>> {
    let path = build::root().join(document);
    let text = fs::read_to_string(&path).at(path.display())?;
    let mut found = Vec::new();
    for heading in headings {
        let below = blocks(&text, heading);
        ensure!(!below.is_empty(), "{document} has no commands below {heading:?}");
        found.extend(below);
    }
    Ok(found)
}

fn readme(stage: &Stage) -> TestResult {
    let sandbox = Sandbox::new(stage, "readme", &[])?;
    sandbox.register_mounts();
    let printed = sandbox.run(&series("README.md", &["Two commands", "Five minutes"])?)?;
    ensure!(printed.contains("\nsame\n"), "the files differ after the restart:\n{printed}");
    ensure!(printed.contains("\nclean: "), "weft fsck didn't find everything in order:\n{printed}");
    ensure!(sandbox.is_stopped(), "make down left a mount or a process");
    Ok(())
}

fn getting_started(stage: &Stage) -> TestResult {
    let sandbox = Sandbox::new(stage, "getting_started", &["srv", "mnt/weft"])?;
    sandbox.register_mounts();
    let headings = ["Put the targets on your disks", "Choose how files are striped", "Stop, check, remove"];
    let printed = sandbox.run(&series("docs/guide/getting-started.md", &headings)?)?;
    ensure!(printed.contains("clean: "), "weft fsck didn't find everything in order:\n{printed}");
    ensure!(sandbox.is_stopped(), "weft down left a mount or a process");
    ensure!(!sandbox.folder.join("srv/weft").exists(), "the state directory is left");
    Ok(())
}

/// Runs the commands for the first machine, and those for a client. Joining takes a second machine.
fn cluster_guide(stage: &Stage) -> TestResult {
    const GUIDE: &str = "docs/guide/cluster.md";
    let folders = ["srv/nvme1", "mnt/weft", "etc/weft", "var/lib/weft"];
    let sandbox = Sandbox::new(stage, "cluster_guide", &folders)?;
    sandbox.register_mounts();
    let first_machine = series(GUIDE, &["Create the cluster"])?.swap_remove(0);
    let [clients, mounting] = <[Vec<String>; 2]>::try_from(series(GUIDE, &["Mount it"])?)
        .map_err(|blocks| format!("{GUIDE} has {} blocks below Mount it", blocks.len()))?;
    let (revoking, adding): (Vec<String>, Vec<String>) =
        clients.into_iter().partition(|line| line.starts_with("weft client revoke"));
    ensure!(revoking.len() == 1, "{GUIDE} revokes {} clients", revoking.len());
    let copying = vec!["mv login1.toml /etc/weft/".to_string()];
    let ending = vec!["weft down --dir /var/lib/weft/main".to_string()];
    let printed = sandbox.run(&[first_machine, adding, copying, mounting, revoking, ending])?;
    ensure!(printed.contains("login1"), "weft client list doesn't show the client:\n{printed}");
    ensure!(sandbox.is_stopped(), "weft down left a mount or a process");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_section_are_found() {
        let text = "# A\n```sh\nfirst\n```\n## B\n```sh\nsecond\nthird\n```\n```\nother\n```\n## C\n```sh\nlast\n```\n";
        assert_eq!(blocks(text, "B"), [vec!["second".to_string(), "third".to_string()]]);
        assert!(blocks(text, "D").is_empty());
    }

    #[test]
    fn paths_of_the_machine_move_into_the_sandbox() {
        assert_eq!(
            adapt("mkfs.xfs /dev/nvme1n1 && mount /dev/nvme1n1 /srv/nvme1", "/tmp/s"),
            "mkfs.xfs /dev/nvme1n1 && mkdir -p /tmp/s/srv/nvme1"
        );
        assert_eq!(adapt("weft down --dir /srv/weft", "/tmp/s"), "weft down --dir /tmp/s/srv/weft");
    }
}
