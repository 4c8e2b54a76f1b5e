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

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// Moves only this thread into the network namespace of the file.
pub fn enter_network_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: takes integers only; the descriptor is open while `namespace` is borrowed.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Moves this thread, and threads that it starts, into a new network namespace, whose loopback is
/// down.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Gives a program that is about to be started its own mount namespace: its mounts disappear with
/// it and its children.
pub fn unshare_mounts(command: &mut Command) -> &mut Command {
    let private = || {
        // SAFETY: takes integers only.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            // A container may forbid it, and many tests run there anyway.
            return Ok(());
        }
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: the strings are NUL-terminated constants; a change of propagation takes no type
        // and no data.
        check(unsafe {
            libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
        })
    };
    // SAFETY: between fork and exec only system calls are made, which is safe there.
    unsafe { command.pre_exec(private) }
}

/// Makes a program that is about to be started receive SIGTERM when the thread that starts it ends.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only `prctl` is called, which is safe there.
    unsafe { command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM))) }
}

/// Gives this thread its own table of open files with only standard input, output and error. The
/// thread can't use other open files of the process. Programs started by other threads don't
/// inherit its files. Otherwise they would close them at exec. Closing a file of a mount may need
/// the mount's services, which such a program may be about to become.
pub fn unshare_files() -> io::Result<()> {
    // SAFETY: the call takes no pointers, and the rest of the process keeps its own table.
    check(unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_int) })
}

/// Makes `signal` interrupt blocking calls (`EINTR`) instead of ending the process or restarting
/// the call.
pub fn interrupt_calls_on(signal: i32) -> io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: `sigaction` is plain data, for which all-zero is a valid value: no flags, empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler touches nothing, so that it may run at any point; `action` is live.
    check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })
}

/// Blocks SIGINT and SIGTERM for this thread and threads that it starts, so that
/// [`wait_for_interrupt`] receives them.
pub fn block_interrupts() -> io::Result<()> {
    let set = interrupts();
    // SAFETY: `set` is a live, initialised set.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits for SIGINT or SIGTERM, and returns the signal.
pub fn wait_for_interrupt() -> i32 {
    let set = interrupts();
    let mut signal = 0;
    // SAFETY: both arguments are live locals of the right types.
    unsafe { libc::sigwait(&set, &mut signal) };
    signal
}

/// Unblocks interrupts for a program that is about to be started: it would inherit the mask of
/// [`block_interrupts`].
pub fn unblock_interrupts(command: &mut Command) -> &mut Command {
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
    // SAFETY: `sigset_t` is plain data that `sigemptyset` initialises; the additions take valid
    // numbers.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Returns whether the calling thread has the file open.
    fn has_open(file: &Path) -> bool {
        let open = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        open.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|path| path == file))
    }

    #[test]
    fn unshared_files_are_in_no_other_thread() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        let _open = File::create(&ours).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let path = (ours.clone(), theirs.clone());
        let thread = std::thread::spawn(move || {
            unshare_files().unwrap();
            let _open = File::create(&path.1).unwrap();
            tell.send((has_open(&path.0), has_open(&path.1))).unwrap();
            ended.recv().unwrap_err();
        });
        assert_eq!(told.recv().unwrap(), (false, true), "ours and theirs in their thread");
        assert_eq!((has_open(&ours), has_open(&theirs)), (true, false), "ours and theirs in our thread");
        drop(end);
        thread.join().unwrap();
    }
}
