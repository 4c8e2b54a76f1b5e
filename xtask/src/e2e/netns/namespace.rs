//! One network namespace.

use super::super::cleanup::{self, Resource};
use super::super::outcome::TestResult;
use crate::process;
use crate::sys;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Folder of named namespaces.
pub const FOLDER: &str = "/run/netns";

/// Deadline of one call of `ip` or `nft`.
const DEADLINE: Duration = Duration::from_secs(60);

/// A named namespace; dropping it removes it and kills all processes in it.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace with its loopback up.
    pub fn new(name: String) -> TestResult<Namespace> {
        cleanup::register(Resource::Namespace(name.clone()));
        let namespace = Namespace { name };
        ip(&["netns", "add", &namespace.name])?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that represents it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(FOLDER).join(&self.name)
    }

    /// Calls `ip` in its network.
    pub fn ip(&self, arguments: &[&str]) -> TestResult {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    /// Returns a command that runs a program in its network, without arguments yet.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// Runs a short program in its network, which must succeed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> TestResult<String> {
        Ok(process::run_ok(self.command(program).args(arguments), DEADLINE)?.stdout)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
        cleanup::unregister(&Resource::Namespace(self.name.clone()));
    }
}

/// Calls `ip`.
pub fn ip(arguments: &[&str]) -> TestResult {
    process::run_ok(Command::new("ip").args(arguments), DEADLINE)?;
    Ok(())
}

/// Kills all processes in a namespace and removes it, if it exists.
pub fn remove(name: &str) {
    if !PathBuf::from(FOLDER).join(name).exists() {
        return;
    }
    // All processes inside were started by a test, for which the namespace was created.
    let inside = process::run(Command::new("ip").args(["netns", "pids", name]), DEADLINE);
    for pid in inside.iter().flat_map(|done| done.stdout.lines()).filter_map(|line| line.trim().parse().ok())
    {
        drop(sys::kill(pid, libc::SIGKILL));
    }
    let removed = process::run_ok(Command::new("ip").args(["netns", "del", name]), DEADLINE);
    // An interrupt and the end of a test may do it concurrently.
    if let Err(error) = removed
        && PathBuf::from(FOLDER).join(name).exists()
    {
        eprintln!("warning: {error}");
    }
}
