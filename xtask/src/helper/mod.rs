//! Small programs that the end-to-end suite runs as processes of their own, so that they can be
//! killed, signalled and waited for. They talk to the suite by lines on standard output.

mod load;
mod lock;
mod open;
mod turns;

use crate::sys;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use load::{CHANGING_FILES, LOG_RECORD_BYTES, Promise, SLOT_BYTES, SLOTS, names};
pub use lock::LockKind;
pub use open::OPENED;
pub use turns::TURNS_CONTENT;

/// The programs.
#[derive(clap::Subcommand)]
pub enum Helper {
    /// Change files and print a promise after each change that must outlive a crash, until an error
    /// ends it.
    Load {
        /// Folder to work in.
        dir: PathBuf,
        /// Seed of the sequence of changes.
        #[arg(long)]
        seed: u64,
    },
    /// Take a lock, waiting for it; print how that ended; hold it until standard input ends.
    Lock {
        /// File to lock.
        file: PathBuf,
        /// Which kind.
        #[arg(long)]
        kind: LockKind,
    },
    /// Append numbered lines to a file shared with others.
    Append {
        /// File to append to.
        file: PathBuf,
        /// Start of each line.
        #[arg(long)]
        id: u64,
        /// How many lines.
        #[arg(long)]
        lines: u64,
    },
    /// Change a file in turns with others, under a lock, and look each time whether it is as the
    /// last one left it.
    Turns {
        /// The file, which is empty at first.
        file: PathBuf,
        /// A folder outside of the file system under test, with an empty file for the expected
        /// content.
        outside: PathBuf,
        /// Which kind of lock.
        #[arg(long)]
        kind: LockKind,
        /// How many turns.
        #[arg(long)]
        turns: u64,
        /// Seed of what is done.
        #[arg(long)]
        seed: u64,
    },
    /// Wait for the end of standard input, and create empty files.
    Create {
        /// Folder to create them in.
        dir: PathBuf,
        /// Start of each name.
        #[arg(long)]
        id: u64,
        /// How many.
        #[arg(long)]
        files: u64,
    },
    /// Open or make the files that standard input names, and print for each how that ended.
    Open {
        /// Folder of the files.
        dir: PathBuf,
    },
    /// Write a file through a shared mapping and leave without unmapping or closing.
    MapWrite {
        /// File to write.
        file: PathBuf,
        /// Length of the mapping, bytes.
        #[arg(long)]
        length: usize,
    },
}

/// Runs one of them.
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

/// The line with this number that the appender with this id writes; lengths vary so that overlaps
/// show.
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

/// What [`Helper::MapWrite`] leaves in the file.
pub fn mapped_content(length: usize) -> Vec<u8> {
    crate::e2e::Rng::new(length as u64).bytes(length)
}

fn map_write(path: &PathBuf, length: usize) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut mapping = sys::Mapping::new(&file, length, libc::MAP_SHARED)?;
    mapping.write(0, &mapped_content(length));
    std::process::exit(0);
}

/// Creates files one after another, when it is told.
fn create(dir: &Path, id: u64, files: u64) -> io::Result<()> {
    io::read_to_string(io::stdin())?;
    (0..files).try_for_each(|number| File::create_new(dir.join(format!("{id}-{number}"))).map(drop))
}
