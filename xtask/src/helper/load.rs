//! The workload of the crash tests: changes files and prints, after each acknowledged change, a
//! guarantee that must hold after a crash of the file system's process.
//!
//! A guarantee is printed only after the call that establishes it has returned, so that every
//! printed guarantee is binding.

use crate::e2e::{Content, Rng};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// Number of files that are repeatedly replaced by rename.
pub const CHANGING_FILES: u64 = 8;

/// Number of slots in the file that is overwritten in place.
pub const SLOTS: u64 = 64;

/// Size of a slot in bytes: not a multiple of any block size, so that slots share blocks.
pub const SLOT_BYTES: u64 = 5000;

/// Size of a record of the append-only log in bytes.
pub const LOG_RECORD_BYTES: u64 = 333;

/// Maximum size of a new file in bytes: inline, small and multi-chunk files occur.
const MAX_FILE_BYTES: u64 = 3 << 20;

/// Paths below the workload's folder.
pub mod names {
    /// Name of the `id`th new file.
    pub fn new_file(id: u64) -> String {
        format!("new/{:02}/{id}", id % 16)
    }
    /// Name of the `id`th file that is replaced by rename.
    pub fn replaced(id: u64) -> String {
        format!("replaced-{id}")
    }
    /// The file that is overwritten in place.
    pub const SLOTTED: &str = "slotted";
    /// The append-only file.
    pub const LOG: &str = "log";
}

/// A guarantee that must hold after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// New file `id` has this length and the expected content.
    New { id: u64, length: u64 },
    /// New file `id` doesn't exist.
    Removed { id: u64 },
    /// File `id` contains this version or a later one, complete.
    Replaced { id: u64, version: u64 },
    /// Slot `id` contains this version or a later one.
    Slot { id: u64, version: u64 },
    /// The log has at least this many records.
    Log { records: u64 },
}

impl Guarantee {
    /// Formats the guarantee as a line, without the line end.
    pub fn line(self) -> String {
        match self {
            Guarantee::New { id, length } => format!("new {id} {length}"),
            Guarantee::Removed { id } => format!("removed {id} 0"),
            Guarantee::Replaced { id, version } => format!("replaced {id} {version}"),
            Guarantee::Slot { id, version } => format!("slot {id} {version}"),
            Guarantee::Log { records } => format!("log {records} 0"),
        }
    }

    /// Parses a line; `None` for one that the crash truncated.
    pub fn parse(line: &str) -> Option<Guarantee> {
        let mut words = line.strip_suffix('\n')?.split(' ');
        let kind = words.next()?;
        let (first, second) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(match kind {
            "new" => Guarantee::New { id: first, length: second },
            "removed" => Guarantee::Removed { id: first },
            "replaced" => Guarantee::Replaced { id: first, version: second },
            "slot" => Guarantee::Slot { id: first, version: second },
            "log" => Guarantee::Log { records: first },
            _ => return None,
        })
    }
}

/// Runs until a call fails, which happens when the file system's process ends.
pub fn run(dir: &Path, seed: u64) -> io::Result<()> {
    let mut load = Load::new(dir, seed)?;
    loop {
        let guarantee = match load.rng.below(10) {
            0..=3 => load.make_new()?,
            4 => load.remove_new()?,
            5..=6 => Some(load.replace()?),
            7..=8 => Some(load.overwrite()?),
            _ => Some(load.append()?),
        };
        if let Some(guarantee) = guarantee {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", guarantee.line())?;
            out.flush()?;
        }
    }
}

struct Load<'a> {
    dir: &'a Path,
    rng: Rng,
    next_id: u64,
    removed: u64,
    versions: [u64; CHANGING_FILES as usize],
    slot_versions: [u64; SLOTS as usize],
    slots_file: File,
    log: File,
    records: u64,
}

impl<'a> Load<'a> {
    fn new(dir: &'a Path, seed: u64) -> io::Result<Load<'a>> {
        for folder in 0..16 {
            fs::create_dir_all(dir.join(format!("new/{folder:02}")))?;
        }
        Ok(Load {
            dir,
            rng: Rng::new(seed),
            next_id: 0,
            removed: 0,
            versions: [0; CHANGING_FILES as usize],
            slot_versions: [0; SLOTS as usize],
            slots_file: File::create(dir.join(names::SLOTTED))?,
            log: File::create(dir.join(names::LOG))?,
            records: 0,
        })
    }

    fn length(&mut self) -> u64 {
        let limit = [1000, 20_000, MAX_FILE_BYTES][self.rng.below(3) as usize];
        Content::HEADER + self.rng.below(limit)
    }

    /// Creates a file, with or without fsync: data acknowledged by `write` and `close` must survive
    /// a process crash either way.
    fn make_new(&mut self) -> io::Result<Option<Guarantee>> {
        let (id, length) = (self.next_id, self.length());
        self.next_id += 1;
        let mut file = File::create(self.dir.join(names::new_file(id)))?;
        file.write_all(&Content { id, version: 0, length }.bytes())?;
        if self.rng.below(2) == 0 {
            file.sync_all()?;
        }
        drop(file);
        Ok(Some(Guarantee::New { id, length }))
    }

    /// Removes the oldest new file, if enough remain.
    fn remove_new(&mut self) -> io::Result<Option<Guarantee>> {
        if self.next_id - self.removed < 10 {
            return Ok(None);
        }
        let id = self.removed;
        self.removed += 1;
        // Only the oldest one, so that a reader knows which file a crash may have interrupted.
        fs::remove_file(self.dir.join(names::new_file(id)))?;
        Ok(Some(Guarantee::Removed { id }))
    }

    /// Saves as careful applications do: writes a temporary file, calls fsync, and renames it over
    /// the old one.
    fn replace(&mut self) -> io::Result<Guarantee> {
        let id = self.rng.below(CHANGING_FILES);
        let version = self.versions[id as usize] + 1;
        let length = self.length();
        let beside = self.dir.join(format!("beside-{id}"));
        let mut file = File::create(&beside)?;
        file.write_all(&Content { id, version, length }.bytes())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, self.dir.join(names::replaced(id)))?;
        self.versions[id as usize] = version;
        Ok(Guarantee::Replaced { id, version })
    }

    fn overwrite(&mut self) -> io::Result<Guarantee> {
        let id = self.rng.below(SLOTS);
        let version = self.slot_versions[id as usize] + 1;
        self.slots_file.seek(SeekFrom::Start(id * SLOT_BYTES))?;
        self.slots_file.write_all(&Content { id, version, length: SLOT_BYTES }.bytes())?;
        self.slots_file.sync_data()?;
        self.slot_versions[id as usize] = version;
        Ok(Guarantee::Slot { id, version })
    }

    fn append(&mut self) -> io::Result<Guarantee> {
        let record = Content { id: self.records, version: 0, length: LOG_RECORD_BYTES };
        self.log.write_all(&record.bytes())?;
        self.log.sync_data()?;
        self.records += 1;
        Ok(Guarantee::Log { records: self.records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantees_survive_the_pipe() {
        let all = [
            Guarantee::New { id: 1, length: 2 },
            Guarantee::Removed { id: 3 },
            Guarantee::Replaced { id: 4, version: 5 },
            Guarantee::Slot { id: 6, version: 7 },
            Guarantee::Log { records: 8 },
        ];
        for guarantee in all {
            assert_eq!(Guarantee::parse(&format!("{}\n", guarantee.line())), Some(guarantee));
            assert_eq!(Guarantee::parse(&guarantee.line()), None, "a line without its end was cut short");
        }
    }
}
