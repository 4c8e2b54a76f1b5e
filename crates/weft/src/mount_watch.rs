//! A companion process of a mount that aborts the FUSE connection if the mount is killed.
//!
//! A thread of a mount that invalidates the kernel's cache waits in the kernel for pages that are
//! being read (`fuse_reverse_inval_inode` in `fs/fuse/inode.c`), and no signal interrupts that. If
//! the process is killed then, no thread answers the read any more. The kernel fails the read only
//! when the device is closed, and the waiting thread keeps it open. Only another process can end
//! that, by aborting the connection. So each mount has a small companion process, which checks it
//! twice a second and ends with it. It also removes the control sockets that a killed mount leaves
//! behind.

use crate::cli::WatchMountArgs;
use crate::control;
use crate::output::os_error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;
use types::Result;

const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait for the end of a mount whose last thread is exiting.
const LONGEST_EXIT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Starts the companion of this process, for a connection by its number in sysfs. It ends when the
/// returned handle is dropped, or when this process ends.
///
/// # Errors
/// System errors of starting a process.
pub fn start(connection: u32) -> Result<Child> {
    let args =
        ["watch-mount", "--pid", &std::process::id().to_string(), "--connection", &connection.to_string()];
    Command::new("/proc/self/exe")
        .args(args)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| os_error("can't start the process that watches the mount", &e))
}

/// `weft watch-mount`.
///
/// # Errors
/// System errors.
pub fn run(args: &WatchMountArgs) -> Result<()> {
    // An orderly unmount takes some time after the signal, so the signal must not end this process.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|e| os_error("can't catch signals", &e))?;
    }
    // Fails only if the process already leads a process group.
    let _ = rustix::process::setsid();
    // The mount holds the other end, which is closed with the last of its threads.
    let mount =
        Pid::from_raw(args.pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // The kernel may close this pipe before the sockets of the mount.
        if let Some(mount) = mount {
            let _ = poll(&mut [PollFd::new(&mount, PollFlags::IN)], Some(&LONGEST_EXIT));
        }
        drop(control::lock_and_clear());
        std::process::exit(0)
    });
    let mut was_stuck = false;
    loop {
        thread::sleep(LOOK_INTERVAL);
        let is_stuck = is_stuck(args.pid);
        // In two checks in a row, since an exiting process takes a moment.
        if is_stuck && was_stuck {
            // An error means that the connection is gone already.
            let _ = fuse::abort_connection(args.connection);
        }
        was_stuck = is_stuck;
    }
}

/// Returns whether a process was killed and has threads that don't end: its first thread has ended,
/// and others haven't.
fn is_stuck(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    has_ended(&stat) && threads > 1
}

/// Returns whether a line of `proc_pid_stat(5)` belongs to a thread that has ended. The name in it
/// may contain any characters.
fn has_ended(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_is_not_stuck() {
        assert!(!is_stuck(std::process::id()));
        assert!(!is_stuck(u32::MAX), "and neither is one that isn't there");
        assert!(has_ended("7 (a) Z 1) Z 1 7"));
        assert!(!has_ended("7 (a) Z 1) S 1 7"));
    }
}
