//! Processes of the clusters that measurements start.

use crate::e2e::cleanup::{self, Resource};
use crate::process;
use crate::sys;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest time for the start or end of a process of the cluster.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Ticks per second in /proc/PID/stat: USER_HZ, which is the same on all Linux systems.
const TICKS_PER_S: f64 = 100.0;

/// A process that ends when this is dropped.
pub(super) struct Running {
    pub(super) child: Child,
    /// Its mount point.
    pub(super) mount: Option<PathBuf>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mount) = &self.mount
            && sys::unmount(mount, 0).is_err()
        {
            // If the mount is still in use, it disappears when that ends.
            drop(sys::unmount(mount, libc::MNT_DETACH));
        }
        drop(sys::kill(self.child.id() as i32, libc::SIGTERM));
        if !matches!(process::wait(&mut self.child, DEADLINE), Ok(Some(_))) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
        self.resources().iter().for_each(cleanup::unregister);
    }
}

impl Running {
    /// Ends the process and unmounts when the result is dropped or the program is interrupted.
    pub(super) fn of(child: Child, mount: Option<PathBuf>) -> Running {
        let running = Running { child, mount };
        running.resources().into_iter().for_each(cleanup::register);
        running
    }

    fn resources(&self) -> Vec<Resource> {
        let mount = self.mount.iter().cloned().map(Resource::Mount);
        mount.chain([Resource::Process(self.child.id() as i32)]).collect()
    }

    /// Starts a long-running command, with its output in a log.
    pub(super) fn start(command: &mut Command, log: &Path) -> Result<Child, String> {
        let what = process::describe(command);
        let log = fs::File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = sys::unblock_interrupts(command).spawn();
        child.map_err(|error| format!("cannot start {what}: {error}"))
    }

    /// Returns the CPU time that the process has used, in seconds.
    pub(super) fn cpu_s(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name in parentheses may contain any characters.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / TICKS_PER_S
    }
}

/// Returns an unused address of this machine.
pub(super) fn free_address() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(listener.map_err(|error| format!("no unused address: {error}"))?.to_string())
}

/// Returns the last lines of a process's log.
pub(super) fn log_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().take(5).collect::<Vec<_>>().join("\n    ")
}
