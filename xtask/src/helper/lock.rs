//! A process that waits for a lock and can be interrupted meanwhile.

use crate::sys::{self, RangeLock};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// The kind of a lock.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `flock(2)`: the whole file, owned by the open file.
    Flock,
    /// `fcntl(2)`: a byte range, owned by the process.
    Fcntl,
}

/// Prints `waiting`, then `granted` or `interrupted`, and holds a granted lock until standard input
/// ends.
pub fn run(path: &Path, kind: LockKind) -> io::Result<()> {
    sys::interrupt_calls_on(libc::SIGUSR1)?;
    let file = File::options().read(true).write(true).open(path)?;
    print_line("waiting")?;
    let outcome = match kind {
        LockKind::Flock => sys::flock(&file, libc::LOCK_EX),
        LockKind::Fcntl => {
            let whole = RangeLock { kind: libc::F_WRLCK, start: 0, length: 0, pid: 0 };
            sys::range_lock(&file, libc::F_SETLKW, whole).map(drop)
        }
    };
    match outcome {
        Ok(()) => {
            print_line("granted")?;
            io::stdin().read_to_end(&mut Vec::new()).map(drop)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => print_line("interrupted"),
        Err(error) => Err(error),
    }
}

/// Prints a line and flushes it.
pub(super) fn print_line(word: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{word}")?;
    out.flush()
}
