//! Processes of the clusters that measurements bring along.

use crate::e2e::cleanup::{self, Resource};
use crate::process;
use crate::sys;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long anything of the cluster may take to start or to end.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Ticks of a second in /proc/PID/stat: USER_HZ, which is the same on all of Linux.
const TICKS_PER_S: f64 = 100.0;

/// A process that is ended when this is dropped.
pub(super) struct Running {
    pub(super) child: Child,
    /// What it has mounted.
    pub(super) mount: Option<PathBuf>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mount) = &self.mount
            && sys::unmount(mount, 0).is_err()
        {
            // Something may use it still: then it goes when that ends.
            drop(sys::unmount(mount, libc::MNT_DETACH));
        }
        drop(sys::kill(self.child.id() as i32, libc::SIGTERM));
        if !matches!(process::wait(&mut self.child, DEADLINE), Ok(Some(_))) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
        self.resources().iter().for_each(cleanup::released);
    }
}

impl Running {
    /// Ends it, and unmounts, when this is dropped or the program is interrupted.
    pub(super) fn of(child: Child, mount: Option<PathBuf>) -> Running {
        let running = Running { child, mount };
        running.resources().into_iter().for_each(cleanup::hold);
        running
    }

    fn resources(&self) -> Vec<Resource> {
        let mount = self.mount.iter().cloned().map(Resource::Mount);
        mount.chain([Resource::Process(self.child.id() as i32)]).collect()
    }

    /// Starts a command that goes on, with its messages in a log.
    pub(super) fn start(command: &mut Command, log: &Path) -> Result<Child, String> {
        let what = process::describe(command);
        let log = fs::File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = sys::let_be_interrupted(command).spawn();
        child.map_err(|error| format!("cannot start {what}: {error}"))
    }

    /// Seconds of CPU that it has used.
    pub(super) fn cpu_s(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name in parentheses may hold anything.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / TICKS_PER_S
    }
}

/// An address of this machine that nobody listens at.
pub(super) fn free_address() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(listener.map_err(|error| format!("no address to listen at: {error}"))?.to_string())
}

/// The last lines that a process wrote.
pub(super) fn log_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().take(5).collect::<Vec<_>>().join("\n    ")
}
