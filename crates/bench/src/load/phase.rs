//! One phase: threads that begin together, and what each of them tells.

use super::folder::failed;
use super::histogram::Histogram;
use super::{Progress, Watch, machine};
use crate::results::Run;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// How often whoever watches is asked whether to stop: a person doesn't notice it, and a processor hardly.
const ASKED_EVERY: Duration = Duration::from_millis(10);

/// How often whoever watches is told how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Failures of one thread after which it gives up: something is wrong that no waiting mends.
const MOST_ERRORS: u64 = 100;

/// What the threads of a phase have in common.
pub(super) struct Shared {
    is_over: AtomicBool,
    done: AtomicU64,
    deadline: Option<Duration>,
}

/// What a thread has done.
pub(super) struct Tally {
    pub begun: Instant,
    pub ended: Instant,
    pub operations: u64,
    pub bytes: u64,
    pub errors: u64,
    pub wrong_bytes: u64,
    pub latency: Histogram,
    /// The first failure, and the first wrong byte.
    pub first: Option<String>,
    /// Whether all was done, rather than what time allowed.
    pub is_complete: bool,
}

impl Tally {
    pub fn new() -> Tally {
        let now = Instant::now();
        Tally {
            begun: now,
            ended: now,
            operations: 0,
            bytes: 0,
            errors: 0,
            wrong_bytes: 0,
            latency: Histogram::default(),
            first: None,
            is_complete: false,
        }
    }

    /// Counts an operation that was begun at `since`.
    pub fn count(&mut self, since: Instant, bytes: u64) {
        self.latency.record(since.elapsed().as_nanos() as u64);
        self.operations += 1;
        self.bytes += bytes;
    }

    /// Counts a failure; an error when there were too many.
    pub fn fail(&mut self, what: impl FnOnce() -> String, cause: &std::io::Error) -> Result<()> {
        self.errors += 1;
        let first = self.first.get_or_insert_with(|| format!("{}: {cause}", what()));
        if self.errors < MOST_ERRORS {
            return Ok(());
        }
        let errno = cause.raw_os_error().map_or(Errno::EIO, Errno);
        Err(Error::new(errno, format!("{MOST_ERRORS} operations of a thread failed; the first: {first}")))
    }
}

impl Shared {
    pub fn new(deadline: Option<Duration>) -> Shared {
        Shared { is_over: AtomicBool::new(false), done: AtomicU64::new(0), deadline }
    }

    /// Whether a thread that began then has to end, having done one operation more.
    pub fn is_over(&self, begun: Instant) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.is_stopped() || self.deadline.is_some_and(|most| begun.elapsed() >= most)
    }

    pub fn is_stopped(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// What a phase is to whoever watches.
pub(super) struct Plan<'a> {
    pub watch: &'a dyn Watch,
    pub what: String,
    pub number: u32,
    pub of: u32,
    pub threads: u32,
    pub deadline: Option<Duration>,
    /// Operations of all threads, once each.
    pub operations: u64,
}

/// What came of it.
pub(super) struct Outcome {
    pub run: Run,
    pub latency: Histogram,
    pub first: Option<String>,
    pub is_complete: bool,
    pub is_stopped: bool,
}

/// Runs it: `prepare` of each thread before any begins, then `work` of all. The first error ends all threads and is returned.
pub(super) fn run<P>(
    plan: &Plan<'_>,
    prepare: impl Fn(u32) -> Result<P> + Sync,
    work: impl Fn(u32, P, &Shared) -> Result<Tally> + Sync,
) -> Result<Outcome> {
    let shared = Shared::new(plan.deadline);
    // All wait for it to open: unlike a barrier it can be opened when a thread couldn't be started.
    let gate = RwLock::new(());
    let (prepare, work, shared, gate) = (&prepare, &work, &shared, &gate);
    let cpu_before = machine::busy_s();
    let began = Instant::now();
    let mut told = began;
    let mut is_stopped = false;
    let mut tallies = Vec::with_capacity(plan.threads as usize);
    let started = thread::scope(|scope| {
        let closed = gate.write();
        let (sender, receiver) = mpsc::channel();
        let (ready_sender, ready) = mpsc::channel();
        for number in 0..plan.threads {
            let (sender, ready_sender) = (sender.clone(), ready_sender.clone());
            let body = move || {
                let prepared = prepare(number);
                if prepared.is_err() {
                    shared.is_over.store(true, Ordering::Relaxed);
                }
                // Both receivers are there until all threads have ended.
                let _ = ready_sender.send(());
                drop(gate.read());
                let tally = prepared.and_then(|prepared| work(number, prepared, shared));
                if tally.is_err() {
                    shared.is_over.store(true, Ordering::Relaxed);
                }
                let _ = sender.send(tally);
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, body) {
                shared.is_over.store(true, Ordering::Relaxed);
                return Err(failed(format!("can't start thread {number} of {}", plan.threads), &error)
                    .hint("use fewer threads"));
            }
        }
        // A thread that panics drops what it had of these, and the scope passes its panic on.
        drop((sender, ready_sender));
        for _ in 0..plan.threads {
            let _ = ready.recv();
        }
        if !shared.is_stopped() && !plan.watch.meet() {
            is_stopped = true;
            shared.is_over.store(true, Ordering::Relaxed);
        }
        drop(closed);
        while tallies.len() < plan.threads as usize {
            match receiver.recv_timeout(ASKED_EVERY) {
                Ok(tally) => tallies.push(tally),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    is_stopped |= plan.watch.is_stopped();
                    if is_stopped {
                        shared.is_over.store(true, Ordering::Relaxed);
                    }
                    if told.elapsed() >= TOLD_EVERY {
                        told = Instant::now();
                        plan.watch.progress(&plan.progress(shared, began));
                    }
                }
            }
        }
        Ok(())
    });
    started?;
    let cpu_s = machine::busy_s().zip(cpu_before).map(|(after, before)| (after - before).max(0.0));
    let mut outcome = gather(tallies.into_iter().collect::<Result<Vec<Tally>>>()?, cpu_s);
    outcome.is_stopped = is_stopped;
    Ok(outcome)
}

impl Plan<'_> {
    fn progress(&self, shared: &Shared, began: Instant) -> Progress {
        let elapsed = began.elapsed();
        let done = shared.done.load(Ordering::Relaxed) as f64 / self.operations.max(1) as f64;
        let passed = self.deadline.map_or(0.0, |most| elapsed.as_secs_f64() / most.as_secs_f64().max(0.001));
        let share = done.max(passed).min(1.0);
        let left = (share > 0.01).then(|| elapsed.mul_f64((1.0 - share) / share));
        Progress { what: self.what.clone(), phase: self.number, phases: self.of, share, left }
    }
}

fn gather(tallies: Vec<Tally>, cpu_s: Option<f64>) -> Outcome {
    let begun = tallies.iter().map(|tally| tally.begun).min();
    let ended = tallies.iter().map(|tally| tally.ended).max();
    let seconds = ended.zip(begun).map_or(0.0, |(ended, begun)| ended.duration_since(begun).as_secs_f64());
    let mut latency = Histogram::default();
    tallies.iter().for_each(|tally| latency.merge(&tally.latency));
    let sum = |what: fn(&Tally) -> u64| tallies.iter().map(what).sum();
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
    let first = tallies.into_iter().find_map(|tally| tally.first);
    Outcome { run, latency, first, is_complete, is_stopped: false }
}
