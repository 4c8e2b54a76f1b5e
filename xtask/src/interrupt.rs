//! An interrupted run ends what it has started before it ends itself.
//!
//! Programs that run in a process group of their own don't get the terminal's interrupt, and
//! whoever gets SIGTERM gets it alone.

use crate::{process, sys};
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How long interrupted processes may take to give everything back.
pub const CLEANUP_DEADLINE: Duration = Duration::from_secs(120);

/// How a running program is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is asked to end, and gives back what it holds.
    Ask,
    /// Its whole process group is killed.
    KillGroup,
}

/// The programs that run now, by process id.
static RUNNING: Mutex<Vec<(i32, Reach)>> = Mutex::new(Vec::new());

/// Whether the run has been interrupted: nothing starts any more.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The thread that gives everything back: it alone still starts programs.
static CLEANER: OnceLock<ThreadId> = OnceLock::new();

fn running() -> MutexGuard<'static, Vec<(i32, Reach)>> {
    // A list of plain values is whole even when a holder of the lock panicked.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on an interrupt ends all running programs, then calls `at_end`, and ends this one.
pub fn watch(at_end: impl FnOnce() + Send + 'static) -> Result<(), String> {
    sys::hold_interrupts().map_err(|error| format!("cannot hold signals: {error}"))?;
    thread::spawn(|| {
        let signal = sys::wait_for_interrupt();
        eprintln!("\ninterrupted: cleaning up");
        end_all();
        at_end();
        // The shell's convention for a death by signal.
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// Whether the caller may not go on: everything is being given back, and not by the caller.
fn is_over() -> bool {
    IS_INTERRUPTED.load(Ordering::SeqCst) && CLEANER.get() != Some(&thread::current().id())
}

fn end_all() {
    // There is one such thread; a second one would do what the first one does.
    CLEANER.get_or_init(|| thread::current().id());
    IS_INTERRUPTED.store(true, Ordering::SeqCst);
    for (pid, reach) in running().iter() {
        drop(match reach {
            Reach::Ask => sys::kill(*pid, libc::SIGTERM),
            Reach::KillGroup => sys::kill(-*pid, libc::SIGKILL),
        });
    }
    // Whoever waits for a program takes it off the list when it has ended.
    process::eventually(CLEANUP_DEADLINE, || running().is_empty());
}

/// Starts a program so that an interrupt reaches it; [`ended`] has to follow.
pub fn spawn(command: &mut Command, reach: Reach) -> io::Result<Child> {
    let mut running = running();
    if is_over() {
        drop(running);
        wait_for_the_end();
    }
    let child = command.spawn()?;
    running.push((child.id() as i32, reach));
    Ok(child)
}

/// Notes that a program has ended. When that was because of an interrupt, the caller goes no
/// further.
pub fn ended(child: &Child) {
    running().retain(|(pid, _)| *pid != child.id() as i32);
    if is_over() {
        wait_for_the_end();
    }
}

/// Does nothing more: the thread that got the interrupt ends this program.
fn wait_for_the_end() -> ! {
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process that is interrupted: the state of an interrupt is the whole process's.
    const CHILD: &str = "WEFT_TEST_INTERRUPTED";

    #[test]
    fn an_interrupted_process_can_run_programs_to_clean_up() {
        if std::env::var_os(CHILD).is_some() {
            end_all();
            process::run_ok(&mut Command::new("true"), CLEANUP_DEADLINE).unwrap();
            std::process::exit(77);
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "interrupt::tests::an_interrupted_process_can_run_programs_to_clean_up"]);
        let finished = process::run(again.env(CHILD, "1"), Duration::from_secs(60)).unwrap();
        assert_eq!(finished.code(), 77, "{}", finished.tail());
    }
}
