//! The command lines of a cluster's parts, in one place.

use super::super::outcome::{TestResult, skip};
use super::COMMAND_DEADLINE;
use crate::process;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where nodes listen.
const PORT: u16 = 7500;

/// What is typed on the nodes.
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
    /// For this binary; skips the test where it has no commands for a cluster of several processes.
    pub fn new(weft: &Path) -> TestResult<Commands> {
        let known = process::run(Command::new(weft).args(["cluster", "init", "--help"]), COMMAND_DEADLINE)?;
        match known.status.success() {
            true => Ok(Commands { weft: weft.to_path_buf() }),
            false => skip("this weft knows no weft cluster init"),
        }
    }

    /// The binary.
    pub fn weft(&self) -> &Path {
        &self.weft
    }

    /// Makes the cluster and its first node.
    pub fn init(&self, dir: &Path, address: Ipv4Addr) -> Vec<OsString> {
        let init = with(line(&["cluster", "init", "--name", "e2e", "--roles", "mgmt,meta"]), "--dir", dir);
        with(init, "--listen", format!("{address}:{PORT}"))
    }

    /// Runs a node.
    pub fn serve(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["serve"]), "--dir", dir)
    }

    /// Prints what lets another node in.
    pub fn token(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["cluster", "token"]), "--dir", dir)
    }

    /// Prints what clients mount by.
    pub fn cluster_file(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["cluster", "token", "--client"]), "--dir", dir)
    }

    /// Makes a storage node.
    pub fn join(&self, token: &str, name: &str, dir: &Path, address: Ipv4Addr) -> Vec<OsString> {
        let join = line(&["node", "join", token, "--roles", "storage", "--name", name]);
        with(with(join, "--dir", dir), "--listen", format!("{address}:{PORT}"))
    }

    /// Adds a target to the node that is served from `dir`.
    pub fn add_target(&self, dir: &Path, target: &Path) -> Vec<OsString> {
        let mut add = line(&["target", "add"]);
        add.push(target.into());
        with(add, "--dir", dir)
    }

    /// Succeeds when all is well.
    pub fn health(&self, dir: &Path) -> Vec<OsString> {
        with(line(&["health"]), "--dir", dir)
    }

    /// Mounts, in the foreground.
    pub fn mount(&self, cluster_file: &Path, mount: &Path) -> Vec<OsString> {
        let mut command = line(&["mount", "--foreground"]);
        command.extend([cluster_file.into(), mount.into()]);
        command
    }

    /// Whether the node in `dir` answers.
    pub fn is_served(&self, dir: &Path) -> bool {
        let mut status = Command::new(&self.weft);
        status.args(["status", "--json", "--dir"]).arg(dir);
        process::run_ok(&mut status, COMMAND_DEADLINE).is_ok()
    }
}
