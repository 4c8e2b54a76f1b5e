//! Determines which system call an application is in while it waits for an answer, where that
//! decides what the answer is needed for.
//!
//! Before an application adds or removes an entry, the kernel checks its permission and requests
//! the attributes of the directory. It does so once for the path lookup and once for the change,
//! unless the attributes may be cached (Linux `fs/fuse/dir.c`, `fuse_permission`). The request is
//! the same as that of `stat(2)`, which must return the latest times. But an application inside
//! `openat(2)` doesn't see a directory's attributes: the kernel needs only the permissions, which
//! the client may know when it doesn't know the rest. `/proc/PID/syscall` shows which call a thread
//! is in, and the thread stays in that call until it is answered.
//!
//! If the call can't be determined, the request counts as one for all attributes. That is so for a
//! thread in another PID namespace, one that is running, one on whose behalf an io_uring works, and
//! a `/proc` that shows nothing.

use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use types::HashMap;

/// Threads whose `/proc` file stays open: opening it takes longer than reading it, and an
/// application creates many files. When the limit is reached, all are closed.
const MAX_OPEN_PROC_FILES: usize = 128;

/// Longer than any line of `/proc/PID/syscall` (nine numbers), in bytes.
const LINE_BYTES: usize = 256;

/// System calls that open, add or remove entries and don't return the attributes of a directory to
/// the application. A 32-bit application uses other call numbers: numbers that mean `stat(2)` there
/// are left out, such as that of `rmdir(2)`.
#[cfg(target_arch = "x86_64")]
const ENTRY_SYSCALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
];
#[cfg(not(target_arch = "x86_64"))]
const ENTRY_SYSCALLS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
];

/// Threads that have sent requests.
#[derive(Default)]
pub(crate) struct CallerSyscalls {
    /// `/proc/PID/syscall` of each thread. The open file of a thread that has ended reports this,
    /// even if another thread has reused its number.
    open: Mutex<HashMap<u32, Arc<File>>>,
}

impl CallerSyscalls {
    /// Returns true when a waiting thread certainly needs only the permissions of a directory.
    pub fn needs_only_permissions(&self, pid: u32) -> bool {
        // 0: the thread is in another PID namespace.
        pid != 0 && self.syscall_of(pid).is_some_and(|number| ENTRY_SYSCALLS.contains(&number))
    }

    fn syscall_of(&self, pid: u32) -> Option<libc::c_long> {
        let known = self.open.lock().get(&pid).cloned();
        if let Some(line) = known.and_then(|file| read(&file)) {
            return parse_syscall(&line);
        }
        let file = Arc::new(File::open(format!("/proc/{pid}/syscall")).ok()?);
        let line = read(&file);
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN_PROC_FILES {
            open.clear();
        }
        open.insert(pid, file);
        parse_syscall(&line?)
    }
}

/// Returns `None` for a thread that has ended or may not be inspected.
fn read(file: &File) -> Option<Vec<u8>> {
    let mut line = vec![0; LINE_BYTES];
    let length = file.read_at(&mut line, 0).ok()?;
    line.truncate(length);
    Some(line)
}

/// Returns the system call number from a line `number argument{6} stack-pointer program-counter`.
/// `running` and `-1` are no call. A kernel thread that works for an application shows the number
/// of one of its calls, but no stack.
fn parse_syscall(line: &[u8]) -> Option<libc::c_long> {
    let words: Vec<&str> = std::str::from_utf8(line).ok()?.split_ascii_whitespace().collect();
    let [number, _, _, _, _, _, _, stack, counter] = words[..] else { return None };
    let is_program = stack != "0x0" && counter != "0x0";
    number.parse().ok().filter(|_| is_program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::mpsc::channel;

    #[test]
    fn only_a_call_of_a_program_counts() {
        let line = |head: &str, tail: &str| {
            parse_syscall(format!("{head} 0x1 0x2 0x3 0x4 0x5 0x6 {tail}\n").as_bytes())
        };
        assert_eq!(line("257", "0x7ffc12 0x7f0a"), Some(257));
        assert_eq!(line("257", "0x0 0x0"), None, "a thread of the kernel's");
        assert_eq!(parse_syscall(b"running\n"), None);
        assert_eq!(parse_syscall(b"-1 0x7ffc12 0x7f0a\n"), None);
        assert_eq!(parse_syscall(b""), None);
    }

    /// A thread that waits for the other end of a pipe to be opened is inside the call that opens
    /// it.
    #[test]
    fn opening_threads_are_distinguished_from_waiting_and_ended_ones() {
        let base = std::env::temp_dir().join(format!("weft-callers-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let pipe = base.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let ((tell, told), (end, ended)) = (channel(), channel::<()>());
        let opener = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                // PID/task/TID
                let own = std::fs::read_link("/proc/thread-self").unwrap();
                tell.send(own.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
                drop(File::open(pipe).unwrap());
                ended.recv().unwrap_err();
            }
        });
        let (callers, opens) = (CallerSyscalls::default(), told.recv().unwrap());
        let until = |wanted: bool| {
            while callers.needs_only_permissions(opens) != wanted {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        until(true);
        drop(File::options().write(true).open(&pipe).unwrap());
        until(false);
        drop(end);
        opener.join().unwrap();
        assert!(!callers.needs_only_permissions(opens) && !callers.needs_only_permissions(0));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
