//! The workload of the applications on the clients, and the history of what they observed.

use client::{Client, File, ReadOptions, SessionFailover, WriteOptions};
use history::{Event, Record};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use types::{Credentials, Errno, Error, InodeId, Result, SetAttr, SetTime, Timestamp};
use wire::RenameMode;

const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };
const O_RDWR: u32 = 0o2;
const O_EXCL_RDWR: u32 = 0o202;
/// Bytes per read or write.
const BLOCK: usize = 4096;
/// Distance of blocks in a file: blocks aren't aligned to pages, are spread over several chunks of
/// 64 KiB, and none spans two.
const STRIDE: u64 = 40_000;
/// Number of files, and of blocks in each.
const FILES: u64 = 2;
const BLOCKS: u64 = 4;
/// Size of a log record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordSize {
    /// Chunk boundaries coincide with record boundaries.
    Short,
    /// Many records span two chunks.
    Long,
}

impl RecordSize {
    fn bytes(self) -> usize {
        match self {
            RecordSize::Short => 512,
            RecordSize::Long => 20_000,
        }
    }

    /// Returns the number of records after which the next log begins: logs outgrow inline storage,
    /// but each read still covers the whole log.
    fn per_log(self) -> u64 {
        match self {
            RecordSize::Short => 48,
            RecordSize::Long => 12,
        }
    }

    /// Returns the bytes per read of a log: more than its size.
    fn read_bytes(self) -> usize {
        match self {
            RecordSize::Short => 128 << 10,
            RecordSize::Long => 1 << 20,
        }
    }
}
/// Number of names that are created and removed.
const NAMES: u64 = 3;
/// Number of small files that a client creates in a row, and in one directory: enough to trigger a
/// request for a directory delegation.
const SMALL_FILES_IN_A_ROW: u64 = 6;
const SMALL_FILES_PER_DIR: u64 = 24;
/// Number of name prefixes in directories in which all clients create small files.
const NAME_PREFIXES: u64 = 3;
/// Size of a small file in bytes.
const SMALL_FILE_BYTES: usize = 64;
/// Size of every sixth one in bytes: more than inline content.
const LARGER_FILE_BYTES: usize = 20_480;
/// Seconds that are added to a value which is stored as a file's mtime: no file has such a time
/// otherwise.
const MTIME_BASE: i64 = 8_000_000_000;
/// Longest time that a small file stays empty: longer than its asynchronous create is delayed.
const MAX_EMPTY_NS: u64 = 50_000_000;
/// Maximum number of operations per open file.
const MAX_PER_OPEN: u64 = 4;
/// Longest pause between two operations of an application.
const MAX_PAUSE_NS: u64 = 50_000_000;
/// The same during long periods without a new fault, which reveal little.
const MAX_LONG_PAUSE_NS: u64 = 1_000_000_000;
/// Longest time between a write and its fsync: as long as a storage host is without power.
const MAX_UNSYNCED_NS: u64 = 3_000_000_000;
/// Longest time between an append and the flush of the file with write-behind: longer than the
/// write-behind delay.
const MAX_WRITE_BEHIND_NS: u64 = 1_500_000_000;

/// The history that all applications record. The clock counts calls and returns, which suffices to
/// order them.
#[derive(Default)]
pub(super) struct HistoryRecorder {
    pub(super) records: RefCell<Vec<Record>>,
    clock: Cell<u64>,
    /// Number of operations that returned.
    pub(super) returned: Cell<u64>,
    next_value: Cell<u64>,
    /// Blocks whose content on disk is uncertain: applications don't read them until they have been
    /// written and synced.
    uncertain_blocks: RefCell<BTreeSet<(u64, u64)>>,
    /// Number of records that were appended, or whose append was attempted.
    appended: Cell<u64>,
    /// Small files that were created or attempted: the creating host, and the file's number on that
    /// host.
    small: RefCell<Vec<(u32, u64)>>,
    /// Those that were surely made: no write comes later and changes their mtime.
    small_made: RefCell<Vec<(u32, u64)>>,
    /// Longest duration of an operation.
    pub(super) longest_ns: Cell<u64>,
    /// Sessions that replaced one that the cluster had ended.
    pub(super) replaced: Cell<u64>,
    /// Whether applications make long pauses.
    pub(super) long_pauses: Cell<bool>,
    pub(super) stop: Cell<bool>,
}

impl HistoryRecorder {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Returns a value that no other write has. 0 is the initial value of blocks.
    fn new_value(&self) -> u64 {
        self.next_value.set(self.next_value.get() + 1);
        self.next_value.get()
    }

    /// Marks the outcome of a returned operation as uncertain. Returns its return time.
    fn mark_uncertain(&self, index: usize) -> Option<u64> {
        self.records.borrow_mut()[index].returned_ns.take()
    }

    /// Marks the outcome as certain again.
    fn mark_certain(&self, index: usize, returned: u64) {
        self.records.borrow_mut()[index].returned_ns = Some(returned);
    }
}

/// One application.
pub(super) struct Application {
    pub(super) client: Arc<SessionFailover>,
    pub(super) recorder: Rc<HistoryRecorder>,
    pub(super) host: u32,
    pub(super) number: u32,
    /// Number of clients that the blocks are assigned to round-robin for writing; 1: all clients
    /// write all blocks.
    pub(super) writers: u32,
    /// This application's index and the number of applications that partition the blocks among
    /// them, for reads and writes. Each write is followed by an fsync.
    pub(super) exclusive_share: Option<(u32, u32)>,
    /// Number of directories over which everything is spread; 0: all is in the root directory.
    pub(super) dirs: u64,
    /// Whether it also appends to logs.
    pub(super) uses_logs: bool,
    /// Size of appended records. With long records, most operations are appends.
    pub(super) record_size: RecordSize,
    /// Whether everything that it writes is on disk when the call returns.
    pub(super) syncs_writes: bool,
    /// Whether its client uses write-behind.
    pub(super) write_behind: bool,
}

/// Creates the files for the applications, filled with zeros: as data, or as one hole.
pub(super) async fn prepare(client: &Client, dirs: u64, holes: bool, durable: bool) -> Result<()> {
    for dir in 0..dirs {
        let made = client.mkdir(ROOT_USER, InodeId::ROOT, dir_name(dir).as_bytes(), 0o755, 0).await?;
        client.forget(made.ino, 1);
    }
    for file in 0..FILES {
        let name = file_name(file);
        let parent = parent_of(client, file, dirs).await?;
        let created = client.create(ROOT_USER, parent, name.as_bytes(), 0o100644, 0, O_EXCL_RDWR);
        let (attr, handle) = created.await?;
        if !holes {
            let zeros = IoBuf::alloc((BLOCKS * STRIDE) as usize);
            zeros.zero(0..zeros.len());
            client.write(&handle, 0, zeros, WriteOptions { durable, ..WriteOptions::default() }).await?;
        }
        client.release(handle).await;
        client.setattr(ROOT_USER, attr.ino, SetAttr::default(), Some(BLOCKS * STRIDE)).await?;
        client.forget(attr.ino, 1);
    }
    Ok(())
}

fn dir_name(dir: u64) -> String {
    format!("dir{dir}")
}

/// Returns the directory of the file or name with a number.
async fn parent_of(client: &Client, number: u64, dirs: u64) -> Result<InodeId> {
    if dirs == 0 {
        return Ok(InodeId::ROOT);
    }
    let dir = client.lookup(ROOT_USER, InodeId::ROOT, dir_name(number % dirs).as_bytes()).await?;
    client.forget(dir.ino, 1);
    Ok(dir.ino)
}

fn file_name(file: u64) -> String {
    format!("file{file}")
}

fn below(limit: u64) -> u64 {
    rt::random_u64() % limit
}

/// Returns whether a change that failed with this error may have been executed. `EIO`: the session
/// was ended, as happens when a client is paused or cut off for long, and its open files are lost.
/// `ESTALE` and `ESHUTDOWN`: the same, and the mount gets no successor session.
fn is_uncertain(error: &Error) -> bool {
    matches!(error.errno, Errno::ETIMEDOUT | Errno::EIO | Errno::ESTALE | Errno::ESHUTDOWN)
}

fn refused(what: &str, error: &Error) -> Event {
    Event::Refused { what: format!("{what}: {error}"), errno: wire::error_number(error.errno) }
}

impl Application {
    /// Executes operations until `stop` is set.
    pub(super) async fn run(self) {
        let mut replaced = 0;
        while !self.recorder.stop.get() {
            if self.number == 0 {
                let so_far = self.client.history().replacements;
                self.recorder.replaced.set(self.recorder.replaced.get() + so_far - replaced);
                replaced = so_far;
            }
            match below(3) {
                _ if self.record_size == RecordSize::Long && below(3) > 0 => self.use_log().await,
                0 => self.use_name(below(NAMES)).await,
                1 if self.uses_logs && below(2) == 0 => self.use_log().await,
                2 if below(4) == 0 => self.use_small().await,
                _ => self.use_file(below(FILES), 1 + below(MAX_PER_OPEN)).await,
            }
            let max_pause_ns = if self.recorder.long_pauses.get() { MAX_LONG_PAUSE_NS } else { MAX_PAUSE_NS };
            rt::sleep(std::time::Duration::from_nanos(below(max_pause_ns))).await;
        }
    }

    /// Reads every block and looks up every name, so that the end of the history shows the final
    /// state.
    pub(super) async fn read_everything(&self) {
        for name in 0..NAMES {
            self.lookup_name(name).await;
        }
        for log in 0..self.recorder.appended.get().div_ceil(self.record_size.per_log()) {
            if let Some(handle) = self.open_log(log).await {
                self.read_log(&handle, log).await;
                handle.release().await;
            }
        }
        let small = self.recorder.small.borrow().clone();
        for (creator, number) in small {
            self.read_small(creator, number).await;
        }
        let made = self.recorder.small_made.borrow().clone();
        for (creator, number) in made {
            self.read_mtime(creator, number).await;
        }
        for file in 0..FILES {
            let Some(handle) = self.open(file).await else { continue };
            for block in 0..BLOCKS {
                self.read(&handle, file, block).await;
            }
            handle.release().await;
        }
    }

    /// Records an operation from its call to its return. Returns the number of the record. An
    /// operation without an event, or without a return, is recorded as `event` without a return
    /// time: a read then has no meaning, and the outcome of a change is uncertain.
    async fn record(
        &self,
        object: String,
        event: Event,
        operation: impl Future<Output = Option<Event>>,
    ) -> usize {
        let recorder = &self.recorder;
        let (client, thread) = (self.host, self.number);
        let record = Record { client, thread, object, called_ns: recorder.tick(), returned_ns: None, event };
        let index = recorder.records.borrow().len();
        tracing::debug!(number = index, program = thread, object = record.object, event = ?record.event, "called");
        recorder.records.borrow_mut().push(record);
        let began = rt::monotonic_ns();
        let seen = operation.await;
        recorder.longest_ns.set(recorder.longest_ns.get().max(rt::monotonic_ns() - began));
        recorder.returned.set(recorder.returned.get() + 1);
        tracing::debug!(number = index, program = thread, ?seen, "returned");
        if let Some(event) = seen {
            let record = &mut recorder.records.borrow_mut()[index];
            record.returned_ns = Some(recorder.tick());
            record.event = event;
        }
        index
    }

    /// Like the free function of the same name, in the current session.
    async fn parent_of(&self, number: u64) -> Result<InodeId> {
        if self.dirs == 0 {
            return Ok(InodeId::ROOT);
        }
        let name = dir_name(number % self.dirs);
        let dir = self.client.lookup(ROOT_USER, InodeId::ROOT, name.as_bytes()).await?;
        self.client.forget(dir.ino, 1);
        Ok(dir.ino)
    }

    async fn open(&self, file: u64) -> Option<File> {
        let name = file_name(file);
        let attr = match self.parent_of(file).await {
            Ok(parent) => self.client.lookup(ROOT_USER, parent, name.as_bytes()).await,
            Err(error) => Err(error),
        };
        let opened = match attr {
            Ok(attr) => {
                let opened = self.client.open(ROOT_USER, attr.ino, O_RDWR).await;
                self.client.forget(attr.ino, 1);
                opened
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &opened
            && !is_uncertain(error)
        {
            let event = refused("open", error);
            self.record(object_of(file, 0), event.clone(), async { Some(event) }).await;
        }
        opened.ok()
    }

    async fn use_file(&self, file: u64, times: u64) {
        let Some(handle) = self.open(file).await else { return };
        for _ in 0..times {
            let block = below(BLOCKS);
            let number = file * BLOCKS + block;
            if let Some((own, owners)) = self.exclusive_share {
                if number % u64::from(owners) == u64::from(own) {
                    self.use_exclusive_block(&handle, file, block).await;
                }
                continue;
            }
            let is_writer = number % u64::from(self.writers) == u64::from(self.host % self.writers);
            match below(2) {
                1 if is_writer => self.write(&handle, file, block).await,
                _ => self.read(&handle, file, block).await,
            }
        }
        handle.release().await;
    }

    /// Uses a block that no other application uses.
    async fn use_exclusive_block(&self, handle: &File, file: u64, block: u64) {
        let is_uncertain_block = self.recorder.uncertain_blocks.borrow().contains(&(file, block));
        if !is_uncertain_block && below(2) == 0 {
            return self.read(handle, file, block).await;
        }
        self.recorder.uncertain_blocks.borrow_mut().insert((file, block));
        let value = self.recorder.new_value();
        let write = async {
            let buf = IoBuf::from_slice(&value.to_le_bytes().repeat(BLOCK / 8));
            let how = WriteOptions { direct: below(2) == 0, ..WriteOptions::default() };
            let written = handle.write(block * STRIDE, buf, how).await;
            // Time for a power failure.
            rt::sleep(std::time::Duration::from_nanos(below(MAX_UNSYNCED_NS))).await;
            let synced = match written {
                Ok(_) => handle.fsync(true).await,
                Err(error) => Err(error),
            };
            match synced {
                Ok(()) => {
                    self.recorder.uncertain_blocks.borrow_mut().remove(&(file, block));
                    Some(Event::Write { value })
                }
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("write and fsync", &error)),
            }
        };
        self.record(object_of(file, block), Event::Write { value }, write).await;
    }

    async fn read(&self, handle: &File, file: u64, block: u64) {
        let read = async {
            let buf = IoBuf::alloc(BLOCK);
            match handle.read(block * STRIDE, buf.clone(), ReadOptions::default()).await {
                Ok(BLOCK) => Some(decode_block(buf.as_slice())),
                Ok(short) => Some(Event::Refused { what: format!("read: {short} bytes"), errno: 0 }),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("read", &error)),
            }
        };
        self.record(object_of(file, block), Event::Read { value: 0 }, read).await;
    }

    async fn write(&self, handle: &File, file: u64, block: u64) {
        let value = self.recorder.new_value();
        let written = Event::Write { value };
        let write = async {
            let buf = IoBuf::from_slice(&value.to_le_bytes().repeat(BLOCK / 8));
            let how =
                WriteOptions { direct: below(2) == 0, durable: self.syncs_writes, ..WriteOptions::default() };
            match handle.write(block * STRIDE, buf, how).await {
                Ok(_) => Some(Event::Write { value }),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("write", &error)),
            }
        };
        self.record(object_of(file, block), written, write).await;
    }

    async fn use_log(&self) {
        let log = self.recorder.appended.get() / self.record_size.per_log();
        let Some(handle) = self.open_log(log).await else { return };
        let mut uncertain_appends = Vec::new();
        for _ in 0..1 + below(MAX_PER_OPEN) {
            match below(2) {
                0 => {
                    let index = self.append(&handle, log).await;
                    if self.write_behind {
                        match self.recorder.mark_uncertain(index) {
                            Some(returned) => uncertain_appends.push((index, returned)),
                            // A failure reported here may be that of an earlier append, and no
                            // flush reports it again.
                            None => uncertain_appends.clear(),
                        }
                    }
                }
                _ => self.read_log(&handle, log).await,
            }
        }
        if self.write_behind {
            if below(4) == 0 {
                rt::sleep(std::time::Duration::from_nanos(below(MAX_WRITE_BEHIND_NS))).await;
            }
            if handle.flush().await.is_ok() {
                uncertain_appends
                    .into_iter()
                    .for_each(|(index, returned)| self.recorder.mark_certain(index, returned));
            }
        }
        handle.release().await;
    }

    /// Opens a log, and creates it if it doesn't exist.
    async fn open_log(&self, log: u64) -> Option<File> {
        let name = log_name(log);
        let parent = self.parent_of(log).await.ok()?;
        let made = self.client.create(ROOT_USER, parent, name.as_bytes(), 0o100644, 0, O_RDWR).await;
        match made {
            Ok((attr, handle)) => {
                self.client.forget(attr.ino, 1);
                Some(handle)
            }
            Err(error) if is_uncertain(&error) => None,
            Err(error) => {
                let event = refused("create", &error);
                self.record(name, event.clone(), async { Some(event) }).await;
                None
            }
        }
    }

    async fn append(&self, handle: &File, log: u64) -> usize {
        let record = self.recorder.new_value();
        self.recorder.appended.set(self.recorder.appended.get() + 1);
        let append = async {
            let buf = IoBuf::from_slice(&record.to_le_bytes().repeat(self.record_size.bytes() / 8));
            let how = WriteOptions { append: true, durable: self.syncs_writes, ..WriteOptions::default() };
            match handle.write(0, buf, how).await {
                Ok(_) => Some(Event::Append { record }),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("append", &error)),
            }
        };
        self.record(log_name(log), Event::Append { record }, append).await
    }

    async fn read_log(&self, handle: &File, log: u64) {
        let read = async {
            let buf = IoBuf::alloc(self.record_size.read_bytes());
            match handle.read(0, buf.clone(), ReadOptions::default()).await {
                Ok(len) => Some(decode_log(&buf.as_slice()[..len], self.record_size.bytes())),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("read of a log", &error)),
            }
        };
        self.record(log_name(log), Event::ReadLog { records: Vec::new() }, read).await;
    }

    /// Creates some small files, or reads one of any client. Each is a register: its content is
    /// empty, or the value written right after its creation.
    async fn use_small(&self) {
        let known = self.recorder.small.borrow().len() as u64;
        if known > 0 && below(2) == 0 {
            let (creator, number) = self.recorder.small.borrow()[below(known) as usize];
            let is_made = self.recorder.small_made.borrow().contains(&(creator, number));
            return match below(4) {
                0 if is_made => self.set_mtime(creator, number).await,
                1 if is_made => self.read_mtime(creator, number).await,
                _ => self.read_small(creator, number).await,
            };
        }
        for _ in 0..SMALL_FILES_IN_A_ROW {
            let number = {
                let mut small = self.recorder.small.borrow_mut();
                let number = small.iter().filter(|(creator, _)| *creator == self.host).count() as u64;
                small.push((self.host, number));
                number
            };
            self.make_small(number, below(3) == 0).await;
            let is_made = self.recorder.small_made.borrow().contains(&(self.host, number));
            if is_made && below(3) == 0 {
                self.set_mtime(self.host, number).await;
            }
        }
    }

    /// `renames`: the file gets its name when it is complete.
    async fn make_small(&self, number: u64, renames: bool) {
        let value = self.recorder.new_value();
        let (dir, name) = small_name(self.host, number);
        let first_name = if renames { format!("{name}.new") } else { name.clone() };
        let make = async {
            let made = async {
                let parent = match self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await {
                    Err(error) if error.errno == Errno::ENOENT => self.make_dir(&dir).await?,
                    found => found?.ino,
                };
                // A lookup precedes the create, as in a kernel.
                self.client.find(ROOT_USER, parent, first_name.as_bytes()).await?;
                let (attr, handle) =
                    self.client.create(ROOT_USER, parent, first_name.as_bytes(), 0o100644, 0, O_RDWR).await?;
                self.client.forget(attr.ino, 1);
                if below(4) == 0 {
                    rt::sleep(std::time::Duration::from_nanos(below(MAX_EMPTY_NS))).await;
                }
                let written = self.write_small(&handle, value, small_size(number)).await;
                let flushed = handle.flush().await;
                handle.release().await;
                written.and(flushed)?;
                if renames { self.rename_small(parent, &first_name, &name).await } else { Ok(()) }
            };
            match made.await {
                Ok(()) => {
                    self.recorder.small_made.borrow_mut().push((self.host, number));
                    Some(Event::Write { value })
                }
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("making a small file", &error)),
            }
        };
        self.record(format!("small {dir} {name}"), Event::Write { value }, make).await;
    }

    /// Writes a small file, some of the larger ones in two steps.
    async fn write_small(&self, handle: &File, value: u64, size: usize) -> Result<()> {
        let content = value.to_le_bytes().repeat(size / 8);
        let (head, tail) = content.split_at(if below(2) == 0 { SMALL_FILE_BYTES } else { size });
        let how = WriteOptions { durable: self.syncs_writes, ..WriteOptions::default() };
        handle.write(0, IoBuf::from_slice(head), how).await?;
        handle.write(head.len() as u64, IoBuf::from_slice(tail), how).await.map(drop)
    }

    async fn rename_small(&self, parent: InodeId, old: &str, new: &str) -> Result<()> {
        self.client.find(ROOT_USER, parent, new.as_bytes()).await?;
        let (old, new) = (old.as_bytes(), new.as_bytes());
        self.client.rename(ROOT_USER, parent, old, parent, new, RenameMode::Replace).await?;
        // Tells whether the service has renamed it: the session may end before that.
        self.client.fsyncdir(parent).await
    }

    /// Sets the mtime of a small file, which is a register of its own.
    async fn set_mtime(&self, creator: u32, number: u64) {
        let value = self.recorder.new_value();
        let time = Timestamp { secs: MTIME_BASE + value as i64, nanos: 0 };
        let (dir, name) = small_name(creator, number);
        let set = async {
            let set = async {
                let parent = self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await?.ino;
                let attr = self.client.lookup(ROOT_USER, parent, name.as_bytes()).await?;
                let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
                let handle = self.client.open(ROOT_USER, attr.ino, 0).await;
                self.client.forget(attr.ino, 1);
                let handle = handle?;
                let seen = handle.setattr(ROOT_USER, set, None).await.map(drop);
                // Tells whether the service has set it: the session may end before that.
                let flushed = handle.flush().await;
                handle.release().await;
                flushed.and(seen)
            };
            match set.await {
                Ok(()) => Some(Event::Write { value }),
                Err(error) if error.errno == Errno::ENOENT || is_uncertain(&error) => None,
                Err(error) => Some(refused("setting the mtime of a small file", &error)),
            }
        };
        self.record(format!("mtime {dir} {name}"), Event::Write { value }, set).await;
    }

    async fn read_mtime(&self, creator: u32, number: u64) {
        let (dir, name) = small_name(creator, number);
        let read = async {
            let found = async {
                let parent = self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await?.ino;
                let attr = self.client.lookup(ROOT_USER, parent, name.as_bytes()).await?;
                self.client.forget(attr.ino, 1);
                Ok::<_, Error>(attr.mtime)
            };
            match found.await {
                Ok(mtime) => Some(Event::Read { value: (mtime.secs - MTIME_BASE).max(0) as u64 }),
                Err(error) if error.errno == Errno::ENOENT => Some(Event::Read { value: 0 }),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("reading an mtime", &error)),
            }
        };
        self.record(format!("mtime {dir} {name}"), Event::Read { value: 0 }, read).await;
    }

    async fn make_dir(&self, dir: &str) -> Result<InodeId> {
        match self.client.mkdir(ROOT_USER, InodeId::ROOT, dir.as_bytes(), 0o755, 0).await {
            Err(error) if error.errno != Errno::EEXIST => Err(error),
            _ => Ok(self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await?.ino),
        }
    }

    async fn read_small(&self, creator: u32, number: u64) {
        let ((dir, name), size) = (small_name(creator, number), small_size(number));
        let is_made = self.recorder.small_made.borrow().contains(&(creator, number));
        let read = async {
            let content = async {
                let parent = self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await?.ino;
                let attr = self.client.lookup(ROOT_USER, parent, name.as_bytes()).await?;
                let handle = self.client.open(ROOT_USER, attr.ino, 0).await;
                self.client.forget(attr.ino, 1);
                let (handle, buf) = (handle?, IoBuf::alloc(size));
                let read = handle.read(0, buf.clone(), ReadOptions::default()).await;
                handle.release().await;
                Ok::<_, Error>((read?, buf))
            };
            match content.await {
                Ok((0, _)) => Some(Event::Read { value: 0 }),
                Ok((len, buf)) if len == size => Some(decode_block(buf.as_slice())),
                // The writes of a file aren't atomic.
                Ok((SMALL_FILE_BYTES, buf)) if !is_made => {
                    Some(decode_block(&buf.as_slice()[..SMALL_FILE_BYTES]))
                }
                Ok((short, _)) => Some(Event::Refused { what: format!("read: {short} bytes"), errno: 0 }),
                Err(error) if error.errno == Errno::ENOENT => Some(Event::Read { value: 0 }),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("reading a small file", &error)),
            }
        };
        self.record(format!("small {dir} {name}"), Event::Read { value: 0 }, read).await;
    }

    async fn use_name(&self, name: u64) {
        match below(3) {
            0 => self.create(name).await,
            1 => self.unlink(name).await,
            _ => self.lookup_name(name).await,
        }
    }

    /// Returns the directory of a name. Numbers of files come first.
    async fn parent(&self, name: u64) -> Result<InodeId> {
        self.parent_of(FILES + name).await
    }

    async fn create(&self, number: u64) {
        let name = format!("name{number}");
        let create = async {
            let created = match self.parent(number).await {
                Ok(parent) => {
                    self.client.create(ROOT_USER, parent, name.as_bytes(), 0o100644, 0, O_EXCL_RDWR).await
                }
                Err(error) => Err(error),
            };
            match created {
                Ok((attr, handle)) => {
                    // The close tells whether the service has the file: its create may have been
                    // asynchronous.
                    let closed = handle.flush().await;
                    handle.release().await;
                    self.client.forget(attr.ino, 1);
                    closed.is_ok().then_some(Event::Create { inode: Some(attr.ino.0) })
                }
                Err(error) if error.errno == Errno::EEXIST => Some(Event::CreateExists),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("create", &error)),
            }
        };
        self.record(name.clone(), Event::Create { inode: None }, create).await;
    }

    async fn unlink(&self, number: u64) {
        let name = format!("name{number}");
        let unlink = async {
            let removed = match self.parent(number).await {
                Ok(parent) => {
                    let removed = self.client.unlink(ROOT_USER, parent, name.as_bytes()).await;
                    // Tells whether the service has removed it: the session may end before that.
                    removed.map(|()| parent)
                }
                Err(error) => Err(error),
            };
            match removed {
                Ok(parent) => self.client.fsyncdir(parent).await.is_ok().then_some(Event::Unlink),
                Err(error) if error.errno == Errno::ENOENT => Some(Event::UnlinkMissing),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("unlink", &error)),
            }
        };
        self.record(name.clone(), Event::Unlink, unlink).await;
    }

    async fn lookup_name(&self, number: u64) {
        let name = format!("name{number}");
        let lookup = async {
            let found = match self.parent(number).await {
                Ok(parent) => self.client.lookup(ROOT_USER, parent, name.as_bytes()).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(attr) => {
                    self.client.forget(attr.ino, 1);
                    Some(Event::Look { inode: attr.ino.0 })
                }
                Err(error) if error.errno == Errno::ENOENT => Some(Event::LookMissing),
                Err(error) if is_uncertain(&error) => None,
                Err(error) => Some(refused("lookup", &error)),
            }
        };
        self.record(name.clone(), Event::LookMissing, lookup).await;
    }
}

fn object_of(file: u64, block: u64) -> String {
    format!("file{file} block {block}")
}

/// Returns the size of a small file in bytes.
fn small_size(number: u64) -> usize {
    if number.is_multiple_of(6) { LARGER_FILE_BYTES } else { SMALL_FILE_BYTES }
}

/// Returns the directory and the name of a small file: a directory of its maker, or one that all
/// clients share, where consecutive files have the same name prefix.
fn small_name(creator: u32, number: u64) -> (String, String) {
    let turn = number / SMALL_FILES_PER_DIR;
    match turn % 2 {
        0 => (format!("small{creator}-{turn}"), format!("f{number}")),
        _ => {
            let kind = (number / SMALL_FILES_IN_A_ROW + u64::from(creator)) % NAME_PREFIXES;
            (format!("together{turn}"), format!("x{kind}.{creator}{number:04}"))
        }
    }
}

fn log_name(log: u64) -> String {
    format!("log{log}")
}

/// Decodes the content of a log.
fn decode_log(bytes: &[u8], record_bytes: usize) -> Event {
    let mut records = Vec::new();
    for (at, bytes) in bytes.chunks(record_bytes).enumerate() {
        match decode_block(bytes) {
            Event::Read { value } if value > 0 && bytes.len() == record_bytes => records.push(value),
            other => {
                let rest = format!("at record {at}, {} bytes: {other:?}", bytes.len());
                return Event::TornLog { records, rest };
            }
        }
    }
    Event::ReadLog { records }
}

/// Decodes the content of a block.
fn decode_block(bytes: &[u8]) -> Event {
    let mut values: Vec<u64> = Vec::new();
    for word in bytes.chunks_exact(8) {
        let value = u64::from_le_bytes(word.try_into().expect("chunks have 8 bytes"));
        if !values.contains(&value) {
            values.push(value);
        }
    }
    match values[..] {
        [value] => Event::Read { value },
        _ => Event::TornRead { values, cached: false },
    }
}
