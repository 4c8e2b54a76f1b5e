//! Load generator: threads operate on a directory and measure the duration.
//!
//! Each operation of an experiment is a phase. Its threads open what they need, meet at a barrier,
//! and are timed from the first start to the last end. A write's time includes its fsync. All files
//! are in a separate directory, which is removed however the load ends. Results from before a
//! failure are reported with it.

mod backend;
mod buffer;
mod content;
mod cores;
mod directory;
mod histogram;
mod io;
mod kernel;
mod machine;
mod meta;
mod multi_client;
mod phase;
mod preflight;
mod ring;

pub use backend::{Backend, BackendFile};
pub use cores::Cores;
pub use histogram::Histogram;
pub use kernel::Kernel;
pub use machine::machine;
pub use multi_client::{ClientRank, ClientReport, merge_reports};
pub use preflight::{check, check_for, check_parameters};

use crate::experiment::{Caching, Experiment, Operation, Through};
use crate::results::{Measured, Run};
use ceilings::median;
use directory::LoadDirectory;
use std::path::Path;
use std::time::Duration;
use types::{Error, Result};

/// Rounds whose median is the generator's own overhead: another process may have used the processor
/// in one of them.
const NULL_ROUNDS: u32 = 5;

/// Observes a load: a progress line, Ctrl-C, a test.
pub trait Observer: Sync {
    /// Called several times per second.
    fn progress(&self, _progress: &Progress) {}
    /// Returns whether to stop: called many times per second. The current phase isn't reported
    /// then.
    fn is_stopped(&self) -> bool {
        false
    }
    /// Returns this client's rank among those of the load.
    fn rank(&self) -> ClientRank {
        ClientRank::SINGLE
    }
    /// Waits until all clients have arrived; returns false when that can't happen any more and the
    /// load must end.
    fn barrier(&self) -> bool {
        true
    }
    /// Called before each measured phase, when its files are prepared, with their directory.
    fn before_phase(&self, _operation: Operation, _folder: &Path) {}
}

/// Observes nothing.
pub struct NoObserver;

impl Observer for NoObserver {}

/// Progress of a load.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The phase: `write`, say, or `making files` for an unmeasured one.
    pub what: String,
    /// Its number, from 1.
    pub phase: u32,
    /// Number of phases of all iterations.
    pub phases: u32,
    /// Completed share of this phase, 0 to 1.
    pub share: f64,
    /// Estimated remaining time of this phase.
    pub left: Option<Duration>,
}

/// Result of a load.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadResult {
    /// One for each operation, in order; those without a run weren't reached.
    pub measured: Vec<Measured>,
    /// Latencies of the operations of each run, in the order of the runs.
    pub histograms: Vec<Vec<Histogram>>,
    /// Notes for the reader: first failures, wrong bytes, an early stop.
    pub notes: Vec<String>,
    /// Whether it was stopped early.
    pub is_stopped: bool,
    /// Error that ended it early: while preparing, after too many failed operations, or while
    /// cleaning up. Earlier results are kept.
    pub failure: Option<Error>,
}

/// Runs the load of an experiment on a directory, `iterations` times, by system calls. The files
/// are always removed.
///
/// # Errors
/// An impossible experiment is refused before anything is written. Later errors are in
/// [`LoadResult::failure`].
pub fn run(
    experiment: &Experiment,
    dir: &Path,
    iterations: u32,
    observer: &dyn Observer,
) -> Result<LoadResult> {
    run_on(&Kernel, experiment, dir, iterations, observer)
}

/// Like [`run`], with another backend for the same directory. The load's directory is still created
/// and removed by system calls.
///
/// # Errors
/// The same as those of [`run`].
pub fn run_on(
    place: &impl Backend,
    experiment: &Experiment,
    dir: &Path,
    iterations: u32,
    observer: &dyn Observer,
) -> Result<LoadResult> {
    check(experiment, dir)?;
    let operations = experiment.operations();
    let figure = |one: &Operation| experiment.measured(*one, observer.rank(), access_path_of(place));
    let mut result = LoadResult {
        measured: operations.iter().map(figure).collect(),
        histograms: vec![Vec::new(); operations.len()],
        ..LoadResult::default()
    };
    for measured in &mut result.measured {
        measured.generator_ns = Some(null_overhead_ns(experiment, measured.operation)?);
    }
    for iteration in 0..iterations {
        result.failure =
            iterate(place, experiment, dir, (iteration, iterations), observer, &mut result).err();
        if result.failure.is_some() || result.is_stopped {
            break;
        }
    }
    Ok(result)
}

fn access_path_of<P: Backend>(_: &P) -> Through {
    P::ACCESS_PATH
}

/// Runs one iteration in a directory that is removed.
fn iterate(
    place: &impl Backend,
    experiment: &Experiment,
    dir: &Path,
    (iteration, iterations): (u32, u32),
    observer: &dyn Observer,
    result: &mut LoadResult,
) -> Result<()> {
    let rank = observer.rank();
    if iteration > 0 && rank == ClientRank::SINGLE {
        // The file system may still be freeing the space of the previous iteration.
        check(experiment, dir)?;
    }
    let folder = LoadDirectory::make(dir, rank, iteration)?;
    let operations = experiment.operations().len() as u32;
    let mut stage = Stage {
        folder: folder.path(),
        observer,
        seed: u64::from(iteration),
        phase: iteration * operations,
        phases: iterations * operations,
        result,
    };
    let outcome = match experiment {
        Experiment::Io(io) => io::iterate(io, place, &mut stage),
        Experiment::Meta(meta) => meta::iterate(meta, place, &mut stage),
    };
    if rank != ClientRank::SINGLE && outcome.is_ok() && !stage.result.is_stopped && !observer.barrier() {
        stage.stop();
    }
    match (outcome, folder.remove()) {
        (Err(error), Err(left)) => {
            // Both errors must be reported, and only one can be returned.
            result.notes.push(left.to_string());
            Err(error)
        }
        (outcome, removed) => outcome.and(removed),
    }
}

/// Returns the generator's own time per operation, in nanoseconds: the same loop (one operation at
/// a time) against a target that does nothing. Subtract it from latencies where it matters.
fn null_overhead_ns(experiment: &Experiment, operation: Operation) -> Result<f64> {
    let once = |_| match experiment {
        Experiment::Io(io) => io::null_overhead_ns(io, operation),
        Experiment::Meta(meta) => meta::null_overhead_ns(meta, operation),
    };
    let mut rounds = (0..NULL_ROUNDS).map(once).collect::<Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    // More digits would suggest a false precision.
    Ok(median(&rounds).unwrap_or_default().round())
}

/// One iteration.
struct Stage<'a> {
    folder: &'a Path,
    observer: &'a dyn Observer,
    seed: u64,
    /// Completed phases.
    phase: u32,
    phases: u32,
    result: &'a mut LoadResult,
}

impl<'a> Stage<'a> {
    fn plan(&self, what: &str, threads: u32, operations: u64, deadline: Option<Duration>) -> phase::Plan<'a> {
        phase::Plan {
            observer: self.observer,
            what: what.to_string(),
            number: self.phase + 1,
            of: self.phases,
            threads,
            deadline,
            operations,
        }
    }

    /// Records the result of a measured phase; returns whether to continue.
    fn record_phase(&mut self, index: usize, outcome: phase::Outcome) -> bool {
        self.phase += 1;
        if let Some(first) = outcome.first_failure {
            self.result.notes.push(first);
        }
        if outcome.is_stopped {
            return self.stop();
        }
        self.result.histograms[index].push(outcome.latency);
        let measured = &mut self.result.measured[index];
        let is_buffered = measured.operation == Operation::Write && measured.caching != Caching::Direct;
        let own_bytes = measured.total_bytes / u64::from(measured.clients);
        let rewrote_cached_records = is_buffered && outcome.run.bytes > own_bytes;
        measured.runs.push(outcome.run);
        if rewrote_cached_records {
            let reason = "records were written again in the client's cache before they were synced";
            self.note_cached(index, reason.to_string());
        }
        !self.observer.is_stopped() || self.stop()
    }

    fn stop(&mut self) -> bool {
        self.result.is_stopped = true;
        self.result.notes.push("stopped early: the phase in progress isn't reported".to_string());
        false
    }

    /// Drops caches before a phase that reads, and notes where caches may answer anyway.
    fn prepare_caches(&mut self, index: usize, caching: Caching) {
        let measured = &self.result.measured[index];
        let (total, memory) =
            (measured.total_bytes / u64::from(self.observer.rank().clients), machine::memory_bytes());
        let reads = !matches!(measured.operation, Operation::Write | Operation::Create);
        // Direct transfers of a local device's file system bypass all caches of this machine. Those
        // of other file systems may come from a server on this machine, which has a cache.
        let bypasses_caches = || caching == Caching::Direct && machine::is_on_device(self.folder);
        let reason = match caching {
            Caching::Warm => "caches were left as they were (warm)".to_string(),
            _ if !reads || bypasses_caches() || machine::drop_caches() || total >= 2 * memory => return,
            _ => format!(
                "the servers' caches may have answered: only root can drop them, and {total} bytes are less than twice the memory ({memory})"
            ),
        };
        self.note_cached(index, reason);
    }

    /// Notes why a result is a cache's; the reasons of all iterations are kept.
    fn note_cached(&mut self, index: usize, reason: String) {
        let cached = &mut self.result.measured[index].cached;
        match cached {
            Some(others) if others.contains(&reason) => {}
            Some(others) => *others += &format!("; {reason}"),
            None => *cached = Some(reason),
        }
    }
}

impl Experiment {
    fn measured(&self, operation: Operation, rank: ClientRank, through: Through) -> Measured {
        let clients = rank.clients;
        let runs: Vec<Run> = Vec::new();
        match self {
            Experiment::Io(io) => Measured {
                experiment: io.name.clone(),
                operation,
                clients,
                threads: rank.threads(io.threads),
                record_bytes: io.record_bytes,
                total_bytes: u64::from(rank.threads(io.threads)) * io.thread_bytes,
                queue_depth: io.queue_depth,
                sharing: Some(io.sharing),
                caching: io.caching,
                through,
                runs,
                cached: None,
                generator_ns: None,
                binding: None,
            },
            Experiment::Meta(meta) => Measured {
                experiment: meta.name.clone(),
                operation,
                clients,
                threads: rank.threads(meta.threads),
                record_bytes: meta.file_bytes,
                total_bytes: u64::from(rank.threads(meta.threads)) * meta.thread_files * meta.file_bytes,
                queue_depth: 1,
                sharing: None,
                caching: meta.caching,
                through,
                runs,
                cached: None,
                generator_ns: None,
                binding: None,
            },
        }
    }
}
