//! What programs on the clients do, and the record of what they saw.

use client::{Client, File, ReadHow, Succession, WriteHow};
use history::{Event, Record};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use types::{Credentials, Errno, Error, InodeId, Result, SetAttr};

const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };
const O_RDWR: u32 = 0o2;
const O_EXCL_RDWR: u32 = 0o202;
/// Bytes that are written and read together.
const BLOCK: usize = 4096;
/// Distance of blocks in a file: they lie askew to pages, in several chunks of 64 KiB, and none in
/// two.
const STRIDE: u64 = 40_000;
/// Files, and blocks of each.
const FILES: u64 = 2;
const BLOCKS: u64 = 4;
/// Bytes of a record of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Records {
    /// Chunks end between records.
    Short,
    /// Many records lie in two chunks.
    Long,
}

impl Records {
    fn bytes(self) -> usize {
        match self {
            Records::Short => 512,
            Records::Long => 20_000,
        }
    }

    /// Records after which the next log is begun, so that logs outgrow their inode and can still be
    /// read whole each time.
    fn per_log(self) -> u64 {
        match self {
            Records::Short => 48,
            Records::Long => 12,
        }
    }

    /// Bytes that are read of a log: more than it has.
    fn read_bytes(self) -> usize {
        match self {
            Records::Short => 128 << 10,
            Records::Long => 1 << 20,
        }
    }
}
/// Names that are made and removed.
const NAMES: u64 = 3;
/// Small files that a client makes one after the other, and those that it makes in one directory:
/// enough for it to want that to itself.
const SMALL_AT_ONCE: u64 = 6;
const SMALL_PER_DIR: u64 = 24;
/// Beginnings of names in directories in which all make small files.
const KINDS: u64 = 3;
/// Bytes of a small file.
const SMALL: usize = 64;
/// How long one stays empty, at most: longer than it is kept from the service.
const MAX_EMPTY_NS: u64 = 50_000_000;
/// Operations on one opening of a file, at most.
const MAX_PER_OPEN: u64 = 4;
/// Pause between two operations of a program, at most.
const MAX_PAUSE_NS: u64 = 50_000_000;
/// The same while nothing goes wrong for long, which has little to show.
const MAX_CALM_PAUSE_NS: u64 = 1_000_000_000;
/// Time between a write and its fsync, at most: as long as a storage host is without power.
const MAX_UNSYNCED_NS: u64 = 3_000_000_000;
/// Time between an append and the flush of a file, at most, where writes are kept for a moment:
/// longer than they are.
const MAX_KEPT_NS: u64 = 1_500_000_000;

/// What all programs write down. The clock counts calls and returns, which is all that their order
/// needs.
#[derive(Default)]
pub(super) struct Journal {
    pub(super) records: RefCell<Vec<Record>>,
    clock: Cell<u64>,
    /// Returns so far.
    pub(super) returned: Cell<u64>,
    next_value: Cell<u64>,
    /// Blocks of which nobody knows what is on disk: they aren't read before they have been written
    /// and synced.
    in_doubt: RefCell<BTreeSet<(u64, u64)>>,
    /// Records that were appended or tried.
    appended: Cell<u64>,
    /// Small files that were made or tried: who makes them, and the how manieth of his it is.
    small: RefCell<Vec<(u32, u64)>>,
    /// The longest that an operation took.
    pub(super) longest_ns: Cell<u64>,
    /// Sessions that took the place of one that the cluster had ended.
    pub(super) replaced: Cell<u64>,
    /// Programs are to take their time.
    pub(super) calm: Cell<bool>,
    pub(super) stop: Cell<bool>,
}

impl Journal {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// A value that no other write has. 0 is what blocks begin with.
    fn new_value(&self) -> u64 {
        self.next_value.set(self.next_value.get() + 1);
        self.next_value.get()
    }

    /// From now on nobody knows whether what a program was told of will last. Gives when that was.
    fn doubt(&self, index: usize) -> Option<u64> {
        self.records.borrow_mut()[index].returned_ns.take()
    }

    /// It will.
    fn vouch(&self, index: usize, returned: u64) {
        self.records.borrow_mut()[index].returned_ns = Some(returned);
    }
}

/// One program.
pub(super) struct Program {
    pub(super) client: Arc<Succession>,
    pub(super) journal: Rc<Journal>,
    pub(super) host: u32,
    pub(super) number: u32,
    /// Clients that the blocks are dealt out to in turn, for writing; 1: everybody writes
    /// everywhere.
    pub(super) writers: u32,
    /// Which of so many programs it is that share the blocks out among them, for reading, too: it
    /// syncs each write by a call of its own.
    pub(super) owns: Option<(u32, u32)>,
    /// Directories over which everything is spread; 0: it is all in the root directory.
    pub(super) dirs: u64,
    /// Whether it appends to logs, too.
    pub(super) logs: bool,
    /// What it appends; long records more often than it does anything else.
    pub(super) records: Records,
    /// Whether everything that it writes is on disk when the call returns.
    pub(super) durable: bool,
    /// Whether its client keeps writes for a moment.
    pub(super) behind: bool,
}

/// Makes the files that programs use, full of zeros: as data, or as one hole.
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
            client.write(&handle, 0, zeros, WriteHow { durable, ..WriteHow::default() }).await?;
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

/// The directory of the file or name with a number.
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

/// Whether a change that failed so may have happened. `EIO`: the session was ended, as that of a
/// client is that was stopped or cut off for long, and what it had open is lost. `ESTALE` and
/// `ESHUTDOWN`: the same, and the mount is to have no other session.
fn is_open(error: &Error) -> bool {
    matches!(error.errno, Errno::ETIMEDOUT | Errno::EIO | Errno::ESTALE | Errno::ESHUTDOWN)
}

fn refused(what: &str, error: &Error) -> Event {
    Event::Refused { what: format!("{what}: {error}"), errno: error.errno.0 }
}

impl Program {
    /// Does one thing after the other until it is to stop.
    pub(super) async fn run(self) {
        let mut replaced = 0;
        while !self.journal.stop.get() {
            if self.number == 0 {
                let so_far = self.client.lineage().replacements;
                self.journal.replaced.set(self.journal.replaced.get() + so_far - replaced);
                replaced = so_far;
            }
            match below(3) {
                _ if self.records == Records::Long && below(3) > 0 => self.use_log().await,
                0 => self.use_name(below(NAMES)).await,
                1 if self.logs && below(2) == 0 => self.use_log().await,
                2 if below(4) == 0 => self.use_small().await,
                _ => self.use_file(below(FILES), 1 + below(MAX_PER_OPEN)).await,
            }
            let max_pause_ns = if self.journal.calm.get() { MAX_CALM_PAUSE_NS } else { MAX_PAUSE_NS };
            rt::sleep(std::time::Duration::from_nanos(below(max_pause_ns))).await;
        }
    }

    /// Reads every block and looks every name up, so that the end of the history says what is left.
    pub(super) async fn look_at_everything(&self) {
        for name in 0..NAMES {
            self.look(name).await;
        }
        for log in 0..self.journal.appended.get().div_ceil(self.records.per_log()) {
            if let Some(handle) = self.open_log(log).await {
                self.read_log(&handle, log).await;
                handle.release().await;
            }
        }
        let small = self.journal.small.borrow().clone();
        for (maker, number) in small {
            self.read_small(maker, number).await;
        }
        for file in 0..FILES {
            let Some(handle) = self.open(file).await else { continue };
            for block in 0..BLOCKS {
                self.read(&handle, file, block).await;
            }
            handle.release().await;
        }
    }

    /// Records an operation from its call to its return; gives the number of the record. One that
    /// gives no event, or never returns, is kept as `event` without an answer: a look says nothing
    /// then, and the effect of a change is open.
    async fn record(
        &self,
        object: String,
        event: Event,
        operation: impl Future<Output = Option<Event>>,
    ) -> usize {
        let journal = &self.journal;
        let (client, thread) = (self.host, self.number);
        let record = Record { client, thread, object, called_ns: journal.tick(), returned_ns: None, event };
        let index = journal.records.borrow().len();
        tracing::debug!(number = index, program = thread, object = record.object, event = ?record.event, "called");
        journal.records.borrow_mut().push(record);
        let began = rt::monotonic_ns();
        let seen = operation.await;
        journal.longest_ns.set(journal.longest_ns.get().max(rt::monotonic_ns() - began));
        journal.returned.set(journal.returned.get() + 1);
        tracing::debug!(number = index, program = thread, ?seen, "returned");
        if let Some(event) = seen {
            let record = &mut journal.records.borrow_mut()[index];
            record.returned_ns = Some(journal.tick());
            record.event = event;
        }
        index
    }

    /// As the function of the same name, in whichever session there is.
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
            && !is_open(error)
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
            if let Some((own, owners)) = self.owns {
                if number % u64::from(owners) == u64::from(own) {
                    self.use_own(&handle, file, block).await;
                }
                continue;
            }
            let may_write = number % u64::from(self.writers) == u64::from(self.host % self.writers);
            match below(2) {
                1 if may_write => self.write(&handle, file, block).await,
                _ => self.read(&handle, file, block).await,
            }
        }
        handle.release().await;
    }

    /// A block that nobody else uses.
    async fn use_own(&self, handle: &File, file: u64, block: u64) {
        let is_in_doubt = self.journal.in_doubt.borrow().contains(&(file, block));
        if !is_in_doubt && below(2) == 0 {
            return self.read(handle, file, block).await;
        }
        self.journal.in_doubt.borrow_mut().insert((file, block));
        let value = self.journal.new_value();
        let write = async {
            let buf = IoBuf::from_slice(&value.to_le_bytes().repeat(BLOCK / 8));
            let how = WriteHow { direct: below(2) == 0, ..WriteHow::default() };
            let written = handle.write(block * STRIDE, buf, how).await;
            // Time for the power to fail.
            rt::sleep(std::time::Duration::from_nanos(below(MAX_UNSYNCED_NS))).await;
            let synced = match written {
                Ok(_) => handle.fsync(true).await,
                Err(error) => Err(error),
            };
            match synced {
                Ok(()) => {
                    self.journal.in_doubt.borrow_mut().remove(&(file, block));
                    Some(Event::Write { value })
                }
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("write and fsync", &error)),
            }
        };
        self.record(object_of(file, block), Event::Write { value }, write).await;
    }

    async fn read(&self, handle: &File, file: u64, block: u64) {
        let read = async {
            let buf = IoBuf::alloc(BLOCK);
            match handle.read(block * STRIDE, buf.clone(), ReadHow::default()).await {
                Ok(BLOCK) => Some(found(buf.as_slice())),
                Ok(short) => Some(Event::Refused { what: format!("read: {short} bytes"), errno: 0 }),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("read", &error)),
            }
        };
        self.record(object_of(file, block), Event::Read { value: 0 }, read).await;
    }

    async fn write(&self, handle: &File, file: u64, block: u64) {
        let value = self.journal.new_value();
        let written = Event::Write { value };
        let write = async {
            let buf = IoBuf::from_slice(&value.to_le_bytes().repeat(BLOCK / 8));
            let how = WriteHow { direct: below(2) == 0, durable: self.durable, ..WriteHow::default() };
            match handle.write(block * STRIDE, buf, how).await {
                Ok(_) => Some(Event::Write { value }),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("write", &error)),
            }
        };
        self.record(object_of(file, block), written, write).await;
    }

    async fn use_log(&self) {
        let log = self.journal.appended.get() / self.records.per_log();
        let Some(handle) = self.open_log(log).await else { return };
        let mut unsure = Vec::new();
        for _ in 0..1 + below(MAX_PER_OPEN) {
            match below(2) {
                0 => {
                    let index = self.append(&handle, log).await;
                    if self.behind {
                        match self.journal.doubt(index) {
                            Some(returned) => unsure.push((index, returned)),
                            // A failure that is told here may be one of those before, and no flush
                            // tells it again.
                            None => unsure.clear(),
                        }
                    }
                }
                _ => self.read_log(&handle, log).await,
            }
        }
        if self.behind {
            if below(4) == 0 {
                rt::sleep(std::time::Duration::from_nanos(below(MAX_KEPT_NS))).await;
            }
            if handle.flush().await.is_ok() {
                unsure.into_iter().for_each(|(index, returned)| self.journal.vouch(index, returned));
            }
        }
        handle.release().await;
    }

    /// A log, which is made when nobody has done so.
    async fn open_log(&self, log: u64) -> Option<File> {
        let name = log_name(log);
        let parent = self.parent_of(log).await.ok()?;
        let made = self.client.create(ROOT_USER, parent, name.as_bytes(), 0o100644, 0, O_RDWR).await;
        match made {
            Ok((attr, handle)) => {
                self.client.forget(attr.ino, 1);
                Some(handle)
            }
            Err(error) if is_open(&error) => None,
            Err(error) => {
                let event = refused("create", &error);
                self.record(name, event.clone(), async { Some(event) }).await;
                None
            }
        }
    }

    async fn append(&self, handle: &File, log: u64) -> usize {
        let record = self.journal.new_value();
        self.journal.appended.set(self.journal.appended.get() + 1);
        let append = async {
            let buf = IoBuf::from_slice(&record.to_le_bytes().repeat(self.records.bytes() / 8));
            let how = WriteHow { append: true, durable: self.durable, ..WriteHow::default() };
            match handle.write(0, buf, how).await {
                Ok(_) => Some(Event::Append { record }),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("append", &error)),
            }
        };
        self.record(log_name(log), Event::Append { record }, append).await
    }

    async fn read_log(&self, handle: &File, log: u64) {
        let read = async {
            let buf = IoBuf::alloc(self.records.read_bytes());
            match handle.read(0, buf.clone(), ReadHow::default()).await {
                Ok(len) => Some(found_in_log(&buf.as_slice()[..len], self.records.bytes())),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("read of a log", &error)),
            }
        };
        self.record(log_name(log), Event::ReadLog { records: Vec::new() }, read).await;
    }

    /// Makes some small files, or looks at one of anybody's. Each is a register: what is written
    /// into it right after it was made, and nothing before.
    async fn use_small(&self) {
        let known = self.journal.small.borrow().len() as u64;
        if known > 0 && below(2) == 0 {
            let (maker, number) = self.journal.small.borrow()[below(known) as usize];
            return self.read_small(maker, number).await;
        }
        for _ in 0..SMALL_AT_ONCE {
            let number = {
                let mut small = self.journal.small.borrow_mut();
                let number = small.iter().filter(|(maker, _)| *maker == self.host).count() as u64;
                small.push((self.host, number));
                number
            };
            self.make_small(number).await;
        }
    }

    async fn make_small(&self, number: u64) {
        let value = self.journal.new_value();
        let (dir, name) = small_name(self.host, number);
        let make = async {
            let made = async {
                let parent = match self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await {
                    Err(error) if error.errno == Errno::ENOENT => self.make_dir(&dir).await?,
                    found => found?.ino,
                };
                // As a kernel does it.
                self.client.find(ROOT_USER, parent, name.as_bytes()).await?;
                let (attr, handle) =
                    self.client.create(ROOT_USER, parent, name.as_bytes(), 0o100644, 0, O_RDWR).await?;
                self.client.forget(attr.ino, 1);
                if below(4) == 0 {
                    rt::sleep(std::time::Duration::from_nanos(below(MAX_EMPTY_NS))).await;
                }
                let buf = IoBuf::from_slice(&value.to_le_bytes().repeat(SMALL / 8));
                let how = WriteHow { durable: self.durable, ..WriteHow::default() };
                let written = handle.write(0, buf, how).await;
                let flushed = handle.flush().await;
                handle.release().await;
                written.and(flushed).map(drop)
            };
            match made.await {
                Ok(()) => Some(Event::Write { value }),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("making a small file", &error)),
            }
        };
        self.record(format!("small {dir} {name}"), Event::Write { value }, make).await;
    }

    async fn make_dir(&self, dir: &str) -> Result<InodeId> {
        match self.client.mkdir(ROOT_USER, InodeId::ROOT, dir.as_bytes(), 0o755, 0).await {
            Err(error) if error.errno != Errno::EEXIST => Err(error),
            _ => Ok(self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await?.ino),
        }
    }

    async fn read_small(&self, maker: u32, number: u64) {
        let (dir, name) = small_name(maker, number);
        let read = async {
            let content = async {
                let parent = self.client.lookup(ROOT_USER, InodeId::ROOT, dir.as_bytes()).await?.ino;
                let attr = self.client.lookup(ROOT_USER, parent, name.as_bytes()).await?;
                let handle = self.client.open(ROOT_USER, attr.ino, 0).await;
                self.client.forget(attr.ino, 1);
                let (handle, buf) = (handle?, IoBuf::alloc(SMALL));
                let read = handle.read(0, buf.clone(), ReadHow::default()).await;
                handle.release().await;
                Ok::<_, Error>((read?, buf))
            };
            match content.await {
                Ok((0, _)) => Some(Event::Read { value: 0 }),
                Ok((SMALL, buf)) => Some(found(buf.as_slice())),
                Ok((short, _)) => Some(Event::Refused { what: format!("read: {short} bytes"), errno: 0 }),
                Err(error) if error.errno == Errno::ENOENT => Some(Event::Read { value: 0 }),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("reading a small file", &error)),
            }
        };
        self.record(format!("small {dir} {name}"), Event::Read { value: 0 }, read).await;
    }

    async fn use_name(&self, name: u64) {
        match below(3) {
            0 => self.create(name).await,
            1 => self.unlink(name).await,
            _ => self.look(name).await,
        }
    }

    /// The directory of a name. Those of files come first.
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
                    handle.release().await;
                    self.client.forget(attr.ino, 1);
                    Some(Event::Create { inode: Some(attr.ino.0) })
                }
                Err(error) if error.errno == Errno::EEXIST => Some(Event::CreateExists),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("create", &error)),
            }
        };
        self.record(name.clone(), Event::Create { inode: None }, create).await;
    }

    async fn unlink(&self, number: u64) {
        let name = format!("name{number}");
        let unlink = async {
            let removed = match self.parent(number).await {
                Ok(parent) => self.client.unlink(ROOT_USER, parent, name.as_bytes()).await,
                Err(error) => Err(error),
            };
            match removed {
                Ok(_) => Some(Event::Unlink),
                Err(error) if error.errno == Errno::ENOENT => Some(Event::UnlinkMissing),
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("unlink", &error)),
            }
        };
        self.record(name.clone(), Event::Unlink, unlink).await;
    }

    async fn look(&self, number: u64) {
        let name = format!("name{number}");
        let look = async {
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
                Err(error) if is_open(&error) => None,
                Err(error) => Some(refused("lookup", &error)),
            }
        };
        self.record(name.clone(), Event::LookMissing, look).await;
    }
}

fn object_of(file: u64, block: u64) -> String {
    format!("file{file} block {block}")
}

/// The directory and the name of a small file: a directory of its maker, or one in which all make
/// files, several in a row with names that begin alike.
fn small_name(maker: u32, number: u64) -> (String, String) {
    let turn = number / SMALL_PER_DIR;
    match turn % 2 {
        0 => (format!("small{maker}-{turn}"), format!("f{number}")),
        _ => {
            let kind = (number / SMALL_AT_ONCE + u64::from(maker)) % KINDS;
            (format!("together{turn}"), format!("x{kind}.{maker}{number:04}"))
        }
    }
}

fn log_name(log: u64) -> String {
    format!("log{log}")
}

/// What a log says.
fn found_in_log(bytes: &[u8], record_bytes: usize) -> Event {
    let mut records = Vec::new();
    for (at, bytes) in bytes.chunks(record_bytes).enumerate() {
        match found(bytes) {
            Event::Read { value } if value > 0 && bytes.len() == record_bytes => records.push(value),
            other => {
                let rest = format!("at record {at}, {} bytes: {other:?}", bytes.len());
                return Event::TornLog { records, rest };
            }
        }
    }
    Event::ReadLog { records }
}

/// What a block says.
fn found(bytes: &[u8]) -> Event {
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
