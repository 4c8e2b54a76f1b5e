//! The load: many threads on several mounts, and every call's time and answer on record.

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

/// How long threads work on the same objects before they get fresh ones.
const EPOCH: Duration = Duration::from_millis(1500);

/// A thread pauses for less than so many microseconds between two calls: with fewer, one thread
/// holds what it touches for long.
const MAX_PAUSE_US: u64 = 400;

/// After an error a thread waits so long, so that a dead file system doesn't fill the record.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// Options of `cargo xtask history load`.
#[derive(clap::Args, Clone, Debug)]
pub struct LoadOptions {
    /// A folder of the file system, once for each mount that shows it.
    #[arg(long = "mount", required = true, value_name = "DIR")]
    pub mounts: Vec<PathBuf>,
    /// Threads on each mount.
    #[arg(long, default_value_t = 4)]
    pub threads: u32,
    /// How long, at least.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Go on until so many calls have returned, however long that takes on a busy machine, but no
    /// longer than the time for a last call beyond that.
    #[arg(long, default_value_t = 0)]
    pub calls: u64,
    /// Go on until standard input ends, too: whoever started the load tells it so when it has seen
    /// enough.
    #[arg(long)]
    pub until_told: bool,
    /// Seed of what is done.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Which ways of opening files go together on one object.
    #[arg(long, default_value = "by-epoch")]
    pub mix: Mix,
    /// Seconds that a call may still take when time is up; then it counts as one that never
    /// returned.
    #[arg(long, default_value_t = 90)]
    pub grace: u64,
    /// Where to write the history.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// How a load ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Calls that returned.
    pub calls: u64,
    /// Of them, those that failed with an error that says nothing on the effect.
    pub errors: BTreeMap<String, u64>,
    /// The first of them: who called for what, when, and what was the answer.
    pub first_errors: Vec<String>,
    /// Threads whose last call never returned.
    pub stuck: u64,
}

/// How many errors are told one by one.
const TOLD_ERRORS: usize = 12;

impl Outcome {
    /// As one line.
    pub fn to_json(&self) -> String {
        let Outcome { calls, errors, first_errors, stuck } = self;
        serde_json::json!({"calls": calls, "errors": errors, "first_errors": first_errors, "stuck": stuck})
            .to_string()
    }

    /// From the line.
    pub fn parse(line: &str) -> Option<Outcome> {
        let json: serde_json::Value = serde_json::from_str(line.trim()).ok()?;
        let errors = json["errors"].as_object()?.iter();
        let errors = errors.map(|(name, count)| Some((name.clone(), count.as_u64()?)));
        let first_errors = json["first_errors"].as_array()?.iter();
        Some(Outcome {
            calls: json["calls"].as_u64()?,
            errors: errors.collect::<Option<_>>()?,
            first_errors: first_errors
                .map(|told| told.as_str().map(str::to_string))
                .collect::<Option<_>>()?,
            stuck: json["stuck"].as_u64()?,
        })
    }
}

/// What all threads share.
struct Shared {
    start: Instant,
    sink: Sink,
    epoch: AtomicU64,
    stop: AtomicBool,
    /// For values that nothing else has; small, so that they can be read.
    unique: AtomicU64,
    calls: AtomicU64,
    errors: Mutex<Errors>,
    /// Nobody wants it to go on any longer.
    told: AtomicBool,
}

/// Errors by their text, and the first of them one by one.
#[derive(Clone, Default)]
struct Errors {
    counts: BTreeMap<String, u64>,
    first: Vec<String>,
}

impl Errors {
    fn add(&mut self, error: &io::Error, told: impl FnOnce() -> String) {
        *self.counts.entry(error.to_string()).or_default() += 1;
        if self.first.len() < TOLD_ERRORS {
            self.first.push(told());
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
    /// The change under way, for the case that it never returns.
    pending: Arc<Mutex<Option<Record>>>,
}

/// Runs the load to its end. A failure is one of the history's file or of the first folders, not of
/// the calls.
pub fn run(options: &LoadOptions) -> Result<Outcome, String> {
    let at = |error: io::Error| format!("{}: {error}", options.out.display());
    let shared = Arc::new(Shared {
        start: Instant::now(),
        sink: Sink::create(&options.out).map_err(at)?,
        epoch: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        unique: AtomicU64::new(0),
        calls: AtomicU64::new(0),
        errors: Mutex::default(),
        told: AtomicBool::new(!options.until_told),
    });
    options.mounts.iter().try_for_each(|mount| ensure_empty(mount))?;
    make_epoch(&options.mounts, 0).map_err(|error| format!("the load's first folder: {error}"))?;
    let callers = start(options, &shared);
    if options.until_told {
        listen(&shared);
    }
    while !wait_for_end(options, &shared, EPOCH) {
        let next = shared.epoch.load(SeqCst) + 1;
        // While the file system is out of order the old objects have to do.
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
        look_at_all(options, &shared).map_err(at)?;
    }
    shared.sink.flush().map_err(at)?;
    let errors = lock(&shared.errors).clone();
    Ok(Outcome {
        calls: shared.calls.load(SeqCst),
        errors: errors.counts,
        first_errors: errors.first,
        stuck: stuck.len() as u64,
    })
}

/// Notes when standard input ends.
fn listen(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        // An error ends it like its end.
        drop(io::copy(&mut io::stdin(), &mut io::sink()));
        shared.told.store(true, SeqCst);
    });
}

/// Waits for so long, or until the load is to end; whether it is.
fn wait_for_end(options: &LoadOptions, shared: &Shared, time: Duration) -> bool {
    let enough = Duration::from_secs(options.seconds);
    let most = enough + Duration::from_secs(options.grace);
    process::eventually(time, || {
        let elapsed = shared.start.elapsed();
        let has_calls = shared.calls.load(SeqCst) >= options.calls || elapsed >= most;
        elapsed >= enough && has_calls && shared.told.load(SeqCst)
    })
}

/// What an older run has left would look like content from nowhere.
fn ensure_empty(mount: &Path) -> Result<(), String> {
    match fs::read_dir(mount).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} isn't empty; hint: make a new folder for the load", mount.display())),
        Err(error) => Err(format!("{}: {error}", mount.display())),
    }
}

/// The folder of an epoch.
fn folder(mount: &Path, epoch: u64) -> PathBuf {
    mount.join(format!("epoch-{epoch}"))
}

/// Makes the folder of an epoch. Each mount is asked: after the first one it exists for all of
/// them.
fn make_epoch(mounts: &[PathBuf], epoch: u64) -> io::Result<()> {
    mounts.iter().try_for_each(|mount| fs::create_dir_all(folder(mount, epoch)))
}

type Running = (Arc<Mutex<Option<Record>>>, JoinHandle<()>);

fn start(options: &LoadOptions, shared: &Arc<Shared>) -> Vec<Running> {
    let mut running = Vec::new();
    for (client, mount) in (0u32..).zip(&options.mounts) {
        for thread in 0..options.threads {
            let pending = Arc::new(Mutex::new(None));
            let mut caller = Caller {
                shared: Arc::clone(shared),
                client,
                thread,
                mount: mount.clone(),
                mix: options.mix,
                pending: Arc::clone(&pending),
            };
            let seed = options.seed.wrapping_mul(0x1_0001).wrapping_add(u64::from(client * 1000 + thread));
            running.push((pending, thread::spawn(move || caller.work(Rng::new(seed)))));
        }
    }
    running
}

/// When all is quiet, looks at every object from every mount.
fn look_at_all(options: &LoadOptions, shared: &Arc<Shared>) -> io::Result<()> {
    for epoch in 0..=shared.epoch.load(SeqCst) {
        for (client, mount) in (0u32..).zip(&options.mounts) {
            let mut caller = Caller {
                shared: Arc::clone(shared),
                client,
                thread: options.threads,
                mount: mount.clone(),
                mix: options.mix,
                pending: Arc::default(),
            };
            let mut worker = Worker::new(&folder(mount, epoch));
            for task in Task::look_at_all() {
                caller.call(&mut worker, epoch, task)?;
            }
        }
    }
    Ok(())
}

impl Caller {
    fn work(&mut self, mut rng: Rng) {
        let mut epoch = self.shared.epoch.load(SeqCst);
        let mut worker = Worker::new(&folder(&self.mount, epoch));
        while !self.shared.stop.load(SeqCst) {
            let current = self.shared.epoch.load(SeqCst);
            if current != epoch {
                epoch = current;
                worker = Worker::new(&folder(&self.mount, epoch));
            }
            // Files stay open for a while, so that both what an open sees and what an open file
            // sees is tried.
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
                    eprintln!("the history can't be written: {error}");
                    return;
                }
            }
        }
    }

    /// An error with the time of day, by which it is found in the services' logs.
    fn told(&self, epoch: u64, task: Task, (called, returned): (u64, u64), error: &io::Error) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (hours, minutes, seconds) = (now / 3600 % 24, now / 60 % 60, now % 60);
        format!(
            "{hours:02}:{minutes:02}:{seconds:02} UTC, mount {}, thread {}, epoch {epoch}, {task:?}: {error}, {} ms after the call",
            self.client,
            self.thread,
            (returned - called) / 1_000_000
        )
    }

    /// Makes a call and puts it on record; `false` when its outcome isn't known. An error is one of
    /// the record.
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
        let intent = task.intent(unique).map(|event| record(called, None, event));
        lock(&self.pending).clone_from(&intent);
        let outcome = worker.perform(task, unique);
        let returned = shared.now_ns();
        shared.calls.fetch_add(1, SeqCst);
        match outcome {
            Ok(event) => shared.sink.add(&record(called, Some(returned), event))?,
            Err(error) if !says_nothing(&error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let event = Event::Refused { what: format!("{task:?}"), errno };
                shared.sink.add(&record(called, Some(returned), event))?;
            }
            Err(error) => {
                lock(&shared.errors).add(&error, || self.told(epoch, task, (called, returned), &error));
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

/// Whether an error leaves open what happened: something on the way is out of order.
fn says_nothing(error: &io::Error) -> bool {
    const OUT_OF_ORDER: [i32; 15] = [
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
        // What calls under way are told when the process of their mount is killed.
        libc::ECANCELED,
    ];
    // Without a number it is one of our own: a call that was done in part.
    error.raw_os_error().is_none_or(|errno| OUT_OF_ORDER.contains(&errno))
}
