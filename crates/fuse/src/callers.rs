//! What the program that waits for an answer is doing, where that tells what the answer is for.
//!
//! Before a program adds or removes a name, the kernel checks whether it may, and asks for the
//! attributes of the directory: once for the way to it and once for the change, if they may not be
//! kept (Linux `fs/fuse/dir.c`, `fuse_permission`). The question is the same as that of `stat(2)`,
//! which has to tell the latest times. But a program that is inside `openat(2)` sees nothing of a
//! directory's attributes: to it they are permissions, and those may be known here when the rest
//! isn't. `/proc/PID/syscall` says which call a thread is in, and it stays in that until it is
//! answered.
//!
//! What is not seen (a thread of another name space of processes, one that runs, one that a ring
//! works for, a `/proc` that tells nothing) counts as a question for everything.

use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use types::HashMap;

/// Threads whose file in `/proc` is kept open: opening it takes longer than reading it, and a
/// program makes many files. Beyond it all are closed.
const MAX_OPEN: usize = 128;

/// Longer than any line of `/proc/PID/syscall` (nine numbers). Bytes.
const LINE_BYTES: usize = 256;

/// Calls that open, add or remove names, and tell a program nothing of the attributes of a
/// directory. A program of another architecture (32 bits) has other numbers: those that mean
/// `stat(2)` there are left out, like `rmdir(2)`.
#[cfg(target_arch = "x86_64")]
const CHANGES_OF_NAMES: &[libc::c_long] = &[
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
const CHANGES_OF_NAMES: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
];

/// Threads that have asked.
#[derive(Default)]
pub(crate) struct Callers {
    /// `/proc/PID/syscall` of each. One of a thread that has ended says so, whoever has its number
    /// now.
    open: Mutex<HashMap<u32, Arc<File>>>,
}

impl Callers {
    /// True when a thread that waits for an answer surely wants to know of a directory just what it
    /// may do there.
    pub fn change_names(&self, pid: u32) -> bool {
        // 0: it is in another name space of processes.
        pid != 0 && self.call_of(pid).is_some_and(|number| CHANGES_OF_NAMES.contains(&number))
    }

    fn call_of(&self, pid: u32) -> Option<libc::c_long> {
        let known = self.open.lock().get(&pid).cloned();
        if let Some(line) = known.and_then(|file| read(&file)) {
            return call_in(&line);
        }
        let file = Arc::new(File::open(format!("/proc/{pid}/syscall")).ok()?);
        let line = read(&file);
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(pid, file);
        call_in(&line?)
    }
}

/// `None` for a thread that has ended, or may not be looked at.
fn read(file: &File) -> Option<Vec<u8>> {
    let mut line = vec![0; LINE_BYTES];
    let length = file.read_at(&mut line, 0).ok()?;
    line.truncate(length);
    Some(line)
}

/// The number of the call in a line `number argument{6} stack-pointer program-counter`. `running`
/// and `-1` are no call; a thread of the kernel's that works for a program has the number of some
/// call of that, but no stack.
fn call_in(line: &[u8]) -> Option<libc::c_long> {
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
        let line =
            |head: &str, tail: &str| call_in(format!("{head} 0x1 0x2 0x3 0x4 0x5 0x6 {tail}\n").as_bytes());
        assert_eq!(line("257", "0x7ffc12 0x7f0a"), Some(257));
        assert_eq!(line("257", "0x0 0x0"), None, "a thread of the kernel's");
        assert_eq!(call_in(b"running\n"), None);
        assert_eq!(call_in(b"-1 0x7ffc12 0x7f0a\n"), None);
        assert_eq!(call_in(b""), None);
    }

    /// A thread that waits for the other end of a pipe to be opened is inside of the call that
    /// opens it.
    #[test]
    fn a_thread_that_opens_is_told_from_one_that_waits_and_from_one_that_has_ended() {
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
        let (callers, opens) = (Callers::default(), told.recv().unwrap());
        let until = |wanted: bool| {
            while callers.change_names(opens) != wanted {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        until(true);
        drop(File::options().write(true).open(&pipe).unwrap());
        until(false);
        drop(end);
        opener.join().unwrap();
        assert!(!callers.change_names(opens) && !callers.change_names(0));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
