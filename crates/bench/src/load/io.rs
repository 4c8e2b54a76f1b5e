//! Reads and writes.

use super::buffer::Buffer;
use super::content::{Content, shuffled};
use super::folder::failed;
use super::phase::{self, Shared, Tally};
use super::ring::Ring;
use super::{Seat, Stage};
use crate::experiment::{Access, Caching, FileSharing, IoExperiment, Operation};
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use types::{Errno, Result};

/// Files that a read needs are made by transfers of so many bytes.
const FILL_BYTES: usize = 1 << 20;

/// Operations by which the generator's own time is measured, and bytes of them at most: some milliseconds.
pub(super) const NULL_OPERATIONS: u64 = 4_000;
const NULL_BYTES: u64 = 1 << 29;

/// One transfer.
#[derive(Clone, Copy)]
struct Step {
    offset: u64,
    is_write: bool,
}

/// What the threads of one phase do.
struct Job<'a> {
    io: &'a IoExperiment,
    operation: Operation,
    seed: u64,
    folder: PathBuf,
    seat: Seat,
}

/// One iteration: each operation in turn.
pub(super) fn iterate(io: &IoExperiment, stage: &mut Stage<'_>) -> Result<()> {
    let mut is_filled = false;
    for (index, operation) in io.operations.iter().copied().enumerate() {
        let (seed, folder, seat) = (stage.seed, stage.folder.to_path_buf(), stage.watch.seat());
        let job = Job { io, operation, seed, folder, seat };
        let needs_files = operation != Operation::Write || io.access == Access::Random;
        if needs_files && !is_filled {
            let chunks = u64::from(io.threads) * job.thread_bytes().div_ceil(FILL_BYTES as u64);
            let plan = stage.plan("making files", io.threads, chunks, None);
            let outcome = phase::run(
                &plan,
                |thread| job.open(job.own(job.number(thread)), true, false),
                |thread, file, shared| job.fill(job.number(thread), &file, shared),
            )?;
            if outcome.is_stopped || stage.watch.is_stopped() {
                stage.stop();
                return Ok(());
            }
            is_filled = true;
        }
        if operation != Operation::Write {
            job.forget()?;
        }
        stage.make_cold(index, io.caching);
        stage.watch.before(operation, stage.folder);
        let deadline = io.seconds.map(Duration::from_secs);
        let plan = stage.plan(
            &format!("{operation:?}").to_lowercase(),
            io.threads,
            job.records() * u64::from(io.threads),
            deadline,
        );
        let is_direct = io.caching == Caching::Direct;
        let outcome = phase::run(
            &plan,
            |thread| job.open(job.touched(job.number(thread)), operation != Operation::Read, is_direct),
            |thread, file, shared| job.work(job.number(thread), &file, shared),
        )?;
        if operation == Operation::Write && io.access == Access::Sequential {
            // Several clients have to agree on the phases that come.
            is_filled = if job.seat.clients > 1 { io.seconds.is_none() } else { outcome.is_complete };
        }
        if !stage.keep(index, outcome) {
            return Ok(());
        }
    }
    Ok(())
}

impl Job<'_> {
    /// The number of one of this client's threads among all of them, which is meant everywhere below.
    fn number(&self, own: u32) -> u32 {
        self.seat.thread(own, self.io.threads)
    }

    fn records(&self) -> u64 {
        self.io.thread_bytes / self.io.record_bytes
    }

    /// What a thread has in whole records.
    fn thread_bytes(&self) -> u64 {
        self.records() * self.io.record_bytes
    }

    /// Number of the file that holds what a thread writes.
    fn own(&self, thread: u32) -> u32 {
        if self.io.sharing == FileSharing::OwnFiles { thread } else { 0 }
    }

    /// Whose records a thread touches: a reader those of the next, so that it reads nothing that it has written, where there is a next.
    fn owner(&self, thread: u32) -> u32 {
        match self.operation {
            Operation::Read => self.seat.next(thread, self.io.threads),
            _ => thread,
        }
    }

    /// Number of the file that a thread touches.
    fn touched(&self, thread: u32) -> u32 {
        self.own(self.owner(thread))
    }

    fn path(&self, file: u32) -> PathBuf {
        self.folder.join(format!("file.{file}"))
    }

    fn open(&self, file: u32, is_write: bool, is_direct: bool) -> Result<File> {
        let path = self.path(file);
        let flags = if is_direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let opened = OpenOptions::new()
            .read(true)
            .write(is_write)
            .create(is_write)
            .truncate(false)
            .custom_flags(flags)
            .open(&path);
        opened.map_err(|error| {
            let error_out = failed(format!("can't open {}", path.display()), &error);
            let refuses_direct = is_direct && error.raw_os_error() == Some(Errno::EINVAL.0);
            if refuses_direct {
                error_out.hint("this file system has no direct transfers: use --buffered")
            } else {
                error_out
            }
        })
    }

    /// Drops what this client's cache has of the files.
    fn forget(&self) -> Result<()> {
        if self.io.caching == Caching::Warm {
            return Ok(());
        }
        let files = if self.io.sharing == FileSharing::OwnFiles { self.io.threads } else { 1 };
        for number in (0..files).map(|thread| self.own(self.number(thread))) {
            let file = self.open(number, true, false)?;
            file.sync_all()
                .map_err(|error| failed(format!("can't sync {}", self.path(number).display()), &error))?;
            // A file system without the call has a cache that this can't empty; what is said of caches depends on drop_caches.
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    /// Makes a thread's share of the bytes of all, in large pieces.
    fn fill(&self, thread: u32, file: &File, shared: &Shared) -> Result<Tally> {
        let mut tally = Tally::new();
        let content = Content::new(self.seed, u64::from(self.own(thread)));
        let length = self.thread_bytes();
        let start = if self.io.sharing == FileSharing::OwnFiles { 0 } else { u64::from(thread) * length };
        let mut buffer = Buffer::new(FILL_BYTES);
        let mut done = 0;
        while done < length && !shared.is_stopped() {
            let piece = (length - done).min(FILL_BYTES as u64) as usize;
            let bytes = &mut buffer.bytes()[..piece];
            content.fill(bytes, start + done);
            let written = file.write_all_at(bytes, start + done);
            written.map_err(|error| {
                failed(format!("can't write {}", self.path(self.own(thread)).display()), &error)
            })?;
            done += piece as u64;
            shared.is_over(tally.begun);
        }
        file.sync_all().map_err(|error| {
            failed(format!("can't sync {}", self.path(self.own(thread)).display()), &error)
        })?;
        tally.is_complete = true;
        tally.ended = Instant::now();
        Ok(tally)
    }

    /// Where the records of a thread are, in order of their visits; without end if random ones are to go on until time is over.
    fn steps(&self, thread: u32) -> impl Iterator<Item = Step> {
        let (io, records, operation) = (self.io, self.records(), self.operation);
        let owner = u64::from(self.owner(thread));
        let (threads, key) = (
            u64::from(self.seat.threads(io.threads)),
            self.seed << 32 | u64::from(thread) << 2 | operation as u64 & 3,
        );
        let goes_on = io.access == Access::Random && io.seconds.is_some();
        let count = if goes_on { u64::MAX } else { records };
        (0..count).map(move |visit| {
            let record = match io.access {
                Access::Sequential => visit,
                Access::Random => shuffled(visit % records, records, key.wrapping_add(visit / records)),
            };
            let index = match io.sharing {
                FileSharing::OwnFiles => record,
                FileSharing::Segments => owner * records + record,
                FileSharing::Interleaved => record * threads + owner,
            };
            let is_write = match operation {
                Operation::Mixed => shuffled(visit % 1000, 1000, key) < 300,
                other => other == Operation::Write,
            };
            Step { offset: index * io.record_bytes, is_write }
        })
    }

    fn work(&self, thread: u32, file: &File, shared: &Shared) -> Result<Tally> {
        let mut tally = if self.io.queue_depth == 1 {
            self.one_by_one(thread, file, shared)?
        } else {
            self.at_once(thread, file, shared)?
        };
        if self.operation != Operation::Read
            && !shared.is_stopped()
            && let Err(error) = file.sync_all()
        {
            // One more operation that failed: the figure says so, and those before it stay.
            tally.fail(|| format!("can't sync {}", self.path(self.touched(thread)).display()), &error)?;
        }
        tally.ended = Instant::now();
        tally.is_complete = tally.operations >= self.records() && tally.errors == 0;
        Ok(tally)
    }

    fn one_by_one(&self, thread: u32, file: &impl Transfers, shared: &Shared) -> Result<Tally> {
        let content = Content::new(self.seed, u64::from(self.touched(thread)));
        let length = self.io.record_bytes as usize;
        let (mut buffer, mut scratch) = (Buffer::new(length), self.scratch());
        content.fill(buffer.bytes(), 0);
        let mut tally = Tally::new();
        for step in self.steps(thread) {
            let bytes = buffer.bytes();
            self.dress(content, bytes, step);
            let since = Instant::now();
            match file.transfer(bytes, step) {
                Ok(()) => {
                    tally.count(since, length as u64);
                    self.verify(thread, content, bytes, step, &mut scratch, &mut tally);
                }
                Err(error) => tally.fail(|| self.failure(thread, step), &error)?,
            }
            if shared.is_over(tally.begun) {
                break;
            }
        }
        Ok(tally)
    }

    fn at_once(&self, thread: u32, file: &File, shared: &Shared) -> Result<Tally> {
        let content = Content::new(self.seed, u64::from(self.touched(thread)));
        let (length, depth) = (self.io.record_bytes as usize, self.io.queue_depth);
        let broken = |error: &io::Error| {
            failed("io_uring".into(), error).hint("where the kernel forbids rings, use --depth 1")
        };
        let mut ring = Ring::new(file, depth, length).map_err(|error| broken(&error))?;
        let mut scratch = self.scratch();
        (0..depth as usize).for_each(|slot| content.fill(ring.buffer(slot), 0));
        let mut free: Vec<usize> = (0..depth as usize).collect();
        let (mut steps, mut tally) = (self.steps(thread), Tally::new());
        let mut under_way = vec![(Step { offset: 0, is_write: false }, tally.begun); depth as usize];
        let (mut ended, mut is_over) = (Vec::new(), false);
        loop {
            while !is_over && !free.is_empty() {
                let Some(step) = steps.next() else {
                    is_over = true;
                    break;
                };
                let Some(slot) = free.pop() else { break };
                self.dress(content, ring.buffer(slot), step);
                under_way[slot] = (step, Instant::now());
                ring.send(slot, step.offset, step.is_write).map_err(|error| broken(&error))?;
            }
            if free.len() == depth as usize {
                return Ok(tally);
            }
            ring.wait(1, &mut ended).map_err(|error| broken(&error))?;
            for (slot, result) in ended.drain(..) {
                let (step, since) = under_way[slot];
                free.push(slot);
                match result.and_then(|moved| rest(file, ring.buffer(slot), step, moved)) {
                    Ok(()) => {
                        tally.count(since, length as u64);
                        self.verify(thread, content, ring.buffer(slot), step, &mut scratch, &mut tally);
                    }
                    Err(error) => tally.fail(|| self.failure(thread, step), &error)?,
                }
                is_over |= shared.is_over(tally.begun);
            }
        }
    }

    fn scratch(&self) -> Vec<u8> {
        vec![0; if self.io.verify { self.io.record_bytes as usize } else { 0 }]
    }

    /// Makes a buffer what is to be written: all of it where it will be checked.
    fn dress(&self, content: Content, bytes: &mut [u8], step: Step) {
        match (step.is_write, self.io.verify) {
            (false, _) => {}
            (true, true) => content.fill(bytes, step.offset),
            (true, false) => content.stamp(bytes, step.offset),
        }
    }

    fn verify(
        &self,
        thread: u32,
        content: Content,
        bytes: &[u8],
        step: Step,
        scratch: &mut [u8],
        tally: &mut Tally,
    ) {
        if step.is_write || !self.io.verify {
            return;
        }
        if let Some(wrong) = content.check(bytes, step.offset, scratch) {
            tally.wrong_bytes += wrong.bytes;
            let path = self.path(self.touched(thread));
            tally.first.get_or_insert_with(|| {
                format!(
                    "{}: wrong byte at offset {}: expected {:#04x}, found {:#04x}",
                    path.display(),
                    wrong.offset,
                    wrong.expected,
                    wrong.found
                )
            });
        }
    }

    fn failure(&self, thread: u32, step: Step) -> String {
        let what = if step.is_write { "can't write" } else { "can't read" };
        format!("{what} {} at offset {}", self.path(self.touched(thread)).display(), step.offset)
    }
}

/// What transfers go to.
trait Transfers {
    fn transfer(&self, bytes: &mut [u8], step: Step) -> io::Result<()>;
}

impl Transfers for File {
    fn transfer(&self, bytes: &mut [u8], step: Step) -> io::Result<()> {
        if step.is_write {
            self.write_all_at(bytes, step.offset)
        } else {
            self.read_exact_at(bytes, step.offset)
        }
    }
}

/// Takes everything, and does nothing with it.
struct Null;

impl Transfers for Null {
    fn transfer(&self, bytes: &mut [u8], _step: Step) -> io::Result<()> {
        std::hint::black_box(bytes);
        Ok(())
    }
}

/// Moves what a transfer that ended early has left.
fn rest(file: &File, bytes: &mut [u8], step: Step, moved: usize) -> io::Result<()> {
    if moved == bytes.len() {
        return Ok(());
    }
    let offset = step.offset + moved as u64;
    file.transfer(&mut bytes[moved..], Step { offset, ..step })
}

/// What the generator itself spends on each transfer, nanoseconds: the same loop without a file.
pub(super) fn null_overhead_ns(io: &IoExperiment, operation: Operation) -> Result<f64> {
    let count = (NULL_BYTES / io.record_bytes.max(1)).clamp(1, NULL_OPERATIONS);
    let io = IoExperiment {
        thread_bytes: count * io.record_bytes,
        seconds: None,
        verify: false,
        threads: 1,
        ..io.clone()
    };
    let job = Job { io: &io, operation, seed: 0, folder: PathBuf::new(), seat: Seat::ALONE };
    let tally = job.one_by_one(0, &Null, &Shared::new(None))?;
    Ok(tally.begun.elapsed().as_nanos() as f64 / count as f64)
}
