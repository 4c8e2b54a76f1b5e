//! A process that changes a file in turn with others on other mounts. Each turn runs under a lock,
//! and checks what the last one left.
//!
//! The expected content is in a folder outside the test, and changes under the same lock.

use super::LockKind;
use crate::e2e::Rng;
use crate::sys::{self, Mapping, RangeLock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Name of the file with the expected content.
pub const TURNS_CONTENT: &str = "expected";

/// Maximum length of the file in bytes.
const MAX_BYTES: u64 = 192 << 10;

/// Maximum number of bytes that one turn changes.
const MAX_CHANGE: u64 = 24 << 10;

/// Runs the given number of turns.
pub fn run(path: &Path, outside: &Path, kind: LockKind, turns: u64, seed: u64) -> io::Result<()> {
    let expected = outside.join(TURNS_CONTENT);
    let mut rng = Rng::new(seed);
    let mut file = File::options().read(true).write(true).open(path)?;
    // A separate lock file: a process loses its byte-range locks on a file when it closes any
    // descriptor of it.
    let turns_lock =
        File::options().write(true).create(true).truncate(false).open(path.with_extension("lock"))?;
    for turn in 0..turns {
        // A new open must see the current content, as an open file must.
        if rng.below(16) == 0 {
            file = File::options().read(true).write(true).open(path)?;
        }
        lock(&turns_lock, kind, true)?;
        let mut content = fs::read(&expected)?;
        check(&file, path, &content, &mut rng).map_err(|error| at(turn, seed, &error))?;
        change(&file, &mut content, &mut rng).map_err(|error| at(turn, seed, &error))?;
        fs::write(&expected, &content)?;
        lock(&turns_lock, kind, false)?;
    }
    Ok(())
}

fn at(turn: u64, seed: u64, error: &io::Error) -> io::Error {
    io::Error::other(format!("turn {turn} of seed {seed}: {error}"))
}

fn lock(file: &File, kind: LockKind, take: bool) -> io::Result<()> {
    match kind {
        LockKind::Flock => sys::flock(file, if take { libc::LOCK_EX } else { libc::LOCK_UN }),
        LockKind::Fcntl => {
            let whole = RangeLock {
                kind: if take { libc::F_WRLCK } else { libc::F_UNLCK },
                start: 0,
                length: 0,
                pid: 0,
            };
            sys::range_lock(file, libc::F_SETLKW, whole).map(drop)
        }
    }
}

/// Checks the file in one of several ways.
fn check(file: &File, path: &Path, content: &[u8], rng: &mut Rng) -> io::Result<()> {
    let (lengths, seen) = match rng.below(3) {
        _ if content.is_empty() => ([file.metadata()?.len(), fs::metadata(path)?.len()], Vec::new()),
        0 => (
            [file.metadata()?.len(); 2],
            Mapping::new(file, content.len(), libc::MAP_SHARED)?.read(0, content.len()),
        ),
        1 => ([fs::metadata(path)?.len(); 2], fs::read(path)?),
        _ => {
            let mut seen = vec![0; content.len()];
            file.read_exact_at(&mut seen, 0)?;
            ([file.metadata()?.len(); 2], seen)
        }
    };
    if lengths != [content.len() as u64; 2] {
        return Err(io::Error::other(format!("lengths {lengths:?}, expected {}", content.len())));
    }
    match seen.iter().zip(content).position(|(seen, expected)| seen != expected) {
        Some(first) => {
            Err(io::Error::other(format!("the content differs from byte {first} on, of {}", content.len())))
        }
        None => Ok(()),
    }
}

/// Changes the file and the expected content in one of several ways.
fn change(file: &File, content: &mut Vec<u8>, rng: &mut Rng) -> io::Result<()> {
    let (offset, length) = (rng.below(MAX_BYTES - MAX_CHANGE), 1 + rng.below(MAX_CHANGE));
    let (from, to) = (offset as usize, (offset + length) as usize);
    match rng.below(6) {
        0 | 1 => {
            let data = rng.bytes(length as usize);
            file.write_all_at(&data, offset)?;
            content.resize(content.len().max(to), 0);
            content[from..to].copy_from_slice(&data);
        }
        2 => {
            file.set_len(offset)?;
            content.resize(from, 0);
        }
        3 if from < content.len() => {
            let to = to.min(content.len());
            sys::fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length)?;
            content[from..to].fill(0);
        }
        4 if !content.is_empty() => {
            let (at, data) = (from % content.len(), rng.bytes(1));
            let mut mapping = Mapping::new(file, content.len(), libc::MAP_SHARED)?;
            mapping.write(at, &data);
            mapping.sync()?;
            content[at] = data[0];
        }
        _ => {
            sys::fallocate(file, 0, offset, length)?;
            content.resize(content.len().max(to), 0);
        }
    }
    Ok(())
}
