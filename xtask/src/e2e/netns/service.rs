//! A process on a node: start, kill, stop and restart.

use super::super::cleanup::{self, Resource};
use super::super::outcome::{At, Failure, TestResult};
use super::network::Node;
use crate::{process, sys};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// Longest time of a clean stop.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// How a service is started.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// File to which all its output is appended.
    pub log: PathBuf,
}

/// A service on a node; killed when dropped.
pub struct Service {
    recipe: Recipe,
    child: Option<Child>,
}

impl Service {
    /// Starts the service.
    pub fn start(node: &Node, recipe: Recipe) -> TestResult<Service> {
        let mut service = Service { recipe, child: None };
        service.restart(node)?;
        Ok(service)
    }

    /// Restarts the service on this node after its end.
    pub fn restart(&mut self, node: &Node) -> TestResult {
        self.kill();
        let log = File::options().create(true).append(true).open(&self.recipe.log);
        let log = log.at(self.recipe.log.display())?;
        let errors = log.try_clone().at(self.recipe.log.display())?;
        let mut command = node.command(&self.recipe.program);
        command.args(&self.recipe.arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
        sys::unblock_interrupts(&mut command);
        // `nsenter` executes the program, so the child's id is the program's.
        let child = command.spawn().at(process::describe(&command))?;
        cleanup::register(Resource::Process(child.id() as i32));
        self.child = Some(child);
        Ok(())
    }

    /// Returns its process id if it runs.
    pub fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(|child| child.id() as i32)
    }

    /// Returns whether it runs, and detects that it has ended by itself.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it as in a crash.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(process::wait(&mut child, STOP_DEADLINE));
            cleanup::unregister(&Resource::Process(child.id() as i32));
        }
    }

    /// Sends SIGTERM, and waits for its end.
    pub fn terminate(&mut self) -> TestResult<ExitStatus> {
        self.signal(libc::SIGTERM)?;
        let child = self.child.as_mut().expect("a signal was just sent to it");
        let status = process::wait(child, STOP_DEADLINE).at(self.recipe.program.display())?;
        self.kill();
        status.ok_or_else(|| {
            let log = self.last_lines();
            Failure::Failed(format!("no end within {} s of SIGTERM:\n    {log}", STOP_DEADLINE.as_secs()))
        })
    }

    /// Stops it (SIGSTOP), like a machine that stalls. When this returns, it doesn't execute any
    /// more.
    pub fn freeze(&self) -> TestResult {
        self.signal(libc::SIGSTOP)?;
        let stands_still = || self.pid().is_some_and(|pid| threads(pid).all(|state| "TDZ".contains(state)));
        match process::eventually(STOP_DEADLINE, stands_still) {
            true => Ok(()),
            false => Err(format!("{} keeps running after SIGSTOP", self.recipe.program.display()).into()),
        }
    }

    /// Continues it (SIGCONT).
    pub fn thaw(&self) -> TestResult {
        self.signal(libc::SIGCONT)
    }

    fn signal(&self, signal: i32) -> TestResult {
        let pid = self.pid().ok_or_else(|| format!("{} doesn't run", self.recipe.program.display()))?;
        sys::kill(pid, signal).at(format!("signal {signal} to {}", self.recipe.program.display()))
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        read_lossy(&self.recipe.log)
    }

    /// Returns the end of its output, for messages.
    pub fn last_lines(&self) -> String {
        super::super::rig::last_lines(&self.log())
    }
}

/// Returns the states of a process's threads from `/proc`. A thread that waits in the kernel (D)
/// doesn't execute user code after that.
fn threads(pid: i32) -> impl Iterator<Item = char> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    // The name before the state is in parentheses, and may contain parentheses.
    tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    })
}

fn read_lossy(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}
