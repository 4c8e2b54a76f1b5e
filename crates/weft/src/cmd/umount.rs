//! `weft umount`: it always ends.
//!
//! An ordinary unmount waits in the kernel until everything is written, and can't be interrupted
//! there. The client ends that wait, even if its servers fail; but if the client itself hangs, the
//! wait never ends. So a child process makes the system call, and is left behind if the client
//! doesn't answer any more.

use crate::cli::UmountArgs;
use crate::control::{self, Control, PeerInfo, Request};
use crate::mountpoint;
use crate::output::{os_error, print_to_stderr};
use crate::progress::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Longest time for a client to answer. A dedicated thread does that, so only a very busy machine
/// delays it.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval of checks that the client answers during the unmount.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of checks whether the unmount is complete: short compared with a usual unmount.
const POLL: Duration = Duration::from_millis(2);

/// Longest wait for the process of the mount after the unmount, until its session has ended at the
/// servers. Longer than the session's end takes with servers that answer.
const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// Time after which the user is informed of the wait.
const SESSION_NOTICE: Duration = Duration::from_secs(3);

/// Unmounts, and waits until the session has ended, so that servers may be stopped afterwards.
/// Without `--force` this is an ordinary unmount; with it nothing can delay it.
pub fn run(args: &UmountArgs) -> Result<()> {
    if args.bare {
        let ended = unmount(&args.mountpoint, UnmountFlags::empty());
        std::process::exit(ended.map_or_else(|e| e.raw_os_error(), |()| 0));
    }
    // Sockets of killed mounts, which may be unmounted already.
    let _ = control::lock_and_clear();
    let path = mountpoint::resolve(&args.mountpoint)?;
    if !mountpoint::is_weft_mount(&path)? {
        return Err(Error::new(
            Errno::EINVAL,
            format!("no weft file system is mounted at {}", path.display()),
        )
        .hint("findmnt -t fuse.weft shows all"));
    }
    if args.force { force_unmount(&path) } else { unmount_orderly(&path) }
}

fn force_unmount(path: &Path) -> Result<()> {
    // The kernel fails all pending and future requests.
    if let Some(control) = mountpoint::abort_file(path)?
        && let Err(e) = std::fs::write(&control, "1")
    {
        tracing::debug!("{}: {e}", control.display());
    }
    match unmount(path, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        // A concurrent ordinary unmount was completed by the abort, and was faster.
        Err(rustix::io::Errno::INVAL) if !mountpoint::is_weft_mount(path)? => Ok(()),
        Err(e) => {
            Err(os_error(format_args!("can't unmount {}", path.display()), &e.into()).hint("run as root"))
        }
    }
}

fn unmount_orderly(path: &Path) -> Result<()> {
    // Without a control socket the client can't be queried.
    let watched = client_answers(path)?;
    let process = Control::of_mount(path).ok().flatten().and_then(|control| control.process().ok());
    let connection = mountpoint::abort_file(path)?;
    let query_client = || if watched { client_answers(path).map(drop) } else { Ok(()) };
    let program = std::env::current_exe().map_err(|e| os_error("this program", &e))?;
    let mut child = Command::new(program);
    child.args(["umount", "--bare"]).arg(path).stdin(Stdio::null());
    let child = child.spawn().map_err(|e| os_error("can't start a process", &e))?;
    let ended = wait(child, CLIENT_CHECK_INTERVAL, query_client)?;
    let cause = match ended.code() {
        Some(0) if connection.is_some_and(|file| file.exists()) => {
            print_to_stderr(&format!(
                "{} is still mounted in another mount namespace: its session continues\n",
                path.display()
            ));
            return Ok(());
        }
        Some(0) => return process.map_or(Ok(()), |process| wait_for_end(&process, path)),
        Some(errno) => std::io::Error::from_raw_os_error(errno),
        None => std::io::Error::from_raw_os_error(Errno::EINTR.number()),
    };
    let hint = match cause.raw_os_error().map(Errno::Number) {
        Some(Errno::EBUSY) => "fuser -vm shows who uses it; --force unmounts it anyway",
        Some(Errno::EPERM) => "run as root",
        _ => "weft umount --force",
    };
    Err(os_error(format_args!("can't unmount {}", path.display()), &cause).hint(hint))
}

/// Waits until the process that served the mount has ended. If servers don't answer, that takes
/// longer than this waits; then the user is informed.
fn wait_for_end(process: &OwnedFd, path: &Path) -> Result<()> {
    let shown = path.display();
    if has_ended(process, SESSION_NOTICE)? {
        return Ok(());
    }
    let what = format!("{shown} is unmounted; waiting until its session has ended at the servers");
    let progress = Progress::start(&what);
    if has_ended(process, SESSION_TIMEOUT - SESSION_NOTICE)? {
        return Ok(());
    }
    drop(progress);
    print_to_stderr(&format!(
        "{shown} is unmounted, but its session has not ended, since servers don't answer; they will evict it\n\
         hint: weft health shows which servers\n"
    ));
    Ok(())
}

/// Returns whether a process ends within a time.
fn has_ended(process: &OwnedFd, timeout: Duration) -> Result<bool> {
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(os_error("the process of the mount", &e.into())),
        }
    }
}

/// Waits for the end of the process that unmounts, or until the client, which is queried
/// periodically, doesn't answer.
fn wait(mut child: Child, interval: Duration, query_client: impl Fn() -> Result<()>) -> Result<ExitStatus> {
    let mut try_wait = || child.try_wait().map_err(|e| os_error("the process that unmounts", &e));
    let mut last_query = Instant::now();
    loop {
        if let Some(ended) = try_wait()? {
            return Ok(ended);
        }
        if last_query.elapsed() >= interval {
            let answer = query_client();
            // The client may not answer because the unmount is complete and it has exited.
            if let Some(ended) = try_wait()? {
                return Ok(ended);
            }
            answer?;
            last_query = Instant::now();
        }
        sleep(POLL);
    }
}

/// Returns whether the client can be queried; `false` if it has no control socket.
///
/// # Errors
/// `ETIMEDOUT` if it should answer and doesn't.
fn client_answers(path: &Path) -> Result<bool> {
    let Ok(Some(mut control)) = Control::of_mount(path) else { return Ok(false) };
    match control.exchange_with_timeout::<Vec<PeerInfo>>(Request::Net, CLIENT_TIMEOUT) {
        Err(error) if is_timeout(error.errno) => {
            let message = format!("the client of {} doesn't answer: is its process stopped?", path.display());
            let hint = "resume it (kill -CONT); or weft umount --force: data that the client has not sent is lost then";
            Err(Error::new(Errno::ETIMEDOUT, message).hint(hint))
        }
        // It answers, or has just exited.
        _ => Ok(true),
    }
}

/// Returns whether this is the error of a receive that timed out.
fn is_timeout(errno: Errno) -> bool {
    let kind = std::io::Error::from_raw_os_error(errno.number()).kind();
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(program: &str, argument: &str) -> Child {
        Command::new(program).arg(argument).spawn().unwrap()
    }

    #[test]
    fn an_unmount_is_waited_for_while_its_client_answers() {
        let ended = wait(half("sleep", "0.2"), Duration::from_millis(20), || Ok(()));
        assert_eq!(ended.unwrap().code(), Some(0));
    }

    #[test]
    fn an_unmount_is_left_behind_when_its_client_is_silent() {
        let child = half("sleep", "1000");
        let id = child.id();
        let silent = || Err(Error::new(Errno::ETIMEDOUT, "it doesn't answer"));
        let error = wait(child, Duration::from_millis(20), silent).unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        let pid = rustix::process::Pid::from_raw(id as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn an_unmount_that_ends_during_a_query_is_complete() {
        let child = half("sleep", "0.1");
        let state = format!("/proc/{}/stat", child.id());
        let slow = || {
            // Until it is a zombie.
            while !std::fs::read_to_string(&state).unwrap().contains(") Z ") {
                sleep(POLL);
            }
            Err(Error::new(Errno::ETIMEDOUT, "it doesn't answer"))
        };
        assert!(wait(child, Duration::ZERO, slow).unwrap().success());
    }
}
