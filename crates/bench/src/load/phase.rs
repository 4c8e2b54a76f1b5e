//! One phase: threads that start together, and their results.

use super::backend::Backend;
use super::directory::with_context;
use super::histogram::Histogram;
use super::{Observer, Progress, machine};
use crate::results::Run;
use rt::sync::Event;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Interval at which the observer is asked whether to stop: imperceptible to a person, and cheap.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Interval at which the observer receives the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Failures after which a thread gives up: the cause is permanent.
const MAX_ERRORS: u64 = 100;

/// State shared by the threads of a phase.
pub(super) struct Shared {
    /// All threads wait for it before they start.
    start_barrier: Event,
    is_over: AtomicBool,
    done: AtomicU64,
    deadline: Option<Duration>,
}

/// Result of a thread.
pub(super) struct ThreadResult {
    pub begun: Instant,
    pub ended: Instant,
    pub operations: u64,
    pub bytes: u64,
    pub errors: u64,
    pub wrong_bytes: u64,
    pub latency: Histogram,
    /// The first failure or wrong byte.
    pub first_failure: Option<String>,
    /// Whether all operations were done, rather than those that the time allowed.
    pub is_complete: bool,
}

impl ThreadResult {
    pub fn new() -> ThreadResult {
        let now = Instant::now();
        ThreadResult {
            begun: now,
            ended: now,
            operations: 0,
            bytes: 0,
            errors: 0,
            wrong_bytes: 0,
            latency: Histogram::default(),
            first_failure: None,
            is_complete: false,
        }
    }

    /// Counts an operation that began at `since`.
    pub fn count(&mut self, since: Instant, bytes: u64) {
        self.latency.record(since.elapsed().as_nanos() as u64);
        self.operations += 1;
        self.bytes += bytes;
    }

    /// Counts a failure; returns an error when there were too many.
    pub fn fail(&mut self, what: impl FnOnce() -> String, cause: &Error) -> Result<()> {
        self.errors += 1;
        let first = self.first_failure.get_or_insert_with(|| format!("{}: {cause}", what()));
        if self.errors < MAX_ERRORS {
            return Ok(());
        }
        let text = format!("{MAX_ERRORS} operations of a thread failed; the first: {first}");
        Err(Error::new(cause.errno, text))
    }
}

impl Shared {
    pub fn new(deadline: Option<Duration>) -> Shared {
        Shared {
            start_barrier: Event::new(),
            is_over: AtomicBool::new(false),
            done: AtomicU64::new(0),
            deadline,
        }
    }

    /// Counts an operation; returns whether a thread that began at `begun` must end.
    pub fn count_operation(&self, begun: Instant) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.is_stopped() || self.deadline.is_some_and(|most| begun.elapsed() >= most)
    }

    pub fn is_stopped(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The work of a phase's threads.
pub(super) trait Work: Send + Sync + 'static {
    /// State prepared before any thread starts.
    type Prepared;

    /// Prepares a thread.
    fn prepare(&self, thread: u32) -> impl Future<Output = Result<Self::Prepared>>;

    /// Runs the timed part and releases what was prepared.
    fn work(
        &self,
        thread: u32,
        prepared: Self::Prepared,
        shared: &Arc<Shared>,
    ) -> impl Future<Output = Result<ThreadResult>>;
}

/// Description of a phase for the observer.
pub(super) struct Plan<'a> {
    pub observer: &'a dyn Observer,
    pub what: String,
    pub number: u32,
    pub of: u32,
    pub threads: u32,
    pub deadline: Option<Duration>,
    /// Operations of all threads, each counted once.
    pub operations: u64,
}

/// Result of a phase.
pub(super) struct Outcome {
    pub run: Run,
    pub latency: Histogram,
    pub first_failure: Option<String>,
    pub is_complete: bool,
    pub is_stopped: bool,
}

/// Runs a phase: all threads prepare before any starts. The first error ends all threads and is
/// returned.
pub(super) fn run<P: Backend, W: Work>(plan: &Plan<'_>, backend: &P, work: &Arc<W>) -> Result<Outcome> {
    let shared = Arc::new(Shared::new(plan.deadline));
    let cpu_before = machine::busy_s();
    let (sender, tallies) = mpsc::channel();
    let (ready_sender, ready) = mpsc::channel();
    let mut failure = None;
    for number in 0..plan.threads {
        let body = body(number, work.clone(), shared.clone(), ready_sender.clone(), sender.clone());
        if let Err(error) = backend.start(number, body) {
            shared.stop();
            let what = format!("can't start thread {number} of {}", plan.threads);
            failure = Some(with_context(what, error).hint("use fewer threads"));
            break;
        }
    }
    // A thread that panics drops its copies of these.
    drop((sender, ready_sender));
    while ready.recv().is_ok() {}
    let is_abandoned = !shared.is_stopped() && !plan.observer.barrier();
    if is_abandoned {
        shared.stop();
    }
    shared.start_barrier.set();
    let (tallies, is_stopped) = plan.wait_for_threads(&shared, &tallies);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let cpu_s = machine::busy_s().zip(cpu_before).map(|(after, before)| (after - before).max(0.0));
    let tallies = tallies.into_iter().collect::<Result<Vec<ThreadResult>>>()?;
    if tallies.len() < plan.threads as usize {
        let text = format!(
            "{} of {} threads ended because of a bug in weft",
            plan.threads as usize - tallies.len(),
            plan.threads
        );
        return Err(Error::new(Errno::ECANCELED, text).hint("the lines above show where"));
    }
    let mut outcome = gather(tallies, cpu_s);
    outcome.is_stopped = is_stopped || is_abandoned;
    Ok(outcome)
}

/// Returns the body of one thread.
fn body<W: Work>(
    number: u32,
    work: Arc<W>,
    shared: Arc<Shared>,
    ready: Sender<()>,
    results: Sender<Result<ThreadResult>>,
) -> impl FnOnce() -> std::pin::Pin<Box<dyn Future<Output = ()>>> + Send + 'static {
    move || {
        Box::pin(async move {
            let prepared = work.prepare(number).await;
            if prepared.is_err() {
                shared.stop();
            }
            // All threads are ready when no copy of it is left.
            drop(ready);
            shared.start_barrier.wait().await;
            let tally = match prepared {
                Ok(prepared) => work.work(number, prepared, &shared).await,
                Err(error) => Err(error),
            };
            if tally.is_err() {
                shared.stop();
            }
            // The receiver exists until all threads have ended.
            let _ = results.send(tally);
        })
    }
}

impl Plan<'_> {
    /// Waits until all threads have ended. Returns their results, and whether the observer has
    /// stopped them.
    fn wait_for_threads(
        &self,
        shared: &Shared,
        ending: &Receiver<Result<ThreadResult>>,
    ) -> (Vec<Result<ThreadResult>>, bool) {
        let (mut tallies, mut is_stopped) = (Vec::with_capacity(self.threads as usize), false);
        let began = Instant::now();
        let mut last_progress = began;
        loop {
            match ending.recv_timeout(STOP_POLL_INTERVAL) {
                Ok(tally) => tallies.push(tally),
                Err(RecvTimeoutError::Disconnected) => return (tallies, is_stopped),
                Err(RecvTimeoutError::Timeout) => {
                    is_stopped |= self.observer.is_stopped();
                    if is_stopped {
                        shared.stop();
                    }
                    if last_progress.elapsed() >= PROGRESS_INTERVAL {
                        last_progress = Instant::now();
                        self.observer.progress(&self.progress(shared, began));
                    }
                }
            }
        }
    }

    fn progress(&self, shared: &Shared, began: Instant) -> Progress {
        let elapsed = began.elapsed();
        let done = shared.done.load(Ordering::Relaxed) as f64 / self.operations.max(1) as f64;
        let passed = self.deadline.map_or(0.0, |most| elapsed.as_secs_f64() / most.as_secs_f64().max(0.001));
        let share = done.max(passed).min(1.0);
        let left = (share > 0.01).then(|| elapsed.mul_f64((1.0 - share) / share));
        Progress { what: self.what.clone(), phase: self.number, phases: self.of, share, left }
    }
}

fn gather(tallies: Vec<ThreadResult>, cpu_s: Option<f64>) -> Outcome {
    let begun = tallies.iter().map(|tally| tally.begun).min();
    let ended = tallies.iter().map(|tally| tally.ended).max();
    let seconds = ended.zip(begun).map_or(0.0, |(ended, begun)| ended.duration_since(begun).as_secs_f64());
    let mut latency = Histogram::default();
    tallies.iter().for_each(|tally| latency.merge(&tally.latency));
    let sum = |what: fn(&ThreadResult) -> u64| tallies.iter().map(what).sum();
    let run = Run {
        seconds,
        operations: sum(|tally| tally.operations),
        bytes: sum(|tally| tally.bytes),
        errors: sum(|tally| tally.errors),
        wrong_bytes: sum(|tally| tally.wrong_bytes),
        latency: latency.latency(),
        cpu_s,
    };
    let is_complete = tallies.iter().all(|tally| tally.is_complete && tally.errors == 0);
    let first = tallies.into_iter().find_map(|tally| tally.first_failure);
    Outcome { run, latency, first_failure: first, is_complete, is_stopped: false }
}
