//! Small programs that the end-to-end suite runs as separate processes, so that it can kill, signal
//! and wait for them. They communicate by lines on standard output.

mod load;
mod lock;
mod open;
mod turns;

use crate::sys;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use load::{CHANGING_FILES, Guarantee, LOG_RECORD_BYTES, SLOT_BYTES, SLOTS, names};
pub use lock::LockKind;
pub use open::OPENED;
pub use turns::TURNS_CONTENT;

/// The programs.
#[derive(clap::Subcommand)]
pub enum Helper {
    /// Change files, and print a guarantee after each change that must survive a crash, until an
    /// error occurs.
    Load {
        /// Working folder.
        dir: PathBuf,
        /// Seed of the sequence of changes.
        #[arg(long)]
        seed: u64,
    },
    /// Wait for a lock, print the outcome, and hold the lock until standard input ends.
    Lock {
        /// File to lock.
        file: PathBuf,
        /// Kind of lock.
        #[arg(long)]
        kind: LockKind,
    },
    /// Append numbered lines to a file that several processes share.
    Append {
        /// File to append to.
        file: PathBuf,
        /// Prefix of each line.
        #[arg(long)]
        id: u64,
        /// Number of lines.
        #[arg(long)]
        lines: u64,
    },
    /// Change a file under a lock in turn with other processes; check each time that it is as the
    /// last one left it.
    Turns {
        /// The file, which is initially empty.
        file: PathBuf,
        /// A folder outside the file system under test, with an empty file for the expected
        /// content.
        outside: PathBuf,
        /// Kind of lock.
        #[arg(long)]
        kind: LockKind,
        /// Number of turns.
        #[arg(long)]
        turns: u64,
        /// Seed of the operations.
        #[arg(long)]
        seed: u64,
    },
    /// Wait for the end of standard input, then create empty files.
    Create {
        /// Folder of the new files.
        dir: PathBuf,
        /// Prefix of each name.
        #[arg(long)]
        id: u64,
        /// Number of files.
        #[arg(long)]
        files: u64,
    },
    /// Open or create the files named on standard input, and print each outcome.
    Open {
        /// Folder of the files.
        dir: PathBuf,
    },
    /// Write a file through a shared mapping, and exit without unmapping or closing it.
    MapWrite {
        /// File to write.
        file: PathBuf,
        /// Length of the mapping in bytes.
        #[arg(long)]
        length: usize,
    },
}

/// Runs a helper.
pub fn run(helper: &Helper) -> Result<(), String> {
    match helper {
        Helper::Load { dir, seed } => load::run(dir, *seed),
        Helper::Lock { file, kind } => lock::run(file, *kind),
        Helper::Append { file, id, lines } => append(file, *id, *lines),
        Helper::Turns { file, outside, kind, turns, seed } => turns::run(file, outside, *kind, *turns, *seed),
        Helper::Create { dir, id, files } => create(dir, *id, *files),
        Helper::Open { dir } => open::run(dir),
        Helper::MapWrite { file, length } => map_write(file, *length),
    }
    .map_err(|error| error.to_string())
}

/// Returns the line with this number of the appender with this id; lengths vary so that overlaps
/// are detectable.
pub fn appended_line(id: u64, number: u64) -> String {
    format!("{id}:{number}:{}\n", "x".repeat(((id * 31 + number * 7) % 200) as usize))
}

fn append(path: &PathBuf, id: u64, lines: u64) -> io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    for number in 0..lines {
        file.write_all(appended_line(id, number).as_bytes())?;
    }
    Ok(())
}

/// Returns the content that [`Helper::MapWrite`] writes.
pub fn mapped_content(length: usize) -> Vec<u8> {
    crate::e2e::Rng::new(length as u64).bytes(length)
}

fn map_write(path: &PathBuf, length: usize) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut mapping = sys::Mapping::new(&file, length, libc::MAP_SHARED)?;
    mapping.write(0, &mapped_content(length));
    std::process::exit(0);
}

/// Creates files one after another when standard input ends.
fn create(dir: &Path, id: u64, files: u64) -> io::Result<()> {
    io::read_to_string(io::stdin())?;
    (0..files).try_for_each(|number| File::create_new(dir.join(format!("{id}-{number}"))).map(drop))
}
