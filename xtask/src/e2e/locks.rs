//! Locks: conflicts, waiting, interruption and release.

use super::cleanup::{self, Resource};
use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::helper::LockKind;
use crate::process;
use crate::sys::{self, RangeLock};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "flock_conflicts", scope: Scope::Mounted, minutes: 1, run: flock_conflicts },
    TestCase { name: "flock_after_a_close", scope: Scope::Mounted, minutes: 1, run: flock_after_close },
    TestCase { name: "fcntl_ranges", scope: Scope::Mounted, minutes: 1, run: fcntl_ranges },
    TestCase { name: "open_file_locks", scope: Scope::Mounted, minutes: 1, run: open_file_locks },
    TestCase { name: "lock_wait_is_granted", scope: Scope::Mounted, minutes: 1, run: wait_is_granted },
    TestCase {
        name: "lock_wait_is_interrupted",
        scope: Scope::Mounted,
        minutes: 1,
        run: wait_is_interrupted,
    },
    TestCase {
        name: "locks_end_with_their_process",
        scope: Scope::Mounted,
        minutes: 1,
        run: end_with_process,
    },
];

/// Longest time until a signal or a release reaches a waiter.
const DEADLINE: Duration = Duration::from_secs(60);

const KINDS: [(LockKind, &str); 2] = [(LockKind::Flock, "flock"), (LockKind::Fcntl, "fcntl")];

fn open(path: &Path) -> TestResult<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path).at(path.display())
}

fn write_lock(start: u64, length: u64) -> RangeLock {
    RangeLock { kind: libc::F_WRLCK, start, length, pid: 0 }
}

/// Locks the whole file without waiting.
fn take(file: &File, kind: LockKind) -> std::io::Result<()> {
    match kind {
        LockKind::Flock => sys::flock(file, libc::LOCK_EX | libc::LOCK_NB),
        LockKind::Fcntl => sys::range_lock(file, libc::F_SETLK, write_lock(0, 0)).map(drop),
    }
}

fn release(file: &File, kind: LockKind) -> std::io::Result<()> {
    match kind {
        LockKind::Flock => sys::flock(file, libc::LOCK_UN),
        LockKind::Fcntl => {
            let unlock = RangeLock { kind: libc::F_UNLCK, ..write_lock(0, 0) };
            sys::range_lock(file, libc::F_SETLK, unlock).map(drop)
        }
    }
}

/// Another process that takes a lock.
struct Waiter {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Waiter {
    fn start(file: &Path, kind: &str) -> TestResult<Waiter> {
        let exe = process::this_program();
        let mut command = Command::new(exe);
        command.args(["helper", "lock", "--kind", kind]).arg(file);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.at("the lock helper")?;
        cleanup::register(Resource::Process(child.id() as i32));
        let lines = BufReader::new(child.stdout.take().expect("standard output was asked to be a pipe"));
        let mut waiter = Waiter { child, lines };
        waiter.says("waiting")?;
        Ok(waiter)
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for its next word. If the word never arrives, the test's deadline applies.
    fn says(&mut self, word: &str) -> TestResult {
        let mut line = String::new();
        self.lines.read_line(&mut line).at("the lock helper")?;
        ensure_eq!(line.trim(), word, "the waiter's word");
        Ok(())
    }

    fn ends(&mut self) -> TestResult {
        drop(self.child.stdin.take());
        let status = process::wait(&mut self.child, DEADLINE).at("the lock helper")?;
        ensure!(status.is_some_and(|status| status.success()), "the waiter ended with {status:?}");
        Ok(())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(process::wait(&mut self.child, DEADLINE));
        cleanup::unregister(&Resource::Process(self.pid()));
    }
}

/// A process that learns of a close from the closing process finds the lock free, also on another
/// core.
fn flock_after_close(stage: &Stage) -> TestResult {
    const ROUNDS: u32 = 2000;
    let path = stage.folder("flock_after_close")?.join("file");
    let (closed, hears) = mpsc::channel();
    let (goes_on, waits) = mpsc::channel();
    let own = open(&path)?;
    std::thread::scope(|threads| {
        threads.spawn(move || {
            for () in hears {
                let taken = take(&own, LockKind::Flock).and_then(|()| release(&own, LockKind::Flock));
                if goes_on.send(taken).is_err() {
                    return;
                }
            }
        });
        for round in 0..ROUNDS {
            let file = open(&path)?;
            take(&file, LockKind::Flock).at(format!("lock in round {round}"))?;
            drop(file);
            ensure!(closed.send(()).is_ok(), "the other thread has ended");
            let taken = waits.recv().map_err(io::Error::other).flatten();
            taken.at(format!("lock after the close in round {round}"))?;
        }
        drop(closed);
        Ok(())
    })
}

fn flock_conflicts(stage: &Stage) -> TestResult {
    let path = stage.folder("flock_conflicts")?.join("file");
    let (a, b) = (open(&path)?, open(&path)?);
    sys::flock(&a, libc::LOCK_SH).at("LOCK_SH")?;
    sys::flock(&b, libc::LOCK_SH | libc::LOCK_NB).at("a second LOCK_SH")?;
    expect_errno(take(&b, LockKind::Flock), libc::EAGAIN, "LOCK_EX beside LOCK_SH")?;
    sys::flock(&a, libc::LOCK_UN).at("LOCK_UN")?;
    take(&b, LockKind::Flock).at("LOCK_EX alone")?;
    expect_errno(sys::flock(&a, libc::LOCK_SH | libc::LOCK_NB), libc::EAGAIN, "LOCK_SH beside LOCK_EX")?;
    // The lock belongs to the open file: a duplicate descriptor retains it, the last close releases
    // it.
    let duplicate = b.try_clone().at("dup")?;
    drop(b);
    expect_errno(take(&a, LockKind::Flock), libc::EAGAIN, "LOCK_EX while a duplicate is open")?;
    drop(duplicate);
    ensure!(
        process::eventually(DEADLINE, || take(&a, LockKind::Flock).is_ok()),
        "the lock outlives the last close"
    );
    Ok(())
}

fn fcntl_ranges(stage: &Stage) -> TestResult {
    let path = stage.folder("fcntl_ranges")?.join("file");
    let file = open(&path)?;
    let mut other = Waiter::start(&path, "fcntl")?;
    other.says("granted")?;
    let found = sys::range_lock(&file, libc::F_GETLK, write_lock(10, 5)).at("F_GETLK")?;
    ensure_eq!((found.kind, found.pid), (libc::F_WRLCK, other.pid()), "the lock in the way and its holder");
    expect_errno(take(&file, LockKind::Fcntl), libc::EAGAIN, "a lock that another process holds")?;
    other.ends()?;
    sys::range_lock(&file, libc::F_SETLK, write_lock(0, 100)).at("F_SETLK")?;
    // Unlocking the middle of a range leaves two locks.
    let middle = RangeLock { kind: libc::F_UNLCK, ..write_lock(40, 20) };
    sys::range_lock(&file, libc::F_SETLK, middle).at("unlock in the middle")?;
    let mut waiter = Waiter::start(&path, "fcntl")?;
    release(&file, LockKind::Fcntl).at("unlock")?;
    waiter.says("granted")?;
    waiter.ends()
}

/// Locks of open files (`F_OFD_SETLK`): the last close releases them. The kernel reports it
/// differently from closes that release locks of processes.
fn open_file_locks(stage: &Stage) -> TestResult {
    let path = stage.folder("open_file_locks")?.join("file");
    let take = |file: &File| sys::range_lock(file, libc::F_OFD_SETLK, write_lock(0, 100)).map(drop);
    let mut last = open(&path)?;
    take(&last).at("F_OFD_SETLK")?;
    for _ in 0..3 {
        let next = open(&path)?;
        expect_errno(take(&next), libc::EAGAIN, "a lock that another open file holds")?;
        let duplicate = last.try_clone().at("dup")?;
        drop(last);
        expect_errno(take(&next), libc::EAGAIN, "a lock while a duplicate is open")?;
        drop(duplicate);
        ensure!(process::eventually(DEADLINE, || take(&next).is_ok()), "the lock outlives the last close");
        last = next;
    }
    // Closing another descriptor releases the lock of the process, but not that of the open file.
    drop(open(&path)?);
    expect_errno(take(&open(&path)?), libc::EAGAIN, "a lock after another file was closed")
}

fn wait_is_granted(stage: &Stage) -> TestResult {
    let dir = stage.folder("wait_is_granted")?;
    for (kind, name) in KINDS {
        let path = dir.join(name);
        let file = open(&path)?;
        take(&file, kind).at("the first lock")?;
        let mut waiters = [Waiter::start(&path, name)?, Waiter::start(&path, name)?];
        // The waiters may not have reached the call yet; a grant at once or after waiting is
        // correct.
        release(&file, kind).at("unlock")?;
        let (first, second) = waiters.split_at_mut(1);
        // The order of the two isn't specified: end the one that holds the lock.
        let granted_first = process::eventually(DEADLINE, || is_holder(&file, kind, &first[0], &second[0]));
        ensure!(granted_first, "{name}: no waiter got the released lock");
        drop(first[0].child.stdin.take());
        drop(second[0].child.stdin.take());
        for waiter in &mut waiters {
            waiter.says("granted")?;
            waiter.ends()?;
        }
        take(&file, kind).at("the lock after all waiters")?;
    }
    Ok(())
}

/// Returns whether one of the two holds the lock.
fn is_holder(file: &File, kind: LockKind, first: &Waiter, second: &Waiter) -> bool {
    match kind {
        LockKind::Fcntl => sys::range_lock(file, libc::F_GETLK, write_lock(0, 0))
            .is_ok_and(|lock| [first.pid(), second.pid()].contains(&lock.pid)),
        LockKind::Flock => match take(file, kind) {
            Ok(()) => {
                drop(release(file, kind));
                false
            }
            Err(_) => true,
        },
    }
}

fn wait_is_interrupted(stage: &Stage) -> TestResult {
    let dir = stage.folder("wait_is_interrupted")?;
    for (kind, name) in KINDS {
        let path = dir.join(name);
        let file = open(&path)?;
        take(&file, kind).at("the first lock")?;
        let mut waiter = Waiter::start(&path, name)?;
        // A signal before the call has no effect, so it is sent until one arrives during the call.
        let pid = waiter.pid();
        let ended = process::eventually(DEADLINE, || {
            drop(sys::kill(pid, libc::SIGUSR1));
            std::thread::sleep(Duration::from_millis(20));
            matches!(waiter.child.try_wait(), Ok(Some(_)))
        });
        ensure!(ended, "{name}: a signal doesn't end the wait");
        waiter.says("interrupted")?;
        // The interrupted request must be cancelled: the lock can be released and taken again.
        release(&file, kind).at("unlock")?;
        let mut next = Waiter::start(&path, name)?;
        next.says("granted")?;
        next.ends()?;
        take(&file, kind).at("the lock after an interrupted wait")?;
        let mut killed = Waiter::start(&path, name)?;
        drop(killed.child.kill());
        let status = process::wait(&mut killed.child, DEADLINE).at("the lock helper")?;
        ensure!(status.is_some(), "{name}: SIGKILL doesn't end the wait");
    }
    Ok(())
}

fn end_with_process(stage: &Stage) -> TestResult {
    let dir = stage.folder("end_with_process")?;
    for (kind, name) in KINDS {
        let path = dir.join(name);
        let file = open(&path)?;
        let mut holder = Waiter::start(&path, name)?;
        holder.says("granted")?;
        expect_errno(take(&file, kind), libc::EAGAIN, "a lock that another process holds")?;
        drop(holder.child.kill());
        drop(process::wait(&mut holder.child, DEADLINE));
        // The kernel releases the open file after the process has been reaped.
        ensure!(
            process::eventually(DEADLINE, || take(&file, kind).is_ok()),
            "{name}: the lock outlives its process"
        );
    }
    Ok(())
}
