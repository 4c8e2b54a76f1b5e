//! Runs a program that stops after each of its system calls, so that a test can check the effect of
//! the call.

use std::collections::HashMap;
use std::io;
use std::mem::size_of;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Distinguishes a system-call stop from other traps.
const SYSTEM_CALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// Values by which `PTRACE_GET_SYSCALL_INFO` identifies the stops before and after a call.
const BEFORE: u8 = 1;
const AFTER: u8 = 2;

/// Runs a program to its end. Calls `after` with the number of each successful system call, while
/// the program is stopped. An error of `after` ends the program. The calling thread must have no
/// other children, since it waits for any child.
///
/// Returns the program's exit status in the format of `wait(2)`.
pub fn trace(command: &mut Command, mut after: impl FnMut(i64) -> Result<(), String>) -> Result<i32, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let with_program = |error: io::Error| format!("tracing {program}: {error}");
    let ask = || match ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    // SAFETY: between fork and exec only `ptrace` is called, which is a plain system call.
    let child = unsafe { command.pre_exec(ask) }.spawn().map_err(with_program)?;
    let main = child.id() as i32;
    let mut calls: HashMap<i32, u64> = HashMap::new();
    let mut failed = None;
    loop {
        let (pid, status) =
            wait_for_any().map_err(|error| format!("waiting for a traced program: {error}"))?;
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if pid == main {
                return failed.map_or(Ok(status), Err);
            }
            continue;
        }
        let known = calls.contains_key(&pid);
        let number = calls.entry(pid).or_default();
        let signal = libc::WSTOPSIG(status);
        let mut deliver = 0;
        if signal == SYSTEM_CALL_STOP {
            match system_call(pid) {
                Ok((BEFORE, nr, _)) => *number = nr,
                Ok((AFTER, _, succeeded)) if succeeded && failed.is_none() => {
                    failed = after(*number as i64).err();
                }
                // A program that was killed meanwhile can't be queried; the next event is its end.
                _ => {}
            }
        } else if !known {
            // The first stop of the program after its exec, or of a thread or child of it.
            let options = libc::PTRACE_O_TRACESYSGOOD
                | libc::PTRACE_O_TRACECLONE
                | libc::PTRACE_O_TRACEFORK
                | libc::PTRACE_O_TRACEVFORK
                | libc::PTRACE_O_TRACEEXEC
                | libc::PTRACE_O_EXITKILL;
            drop(ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize));
        } else if status >> 16 == 0 && signal != libc::SIGTRAP {
            deliver = signal;
        }
        if failed.is_some() {
            drop(super::kill(main, libc::SIGKILL));
        }
        drop(ptrace(libc::PTRACE_SYSCALL, pid, 0, deliver as usize));
    }
}

/// Returns the kind of stop; the number of the call at a stop before it; and whether it succeeded
/// at a stop after it.
fn system_call(pid: i32) -> io::Result<(u8, u64, bool)> {
    // SAFETY: the struct is plain integers, for which all-zero is a valid value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, (&raw mut info) as usize)?;
    // SAFETY: the kernel has filled the part that belongs to `op`; each part is integers, valid
    // whatever their bits.
    unsafe {
        Ok(match info.op {
            BEFORE => (BEFORE, info.u.entry.nr, false),
            op => (op, 0, op == AFTER && info.u.exit.is_error == 0),
        })
    }
}

/// Waits for a child or traced program of this thread to stop or end.
fn wait_for_any() -> io::Result<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live local.
        match unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            pid => return Ok((pid, status)),
        }
    }
}

fn ptrace(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: the only request that writes to this process's memory is given the address and size
    // of a live struct by its caller.
    match unsafe { libc::ptrace(request, pid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a separate thread, which has no other children.
    fn traced(
        script: &'static str,
        after: impl FnMut(i64) -> Result<(), String> + Send + 'static,
    ) -> Result<i32, String> {
        let run = move || trace(Command::new("sh").args(["-c", script]), after);
        std::thread::spawn(run).join().unwrap()
    }

    #[test]
    fn each_success_is_seen_while_the_program_stands_still() {
        let dir = tempfile::tempdir().unwrap();
        let (made, script) = (
            dir.path().join("made"),
            format!("(mkdir {0}/made; mkdir {0}/made); exit 3", dir.path().display()),
        );
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = seen.clone();
        let status = traced(script.leak(), move |number| {
            if number == libc::SYS_mkdir || number == libc::SYS_mkdirat {
                note.lock().unwrap().push(made.is_dir());
            }
            Ok(())
        });
        assert_eq!(libc::WEXITSTATUS(status.unwrap()), 3);
        assert_eq!(*seen.lock().unwrap(), [true], "the second one fails");
    }

    #[test]
    fn an_error_ends_the_program() {
        let outcome = traced("while :; do cd /; done", |number| match number {
            libc::SYS_chdir => Err("seen".into()),
            _ => Ok(()),
        });
        assert_eq!(outcome, Err("seen".into()));
    }
}
