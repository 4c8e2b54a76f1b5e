//! Operations of the load on files: one call, and its result as an event.
//!
//! Every epoch of a run has its own folder with the same objects: a file of adjacent blocks, which
//! is initially inline; a file with distant blocks, on different targets; some names; a log; a file
//! that is replaced by rename; and a file whose length changes. So first writes and growth of files
//! are tested repeatedly.

use crate::e2e::Rng;
use crate::sys::{self, AlignedBuffer};
use ::history::Event;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::mem;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Block size in bytes: the unit of reads and writes, and valid for `O_DIRECT` everywhere.
const BLOCK_BYTES: usize = 4096;

/// Files of blocks: name, number of blocks, distance of blocks in bytes.
const BLOCK_FILES: [(&str, u64, u64); 2] = [("near", 8, BLOCK_BYTES as u64), ("far", 4, 1 << 20)];

/// Number of names that are created and removed.
const NAMES: u64 = 4;

/// The append-only file, the one that is replaced by rename, and the one whose length changes.
const LOG: &str = "log";
const REPLACED: &str = "replaced";
const LENGTH: &str = "length";

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Read(Block),
    Write(Block),
    Create(u64),
    Unlink(u64),
    Stat(u64),
    Open(u64),
    Append,
    ReadLog,
    /// Writes a new file and renames it over the old one: the name is also a register.
    Replace,
    ReadReplaced,
    /// Truncates or extends a file: its length is a register.
    SetLength,
    StatLength,
}

/// A block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index in [`BLOCK_FILES`].
    file: usize,
    number: u64,
    open_mode: OpenMode,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenMode {
    /// For reading and writing.
    Buffered,
    /// For reading only, which allows the longest caching.
    ReadOnly,
    /// With `O_DIRECT`.
    Direct,
}

/// Which ways of opening are combined on one object.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// Buffered or direct, by the parity of the epoch's number. A kernel doesn't keep its page
    /// cache coherent with `O_DIRECT` during a write.
    #[default]
    ByEpoch,
    /// All combined.
    All,
}

impl Mix {
    fn draw(self, rng: &mut Rng, epoch: u64) -> OpenMode {
        let choice = match self {
            Mix::ByEpoch if epoch % 2 == 1 => return OpenMode::Direct,
            Mix::ByEpoch => rng.below(2),
            Mix::All => rng.below(3),
        };
        [OpenMode::Buffered, OpenMode::ReadOnly, OpenMode::Direct][choice as usize]
    }
}

impl Task {
    /// Returns a random task.
    pub fn draw(rng: &mut Rng, mix: Mix, epoch: u64) -> Task {
        let file = rng.below(2) as usize;
        let block = Block { file, number: rng.below(BLOCK_FILES[file].1), open_mode: mix.draw(rng, epoch) };
        let name = rng.below(NAMES);
        match rng.below(24) {
            0..6 => Task::Read(block),
            6..11 => Task::Write(block),
            11..13 => Task::Create(name),
            13 => Task::Unlink(name),
            14 => Task::Stat(name),
            15 => Task::Open(name),
            16..18 => Task::Append,
            18 => Task::ReadLog,
            19 => Task::Replace,
            20..22 => Task::ReadReplaced,
            22 => Task::SetLength,
            _ => Task::StatLength,
        }
    }

    /// Returns tasks that read all objects of an epoch.
    pub fn read_all() -> Vec<Task> {
        let blocks = (0..BLOCK_FILES.len()).flat_map(|file| {
            (0..BLOCK_FILES[file].1)
                .map(move |number| Task::Read(Block { file, number, open_mode: OpenMode::ReadOnly }))
        });
        let others = [Task::ReadLog, Task::ReadReplaced, Task::StatLength];
        blocks.chain((0..NAMES).map(Task::Stat)).chain(others).collect()
    }

    /// Returns the name of the object, without the epoch.
    pub fn object(self) -> String {
        match self {
            Task::Read(block) | Task::Write(block) => {
                format!("{} block {}", BLOCK_FILES[block.file].0, block.number)
            }
            Task::Create(name) | Task::Unlink(name) | Task::Stat(name) | Task::Open(name) => name_of(name),
            Task::Append | Task::ReadLog => LOG.to_string(),
            Task::Replace | Task::ReadReplaced => REPLACED.to_string(),
            Task::SetLength | Task::StatLength => LENGTH.to_string(),
        }
    }

    /// Returns the event as far as it is known before the call returns; `None` for a read. `unique`
    /// identifies a change.
    pub fn intended_event(self, unique: u64) -> Option<Event> {
        match self {
            Task::Write(_) | Task::Replace | Task::SetLength => Some(Event::Write { value: unique }),
            Task::Create(_) => Some(Event::Create { inode: None }),
            Task::Unlink(_) => Some(Event::Unlink),
            Task::Append => Some(Event::Append { record: unique }),
            Task::Read(_) | Task::Stat(_) | Task::Open(_) => None,
            Task::ReadLog | Task::ReadReplaced | Task::StatLength => None,
        }
    }
}

fn name_of(number: u64) -> String {
    format!("name {number}")
}

/// One thread's open files on one mount.
pub struct Worker {
    dir: PathBuf,
    open: HashMap<(usize, OpenMode), Rc<File>>,
    buffer: AlignedBuffer,
    zero_reads: u64,
    sync: Option<Arc<Mutex<()>>>,
}

impl Worker {
    /// Creates a worker in the folder of an epoch.
    ///
    /// With `sync`, which the workers of a mount share, a worker syncs new files and changes of
    /// names before a call counts as executed. That is necessary where sessions end: a session loses
    /// what it hasn't sent yet. A folder reports a lost change once, to the next caller, so only one
    /// worker changes names at a time.
    pub fn new(dir: &Path, sync: Option<Arc<Mutex<()>>>) -> Worker {
        Worker {
            dir: dir.to_path_buf(),
            open: HashMap::new(),
            buffer: AlignedBuffer::new(BLOCK_BYTES),
            zero_reads: 0,
            sync,
        }
    }

    /// Closes all open files.
    pub fn close(&mut self) {
        self.open.clear();
    }

    /// Returns the number of reads of a log since the last call that found zeros and were repeated.
    pub fn take_zero_reads(&mut self) -> u64 {
        mem::take(&mut self.zero_reads)
    }

    /// Executes a task.
    pub fn perform(&mut self, task: Task, unique: u64) -> io::Result<Event> {
        let Some(sync) = self.sync.clone() else { return self.attempt(task, unique) };
        if !matches!(task, Task::Create(_) | Task::Unlink(_) | Task::Replace) {
            return self.attempt(task, unique);
        }
        let _alone = sync.lock().unwrap_or_else(PoisonError::into_inner);
        let event = self.attempt(task, unique)?;
        File::open(&self.dir)?.sync_all()?;
        Ok(event)
    }

    fn attempt(&mut self, task: Task, unique: u64) -> io::Result<Event> {
        match task {
            Task::Read(block) => self.read(block),
            Task::Write(block) => self.write(block, unique),
            Task::Create(name) => self.create(name),
            Task::Unlink(name) => self.unlink(name),
            Task::Stat(name) => self.stat_name(name, |path| fs::symlink_metadata(path)),
            Task::Open(name) => self.stat_name(name, |path| File::open(path)?.metadata()),
            Task::Append => self.append(unique),
            Task::ReadLog => self.read_log(),
            Task::Replace => self.replace(unique),
            Task::ReadReplaced => self.read_replaced(),
            Task::SetLength => self.set_length(unique),
            Task::StatLength => self.stat_length(),
        }
    }

    /// Returns a file of blocks, and opens it if necessary.
    fn file(&mut self, number: usize, open_mode: OpenMode) -> io::Result<Rc<File>> {
        if let Some(file) = self.open.get(&(number, open_mode)) {
            return Ok(Rc::clone(file));
        }
        let mut options = File::options();
        match open_mode {
            OpenMode::ReadOnly => options.read(true),
            OpenMode::Buffered => options.read(true).write(true).create(true),
            OpenMode::Direct => options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT),
        };
        let file = options.open(self.dir.join(BLOCK_FILES[number].0))?;
        if self.sync.is_some() && open_mode != OpenMode::ReadOnly {
            file.sync_all()?;
        }
        let file = Rc::new(file);
        self.open.insert((number, open_mode), Rc::clone(&file));
        Ok(file)
    }

    fn read(&mut self, block: Block) -> io::Result<Event> {
        let file = match self.file(block.file, block.open_mode) {
            // The first writer creates the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Event::Read { value: 0 }),
            other => other?,
        };
        let bytes = self.buffer.bytes();
        // A block beyond the end of the file reads as zeros, like one that was never written.
        bytes.fill(0);
        file.read_at(bytes, offset(block))?;
        Ok(block_content(bytes, block.open_mode != OpenMode::Direct))
    }

    fn write(&mut self, block: Block, value: u64) -> io::Result<Event> {
        let open_mode =
            if block.open_mode == OpenMode::ReadOnly { OpenMode::Buffered } else { block.open_mode };
        let file = self.file(block.file, open_mode)?;
        let bytes = self.buffer.bytes();
        bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
        match file.write_at(bytes, offset(block))? {
            BLOCK_BYTES => Ok(Event::Write { value }),
            // Part of it may be in the file, which counts as an error.
            written => Err(io::Error::other(format!("only {written} bytes were written"))),
        }
    }

    fn create(&self, name: u64) -> io::Result<Event> {
        match File::options().write(true).create_new(true).open(self.dir.join(name_of(name))) {
            Ok(file) => {
                let inode = file.metadata().ok().map(|found| found.ino());
                sys::close(file)?;
                Ok(Event::Create { inode })
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Event::CreateExists),
            Err(error) => Err(error),
        }
    }

    fn unlink(&self, name: u64) -> io::Result<Event> {
        match fs::remove_file(self.dir.join(name_of(name))) {
            Ok(()) => Ok(Event::Unlink),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Event::UnlinkMissing),
            Err(error) => Err(error),
        }
    }

    fn stat_name(
        &self,
        name: u64,
        look: impl FnOnce(&Path) -> io::Result<fs::Metadata>,
    ) -> io::Result<Event> {
        match look(&self.dir.join(name_of(name))) {
            Ok(found) => Ok(Event::Look { inode: found.ino() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Event::LookMissing),
            Err(error) => Err(error),
        }
    }

    fn append(&self, record: u64) -> io::Result<Event> {
        let mut file = File::options().append(true).create(true).open(self.dir.join(LOG))?;
        let line = log_line(record);
        let written = file.write(line.as_bytes())?;
        sys::close(file)?;
        match written {
            _ if written == line.len() => Ok(Event::Append { record }),
            _ => Err(io::Error::other(format!("only {written} bytes were appended"))),
        }
    }

    /// Reads the log, once more if the first read finds zeros, which nobody writes. When another
    /// client extends a file while this one's kernel copies a page to a reader, the kernel takes the
    /// rest of the page for zeros, once; see the known limitations in the coherence document.
    fn read_log(&mut self) -> io::Result<Event> {
        let mut file = match File::open(self.dir.join(LOG)) {
            Ok(file) => file,
            // The first append creates the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(log_content(&[])),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        if text.contains(&0) {
            self.zero_reads += 1;
            text.clear();
            file.rewind()?;
            file.read_to_end(&mut text)?;
        }
        Ok(log_content(&text))
    }
}

impl Worker {
    /// Alternates between inline content and content in chunks.
    fn replace(&self, value: u64) -> io::Result<Event> {
        let length = if value.is_multiple_of(2) { BLOCK_BYTES } else { 3 * BLOCK_BYTES };
        let beside = self.dir.join(format!("beside {value}"));
        let mut file = File::create_new(&beside)?;
        file.write_all(&value.to_le_bytes().repeat(length / 8))?;
        sys::close(file)?;
        fs::rename(&beside, self.dir.join(REPLACED))?;
        Ok(Event::Write { value })
    }

    fn read_replaced(&self) -> io::Result<Event> {
        match fs::read(self.dir.join(REPLACED)) {
            Ok(bytes) => Ok(block_content(&bytes, true)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Event::Read { value: 0 }),
            Err(error) => Err(error),
        }
    }

    fn set_length(&self, value: u64) -> io::Result<Event> {
        let file = File::options().write(true).create(true).truncate(false).open(self.dir.join(LENGTH))?;
        file.set_len(value)?;
        sys::close(file)?;
        Ok(Event::Write { value })
    }

    fn stat_length(&self) -> io::Result<Event> {
        match fs::metadata(self.dir.join(LENGTH)) {
            Ok(found) => Ok(Event::Read { value: found.len() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Event::Read { value: 0 }),
            Err(error) => Err(error),
        }
    }
}

fn offset(block: Block) -> u64 {
    block.number * BLOCK_FILES[block.file].2
}

/// Decodes a block: each of its words is the written value.
fn block_content(bytes: &[u8], cached: bool) -> Event {
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let mut values: Vec<u64> = words.collect();
    values.dedup();
    match values[..] {
        [value] => Event::Read { value },
        _ => {
            values.truncate(MAX_TORN_VALUES);
            Event::TornRead { values, cached }
        }
    }
}

/// Limits of reports: parts of a torn block, and characters of an invalid record.
const MAX_TORN_VALUES: usize = 16;
const MAX_REST_CHARS: usize = 80;

/// Returns the line of a record; lengths vary so that overlaps are detectable.
fn log_line(record: u64) -> String {
    format!("{record}:{}\n", "x".repeat((record * 31 % 150) as usize))
}

/// Decodes the complete records of a log.
///
/// A partial record at the end is ignored: on Linux no file system makes a concurrent append atomic
/// for reads across pages. If its append has returned, the record still counts as missing, since it
/// isn't among the complete records.
fn log_content(text: &[u8]) -> Event {
    let mut records = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let number =
            rest.split(|byte| *byte == b':').next().and_then(|digits| std::str::from_utf8(digits).ok());
        let Some(record) = number.and_then(|digits| digits.parse().ok()) else { break };
        let Some(after) = rest.strip_prefix(log_line(record).as_bytes()) else { break };
        records.push(record);
        rest = after;
    }
    if is_partial_record(rest) {
        return Event::ReadLog { records };
    }
    let rest = String::from_utf8_lossy(rest).chars().take(MAX_REST_CHARS).collect();
    Event::TornLog { records, rest }
}

/// Returns whether these bytes are a proper prefix of a record, possibly empty.
fn is_partial_record(bytes: &[u8]) -> bool {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == bytes.len() {
        return true;
    }
    let number = std::str::from_utf8(&bytes[..digits]).ok().and_then(|digits| digits.parse().ok());
    number.is_some_and(|record| log_line(record).as_bytes().starts_with(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_as_far_as_it_is_whole() {
        let text: String = [7, 3, 12].map(log_line).concat();
        assert_eq!(log_content(text.as_bytes()), Event::ReadLog { records: vec![7, 3, 12] });
        assert_eq!(log_content(b""), Event::ReadLog { records: Vec::new() });
        for cut in 1..log_line(12).len() {
            let begun = &text[..text.len() - cut];
            assert_eq!(log_content(begun.as_bytes()), Event::ReadLog { records: vec![7, 3] }, "{begun}");
        }
        let gap = text.replace("3:x", "\0\0\0");
        for damage in [&text[1..], &gap, &text.replace("3:", "3;"), &text.replace(":x", ":y")] {
            assert!(matches!(log_content(damage.as_bytes()), Event::TornLog { .. }), "{damage}");
        }
    }

    #[test]
    fn a_block_is_one_value_or_torn() {
        let mut bytes = [0; BLOCK_BYTES];
        assert_eq!(block_content(&bytes, true), Event::Read { value: 0 });
        bytes[2048] = 9;
        assert_eq!(block_content(&bytes, false), Event::TornRead { values: vec![0, 9, 0], cached: false });
    }
}
