//! Cleanup on interrupts: an interrupted run ends all programs that it has started before it exits.
//!
//! Programs in a separate process group don't receive the terminal's SIGINT, and SIGTERM reaches
//! only one process.

use crate::{process, sys};
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Longest time that interrupted processes may take to clean up.
pub const CLEANUP_DEADLINE: Duration = Duration::from_secs(120);

/// How an interrupt ends a running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Send a signal, so that it can clean up.
    Terminate,
    /// Kill its whole process group.
    KillGroup,
}

/// Running programs, by process id.
static RUNNING: Mutex<Vec<(i32, StopMode)>> = Mutex::new(Vec::new());

/// Whether the run has been interrupted: no new program may start.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The cleanup thread, the only one that may still start programs.
static CLEANER: OnceLock<ThreadId> = OnceLock::new();

fn running() -> MutexGuard<'static, Vec<(i32, StopMode)>> {
    // A list of plain values stays consistent even if a holder of the lock panicked.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the interrupt handling: an interrupt ends all running programs, calls `at_end`, and
/// exits.
pub fn watch(at_end: impl FnOnce() + Send + 'static) -> Result<(), String> {
    sys::block_interrupts().map_err(|error| format!("cannot block signals: {error}"))?;
    thread::spawn(|| {
        let signal = sys::wait_for_interrupt();
        eprintln!("\ninterrupted: cleaning up");
        end_all();
        at_end();
        // The shell's convention for a termination by signal.
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// Returns whether the calling thread must stop: cleanup is in progress on another thread.
fn must_stop() -> bool {
    IS_INTERRUPTED.load(Ordering::SeqCst) && CLEANER.get() != Some(&thread::current().id())
}

fn end_all() {
    // There is one such thread; a second one would do the same.
    CLEANER.get_or_init(|| thread::current().id());
    IS_INTERRUPTED.store(true, Ordering::SeqCst);
    for (pid, reach) in running().iter() {
        drop(match reach {
            StopMode::Terminate => sys::kill(*pid, libc::SIGTERM),
            StopMode::KillGroup => sys::kill(-*pid, libc::SIGKILL),
        });
    }
    // The thread that waits for a program removes it from the list when it has ended.
    process::eventually(CLEANUP_DEADLINE, || running().is_empty());
}

/// Starts a program so that an interrupt reaches it; the caller must call [`ended`] afterwards.
pub fn spawn(command: &mut Command, reach: StopMode) -> io::Result<Child> {
    let mut running = running();
    if must_stop() {
        drop(running);
        wait_for_the_end();
    }
    let child = command.spawn()?;
    running.push((child.id() as i32, reach));
    Ok(child)
}

/// Records that a program has ended. Doesn't return if an interrupt ended it.
pub fn ended(child: &Child) {
    running().retain(|(pid, _)| *pid != child.id() as i32);
    if must_stop() {
        wait_for_the_end();
    }
}

/// Blocks forever: the thread that received the interrupt exits the program.
fn wait_for_the_end() -> ! {
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process that is interrupted: an interrupt affects the whole process.
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
