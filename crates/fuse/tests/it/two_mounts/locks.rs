//! A process's byte-range locks end when it closes the file, and other processes see that at once.

#![allow(unsafe_code, reason = "system calls that the standard library doesn't have")]

use super::{Cluster, aio};
use fuse::Opcode;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than hundreds of waits take to begin.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The files are open for reading before any process of the mount takes a lock.
pub(crate) fn a_close_drops_the_locks_of_its_process(cluster: &Cluster) {
    let [path, elsewhere] = cluster.paths("locked");
    fs::write(&path, "content").unwrap();
    let [first, second, third] = [0; 3].map(|_| File::open(&path).unwrap());

    lock(&first, libc::F_SETLK, libc::F_RDLCK).unwrap();
    assert!(is_locked(&elsewhere), "the lock is there");
    drop(second);
    assert!(!is_locked(&elsewhere), "the lock outlives a close of another descriptor");

    // The process that takes the lock ends; the open file remains.
    let ended = in_a_child(|| lock(&third, libc::F_SETLK, libc::F_RDLCK));
    assert_eq!(ended, 0);
    assert!(!is_locked(&elsewhere), "the lock outlives its process");

    lock(&third, libc::F_OFD_SETLK, libc::F_RDLCK).unwrap();
    drop(first);
    assert!(is_locked(&elsewhere), "the lock of an open file outlives closes of others");
    drop(third);
    // The kernel reports the end of an open file some time after the close.
    let began = Instant::now();
    while is_locked(&elsewhere) {
        assert!(began.elapsed() < TEST_TIMEOUT, "the lock outlives its open file");
        thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(&path).unwrap();
}

/// More than a core has workers at first, and more than a connection carries other requests.
pub(crate) fn hundreds_of_applications_wait_for_one_lock(cluster: &Cluster) {
    const WAITERS: u64 = 600;
    const STACK_BYTES: usize = 256 << 10;
    let ([path, _], [beside, _]) = (cluster.paths("wanted"), cluster.paths("beside"));
    fs::write(&path, "").unwrap();
    let open = || File::options().write(true).open(&path).unwrap();
    let arrived = || cluster.mounts[0].stats().requests(Opcode::Setlkw);
    let (held, before) = (open(), arrived());
    lock(&held, libc::F_OFD_SETLK, libc::F_WRLCK).unwrap();
    let (open, began) = (&open, Instant::now());
    thread::scope(|scope| {
        let wait = move || {
            aio::stay_on(0);
            lock(&open(), libc::F_OFD_SETLKW, libc::F_WRLCK)
        };
        let start = |_| thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, wait).unwrap();
        let waiters: Vec<_> = (0..WAITERS).map(start).collect();
        let has_ended = || waiters.iter().any(|waiter| waiter.is_finished());
        while arrived() - before < WAITERS && !has_ended() && began.elapsed() < TEST_TIMEOUT {
            thread::sleep(Duration::from_millis(5));
        }
        let (ended, waits) = (has_ended(), arrived() - before);
        // Other requests proceed meanwhile, on the same processor.
        let written = scope.spawn(|| {
            aio::stay_on(0);
            fs::write(&beside, "content")
        });
        let written = written.join().unwrap();
        drop(held);
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        assert!(!ended && waits == WAITERS, "{waits} wait");
        written.unwrap();
    });
    [path, beside].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// A user who is root in a user namespace of its own makes a request whose permission the kernel
/// leaves to the service.
pub(crate) fn root_of_a_user_namespace_cannot_move_files_of_others(cluster: &Cluster) {
    let [path, _] = cluster.paths("of root");
    fs::write(&path, "content").unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let place = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let wish = br#"{"scheme":"single"}"#;
    let ask = || {
        let (name, value) = (c"weft.migrate".as_ptr(), wish.as_ptr().cast());
        // SAFETY: the strings outlive the call, and the length is that of the value.
        checked(unsafe { libc::setxattr(place.as_ptr(), name, value, wish.len(), 0) })
    };
    assert_eq!(in_a_child(ask), 0, "root may");
    let refused = in_a_child(|| {
        let user = super::NOBODY;
        // SAFETY: the call takes integers, and no list of groups.
        unsafe {
            checked(libc::setgroups(0, std::ptr::null()))?;
            checked(libc::setgid(user))?;
            checked(libc::setuid(user))?;
            if libc::unshare(libc::CLONE_NEWUSER) < 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSYS));
            }
        }
        ask()
    });
    match refused {
        libc::ENOSYS => println!("skipped: no user namespace can be made"),
        refused => assert_eq!(refused, libc::EPERM),
    }
    fs::remove_file(&path).unwrap();
}

/// Runs `work` in a child process, which inherits this process's files; returns its error number,
/// or 0.
///
/// `work` makes only system calls: other threads may hold any lock of the process.
fn in_a_child(work: impl FnOnce() -> io::Result<()>) -> i32 {
    // SAFETY: the child makes only system calls and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let number = work().err().map_or(0, |error| error.raw_os_error().unwrap_or(255));
        // SAFETY: the call takes an integer.
        unsafe { libc::_exit(number) };
    }
    checked(child).unwrap();
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    checked(unsafe { libc::waitpid(child, &mut status, 0) }).unwrap();
    assert!(libc::WIFEXITED(status), "{status:x}");
    libc::WEXITSTATUS(status)
}

/// Locks or unlocks the whole file without waiting.
fn lock(file: &File, command: i32, kind: i32) -> io::Result<()> {
    let whole = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the structure outlives the call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, &whole) })
}

/// Returns whether any process holds a lock on the file.
fn is_locked(path: &Path) -> bool {
    let file = File::options().write(true).open(path).unwrap();
    match lock(&file, libc::F_OFD_SETLK, libc::F_WRLCK) {
        Ok(()) => lock(&file, libc::F_OFD_SETLK, libc::F_UNLCK).map(|()| false).unwrap(),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => true,
        Err(error) => panic!("{error}"),
    }
}

fn checked(done: i32) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
