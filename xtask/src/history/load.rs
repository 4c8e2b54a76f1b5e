//! The workload: many threads on several mounts, which record the time and result of every call.

use super::file::Sink;
use super::objects::{Mix, Task, Worker};
use crate::e2e::Rng;
use crate::process;
use ::history::{Event, Record};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time that threads work on the same objects before they switch to new ones.
const EPOCH: Duration = Duration::from_millis(1500);

/// Upper bound of the pause between two calls of a thread, in microseconds. With shorter pauses,
/// one thread holds the objects that it uses for long.
const MAX_PAUSE_US: u64 = 400;

/// Pause of a thread after an error, so that a failed file system doesn't flood the record.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// Options of `cargo xtask history load`.
#[derive(clap::Args, Clone, Debug)]
pub struct LoadOptions {
    /// A folder of the file system, once per mount.
    #[arg(long = "mount", required = true, value_name = "DIR")]
    pub mounts: Vec<PathBuf>,
    /// Threads per mount.
    #[arg(long, default_value_t = 4)]
    pub threads: u32,
    /// Minimum duration in seconds.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Continue until this number of calls has returned, but at most for the time granted to last
    /// calls.
    #[arg(long, default_value_t = 0)]
    pub calls: u64,
    /// Also continue until standard input ends, by which the parent process stops the load.
    #[arg(long)]
    pub until_told: bool,
    /// Seed of the operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Which ways of opening files are combined on one object.
    #[arg(long, default_value = "by-epoch")]
    pub mix: Mix,
    /// Sync new files and changes of names before a call counts as executed: sessions end during the
    /// load, and lose what they haven't sent.
    #[arg(long)]
    pub sync_names: bool,
    /// Seconds granted to calls in flight at the end; after that a call counts as one that never
    /// returned.
    #[arg(long, default_value_t = 90)]
    pub grace: u64,
    /// Output file of the history.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Result of a load.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of calls that returned.
    pub calls: u64,
    /// Failed calls with an uncertain outcome, by error.
    pub errors: BTreeMap<String, u64>,
    /// The first of these errors, with caller, call, time and result.
    pub first_errors: Vec<String>,
    /// Threads whose last call never returned.
    pub stuck: u64,
    /// Number of reads of a log that found zeros and were repeated.
    pub zero_reads: u64,
}

/// Maximum number of errors reported individually.
const MAX_REPORTED_ERRORS: usize = 12;

impl Outcome {
    /// Formats the outcome as one line.
    pub fn to_json(&self) -> String {
        let Outcome { calls, errors, first_errors, stuck, zero_reads } = self;
        serde_json::json!({
            "calls": calls,
            "errors": errors,
            "first_errors": first_errors,
            "stuck": stuck,
            "zero_reads": zero_reads,
        })
        .to_string()
    }

    /// Parses such a line.
    pub fn parse(line: &str) -> Option<Outcome> {
        let json: serde_json::Value = serde_json::from_str(line.trim()).ok()?;
        let errors = json["errors"].as_object()?.iter();
        let errors = errors.map(|(name, count)| Some((name.clone(), count.as_u64()?)));
        let first_errors = json["first_errors"].as_array()?.iter();
        Some(Outcome {
            calls: json["calls"].as_u64()?,
            errors: errors.collect::<Option<_>>()?,
            first_errors: first_errors
                .map(|text| text.as_str().map(str::to_string))
                .collect::<Option<_>>()?,
            stuck: json["stuck"].as_u64()?,
            zero_reads: json["zero_reads"].as_u64()?,
        })
    }
}

/// State shared by all threads.
struct Shared {
    start: Instant,
    sink: Sink,
    epoch: AtomicU64,
    stop: AtomicBool,
    /// Source of unique values; small, so that they are readable.
    unique: AtomicU64,
    calls: AtomicU64,
    zero_reads: AtomicU64,
    errors: Mutex<Errors>,
    /// Whether the load may stop: standard input has ended, or isn't used.
    may_stop: AtomicBool,
}

/// Errors by text, and the first of them individually.
#[derive(Clone, Default)]
struct Errors {
    counts: BTreeMap<String, u64>,
    first: Vec<String>,
}

impl Errors {
    fn add(&mut self, error: &io::Error, text: impl FnOnce() -> String) {
        *self.counts.entry(error.to_string()).or_default() += 1;
        if self.first.len() < MAX_REPORTED_ERRORS {
            self.first.push(text());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// One thread of the load.
struct Caller {
    shared: Arc<Shared>,
    client: u32,
    thread: u32,
    mount: PathBuf,
    mix: Mix,
    /// See [`Worker::new`].
    sync: Option<Arc<Mutex<()>>>,
    /// The change in flight, in case that it never returns.
    pending: Arc<Mutex<Option<Record>>>,
}

/// Runs the load to its end. It fails only if it can't write the history or create the first
/// folders; errors of calls are recorded.
pub fn run(options: &LoadOptions) -> Result<Outcome, String> {
    let at = |error: io::Error| format!("{}: {error}", options.out.display());
    let shared = Arc::new(Shared {
        start: Instant::now(),
        sink: Sink::create(&options.out).map_err(at)?,
        epoch: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        unique: AtomicU64::new(0),
        calls: AtomicU64::new(0),
        zero_reads: AtomicU64::new(0),
        errors: Mutex::default(),
        may_stop: AtomicBool::new(!options.until_told),
    });
    options.mounts.iter().try_for_each(|mount| ensure_empty(mount))?;
    make_epoch(&options.mounts, 0).map_err(|error| format!("the load's first folder: {error}"))?;
    let callers = start(options, &shared);
    if options.until_told {
        watch_standard_input(&shared);
    }
    while !wait_for_end(options, &shared, EPOCH) {
        let next = shared.epoch.load(SeqCst) + 1;
        // While the file system is unavailable, threads continue with the old objects.
        if make_epoch(&options.mounts, next).is_ok() {
            shared.epoch.store(next, SeqCst);
        }
    }
    shared.stop.store(true, SeqCst);
    let grace = Duration::from_secs(options.grace);
    process::eventually(grace, || callers.iter().all(|(_, thread)| thread.is_finished()));
    let stuck: Vec<_> = callers.iter().filter(|(_, thread)| !thread.is_finished()).collect();
    for (pending, _) in &stuck {
        if let Some(record) = lock(pending).clone() {
            shared.sink.add(&record).map_err(at)?;
        }
    }
    if stuck.is_empty() {
        read_all_objects(options, &shared).map_err(at)?;
    }
    shared.sink.flush().map_err(at)?;
    let errors = lock(&shared.errors).clone();
    Ok(Outcome {
        calls: shared.calls.load(SeqCst),
        errors: errors.counts,
        first_errors: errors.first,
        stuck: stuck.len() as u64,
        zero_reads: shared.zero_reads.load(SeqCst),
    })
}

/// Records the end of standard input.
fn watch_standard_input(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        // An error counts as the end.
        drop(io::copy(&mut io::stdin(), &mut io::sink()));
        shared.may_stop.store(true, SeqCst);
    });
}

/// Waits for `time` or until the load must end. Returns whether it must end.
fn wait_for_end(options: &LoadOptions, shared: &Shared, time: Duration) -> bool {
    let enough = Duration::from_secs(options.seconds);
    let most = enough + Duration::from_secs(options.grace);
    process::eventually(time, || {
        let elapsed = shared.start.elapsed();
        let has_calls = shared.calls.load(SeqCst) >= options.calls || elapsed >= most;
        elapsed >= enough && has_calls && shared.may_stop.load(SeqCst)
    })
}

/// Fails if the folder isn't empty: files of an older run would look like content of unknown
/// origin.
fn ensure_empty(mount: &Path) -> Result<(), String> {
    match fs::read_dir(mount).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is not empty; hint: create a new folder for the load", mount.display())),
        Err(error) => Err(format!("{}: {error}", mount.display())),
    }
}

/// Returns the folder of an epoch.
fn folder(mount: &Path, epoch: u64) -> PathBuf {
    mount.join(format!("epoch-{epoch}"))
}

/// Creates the folder of an epoch on each mount; after the first mount it exists for all.
fn make_epoch(mounts: &[PathBuf], epoch: u64) -> io::Result<()> {
    mounts.iter().try_for_each(|mount| fs::create_dir_all(folder(mount, epoch)))
}

type Running = (Arc<Mutex<Option<Record>>>, JoinHandle<()>);

fn start(options: &LoadOptions, shared: &Arc<Shared>) -> Vec<Running> {
    let mut running = Vec::new();
    for (client, mount) in (0u32..).zip(&options.mounts) {
        let sync = options.sync_names.then(Arc::default);
        for thread in 0..options.threads {
            let pending = Arc::new(Mutex::new(None));
            let mut caller = Caller {
                shared: Arc::clone(shared),
                client,
                thread,
                mount: mount.clone(),
                mix: options.mix,
                sync: sync.clone(),
                pending: Arc::clone(&pending),
            };
            let seed = options.seed.wrapping_mul(0x1_0001).wrapping_add(u64::from(client * 1000 + thread));
            running.push((pending, thread::spawn(move || caller.work(Rng::new(seed)))));
        }
    }
    running
}

/// Reads every object from every mount after the load has ended.
fn read_all_objects(options: &LoadOptions, shared: &Arc<Shared>) -> io::Result<()> {
    for epoch in 0..=shared.epoch.load(SeqCst) {
        for (client, mount) in (0u32..).zip(&options.mounts) {
            let mut caller = Caller {
                shared: Arc::clone(shared),
                client,
                thread: options.threads,
                mount: mount.clone(),
                mix: options.mix,
                sync: None,
                pending: Arc::default(),
            };
            let mut worker = Worker::new(&folder(mount, epoch), None);
            for task in Task::read_all() {
                caller.call(&mut worker, epoch, task)?;
            }
        }
    }
    Ok(())
}

impl Caller {
    fn work(&mut self, mut rng: Rng) {
        let mut epoch = self.shared.epoch.load(SeqCst);
        let mut worker = Worker::new(&folder(&self.mount, epoch), self.sync.clone());
        while !self.shared.stop.load(SeqCst) {
            let current = self.shared.epoch.load(SeqCst);
            if current != epoch {
                epoch = current;
                worker = Worker::new(&folder(&self.mount, epoch), self.sync.clone());
            }
            // Files stay open for some time, so that both new opens and open files are tested.
            if rng.below(8) == 0 {
                worker.close();
            }
            let task = Task::draw(&mut rng, self.mix, epoch);
            match self.call(&mut worker, epoch, task) {
                Ok(true) => thread::sleep(Duration::from_micros(rng.below(MAX_PAUSE_US))),
                Ok(false) => {
                    worker.close();
                    thread::sleep(PAUSE_AFTER_ERROR);
                }
                Err(error) => {
                    eprintln!("cannot write the history: {error}");
                    return;
                }
            }
        }
    }

    /// Describes an error with the time of day, which locates it in the services' logs.
    fn describe_error(
        &self,
        epoch: u64,
        task: Task,
        (called, returned): (u64, u64),
        error: &io::Error,
    ) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (hours, minutes, seconds) = (now / 3600 % 24, now / 60 % 60, now % 60);
        format!(
            "{hours:02}:{minutes:02}:{seconds:02} UTC, mount {}, thread {}, epoch {epoch}, {task:?}: {error}, {} ms after the call",
            self.client,
            self.thread,
            (returned - called) / 1_000_000
        )
    }

    /// Makes a call and records it. Returns `false` if its outcome is uncertain. Fails if recording
    /// fails.
    fn call(&mut self, worker: &mut Worker, epoch: u64, task: Task) -> io::Result<bool> {
        let shared = &self.shared;
        let unique = shared.unique.fetch_add(1, SeqCst) + 1;
        let record = |called_ns, returned_ns, event| Record {
            client: self.client,
            thread: self.thread,
            object: format!("epoch {epoch} {}", task.object()),
            called_ns,
            returned_ns,
            event,
        };
        let called = shared.now_ns();
        let intent = task.intended_event(unique).map(|event| record(called, None, event));
        lock(&self.pending).clone_from(&intent);
        let outcome = worker.perform(task, unique);
        let returned = shared.now_ns();
        shared.calls.fetch_add(1, SeqCst);
        shared.zero_reads.fetch_add(worker.take_zero_reads(), SeqCst);
        match outcome {
            Ok(event) => shared.sink.add(&record(called, Some(returned), event))?,
            Err(error) if !is_uncertain(&error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let event = Event::Refused { what: format!("{task:?}"), errno };
                shared.sink.add(&record(called, Some(returned), event))?;
            }
            Err(error) => {
                lock(&shared.errors)
                    .add(&error, || self.describe_error(epoch, task, (called, returned), &error));
                if let Some(intent) = intent {
                    shared.sink.add(&intent)?;
                }
                lock(&self.pending).take();
                return Ok(false);
            }
        }
        lock(&self.pending).take();
        Ok(true)
    }
}

/// Returns whether an error leaves the outcome uncertain: a component between caller and file is
/// unavailable.
fn is_uncertain(error: &io::Error) -> bool {
    const UNAVAILABLE: [i32; 15] = [
        libc::EIO,
        libc::ETIMEDOUT,
        libc::EINTR,
        libc::EAGAIN,
        libc::ESTALE,
        libc::ENOTCONN,
        libc::ECONNABORTED,
        libc::ECONNREFUSED,
        libc::ECONNRESET,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EREMOTEIO,
        libc::ENOSPC,
        libc::ENODEV,
        // The error of calls in flight when the process of their mount is killed.
        libc::ECANCELED,
    ];
    // An error without a number comes from this program: a call that was executed partially.
    error.raw_os_error().is_none_or(|errno| UNAVAILABLE.contains(&errno))
}
