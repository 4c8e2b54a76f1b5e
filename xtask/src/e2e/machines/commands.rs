//! The command lines of a cluster's nodes, in one place.

use super::super::netns::{Node, Role};
use super::super::outcome::TestResult;
use super::COMMAND_DEADLINE;
use crate::process;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Port on which nodes listen.
const PORT: u16 = 7500;

/// The commands that are run on the nodes.
pub struct Commands {
    weft: PathBuf,
}

fn line(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn with(mut line: Vec<OsString>, option: &str, value: impl Into<OsString>) -> Vec<OsString> {
    line.extend([option.into(), value.into()]);
    line
}

impl Commands {
    /// Creates the commands of this binary. A binary without commands for a cluster of several
    /// processes fails the test, since they are the subject of the test.
    pub fn new(weft: &Path) -> TestResult<Commands> {
        process::run_ok(Command::new(weft).args(["cluster", "init", "--help"]), COMMAND_DEADLINE)?;
        Ok(Commands { weft: weft.to_path_buf() })
    }

    /// Returns the binary.
    pub fn weft(&self) -> &Path {
        &self.weft
    }

    /// Creates the cluster and its first node.
    pub fn init(&self, dir: &Path, address: Ipv4Addr) -> Vec<OsString> {
        let init = with(line(&["cluster", "init", "--name", "e2e", "--roles", "mgmt,meta"]), "--dir", dir);
        with(init, "--listen", format!("{address}:{PORT}"))
    }

    /// Runs a node.
    pub fn serve(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["serve"]), "--dir", dir)
    }

    /// Prints a join token.
    pub fn token(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["cluster", "token"]), "--dir", dir)
    }

    /// Prints a client's cluster file, with additional options of `weft client add`.
    pub fn cluster_file(&self, dir: &Path, client: &str, options: &[&str]) -> Vec<OsString> {
        let mut add = line(&["client", "add", client, "--out", "-"]);
        add.extend(options.iter().map(OsString::from));
        with(add, "--dir", dir)
    }

    /// Creates a metadata or storage node.
    pub fn join(&self, token: &str, node: &Node, dir: &Path) -> Vec<OsString> {
        let roles = if node.role == Role::Metadata { "meta" } else { "storage" };
        let join = line(&["node", "join", token, "--roles", roles, "--name", &node.to_string()]);
        with(with(join, "--dir", dir), "--listen", format!("{}:{PORT}", node.address))
    }

    /// Adds a target to the node that runs in `dir`.
    pub fn add_target(&self, dir: &Path, target: &Path) -> Vec<OsString> {
        let mut add = line(&["target", "add"]);
        add.push(target.into());
        with(add, "--dir", dir)
    }

    /// Prints the cluster's health; succeeds if there are no findings.
    pub fn health(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["health", "--json"]), "--dir", dir)
    }

    /// Stores new files below a mounted folder on `copies` targets each, including small ones.
    pub fn mirror(&self, folder: &Path, copies: u8) -> Vec<OsString> {
        let scheme = format!("mirror:{copies}");
        let mut set = line(&["entry", "set-pattern", "--scheme", &scheme, "--inline-limit", "0"]);
        set.push(folder.into());
        set
    }

    /// Lists all redundancy groups.
    pub fn groups(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["group", "list", "--json"]), "--dir", dir)
    }

    /// Starts a scrub of targets, or shows its progress.
    pub fn scrub(&self, dir: &Path, what: &str) -> Vec<OsString> {
        with(line(&["scrub", what, "--json"]), "--dir", dir)
    }

    /// Sets the time after which other targets replace missing members.
    pub fn replace_after(&self, dir: &Path, time: &str) -> Vec<OsString> {
        with(line(&["group", "resync", "set", "--replace-after", time]), "--dir", dir)
    }

    /// Starts to drain a target.
    pub fn drain(&self, dir: &Path, target: u64) -> Vec<OsString> {
        with(line(&["target", "drain", &target.to_string()]), "--dir", dir)
    }

    /// Removes an empty target.
    pub fn remove_target(&self, dir: &Path, target: u64) -> Vec<OsString> {
        with(line(&["target", "remove", &target.to_string()]), "--dir", dir)
    }

    /// Checks the cluster while it is in use.
    pub fn fsck(&self, dir: &Path, orders: &[&str]) -> Vec<OsString> {
        let mut command = with(line(&["fsck", "--json"]), "--dir", dir);
        command.extend(orders.iter().map(OsString::from));
        command
    }

    /// Sets the rack of a node.
    pub fn set_rack(&self, dir: &Path, node: &Node, rack: &str) -> Vec<OsString> {
        with(line(&["node", "set", &node.to_string(), "--rack", rack]), "--dir", dir)
    }

    /// Moves members of groups to their intended targets.
    pub fn rebalance(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["group", "rebalance", "--json"]), "--dir", dir)
    }

    /// Lists what would be lost with one of the domains listed by `exposure`.
    pub fn exposure_of(&self, dir: &Path, domain: &str) -> Vec<OsString> {
        with(self.exposure(dir), "--of", domain)
    }

    /// Lists what would be lost with each target, node and rack.
    pub fn exposure(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["health", "--exposure", "--json"]), "--dir", dir)
    }

    /// Mounts in the foreground, with additional options.
    pub fn mount(
        &self,
        cluster_file: &Path,
        mount: &Path,
        timeout: Option<u64>,
        options: &[&str],
    ) -> Vec<OsString> {
        let mut command = line(&["mount", "--foreground"]);
        command.extend(options.iter().map(Into::into));
        command.extend([cluster_file.into(), mount.into()]);
        match timeout {
            Some(seconds) => with(command, "--timeout", seconds.to_string()),
            None => command,
        }
    }

    /// Unmounts.
    pub fn umount(&self, mount: &Path, force: bool) -> Vec<OsString> {
        let mut command = line(if force { &["umount", "--force"] } else { &["umount"] });
        command.push(mount.into());
        command
    }

    /// Returns whether the node in `dir` answers.
    pub fn is_served(&self, dir: &Path) -> bool {
        let mut status = Command::new(&self.weft);
        status.args(["status", "--json", "--dir"]).arg(dir);
        process::run_ok(&mut status, COMMAND_DEADLINE).is_ok()
    }
}
