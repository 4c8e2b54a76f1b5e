//! Calls on processes and signals.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `kill(2)`; a negative id names a process group.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::kill(pid, signal) })
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// Moves this thread, and no other one, into the network namespace that the file stands for.
pub fn enter_network(namespace: &File) -> io::Result<()> {
    // SAFETY: takes integers only; the descriptor is open while `namespace` is borrowed.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Makes `signal` interrupt blocking calls (`EINTR`) instead of ending the process or restarting the call.
pub fn interrupt_calls_on(signal: i32) -> io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: `sigaction` is plain data, for which all-zero is a valid value: no flags, empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler touches nothing, so that it may run at any point; `action` is live.
    check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })
}

/// Blocks SIGINT and SIGTERM for this thread and those it starts, so that [`wait_for_interrupt`] gets them.
pub fn hold_interrupts() -> io::Result<()> {
    let set = interrupts();
    // SAFETY: `set` is a live, initialised set.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits for SIGINT or SIGTERM.
pub fn wait_for_interrupt() -> i32 {
    let set = interrupts();
    let mut signal = 0;
    // SAFETY: both arguments are live locals of the right types.
    unsafe { libc::sigwait(&set, &mut signal) };
    signal
}

/// Lets a program that is about to be started be interrupted: it would inherit what [`hold_interrupts`] has blocked.
pub fn let_be_interrupted(command: &mut Command) -> &mut Command {
    let set = interrupts();
    let unblock = move || {
        // SAFETY: `set` is a live, initialised set.
        match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: between fork and exec only `pthread_sigmask` is called, which is safe there.
    unsafe { command.pre_exec(unblock) }
}

fn interrupts() -> libc::sigset_t {
    // SAFETY: `sigset_t` is plain data that `sigemptyset` initialises; the additions take valid numbers.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        set
    }
}
