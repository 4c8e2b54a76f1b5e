//! Load of reads and writes.

use super::backend::{Backend, BackendFile, with_bytes};
use super::content::{Content, permuted};
use super::directory::{io_error, with_context};
use super::kernel::drive;
use super::phase::{self, Shared, ThreadResult, Work};
use super::ring::Ring;
use super::{ClientRank, Stage};
use crate::experiment::{Access, Caching, FileSharing, IoExperiment, Operation};
use rt::IoBuf;
use rt::sync::Event;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::{Error, Result};

/// Transfer size for creating files that a read needs, in bytes.
const FILL_BYTES: usize = 1 << 20;

/// Number of operations that measure the generator's own overhead, and most bytes of them: some
/// milliseconds.
pub(super) const NULL_OPERATIONS: u64 = 4_000;
const NULL_BYTES: u64 = 1 << 29;

/// One transfer.
#[derive(Clone, Copy)]
struct Transfer {
    offset: u64,
    is_write: bool,
}

/// Parameters of one phase's threads.
struct Job<P> {
    backend: P,
    io: IoExperiment,
    operation: Operation,
    seed: u64,
    folder: PathBuf,
    rank: ClientRank,
}

/// Creates the files.
struct CreateFiles<P>(Arc<Job<P>>);

/// Runs the measured phase.
struct MeasureFiles<P>(Arc<Job<P>>);

impl<P: Backend> Work for CreateFiles<P> {
    type Prepared = P::File;

    async fn prepare(&self, thread: u32) -> Result<P::File> {
        let CreateFiles(job) = self;
        job.open(job.own_file(job.number(thread)), true, Caching::Cold).await
    }

    async fn work(&self, thread: u32, file: P::File, shared: &Arc<Shared>) -> Result<ThreadResult> {
        let CreateFiles(job) = self;
        let tally = job.fill(job.number(thread), &file, shared).await;
        file.close().await;
        tally
    }
}

impl<P: Backend> Work for MeasureFiles<P> {
    type Prepared = P::File;

    async fn prepare(&self, thread: u32) -> Result<P::File> {
        let MeasureFiles(job) = self;
        let is_write = job.operation != Operation::Read;
        job.open(job.accessed_file(job.number(thread)), is_write, job.io.caching).await
    }

    async fn work(&self, thread: u32, file: P::File, shared: &Arc<Shared>) -> Result<ThreadResult> {
        let MeasureFiles(job) = self;
        let file = Rc::new(file);
        let tally = job.work(job.number(thread), &file, shared).await;
        file.close().await;
        tally
    }
}

/// Runs one iteration: each operation in turn.
pub(super) fn iterate<P: Backend>(io: &IoExperiment, backend: &P, stage: &mut Stage<'_>) -> Result<()> {
    let mut is_filled = false;
    for (index, operation) in io.operations.iter().copied().enumerate() {
        let (seed, folder, rank) = (stage.seed, stage.folder.to_path_buf(), stage.observer.rank());
        let job = Arc::new(Job { backend: backend.clone(), io: io.clone(), operation, seed, folder, rank });
        let needs_files = operation != Operation::Write || io.access == Access::Random;
        if needs_files && !is_filled {
            let chunks = u64::from(io.threads) * job.thread_bytes().div_ceil(FILL_BYTES as u64);
            let plan = stage.plan("making files", io.threads, chunks, None);
            let outcome = phase::run(&plan, backend, &Arc::new(CreateFiles(job.clone())))?;
            if outcome.is_stopped || stage.observer.is_stopped() {
                stage.stop();
                return Ok(());
            }
            is_filled = true;
        }
        if operation != Operation::Write {
            job.drop_client_caches()?;
        }
        stage.prepare_caches(index, io.caching);
        stage.observer.before_phase(operation, stage.folder);
        let plan = stage.plan(
            &format!("{operation:?}").to_lowercase(),
            io.threads,
            job.records() * u64::from(io.threads),
            io.seconds.map(Duration::from_secs),
        );
        let outcome = phase::run(&plan, backend, &Arc::new(MeasureFiles(job.clone())))?;
        if operation == Operation::Write && io.access == Access::Sequential {
            // Several clients must agree on the following phases.
            is_filled = if job.rank.clients > 1 { io.seconds.is_none() } else { outcome.is_complete };
        }
        if !stage.record_phase(index, outcome) {
            return Ok(());
        }
    }
    Ok(())
}

impl<P> Job<P> {
    /// Returns the global number of one of this client's threads; all thread numbers below are
    /// global.
    fn number(&self, own: u32) -> u32 {
        self.rank.thread(own, self.io.threads)
    }

    fn records(&self) -> u64 {
        self.io.thread_bytes / self.io.record_bytes
    }

    /// Returns the bytes of a thread, in whole records.
    fn thread_bytes(&self) -> u64 {
        self.records() * self.io.record_bytes
    }

    /// Returns the number of the file that a thread writes.
    fn own_file(&self, thread: u32) -> u32 {
        if self.io.sharing == FileSharing::OwnFiles { thread } else { 0 }
    }

    /// Returns the thread whose records a thread accesses. A reader accesses those of the next
    /// thread, if there is one, so that it doesn't read its own data.
    fn accessed_thread(&self, thread: u32) -> u32 {
        match self.operation {
            Operation::Read => self.rank.next(thread, self.io.threads),
            _ => thread,
        }
    }

    /// Returns the number of the file that a thread accesses.
    fn accessed_file(&self, thread: u32) -> u32 {
        self.own_file(self.accessed_thread(thread))
    }

    fn path(&self, file: u32) -> PathBuf {
        self.folder.join(format!("file.{file}"))
    }

    /// Returns the accesses of a thread; unlimited if a random phase ends by time.
    fn access_count(&self) -> u64 {
        let is_timed = self.io.access == Access::Random && self.io.seconds.is_some();
        if is_timed { u64::MAX } else { self.records() }
    }

    /// Returns the transfer of one access.
    fn step(&self, thread: u32, visit: u64) -> Transfer {
        let (io, records, operation) = (&self.io, self.records(), self.operation);
        let owner = u64::from(self.accessed_thread(thread));
        let key = self.seed << 32 | u64::from(thread) << 2 | operation as u64 & 3;
        let record = match io.access {
            Access::Sequential => visit,
            Access::Random => permuted(visit % records, records, key.wrapping_add(visit / records)),
        };
        let index = match io.sharing {
            FileSharing::OwnFiles => record,
            FileSharing::Segments => owner * records + record,
            FileSharing::Interleaved => record * u64::from(self.rank.threads(io.threads)) + owner,
        };
        let is_write = match operation {
            Operation::Mixed => permuted(visit % 1000, 1000, key) < 300,
            other => other == Operation::Write,
        };
        Transfer { offset: index * io.record_bytes, is_write }
    }

    /// Runs one of the thread's concurrent streams: transfers one after the other, each for the
    /// next access that no other stream has taken.
    async fn run_stream(&self, thread: u32, file: &impl BackendFile, shared: &Shared, streams: &Streams) {
        let content = Content::new(self.seed, u64::from(self.accessed_file(thread)));
        let length = self.io.record_bytes as usize;
        let (mut buffer, mut scratch) = (IoBuf::alloc(length), self.scratch());
        with_bytes(&mut buffer, |bytes| content.fill(bytes, 0));
        let begun = streams.begin();
        while let Some(visit) = streams.next(self.access_count()) {
            let step = self.step(thread, visit);
            if step.is_write {
                with_bytes(&mut buffer, |bytes| self.prepare_write(content, bytes, step));
            }
            let since = Instant::now();
            let done = file.transfer(&mut buffer, step.offset, step.is_write).await;
            let mut tally = streams.tally.borrow_mut();
            match done {
                Ok(()) => {
                    tally.count(since, length as u64);
                    self.verify(thread, content, buffer.as_slice(), step, &mut scratch, &mut tally);
                }
                Err(error) => {
                    let counted = tally.fail(|| self.failure(thread, step), &error);
                    streams.note(counted);
                }
            }
            if shared.count_operation(begun) {
                streams.is_over.set(true);
            }
        }
    }

    fn run_ring(&self, thread: u32, file: &File, shared: &Shared) -> Result<ThreadResult> {
        let content = Content::new(self.seed, u64::from(self.accessed_file(thread)));
        let (length, depth) = (self.io.record_bytes as usize, self.io.queue_depth);
        let ring_error = |error: std::io::Error| {
            with_context("io_uring".into(), io_error(error))
                .hint("where the kernel forbids rings, use --depth 1")
        };
        let mut ring = Ring::new(file, depth, length).map_err(ring_error)?;
        let mut scratch = self.scratch();
        (0..depth as usize).for_each(|slot| content.fill(ring.buffer(slot), 0));
        let mut free: Vec<usize> = (0..depth as usize).collect();
        let mut steps = (0..self.access_count()).map(|visit| self.step(thread, visit));
        let mut tally = ThreadResult::new();
        let mut in_flight = vec![(Transfer { offset: 0, is_write: false }, tally.begun); depth as usize];
        let (mut ended, mut is_over) = (Vec::new(), false);
        loop {
            while !is_over && !free.is_empty() {
                let Some(step) = steps.next() else {
                    is_over = true;
                    break;
                };
                let Some(slot) = free.pop() else { break };
                self.prepare_write(content, ring.buffer(slot), step);
                in_flight[slot] = (step, Instant::now());
                ring.send(slot, step.offset, step.is_write).map_err(ring_error)?;
            }
            if free.len() == depth as usize {
                return Ok(tally);
            }
            ring.wait(1, &mut ended).map_err(ring_error)?;
            for (slot, result) in ended.drain(..) {
                let (step, since) = in_flight[slot];
                free.push(slot);
                match result.and_then(|moved| complete_transfer(file, ring.buffer(slot), step, moved)) {
                    Ok(()) => {
                        tally.count(since, length as u64);
                        self.verify(thread, content, ring.buffer(slot), step, &mut scratch, &mut tally);
                    }
                    Err(error) => tally.fail(|| self.failure(thread, step), &io_error(error))?,
                }
                is_over |= shared.count_operation(tally.begun);
            }
        }
    }

    fn scratch(&self) -> Vec<u8> {
        vec![0; if self.io.verify { self.io.record_bytes as usize } else { 0 }]
    }

    /// Prepares a buffer for a write: fills it completely if it will be verified.
    fn prepare_write(&self, content: Content, bytes: &mut [u8], step: Transfer) {
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
        step: Transfer,
        scratch: &mut [u8],
        tally: &mut ThreadResult,
    ) {
        if step.is_write || !self.io.verify {
            return;
        }
        if let Some(wrong) = content.check(bytes, step.offset, scratch) {
            tally.wrong_bytes += wrong.bytes;
            let path = self.path(self.accessed_file(thread));
            tally.first_failure.get_or_insert_with(|| {
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

    fn failure(&self, thread: u32, step: Transfer) -> String {
        let what = if step.is_write { "can't write" } else { "can't read" };
        format!("{what} {} at offset {}", self.path(self.accessed_file(thread)).display(), step.offset)
    }
}

/// Completes a short transfer.
fn complete_transfer(file: &File, bytes: &mut [u8], step: Transfer, moved: usize) -> std::io::Result<()> {
    let (left, offset) = (&mut bytes[moved..], step.offset + moved as u64);
    match (left.is_empty(), step.is_write) {
        (true, _) => Ok(()),
        (false, true) => file.write_all_at(left, offset),
        (false, false) => file.read_exact_at(left, offset),
    }
}

/// State shared by the concurrent streams of one thread.
struct Streams {
    /// Accesses that have begun.
    started: Cell<u64>,
    is_over: Cell<bool>,
    tally: RefCell<ThreadResult>,
    failure: RefCell<Option<Error>>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            started: Cell::new(0),
            is_over: Cell::new(false),
            tally: RefCell::new(ThreadResult::new()),
            failure: RefCell::default(),
        }
    }
}

impl Streams {
    /// Starts the time measurement with the first stream; returns its start.
    fn begin(&self) -> Instant {
        let mut tally = self.tally.borrow_mut();
        if self.started.get() == 0 {
            tally.begun = Instant::now();
        }
        tally.begun
    }

    /// Returns the number of the next access, if one is left.
    fn next(&self, visits: u64) -> Option<u64> {
        let visit = self.started.get();
        let has_next = visit < visits && !self.is_over.get();
        has_next.then(|| {
            self.started.set(visit + 1);
            visit
        })
    }

    /// Records a failure that ends the thread.
    fn note(&self, counted: Result<()>) {
        if let Err(error) = counted {
            self.is_over.set(true);
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    fn end(&self) -> Result<ThreadResult> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(self.tally.replace(ThreadResult::new())),
        }
    }
}

impl<P: Backend> Job<P> {
    async fn open(&self, file: u32, is_write: bool, caching: Caching) -> Result<P::File> {
        let path = self.path(file);
        let opened = self.backend.open(&path, is_write, caching).await;
        opened.map_err(|error| with_context(format!("can't open {}", path.display()), error))
    }

    /// Drops this client's cache of the files.
    fn drop_client_caches(self: &Arc<Self>) -> Result<()> {
        if self.io.caching == Caching::Warm {
            return Ok(());
        }
        let files = if self.io.sharing == FileSharing::OwnFiles { self.io.threads } else { 1 };
        for number in (0..files).map(|thread| self.own_file(self.number(thread))) {
            let (job, path) = (self.clone(), self.path(number));
            let done =
                super::backend::wait_for(&self.backend, async move || job.backend.drop_cache(&path).await)?;
            done.map_err(|error| with_context(format!("can't sync {}", self.path(number).display()), error))?;
        }
        Ok(())
    }

    /// Writes a thread's share of the files, in large transfers.
    async fn fill(&self, thread: u32, file: &P::File, shared: &Shared) -> Result<ThreadResult> {
        let mut tally = ThreadResult::new();
        let content = Content::new(self.seed, u64::from(self.own_file(thread)));
        let length = self.thread_bytes();
        let start = if self.io.sharing == FileSharing::OwnFiles { 0 } else { u64::from(thread) * length };
        let mut buffer = IoBuf::alloc(FILL_BYTES);
        let mut done = 0;
        let object = || self.path(self.own_file(thread));
        while done < length && !shared.is_stopped() {
            let piece = (length - done).min(FILL_BYTES as u64) as usize;
            if piece < buffer.len() {
                buffer = IoBuf::alloc(piece);
            }
            with_bytes(&mut buffer, |bytes| content.fill(bytes, start + done));
            file.transfer(&mut buffer, start + done, true)
                .await
                .map_err(|error| with_context(format!("can't write {}", object().display()), error))?;
            done += piece as u64;
            shared.count_operation(tally.begun);
        }
        file.sync()
            .await
            .map_err(|error| with_context(format!("can't sync {}", object().display()), error))?;
        tally.is_complete = true;
        tally.ended = Instant::now();
        Ok(tally)
    }

    async fn work(
        self: &Arc<Self>,
        thread: u32,
        file: &Rc<P::File>,
        shared: &Arc<Shared>,
    ) -> Result<ThreadResult> {
        let mut tally = match (self.io.queue_depth, file.kernel_file()) {
            (1, _) => {
                let streams = Streams::default();
                self.run_stream(thread, &**file, shared, &streams).await;
                streams.end()?
            }
            (_, Some(file)) => self.run_ring(thread, file, shared)?,
            (_, None) => self.run_tasks(thread, file, shared).await?,
        };
        if self.operation != Operation::Read
            && !shared.is_stopped()
            && let Err(error) = file.sync().await
        {
            // Counts as one more failed operation: the result says so, and the operations before it
            // stay.
            tally
                .fail(|| format!("can't sync {}", self.path(self.accessed_file(thread)).display()), &error)?;
        }
        tally.ended = Instant::now();
        tally.is_complete = tally.operations >= self.records() && tally.errors == 0;
        Ok(tally)
    }

    /// Runs concurrent streams, each as a task of this thread's core.
    async fn run_tasks(
        self: &Arc<Self>,
        thread: u32,
        file: &Rc<P::File>,
        shared: &Arc<Shared>,
    ) -> Result<ThreadResult> {
        let streams = Rc::new(Streams::default());
        let left = Rc::new(Cell::new(self.io.queue_depth));
        let ended = Rc::new(Event::new());
        for _ in 0..self.io.queue_depth {
            let (job, file, shared) = (self.clone(), file.clone(), shared.clone());
            let (streams, left, ended) = (streams.clone(), left.clone(), ended.clone());
            rt::spawn(async move {
                job.run_stream(thread, &*file, &shared, &streams).await;
                left.set(left.get() - 1);
                if left.get() == 0 {
                    ended.set();
                }
            });
        }
        ended.wait().await;
        streams.end()
    }
}

/// Accepts every call and does nothing.
struct Null;

impl BackendFile for Null {
    async fn transfer(&self, buffer: &mut IoBuf, _offset: u64, _is_write: bool) -> Result<()> {
        std::hint::black_box(buffer);
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {}
}

/// Returns the generator's own time per transfer, in nanoseconds: the same loop without a file.
pub(super) fn null_overhead_ns(io: &IoExperiment, operation: Operation) -> Result<f64> {
    let count = (NULL_BYTES / io.record_bytes.max(1)).clamp(1, NULL_OPERATIONS);
    let io = IoExperiment {
        thread_bytes: count * io.record_bytes,
        seconds: None,
        verify: false,
        threads: 1,
        ..io.clone()
    };
    let job = Job { backend: (), io, operation, seed: 0, folder: PathBuf::new(), rank: ClientRank::SINGLE };
    let streams = Streams::default();
    drive(job.run_stream(0, &Null, &Shared::new(None), &streams));
    let tally = streams.end()?;
    Ok(tally.begun.elapsed().as_nanos() as f64 / count as f64)
}
